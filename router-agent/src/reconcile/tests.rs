//! The loop against a frontend in memory, driven step by step with made-up time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use schemas::event::{Action, Actor, Event, PolicyChange, Record};
use schemas::state::{Reading, State};
use schemas::status::{ApplyState, Capability, RouterStatus, ThresholdStatus};
use schemas::{
    CommandId, Endpoint, Hash, Name, Overlay, ParameterName, ParameterValue, PolicyKey, PolicyKind,
    Position, Revision, RouterId, RouterKey, Scope, Timestamp, WorkerType,
};
use uuid::Uuid;

use super::course::Now;
use super::{FrontendLoop, Input, Mode, Output, Settings};
use crate::memory::FrontendMemory;
use crate::target::{TargetError, Thresholds, Values};
use crate::testing::{FakeFrontend, FakeRouter, Fault};

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
        Now {
            wall: Timestamp::from_unix_ms(1_000_000),
            elapsed: self.elapsed,
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

#[test]
fn a_policy_is_applied_and_only_said_to_be_when_listed() {
    let mut bench = Bench::new(frontend());
    assert_eq!(bench.router().state, ApplyState::Applied);
    bench.set(&[("temperature", 0.7)]);
    assert_eq!(
        bench.parameters(),
        values(&[("weight", 1.0), ("temperature", 0.7), ("credit", 0.75)])
    );
    let status = bench.router();
    assert_eq!(
        (status.state, status.position),
        (ApplyState::Applied, Position(3))
    );
    assert_eq!(status.local_revision, Some(Revision(1)));
    bench.set(&[("weight", 2.0)]);
    assert_eq!(
        bench.parameters(),
        values(&[("weight", 2.0), ("temperature", 0.0), ("credit", 0.75)])
    );
    bench.set(&[]);
    assert_eq!(bench.parameters(), startup());
    let asked = bench.frontend.asked;
    bench.polls(60);
    assert_eq!(
        bench.frontend.asked, asked,
        "a converged router is left alone"
    );
    assert_eq!(bench.router().drifts, 0);
}

#[test]
fn a_change_that_concerns_others_moves_the_position_without_a_patch() {
    let mut bench = Bench::new(frontend());
    let scope = Scope {
        model: Some(name("other")),
        ..Scope::default()
    };
    bench.change(
        PolicyKind::WorkerSelection,
        scope,
        values(&[("weight", 9.0)]),
    );
    assert_eq!(bench.frontend.asked, 0);
    assert_eq!(
        (bench.router().state, bench.router().position),
        (ApplyState::Applied, Position(3))
    );
}

#[test]
fn a_recreated_router_is_brought_up_within_one_poll() {
    let mut bench = Bench::new(frontend());
    bench.set(&[("temperature", 0.7)]);
    let fresh = FakeRouter::new(
        router_key("m"),
        values(&[("weight", 5.0), ("temperature", 0.1), ("credit", 0.75)]),
    );
    bench.frontend.routers = BTreeMap::from([(id(2), fresh)]);
    bench.polls(1);
    assert_eq!(bench.router().router_id, id(2));
    assert_eq!(
        bench.parameters(),
        values(&[("weight", 5.0), ("temperature", 0.7), ("credit", 0.75)])
    );
    bench.set(&[]);
    assert_eq!(
        bench.parameters().get(&parameter("temperature")),
        Some(&ParameterValue::number(0.1))
    );
}

#[test]
fn drift_is_put_back_and_counted_also_where_no_policy_names_the_parameter() {
    let mut bench = Bench::new(frontend());
    bench.set(&[("temperature", 0.7)]);
    for (count, (name, value)) in [("temperature", 3.0), ("weight", 7.0)]
        .into_iter()
        .enumerate()
    {
        let router = bench.live();
        router
            .overlay
            .insert(parameter(name), ParameterValue::number(value));
        router.revision = router.revision.next();
        bench.polls(1);
        assert_eq!(
            bench.parameters(),
            values(&[("weight", 1.0), ("temperature", 0.7), ("credit", 0.75)])
        );
        assert_eq!(bench.router().drifts, count as u64 + 1);
        assert_eq!(bench.router().state, ApplyState::Applied);
    }
}

#[test]
fn an_observer_changes_nothing_and_says_what_differs() {
    let mut bench = Bench::new(frontend());
    bench.settings.mode = Mode::Observe;
    bench.restart_agent();
    bench.set(&[("temperature", 0.7)]);
    bench.set_thresholds(values(&[(DECODE, 0.5)]));
    bench.polls(5);
    assert_eq!(bench.frontend.asked, 0);
    let status = bench.router();
    assert_eq!(status.state, ApplyState::Drifted);
    assert_eq!(
        status.error.as_deref(),
        Some("on revision 0: set temperature to 0.7 (lists 0.0)")
    );
    assert_eq!(bench.thresholds().state, ApplyState::Drifted);
}

#[test]
fn a_refusal_is_asked_once_until_something_changes() {
    let mut bench = Bench::new(frontend());
    bench.live().refuses = vec![parameter("credit")];
    bench.set(&[("credit", 1.0)]);
    bench.polls(600);
    assert_eq!(bench.frontend.asked, 1);
    let status = bench.router();
    assert_eq!(
        (status.state, status.position),
        (ApplyState::Refused, Position(3))
    );
    assert_eq!(
        status.error.as_deref(),
        Some("invalid policy parameters: replacement changes routing requirements")
    );
    bench.restart_agent();
    bench.polls(5);
    assert_eq!(bench.frontend.asked, 1, "a restarted agent remembers");
    assert_eq!(bench.router().state, ApplyState::Refused);
    // Another router's policy moves the log's position: the verdict holds at the new position, without a new attempt.
    let scope = Scope {
        model: Some(name("other")),
        ..Scope::default()
    };
    bench.change(PolicyKind::WorkerSelection, scope, Overlay::new());
    assert_eq!(
        (bench.frontend.asked, bench.router().position),
        (1, Position(6))
    );
    bench.set(&[("credit", 2.0)]);
    assert_eq!(bench.frontend.asked, 2, "the policy changed");
    bench.live().revision = Revision(4);
    bench.polls(10);
    assert_eq!(bench.frontend.asked, 3, "the router's revision changed");
    bench.set(&[("temperature", 0.3)]);
    assert_eq!(bench.router().state, ApplyState::Applied);
}

#[test]
fn a_lost_race_is_planned_again_at_once_but_not_for_ever() {
    let mut bench = Bench::new(frontend());
    bench
        .frontend
        .faults
        .extend(vec![Fault::Error(TargetError::Conflict); 3]);
    bench.set(&[("temperature", 0.7)]);
    assert_eq!(bench.router().state, ApplyState::Applied);
    assert_eq!(bench.frontend.asked, 4);
    bench
        .frontend
        .faults
        .extend(vec![Fault::Error(TargetError::Conflict); 100]);
    bench.set(&[("temperature", 0.8)]);
    assert_eq!(bench.router().state, ApplyState::Pending);
    assert!(bench.frontend.asked <= 12, "asked {}", bench.frontend.asked);
    bench.frontend.faults.clear();
    bench.polls(10);
    assert_eq!(bench.router().state, ApplyState::Applied);
}

#[test]
fn failures_back_off_and_end_when_the_frontend_recovers() {
    let mut bench = Bench::new(frontend());
    let lost = Fault::Error(TargetError::transient("503"));
    bench.frontend.faults.extend(vec![lost; 1_000]);
    bench.set(&[("temperature", 0.7)]);
    assert_eq!(bench.router().state, ApplyState::Pending);
    assert_eq!(bench.router().error.as_deref(), Some("503"));
    bench.polls(60);
    let asked = bench.frontend.asked;
    assert!((8..=20).contains(&asked), "asked {asked} times in a minute");
    bench.frontend.faults.clear();
    bench.polls(10);
    assert_eq!(bench.router().state, ApplyState::Applied);
    assert_eq!(bench.router().error, None);
    assert_eq!(bench.frontend.asked, asked + 1, "applied once");
}

#[test]
fn a_change_whose_answer_was_lost_is_no_drift_also_after_a_crash() {
    for crash in [false, true] {
        let mut bench = Bench::new(frontend());
        bench.frontend.faults.push_back(Fault::LostAnswer);
        bench.set(&[("temperature", 0.7)]);
        if crash {
            bench.restart_agent();
        }
        bench.polls(3);
        assert_eq!(
            (bench.router().state, bench.router().drifts),
            (ApplyState::Applied, 0),
            "crash {crash}"
        );
        assert_eq!(bench.frontend.asked, 1, "crash {crash}");
    }
}

#[test]
fn an_acknowledged_change_that_is_not_listed_is_pending_and_named_after_a_while() {
    let mut bench = Bench::new(frontend());
    bench.frontend.faults.extend(vec![Fault::Ignored; 1_000]);
    bench.set(&[("temperature", 0.7)]);
    assert_eq!(
        (bench.router().state, bench.router().error),
        (ApplyState::Pending, None)
    );
    bench.polls(30);
    assert_eq!(bench.router().state, ApplyState::Pending);
    assert!(
        bench
            .router()
            .error
            .is_some_and(|words| words.contains("still shows other values"))
    );
    assert!(bench.frontend.asked < 15, "asked {}", bench.frontend.asked);
    assert_eq!(bench.router().drifts, 0);
    bench.frontend.faults.clear();
    bench.polls(11);
    assert_eq!(
        (bench.router().state, bench.router().error),
        (ApplyState::Applied, None)
    );
}

#[test]
fn a_frontend_that_cannot_be_listed_keeps_its_last_known_routers() {
    let mut bench = Bench::new(frontend());
    bench.set(&[("temperature", 0.7)]);
    bench.frontend.down = Some(TargetError::transient("connection refused"));
    bench.polls(3);
    let status = bench.agent.status();
    assert!(!status.reachable);
    assert_eq!(status.error.as_deref(), Some("connection refused"));
    assert_eq!(status.routers.len(), 1);
    bench.frontend = frontend();
    bench.polls(1);
    assert!(bench.agent.status().reachable);
    assert_eq!(bench.router().state, ApplyState::Applied);
}

#[test]
fn no_router_yet_is_known_and_no_error() {
    let mut bench = Bench::new(FakeFrontend::default());
    bench.set(&[("temperature", 0.7)]);
    let status = bench.agent.status();
    assert!(status.reachable && status.error.is_none() && status.routers.is_empty());
    bench.frontend = frontend();
    bench.polls(1);
    assert_eq!(bench.router().state, ApplyState::Applied);
}

#[test]
fn a_router_without_configuration_supports_only_an_empty_policy() {
    let mut bench = Bench::new(frontend());
    bench.live().configurable = false;
    bench.polls(1);
    assert_eq!(bench.router().state, ApplyState::Applied);
    bench.set(&[("temperature", 0.7)]);
    assert_eq!(
        (bench.router().state, bench.frontend.asked),
        (ApplyState::Unsupported, 0)
    );
}

#[test]
fn without_any_policy_known_routers_are_left_alone() {
    let mut bench = Bench::new(frontend());
    bench.live().revision = Revision(2);
    bench.live().overlay = values(&[("weight", 4.0)]);
    bench.agent = FrontendLoop::new(bench.settings.clone(), FrontendMemory::default());
    bench.polls(5);
    assert_eq!(
        (bench.frontend.asked, bench.router().state),
        (0, ApplyState::Pending)
    );
    bench.desire();
    assert_eq!(
        (bench.parameters(), bench.router().state),
        (startup(), ApplyState::Applied)
    );
    assert_eq!(bench.frontend.asked, 1);
}

#[test]
fn a_stopped_policy_is_enforced_and_named() {
    let mut bench = Bench::new(frontend());
    bench.set(&[("temperature", 0.7)]);
    let key = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    };
    let reading = Reading::Unknown {
        command_id: None,
        why: "type v9 is not known".to_owned(),
        policies: None,
    };
    bench
        .state
        .evolve(Position(9), &key.subject(), b"{}", &reading);
    bench.desire();
    let status = bench.router();
    assert_eq!(
        (status.state, status.position),
        (ApplyState::Stopped, Position(9))
    );
    assert_eq!(status.error.as_deref(), Some("type v9 is not known"));
    assert_eq!(
        bench.parameters().get(&parameter("temperature")),
        Some(&ParameterValue::number(0.7))
    );
}

