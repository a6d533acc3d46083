//! One world: virtual time, one queue of events, one source of chance. Everything is ordered, and one thread runs it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use event_log::follow::Facts;
use event_log::{Entry, Failure, Head};
use schemas::event::Event as Happened;
use schemas::state::{Reading, Verdict};
use schemas::{Name, ParameterName, RouterId, Subject, Timestamp};
use uuid::Uuid;

use crate::agent::Agent;
use crate::broker::Broker;
use crate::client::Clients;
use crate::event::{Event, Timer};
use crate::frontends::Frontend;
use crate::marks::Marks;
use crate::mutation::Mutation;
use crate::net::{Answer, Call, Node, Process, Tag};
use crate::oracle::{Oracle, read_as_old};
use crate::plan::{Faults, MS, Plan, SECOND};
use crate::rng::Rng;
use crate::service::{EPOCH_MS, Service};

/// One world.
#[derive(Debug)]
pub struct World {
    /// Virtual time, in microseconds.
    pub now: u64,
    sequence: u64,
    ids: u64,
    queue: BTreeMap<(u64, u64), Event>,
    /// Chance.
    pub rng: Rng,
    /// What it is like.
    pub plan: Plan,
    /// What goes wrong now.
    pub faults: Faults,
    /// The broker.
    pub broker: Broker,
    /// Services.
    pub services: Vec<Service>,
    /// Agents.
    pub agents: Vec<Agent>,
    /// Frontends.
    pub frontends: Vec<Frontend>,
    /// The frontends of each agent.
    pub owned: Vec<Vec<usize>>,
    /// Clients.
    pub clients: Clients,
    /// The judge.
    pub oracle: Oracle,
    /// What was reached.
    pub marks: Marks,
    /// A fault put into the shells on purpose.
    pub mutation: Option<Mutation>,
    /// Readings that were made.
    pub readings: Readings,
    /// Changes sent to frontends.
    pub sent: u64,
    /// Events handled.
    pub steps: u64,
    /// When everything healed.
    pub healed_at: Option<u64>,
    /// Everything was well since then, with so many changes sent before.
    pub well_since: Option<(u64, u64)>,
    /// It is over.
    pub over: bool,
    hash: u64,
    tracing: bool,
}

/// `Failure::Determinate` of a call that nobody answered.
fn silence(tag: Tag, appends: bool) -> Failure {
    let words = "no answer in time".to_owned();
    if appends && matches!(tag, Tag::Write(..)) {
        Failure::Indeterminate(words)
    } else {
        Failure::Determinate(words)
    }
}

