//! The end of a world: everything heals, and then everything must come right and stay right without a word.

use schemas::api::LogCondition;
use schemas::effective::{effective, effective_thresholds};
use schemas::state::State;
use schemas::status::{ApplyState, LogState};
use schemas::{LogId, PolicyKey, PolicyKind, Position};
use service::projection::fold::digest;

use crate::event::Event;
use crate::nemesis::Act;
use crate::net::Node;
use crate::plan::{Destruction, Faults, MS, SECOND};
use crate::service::PATIENCE;
use crate::world::World;

/// Readers notice a log that is not theirs within this time of calm.
const NOTICED_AFTER: u64 = 45 * SECOND;
/// Before this nothing is judged: what was sent before may land, or time out, a while after it.
const CALM: u64 = 20 * SECOND;
/// Everything is well within this time of calm.
const WELL_AFTER: u64 = 240 * SECOND;
/// It must stay well for this long, and nothing may be sent.
const QUIET: u64 = 20 * SECOND;
/// What a service believes of a frontend is no older than the product's own bound.
const KNOWN_FOR: u64 = PATIENCE.stale_after_ms * MS;

impl World {
    fn nodes(&self) -> Vec<Node> {
        let services = (0..self.services.len()).map(Node::Service);
        services
            .chain((0..self.agents.len()).map(Node::Agent))
            .collect()
    }

    /// Everything heals.
    pub fn heal(&mut self) {
        self.trace(|| "healed".to_owned());
        self.healed_at = Some(self.now);
        self.faults = Faults::default();
        let flavour = &mut self.broker.flavour;
        (flavour.refused, flavour.in_process, flavour.two_winners) = (0, 0, 0);
        self.broker.away_until = 0;
        for at in 0..self.frontends.len() {
            self.frontends[at].down_until = 0;
            if let Some((_, until)) = &mut self.frontends[at].hidden {
                *until = (*until).min(self.now);
            }
        }
        for node in self.nodes() {
            let process = self.process(node);
            process.stalled_until = 0;
            (process.sends, process.receives) = (true, true);
            self.start(node);
        }
        for service in &mut self.services {
            service.full_until = 0;
        }
        for agent in &mut self.agents {
            agent.full_until = 0;
        }
        if self.oracle.destroyed || self.plan.destruction != Destruction::None {
            self.at(NOTICED_AFTER, Event::Fault(Act::Adopt));
        } else {
            if self.broker.store.is_none() {
                let log_id = LogId(self.new_uuid());
                self.broker.create(log_id);
            }
            self.at(SECOND, Event::Judge);
        }
    }

    /// The log grew: perhaps past a reader that has read another one.
    pub fn grown(&mut self) {
        if self.plan.destruction != Destruction::Restored || !self.oracle.destroyed {
            return;
        }
        let past = self.services.iter().any(|service| {
            let snapshot = &service.snapshot;
            let within = self
                .broker
                .store
                .as_ref()
                .is_some_and(|store| snapshot.state.position <= store.last);
            within && self.strayed(snapshot.log_id, &snapshot.state, service.process.old)
        });
        if past {
            self.marks.hit("log put back and grown past a reader");
        }
    }

    /// Whoever has read another log must have said so by now; then the operator takes the log that is there.
    pub fn adopt(&mut self) {
        let mut wrong = Vec::new();
        for (i, service) in self.services.iter().enumerate() {
            let snapshot = &service.snapshot;
            let strayed = self.strayed(snapshot.log_id, &snapshot.state, service.process.old);
            if strayed && service.told.log != LogCondition::Foreign {
                wrong.push(format!(
                    "service {i} at {} does not refuse a log that is not its own: {:?}",
                    snapshot.state.position, service.told
                ));
            }
        }
        for (i, agent) in self.agents.iter().enumerate() {
            let Some(state) = &agent.followed.state else {
                continue;
            };
            let strayed = self.strayed(agent.followed.log.log_id, state, agent.process.old);
            if strayed && agent.followed.log.state != LogState::Refused {
                wrong.push(format!(
                    "agent {i} at {} does not refuse a log that is not its own: {:?}",
                    state.position, agent.followed.log
                ));
            }
        }
        for what in wrong {
            self.oracle.violation(what);
        }
        self.marks.hit("operator adopts");
        for node in self.nodes() {
            match node {
                Node::Service(i) => {
                    self.stop_service(i);
                    self.services[i].disk.wipe(true);
                }
                Node::Agent(i) => {
                    self.stop_agent(i, false);
                    self.agents[i].disk.copies.clear();
                    self.agents[i].disk.memory.forget_refusals();
                }
            }
        }
        if self.broker.store.is_none() {
            let log_id = LogId(self.new_uuid());
            self.oracle.cut(None);
            self.broker.create(log_id);
        }
        for node in self.nodes() {
            self.start(node);
        }
        self.healed_at = Some(self.now);
        self.at(SECOND, Event::Judge);
    }

