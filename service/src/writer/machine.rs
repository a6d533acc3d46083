//! What one write does next: pure. Looks at what is known, outcomes of commits and waits go in; a decision, a wait or the
//! outcome comes out.
//!
//! Owns: when a decision is made again. It is after a definite conflict (nothing of the command can get into the log any
//! more) and after catching up with the log; never after an unknown outcome.

use std::sync::Arc;

use event_log::{CommitError, Committed, Failure, Head};
use schemas::decide::{Command, Decision, decide};
use schemas::parameter::is_built_in;
use schemas::state::{Reading, Verdict};
use schemas::{PolicyKey, Position, Rejection};

use super::{Newer, Outcome, WriteError, Written, policies_of};
use crate::projection::Snapshot;
use crate::projection::store::{StoredCommand, StoredRecord};

/// Bound: decisions that one write makes; each one after the first means that somebody else's change won in between.
pub const DECISIONS_MAX: u32 = 64;

/// What happened. Failures of the local store come in words.
#[derive(Debug)]
pub enum Input {
    /// What is known now. The snapshot must be taken before the first record is looked up.
    Looked(Box<Looked>),
    /// The commit of the decision ended.
    Committed(Result<Committed, CommitError>),
    /// The log was asked for its head.
    Head(Result<Head, Failure>),
    /// A wait ended.
    Waited(Waited),
    /// The own record was looked up in the local store.
    Read(Box<Own>),
}

/// What is known of the log and of a command.
#[derive(Debug)]
pub struct Looked {
    /// The newest snapshot.
    pub snapshot: Arc<Snapshot>,
    /// The record that the command is answered by (`Store::command`), looked up after the snapshot was taken.
    pub first: Result<Option<StoredCommand>, String>,
    /// Why the log is not the one that was followed, where that is so.
    pub foreign: Option<String>,
}

/// What the local store holds of a command that was committed.
#[derive(Debug)]
pub struct Own {
    /// The record that was committed.
    pub record: Result<Option<StoredRecord>, String>,
    /// The record that the command is answered by (`Store::command`), which may be another one: another service may have
    /// been given the command too.
    pub first: Result<Option<StoredCommand>, String>,
    /// The newest snapshot.
    pub snapshot: Arc<Snapshot>,
}

/// How a wait for the own projection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// It is there.
    Reached,
    /// The deadline came first.
    Late,
    /// The log turned out to be another one.
    Foreign(String),
}

/// What to do next.
#[derive(Debug)]
pub enum Output {
    /// Take the newest snapshot, then look up the command's first record.
    Look,
    /// Commit this.
    Commit(Box<Decision>),
    /// Ask the log for its head.
    AskHead,
    /// Wait until everything up to here is folded in, or the log is found to be another one.
    CatchUp(Position),
    /// Wait until everything up to here is folded in.
    WaitFor(Position),
    /// Look this record and the command's first one up in the local store.
    Read(Position),
    /// Over.
    Done(Box<Outcome>),
}

/// One write, from its first decision to its verdict.
#[derive(Debug)]
pub struct WriteMachine {
    command: Command,
    decisions: u32,
    caught_up: bool,
    /// Waited for, or read.
    position: Position,
}

impl WriteMachine {
    /// Begin with [`Output::Look`].
    #[must_use]
    pub fn new(command: Command) -> WriteMachine {
        WriteMachine {
            command,
            decisions: 0,
            caught_up: false,
            position: Position::START,
        }
    }

    /// The next thing to do.
    pub fn step(&mut self, input: Input) -> Output {
        match input {
            Input::Looked(looked) => self.looked(*looked),
            Input::Committed(Ok(committed)) => {
                // From here on it is never "not applied".
                self.position = committed.position;
                self.caught_up = false;
                Output::WaitFor(committed.position)
            }
            Input::Committed(Err(CommitError::Conflict { .. })) => {
                self.caught_up = true;
                Output::AskHead
            }
            Input::Committed(Err(CommitError::Determinate(why))) => {
                done(Err(WriteError::Unavailable(why)))
            }
            Input::Committed(Err(CommitError::Indeterminate(why))) => {
                done(Err(WriteError::Unknown(why)))
            }
            Input::Committed(Err(CommitError::Foreign(foreign))) => {
                done(Err(WriteError::Foreign(foreign.to_string())))
            }
            Input::Head(Ok(head)) => {
                self.position = head.position;
                Output::CatchUp(head.position)
            }
            Input::Head(Err(Failure::Foreign(foreign))) => {
                done(Err(WriteError::Foreign(foreign.to_string())))
            }
            Input::Head(Err(Failure::Determinate(why) | Failure::Indeterminate(why))) => {
                done(Err(WriteError::Unavailable(why)))
            }
            Input::Waited(waited) => self.waited(waited),
            Input::Read(own) => self.verdict(*own),
        }
    }

