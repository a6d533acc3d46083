//! Busy thresholds that gate: a worker past them gets no requests, a model whose every worker is past them refuses.
//!
//! Owns: thresholds per worker set, the loads that they judge, the verdict. Never does: select or answer HTTP.
//!
//! Source of the rules: Dynamo 1.6.1. A load must be strictly greater than a threshold. Decode has two signals, the
//! scheduler's own count and the worker's report: one of them over latches the rank, and only both below release it. A
//! worker is busy when all of its ranks are. Thresholds cannot be unset. Every new worker set starts from the startup
//! values. A new threshold acts at the worker's next load event.

mod models;
mod publisher;
#[cfg(test)]
mod tests;
mod workers;

use serde::Serialize;

pub use models::Models;
pub use publisher::Publisher;
pub use workers::{Capacities, Capacity, Load, WorkerSet};

/// Thresholds; one that is absent judges nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Thresholds {
    /// Share of KV blocks in use by decode, 0 to 1.
    pub active_decode_blocks_threshold: Option<f64>,
    /// Prefill tokens of one rank.
    pub active_prefill_tokens_threshold: Option<u64>,
    /// The same as a share of `max_num_batched_tokens`, 0 or more.
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

/// A value outside of its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BadThreshold {
    /// Not a share.
    #[error("active_decode_blocks_threshold must be between 0.0 and 1.0, got {0}")]
    Decode(f64),
    /// Not a factor.
    #[error(
        "active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got {0}"
    )]
    PrefillFraction(f64),
}

/// Thresholds can only be set where there are workers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Model '{0}' not found. Thresholds can only be set for discovered models.")]
pub struct UnknownModel(pub String);

/// Every worker of the model is past its thresholds. Answered as 529.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("all workers of model '{0}' are past their busy thresholds; try again later")]
pub struct Overloaded(pub String);

impl Thresholds {
    /// Judges the values.
    ///
    /// # Errors
    /// [`BadThreshold`].
    pub fn check(&self) -> Result<(), BadThreshold> {
        match self.active_decode_blocks_threshold {
            Some(value) if !(0.0..=1.0).contains(&value) => {
                return Err(BadThreshold::Decode(value));
            }
            Some(_) | None => {}
        }
        match self.active_prefill_tokens_threshold_frac {
            Some(value) if !value.is_finite() || value < 0.0 => {
                Err(BadThreshold::PrefillFraction(value))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// These, with the other's where the other has some.
    #[must_use]
    pub fn overlaid(&self, other: &Thresholds) -> Thresholds {
        Thresholds {
            active_decode_blocks_threshold: other
                .active_decode_blocks_threshold
                .or(self.active_decode_blocks_threshold),
            active_prefill_tokens_threshold: other
                .active_prefill_tokens_threshold
                .or(self.active_prefill_tokens_threshold),
            active_prefill_tokens_threshold_frac: other
                .active_prefill_tokens_threshold_frac
                .or(self.active_prefill_tokens_threshold_frac),
        }
    }

    /// True when nothing is judged, or nothing would be set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Thresholds::default()
    }
}
