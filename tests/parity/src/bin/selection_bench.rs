//! What a live selector costs against Dynamo's own fixed policy: same tables, one run, rounds taken in turn.
//!
//! Three columns per size and temperature: Dynamo's fixed default policy, our built-in policy fixed, the same inside a live
//! selector. The ratios are medians of per-round ratios, which a noisy machine disturbs least.

use std::collections::HashMap;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dynamo_custom_policy_builtin::default_factory;
use dynamo_kv_router::protocols::{WorkerConfigLike, WorkerId, WorkerWithDpRank};
use dynamo_kv_router::scheduling::SchedulingRequest;
use dynamo_kv_router::{
    KvRouterConfig, RoutingPartitionRef, WorkerLoadProjection, WorkerSelectionInput,
    WorkerSelector, WorkerType,
};
use scheduler::builtin::{BuiltIn, Startup};
use scheduler::{Bell, Builder, Change, LiveSelector, Parameters, Policy};
use schemas::Revision;

const ROUNDS: usize = 60;
/// One round of one column takes about this long.
const ROUND: Duration = Duration::from_millis(8);

struct Worker;

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        1
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(16_384)
    }
}

struct Silent;

impl Bell for Silent {
    fn ring(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async { true })
    }
    fn is_live(&self) -> bool {
        true
    }
    fn ranks(&self) -> usize {
        4_096
    }
}

fn table(count: u64) -> (HashMap<WorkerId, Worker>, SchedulingRequest) {
    let mut request = scheduler::dynamo::plain_selection(2_048);
    for id in 0..count {
        let worker = WorkerWithDpRank::new(id, 0);
        let blocks = id as usize * 7 % 9;
        let overlap = &mut request.overlap;
        overlap.tier_overlap_blocks.device.insert(worker, blocks);
        overlap.tier_overlap_blocks.host_pinned.insert(worker, 2);
        overlap
            .effective_overlap_blocks
            .insert(worker, blocks as f64 + 1.5);
        overlap
            .effective_cached_tokens
            .insert(worker, blocks * 16 + 24);
        let load = WorkerLoadProjection {
            active_prefill_tokens: id as usize % 7 * 19,
            active_decode_blocks: id as usize % 11,
            active_requests: id as usize % 5,
            additional_active_blocks: 3,
        };
        request.worker_loads.insert(worker, load);
    }
    ((0..count).map(|id| (id, Worker)).collect(), request)
}

/// Seconds per selection.
fn time(
    selector: &impl WorkerSelector<Worker>,
    table: &(HashMap<WorkerId, Worker>, SchedulingRequest),
    times: u32,
) -> f64 {
    let (workers, request) = table;
    let begun = Instant::now();
    for _ in 0..times {
        let input = WorkerSelectionInput::configured(workers, request, request.eligibility(), 16);
        black_box(selector.select_worker(black_box(input)).expect("a pick"));
    }
    begun.elapsed().as_secs_f64() / f64::from(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A live selector after one update: what a fleet runs.
fn live(startup: &Startup) -> LiveSelector {
    let policy: Policy = BuiltIn::policy(startup).expect("in range");
    let (selector, unattached) = LiveSelector::new(policy).expect("builds");
    let control = unattached.attach_bell(Arc::new(Silent));
    let patch = [("overlap_score_credit".to_owned(), 1.0.into())].into();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime").block_on(async {
        let change = Change::Patch(patch);
        let update = control.update(Revision(0), &change, Duration::from_secs(60));
        let (updated, ()) = futures::future::join(update, async { selector.settle() }).await;
        updated.expect("fits");
    });
    selector
}

fn main() {
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>12} {:>18} {:>18}",
        "workers",
        "temperature",
        "Dynamo",
        "ours fixed",
        "ours live",
        "live to Dynamo",
        "live to ours fixed"
    );
    for count in [8, 64, 512, 4_096] {
        for temperature in [0.0, 0.7] {
            let config = KvRouterConfig {
                router_temperature: temperature,
                ..KvRouterConfig::default()
            };
            let dynamo = default_factory()(
                &config,
                WorkerType::Aggregated,
                RoutingPartitionRef::new("m", "default"),
            );
            let startup = Startup {
                given: [("router_temperature".to_owned(), temperature.into())].into(),
                ..Startup::of(schemas::WorkerType::Aggregated)
            };
            let built_in = BuiltIn::new(&startup).expect("in range");
            let fixed = built_in
                .build(&Parameters::startup(built_in.parameters()))
                .expect("builds")
                .policy;
            let (live, table) = (live(&startup), table(count));
            let once = time(&dynamo, &table, 50).max(1e-9);
            let times = (ROUND.as_secs_f64() / once).ceil() as u32;
            let mut rounds = Vec::new();
            for round in 0..ROUNDS {
                // Each goes first as often as last.
                let mut taken = [0.0; 3];
                for column in (0..3).map(|column| (column + round) % 3) {
                    taken[column] = match column {
                        0 => time(&dynamo, &table, times),
                        1 => time(&fixed, &table, times),
                        _ => time(&live, &table, times),
                    };
                }
                rounds.push(taken);
            }
            let of = |pick: &dyn Fn(&[f64; 3]) -> f64| median(rounds.iter().map(pick).collect());
            println!(
                "{count:>8} {temperature:>12} {:>9.2} us {:>9.2} us {:>9.2} us {:>18.3} {:>18.3}",
                of(&|taken| taken[0] * 1e6),
                of(&|taken| taken[1] * 1e6),
                of(&|taken| taken[2] * 1e6),
                of(&|taken| taken[2] / taken[0]),
                of(&|taken| taken[2] / taken[1]),
            );
        }
    }
}