impl World {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64, mutation: Option<Mutation>, tracing: bool) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let mut world = World {
            now: 0,
            sequence: 0,
            ids: 0,
            queue: BTreeMap::new(),
            rng,
            faults: plan.faults,
            broker: Broker::new(plan.flavour),
            services: Vec::new(),
            agents: Vec::new(),
            frontends: Vec::new(),
            owned: Vec::new(),
            clients: Clients::default(),
            oracle: Oracle::default(),
            marks: Marks::default(),
            mutation,
            readings: Readings::default(),
            sent: 0,
            steps: 0,
            healed_at: None,
            well_since: None,
            over: false,
            hash: 0xcbf2_9ce4_8422_2325,
            tracing,
            plan,
        };
        world.trace(|| "world".to_owned());
        world.build();
        world
    }

    /// Runs to the end.
    pub fn run(&mut self) {
        while !self.over && self.oracle.violations.is_empty() {
            let Some(((at, sequence), event)) = self.queue.pop_first() else {
                break;
            };
            self.now = at;
            if let Some(until) = self.stalled(&event) {
                // Nothing overtakes: the order of what waits stays.
                self.queue.insert((until, sequence), event);
                continue;
            }
            self.steps += 1;
            self.mix(at);
            self.mix(sequence);
            self.handle(event);
        }
    }

    /// The hash over everything that happened.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Takes a number into the hash.
    pub fn mix(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Prints a line of the trace, when it is wanted.
    pub fn trace(&self, line: impl FnOnce() -> String) {
        if self.tracing {
            println!(
                "{:>12.6} {}",
                Duration::from_micros(self.now).as_secs_f64(),
                line()
            );
        }
    }

    /// Something happens at a time.
    pub fn push(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.queue.insert((at, self.sequence), event);
    }

    /// Something happens after a while.
    pub fn at(&mut self, after: u64, event: Event) {
        self.push(self.now + after, event);
    }

    /// A timer of a process that runs.
    pub fn timer(&mut self, to: Node, after: u64, timer: Timer) {
        let epoch = self.process(to).epoch;
        self.at(after, Event::Timer { to, epoch, timer });
    }

    /// A number that was not used before; not 0.
    pub fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// A UUID that was not used before.
    pub fn new_uuid(&mut self) -> Uuid {
        let (high, low) = (self.next_id(), self.rng.bits());
        Uuid::from_u64_pair(high, low)
    }

    /// Does a fault with this rate strike?
    pub fn faulty(&mut self, rate: fn(&Faults) -> u64) -> bool {
        let rate = rate(&self.faults);
        rate > 0 && self.rng.permille(rate)
    }

    /// A wait that doubles, with jitter, as `ambient::backoff`.
    pub fn backoff(&mut self, base: u64, max: u64, attempt: u32) -> u64 {
        let full = base.saturating_mul(1 << attempt.min(20)).min(max);
        self.rng.range(full / 2, full)
    }

    /// A process's wall clock.
    pub fn wall(&mut self, node: Node) -> Timestamp {
        let now = EPOCH_MS + self.now / MS;
        let ms = now.saturating_add_signed(self.process(node).offset_ms);
        Timestamp::from_unix_ms(ms)
    }

    fn stalled(&mut self, event: &Event) -> Option<u64> {
        let now = self.now;
        let until =
            |process: &Process| (process.stalled_until > now).then_some(process.stalled_until);
        match event {
            Event::Answered { to, .. }
            | Event::Timeout { to, .. }
            | Event::Delivery { to, .. }
            | Event::Timer { to, .. } => until(self.process(*to)),
            Event::Heard { service, .. } => until(&self.services[*service].process),
            Event::FrontendAnswer { agent, .. } => until(&self.agents[*agent].process),
            Event::Client(crate::client::Step::Arrive { service, .. }) => {
                until(&self.services[*service].process)
            }
            Event::Arrive { .. }
            | Event::Heartbeats
            | Event::FrontendArrive { .. }
            | Event::Client(_)
            | Event::Fault(_)
            | Event::Heal
            | Event::Judge => None,
        }
    }

    fn alive(&mut self, node: Node, epoch: u64) -> bool {
        let process = self.process(node);
        process.up && process.epoch == epoch
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive {
                from,
                epoch,
                id,
                call,
                known,
                create,
                late,
            } => self.arrived(from, (epoch, id), call, (known, create), late),
            Event::Answered {
                to,
                epoch,
                id,
                result,
            } => {
                if self.alive(to, epoch) {
                    let pending = self.process(to).pending.remove(&id);
                    self.answered(to, pending, result);
                }
            }
            Event::Timeout { to, epoch, id } => {
                if self.alive(to, epoch) {
                    let pending = self.process(to).pending.remove(&id);
                    if let Some((tag, _)) = pending {
                        // A read of a commit that times out is definite, and is judged the same way.
                        self.answered(to, pending, Err(silence(tag, true)));
                    }
                }
            }
            Event::Delivery {
                to,
                epoch,
                feed,
                item,
            } => {
                if self.alive(to, epoch) {
                    self.delivered(to, feed, item);
                }
            }
            Event::Heartbeats => self.heartbeats(),
            Event::Heard {
                service,
                epoch,
                status,
            } => {
                if self.alive(Node::Service(service), epoch) {
                    self.heard(service, *status);
                }
            }
            Event::Timer { to, epoch, timer } => {
                if self.alive(to, epoch) {
                    self.timed(to, timer);
                }
            }
            Event::FrontendArrive {
                agent,
                epoch,
                at,
                process,
                ask,
                trouble,
            } => self.frontend_arrived((agent, epoch, at), process, &ask, trouble),
            Event::FrontendAnswer {
                agent,
                epoch,
                at,
                ask,
                answer,
            } => {
                if self.alive(Node::Agent(agent), epoch) {
                    self.frontend_answered(agent, at, *ask, *answer);
                }
            }
            Event::Client(step) => self.client(step),
            Event::Fault(act) => self.act(act),
            Event::Heal => self.heal(),
            Event::Judge => self.judge(),
        }
    }

    fn answered(&mut self, to: Node, pending: Option<(Tag, u64)>, result: Result<Answer, Failure>) {
        let Some((tag, session)) = pending else {
            return;
        };
        let meets = match &result {
            Ok(Answer::Facts(facts) | Answer::Marked(facts, _) | Answer::Opened(facts, ..)) => {
                Some(facts.log_id)
            }
            Ok(_) | Err(_) => None,
        };
        let result = match meets.map(|log_id| self.process(to).identity.meet(log_id)) {
            Some(Err(foreign)) => Err(Failure::Foreign(foreign)),
            Some(Ok(())) | None => result,
        };
        let reader = !matches!(tag, Tag::Write(..) | Tag::Report);
        if reader && self.process(to).session != session {
            return;
        }
        match (tag, to) {
            (Tag::Open(consumer), _) => self.opened(to, consumer, result),
            (Tag::Watch, _) => self.watched(to, result),
            (Tag::Write(id, step), Node::Service(i)) => self.write_answered(i, (id, step), result),
            (Tag::Write(..) | Tag::Report, _) => {}
            (_, Node::Service(i)) => self.service_answered(i, tag, result),
            (_, Node::Agent(i)) => self.agent_answered(i, tag, result),
        }
    }

    fn timed(&mut self, to: Node, timer: Timer) {
        match (timer, to) {
            (Timer::Meet, Node::Service(i)) => self.meet_service(i),
            (Timer::Meet, Node::Agent(i)) => self.meet_agent(i),
            (Timer::Open(id, after), _) => self.open_due(to, id, after),
            (Timer::Watchdog(id), _) => self.watchdog_due(to, id),
            (Timer::Check, _) => {
                if self.mutation != Some(Mutation::WatchdogsOff) {
                    let patience = match to {
                        Node::Service(_) => 3 * SECOND,
                        Node::Agent(_) => crate::net::CALL_TIMEOUT,
                    };
                    self.call(to, Tag::Check, Call::Look, patience);
                }
            }
            (Timer::Written, Node::Service(i)) => self.service_written(i),
            (Timer::Written, Node::Agent(i)) => self.agent_kept(i),
            (Timer::Flush, Node::Service(i)) => self.flush_service(i),
            (Timer::Idle(records), Node::Agent(i)) => self.agent_idle(i, records),
            (Timer::Loop(at, wake), Node::Agent(i)) => self.loop_due(i, at, wake),
            (Timer::Report(soon), Node::Agent(i)) => self.report(i, soon),
            (
                ref timer @ (Timer::Look(id, step)
                | Timer::Read(id, step, _)
                | Timer::Late(id, step)
                | Timer::Commit(id, step)),
                Node::Service(i),
            ) => self.write_timer(i, id, step, timer),
            (_, Node::Service(_) | Node::Agent(_)) => {}
        }
    }

    /// Notes what became of a record.
    pub fn saw_verdict(&mut self, entry: &Entry, verdict: &Verdict) {
        match verdict {
            Verdict::Void { .. } => self.marks.hit("void record"),
            Verdict::Unreadable { .. } => self.marks.hit("unreadable record"),
            Verdict::Accepted { .. } => {
                if let Reading::Known(record) = migrations::read(&entry.subject, &entry.bytes) {
                    match &record.event {
                        Happened::PoliciesChanged { changes } if changes.len() > 1 => {
                            self.marks.hit("set of changes accepted");
                        }
                        Happened::PoliciesChanged { changes } => {
                            let reverts = |change: &schemas::event::PolicyChange| {
                                matches!(change.action, schemas::event::Action::RevertedTo(_))
                            };
                            if changes.iter().any(reverts) {
                                self.marks.hit("revert accepted");
                            }
                        }
                        Happened::ParameterRegistered { .. } => {
                            self.marks.hit("parameter registered");
                        }
                    }
                }
            }
        }
    }

    /// Makes an id for a router.
    pub fn new_router(&mut self) -> RouterId {
        RouterId(self.new_uuid())
    }
}

