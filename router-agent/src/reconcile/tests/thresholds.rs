//! Busy thresholds: startup values, restarts, drift, refusals.

use std::collections::BTreeMap;

use schemas::status::ApplyState;
use schemas::{Overlay, ParameterValue};

use super::*;
use crate::target::TargetError;
use crate::testing::Fault;

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
