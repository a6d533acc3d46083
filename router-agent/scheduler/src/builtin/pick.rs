//! Who gets the request: the cheapest worker, or one by chance with the cheap ones more likely.
//!
//! Owns: the draw. Never does: score.
//!
//! Draws from `fastrand`'s stream of the thread, one number per tie (temperature 0) or per pick (above 0), as Dynamo 1.6.1
//! does: under one seed both pick the same worker.

use crate::dynamo::{
    ScoredWorkerCandidate, WorkerInputView, WorkerPicker, WorkerSelectionContext,
    WorkerSelectionPolicyError,
};

/// Chooses by temperature.
pub(crate) struct Pick {
    temperature: f64,
    chances: Vec<f64>,
}

impl Pick {
    pub(crate) fn new(temperature: f64) -> Pick {
        Pick {
            temperature,
            chances: Vec::new(),
        }
    }

    /// Softmax over costs normalised to 0..1: `exp(-(cost - least) / (spread * temperature))`.
    fn sample(&mut self, candidates: &[ScoredWorkerCandidate], draw: f64) -> usize {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for candidate in candidates {
            least = least.min(candidate.cost());
            most = most.max(candidate.cost());
        }
        let scale = -1.0 / ((most - least) * self.temperature);
        self.chances.clear();
        let mut sum = 0.0;
        for candidate in candidates {
            let distance = candidate.cost() - least;
            // 0 stays 0 also when nobody differs and the scale is infinite: all are equally likely then.
            let chance = if distance == 0.0 {
                1.0
            } else {
                (distance * scale).exp()
            };
            sum += chance;
            self.chances.push(chance);
        }
        let target = draw * sum;
        let mut reached = 0.0;
        for (row, chance) in self.chances.iter().enumerate() {
            reached += chance;
            if target <= reached {
                return row;
            }
        }
        candidates.len() - 1
    }
}

/// The cheapest; among equals each with the same chance.
pub(crate) fn cheapest(candidates: &[ScoredWorkerCandidate]) -> usize {
    let (mut best, mut cost, mut equals) = (0, f64::INFINITY, 0);
    for (row, candidate) in candidates.iter().enumerate() {
        if candidate.cost() < cost {
            (best, cost, equals) = (row, candidate.cost(), 1);
        } else if candidate.cost() == cost {
            equals += 1;
            if fastrand::usize(0..equals) == 0 {
                best = row;
            }
        }
    }
    best
}

impl WorkerPicker for Pick {
    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let candidates = input.candidates();
        if candidates.is_empty() {
            return Err(WorkerSelectionPolicyError::failed("nobody to pick from"));
        }
        if context.pinned_worker().is_some() {
            return Ok(0);
        }
        if self.temperature == 0.0 {
            return Ok(cheapest(candidates));
        }
        Ok(self.sample(candidates, fastrand::f64()))
    }
}
