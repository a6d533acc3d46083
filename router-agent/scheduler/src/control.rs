//! The outside of a live router: read its configuration, change it.
//!
//! Owns: the caller's side of a change, its patience and its refusals. Never does: keep a retired scheduler alive.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use schemas::Revision;
use tokio::sync::{oneshot, watch};

use crate::dynamo::{
    KvSchedulerError, LocalScheduler, OverlapScoresRefresh, ScheduleMode, SequencePublisher,
    WorkerConfigLike, WorkerId, plain_request,
};
use crate::live::{Answer, LiveSelector, Shared, View};
use crate::parameters::{Change, Configuration, Invalid, Parameters};
use crate::policy::Replacement;
use crate::swap::{Letter, Offer, Ticket};
use crate::warm::warm;

/// Why a change did not happen. In each case the revision is what it was.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpdateError {
    /// The scheduler is gone.
    #[error("router instance not found; query /router_policy on this frontend")]
    Retired,
    /// Decided on another revision.
    #[error("policy revision conflict: expected {expected}, current {current}")]
    Conflict {
        /// What the caller decided on.
        expected: u64,
        /// What is.
        current: u64,
    },
    /// Neither parameters nor reset.
    #[error("provide either nonempty parameters or reset: true")]
    Empty,
    /// Unknown names, bad values, or a replacement that does not fit.
    #[error("invalid policy parameters: {0}")]
    Invalid(Invalid),
    /// The policy did not opt in.
    #[error("the selected worker policy does not support runtime configuration")]
    Unsupported,
    /// The scheduler did not answer in time. The change will not happen later either.
    #[error("the router's scheduler did not answer within {0:?}; the change was not applied")]
    TimedOut(Duration),
    /// Too many callers wait for this router.
    #[error("too many changes wait for this router; the change was not applied")]
    Crowded,
}

/// Why nothing could be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The scheduler is gone.
    #[error("the router is gone")]
    Retired,
    /// The scheduler did not answer in time, or too many wait.
    #[error("the router's scheduler did not answer within {0:?}")]
    TimedOut(Duration),
}

/// Wakes a scheduler so that its selector takes its turn at once.
pub trait Bell: Send + Sync {
    /// Rings; ready when the selector has had its turn. False when the scheduler is gone.
    fn ring(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;

    /// False when the scheduler is gone.
    fn is_live(&self) -> bool;

    /// Ranks to choose from, to warm a new policy for.
    fn ranks(&self) -> usize;
}

/// A selector's other half before its scheduler is there.
pub struct Unattached(Arc<Shared>);

impl Unattached {
    pub(crate) fn new(shared: Arc<Shared>) -> Unattached {
        Unattached(shared)
    }

    /// The control of the scheduler that was built with the selector. Holds the scheduler weakly.
    pub fn attach<P, C, RF>(
        self,
        scheduler: &Arc<LocalScheduler<P, C, LiveSelector, RF>>,
        workers: watch::Receiver<std::collections::HashMap<WorkerId, C>>,
    ) -> Control
    where
        P: SequencePublisher + 'static,
        C: WorkerConfigLike + Clone + PartialEq + Send + Sync + 'static,
        RF: OverlapScoresRefresh + 'static,
    {
        let bell = Arc::new(SchedulerBell {
            scheduler: Arc::downgrade(scheduler),
            workers,
            shared: Arc::clone(&self.0),
        });
        self.attach_bell(bell)
    }

    /// The control of a selector that something else turns.
    #[must_use]
    pub fn attach_bell(self, bell: Arc<dyn Bell>) -> Control {
        Control {
            shared: self.0,
            bell,
        }
    }
}

struct SchedulerBell<P, C, RF>
where
    P: SequencePublisher + 'static,
    C: WorkerConfigLike + Clone + PartialEq + Send + Sync + 'static,
    RF: OverlapScoresRefresh + 'static,
{
    scheduler: Weak<LocalScheduler<P, C, LiveSelector, RF>>,
    workers: watch::Receiver<std::collections::HashMap<WorkerId, C>>,
    shared: Arc<Shared>,
}

impl<P, C, RF> Bell for SchedulerBell<P, C, RF>
where
    P: SequencePublisher + 'static,
    C: WorkerConfigLike + Clone + PartialEq + Send + Sync + 'static,
    RF: OverlapScoresRefresh + 'static,
{
    fn ring(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            let Some(scheduler) = self.scheduler.upgrade() else {
                return false;
            };
            let mut request = plain_request(ScheduleMode::QueryOnly { request_id: None }, 0);
            request.session_context = Some(self.shared.bell_context());
            // The selector answers with an error by design: it took its turn and selected nothing.
            // Bound: the scheduler is held for as long as the caller's patience, not longer.
            let turned = scheduler.select_without_admission(request).await;
            !matches!(turned, Err(KvSchedulerError::SubscriberShutdown))
        })
    }

    fn is_live(&self) -> bool {
        self.scheduler.strong_count() > 0
    }

    fn ranks(&self) -> usize {
        let workers = self.workers.borrow();
        let sizes = workers
            .values()
            .map(|worker| worker.data_parallel_size() as usize);
        sizes.sum()
    }
}

