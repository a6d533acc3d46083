//! One hosted model: a request's course through its roles.
//!
//! Aggregated: select, prefill, decode, free. Disaggregated: a prefill worker prefills, then a decode worker is selected, is
//! given the blocks, and decodes. Conditional decode: the decode worker is selected first, and prefills itself what it has
//! little of to prefill. Encode workers, where there are some, come before everything.
//!
//! Owns: the roles and the order in which they serve. Never does: HTTP.

use std::sync::Arc;

use scheduler::Control;
use scheduler::busy::Models;
use scheduler::dynamo::WorkerId;
use scheduler::index::Prompt;
use schemas::{RouterKey, WorkerType};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::HostError;
use super::plan::{ModelPlan, RolesError};
use super::role::{Booked, Ended, Prefilled, Role, Start, selector};
use super::worker::Counts;

/// Bound: output of one request that its reader has not taken yet.
const PIECES_MAX: usize = 16;
/// A conditional decode worker prefills itself when at most so many tokens of the prompt are new to it.
pub const LOCAL_PREFILL_TOKENS_MAX: usize = 64;

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Not hosted here.
    #[error("model '{0}' not found")]
    UnknownModel(String),
    /// Every worker (of a role that the request needs) is past its busy thresholds.
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

/// Which workers serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The encode worker, of a model that has some.
    pub encode_worker: Option<WorkerId>,
    /// The worker that prefills.
    pub prefill_worker: WorkerId,
    /// The worker that decodes; the same one unless the model is disaggregated.
    pub decode_worker: WorkerId,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them in the cache of the worker that prefills.
    pub cached_tokens: usize,
}

/// One output token, or why there are no more.
pub(super) type Piece = Result<String, ServeError>;

/// A request that is being served. Dropping it ends it.
#[derive(Debug)]
pub struct Completion {
    /// Where.
    pub placed: Placed,
    /// Output tokens until the end, or why there are no more.
    pub pieces: mpsc::Receiver<Result<String, ServeError>>,
}

/// Waits to hear where a request is served.
pub(super) type Placing = oneshot::Sender<Result<Placed, ServeError>>;

/// The outgoing half of a [`Completion`].
pub(super) struct Reader {
    placed: Placing,
    pieces: mpsc::Sender<Piece>,
}

type Incoming = (
    oneshot::Receiver<Result<Placed, ServeError>>,
    mpsc::Receiver<Piece>,
);

pub(super) fn channel() -> (Reader, Incoming) {
    let (placed, place) = oneshot::channel();
    let (pieces, output) = mpsc::channel(PIECES_MAX);
    (Reader { placed, pieces }, (place, output))
}

pub(super) struct Model {
    encode: Option<Role>,
    /// Only of a disaggregated model.
    prefill: Option<Role>,
    /// Aggregated or decode: it has the request until its end.
    last: Role,
    conditional: bool,
    pub(super) stop: CancellationToken,
}

/// A router of a model, to be listed.
pub(super) type Listed = (RouterKey, Control);

impl Model {
    /// Starts its roles; all end with `stop`. Nothing runs when one of them is refused.
    pub(super) fn start(
        plan: &ModelPlan,
        busy: &Models,
        stop: CancellationToken,
    ) -> Result<(Arc<Model>, Vec<Listed>), HostError> {
        let wrong = |source| HostError::Roles {
            model: plan.name.clone(),
            source,
        };
        plan.check().map_err(wrong)?;
        let selectors: Result<Vec<_>, HostError> = plan
            .roles
            .iter()
            .map(|role| {
                selector(role).map_err(|source| HostError::Startup {
                    model: plan.name.clone(),
                    worker_type: role.startup.worker_type,
                    source,
                })
            })
            .collect();
        let (mut encode, mut prefill, mut last) = (None, None, None);
        let (mut conditional, mut listed) = (false, Vec::new());
        for ((role, first), selector) in plan.numbered().zip(selectors?) {
            let worker_type = role.startup.worker_type;
            let start = Start {
                model: &plan.name,
                block_size: plan.block_size,
                plan: role,
                first,
                busy: busy.discover(plan.name.as_str(), worker_type.as_str()),
                stop: stop.clone(),
            };
            let (started, key, control) = Role::start(start, selector);
            listed.push((key, control));
            match worker_type {
                WorkerType::Encode => encode = Some(started),
                WorkerType::Prefill => prefill = Some(started),
                WorkerType::Aggregated => last = Some(started),
                WorkerType::Decode => {
                    conditional = role.startup.conditional_decode;
                    last = Some(started);
                }
            }
        }
        let model = Model {
            encode,
            prefill,
            // Invariant: the check found one.
            last: last.ok_or(RolesError::NoWorkers).map_err(wrong)?,
            conditional,
            stop,
        };
        Ok((Arc::new(model), listed))
    }

