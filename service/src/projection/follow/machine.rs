//! What the follower does next: pure. Answers of the log, records and outcomes of writes go in; questions, writes of the
//! local store and what is told about the log come out.
//!
//! Owns: the check that the log is the one that was followed so far, and the fold ([`Projected`]).
//! Invariant: nothing is published that the store does not hold.

use event_log::{Entry, Failure, Foreign, Head, Seen};
use schemas::api::LogCondition;
use schemas::event::record_hash;
use schemas::state::{Reading, Verdict};
use schemas::{LogId, Position};

use crate::projection::fold::{Projected, Write, project};

/// What happened. Failures of the local store and its folder come in words.
#[derive(Debug)]
pub enum Input {
    /// Meet the log (again).
    Start,
    /// The log was asked for its head.
    Head(Result<Head, Failure>),
    /// The record at the cursor was looked up.
    Found(Result<Option<Entry>, Failure>),
    /// The log's identity was written down.
    Remembered(Result<(), String>),
    /// The log is followed, or cannot be.
    Followed(Result<(), Failure>),
    /// Records came, with what they were understood as; then, perhaps, an end.
    Records(Vec<(Entry, Reading)>, Option<Failure>),
    /// What was to be written is written, or nothing of it is.
    Written(Result<(), String>),
    /// The log was asked for its head while it is followed.
    Checked(Result<Head, Failure>),
    /// The store was closed after a fault and could not be opened again.
    Unopened(String),
}

/// What to do, in this order.
#[derive(Debug)]
pub enum Output {
    /// Ask for the head.
    AskHead,
    /// Look up the record at this position.
    Find(Position),
    /// Write the log's identity down, durably.
    Remember(LogId),
    /// Follow the log.
    Follow(Seen),
    /// Write all or nothing.
    Write(Vec<Write>),
    /// Show what is folded in.
    Publish,
    /// What became of records.
    Verdicts(Vec<(Position, Verdict)>),
    /// Say how the projection stands to the log.
    Tell(Told),
    /// Drop what is followed and start again after a wait that grows with the attempts.
    Wait {
        /// Failures in a row.
        attempt: u32,
    },
}

/// How the projection stands to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// In one word.
    pub log: LogCondition,
    /// What is wrong.
    pub detail: Option<String>,
    /// The log's last record when it was asked last.
    pub head: Option<Position>,
    /// True when the projection is behind it.
    pub behind: bool,
}

/// What an answer is waited for.
#[derive(Debug)]
enum Stage {
    Meeting,
    Recognising(Head),
    Remembering(Head),
    Opening(Head),
    Following,
    Writing(Box<Batch>),
}

/// A batch that is being written.
#[derive(Debug)]
struct Batch {
    /// What was folded in before it.
    before: Projected,
    verdicts: Vec<(Position, Verdict)>,
    ended: Option<Failure>,
}

enum Trouble {
    Log(Failure),
    Local(String),
}

impl From<Failure> for Trouble {
    fn from(why: Failure) -> Trouble {
        Trouble::Log(why)
    }
}

/// Decides how the follower goes on.
#[derive(Debug)]
pub struct FollowerMachine {
    projected: Projected,
    stage: Stage,
    told: Told,
    attempt: u32,
    /// Where the fold was when the log was met last.
    met_at: Position,
    /// Where it was at the last check.
    checked_at: Position,
}

impl FollowerMachine {
    /// Starts from what the store held.
    #[must_use]
    pub fn new(projected: Projected) -> FollowerMachine {
        let position = projected.state.position;
        FollowerMachine {
            projected,
            stage: Stage::Meeting,
            told: Told {
                log: LogCondition::Starting,
                detail: None,
                head: None,
                behind: false,
            },
            attempt: 0,
            met_at: position,
            checked_at: position,
        }
    }

    /// Everything that is folded in; only shown after [`Output::Publish`].
    #[must_use]
    pub fn projected(&self) -> &Projected {
        &self.projected
    }

    /// What was told last.
    #[must_use]
    pub fn told(&self) -> &Told {
        &self.told
    }

