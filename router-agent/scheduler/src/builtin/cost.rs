//! What a worker costs: prefill still to do less cache credit, decode blocks, active requests.
//!
//! Owns: the formula. Never does: choose.
//!
//! With B the block size, Q the request's blocks (at least 1), A a worker's active prefill tokens and Amin their minimum:
//! `credit = device·decay·overlap + host·h + disk·d + shared·(shared hits beyond the device prefix)`, where
//! `decay = 1 / (1 + device_decay·((A − Amin)/B)/Q)`; and `cost = taint·(prefill·max(R/B − credit, 0) + D + request·n)`
//! with R = A + max(prompt, cached). Decode without prefill tracking has no R: there the credit reduces D itself.

use crate::builtin::Weights;
use crate::dynamo::{
    WorkerCacheInput, WorkerCandidate, WorkerCandidates, WorkerInputs, WorkerLoadInput,
    WorkerScorer, WorkerSelectionContext, WorkerSelectionPolicyError,
};

/// Scores all candidates of a selection.
pub(crate) struct Cost {
    weights: Weights,
    decodes: bool,
    inputs: WorkerInputs,
}

/// What is the same for every candidate of one selection.
struct Request {
    block_size: f64,
    blocks: f64,
    tracks_prefill: bool,
    prompt_tokens: usize,
    /// `Some` when the device credit decays: the lightest prefill load.
    lightest: Option<usize>,
    credits_decode: bool,
}

impl Cost {
    pub(crate) fn new(weights: Weights, worker_label: &str) -> Cost {
        let always = WorkerInputs::LOAD | WorkerInputs::PREFERRED_TAINT;
        let inputs = if weights.use_cache() {
            always | WorkerInputs::CACHE
        } else {
            always
        };
        Cost {
            weights,
            decodes: worker_label == "decode",
            inputs,
        }
    }

    fn request(
        &self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
    ) -> Result<Request, WorkerSelectionPolicyError> {
        let tracks_prefill = context.tracks_prefill_tokens();
        let lightest = if tracks_prefill && self.weights.device_decay > 0.0 {
            let mut lightest = usize::MAX;
            for candidate in candidates.iter() {
                lightest = lightest.min(load(&candidate)?.active_prefill_tokens());
            }
            Some(lightest)
        } else {
            None
        };
        Ok(Request {
            block_size: f64::from(context.block_size()),
            // A prompt without tokens (embeddings) still counts as one block: nothing is divided by zero.
            blocks: context.request_blocks().max(1) as f64,
            tracks_prefill,
            prompt_tokens: context.prompt_tokens(),
            lightest,
            credits_decode: self.decodes && !tracks_prefill && self.weights.device > 0.0,
        })
    }

    fn credit(
        &self,
        request: &Request,
        load: &WorkerLoadInput,
        cache: &WorkerCacheInput<'_>,
    ) -> f64 {
        let weights = &self.weights;
        let device = if cache.has_tier_matches() {
            cache.device_overlap_blocks()
        } else {
            cache.accounting_cache_estimate().0
        };
        let decay = request.lightest.map_or(1.0, |lightest| {
            let excess = load.active_prefill_tokens().saturating_sub(lightest) as f64;
            1.0 / (1.0 + weights.device_decay * (excess / request.block_size / request.blocks))
        });
        let shared = if weights.shared == 0.0 {
            0.0
        } else {
            // A float becomes the nearest u32 in its range: `as` saturates.
            let beyond = device.round().max(0.0) as u32;
            let hits = cache
                .shared_hits()
                .map_or(0, |hits| hits.hits_beyond(beyond));
            weights.shared * f64::from(hits)
        };
        weights.device * decay * device
            + weights.host * cache.host_overlap_blocks()
            + weights.disk * cache.disk_overlap_blocks()
            + shared
    }

    fn cost(
        &self,
        request: &Request,
        candidate: &WorkerCandidate<'_>,
    ) -> Result<f64, WorkerSelectionPolicyError> {
        let load = load(candidate)?;
        let (cached_tokens, credit) = candidate.cache().map_or((0, 0.0), |cache| {
            let cached_tokens = cache.accounting_cache_estimate().1;
            (cached_tokens, self.credit(request, load, &cache))
        });
        let requests = self.weights.active_request * load.active_requests() as f64;
        let decode = load.decode_cost_blocks();
        let cost = if request.credits_decode {
            (decode - credit).max(0.0) + requests
        } else {
            let tokens = if !request.tracks_prefill {
                0
            } else if load.is_available() {
                let prompt = request.prompt_tokens.max(cached_tokens);
                load.active_prefill_tokens().saturating_add(prompt)
            } else {
                request.prompt_tokens
            };
            let prefill = (tokens as f64 / request.block_size - credit).max(0.0);
            self.weights.prefill * prefill + decode + requests
        };
        Ok(cost * candidate.preferred_taint_multiplier().unwrap_or(1.0))
    }
}

fn load<'a>(
    candidate: &WorkerCandidate<'a>,
) -> Result<&'a WorkerLoadInput, WorkerSelectionPolicyError> {
    candidate
        .load()
        .ok_or_else(|| WorkerSelectionPolicyError::failed("the host supplied no load input"))
}

impl WorkerScorer for Cost {
    fn required_worker_inputs(&self) -> WorkerInputs {
        self.inputs
    }

    fn score(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        candidates: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        let request = self.request(context, candidates)?;
        for (candidate, cost) in candidates.iter().zip(costs) {
            *cost = self.cost(&request, &candidate)?;
        }
        Ok(())
    }
}
