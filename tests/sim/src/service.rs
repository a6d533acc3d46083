//! A simulated service: the real follower and roster, with a store in memory that loses what was not flushed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use event_log::{Entry, Failure, Identity};
use schemas::api::LogCondition;
use schemas::convergence::Patience;
use schemas::state::Verdict;
use schemas::{CommandId, Hash, LogId, PolicyKey, Position, Timestamp};
use service::fleet::hearing::Roster;
use service::projection::fold::{Projected, Write as StoreWrite};
use service::projection::follow::machine::{FollowerMachine, Input, Output, Told};
use service::projection::store::{StoredCommand, StoredRecord};
use service::projection::{Snapshot, keys};
use service::writer::admission::Doubtful;

use crate::event::Timer;
use crate::feed::Feed;
use crate::net::{Answer, CALL_TIMEOUT, Call, Node, Process, Seen, Tag};
use crate::plan::{MS, SECOND};
use crate::world::World;
use crate::write::Write;

/// What a folder of a service holds.
#[derive(Debug, Default)]
pub struct Disk {
    /// The file `log-id`.
    pub met: Option<LogId>,
    /// The store at the end of each batch since it was flushed last; the first is flushed.
    pub batches: VecDeque<Projected>,
    /// Records by position.
    pub records: BTreeMap<Position, StoredRecord>,
    /// Commands, under the store's keys.
    pub commands: BTreeMap<Vec<u8>, StoredCommand>,
    /// When the store was flushed last.
    pub flushed_at: u64,
}

impl Disk {
    fn loaded(&self) -> Projected {
        let mut loaded = self.batches.back().cloned().unwrap_or_default();
        loaded.log_id = loaded.log_id.or(self.met);
        loaded
    }

    /// Takes writes in: records and commands are read again, the rest is in the batch's [`Projected`].
    fn keep(&mut self, writes: Vec<StoreWrite>) {
        for write in writes {
            match write {
                StoreWrite::Put(key, value) if key.starts_with(keys::RECORDS) => {
                    if let Ok(record) = StoredRecord::decode(&key, &value) {
                        self.records.insert(record.position, record);
                    }
                }
                StoreWrite::PutNew(key, value) => {
                    if let Ok(command) = serde_json::from_slice(&value) {
                        self.commands.entry(key).or_insert(command);
                    }
                }
                StoreWrite::Put(..) => {}
            }
        }
    }

    /// Loses everything after `keep` batches.
    pub fn cut(&mut self, keep: usize) {
        self.batches.truncate(keep.max(1));
        let end = self
            .batches
            .back()
            .map_or(Position::START, |at| at.state.position);
        self.records.retain(|position, _| *position <= end);
        self.commands.retain(|_, command| command.position <= end);
    }

    /// As `Store::command`.
    #[must_use]
    pub fn command(&self, id: CommandId, request: Hash) -> Option<StoredCommand> {
        let prefix = keys::accepted(id);
        let accepted = (self.commands.range(prefix.clone()..))
            .take_while(|(key, _)| key.starts_with(&prefix))
            .map(|(_, command)| command.clone());
        StoredCommand::answering(accepted, Some(request))
            .or_else(|| self.commands.get(&keys::command(id)).cloned())
    }

    /// The store is gone; the file that names the log may stay.
    pub fn wipe(&mut self, met_too: bool) {
        let met = self.met.filter(|_| !met_too);
        *self = Disk {
            met,
            ..Disk::default()
        };
    }
}

/// A service.
#[derive(Debug)]
pub struct Service {
    /// Its process.
    pub process: Process,
    /// Its folder.
    pub disk: Disk,
    /// Its store cannot be written before then.
    pub full_until: u64,
    /// The follower.
    pub machine: FollowerMachine,
    /// The subscription.
    pub feed: Option<Feed>,
    /// What others in the process see.
    pub snapshot: Arc<Snapshot>,
    /// How the log is.
    pub told: Told,
    outbox: VecDeque<Output>,
    inbox: VecDeque<Input>,
    arrived: Vec<Entry>,
    ended: Option<Failure>,
    following: bool,
    writing: bool,
    to_write: Vec<StoreWrite>,
    /// Writes under way.
    pub writes: BTreeMap<CommandId, Write>,
    /// Commands in doubt.
    pub doubtful: Doubtful,
    /// The fleet as it was heard.
    pub roster: Roster,
    /// Changes that it acknowledged lately, for the questions about convergence.
    pub acknowledged: VecDeque<(Vec<PolicyKey>, Position)>,
}

/// As in `service::Config`.
pub const PATIENCE: Patience = Patience {
    stale_after_ms: 15_000,
    gone_after_ms: 60_000,
};
const AGENTS_MAX: usize = 10_000;
const FLEET_SETTLE_MS: u64 = 10_000;
/// Wall clock of the world's start.
pub const EPOCH_MS: u64 = 1_796_000_000_000;

