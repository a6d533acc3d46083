//! What the tests share: a log in memory that can be taken away, and waiting on an agent's report.

#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses a part"
)]

pub mod site;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use event_log::memory::{MemoryBoard, MemoryLog};
use event_log::{
    Appended, Entry, EventLog as _, Failure, Head, LogReader, ReaderWiring, Seen, Subscription,
    Tails,
};
use router_agent::target::Values;
use router_agent::{Config, Frontend, InProcess, Running};
use schemas::event::{Action, Actor, Event, PolicyChange, Record};
use schemas::state::State;
use schemas::status::{AgentStatus, ApplyState};
use schemas::{
    CommandId, Hash, LogId, Name, Overlay, ParameterName, ParameterValue, PolicyKey, PolicyKind,
    Position, Revision, Scope, Subject, Timestamp,
};
use tokio::sync::watch;
use uuid::Uuid;

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn values(pairs: &[(&str, f64)]) -> Values {
    let pair = |(name, value): &(&str, f64)| {
        (
            ParameterName::new(*name).unwrap(),
            ParameterValue::number(*value),
        )
    };
    pairs.iter().map(pair).collect()
}

/// A log in memory that can be taken away.
pub struct Log {
    pub inner: Arc<MemoryLog>,
    pub away: watch::Sender<bool>,
}

impl Log {
    pub fn new(id: u128) -> Arc<Log> {
        Arc::new(Log {
            inner: Arc::new(MemoryLog::new(LogId(Uuid::from_u128(id)))),
            away: watch::Sender::new(false),
        })
    }

    fn here(&self) -> Result<(), Failure> {
        if *self.away.borrow() {
            Err(Failure::Determinate("not reachable".to_owned()))
        } else {
            Ok(())
        }
    }

    pub async fn append(&self, subject: &Subject, bytes: Vec<u8>) -> Position {
        let tails = self.inner.tails().await.unwrap();
        let last = (tails.entries.iter()).find(|entry| entry.subject == *subject);
        let expected = last.map_or(Position::START, |entry| entry.position);
        match self
            .inner
            .append(subject, expected, Bytes::from(bytes))
            .await
            .unwrap()
        {
            Appended::Committed(position) => position,
            Appended::Conflict => panic!("nobody else writes"),
        }
    }

    /// Sets one policy's whole overlay.
    pub async fn set(&self, kind: PolicyKind, pairs: &[(&str, f64)]) -> Position {
        self.set_overlay(kind, &Scope::default(), values(pairs))
            .await
    }

    /// The same for any scope and any values.
    pub async fn set_overlay(&self, kind: PolicyKind, scope: &Scope, overlay: Overlay) -> Position {
        let state: State = event_log::bootstrap::bootstrap(&self.inner)
            .await
            .unwrap()
            .state;
        let key = PolicyKey {
            kind,
            scope: scope.clone(),
        };
        let (revision, decided_on, previous_hash) = (state.policies.get(&key))
            .map_or((Revision::ZERO, Position::START, Hash::ZERO), |document| {
                (document.revision, document.position, document.hash)
            });
        let record = Record {
            command_id: CommandId(Uuid::from_u128(u128::from(state.position.0) + 1)),
            actor: Actor {
                name: name("tester"),
                via: name("token"),
            },
            at: Timestamp::from_unix_ms(1),
            reason: None,
            forced: false,
            fingerprint: Hash::ZERO,
            event: Event::PoliciesChanged {
                changes: vec![PolicyChange {
                    kind,
                    scope: key.scope.clone(),
                    action: Action::Reset,
                    revision: revision.next(),
                    decided_on,
                    previous_hash,
                    overlay,
                }],
            },
        };
        self.append(&record.subject(), record.to_bytes()).await
    }

    pub async fn set_temperature(&self, value: f64) -> Position {
        self.set(PolicyKind::WorkerSelection, &[("temperature", value)])
            .await
    }
}

pub struct Reader(pub Arc<Log>);

#[async_trait]
impl LogReader for Reader {
    async fn head(&self) -> Result<Head, Failure> {
        self.0.here()?;
        self.0.inner.head().await
    }
    async fn tails(&self) -> Result<Tails, Failure> {
        self.0.here()?;
        self.0.inner.tails().await
    }
    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure> {
        self.0.here()?;
        self.0.inner.next_on(subject, after).await
    }
    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        self.0.here()?;
        self.0.inner.at(position).await
    }
    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure> {
        self.0.here()?;
        let away = self.0.away.subscribe();
        let inner = self.0.inner.follow(seen).await?;
        Ok(Box::new(Records { inner, away }))
    }
}

pub struct Records {
    inner: Box<dyn Subscription>,
    away: watch::Receiver<bool>,
}

#[async_trait]
impl Subscription for Records {
    async fn next(&mut self) -> Result<Entry, Failure> {
        tokio::select! {
            biased;
            _ = self.away.wait_for(|away| *away) => Err(Failure::Determinate("the connection is gone".to_owned())),
            entry = self.inner.next() => entry,
        }
    }
}

/// An agent for one frontend in this process, "here".
pub async fn agent_beside(folder: &Path, log: &Arc<Log>, target: &InProcess) -> Running {
    let frontends = vec![Frontend {
        id: "here".parse().unwrap(),
        target: Arc::new(target.clone()),
    }];
    let config = Config {
        poll_interval: Duration::from_millis(20),
        ..Config::new(folder, frontends)
    };
    let wiring = ReaderWiring {
        log: Arc::new(Reader(log.clone())),
        board: Arc::new(MemoryBoard::default()),
    };
    router_agent::start(config, wiring).await.unwrap()
}

pub async fn until(
    running: &Running,
    what: &str,
    holds: impl FnMut(&AgentStatus) -> bool,
) -> AgentStatus {
    let mut status = running.status();
    let found = tokio::time::timeout(Duration::from_secs(20), status.wait_for(holds)).await;
    match found {
        Ok(status) => status.unwrap().clone(),
        Err(_) => panic!("{what} never came; last: {:#?}", *running.status().borrow()),
    }
}

/// Every router of every frontend (or of one) is as wanted at this position.
pub fn applied(status: &AgentStatus, only: Option<&str>, position: Position) -> bool {
    let mut frontends = (status.frontends.iter())
        .filter(|frontend| only.is_none_or(|only| frontend.frontend.0.as_str() == only))
        .peekable();
    frontends.peek().is_some()
        && frontends.all(|frontend| {
            !frontend.routers.is_empty()
                && frontend.routers.iter().all(|router| {
                    router.state == ApplyState::Applied && router.position >= position
                })
                && frontend
                    .thresholds
                    .iter()
                    .all(|model| model.state == ApplyState::Applied && model.position >= position)
        })
}