/// Readings that were made: the same bytes are not parsed again by every reader.
#[derive(Debug, Default)]
pub struct Readings(BTreeMap<(bool, Subject, Bytes), Reading>);

impl Readings {
    /// What a version makes of a record.
    pub fn read(&mut self, old: bool, entry: &Entry) -> Reading {
        let key = (old, entry.subject.clone(), entry.bytes.clone());
        self.0
            .entry(key)
            .or_insert_with(|| read(old)(&entry.subject, &entry.bytes))
            .clone()
    }
}

/// True for a record that an older version does not know.
#[must_use]
pub fn is_set(entry: &Entry) -> bool {
    matches!(
        entry.subject.address(),
        Some(schemas::scope::Address::Set(_))
    )
}

/// How a version reads records.
#[must_use]
pub fn read(old: bool) -> fn(&Subject, &[u8]) -> Reading {
    if old { read_as_old } else { migrations::read }
}

/// Facts as the port tells them.
#[must_use]
pub fn head(facts: &Facts) -> Head {
    Head {
        log_id: facts.log_id,
        position: facts.last,
    }
}

/// In microseconds.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A name that is one.
#[must_use]
#[expect(clippy::expect_used, reason = "names in this crate are literals")]
pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A parameter's name that is one.
#[must_use]
#[expect(clippy::expect_used, reason = "names in this crate are literals")]
pub fn parameter(text: &str) -> ParameterName {
    ParameterName::new(text).expect("a parameter's name")
}
