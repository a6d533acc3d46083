//! Routers: applying, refusals, drift, failures, rivals.

use std::collections::BTreeMap;

use schemas::state::Reading;
use schemas::status::{ApplyState, Capability};
use schemas::{Overlay, ParameterValue, PolicyKey, PolicyKind, Position, Revision, Scope};

use super::*;
use crate::target::TargetError;
use crate::testing::Fault;

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
fn what_waits_to_be_tried_again_is_not_sent_once_something_newer_is_wanted() {
    let mut bench = Bench::new(frontend());
    let lost = Fault::Error(TargetError::transient("503"));
    bench.frontend.faults.extend(vec![lost; 1_000]);
    bench.set(&[("temperature", 0.7)]);
    // Long enough that a poll has planned the change again while its next attempt is still some time away.
    while !bench
        .agent
        .owing()
        .any(|course| course.not_before > bench.elapsed)
    {
        let due = bench.agent.wake_at() - bench.elapsed;
        bench.pass(due);
    }
    let due = bench.agent.owing().map(|course| course.not_before).max();
    let mut newer = bench.state.clone();
    let record = record(
        &newer,
        PolicyKind::WorkerSelection,
        &Scope::default(),
        values(&[("temperature", 0.1)]),
        99,
    );
    let (subject, bytes) = (record.subject(), record.to_bytes());
    newer.evolve(Position(9), &subject, &bytes, &Reading::Known(record));
    // The frontend takes its time over the listing that the newer policy asks for.
    let newer = Input::Desired(Some(Arc::new(newer)));
    let mut outputs = bench.agent.step(bench.now(), newer);
    bench.elapsed = due.unwrap();
    outputs.extend(bench.agent.step(bench.now(), Input::Tick));
    assert!(
        matches!(outputs.as_slice(), [Output::List { .. }]),
        "{outputs:?}"
    );
    bench.frontend.faults.clear();
    let mut inputs = std::collections::VecDeque::new();
    for output in outputs {
        bench.carry_out(output, &mut inputs);
    }
    for input in inputs {
        bench.feed(input);
    }
    assert_eq!(
        bench.parameters().get(&parameter("temperature")),
        Some(&ParameterValue::number(0.1))
    );
    assert_eq!(bench.router().position, Position(9));
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

/// An answer that lay there while the agent stood still says what was true when it was asked for.
#[test]
fn what_a_listing_shows_is_as_old_as_the_question() {
    let mut bench = Bench::new(frontend());
    let outputs = (bench.agent).step(bench.at(Duration::from_secs(1)), Input::Tick);
    let [Output::List { number }] = outputs[..] else {
        panic!("{outputs:?}");
    };
    let outcome = bench.frontend.list();
    let answered = bench.at(Duration::from_secs(30));
    let _ = (bench.agent).step(answered, Input::Listed { number, outcome });
    let listed = bench.agent.standing().listed;
    assert_eq!(listed.unwrap().elapsed, Duration::from_secs(1));
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
