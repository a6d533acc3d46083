//! What one model's busy thresholds on one frontend are owed. Pure.
//!
//! Source (Dynamo 1.6 and 1.7): thresholds have no revision and no reset; `null` in a request leaves a value unchanged, so a
//! threshold that was set can never be cleared again. A worker counts as busy when its load is *strictly greater* than a
//! threshold. Hence a threshold that was off at startup is put back by the value that can never be passed: a used fraction
//! of 1.0 (a fraction of the blocks is at most 1), 2^64-1 tokens (the count is a u64), 1e308 times the batch's tokens.
//! Frontends take all three and list them as sent; here they count as equal to off.

use std::fmt;

use schemas::{Overlay, ParameterName, ParameterValue};

use crate::memory::ThresholdMemory;
use crate::target::{Thresholds, Values};

/// What to do about one model's thresholds. Prints as one line.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// They are as wanted.
    Nothing,
    /// One request.
    Set {
        /// Every value of the overlay, and those to put back.
        values: Values,
        /// Names that are not as wanted, with what is listed.
        differences: Vec<(ParameterName, Option<ParameterValue>)>,
    },
    /// The frontend does not know these names.
    Unsupported {
        /// Which.
        names: Vec<ParameterName>,
    },
}

/// What one model's thresholds are owed.
#[must_use]
pub fn plan(desired: &Overlay, listed: &Thresholds, memory: &ThresholdMemory) -> Plan {
    let unknown: Vec<ParameterName> = desired
        .keys()
        .filter(|name| !listed.contains_key(*name))
        .cloned()
        .collect();
    if !unknown.is_empty() {
        return Plan::Unsupported { names: unknown };
    }
    let mut values = desired.clone();
    let mut differences = Vec::new();
    for (name, now) in listed {
        let startup = memory.startup.get(name).and_then(Option::as_ref);
        let wanted = desired.get(name).or(startup);
        let fine = match wanted {
            Some(value) => now.as_ref() == Some(value),
            None => equal(name, now.as_ref(), None),
        };
        if fine {
            continue;
        }
        let Some(value) = wanted.cloned().or_else(|| off(name)) else {
            // A threshold of a later version that was off and has no known value for it: left as it is.
            continue;
        };
        values.insert(name.clone(), value);
        differences.push((name.clone(), now.clone()));
    }
    if differences.is_empty() {
        Plan::Nothing
    } else {
        Plan::Set {
            values,
            differences,
        }
    }
}

/// The value that switches a threshold off in effect.
#[must_use]
pub fn off(name: &ParameterName) -> Option<ParameterValue> {
    match name.as_str() {
        "active_decode_blocks_threshold" => Some(ParameterValue::number(1.0)),
        "active_prefill_tokens_threshold" => Some(ParameterValue::integer(u64::MAX)),
        "active_prefill_tokens_threshold_frac" => Some(ParameterValue::number(1e308)),
        _ => None,
    }
}

/// Equal in effect: `None` and the value that switches off are the same.
#[must_use]
pub fn equal(
    name: &ParameterName,
    left: Option<&ParameterValue>,
    right: Option<&ParameterValue>,
) -> bool {
    let off = off(name);
    let effect =
        |value: Option<&ParameterValue>| value.filter(|value| off.as_ref() != Some(value)).cloned();
    effect(left) == effect(right)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Nothing => f.write_str("nothing to do"),
            Plan::Set {
                values,
                differences,
            } => {
                for (index, (name, listed)) in differences.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}set {name} to ")?;
                    match values.get(name) {
                        Some(value) => write!(f, "{value}")?,
                        None => f.write_str("off")?,
                    }
                    match listed {
                        Some(listed) => write!(f, " (lists {listed})")?,
                        None => f.write_str(" (lists off)")?,
                    }
                }
                Ok(())
            }
            Plan::Unsupported { names } => {
                f.write_str("the frontend has no threshold named ")?;
                for (index, name) in names.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{name}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::tests::{parameter, thresholds_off, values};

    const DECODE: &str = "active_decode_blocks_threshold";

    #[test]
    fn null_zero_and_absent_are_three_things() {
        let value = |value: f64| Some(ParameterValue::number(value));
        // (policy, listed, startup) -> plan
        let cases = [
            (None, None, None, "nothing to do"),
            (None, value(1.0), None, "nothing to do"),
            (
                None,
                value(0.5),
                None,
                "set active_decode_blocks_threshold to 1.0 (lists 0.5)",
            ),
            (
                None,
                value(0.0),
                None,
                "set active_decode_blocks_threshold to 1.0 (lists 0.0)",
            ),
            (
                None,
                value(0.5),
                value(0.0),
                "set active_decode_blocks_threshold to 0.0 (lists 0.5)",
            ),
            (None, value(0.5), value(0.5), "nothing to do"),
            (
                value(0.0),
                None,
                None,
                "set active_decode_blocks_threshold to 0.0 (lists off)",
            ),
            (value(0.0), value(0.0), value(0.5), "nothing to do"),
            (
                value(1.0),
                None,
                None,
                "set active_decode_blocks_threshold to 1.0 (lists off)",
            ),
            (value(1.0), value(1.0), None, "nothing to do"),
        ];
        for (policy, listed, startup, text) in cases {
            let case = format!("policy {policy:?}, listed {listed:?}, startup {startup:?}");
            let desired: Overlay = policy
                .map(|value| (parameter(DECODE), value))
                .into_iter()
                .collect();
            let with = |value| {
                let mut thresholds = thresholds_off();
                thresholds.insert(parameter(DECODE), value);
                thresholds
            };
            let memory = ThresholdMemory {
                startup: with(startup),
                ..ThresholdMemory::default()
            };
            assert_eq!(
                plan(&desired, &with(listed), &memory).to_string(),
                text,
                "{case}"
            );
        }
        let desired = values(&[("no_such", 1.0), (DECODE, 0.5)]);
        let plan = plan(&desired, &thresholds_off(), &ThresholdMemory::default());
        assert_eq!(
            plan.to_string(),
            "the frontend has no threshold named no_such"
        );
    }
}
