//! Grows a new policy's buffers before it is seated, so that its first real selection allocates nothing.
//!
//! Owns: the made-up selection. Never does: run inside a scheduler.

use std::collections::HashMap;

use crate::dynamo::{
    ScheduleMode, WorkerConfigLike, WorkerLoadProjection, WorkerSelectionInput,
    WorkerSelectionPolicy, WorkerSelector, WorkerWithDpRank, plain_selection,
};

/// Bound: ranks to warm for. More workers than this grow the buffers once, in their first selection.
pub(crate) const RANKS_MAX: usize = 65_536;

/// One made-up worker with that many ranks.
pub(crate) struct Rank(u32);

impl WorkerConfigLike for Rank {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        self.0
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        None
    }
}

/// Runs one selection over `ranks` made-up candidates. All of them are idle and hold the whole prompt on the device, so
/// that filters by load or by overlap keep them. What the policy answers does not matter.
pub(crate) fn warm(policy: &WorkerSelectionPolicy, ranks: usize) {
    let ranks = u32::try_from(ranks.clamp(1, RANKS_MAX)).unwrap_or(1);
    let workers = HashMap::from([(0, Rank(ranks))]);
    let mut request = plain_selection(1);
    request.mode = ScheduleMode::QueryOnly { request_id: None };
    for rank in 0..ranks {
        let worker = WorkerWithDpRank::new(0, rank);
        let blocks = 1 << 20;
        request
            .overlap
            .tier_overlap_blocks
            .device
            .insert(worker, blocks);
        request
            .worker_loads
            .insert(worker, WorkerLoadProjection::default());
    }
    let input = WorkerSelectionInput::configured(&workers, &request, request.eligibility(), 1);
    // The crate logs every selection; this one is not for people.
    let silent = tracing::Dispatch::none();
    let _ = tracing::dispatcher::with_default(&silent, || policy.select_worker(input));
}
