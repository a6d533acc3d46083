//! Opening the local store, and setting it aside when it cannot be used.
//!
//! Owns: the data folder's lock, the file `log-id` beside the store, and the names of folders set aside.
//!
//! The file `log-id` survives the store: a store that was lost (sled's flush does not survive a power cut) must not make
//! the service take a log that was made anew for the one that it knew.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use event_log::{ambient, crash};
use schemas::LogId;

use super::fold::{Projected, Write, json};
use super::keys;
use super::store::{Store, StoreError};

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses it.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// The file system refused.
    #[error("cannot use {path}")]
    Io {
        /// What could not be used.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// The file that names the log of this folder names none.
    #[error(
        "{0} does not hold the id of a log; put the right id back, or run `router-policy adopt --data` on its folder"
    )]
    LogId(PathBuf),
    /// Even a fresh store cannot be opened.
    #[error("cannot open a fresh local store in {path}")]
    Store {
        /// Where.
        path: PathBuf,
        /// What failed.
        #[source]
        source: StoreError,
    },
}

/// An opened store and what is in it.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Arc<Store>,
    /// What is in it.
    pub projected: Projected,
    /// Why it was made anew, when it was.
    pub rebuilt: Option<String>,
}

/// Opens the store of a data folder, or sets a store that cannot be used aside and opens a fresh one.
///
/// # Errors
/// [`OpenError`].
pub fn open(data_dir: &Path, cache_bytes: u64) -> Result<Opened, OpenError> {
    let lock = Arc::new(lock(data_dir)?);
    reopen(data_dir, cache_bytes, &lock)
}

/// The same under the lock that is held already: the store was closed after a fault.
pub(super) fn reopen(
    data_dir: &Path,
    cache_bytes: u64,
    lock: &Arc<File>,
) -> Result<Opened, OpenError> {
    let met = met_log(data_dir)?;
    let path = data_dir.join(FOLDER);
    let existed = path.exists();
    let reason = match try_open(&path, cache_bytes, lock) {
        Ok((store, mut projected)) => {
            let unexpectedly_empty = store.is_empty() && met.is_some();
            match (met, projected.log_id) {
                (Some(known), Some(stored)) if known != stored => {
                    format!("it is of log {stored}, not of log {known}")
                }
                (Some(_) | None, Some(_) | None) => {
                    write_meta(&store, &path)?;
                    projected.log_id = projected.log_id.or(met);
                    let rebuilt = unexpectedly_empty
                        .then(|| "the local store was unexpectedly empty".to_owned());
                    return Ok(Opened {
                        store: Arc::new(store),
                        projected,
                        rebuilt,
                    });
                }
            }
        }
        Err(Unopened::Damaged(why)) => why,
        // A new store would fare no better, and this one may be whole.
        Err(Unopened::Disk(source)) => return Err(OpenError::Io { path, source }),
    };
    let aside = if existed || path.exists() {
        Some(set_aside(data_dir, ASIDE)?)
    } else {
        None
    };
    crash::point("projection.set_aside");
    let (store, mut projected) = match try_open(&path, cache_bytes, lock) {
        Ok(opened) => opened,
        Err(Unopened::Disk(source)) => return Err(OpenError::Io { path, source }),
        Err(Unopened::Damaged(why)) => {
            let source = StoreError::Damaged(why);
            return Err(OpenError::Store { path, source });
        }
    };
    write_meta(&store, &path)?;
    projected.log_id = met;
    let rebuilt = match aside {
        Some(aside) => format!("{reason}; it was set aside as {}", aside.display()),
        None => reason,
    };
    Ok(Opened {
        store: Arc::new(store),
        projected,
        rebuilt: Some(rebuilt),
    })
}

/// The log that this data folder knows; `None` when it never met one, which only a missing file says.
///
/// # Errors
/// [`OpenError::Io`] and [`OpenError::LogId`] when the file is there and does not tell: such a folder has met a log, and
/// must not let one be made or take another.
pub fn met_log(data_dir: &Path) -> Result<Option<LogId>, OpenError> {
    let path = data_dir.join(LOG_ID_FILE);
    match fs::read(&path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let log_id = text.trim().parse();
            log_id.map(Some).map_err(|_| OpenError::LogId(path))
        }
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OpenError::Io { path, source }),
    }
}

