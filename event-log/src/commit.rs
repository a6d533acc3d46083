//! Retry and attribution: the one place that turns attempts to append into an outcome.
//!
//! Owns: "the same bytes again on any doubt, then look who holds the place". [`CommitMachine`] decides, purely;
//! [`commit`] moves its inputs and outputs. Never does: decide what to append, or judge what was appended.
//!
//! Invariant: an attempt that may have been stored is never reported as refused until the place after the expected
//! record is seen to be taken by somebody else, because only then compare-and-swap keeps it out for ever.

use std::time::Duration;

use bytes::Bytes;
use schemas::{CommandId, Position, Subject};
use tokio::time::Instant;

use crate::port::{Appended, Entry, EventLog, Failure, Foreign};

/// A record that is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Where.
    pub position: Position,
    /// How often it was sent.
    pub attempts: u32,
}

/// Why a record is not, or not known to be, in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Somebody else's record follows the expected one. This record is not in the log and can never get in.
    #[error("another record was written first")]
    Conflict {
        /// That record, where it could be read.
        actual: Option<Position>,
    },
    /// It is not in the log and never will be.
    #[error("{0}")]
    Determinate(String),
    /// It may be in the log, or may get there yet. Committing the same bytes again is safe and finds out.
    #[error("{0}")]
    Indeterminate(String),
    /// The log is another one than before. The record is not in it.
    #[error("{0}")]
    Foreign(Foreign),
}

/// What happened, told to [`CommitMachine::step`].
#[derive(Debug, Clone)]
pub enum Input {
    /// Begin.
    Start,
    /// An attempt ended.
    Attempted(Result<Appended, Failure>),
    /// The first record after the expected one was looked up.
    Read(Result<Option<Found>, Failure>),
    /// A wait ended.
    Waited,
}

/// The record that holds the place after the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Where.
    pub position: Position,
    /// Whose; `None` when its envelope cannot be read.
    pub command_id: Option<CommandId>,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send the record (again).
    Append,
    /// Look up the first record on the subject after the expected one, through the leader.
    ReadNext,
    /// Wait this long (jitter may take up to half of it away).
    Wait(Duration),
    /// Over.
    Done(Result<Committed, CommitError>),
}

/// What a wait leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Append,
    ReadNext,
}

/// Decides how a commit goes on. Time is an argument: `elapsed` since the start.
#[derive(Debug, Clone)]
pub struct CommitMachine {
    command_id: CommandId,
    deadline: Duration,
    attempts: u32,
    waits: u32,
    /// An attempt may be in the log, or may get there yet.
    doubtful: bool,
    /// The last attempt said that the place is taken.
    refused: bool,
    after_wait: After,
    last_words: String,
}

const WAIT_BASE: Duration = Duration::from_millis(20);
const WAIT_MAX: Duration = Duration::from_secs(1);

impl CommitMachine {
    /// For one record of this command; gives up (see [`CommitError::Indeterminate`]) after `deadline`.
    #[must_use]
    pub fn new(command_id: CommandId, deadline: Duration) -> CommitMachine {
        CommitMachine {
            command_id,
            deadline,
            attempts: 0,
            waits: 0,
            doubtful: false,
            refused: false,
            after_wait: After::Append,
            last_words: "the log did not answer in time".to_owned(),
        }
    }

    /// The next thing to do.
    pub fn step(&mut self, input: Input, elapsed: Duration) -> Output {
        match input {
            Input::Start => self.append(),
            Input::Attempted(Ok(Appended::Committed(position))) => self.committed(position),
            Input::Attempted(Ok(Appended::Conflict)) => {
                // Not yet a verdict: an earlier attempt of ours, or of whoever had this command before, may hold the place.
                self.refused = true;
                self.last_words =
                    "the place in the log is taken, and by whom could not be read".to_owned();
                Output::ReadNext
            }
            Input::Attempted(Err(Failure::Determinate(why))) => {
                if !self.doubtful {
                    return Output::Done(Err(CommitError::Determinate(why)));
                }
                self.last_words = why;
                Output::ReadNext
            }
            Input::Attempted(Err(Failure::Indeterminate(why))) => {
                self.doubtful = true;
                self.say(why);
                Output::ReadNext
            }
            Input::Attempted(Err(Failure::Foreign(how)))
            | Input::Read(Err(Failure::Foreign(how))) => self.foreign(how),
            Input::Read(Ok(Some(found))) => {
                if found.command_id == Some(self.command_id) {
                    self.committed(found.position)
                } else {
                    Output::Done(Err(CommitError::Conflict {
                        actual: Some(found.position),
                    }))
                }
            }
            Input::Read(Ok(None)) if self.refused && !self.doubtful => {
                // The expected record is not the subject's last one and nothing follows it: the caller expected a record
                // that is not on this subject. Nothing of ours is under way.
                Output::Done(Err(CommitError::Conflict { actual: None }))
            }
            Input::Read(Ok(None)) => self.wait(After::Append, elapsed),
            Input::Read(Err(Failure::Determinate(why) | Failure::Indeterminate(why))) => {
                self.say(why);
                self.wait(After::ReadNext, elapsed)
            }
            Input::Waited if elapsed >= self.deadline => {
                // Never sent again after the deadline; one last look decides what is said.
                Output::ReadNext
            }
            Input::Waited => match self.after_wait {
                After::Append => self.append(),
                After::ReadNext => Output::ReadNext,
            },
        }
    }

