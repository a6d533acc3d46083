//! Tables for `effective` and `convergence`.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should panic where it stands"
)]

use std::sync::Arc;

use schemas::convergence::{Heard, Outcome, Patience, convergence};
use schemas::effective::{effective, effective_thresholds};
use schemas::event::Actor;
use schemas::state::{PolicyDocument, State, Stop};
use schemas::status::{
    AgentStatus, ApplyState, Capability, FrontendStatus, LogFollowing, LogState, RouterStatus,
    ThresholdStatus,
};
use schemas::{
    AgentId, CommandId, FrontendId, Hash, Name, PolicyKey, PolicyKind, Position, Revision,
    RouterId, RouterKey, Scope, Timestamp, WorkerType,
};
use serde_json::json;
use uuid::Uuid;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn router() -> RouterKey {
    RouterKey {
        model: name("m"),
        worker_type: WorkerType::Decode,
        endpoint: "n/c/e".parse().unwrap(),
    }
}

fn document(
    kind: PolicyKind,
    scope: serde_json::Value,
    overlay: serde_json::Value,
    at: u64,
) -> PolicyDocument {
    PolicyDocument {
        kind,
        scope: serde_json::from_value(scope).unwrap(),
        revision: Revision(1),
        overlay: serde_json::from_value(overlay).unwrap(),
        position: Position(at),
        hash: Hash::ZERO,
        command_id: CommandId(Uuid::nil()),
        actor: Actor {
            name: name("ada"),
            via: name("loopback"),
        },
        reason: None,
        changed_at: Timestamp::default(),
    }
}

fn state(documents: Vec<PolicyDocument>) -> State {
    State {
        policies: documents.into_iter().map(|d| (d.key(), d)).collect(),
        ..State::default()
    }
}

#[test]
fn the_most_specific_value_of_each_parameter_wins() {
    let selection = PolicyKind::WorkerSelection;
    let state = state(vec![
        document(
            selection,
            json!({}),
            json!({"router_temperature": 0.1, "prefill_load_scale": 9.0}),
            1,
        ),
        document(
            selection,
            json!({"worker_type": "decode"}),
            json!({"router_temperature": 0.2}),
            2,
        ),
        document(
            selection,
            json!({"model": "m"}),
            json!({"router_temperature": 0.3}),
            9,
        ),
        document(
            selection,
            json!({"endpoint": "n/c/e"}),
            json!({"router_temperature": 0.4}),
            4,
        ),
        document(
            selection,
            json!({"group": "canary"}),
            json!({"router_temperature": 0.5}),
            5,
        ),
        document(
            selection,
            json!({"model": "other", "group": "canary"}),
            json!({"router_temperature": 0.6}),
            6,
        ),
        document(
            PolicyKind::BusyThreshold,
            json!({"model": "m"}),
            json!({"active_decode_blocks_threshold": 0.7}),
            7,
        ),
    ]);
    let value = |found: &schemas::effective::Effective, name: &str| {
        found.overlay().get(name).and_then(|v| v.as_f64())
    };

    let plain = effective(&state, &router(), None);
    assert_eq!(value(&plain, "router_temperature"), Some(0.4));
    assert_eq!(value(&plain, "prefill_load_scale"), Some(9.0));
    assert_eq!(
        plain.position,
        Position(9),
        "the newest matching policy, not the most specific one"
    );
    assert_eq!(plain.policies.len(), 4);

    let canary = name("canary");
    assert_eq!(
        value(
            &effective(&state, &router(), Some(&canary)),
            "router_temperature"
        ),
        Some(0.5)
    );
    let thresholds = effective_thresholds(&state, &name("m"), None);
    assert_eq!(
        value(&thresholds, "active_decode_blocks_threshold"),
        Some(0.7)
    );
    assert!(value(&thresholds, "router_temperature").is_none());
    assert!(
        effective_thresholds(&state, &name("M"), None)
            .values
            .is_empty(),
        "names are case-sensitive"
    );
}

#[test]
fn a_stopped_policy_shows_where_it_matches_and_nowhere_else() {
    let mut state = State::default();
    let scope: Scope = serde_json::from_value(json!({"model": "m"})).unwrap();
    let key = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope,
    };
    state.stops.insert(
        key,
        Stop {
            position: Position(3),
            why: "x".to_owned(),
        },
    );
    assert!(effective(&state, &router(), None).stopped.is_some());
    assert!(
        effective(
            &state,
            &RouterKey {
                model: name("other"),
                ..router()
            },
            None
        )
        .stopped
        .is_none()
    );
    assert!(
        effective_thresholds(&state, &name("m"), None)
            .stopped
            .is_none()
    );
}

