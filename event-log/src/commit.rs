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
            last_words: String::new(),
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
                self.last_words = why;
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
                self.last_words = why;
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
                let attempt = log.append(subject, expected, bytes.clone());
                Input::Attempted(
                    tokio::time::timeout(patience, attempt)
                        .await
                        .unwrap_or_else(|_| {
                            Err(Failure::Indeterminate(
                                "the log did not answer in time".to_owned(),
                            ))
                        }),
                )
            }
            Output::ReadNext => {
                let read = tokio::time::timeout(patience, log.next_on(subject, expected)).await;
                Input::Read(match read {
                    Ok(found) => found.map(|entry| entry.as_ref().map(found_in)),
                    Err(_) => Err(Failure::Determinate(
                        "the log did not answer in time".to_owned(),
                    )),
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
const LAST_LOOK_PATIENCE: Duration = Duration::from_millis(500);

fn found_in(entry: &Entry) -> Found {
    Found {
        position: entry.position,
        command_id: migrations::record::command_id(&entry.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::LogId;
    use uuid::Uuid;

    const OURS: CommandId = CommandId(Uuid::from_u128(1));
    const THEIRS: CommandId = CommandId(Uuid::from_u128(2));
    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(11);
    const GONE: Foreign = Foreign::Gone {
        known: LogId(Uuid::from_u128(3)),
    };

    fn lost() -> Input {
        Input::Attempted(Err(Failure::Indeterminate("no answer".to_owned())))
    }
    fn refused() -> Input {
        Input::Attempted(Err(Failure::Determinate("disk full".to_owned())))
    }
    fn conflict() -> Input {
        Input::Attempted(Ok(Appended::Conflict))
    }
    fn foreign() -> Input {
        Input::Attempted(Err(Failure::Foreign(GONE)))
    }
    fn stored(position: u64) -> Input {
        Input::Attempted(Ok(Appended::Committed(Position(position))))
    }
    fn read(position: u64, command_id: CommandId) -> Input {
        Input::Read(Ok(Some(Found {
            position: Position(position),
            command_id: Some(command_id),
        })))
    }
    fn nothing() -> Input {
        Input::Read(Ok(None))
    }
    fn unreadable() -> Input {
        Input::Read(Err(Failure::Determinate("away".to_owned())))
    }
    fn done(position: u64, attempts: u32) -> Output {
        Output::Done(Ok(Committed {
            position: Position(position),
            attempts,
        }))
    }
    fn conflict_with(actual: Option<u64>) -> Output {
        Output::Done(Err(CommitError::Conflict {
            actual: actual.map(Position),
        }))
    }
    fn unknown(why: &str) -> Output {
        Output::Done(Err(CommitError::Indeterminate(why.to_owned())))
    }
    fn wait(ms: u64) -> Output {
        Output::Wait(Duration::from_millis(ms))
    }

    #[track_caller]
    fn check(script: Vec<(Input, Duration, Output)>) {
        let mut machine = CommitMachine::new(OURS, Duration::from_secs(10));
        assert_eq!(machine.step(Input::Start, Duration::ZERO), Output::Append);
        for (at, (input, elapsed, expected)) in script.into_iter().enumerate() {
            assert_eq!(machine.step(input, elapsed), expected, "step {at}");
        }
    }

    #[test]
    fn an_acknowledged_attempt_is_committed() {
        check(vec![(stored(4), SOON, done(4, 1))]);
    }

    #[test]
    fn a_lost_acknowledgement_is_found_in_the_log() {
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (read(4, OURS), SOON, done(4, 1)),
        ]);
    }

    #[test]
    fn a_lost_request_is_sent_again() {
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(20)),
            (Input::Waited, SOON, Output::Append),
            (stored(4), SOON, done(4, 2)),
        ]);
    }

    #[test]
    fn a_late_write_shows_as_a_conflict_with_ourselves() {
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(20)),
            (Input::Waited, SOON, Output::Append),
            (conflict(), SOON, Output::ReadNext),
            (read(5, OURS), SOON, done(5, 2)),
        ]);
    }

    #[test]
    fn a_conflict_on_the_first_attempt_may_be_ourselves_from_before_a_crash() {
        check(vec![
            (conflict(), SOON, Output::ReadNext),
            (read(5, OURS), SOON, done(5, 1)),
        ]);
    }

    #[test]
    fn a_place_taken_by_another_is_a_conflict_whatever_was_lost_before() {
        check(vec![
            (conflict(), SOON, Output::ReadNext),
            (read(5, THEIRS), SOON, conflict_with(Some(5))),
        ]);
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (read(5, THEIRS), SOON, conflict_with(Some(5))),
        ]);
    }

    #[test]
    fn an_unreadable_record_in_our_place_is_not_ours() {
        let stranger = Input::Read(Ok(Some(Found {
            position: Position(5),
            command_id: None,
        })));
        check(vec![
            (conflict(), SOON, Output::ReadNext),
            (stranger, SOON, conflict_with(Some(5))),
        ]);
    }

    #[test]
    fn an_expectation_that_is_on_no_record_is_a_conflict_with_nobody() {
        check(vec![
            (conflict(), SOON, Output::ReadNext),
            (nothing(), SOON, conflict_with(None)),
        ]);
    }

    #[test]
    fn a_conflict_with_nobody_after_a_doubt_is_no_verdict() {
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(20)),
            (Input::Waited, SOON, Output::Append),
            (conflict(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(40)),
            (Input::Waited, SOON, Output::Append),
            (stored(9), SOON, done(9, 3)),
        ]);
    }

    #[test]
    fn a_definite_refusal_is_one_only_without_an_earlier_doubt() {
        check(vec![(
            refused(),
            SOON,
            Output::Done(Err(CommitError::Determinate("disk full".to_owned()))),
        )]);
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(20)),
            (Input::Waited, SOON, Output::Append),
            (refused(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(40)),
            (Input::Waited, LATE, Output::ReadNext),
            (nothing(), LATE, unknown("disk full")),
        ]);
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (nothing(), SOON, wait(20)),
            (Input::Waited, SOON, Output::Append),
            (refused(), SOON, Output::ReadNext),
            (read(6, OURS), SOON, done(6, 2)),
        ]);
    }

    #[test]
    fn a_conflict_that_cannot_be_attributed_stays_unknown() {
        check(vec![
            (conflict(), SOON, Output::ReadNext),
            (unreadable(), SOON, wait(20)),
            (Input::Waited, SOON, Output::ReadNext),
            (unreadable(), LATE, unknown("away")),
        ]);
    }

    #[test]
    fn nothing_is_sent_after_the_deadline_and_one_last_look_decides() {
        check(vec![
            (lost(), SOON, Output::ReadNext),
            (unreadable(), Duration::from_millis(9_995), wait(5)),
            (Input::Waited, LATE, Output::ReadNext),
            (read(7, OURS), LATE, done(7, 1)),
        ]);
        check(vec![
            (lost(), LATE, Output::ReadNext),
            (nothing(), LATE, unknown("no answer")),
        ]);
    }

    #[test]
    fn waits_double_up_to_a_second() {
        let mut machine = CommitMachine::new(OURS, Duration::from_secs(60));
        let mut waits = Vec::new();
        for _ in 0..8 {
            machine.step(lost(), SOON);
            if let Output::Wait(full) = machine.step(nothing(), SOON) {
                waits.push(full.as_millis());
            }
            machine.step(Input::Waited, SOON);
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }

    #[test]
    fn another_log_is_a_verdict_only_without_a_doubt() {
        check(vec![(
            foreign(),
            SOON,
            Output::Done(Err(CommitError::Foreign(GONE))),
        )]);
        let mut machine = CommitMachine::new(OURS, Duration::from_secs(10));
        machine.step(Input::Start, SOON);
        machine.step(lost(), SOON);
        let end = machine.step(Input::Read(Err(Failure::Foreign(GONE))), SOON);
        assert!(
            matches!(end, Output::Done(Err(CommitError::Indeterminate(_)))),
            "{end:?}"
        );
    }
}
