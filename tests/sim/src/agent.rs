//! A simulated agent: the real replica and bootstrap machines, with a copy in memory that loses what was not synced.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use event_log::bootstrap::{BootstrapMachine, Input as BootInput};
use event_log::{Entry, Failure, Identity};
use router_agent::local_copy::Kept;
use router_agent::reconcile::standing::Moment;
use router_agent::replica::machine::{Advance, Input, Output, ReplicaMachine};
use router_agent::replica::{Followed, IDLE, LOOK};
use schemas::status::{AgentStatus, LogState};
use schemas::{AgentId, Name, Position, Subject, Timestamp};

use crate::event::Timer;
use crate::feed::Feed;
use crate::frontends::Loop;
use crate::mutation::Mutation;
use crate::net::{Answer, CALL_TIMEOUT, Call, Node, Process, Seen, Tag};
use crate::plan::{MS, SECOND};
use crate::remembered::MemoryDisk;
use crate::world::{World, micros};

/// What a folder of an agent holds.
#[derive(Debug, Default)]
pub struct Disk {
    /// The copy after each write since it was synced last; the first is synced.
    pub copies: VecDeque<Kept>,
    /// Memory of routers and thresholds.
    pub memory: MemoryDisk,
    /// When the last process started, as it said.
    pub started: Option<Timestamp>,
}

/// An agent.
#[derive(Debug)]
pub struct Agent {
    /// Its process.
    pub process: Process,
    /// Its name.
    pub id: AgentId,
    /// Label of its frontends.
    pub group: Option<Name>,
    /// Its folder.
    pub disk: Disk,
    /// Its copy cannot be written before then.
    pub full_until: u64,
    /// The replica.
    pub machine: ReplicaMachine,
    /// The subscription.
    pub feed: Option<Feed>,
    pub(crate) boot: Option<BootstrapMachine>,
    pub(crate) replay: VecDeque<Entry>,
    outbox: VecDeque<Output>,
    pub(crate) inbox: VecDeque<Input>,
    arrived: VecDeque<Entry>,
    ended: Option<Failure>,
    following: bool,
    keeping: Option<Output>,
    /// What the frontends' loops and the report see.
    pub followed: Followed,
    /// Its frontends' loops.
    pub loops: Vec<Loop>,
    /// Reports of this process.
    pub report: u64,
    /// When this process started, as it says.
    pub started_at: Timestamp,
    /// When it reported last.
    pub reported_at: u64,
    /// A report is due already.
    pub report_due: bool,
    /// Counts records, so that a pause is noticed.
    records: u64,
}

impl Agent {
    /// Not started.
    #[must_use]
    pub fn new(id: AgentId, group: Option<Name>, old: bool) -> Agent {
        let machine = ReplicaMachine::new(None);
        Agent {
            process: Process::new(old),
            id,
            group,
            disk: Disk::default(),
            full_until: 0,
            followed: machine.published().clone(),
            machine,
            feed: None,
            boot: None,
            replay: VecDeque::new(),
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            arrived: VecDeque::new(),
            ended: None,
            following: false,
            keeping: None,
            loops: Vec::new(),
            report: 0,
            started_at: Timestamp::default(),
            reported_at: 0,
            report_due: false,
            records: 0,
        }
    }
}

impl World {
    /// Starts an agent from its folder.
    pub fn start_agent(&mut self, i: usize) {
        let now = self.now;
        let wall = self.wall(Node::Agent(i));
        let agent = &mut self.agents[i];
        agent.process.up = true;
        agent.process.epoch += 1;
        agent.process.session += 1;
        agent.process.started = now;
        agent.process.pending.clear();
        agent.process.identity = Identity::unknown();
        let kept = agent.disk.copies.back().cloned();
        if let Some(kept) = &kept {
            self.marks.hit("agent starts from its copy");
            agent.process.identity.expect(kept.cursor.log_id);
        }
        agent.started_at = agent.disk.started.map_or(wall, |before| {
            wall.max(Timestamp::from_unix_ms(before.unix_ms() + 1))
        });
        agent.disk.started = Some(agent.started_at);
        agent.machine = ReplicaMachine::new(kept);
        agent.followed = agent.machine.published().clone();
        agent.feed = None;
        agent.boot = None;
        agent.replay.clear();
        agent.outbox.clear();
        agent.inbox.clear();
        agent.arrived.clear();
        agent.ended = None;
        agent.following = false;
        agent.keeping = None;
        agent.report = 0;
        agent.report_due = false;
        agent.inbox.push_back(Input::Start);
        self.check_followed(i);
        self.start_loops(i);
        self.report_soon(i);
        self.pump_agent(i);
    }

