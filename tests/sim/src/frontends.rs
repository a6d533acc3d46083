//! Simulated frontends and the real loops of the agents that look after them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use router_agent::reconcile::course::Now;
use router_agent::reconcile::{FrontendLoop, Input, Mode, Output, Settings};
use router_agent::target::{Applied, Listing, TargetError, Thresholds, Values};
use router_agent::testing::{FakeFrontend, FakeRouter, Fault};
use schemas::state::State;
use schemas::status::FrontendStatus;
use schemas::{FrontendId, Name, ParameterValue, Patch, Position, Revision, RouterId, RouterKey};

use crate::event::{Event, Timer};
use crate::mutation::Mutation;
use crate::net::Node;
use crate::plan::{MS, SECOND};
use crate::remembered::Change;
use crate::world::{World, micros};

/// A frontend process.
#[derive(Debug)]
pub struct Frontend {
    /// As Dynamo behaves.
    pub fake: FakeFrontend,
    /// When each router was made.
    pub made: BTreeMap<RouterId, u64>,
    /// When somebody else than the agent's answered call changed a router last.
    pub foreign: BTreeMap<RouterId, u64>,
    /// The same for a model's thresholds, ever.
    pub foreign_thresholds: bool,
    /// What each model's thresholds start as.
    pub startup: BTreeMap<Name, Thresholds>,
    /// What it serves, with startup values, refused names, and whether it can be configured.
    pub serves: Vec<FakeRouter>,
    /// It does not answer before then.
    pub down_until: u64,
    /// This router is left out of listings until then.
    pub hidden: Option<(RouterId, u64)>,
    /// Counts its processes.
    pub process: u64,
}

/// The loop of one frontend in one agent.
#[derive(Debug)]
pub struct Loop {
    /// The real one.
    pub machine: FrontendLoop,
    /// Which frontend.
    pub frontend: usize,
    /// What it was told to want.
    pub desired: Option<Arc<State>>,
    /// As it stands.
    pub status: FrontendStatus,
    /// When each listing under way was asked for.
    pub(crate) asked: BTreeMap<u64, u64>,
    /// When the listing that counts was asked for.
    pub listed: u64,
    /// When the last answer for each router came.
    pub(crate) answered: BTreeMap<RouterId, u64>,
    /// The last position at which each router was said to be as wanted.
    pub(crate) applied: BTreeMap<RouterId, Position>,
    wakes: u64,
}

/// What an agent asks of a frontend.
#[derive(Debug, Clone)]
pub enum Ask {
    /// A listing.
    List(u64),
    /// A patch.
    Apply(RouterId, Revision, Patch),
    /// Thresholds.
    Thresholds(Name, Values),
}

/// How a call of a frontend goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// It does not.
    None,
    /// It never arrives.
    Lost,
    /// It is answered with 5xx.
    Failed,
    /// It is done, and the answer is lost.
    AnswerLost,
    /// Its caller gives up, then it is done.
    Late,
    /// It is acknowledged and not done.
    Ignored,
}

const FRONTEND_TIMEOUT: u64 = 5 * SECOND;

impl World {
    /// Begins the loops of an agent that starts.
    pub fn start_loops(&mut self, i: usize) {
        let agent = &self.agents[i];
        let loops: Vec<Loop> = self.owned[i]
            .iter()
            .map(|frontend| {
                let id = format!("http://127.0.0.1:{}", 8_000 + frontend);
                let settings = Settings {
                    agent: agent.id.clone(),
                    frontend: FrontendId(crate::world::name(&id)),
                    group: agent.group.clone(),
                    mode: Mode::Enforce,
                    poll_interval: Duration::from_secs(1),
                };
                let memory = agent.disk.memory.load(*frontend);
                let machine = FrontendLoop::new(settings, memory);
                Loop {
                    status: machine.status(),
                    machine,
                    frontend: *frontend,
                    desired: None,
                    asked: BTreeMap::new(),
                    listed: 0,
                    answered: BTreeMap::new(),
                    applied: BTreeMap::new(),
                    wakes: 0,
                }
            })
            .collect();
        self.agents[i].loops = loops;
        self.desire(i);
    }

