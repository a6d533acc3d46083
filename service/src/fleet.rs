//! The fleet as its agents report it.
//!
//! Owns: the newest report of every agent, kept in memory, and its age. Never does: keep history, or touch a policy.
//!
//! Ages are counted on the monotonic clock, so a wall clock that leaps neither makes agents stale nor keeps dead ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::{StatusBoard, ambient};
use schemas::convergence::{Convergence, Heard, Outcome, Patience, convergence};
use schemas::status::AgentStatus;
use schemas::{AgentId, PolicyKey, Position, Timestamp};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Agents and their newest reports.
pub type Agents = BTreeMap<AgentId, Heard>;

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

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// It is the agent's newest.
    Newest,
    /// A newer one is known.
    Old,
    /// Too many agents are remembered.
    Full,
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
            .filter(|heard| now.since_ms(heard.heard_at) <= self.patience.gone_after_ms)
            .cloned()
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
        };
        let took = step(&mut self.lock(), heard, self.patience, self.agents_max);
        if took == Took::Newest {
            self.changed.send_modify(|count| *count += 1);
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
                    if self.hear(report) == Took::Full {
                        metrics.agents_refused.inc();
                        metrics.limit("agents");
                        tracing::warn!(%agent, "report refused: too many agents are remembered");
                    }
                }
            }
        }
    }
}

const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Takes a report in.
fn step(agents: &mut Agents, heard: Heard, patience: Patience, agents_max: usize) -> Took {
    let now = heard.heard_at;
    if let Some(known) = agents.get(&heard.status.agent) {
        // A restarted agent whose clock went back looks older than its former self: once that is stale, it counts.
        let silent = now.since_ms(known.heard_at) > patience.stale_after_ms;
        let other = heard.status != known.status;
        if !(heard.status.newer_than(&known.status) || silent && other) {
            return Took::Old;
        }
    }
    if agents.len() >= agents_max && !agents.contains_key(&heard.status.agent) {
        agents.retain(|_, known| now.since_ms(known.heard_at) <= patience.gone_after_ms);
        if agents.len() >= agents_max {
            return Took::Full;
        }
    }
    agents.insert(heard.status.agent.clone(), heard);
    Took::Newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::status::{LogFollowing, LogState};

    fn heard(agent: &str, started: u64, report: u64, at: u64) -> Heard {
        let status = AgentStatus {
            agent: AgentId(agent.parse().unwrap()),
            group: None,
            version: String::new(),
            started_at: Timestamp::from_unix_ms(started),
            reported_at: Timestamp::from_unix_ms(started),
            report,
            interval_ms: 1_000,
            log: LogFollowing {
                state: LogState::Following,
                log_id: None,
                position: Position(report),
                error: None,
            },
            frontends: Vec::new(),
        };
        Heard {
            status,
            heard_at: Timestamp::from_unix_ms(at),
        }
    }

    const PATIENCE: Patience = Patience {
        stale_after_ms: 100,
        gone_after_ms: 1_000,
    };

    #[test]
    fn the_newest_report_wins_and_a_clock_that_went_back_counts_after_silence() {
        // (started, report, heard at) -> what becomes of it
        let cases = [
            ((50, 1, 0), Took::Newest),
            ((50, 3, 1), Took::Newest),
            ((50, 2, 2), Took::Old),
            ((50, 3, 3), Took::Old),
            ((10, 9, 4), Took::Old),
            ((10, 9, 150), Took::Newest),
            ((60, 0, 151), Took::Newest),
            // The same report again after a silence is no sign of life: a board replays.
            ((60, 0, 900), Took::Old),
        ];
        let mut agents = Agents::new();
        for ((started, report, at), wanted) in cases {
            let took = step(&mut agents, heard("a", started, report, at), PATIENCE, 10);
            assert_eq!(took, wanted, "{started} {report} {at}");
        }
        assert_eq!(agents.len(), 1);
    }

    #[test]
    fn too_many_agents_are_refused_until_some_have_left() {
        let mut agents = Agents::new();
        for (agent, at, wanted) in [
            ("a", 0, Took::Newest),
            ("b", 10, Took::Newest),
            ("c", 20, Took::Full),
            ("b", 21, Took::Newest),
            ("c", 1_001, Took::Newest),
        ] {
            assert_eq!(
                step(&mut agents, heard(agent, 1, at, at), PATIENCE, 2),
                wanted
            );
        }
        assert_eq!(agents.len(), 2);
    }
}
