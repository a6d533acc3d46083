//! A log and a board in memory: for tests, and the board of a service without NATS. Durable for nobody.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use schemas::status::{AgentStatus, has_room};
use schemas::{AgentId, LogId, Position, Subject};
use tokio::sync::{broadcast, watch};

use crate::identity::recognise;
use crate::port::{
    Appended, Entry, EventLog, Failure, Head, LogReader, Reports, Seen, StatusBoard, Subscription,
    Tails,
};

/// A log in memory.
#[derive(Debug)]
pub struct MemoryLog {
    log_id: LogId,
    entries: Mutex<Vec<Entry>>,
    head: watch::Sender<Position>,
}

impl MemoryLog {
    /// An empty log with this identity.
    #[must_use]
    pub fn new(log_id: LogId) -> MemoryLog {
        MemoryLog {
            log_id,
            entries: Mutex::default(),
            head: watch::Sender::new(Position::START),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> Position {
        self.entries()
            .last()
            .map_or(Position::START, |entry| entry.position)
    }
}

#[async_trait]
impl LogReader for std::sync::Arc<MemoryLog> {
    async fn head(&self) -> Result<Head, Failure> {
        Ok(Head {
            log_id: self.log_id,
            position: self.end(),
        })
    }

    async fn tails(&self) -> Result<Tails, Failure> {
        let entries = self.entries();
        let last: BTreeMap<&Subject, &Entry> = entries
            .iter()
            .map(|entry| (&entry.subject, entry))
            .collect();
        let position = entries
            .last()
            .map_or(Position::START, |entry| entry.position);
        Ok(Tails {
            entries: last.into_values().cloned().collect(),
            up_to: Head {
                log_id: self.log_id,
                position,
            },
        })
    }

    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure> {
        let entries = self.entries();
        Ok(entries
            .iter()
            .find(|entry| entry.position > after && entry.subject == *subject)
            .cloned())
    }

    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        let entries = self.entries();
        Ok(entries
            .iter()
            .find(|entry| entry.position == position)
            .cloned())
    }

    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure> {
        recognise(seen, self.head().await?)?;
        Ok(Box::new(Cursor {
            log: self.clone(),
            after: seen.position,
            head: self.head.subscribe(),
        }))
    }
}

#[async_trait]
impl EventLog for std::sync::Arc<MemoryLog> {
    async fn append(
        &self,
        subject: &Subject,
        expected: Position,
        bytes: Bytes,
    ) -> Result<Appended, Failure> {
        let position = {
            let mut entries = self.entries();
            let last = entries.iter().rev().find(|entry| entry.subject == *subject);
            if last.map_or(Position::START, |entry| entry.position) != expected {
                return Ok(Appended::Conflict);
            }
            let position = Position(entries.last().map_or(0, |entry| entry.position.0) + 1);
            entries.push(Entry {
                position,
                subject: subject.clone(),
                bytes,
            });
            position
        };
        self.head.send_replace(position);
        Ok(Appended::Committed(position))
    }
}

struct Cursor {
    log: std::sync::Arc<MemoryLog>,
    after: Position,
    head: watch::Receiver<Position>,
}

#[async_trait]
impl Subscription for Cursor {
    async fn next(&mut self) -> Result<Entry, Failure> {
        loop {
            // Marked as seen before looking, so that an append in between wakes the wait below.
            self.head.borrow_and_update();
            let found = {
                let entries = self.log.entries();
                let start = entries.partition_point(|entry| entry.position <= self.after);
                entries.get(start).cloned()
            };
            if let Some(entry) = found {
                self.after = entry.position;
                return Ok(entry);
            }
            if self.head.changed().await.is_err() {
                return Err(Failure::Determinate("the log is closed".to_owned()));
            }
        }
    }
}

/// Bound: reports that a slow watcher may fall behind before it is told to watch again.
const REPORTS_BEHIND_MAX: usize = 4_096;

/// Bound: agents whose newest report is kept. A further one takes the place of whoever reported longest ago by its own clock.
const AGENTS_MAX: usize = 10_000;

/// A board in memory.
#[derive(Debug)]
pub struct MemoryBoard {
    /// With their bytes as JSON.
    newest: Mutex<BTreeMap<AgentId, (usize, AgentStatus)>>,
    reports: broadcast::Sender<AgentStatus>,
}

impl Default for MemoryBoard {
    fn default() -> MemoryBoard {
        MemoryBoard {
            newest: Mutex::default(),
            reports: broadcast::Sender::new(REPORTS_BEHIND_MAX),
        }
    }
}

#[async_trait]
impl StatusBoard for MemoryBoard {
    async fn report(&self, status: &AgentStatus) -> Result<(), Failure> {
        let bytes = status.bytes();
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let others = newest.iter().filter(|(agent, _)| **agent != status.agent);
        if !has_room(bytes, others.map(|(_, (bytes, _))| *bytes)) {
            return Err(Failure::Determinate(
                "too many long reports are kept already".to_owned(),
            ));
        }
        if newest.len() >= AGENTS_MAX && !newest.contains_key(&status.agent) {
            let oldest = newest.values().min_by_key(|(_, known)| known.reported_at);
            if let Some(oldest) = oldest.map(|(_, known)| known.agent.clone()) {
                newest.remove(&oldest);
            }
        }
        newest.insert(status.agent.clone(), (bytes, status.clone()));
        // No watcher is no failure: the report is kept.
        let _ = self.reports.send(status.clone());
        Ok(())
    }

    async fn watch(&self) -> Result<Box<dyn Reports>, Failure> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        // Subscribed under the lock: no report can fall between the two.
        let live = self.reports.subscribe();
        Ok(Box::new(MemoryReports {
            backlog: newest.values().map(|(_, known)| known.clone()).collect(),
            live,
        }))
    }
}

struct MemoryReports {
    backlog: std::collections::VecDeque<AgentStatus>,
    live: broadcast::Receiver<AgentStatus>,
}

#[async_trait]
impl Reports for MemoryReports {
    async fn next(&mut self) -> Result<AgentStatus, Failure> {
        if let Some(status) = self.backlog.pop_front() {
            return Ok(status);
        }
        self.live
            .recv()
            .await
            .map_err(|why| Failure::Determinate(format!("status reports were lost: {why}")))
    }
}
