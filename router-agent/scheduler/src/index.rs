//! Dynamo's KV index of one router: which worker holds which blocks, told by events, asked per request.
//!
//! Owns: hashing a prompt into blocks as Dynamo does, feeding the index, and turning a match into a request's overlap.
//! Never does: hold blocks (workers do), or select. The index runs on an OS thread of its own that ends with [`Index`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use crate::dynamo::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, KvIndexer, KvIndexerInterface as _, KvIndexerMetrics,
    KvRouterConfig, LocalBlockHash, MatchDetails, OverlapAnalysis, RouterEvent, ScheduleMode,
    ScheduleRequest, TieredMatchDetails, WorkerId, compute_block_hash_for_seq,
    compute_seq_hash_for_block, plain_request,
};

/// The index is gone, or its thread has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the KV index does not answer")]
pub struct IndexGone;

/// A prompt as Dynamo sees it.
#[derive(Debug, Clone)]
pub struct Prompt {
    tokens: usize,
    local: Vec<LocalBlockHash>,
    blocks: Vec<u64>,
}

impl Prompt {
    /// Its length.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Hash of each full block together with all before it: equal hash, equal prefix.
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }
}

/// Dynamo's index of one router's workers.
pub struct Index {
    indexer: KvIndexer,
    config: KvRouterConfig,
    block_size: u32,
    events: AtomicU64,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index")
            .field("block_size", &self.block_size)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl Index {
    /// An empty one. It ends when it is dropped and not before: Dynamo's index panics when it is told of a block after its end.
    #[must_use]
    pub fn new(block_size: u32) -> Index {
        let stop = CancellationToken::new();
        let metrics = Arc::new(KvIndexerMetrics::new_unregistered());
        Index {
            indexer: KvIndexer::new(stop, block_size, metrics),
            config: KvRouterConfig::default(),
            block_size,
            events: AtomicU64::new(0),
        }
    }

    /// Hashes a prompt's full blocks; the rest of its tokens counts, and is never cached.
    #[must_use]
    pub fn prompt(&self, tokens: &[u32]) -> Prompt {
        let local =
            compute_block_hash_for_seq(tokens, self.block_size, BlockHashOptions::default());
        let blocks = compute_seq_hash_for_block(&local);
        Prompt {
            tokens: tokens.len(),
            local,
            blocks,
        }
    }

    /// A request for this prompt with what the index knows of it.
    ///
    /// # Errors
    /// [`IndexGone`].
    pub async fn request(
        &self,
        prompt: &Prompt,
        mode: ScheduleMode,
    ) -> Result<ScheduleRequest, IndexGone> {
        let found = self.indexer.find_matches(prompt.local.clone()).await;
        let overlap_scores = found.map_err(|_| IndexGone)?;
        let tiered = TieredMatchDetails {
            device: MatchDetails {
                overlap_scores,
                ..MatchDetails::default()
            },
            ..TieredMatchDetails::default()
        };
        let analysis = OverlapAnalysis::new(&self.config, self.block_size, &tiered);
        let mut request = plain_request(mode, prompt.tokens);
        request.token_seq = Some(prompt.blocks.clone());
        request.block_hashes = Some(prompt.local.clone());
        request.overlap = analysis.signals();
        Ok(request)
    }

    /// A worker (its rank 0) now holds the prompt's blocks from `first` up to and without `end`.
    pub async fn stored(&self, worker: WorkerId, prompt: &Prompt, first: usize, end: usize) {
        let pairs = prompt.local.iter().zip(&prompt.blocks);
        let blocks = pairs.take(end).skip(first).map(|(local, block)| {
            let (block_hash, tokens_hash) = (ExternalSequenceBlockHash(*block), *local);
            KvCacheStoredBlockData {
                block_hash,
                tokens_hash,
                mm_extra_info: None,
            }
        });
        let blocks: Vec<KvCacheStoredBlockData> = blocks.collect();
        if blocks.is_empty() {
            return;
        }
        let before = first.checked_sub(1).and_then(|at| prompt.blocks.get(at));
        let store = KvCacheStoreData {
            parent_hash: before.map(|block| ExternalSequenceBlockHash(*block)),
            start_position: None,
            blocks,
        };
        self.tell(worker, KvCacheEventData::Stored(store)).await;
    }

    /// A worker no longer holds these blocks.
    pub async fn removed(&self, worker: WorkerId, blocks: &[u64]) {
        if blocks.is_empty() {
            return;
        }
        let hash = |block: &u64| ExternalSequenceBlockHash(*block);
        let remove = KvCacheRemoveData {
            block_hashes: blocks.iter().map(hash).collect(),
        };
        self.tell(worker, KvCacheEventData::Removed(remove)).await;
    }

    async fn tell(&self, worker: WorkerId, data: KvCacheEventData) {
        let event_id = self.events.fetch_add(1, Ordering::Relaxed);
        let dp_rank = 0;
        let event = KvCacheEvent {
            event_id,
            data,
            dp_rank,
        };
        self.indexer
            .apply_event(RouterEvent::new(worker, event))
            .await;
    }

    /// A worker is gone; when this returns nothing of it is matched any more.
    ///
    /// # Errors
    /// [`IndexGone`].
    pub async fn forget(&self, worker: WorkerId) -> Result<(), IndexGone> {
        let reset = self.indexer.reset_worker_dp_rank_and_wait(worker, 0).await;
        reset.map_err(|_| IndexGone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dynamo::WorkerWithDpRank;

    async fn overlap(index: &Index, prompt: &Prompt, worker: WorkerId) -> usize {
        let mode = ScheduleMode::QueryOnly { request_id: None };
        let request = index.request(prompt, mode).await.unwrap();
        let device = request.overlap.tier_overlap_blocks.device;
        let rank = WorkerWithDpRank::new(worker, 0);
        device.get(&rank).copied().unwrap_or(0)
    }

    #[tokio::test]
    async fn what_workers_store_and_remove_is_what_requests_overlap_with() {
        let index = Index::new(4);
        let tokens: Vec<u32> = (0..18).collect();
        let prompt = index.prompt(&tokens);
        assert_eq!((prompt.tokens(), prompt.blocks().len()), (18, 4));
        let longer = index.prompt(&[tokens.as_slice(), &[7, 7]].concat());
        assert_eq!(longer.blocks()[..4], *prompt.blocks());
        index.stored(1, &prompt, 0, 2).await;
        index.stored(1, &prompt, 2, 4).await;
        index.stored(2, &prompt, 0, 1).await;
        // Applied in order, so that the answer to a reset comes after everything before it.
        index.forget(9).await.unwrap();
        assert_eq!(overlap(&index, &longer, 1).await, 4);
        assert_eq!(overlap(&index, &longer, 2).await, 1);
        index.removed(1, &prompt.blocks()[3..]).await;
        index.forget(2).await.unwrap();
        assert_eq!(overlap(&index, &prompt, 1).await, 3);
        assert_eq!(overlap(&index, &prompt, 2).await, 0);
    }
}
