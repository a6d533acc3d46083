//! The local store: sled, holding only what can be made again from the log.
//!
//! Owns: encoding of values, atomic batches, loading, and range reads. Blocking: call it through
//! [`super::Projection::read`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use event_log::Entry;
use schemas::state::Verdict;
use schemas::{CommandId, Hash, LogId, Position, Subject};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fold::{Projected, Write, json, project};
use super::keys::{self, Index};

/// Why the store could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// sled's own words.
    #[error("the local store failed")]
    Sled(#[from] sled::Error),
    /// Something in it is not what was written.
    #[error("the local store is damaged: {0}")]
    Damaged(String),
    /// It is opened again after a fault.
    #[error("the local store is being opened again after a fault")]
    Reopening,
    /// sled panicked.
    #[error("the local store panicked: {0}")]
    Panicked(String),
}

/// How far the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The last record that is folded in.
    pub position: Position,
    /// Its hash.
    pub hash: Hash,
    /// The chain up to it.
    pub chain: Hash,
}

/// A command that has a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredCommand {
    /// Its first record.
    pub position: Position,
    /// Hash of the request; absent when the record could not be read.
    pub fingerprint: Option<Hash>,
    /// What became of it.
    pub verdict: Verdict,
}

impl StoredCommand {
    /// Of a command's accepted records the one that answers this request: its own, else the first.
    #[must_use]
    pub fn answering(
        accepted: impl IntoIterator<Item = StoredCommand>,
        request: Option<Hash>,
    ) -> Option<StoredCommand> {
        let mut other = None;
        for command in accepted {
            if request.is_some() && command.fingerprint == request {
                return Some(command);
            }
            other = other.or(Some(command));
        }
        other
    }
}

/// A record with what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its place.
    pub position: Position,
    /// Where it was written to.
    pub subject: Subject,
    /// What became of it.
    pub verdict: Verdict,
    /// Its hash.
    pub hash: Hash,
    /// The chain up to it.
    pub chain: Hash,
    /// Byte for byte as it stands in the log.
    pub bytes: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct RecordHead {
    subject: Subject,
    verdict: Verdict,
    hash: Hash,
    chain: Hash,
}

impl StoredRecord {
    /// Length of the head (4 bytes, big-endian), head as JSON, bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = json(&RecordHead {
            subject: self.subject.clone(),
            verdict: self.verdict.clone(),
            hash: self.hash,
            chain: self.chain,
        });
        let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
        [&length.to_be_bytes(), head.as_slice(), &self.bytes].concat()
    }

    /// The inverse of [`StoredRecord::encode`]; `key` is [`keys::record`] of its position.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn decode(key: &[u8], value: &[u8]) -> Result<StoredRecord, StoreError> {
        let damaged = || StoreError::Damaged("a record cannot be decoded".to_owned());
        let position = keys::position_of(key).ok_or_else(damaged)?;
        let (length, rest) = value.split_first_chunk::<4>().ok_or_else(damaged)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| damaged())?;
        let (head, bytes) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let head: RecordHead = decode(head)?;
        Ok(StoredRecord {
            position,
            subject: head.subject,
            verdict: head.verdict,
            hash: head.hash,
            chain: head.chain,
            bytes: bytes.to_vec(),
        })
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|why| StoreError::Damaged(why.to_string()))
}

/// Which way to go through records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From low positions to high ones.
    Up,
    /// From high positions to low ones.
    Down,
}

/// How much to read at once. Both are reached by the last record read, so bytes may be passed by one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portion {
    /// Records.
    pub records: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Portion {
    /// For readers that work through records within the store's thread, and keep few of them.
    pub const CHUNK: Portion = Portion {
        records: 256,
        bytes: 1 << 20,
    };
    /// For streams. A client that does not read keeps one of these in memory, and there may be thousands.
    pub const PIECE: Portion = Portion {
        records: 256,
        bytes: 32 << 10,
    };

    /// True when no more is to be read.
    #[must_use]
    pub fn reached(self, records: usize, bytes: usize) -> bool {
        records >= self.records || bytes >= self.bytes
    }
}

/// The store. Dropping it closes it.
#[derive(Debug)]
pub struct Store {
    db: sled::Db,
    /// Held until sled has let go of its files (fields drop in order).
    lock: Arc<File>,
}

impl Store {
    pub(super) fn new(db: sled::Db, lock: Arc<File>) -> Store {
        Store { db, lock }
    }

    /// The lock on the data folder, to be kept while the store is closed and opened again.
    #[must_use]
    pub fn lock(&self) -> Arc<File> {
        Arc::clone(&self.lock)
    }

