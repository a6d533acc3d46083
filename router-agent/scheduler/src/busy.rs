//! Busy thresholds that gate: a worker past them gets no requests, a model whose every worker is past them refuses.
//!
//! Owns: thresholds per worker set, the loads that they judge, the verdict. Never does: select or answer HTTP.
//!
//! Source of the rules: Dynamo 1.6.1. A load must be strictly greater than a threshold. Decode has two signals, the
//! scheduler's own count and the worker's report: one of them over latches the rank, and only both below release it. A
//! worker is busy when all of its ranks are. Thresholds cannot be unset. Every new worker set starts from the startup
//! values. A new threshold acts at the worker's next load event.

mod publisher;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use serde::Serialize;

use crate::dynamo::WorkerId;

pub use publisher::Publisher;

/// Bound: what Dynamo takes for a worker that does not report `max_num_batched_tokens`; no fraction of it is ever reached.
const BATCHED_TOKENS_UNKNOWN: u64 = 10_000_000;

/// Thresholds; one that is absent judges nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Thresholds {
    /// Share of KV blocks in use by decode, 0 to 1.
    pub active_decode_blocks_threshold: Option<f64>,
    /// Prefill tokens of one rank.
    pub active_prefill_tokens_threshold: Option<u64>,
    /// The same as a share of `max_num_batched_tokens`, 0 or more.
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

/// A value outside of its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BadThreshold {
    /// Not a share.
    #[error("active_decode_blocks_threshold must be between 0.0 and 1.0, got {0}")]
    Decode(f64),
    /// Not a factor.
    #[error(
        "active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got {0}"
    )]
    PrefillFraction(f64),
}

/// Thresholds can only be set where there are workers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Model '{0}' not found. Thresholds can only be set for discovered models.")]
pub struct UnknownModel(pub String);

/// Every worker of the model is past its thresholds. Answered as 529.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("all workers of model '{0}' are past their busy thresholds; try again later")]
pub struct Overloaded(pub String);

