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

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rejection::Rejection;
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

/// Name of a parameter: 1 to 128 bytes of letters, digits, `_`, `-` and `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ParameterName(String);

/// A text that is no parameter name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to 128 letters, digits, _, - or .")]
pub struct BadParameterName;

impl ParameterName {
    /// Checks a text.
    ///
    /// # Errors
    /// [`BadParameterName`].
    pub fn new(text: impl Into<String>) -> Result<ParameterName, BadParameterName> {
        let text = text.into();
        let fine = (1..=128).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
        if fine {
            Ok(ParameterName(text))
        } else {
            Err(BadParameterName)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ParameterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::borrow::Borrow<str> for ParameterName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ParameterName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        ParameterName::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ParameterName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ParameterName".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" })
    }
}

/// A value in canonical form: built-in numbers as floats (`-0` is `0.0`), token counts as integers, values of custom
/// parameters as their JSON. Equality is equality of numbers, not of spellings.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ParameterValue(serde_json::Value);

impl ParameterValue {
    /// A finite number; -0 becomes 0. Values that are not finite become `null` in JSON and are refused by `check`.
    #[must_use]
    pub fn number(value: f64) -> ParameterValue {
        ParameterValue(serde_json::Value::from(value + 0.0))
    }

    /// A whole number.
    #[must_use]
    pub fn integer(value: u64) -> ParameterValue {
        ParameterValue(serde_json::Value::from(value))
    }

    /// A JSON value as it came; `check` makes it canonical.
    #[must_use]
    pub fn raw(value: serde_json::Value) -> ParameterValue {
        ParameterValue(value)
    }

    /// The JSON value.
    #[must_use]
    pub fn as_json(&self) -> &serde_json::Value {
        &self.0
    }

    /// The value as a number, if it is one.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        self.0.as_f64()
    }

    /// The value as a whole number, if it is one.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.0.as_u64()
    }
}

impl PartialEq for ParameterValue {
    fn eq(&self, other: &ParameterValue) -> bool {
        same(&self.0, &other.0)
    }
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Equal as JSON, with numbers compared as numbers (`2`, `2.0`) and `-0` equal to `0`.
fn same(left: &serde_json::Value, right: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match (left, right) {
        (Number(left), Number(right)) => match (left.as_u64(), right.as_u64()) {
            (Some(left), Some(right)) => left == right,
            _ => match (left.as_i64(), right.as_i64()) {
                (Some(left), Some(right)) => left == right,
                _ => left.as_f64() == right.as_f64(),
            },
        },
        (Array(left), Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same(left, right))
        }
        (Object(left), Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, left)| right.get(key).is_some_and(|right| same(left, right)))
        }
        (Null | Bool(_) | String(_) | Number(_) | Array(_) | Object(_), _) => left == right,
    }
}

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

/// Custom parameters of worker selection policies: name and the JSON Schema (2020-12) that its values must satisfy.
pub type CustomParameters = BTreeMap<ParameterName, serde_json::Value>;

/// Judges a patch and makes its values canonical. With `force` (admins; recorded) the ranges of built-in parameters are
/// not checked: any finite number that is not negative passes; types, names and custom schemas still count.
///
/// # Errors
/// [`Rejection::UnknownParameter`], [`Rejection::InvalidValue`], [`Rejection::TooManyParameters`]: the first in name order.
pub fn check(
    kind: PolicyKind,
    patch: &Patch,
    custom: &CustomParameters,
    force: bool,
) -> Result<Patch, Rejection> {
    if patch.len() > PARAMETERS_MAX {
        return Err(Rejection::TooManyParameters { count: patch.len() });
    }
    let mut checked = Patch::new();
    for (name, value) in patch {
        let known = built_in(kind)
            .iter()
            .find(|known| known.name == name.as_str());
        let schema = match kind {
            PolicyKind::WorkerSelection => custom.get(name),
            PolicyKind::BusyThreshold => None,
        };
        let value = match (known, schema, value) {
            (None, None, _) => return Err(unknown(kind, name, custom)),
            (_, _, None) => None,
            (Some(known), _, Some(value)) => Some(check_built_in(known, name, value, force)?),
            (None, Some(schema), Some(value)) => Some(check_custom(schema, name, value)?),
        };
        checked.insert(name.clone(), value);
    }
    Ok(checked)
}

fn unknown(kind: PolicyKind, name: &ParameterName, custom: &CustomParameters) -> Rejection {
    let mut known: Vec<String> = built_in(kind)
        .iter()
        .map(|known| known.name.to_owned())
        .collect();
    if kind == PolicyKind::WorkerSelection {
        known.extend(custom.keys().map(ToString::to_string));
    }
    Rejection::UnknownParameter {
        kind,
        name: name.to_string(),
        known,
    }
}

