//! No value within its range makes a selection fail or lose its chance: the guard rails hold for the worst worker tables.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::collections::{BTreeMap, HashMap};

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::dynamo::{
    SchedulingRequest, WorkerId, WorkerLoadProjection, WorkerSelectionInput, WorkerSelectionPolicy,
    WorkerSelector, WorkerWithDpRank, plain_selection,
};
use scheduler::{Builder, Parameters};
use schemas::WorkerType;
use schemas::parameter::{Range, TEMPERATURE_MIN, WEIGHT_MAX, WEIGHT_MIN, WORKER_SELECTION};
use serde_json::Value;

use support::{Worker, workers};

/// Bound: no table counts further than this without overflowing its own integers.
const HUGE: usize = usize::MAX / 8;

fn policy(values: BTreeMap<String, Value>) -> WorkerSelectionPolicy {
    let startup = Startup {
        given: values,
        ..Startup::of(WorkerType::Aggregated)
    };
    let built_in = BuiltIn::new(&startup).unwrap();
    built_in
        .build(&Parameters::startup(built_in.parameters()))
        .unwrap()
        .policy
}

/// Every second worker is as loaded as a table can say, the others are idle; overlap the other way round, or none.
fn table(
    tokens: usize,
    load: usize,
    overlap: usize,
    tracked: bool,
) -> (HashMap<WorkerId, Worker>, SchedulingRequest) {
    let mut request = plain_selection(tokens);
    request.track_prefill_tokens = tracked;
    for id in 0..4 {
        let worker = WorkerWithDpRank::new(id, 0);
        let (load, overlap) = if id % 2 == 0 { (load, 0) } else { (0, overlap) };
        let projection = WorkerLoadProjection {
            active_prefill_tokens: load,
            active_decode_blocks: load,
            active_requests: load,
            additional_active_blocks: load,
        };
        request.worker_loads.insert(worker, projection);
        let tiers = &mut request.overlap.tier_overlap_blocks;
        tiers.device.insert(worker, overlap);
        tiers.host_pinned.insert(worker, overlap);
        tiers.disk.insert(worker, overlap);
    }
    (workers(4), request)
}

fn pick(
    policy: &WorkerSelectionPolicy,
    table: &(HashMap<WorkerId, Worker>, SchedulingRequest),
) -> u64 {
    let (workers, request) = table;
    let input = WorkerSelectionInput::configured(workers, request, request.eligibility(), 1);
    policy.select_worker(input).unwrap().worker.worker_id
}

fn ends(range: Range) -> [f64; 3] {
    match range {
        Range::Fraction => [0.0, f64::MIN_POSITIVE, 1.0],
        Range::Weight => [0.0, WEIGHT_MIN, WEIGHT_MAX],
        Range::Temperature => [0.0, TEMPERATURE_MIN, WEIGHT_MAX],
        Range::Tokens => [0.0; 3],
    }
}

#[test]
fn every_combination_of_least_and_greatest_values_selects_on_every_table() {
    let loads = [0, 1, HUGE];
    let mut tables = Vec::new();
    for load in loads {
        for overlap in [0, 1, HUGE] {
            for tracked in [true, false] {
                tables.push(table(
                    if load == HUGE { HUGE } else { 100 },
                    load,
                    overlap,
                    tracked,
                ));
            }
        }
    }
    let combinations = 3_usize.pow(8);
    for combination in 0..combinations {
        let value = |(at, known): (usize, &schemas::parameter::BuiltIn)| {
            let digit = combination / 3_usize.pow(at as u32) % 3;
            (known.name.to_owned(), Value::from(ends(known.range)[digit]))
        };
        let policy = policy(WORKER_SELECTION.iter().enumerate().map(value).collect());
        for table in &tables {
            pick(&policy, table);
        }
    }
}

#[test]
fn equal_workers_have_equal_chances_at_every_temperature() {
    fastrand::seed(11);
    for temperature in [0.0, TEMPERATURE_MIN, 0.7, WEIGHT_MAX] {
        let policy = policy([("router_temperature".to_owned(), Value::from(temperature))].into());
        let table = table(100, 0, 0, true);
        let mut picked = [0_u32; 4];
        for _ in 0..4_000 {
            picked[pick(&policy, &table) as usize] += 1;
        }
        assert!(
            picked.iter().all(|times| (850..1_150).contains(times)),
            "{temperature}: {picked:?}"
        );
    }
}

#[test]
fn the_least_spread_at_the_least_temperature_still_prefers_the_cheaper() {
    fastrand::seed(11);
    let least = [
        ("prefill_load_scale", 0.0),
        ("decode_active_request_weight", WEIGHT_MIN),
        ("router_temperature", TEMPERATURE_MIN),
    ];
    let policy = policy(
        least
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .into(),
    );
    let mut table = table(100, 0, 0, true);
    for (worker, load) in &mut table.1.worker_loads {
        load.active_requests = usize::from(worker.worker_id != 2);
    }
    assert!(
        (0..800).all(|_| pick(&policy, &table) == 2),
        "not the last row, as without guard rails"
    );
}
