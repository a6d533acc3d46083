//! One role of a hosted model: Dynamo's scheduler with a live policy, its index, and simulated workers.
//!
//! Owns: bookings, and the workers. Never does: know the other roles, or HTTP.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use scheduler::builtin::BuiltIn;
use scheduler::busy::{Overloaded, WorkerSet};
use scheduler::dynamo::{KvSchedulerError, Plan, ScheduleMode, Scheduler, WorkerId, start};
use scheduler::index::{Index, IndexGone, Prompt};
use scheduler::{Control, Invalid, LiveSelector, Unattached};
use schemas::{Name, RouterKey, WorkerType};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::model::{Piece, Placing, ServeError};
use super::plan::RolePlan;
use super::worker::{Counts, Gone, Hardware, Worker};

/// What a role is started from.
pub(super) struct Start<'a> {
    pub(super) model: &'a Name,
    pub(super) block_size: u32,
    pub(super) plan: &'a RolePlan,
    /// Number of its first worker.
    pub(super) first: WorkerId,
    pub(super) busy: Arc<WorkerSet>,
    pub(super) stop: CancellationToken,
}

pub(super) struct Role {
    pub(super) worker_type: WorkerType,
    model: Name,
    scheduler: Arc<Scheduler<Hardware>>,
    index: Index,
    workers: watch::Sender<HashMap<WorkerId, Hardware>>,
    pool: Mutex<BTreeMap<WorkerId, Arc<Worker>>>,
    hardware: Hardware,
    block_size: u32,
    requests: AtomicU64,
    stop: CancellationToken,
}

/// What a scheduler has booked. It stays booked until [`Role::free`].
pub(super) struct Booked {
    id: String,
    worker: Arc<Worker>,
    /// Tokens of the prompt that the index knew at the worker.
    pub(super) known_tokens: usize,
}

impl Booked {
    pub(super) fn worker(&self) -> WorkerId {
        self.worker.id
    }
}

/// Where a prompt was prefilled (or would be).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefilled {
    pub(super) worker: WorkerId,
    pub(super) cached_tokens: usize,
}

/// Why a request ends before its first output token.
#[derive(Debug)]
pub(super) enum Ended {
    /// Nobody listens any more.
    Left,
    Refused(ServeError),
}

impl From<ServeError> for Ended {
    fn from(why: ServeError) -> Ended {
        Ended::Refused(why)
    }
}

/// The selector of a role, before anything runs.
///
/// # Errors
/// [`Invalid`]: its startup values are refused.
pub(super) fn selector(plan: &RolePlan) -> Result<(LiveSelector, Unattached), Invalid> {
    LiveSelector::new(BuiltIn::policy(&plan.startup)?)
}

impl Role {
    /// Starts its scheduler, index and workers; all end with `stop`, the index with the role.
    pub(super) fn start(
        start_from: Start<'_>,
        (selector, unattached): (LiveSelector, Unattached),
    ) -> (Role, RouterKey, Control) {
        let Start {
            model,
            block_size,
            plan,
            first,
            busy,
            stop,
        } = start_from;
        let ids = first..first + plan.workers;
        let hardware: HashMap<WorkerId, Hardware> =
            ids.clone().map(|id| (id, plan.hardware.clone())).collect();
        let (workers, seen) = watch::channel(hardware);
        let worker_type = plan.startup.worker_type;
        let scheduling = Plan {
            workers: seen,
            block_size,
            worker_type,
            queue_threshold: None,
            recheck_interval: Duration::from_secs(60),
            track_prefill_tokens: worker_type != WorkerType::Decode
                || plan.startup.conditional_decode,
            busy,
            stop: stop.clone(),
        };
        let (scheduler, control) = start(scheduling, selector, unattached);
        let role = Role {
            worker_type,
            model: model.clone(),
            scheduler,
            // SUBTLE: not ended by `stop`: Dynamo's index panics when it is told of a block after its end, and a worker may be
            // about to (`regression_a_model_that_is_retired_while_it_prefills_breaks_nothing`).
            index: Index::new(block_size),
            workers,
            pool: Mutex::default(),
            hardware: plan.hardware.clone(),
            block_size,
            requests: AtomicU64::new(0),
            stop,
        };
        for id in ids {
            let worker = role.worker(id);
            role.pool().insert(id, worker);
        }
        let key = RouterKey {
            model: model.clone(),
            worker_type,
            endpoint: plan.endpoint.clone(),
        };
        (role, key, control)
    }

