//! The agent's report: published on every change and at an interval; other agents' reports, read for rivals.
//!
//! The board being away is no error for enforcing: the next report says the same again.

mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use event_log::{StatusBoard, ambient};
use schemas::status::{AgentStatus, FrontendStatus};
use schemas::{AgentId, FrontendId, Name, RouterId, Timestamp};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::reconcile::shell::Rivals;
use crate::reconcile::standing::{Moment, Standing};
use crate::replica::Followed;

/// Changes are collected for this long before they are reported.
const COLLECT: Duration = Duration::from_millis(5);
/// Bound: two reports are at least this far apart.
const SPACING: Duration = Duration::from_millis(50);
/// Bound: the time that one report may take.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bound: the time that the last report may take; the process waits for it.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// A report that could not be delivered is tried again after this (or the interval, if that is shorter).
const REPORT_RETRY: Duration = Duration::from_secs(1);
/// Waits before the board is watched again.
const WATCH_RETRY_MIN: Duration = Duration::from_secs(1);
const WATCH_RETRY_MAX: Duration = Duration::from_secs(60);
/// Another agent counts as live for this many of its report intervals.
const INTERVALS_ALIVE: u32 = 3;

/// Builds and publishes reports.
pub struct Reporter {
    /// Who reports.
    pub agent: AgentId,
    /// Label of its frontends.
    pub group: Option<Name>,
    /// When this process started.
    pub started_at: Timestamp,
    /// Report at least this often.
    pub interval: Duration,
    /// How the log is followed.
    pub followed: watch::Receiver<Followed>,
    /// Where each frontend stands.
    pub frontends: Vec<watch::Receiver<Standing>>,
    /// When the agent started, by the clock of [`Standing::listed`].
    pub started: Instant,
    /// Told when a frontend's status has changed.
    pub changed: Arc<Notify>,
    /// Where to.
    pub board: Arc<dyn StatusBoard>,
    /// Cancelled before the stop of an agent that stops on purpose, and never for one that broke.
    pub leaving: CancellationToken,
}

impl Reporter {
    /// What would be reported now.
    #[must_use]
    pub fn build(&self, report: u64, now: Timestamp) -> AgentStatus {
        // Never before the start, also when the clock went back meanwhile.
        let reported_at = now.max(self.started_at);
        let moment = Moment {
            wall: now,
            elapsed: self.started.elapsed(),
        };
        let mut status = AgentStatus {
            agent: self.agent.clone(),
            group: self.group.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.started_at,
            reported_at,
            report,
            interval_ms: u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX),
            leaving: false,
            log: self.followed.borrow().log.clone(),
            frontends: (self.frontends.iter())
                .map(|frontend| frontend.borrow().as_of(reported_at, moment))
                .collect(),
        };
        size::fit(&mut status);
        status
    }

    /// Reports until told to stop: to the board, and as `latest` within this process. Says goodbye when it leaves.
    pub async fn run(mut self, latest: watch::Sender<AgentStatus>, stop: CancellationToken) {
        let mut report = 0;
        self.report(&mut report, latest, stop).await;
        if self.leaving.is_cancelled() {
            let last = AgentStatus {
                leaving: true,
                ..self.build(report + 1, ambient::now())
            };
            let said = tokio::time::timeout(GOODBYE_TIMEOUT, self.board.report(&last)).await;
            if !matches!(said, Ok(Ok(()))) {
                tracing::warn!(
                    "the end cannot be reported; this agent will be missed until it is stale"
                );
            }
        }
    }

    async fn report(
        &mut self,
        report: &mut u64,
        latest: watch::Sender<AgentStatus>,
        stop: CancellationToken,
    ) {
        let mut delivered = true;
        while !stop.is_cancelled() {
            *report += 1;
            self.followed.mark_unchanged();
            let status = self.build(*report, ambient::now());
            latest.send_replace(status.clone());
            let outcome = tokio::select! {
                outcome = tokio::time::timeout(REPORT_TIMEOUT, self.board.report(&status)) => outcome,
                () = stop.cancelled() => return,
            };
            let why = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why.to_string()),
                Err(_) => Some("timed out".to_owned()),
            };
            match &why {
                Some(why) if delivered => {
                    tracing::warn!(error = %why, "status cannot be reported; enforcing goes on");
                }
                None if !delivered => tracing::info!("status is reported again"),
                Some(_) | None => {}
            }
            delivered = why.is_none();
            let wait = if delivered {
                self.interval
            } else {
                self.interval.min(REPORT_RETRY)
            };
            let spaced = tokio::time::sleep(SPACING);
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait.max(SPACING)) => continue,
                () = self.changed.notified() => {}
                Ok(()) = self.followed.changed() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = async { tokio::time::sleep(COLLECT).await; spaced.await; } => {}
            }
        }
    }
}

