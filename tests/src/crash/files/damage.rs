//! Ways to damage a folder of files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// One bit is the other way round.
    Flip,
    /// A sector reads as zeros.
    Zeros,
    /// A sector reads as something else.
    Garbage,
    /// A file ends somewhere in its last part.
    TornEnd,
    /// A file ends anywhere.
    Cut,
    /// A file is empty.
    Emptied,
    /// A file is gone.
    Gone,
    /// A file is as it was some time ago.
    Older,
}

const ALL: [Damage; 12] = [
    Damage::Flip,
    Damage::Flip,
    Damage::Flip,
    Damage::Flip,
    Damage::Flip,
    Damage::Zeros,
    Damage::Garbage,
    Damage::TornEnd,
    Damage::Cut,
    Damage::Emptied,
    Damage::Gone,
    Damage::Older,
];
const SECTOR: u64 = 512;

/// Draws a way.
pub fn draw(dice: &mut fastrand::Rng) -> Damage {
    ALL[dice.usize(..ALL.len())]
}

/// Damages one file below `folder`, drawn by size (but small ones often enough). Says what was done.
///
/// # Errors
/// The system's.
pub fn apply(
    damage: Damage,
    folder: &Path,
    older: &Path,
    dice: &mut fastrand::Rng,
) -> io::Result<String> {
    let mut files = Vec::new();
    below(folder, &mut files)?;
    files.retain(|(path, length)| {
        *length > 0 && path.file_name().is_some_and(|name| name != "lock")
    });
    files.sort();
    let total: u64 = files.iter().map(|(_, length)| length).sum();
    let mut at = dice.u64(..total.max(1));
    let mut chosen = dice.usize(..files.len());
    if dice.bool() {
        for (n, (_, length)) in files.iter().enumerate() {
            if at < *length {
                chosen = n;
                break;
            }
            at -= length;
        }
    }
    let (path, length) = &files[chosen];
    let name = path.strip_prefix(folder).unwrap_or(path).to_path_buf();
    let words = hit(damage, path, *length, &older.join(&name), dice)?;
    Ok(format!("{}: {words}", name.display()))
}

fn hit(
    damage: Damage,
    path: &Path,
    length: u64,
    older: &Path,
    dice: &mut fastrand::Rng,
) -> io::Result<String> {
    let mut bytes = fs::read(path)?;
    let place = dice.usize(..bytes.len());
    let sector = place - place % SECTOR as usize;
    let end = bytes.len().min(sector + SECTOR as usize);
    let words = match damage {
        Damage::Flip => {
            let bit = dice.u8(..8);
            bytes[place] ^= 1 << bit;
            format!("bit {bit} of byte {place} of {length} flipped")
        }
        Damage::Zeros => {
            bytes[sector..end].fill(0);
            format!("bytes {sector}..{end} of {length} zeroed")
        }
        Damage::Garbage => {
            for byte in &mut bytes[sector..end] {
                *byte = dice.u8(..);
            }
            format!("bytes {sector}..{end} of {length} garbled")
        }
        Damage::TornEnd => {
            let keep = bytes.len() - 1 - dice.usize(..bytes.len().min(800));
            bytes.truncate(keep);
            format!("cut from {length} to {keep}")
        }
        Damage::Cut => {
            bytes.truncate(place);
            format!("cut from {length} to {place}")
        }
        Damage::Emptied => {
            bytes.clear();
            "emptied".to_owned()
        }
        Damage::Gone => {
            fs::remove_file(path)?;
            return Ok("gone".to_owned());
        }
        Damage::Older => match fs::read(older) {
            Ok(before) => {
                bytes = before;
                "put back to an older one".to_owned()
            }
            Err(_) => {
                fs::remove_file(path)?;
                return Ok("gone (it was not there before)".to_owned());
            }
        },
    };
    fs::write(path, bytes)?;
    Ok(words)
}

fn below(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    for child in fs::read_dir(folder)? {
        let child = child?;
        if child.file_type()?.is_dir() {
            below(&child.path(), files)?;
        } else {
            files.push((child.path(), child.metadata()?.len()));
        }
    }
    Ok(())
}