    /// True when nothing was ever written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.db.is_empty()
    }

    /// Writes all or nothing.
    ///
    /// # Errors
    /// [`StoreError::Sled`]; nothing was written then.
    pub fn apply(&self, writes: Vec<Write>) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        let mut new = BTreeSet::new();
        for write in writes {
            match write {
                Write::Put(key, value) => batch.insert(key, value),
                Write::PutNew(key, value) => {
                    if !self.db.contains_key(&key)? && new.insert(key.clone()) {
                        batch.insert(key, value);
                    }
                }
            }
        }
        Ok(self.db.apply_batch(batch)?)
    }

    /// Makes everything durable as far as sled can.
    ///
    /// # Errors
    /// [`StoreError::Sled`].
    pub fn flush(&self) -> Result<(), StoreError> {
        self.db.flush()?;
        Ok(())
    }

    fn get<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, StoreError> {
        self.db.get(key)?.map(|value| decode(&value)).transpose()
    }

    pub(super) fn meta(&self, key: &[u8]) -> Result<Option<String>, StoreError> {
        self.get(key)
    }

    /// Everything that is folded in: its records are folded again, and every other pair must be what that writes.
    ///
    /// SUBTLE: sled takes some damage for the end of its file and comes up with some pages as they were earlier. A command
    /// that is missing then would be made a second time, or be refused although it is in the log
    /// (`cargo xtask crash --only files`). So nothing is believed that the chain of records does not lead to.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when parts do not fit each other.
    pub fn load(&self) -> Result<Projected, StoreError> {
        let cursor: Option<Cursor> = self.get(keys::CURSOR)?;
        let log_id: Option<LogId> = self.get(keys::LOG_ID)?;
        let mut projected = Projected {
            log_id,
            ..Projected::default()
        };
        let Some(cursor) = cursor else {
            return match self.db.scan_prefix(keys::RECORDS).next() {
                Some(_) => Err(StoreError::Damaged("records without a cursor".to_owned())),
                None => Ok(projected),
            };
        };
        let mut last = BTreeMap::new();
        let mut once = 0;
        loop {
            let at = projected.state.position;
            let records = self.records(Direction::Up, at, Portion::CHUNK)?;
            if records.is_empty() {
                break;
            }
            for record in records {
                once += self.fold_again(&mut projected, record, &mut last)?;
            }
        }
        let (at, chain) = (projected.state.position, projected.chain);
        if at != cursor.position || chain != cursor.chain || projected.hash != cursor.hash {
            let what = format!(
                "its records end at position {at}, not at {}",
                cursor.position
            );
            return Err(StoreError::Damaged(what));
        }
        self.check_last(&last, once)?;
        Ok(projected)
    }

    /// Folds a stored record, and compares what that writes once and for all, and returns how many pairs that is. What later
    /// records write again goes to `last`.
    fn fold_again(
        &self,
        projected: &mut Projected,
        record: StoredRecord,
        last: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<usize, StoreError> {
        let mut once = BTreeSet::new();
        let position = record.position;
        let entry = Entry {
            position,
            subject: record.subject,
            bytes: record.bytes.into(),
        };
        let reading = migrations::read(&entry.subject, &entry.bytes);
        for write in project(projected, &entry, &reading).writes {
            let whole = match write {
                Write::Put(key, value) if keys::is_final(&key) => {
                    let whole = self.db.get(&key)?.is_some_and(|there| there == value);
                    once.insert(key);
                    whole
                }
                Write::Put(key, value) => {
                    last.insert(key, value);
                    true
                }
                Write::PutNew(key, value) => match self.db.get(&key)? {
                    // The first record of a command counts; it was compared when its turn was.
                    Some(there) => {
                        let first = decode::<StoredCommand>(&there)?.position;
                        let whole = there == value;
                        if whole {
                            once.insert(key);
                        }
                        whole || first < position
                    }
                    None => false,
                },
            };
            if !whole {
                let what =
                    format!("what belongs to the record at position {position} is not whole");
                return Err(StoreError::Damaged(what));
            }
        }
        Ok(once.len())
    }

    /// Documents, tails, stops, the registry and the cursor are those of their last records, and nothing is there that no
    /// record wrote: pages of a later time hold what belongs to records that are gone.
    fn check_last(&self, last: &BTreeMap<Vec<u8>, Vec<u8>>, once: usize) -> Result<(), StoreError> {
        let name = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        for (key, value) in last {
            if self.db.get(key)?.is_none_or(|there| there != *value) {
                let what = format!("{} is not that of its last record", name(key));
                return Err(StoreError::Damaged(what));
            }
        }
        let mut said = 0;
        for key in [keys::LAYOUT, keys::VOCABULARY, keys::LOG_ID] {
            said += usize::from(self.db.contains_key(key)?);
        }
        let mut there = 0;
        for pair in self.db.iter() {
            pair?;
            there += 1;
        }
        let wanted = once + last.len() + said;
        if there != wanted {
            let what = format!("it holds {there} pairs where its records wrote {wanted}");
            return Err(StoreError::Damaged(what));
        }
        Ok(())
    }

    /// The record at a position.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record(&self, position: Position) -> Result<Option<StoredRecord>, StoreError> {
        let key = keys::record(position);
        self.db
            .get(&key)?
            .map(|value| StoredRecord::decode(&key, &value))
            .transpose()
    }

    /// The record that a command is answered by when this request is sent under its id: the first accepted one of that
    /// request, else an accepted one of another, else its first.
    ///
    /// SUBTLE: a broker that lets two winners in may store one command twice through two services, the void record first
    /// (`regression_a_command_is_answered_by_its_accepted_record`); and services that are given one id with two requests at
    /// once cannot know of each other, so each request may have an accepted record
    /// (`regression_each_request_under_one_id_is_answered_by_its_own_record`).
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn command(
        &self,
        id: CommandId,
        request: Option<Hash>,
    ) -> Result<Option<StoredCommand>, StoreError> {
        let values = self.db.scan_prefix(keys::accepted(id)).values();
        let accepted: Vec<StoredCommand> = values
            .map(|value| decode(&value?))
            .collect::<Result<_, StoreError>>()?;
        match StoredCommand::answering(accepted, request) {
            Some(accepted) => Ok(Some(accepted)),
            None => self.get(&keys::command(id)),
        }
    }

    /// Records beyond `from` (not including it) in the direction: at least one if there is one, and no further one after
    /// `portion` is reached.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn records(
        &self,
        direction: Direction,
        from: Position,
        portion: Portion,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for pair in self.walk(keys::RECORDS, direction, from) {
            let (key, value) = pair?;
            bytes += value.len();
            found.push(StoredRecord::decode(&key, &value)?);
            if portion.reached(found.len(), bytes) {
                break;
            }
        }
        Ok(found)
    }

    /// The same through an index.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn indexed(
        &self,
        index: Index,
        value: &str,
        direction: Direction,
        from: Position,
        portion: Portion,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for pair in self.walk(&index.prefix(value), direction, from) {
            let (key, _) = pair?;
            let position = keys::position_of(&key)
                .ok_or_else(|| StoreError::Damaged("an index key has no position".to_owned()))?;
            let record = self.record(position)?.ok_or_else(|| {
                StoreError::Damaged(format!("the record at position {position} is gone"))
            })?;
            bytes += record.bytes.len();
            found.push(record);
            if portion.reached(found.len(), bytes) {
                break;
            }
        }
        Ok(found)
    }

    fn walk(
        &self,
        prefix: &[u8],
        direction: Direction,
        from: Position,
    ) -> Box<dyn Iterator<Item = sled::Result<(sled::IVec, sled::IVec)>>> {
        let edge = |position: u64| [prefix, &position.to_be_bytes()].concat();
        match direction {
            Direction::Up => match from.0.checked_add(1) {
                Some(first) => Box::new(self.db.range(edge(first)..=edge(u64::MAX))),
                None => Box::new(std::iter::empty()),
            },
            Direction::Down => Box::new(self.db.range(edge(0)..edge(from.0)).rev()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_pairs_that_no_record_wrote_are_damage() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let lock = File::create(folder.path().join("lock")).unwrap();
            let db = sled::open(folder.path().join(name)).unwrap();
            Store::new(db, Arc::new(lock))
        };
        let store = open("store");
        let mut projected = Projected::default();
        for n in 1..=3 {
            let entry = Entry {
                position: Position(n),
                subject: Subject::parameters(),
                // Nobody can read it: it has a place, and stops everything.
                bytes: format!("{n}").into_bytes().into(),
            };
            let reading = migrations::read(&entry.subject, &entry.bytes);
            store
                .apply(project(&mut projected, &entry, &reading).writes)
                .unwrap();
        }
        assert_eq!(store.load().unwrap().state, projected.state);
        let stray = [
            keys::record(Position(9)),
            keys::command(CommandId(uuid::Uuid::from_u128(1))),
            keys::accepted_request(CommandId(uuid::Uuid::from_u128(1)), Hash::ZERO),
            Index::Actor.key("somebody", Position(2)),
            keys::document(&Subject::parameters()),
        ];
        for key in stray {
            let put = vec![Write::Put(key.clone(), b"{}".to_vec())];
            store.apply(put).unwrap();
            let loaded = store.load();
            assert!(
                matches!(loaded, Err(StoreError::Damaged(_))),
                "{key:?}: {loaded:?}"
            );
            store.db.remove(&key).unwrap();
            assert!(store.load().is_ok(), "{key:?}");
        }
    }
}
