//! One real scheduler of Dynamo's with a live policy, for tests.

#![expect(dead_code, reason = "each test binary uses its part of this")]

pub mod probe;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use scheduler::busy::{Models, Thresholds, WorkerSet};
use scheduler::dynamo::{
    Plan, ScheduleMode, ScheduleRequest, Scheduler, WorkerConfigLike, WorkerId, WorkerWithDpRank,
    plain_request, start,
};
use scheduler::{Change, Control, LiveSelector, Policy};
use schemas::{Endpoint, Name, RouterKey, WorkerType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Long enough for any machine; nothing waits for it to pass.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// For schedulers that never answer.
pub const IMPATIENCE: Duration = Duration::from_millis(300);
pub const BLOCK_SIZE: u32 = 16;

#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    pub ranks: u32,
    pub kv_blocks: u64,
    pub batched_tokens: u64,
}

impl Default for Worker {
    fn default() -> Worker {
        Worker {
            ranks: 1,
            kv_blocks: 10_000,
            batched_tokens: 8_192,
        }
    }
}

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        self.ranks
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        Some(self.batched_tokens)
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(self.kv_blocks)
    }
}

/// A router with everything that keeps it alive.
pub struct Router {
    pub scheduler: Arc<Scheduler<Worker>>,
    pub control: Control,
    pub workers: watch::Sender<HashMap<WorkerId, Worker>>,
    pub busy: Arc<WorkerSet>,
    pub stop: CancellationToken,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn workers(count: u64) -> HashMap<WorkerId, Worker> {
    (0..count).map(|id| (id, Worker::default())).collect()
}

/// Queues when every worker is past `queue_threshold`.
pub fn router_with(
    policy: Policy,
    worker_type: WorkerType,
    count: u64,
    queue_threshold: Option<f64>,
    busy: Arc<WorkerSet>,
) -> Router {
    let (selector, unattached) = LiveSelector::new(policy).unwrap();
    let (sender, receiver) = watch::channel(workers(count));
    let stop = CancellationToken::new();
    let plan = Plan {
        workers: receiver,
        block_size: BLOCK_SIZE,
        worker_type,
        queue_threshold,
        recheck_interval: Duration::from_secs(3_600),
        track_prefill_tokens: worker_type != WorkerType::Decode,
        busy: Arc::clone(&busy),
        stop: stop.clone(),
    };
    let (scheduler, control) = start(plan, selector, unattached);
    Router {
        scheduler,
        control,
        workers: sender,
        busy,
        stop,
    }
}

pub fn router(policy: Policy, count: u64) -> Router {
    let busy = Models::new(Thresholds::default()).discover("m", "set");
    router_with(policy, WorkerType::Aggregated, count, None, busy)
}

pub fn key(model: &str) -> RouterKey {
    let name = |text: &str| Name::new(text).unwrap();
    RouterKey {
        model: name(model),
        worker_type: WorkerType::Aggregated,
        endpoint: Endpoint {
            namespace: name("dynamo"),
            component: name("backend"),
            endpoint: name("generate"),
        },
    }
}

/// A change of one parameter.
pub fn set(name: &str, value: impl Into<serde_json::Value>) -> Change {
    Change::Patch([(name.to_owned(), value.into())].into())
}

pub fn tracked(id: &str, tokens: usize) -> ScheduleRequest {
    let request_id = id.to_owned();
    plain_request(ScheduleMode::Tracked { request_id }, tokens)
}

pub fn query(tokens: usize) -> ScheduleRequest {
    plain_request(ScheduleMode::QueryOnly { request_id: None }, tokens)
}

/// A request whose prompt some workers hold blocks of.
pub fn query_with_overlap(tokens: usize, overlap: &[(WorkerId, usize)]) -> ScheduleRequest {
    let mut request = query(tokens);
    for (id, blocks) in overlap {
        let worker = WorkerWithDpRank::new(*id, 0);
        let tokens = blocks * BLOCK_SIZE as usize;
        let signals = &mut request.overlap;
        signals.tier_overlap_blocks.device.insert(worker, *blocks);
        signals
            .effective_overlap_blocks
            .insert(worker, *blocks as f64);
        signals.effective_cached_tokens.insert(worker, tokens);
    }
    request
}
