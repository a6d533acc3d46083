//! Writes of a simulated service: the real `WriteMachine` and `CommitMachine`, with simulated waits.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use event_log::commit::{
    CommitMachine, Input as CommitInput, LAST_LOOK_PATIENCE, Output as CommitOutput,
};
use event_log::{Appended, CommitError, Committed, Failure};
use schemas::api::LogCondition;
use schemas::convergence::Outcome as FleetOutcome;
use schemas::decide::{Command, Decision};
use schemas::{CommandId, Position, Rejection};
use service::writer::admission::Admission;
use service::writer::fingerprint::fingerprint;
use service::writer::machine::{Input, Looked, Output, Own, Waited, WriteMachine};
use service::writer::{Outcome, WriteError, Written, policies_of};

use crate::broker::Stored;
use crate::event::Timer;
use crate::mutation::Mutation;
use crate::net::{Answer, CALL_TIMEOUT, Call, Node, Tag};
use crate::plan::MS;
use crate::world::World;

/// A write under way.
#[derive(Debug)]
pub struct Write {
    machine: WriteMachine,
    command: Command,
    /// Who waits for its outcome.
    pub attempts: Vec<u64>,
    begun: u64,
    deadline: u64,
    /// Makes answers and timers of earlier steps void.
    step: u64,
    commit: Option<Commit>,
    /// Waits for this position; true = also for the log being another one.
    waiting: Option<(Position, bool)>,
    conflicts: u32,
    snapshot: Option<Arc<service::projection::Snapshot>>,
}

#[derive(Debug)]
struct Commit {
    machine: CommitMachine,
    decision: Box<Decision>,
    bytes: Bytes,
    begun: u64,
    reading: bool,
    conflict: bool,
}

impl World {
    /// A client's request is at a service.
    pub fn write_arrived(&mut self, i: usize, attempt: u64, mut command: Command) {
        command.fingerprint = fingerprint(&command);
        let id = command.command_id;
        let (now, timeout) = (self.now, self.plan.write_timeout_us);
        let room = self.services[i].writes.len() < self.plan.writes_max;
        let service = &mut self.services[i];
        let known = service
            .writes
            .get(&id)
            .map(|write| write.command.fingerprint);
        match service.doubtful.admit(id, command.fingerprint, known, room) {
            Admission::Begin => {
                let write = Write {
                    machine: WriteMachine::new(command.clone()),
                    command,
                    attempts: vec![attempt],
                    begun: now,
                    deadline: now + timeout,
                    step: 0,
                    commit: None,
                    waiting: None,
                    conflicts: 0,
                    snapshot: None,
                };
                service.writes.insert(id, write);
                self.write_does(i, id, Output::Look);
            }
            Admission::Join => {
                self.marks.hit("write joined");
                if let Some(write) = self.services[i].writes.get_mut(&id) {
                    write.attempts.push(attempt);
                }
            }
            Admission::Refuse(why) => {
                let outcome = Err(why);
                self.mark_outcome(&outcome, 0);
                self.reply(i, attempt, outcome);
            }
        }
    }

    fn write_step(&mut self, i: usize, id: CommandId, input: Input) {
        let Some(write) = self.services[i].writes.get_mut(&id) else {
            return;
        };
        write.step += 1;
        write.waiting = None;
        let output = write.machine.step(input);
        self.write_does(i, id, output);
    }

