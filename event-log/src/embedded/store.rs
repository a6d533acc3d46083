//! The folder of an embedded log: what is in it, how it is made, and how it is opened again.
//!
//! ```text
//! DIR/lock       held exclusively while the log is open
//! DIR/identity   the log's id; written once the store is in place
//! DIR/end        the last acknowledged position, kept apart from the store so that the store cannot lose it silently
//! DIR/store/     fjall database with `meta`, `records`, `tails` and `subjects`
//! DIR/store.new/ a store that is being made; it becomes `store` by one rename, so a crash leaves all or nothing
//! ```
//!
//! Never does: make a store where one was. What is missing or damaged is an error, because the log is a source of truth.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use migrations::store::EMBEDDED_LAYOUT;
use schemas::{LogId, Position, Subject};

use super::folder::{EndMark, has_journal, make, read_identity, write_identity};
use crate::port::Entry;

/// Why a folder cannot be opened as a log.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing is there and nothing may be made.
    #[error("there is no log in {}", .0.display())]
    Missing(PathBuf),
    /// Another process, or another part of this one, has it open.
    #[error("the log in {} is open elsewhere; only one process may have it", .0.display())]
    Locked(PathBuf),
    /// Something is there, but it is not a whole log.
    #[error("the log in {} is damaged: {why}; it is never made anew, restore it from a backup", dir.display())]
    Damaged {
        /// The folder.
        dir: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another version of this program made it.
    #[error("the log in {} has layout {found}, this version reads layout {EMBEDDED_LAYOUT}", dir.display())]
    Layout {
        /// The folder.
        dir: PathBuf,
        /// Its layout.
        found: u32,
    },
    /// The folder cannot be read or written.
    #[error("cannot use {}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// An open store.
pub(super) struct Store {
    database: Database,
    records: Keyspace,
    tails: Keyspace,
    subjects: Keyspace,
    pub(super) log_id: LogId,
    mark: EndMark,
    // Last, so that the folder is free only when the database is closed.
    _lock: std::sync::Arc<File>,
}

/// A record on its way into the store.
pub(super) struct Write {
    pub(super) position: Position,
    pub(super) subject: Subject,
    pub(super) bytes: Bytes,
}

pub(super) const META: &str = "meta";
pub(super) const LAYOUT_KEY: &str = "layout";
pub(super) const LOG_ID_KEY: &str = "log_id";

impl Store {
    /// Opens the log in `dir`; with `create` a log of that identity is made when the folder has never held one.
    pub(super) fn open(dir: &Path, create: Option<LogId>) -> Result<Store, OpenError> {
        let io = |source| OpenError::Folder {
            dir: dir.to_owned(),
            source,
        };
        if create.is_some() {
            fs::create_dir_all(dir).map_err(io)?;
        } else if !dir.try_exists().map_err(io)? {
            return Err(OpenError::Missing(dir.to_owned()));
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join("lock"))
            .map_err(io)?;
        lock.try_lock().map_err(|why| match why {
            fs::TryLockError::WouldBlock => OpenError::Locked(dir.to_owned()),
            fs::TryLockError::Error(source) => io(source),
        })?;
        let lock = std::sync::Arc::new(lock);
        let marked = read_identity(dir)?;
        if !dir.join("store").try_exists().map_err(io)? {
            if marked.is_some() {
                return Err(damaged(dir, "its store folder is gone"));
            }
            let Some(log_id) = create else {
                return Err(OpenError::Missing(dir.to_owned()));
            };
            make(dir, log_id)?;
        }
        let store = Store::open_locked(dir, lock)?;
        match marked {
            Some(log_id) if log_id != store.log_id => Err(damaged(
                dir,
                &format!(
                    "its store belongs to log {}, its identity file says {log_id}",
                    store.log_id
                ),
            )),
            Some(_) => Ok(store),
            None => {
                write_identity(dir, store.log_id).map_err(io)?;
                Ok(store)
            }
        }
    }

    /// Opens again after a failed write, under the lock that is held already.
    pub(super) fn reopen(dir: &Path, lock: std::sync::Arc<File>) -> Result<Store, OpenError> {
        Store::open_locked(dir, lock)
    }

    /// The lock on the folder, to be kept while the store is closed and opened again.
    pub(super) fn lock(&self) -> std::sync::Arc<File> {
        self._lock.clone()
    }

    fn open_locked(dir: &Path, lock: std::sync::Arc<File>) -> Result<Store, OpenError> {
        let folder = dir.join("store");
        // Without its marker the database would make itself anew, empty.
        if !folder.join("version").exists() {
            return Err(damaged(dir, "its store has no version file"));
        }
        if !has_journal(&folder) {
            return Err(damaged(dir, "its store has no journal"));
        }
        let mark = EndMark::open(dir)?;
        // A damaged store may make the database panic instead of failing.
        let opened = std::panic::catch_unwind(|| open_database(&folder))
            .map_err(|_| damaged(dir, "the database panicked while opening"))?;
        let database = opened.map_err(|why| database_error(dir, &why))?;
        for name in [META, "records", "tails", "subjects"] {
            if !database.keyspace_exists(name) {
                return Err(damaged(dir, &format!("its store has no keyspace {name}")));
            }
        }
        let keyspace = |name| {
            database
                .keyspace(name, KeyspaceCreateOptions::default)
                .map_err(|why| database_error(dir, &why))
        };
        let meta = keyspace(META)?;
        let text = |key: &str| -> Result<String, OpenError> {
            let value = meta.get(key).map_err(|why| database_error(dir, &why))?;
            value
                .and_then(|value| String::from_utf8(value.to_vec()).ok())
                .ok_or_else(|| damaged(dir, &format!("its store does not say its {key}")))
        };
        let layout = text(LAYOUT_KEY)?;
        match layout.parse() {
            Ok(EMBEDDED_LAYOUT) => {}
            Ok(found) => {
                return Err(OpenError::Layout {
                    dir: dir.to_owned(),
                    found,
                });
            }
            Err(_) => return Err(damaged(dir, &format!("its layout is {layout:?}"))),
        }
        let log_id = text(LOG_ID_KEY)?
            .parse()
            .map_err(|_| damaged(dir, "its identity is no UUID"))?;
        let store = Store {
            records: keyspace("records")?,
            tails: keyspace("tails")?,
            subjects: keyspace("subjects")?,
            database,
            log_id,
            mark,
            _lock: lock,
        };
        // The database drops what it cannot read at the end of its journal, without a word.
        let end = store.end().map_err(|why| database_error(dir, &why))?;
        let acknowledged = store.mark.at_open;
        if end < acknowledged {
            return Err(damaged(
                dir,
                &format!(
                    "its store ends at position {end}, but {acknowledged} was acknowledged: records are lost"
                ),
            ));
        }
        Ok(store)
    }

    /// Notes the end after a write, before it is acknowledged.
    pub(super) fn note_end(&self, end: Position) {
        self.mark.note(end);
    }

    /// The last position.
    pub(super) fn end(&self) -> fjall::Result<Position> {
        match self.records.last_key_value() {
            Some(last) => Ok(position_in(&last.key()?)),
            None => Ok(Position::START),
        }
    }

    /// The last position on a subject.
    pub(super) fn tail(&self, subject: &Subject) -> fjall::Result<Position> {
        let tail = self.tails.get(subject.as_str())?;
        Ok(tail.map_or(Position::START, |value| position_in(&value)))
    }

    /// Stores all or nothing, durably: it survives a power cut once this returns.
    pub(super) fn write(&self, writes: &[Write]) -> fjall::Result<()> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncAll));
        for write in writes {
            let place = write.position.0.to_be_bytes();
            let subject = write.subject.as_str();
            batch.insert(&self.records, place, record_value(subject, &write.bytes));
            batch.insert(&self.tails, subject, place);
            batch.insert(&self.subjects, subject_key(subject, write.position), []);
        }
        batch.commit()
    }

    /// Writes everything that is only in the journal to tables of its own, synced: after a failed sync nothing that was
    /// written before it can be trusted to be on disk, however well it reads.
    pub(super) fn settle(&self) -> fjall::Result<()> {
        for keyspace in [&self.records, &self.tails, &self.subjects] {
            keyspace.rotate_memtable_and_wait()?;
        }
        self.database.persist(PersistMode::SyncAll)
    }

    /// The record at a position.
    pub(super) fn at(&self, position: Position) -> fjall::Result<Option<Entry>> {
        let value = self.records.get(position.0.to_be_bytes())?;
        Ok(value.and_then(|value| entry(position, &value)))
    }

    /// The first record on a subject after a position.
    pub(super) fn next_on(
        &self,
        subject: &Subject,
        after: Position,
    ) -> fjall::Result<Option<Entry>> {
        let Some(from) = after.0.checked_add(1) else {
            return Ok(None);
        };
        let range = subject_key(subject.as_str(), Position(from))
            ..=subject_key(subject.as_str(), Position(u64::MAX));
        match self.subjects.range(range).next() {
            Some(key) => {
                let key = key.key()?;
                let place = key.len().saturating_sub(8);
                self.at(position_in(&key[place..]))
            }
            None => Ok(None),
        }
    }

    /// Records after a position, in order: at most `count`, and at most about `bytes` in all (at least one).
    pub(super) fn after(
        &self,
        after: Position,
        count: usize,
        bytes: usize,
    ) -> fjall::Result<Vec<Entry>> {
        let mut out = Vec::new();
        let mut total = 0;
        let Some(from) = after.0.checked_add(1) else {
            return Ok(out);
        };
        for pair in self.records.range(from.to_be_bytes()..).take(count) {
            let (key, value) = pair.into_inner()?;
            total += value.len();
            out.extend(entry(position_in(&key), &value));
            if total >= bytes {
                break;
            }
        }
        Ok(out)
    }

    /// The last record of every subject, and the last position of the same moment.
    pub(super) fn tails(&self) -> fjall::Result<(Vec<Entry>, Position)> {
        use fjall::Readable as _;
        let moment = self.database.snapshot();
        let end = match moment.last_key_value(&self.records) {
            Some(last) => position_in(&last.key()?),
            None => Position::START,
        };
        let mut out = Vec::new();
        for pair in moment.iter(&self.tails) {
            let position = position_in(&pair.value()?);
            let value = moment.get(&self.records, position.0.to_be_bytes())?;
            out.extend(value.and_then(|value| entry(position, &value)));
        }
        Ok((out, end))
    }
}