/// Reads and changes one live router. Cheap to clone; keeps no scheduler alive.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    bell: Arc<dyn Bell>,
}

/// Gives the letter up when the caller goes away.
struct Waiting(Arc<Ticket>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// What came of a letter that was not answered.
enum Unanswered {
    Retired,
    TimedOut,
    Crowded,
}

impl Control {
    /// What the scheduler selects with now; `None` for a policy that did not opt in. Asks the scheduler itself, so that
    /// one that no longer works does not pass for one that does.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read(&self, patience: Duration) -> Result<Option<Arc<Configuration>>, ReadError> {
        match self.deliver(None, patience).await {
            Ok(Ok(view)) => Ok(view),
            // SUBTLE: only offers are answered with a conflict (`model_swap`).
            Ok(Err(_)) | Err(Unanswered::Retired) => Err(ReadError::Retired),
            Err(Unanswered::TimedOut | Unanswered::Crowded) => Err(ReadError::TimedOut(patience)),
        }
    }

    /// Changes the policy between two selections. Success counts as one revision, also when no value differs.
    ///
    /// # Errors
    /// [`UpdateError`]; the revision is unchanged. Dropping the returned future before it is ready withdraws the change,
    /// unless the scheduler has already taken it.
    pub async fn update(
        &self,
        expected: Revision,
        change: &Change,
        patience: Duration,
    ) -> Result<Arc<Configuration>, UpdateError> {
        let offer = self.prepare(expected, change)?;
        let delivered = self.deliver(Some(offer), patience).await;
        self.shared.post.sweep();
        match delivered {
            Ok(Ok(Some(view))) => Ok(view),
            Ok(Ok(None)) => Err(UpdateError::Unsupported),
            Ok(Err(current)) => Err(UpdateError::Conflict {
                expected: expected.0,
                current,
            }),
            Err(Unanswered::Retired) => Err(UpdateError::Retired),
            Err(Unanswered::TimedOut) => Err(UpdateError::TimedOut(patience)),
            Err(Unanswered::Crowded) => Err(UpdateError::Crowded),
        }
    }

    /// False once the scheduler is gone.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.bell.is_live()
    }

    /// Judges and builds, in Dynamo's order: empty, gone, unsupported, conflict, values.
    fn prepare(
        &self,
        expected: Revision,
        change: &Change,
    ) -> Result<Box<Offer<crate::dynamo::WorkerSelectionPolicy, View>>, UpdateError> {
        if matches!(change, Change::Patch(patch) if patch.is_empty()) {
            return Err(UpdateError::Empty);
        }
        if !self.bell.is_live() {
            return Err(UpdateError::Retired);
        }
        let (Some(builder), Some(view)) = (&self.shared.builder, self.shared.post.view()) else {
            return Err(UpdateError::Unsupported);
        };
        if view.revision != expected {
            return Err(UpdateError::Conflict {
                expected: expected.0,
                current: view.revision.0,
            });
        }
        let parameters = view
            .parameters
            .changed(builder.parameters(), change)
            .map_err(UpdateError::Invalid)?;
        let replacement = self
            .fitting(builder.build(&parameters))
            .map_err(UpdateError::Invalid)?;
        if builder.warms() {
            warm(&replacement.policy, self.bell.ranks());
        }
        Ok(Box::new(Offer {
            expected: expected.0,
            policy: replacement.policy,
            view: Some(Arc::new(Configuration {
                revision: expected.next(),
                parameters,
            })),
        }))
    }

    fn fitting(&self, built: Result<Replacement, Invalid>) -> Result<Replacement, Invalid> {
        let replacement = built?;
        self.shared.fixture.admit(&replacement)?;
        Ok(replacement)
    }

    async fn deliver(
        &self,
        offer: Option<Box<Offer<crate::dynamo::WorkerSelectionPolicy, View>>>,
        patience: Duration,
    ) -> Result<Result<View, u64>, Unanswered> {
        self.shared.post.sweep();
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting(Arc::new(Ticket::default()));
        let letter = Letter {
            ticket: Arc::clone(&waiting.0),
            offer,
            reply: Answer(reply),
        };
        if self.shared.post.send(letter).is_err() {
            return Err(Unanswered::Crowded);
        }
        let mut answer = answer;
        let heard = tokio::time::timeout(patience, async {
            // When the bell was answered the selector has had its turn, and so has the letter.
            if self.bell.ring().await {
                (&mut answer).await.ok()
            } else {
                None
            }
        })
        .await;
        match heard {
            Ok(Some(outcome)) => Ok(outcome),
            Ok(None) if waiting.0.give_up() => Err(Unanswered::Retired),
            Err(_) if waiting.0.give_up() => Err(Unanswered::TimedOut),
            // Taken just before: the answer is on its way, or has been heard to be lost with the scheduler.
            Ok(None) | Err(_) => answer.await.map_err(|_| Unanswered::Retired),
        }
    }
}

/// So that a test can compare without a scheduler.
impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let view: Option<Parameters> = self.shared.post.view().map(|view| view.parameters.clone());
        f.debug_struct("Control")
            .field("parameters", &view)
            .finish_non_exhaustive()
    }
}
