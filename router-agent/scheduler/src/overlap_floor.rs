//! The canonical custom policy: keep workers that hold enough of the prompt, score them by load, pick the lightest.
//! **This is the example to copy** for a policy of your own with live parameters.
//!
//! How to make one: (1) declare the parameters ([`OverlapFloor::new`]); (2) write filters, scorers and a picker against
//! Dynamo's plugin API; (3) build a whole policy from resolved values ([`Builder::build`]). Nothing else: reading values
//! while selecting, locks and revision checks are not needed, because a policy never changes. It is replaced.
//!
//! The one parameter, `min_device_overlap_blocks` (a whole number, 0 by default), is the least device-resident prefix, in
//! KV blocks, that a worker must hold of the prompt.
//!
//! To change it fleet-wide, register its schema with the service once:
//! `{"type": "integer", "minimum": 0, "maximum": 4294967296}`.
//!
//! # When nobody supplies overlap data
//! - The host has no KV index, or the prompt is new to every worker: the request carries no matches at all. Then the floor
//!   is not applied and the request goes to the lightest worker. A floor that refused every new prompt would never let
//!   a cache fill.
//! - Some worker has a match, but none reaches the floor: every worker is filtered out and the request fails with Dynamo's
//!   "all eligible workers were rejected by policy filters". Use a floor only where waiting for the right worker is better
//!   than answering from another, and set it to 0, live, when it is not.
//! - The policy always asks for cache inputs, also with a floor of 0, so that the floor can be raised later: inputs cannot
//!   be added to a running router.

use schemas::{ParameterName, ParameterValue, WorkerType};

use crate::builtin::cheapest;
use crate::dynamo::{
    KvRouterConfig, WorkerCandidate, WorkerCandidates, WorkerFilter, WorkerInputView, WorkerInputs,
    WorkerPicker, WorkerScorer, WorkerSelectionContext, WorkerSelectionPolicy,
    WorkerSelectionPolicyError, worker_type,
};
use crate::parameters::{Invalid, Parameter, Parameters, Rule};
use crate::policy::{Builder, Replacement};

/// Name of the parameter.
pub const MIN_DEVICE_OVERLAP_BLOCKS: &str = "min_device_overlap_blocks";
/// Bound: more blocks than any prompt has.
const BLOCKS_MAX: u64 = 1 << 32;

/// Builds the policy, now and again.
pub struct OverlapFloor {
    declared: [Parameter; 1],
    worker_label: &'static str,
}

impl OverlapFloor {
    /// Starts with this floor, in KV blocks.
    ///
    /// # Errors
    /// [`Invalid::Range`].
    pub fn new(role: WorkerType, min_device_overlap_blocks: u64) -> Result<OverlapFloor, Invalid> {
        let name = ParameterName::new(MIN_DEVICE_OVERLAP_BLOCKS)
            .map_err(|why| Invalid::Build(why.to_string()))?;
        let mut floor = Parameter {
            name,
            rule: Rule::Whole(BLOCKS_MAX),
            startup: ParameterValue::integer(0),
        };
        floor.startup = floor.check(&min_device_overlap_blocks.into())?;
        Ok(OverlapFloor {
            declared: [floor],
            worker_label: worker_type(role).as_str(),
        })
    }
}

impl Builder for OverlapFloor {
    fn parameters(&self) -> &[Parameter] {
        &self.declared
    }

    fn build(&self, parameters: &Parameters) -> Result<Replacement, Invalid> {
        let floor = Floor(parameters.number(MIN_DEVICE_OVERLAP_BLOCKS));
        Ok(Replacement {
            policy: WorkerSelectionPolicy::new_with_filters(
                KvRouterConfig::default(),
                self.worker_label,
                vec![Box::new(floor)],
                vec![Box::new(Load)],
                Box::new(Lightest),
            ),
            worker_label: self.worker_label,
        })
    }
}

/// Keeps workers with at least this many blocks.
struct Floor(f64);

impl WorkerFilter for Floor {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::CACHE
    }

    fn keep(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        candidate: WorkerCandidate<'_>,
    ) -> Result<bool, WorkerSelectionPolicyError> {
        let cache = candidate.cache().ok_or_else(|| {
            WorkerSelectionPolicyError::failed("the host supplied no cache input")
        })?;
        Ok(!cache.has_tier_matches() || cache.device_overlap_blocks() >= self.0)
    }
}

/// Blocks to prefill and to decode.
struct Load;

impl WorkerScorer for Load {
    fn required_worker_inputs(&self) -> WorkerInputs {
        WorkerInputs::LOAD
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let block_size = f64::from(context.block_size());
        for (candidate, cost) in candidates.iter().zip(costs) {
            let load = candidate.load().ok_or_else(|| {
                WorkerSelectionPolicyError::failed("the host supplied no load input")
            })?;
            *cost = load.active_prefill_tokens() as f64 / block_size + load.decode_cost_blocks();
        }
        Ok(())
    }
}

/// The least cost, ties by chance.
struct Lightest;

impl WorkerPicker for Lightest {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        if input.candidates().is_empty() {
            return Err(WorkerSelectionPolicyError::failed("nobody to pick from"));
        }
        Ok(cheapest(input.candidates()))
    }
}
