//! What the replica does next: pure. Answers of the log, records and waits go in; questions, writes of the local copy and
//! what is published come out.
//!
//! Invariants: a log that is not the one followed so far is never followed; an agent that is behind publishes the end state
//! once; a record is kept before it is published; what is published never goes back within one process.

use std::sync::Arc;

use event_log::bootstrap::Bootstrapped;
use event_log::{Entry, Failure, Foreign, Head, Seen};
use schemas::event::{Event, record_hash};
use schemas::state::{Reading, State};
use schemas::status::{LogFollowing, LogState};
use schemas::{Hash, PolicyKey, Position};

use super::Followed;
pub use super::message::{Advance, Input, Output};
use crate::local_copy::{Cursor, Kept};

/// Bound: records written without being made to survive a power cut.
const UNSYNCED_MAX: u32 = 1_000;
/// Further behind than this many places (with or without records), starting from the tails is cheaper than catching up.
const FAR_BEHIND: u64 = 10_000;

/// What an answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Meeting,
    /// The record at the cursor, to know the log again by.
    Recognising(Head),
    Bootstrapping(Head),
    Opening(Head),
    Following,
}

/// Decides how the replica goes on.
#[derive(Debug)]
pub struct ReplicaMachine {
    state: State,
    cursor: Option<Cursor>,
    outdated: bool,
    unsynced: u32,
    /// A write of the copy failed: what one record changed may not be put on top of it.
    torn: bool,
    stage: Stage,
    /// Nothing is published before this is reached.
    publish_from: Position,
    published: Followed,
    attempt: u32,
    /// Where the state was when the log was met last.
    met_at: Position,
}

impl ReplicaMachine {
    /// Starts from the copy.
    #[must_use]
    pub fn new(kept: Option<Kept>) -> ReplicaMachine {
        let published = Followed::at_start(kept.as_ref());
        let (state, cursor, outdated) = match kept {
            Some(kept) => (kept.state, Some(kept.cursor), kept.outdated),
            None => (State::default(), None, false),
        };
        ReplicaMachine {
            met_at: state.position,
            state,
            cursor,
            outdated,
            unsynced: 0,
            torn: false,
            stage: Stage::Meeting,
            publish_from: Position::START,
            published,
            attempt: 0,
        }
    }

    /// True when something kept would not survive a power cut.
    #[must_use]
    pub fn unsynced(&self) -> bool {
        self.unsynced > 0
    }

    /// True while the state is the copy's, made by a version that understood other records.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// A write failed, or it is not known whether it was done: the next one writes the whole state.
    ///
    /// SUBTLE: were only the next record's changes written, the copy would have a hole behind its cursor that nothing would
    /// ever find (`regression_after_a_failed_write_the_copy_is_written_whole`).
    pub fn not_kept(&mut self) {
        self.torn = true;
    }

    /// What was published last.
    #[must_use]
    pub fn published(&self) -> &Followed {
        &self.published
    }

