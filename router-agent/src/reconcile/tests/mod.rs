//! The loop against a frontend in memory, driven step by step with made-up time.

mod property;
mod routers;
mod thresholds;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemas::event::{Action, Actor, Event, PolicyChange, Record};
use schemas::state::{Reading, State};
use schemas::status::{RouterStatus, ThresholdStatus};
use schemas::{
    CommandId, Endpoint, Hash, Name, Overlay, ParameterName, ParameterValue, PolicyKey, PolicyKind,
    Position, Revision, RouterId, RouterKey, Scope, Timestamp, WorkerType,
};
use uuid::Uuid;

use super::course::Now;
use super::{FrontendLoop, Input, Mode, Output, Settings};
use crate::memory::FrontendMemory;
use crate::target::{Thresholds, Values};
use crate::testing::{FakeFrontend, FakeRouter};

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) fn parameter(text: &str) -> ParameterName {
    ParameterName::new(text).unwrap()
}

pub(crate) fn values(pairs: &[(&str, f64)]) -> Values {
    let pair = |(name, value): &(&str, f64)| (parameter(name), ParameterValue::number(*value));
    pairs.iter().map(pair).collect()
}

pub(crate) fn router_key(model: &str) -> RouterKey {
    RouterKey {
        model: name(model),
        worker_type: WorkerType::Aggregated,
        endpoint: "dynamo/backend/generate".parse::<Endpoint>().unwrap(),
    }
}

pub(crate) fn startup() -> Values {
    values(&[("weight", 1.0), ("temperature", 0.0), ("credit", 0.75)])
}

const DECODE: &str = "active_decode_blocks_threshold";
const TOKENS: &str = "active_prefill_tokens_threshold";
const FRACTION: &str = "active_prefill_tokens_threshold_frac";

pub(crate) fn thresholds_off() -> Thresholds {
    [DECODE, TOKENS, FRACTION]
        .into_iter()
        .map(|name| (parameter(name), None))
        .collect()
}

pub(crate) fn id(number: u128) -> RouterId {
    RouterId(Uuid::from_u128(number))
}

/// A frontend with one router of model `m`.
pub(crate) fn frontend() -> FakeFrontend {
    FakeFrontend {
        routers: BTreeMap::from([(id(1), FakeRouter::new(router_key("m"), startup()))]),
        thresholds: BTreeMap::from([(name("m"), thresholds_off())]),
        ..FakeFrontend::default()
    }
}

/// The record that sets one policy's whole overlay next.
pub(crate) fn record(
    state: &State,
    kind: PolicyKind,
    scope: &Scope,
    overlay: Overlay,
    command: u128,
) -> Record {
    let key = PolicyKey {
        kind,
        scope: scope.clone(),
    };
    let (revision, decided_on, previous_hash) = (state.policies.get(&key))
        .map_or((Revision::ZERO, Position::START, Hash::ZERO), |document| {
            (document.revision, document.position, document.hash)
        });
    Record {
        command_id: CommandId(Uuid::from_u128(command)),
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
                scope: scope.clone(),
                action: Action::Reset,
                revision: revision.next(),
                decided_on,
                previous_hash,
                overlay,
            }],
        },
    }
}

struct Bench {
    frontend: FakeFrontend,
    state: State,
    agent: FrontendLoop,
    elapsed: Duration,
    settings: Settings,
    memory: FrontendMemory,
}

impl Bench {
    fn new(frontend: FakeFrontend) -> Bench {
        let settings = Settings {
            agent: "agent-b".parse().unwrap(),
            frontend: "http://f".parse().unwrap(),
            group: None,
            mode: Mode::Enforce,
            poll_interval: Duration::from_secs(1),
        };
        let agent = FrontendLoop::new(settings.clone(), FrontendMemory::default());
        let mut bench = Bench {
            frontend,
            state: State::default(),
            agent,
            elapsed: Duration::ZERO,
            settings,
            memory: FrontendMemory::default(),
        };
        bench.desire();
        bench
    }