fn agent(id: &str, at: u64, routers: Vec<RouterStatus>) -> Heard {
    Heard {
        status: AgentStatus {
            agent: AgentId(name(id)),
            group: None,
            version: "0".to_owned(),
            started_at: Timestamp::default(),
            reported_at: Timestamp::default(),
            report: 1,
            interval_ms: 5_000,
            leaving: false,
            log: LogFollowing {
                state: LogState::Following,
                log_id: None,
                position: Position(at),
                error: None,
            },
            frontends: vec![FrontendStatus {
                frontend: FrontendId(name("http://f")),
                capability: Capability::RouterPolicy,
                reachable: true,
                error: None,
                listed_at: Some(Timestamp::default()),
                rival: None,
                routers,
                thresholds: vec![],
            }],
        },
        heard_at: Timestamp::from_unix_ms(100_000),
        contested: false,
    }
}

fn at(state: ApplyState, position: u64) -> RouterStatus {
    RouterStatus {
        router_id: RouterId(Uuid::nil()),
        router: router(),
        local_revision: None,
        parameters: Default::default(),
        state,
        position: Position(position),
        error: None,
        since: Timestamp::default(),
        drifts: 0,
    }
}

const PATIENCE: Patience = Patience {
    stale_after_ms: 15_000,
    gone_after_ms: 60_000,
};

fn outcome(heard: &[Heard], policy: &PolicyKey, now_ms: u64) -> Outcome {
    convergence(
        heard,
        std::slice::from_ref(policy),
        Position(7),
        Timestamp::from_unix_ms(now_ms),
        PATIENCE,
    )
    .outcome
}

#[test]
fn converged_is_only_said_when_every_addressed_router_has_it() {
    use ApplyState::{Applied, Drifted, Pending, Refused, Stopped, Unsupported};
    let policy = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: router().scope(),
    };
    let now = 101_000;
    let cases: Vec<(Vec<Heard>, Outcome)> = vec![
        (vec![], Outcome::NoRouter),
        (vec![agent("a", 7, vec![])], Outcome::NoRouter),
        (
            vec![agent("a", 7, vec![at(Applied, 7)])],
            Outcome::Converged,
        ),
        (
            vec![
                agent("a", 9, vec![at(Applied, 9)]),
                agent("b", 7, vec![at(Applied, 8)]),
            ],
            Outcome::Converged,
        ),
        (vec![agent("a", 7, vec![at(Applied, 6)])], Outcome::Pending),
        (vec![agent("a", 7, vec![at(Refused, 6)])], Outcome::Pending),
        (vec![agent("a", 6, vec![at(Applied, 7)])], Outcome::Pending),
        (vec![agent("a", 6, vec![])], Outcome::Pending),
        (
            vec![agent("a", 7, vec![at(Applied, 7)]), agent("b", 3, vec![])],
            Outcome::Pending,
        ),
        (
            vec![agent("a", 7, vec![at(Refused, 7), at(Applied, 7)])],
            Outcome::Refused,
        ),
        (
            vec![agent("a", 7, vec![at(Unsupported, 7), at(Applied, 7)])],
            Outcome::Refused,
        ),
        (
            vec![agent("a", 7, vec![at(Refused, 7), at(Pending, 7)])],
            Outcome::Pending,
        ),
        (vec![agent("a", 7, vec![at(Drifted, 7)])], Outcome::Pending),
        (vec![agent("a", 7, vec![at(Stopped, 7)])], Outcome::Pending),
    ];
    for (heard, wanted) in cases {
        assert_eq!(outcome(&heard, &policy, now), wanted, "{heard:#?}");
    }
}

#[test]
fn silence_is_never_convergence_and_ends_by_leaving_the_fleet() {
    let policy = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    };
    let heard = [agent("a", 7, vec![at(ApplyState::Applied, 7)])];
    assert_eq!(
        outcome(&heard, &policy, 100_000 + 15_000),
        Outcome::Converged
    );
    assert_eq!(outcome(&heard, &policy, 100_000 + 15_001), Outcome::Pending);
    assert_eq!(
        outcome(&heard, &policy, 100_000 + 60_001),
        Outcome::NoRouter
    );
    assert_eq!(
        outcome(&heard, &policy, 5),
        Outcome::Converged,
        "a clock that went back makes nobody stale"
    );
}