    /// Is everything well, and does it stay so?
    pub fn judge(&mut self) {
        let healed_at = self.healed_at.unwrap_or(0);
        if self.now - healed_at < CALM {
            return self.at(CALM, Event::Judge);
        }
        let troubles = self.troubles();
        match (troubles.is_empty(), self.well_since) {
            (true, None) => {
                self.well_since = Some((self.now, self.sent));
                self.trace(|| "all is well".to_owned());
            }
            (true, Some((since, sent))) => {
                if self.sent != sent {
                    let more = self.sent - sent;
                    let what = format!("{more} changes were sent to frontends that were converged");
                    self.oracle.violation(what);
                }
                if self.now - since >= QUIET {
                    self.marks.hit("healed and converged");
                    self.oracle.acknowledged_is_there();
                    self.over = true;
                    return;
                }
            }
            (false, Some(_)) => {
                let what = format!("what was well is not any more: {}", troubles.join("; "));
                self.oracle.violation(what);
            }
            (false, None) if self.now - healed_at > WELL_AFTER => {
                let what = format!("not well after healing: {}", troubles.join("; "));
                self.oracle.violation(what);
            }
            (false, None) => {}
        }
        self.at(SECOND, Event::Judge);
    }

    fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        let open = self.clients.wishes.iter().filter(|wish| !wish.settled);
        let open = open.count();
        if open > 0 {
            troubles.push(format!("{open} commands have no outcome"));
        }
        let Some(store) = &self.broker.store else {
            troubles.push("there is no log".to_owned());
            return troubles;
        };
        let mut digests = std::collections::BTreeMap::new();
        for (i, service) in self.services.iter().enumerate() {
            let snapshot = &service.snapshot;
            let there = snapshot.state.position == store.last
                && service.told.log == LogCondition::Following;
            if !there {
                troubles.push(format!(
                    "service {i} is at {} of {}: {:?}",
                    snapshot.state.position, store.last, service.told
                ));
                continue;
            }
            if snapshot.chain != self.oracle.chain() {
                troubles.push(format!("service {i} has another chain"));
            }
            if self.well_since.is_none() {
                digests
                    .entry(service.process.old)
                    .or_insert_with(Vec::new)
                    .push(digest(snapshot));
            }
        }
        for same in digests.values() {
            if same.windows(2).any(|pair| pair[0] != pair[1]) {
                troubles.push("projections differ".to_owned());
            }
        }
        for (i, agent) in self.agents.iter().enumerate() {
            let log = &agent.followed.log;
            match &agent.followed.state {
                Some(state) if log.state == LogState::Following && state.position == store.last => {
                    self.agent_troubles(i, state, &mut troubles);
                }
                Some(_) | None => {
                    troubles.push(format!("agent {i} is at {log:?} of {}", store.last))
                }
            }
        }
        if troubles.is_empty() {
            self.fleet_troubles(&mut troubles);
        }
        troubles
    }

    fn agent_troubles(&self, i: usize, state: &State, troubles: &mut Vec<String>) {
        let agent = &self.agents[i];
        let group = agent.group.as_ref();
        for it in &agent.loops {
            let frontend = &self.frontends[it.frontend];
            for (id, router) in &frontend.fake.routers {
                let wanted = effective(state, &router.key, group);
                let overlay = wanted.overlay();
                let mut should = router.startup.clone();
                should.extend(overlay.clone());
                let right = if router.configurable {
                    router.parameters() == should
                } else {
                    overlay.is_empty()
                };
                let can = router.configurable
                    && overlay.iter().all(|(name, value)| {
                        router.startup.contains_key(name)
                            && !(router.refuses.contains(name) && value.as_f64() > Some(0.0))
                    });
                let known = it
                    .status
                    .routers
                    .iter()
                    .find(|known| known.router_id == *id);
                let fine = known.is_some_and(|known| {
                    known.position == state.position
                        && match known.state {
                            ApplyState::Applied => right && wanted.stopped.is_none(),
                            ApplyState::Stopped => right && wanted.stopped.is_some(),
                            ApplyState::Refused | ApplyState::Unsupported => !can && !right,
                            ApplyState::Pending | ApplyState::Drifted => false,
                        }
                });
                if !fine {
                    let said = known.map(|known| (known.state, known.position, &known.error));
                    troubles.push(format!(
                        "agent {i} router {id}: right {right}, said {said:?}"
                    ));
                }
            }
            for (model, listed) in &frontend.fake.thresholds {
                let wanted = effective_thresholds(state, model, group);
                let known = it
                    .status
                    .thresholds
                    .iter()
                    .find(|known| known.model == *model);
                let sure = !agent.disk.memory.lost && !frontend.foreign_thresholds;
                let startup = frontend.startup.get(model);
                let right = listed
                    .iter()
                    .all(|(name, value)| match wanted.overlay().get(name) {
                        Some(wanted) => value.as_ref() == Some(wanted),
                        None if sure => {
                            let at_start = startup.and_then(|all| all.get(name)).cloned().flatten();
                            router_agent::threshold::equal(name, value.as_ref(), at_start.as_ref())
                        }
                        None => true,
                    });
                let settled = known.is_some_and(|known| {
                    matches!(known.state, ApplyState::Applied | ApplyState::Stopped)
                        && known.position == state.position
                });
                if !right || !settled {
                    let said = known.map(|known| (known.state, known.position, &known.error));
                    troubles.push(format!(
                        "agent {i} thresholds of {model}: {listed:?}, not {:?} over {startup:?}; said {said:?}",
                        wanted.overlay()
                    ));
                }
            }
        }
    }

    fn fleet_troubles(&self, troubles: &mut Vec<String>) {
        let now = self.roster_now();
        for (i, service) in self.services.iter().enumerate() {
            let state = &service.snapshot.state;
            for (key, document) in &state.policies {
                let policies = std::slice::from_ref(key);
                let found = service.roster.convergence(policies, document.position, now);
                let stopped = found
                    .pending
                    .iter()
                    .all(|place| place.state == ApplyState::Stopped);
                if !found.missing.is_empty() || !stopped {
                    troubles.push(format!("service {i} says of {key}: {found:?}"));
                }
            }
        }
    }

    /// A service said "converged": every live router that the policies address must have them.
    pub fn check_converged(&mut self, i: usize, policies: &[PolicyKey], position: Position) {
        if self.oracle.destroyed {
            return;
        }
        let now = self.roster_now();
        let mut wrong = Vec::new();
        for heard in self.services[i].roster.agents(now) {
            let found = self
                .agents
                .iter()
                .position(|agent| agent.id == heard.status.agent);
            let Some(a) = found else { continue };
            let agent = &self.agents[a];
            let group = agent.group.as_ref();
            for (it, said) in self.owned[a].iter().zip(&heard.status.frontends) {
                let frontend = &self.frontends[*it];
                for (id, router) in &frontend.fake.routers {
                    let addressed = policies.iter().any(|policy| {
                        policy.kind == PolicyKind::WorkerSelection
                            && policy.scope.matches(&router.key, group)
                    });
                    let listed = said.routers.iter().any(|known| known.router_id == *id);
                    let made = frontend.made.get(id).copied().unwrap_or(0);
                    let touched = frontend
                        .foreign
                        .get(id)
                        .is_some_and(|at| *at + KNOWN_FOR >= self.now);
                    let hidden = frontend
                        .hidden
                        .is_some_and(|(_, until)| until + KNOWN_FOR >= self.now);
                    if !addressed || touched || !listed {
                        let long = made + KNOWN_FOR < self.now && !hidden;
                        if addressed && !listed && long && router.configurable {
                            wrong.push(format!("router {id} of agent {a} is not in the report"));
                        }
                        continue;
                    }
                    let right = |state: &State| {
                        let mut should = router.startup.clone();
                        should.extend(effective(state, &router.key, group).overlay());
                        should == router.parameters() || !router.configurable
                    };
                    let since = |old| self.oracle.since(position, old);
                    if !since(false).any(right) && !since(true).any(right) {
                        let known = said.routers.iter().find(|known| known.router_id == *id);
                        wrong.push(format!(
                            "router {id} of agent {a} lacks the change: heard {} ms ago {:?}, has {:?}",
                            now.since_ms(heard.heard_at),
                            known.map(|known| (known.state, known.position)),
                            router.parameters(),
                        ));
                    }
                }
            }
        }
        for what in wrong {
            self.oracle.violation(format!(
                "service {i} says converged at {position}, but {what}"
            ));
        }
    }
}
