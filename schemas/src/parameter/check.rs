//! `check`: judges a patch.

use std::collections::BTreeMap;

use super::schema::compile;
use super::{BuiltIn, PARAMETERS_MAX, ParameterName, ParameterValue, Patch, Range, built_in};
use super::{TEMPERATURE_MIN, TOKENS_MAX, WEIGHT_MAX, WEIGHT_MIN};
use crate::rejection::Rejection;
use crate::scope::PolicyKind;

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
    let validator = compile(schema).map_err(|why| {
        refuse(format!(
            "a value of its registered schema, which cannot be used: {why}"
        ))
    })?;
    match validator.validate(value.as_json()) {
        Ok(()) => Ok(ParameterValue::raw(canonical(value.as_json()))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::{Overlay, apply, check_schema, difference};
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
                ParameterValue::raw(left.clone()) == ParameterValue::raw(right.clone()),
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
