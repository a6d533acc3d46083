//! A local store that can be made again: opened with suspicion, set aside when it is damaged.
//!
//! Owns: opening (panics and damage included), layout versions, making writes survive a power cut. sled 0.34 alone does
//! not: its flush reaches the page cache only, so the file is synced through a second handle.
//! All calls block; callers are on blocking threads.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use schemas::Timestamp;

/// Bound: sled's cache, in bytes (its default is 1 GiB).
const CACHE_BYTES: u64 = 16 << 20;
/// A store that was closed a moment ago in the same process may hold its lock a little longer.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(100);
const LAYOUT_KEY: &[u8] = b"\0layout";

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk or its permissions.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        source: std::io::Error,
    },
    /// The store.
    #[error("{path}: {source}")]
    Sled {
        /// Where.
        path: PathBuf,
        /// What.
        source: sled::Error,
    },
}

/// Keys and values.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// An open store.
#[derive(Debug, Clone)]
pub struct Store {
    slot: Arc<Mutex<Slot>>,
    path: PathBuf,
    /// Whoever has it holds up [`Store::write_through`] between writing and flushing.
    #[cfg(test)]
    pub(crate) flushing: std::sync::Arc<tokio::sync::Mutex<()>>,
    /// How often it was about to flush.
    #[cfg(test)]
    pub(crate) flushes: std::sync::Arc<std::sync::atomic::AtomicUsize>,
    layout: u32,
}

/// The open database. It is closed after a failed write, until it is opened again: sled takes nothing any more after one,
/// also when the disk has room again.
#[derive(Debug)]
struct Slot {
    db: Option<sled::Db>,
    failed_at: Option<Instant>,
}

/// Opening again is tried this often: while the disk is full, writes must fail fast and not hold up their callers.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// A store and where a damaged one was set aside, if one was.
#[derive(Debug)]
pub struct Opened {
    /// To be used.
    pub store: Store,
    /// The damaged one.
    pub set_aside: Option<PathBuf>,
}

impl Store {
    /// Opens the store in a folder, or makes it. A damaged one, or one of another layout, is renamed and made anew.
    ///
    /// # Errors
    /// [`StoreError`] for what a new store would not heal: permissions, a full disk, another process.
    pub fn open(path: &Path, layout: u32, now: Timestamp) -> Result<Opened, StoreError> {
        match Store::open_as_is(path, layout)? {
            Some(db) => Ok(Opened {
                store: Store::over(db, path, layout),
                set_aside: None,
            }),
            None => {
                let aside = set_aside(path, DAMAGED, now)?;
                event_log::crash::point("agent.set_aside");
                tracing::warn!(store = %path.display(), set_aside = ?aside, "the store cannot be used and is made anew");
                match Store::open_as_is(path, layout)? {
                    Some(db) => Ok(Opened {
                        store: Store::over(db, path, layout),
                        set_aside: aside,
                    }),
                    None => Err(StoreError::Sled {
                        path: path.to_owned(),
                        source: sled::Error::Unsupported("a new store is unreadable".to_owned()),
                    }),
                }
            }
        }
    }

    fn over(db: sled::Db, path: &Path, layout: u32) -> Store {
        Store {
            slot: Arc::new(Mutex::new(Slot {
                db: Some(db),
                failed_at: None,
            })),
            path: path.to_owned(),
            #[cfg(test)]
            flushing: Default::default(),
            #[cfg(test)]
            flushes: Default::default(),
            layout,
        }
    }

    /// Does something with the database; one that failed before is opened again first.
    fn with<T>(
        &self,
        work: impl FnOnce(&sled::Db) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let db = match slot.db.take() {
            Some(db) => db,
            None => self.reopen(&mut slot)?,
        };
        let done = work(&db);
        // What failed is closed here, before somebody opens it again.
        match done {
            Ok(_) => slot.db = Some(db),
            Err(_) => slot.failed_at = Some(Instant::now()),
        }
        done
    }

    fn reopen(&self, slot: &mut Slot) -> Result<sled::Db, StoreError> {
        let unusable = |why: &str| Err(self.failed(sled::Error::Unsupported(why.to_owned())));
        if slot.failed_at.is_some_and(|at| at.elapsed() < REOPEN_PAUSE) {
            return unusable("it failed a moment ago and is opened again soon");
        }
        slot.failed_at = Some(Instant::now());
        match Store::open_as_is(&self.path, self.layout)? {
            Some(db) => {
                tracing::info!(store = %self.path.display(), "the store is open again");
                Ok(db)
            }
            None => unusable("it was damaged while it was in use; the next start makes it anew"),
        }
    }

