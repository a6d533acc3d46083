//! The runtime policy contract: a policy opts in to live changes by saying how to build its own replacement.
//!
//! Owns: the contract and the check that a replacement fits where the old one stood. Never does: swap.

use crate::dynamo::{WorkerInputs, WorkerSelectionPolicy, WorkerSelector};
use crate::parameters::{Invalid, Parameter, Parameters};
use crate::warm::Rank;

/// A whole policy with what a host needs to know of it.
pub struct Replacement {
    /// Filters, scorers and picker. Its required inputs and its affinity behaviour are read from it.
    pub policy: WorkerSelectionPolicy,
    /// The label that `policy` was built with (the crate keeps it to itself).
    pub worker_label: &'static str,
}

/// Builds replacements: what a policy implements to opt in.
///
/// [`crate::overlap_floor`] is the example to copy.
pub trait Builder: Send + Sync {
    /// The parameters that can change, with startup values, in the order in which they are listed.
    fn parameters(&self) -> &[Parameter];

    /// A new policy from resolved values: every declared parameter is there and has passed its rule.
    ///
    /// Runs on the caller's thread, never in the scheduler. State that should outlive a change (counters, sticky
    /// choices) belongs into the builder, behind an `Arc` that each policy gets a clone of.
    ///
    /// # Errors
    /// [`Invalid`]: values that only together make no sense.
    fn build(&self, parameters: &Parameters) -> Result<Replacement, Invalid>;

    /// False for a policy that must not see the made-up selection that grows its buffers before it is seated. Its first
    /// selection then allocates.
    fn warms(&self) -> bool {
        true
    }
}

/// A policy to start a scheduler with.
pub enum Policy {
    /// It did not opt in: listed with `configuration: null`, refuses every change.
    Fixed(Box<Replacement>),
    /// It opted in.
    Live(Box<dyn Builder>),
}

/// What the host read once, when the scheduler was built. A replacement must fit in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixture {
    pub(crate) inputs: WorkerInputs,
    pub(crate) exclusive_affinity: bool,
    pub(crate) worker_label: &'static str,
}

impl Fixture {
    pub(crate) fn of(replacement: &Replacement) -> Fixture {
        let policy = &replacement.policy;
        Fixture {
            inputs: WorkerSelector::<Rank>::required_worker_inputs(policy),
            exclusive_affinity: WorkerSelector::<Rank>::uses_exclusive_affinity_target(policy),
            worker_label: replacement.worker_label,
        }
    }

    /// Judges a replacement.
    pub(crate) fn admit(&self, replacement: &Replacement) -> Result<(), Invalid> {
        let wanted = Fixture::of(replacement);
        if !self.inputs.contains(wanted.inputs) {
            return Err(Invalid::Inputs);
        }
        if wanted.exclusive_affinity != self.exclusive_affinity {
            return Err(Invalid::Affinity);
        }
        if wanted.worker_label != self.worker_label {
            return Err(Invalid::Label);
        }
        Ok(())
    }
}