#[test]
fn a_rival_without_a_name_cannot_make_a_storm() {
    let mut bench = Bench::new(frontend());
    bench.set(&[("temperature", 0.7)]);
    for _ in 0..600 {
        let router = bench.live();
        if router.overlay.get(&parameter("temperature")) == Some(&ParameterValue::number(0.7)) {
            router
                .overlay
                .insert(parameter("temperature"), ParameterValue::number(9.0));
            router.revision = router.revision.next();
        }
        bench.polls(1);
    }
    let asked = bench.frontend.asked;
    assert!(
        (10..=60).contains(&asked),
        "asked {asked} times in ten minutes"
    );
    assert_eq!(bench.router().state, ApplyState::Drifted);
    assert!(bench.agent.status().rival.is_some());
    bench.polls(120);
    assert_eq!(
        bench.router().state,
        ApplyState::Applied,
        "left in peace, the policy wins"
    );
    assert_eq!(bench.agent.status().rival, None);
}

#[test]
fn of_two_agents_the_one_with_the_larger_id_stands_back() {
    for (other, asked) in [("agent-a", 0), ("agent-c", 1)] {
        let mut bench = Bench::new(frontend());
        bench.feed(Input::Rival(Some(other.parse().unwrap())));
        bench.set(&[("temperature", 0.7)]);
        bench.polls(5);
        assert_eq!(bench.frontend.asked, asked, "{other}");
        assert_eq!(bench.agent.status().rival.as_deref(), Some(other));
        bench.feed(Input::Rival(None));
        assert_eq!(bench.router().state, ApplyState::Applied, "{other}");
    }
}