fn check_built_in(
    known: &BuiltIn,
    name: &ParameterName,
    value: &ParameterValue,
    force: bool,
) -> Result<ParameterValue, Rejection> {
    let refuse = || Rejection::InvalidValue {
        name: name.to_string(),
        value: value.to_string(),
        allowed: known.range.to_string(),
    };
    if known.range == Range::Tokens {
        // Whole and a JSON integer, as Dynamo takes it: it refuses 1e3.
        return value
            .as_u64()
            .filter(|tokens| *tokens <= TOKENS_MAX || force)
            .map(ParameterValue::integer)
            .ok_or_else(refuse);
    }
    let number = value
        .as_f64()
        .filter(|number| number.is_finite() && *number >= 0.0)
        .ok_or_else(refuse)?;
    let within = match known.range {
        Range::Fraction => number <= 1.0,
        Range::Weight => number == 0.0 || (WEIGHT_MIN..=WEIGHT_MAX).contains(&number),
        Range::Temperature => number == 0.0 || (TEMPERATURE_MIN..=WEIGHT_MAX).contains(&number),
        Range::Tokens => true,
    };
    if within || force {
        Ok(ParameterValue::number(number))
    } else {
        Err(refuse())
    }
}

fn check_custom(
    schema: &serde_json::Value,
    name: &ParameterName,
    value: &ParameterValue,
) -> Result<ParameterValue, Rejection> {
    let refuse = |allowed: String| Rejection::InvalidValue {
        name: name.to_string(),
        value: value.to_string(),
        allowed,
    };
    let validator = jsonschema::validator_for(schema).map_err(|why| {
        refuse(format!(
            "a value of its registered schema, which cannot be used: {why}"
        ))
    })?;
    match validator.validate(value.as_json()) {
        Ok(()) => Ok(ParameterValue(canonical(value.as_json()))),
        Err(why) => Err(refuse(format!("a value of its registered schema ({why})"))),
    }
}

/// -0 becomes 0, at any depth.
fn canonical(value: &serde_json::Value) -> serde_json::Value {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    match value {
        Number(number) if number.as_f64() == Some(0.0) && number.is_f64() => {
            serde_json::Value::from(0.0)
        }
        Array(items) => Array(items.iter().map(canonical).collect()),
        Object(fields) => Object(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), canonical(value)))
                .collect(),
        ),
        Null | Bool(_) | Number(_) | String(_) => value.clone(),
    }
}

/// Judges the schema of a custom parameter.
///
/// # Errors
/// [`Rejection::InvalidSchema`] when the name is a built-in one, or the schema is not one, too large, or refers elsewhere.
pub fn check_schema(name: &ParameterName, schema: &serde_json::Value) -> Result<(), Rejection> {
    let refuse = |why: String| {
        Err(Rejection::InvalidSchema {
            name: name.to_string(),
            why,
        })
    };
    let reserved = WORKER_SELECTION
        .iter()
        .chain(&BUSY_THRESHOLD)
        .any(|known| known.name == name.as_str());
    if reserved {
        return refuse("is the name of a built-in parameter".to_owned());
    }
    let size = schema.to_string().len();
    if size > SCHEMA_BYTES_MAX {
        return refuse(format!(
            "is {size} bytes long, at most {SCHEMA_BYTES_MAX} are allowed"
        ));
    }
    if !schema.is_object() {
        return refuse("is not a JSON object".to_owned());
    }
    match jsonschema::validator_for(schema) {
        Ok(_) => Ok(()),
        Err(why) => refuse(why.to_string()),
    }
}

