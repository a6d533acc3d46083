//! The files around an embedded store: making it, its identity, and the mark of its end.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

use fjall::{KeyspaceCreateOptions, PersistMode};
use migrations::store::EMBEDDED_LAYOUT;
use schemas::{LogId, Position};

use crate::crash;

use super::store::{
    LAYOUT_KEY, LOG_ID_KEY, META, OpenError, damaged, database_error, open_database,
};

/// Makes a store aside and moves it into place by one rename.
pub(super) fn make(dir: &Path, log_id: LogId) -> Result<(), OpenError> {
    let io = |source| OpenError::Folder {
        dir: dir.to_owned(),
        source,
    };
    let aside = dir.join("store.new");
    if aside.try_exists().map_err(io)? {
        // A creation that a crash cut short: it was never in place, so it holds nothing.
        fs::remove_dir_all(&aside).map_err(io)?;
    }
    let fill = || -> fjall::Result<()> {
        let database = open_database(&aside)?;
        for name in ["records", "tails", "subjects"] {
            database.keyspace(name, KeyspaceCreateOptions::default)?;
        }
        let meta = database.keyspace(META, KeyspaceCreateOptions::default)?;
        meta.insert(LAYOUT_KEY, EMBEDDED_LAYOUT.to_string())?;
        meta.insert(LOG_ID_KEY, log_id.to_string())?;
        meta.rotate_memtable_and_wait()?;
        database.persist(PersistMode::SyncAll)
    };
    fill().map_err(|why| database_error(dir, &why))?;
    sync_tree(&aside).map_err(io)?;
    write_end(dir).map_err(io)?;
    crash::point("embedded.made_aside");
    fs::rename(&aside, dir.join("store")).map_err(io)?;
    crash::point("embedded.in_place");
    sync_folder(dir).map_err(io)?;
    // The folder itself must survive too.
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent).map_err(io)?,
        Some(_) | None => {}
    }
    write_identity(dir, log_id).map_err(io)
}

pub(super) fn read_identity(dir: &Path) -> Result<Option<LogId>, OpenError> {
    match fs::read_to_string(dir.join("identity")) {
        Ok(text) => text
            .trim()
            .parse()
            .map(Some)
            .map_err(|_| damaged(dir, "its identity file is no UUID")),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Folder {
            dir: dir.to_owned(),
            source,
        }),
    }
}

pub(super) fn write_identity(dir: &Path, log_id: LogId) -> std::io::Result<()> {
    let aside = dir.join("identity.new");
    let mut file = File::create(&aside)?;
    writeln!(file, "{log_id}")?;
    file.sync_all()?;
    fs::rename(aside, dir.join("identity"))?;
    sync_folder(dir)
}

fn write_end(dir: &Path) -> std::io::Result<()> {
    let mut file = File::create(dir.join("end"))?;
    file.write_all(&EndMark::bytes(Position::START))?;
    file.sync_all()
}

fn sync_folder(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

fn sync_tree(dir: &Path) -> std::io::Result<()> {
    for child in fs::read_dir(dir)? {
        let child = child?;
        if child.file_type()?.is_dir() {
            sync_tree(&child.path())?;
        } else {
            File::open(child.path())?.sync_all()?;
        }
    }
    sync_folder(dir)
}

/// The last acknowledged position, in a file of its own.
///
/// It is written after the store was synced and not synced itself: after a power cut it may be older than the store's end,
/// never newer. So a store that ends before it has lost acknowledged records.
pub(super) struct EndMark {
    file: File,
    /// What it said when it was opened.
    pub(super) at_open: Position,
}

impl EndMark {
    pub(super) fn open(dir: &Path) -> Result<EndMark, OpenError> {
        let mut bytes = [0; 16];
        let mut open = || -> std::io::Result<File> {
            let mut file = File::options()
                .read(true)
                .write(true)
                .open(dir.join("end"))?;
            file.read_exact(&mut bytes)?;
            Ok(file)
        };
        let file = open().map_err(|why| damaged(dir, &format!("the mark of its end: {why}")))?;
        let value = u128::from_be_bytes(bytes);
        // The position and its complement: 16 bytes of one sector, so they are torn together or not at all.
        let (position, check) = ((value >> 64) as u64, value as u64);
        if position != !check {
            return Err(damaged(dir, "the mark of its end is garbled"));
        }
        Ok(EndMark {
            file,
            at_open: Position(position),
        })
    }

    fn bytes(end: Position) -> [u8; 16] {
        (u128::from(end.0) << 64 | u128::from(!end.0)).to_be_bytes()
    }

    pub(super) fn note(&self, end: Position) {
        use std::os::unix::fs::FileExt as _;
        if let Err(why) = self.file.write_all_at(&EndMark::bytes(end), 0) {
            // The records are safe; only the guard against losing them later is older than it could be.
            tracing::warn!(error = %why, "the mark of the embedded log's end could not be written");
        }
    }
}

pub(super) fn has_journal(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|entries| {
        entries
            .filter_map(Result::ok)
            .any(|entry| entry.path().extension().is_some_and(|end| end == "jnl"))
    })
}