pub(super) fn open_database(folder: &Path) -> fjall::Result<Database> {
    Database::builder(folder)
        .worker_threads(1)
        .cache_size(16 * 1024 * 1024)
        .open()
}

pub(super) fn damaged(dir: &Path, why: &str) -> OpenError {
    OpenError::Damaged {
        dir: dir.to_owned(),
        why: why.to_owned(),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "fjall's errors are non-exhaustive"
)]
pub(super) fn database_error(dir: &Path, why: &fjall::Error) -> OpenError {
    match why {
        fjall::Error::Locked => OpenError::Locked(dir.to_owned()),
        fjall::Error::Io(source) => OpenError::Folder {
            dir: dir.to_owned(),
            source: std::io::Error::new(source.kind(), source.to_string()),
        },
        other => damaged(dir, &other.to_string()),
    }
}

fn position_in(bytes: &[u8]) -> Position {
    Position(
        bytes
            .first_chunk()
            .map_or(0, |bytes| u64::from_be_bytes(*bytes)),
    )
}

fn subject_key(subject: &str, position: Position) -> Vec<u8> {
    let mut key = Vec::with_capacity(subject.len() + 9);
    key.extend_from_slice(subject.as_bytes());
    // Subjects hold no NUL (the writer refuses them), so no subject's keys fall between another's.
    key.push(0);
    key.extend_from_slice(&position.0.to_be_bytes());
    key
}

/// Length of the subject (4 bytes, big-endian), subject, record.
fn record_value(subject: &str, bytes: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(4 + subject.len() + bytes.len());
    value.extend_from_slice(
        &u32::try_from(subject.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes(),
    );
    value.extend_from_slice(subject.as_bytes());
    value.extend_from_slice(bytes);
    value
}

fn entry(position: Position, value: &[u8]) -> Option<Entry> {
    let (length, rest) = value.split_first_chunk()?;
    let (subject, bytes) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some(Entry {
        position,
        subject: Subject::from_log(std::str::from_utf8(subject).ok()?),
        bytes: Bytes::copy_from_slice(bytes),
    })
}
