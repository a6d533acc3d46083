//! The one door to `dynamo-kv-router`: no other file of this crate names it, so that an upgrade touches this one first.
//!
//! Owns: the re-exports, and the [`Scheduler`] that hosts a live policy. Never does: select or judge.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use dynamo_kv_router::config::KvRouterConfig;
pub use dynamo_kv_router::indexer::{
    KvIndexer, KvIndexerInterface, KvIndexerMetrics, MatchDetails, TieredMatchDetails,
};
pub use dynamo_kv_router::plugins::worker_selection::{
    ScoredWorkerCandidate, SessionContext, WorkerCacheInput, WorkerCandidate, WorkerCandidates,
    WorkerFilter, WorkerInputView, WorkerInputs, WorkerLoadInput, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
};
pub use dynamo_kv_router::protocols::{
    ActiveSequenceEvent, BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent,
    KvCacheEventData, KvCacheRemoveData, KvCacheStoreData, KvCacheStoredBlockData, LocalBlockHash,
    RouterEvent, RoutingConstraints, SharedCacheHits, WorkerConfigLike, WorkerId,
    WorkerSelectionResult, WorkerWithDpRank, compute_block_hash_for_seq,
    compute_seq_hash_for_block,
};
pub use dynamo_kv_router::scheduling::overlap::OverlapAnalysis;
pub use dynamo_kv_router::scheduling::overlap_refresh::{
    NoopOverlapScoresRefresh, OverlapScoresRefresh,
};
pub use dynamo_kv_router::scheduling::{
    LocalScheduler, OverlapSignals, OverloadedWorkerProvider, PolicyProfile, ScheduleMode,
    ScheduleRequest, SchedulingRequest, SchedulingResponse, TierOverlapBlocks,
    WorkerAvailabilityProvider,
};
pub use dynamo_kv_router::sequences::SchedulerLoadSnapshot;
pub use dynamo_kv_router::{
    ActiveSequencesMultiWorker, KvSchedulerError, NoopSequencePublisher, RouterQueuePolicy,
    SequencePublisher, SequenceRequest, WorkerLoadProjection, WorkerSelectionInput, WorkerSelector,
    WorkerType,
};

use crate::busy::{Capacities, Capacity, Publisher, WorkerSet};
use crate::control::{Control, Unattached};
use crate::live::LiveSelector;

/// Dynamo's scheduler with a live policy inside.
pub type Scheduler<C> = LocalScheduler<Publisher, C, LiveSelector>;

/// What a scheduler is built from; everything else has one sensible value here.
pub struct Plan<C> {
    /// Workers and their configurations, as the host discovers them.
    pub workers: watch::Receiver<HashMap<WorkerId, C>>,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Role of the workers.
    pub worker_type: schemas::WorkerType,
    /// Queue when every worker's prefill load is past this share of `max_num_batched_tokens`; `None` never queues.
    pub queue_threshold: Option<f64>,
    /// How often queued requests are looked at again without news.
    pub recheck_interval: Duration,
    /// False for decode workers of a disaggregated model.
    pub track_prefill_tokens: bool,
    /// Gates with busy thresholds; its load events come from the scheduler itself.
    pub busy: Arc<WorkerSet>,
    /// Stops the scheduler's tasks.
    pub stop: CancellationToken,
}

/// Dynamo's name of a role.
#[must_use]
pub fn worker_type(role: schemas::WorkerType) -> WorkerType {
    match role {
        schemas::WorkerType::Aggregated => WorkerType::Aggregated,
        schemas::WorkerType::Prefill => WorkerType::Prefill,
        schemas::WorkerType::Decode => WorkerType::Decode,
        schemas::WorkerType::Encode => WorkerType::Encode,
    }
}

