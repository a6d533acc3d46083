//! The broker's side of the network: what arrives, what is answered, what is delivered.

use crate::broker::{Consumer, Stored};
use crate::event::Event;
use crate::mutation::Mutation;
use crate::net::*;
use crate::plan::SECOND;
use crate::world::World;
use bytes::Bytes;
use event_log::follow::Facts;
use event_log::follow::machine::Marked;
use event_log::{Entry, Failure, Foreign};
use schemas::status::AgentStatus;
use schemas::{LogId, Position, Subject};

fn delivery(consumer: &Consumer, feed: u64, item: Item) -> Event {
    Event::Delivery {
        to: consumer.node,
        epoch: consumer.epoch,
        feed,
        item,
    }
}

fn hash_of(entry: Option<Entry>) -> Option<schemas::Hash> {
    entry.map(|entry| schemas::event::record_hash(&entry.subject, &entry.bytes))
}

impl World {
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

    pub(crate) fn answer(
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
            if self.mutation == Some(Mutation::RecognitionSkipped) {
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

    pub(crate) fn serve(
        &mut self,
        from: Node,
        epoch: u64,
        call: Call,
        answer_after: u64,
        now: u64,
    ) -> Result<Answer, Failure> {
        let read = self.mutated_record(from, &call);
        let Some(store) = &self.broker.store else {
            return Err(Failure::Determinate("there is no log".to_owned()));
        };
        Ok(match call {
            Call::Look => Answer::Facts(store.facts()),
            Call::LookAt(position) => {
                let hash = hash_of(read.or_else(|| store.at(position).cloned()));
                Answer::Marked(store.facts(), Marked { position, hash })
            }
            Call::At(position) => Answer::Found(read.or_else(|| store.at(position).cloned())),
            Call::Next(subject, after) => Answer::Found(store.next_on(&subject, after).cloned()),
            Call::Tails => Answer::Tails(store.tails()),
            Call::All => Answer::All(store.entries.clone()),
            Call::Append(subject, expected, bytes) => {
                return self.append_arrived(&subject, expected, &bytes);
            }
            Call::Open(feed, after) => {
                let facts = store.facts();
                let mark = hash_of(read.or_else(|| store.at(after).cloned()));
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

    /// What the caller has read at the place that it asks for, where a mutation pretends that it still stands there.
    pub(crate) fn mutated_record(&self, from: Node, call: &Call) -> Option<Entry> {
        let (Some(Mutation::RecognitionSkipped), Node::Service(i)) = (self.mutation, from) else {
            return None;
        };
        let position = match call {
            Call::At(position) | Call::LookAt(position) | Call::Open(_, position) => position,
            _ => return None,
        };
        let record = self.services[i].disk.records.get(position)?;
        Some(Entry {
            position: record.position,
            subject: record.subject.clone(),
            bytes: Bytes::from(record.bytes.clone()),
        })
    }

    pub(crate) fn append_arrived(
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
        if store.log_id != consumer.log_id && self.mutation != Some(Mutation::RecognitionSkipped) {
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

    pub(crate) fn reported(&mut self, status: AgentStatus) {
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
