//! The agent's own copy of the log's state: documents, tails, stops and cursor, written in one transaction per record.
//!
//! It serves when the log is away. Losing it costs one bootstrap, so whatever cannot be read makes the whole copy void.

use std::path::{Path, PathBuf};

use schemas::state::{PolicyDocument, Registry, State, Stop};
use schemas::{Hash, LogId, PolicyKey, Position, Subject, Timestamp};
use serde::{Deserialize, Serialize};

use crate::store::{Store, StoreError};

const META: &[u8] = b"m";
const REGISTRY: &[u8] = b"g";

/// Which log a state is of, and how to know that log again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The log.
    pub log_id: LogId,
    /// The last record folded in; [`Position::START`] for none.
    pub position: Position,
    /// Hash of that record; zeros for none.
    pub hash: Hash,
}

/// A state and its cursor, as kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The state.
    pub state: State,
    /// Of which log.
    pub cursor: Cursor,
    /// True when it was made by a version that understood other records: right as far as it goes, to be made again.
    pub outdated: bool,
}

#[derive(Serialize, Deserialize)]
struct Meta {
    cursor: Cursor,
    vocabulary: String,
    stopped: Option<Stop>,
}

/// The store of the copy. All calls block.
#[derive(Debug, Clone)]
pub struct LocalCopy {
    store: Store,
}

impl LocalCopy {
    /// Opens the copy and reads it. A damaged one is set aside; then there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path, now: Timestamp) -> Result<(LocalCopy, Option<Kept>), StoreError> {
        let layout = migrations::store::AGENT_LAYOUT;
        let copy = LocalCopy {
            store: Store::open(path, layout, now)?.store,
        };
        match copy.read() {
            Ok(kept) => Ok((copy, kept)),
            Err(Unreadable) => {
                drop(copy);
                let aside: Option<PathBuf> =
                    crate::store::set_aside(path, crate::store::DAMAGED, now)?;
                tracing::warn!(store = %path.display(), set_aside = ?aside, "the local copy cannot be read and is made anew");
                let copy = LocalCopy {
                    store: Store::open(path, layout, now)?.store,
                };
                Ok((copy, None))
            }
        }
    }

    /// See [`Store::flushing`].
    #[cfg(test)]
    pub(crate) fn flushing(&self) -> std::sync::Arc<tokio::sync::Mutex<()>> {
        self.store.flushing.clone()
    }

    /// See [`Store::flushes`].
    #[cfg(test)]
    pub(crate) fn flushes(&self) -> std::sync::Arc<std::sync::atomic::AtomicUsize> {
        self.store.flushes.clone()
    }

    pub(crate) fn read(&self) -> Result<Option<Kept>, Unreadable> {
        let Some(meta) = self.store.get(META).map_err(|_| Unreadable)? else {
            return Ok(None);
        };
        let meta: Meta = parse(&meta)?;
        let scan = |prefix: &[u8]| self.store.scan(prefix).map_err(|_| Unreadable);
        let mut state = State {
            position: meta.cursor.position,
            stopped: meta.stopped,
            ..State::default()
        };
        if let Some(registry) = self.store.get(REGISTRY).map_err(|_| Unreadable)? {
            state.registry = parse::<Registry>(&registry)?;
        }
        for (_, value) in scan(b"d")? {
            let document: PolicyDocument = parse(&value)?;
            state.policies.insert(document.key(), document);
        }
        for (_, value) in scan(b"s")? {
            let (key, stop): (PolicyKey, Stop) = parse(&value)?;
            state.stops.insert(key, stop);
        }
        for (subject, value) in scan(b"t")? {
            let subject = String::from_utf8(subject).map_err(|_| Unreadable)?;
            let position: Position = parse(&value)?;
            state.tails.insert(Subject::from_log(&subject), position);
        }
        Ok(Some(Kept {
            state,
            cursor: meta.cursor,
            outdated: meta.vocabulary != migrations::store::vocabulary(),
        }))
    }

    /// Writes a whole state in the place of whatever is there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn replace(&self, state: &State, cursor: Cursor) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for prefix in [b"d", b"s", b"t"] {
            for (key, _) in self.store.scan(prefix)? {
                batch.remove([prefix, key.as_slice()].concat());
            }
        }
        for document in state.policies.values() {
            put_document(&mut batch, document);
        }
        for (subject, position) in &state.tails {
            put(&mut batch, b't', subject.as_str(), position);
        }
        put(&mut batch, b'g', "", &state.registry);
        put_rest(&mut batch, state, cursor);
        self.store.write(batch)?;
        self.store.sync()
    }

    /// Writes what one record changed: the policies that it names, its subject's tail, stops and cursor.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn advance(
        &self,
        state: &State,
        cursor: Cursor,
        subject: &Subject,
        changed: &[PolicyKey],
    ) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for document in changed.iter().filter_map(|key| state.policies.get(key)) {
            put_document(&mut batch, document);
        }
        put(&mut batch, b't', subject.as_str(), &cursor.position);
        if *subject == Subject::parameters() {
            put(&mut batch, b'g', "", &state.registry);
        }
        put_rest(&mut batch, state, cursor);
        self.store.write_through(batch)
    }

    /// Makes it survive a power cut.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn sync(&self) -> Result<(), StoreError> {
        self.store.sync()
    }
}

/// What is there is not a copy.
#[derive(Debug)]
pub(crate) struct Unreadable;

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    serde_json::from_slice(bytes).map_err(|_| Unreadable)
}

fn put(batch: &mut sled::Batch, kind: u8, key: &str, value: &impl Serialize) {
    // Invariant: string keys and finite numbers only, so encoding cannot fail.
    let value = serde_json::to_vec(value).unwrap_or_default();
    batch.insert([&[kind], key.as_bytes()].concat(), value);
}

fn put_document(batch: &mut sled::Batch, document: &PolicyDocument) {
    put(batch, b'd', document.key().subject().as_str(), document);
}

/// Stops are few and never lifted while following, so all of them are written each time.
fn put_rest(batch: &mut sled::Batch, state: &State, cursor: Cursor) {
    for (key, stop) in &state.stops {
        put(batch, b's', key.subject().as_str(), &(key, stop));
    }
    let meta = Meta {
        cursor,
        vocabulary: migrations::store::vocabulary(),
        stopped: state.stopped.clone(),
    };
    put(batch, b'm', "", &meta);
}