    fn roles(&self) -> impl Iterator<Item = &Role> {
        let before = self.encode.iter().chain(&self.prefill);
        before.chain([&self.last])
    }

    /// False when it has no such role, or the worker already.
    pub(super) fn add_worker(&self, worker_type: WorkerType, id: WorkerId) -> bool {
        let role = self.roles().find(|role| role.worker_type == worker_type);
        !self.roles().any(|role| role.has(id)) && role.is_some_and(|role| role.add_worker(id))
    }

    /// False when it is not there.
    pub(super) async fn remove_worker(&self, id: WorkerId) -> bool {
        let role = self.roles().find(|role| role.has(id));
        match role {
            Some(role) => role.remove_worker(id).await,
            None => false,
        }
    }

    pub(super) fn counts(&self) -> Vec<(WorkerType, WorkerId, Counts)> {
        let of = |role: &Role| {
            let counts = role.counts().into_iter();
            let worker_type = role.worker_type;
            counts.map(move |(id, counts)| (worker_type, id, counts))
        };
        self.roles().flat_map(of).collect()
    }

    pub(super) fn prompt(&self, tokens: &[u32]) -> Prompt {
        self.last.prompt(tokens)
    }

    /// Which workers a request would go to. Books nothing.
    pub(super) async fn select(&self, prompt: &Prompt) -> Result<Placed, ServeError> {
        let encoded = match &self.encode {
            Some(encode) => Some(encode.select(prompt).await?.worker),
            None => None,
        };
        let last = self.last.select(prompt).await?;
        let prefilled = match self.ahead(prompt, last.cached_tokens) {
            Some(prefill) => prefill.select(prompt).await?,
            None => last,
        };
        Ok(placed(encoded, prefilled, last.worker, prompt))
    }

    /// The role that prefills in the place of the last one, which knows so many of the prompt's tokens.
    fn ahead(&self, prompt: &Prompt, known_tokens: usize) -> Option<&Role> {
        let fresh = prompt.tokens().saturating_sub(known_tokens);
        let itself = self.conditional && fresh <= LOCAL_PREFILL_TOKENS_MAX;
        self.prefill.as_ref().filter(|_| !itself)
    }

    /// Serves one request to its end, whoever still listens: what was booked is always freed.
    pub(super) async fn serve(&self, prompt: Prompt, max_tokens: u32, reader: Reader) {
        let Reader { mut placed, pieces } = reader;
        match self.prepare(&prompt, &mut placed).await {
            Ok((booked, answer)) => {
                if placed.send(Ok(answer)).is_ok() {
                    self.last.decode(&booked, max_tokens, &pieces).await;
                }
                self.last.free(booked).await;
            }
            Err(Ended::Left) => {}
            Err(Ended::Refused(why)) => drop(placed.send(Err(why))),
        }
    }

    /// Everything before the first output token. Booked is then the last role's worker and nothing else.
    async fn prepare(
        &self,
        prompt: &Prompt,
        placing: &mut Placing,
    ) -> Result<(Booked, Placed), Ended> {
        let encoded = match &self.encode {
            Some(encode) => Some(encode.pass(prompt, placing).await?.worker),
            None => None,
        };
        let ahead = match &self.prefill {
            Some(prefill) if !self.conditional => Some(prefill.pass(prompt, placing).await?),
            Some(_) | None => None,
        };
        let booked = self.last.book(prompt).await?;
        match self.fill(&booked, ahead, prompt, placing).await {
            Ok(prefilled) => {
                let answer = placed(encoded, prefilled, booked.worker(), prompt);
                Ok((booked, answer))
            }
            Err(why) => {
                self.last.free(booked).await;
                Err(why)
            }
        }
    }

    /// Gets the prompt's blocks to the last role's worker; the answer is where they were prefilled.
    async fn fill(
        &self,
        booked: &Booked,
        ahead: Option<Prefilled>,
        prompt: &Prompt,
        placing: &mut Placing,
    ) -> Result<Prefilled, Ended> {
        let prefilled = match (ahead, self.ahead(prompt, booked.known_tokens)) {
            (Some(prefilled), _) => prefilled,
            (None, Some(prefill)) => prefill.pass(prompt, placing).await?,
            (None, None) => return self.last.prefill(booked, prompt, placing).await,
        };
        self.last.receive(booked, prompt).await?;
        Ok(prefilled)
    }
}

fn placed(
    encode_worker: Option<WorkerId>,
    prefilled: Prefilled,
    decode_worker: WorkerId,
    prompt: &Prompt,
) -> Placed {
    Placed {
        encode_worker,
        prefill_worker: prefilled.worker,
        decode_worker,
        prompt_tokens: prompt.tokens(),
        cached_tokens: prefilled.cached_tokens,
    }
}
