//! The port: what the service and the agents need of a log, whatever keeps it.
//!
//! Contract of every adapter (`conformance` checks each line):
//! - positions start at 1 or later and rise strictly; subjects are independent for compare-and-swap;
//! - an acknowledged record is durable (as far as the adapter says in its own documentation) and never changes;
//! - a reader that asks from a position gets every later record exactly once and in order, then waits for more;
//! - a log made anew, or one that ends before a position that a caller has seen, is an error and never an empty answer.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use schemas::{Hash, LogId, Position, Subject};

/// One record as it stands in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place.
    pub position: Position,
    /// Where it was written to.
    pub subject: Subject,
    /// The record, byte for byte as it was appended.
    pub bytes: Bytes,
}

/// Which log this is and where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Identity.
    pub log_id: LogId,
    /// The last record; [`Position::START`] when there is none.
    pub position: Position,
}

/// What became of one attempt to append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It is in the log, durably, at this position.
    Committed(Position),
    /// The subject's last record is not the expected one. This attempt stored nothing; an earlier attempt with the same
    /// bytes may have (see `commit`).
    Conflict,
}

/// Why a log could not do something.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// It did not happen, and will not happen later.
    #[error("{0}")]
    Determinate(String),
    /// It may have happened, or may happen yet.
    #[error("{0}")]
    Indeterminate(String),
    /// This is not the log that was met before: made anew, cut off, or put back to an older state. Nothing was done.
    #[error("{0}")]
    Foreign(Foreign),
}

/// How a log differs from the one that was met before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// Another identity: the log was deleted and made anew.
    #[error("the log has another identity ({actual}) than the one followed so far ({known})")]
    OtherIdentity {
        /// Followed so far.
        known: LogId,
        /// Found.
        actual: LogId,
    },
    /// It ends before a record that was seen.
    #[error(
        "the log ends at position {actual}, before position {known}, which was read from it earlier"
    )]
    Behind {
        /// Seen.
        known: Position,
        /// Where it ends.
        actual: Position,
    },
    /// Another record stands where one was seen.
    #[error("the record at position {position} is not the one that was read there earlier")]
    Rewritten {
        /// Where.
        position: Position,
    },
    /// There is no log where there was one.
    #[error("there is no log here, but one with identity {known} was followed so far")]
    Gone {
        /// Followed so far.
        known: LogId,
    },
}

/// What a reader remembers of a log, to know it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its identity.
    pub log_id: LogId,
    /// The last record that was taken in; [`Position::START`] for none.
    pub position: Position,
    /// Its hash, where the reader knows it: a log that has, or gets, another record there is refused.
    pub record: Option<Hash>,
}

/// The last record of every subject.
#[derive(Debug, Clone)]
pub struct Tails {
    /// One entry per subject, in no particular order.
    pub entries: Vec<Entry>,
    /// Nothing at or before this position is missing from `entries`; nothing after it is in.
    pub up_to: Head,
}

/// Reading a log.
#[async_trait]
pub trait LogReader: Send + Sync + 'static {
    /// Which log this is and where it ends, asked of whoever decides (never of a replica that may lag).
    ///
    /// # Errors
    /// [`Failure::Determinate`] when it cannot be reached; [`Failure::Foreign`] when there is none where there was one.
    async fn head(&self) -> Result<Head, Failure>;

    /// The last record of every subject: O(subjects).
    ///
    /// # Errors
    /// As [`LogReader::head`].
    async fn tails(&self) -> Result<Tails, Failure>;

    /// The first record on `subject` after `after`, asked of whoever decides.
    ///
    /// # Errors
    /// As [`LogReader::head`].
    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure>;

    /// The record at exactly this position, asked of whoever decides; `None` for a gap.
    ///
    /// # Errors
    /// As [`LogReader::head`].
    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure>;

    /// Every record after `seen.position`, in order, then those to come. The log must be the one of `seen`.
    ///
    /// The subscription notices by itself when deliveries stop although the log's head goes on, and heals itself from its
    /// own cursor. It ends with an error only for what it cannot heal ([`Failure::Foreign`]), or when the log stays out of
    /// reach ([`Failure::Determinate`]); call `follow` again then, with what was seen.
    ///
    /// # Errors
    /// As [`LogReader::head`], and [`Failure::Foreign`] when the log is another one, or ends before `seen.position`.
    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure>;
}

/// Records as they come. Dropping it ends it.
#[async_trait]
pub trait Subscription: Send {
    /// The next record; waits for one. Cancel safe: a record is lost only by dropping the subscription.
    ///
    /// # Errors
    /// See [`LogReader::follow`]. After an error the subscription is over.
    async fn next(&mut self) -> Result<Entry, Failure>;
}

/// Writing to a log.
#[async_trait]
pub trait EventLog: LogReader {
    /// One attempt to append `bytes` to `subject`, if the subject's last record is still at `expected`
    /// ([`Position::START`] = it has none). No retry, no attribution: that is `commit`'s work.
    ///
    /// # Errors
    /// [`Failure::Determinate`] when nothing was and will be stored; [`Failure::Indeterminate`] when it may have been.
    async fn append(
        &self,
        subject: &Subject,
        expected: Position,
        bytes: Bytes,
    ) -> Result<Appended, Failure>;
}

/// The newest report of every agent. Status is best effort and holds no history.
#[async_trait]
pub trait StatusBoard: Send + Sync + 'static {
    /// Replaces the agent's report.
    ///
    /// # Errors
    /// [`Failure`] when it could not be delivered; report again at the next interval.
    async fn report(&self, status: &schemas::status::AgentStatus) -> Result<(), Failure>;

    /// Every agent's newest report and those to come, in the order in which they arrive.
    ///
    /// # Errors
    /// [`Failure::Determinate`] when the board cannot be reached.
    async fn watch(&self) -> Result<Box<dyn Reports>, Failure>;
}

/// Reports as they come. Dropping it ends it.
#[async_trait]
pub trait Reports: Send {
    /// The next report; waits for one. Cancel safe.
    ///
    /// # Errors
    /// [`Failure::Determinate`] when the board went away; watch again.
    async fn next(&mut self) -> Result<schemas::status::AgentStatus, Failure>;
}

/// A log and the board beside it, as a process is wired to them.
#[derive(Clone)]
pub struct Wiring {
    /// The log.
    pub log: Arc<dyn EventLog>,
    /// The board.
    pub board: Arc<dyn StatusBoard>,
}

/// The same for one that only reads the log.
#[derive(Clone)]
pub struct ReaderWiring {
    /// The log.
    pub log: Arc<dyn LogReader>,
    /// The board.
    pub board: Arc<dyn StatusBoard>,
}

impl std::fmt::Debug for Wiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wiring")
    }
}

impl std::fmt::Debug for ReaderWiring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReaderWiring")
    }
}
