//! What each role starts with, and which inputs it asks for.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::dynamo::WorkerInputs;
use scheduler::{Builder, Invalid, Parameters, Policy};
use schemas::WorkerType;
use serde_json::{Value, json};

#[test]
fn startup_rules_per_role() {
    let names = [
        "overlap_score_credit",
        "host_cache_hit_weight",
        "disk_cache_hit_weight",
        "shared_cache_multiplier",
    ];
    let conditional = Startup {
        conditional_decode: true,
        ..Startup::of(WorkerType::Decode)
    };
    let load_only = Startup {
        load_only: true,
        ..Startup::of(WorkerType::Aggregated)
    };
    let given = |startup: Startup, given: Value| Startup {
        given: serde_json::from_value(given).unwrap(),
        ..startup
    };
    let cases = [
        (
            Startup::of(WorkerType::Aggregated),
            [1.0, 0.75, 0.25, 0.0],
            true,
        ),
        (
            Startup::of(WorkerType::Prefill),
            [1.0, 0.75, 0.25, 0.0],
            true,
        ),
        (
            Startup::of(WorkerType::Encode),
            [1.0, 0.75, 0.25, 0.0],
            true,
        ),
        (Startup::of(WorkerType::Decode), [0.0; 4], false),
        (conditional.clone(), [1.0, 0.75, 0.25, 0.0], true),
        (load_only.clone(), [0.0; 4], false),
        // Also when they are given.
        (
            given(
                load_only,
                json!({"overlap_score_credit": 2, "disk_cache_hit_weight": 1}),
            ),
            [0.0; 4],
            false,
        ),
        (
            given(
                Startup::of(WorkerType::Decode),
                json!({"shared_cache_multiplier": 1}),
            ),
            [0.0; 4],
            false,
        ),
        // A credit of 0 takes omitted tiers with it, and keeps given ones.
        (
            given(
                Startup::of(WorkerType::Aggregated),
                json!({"overlap_score_credit": 0}),
            ),
            [0.0; 4],
            false,
        ),
        (
            given(
                Startup::of(WorkerType::Prefill),
                json!({"overlap_score_credit": 0, "host_cache_hit_weight": 0.5}),
            ),
            [0.0, 0.5, 0.0, 0.0],
            true,
        ),
        (
            given(
                conditional,
                json!({"overlap_score_credit": -0.0, "shared_cache_multiplier": 0.5}),
            ),
            [0.0, 0.0, 0.0, 0.5],
            true,
        ),
    ];
    for (startup, weights, asks_for_cache) in cases {
        let built_in = BuiltIn::new(&startup).unwrap();
        let values = Parameters::startup(built_in.parameters());
        assert_eq!(
            names.map(|name| values.number(name)),
            weights,
            "{startup:?}"
        );
        let (selector, _) = scheduler::LiveSelector::new(Policy::Live(Box::new(built_in))).unwrap();
        let inputs =
            scheduler::dynamo::WorkerSelector::<support::Worker>::required_worker_inputs(&selector);
        assert_eq!(
            inputs.contains(WorkerInputs::CACHE),
            asks_for_cache,
            "{startup:?}"
        );
    }
    let wrong = given(
        Startup::of(WorkerType::Aggregated),
        json!({"host_cache_hit_weight": 2}),
    );
    assert!(matches!(BuiltIn::new(&wrong), Err(Invalid::Range { .. })));
}
