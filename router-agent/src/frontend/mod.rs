//! The reference frontend: models with simulated workers behind Dynamo's own scheduler with live policies.
//!
//! For trying, demonstrating and testing the frontend half without Dynamo or a GPU. The workers are simulated; scheduler, KV
//! index, policies, busy thresholds and façade are what a real frontend embeds. A module and not a crate, because
//! `router-agent frontend` is this crate's program and nothing else depends on it alone.
//!
//! Owns: hosted models and the bounds on what is served at a time. Never does: know the log or the agent ([`Reference::target`]
//! is how an agent reaches it).

mod cache;
mod http;
mod listen;
mod metrics;
mod model;
mod plan;
mod role;
pub mod traffic;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::ambient::{self, Tasks};
use scheduler::busy::{Models, Thresholds};
use scheduler::dynamo::WorkerId;
use scheduler::{Invalid, Registration, Registry};
use schemas::{Name, RouterId, WorkerType};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use model::{Completion, LOCAL_PREFILL_TOKENS_MAX, Placed, ServeError};
pub use plan::{ModelPlan, RolePlan, RolesError};
pub use worker::{Counts, Hardware};

use crate::in_process::InProcess;
use model::Model;

/// Bound: requests that are served at a time; more are refused.
pub const REQUESTS_MAX: usize = 512;
/// Bound: tokens of one prompt.
pub const PROMPT_TOKENS_MAX: usize = 32_768;
/// Bound: output tokens of one request.
pub const OUTPUT_TOKENS_MAX: u32 = 1_024;
/// How long [`Reference::stop`] waits for requests that are being served.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Why a model is not hosted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HostError {
    /// There is one of this name.
    #[error("model '{0}' is hosted already")]
    Already(Name),
    /// Its roles do not go together.
    #[error("the roles of model '{model}'")]
    Roles {
        /// Which model.
        model: Name,
        /// Why.
        source: RolesError,
    },
    /// The startup values of a role are refused.
    #[error("the startup values of the {worker_type} router of model '{model}'")]
    Startup {
        /// Which model.
        model: Name,
        /// Which role.
        worker_type: WorkerType,
        /// Why.
        source: Invalid,
    },
}

/// What one worker has done, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// The model that it serves.
    pub model: Name,
    /// Its role.
    pub worker_type: WorkerType,
    /// The worker.
    pub worker: WorkerId,
    /// Since it was added.
    pub counts: Counts,
}

struct Hosted {
    model: Arc<Model>,
    /// Listed for as long as it is hosted, whatever is still served.
    _registrations: Vec<Registration>,
}

/// What was refused, by reason.
#[derive(Debug, Default)]
struct Refused {
    overloaded: AtomicU64,
    crowded: AtomicU64,
    connections: AtomicU64,
}

/// A frontend with simulated workers.
pub struct Reference {
    routers: Registry,
    busy: Models,
    hosted: Mutex<BTreeMap<Name, Hosted>>,
    requests: Arc<Semaphore>,
    refused: Refused,
    tasks: Tasks,
}

impl Reference {
    /// One that hosts nothing yet. New worker sets start from these thresholds.
    #[must_use]
    pub fn new(startup: Thresholds) -> Arc<Reference> {
        Arc::new(Reference {
            routers: Registry::new(),
            busy: Models::new(startup),
            hosted: Mutex::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            refused: Refused::default(),
            tasks: Tasks::new(),
        })
    }

    fn hosted(&self) -> MutexGuard<'_, BTreeMap<Name, Hosted>> {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How an agent in this process reaches it.
    #[must_use]
    pub fn target(&self) -> InProcess {
        InProcess {
            routers: self.routers.clone(),
            models: self.busy.clone(),
            patience: scheduler::facade::PATIENCE,
        }
    }