/// Finds other agents that look after the same routers: by router id, which no two frontends share. (Frontends' addresses
/// say nothing: every host has a `127.0.0.1`.) Also other processes under this agent's own id: of their reports and ours only
/// one is kept, so each makes the other's frontends invisible.
#[derive(Debug)]
pub struct RivalWatch {
    agent: AgentId,
    heard: BTreeMap<AgentId, Heard>,
}

#[derive(Debug)]
struct Heard {
    report: (Timestamp, u64),
    /// A kept report may be of an agent that is gone (perhaps this one's former self): it counts from its second on.
    live: bool,
    until: Duration,
    frontends: BTreeSet<FrontendId>,
}

/// Bound: other agents that share frontends with this one.
const HEARD_MAX: usize = 256;

impl RivalWatch {
    /// Nobody heard yet.
    #[must_use]
    pub fn new(agent: AgentId) -> RivalWatch {
        RivalWatch {
            agent,
            heard: BTreeMap::new(),
        }
    }

    /// Takes another agent's report in, `elapsed` after the start.
    pub fn hear(&mut self, elapsed: Duration, own: &AgentStatus, other: &AgentStatus) {
        // Our own echo. (Two processes under one id do not start within one millisecond.)
        let namesake = other.agent == self.agent;
        if namesake && other.started_at == own.started_at {
            return;
        }
        if other.leaving {
            self.heard.remove(&other.agent);
            return;
        }
        let theirs: BTreeSet<RouterId> = routers(&other.frontends).collect();
        let frontends: BTreeSet<FrontendId> = (own.frontends.iter())
            // A namesake hides the reports of all of ours, whatever it looks after.
            .filter(|frontend| {
                namesake || routers(std::slice::from_ref(frontend)).any(|id| theirs.contains(&id))
            })
            .map(|frontend| frontend.frontend.clone())
            .collect();
        let report = (other.started_at, other.report);
        let before = self.heard.get(&other.agent);
        if frontends.is_empty() || (before.is_none() && self.heard.len() >= HEARD_MAX) {
            self.heard.remove(&other.agent);
            return;
        }
        let live = before.is_some_and(|before| before.live || before.report < report);
        if namesake && live && !before.is_some_and(|before| before.live) {
            tracing::error!(agent = %self.agent, "another process reports under this agent's id; give each an id and a state folder of its own");
        }
        let interval = Duration::from_millis(other.interval_ms.min(600_000));
        let heard = Heard {
            report,
            live,
            until: elapsed + interval * INTERVALS_ALIVE,
            frontends,
        };
        self.heard.insert(other.agent.clone(), heard);
    }

    /// The rival of each frontend, as of `elapsed`: of several the one with the smallest id.
    pub fn rivals(&mut self, elapsed: Duration) -> Rivals {
        self.heard.retain(|_, heard| heard.until > elapsed);
        let mut rivals = Rivals::new();
        for (agent, heard) in self.heard.iter().filter(|(_, heard)| heard.live) {
            for frontend in &heard.frontends {
                rivals
                    .entry(frontend.clone())
                    .or_insert_with(|| agent.clone());
            }
        }
        rivals
    }