#[test]
fn an_older_frontend_gets_its_thresholds_and_says_what_it_lacks() {
    let mut bench = Bench::new(FakeFrontend {
        legacy: true,
        ..frontend()
    });
    bench.set_thresholds(values(&[(DECODE, 0.5)]));
    let status = bench.agent.status();
    assert_eq!(status.capability, Capability::BusyThresholdOnly);
    assert!(
        status
            .error
            .is_some_and(|words| words.contains("/router_policy"))
    );
    assert_eq!(
        bench.limits()[&parameter(DECODE)],
        Some(ParameterValue::number(0.5))
    );
    bench.frontend.legacy = false;
    bench.polls(1);
    assert_eq!(
        bench.agent.status().capability,
        Capability::RouterPolicy,
        "an upgraded frontend"
    );
}

#[test]
fn thresholds_return_to_what_the_frontend_started_with() {
    // 0 is a value; absent leaves; what was off at startup is put back by the value that nothing passes.
    let mut started = frontend();
    let limits = started.thresholds.get_mut(&name("m")).unwrap();
    limits.insert(parameter(FRACTION), Some(ParameterValue::number(2.0)));
    let mut bench = Bench::new(started);
    let overlays: Vec<Overlay> = vec![
        values(&[(DECODE, 0.0)]),
        values(&[(DECODE, 0.5), (FRACTION, 1.5)]),
        [(parameter(TOKENS), ParameterValue::integer(0))].into(),
        Overlay::new(),
        values(&[(FRACTION, 0.0)]),
        Overlay::new(),
    ];
    let mut touched = std::collections::BTreeSet::new();
    for overlay in overlays {
        bench.set_thresholds(overlay.clone());
        touched.extend(overlay.keys().cloned());
        let status = bench.thresholds();
        assert_eq!(
            (status.state, status.drifts),
            (ApplyState::Applied, 0),
            "{overlay:?}"
        );
        for (name, startup) in [(DECODE, None), (TOKENS, None), (FRACTION, Some(2.0))] {
            let name = parameter(name);
            let listed = bench.limits()[&name].clone();
            let expected = overlay
                .get(&name)
                .cloned()
                .or(startup.map(ParameterValue::number));
            match expected {
                Some(expected) => assert_eq!(listed, Some(expected), "{name} of {overlay:?}"),
                None if touched.contains(&name) => assert_eq!(listed, crate::threshold::off(&name)),
                None => assert_eq!(listed, None),
            }
        }
    }
    let asked = bench.frontend.asked;
    bench.polls(60);
    assert_eq!(bench.frontend.asked, asked);
}