    /// The next things to do.
    #[must_use]
    pub fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        let done = match input {
            Input::Start => {
                self.met_at = self.position();
                self.stage = Stage::Meeting;
                out.push(Output::AskHead);
                Ok(())
            }
            Input::Head(head) => {
                (head.map_err(Trouble::Log)).and_then(|head| self.met(head, &mut out))
            }
            Input::Found(found) => {
                (found.map_err(Trouble::Log)).and_then(|found| self.found(found, &mut out))
            }
            Input::Remembered(done) => done
                .map(|()| self.remembered(&mut out))
                .map_err(Trouble::Local),
            Input::Unopened(why) => Err(Trouble::Local(why)),
            Input::Followed(followed) => {
                (followed.map_err(Trouble::Log)).map(|()| self.followed(&mut out))
            }
            Input::Records(batch, ended) => {
                self.fold(&batch, ended, &mut out);
                Ok(())
            }
            Input::Written(written) => self.written(written, &mut out),
            Input::Checked(head) => {
                (head.map_err(Trouble::Log)).and_then(|head| self.checked(head, &mut out))
            }
        };
        if let Err(why) = done {
            self.failed(why, &mut out);
        }
        out
    }

    /// The store was opened again after a fault, before [`Input::Start`]: this is what it holds.
    pub fn reopened(&mut self, projected: Projected) {
        self.projected = projected;
    }

    fn position(&self) -> Position {
        self.projected.state.position
    }

    fn met(&mut self, head: Head, out: &mut Vec<Output>) -> Result<(), Trouble> {
        self.still_the_same(head, self.position())?;
        if self.position() > Position::START {
            self.stage = Stage::Recognising(head);
            out.push(Output::Find(self.position()));
        } else {
            self.recognised(head, out);
        }
        Ok(())
    }

    /// Is this the log that was followed so far?
    fn found(&mut self, found: Option<Entry>, out: &mut Vec<Output>) -> Result<(), Trouble> {
        let Stage::Recognising(head) = self.stage else {
            return Ok(());
        };
        let same = found
            .is_some_and(|entry| record_hash(&entry.subject, &entry.bytes) == self.projected.hash);
        if !same {
            let position = self.position();
            return Err(Failure::Foreign(Foreign::Rewritten { position }).into());
        }
        self.recognised(head, out);
        Ok(())
    }

    /// The log's identity is written down before the first record of it is taken in.
    fn recognised(&mut self, head: Head, out: &mut Vec<Output>) {
        self.stage = Stage::Remembering(head);
        out.push(Output::Remember(head.log_id));
    }

    fn remembered(&mut self, out: &mut Vec<Output>) {
        let Stage::Remembering(head) = self.stage else {
            return;
        };
        if self.projected.log_id != Some(head.log_id) {
            self.projected.log_id = Some(head.log_id);
            out.push(Output::Publish);
        }
        self.stage = Stage::Opening(head);
        out.push(Output::Follow(Seen {
            log_id: head.log_id,
            position: self.position(),
            record: (self.position() > Position::START).then_some(self.projected.hash),
        }));
    }

    fn followed(&mut self, out: &mut Vec<Output>) {
        let Stage::Opening(head) = self.stage else {
            return;
        };
        self.stage = Stage::Following;
        self.checked_at = self.position();
        self.note_head(head, out);
    }

    /// `position`: where the fold was when the head was asked for.
    fn still_the_same(&self, head: Head, position: Position) -> Result<(), Failure> {
        if let Some(known) = self.projected.log_id.filter(|known| *known != head.log_id) {
            return Err(Failure::Foreign(Foreign::OtherIdentity {
                known,
                actual: head.log_id,
            }));
        }
        if head.position < position {
            return Err(Failure::Foreign(Foreign::Behind {
                known: position,
                actual: head.position,
            }));
        }
        Ok(())
    }

    fn checked(&mut self, head: Head, out: &mut Vec<Output>) -> Result<(), Trouble> {
        // SUBTLE: where the fold was before the question. Records that came while the answer was on its way are newer than it.
        self.still_the_same(head, self.checked_at)?;
        let position = self.position();
        if head.position > position && position == self.checked_at {
            return Err(Failure::Determinate(format!(
                "the log goes on to position {}, but nothing after {position} is delivered",
                head.position
            ))
            .into());
        }
        self.checked_at = position;
        self.note_head(head, out);
        Ok(())
    }

    fn fold(&mut self, batch: &[(Entry, Reading)], ended: Option<Failure>, out: &mut Vec<Output>) {
        let before = self.projected.clone();
        let mut writes = Vec::new();
        let mut verdicts = Vec::with_capacity(batch.len());
        for (entry, reading) in batch {
            if entry.position <= self.position() {
                // A redelivery: folded in already.
                continue;
            }
            let folded = project(&mut self.projected, entry, reading);
            writes.extend(folded.writes);
            verdicts.push((entry.position, folded.verdict));
        }
        self.stage = Stage::Writing(Box::new(Batch {
            before,
            verdicts,
            ended,
        }));
        out.push(Output::Write(writes));
    }

    fn written(
        &mut self,
        written: Result<(), String>,
        out: &mut Vec<Output>,
    ) -> Result<(), Trouble> {
        let Stage::Writing(batch) = std::mem::replace(&mut self.stage, Stage::Following) else {
            return Ok(());
        };
        if let Err(why) = written {
            // Nothing is told that the store does not hold.
            self.projected = batch.before;
            return Err(Trouble::Local(why));
        }
        out.push(Output::Publish);
        out.push(Output::Verdicts(batch.verdicts));
        let position = self.position();
        if self.told.head.is_some_and(|head| head <= position) {
            self.told.behind = false;
            if self.told.log == LogCondition::Starting {
                self.told.log = LogCondition::Following;
            }
            out.push(Output::Tell(self.told.clone()));
        }
        match batch.ended {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    fn note_head(&mut self, head: Head, out: &mut Vec<Output>) {
        let behind = head.position > self.position();
        self.told.head = Some(head.position);
        self.told.behind = behind;
        if self.told.log != LogCondition::Starting || !behind {
            self.told.log = LogCondition::Following;
        }
        self.told.detail = None;
        out.push(Output::Tell(self.told.clone()));
    }

    fn failed(&mut self, why: Trouble, out: &mut Vec<Output>) {
        self.attempt = if self.position() > self.met_at {
            0
        } else {
            self.attempt.saturating_add(1)
        };
        self.stage = Stage::Meeting;
        let (log, detail) = match why {
            Trouble::Log(Failure::Foreign(foreign)) => (LogCondition::Foreign, foreign.to_string()),
            Trouble::Log(Failure::Determinate(why) | Failure::Indeterminate(why))
            | Trouble::Local(why) => (LogCondition::Away, why),
        };
        // What was never caught up with stays unready.
        let starting = self.told.log == LogCondition::Starting && log == LogCondition::Away;
        self.told.log = if starting {
            LogCondition::Starting
        } else {
            log
        };
        self.told.detail = Some(detail);
        out.push(Output::Tell(self.told.clone()));
        out.push(Output::Wait {
            attempt: self.attempt,
        });
    }
}