impl Service {
    /// Not started.
    #[must_use]
    pub fn new(old: bool) -> Service {
        let projected = Projected::default();
        let machine = FollowerMachine::new(projected.clone());
        Service {
            process: Process::new(old),
            disk: Disk::default(),
            full_until: 0,
            told: machine.told().clone(),
            machine,
            feed: None,
            snapshot: Arc::new(projected.snapshot()),
            outbox: VecDeque::new(),
            inbox: VecDeque::new(),
            arrived: Vec::new(),
            ended: None,
            following: false,
            writing: false,
            to_write: Vec::new(),
            writes: BTreeMap::new(),
            doubtful: Doubtful::default(),
            roster: Roster::new(PATIENCE, AGENTS_MAX, Timestamp::from_unix_ms(0)),
            acknowledged: VecDeque::new(),
        }
    }
}

impl World {
    /// Starts a service from its folder.
    pub fn start_service(&mut self, i: usize) {
        let now = self.now;
        let service = &mut self.services[i];
        service.process.up = true;
        service.process.epoch += 1;
        service.process.session += 1;
        service.process.started = now;
        service.process.pending.clear();
        service.process.identity = Identity::unknown();
        match service.disk.met {
            Some(met) => service.process.identity.expect(met),
            None => service.process.identity.allow_create(),
        }
        let projected = service.disk.loaded();
        service.snapshot = Arc::new(projected.snapshot());
        service.machine = FollowerMachine::new(projected);
        service.told = service.machine.told().clone();
        service.feed = None;
        service.outbox.clear();
        service.inbox.clear();
        service.arrived.clear();
        service.ended = None;
        service.following = false;
        service.writing = false;
        service.writes.clear();
        service.doubtful = Doubtful::default();
        service.acknowledged.clear();
        let settles = EPOCH_MS + now / MS + FLEET_SETTLE_MS;
        service.roster = Roster::new(PATIENCE, AGENTS_MAX, Timestamp::from_unix_ms(settles));
        self.check_shown(i);
        self.services[i].inbox.push_back(Input::Start);
        self.timer(Node::Service(i), 500 * MS, Timer::Flush);
        let kept: Vec<_> = self.broker.board.values().cloned().collect();
        for (status, at) in kept {
            if self.now.saturating_sub(at) < 60 * SECOND {
                self.tell_board(i, status);
            }
        }
        self.pump_service(i);
    }

    /// Ends a service's process; what was not flushed may be lost.
    pub fn stop_service(&mut self, i: usize) {
        let unflushed = self.services[i].disk.batches.len();
        let keep = self.rng.range(1, unflushed.max(1) as u64);
        let service = &mut self.services[i];
        service.process.up = false;
        service.feed = None;
        service.disk.cut(usize::try_from(keep).unwrap_or(1));
        let writes = std::mem::take(&mut service.writes);
        for (_, write) in writes {
            for attempt in write.attempts {
                self.reply_lost(attempt);
            }
        }
    }

    /// Sled flushes by itself.
    pub fn flush_service(&mut self, i: usize) {
        let now = self.now;
        let disk = &mut self.services[i].disk;
        if let Some(last) = disk.batches.pop_back() {
            disk.batches.clear();
            disk.batches.push_back(last);
        }
        disk.flushed_at = now;
        self.timer(Node::Service(i), 500 * MS, Timer::Flush);
    }

    /// A record came through the subscription.
    pub fn service_record(&mut self, i: usize, entry: Entry) {
        self.services[i].arrived.push(entry);
        self.pump_service(i);
    }

    /// The subscription ended.
    pub fn service_ended(&mut self, i: usize, why: Failure) {
        self.services[i].ended = Some(why);
        self.pump_service(i);
    }

    /// A batch is written, or not.
    pub fn service_written(&mut self, i: usize) {
        let full = self.services[i].full_until > self.now;
        self.services[i].writing = false;
        let input = if full {
            self.marks.hit("service store write failed");
            Input::Written(Err("no space left".to_owned()))
        } else {
            let service = &mut self.services[i];
            let writes = std::mem::take(&mut service.to_write);
            service.disk.keep(writes);
            service
                .disk
                .batches
                .push_back(service.machine.projected().clone());
            Input::Written(Ok(()))
        };
        // Nothing else is taken in while a batch is being written.
        self.services[i].inbox.push_front(input);
        self.pump_service(i);
    }

    /// An answer for the follower.
    pub fn service_answered(&mut self, i: usize, tag: Tag, result: Result<Answer, Failure>) {
        let input = match (tag, result) {
            (Tag::Follow(seen), result) => {
                let followed = self.follow_answered(Node::Service(i), seen, result);
                self.services[i].following = followed.is_ok();
                if followed.is_ok() {
                    self.timer(Node::Service(i), 5 * SECOND, Timer::Check);
                }
                Input::Followed(followed)
            }
            (Tag::Head, Ok(Answer::Facts(facts))) => Input::Head(Ok(crate::world::head(&facts))),
            (Tag::Head, Err(why)) => Input::Head(Err(why)),
            (Tag::Find, Ok(Answer::Found(found))) => Input::Found(Ok(found)),
            (Tag::Find, Err(why)) => Input::Found(Err(why)),
            (Tag::Check, result) => {
                if !self.services[i].following {
                    return;
                }
                self.timer(Node::Service(i), 5 * SECOND, Timer::Check);
                match result {
                    Ok(Answer::Facts(facts)) => Input::Checked(Ok(crate::world::head(&facts))),
                    Ok(_) => return,
                    Err(why) => Input::Checked(Err(why)),
                }
            }
            (_, Ok(_) | Err(_)) => return,
        };
        self.services[i].inbox.push_back(input);
        self.pump_service(i);
    }