/// An agent stood still for 12 s, and then reported what it had listed before: the frontend may be another by now.
#[test]
fn what_was_listed_too_long_ago_is_not_converged() {
    let policy = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    };
    // (the agent's clock at the report, at the listing, age of the report) -> outcome; the service's clock is another one.
    let cases = [
        ((912_000, Some(900_000), 3_000), Outcome::Converged),
        ((912_000, Some(900_000), 3_001), Outcome::Pending),
        ((915_000, Some(900_000), 0), Outcome::Converged),
        ((915_001, Some(900_000), 0), Outcome::Pending),
        ((900_000, Some(900_000), 15_000), Outcome::Converged),
        ((900_000, Some(u64::MAX), 0), Outcome::Converged),
        ((900_000, Some(0), 0), Outcome::Pending),
        ((900_000, None, 0), Outcome::Pending),
    ];
    for (case, wanted) in cases {
        let (reported_at, listed_at, silent_ms) = case;
        let mut heard = agent("a", 7, vec![at(ApplyState::Applied, 7)]);
        heard.status.reported_at = Timestamp::from_unix_ms(reported_at);
        heard.status.frontends[0].listed_at = listed_at.map(Timestamp::from_unix_ms);
        let now = 100_000 + silent_ms;
        let as_of = Timestamp::from_unix_ms(now);
        let shown = Arc::new(heard.clone()).as_of(as_of, PATIENCE);
        let shown = &shown.status.frontends[0];
        assert_eq!(outcome(&[heard], &policy, now), wanted, "{case:?}");
        assert_eq!(shown.reachable, wanted == Outcome::Converged, "{case:?}");
        assert_eq!(shown.error.is_some(), !shown.reachable, "{case:?}");
    }
    let mut heard = agent("a", 7, vec![at(ApplyState::Applied, 7)]);
    heard.status.reported_at = Timestamp::from_unix_ms(15_001);
    let found = convergence(
        &[heard],
        &[policy],
        Position(7),
        Timestamp::from_unix_ms(100_000),
        PATIENCE,
    );
    assert_eq!(found.missing[0].why, "last listed 15001 ms ago");
    assert_eq!(
        found.missing[0].frontend,
        Some(FrontendId(name("http://f")))
    );
    assert!(found.applied.is_empty());
}

#[test]
fn an_unreachable_or_unlisted_frontend_is_missing_not_converged() {
    let policy = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    };
    let mut away = agent("a", 7, vec![at(ApplyState::Applied, 7)]);
    away.status.frontends[0].reachable = false;
    assert_eq!(outcome(&[away], &policy, 101_000), Outcome::Pending);
    let mut fresh = agent("a", 7, vec![]);
    fresh.status.frontends[0].capability = Capability::Unknown;
    assert_eq!(outcome(&[fresh], &policy, 101_000), Outcome::Pending);
}

#[test]
fn groups_and_kinds_only_wait_for_their_own() {
    let canary_scope = Scope {
        group: Some(name("canary")),
        ..Scope::default()
    };
    let canary = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: canary_scope,
    };
    let mut inside = agent("a", 7, vec![at(ApplyState::Applied, 7)]);
    inside.status.group = Some(name("canary"));
    let behind_outside = agent("b", 1, vec![at(ApplyState::Pending, 1)]);
    assert_eq!(
        outcome(&[inside, behind_outside.clone()], &canary, 101_000),
        Outcome::Converged
    );

    let thresholds = PolicyKey {
        kind: PolicyKind::BusyThreshold,
        scope: Scope {
            model: Some(name("m")),
            ..Scope::default()
        },
    };
    let mut both = agent("a", 7, vec![at(ApplyState::Pending, 7)]);
    both.status.frontends[0].thresholds.push(ThresholdStatus {
        model: name("m"),
        thresholds: Default::default(),
        state: ApplyState::Applied,
        position: Position(7),
        error: None,
        since: Timestamp::default(),
        drifts: 0,
    });
    assert_eq!(outcome(&[both], &thresholds, 101_000), Outcome::Converged);
}