    /// The loops are told what is wanted.
    pub fn desire(&mut self, i: usize) {
        let state = self.agents[i].followed.state.clone();
        for at in 0..self.agents[i].loops.len() {
            self.agents[i].loops[at].desired.clone_from(&state);
            self.loop_step(i, at, Input::Desired(state.clone()), None);
        }
    }

    /// A loop's wake-up.
    pub fn loop_due(&mut self, i: usize, at: usize, wake: u64) {
        if self.agents[i]
            .loops
            .get(at)
            .is_some_and(|it| it.wakes == wake)
        {
            self.loop_step(i, at, Input::Tick, None);
        }
    }

    fn loop_step(&mut self, i: usize, at: usize, input: Input, listing: Option<(u64, &Listing)>) {
        let node = Node::Agent(i);
        let elapsed = self.now.saturating_sub(self.agents[i].process.started);
        let now = Now {
            wall: self.wall(node),
            elapsed: Duration::from_micros(elapsed),
            draw: self.rng.unit(),
        };
        let (world_now, started) = (self.now, self.agents[i].process.started);
        let it = &mut self.agents[i].loops[at];
        let outputs = it.machine.step(now, input);
        let wake = it.machine.wake_at();
        let status = it.machine.status();
        it.wakes += 1;
        let wakes = it.wakes;
        let frontend = it.frontend;
        let mut before = std::mem::replace(&mut it.status, status);
        before.listed_at = it.status.listed_at;
        let news = before != it.status;
        if let Some((asked, listing)) = listing {
            self.check_listing(i, at, asked, listing, &before);
        }
        for output in outputs {
            self.carry_out(i, at, frontend, output);
        }
        if wake < Duration::MAX {
            let due = started.saturating_add(micros(wake)).max(world_now + 1);
            self.timer(node, due - world_now, Timer::Loop(at, wakes));
        }
        if news {
            self.report_soon(i);
        }
    }

    fn carry_out(&mut self, i: usize, at: usize, frontend: usize, output: Output) {
        let now = self.now;
        let unkept = self.mutation == Some(Mutation::MemoryNotKept);
        let memory = &mut self.agents[i].disk.memory;
        match output {
            Output::Remember { .. } | Output::RememberThresholds { .. } if unkept => {}
            Output::Remember {
                router,
                memory: kept,
            } => {
                memory.keep(now, frontend, Change::Router(router, Some(kept)));
            }
            Output::Forget { router } => memory.keep(now, frontend, Change::Router(router, None)),
            Output::RememberThresholds {
                model,
                memory: kept,
            } => {
                memory.keep(now, frontend, Change::Thresholds(model, kept));
            }
            Output::List { number } => {
                self.agents[i].loops[at].asked.insert(number, now);
                self.ask(i, at, Ask::List(number));
            }
            Output::Apply {
                router,
                expected,
                patch,
            } => {
                self.check_patch(i, at, router, &patch);
                self.sent += 1;
                self.ask(i, at, Ask::Apply(router, expected, patch));
            }
            Output::SetThresholds { model, values } => {
                self.sent += 1;
                self.ask(i, at, Ask::Thresholds(model, values));
            }
        }
    }

    fn ask(&mut self, i: usize, at: usize, ask: Ask) {
        let changes = !matches!(ask, Ask::List(_));
        let trouble = if self.faulty(|faults| faults.frontend_calls) {
            match self.rng.range(0, 4) {
                0 => Trouble::Lost,
                1 => Trouble::Failed,
                2 => Trouble::AnswerLost,
                3 if changes => Trouble::Late,
                4 if changes => Trouble::Ignored,
                _ => Trouble::Failed,
            }
        } else {
            Trouble::None
        };
        let delay = match trouble {
            Trouble::Lost => {
                self.marks.hit("frontend call lost");
                let why = Err(TargetError::transient("timed out"));
                return self.frontend_answers(i, at, &ask, why, FRONTEND_TIMEOUT);
            }
            Trouble::Late => {
                let why = Err(TargetError::transient("timed out"));
                self.frontend_answers(i, at, &ask, why, FRONTEND_TIMEOUT);
                FRONTEND_TIMEOUT + self.rng.range(1, 8 * SECOND)
            }
            Trouble::None | Trouble::Failed | Trouble::AnswerLost | Trouble::Ignored => {
                if self.faults.frontend_calls > 0 && self.rng.permille(60) {
                    self.marks.hit("frontend is slow");
                    self.rng.range(300 * MS, 4 * SECOND)
                } else {
                    self.latency()
                }
            }
        };
        let epoch = self.agents[i].process.epoch;
        let process = self.frontends[self.agents[i].loops[at].frontend].process;
        self.at(
            delay,
            Event::FrontendArrive {
                agent: i,
                epoch,
                at,
                process,
                ask: Box::new(ask),
                trouble,
            },
        );
    }

