//! A local store that can be made again: opened with suspicion, set aside when it is damaged.
//!
//! Owns: opening (panics and damage included), layout versions, making writes survive a power cut. sled 0.34 alone does
//! not: its flush reaches the page cache only, so the file is synced through a second handle.
//! All calls block; callers are on blocking threads.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    db: sled::Db,
    path: PathBuf,
}

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
            Some(store) => Ok(Opened {
                store,
                set_aside: None,
            }),
            None => {
                let aside = set_aside(path, "damaged", now)?;
                event_log::crash::point("agent.set_aside");
                tracing::warn!(store = %path.display(), set_aside = ?aside, "the store cannot be used and is made anew");
                match Store::open_as_is(path, layout)? {
                    Some(store) => Ok(Opened {
                        store,
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

    /// `None` when what is there is damaged or of another layout.
    fn open_as_is(path: &Path, layout: u32) -> Result<Option<Store>, StoreError> {
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
                    if attempt >= LOCK_ATTEMPTS {
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
        let store = Store {
            db,
            path: path.to_owned(),
        };
        let kept = match store.db.get(LAYOUT_KEY) {
            Ok(kept) => kept,
            Err(_) => return Ok(None),
        };
        match kept {
            Some(kept) if *kept == layout.to_be_bytes() => Ok(Some(store)),
            Some(_) => Ok(None),
            // One that was there and comes up empty was lost: sled takes some kinds of damage for the end of its file.
            None if !existed && store.db.is_empty() => {
                store
                    .db
                    .insert(LAYOUT_KEY, &layout.to_be_bytes())
                    .map_err(failed)?;
                store.sync()?;
                Ok(Some(store))
            }
            None => Ok(None),
        }
    }

    /// One value.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.db.get(key).map_err(|source| self.failed(source))?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Everything under a prefix, in key order, without the prefix.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn scan(&self, prefix: &[u8]) -> Result<Pairs, StoreError> {
        self.db
            .scan_prefix(prefix)
            .map(|pair| {
                let (key, value) = pair.map_err(|source| self.failed(source))?;
                Ok((key[prefix.len()..].to_vec(), value.to_vec()))
            })
            .collect()
    }

    /// All or nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn write(&self, batch: sled::Batch) -> Result<(), StoreError> {
        self.db
            .apply_batch(batch)
            .map_err(|source| self.failed(source))
    }

    /// The same, and the system has it when this returns: it survives the end of this process, however sudden.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn write_through(&self, batch: sled::Batch) -> Result<(), StoreError> {
        self.write(batch)?;
        self.db
            .flush()
            .map(drop)
            .map_err(|source| self.failed(source))
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sync(&self) -> Result<(), StoreError> {
        self.db.flush().map_err(|source| self.failed(source))?;
        for file in ["db", "conf"] {
            let path = self.path.join(file);
            let synced = File::open(&path).and_then(|file| file.sync_data());
            synced.map_err(|source| StoreError::Io { path, source })?;
        }
        sync_folder(&self.path)
    }

    fn failed(&self, source: sled::Error) -> StoreError {
        StoreError::Sled {
            path: self.path.clone(),
            source,
        }
    }
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
        Ok(()) => Ok(Some(aside)),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}
