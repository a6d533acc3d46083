//! Messages between processes and the broker: latency, loss, cuts, and what the broker answers.

use bytes::Bytes;
use event_log::follow::Facts;
use event_log::follow::machine::Marked;
use event_log::{Entry, Failure, Foreign, Identity, Tails};
use schemas::status::AgentStatus;
use schemas::{CommandId, LogId, Position, Subject};

use crate::broker::{Consumer, Stored};
use crate::mutation::Mutation;
use crate::plan::{MS, SECOND};
use crate::world::{Event, World};

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A service.
    Service(usize),
    /// An agent.
    Agent(usize),
}

/// What a process asks of the broker.
#[derive(Debug, Clone)]
pub enum Call {
    /// Which log is there, and where it ends.
    Look,
    /// The same, with the record at a position.
    LookAt(Position),
    /// The record at a position.
    At(Position),
    /// The first record on a subject behind a position.
    Next(Subject, Position),
    /// The last record of each subject.
    Tails,
    /// All records (a replay).
    All,
    /// Append.
    Append(Subject, Position, Bytes),
    /// Make a consumer behind a position.
    Open(u64, Position),
    /// Put a report on the board.
    Report(Box<AgentStatus>),
}

/// What the broker answers.
#[derive(Debug, Clone)]
pub enum Answer {
    /// To [`Call::Look`].
    Facts(Facts),
    /// To [`Call::LookAt`].
    Marked(Facts, Marked),
    /// To [`Call::At`] and [`Call::Next`].
    Found(Option<Entry>),
    /// To [`Call::Tails`].
    Tails(Tails),
    /// To [`Call::All`].
    All(Vec<Entry>),
    /// To [`Call::Append`].
    Stored(Stored),
    /// To [`Call::Open`].
    Opened(Facts, u64, Option<schemas::Hash>),
    /// To [`Call::Report`].
    Done,
}

/// What an answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// The reader's machine asked for the head.
    Head,
    /// The reader's machine looked a record up.
    Find,
    /// The first look of a subscription.
    Follow(Seen),
    /// A consumer of a subscription.
    Open(u64),
    /// A look of a subscription's watchdog.
    Watch,
    /// The reader's own look while it follows.
    Check,
    /// Of a bootstrap.
    Boot,
    /// Of a write, at its step.
    Write(CommandId, u64),
    /// Nobody waits.
    Report,
}

/// `event_log::Seen`, comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The log.
    pub log_id: LogId,
    /// Its last record taken in.
    pub position: Position,
}

/// What every process has.
#[derive(Debug)]
pub struct Process {
    /// It runs.
    pub up: bool,
    /// Counts its starts; what belongs to an earlier one is void.
    pub epoch: u64,
    /// When it started.
    pub started: u64,
    /// Calls under way: what for, and of which session.
    pub pending: std::collections::BTreeMap<u64, (Tag, u64)>,
    /// Counts the times that it met the log.
    pub session: u64,
    /// What it knows of the log's identity.
    pub identity: Identity,
    /// It stands still until then.
    pub stalled_until: u64,
    /// Its wall clock is ahead by this, in milliseconds.
    pub offset_ms: i64,
    /// Requests reach the broker.
    pub sends: bool,
    /// Answers and deliveries reach it.
    pub receives: bool,
    /// It does not know sets yet.
    pub old: bool,
}

impl Process {
    /// Not started.
    #[must_use]
    pub fn new(old: bool) -> Process {
        Process {
            up: false,
            epoch: 0,
            started: 0,
            pending: std::collections::BTreeMap::new(),
            session: 0,
            identity: Identity::unknown(),
            stalled_until: 0,
            offset_ms: 0,
            sends: true,
            receives: true,
            old,
        }
    }
}

/// How long a call of the port waits.
pub const CALL_TIMEOUT: u64 = 2 * SECOND;

