//! The fleet as its agents report it.
//!
//! Owns: the newest report of every agent, kept in memory, and its age. Never does: keep history, or touch a policy.
//!
//! Ages are counted on the monotonic clock, so a wall clock that leaps neither makes agents stale nor keeps dead ones.

pub mod hearing;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::{StatusBoard, ambient};
use schemas::convergence::{Convergence, Heard, Patience};
use schemas::status::AgentStatus;
use schemas::{PolicyKey, Position, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use hearing::{Roster, Took};

/// The fleet, shared by everything that reads.
#[derive(Debug)]
pub struct Fleet {
    roster: Mutex<Roster>,
    changed: watch::Sender<u64>,
    started: (Timestamp, Instant),
    patience: Patience,
    settle: Duration,
}

impl Fleet {
    /// Nobody heard of yet.
    #[must_use]
    pub fn new(patience: Patience, agents_max: usize, settle: Duration) -> Fleet {
        let started = ambient::now();
        let settle_ms = u64::try_from(settle.as_millis()).unwrap_or(u64::MAX);
        let settles_at = Timestamp::from_unix_ms(started.unix_ms().saturating_add(settle_ms));
        Fleet {
            roster: Mutex::new(Roster::new(patience, agents_max, settles_at)),
            changed: watch::Sender::new(0),
            started: (started, Instant::now()),
            patience,
            settle,
        }
    }

    /// Now, by a clock that never leaps: the wall clock of the start and the time since.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let since = u64::try_from(self.started.1.elapsed().as_millis()).unwrap_or(u64::MAX);
        Timestamp::from_unix_ms(self.started.0.unix_ms().saturating_add(since))
    }

    /// Agents that have not left the fleet.
    #[must_use]
    pub fn agents(&self) -> Vec<Arc<Heard>> {
        self.lock().agents(self.now())
    }

    /// True when an agent has been silent for too long.
    #[must_use]
    pub fn stale(&self, heard: &Heard) -> bool {
        self.silent_ms(heard) > self.patience.stale_after_ms
    }

    /// How long an agent has been silent, in milliseconds.
    #[must_use]
    pub fn silent_ms(&self, heard: &Heard) -> u64 {
        self.now().since_ms(heard.heard_at)
    }

    /// Tells about each new report.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Where the changes of these policies up to `position` have arrived (see [`Roster::convergence`]).
    #[must_use]
    pub fn convergence(&self, policies: &[PolicyKey], position: Position) -> Convergence {
        // Looked at first: a fleet that settles meanwhile is judged as not settled.
        let now = self.now();
        self.lock().convergence(policies, position, now)
    }

    /// True once the agents had time to report since the start.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.lock().settled(self.now())
    }

    /// When [`Fleet::settled`] becomes true.
    #[must_use]
    pub fn settles_at(&self) -> Instant {
        self.started.1 + self.settle
    }

    fn lock(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, status: AgentStatus) -> Took {
        let now = self.now();
        let took = self.lock().hear(status, now);
        match took {
            Took::Newest | Took::Left | Took::Contested => {
                self.changed.send_modify(|count| *count += 1)
            }
            Took::Old | Took::Full => {}
        }
        took
    }

    /// Watches a board until `stop`; watches again when it goes away.
    pub async fn watch(
        self: Arc<Self>,
        board: Arc<dyn StatusBoard>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) {
        let mut attempt = 0;
        loop {
            let watched = self.watch_once(&*board, &metrics, &stop, &mut attempt);
            let Err(why) = watched.await else { return };
            if attempt == 0 {
                tracing::warn!(error = %why, "the status board is away; watching again");
            }
            attempt += 1;
            let pause = ambient::backoff(RETRY_BASE, RETRY_MAX, attempt);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn watch_once(
        &self,
        board: &dyn StatusBoard,
        metrics: &Metrics,
        stop: &CancellationToken,
        attempt: &mut u32,
    ) -> Result<(), event_log::Failure> {
        let mut reports = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            reports = board.watch() => reports?,
        };
        let mut count = tokio::time::interval(COUNT_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = count.tick() => {
                    let agents = self.agents();
                    let stale = agents.iter().filter(|heard| self.stale(heard)).count();
                    metrics.agents(agents.len() - stale, stale);
                }
                report = reports.next() => {
                    let report = report?;
                    *attempt = 0;
                    let agent = report.agent.clone();
                    match self.hear(report) {
                        Took::Newest | Took::Old => {}
                        Took::Left => tracing::info!(%agent, "left the fleet"),
                        Took::Contested => tracing::error!(
                            %agent,
                            "two processes report under one agent id; give each an id and a state folder of its own"
                        ),
                        Took::Full => {
                            metrics.agents_refused.inc();
                            metrics.limit("agents");
                            tracing::warn!(%agent, "report refused: too many agents are remembered");
                        }
                    }
                }
            }
        }
    }
}

const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