    /// Ends an agent's process; without power, what was not synced may be lost too.
    pub fn stop_agent(&mut self, i: usize, power: bool) {
        let copies = self.agents[i].disk.copies.len();
        let keep = self.rng.range(1, copies.max(1) as u64);
        let chance = self.rng.unit();
        let now = self.now;
        let agent = &mut self.agents[i];
        agent.process.up = false;
        agent.feed = None;
        if power {
            agent
                .disk
                .copies
                .truncate(usize::try_from(keep).unwrap_or(1));
        }
        agent.disk.memory.crash(now, chance, power);
    }

    /// A record came through the subscription.
    pub fn agent_record(&mut self, i: usize, entry: Entry) {
        self.agents[i].arrived.push_back(entry);
        self.pump_agent(i);
    }

    /// The subscription ended.
    pub fn agent_ended(&mut self, i: usize, why: Failure) {
        self.agents[i].ended = Some(why);
        self.pump_agent(i);
    }

    /// An answer for the replica.
    pub fn agent_answered(&mut self, i: usize, tag: Tag, result: Result<Answer, Failure>) {
        let node = Node::Agent(i);
        let input = match (tag, result) {
            (Tag::Follow(seen), result) => {
                let followed = self.follow_answered(node, seen, result);
                self.agents[i].following = followed.is_ok();
                if followed.is_ok() {
                    self.timer(node, micros(LOOK), Timer::Check);
                }
                Input::Followed(followed)
            }
            (Tag::Head, Ok(Answer::Facts(facts))) => Input::Head(Ok(crate::world::head(&facts))),
            (Tag::Head, Err(why)) => Input::Head(Err(why)),
            (Tag::Find, Ok(Answer::Found(found))) => Input::Found(Ok(found)),
            (Tag::Find, Err(why)) => Input::Found(Err(why)),
            (Tag::Boot, result) => return self.boot_answered(i, result),
            (Tag::Check, result) => {
                if !self.agents[i].following {
                    return;
                }
                self.timer(node, micros(LOOK), Timer::Check);
                match result {
                    Ok(Answer::Facts(facts)) => Input::Looked(Ok(crate::world::head(&facts))),
                    Ok(_) => return,
                    Err(why) => Input::Looked(Err(why)),
                }
            }
            (_, Ok(_) | Err(_)) => return,
        };
        self.agents[i].inbox.push_back(input);
        self.pump_agent(i);
    }

    /// Moves inputs and outputs until something has to be waited for.
    pub fn pump_agent(&mut self, i: usize) {
        loop {
            let agent = &mut self.agents[i];
            if agent.keeping.is_some() || !agent.process.up {
                return;
            }
            if let Some(output) = agent.outbox.pop_front() {
                self.agent_does(i, output);
            } else if let Some(input) = agent.inbox.pop_front() {
                let outputs = agent.machine.step(input);
                agent.outbox.extend(outputs);
                if self.mutation == Some(Mutation::PublishBeforeKeep) {
                    let publishes = |output: &Output| matches!(output, Output::Publish(_));
                    agent
                        .outbox
                        .make_contiguous()
                        .sort_by_key(|output| !publishes(output));
                }
            } else if !agent.following {
                return;
            } else if let Some(entry) = agent.arrived.pop_front() {
                let reading = self.readings.read(agent.process.old, &entry);
                agent.records += 1;
                if agent.process.old && crate::world::is_set(&entry) {
                    self.marks.hit("agent too old for a record");
                }
                let records = agent.records;
                agent
                    .inbox
                    .push_back(Input::Record(entry, Box::new(reading)));
                self.timer(Node::Agent(i), micros(IDLE), Timer::Idle(records));
            } else if let Some(why) = agent.ended.take() {
                agent.inbox.push_back(Input::Ended(why));
            } else {
                return;
            }
        }
    }