impl Thresholds {
    /// Judges the values.
    ///
    /// # Errors
    /// [`BadThreshold`].
    pub fn check(&self) -> Result<(), BadThreshold> {
        match self.active_decode_blocks_threshold {
            Some(value) if !(0.0..=1.0).contains(&value) => {
                return Err(BadThreshold::Decode(value));
            }
            Some(_) | None => {}
        }
        match self.active_prefill_tokens_threshold_frac {
            Some(value) if !value.is_finite() || value < 0.0 => {
                Err(BadThreshold::PrefillFraction(value))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// These, with the other's where the other has some.
    #[must_use]
    pub fn overlaid(&self, other: &Thresholds) -> Thresholds {
        Thresholds {
            active_decode_blocks_threshold: other
                .active_decode_blocks_threshold
                .or(self.active_decode_blocks_threshold),
            active_prefill_tokens_threshold: other
                .active_prefill_tokens_threshold
                .or(self.active_prefill_tokens_threshold),
            active_prefill_tokens_threshold_frac: other
                .active_prefill_tokens_threshold_frac
                .or(self.active_prefill_tokens_threshold_frac),
        }
    }

    /// True when nothing is judged, or nothing would be set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Thresholds::default()
    }
}

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
    fn new(thresholds: Thresholds) -> WorkerSet {
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
    fn count(&self) -> (usize, usize) {
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

type Sets = BTreeMap<String, BTreeMap<String, Weak<WorkerSet>>>;

/// The worker sets of every model of a frontend.
#[derive(Debug, Clone, Default)]
pub struct Models {
    startup: Thresholds,
    sets: Arc<Mutex<Sets>>,
}

impl Models {
    /// New worker sets start from these.
    #[must_use]
    pub fn new(startup: Thresholds) -> Models {
        Models {
            startup,
            sets: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        for of_model in sets.values_mut() {
            of_model.retain(|_, set| set.strong_count() > 0);
        }
        sets.retain(|_, of_model| !of_model.is_empty());
        sets
    }

    /// A worker set was discovered; it counts for as long as the answer is kept. `set` names it within the model.
    #[must_use]
    pub fn discover(&self, model: &str, set: &str) -> Arc<WorkerSet> {
        let found = Arc::new(WorkerSet::new(self.startup));
        let mut sets = self.lock();
        let of_model = sets.entry(model.to_owned()).or_default();
        of_model.insert(set.to_owned(), Arc::downgrade(&found));
        found
    }

    fn sets(&self, model: &str) -> Vec<Arc<WorkerSet>> {
        let sets = self.lock();
        let of_model = sets.get(model).into_iter().flat_map(BTreeMap::values);
        of_model.filter_map(Weak::upgrade).collect()
    }

    /// Thresholds of a model: those of its first worker set by name. `None` when it has none.
    #[must_use]
    pub fn read(&self, model: &str) -> Option<Thresholds> {
        self.sets(model).first().map(|set| set.thresholds())
    }

    /// Sets what `some` has in every worker set of the model.
    ///
    /// # Errors
    /// [`UnknownModel`].
    pub fn set(&self, model: &str, some: &Thresholds) -> Result<Thresholds, UnknownModel> {
        for set in self.sets(model) {
            set.set(some);
        }
        self.read(model)
            .ok_or_else(|| UnknownModel(model.to_owned()))
    }

    /// Every discovered model with its thresholds, by name.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Thresholds)> {
        let models: Vec<String> = self.lock().keys().cloned().collect();
        let read = |model: String| self.read(&model).map(|thresholds| (model, thresholds));
        models.into_iter().filter_map(read).collect()
    }

    /// Lets a request of the model in, unless all workers of all its worker sets are busy. A model without workers passes:
    /// that is another error, and not this one's.
    ///
    /// # Errors
    /// [`Overloaded`].
    pub fn gate(&self, model: &str) -> Result<(), Overloaded> {
        let counts = self
            .sets(model)
            .iter()
            .map(|set| set.count())
            .fold((0, 0), |(workers, busy), (more, more_busy)| {
                (workers + more, busy + more_busy)
            });
        match counts {
            (0, _) => Ok(()),
            (workers, busy) if workers == busy => Err(Overloaded(model.to_owned())),
            (_, _) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: WorkerId, ranks: u32) -> Capacity {
        Capacity {
            worker: id,
            first_rank: 0,
            ranks,
            total_kv_blocks: Some(100),
            max_num_batched_tokens: Some(1000),
        }
    }

    fn decode(active: Option<u64>, used: Option<u64>) -> Load {
        Load {
            worker: 1,
            active_decode_blocks: active,
            kv_used_blocks: used,
            ..Load::default()
        }
    }

    fn prefill(worker: WorkerId, rank: u32, tokens: u64) -> Load {
        Load {
            worker,
            rank,
            active_prefill_tokens: Some(tokens),
            ..Load::default()
        }
    }

    fn set(thresholds: Thresholds, workers: &[Capacity]) -> (Models, Arc<WorkerSet>) {
        let models = Models::new(thresholds);
        let set = models.discover("m", "a");
        set.configure(workers);
        (models, set)
    }

    fn busy_by_decode() -> Thresholds {
        Thresholds {
            active_decode_blocks_threshold: Some(0.5),
            ..Thresholds::default()
        }
    }

    #[test]
    fn a_load_must_be_strictly_greater() {
        let cases = [
            (busy_by_decode(), decode(Some(50), None), false),
            (busy_by_decode(), decode(Some(51), None), true),
            (busy_by_decode(), decode(None, Some(51)), true),
            (
                Thresholds {
                    active_prefill_tokens_threshold: Some(0),
                    ..Thresholds::default()
                },
                prefill(1, 0, 0),
                false,
            ),
            (
                Thresholds {
                    active_prefill_tokens_threshold: Some(0),
                    ..Thresholds::default()
                },
                prefill(1, 0, 1),
                true,
            ),
            (
                Thresholds {
                    active_prefill_tokens_threshold_frac: Some(0.5),
                    ..Thresholds::default()
                },
                prefill(1, 0, 500),
                false,
            ),
            (
                Thresholds {
                    active_prefill_tokens_threshold_frac: Some(0.5),
                    ..Thresholds::default()
                },
                prefill(1, 0, 501),
                true,
            ),
            (Thresholds::default(), prefill(1, 0, u64::MAX), false),
        ];
        for (thresholds, load, busy) in cases {
            let (models, set) = set(thresholds, &[worker(1, 1)]);
            set.observe(&load);
            assert_eq!(models.gate("m").is_err(), busy, "{thresholds:?} {load:?}");
            assert_eq!(set.overloaded().is_some(), busy);
        }
    }

    #[test]
    fn decode_stays_latched_until_both_signals_are_below() {
        let (models, set) = set(busy_by_decode(), &[worker(1, 1)]);
        let steps = [
            (decode(Some(60), Some(60)), true),
            (decode(Some(10), None), true),
            (decode(None, Some(60)), true),
            (decode(None, Some(10)), false),
            (decode(Some(10), Some(60)), true),
            (decode(None, Some(50)), false),
        ];
        for (at, (load, busy)) in steps.into_iter().enumerate() {
            set.observe(&load);
            assert_eq!(models.gate("m").is_err(), busy, "step {at}");
        }
    }

    #[test]
    fn a_worker_is_busy_when_all_ranks_are_and_a_model_when_all_workers_are() {
        let thresholds = Thresholds {
            active_prefill_tokens_threshold: Some(10),
            ..Thresholds::default()
        };
        let (models, first) = set(thresholds, &[worker(1, 2), worker(2, 1)]);
        let second = models.discover("m", "b");
        second.configure(&[worker(9, 1)]);
        let steps = [
            (&first, prefill(1, 0, 11), None, false),
            (&first, prefill(1, 1, 11), Some(vec![1]), false),
            (&first, prefill(2, 0, 11), Some(vec![1, 2]), false),
            (&second, prefill(9, 0, 11), Some(vec![1, 2]), true),
            (&first, prefill(1, 1, 10), Some(vec![2]), false),
        ];
        for (at, (set, load, busy, refused)) in steps.into_iter().enumerate() {
            set.observe(&load);
            let overloaded = first.overloaded().map(|set| {
                let mut ids: Vec<WorkerId> = set.into_iter().collect();
                ids.sort_unstable();
                ids
            });
            assert_eq!(overloaded, busy, "step {at}");
            assert_eq!(models.gate("m").is_err(), refused, "step {at}");
        }
        drop(second);
        assert!(
            models.gate("m").is_ok(),
            "a set that is gone judges no longer"
        );
    }

    #[test]
    fn a_new_threshold_acts_at_the_next_load_event() {
        let (models, set) = set(Thresholds::default(), &[worker(1, 1)]);
        set.observe(&prefill(1, 0, 5));
        let some = Thresholds {
            active_prefill_tokens_threshold: Some(4),
            ..Thresholds::default()
        };
        assert_eq!(models.set("m", &some), Ok(some));
        assert!(models.gate("m").is_ok());
        set.observe(&prefill(1, 0, 5));
        assert_eq!(models.gate("m"), Err(Overloaded("m".to_owned())));
        assert_eq!(
            models.set("nope", &some),
            Err(UnknownModel("nope".to_owned()))
        );
    }

    #[test]
    fn workers_that_leave_are_forgotten_and_new_sets_start_from_startup_values() {
        let (models, set) = set(busy_by_decode(), &[worker(1, 1)]);
        set.observe(&decode(Some(60), None));
        assert!(set.overloaded().is_some());
        set.configure(&[worker(2, 1)]);
        assert!(set.overloaded().is_none());
        let changed = Thresholds {
            active_decode_blocks_threshold: Some(0.9),
            ..Thresholds::default()
        };
        assert_eq!(models.set("m", &changed), Ok(changed));
        drop(set);
        assert_eq!(models.read("m"), None);
        let _again = models.discover("m", "a");
        assert_eq!(models.read("m"), Some(busy_by_decode()));
    }
}
