//! A disk that loses power: what was never synced to it is gone.
//!
//! A file system on a loop device. What the device's file holds at the moment of the cut is what the disk has; pages that the
//! file system still kept in memory are not in it. That file is copied, and the file system is mounted from the copy. (The
//! disk itself is taken to keep all it was given, synced or not: gentler than some disks, never harsher.) Needs root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SIZE: u64 = 512 << 20;

/// A file system whose disk can be looked at.
#[derive(Debug)]
pub struct Disk {
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    /// Mounts a new one as `name` in a folder; `None` where that is impossible.
    #[must_use]
    pub fn make(folder: &Path, name: &str) -> Option<Disk> {
        let disk = Disk {
            image: folder.join(format!("{name}.disk")),
            at: folder.join(name),
        };
        std::fs::create_dir_all(&disk.at).ok()?;
        let file = std::fs::File::create(&disk.image).ok()?;
        file.set_len(SIZE).ok()?;
        let made = quiet(
            Command::new("mkfs.ext4")
                .args(["-q", "-F"])
                .arg(&disk.image),
        );
        (made && disk.mount()).then_some(disk)
    }

    /// Its root folder.
    #[must_use]
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// `commit=300`: the journal is not written every 5 s, so that what a run shows does not hang on when it ended.
    fn mount(&self) -> bool {
        quiet(
            Command::new("mount")
                .args(["-o", "loop,commit=300"])
                .arg(&self.image)
                .arg(&self.at),
        )
    }

    fn unmount(&self) -> bool {
        quiet(Command::new("umount").arg(&self.at))
    }

    fn aside(&self) -> PathBuf {
        self.image.with_extension("cut")
    }

    /// Remembers what the disk holds right now.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn freeze(&self) -> Result<(), String> {
        let mut copy = Command::new("cp");
        copy.arg("--sparse=always")
            .arg(&self.image)
            .arg(self.aside());
        done(quiet(&mut copy), "the disk cannot be copied")
    }

    /// Comes back with what it held then. Nothing may have a file of it open.
    ///
    /// # Errors
    /// It is in use, or does not mount.
    pub fn thaw(&self) -> Result<(), String> {
        done(self.unmount(), "the file system is in use")?;
        std::fs::rename(self.aside(), &self.image).map_err(|why| why.to_string())?;
        done(self.mount(), "the file system does not mount")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Not mounted, or busy with a process that is just ending: then lazily.
        if !self.unmount() {
            let _ = quiet(Command::new("umount").arg("-l").arg(&self.at));
        }
    }
}

fn done(well: bool, otherwise: &str) -> Result<(), String> {
    if well {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}

fn quiet(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
