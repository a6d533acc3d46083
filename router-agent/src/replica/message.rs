//! What goes into the replica and what comes out of it.

use event_log::bootstrap::Bootstrapped;
use event_log::{Entry, Failure, Head, Seen};
use schemas::state::{Reading, State};
use schemas::{PolicyKey, Position, Subject};

use super::Followed;
use crate::local_copy::Cursor;

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Meet the log (again).
    Start,
    /// The log was asked for its head.
    Head(Result<Head, Failure>),
    /// A record was looked up.
    Found(Result<Option<Entry>, Failure>),
    /// The state was read from the log.
    Bootstrapped(Result<Box<Bootstrapped>, Failure>),
    /// The log is followed, or cannot be.
    Followed(Result<(), Failure>),
    /// A record came, with what it was understood as.
    Record(Entry, Box<Reading>),
    /// No records come any more.
    Ended(Failure),
    /// The log was asked for its head while it is followed.
    Looked(Result<Head, Failure>),
    /// Nothing came for a while.
    Idle,
}

/// What to do, in this order.
#[derive(Debug)]
pub enum Output {
    /// Ask for the head.
    AskHead,
    /// Look up the record at this position.
    Find(Position),
    /// Read the state from the log.
    Bootstrap,
    /// Follow the log.
    Follow(Seen),
    /// Drop what is followed and start again after a wait that grows with the attempts.
    Wait {
        /// How many attempts failed before.
        attempt: u32,
        /// True for a log that is refused: only a human changes that.
        foreign: bool,
    },
    /// Keep this whole state, and make it survive a power cut.
    Replace(Box<(State, Cursor)>),
    /// Keep what one record changed, so that it survives the end of the process.
    Advance(Box<Advance>),
    /// Make everything kept survive a power cut.
    Sync,
    /// Tell the frontends' loops and the report.
    Publish(Box<Followed>),
}

/// What one record changed.
#[derive(Debug)]
pub struct Advance {
    /// The part of the state that a write needs, so that a record costs what it changes and not the whole state.
    pub part: State,
    /// How far the state is.
    pub cursor: Cursor,
    /// Where the record stands.
    pub subject: Subject,
    /// Policies whose documents it may have changed.
    pub changed: Vec<PolicyKey>,
}