    fn write_does(&mut self, i: usize, id: CommandId, output: Output) {
        let node = Node::Service(i);
        let now = self.now;
        let snapshot = Arc::clone(&self.services[i].snapshot);
        let Some(write) = self.services[i].writes.get_mut(&id) else {
            return;
        };
        let (step, deadline) = (write.step, write.deadline);
        match output {
            Output::Look => {
                write.snapshot = Some(snapshot);
                let takes = self.rng.range(10, 2 * MS);
                self.timer(node, takes, Timer::Look(id, step));
            }
            Output::Commit(decision) => {
                let left = Duration::from_micros(deadline.saturating_sub(now));
                write.commit = Some(Commit {
                    machine: CommitMachine::new(id, left),
                    bytes: Bytes::from(decision.record.to_bytes()),
                    decision,
                    begun: now,
                    reading: false,
                    conflict: false,
                });
                self.commit_step(i, id, CommitInput::Start);
            }
            Output::AskHead => {
                write.conflicts += 1;
                let patience = deadline.saturating_sub(now).min(CALL_TIMEOUT);
                self.call(node, Tag::Write(id, step), Call::Look, patience);
            }
            Output::CatchUp(position) => self.write_waits(i, id, position, true),
            Output::WaitFor(position) => {
                if self.mutation == Some(Mutation::VerdictUnread) {
                    let written = Written {
                        command_id: id,
                        position,
                        repeated: false,
                    };
                    return self.write_done(i, id, Ok(written));
                }
                self.write_waits(i, id, position, false);
            }
            Output::Read(position) => {
                let takes = self.rng.range(10, 2 * MS);
                self.timer(node, takes, Timer::Read(id, step, position));
            }
            Output::Done(outcome) => self.write_done(i, id, *outcome),
        }
    }

    fn write_waits(&mut self, i: usize, id: CommandId, position: Position, foreign: bool) {
        let now = self.now;
        let Some(write) = self.services[i].writes.get_mut(&id) else {
            return;
        };
        write.waiting = Some((position, foreign));
        let (step, left) = (write.step, write.deadline.saturating_sub(now));
        self.timer(Node::Service(i), left, Timer::Late(id, step));
        self.wake_waiters(i);
    }

    /// The projection moved, or the log's condition changed.
    pub fn wake_waiters(&mut self, i: usize) {
        let service = &self.services[i];
        let at = service.snapshot.state.position;
        let foreign = service.told.log == LogCondition::Foreign;
        let woken: Vec<(CommandId, Waited)> = service
            .writes
            .iter()
            .filter_map(|(id, write)| match write.waiting {
                Some((position, _)) if at >= position => Some((*id, Waited::Reached)),
                Some((_, true)) if foreign => {
                    Some((*id, Waited::Foreign("the log is another one".to_owned())))
                }
                Some(_) | None => None,
            })
            .collect();
        for (id, waited) in woken {
            self.write_step(i, id, Input::Waited(waited));
        }
    }

    /// A timer of a write.
    pub fn write_timer(&mut self, i: usize, id: CommandId, step: u64, timer: &Timer) {
        let service = &self.services[i];
        let Some(write) = service.writes.get(&id).filter(|write| write.step == step) else {
            return;
        };
        let input = match timer {
            Timer::Look(..) => Input::Looked(Box::new(Looked {
                snapshot: write
                    .snapshot
                    .clone()
                    .unwrap_or_else(|| Arc::clone(&service.snapshot)),
                first: Ok(service.disk.command(id, write.command.fingerprint)),
                foreign: (service.told.log == LogCondition::Foreign)
                    .then(|| service.told.detail.clone().unwrap_or_default()),
            })),
            Timer::Read(_, _, position) => Input::Read(Box::new(Own {
                record: Ok(service.disk.records.get(position).cloned()),
                first: Ok(service.disk.command(id, write.command.fingerprint)),
                snapshot: Arc::clone(&service.snapshot),
            })),
            Timer::Late(..) => Input::Waited(Waited::Late),
            Timer::Commit(..) => return self.commit_step(i, id, CommitInput::Waited),
            _ => return,
        };
        self.write_step(i, id, input);
    }