    /// The next things to do.
    #[must_use]
    pub fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        let done = match input {
            Input::Start => {
                self.met_at = self.state.position;
                self.stage = Stage::Meeting;
                out.push(Output::AskHead);
                Ok(())
            }
            Input::Head(head) => head.and_then(|head| self.met(head, &mut out)),
            Input::Found(found) => found.and_then(|found| self.found(found, &mut out)),
            Input::Bootstrapped(made) => made.and_then(|made| self.bootstrapped(*made, &mut out)),
            Input::Followed(followed) => followed.map(|()| self.followed(&mut out)),
            Input::Record(entry, reading) => {
                self.fold(entry, &reading, &mut out);
                Ok(())
            }
            Input::Ended(why) => Err(why),
            Input::Looked(seen) => self.looked(seen, &mut out),
            Input::Idle => {
                self.sync(&mut out);
                Ok(())
            }
        };
        if let Err(why) = done {
            self.failed(&why, &mut out);
        }
        out
    }

    fn met(&mut self, head: Head, out: &mut Vec<Output>) -> Result<(), Failure> {
        let Some(cursor) = self.cursor else {
            self.bootstrap(head, out);
            return Ok(());
        };
        recognise(cursor, head)?;
        if cursor.hash == Hash::ZERO {
            self.recognised(cursor, head, out);
        } else {
            self.stage = Stage::Recognising(head);
            out.push(Output::Find(cursor.position));
        }
        Ok(())
    }

    fn found(&mut self, found: Option<Entry>, out: &mut Vec<Output>) -> Result<(), Failure> {
        let hash = found.map(|entry| record_hash(&entry.subject, &entry.bytes));
        match (self.stage, self.cursor) {
            (Stage::Recognising(head), Some(cursor)) => {
                if hash != Some(cursor.hash) {
                    return Err(Failure::Foreign(Foreign::Rewritten {
                        position: cursor.position,
                    }));
                }
                self.recognised(cursor, head, out);
            }
            (
                Stage::Recognising(_)
                | Stage::Meeting
                | Stage::Bootstrapping(_)
                | Stage::Opening(_)
                | Stage::Following,
                _,
            ) => {}
        }
        Ok(())
    }

    fn recognised(&mut self, cursor: Cursor, head: Head, out: &mut Vec<Output>) {
        let behind = head.position.0.saturating_sub(cursor.position.0);
        if self.outdated || behind > FAR_BEHIND {
            self.bootstrap(head, out);
        } else {
            self.open(cursor, head, out);
        }
    }

    fn bootstrap(&mut self, head: Head, out: &mut Vec<Output>) {
        self.stage = Stage::Bootstrapping(head);
        out.push(Output::Bootstrap);
    }

    fn bootstrapped(&mut self, made: Bootstrapped, out: &mut Vec<Output>) -> Result<(), Failure> {
        let position = made.state.position;
        if let Some(cursor) = self.cursor
            && (cursor.log_id != made.log_id || position < cursor.position)
        {
            // It was another one a moment ago: look again, and refuse it then.
            return Err(Failure::Determinate("the log changed meanwhile".to_owned()));
        }
        let Stage::Bootstrapping(head) = self.stage else {
            return Ok(());
        };
        let cursor = Cursor {
            log_id: made.log_id,
            position,
            hash: made.record.unwrap_or(Hash::ZERO),
        };
        tracing::info!(log_id = %cursor.log_id, %position, replayed = made.replayed, policies = made.state.policies.len(), "state read from the log");
        self.state = made.state;
        self.cursor = Some(cursor);
        self.outdated = false;
        self.replace(cursor, out);
        self.publish(LogState::Following, out);
        self.open(cursor, head, out);
        Ok(())
    }

    fn open(&mut self, cursor: Cursor, head: Head, out: &mut Vec<Output>) {
        self.stage = Stage::Opening(head);
        out.push(Output::Follow(Seen {
            log_id: cursor.log_id,
            position: cursor.position,
            record: (cursor.hash != Hash::ZERO).then_some(cursor.hash),
        }));
    }

    fn followed(&mut self, out: &mut Vec<Output>) {
        let Stage::Opening(head) = self.stage else {
            return;
        };
        self.stage = Stage::Following;
        self.publish_from = head.position.max(self.state.position);
        if self.state.position >= self.publish_from {
            self.publish(LogState::Following, out);
        }
    }

    fn fold(&mut self, entry: Entry, reading: &Reading, out: &mut Vec<Output>) {
        let Some(cursor) = self.cursor else {
            return;
        };
        if entry.position <= self.state.position {
            return;
        }
        let verdict = self
            .state
            .evolve(entry.position, &entry.subject, &entry.bytes, reading);
        tracing::debug!(position = %entry.position, subject = %entry.subject, ?verdict, "record");
        let cursor = Cursor {
            log_id: cursor.log_id,
            position: entry.position,
            hash: record_hash(&entry.subject, &entry.bytes),
        };
        self.cursor = Some(cursor);
        let changed = changed(reading);
        self.unsynced += 1;
        // Kept before it is published: an agent that is killed must not know less afterwards than what it has applied.
        if self.torn {
            self.replace(cursor, out);
        } else {
            out.push(Output::Advance(Box::new(Advance {
                part: part(&self.state, &changed),
                cursor,
                subject: entry.subject,
                changed,
            })));
        }
        if self.state.position >= self.publish_from {
            self.publish(LogState::Following, out);
        }
        if self.unsynced >= UNSYNCED_MAX {
            self.sync(out);
        }
    }

    fn replace(&mut self, cursor: Cursor, out: &mut Vec<Output>) {
        self.torn = false;
        self.unsynced = 0;
        out.push(Output::Replace(Box::new((self.state.clone(), cursor))));
    }

    fn sync(&mut self, out: &mut Vec<Output>) {
        if self.unsynced > 0 {
            self.unsynced = 0;
            out.push(Output::Sync);
        }
    }

    /// What looking for the log's head said. A subscription bridges an outage in silence for a while; the report does not.
    fn looked(
        &mut self,
        seen: Result<Head, Failure>,
        out: &mut Vec<Output>,
    ) -> Result<(), Failure> {
        match seen {
            Ok(head) => {
                if self.torn
                    && let Some(cursor) = self.cursor
                {
                    self.replace(cursor, out);
                }
                let behind = head.position > self.state.position;
                if self.published.log.state != LogState::Following && !behind {
                    self.publish(LogState::Following, out);
                }
                Ok(())
            }
            Err(Failure::Foreign(why)) => Err(Failure::Foreign(why)),
            Err(failure @ (Failure::Determinate(_) | Failure::Indeterminate(_))) => {
                self.lost(&failure, out);
                Ok(())
            }
        }
    }

    fn failed(&mut self, why: &Failure, out: &mut Vec<Output>) {
        if self.state.position > self.met_at {
            self.attempt = 0;
        }
        let attempt = self.attempt;
        self.attempt = self.attempt.saturating_add(1);
        self.stage = Stage::Meeting;
        self.lost(why, out);
        out.push(Output::Wait {
            attempt,
            foreign: matches!(why, Failure::Foreign(_)),
        });
    }

    fn publish(&mut self, state: LogState, out: &mut Vec<Output>) {
        let wanted = Arc::new(self.state.clone());
        self.published = Followed {
            log: LogFollowing {
                state,
                log_id: self.cursor.map(|cursor| cursor.log_id),
                position: wanted.position,
                error: None,
            },
            state: Some(wanted),
        };
        out.push(Output::Publish(Box::new(self.published.clone())));
    }

    /// The log is away, or is not the right one: what is published stays, with words.
    fn lost(&mut self, failure: &Failure, out: &mut Vec<Output>) {
        let state = match failure {
            Failure::Foreign(_) => LogState::Refused,
            Failure::Determinate(_) | Failure::Indeterminate(_) => match &self.published.state {
                Some(_) => LogState::LocalCopy,
                None => LogState::Starting,
            },
        };
        self.published.log.state = state;
        self.published.log.error = Some(failure.to_string());
        out.push(Output::Publish(Box::new(self.published.clone())));
    }
}