    fn looked(&mut self, looked: Looked) -> Output {
        if let Some(why) = looked.foreign {
            return done(Err(WriteError::Foreign(why)));
        }
        // SUBTLE: the snapshot before the store. The command may have got into the log through another replica; were it
        // folded in between the two, it would look stale against its own record
        // (`one_key_has_one_outcome_on_two_replicas`). The store always holds what a snapshot shows.
        let snapshot = &looked.snapshot;
        match looked.first {
            Ok(Some(first)) => return done(self.outcome_of(snapshot, &first, true)),
            Ok(None) => {}
            Err(why) => return done(Err(WriteError::Store(why))),
        }
        if self.decisions >= DECISIONS_MAX {
            return done(Err(WriteError::Lost {
                why: "too many writers change the same policy".to_owned(),
                newer: self.newest(snapshot),
                position: None,
            }));
        }
        self.decisions += 1;
        match decide(&snapshot.state, &self.command) {
            Ok(decision) => Output::Commit(Box::new(decision)),
            // This replica may be behind the one that the client has read from.
            Err(rejection) if !self.caught_up && may_be_behind(&rejection) => {
                self.caught_up = true;
                Output::AskHead
            }
            Err(rejection) => {
                let newer = newer(snapshot, &rejection).map(Box::new);
                let rejection = Box::new(rejection);
                done(Err(WriteError::Refused { rejection, newer }))
            }
        }
    }

    fn waited(&self, waited: Waited) -> Output {
        let position = self.position;
        match (waited, self.caught_up) {
            (Waited::Reached, true) => Output::Look,
            (Waited::Reached, false) => Output::Read(position),
            // Nothing of the command is in doubt while catching up.
            (Waited::Late, true) => {
                let why = format!("this service is behind its position {position}");
                done(Err(WriteError::Unavailable(why)))
            }
            (Waited::Foreign(why), true) => done(Err(WriteError::Foreign(why))),
            (Waited::Late | Waited::Foreign(_), false) => {
                let why =
                    format!("it is in the log at position {position}, but this service is behind");
                done(Err(WriteError::Unknown(why)))
            }
        }
    }

    /// What became of the command, which has a record at `self.position`.
    fn verdict(&self, own: Own) -> Output {
        // SUBTLE: the record that was committed, not the command's first one. Two replicas that are given one key with two
        // bodies at once cannot know of each other; both records count, and neither may be answered as refused
        // (`one_key_with_two_bodies_on_two_replicas_is_never_refused_and_applied`).
        let record = match own.record {
            Ok(Some(record)) => record,
            // Cannot happen: the store holds what the projection has reached.
            Ok(None) => {
                let why = "its record was not found in the local store".to_owned();
                return done(Err(WriteError::Unknown(why)));
            }
            Err(why) => return done(Err(WriteError::Unknown(why))),
        };
        // SUBTLE: a log that was put back to an older state and grew again has other records at positions that this service
        // has read; until that is noticed, a verdict could be another command's
        // (`regression_another_record_at_the_committed_position_is_no_verdict`).
        if migrations::record::command_id(&record.bytes) != Some(self.command.command_id) {
            let why = format!(
                "another record than the one at position {} was read from the log earlier",
                self.position
            );
            return done(Err(WriteError::Unknown(why)));
        }
        let fingerprint = match migrations::read(&record.subject, &record.bytes) {
            Reading::Known(record) => Some(record.fingerprint),
            Reading::Unknown { .. } => None,
        };
        let void = matches!(record.verdict, Verdict::Void { .. });
        let committed = StoredCommand {
            position: self.position,
            fingerprint,
            verdict: record.verdict,
        };
        // SUBTLE: a void record is no refusal when the command has an accepted one: a broker that lets two winners in may
        // have let in the same command twice, by two services
        // (`regression_a_command_that_two_services_got_in_is_not_lost_because_one_record_is_void`).
        let counts = |first: &StoredCommand| {
            void && first.fingerprint == Some(self.command.fingerprint)
                && matches!(first.verdict, Verdict::Accepted { .. })
        };
        let outcome = match own.first {
            Ok(Some(first)) if counts(&first) => self.outcome_of(&own.snapshot, &first, true),
            Ok(_) => self.outcome_of(&own.snapshot, &committed, false),
            Err(why) if void => Err(WriteError::Unknown(why)),
            Err(_) => self.outcome_of(&own.snapshot, &committed, false),
        };
        done(outcome)
    }