    /// Words of the log say more than that time ran out, which is said without words.
    fn say(&mut self, why: String) {
        if !why.is_empty() {
            self.last_words = why;
        }
    }

    fn append(&mut self) -> Output {
        self.attempts += 1;
        self.refused = false;
        Output::Append
    }

    fn committed(&self, position: Position) -> Output {
        Output::Done(Ok(Committed {
            position,
            attempts: self.attempts,
        }))
    }

    fn foreign(&self, how: Foreign) -> Output {
        Output::Done(Err(if self.doubtful {
            CommitError::Indeterminate(format!(
                "{how}; an earlier attempt may have been stored before that"
            ))
        } else {
            CommitError::Foreign(how)
        }))
    }

    fn wait(&mut self, after: After, elapsed: Duration) -> Output {
        let left = self.deadline.saturating_sub(elapsed);
        if left.is_zero() {
            return Output::Done(Err(CommitError::Indeterminate(self.last_words.clone())));
        }
        self.after_wait = after;
        let full = WAIT_BASE
            .saturating_mul(2u32.saturating_pow(self.waits.min(16)))
            .min(WAIT_MAX);
        self.waits += 1;
        Output::Wait(full.min(left))
    }
}

/// Appends a record and finds out what became of it, for at most about `deadline`.
///
/// `bytes` must be a record of `command_id`. Calling it again with the same arguments is always safe: the record is stored
/// at most once.
///
/// # Errors
/// [`CommitError`]; only [`CommitError::Indeterminate`] leaves open whether the record is in the log.
pub async fn commit(
    log: &dyn EventLog,
    subject: &Subject,
    expected: Position,
    bytes: Bytes,
    command_id: CommandId,
    deadline: Duration,
) -> Result<Committed, CommitError> {
    let begun = Instant::now();
    let mut machine = CommitMachine::new(command_id, deadline);
    let mut input = Input::Start;
    loop {
        let patience = deadline
            .saturating_sub(begun.elapsed())
            .max(LAST_LOOK_PATIENCE);
        input = match machine.step(input, begun.elapsed()) {
            Output::Append => {
                crate::crash::point("commit.before_append");
                let attempt = log.append(subject, expected, bytes.clone());
                let attempted = tokio::time::timeout(patience, attempt)
                    .await
                    .unwrap_or_else(|_| Err(Failure::Indeterminate(String::new())));
                crate::crash::point("commit.after_append");
                Input::Attempted(attempted)
            }
            Output::ReadNext => {
                let read = tokio::time::timeout(patience, log.next_on(subject, expected)).await;
                Input::Read(match read {
                    Ok(found) => found.map(|entry| entry.as_ref().map(found_in)),
                    Err(_) => Err(Failure::Determinate(String::new())),
                })
            }
            Output::Wait(full) => {
                tokio::time::sleep(crate::ambient::backoff(full, full, 0)).await;
                Input::Waited
            }
            Output::Done(outcome) => return outcome,
        };
    }
}

/// Bound: how long the last look after the deadline may take.
pub const LAST_LOOK_PATIENCE: Duration = Duration::from_millis(500);

/// What of a record attribution needs.
#[must_use]
pub fn found_in(entry: &Entry) -> Found {
    Found {
        position: entry.position,
        command_id: migrations::record::command_id(&entry.bytes),
    }
}

#[cfg(test)]
mod tests;
