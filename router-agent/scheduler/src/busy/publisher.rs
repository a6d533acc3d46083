//! Feeds a worker set with the load events of Dynamo's own scheduler.

use std::sync::Arc;

use crate::busy::{Load, WorkerSet};
use crate::dynamo::{
    ActiveSequenceEvent, SchedulerLoadSnapshot, SequencePublisher, WorkerWithDpRank,
};

/// Publishes to one frontend's busy thresholds, and to nobody else.
#[derive(Debug)]
pub struct Publisher(Arc<WorkerSet>);

impl Publisher {
    /// For this worker set.
    #[must_use]
    pub fn new(set: Arc<WorkerSet>) -> Publisher {
        Publisher(set)
    }
}

impl SequencePublisher for Publisher {
    fn enqueue_event(&self, _: ActiveSequenceEvent) -> anyhow::Result<()> {
        Ok(())
    }

    fn publish_scheduler_load(&self, snapshot: SchedulerLoadSnapshot) {
        self.0.observe(&Load {
            worker: snapshot.worker.worker_id,
            rank: snapshot.worker.dp_rank,
            active_decode_blocks: Some(snapshot.active_decode_blocks),
            active_prefill_tokens: Some(snapshot.active_prefill_tokens),
            kv_used_blocks: None,
        });
    }

    fn observe_load(&self, _: &WorkerWithDpRank, _: &str, _: usize, _: usize) {}
}