impl World {
    /// A process.
    pub fn process(&mut self, node: Node) -> &mut Process {
        match node {
            Node::Service(i) => &mut self.services[i].process,
            Node::Agent(i) => &mut self.agents[i].process,
        }
    }

    /// Sends a call; its answer, or a timeout, comes back under the tag.
    pub fn call(&mut self, node: Node, tag: Tag, call: Call, timeout: u64) {
        let id = self.next_id();
        let process = self.process(node);
        let (epoch, session, sends) = (process.epoch, process.session, process.sends);
        let (known, create) = (process.identity.known(), process.identity.may_create());
        process.pending.insert(id, (tag, session));
        self.at(
            timeout,
            Event::Timeout {
                to: node,
                epoch,
                id,
            },
        );
        let appends = matches!(call, Call::Append(..));
        let lost = self.faulty(|faults| faults.lost_requests);
        if !sends || lost {
            self.marks.hit("request to the broker lost");
            return;
        }
        let mut delay = self.latency();
        if appends && self.faulty(|faults| faults.late_appends) {
            delay = timeout + self.rng.range(10 * MS, 12 * SECOND);
        }
        self.at(
            delay,
            Event::Arrive {
                from: node,
                epoch,
                id,
                call,
                known,
                create,
                late: delay > timeout,
            },
        );
    }

    /// How long one message takes.
    pub fn latency(&mut self) -> u64 {
        match self.rng.range(0, 99) {
            0 => self.rng.range(50 * MS, 900 * MS),
            1..=9 => self.rng.range(3 * MS, 30 * MS),
            _ => self.rng.range(200, 2 * MS),
        }
    }

    /// A call is at the broker.
    pub fn arrived(
        &mut self,
        from: Node,
        (epoch, id): (u64, u64),
        call: Call,
        (known, create): (Option<LogId>, bool),
        late: bool,
    ) {
        if self.broker.away_until > self.now {
            return;
        }
        if late {
            self.marks.hit("append lands after its caller gave up");
        }
        let answer_after = self.latency();
        let result = self.answer(from, epoch, call, (known, create), answer_after);
        let lost = self.faulty(|faults| faults.lost_answers);
        if !self.process(from).receives || lost {
            self.marks.hit("answer of the broker lost");
            return;
        }
        self.at(
            answer_after,
            Event::Answered {
                to: from,
                epoch,
                id,
                result,
            },
        );
    }

    fn answer(
        &mut self,
        from: Node,
        epoch: u64,
        call: Call,
        (known, create): (Option<LogId>, bool),
        answer_after: u64,
    ) -> Result<Answer, Failure> {
        if let Call::Report(status) = call {
            self.reported(*status);
            return Ok(Answer::Done);
        }
        if self.broker.store.is_none() {
            if let Some(known) = known {
                return Err(Failure::Foreign(Foreign::Gone { known }));
            }
            if !create {
                return Err(Failure::Determinate("there is no log".to_owned()));
            }
            let log_id = LogId(self.new_uuid());
            if self.broker.made > 0 {
                self.oracle.cut(None);
            }
            self.broker.create(log_id);
        }
        let now = self.now;
        let Some(store) = &self.broker.store else {
            return Err(Failure::Determinate("there is no log".to_owned()));
        };
        if let Some(known) = known.filter(|known| *known != store.log_id) {
            if self.mutation == Some(Mutation::IdentityIgnored) {
                if let Call::Look = call {
                    return Ok(Answer::Facts(Facts {
                        log_id: known,
                        ..store.facts()
                    }));
                }
                let served = self.serve(from, epoch, call, answer_after, now);
                return served.map(|answer| match answer {
                    Answer::Marked(facts, mark) => {
                        let facts = Facts {
                            log_id: known,
                            ..facts
                        };
                        Answer::Marked(facts, mark)
                    }
                    other => other,
                });
            }
            return Err(Failure::Foreign(Foreign::OtherIdentity {
                known,
                actual: store.log_id,
            }));
        }
        self.serve(from, epoch, call, answer_after, now)
    }