#[test]
fn thresholds_memory_survives_the_agent() {
    let mut bench = Bench::new(frontend());
    bench
        .limits()
        .insert(parameter(DECODE), Some(ParameterValue::number(0.9)));
    bench.memory = FrontendMemory::default();
    bench.restart_agent();
    bench.set_thresholds(values(&[(DECODE, 0.5)]));
    bench.restart_agent();
    bench.set_thresholds(Overlay::new());
    assert_eq!(
        bench.limits()[&parameter(DECODE)],
        Some(ParameterValue::number(0.9))
    );
}

#[test]
fn a_restarted_frontend_is_learnt_anew() {
    let mut bench = Bench::new(frontend());
    bench.set_thresholds(values(&[(DECODE, 0.5)]));
    bench.frontend = frontend();
    bench
        .limits()
        .insert(parameter(DECODE), Some(ParameterValue::number(0.8)));
    let fresh = FakeRouter::new(router_key("m"), startup());
    bench.frontend.routers = BTreeMap::from([(id(7), fresh)]);
    bench.polls(1);
    assert_eq!(
        bench.limits()[&parameter(DECODE)],
        Some(ParameterValue::number(0.5))
    );
    assert_eq!(
        (bench.thresholds().state, bench.thresholds().drifts),
        (ApplyState::Applied, 0)
    );
    bench.set_thresholds(Overlay::new());
    assert_eq!(
        bench.limits()[&parameter(DECODE)],
        Some(ParameterValue::number(0.8))
    );
}