    fn agent_does(&mut self, i: usize, output: Output) {
        let node = Node::Agent(i);
        match output {
            Output::AskHead => self.call(node, Tag::Head, Call::Look, CALL_TIMEOUT),
            Output::Find(position) => self.call(node, Tag::Find, Call::At(position), CALL_TIMEOUT),
            Output::Bootstrap => {
                let read = crate::world::read(self.agents[i].process.old);
                self.agents[i].boot = Some(BootstrapMachine::new(read));
                self.boot_step(i, BootInput::Start);
            }
            Output::Follow(seen) => {
                let agent = &mut self.agents[i];
                agent.following = false;
                agent.arrived.clear();
                agent.ended = None;
                let seen = Seen {
                    log_id: seen.log_id,
                    position: seen.position,
                    record: seen.record,
                };
                self.follow(node, seen);
            }
            Output::Wait { attempt, foreign } => {
                let agent = &mut self.agents[i];
                agent.process.session += 1;
                agent.following = false;
                agent.feed = None;
                agent.boot = None;
                agent.arrived.clear();
                agent.ended = None;
                let pause = if foreign {
                    5 * SECOND
                } else {
                    self.backoff(100 * MS, 5 * SECOND, attempt)
                };
                self.timer(node, pause, Timer::Meet);
            }
            Output::Replace(_) | Output::Advance(_) | Output::Sync => {
                let slow = self.rng.permille(20);
                let takes = if slow {
                    self.rng.range(20 * MS, 500 * MS)
                } else {
                    self.rng.range(50, 2 * MS)
                };
                self.agents[i].keeping = Some(output);
                self.timer(node, takes, Timer::Written);
            }
            Output::Publish(followed) => self.agent_publishes(i, *followed),
        }
    }

    /// What was being kept is kept, or the disk is full.
    pub fn agent_kept(&mut self, i: usize) {
        let full = self.agents[i].full_until > self.now;
        let unnoticed = self.mutation == Some(Mutation::TornCopyUnnoticed);
        let agent = &mut self.agents[i];
        let copies = &mut agent.disk.copies;
        match agent.keeping.take() {
            Some(_) if full && unnoticed => {}
            Some(_) if full => agent.machine.not_kept(),
            Some(Output::Replace(kept)) => {
                *copies = VecDeque::from([Kept {
                    state: kept.0,
                    cursor: kept.1,
                    outdated: false,
                }]);
            }
            Some(Output::Advance(advance)) => {
                if let Some(last) = copies.back() {
                    let next = advanced(last, &advance);
                    copies.push_back(next);
                }
            }
            Some(Output::Sync) => {
                if let Some(last) = copies.pop_back() {
                    *copies = VecDeque::from([last]);
                }
            }
            Some(_) | None => {}
        }
        self.pump_agent(i);
    }

    fn agent_publishes(&mut self, i: usize, followed: Followed) {
        let agent = &mut self.agents[i];
        let before = agent.followed.log.position;
        let at = followed.log.position;
        let kept = agent
            .disk
            .copies
            .back()
            .map_or(Position::START, |kept| kept.cursor.position);
        if at < before {
            self.oracle
                .violation(format!("agent {i} goes back from {before} to {at}"));
        }
        if at > kept && at > before && self.agents[i].full_until + 8 * SECOND < self.now {
            self.oracle
                .violation(format!("agent {i} publishes {at}, but keeps only {kept}"));
        }
        match followed.log.state {
            LogState::Refused => self.marks.hit("agent refuses the log"),
            LogState::LocalCopy => self.marks.hit("agent without the log"),
            LogState::Starting | LogState::Following => {}
        }
        let agent = &mut self.agents[i];
        let same = match (&agent.followed.state, &followed.state) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if agent.followed.log != followed.log {
            self.trace(|| format!("agent {i} {:?} at {at}", followed.log.state));
        }
        let agent = &mut self.agents[i];
        agent.followed = followed;
        self.report_soon(i);
        if !same {
            self.check_followed(i);
            self.desire(i);
        }
    }