    fn outcome_of(&self, snapshot: &Snapshot, first: &StoredCommand, repeated: bool) -> Outcome {
        let same = first
            .fingerprint
            .is_none_or(|fingerprint| fingerprint == self.command.fingerprint);
        if !same {
            return Err(WriteError::KeyReused {
                position: Some(first.position),
            });
        }
        match &first.verdict {
            Verdict::Accepted { .. } => Ok(Written {
                command_id: self.command.command_id,
                position: first.position,
                repeated,
            }),
            Verdict::Void { why } => Err(WriteError::Lost {
                why: why.clone(),
                newer: self.newest(snapshot),
                position: Some(first.position),
            }),
            Verdict::Unreadable { why } => Err(WriteError::Unreadable(why.clone())),
        }
    }

    /// The newest change of the policies that the command names.
    fn newest(&self, snapshot: &Snapshot) -> Option<Box<Newer>> {
        policies_of(&self.command.order)
            .iter()
            .filter_map(|policy| newer_of(snapshot, policy))
            .max_by_key(|newer| newer.position)
            .map(Box::new)
    }
}

fn done(outcome: Outcome) -> Output {
    Output::Done(Box::new(outcome))
}

/// A refusal that more of the log could turn into something else.
fn may_be_behind(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::StaleRevision {
            expected, current, ..
        }
        | Rejection::StaleRegistry { expected, current } => expected > current,
        Rejection::UnknownParameter { .. }
        | Rejection::TooManyParameters { .. }
        | Rejection::TooLarge { .. }
        | Rejection::NoSuchRevision { .. } => true,
        // SUBTLE: what a custom parameter may be stands in the log, and the command may be there already, by another service,
        // judged by an earlier schema (`regression_a_value_refused_by_a_schema_is_refused_by_the_newest_state_only`).
        Rejection::InvalidValue { name, .. } => !is_built_in(name),
        Rejection::EmptyChange
        | Rejection::InvalidScope { .. }
        | Rejection::InvalidSchema { .. }
        | Rejection::InvalidSet { .. }
        | Rejection::Stopped { .. }
        | Rejection::RegistryStopped { .. } => false,
    }
}

fn newer(snapshot: &Snapshot, rejection: &Rejection) -> Option<Newer> {
    match rejection {
        Rejection::StaleRevision {
            policy, current, ..
        } => newer_of(snapshot, policy).or(Some(Newer {
            revision: *current,
            actor: None,
            at: None,
            position: Position::START,
        })),
        Rejection::StaleRegistry { current, .. } => Some(Newer {
            revision: *current,
            actor: None,
            at: None,
            position: snapshot.state.registry.position,
        }),
        Rejection::EmptyChange
        | Rejection::UnknownParameter { .. }
        | Rejection::InvalidValue { .. }
        | Rejection::TooManyParameters { .. }
        | Rejection::TooLarge { .. }
        | Rejection::InvalidScope { .. }
        | Rejection::InvalidSchema { .. }
        | Rejection::InvalidSet { .. }
        | Rejection::Stopped { .. }
        | Rejection::RegistryStopped { .. }
        | Rejection::NoSuchRevision { .. } => None,
    }
}

fn newer_of(snapshot: &Snapshot, policy: &PolicyKey) -> Option<Newer> {
    snapshot.state.policies.get(policy).map(|document| Newer {
        revision: document.revision,
        actor: Some(document.actor.clone()),
        at: Some(document.changed_at),
        position: document.position,
    })
}

#[cfg(test)]
mod tests;