    /// An answer for a write.
    pub fn write_answered(
        &mut self,
        i: usize,
        (id, step): (CommandId, u64),
        result: Result<Answer, Failure>,
    ) {
        let Some(write) = self.services[i]
            .writes
            .get(&id)
            .filter(|write| write.step == step)
        else {
            return;
        };
        let Some(commit) = &write.commit else {
            let input = match result {
                Ok(Answer::Facts(facts)) => Input::Head(Ok(crate::world::head(&facts))),
                Ok(_) => return,
                Err(why) => Input::Head(Err(why)),
            };
            return self.write_step(i, id, input);
        };
        let input = if commit.reading {
            CommitInput::Read(match result {
                Ok(Answer::Found(found)) => Ok(found.as_ref().map(event_log::commit::found_in)),
                Ok(_) => return,
                Err(why) => Err(why),
            })
        } else {
            CommitInput::Attempted(match result {
                Ok(Answer::Stored(stored)) => attempted(&stored),
                Ok(_) => return,
                Err(why) => Err(why),
            })
        };
        if matches!(input, CommitInput::Attempted(Ok(Appended::Conflict))) {
            if let Some(commit) = self.commit_of(i, id) {
                commit.conflict = true;
            }
            if self.mutation == Some(Mutation::ConflictIsRefusal) {
                let lost = WriteError::Lost {
                    why: "conflict".to_owned(),
                    newer: None,
                    position: None,
                };
                return self.write_done(i, id, Err(lost));
            }
        }
        if self.mutation == Some(Mutation::TimeoutIsRefusal)
            && matches!(input, CommitInput::Attempted(Err(_)))
        {
            let why = CommitError::Determinate("timed out".to_owned());
            return self.committed(i, id, Err(why));
        }
        self.commit_step(i, id, input);
    }

    fn commit_of(&mut self, i: usize, id: CommandId) -> Option<&mut Commit> {
        self.services[i].writes.get_mut(&id)?.commit.as_mut()
    }

    fn commit_step(&mut self, i: usize, id: CommandId, input: CommitInput) {
        let now = self.now;
        let Some(write) = self.services[i].writes.get_mut(&id) else {
            return;
        };
        write.step += 1;
        let (step, deadline) = (write.step, write.deadline);
        let Some(commit) = &mut write.commit else {
            return;
        };
        let elapsed = Duration::from_micros(now.saturating_sub(commit.begun));
        let output = commit.machine.step(input, elapsed);
        let least = u64::try_from(LAST_LOOK_PATIENCE.as_micros()).unwrap_or(0);
        let patience = deadline.saturating_sub(now).max(least).min(CALL_TIMEOUT);
        let node = Node::Service(i);
        match output {
            CommitOutput::Append => {
                commit.reading = false;
                let call = Call::Append(
                    commit.decision.subject.clone(),
                    commit.decision.expected_tail,
                    commit.bytes.clone(),
                );
                self.call(node, Tag::Write(id, step), call, patience);
            }
            CommitOutput::ReadNext => {
                commit.reading = true;
                let call = Call::Next(
                    commit.decision.subject.clone(),
                    commit.decision.expected_tail,
                );
                self.call(node, Tag::Write(id, step), call, patience);
            }
            CommitOutput::Wait(full) => {
                self.marks.hit("commit waits");
                let full = u64::try_from(full.as_micros()).unwrap_or(0);
                let wait = self.rng.range(full / 2, full);
                self.timer(node, wait, Timer::Commit(id, step));
            }
            CommitOutput::Done(outcome) => self.committed(i, id, outcome),
        }
    }

    fn committed(&mut self, i: usize, id: CommandId, outcome: Result<Committed, CommitError>) {
        let Some(write) = self.services[i].writes.get_mut(&id) else {
            return;
        };
        let conflict = write.commit.take().is_some_and(|commit| commit.conflict);
        match &outcome {
            Ok(_) if conflict => self.marks.hit("commit attributed after a conflict"),
            Ok(_) => {}
            Err(CommitError::Conflict { .. }) => self.marks.hit("commit definite conflict"),
            Err(CommitError::Indeterminate(_)) => self.marks.hit("commit indeterminate"),
            Err(CommitError::Determinate(_) | CommitError::Foreign(_)) => {}
        }
        self.write_step(i, id, Input::Committed(outcome));
    }