    /// A call is at a frontend.
    pub fn frontend_arrived(
        &mut self,
        (i, epoch, at): (usize, u64, usize),
        process: u64,
        ask: &Ask,
        trouble: Trouble,
    ) {
        let now = self.now;
        let Some(frontend) = self.agents[i].loops.get(at).map(|it| it.frontend) else {
            return;
        };
        let current = self.agents[i].process.epoch == epoch;
        let front = &mut self.frontends[frontend];
        // SUBTLE: thresholds have no revision: what reached a new process before its first listing would be taken for what it
        // started with, and nobody could tell. Only something between agent and frontend that keeps calls could do that.
        if front.down_until > now || front.process != process {
            self.marks.hit("frontend does not answer");
            let why = Err(TargetError::transient("connection refused, or reset"));
            if current && trouble != Trouble::Late {
                self.frontend_answers(i, at, ask, why, MS);
            }
            return;
        }
        if trouble == Trouble::Failed {
            let why = Err(TargetError::transient("status 503"));
            if current {
                self.frontend_answers(i, at, ask, why, MS);
            }
            return;
        }
        let changes = !matches!(ask, Ask::List(_));
        if trouble == Trouble::Ignored && changes {
            self.marks.hit("frontend acknowledges and ignores");
            front.fake.faults.push_back(Fault::Ignored);
        }
        let answer = front.serve(ask, now);
        front.fake.faults.clear();
        if let (Trouble::Late | Trouble::AnswerLost, Ask::Apply(router, ..)) = (trouble, ask) {
            front.foreign.insert(*router, now);
        }
        if !current && let Ask::Apply(router, ..) = ask {
            front.foreign.insert(*router, now);
        }
        match trouble {
            Trouble::Late => self.marks.hit("frontend change lands late"),
            Trouble::AnswerLost => {
                self.marks.hit("frontend answer lost");
                if current {
                    let why = Err(TargetError::transient("timed out"));
                    self.frontend_answers(i, at, ask, why, FRONTEND_TIMEOUT);
                }
            }
            Trouble::None | Trouble::Ignored => {
                if current {
                    let delay = self.latency();
                    self.frontend_answers(i, at, ask, answer, delay);
                }
            }
            Trouble::Lost | Trouble::Failed => {}
        }
    }

    fn frontend_answers(
        &mut self,
        i: usize,
        at: usize,
        ask: &Ask,
        answer: Result<Served, TargetError>,
        delay: u64,
    ) {
        let epoch = self.agents[i].process.epoch;
        self.at(
            delay,
            Event::FrontendAnswer {
                agent: i,
                epoch,
                at,
                ask: Box::new(ask.clone()),
                answer: Box::new(answer),
            },
        );
    }