#[test]
fn drifted_and_refused_and_ignored_thresholds_are_handled_as_routers_are() {
    let mut bench = Bench::new(frontend());
    bench.set_thresholds(values(&[(DECODE, 0.5)]));
    bench
        .limits()
        .insert(parameter(TOKENS), Some(ParameterValue::integer(5)));
    bench.polls(1);
    assert_eq!(
        (bench.thresholds().state, bench.thresholds().drifts),
        (ApplyState::Applied, 1)
    );
    assert_eq!(
        bench.limits()[&parameter(TOKENS)],
        Some(ParameterValue::integer(u64::MAX))
    );
    let refusal = TargetError::Refused {
        status: 400,
        words: "out of range".to_owned(),
    };
    let asked = bench.frontend.asked;
    bench.frontend.faults.push_back(Fault::Error(refusal));
    bench.set_thresholds(values(&[(DECODE, 0.6)]));
    bench.polls(100);
    assert_eq!(
        (bench.thresholds().state, bench.frontend.asked),
        (ApplyState::Refused, asked + 1)
    );
    bench
        .frontend
        .faults
        .extend([Fault::LostAnswer, Fault::Ignored, Fault::Ignored]);
    bench.set_thresholds(values(&[(DECODE, 0.7)]));
    bench.polls(1);
    assert_eq!(
        (bench.thresholds().state, bench.thresholds().drifts),
        (ApplyState::Applied, 1)
    );
    bench.set_thresholds(values(&[(DECODE, 0.8)]));
    assert_eq!(bench.thresholds().state, ApplyState::Pending);
    bench.polls(5);
    assert_eq!(
        (bench.thresholds().state, bench.thresholds().drifts),
        (ApplyState::Applied, 1)
    );
    bench.set_thresholds(values(&[("no_such_threshold", 0.8)]));
    assert_eq!(bench.thresholds().state, ApplyState::Unsupported);
}

