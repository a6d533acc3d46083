//! A subscription of one process: the real `FollowMachine`, moved by simulated deliveries, looks and timers.

use std::time::Duration;

use event_log::follow::machine::{FollowMachine, Input, Opened, Output};
use event_log::{Failure, Foreign};
use schemas::{LogId, Position};

use crate::event::Timer;
use crate::mutation::Mutation;
use crate::net::{Answer, CALL_TIMEOUT, Call, Item, Node, Seen, Tag};
use crate::plan::SECOND;
use crate::world::World;

/// `Options::watchdog_interval` and `Options::away_max` as they are by default.
const WATCHDOG: u64 = 5 * SECOND;
const AWAY_MAX: Duration = Duration::from_secs(30);

/// A subscription.
#[derive(Debug)]
pub struct Feed {
    machine: FollowMachine,
    /// The consumer that counts; 0 = none.
    consumer: u64,
    begun: u64,
    log_id: LogId,
    /// A consumer is being made, or the head looked at: one thing at a time.
    working: bool,
    /// Makes timers of an earlier subscription void.
    id: u64,
}

impl World {
    pub(crate) fn feed(&mut self, node: Node) -> &mut Option<Feed> {
        match node {
            Node::Service(i) => &mut self.services[i].feed,
            Node::Agent(i) => &mut self.agents[i].feed,
        }
    }

    /// `LogReader::follow`: looks first.
    pub fn follow(&mut self, node: Node, seen: Seen) {
        *self.feed(node) = None;
        let _ = self.process(node).identity.meet(seen.log_id);
        self.call(node, Tag::Follow(seen), Call::Look, CALL_TIMEOUT);
    }

    /// The first look came: what the reader is told, and the subscription begins.
    pub fn follow_answered(
        &mut self,
        node: Node,
        seen: Seen,
        result: Result<Answer, Failure>,
    ) -> Result<(), Failure> {
        let facts = match result? {
            Answer::Facts(facts) => facts,
            Answer::Found(_)
            | Answer::Marked(..)
            | Answer::Tails(_)
            | Answer::All(_)
            | Answer::Stored(_)
            | Answer::Opened(..)
            | Answer::Done => return Err(Failure::Determinate("nonsense".to_owned())),
        };
        if facts.log_id != seen.log_id {
            return Err(Failure::Foreign(Foreign::OtherIdentity {
                known: seen.log_id,
                actual: facts.log_id,
            }));
        }
        if seen.position > facts.last {
            return Err(Failure::Foreign(Foreign::Behind {
                known: seen.position,
                actual: facts.last,
            }));
        }
        let id = self.next_id();
        *self.feed(node) = Some(Feed {
            machine: FollowMachine::new(seen.position, seen.record, AWAY_MAX),
            consumer: 0,
            begun: self.now,
            log_id: facts.log_id,
            working: false,
            id,
        });
        self.open(node, seen.position, 0);
        self.timer(node, WATCHDOG, Timer::Watchdog(id));
        Ok(())
    }

    fn open(&mut self, node: Node, after: Position, pause: u64) {
        let Some(feed) = self.feed(node) else { return };
        feed.consumer = 0;
        feed.working = true;
        let id = feed.id;
        self.timer(node, pause, Timer::Open(id, after));
    }

    /// The pause before a consumer is made is over.
    pub fn open_due(&mut self, node: Node, id: u64, after: Position) {
        let consumer = self.next_id();
        let Some(feed) = self.feed(node) else { return };
        if feed.id == id {
            self.call(
                node,
                Tag::Open(consumer),
                Call::Open(consumer, after),
                CALL_TIMEOUT,
            );
        }
    }

    /// Time to look at the head.
    pub fn watchdog_due(&mut self, node: Node, id: u64) {
        let Some(feed) = self.feed(node) else { return };
        if feed.id != id {
            return;
        }
        self.timer(node, WATCHDOG, Timer::Watchdog(id));
        if self.mutation == Some(Mutation::WatchdogsOff) {
            return;
        }
        let Some(feed) = self.feed(node) else { return };
        if !feed.working {
            feed.working = true;
            let position = feed.machine.cursor();
            self.call(node, Tag::Watch, Call::LookAt(position), CALL_TIMEOUT);
        }
    }

    /// A consumer was made, or could not be.
    pub fn opened(&mut self, node: Node, consumer: u64, result: Result<Answer, Failure>) {
        let Some(feed) = self.feed(node) else { return };
        feed.working = false;
        let input = match result {
            Ok(Answer::Opened(facts, left, mark)) => {
                feed.consumer = consumer;
                Input::Opened(Ok(Opened { facts, left, mark }))
            }
            Ok(_) => return,
            Err(why) => Input::Opened(Err(why)),
        };
        self.step_feed(node, input);
    }

    /// The watchdog's look came.
    pub fn watched(&mut self, node: Node, result: Result<Answer, Failure>) {
        let Some(feed) = self.feed(node) else { return };
        feed.working = false;
        let log_id = feed.log_id;
        let looked = match result {
            Ok(Answer::Marked(facts, _)) if facts.log_id != log_id => {
                Err(Failure::Foreign(Foreign::OtherIdentity {
                    known: log_id,
                    actual: facts.log_id,
                }))
            }
            Ok(Answer::Marked(facts, mark)) => Ok((facts, mark)),
            Ok(_) => return,
            Err(why) => Err(why),
        };
        let input = Input::Looked(looked);
        self.step_feed(node, input);
    }

    /// Something came through a consumer.
    pub fn delivered(&mut self, node: Node, consumer: u64, item: Item) {
        let uncounted = self.mutation == Some(Mutation::DeliveriesUncounted);
        let Some(feed) = self.feed(node) else { return };
        let input = match item {
            Item::LinkRestored => Input::LinkRestored,
            Item::Record(..) | Item::Heartbeat(_) if feed.consumer != consumer => return,
            Item::Record(_, entry) if uncounted => return self.record(node, entry),
            Item::Heartbeat(_) if uncounted => return,
            Item::Record(number, entry) => Input::Record { number, entry },
            Item::Heartbeat(delivered) => Input::Heartbeat { delivered },
        };
        self.step_feed(node, input);
    }

    fn step_feed(&mut self, node: Node, input: Input) {
        let now = self.now;
        let Some(feed) = self.feed(node) else { return };
        let since = Duration::from_micros(now.saturating_sub(feed.begun));
        match feed.machine.step(input, since) {
            Output::Deliver(entry) => self.record(node, entry),
            Output::Reopen { after, pause } => {
                self.marks.hit("feed made again");
                let pause = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
                self.open(node, after, pause);
            }
            Output::Nothing => {}
            Output::End(why) => {
                self.marks.hit("feed ended");
                *self.feed(node) = None;
                self.feed_ended(node, why.into());
            }
        }
    }

    fn record(&mut self, node: Node, entry: event_log::Entry) {
        match node {
            Node::Service(i) => self.service_record(i, entry),
            Node::Agent(i) => self.agent_record(i, entry),
        }
    }

    fn feed_ended(&mut self, node: Node, why: Failure) {
        match node {
            Node::Service(i) => self.service_ended(i, why),
            Node::Agent(i) => self.agent_ended(i, why),
        }
    }
}