fn thresholds_of(model: &str, state: ApplyState) -> ThresholdStatus {
    ThresholdStatus {
        model: name(model),
        thresholds: Default::default(),
        state,
        position: Position(7),
        error: None,
        since: Timestamp::default(),
        drifts: 0,
    }
}

#[test]
fn regression_a_frontend_that_cannot_take_a_policy_is_not_passed_over() {
    use ApplyState::Applied;
    let selection = |scope: serde_json::Value| PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: serde_json::from_value(scope).unwrap(),
    };
    let thresholds = PolicyKey {
        kind: PolicyKind::BusyThreshold,
        scope: serde_json::from_value(json!({"model": "m"})).unwrap(),
    };
    let new = agent("new", 7, vec![at(Applied, 7)]);
    let with = |capability, models: &[&str]| {
        let mut agent = agent("old", 7, vec![]);
        agent.status.frontends[0].capability = capability;
        agent.status.frontends[0].thresholds = models
            .iter()
            .map(|model| thresholds_of(model, Applied))
            .collect();
        agent
    };
    let old = |models: &[&str]| with(Capability::BusyThresholdOnly, models);
    let mut canary = old(&["m"]);
    canary.status.group = Some(name("canary"));
    let mut away = old(&["m"]);
    away.status.frontends[0].reachable = false;
    let closed = with(Capability::None, &[]);
    let mut closed_canary = closed.clone();
    closed_canary.status.group = Some(name("canary"));
    let canary_only = json!({"model": "m", "group": "canary"});
    let cases = [
        (
            "names the model",
            old(&["x", "m"]),
            selection(json!({"model": "m"})),
            Outcome::Refused,
        ),
        (
            "any model",
            old(&["x"]),
            selection(json!({})),
            Outcome::Refused,
        ),
        (
            "roles are not known",
            old(&["m"]),
            selection(json!({"model": "m", "worker_type": "decode", "endpoint": "n/c/e"})),
            Outcome::Refused,
        ),
        (
            "another model",
            old(&["x"]),
            selection(json!({"model": "m"})),
            Outcome::Converged,
        ),
        (
            "another group",
            old(&["m"]),
            selection(canary_only.clone()),
            Outcome::NoRouter,
        ),
        (
            "its group",
            canary,
            selection(canary_only.clone()),
            Outcome::Refused,
        ),
        (
            "unreachable",
            away,
            selection(json!({"model": "m"})),
            Outcome::Pending,
        ),
        (
            "takes thresholds",
            old(&["m"]),
            thresholds.clone(),
            Outcome::Converged,
        ),
        (
            "closed",
            closed.clone(),
            selection(json!({"model": "m"})),
            Outcome::Pending,
        ),
        (
            "closed, thresholds",
            closed.clone(),
            thresholds,
            Outcome::Pending,
        ),
        (
            "closed, another group",
            closed,
            selection(canary_only.clone()),
            Outcome::NoRouter,
        ),
        (
            "closed, its group",
            closed_canary,
            selection(canary_only),
            Outcome::Pending,
        ),
    ];
    for (what, other, policy, wanted) in cases {
        assert_eq!(
            outcome(&[new.clone(), other], &policy, 101_000),
            wanted,
            "{what}"
        );
    }
    let patience = Patience {
        stale_after_ms: 15_000,
        gone_after_ms: 60_000,
    };
    let found = convergence(
        &[new, old(&["m"])],
        &[selection(json!({"model": "m"}))],
        Position(7),
        Timestamp::from_unix_ms(101_000),
        patience,
    );
    let [place] = &found.refused[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(
        (&place.agent.0, place.router_id, place.state),
        (&name("old"), None, ApplyState::Unsupported)
    );
    assert!(
        place.error.as_ref().unwrap().contains("no /router_policy"),
        "{place:?}"
    );
}

#[test]
fn regression_an_id_that_two_processes_report_under_is_missing_whatever_its_group() {
    let canary = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: serde_json::from_value(json!({"group": "canary"})).unwrap(),
    };
    let all = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    };
    let mut twice = agent("a", 7, vec![at(ApplyState::Applied, 7)]);
    twice.contested = true;
    for policy in [all, canary] {
        assert_eq!(
            outcome(std::slice::from_ref(&twice), &policy, 101_000),
            Outcome::Pending
        );
    }
}