    /// A frontend's answer, or the lack of one, is at the agent.
    pub fn frontend_answered(
        &mut self,
        i: usize,
        at: usize,
        ask: Ask,
        answer: Result<Served, TargetError>,
    ) {
        let now = self.now;
        match (ask, answer) {
            (Ask::List(number), answer) => {
                let it = &mut self.agents[i].loops[at];
                let asked = it.asked.remove(&number).unwrap_or(0);
                let outcome = answer.and_then(|served| match served {
                    Served::Listing(listing) => Ok(listing),
                    Served::Applied(_) | Served::Set => Err(TargetError::transient("nonsense")),
                });
                let listing = outcome.as_ref().ok().cloned();
                if listing.is_some() {
                    it.listed = it.listed.max(asked);
                }
                let number = if self.mutation == Some(Mutation::OldListingsCount) {
                    u64::MAX
                } else {
                    number
                };
                let input = Input::Listed { number, outcome };
                self.loop_step(
                    i,
                    at,
                    input,
                    listing.as_ref().map(|listing| (asked, listing)),
                );
            }
            (Ask::Apply(router, ..), answer) => {
                let outcome = answer.and_then(|served| match served {
                    Served::Applied(applied) => Ok(applied),
                    Served::Listing(_) | Served::Set => Err(TargetError::transient("nonsense")),
                });
                let mark = match &outcome {
                    Ok(_) => "patch applied",
                    Err(TargetError::Conflict) => "patch conflict",
                    Err(TargetError::Refused { .. } | TargetError::Unsupported(_)) => {
                        "patch refused"
                    }
                    Err(TargetError::Gone) => "router gone",
                    Err(TargetError::Transient { .. }) => "frontend call lost",
                };
                self.marks.hit(mark);
                self.agents[i].loops[at].answered.insert(router, now);
                self.loop_step(i, at, Input::Answered { router, outcome }, None);
            }
            (Ask::Thresholds(model, _), answer) => {
                let outcome = answer.map(drop);
                if outcome.is_ok() {
                    self.marks.hit("thresholds set");
                }
                self.loop_step(i, at, Input::ThresholdsAnswered { model, outcome }, None);
            }
        }
    }
}

/// What a frontend answered.
#[derive(Debug, Clone)]
pub enum Served {
    /// To a listing.
    Listing(Listing),
    /// To a patch.
    Applied(Applied),
    /// To thresholds.
    Set,
}

impl Frontend {
    fn serve(&mut self, ask: &Ask, now: u64) -> Result<Served, TargetError> {
        match ask {
            Ask::List(_) => {
                let mut listing = self.fake.list()?;
                if let Some((id, _)) = self.hidden.filter(|(_, until)| *until > now) {
                    listing.routers.remove(&id);
                }
                Ok(Served::Listing(listing))
            }
            Ask::Apply(router, expected, patch) => self
                .fake
                .apply(*router, *expected, patch)
                .map(Served::Applied),
            Ask::Thresholds(model, values) => self
                .fake
                .set_thresholds(model, values)
                .map(|()| Served::Set),
        }
    }

    /// Its process starts: new routers at revision 0, thresholds as at startup.
    pub fn start(&mut self, now: u64, mut id: impl FnMut() -> RouterId) {
        self.process += 1;
        self.fake.routers.clear();
        for router in self.serves.clone() {
            let id = id();
            self.fake.routers.insert(id, router);
            self.made.insert(id, now);
        }
        self.fake.thresholds = self.startup.clone();
    }
}

/// Dynamo's parameters with their defaults.
pub const PARAMETERS: [(&str, f64); 8] = [
    ("overlap_score_credit", 1.0),
    ("overlap_score_credit_decay", 0.0),
    ("prefill_load_scale", 1.0),
    ("decode_active_request_weight", 0.0),
    ("host_cache_hit_weight", 0.75),
    ("disk_cache_hit_weight", 0.25),
    ("shared_cache_multiplier", 0.0),
    ("router_temperature", 0.0),
];

/// Names of thresholds.
pub const THRESHOLDS: [&str; 3] = [
    "active_decode_blocks_threshold",
    "active_prefill_tokens_threshold",
    "active_prefill_tokens_threshold_frac",
];

/// A router at its start.
#[must_use]
pub fn router(key: RouterKey, plain: bool, cold: bool) -> FakeRouter {
    let startup = PARAMETERS
        .iter()
        .map(|(name, value)| {
            let cache = name.contains("cache") || *name == "overlap_score_credit";
            let value = if cold && cache { 0.0 } else { *value };
            (crate::world::parameter(name), ParameterValue::number(value))
        })
        .collect();
    let mut router = FakeRouter::new(key, startup);
    router.configurable = !plain;
    if cold {
        router.refuses = [
            "overlap_score_credit",
            "host_cache_hit_weight",
            "disk_cache_hit_weight",
            "shared_cache_multiplier",
        ]
        .map(crate::world::parameter)
        .to_vec();
    }
    router
}