    /// Hosts a model: one router for each of its roles. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn host(&self, plan: &ModelPlan) -> Result<(), HostError> {
        let mut hosted = self.hosted();
        if hosted.contains_key(&plan.name) {
            return Err(HostError::Already(plan.name.clone()));
        }
        let stop = self.tasks.stopping().child_token();
        let (model, listed) = Model::start(plan, &self.busy, stop)?;
        let register = |(key, control)| {
            let id = RouterId(ambient::new_id());
            self.routers.register(id, key, control)
        };
        let entry = Hosted {
            model,
            _registrations: listed.into_iter().map(register).collect(),
        };
        hosted.insert(plan.name.clone(), entry);
        Ok(())
    }

    /// Takes a model away; what it serves ends. False when it is not hosted.
    pub fn retire(&self, model: &Name) -> bool {
        let Some(hosted) = self.hosted().remove(model) else {
            return false;
        };
        hosted.model.stop.cancel();
        true
    }

    /// Adds a worker like the others of its role. False when the model is not hosted, has no such role, or has the worker.
    pub fn add_worker(&self, model: &Name, role: WorkerType, worker: WorkerId) -> bool {
        self.model(model.as_str())
            .is_ok_and(|model| model.add_worker(role, worker))
    }

    /// Removes a worker; what it serves ends. False when the model is not hosted or has no such worker.
    pub async fn remove_worker(&self, model: &Name, worker: WorkerId) -> bool {
        match self.model(model.as_str()) {
            Ok(model) => model.remove_worker(worker).await,
            Err(_) => false,
        }
    }

    fn model(&self, name: &str) -> Result<Arc<Model>, ServeError> {
        let unknown = || ServeError::UnknownModel(name.to_owned());
        let name = Name::new(name).map_err(|_| unknown())?;
        let found = self.hosted().get(&name).map(|one| Arc::clone(&one.model));
        found.ok_or_else(unknown)
    }

    /// Names of the hosted models.
    #[must_use]
    pub fn models(&self) -> Vec<Name> {
        self.hosted().keys().cloned().collect()
    }

    /// What every worker of every model has done, by model.
    #[must_use]
    pub fn counts(&self) -> Vec<Counted> {
        let hosted = self.hosted();
        let of = |(name, one): (&Name, &Hosted)| {
            let (name, counts) = (name.clone(), one.model.counts().into_iter());
            counts.map(move |(worker_type, worker, counts)| Counted {
                model: name.clone(),
                worker_type,
                worker,
                counts,
            })
        };
        hosted.iter().flat_map(of).collect()
    }

    /// Requests that are being served now.
    #[must_use]
    pub fn serving(&self) -> usize {
        REQUESTS_MAX - self.requests.available_permits()
    }

    /// Which workers a prompt would go to. Books nothing.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn select(&self, model: &str, tokens: &[u32]) -> Result<Placed, ServeError> {
        let found = self.admit(model, tokens)?;
        found.select(&found.prompt(tokens)).await
    }

    /// Serves a prompt. Ready when it is prefilled.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn complete(
        &self,
        model: &str,
        tokens: &[u32],
        max_tokens: u32,
    ) -> Result<Completion, ServeError> {
        let found = self.admit(model, tokens)?;
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            self.refused.crowded.fetch_add(1, Ordering::Relaxed);
            return Err(ServeError::Crowded(REQUESTS_MAX));
        };
        let prompt = found.prompt(tokens);
        let (reader, (placed, pieces)) = model::channel();
        let max_tokens = max_tokens.min(OUTPUT_TOKENS_MAX);
        // A task of its own, so that a reader that goes away leaves no booking behind.
        self.tasks.start("request", async move {
            found.serve(prompt, max_tokens, reader).await;
            drop(permit);
        });
        let placed = placed.await;
        let gone = || ServeError::NoWorker(model.to_owned());
        let placed = placed.map_err(|_| gone())?;
        let placed = placed.inspect_err(|why| self.count(why))?;
        Ok(Completion { placed, pieces })
    }

    /// The model, when it may serve this prompt now.
    fn admit(&self, model: &str, tokens: &[u32]) -> Result<Arc<Model>, ServeError> {
        let found = self.model(model)?;
        if tokens.len() > PROMPT_TOKENS_MAX {
            return Err(ServeError::TooLong {
                tokens: tokens.len(),
                max: PROMPT_TOKENS_MAX,
            });
        }
        let gate = self.busy.gate(model).map_err(ServeError::from);
        gate.inspect_err(|why| self.count(why))?;
        Ok(found)
    }

    fn count(&self, why: &ServeError) {
        if matches!(why, ServeError::Overloaded(_)) {
            self.refused.overloaded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Its HTTP routes; the façade only when `facade_disabled` is false.
    pub fn routes(self: &Arc<Reference>, facade_disabled: bool) -> axum::Router {
        http::routes(Arc::clone(self), facade_disabled)
    }

    /// Serves HTTP here until it stops. The answer is the address that was bound.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn listen(
        self: &Arc<Reference>,
        address: SocketAddr,
        facade_disabled: bool,
    ) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let routes = self.routes(facade_disabled);
        let (stop, me) = (self.tasks.stopping(), Arc::downgrade(self));
        let full = move || {
            if let Some(me) = me.upgrade() {
                me.refused.connections.fetch_add(1, Ordering::Relaxed);
            }
        };
        let serving = listen::serve(listener, routes, full, stop);
        self.tasks.start("http", serving);
        Ok(bound)
    }

    /// Starts a task that ends with the frontend.
    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Completes when the frontend has ended by itself (a task broke).
    pub async fn ended(&self) {
        self.tasks.stopping().cancelled().await;
    }

    /// Ends everything. True when every task ended in time.
    pub async fn stop(&self) -> bool {
        self.tasks.stopping().cancel();
        let ended = self.tasks.stop(STOP_PATIENCE).await;
        let models = std::mem::take(&mut *self.hosted());
        drop(models);
        ended
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}