    fn check_followed(&mut self, i: usize) {
        let agent = &self.agents[i];
        let Some(state) = agent.followed.state.clone() else {
            return;
        };
        let old = agent.process.old || agent.machine.is_outdated();
        let log_id = agent.followed.log.log_id;
        self.oracle
            .shown(&format!("agent {i}"), log_id, &state, old, None);
    }

    /// Nothing came for a while.
    pub fn agent_idle(&mut self, i: usize, records: u64) {
        let agent = &mut self.agents[i];
        if agent.records == records && agent.machine.unsynced() && agent.following {
            agent.inbox.push_back(Input::Idle);
            self.pump_agent(i);
        }
    }

    /// The wait before the log is met again is over.
    pub fn meet_agent(&mut self, i: usize) {
        self.agents[i].inbox.push_back(Input::Start);
        self.pump_agent(i);
    }

    /// A report is wanted soon: changes are collected, and reports are spaced.
    pub fn report_soon(&mut self, i: usize) {
        let now = self.now;
        let agent = &mut self.agents[i];
        if agent.report_due {
            return;
        }
        agent.report_due = true;
        let spaced = (agent.reported_at + 50 * MS).saturating_sub(now);
        self.timer(Node::Agent(i), spaced.max(5 * MS), Timer::Report(true));
    }

    /// Reports, as `Reporter::build` does.
    pub fn report(&mut self, i: usize, soon: bool) {
        let now = self.now;
        let wall = self.wall(Node::Agent(i));
        let agent = &mut self.agents[i];
        if soon {
            agent.report_due = false;
        } else if agent.reported_at + 5 * SECOND > now {
            return;
        }
        agent.report += 1;
        agent.reported_at = now;
        let reported_at = wall.max(agent.started_at);
        let moment = Moment {
            wall,
            elapsed: Duration::from_micros(now.saturating_sub(agent.process.started)),
        };
        let ageless = self.mutation == Some(Mutation::ListingsAgeless);
        let listed = |at: &Loop| {
            let mut status = at.machine.standing().as_of(reported_at, moment);
            if ageless {
                status.listed_at = Some(reported_at);
            }
            status
        };
        let status = AgentStatus {
            agent: agent.id.clone(),
            group: agent.group.clone(),
            version: "sim".to_owned(),
            started_at: agent.started_at,
            reported_at,
            report: agent.report,
            interval_ms: 5_000,
            leaving: false,
            log: agent.followed.log.clone(),
            frontends: agent.loops.iter().map(listed).collect(),
        };
        self.call(
            Node::Agent(i),
            Tag::Report,
            Call::Report(Box::new(status)),
            CALL_TIMEOUT,
        );
        self.timer(Node::Agent(i), 5 * SECOND, Timer::Report(false));
    }
}

/// As `LocalCopy::advance` writes, and reads again.
fn advanced(last: &Kept, advance: &Advance) -> Kept {
    let mut next = last.clone();
    let state = &mut next.state;
    state.position = advance.cursor.position;
    for key in &advance.changed {
        if let Some(document) = advance.part.policies.get(key) {
            state.policies.insert(key.clone(), document.clone());
        }
    }
    state
        .tails
        .insert(advance.subject.clone(), advance.cursor.position);
    if advance.subject == Subject::parameters() {
        state.registry = advance.part.registry.clone();
    }
    state.stops.extend(advance.part.stops.clone());
    state.stopped.clone_from(&advance.part.stopped);
    next.cursor = advance.cursor;
    next
}