/// Refuses a log that is not the one of the cursor.
fn recognise(cursor: Cursor, head: Head) -> Result<(), Failure> {
    if head.log_id != cursor.log_id {
        return Err(Failure::Foreign(Foreign::OtherIdentity {
            known: cursor.log_id,
            actual: head.log_id,
        }));
    }
    if head.position < cursor.position {
        return Err(Failure::Foreign(Foreign::Behind {
            known: cursor.position,
            actual: head.position,
        }));
    }
    Ok(())
}

/// The policies whose documents a record may have changed.
fn changed(reading: &Reading) -> Vec<PolicyKey> {
    match reading {
        Reading::Known(record) => match &record.event {
            Event::PoliciesChanged { changes } => {
                changes.iter().map(|change| change.key()).collect()
            }
            Event::ParameterRegistered { .. } => Vec::new(),
        },
        Reading::Unknown { .. } => Vec::new(),
    }
}

/// The part of a state that one record's write needs, so that a record costs what it changes and not the whole state.
fn part(state: &State, changed: &[PolicyKey]) -> State {
    State {
        position: state.position,
        policies: changed
            .iter()
            .filter_map(|key| Some((key.clone(), state.policies.get(key)?.clone())))
            .collect(),
        registry: state.registry.clone(),
        tails: Default::default(),
        stops: state.stops.clone(),
        stopped: state.stopped.clone(),
    }
}

#[cfg(test)]
mod tests;
