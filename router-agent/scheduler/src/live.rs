//! The selector inside Dynamo's scheduler whose policy can be replaced.
//!
//! Owns: the actor's side. Never does: build or drop a policy (see [`crate::control`]), or lock when nothing changed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::control::Unattached;
use crate::dynamo::{
    KvSchedulerError, SessionContext, WorkerConfigLike, WorkerInputs, WorkerSelectionInput,
    WorkerSelectionPolicy, WorkerSelectionResult, WorkerSelector,
};
use crate::parameters::{Configuration, Invalid, Parameters};
use crate::policy::{Builder, Fixture, Policy};
use crate::swap::{Post, Reply, Seat};

/// What an actor reports: `None` for a policy that did not opt in.
pub(crate) type View = Option<Arc<Configuration>>;

/// The sending half of an answer.
pub(crate) struct Answer(pub(crate) oneshot::Sender<Result<View, u64>>);

impl Reply<View> for Answer {
    fn answer(self, outcome: Result<View, u64>) {
        // A caller that went away after its letter was taken hears nothing; its change stands.
        let _ = self.0.send(outcome);
    }
}

/// What the selector and its controls share. It does not keep the scheduler alive, nor is it kept by it for longer.
pub(crate) struct Shared {
    pub(crate) post: Post<WorkerSelectionPolicy, View, Answer>,
    pub(crate) builder: Option<Box<dyn Builder>>,
    pub(crate) fixture: Fixture,
    /// Identity, not content: a request that carries this very map rings the bell. Nobody outside can make one.
    pub(crate) bell: Arc<BTreeMap<String, Vec<String>>>,
}

impl Shared {
    /// Session metadata by which [`LiveSelector`] knows the bell.
    pub(crate) fn bell_context(&self) -> SessionContext {
        SessionContext::new(String::new(), None, None, None)
            .with_agent_headers(Arc::clone(&self.bell))
    }
}

/// A `WorkerSelector` whose policy can be replaced between two selections.
///
/// Its declared inputs, affinity and label are those of the policy that it started with.
pub struct LiveSelector {
    shared: Arc<Shared>,
    seat: RefCell<Seat<WorkerSelectionPolicy>>,
}

impl LiveSelector {
    /// The selector to build a scheduler with, and what becomes its control once the scheduler is there.
    ///
    /// # Errors
    /// [`Invalid`]: the builder refuses its own startup values.
    pub fn new(policy: Policy) -> Result<(LiveSelector, Unattached), Invalid> {
        let (first, builder, view) = match policy {
            Policy::Fixed(first) => (*first, None, None),
            Policy::Live(builder) => {
                let parameters = Parameters::startup(builder.parameters());
                let first = builder.build(&parameters)?;
                let revision = schemas::Revision::ZERO;
                let view = Arc::new(Configuration {
                    revision,
                    parameters,
                });
                (first, Some(builder), Some(view))
            }
        };
        let shared = Arc::new(Shared {
            post: Post::new(view),
            builder,
            fixture: Fixture::of(&first),
            bell: Arc::new(BTreeMap::new()),
        });
        let selector = LiveSelector {
            shared: Arc::clone(&shared),
            seat: RefCell::new(Seat::new(first.policy)),
        };
        Ok((selector, Unattached::new(shared)))
    }

    /// Handles what waits, as the start of a selection does. For hosts that call a selector without a scheduler.
    pub fn settle(&self) {
        self.seat.borrow_mut().turn(&self.shared.post);
    }
}

impl<C: WorkerConfigLike> WorkerSelector<C> for LiveSelector {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.shared.fixture.inputs
    }

    fn uses_exclusive_affinity_target(&self) -> bool {
        self.shared.fixture.exclusive_affinity
    }

    #[inline]
    fn select_worker(
        &self,
        input: WorkerSelectionInput<'_, C>,
    ) -> Result<WorkerSelectionResult, KvSchedulerError> {
        let mut seat = self.seat.borrow_mut();
        seat.turn(&self.shared.post);
        if let WorkerSelectionInput::Configured { request, .. } = input
            && let Some(session) = &request.session_context
            && std::ptr::eq(session.agent_headers(), &*self.shared.bell)
        {
            return Err(KvSchedulerError::NoEndpoints);
        }
        seat.policy().select_worker(input)
    }
}