/// What can happen to an agent and its frontend.
#[derive(Debug, Clone)]
enum Happening {
    Edit(Vec<(usize, u8)>),
    EditThresholds(Vec<(usize, u8)>),
    RestartAgent,
    ForgetAndRestartAgent,
    RestartFrontend,
    Meddle(usize, u8),
    Fault(u8),
    Outage(u8),
    Wait(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    let edit = || proptest::collection::vec((0..3usize, 0..4u8), 0..3);
    prop_oneof![
        4 => edit().prop_map(Happening::Edit),
        2 => edit().prop_map(Happening::EditThresholds),
        1 => Just(Happening::RestartAgent),
        1 => Just(Happening::ForgetAndRestartAgent),
        1 => Just(Happening::RestartFrontend),
        1 => (0..3usize, 0..4u8).prop_map(|(name, value)| Happening::Meddle(name, value)),
        2 => (0..4u8).prop_map(Happening::Fault),
        1 => (0..5u8).prop_map(Happening::Outage),
        2 => (0..3u8).prop_map(Happening::Wait),
    ]
}

fn overlay_of(names: [&str; 3], edit: &[(usize, u8)]) -> Overlay {
    let pairs: Vec<(&str, f64)> = (edit.iter())
        .map(|(name, value)| (names[*name], f64::from(*value) / 4.0))
        .collect();
    values(&pairs)
}

const NAMES: [&str; 3] = ["weight", "temperature", "credit"];

impl Bench {
    fn happen(&mut self, happening: &Happening, number: u128) {
        match happening {
            Happening::Edit(edit) => self.set(
                &(edit.iter())
                    .map(|(name, value)| (NAMES[*name], f64::from(*value)))
                    .collect::<Vec<_>>(),
            ),
            Happening::EditThresholds(edit) => {
                let mut overlay = overlay_of([DECODE, TOKENS, FRACTION], edit);
                if let Some(tokens) = overlay.get_mut(&parameter(TOKENS)) {
                    *tokens = ParameterValue::integer(u64::from(edit[0].1));
                }
                self.set_thresholds(overlay);
            }
            Happening::RestartAgent => self.restart_agent(),
            // Routers' memory can be lost; thresholds' startup values are known to be lost with it.
            Happening::ForgetAndRestartAgent => {
                self.memory.routers.clear();
                self.restart_agent();
            }
            Happening::RestartFrontend => {
                self.frontend.routers =
                    BTreeMap::from([(id(number), FakeRouter::new(router_key("m"), startup()))]);
                self.frontend.thresholds = frontend().thresholds;
            }
            Happening::Meddle(name, value) => {
                let router = self.live();
                let value = ParameterValue::number(f64::from(*value));
                router.overlay.insert(parameter(NAMES[*name]), value);
                router.revision = router.revision.next();
            }
            Happening::Fault(which) => self.frontend.faults.push_back(match which {
                0 => Fault::LostAnswer,
                1 => Fault::Ignored,
                2 => Fault::Error(TargetError::Conflict),
                _ => Fault::Error(TargetError::transient("timed out")),
            }),
            Happening::Outage(seconds) => {
                self.frontend.down = Some(TargetError::transient("connection refused"));
                self.polls(u32::from(*seconds));
                self.frontend.down = None;
            }
            Happening::Wait(seconds) => self.polls(u32::from(*seconds)),
        }
    }

    /// What the frontend should end up with.
    fn expected(&self) -> (Values, Overlay) {
        let wanted = schemas::effective::effective(&self.state, &router_key("m"), None).overlay();
        let mut parameters = startup();
        parameters.extend(wanted);
        let limits = schemas::effective::effective_thresholds(&self.state, &name("m"), None);
        (parameters, limits.overlay())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// 500 random edits, restarts and faults in a row end as wanted, every time.
    #[test]
    fn whatever_happened_the_end_state_is_the_policy(happenings in proptest::collection::vec(happening(), 500)) {
        let mut bench = Bench::new(frontend());
        for (number, happening) in happenings.iter().enumerate() {
            bench.happen(happening, 100 + number as u128);
        }
        bench.frontend.faults.clear();
        // Longer than the longest wait: the window of the bound on putting back.
        bench.polls(130);
        let (parameters, limits) = bench.expected();
        prop_assert_eq!(bench.parameters(), parameters);
        prop_assert_eq!(bench.router().state, ApplyState::Applied);
        prop_assert_eq!(bench.thresholds().state, ApplyState::Applied);
        for (threshold, listed) in bench.limits().clone() {
            match limits.get(&threshold) {
                Some(wanted) => prop_assert_eq!(listed.as_ref(), Some(wanted)),
                None => prop_assert!(crate::threshold::equal(&threshold, listed.as_ref(), None), "{} {:?}", threshold, listed),
            }
        }
        let asked = bench.frontend.asked;
        bench.polls(100);
        prop_assert_eq!(bench.frontend.asked, asked, "a converged router is left alone");
    }
}
