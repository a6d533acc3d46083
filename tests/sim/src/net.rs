//! Messages between processes and the broker: latency, loss, cuts, and what the broker answers.

use bytes::Bytes;
use event_log::follow::Facts;
use event_log::follow::machine::Marked;
use event_log::{Entry, Identity, Tails};
use schemas::status::AgentStatus;
use schemas::{CommandId, Hash, LogId, Position, Subject};

use crate::broker::Stored;
use crate::event::Event;
use crate::plan::{MS, SECOND};
use crate::world::World;

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
    /// Its hash, where that is known.
    pub record: Option<Hash>,
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