    fn pool(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Arc<Worker>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn worker(&self, id: WorkerId) -> Arc<Worker> {
        let (hardware, stop) = (self.hardware.clone(), self.stop.child_token());
        Arc::new(Worker::new(id, hardware, self.block_size, stop))
    }

    pub(super) fn has(&self, id: WorkerId) -> bool {
        self.pool().contains_key(&id)
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

    pub(super) fn counts(&self) -> Vec<(WorkerId, Counts)> {
        let pool = self.pool();
        pool.iter().map(|(id, one)| (*id, one.counts())).collect()
    }

    pub(super) fn prompt(&self, tokens: &[u32]) -> Prompt {
        self.index.prompt(tokens)
    }

    fn no_worker(&self) -> ServeError {
        ServeError::NoWorker(self.model.to_string())
    }

    fn refusal(&self, why: &KvSchedulerError) -> ServeError {
        if why.is_overload() {
            ServeError::Overloaded(Overloaded(self.model.to_string()))
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
    pub(super) async fn select(&self, prompt: &Prompt) -> Result<Prefilled, ServeError> {
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
        Ok(Prefilled {
            worker: selected.best_worker.worker_id,
            cached_tokens: selected.cached_tokens,
        })
    }

    /// Books a request on the worker that the scheduler selects.
    pub(super) async fn book(&self, prompt: &Prompt) -> Result<Booked, ServeError> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let id = format!("request-{number}");
        let mode = ScheduleMode::Tracked {
            request_id: id.clone(),
        };
        let asked = async {
            let request = self.index.request(prompt, mode).await;
            let request = request.map_err(|IndexGone| self.no_worker())?;
            let booked = self.scheduler.schedule_request(request).await;
            booked.map_err(|why| self.refusal(&why))
        };
        let booked = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(self.no_worker()),
            booked = asked => booked?,
        };
        let worker = self.pool().get(&booked.best_worker.worker_id).cloned();
        match worker {
            Some(worker) => Ok(Booked {
                id,
                worker,
                known_tokens: booked.cached_tokens,
            }),
            None => {
                self.release(&id).await;
                Err(self.no_worker())
            }
        }
    }

    /// Ends a booking.
    pub(super) async fn free(&self, booked: Booked) {
        self.release(&booked.id).await;
    }

    async fn release(&self, id: &str) {
        if let Err(why) = self.scheduler.free(id).await {
            // The scheduler freed it itself, with its worker.
            tracing::debug!(request = id, error = %why, "nothing to free");
        }
    }

    /// Books, prefills and frees: all of a request's course through a role that only prepares.
    pub(super) async fn pass(
        &self,
        prompt: &Prompt,
        placing: &mut Placing,
    ) -> Result<Prefilled, Ended> {
        let booked = self.book(prompt).await?;
        let prefilled = self.prefill(&booked, prompt, placing).await;
        self.free(booked).await;
        prefilled
    }

    /// Prefills, for as long as somebody listens.
    pub(super) async fn prefill(
        &self,
        booked: &Booked,
        prompt: &Prompt,
        placing: &mut Placing,
    ) -> Result<Prefilled, Ended> {
        let prefilled = tokio::select! {
            biased;
            () = placing.closed() => return Err(Ended::Left),
            prefilled = booked.worker.prefill(&self.index, prompt) => prefilled,
        };
        let cached_tokens = prefilled.map_err(|Gone| self.no_worker())?;
        self.prefilled(booked).await;
        Ok(Prefilled {
            worker: booked.worker(),
            cached_tokens,
        })
    }

    /// Takes the blocks of a prompt that another role has prefilled.
    pub(super) async fn receive(&self, booked: &Booked, prompt: &Prompt) -> Result<(), ServeError> {
        let received = booked.worker.receive(&self.index, prompt).await;
        received.map_err(|Gone| self.no_worker())?;
        self.prefilled(booked).await;
        Ok(())
    }

    async fn prefilled(&self, booked: &Booked) {
        if let Err(why) = self.scheduler.mark_prefill_completed(&booked.id).await {
            tracing::debug!(request = booked.id, error = %why, "prefill of a request that is gone");
        }
    }

    /// Sends output tokens until the end, or until nobody takes them.
    pub(super) async fn decode(
        &self,
        booked: &Booked,
        max_tokens: u32,
        pieces: &mpsc::Sender<Piece>,
    ) {
        for number in 0..max_tokens {
            let piece = match booked.worker.decode().await {
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