    fn write_done(&mut self, i: usize, id: CommandId, outcome: Outcome) {
        let service = &mut self.services[i];
        let Some(write) = service.writes.remove(&id) else {
            return;
        };
        let outcome = service.doubtful.judge(id, outcome);
        self.mark_outcome(&outcome, write.conflicts);
        if let Ok(written) = &outcome {
            let service = &mut self.services[i];
            if service.snapshot.state.position < written.position {
                let what = format!(
                    "service {i} acknowledges {} before it shows it",
                    written.position
                );
                self.oracle.violation(what);
            }
            let policies = policies_of(&write.command.order);
            if !policies.is_empty() {
                let service = &mut self.services[i];
                service.acknowledged.push_back((policies, written.position));
                if service.acknowledged.len() > 4 {
                    service.acknowledged.pop_front();
                }
            }
        }
        let took = self.now.saturating_sub(write.begun);
        self.trace(|| format!("service {i} command {id} after {took} us: {outcome:?}"));
        for attempt in write.attempts {
            self.reply(i, attempt, outcome.clone());
        }
    }

    fn mark_outcome(&mut self, outcome: &Outcome, conflicts: u32) {
        let mark = match outcome {
            Ok(written) if written.repeated => "write repeated",
            Ok(_) => "write accepted",
            Err(WriteError::Refused { rejection, .. }) => match **rejection {
                _ if conflicts > 0 => "write lost or refused after a conflict",
                Rejection::StaleRevision { .. } | Rejection::StaleRegistry { .. } => {
                    "write refused: stale"
                }
                _ => "write refused: other",
            },
            Err(WriteError::Lost { .. }) => "write lost: void record",
            Err(WriteError::KeyReused { .. }) => "write refused: key reused",
            Err(WriteError::Unknown(_)) => "write outcome unknown",
            Err(WriteError::Unavailable(_) | WriteError::Store(_)) => "write unavailable",
            Err(WriteError::Foreign(_)) => "write refused: foreign log",
            Err(WriteError::Overloaded) => "write refused: overloaded",
            Err(WriteError::Unreadable(_)) => "unreadable record",
        };
        self.marks.hit(mark);
    }

    /// What a service says about the changes that it acknowledged lately.
    pub fn question_fleet(&mut self, i: usize) {
        let now = self.roster_now();
        let service = &self.services[i];
        let hasty = self.mutation == Some(Mutation::SilenceIsAbsence);
        let answers: Vec<_> = service
            .acknowledged
            .iter()
            .map(|(policies, position)| {
                let mut found = service.roster.convergence(policies, *position, now);
                if hasty {
                    let mut heard = service.roster.agents(now);
                    heard.retain(|heard| now.since_ms(heard.heard_at) < 4_000);
                    found = schemas::convergence::convergence(
                        &heard,
                        policies,
                        *position,
                        now,
                        crate::service::PATIENCE,
                    );
                }
                (policies.clone(), *position, found.outcome)
            })
            .collect();
        for (policies, position, outcome) in answers {
            let mark = match outcome {
                FleetOutcome::Converged => "fleet converged",
                FleetOutcome::Refused => "fleet refused",
                FleetOutcome::Pending => "fleet pending",
                FleetOutcome::NoRouter => "fleet without a router",
            };
            self.marks.hit(mark);
            if outcome == FleetOutcome::Converged {
                self.check_converged(i, &policies, position);
            }
        }
    }
}

/// What the adapter makes of the broker's answer.
fn attempted(stored: &Stored) -> Result<Appended, Failure> {
    match stored {
        Stored::New(position) | Stored::Duplicate(position) => Ok(Appended::Committed(*position)),
        Stored::Conflict => Ok(Appended::Conflict),
        Stored::Unresolved | Stored::InProcess => {
            Err(Failure::Indeterminate("not through yet".to_owned()))
        }
        Stored::Refused => Err(Failure::Determinate("storing failed".to_owned())),
    }
}
