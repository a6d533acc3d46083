//! A warm selection allocates nothing, before and after an update, at any size. Prints the table (`--nocapture`).

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::dynamo::{
    SchedulingRequest, WorkerId, WorkerLoadProjection, WorkerSelectionInput, WorkerSelector,
    WorkerWithDpRank, plain_selection,
};
use scheduler::{Bell, LiveSelector, Policy};
use schemas::{Revision, WorkerType};
use serde_json::json;

use support::{PATIENCE, Worker, set, workers};

/// How many selections are promised to allocate nothing between them.
const WARM_SELECTIONS: usize = 100;

struct Silent(usize);

impl Bell for Silent {
    fn ring(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async { true })
    }
    fn is_live(&self) -> bool {
        true
    }
    fn ranks(&self) -> usize {
        self.0
    }
}

fn request(count: u64) -> SchedulingRequest {
    let mut request = plain_selection(2_048);
    for id in 0..count {
        let worker = WorkerWithDpRank::new(id, 0);
        let blocks = id as usize % 9;
        let overlap = &mut request.overlap;
        overlap.tier_overlap_blocks.device.insert(worker, blocks);
        overlap.tier_overlap_blocks.host_pinned.insert(worker, 2);
        overlap
            .effective_overlap_blocks
            .insert(worker, blocks as f64 + 1.5);
        overlap.effective_cached_tokens.insert(worker, blocks * 16);
        let load = WorkerLoadProjection {
            active_prefill_tokens: id as usize % 7 * 19,
            active_decode_blocks: id as usize % 11,
            active_requests: id as usize % 5,
            additional_active_blocks: 3,
        };
        request.worker_loads.insert(worker, load);
    }
    request
}

fn select(
    selector: &LiveSelector,
    workers: &HashMap<WorkerId, Worker>,
    request: &SchedulingRequest,
) {
    let input = WorkerSelectionInput::configured(workers, request, request.eligibility(), 16);
    selector.select_worker(input).unwrap();
}

/// Allocations of selections on this thread, where the scheduler's actor would be; reallocations count as such. Other threads of the
/// process (the test harness has some) do not disturb it.
fn allocations(
    selector: &LiveSelector,
    workers: &HashMap<WorkerId, Worker>,
    request: &SchedulingRequest,
) -> u64 {
    let counted = allocation_counter::measure(|| {
        for _ in 0..WARM_SELECTIONS {
            select(selector, workers, request);
        }
    });
    counted.count_total
}

#[test]
fn a_warm_selection_allocates_nothing_before_and_after_an_update() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    // The counter counts: one box, and a vector that grows once.
    let counted = allocation_counter::measure(|| {
        let boxed = std::hint::black_box(Box::new(1_u64));
        let mut grown = std::hint::black_box(vec![*boxed]);
        grown.push(2);
        std::hint::black_box(grown);
    });
    assert_eq!(counted.count_total, 3);
    println!("allocations in {WARM_SELECTIONS} warm selections");
    println!(
        "{:>8} {:>12} {:>8} {:>20}",
        "workers", "temperature", "before", "after, with the swap"
    );
    for count in [8, 64, 512, 4_096] {
        for temperature in [0.0, 0.7] {
            let startup = Startup {
                given: [("router_temperature".to_owned(), json!(temperature))].into(),
                ..Startup::of(WorkerType::Aggregated)
            };
            let policy = Policy::Live(Box::new(BuiltIn::new(&startup).unwrap()));
            let (selector, unattached) = LiveSelector::new(policy).unwrap();
            let control = unattached.attach_bell(Arc::new(Silent(count as usize)));
            let (workers, request) = (workers(count), request(count));
            select(&selector, &workers, &request);
            let before = allocations(&selector, &workers, &request);

            let change = set("overlap_score_credit", 0.5);
            let mut update = Box::pin(control.update(Revision(0), &change, PATIENCE));
            // The letter is posted; the first of these selections takes it.
            let posted = runtime.block_on(async { futures::poll!(update.as_mut()) });
            assert!(posted.is_pending());
            let after = allocations(&selector, &workers, &request);
            let now = runtime.block_on(update).unwrap();
            assert_eq!(now.revision, Revision(1));

            println!("{count:>8} {temperature:>12} {before:>8} {after:>20}");
            assert_eq!(
                (before, after),
                (0, 0),
                "{count} workers, temperature {temperature}"
            );
        }
    }
}
