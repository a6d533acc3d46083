//! One hosted model: Dynamo's scheduler with a live policy, its index, and simulated workers.
//!
//! Owns: a request's course (select, prefill, decode, free) and the workers. Never does: HTTP.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::busy::WorkerSet;
use scheduler::dynamo::{KvSchedulerError, Plan, ScheduleMode, Scheduler, WorkerId, start};
use scheduler::index::{Index, IndexGone, Prompt};
use scheduler::{Control, Invalid, LiveSelector};
use schemas::{Endpoint, Name, RouterKey, WorkerType};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::worker::{Counts, Gone, Hardware, Worker};

/// Bound: output of one request that its reader has not taken yet.
const PIECES_MAX: usize = 16;

/// A model to host.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// Its name.
    pub name: Name,
    /// Dynamo endpoint that its workers would have.
    pub endpoint: Endpoint,
    /// Workers 0 up to this.
    pub workers: u64,
    /// What each is made of.
    pub hardware: Hardware,
    /// Tokens per KV block.
    pub block_size: u32,
    /// Startup values of the policy.
    pub startup: Startup,
}

impl ModelPlan {
    /// Four ordinary workers behind Dynamo's default policy.
    #[must_use]
    pub fn new(name: Name, endpoint: Endpoint) -> ModelPlan {
        ModelPlan {
            name,
            endpoint,
            workers: 4,
            hardware: Hardware::default(),
            block_size: 16,
            startup: Startup::of(WorkerType::Aggregated),
        }
    }
}

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Not hosted here.
    #[error("model '{0}' not found")]
    UnknownModel(String),
    /// Every worker is past its busy thresholds.
    #[error(transparent)]
    Overloaded(#[from] scheduler::busy::Overloaded),
    /// Too many requests at a time.
    #[error("this frontend serves {0} requests already; try again later")]
    Crowded(usize),
    /// A prompt that is too long.
    #[error("the prompt has {tokens} tokens; at most {max} are taken")]
    TooLong {
        /// Its length.
        tokens: usize,
        /// The limit.
        max: usize,
    },
    /// No worker, or the worker, model or frontend went away meanwhile.
    #[error("no worker of model '{0}' is there to serve this; try again")]
    NoWorker(String),
    /// The scheduler refused.
    #[error("the scheduler refused: {0}")]
    Scheduler(String),
}

/// Which worker serves a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placed {
    /// The worker.
    pub worker: WorkerId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them in the worker's cache.
    pub cached_tokens: usize,
}

/// A request that is being served. Dropping it ends it.
#[derive(Debug)]
pub struct Completion {
    /// Where.
    pub placed: Placed,
    /// Output tokens until the end, or why there are no more.
    pub pieces: mpsc::Receiver<Result<String, ServeError>>,
}

/// The outgoing half of a [`Completion`].
pub(super) struct Reader {
    placed: oneshot::Sender<Result<Placed, ServeError>>,
    pieces: mpsc::Sender<Result<String, ServeError>>,
}

type Incoming = (
    oneshot::Receiver<Result<Placed, ServeError>>,
    mpsc::Receiver<Result<String, ServeError>>,
);

pub(super) fn channel() -> (Reader, Incoming) {
    let (placed, place) = oneshot::channel();
    let (pieces, output) = mpsc::channel(PIECES_MAX);
    (Reader { placed, pieces }, (place, output))
}

pub(super) struct Model {
    name: Name,
    scheduler: Arc<Scheduler<Hardware>>,
    index: Index,
    workers: watch::Sender<HashMap<WorkerId, Hardware>>,
    pool: Mutex<BTreeMap<WorkerId, Arc<Worker>>>,
    hardware: Hardware,
    block_size: u32,
    requests: AtomicU64,
    pub(super) stop: CancellationToken,
}

impl Model {
    /// Starts its scheduler, index and workers; all end with `stop`.
    pub(super) fn start(
        plan: &ModelPlan,
        busy: Arc<WorkerSet>,
        stop: CancellationToken,
    ) -> Result<(Arc<Model>, RouterKey, Control), Invalid> {
        let policy = BuiltIn::policy(&plan.startup)?;
        let (selector, unattached) = LiveSelector::new(policy)?;
        let ids = 0..plan.workers;
        let hardware: HashMap<WorkerId, Hardware> =
            ids.clone().map(|id| (id, plan.hardware.clone())).collect();
        let (workers, seen) = watch::channel(hardware);
        let worker_type = plan.startup.worker_type;
        let scheduling = Plan {
            workers: seen,
            block_size: plan.block_size,
            worker_type,
            queue_threshold: None,
            recheck_interval: Duration::from_secs(60),
            track_prefill_tokens: worker_type != WorkerType::Decode,
            busy,
            stop: stop.clone(),
        };
        let (scheduler, control) = start(scheduling, selector, unattached);
        let model = Model {
            name: plan.name.clone(),
            scheduler,
            index: Index::new(plan.block_size, stop.child_token()),
            workers,
            pool: Mutex::default(),
            hardware: plan.hardware.clone(),
            block_size: plan.block_size,
            requests: AtomicU64::new(0),
            stop,
        };
        for id in ids {
            let worker = model.worker(id);
            model.pool().insert(id, worker);
        }
        let key = RouterKey {
            model: plan.name.clone(),
            worker_type,
            endpoint: plan.endpoint.clone(),
        };
        Ok((Arc::new(model), key, control))
    }