/// Remembers the log of this data folder, durably.
///
/// # Errors
/// The file system's.
pub fn remember_log(data_dir: &Path, log_id: LogId) -> io::Result<()> {
    // What cannot be read is written again: this is said by a service that has met the log.
    if matches!(met_log(data_dir), Ok(Some(known)) if known == log_id) {
        return Ok(());
    }
    let temporary = data_dir.join(format!("{LOG_ID_FILE}.new"));
    let mut file = File::create(&temporary)?;
    writeln!(file, "{log_id}")?;
    file.sync_all()?;
    crash::point("projection.log_id");
    fs::rename(&temporary, data_dir.join(LOG_ID_FILE))?;
    File::open(data_dir)?.sync_all()
}

/// Forgets the log that this data folder knows, so that the next start takes the one that it finds: the local store is set
/// aside. Returns where it is now; `None` when there was none. The service must not be running.
///
/// # Errors
/// [`OpenError::InUse`] while a service uses the folder; [`OpenError::Io`].
pub fn adopt(data_dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    let _lock = lock(data_dir)?;
    let aside = if data_dir.join(FOLDER).exists() {
        Some(set_aside(data_dir, ADOPTED)?)
    } else {
        None
    };
    let file = data_dir.join(LOG_ID_FILE);
    match fs::remove_file(&file) {
        Ok(()) => Ok(aside),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(aside),
        Err(source) => Err(OpenError::Io { path: file, source }),
    }
}

const FOLDER: &str = "projection";
const LOG_ID_FILE: &str = "log-id";
const LOCK_FILE: &str = "lock";

fn lock(data_dir: &Path) -> Result<File, OpenError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    fs::create_dir_all(data_dir).map_err(io(data_dir))?;
    let path = data_dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(OpenError::InUse(data_dir.to_owned())),
        Err(fs::TryLockError::Error(source)) => Err(OpenError::Io { path, source }),
    }
}

/// Bound: sled's lock may be let go of a moment after ours when a service of this process has just stopped.
const OPEN_ATTEMPTS: u32 = 20;
const OPEN_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Why a store could not be opened and loaded.
enum Unopened {
    /// What is in its files is not a whole store.
    Damaged(String),
    /// The disk, not the store: full, or failing.
    Disk(io::Error),
}

impl From<sled::Error> for Unopened {
    fn from(why: sled::Error) -> Unopened {
        match why {
            sled::Error::Io(why) if !tells_of_damage(why.kind()) => Unopened::Disk(why),
            sled::Error::Io(_)
            | sled::Error::CollectionNotFound(_)
            | sled::Error::Unsupported(_)
            | sled::Error::ReportableBug(_)
            | sled::Error::Corruption { .. } => {
                Unopened::Damaged(format!("it does not open: {why}"))
            }
        }
    }
}

/// Kinds of errors that come from what the files are, not from the disk. sled says `Other` for a checksum.
fn tells_of_damage(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotFound
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::Other
    )
}

/// Opens and loads; whatever goes wrong, panics in sled too, comes back in words.
fn try_open(
    path: &Path,
    cache_bytes: u64,
    lock: &Arc<File>,
) -> Result<(Store, Projected), Unopened> {
    let guarded = AssertUnwindSafe(|| {
        let mut attempt = 0;
        let db = loop {
            let config = sled::Config::new()
                .path(path)
                .cache_capacity(cache_bytes)
                .mode(sled::Mode::HighThroughput);
            match config.open() {
                Ok(db) => break db,
                Err(sled::Error::Io(_)) if attempt < OPEN_ATTEMPTS => {
                    attempt += 1;
                    std::thread::sleep(OPEN_PAUSE);
                }
                Err(why) => return Err(why.into()),
            }
        };
        let store = Store::new(db, Arc::clone(lock));
        if let Some(why) = unusable(&store) {
            return Err(Unopened::Damaged(why));
        }
        let projected = store.load().map_err(|why| match why {
            StoreError::Sled(why) => match Unopened::from(why) {
                Unopened::Damaged(why) => Unopened::Damaged(format!("it cannot be read: {why}")),
                Unopened::Disk(why) => Unopened::Disk(why),
            },
            StoreError::Damaged(why) | StoreError::Panicked(why) => Unopened::Damaged(why),
            StoreError::Reopening => Unopened::Damaged(why.to_string()),
        })?;
        Ok((store, projected))
    });
    // Invariant: nothing that a panic could leave half done outlives it: the store is dropped inside.
    catch_unwind(guarded)
        .unwrap_or_else(|_| Err(Unopened::Damaged("sled panicked over it".to_owned())))
}

