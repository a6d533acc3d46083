//! Taking reports in: which one of an agent counts, and whether two processes share its id.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemas::convergence::{Convergence, Heard, Outcome, Patience, convergence};
use schemas::status::{AgentStatus, has_room};
use schemas::{AgentId, PolicyKey, Position, Timestamp};

/// Agents and what is known of each.
type Agents = BTreeMap<AgentId, Known>;

/// Everything that is known of the fleet. Time is an argument: by a clock of the reader that never leaps.
#[derive(Debug)]
pub struct Roster {
    agents: Agents,
    patience: Patience,
    agents_max: usize,
    settles_at: Timestamp,
}

impl Roster {
    /// Nobody heard of yet. Until `settles_at` nothing is final.
    #[must_use]
    pub fn new(patience: Patience, agents_max: usize, settles_at: Timestamp) -> Roster {
        Roster {
            agents: Agents::new(),
            patience,
            agents_max,
            settles_at,
        }
    }

    /// Takes a report in.
    pub fn hear(&mut self, status: AgentStatus, now: Timestamp) -> Took {
        let bytes = status.bytes();
        let others = (self.agents.iter()).filter(|(known, _)| **known != status.agent);
        if !has_room(bytes, others.map(|(_, known)| known.bytes)) {
            return Took::Full;
        }
        let agent = status.agent.clone();
        let heard = Heard {
            status,
            heard_at: now,
            contested: false,
        };
        let took = step(&mut self.agents, heard, self.patience, self.agents_max);
        if let (Took::Newest | Took::Contested, Some(known)) = (took, self.agents.get_mut(&agent)) {
            known.bytes = bytes;
        }
        took
    }

    /// Agents that have not left the fleet, as they count now (see [`Heard::as_of`]).
    #[must_use]
    pub fn agents(&self, now: Timestamp) -> Vec<Arc<Heard>> {
        self.agents
            .values()
            .filter(|known| now.since_ms(known.heard.heard_at) <= self.patience.gone_after_ms)
            .map(|known| {
                let mut heard = Arc::clone(&known.heard);
                if known.contested(now, self.patience) {
                    Arc::make_mut(&mut heard).contested = true;
                }
                heard.as_of(now, self.patience)
            })
            .collect()
    }

    /// True once the agents had time to report.
    #[must_use]
    pub fn settled(&self, now: Timestamp) -> bool {
        now >= self.settles_at
    }

    /// Where the changes of these policies up to `position` have arrived.
    ///
    /// Until the fleet is settled nothing is final: an agent that has not reported since the start may have routers that
    /// lack the change (`nothing_is_converged_before_the_agents_had_time_to_report`).
    #[must_use]
    pub fn convergence(
        &self,
        policies: &[PolicyKey],
        position: Position,
        now: Timestamp,
    ) -> Convergence {
        let mut found = convergence(&self.agents(now), policies, position, now, self.patience);
        if !self.settled(now) {
            found.outcome = Outcome::Pending;
        }
        found
    }
}

/// One agent id.
#[derive(Debug)]
struct Known {
    /// The newest report of the process that started last.
    heard: Arc<Heard>,
    /// Of its report, as JSON.
    bytes: usize,
    /// Other processes under the same id, by their start. A former self falls silent; what goes on is a second host.
    others: BTreeMap<Timestamp, Other>,
}

#[derive(Debug)]
struct Other {
    report: u64,
    /// Since when it stands beside the process in `heard`.
    since: Timestamp,
    /// When it last reported something new since then.
    rose_at: Option<Timestamp>,
}

/// Bound: processes under one id that are told apart.
const OTHERS_MAX: usize = 64;

impl Known {
    /// Do two processes report under this id, both of them alive?
    fn contested(&self, now: Timestamp, patience: Patience) -> bool {
        self.others.values().any(|other| {
            let alive = |at| now.since_ms(at) <= patience.stale_after_ms;
            // SUBTLE: the newest must have been heard beside the other: a restarted agent whose clock went back is alone
            // (`an_id_is_contested_while_two_processes_go_on_under_it`).
            other.rose_at.is_some_and(alive) && self.heard.heard_at >= other.since
        })
    }

    /// Takes a report in that is not the newest.
    fn hear_other(&mut self, status: &AgentStatus, now: Timestamp) {
        if status.started_at == self.heard.status.started_at {
            return;
        }
        match self.others.get_mut(&status.started_at) {
            Some(other) if status.report > other.report => {
                other.report = status.report;
                other.rose_at = Some(now);
            }
            Some(_) => {}
            None => self.remember(status.started_at, status.report, now),
        }
    }

    fn remember(&mut self, started_at: Timestamp, report: u64, now: Timestamp) {
        if self.others.len() >= OTHERS_MAX {
            self.others.pop_first();
        }
        let other = Other {
            report,
            since: now,
            rose_at: None,
        };
        self.others.insert(started_at, other);
    }

    /// A newer report, perhaps of another process.
    fn replace(&mut self, heard: Heard) {
        let before = &self.heard.status;
        let (started_at, report) = (before.started_at, before.report);
        self.others.remove(&heard.status.started_at);
        if started_at != heard.status.started_at {
            self.remember(started_at, report, heard.heard_at);
        }
        self.heard = Arc::new(heard);
    }
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// It is the agent's newest.
    Newest,
    /// It is the agent's last; the agent is forgotten.
    Left,
    /// A newer one is known.
    Old,
    /// It shows that two processes report under its id, which was not known.
    Contested,
    /// Too many agents are remembered.
    Full,
}

