//! The workers behind one scheduler: their loads, and which of them are busy.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::busy::Thresholds;
use crate::dynamo::WorkerId;

/// Bound: what Dynamo takes for a worker that does not report `max_num_batched_tokens`; no fraction of it is ever reached.
const BATCHED_TOKENS_UNKNOWN: u64 = 10_000_000;

/// What a worker can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Which worker.
    pub worker: WorkerId,
    /// Its first rank.
    pub first_rank: u32,
    /// How many ranks.
    pub ranks: u32,
    /// KV blocks of one rank; unknown judges no decode load.
    pub total_kv_blocks: Option<u64>,
    /// Tokens of one batch.
    pub max_num_batched_tokens: Option<u64>,
}

/// A load event of one rank. What is absent is as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Which worker.
    pub worker: WorkerId,
    /// Which of its ranks.
    pub rank: u32,
    /// Decode blocks, as the scheduler counts them.
    pub active_decode_blocks: Option<u64>,
    /// KV blocks in use, as the worker reports them.
    pub kv_used_blocks: Option<u64>,
    /// Tokens in prefill, as the scheduler counts them.
    pub active_prefill_tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    prefill_tokens: u64,
    /// The last value of each signal, judged when it came. The rank stays busy until both are below.
    active_over: bool,
    used_over: bool,
}

#[derive(Debug, Default)]
struct Worker {
    ranks: BTreeMap<u32, Rank>,
    total_kv_blocks: Option<u64>,
    max_num_batched_tokens: Option<u64>,
    busy: bool,
}

#[derive(Debug, Default)]
struct State {
    thresholds: Thresholds,
    workers: BTreeMap<WorkerId, Worker>,
}

/// Where a worker set learns of changed workers by itself; `None` when nothing changed.
pub type Capacities = Box<dyn Fn() -> Option<Vec<Capacity>> + Send + Sync>;

/// The workers behind one scheduler.
#[derive(Default)]
pub struct WorkerSet {
    state: Mutex<State>,
    capacities: OnceLock<Capacities>,
}

impl std::fmt::Debug for WorkerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lock().fmt(f)
    }
}

impl WorkerSet {
    pub(super) fn new(thresholds: Thresholds) -> WorkerSet {
        let set = WorkerSet::default();
        set.lock().thresholds = thresholds;
        set
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks here for changed workers, before selections and at the gate. The first source stays.
    pub fn follow(&self, capacities: Capacities) {
        let _ = self.capacities.set(capacities);
        self.refresh();
    }

    /// Looks for changed workers. Must not be called while the source's own lock is held.
    pub(crate) fn refresh(&self) {
        if let Some(changed) = self.capacities.get().and_then(|source| source()) {
            self.configure(&changed);
        }
    }

    /// These are the workers now. Loads of workers and ranks that stay are kept.
    pub fn configure(&self, workers: &[Capacity]) {
        let mut state = self.lock();
        let mut before = std::mem::take(&mut state.workers);
        for capacity in workers {
            let mut worker = before.remove(&capacity.worker).unwrap_or_default();
            let ranks = capacity.first_rank..capacity.first_rank.saturating_add(capacity.ranks);
            worker.ranks.retain(|rank, _| ranks.contains(rank));
            for rank in ranks {
                worker.ranks.entry(rank).or_default();
            }
            worker.total_kv_blocks = capacity.total_kv_blocks;
            worker.max_num_batched_tokens = capacity.max_num_batched_tokens;
            worker.judge(&state.thresholds);
            state.workers.insert(capacity.worker, worker);
        }
    }

    /// A load event. Events of unknown workers and ranks are ignored.
    pub fn observe(&self, load: &Load) {
        let mut state = self.lock();
        let thresholds = state.thresholds;
        let Some(worker) = state.workers.get_mut(&load.worker) else {
            return;
        };
        let total = worker.total_kv_blocks;
        let Some(rank) = worker.ranks.get_mut(&load.rank) else {
            return;
        };
        rank.observe(load, &thresholds, total);
        worker.judge(&thresholds);
    }

    /// Its thresholds.
    #[must_use]
    pub fn thresholds(&self) -> Thresholds {
        self.lock().thresholds
    }

    /// Sets what `some` has. Acts at each worker's next load event.
    pub fn set(&self, some: &Thresholds) {
        let mut state = self.lock();
        state.thresholds = state.thresholds.overlaid(some);
    }

    /// The busy workers, for a scheduler; `None` when nobody is. Allocates only when somebody is (the crate wants a set of
    /// its own). Does not look for changed workers: a scheduler asks while it holds them.
    #[must_use]
    pub fn overloaded(&self) -> Option<HashSet<WorkerId>> {
        let state = self.lock();
        let busy = |(id, worker): (&WorkerId, &Worker)| worker.busy.then_some(*id);
        let mut workers = state.workers.iter().filter_map(busy).peekable();
        workers.peek()?;
        Some(workers.collect())
    }

    /// Workers, and those of them that are busy.
    pub(super) fn count(&self) -> (usize, usize) {
        self.refresh();
        let state = self.lock();
        let busy = state.workers.values().filter(|worker| worker.busy).count();
        (state.workers.len(), busy)
    }
}

impl Rank {
    fn observe(&mut self, load: &Load, thresholds: &Thresholds, total: Option<u64>) {
        if let Some(tokens) = load.active_prefill_tokens {
            self.prefill_tokens = tokens;
        }
        let (Some(threshold), Some(total)) = (thresholds.active_decode_blocks_threshold, total)
        else {
            return;
        };
        let over = |blocks: u64| total > 0 && blocks as f64 > threshold * total as f64;
        if let Some(blocks) = load.active_decode_blocks {
            self.active_over = over(blocks);
        }
        if let Some(blocks) = load.kv_used_blocks {
            self.used_over = over(blocks);
        }
    }

    fn is_busy(&self, thresholds: &Thresholds, max_num_batched_tokens: u64) -> bool {
        let tokens = self.prefill_tokens;
        let past = |threshold: u64| tokens > threshold;
        let past_share = |share: f64| tokens as f64 > share * max_num_batched_tokens as f64;
        self.active_over
            || self.used_over
            || thresholds.active_prefill_tokens_threshold.is_some_and(past)
            || thresholds
                .active_prefill_tokens_threshold_frac
                .is_some_and(past_share)
    }
}

impl Worker {
    fn judge(&mut self, thresholds: &Thresholds) {
        let batch = self
            .max_num_batched_tokens
            .unwrap_or(BATCHED_TOKENS_UNKNOWN);
        let busy = |rank: &Rank| rank.is_busy(thresholds, batch);
        self.busy = !self.ranks.is_empty() && self.ranks.values().all(busy);
    }
}