/// Made by another layout, or by a reader that understood other records.
fn unusable(store: &Store) -> Option<String> {
    if store.is_empty() {
        return None;
    }
    let same = |key, wanted: &str| matches!(store.meta(key), Ok(Some(found)) if found == wanted);
    if !same(keys::LAYOUT, &layout()) {
        return Some(format!("its layout is not version {}", layout()));
    }
    if !same(keys::VOCABULARY, &migrations::store::vocabulary()) {
        return Some("it was made by a version that understood other records".to_owned());
    }
    None
}

fn layout() -> String {
    migrations::store::PROJECTION_LAYOUT.to_string()
}

fn write_meta(store: &Store, path: &Path) -> Result<(), OpenError> {
    let writes = vec![
        Write::Put(keys::LAYOUT.to_vec(), json(&layout())),
        Write::Put(
            keys::VOCABULARY.to_vec(),
            json(&migrations::store::vocabulary()),
        ),
    ];
    store.apply(writes).map_err(|source| OpenError::Store {
        path: path.to_owned(),
        source,
    })
}

/// Bound: unusable stores that lie aside. Everything in them can be made again; the newest are what somebody may want to look at.
const ASIDE_MAX: usize = 3;

fn set_aside(data_dir: &Path, name: &str) -> Result<PathBuf, OpenError> {
    let from = data_dir.join(FOLDER);
    // Always after those that are there, also when the clock went back: the newest must be the last to go.
    let after = aside(data_dir, name).last().map_or(0, |(at, _)| at + 1);
    let at = ambient::now().unix_ms().max(after);
    let to = data_dir.join(format!("{name}{at}"));
    fs::rename(&from, &to).map_err(|source| OpenError::Io { path: from, source })?;
    if name == ASIDE {
        prune(data_dir);
    }
    Ok(to)
}

const ASIDE: &str = "projection.set-aside-";
/// Set aside because somebody said so: never removed.
const ADOPTED: &str = "projection.adopted-";

/// What lies aside under this name, oldest first.
fn aside(data_dir: &Path, name: &str) -> Vec<(u64, PathBuf)> {
    let children = fs::read_dir(data_dir).into_iter().flatten();
    let mut aside: Vec<(u64, PathBuf)> = children
        .filter_map(Result::ok)
        .filter_map(|child| {
            let file = child.file_name().into_string().ok()?;
            let at = file.strip_prefix(name)?.parse().ok()?;
            Some((at, child.path()))
        })
        .collect();
    aside.sort_unstable();
    aside
}

/// Removes the oldest stores that lie aside. One that cannot be removed is said and left.
fn prune(data_dir: &Path) {
    let mut aside = aside(data_dir, ASIDE);
    let surplus = aside.len().saturating_sub(ASIDE_MAX);
    for (_, path) in aside.drain(..surplus) {
        match fs::remove_dir_all(&path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "an old store that was set aside is removed");
            }
            Err(why) => {
                tracing::warn!(path = %path.display(), error = %why, "an old store that was set aside cannot be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_stores_set_aside_are_bounded_and_adopted_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        for _ in 0..2 {
            fs::create_dir(dir.join(FOLDER)).unwrap();
            set_aside(dir, ADOPTED).unwrap();
        }
        for _ in 0..9 {
            fs::create_dir(dir.join(FOLDER)).unwrap();
            let newest = set_aside(dir, ASIDE).unwrap();
            assert!(newest.exists());
        }
        let count = |prefix: &str| {
            fs::read_dir(dir)
                .unwrap()
                .filter(|child| {
                    let name = child.as_ref().unwrap().file_name();
                    name.into_string().unwrap().starts_with(prefix)
                })
                .count()
        };
        assert_eq!((count(ASIDE), count(ADOPTED)), (ASIDE_MAX, 2));
    }
}
