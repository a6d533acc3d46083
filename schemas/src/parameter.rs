//! Parameters of policies: names, values, ranges, and `check`, which judges a patch.
//!
//! Owns: every rule about values. A value that passes here is safe for a router's startup and for every request.
//!
//! Source of the built-in names, defaults and startup ranges: Dynamo 1.7 and `dynamo-kv-router` 1.6.1
//! (`KvRouterConfig::validate`).
//!
//! # Why the upper bounds are what they are
//! The built-in cost of a worker is `t * (s * R / B + D + a * n)` less credits, with token, block and request counts below
//! 2^64 (about 1.85e19). With every unbounded weight at most [`WEIGHT_MAX`] (1e9) each product stays below 1.9e28 and
//! their sum below 1e29, so the cost is finite for every worker table as long as a host's taint multiplier `t` stays
//! below 1e279. Credits multiply at most three such factors (`w * decay factor <= 1 * blocks`), which stays below 1e29 too.
//!
//! # Why there are lower bounds
//! The softmax divides by `(cmax - cmin) * T`. With `T` at least [`TEMPERATURE_MIN`] and every weight 0 or at least
//! [`WEIGHT_MIN`], the smallest spread of costs that is not 0 is about 1e-25 (one rounding step of a cost near 1, times
//! the weight), so the product never underflows to 0 and the quotient is never NaN.

mod check;
mod schema;
mod value;

use std::collections::BTreeMap;
use std::fmt;

pub use check::{CustomParameters, check};
pub use schema::check_schema;
pub use value::{BadParameterName, ParameterName, ParameterValue};

use crate::scope::PolicyKind;

/// Upper bound of weights for which Dynamo's startup has none.
pub const WEIGHT_MAX: f64 = 1e9;
/// Smallest weight above 0. Smaller ones can make the softmax divide by zero.
pub const WEIGHT_MIN: f64 = 1e-9;
/// Smallest temperature above 0. Smaller ones make the softmax divide by (nearly) zero.
pub const TEMPERATURE_MIN: f64 = 1e-6;
/// Largest prefill token threshold: the largest integer that every JSON reader keeps exactly (2^53 - 1).
pub const TOKENS_MAX: u64 = (1 << 53) - 1;
/// Bound: parameters in one patch or overlay (the façade's 16 KiB body holds no more useful ones).
pub const PARAMETERS_MAX: usize = 128;

/// Explicit values of one policy; what is absent keeps each router's startup value.
pub type Overlay = BTreeMap<ParameterName, ParameterValue>;

/// Changes to an overlay: a value sets, `None` (JSON `null`) removes, an absent name is untouched.
pub type Patch = BTreeMap<ParameterName, Option<ParameterValue>>;

/// The overlay after a patch.
#[must_use]
pub fn apply(overlay: &Overlay, patch: &Patch) -> Overlay {
    let mut after = overlay.clone();
    for (name, value) in patch {
        match value {
            Some(value) => after.insert(name.clone(), value.clone()),
            None => after.remove(name),
        };
    }
    after
}

/// The patch that turns one overlay into another.
#[must_use]
pub fn difference(from: &Overlay, to: &Overlay) -> Patch {
    let mut patch = Patch::new();
    for (name, value) in to {
        if from.get(name) != Some(value) {
            patch.insert(name.clone(), Some(value.clone()));
        }
    }
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), None);
    }
    patch
}

/// A built-in parameter and its rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BuiltIn {
    /// Name on the wire.
    pub name: &'static str,
    /// Allowed values.
    pub range: Range,
    /// Dynamo's default; `None` for thresholds, which are off by default.
    pub default: Option<f64>,
    /// True for the four weights that need cache inputs; a router without them refuses values above 0.
    pub cache_scoring: bool,
}

/// Allowed values of a built-in parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// A number from 0 to 1.
    Fraction,
    /// 0, or a number from [`WEIGHT_MIN`] to [`WEIGHT_MAX`].
    Weight,
    /// 0, or a number from [`TEMPERATURE_MIN`] to [`WEIGHT_MAX`].
    Temperature,
    /// A whole number from 0 to [`TOKENS_MAX`].
    Tokens,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::Fraction => f.write_str("a number from 0 to 1"),
            Range::Weight => write!(f, "0, or a number from {WEIGHT_MIN:e} to {WEIGHT_MAX:e}"),
            Range::Temperature => write!(
                f,
                "0, or a number from {TEMPERATURE_MIN:e} to {WEIGHT_MAX:e}"
            ),
            Range::Tokens => write!(f, "a whole number from 0 to {TOKENS_MAX}"),
        }
    }
}

const fn weight(name: &'static str, range: Range, default: f64, cache_scoring: bool) -> BuiltIn {
    BuiltIn {
        name,
        range,
        default: Some(default),
        cache_scoring,
    }
}

/// Dynamo's built-in worker selection policy, in the contract's order.
pub const WORKER_SELECTION: [BuiltIn; 8] = [
    weight("overlap_score_credit", Range::Weight, 1.0, true),
    weight("overlap_score_credit_decay", Range::Weight, 0.0, false),
    weight("prefill_load_scale", Range::Weight, 1.0, false),
    weight("decode_active_request_weight", Range::Weight, 0.0, false),
    weight("host_cache_hit_weight", Range::Fraction, 0.75, true),
    weight("disk_cache_hit_weight", Range::Fraction, 0.25, true),
    weight("shared_cache_multiplier", Range::Fraction, 0.0, true),
    weight("router_temperature", Range::Temperature, 0.0, false),
];

const fn threshold(name: &'static str, range: Range) -> BuiltIn {
    BuiltIn {
        name,
        range,
        default: None,
        cache_scoring: false,
    }
}

/// Dynamo's busy thresholds. Off unless set.
pub const BUSY_THRESHOLD: [BuiltIn; 3] = [
    threshold("active_decode_blocks_threshold", Range::Fraction),
    threshold("active_prefill_tokens_threshold", Range::Tokens),
    threshold("active_prefill_tokens_threshold_frac", Range::Weight),
];

/// The built-in parameters of a kind.
#[must_use]
pub fn built_in(kind: PolicyKind) -> &'static [BuiltIn] {
    match kind {
        PolicyKind::WorkerSelection => &WORKER_SELECTION,
        PolicyKind::BusyThreshold => &BUSY_THRESHOLD,
    }
}

/// Whether a parameter of any kind has this name. Such a name cannot be registered.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    (WORKER_SELECTION.iter().chain(&BUSY_THRESHOLD)).any(|known| known.name == name)
}