    fn serve(
        &mut self,
        from: Node,
        epoch: u64,
        call: Call,
        answer_after: u64,
        now: u64,
    ) -> Result<Answer, Failure> {
        let Some(store) = &self.broker.store else {
            return Err(Failure::Determinate("there is no log".to_owned()));
        };
        Ok(match call {
            Call::Look => Answer::Facts(store.facts()),
            Call::LookAt(position) => {
                let mark = store.at(position);
                let hash =
                    mark.map(|entry| schemas::event::record_hash(&entry.subject, &entry.bytes));
                Answer::Marked(store.facts(), Marked { position, hash })
            }
            Call::At(position) => Answer::Found(store.at(position).cloned()),
            Call::Next(subject, after) => Answer::Found(store.next_on(&subject, after).cloned()),
            Call::Tails => Answer::Tails(store.tails()),
            Call::All => Answer::All(store.entries.clone()),
            Call::Append(subject, expected, bytes) => {
                return self.append_arrived(&subject, expected, &bytes);
            }
            Call::Open(feed, after) => {
                let mark = store
                    .at(after)
                    .map(|entry| schemas::event::record_hash(&entry.subject, &entry.bytes));
                let facts = store.facts();
                let left = store
                    .entries
                    .iter()
                    .filter(|entry| entry.position > after)
                    .count();
                let consumer = Consumer {
                    node: from,
                    epoch,
                    log_id: store.log_id,
                    sent: after,
                    number: 0,
                    frozen: false,
                    arrives: now + answer_after,
                };
                self.broker
                    .consumers
                    .retain(|_, consumer| consumer.node != from);
                self.broker.consumers.insert(feed, consumer);
                self.deliver(feed);
                Answer::Opened(facts, left as u64, mark)
            }
            Call::Report(_) => Answer::Done,
        })
    }

    fn append_arrived(
        &mut self,
        subject: &Subject,
        expected: Position,
        bytes: &Bytes,
    ) -> Result<Answer, Failure> {
        let now = self.now;
        let before = self
            .broker
            .store
            .as_ref()
            .map_or(Position::START, |store| store.tail(subject));
        let last = self
            .broker
            .store
            .as_ref()
            .map_or(Position::START, |store| store.last);
        let stored = self
            .broker
            .append(now, &mut self.rng, subject, expected, bytes)
            .ok_or_else(|| Failure::Determinate("there is no log".to_owned()))?;
        match &stored {
            Stored::New(position) => {
                self.oracle.let_in = before != expected;
                if before != expected {
                    self.marks.hit("two winners let in");
                }
                if position.0 > last.0 + 1 {
                    self.marks.hit("positions with gaps");
                }
                self.stored_last();
            }
            Stored::Duplicate(_) => self.marks.hit("append duplicate acknowledged"),
            Stored::Conflict => {
                let own = self
                    .broker
                    .store
                    .as_ref()
                    .and_then(|store| store.next_on(subject, expected))
                    .is_some_and(|entry| entry.bytes == *bytes);
                if own {
                    self.marks.hit("append conflict with itself");
                }
            }
            Stored::Unresolved => self.marks.hit("append conflict unresolved (10164)"),
            Stored::InProcess => self.marks.hit("append in process (10158)"),
            Stored::Refused => self.marks.hit("append refused (full disk)"),
        }
        Ok(Answer::Stored(stored))
    }

    /// The newest record is in the log: judged, and on its way to every consumer.
    pub fn stored_last(&mut self) {
        let Some((log_id, entry)) = self
            .broker
            .store
            .as_ref()
            .and_then(|store| Some((store.log_id, store.entries.last()?.clone())))
        else {
            return;
        };
        let verdict = self.oracle.stored(log_id, &entry);
        self.saw_verdict(&entry, &verdict);
        self.grown();
        self.trace(|| format!("log {} {} {:?}", entry.position, entry.subject, verdict));
        let feeds: Vec<u64> = self.broker.consumers.keys().copied().collect();
        for feed in feeds {
            self.deliver(feed);
        }
    }