    /// `None` when what is there is damaged or of another layout.
    fn open_as_is(path: &Path, layout: u32) -> Result<Option<sled::Db>, StoreError> {
        let failed = |source| StoreError::Sled {
            path: path.to_owned(),
            source,
        };
        let existed = path.join("db").exists();
        let mut attempt = 0;
        let db = loop {
            let open = || {
                sled::Config::new()
                    .path(path)
                    .cache_capacity(CACHE_BYTES)
                    .open()
            };
            // sled panics on some kinds of damage.
            match std::panic::catch_unwind(open) {
                Ok(Ok(db)) => break db,
                Ok(Err(sled::Error::Io(why))) if damage(why.kind()) => return Ok(None),
                Ok(Err(sled::Error::Io(why))) => {
                    attempt += 1;
                    // sled has no kind of its own for "locked".
                    let locked = why.kind() == std::io::ErrorKind::Other
                        || why.kind() == std::io::ErrorKind::WouldBlock;
                    if attempt >= LOCK_ATTEMPTS || !locked {
                        return Err(failed(sled::Error::Io(why)));
                    }
                    std::thread::sleep(LOCK_WAIT);
                }
                Ok(Err(
                    sled::Error::Corruption { .. }
                    | sled::Error::CollectionNotFound(_)
                    | sled::Error::Unsupported(_)
                    | sled::Error::ReportableBug(_),
                ))
                | Err(_) => return Ok(None),
            }
        };
        let kept = match db.get(LAYOUT_KEY) {
            Ok(kept) => kept,
            Err(_) => return Ok(None),
        };
        match kept {
            Some(kept) if *kept == layout.to_be_bytes() => Ok(Some(db)),
            Some(_) => Ok(None),
            // One that was there and comes up empty was lost: sled takes some kinds of damage for the end of its file.
            None if !existed && db.is_empty() => {
                db.insert(LAYOUT_KEY, &layout.to_be_bytes())
                    .map_err(failed)?;
                sync(&db, path)?;
                Ok(Some(db))
            }
            None => Ok(None),
        }
    }

    /// One value.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.with(|db| {
            let value = db.get(key).map_err(|source| self.failed(source))?;
            Ok(value.map(|value| value.to_vec()))
        })
    }

    /// Everything under a prefix, in key order, without the prefix.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn scan(&self, prefix: &[u8]) -> Result<Pairs, StoreError> {
        self.with(|db| {
            db.scan_prefix(prefix)
                .map(|pair| {
                    let (key, value) = pair.map_err(|source| self.failed(source))?;
                    Ok((key[prefix.len()..].to_vec(), value.to_vec()))
                })
                .collect()
        })
    }

    /// All or nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn write(&self, batch: sled::Batch) -> Result<(), StoreError> {
        self.with(|db| db.apply_batch(batch).map_err(|source| self.failed(source)))
    }

    /// The same, and the system has it when this returns: it survives the end of this process, however sudden.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn write_through(&self, batch: sled::Batch) -> Result<(), StoreError> {
        self.with(|db| {
            db.apply_batch(batch)
                .map_err(|source| self.failed(source))?;
            #[cfg(test)]
            (self.flushes).fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            #[cfg(test)]
            let _flushing = self.flushing.blocking_lock();
            db.flush().map(drop).map_err(|source| self.failed(source))
        })
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sync(&self) -> Result<(), StoreError> {
        self.with(|db| sync(db, &self.path))
    }

    fn failed(&self, source: sled::Error) -> StoreError {
        StoreError::Sled {
            path: self.path.clone(),
            source,
        }
    }
}

fn sync(db: &sled::Db, path: &Path) -> Result<(), StoreError> {
    db.flush().map_err(|source| StoreError::Sled {
        path: path.to_owned(),
        source,
    })?;
    for file in ["db", "conf"] {
        let path = path.join(file);
        let synced = File::open(&path).and_then(|file| file.sync_data());
        synced.map_err(|source| StoreError::Io { path, source })?;
    }
    sync_folder(path)
}

/// Kinds of errors that come from what is in the files, not from the disk or another process.
fn damage(kind: std::io::ErrorKind) -> bool {
    matches!(
        kind,
        std::io::ErrorKind::InvalidData
            | std::io::ErrorKind::InvalidInput
            | std::io::ErrorKind::UnexpectedEof
    )
}

fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|source| StoreError::Io {
        path: path.to_owned(),
        source,
    })
}

/// Renames a folder so that it is out of the way; `None` when there is none.
///
/// # Errors
/// [`StoreError`].
pub fn set_aside(path: &Path, why: &str, now: Timestamp) -> Result<Option<PathBuf>, StoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut aside = path.with_file_name(format!("{name}.{why}-{}", now.unix_ms()));
    let mut again = 0;
    while aside.exists() {
        again += 1;
        aside = path.with_file_name(format!("{name}.{why}-{}-{again}", now.unix_ms()));
    }
    match std::fs::rename(path, &aside) {
        Ok(()) => {
            if why == DAMAGED {
                prune(path, &format!("{name}.{why}-"));
            }
            Ok(Some(aside))
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Why a folder lies aside that nobody asked to be put there.
pub const DAMAGED: &str = "damaged";

/// Bound: damaged folders that lie aside. Everything in them can be made again; the newest are what somebody may
/// want to look at.
const ASIDE_MAX: usize = 3;

/// Removes the oldest folders beside `path` whose names begin so. One that cannot be removed is said and left.
fn prune(path: &Path, begin: &str) {
    let children = path
        .parent()
        .and_then(|folder| std::fs::read_dir(folder).ok());
    let mut aside: Vec<(u64, PathBuf)> = children
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|child| {
            let name = child.file_name().into_string().ok()?;
            let at = name.strip_prefix(begin)?.split('-').next()?.parse().ok()?;
            Some((at, child.path()))
        })
        .collect();
    aside.sort_unstable();
    let surplus = aside.len().saturating_sub(ASIDE_MAX);
    for (_, path) in aside.drain(..surplus) {
        match std::fs::remove_dir_all(&path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "an old folder that was set aside is removed");
            }
            Err(why) => {
                tracing::warn!(path = %path.display(), error = %why, "an old folder that was set aside cannot be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_folders_set_aside_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("replica");
        for at in 1..=7 {
            std::fs::create_dir(&path).unwrap();
            set_aside(&path, DAMAGED, Timestamp::from_unix_ms(at)).unwrap();
        }
        let mut left: Vec<String> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|child| child.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "replica.damaged-5",
                "replica.damaged-6",
                "replica.damaged-7"
            ]
        );
    }
}