    /// Moves inputs and outputs until something has to be waited for.
    pub fn pump_service(&mut self, i: usize) {
        loop {
            let service = &mut self.services[i];
            if service.writing || !service.process.up {
                return;
            }
            if let Some(output) = service.outbox.pop_front() {
                self.service_does(i, output);
            } else if let Some(input) = service.inbox.pop_front() {
                let outputs = service.machine.step(input);
                service.outbox.extend(outputs);
            } else if service.following && (!service.arrived.is_empty() || service.ended.is_some())
            {
                let old = service.process.old;
                let sets = old && service.arrived.iter().any(crate::world::is_set);
                let batch = std::mem::take(&mut service.arrived)
                    .into_iter()
                    .map(|entry| {
                        let reading = self.readings.read(old, &entry);
                        (entry, reading)
                    })
                    .collect();
                let ended = service.ended.take();
                if sets {
                    self.marks.hit("service too old for a record");
                }
                service.inbox.push_back(Input::Records(batch, ended));
            } else {
                return;
            }
        }
    }

    fn service_does(&mut self, i: usize, output: Output) {
        let node = Node::Service(i);
        match output {
            Output::AskHead => self.call(node, Tag::Head, Call::Look, CALL_TIMEOUT),
            Output::Find(position) => self.call(node, Tag::Find, Call::At(position), CALL_TIMEOUT),
            Output::Remember(log_id) => {
                let service = &mut self.services[i];
                service.disk.met = Some(log_id);
                if service.disk.batches.is_empty() {
                    let mut first = service.machine.projected().clone();
                    first.log_id = Some(log_id);
                    service.disk.batches.push_back(first);
                }
                let _ = service.process.identity.meet(log_id);
                service.inbox.push_back(Input::Remembered(Ok(())));
            }
            Output::Follow(seen) => {
                let service = &mut self.services[i];
                service.following = false;
                service.arrived.clear();
                service.ended = None;
                self.follow(
                    node,
                    Seen {
                        log_id: seen.log_id,
                        position: seen.position,
                        record: seen.record,
                    },
                );
            }
            Output::Write(writes) => {
                self.services[i].to_write = writes;
                self.services[i].writing = true;
                let takes = self.rng.range(50, 3 * MS);
                self.timer(node, takes, Timer::Written);
            }
            Output::Publish => {
                let service = &mut self.services[i];
                service.snapshot = Arc::new(service.machine.projected().snapshot());
                self.check_shown(i);
                self.wake_waiters(i);
            }
            Output::Verdicts(verdicts) => {
                for (_, verdict) in verdicts {
                    if let Verdict::Accepted { chained: false } = verdict
                        && !self.oracle.destroyed
                    {
                        self.oracle
                            .violation(format!("service {i} finds an unchained record"));
                    }
                }
            }
            Output::Tell(told) => {
                if told.log == LogCondition::Foreign {
                    self.marks.hit("service refuses the log");
                }
                self.services[i].told = told;
                self.wake_waiters(i);
            }
            Output::Wait { attempt } => {
                self.marks.hit("service asks for the head again");
                let service = &mut self.services[i];
                service.process.session += 1;
                service.following = false;
                service.feed = None;
                service.arrived.clear();
                service.ended = None;
                let pause = self.backoff(50 * MS, 5 * SECOND, attempt);
                self.timer(node, pause, Timer::Meet);
            }
        }
    }

    /// The wait before the log is met again is over.
    pub fn meet_service(&mut self, i: usize) {
        self.services[i].inbox.push_back(Input::Start);
        self.pump_service(i);
    }

    fn check_shown(&mut self, i: usize) {
        let service = &self.services[i];
        let snapshot = Arc::clone(&service.snapshot);
        let old = service.process.old;
        let chain = Some(snapshot.chain);
        let who = format!("service {i}");
        self.oracle
            .shown(&who, snapshot.log_id, &snapshot.state, old, chain);
    }

    /// Now, by a service's clock that never leaps.
    #[must_use]
    pub fn roster_now(&self) -> Timestamp {
        Timestamp::from_unix_ms(EPOCH_MS + self.now / MS)
    }

    /// A report arrived at a service.
    pub fn heard(&mut self, i: usize, status: schemas::status::AgentStatus) {
        let now = self.roster_now();
        self.services[i].roster.hear(status, now);
        self.question_fleet(i);
    }
}