/// Builds Dynamo's scheduler around a live selector and attaches its control. Must be called inside a tokio runtime.
/// Drop the scheduler and cancel `plan.stop` to retire the router; its control then answers so.
pub fn start<C>(
    plan: Plan<C>,
    selector: LiveSelector,
    unattached: Unattached,
) -> (Arc<Scheduler<C>>, Control)
where
    C: WorkerConfigLike + Clone + PartialEq + Send + Sync + 'static,
{
    let label = worker_type(plan.worker_type).default_selector_label();
    let ranges = plan
        .workers
        .borrow()
        .iter()
        .map(|(id, config)| {
            let ranks = (
                config.data_parallel_start_rank(),
                config.data_parallel_size(),
            );
            (*id, ranks)
        })
        .collect();
    let slots = Arc::new(ActiveSequencesMultiWorker::new(
        Publisher::new(Arc::clone(&plan.busy)),
        plan.block_size as usize,
        ranges,
        false,
        0,
        label,
    ));
    plan.busy.follow(capacities(plan.workers.clone()));
    let busy = Arc::clone(&plan.busy);
    let overloaded: OverloadedWorkerProvider = Arc::new(move || busy.overloaded());
    // SUBTLE: the crate asks for overloaded workers while it holds the workers' watch, where a second read can wait for a
    // writer that waits for the first (`regression_workers_that_change_during_selections_do_not_deadlock_the_scheduler`).
    // It asks for available workers before, so the worker set follows there; `None` is "no such source".
    let busy = Arc::clone(&plan.busy);
    let available: WorkerAvailabilityProvider = Arc::new(move |_| {
        busy.refresh();
        None
    });
    let scheduler = Arc::new(LocalScheduler::new(
        slots,
        plan.workers.clone(),
        PolicyProfile::synthetic(plan.queue_threshold, RouterQueuePolicy::default()),
        plan.block_size,
        selector,
        None,
        None,
        Some(overloaded),
        Some(available),
        plan.recheck_interval,
        plan.track_prefill_tokens,
        plan.stop,
        label,
        true,
    ));
    let control = unattached.attach(&scheduler, plan.workers);
    (scheduler, control)
}

/// Follows the host's workers; says something when they changed.
fn capacities<C>(workers: watch::Receiver<HashMap<WorkerId, C>>) -> Capacities
where
    C: WorkerConfigLike + Send + Sync + 'static,
{
    let seen = Mutex::new((false, workers));
    Box::new(move || {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, workers) = &mut *seen;
        // A source whose sender is gone says nothing new, after the first time.
        let changed = !std::mem::replace(begun, true) || workers.has_changed().unwrap_or(false);
        changed.then(|| workers.borrow_and_update().iter().map(capacity).collect())
    })
}

fn capacity<C: WorkerConfigLike>((id, config): (&WorkerId, &C)) -> Capacity {
    Capacity {
        worker: *id,
        first_rank: config.data_parallel_start_rank(),
        ranks: config.data_parallel_size(),
        total_kv_blocks: config.total_kv_blocks(),
        max_num_batched_tokens: config.max_num_batched_tokens(),
    }
}

/// A request for `select_without_admission` or `schedule_request` with nothing but its mode and length.
#[must_use]
pub fn plain_request(mode: ScheduleMode, isl_tokens: usize) -> ScheduleRequest {
    ScheduleRequest {
        mode,
        token_seq: None,
        block_hashes: None,
        isl_tokens,
        lora_name: None,
        expected_output_tokens: None,
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
        router_config_override: None,
        priority_jump: 0.0,
        strict_priority: 0,
        policy_class: None,
        session_context: None,
        overlap: OverlapSignals::default(),
        kv_transfer_candidates: None,
        retain_kv_transfer_chain: false,
        shared_cache_hits: None,
    }
}

/// The same as a selector sees it: for selections outside of a scheduler (warming, tests, parity).
#[must_use]
pub fn plain_selection(isl_tokens: usize) -> SchedulingRequest {
    SchedulingRequest {
        mode: ScheduleMode::QueryOnly { request_id: None },
        token_seq: None,
        isl_tokens,
        lora_name: None,
        expected_output_tokens: None,
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
        router_config_override: None,
        track_prefill_tokens: true,
        priority_jump: 0.0,
        strict_priority: 0,
        policy_class: None,
        session_context: None,
        overlap: OverlapSignals::default(),
        kv_transfer_candidates: None,
        retain_kv_transfer_chain: false,
        shared_cache_hits: None,
        worker_loads: rustc_hash::FxHashMap::default(),
        resp_tx: None,
    }
}