    /// Watches the board until told to stop.
    pub async fn run(
        mut self,
        board: Arc<dyn StatusBoard>,
        own: watch::Receiver<AgentStatus>,
        rivals: watch::Sender<Rivals>,
        stop: CancellationToken,
    ) {
        let started = Instant::now();
        let mut attempt = 0;
        loop {
            let watched = tokio::select! {
                () = stop.cancelled() => return,
                watched = board.watch() => watched,
            };
            if let Ok(mut reports) = watched {
                let mut tick = tokio::time::interval(Duration::from_secs(1));
                loop {
                    tokio::select! {
                        () = stop.cancelled() => return,
                        _ = tick.tick() => {}
                        report = reports.next() => {
                            let Ok(report) = report else { break };
                            attempt = 0;
                            self.hear(started.elapsed(), &own.borrow(), &report);
                        }
                    }
                    publish(&rivals, self.rivals(started.elapsed()));
                }
            }
            // A board that cannot be watched (the service's, over HTTP) tells no rivals; the bound on putting back remains.
            publish(&rivals, self.rivals(started.elapsed()));
            let wait = ambient::backoff(WATCH_RETRY_MIN, WATCH_RETRY_MAX, attempt);
            attempt += 1;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

fn publish(rivals: &watch::Sender<Rivals>, found: Rivals) {
    rivals.send_if_modified(|rivals| {
        let changed = *rivals != found;
        *rivals = found;
        changed
    });
}

fn routers(frontends: &[FrontendStatus]) -> impl Iterator<Item = RouterId> {
    frontends
        .iter()
        .flat_map(|frontend| frontend.routers.iter().map(|router| router.router_id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::tests::{id, router_key};
    use schemas::status::{ApplyState, Capability, LogFollowing, LogState, RouterStatus};
    use schemas::{Position, Revision};

    fn status(agent: &str, report: u64, frontend: &str, router: u128) -> AgentStatus {
        AgentStatus {
            agent: agent.parse().unwrap(),
            group: None,
            version: String::new(),
            started_at: Timestamp::from_unix_ms(1),
            reported_at: Timestamp::from_unix_ms(1),
            report,
            interval_ms: 5_000,
            leaving: false,
            log: LogFollowing {
                state: LogState::Following,
                log_id: None,
                position: Position::START,
                error: None,
            },
            frontends: vec![FrontendStatus {
                frontend: frontend.parse().unwrap(),
                capability: Capability::RouterPolicy,
                reachable: true,
                error: None,
                listed_at: None,
                rival: None,
                routers: vec![RouterStatus {
                    router_id: id(router),
                    router: router_key("m"),
                    local_revision: Some(Revision::ZERO),
                    parameters: BTreeMap::new(),
                    state: ApplyState::Applied,
                    position: Position::START,
                    error: None,
                    since: Timestamp::from_unix_ms(1),
                    drifts: 0,
                }],
                thresholds: Vec::new(),
            }],
        }
    }

    #[test]
    fn a_rival_is_a_live_agent_with_the_same_router_whatever_the_address() {
        let own = status("b", 1, "http://127.0.0.1:8000", 1);
        let mut watch = RivalWatch::new("b".parse().unwrap());
        let at = Duration::from_secs;
        let found = |rivals: Rivals| {
            rivals
                .into_values()
                .map(|id| id.to_string())
                .collect::<Vec<_>>()
        };
        // Another host's frontend with the same address; our own echo.
        for report in 1..4 {
            watch.hear(
                at(0),
                &own,
                &status("a", report, "http://127.0.0.1:8000", 2),
            );
            watch.hear(
                at(0),
                &own,
                &status("b", report, "http://127.0.0.1:8000", 1),
            );
        }
        assert!(watch.rivals(at(0)).is_empty());
        // A kept report may be of one that is gone.
        watch.hear(at(0), &own, &status("c", 7, "http://host:8000", 1));
        watch.hear(at(1), &own, &status("c", 7, "http://host:8000", 1));
        assert!(watch.rivals(at(1)).is_empty());
        watch.hear(at(2), &own, &status("c", 8, "http://host:8000", 1));
        assert_eq!(found(watch.rivals(at(2))), ["c"]);
        watch.hear(at(3), &own, &status("a", 8, "x", 1));
        watch.hear(at(4), &own, &status("a", 9, "x", 1));
        assert_eq!(found(watch.rivals(at(4))), ["a"]);
        assert_eq!(found(watch.rivals(at(18))), ["a"], "c fell silent");
        let goodbye = AgentStatus {
            leaving: true,
            ..status("a", 10, "x", 1)
        };
        watch.hear(at(18), &own, &goodbye);
        assert!(watch.rivals(at(18)).is_empty(), "a left");
    }

    #[test]
    fn regression_another_process_under_our_own_id_is_a_rival_once_its_reports_rise() {
        let own = status("b", 1, "http://127.0.0.1:8000", 1);
        let mut watch = RivalWatch::new("b".parse().unwrap());
        let at = Duration::from_secs;
        let theirs = |report| AgentStatus {
            started_at: Timestamp::from_unix_ms(2),
            ..status("b", report, "http://elsewhere:8000", 2)
        };
        watch.hear(at(0), &own, &own);
        watch.hear(at(0), &own, &theirs(7));
        watch.hear(at(1), &own, &theirs(7));
        assert!(
            watch.rivals(at(1)).is_empty(),
            "a kept report may be of our former self"
        );
        watch.hear(at(2), &own, &theirs(8));
        let found: Vec<_> = watch.rivals(at(2)).into_iter().collect();
        assert_eq!(
            found,
            [(own.frontends[0].frontend.clone(), own.agent.clone())]
        );
        assert!(watch.rivals(at(18)).is_empty(), "it fell silent");
    }
}
