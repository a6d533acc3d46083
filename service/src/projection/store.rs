//! The local store: sled, holding only what can be made again from the log.
//!
//! Owns: encoding of values, atomic batches, loading, and range reads. Blocking: call it through
//! [`super::Projection::read`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use schemas::event::{chain_hash, record_hash};
use schemas::state::{PolicyDocument, Registry, State, Stop, Verdict};
use schemas::{CommandId, Hash, LogId, Position, Subject};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fold::{Projected, Write, json};
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

/// Bound: records checked at once when the store is opened.
const CHECKED_AT_ONCE: usize = 1_000;

/// Bound: records are read in chunks of at most this many bytes, so that no reader holds more in memory.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// The store. Dropping it closes it.
#[derive(Debug)]
pub struct Store {
    db: sled::Db,
    /// Held until sled has let go of its files (fields drop in order).
    _lock: Arc<File>,
}

impl Store {
    pub(super) fn new(db: sled::Db, lock: Arc<File>) -> Store {
        Store { db, _lock: lock }
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

    /// Everything that is folded in, checked against the records that it came from.
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
        let last = self.record(cursor.position)?;
        if last.is_none_or(|last| last.hash != cursor.hash || last.chain != cursor.chain) {
            return Err(StoreError::Damaged(
                "its cursor does not fit its last record".to_owned(),
            ));
        }
        self.check_chain(cursor)?;
        let state = State {
            position: cursor.position,
            policies: BTreeMap::new(),
            registry: self.get::<Registry>(keys::REGISTRY)?.unwrap_or_default(),
            tails: self.tails()?,
            stops: BTreeMap::new(),
            stopped: self.get::<Stop>(keys::STOPPED)?,
        };
        projected.state = Arc::new(state);
        projected.hash = cursor.hash;
        projected.chain = cursor.chain;
        self.load_policies(&mut projected)?;
        Ok(projected)
    }

    fn load_policies(&self, projected: &mut Projected) -> Result<(), StoreError> {
        let state = Arc::make_mut(&mut projected.state);
        for pair in self.db.scan_prefix(keys::DOCUMENTS) {
            let document: PolicyDocument = decode(&pair?.1)?;
            let record = self.record(document.position)?;
            if record.is_none_or(|record| record.hash != document.hash) {
                let what = format!("{} does not fit its record", document.key());
                return Err(StoreError::Damaged(what));
            }
            state.policies.insert(document.key(), document);
        }
        for pair in self.db.scan_prefix(keys::STOPS) {
            let (key, value) = pair?;
            let subject = String::from_utf8_lossy(&key[keys::STOPS.len()..]).into_owned();
            let address = Subject::from_log(&subject).address();
            let Some(schemas::scope::Address::Policy(policy)) = address else {
                return Err(StoreError::Damaged(format!("{subject} is no policy")));
            };
            state.stops.insert(policy, decode(&value)?);
        }
        // Every policy that a record ever named has its own subject or is in a set; the documents and stops name those.
        let keys: Vec<_> = state
            .policies
            .keys()
            .chain(state.stops.keys())
            .cloned()
            .chain(
                state
                    .tails
                    .keys()
                    .filter_map(|subject| match subject.address() {
                        Some(schemas::scope::Address::Policy(key)) => Some(key),
                        Some(
                            schemas::scope::Address::Set(_) | schemas::scope::Address::Parameters,
                        )
                        | None => None,
                    }),
            )
            .collect();
        for key in &keys {
            projected.name(key);
        }
        Ok(())
    }

    fn tails(&self) -> Result<BTreeMap<Subject, Position>, StoreError> {
        let mut tails = BTreeMap::new();
        for pair in self.db.scan_prefix(keys::TAILS) {
            let (key, value) = pair?;
            let subject = String::from_utf8_lossy(&key[keys::TAILS.len()..]).into_owned();
            tails.insert(Subject::from_log(&subject), decode(&value)?);
        }
        Ok(tails)
    }

    /// Walks the whole chain: a record that was lost, changed or moved breaks it, and nobody may be told of a log with a
    /// hole. Takes about 4 s for a million records.
    fn check_chain(&self, cursor: Cursor) -> Result<(), StoreError> {
        let mut chain = Hash::ZERO;
        let mut at = Position::START;
        loop {
            let records = self.records(Direction::Up, at, CHECKED_AT_ONCE)?;
            if records.is_empty() {
                break;
            }
            for record in records {
                let hash = record_hash(&record.subject, &record.bytes);
                chain = chain_hash(chain, record.position, &record.subject, &record.bytes);
                if chain != record.chain || hash != record.hash {
                    let what = format!("the chain breaks at position {}", record.position);
                    return Err(StoreError::Damaged(what));
                }
                at = record.position;
            }
        }
        if at == cursor.position && chain == cursor.chain {
            Ok(())
        } else {
            let what = format!(
                "its records end at position {at}, not at {}",
                cursor.position
            );
            Err(StoreError::Damaged(what))
        }
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

    /// The record that a command is answered by: its first accepted one, else its first.
    ///
    /// SUBTLE: a broker that lets two winners in may store one command twice through two services, the void record first
    /// (`regression_a_command_is_answered_by_its_accepted_record`).
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn command(&self, id: CommandId) -> Result<Option<StoredCommand>, StoreError> {
        match self.get(&keys::accepted(id))? {
            Some(accepted) => Ok(Some(accepted)),
            None => self.get(&keys::command(id)),
        }
    }

    /// Records beyond `from` (not including it) in the direction, at most `limit`, and at most about a mebibyte.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn records(
        &self,
        direction: Direction,
        from: Position,
        limit: usize,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for pair in self.walk(keys::RECORDS, direction, from) {
            let (key, value) = pair?;
            bytes += value.len();
            found.push(StoredRecord::decode(&key, &value)?);
            if found.len() >= limit || bytes >= CHUNK_BYTES_MAX {
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
        limit: usize,
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
            if found.len() >= limit || bytes >= CHUNK_BYTES_MAX {
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
