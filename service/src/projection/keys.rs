//! Keys of the local store: one sled tree, the first byte says what a key is.
//!
//! One tree, because a sled batch over one tree is atomic and survives crashes whole: records, documents and cursor of one
//! batch are in together or not at all.
//!
//! | key | value |
//! |---|---|
//! | `m` layout, vocabulary, log_id, cursor | what the store is, which log it is of, how far it is ([`super::store::Cursor`]) |
//! | `p` subject | [`schemas::state::PolicyDocument`] |
//! | `g` | [`schemas::state::Registry`] |
//! | `x` subject / `X` | [`schemas::state::Stop`] of one policy / of all |
//! | `t` subject | position of the subject's last record |
//! | `r` position | [`super::store::StoredRecord`] |
//! | `c` command id | [`super::store::StoredCommand`], of its first record |
//! | `C` command id, fingerprint | the same, of its first accepted record with that request, where it has one |
//! | `i` index, hash, position | empty; finds records by policy, subject, actor or model |
//!
//! Positions are 8 bytes big-endian, so that keys sort as positions do.

use schemas::{CommandId, Hash, Position, Subject};

/// Layout version.
pub const LAYOUT: &[u8] = b"mlayout";
/// What the reader that made it understood.
pub const VOCABULARY: &[u8] = b"mvocabulary";
/// Identity of the log.
pub const LOG_ID: &[u8] = b"mlog_id";
/// How far it is.
pub const CURSOR: &[u8] = b"mcursor";
/// Documents.
pub const DOCUMENTS: &[u8] = b"p";
/// The registry.
pub const REGISTRY: &[u8] = b"g";
/// Stopped policies.
pub const STOPS: &[u8] = b"x";
/// Everything is stopped.
pub const STOPPED: &[u8] = b"X";
/// Tails.
pub const TAILS: &[u8] = b"t";
/// Records.
pub const RECORDS: &[u8] = b"r";

/// What records can be found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// Subject of a policy that the record names.
    Policy,
    /// Subject that the record was written to.
    Subject,
    /// Name of the actor.
    Actor,
    /// Model in a scope that the record names.
    Model,
}

impl Index {
    fn byte(self) -> u8 {
        match self {
            Index::Policy => b'p',
            Index::Subject => b's',
            Index::Actor => b'a',
            Index::Model => b'm',
        }
    }

    /// The keys of one value's records start with this.
    #[must_use]
    pub fn prefix(self, value: &str) -> Vec<u8> {
        let hash = Hash::of(&[value.as_bytes()]);
        let mut key = vec![b'i', self.byte()];
        key.extend_from_slice(&hash.0[..16]);
        key
    }

    /// The key of one record under one value.
    #[must_use]
    pub fn key(self, value: &str, position: Position) -> Vec<u8> {
        let mut key = self.prefix(value);
        key.extend_from_slice(&position.0.to_be_bytes());
        key
    }
}

fn with(prefix: &[u8], rest: &[u8]) -> Vec<u8> {
    [prefix, rest].concat()
}

/// A policy's document.
#[must_use]
pub fn document(subject: &Subject) -> Vec<u8> {
    with(DOCUMENTS, subject.as_str().as_bytes())
}

/// A policy's stop.
#[must_use]
pub fn stop(subject: &Subject) -> Vec<u8> {
    with(STOPS, subject.as_str().as_bytes())
}

/// A subject's tail.
#[must_use]
pub fn tail(subject: &Subject) -> Vec<u8> {
    with(TAILS, subject.as_str().as_bytes())
}

/// A record.
#[must_use]
pub fn record(position: Position) -> Vec<u8> {
    with(RECORDS, &position.0.to_be_bytes())
}

/// A command.
#[must_use]
pub fn command(id: CommandId) -> Vec<u8> {
    with(b"c", id.0.as_bytes())
}

/// True for what is written once: records and indexes.
#[must_use]
pub fn is_final(key: &[u8]) -> bool {
    matches!(key.first(), Some(b'r' | b'i'))
}

/// Accepted records of a command start with this.
#[must_use]
pub fn accepted(id: CommandId) -> Vec<u8> {
    with(b"C", id.0.as_bytes())
}

/// A command's first accepted record with this request.
#[must_use]
pub fn accepted_request(id: CommandId, fingerprint: Hash) -> Vec<u8> {
    with(&accepted(id), &fingerprint.0)
}

/// The position at the end of a record's or an index's key.
#[must_use]
pub fn position_of(key: &[u8]) -> Option<Position> {
    let tail = key.len().checked_sub(8)?;
    let bytes: [u8; 8] = key.get(tail..)?.try_into().ok()?;
    Some(Position(u64::from_be_bytes(bytes)))
}
