//! What a live router refuses, and that its revision and values are as before.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::dynamo::{KvRouterConfig, WorkerSelectionPolicy};
use scheduler::overlap_floor::{MIN_DEVICE_OVERLAP_BLOCKS, OverlapFloor};
use scheduler::{
    Builder, Change, Invalid, Parameter, Parameters, Policy, Replacement, Rule, UpdateError,
};
use schemas::{ParameterName, ParameterValue, Revision, WorkerType};
use serde_json::{Value, json};

use support::{PATIENCE, router, set};

fn patch(value: Value) -> Change {
    Change::Patch(serde_json::from_value(value).unwrap())
}

async fn check(policy: Policy, cases: &[(Value, &str)]) {
    let router = router(policy, 4);
    let before = router.control.read(PATIENCE).await.unwrap();
    for (change, text) in cases {
        let refused = router
            .control
            .update(Revision(0), &patch(change.clone()), PATIENCE)
            .await;
        assert_eq!(refused.unwrap_err().to_string(), *text, "{change}");
        assert_eq!(
            router.control.read(PATIENCE).await.unwrap(),
            before,
            "{change}"
        );
    }
}

fn built_in(startup: &Startup) -> Policy {
    BuiltIn::policy(startup).unwrap()
}

#[tokio::test]
async fn unknown_names_and_bad_values_are_refused() {
    let range =
        |name: &str, range: &str| format!("invalid policy parameters: {name} must be {range}");
    let weight = "0, or a number from 1e-9 to 1e9";
    let texts = [
        range("router_temperature", "0, or a number from 1e-6 to 1e9"),
        range("overlap_score_credit", weight),
        range("host_cache_hit_weight", "a number from 0 to 1"),
        range("prefill_load_scale", weight),
    ];
    check(
        built_in(&Startup::of(WorkerType::Aggregated)),
        &[
            (
                json!({}),
                "provide either nonempty parameters or reset: true",
            ),
            (
                json!({"nope": 1}),
                "invalid policy parameters: unknown parameter \"nope\"",
            ),
            (
                json!({"nope": null}),
                "invalid policy parameters: unknown parameter \"nope\"",
            ),
            (
                json!({"min_device_overlap_blocks": 1}),
                "invalid policy parameters: unknown parameter \"min_device_overlap_blocks\"",
            ),
            (
                json!({"router_temperature": "1"}),
                "invalid policy parameters: invalid type: string \"1\", expected f64",
            ),
            (
                json!({"router_temperature": true}),
                "invalid policy parameters: invalid type: boolean `true`, expected f64",
            ),
            (
                json!({"router_temperature": []}),
                "invalid policy parameters: invalid type: sequence, expected f64",
            ),
            (
                json!({"router_temperature": {}}),
                "invalid policy parameters: invalid type: map, expected f64",
            ),
            (
                json!({"router_temperature": -1e-9}),
                "invalid policy parameters: router_temperature must be finite and non-negative",
            ),
            (json!({"router_temperature": 1e-308}), &texts[0]),
            (json!({"overlap_score_credit": 1e10}), &texts[1]),
            (json!({"host_cache_hit_weight": 1.0001}), &texts[2]),
            (json!({"prefill_load_scale": 1e308}), &texts[3]),
            // One bad value refuses the good one beside it.
            (
                json!({"router_temperature": 0.5, "nope": 1}),
                "invalid policy parameters: unknown parameter \"nope\"",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn routers_without_cache_inputs_refuse_cache_weights() {
    let requirements = "invalid policy parameters: replacement changes routing requirements";
    let refused = [
        (json!({"overlap_score_credit": 1.0}), requirements),
        (json!({"host_cache_hit_weight": 0.5}), requirements),
        (json!({"disk_cache_hit_weight": 0.5}), requirements),
        (
            json!({"shared_cache_multiplier": 0.5, "router_temperature": 1}),
            requirements,
        ),
    ];
    let decode = Startup::of(WorkerType::Decode);
    let load_only = Startup {
        load_only: true,
        ..Startup::of(WorkerType::Prefill)
    };
    let uncredited = Startup {
        given: [("overlap_score_credit".to_owned(), json!(0))].into(),
        ..Startup::of(WorkerType::Encode)
    };
    for startup in [decode, load_only, uncredited] {
        check(built_in(&startup), &refused).await;
    }
}

#[tokio::test]
async fn a_router_with_cache_inputs_may_lose_its_weights_and_get_them_back() {
    let router = router(built_in(&Startup::of(WorkerType::Aggregated)), 4);
    let off = patch(
        json!({"overlap_score_credit": 0, "host_cache_hit_weight": 0, "disk_cache_hit_weight": 0}),
    );
    let on = set("overlap_score_credit", 1.0);
    assert_eq!(
        router
            .control
            .update(Revision(0), &off, PATIENCE)
            .await
            .unwrap()
            .revision,
        Revision(1)
    );
    assert_eq!(
        router
            .control
            .update(Revision(1), &on, PATIENCE)
            .await
            .unwrap()
            .revision,
        Revision(2)
    );
}

/// Changes what must not change, by parameter.
struct Shifty([Parameter; 1]);

impl Shifty {
    fn new() -> Shifty {
        let name = ParameterName::new("shift").unwrap();
        Shifty([Parameter {
            name,
            rule: Rule::Whole(3),
            startup: ParameterValue::integer(0),
        }])
    }
}

impl Builder for Shifty {
    fn parameters(&self) -> &[Parameter] {
        &self.0
    }
    fn build(&self, parameters: &Parameters) -> Result<Replacement, Invalid> {
        let shift = parameters.number("shift") as u64;
        let worker_label = if shift == 2 { "other" } else { "prefill" };
        let picker = Box::new(support_picker::First);
        let policy =
            WorkerSelectionPolicy::new(KvRouterConfig::default(), worker_label, vec![], picker);
        match shift {
            3 => Err(Invalid::Build("three is too many".to_owned())),
            _ => Ok(Replacement {
                policy: policy.with_exclusive_affinity(shift == 1),
                worker_label,
            }),
        }
    }
}

mod support_picker {
    use scheduler::dynamo::{
        WorkerInputView, WorkerPicker, WorkerSelectionContext, WorkerSelectionPolicyError,
    };

    pub struct First;

    impl WorkerPicker for First {
        fn pick(
            &mut self,
            _: &WorkerSelectionContext<'_>,
            _: WorkerInputView<'_>,
        ) -> Result<usize, WorkerSelectionPolicyError> {
            Ok(0)
        }
    }
}

#[tokio::test]
async fn changed_affinity_and_label_are_refused() {
    check(
        Policy::Live(Box::new(Shifty::new())),
        &[
            (
                json!({"shift": 1}),
                "invalid policy parameters: replacement changes affinity behaviour",
            ),
            (
                json!({"shift": 2}),
                "invalid policy parameters: replacement changes the worker label",
            ),
            (
                json!({"shift": 3}),
                "invalid policy parameters: three is too many",
            ),
            (
                json!({"shift": 4}),
                "invalid policy parameters: shift must be a whole number from 0 to 3",
            ),
            (
                json!({"shift": 1.5}),
                "invalid policy parameters: invalid type: floating point `1.5`, expected u64",
            ),
            (
                json!({"shift": -1}),
                "invalid policy parameters: invalid value: integer `-1`, expected u64",
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_policy_that_did_not_opt_in_lists_nothing_and_refuses() {
    let built_in = BuiltIn::new(&Startup::of(WorkerType::Aggregated)).unwrap();
    let fixed = built_in
        .build(&Parameters::startup(built_in.parameters()))
        .unwrap();
    let router = router(Policy::Fixed(Box::new(fixed)), 4);
    assert_eq!(router.control.read(PATIENCE).await, Ok(None));
    for change in [set("router_temperature", 1), Change::Reset] {
        let refused = router.control.update(Revision(0), &change, PATIENCE).await;
        assert_eq!(refused, Err(UpdateError::Unsupported));
    }
}

#[tokio::test]
async fn every_success_counts_one_and_null_and_reset_restore_startup_values() {
    let startup = Startup {
        given: [("router_temperature".to_owned(), json!(0.7))].into(),
        ..Startup::of(WorkerType::Aggregated)
    };
    let router = router(built_in(&startup), 4);
    let steps = [
        (
            patch(json!({"router_temperature": 0.1, "prefill_load_scale": 2})),
            [0.1, 2.0],
        ),
        (patch(json!({"router_temperature": 0.1})), [0.1, 2.0]),
        (patch(json!({"router_temperature": null})), [0.7, 2.0]),
        (patch(json!({"router_temperature": 0})), [0.0, 2.0]),
        (Change::Reset, [0.7, 1.0]),
        (Change::Reset, [0.7, 1.0]),
        (patch(json!({"router_temperature": -0.0})), [0.0, 1.0]),
    ];
    for (at, (change, values)) in steps.into_iter().enumerate() {
        let at = at as u64;
        let now = router
            .control
            .update(Revision(at), &change, PATIENCE)
            .await
            .unwrap();
        assert_eq!(now.revision, Revision(at + 1));
        let names = ["router_temperature", "prefill_load_scale"];
        assert_eq!(
            names.map(|name| now.parameters.number(name)),
            values,
            "step {at}"
        );
        assert_eq!(router.control.read(PATIENCE).await, Ok(Some(now)));
        let stale = router.control.update(Revision(at), &change, PATIENCE).await;
        assert_eq!(
            stale,
            Err(UpdateError::Conflict {
                expected: at,
                current: at + 1
            })
        );
    }
}

#[tokio::test]
async fn the_overlap_floor_starts_and_changes_within_its_range() {
    let floor = OverlapFloor::new(WorkerType::Prefill, 2).unwrap();
    check(
        Policy::Live(Box::new(floor)),
        &[(
            json!({"min_device_overlap_blocks": 0.5}),
            "invalid policy parameters: invalid type: floating point `0.5`, expected u64",
        )],
    )
    .await;
    assert!(OverlapFloor::new(WorkerType::Prefill, u64::MAX).is_err());
    let router = router(
        Policy::Live(Box::new(OverlapFloor::new(WorkerType::Prefill, 2).unwrap())),
        1,
    );
    let now = router
        .control
        .update(Revision(0), &set(MIN_DEVICE_OVERLAP_BLOCKS, 7), PATIENCE)
        .await
        .unwrap();
    assert_eq!(now.parameters.number(MIN_DEVICE_OVERLAP_BLOCKS), 7.0);
}