    fn pool(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Arc<Worker>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self, id: WorkerId) -> Arc<Worker> {
        let (hardware, stop) = (self.hardware.clone(), self.stop.child_token());
        Arc::new(Worker::new(id, hardware, self.block_size, stop))
    }

    /// False when it is there already.
    pub(super) fn add_worker(&self, id: WorkerId) -> bool {
        let mut pool = self.pool();
        if pool.contains_key(&id) {
            return false;
        }
        pool.insert(id, self.worker(id));
        let hardware = self.hardware.clone();
        self.workers.send_modify(|workers| {
            workers.insert(id, hardware);
        });
        true
    }

    /// False when it is not there. Its requests end with [`ServeError::NoWorker`].
    pub(super) async fn remove_worker(&self, id: WorkerId) -> bool {
        let Some(worker) = self.pool().remove(&id) else {
            return false;
        };
        self.workers.send_modify(|workers| {
            workers.remove(&id);
        });
        worker.retire(&self.index).await;
        true
    }

    pub(super) fn counts(&self) -> BTreeMap<WorkerId, Counts> {
        let counts = |(id, worker): (&WorkerId, &Arc<Worker>)| (*id, worker.counts());
        self.pool().iter().map(counts).collect()
    }

    pub(super) fn prompt(&self, tokens: &[u32]) -> Prompt {
        self.index.prompt(tokens)
    }

    fn no_worker(&self) -> ServeError {
        ServeError::NoWorker(self.name.to_string())
    }

    fn refusal(&self, why: &KvSchedulerError) -> ServeError {
        if why.is_overload() {
            ServeError::Overloaded(scheduler::busy::Overloaded(self.name.to_string()))
        } else if matches!(
            why,
            KvSchedulerError::NoEndpoints | KvSchedulerError::SubscriberShutdown
        ) {
            self.no_worker()
        } else {
            ServeError::Scheduler(why.to_string())
        }
    }

    /// Which worker a request would go to. Books nothing.
    pub(super) async fn select(&self, prompt: &Prompt) -> Result<Placed, ServeError> {
        let mode = ScheduleMode::QueryOnly { request_id: None };
        let asked = async {
            let request = self.index.request(prompt, mode).await;
            let request = request.map_err(|IndexGone| self.no_worker())?;
            let selected = self.scheduler.select_without_admission(request).await;
            selected.map_err(|why| self.refusal(&why))
        };
        let selected = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(self.no_worker()),
            selected = asked => selected?.response,
        };
        Ok(Placed {
            worker: selected.best_worker.worker_id,
            prompt_tokens: prompt.tokens(),
            cached_tokens: selected.cached_tokens,
        })
    }

    /// Serves one request to its end, whoever still listens: what was booked is always freed.
    pub(super) async fn serve(&self, prompt: Prompt, max_tokens: u32, reader: Reader) {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let id = format!("request-{number}");
        let booked = tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(self.no_worker()),
            booked = self.book(&id, &prompt) => booked,
        };
        match booked {
            Ok(worker) => {
                self.run(&id, worker, &prompt, max_tokens, reader).await;
                if let Err(why) = self.scheduler.free(&id).await {
                    // The scheduler freed it itself, with its worker.
                    tracing::debug!(request = id, error = %why, "nothing to free");
                }
            }
            Err(why) => drop(reader.placed.send(Err(why))),
        }
    }

    async fn book(&self, id: &str, prompt: &Prompt) -> Result<WorkerId, ServeError> {
        let mode = ScheduleMode::Tracked {
            request_id: id.to_owned(),
        };
        let request = self.index.request(prompt, mode).await;
        let request = request.map_err(|IndexGone| self.no_worker())?;
        let booked = self.scheduler.schedule_request(request).await;
        let booked = booked.map_err(|why| self.refusal(&why))?;
        Ok(booked.best_worker.worker_id)
    }

    async fn run(
        &self,
        id: &str,
        worker: WorkerId,
        prompt: &Prompt,
        max_tokens: u32,
        reader: Reader,
    ) {
        let Reader { mut placed, pieces } = reader;
        let Some(worker) = self.pool().get(&worker).cloned() else {
            drop(placed.send(Err(self.no_worker())));
            return;
        };
        let prefilled = tokio::select! {
            biased;
            () = placed.closed() => return,
            prefilled = worker.prefill(&self.index, prompt) => prefilled,
        };
        let cached_tokens = match prefilled {
            Ok(cached) => cached,
            Err(Gone) => return drop(placed.send(Err(self.no_worker()))),
        };
        if let Err(why) = self.scheduler.mark_prefill_completed(id).await {
            tracing::debug!(request = id, error = %why, "prefill of a request that is gone");
        }
        let answer = Placed {
            worker: worker.id,
            prompt_tokens: prompt.tokens(),
            cached_tokens,
        };
        if placed.send(Ok(answer)).is_err() {
            return;
        }
        for number in 0..max_tokens {
            let piece = match worker.decode().await {
                Ok(()) => Ok(word(number)),
                Err(Gone) => Err(self.no_worker()),
            };
            let last = piece.is_err();
            let sent = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                sent = pieces.send(piece) => sent,
            };
            if sent.is_err() || last {
                return;
            }
        }
    }
}

/// What a simulated worker says.
fn word(number: u32) -> String {
    const WORDS: [&str; 8] = [
        "every ", "request ", "finds ", "the ", "worker ", "that ", "knows ", "it ",
    ];
    WORDS[number as usize % WORDS.len()].to_owned()
}
