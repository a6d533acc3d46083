//! One simulated worker: it takes time to prefill and to decode, and what it prefilled stays in its KV cache for a while.
//!
//! Owns: its cache, and telling the index of every block that comes and goes. Never does: choose requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use scheduler::dynamo::{WorkerConfigLike, WorkerId};
use scheduler::index::{Index, Prompt};
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::cache::Cache;

/// What a simulated worker is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Hardware {
    /// KV blocks that it holds.
    pub kv_blocks: u32,
    /// Tokens of one batch; busy thresholds as a share are shares of it.
    pub max_num_batched_tokens: u64,
    /// Speed of prefill, for tokens that are not cached. One prompt at a time.
    pub prefill_tokens_per_s: f64,
    /// Time for one output token.
    pub decode_per_token: Duration,
}

impl Default for Hardware {
    fn default() -> Hardware {
        Hardware {
            kv_blocks: 320,
            max_num_batched_tokens: 8_192,
            prefill_tokens_per_s: 40_000.0,
            decode_per_token: Duration::from_millis(3),
        }
    }
}

impl WorkerConfigLike for Hardware {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        1
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        Some(self.max_num_batched_tokens)
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(u64::from(self.kv_blocks))
    }
}

/// What one worker has done since it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that it served.
    pub requests: u64,
    /// Full blocks of the prompts that it prefilled.
    pub prompt_blocks: u64,
    /// Those of them that were in its cache.
    pub hit_blocks: u64,
}

/// The worker was removed while it served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    hardware: Hardware,
    block_size: u32,
    /// One prefill at a time; also keeps the events of this worker in order.
    engine: Mutex<Cache>,
    stop: CancellationToken,
    requests: AtomicU64,
    prompt_blocks: AtomicU64,
    hit_blocks: AtomicU64,
}

impl Worker {
    pub(super) fn new(
        id: WorkerId,
        hardware: Hardware,
        block_size: u32,
        stop: CancellationToken,
    ) -> Worker {
        Worker {
            id,
            engine: Mutex::new(Cache::new(hardware.kv_blocks as usize)),
            hardware,
            block_size,
            stop,
            requests: AtomicU64::new(0),
            prompt_blocks: AtomicU64::new(0),
            hit_blocks: AtomicU64::new(0),
        }
    }

    /// Prefills; the answer is how many of the prompt's tokens were cached.
    pub(super) async fn prefill(&self, index: &Index, prompt: &Prompt) -> Result<usize, Gone> {
        let mut cache = self.engine().await?;
        let held = cache.held(prompt.blocks());
        let cached = held * self.block_size as usize;
        let fresh = prompt.tokens().saturating_sub(cached);
        let seconds = fresh as f64 / self.hardware.prefill_tokens_per_s.max(1.0);
        self.pause(Duration::from_secs_f64(seconds)).await?;
        self.hold(&mut cache, index, prompt).await;
        let count = |counter: &AtomicU64, more: usize| {
            counter.fetch_add(more as u64, Ordering::Relaxed);
        };
        count(&self.requests, 1);
        count(&self.prompt_blocks, prompt.blocks().len());
        count(&self.hit_blocks, held);
        Ok(cached)
    }

    /// Takes the blocks that another worker has prefilled.
    pub(super) async fn receive(&self, index: &Index, prompt: &Prompt) -> Result<(), Gone> {
        let mut cache = self.engine().await?;
        self.hold(&mut cache, index, prompt).await;
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn engine(&self) -> Result<MutexGuard<'_, Cache>, Gone> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Gone),
            cache = self.engine.lock() => Ok(cache),
        }
    }

    /// Holds a prompt's blocks, and says so; what they push out first.
    async fn hold(&self, cache: &mut Cache, index: &Index, prompt: &Prompt) {
        let admitted = cache.admit(prompt.blocks());
        index.removed(self.id, &admitted.evicted).await;
        let (first, end) = (admitted.first, admitted.end);
        index.stored(self.id, prompt, first, end).await;
    }

    /// One output token.
    pub(super) async fn decode(&self) -> Result<(), Gone> {
        self.pause(self.hardware.decode_per_token).await
    }

    async fn pause(&self, time: Duration) -> Result<(), Gone> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Gone),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    /// Ends everything that it serves; when this returns the index knows nothing of it.
    pub(super) async fn retire(&self, index: &Index) {
        self.stop.cancel();
        let mut cache = self.engine.lock().await;
        cache.clear();
        if index.forget(self.id).await.is_err() {
            tracing::debug!(worker = self.id, "the index was gone before the worker");
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            requests: self.requests.load(Ordering::Relaxed),
            prompt_blocks: self.prompt_blocks.load(Ordering::Relaxed),
            hit_blocks: self.hit_blocks.load(Ordering::Relaxed),
        }
    }
}