/// An agent says goodbye. Its successor under the same id may have been heard first, and stays.
///
/// Where two processes report under one id the one that stays is not known well enough: it counts once the other is stale.
fn leave(agents: &mut Agents, last: &AgentStatus) -> Took {
    let known = agents.get(&last.agent).map(|known| &known.heard.status);
    match known {
        Some(known) if known.started_at == last.started_at || last.newer_than(known) => {
            agents.remove(&last.agent);
            Took::Left
        }
        Some(_) | None => Took::Old,
    }
}

/// Takes a report in.
fn step(agents: &mut Agents, heard: Heard, patience: Patience, agents_max: usize) -> Took {
    let now = heard.heard_at;
    if heard.status.leaving
        && !agents
            .get(&heard.status.agent)
            .is_some_and(|known| known.contested(now, patience))
    {
        return leave(agents, &heard.status);
    }
    if let Some(known) = agents.get_mut(&heard.status.agent) {
        let contested = known.contested(now, patience);
        // A restarted agent whose clock went back looks older than its former self: once that is stale, it counts.
        let silent = now.since_ms(known.heard.heard_at) > patience.stale_after_ms;
        let other = heard.status != known.heard.status;
        let newest = heard.status.newer_than(&known.heard.status) || silent && other;
        if newest {
            known.replace(heard);
        } else {
            known.hear_other(&heard.status, now);
        }
        return match (known.contested(now, patience), newest) {
            (true, _) if !contested => Took::Contested,
            (_, true) => Took::Newest,
            (_, false) => Took::Old,
        };
    }
    if agents.len() >= agents_max {
        agents.retain(|_, known| now.since_ms(known.heard.heard_at) <= patience.gone_after_ms);
        if agents.len() >= agents_max {
            return Took::Full;
        }
    }
    let agent = heard.status.agent.clone();
    let known = Known {
        heard: Arc::new(heard),
        bytes: 0,
        others: BTreeMap::new(),
    };
    agents.insert(agent, known);
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
            leaving: false,
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
            contested: false,
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
    fn an_agent_that_says_goodbye_is_forgotten_at_once() {
        // (started, report, heard at, leaving) -> what becomes of it
        let cases = [
            ((50, 1, 0, false), Took::Newest),
            ((50, 2, 1, true), Took::Left),
            // The board replays it.
            ((50, 2, 2, true), Took::Old),
            ((60, 1, 3, false), Took::Newest),
            // Its former self, late.
            ((50, 2, 4, true), Took::Old),
            // Started again with a clock that went back.
            ((60, 2, 5, true), Took::Left),
            ((20, 1, 6, false), Took::Newest),
        ];
        let mut agents = Agents::new();
        for ((started, report, at, leaving), wanted) in cases {
            let mut heard = heard("a", started, report, at);
            heard.status.leaving = leaving;
            let took = step(&mut agents, heard, PATIENCE, 10);
            assert_eq!(took, wanted, "{started} {report} {at}");
            let there = agents.len() == 1;
            assert_eq!(there, took != Took::Left && at != 2, "{at}");
        }
    }

    #[test]
    fn of_two_processes_under_one_id_the_one_that_stays_is_not_forgotten() {
        let mut agents = Agents::new();
        for (started, report, at) in [(10, 1, 0), (20, 1, 1), (10, 2, 2), (20, 2, 3)] {
            step(&mut agents, heard("a", started, report, at), PATIENCE, 10);
        }
        let mut last = heard("a", 20, 3, 4);
        last.status.leaving = true;
        step(&mut agents, last, PATIENCE, 10);
        let at = Timestamp::from_unix_ms(5);
        assert!(agents.values().all(|known| known.contested(at, PATIENCE)));
        let took = step(&mut agents, heard("a", 10, 9, 150), PATIENCE, 10);
        assert_eq!((took, agents.len()), (Took::Newest, 1));
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

    #[test]
    fn an_id_is_contested_while_two_processes_go_on_under_it() {
        // (what, reports as (started, report, heard at), contested after the last)
        type Reports = &'static [(u64, u64, u64)];
        let cases: [(&str, Reports, bool); 8] = [
            (
                "a restart",
                &[(10, 7, 0), (10, 8, 5), (20, 1, 10), (20, 2, 20)],
                false,
            ),
            (
                "its former self comes late",
                &[(10, 7, 0), (20, 1, 10), (10, 7, 11)],
                false,
            ),
            ("both go on", &[(10, 7, 0), (20, 1, 10), (10, 8, 20)], true),
            (
                "heard the other way round",
                &[(20, 1, 0), (10, 7, 5), (20, 2, 10), (10, 8, 20)],
                true,
            ),
            (
                "three",
                &[(30, 1, 0), (10, 7, 5), (20, 3, 6), (30, 2, 10), (10, 8, 20)],
                true,
            ),
            (
                "one of the two restarts",
                &[
                    (10, 7, 0),
                    (20, 1, 10),
                    (10, 8, 20),
                    (30, 1, 25),
                    (10, 9, 30),
                ],
                true,
            ),
            (
                "one of the two ends",
                &[
                    (10, 7, 0),
                    (20, 1, 10),
                    (10, 8, 20),
                    (20, 9, 120),
                    (20, 10, 121),
                ],
                false,
            ),
            (
                "a clock that went back",
                &[(20, 7, 0), (10, 1, 5), (10, 2, 10), (10, 3, 20)],
                false,
            ),
        ];
        for (what, reports, wanted) in cases {
            let mut agents = Agents::new();
            for &(started, report, at) in reports {
                step(&mut agents, heard("a", started, report, at), PATIENCE, 10);
            }
            let at = Timestamp::from_unix_ms(reports.last().unwrap().2);
            let known = agents.values().next().unwrap();
            assert_eq!(known.contested(at, PATIENCE), wanted, "{what}");
        }
    }
}
