//! The broker: one log with its subjects' compare-and-swap, its consumers and the status board. Answers only; the network
//! around it is the world's.

use std::collections::BTreeMap;

use bytes::Bytes;
use event_log::follow::Facts;
use event_log::{Entry, Tails};
use schemas::status::AgentStatus;
use schemas::{AgentId, LogId, Position, Subject};

use crate::plan::Flavour;
use crate::rng::Rng;

/// What keeps one log.
#[derive(Debug, Clone)]
pub struct Store {
    /// Identity.
    pub log_id: LogId,
    /// Counts how often what keeps the log was made.
    pub made: u64,
    /// Its records.
    pub entries: Vec<Entry>,
    /// The newest position that was given, with or without a record.
    pub last: Position,
}

impl Store {
    /// An empty one.
    #[must_use]
    pub fn new(log_id: LogId, made: u64) -> Store {
        Store {
            log_id,
            made,
            entries: Vec::new(),
            last: Position::START,
        }
    }

    /// As whoever decides says.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts {
            log_id: self.log_id,
            last: self.last,
            made: self.made.to_string(),
        }
    }

    /// The subject's last record.
    #[must_use]
    pub fn tail(&self, subject: &Subject) -> Position {
        self.entries
            .iter()
            .rev()
            .find(|entry| entry.subject == *subject)
            .map_or(Position::START, |entry| entry.position)
    }

    /// The first record on a subject behind a position.
    #[must_use]
    pub fn next_on(&self, subject: &Subject, after: Position) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.position > after && entry.subject == *subject)
    }

    /// The record at a position.
    #[must_use]
    pub fn at(&self, position: Position) -> Option<&Entry> {
        self.entries
            .binary_search_by_key(&position, |entry| entry.position)
            .ok()
            .map(|index| &self.entries[index])
    }

    /// The last record of each subject.
    #[must_use]
    pub fn tails(&self) -> Tails {
        let last: BTreeMap<&Subject, &Entry> = self
            .entries
            .iter()
            .map(|entry| (&entry.subject, entry))
            .collect();
        Tails {
            entries: last.into_values().cloned().collect(),
            up_to: event_log::Head {
                log_id: self.log_id,
                position: self.last,
            },
        }
    }

    fn push(&mut self, subject: &Subject, bytes: &Bytes, gap: u64) -> Position {
        self.last = Position(self.last.0 + 1 + gap);
        self.entries.push(Entry {
            position: self.last,
            subject: subject.clone(),
            bytes: bytes.clone(),
        });
        self.last
    }
}

/// What became of an attempt at the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// It is stored now.
    New(Position),
    /// It was stored before.
    Duplicate(Position),
    /// The subject's last record is another one.
    Conflict,
    /// The same, but another write is not through yet (10164).
    Unresolved,
    /// A write with the same place is under way (10158).
    InProcess,
    /// Refused: storing failed.
    Refused,
}

/// One consumer.
#[derive(Debug, Clone)]
pub struct Consumer {
    /// Whose.
    pub node: crate::net::Node,
    /// Of which start of that process.
    pub epoch: u64,
    /// The log that it reads.
    pub log_id: LogId,
    /// Everything up to here was sent.
    pub sent: Position,
    /// Records sent.
    pub number: u64,
    /// It sends nothing any more, not even heartbeats.
    pub frozen: bool,
    /// Nothing overtakes: when the last delivery arrives.
    pub arrives: u64,
}

/// The broker.
#[derive(Debug)]
pub struct Broker {
    /// The log; `None` when it was deleted.
    pub store: Option<Store>,
    /// How it answers.
    pub flavour: Flavour,
    /// It answers nothing before this.
    pub away_until: u64,
    /// Logs made so far.
    pub made: u64,
    /// By feed.
    pub consumers: BTreeMap<u64, Consumer>,
    /// The newest report of every agent, and when it came.
    pub board: BTreeMap<AgentId, (AgentStatus, u64)>,
    /// When the last append was stored.
    stored_at: u64,
}

/// A race: two appends to one subject within this time may both be let in by a faulty broker.
const RACE_US: u64 = 200_000;

impl Broker {
    /// With no log yet.
    #[must_use]
    pub fn new(flavour: Flavour) -> Broker {
        Broker {
            store: None,
            flavour,
            away_until: 0,
            made: 0,
            consumers: BTreeMap::new(),
            board: BTreeMap::new(),
            stored_at: 0,
        }
    }

    /// Makes a log, if there is none.
    pub fn create(&mut self, log_id: LogId) -> bool {
        if self.store.is_some() {
            return false;
        }
        self.made += 1;
        self.store = Some(Store::new(log_id, self.made));
        true
    }

    /// One attempt to append; the log's identity was checked.
    pub fn append(
        &mut self,
        now: u64,
        rng: &mut Rng,
        subject: &Subject,
        expected: Position,
        bytes: &Bytes,
    ) -> Option<Stored> {
        let flavour = self.flavour;
        let store = self.store.as_mut()?;
        if rng.permille(flavour.refused) {
            return Some(Stored::Refused);
        }
        if rng.permille(flavour.in_process) {
            return Some(Stored::InProcess);
        }
        let gap = if flavour.gaps && rng.permille(300) {
            rng.range(1, 4)
        } else {
            0
        };
        if store.tail(subject) == expected {
            self.stored_at = now;
            return Some(Stored::New(store.push(subject, bytes, gap)));
        }
        let next = store.next_on(subject, expected).cloned();
        if let Some(own) = next.as_ref().filter(|entry| entry.bytes == *bytes) {
            return Some(if flavour.dedupe_first {
                Stored::Duplicate(own.position)
            } else {
                Stored::Conflict
            });
        }
        let race = next.is_some_and(|entry| entry.position == store.tail(subject))
            && now.saturating_sub(self.stored_at) < RACE_US;
        if race && rng.permille(flavour.two_winners) {
            return Some(Stored::New(store.push(subject, bytes, gap)));
        }
        Some(if rng.permille(flavour.unresolved) {
            Stored::Unresolved
        } else {
            Stored::Conflict
        })
    }

    /// Stores without any check: what a later version or a human writes.
    pub fn force(&mut self, subject: &Subject, bytes: &Bytes) -> Option<Position> {
        Some(self.store.as_mut()?.push(subject, bytes, 0))
    }
}
