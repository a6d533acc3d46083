//! The fleet as its agents report it.
//!
//! Owns: the newest report of every agent, kept in memory, and its age. Never does: keep history, or touch a policy.
//!
//! Ages are counted on the monotonic clock, so a wall clock that leaps neither makes agents stale nor keeps dead ones.

mod hearing;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::{StatusBoard, ambient};
use schemas::convergence::{Convergence, Heard, Outcome, Patience, convergence};
use schemas::status::AgentStatus;
use schemas::{PolicyKey, Position, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use hearing::{Agents, Took, step};

/// The fleet, shared by everything that reads.
#[derive(Debug)]
pub struct Fleet {
    agents: Mutex<Agents>,
    changed: watch::Sender<u64>,
    started: (Timestamp, Instant),
    patience: Patience,
    agents_max: usize,
    settle: Duration,
}

impl Fleet {
    /// Nobody heard of yet.
    #[must_use]
    pub fn new(patience: Patience, agents_max: usize, settle: Duration) -> Fleet {
        Fleet {
            agents: Mutex::default(),
            changed: watch::Sender::new(0),
            started: (ambient::now(), Instant::now()),
            patience,
            agents_max,
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
    pub fn agents(&self) -> Vec<Heard> {
        let now = self.now();
        self.lock()
            .values()
            .filter(|known| now.since_ms(known.heard.heard_at) <= self.patience.gone_after_ms)
            .map(|known| Heard {
                contested: known.contested(now, self.patience),
                ..known.heard.clone()
            })
            .collect()
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

    /// Where the changes of these policies up to `position` have arrived.
    ///
    /// Until the fleet is settled nothing is final: an agent that has not reported since the start may have routers that
    /// lack the change (`nothing_is_converged_before_the_agents_had_time_to_report`).
    #[must_use]
    pub fn convergence(&self, policies: &[PolicyKey], position: Position) -> Convergence {
        // Looked at first: a fleet that settles meanwhile is judged as not settled.
        let settled = self.settled();
        let mut found = convergence(
            &self.agents(),
            policies,
            position,
            self.now(),
            self.patience,
        );
        if !settled {
            found.outcome = Outcome::Pending;
        }
        found
    }

    /// True once the agents had time to report since the start.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.started.1.elapsed() >= self.settle
    }

    /// When [`Fleet::settled`] becomes true.
    #[must_use]
    pub fn settles_at(&self) -> Instant {
        self.started.1 + self.settle
    }

    fn lock(&self) -> MutexGuard<'_, Agents> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, status: AgentStatus) -> Took {
        let heard = Heard {
            status,
            heard_at: self.now(),
            contested: false,
        };
        // Encoding plain values cannot fail.
        let bytes = serde_json::to_vec(&heard.status).map_or(0, |json| json.len());
        let took = self.take(heard, bytes);
        match took {
            Took::Newest | Took::Left | Took::Contested => {
                self.changed.send_modify(|count| *count += 1)
            }
            Took::Old | Took::Full => {}
        }
        took
    }

    fn take(&self, heard: Heard, bytes: usize) -> Took {
        let agent = heard.status.agent.clone();
        let mut agents = self.lock();
        if bytes > LONG_BYTES {
            let others = agents.iter().filter(|(known, _)| **known != agent);
            let long: usize = others
                .map(|(_, known)| known.bytes)
                .filter(|bytes| *bytes > LONG_BYTES)
                .sum();
            if long + bytes > LONG_TOTAL_MAX {
                return Took::Full;
            }
        }
        let took = step(&mut agents, heard, self.patience, self.agents_max);
        if let (Took::Newest | Took::Contested, Some(known)) = (took, agents.get_mut(&agent)) {
            known.bytes = bytes;
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

/// Bound: reports longer than this (about 40 routers) are counted by their bytes, not only by number.
const LONG_BYTES: usize = 16 << 10;
/// Bound: bytes of all long reports that are remembered, as JSON.
const LONG_TOTAL_MAX: usize = 64 << 20;

const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