    /// Sends a consumer what it has not sent yet.
    pub fn deliver(&mut self, feed: u64) {
        let Some(mut consumer) = self.broker.consumers.get(&feed).cloned() else {
            return;
        };
        if consumer.frozen || self.broker.away_until > self.now {
            return;
        }
        let Some(store) = &self.broker.store else {
            return;
        };
        if store.log_id != consumer.log_id && self.mutation != Some(Mutation::IdentityIgnored) {
            return;
        }
        if consumer.sent > Position::START && self.faulty(|faults| faults.redelivered) {
            consumer.sent = Position(consumer.sent.0 - self.rng.range(1, 3).min(consumer.sent.0));
            self.marks.hit("redelivery from an older position");
        }
        let entries: Vec<Entry> = match &self.broker.store {
            Some(store) => store
                .entries
                .iter()
                .filter(|entry| entry.position > consumer.sent)
                .cloned()
                .collect(),
            None => Vec::new(),
        };
        for entry in entries {
            consumer.sent = entry.position;
            consumer.number += 1;
            let lost = self.faulty(|faults| faults.lost_deliveries);
            if lost || !self.process(consumer.node).receives {
                self.marks.hit("delivery lost");
                continue;
            }
            let twice = self.faulty(|faults| faults.redelivered);
            for _ in 0..=u8::from(twice) {
                consumer.arrives = (self.now + self.latency()).max(consumer.arrives + 1);
                let item = Item::Record(consumer.number, entry.clone());
                self.push(consumer.arrives, delivery(&consumer, feed, item));
            }
            if twice {
                self.marks.hit("delivery repeated");
            }
        }
        self.broker.consumers.insert(feed, consumer);
    }

    /// Each live consumer says that it lives.
    pub fn heartbeats(&mut self) {
        let feeds: Vec<(u64, Consumer)> = self
            .broker
            .consumers
            .iter()
            .filter(|(_, consumer)| !consumer.frozen)
            .map(|(feed, consumer)| (*feed, consumer.clone()))
            .collect();
        for (feed, mut consumer) in feeds {
            if !self.process(consumer.node).receives || self.broker.away_until > self.now {
                continue;
            }
            consumer.arrives = (self.now + self.latency()).max(consumer.arrives + 1);
            let item = Item::Heartbeat(consumer.number);
            self.push(consumer.arrives, delivery(&consumer, feed, item));
            self.broker.consumers.insert(feed, consumer);
        }
        self.at(5 * SECOND, Event::Heartbeats);
    }

    fn reported(&mut self, status: AgentStatus) {
        let agent = status.agent.clone();
        self.broker.board.insert(agent, (status.clone(), self.now));
        for i in 0..self.services.len() {
            self.tell_board(i, status.clone());
        }
    }

    /// A report on its way to a service that watches the board.
    pub fn tell_board(&mut self, service: usize, status: AgentStatus) {
        let process = &self.services[service].process;
        if !process.up || !process.receives {
            return;
        }
        let epoch = process.epoch;
        let delay = self.latency();
        let status = Box::new(status);
        self.at(
            delay,
            Event::Heard {
                service,
                epoch,
                status,
            },
        );
    }
}

fn delivery(consumer: &Consumer, feed: u64, item: Item) -> Event {
    Event::Delivery {
        to: consumer.node,
        epoch: consumer.epoch,
        feed,
        item,
    }
}

/// What comes through a feed.
#[derive(Debug, Clone)]
pub enum Item {
    /// A record with its number.
    Record(u64, Entry),
    /// So many were sent.
    Heartbeat(u64),
    /// The link came back.
    LinkRestored,
}