/// Bound: a registry of 128 schemas stays below NATS's default message size of 1 MiB.
const SCHEMA_BYTES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patch(json: serde_json::Value) -> Patch {
        serde_json::from_value(json).unwrap()
    }

    fn checked(kind: PolicyKind, json: serde_json::Value) -> Result<Patch, Rejection> {
        check(kind, &patch(json), &CustomParameters::new(), false)
    }

    #[test]
    fn values_in_range_pass_and_become_canonical() {
        let cases = [
            (
                json!({"overlap_score_credit": 2}),
                json!({"overlap_score_credit": 2.0}),
            ),
            (
                json!({"router_temperature": -0.0}),
                json!({"router_temperature": 0.0}),
            ),
            (
                json!({"router_temperature": 1e-6}),
                json!({"router_temperature": 1e-6}),
            ),
            (
                json!({"host_cache_hit_weight": 1}),
                json!({"host_cache_hit_weight": 1.0}),
            ),
            (
                json!({"prefill_load_scale": null}),
                json!({"prefill_load_scale": null}),
            ),
            (
                json!({"decode_active_request_weight": 1e-9}),
                json!({"decode_active_request_weight": 1e-9}),
            ),
        ];
        for (given, wanted) in cases {
            let got = checked(PolicyKind::WorkerSelection, given.clone()).unwrap();
            // Spelling counts here: the text must be the same on every node.
            assert_eq!(
                serde_json::to_string(&got).unwrap(),
                wanted.to_string(),
                "{given}"
            );
        }
    }

    #[test]
    fn values_that_break_a_router_are_refused_by_name() {
        let cases = [
            (
                json!({"host_cache_hit_weight": 1.01}),
                "host_cache_hit_weight",
            ),
            (
                json!({"shared_cache_multiplier": 50}),
                "shared_cache_multiplier",
            ),
            (
                json!({"decode_active_request_weight": 1e308}),
                "decode_active_request_weight",
            ),
            (
                json!({"decode_active_request_weight": 1e-320}),
                "decode_active_request_weight",
            ),
            (json!({"prefill_load_scale": -1}), "prefill_load_scale"),
            (json!({"router_temperature": 1e-308}), "router_temperature"),
            (json!({"router_temperature": "1"}), "router_temperature"),
            (json!({"router_temperature": true}), "router_temperature"),
            (json!({"router_temperature": [1]}), "router_temperature"),
            (json!({"overlap_score_credit": 1, "nope": 1}), "nope"),
            (json!({"nope": null}), "nope"),
        ];
        for (given, name) in cases {
            let refused = checked(PolicyKind::WorkerSelection, given.clone()).unwrap_err();
            assert!(refused.to_string().contains(name), "{given}: {refused}");
        }
    }

    #[test]
    fn thresholds_have_their_own_rules() {
        assert!(
            checked(
                PolicyKind::BusyThreshold,
                json!({"active_prefill_tokens_threshold": 0})
            )
            .is_ok()
        );
        for bad in [
            json!({"active_prefill_tokens_threshold": 1.5}),
            json!({"active_prefill_tokens_threshold": 1e3}),
            json!({"active_prefill_tokens_threshold": -1}),
            json!({"active_decode_blocks_threshold": 1.0001}),
            json!({"active_prefill_tokens_threshold_frac": 1e308}),
            json!({"router_temperature": 0}),
        ] {
            assert!(
                checked(PolicyKind::BusyThreshold, bad.clone()).is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn force_lifts_ranges_but_not_types() {
        let force = |json| {
            check(
                PolicyKind::WorkerSelection,
                &patch(json),
                &CustomParameters::new(),
                true,
            )
        };
        assert!(force(json!({"host_cache_hit_weight": 50})).is_ok());
        assert!(force(json!({"host_cache_hit_weight": -1})).is_err());
        assert!(force(json!({"host_cache_hit_weight": "x"})).is_err());
        assert!(force(json!({"nope": 1})).is_err());
    }

    #[test]
    fn custom_parameters_follow_their_schema() {
        let name = ParameterName::new("min_device_overlap_blocks").unwrap();
        let schema = json!({"type": "integer", "minimum": 0});
        check_schema(&name, &schema).unwrap();
        let custom = CustomParameters::from([(name, schema)]);
        let check = |json| check(PolicyKind::WorkerSelection, &patch(json), &custom, false);
        assert!(check(json!({"min_device_overlap_blocks": 3, "router_temperature": 0.5})).is_ok());
        let refused = check(json!({"min_device_overlap_blocks": -3}))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("min_device_overlap_blocks"), "{refused}");
        let reserved = ParameterName::new("router_temperature").unwrap();
        assert!(check_schema(&reserved, &json!({})).is_err());
        let other = ParameterName::new("other").unwrap();
        assert!(check_schema(&other, &json!({"type": "nonsense"})).is_err());
        assert!(check_schema(&other, &json!({"$ref": "http://127.0.0.1:1/x"})).is_err());
        assert!(check_schema(&other, &json!(true)).is_err());
    }

    #[test]
    fn numbers_compare_as_numbers() {
        for (left, right, equal) in [
            (json!(2), json!(2.0), true),
            (json!(-0.0), json!(0), true),
            (json!({"a": [1, 2.0]}), json!({"a": [1.0, 2]}), true),
            (
                json!(18_446_744_073_709_551_615u64),
                json!(18_446_744_073_709_551_614u64),
                false,
            ),
            (json!("1"), json!(1), false),
            (json!(null), json!(0), false),
        ] {
            assert_eq!(
                ParameterValue(left.clone()) == ParameterValue(right.clone()),
                equal,
                "{left} {right}"
            );
        }
    }

    #[test]
    fn a_difference_leads_from_one_overlay_to_the_other() {
        let overlay = |json| serde_json::from_value::<Overlay>(json).unwrap();
        let (from, to) = (
            overlay(json!({"a": 1, "b": 2})),
            overlay(json!({"b": 3, "c": 4})),
        );
        assert_eq!(apply(&from, &difference(&from, &to)), to);
        assert!(difference(&from, &from).is_empty());
    }
}
