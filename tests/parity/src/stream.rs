//! The same comparison through Dynamo's own scheduler: two of them, one with its default policy and one with ours, live and
//! updated, get the same requests, prefill completions and releases. Their picks, and so their bookings, must stay equal.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dynamo_kv_router::config::RouterQueuePolicy;
use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicy;
use dynamo_kv_router::protocols::{WorkerConfigLike, WorkerId, WorkerWithDpRank};
use dynamo_kv_router::scheduling::{LocalScheduler, PolicyProfile, ScheduleMode, ScheduleRequest};
use dynamo_kv_router::{ActiveSequencesMultiWorker, NoopSequencePublisher};
use scheduler::builtin::{BuiltIn, Startup};
use scheduler::busy::{Models, Thresholds};
use scheduler::dynamo::{Plan, Scheduler};
use scheduler::{Change, LiveSelector};
use schemas::{Revision, WorkerType};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::table::Drawn;

const BLOCK_SIZE: u32 = 16;
const REQUESTS: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, PartialEq)]
struct Worker(u32);

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        self.0
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        Some(8_192)
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(16_384)
    }
}

type Reference = LocalScheduler<NoopSequencePublisher, Worker, WorkerSelectionPolicy>;
type Workers = watch::Receiver<HashMap<WorkerId, Worker>>;

fn reference(drawn: &Drawn, workers: Workers, stop: CancellationToken) -> Reference {
    let label = scheduler::dynamo::worker_type(drawn.role).default_selector_label();
    let ranges = workers
        .borrow()
        .iter()
        .map(|(id, worker)| (*id, (0, worker.0)))
        .collect();
    let slots = ActiveSequencesMultiWorker::new(
        NoopSequencePublisher,
        BLOCK_SIZE as usize,
        ranges,
        false,
        0,
        label,
    );
    LocalScheduler::new(
        Arc::new(slots),
        workers,
        PolicyProfile::synthetic(None, RouterQueuePolicy::default()),
        BLOCK_SIZE,
        crate::reference(drawn),
        None,
        None,
        None,
        None,
        Duration::from_secs(3_600),
        drawn.role != WorkerType::Decode,
        stop,
        label,
        true,
    )
}

async fn ours(drawn: &Drawn, workers: Workers, stop: CancellationToken) -> Arc<Scheduler<Worker>> {
    let startup = Startup {
        conditional_decode: drawn.conditional_decode,
        ..Startup::of(drawn.role)
    };
    let policy = BuiltIn::policy(&startup).expect("defaults are in range");
    let (selector, unattached) = LiveSelector::new(policy).expect("defaults build");
    let plan = Plan {
        workers,
        block_size: BLOCK_SIZE,
        worker_type: drawn.role,
        queue_threshold: None,
        recheck_interval: Duration::from_secs(3_600),
        track_prefill_tokens: drawn.role != WorkerType::Decode,
        busy: Models::new(Thresholds::default()).discover("m", "set"),
        stop,
    };
    let (scheduler, control) = scheduler::dynamo::start(plan, selector, unattached);
    let value = |(name, value): (&&str, &f64)| ((*name).to_owned(), Value::from(*value));
    let change = Change::Patch(drawn.resolved().iter().map(value).collect());
    let updated = control.update(Revision(0), &change, PATIENCE).await;
    assert_eq!(updated.expect("a drawn value fits").revision, Revision(1));
    scheduler
}

/// The same request for the same random stream.
fn request(mut rng: fastrand::Rng, id: u64, workers: &Workers) -> ScheduleRequest {
    let tokens = rng.usize(1..4_000);
    let request_id = format!("request-{id}");
    let mut request =
        scheduler::dynamo::plain_request(ScheduleMode::Tracked { request_id }, tokens);
    let blocks = tokens / BLOCK_SIZE as usize;
    // A few prompts that come again: blocks are shared between requests.
    let prompt = rng.u64(..6) << 32;
    request.token_seq = Some((0..blocks as u64).map(|block| prompt + block).collect());
    request.expected_output_tokens = Some(rng.u32(1..200));
    let mut ids: Vec<WorkerId> = workers.borrow().keys().copied().collect();
    ids.sort_unstable();
    for worker in ids {
        if rng.bool() {
            let worker = WorkerWithDpRank::new(worker, 0);
            let overlap = rng.usize(..=blocks);
            let signals = &mut request.overlap;
            signals.tier_overlap_blocks.device.insert(worker, overlap);
            signals
                .effective_overlap_blocks
                .insert(worker, overlap as f64);
            signals
                .effective_cached_tokens
                .insert(worker, overlap * BLOCK_SIZE as usize);
        }
    }
    request
}

/// One pair of schedulers. Returns requests and mismatches.
async fn scenario(mut rng: fastrand::Rng) -> (usize, usize) {
    let drawn = Drawn::new(&mut rng);
    let workers = (0..rng.u64(1..40))
        .map(|id| (id, Worker(rng.u32(1..3))))
        .collect();
    let (_keep, workers) = watch::channel(workers);
    let stop = CancellationToken::new();
    let theirs = reference(&drawn, workers.clone(), stop.clone());
    let ours = ours(&drawn, workers.clone(), stop.clone()).await;
    let (mut compared, mut mismatches, mut held) = (0, 0, Vec::new());
    for id in 0..REQUESTS {
        let (made_by, draw) = (rng.fork(), rng.u64(..));
        fastrand::seed(draw);
        let their = theirs
            .schedule_request(request(made_by.clone(), id, &workers))
            .await;
        fastrand::seed(draw);
        let our = ours.schedule_request(request(made_by, id, &workers)).await;
        let pick = |answer: Result<dynamo_kv_router::SchedulingResponse, _>| {
            answer
                .map(|answer| (answer.best_worker, answer.cached_tokens))
                .map_err(|why: dynamo_kv_router::KvSchedulerError| why.to_string())
        };
        let (their, our) = (pick(their), pick(our));
        compared += 1;
        if their != our {
            mismatches += 1;
            println!("mismatch in a stream: theirs {their:?}, ours {our:?}, {drawn:?}");
        }
        held.push(format!("request-{id}"));
        if rng.bool() {
            let name = &held[rng.usize(..held.len())];
            let done = (
                theirs.mark_prefill_completed(name).await,
                ours.mark_prefill_completed(name).await,
            );
            assert_eq!(done.0.is_ok(), done.1.is_ok());
        }
        if rng.u8(..3) == 0 {
            let name = held.swap_remove(rng.usize(..held.len()));
            let freed = (theirs.free(&name).await, ours.free(&name).await);
            assert_eq!(freed.0.is_ok(), freed.1.is_ok());
        }
    }
    stop.cancel();
    (compared, mismatches)
}

/// Many pairs of schedulers.
pub async fn run(scenarios: u64, seed: u64) -> (usize, usize) {
    let (mut compared, mut mismatches) = (0, 0);
    for number in 0..scenarios {
        let rng = fastrand::Rng::with_seed(seed.wrapping_mul(7_919).wrapping_add(number));
        let (requests, wrong) = scenario(rng).await;
        compared += requests;
        mismatches += wrong;
    }
    (compared, mismatches)
}