    fn now(&self) -> Now {
        self.at(self.elapsed)
    }

    fn at(&self, elapsed: Duration) -> Now {
        Now {
            wall: Timestamp::from_unix_ms(1_000_000),
            elapsed,
            draw: 0.5,
        }
    }

    /// Feeds an input in and carries out all that follows, until nothing is due at this time.
    fn feed(&mut self, input: Input) {
        let mut inputs = std::collections::VecDeque::from([input]);
        let mut steps = 0;
        while let Some(input) = inputs.pop_front() {
            steps += 1;
            assert!(steps < 200, "the loop does not come to rest");
            for output in self.agent.step(self.now(), input) {
                self.carry_out(output, &mut inputs);
            }
            if inputs.is_empty() && self.agent.wake_at() <= self.elapsed {
                inputs.push_back(Input::Tick);
            }
        }
    }

    fn carry_out(&mut self, output: Output, inputs: &mut std::collections::VecDeque<Input>) {
        match output {
            Output::List { number } => inputs.push_back(Input::Listed {
                number,
                outcome: self.frontend.list(),
            }),
            Output::Remember { router, memory } => {
                self.memory.routers.insert(router, *memory);
            }
            Output::Forget { router } => {
                self.memory.routers.remove(&router);
            }
            Output::RememberThresholds { model, memory } => {
                self.memory.thresholds.insert(model, *memory);
            }
            Output::Apply {
                router,
                expected,
                patch,
            } => inputs.push_back(Input::Answered {
                router,
                outcome: self.frontend.apply(router, expected, &patch),
            }),
            Output::SetThresholds { model, values } => {
                inputs.push_back(Input::ThresholdsAnswered {
                    outcome: self.frontend.set_thresholds(&model, &values),
                    model,
                })
            }
        }
    }

    /// Lets time pass, stopping at everything that is due.
    fn pass(&mut self, time: Duration) {
        let end = self.elapsed + time;
        while self.agent.wake_at() <= end {
            self.elapsed = self.agent.wake_at().max(self.elapsed);
            self.feed(Input::Tick);
        }
        self.elapsed = end;
    }

    fn polls(&mut self, count: u32) {
        self.pass(Duration::from_secs(1) * count);
    }

    fn change(&mut self, kind: PolicyKind, scope: Scope, overlay: Overlay) {
        let position = Position(self.state.position.0 + 3);
        let command = u128::from(position.0);
        let record = record(&self.state, kind, &scope, overlay, command);
        let (subject, bytes) = (record.subject(), record.to_bytes());
        self.state
            .evolve(position, &subject, &bytes, &Reading::Known(record));
        self.desire();
    }

    fn desire(&mut self) {
        let state = Arc::new(self.state.clone());
        self.feed(Input::Desired(Some(state)));
    }

    fn set(&mut self, pairs: &[(&str, f64)]) {
        let scope = Scope::default();
        self.change(PolicyKind::WorkerSelection, scope, values(pairs));
    }

    fn set_thresholds(&mut self, overlay: Overlay) {
        self.change(PolicyKind::BusyThreshold, Scope::default(), overlay);
    }

    /// The agent dies without a word and starts again with what it had kept.
    fn restart_agent(&mut self) {
        self.agent = FrontendLoop::new(self.settings.clone(), self.memory.clone());
        self.desire();
    }

    fn router(&self) -> RouterStatus {
        self.agent.status().routers.first().cloned().unwrap()
    }

    fn thresholds(&self) -> ThresholdStatus {
        self.agent.status().thresholds.first().cloned().unwrap()
    }

    fn live(&mut self) -> &mut FakeRouter {
        self.frontend.routers.values_mut().next().unwrap()
    }

    fn parameters(&mut self) -> Values {
        self.live().parameters()
    }

    fn limits(&mut self) -> &mut Thresholds {
        self.frontend.thresholds.get_mut(&name("m")).unwrap()
    }
}
