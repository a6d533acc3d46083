//! Parameters of a policy that can change while it runs: what they are, their values, and changes to them.
//!
//! Owns: the judgement of a change (names, types, ranges). Never does: build a policy.
//!
//! Source of the refusals' words: Dynamo 1.7 (`PATCH /router_policy`). Ranges are those of [`schemas::parameter`], the same
//! that the fleet's service keeps; they refuse more than Dynamo 1.7 does (see the table in `golden/differences.json`).

use std::collections::BTreeMap;
use std::fmt;

use schemas::parameter::Range;
use schemas::{ParameterName, ParameterValue, Patch, PolicyKind, Revision};
use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::Value;

/// One parameter that a policy declares.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Name on the wire.
    pub name: ParameterName,
    /// Allowed values.
    pub rule: Rule,
    /// What it starts with, and returns to.
    pub startup: ParameterValue,
}

/// Allowed values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// A parameter of Dynamo's built-in policy, judged by [`schemas::parameter::check`].
    BuiltIn(Range),
    /// A finite number from 0 to this.
    Number(f64),
    /// A whole number from 0 to this.
    Whole(u64),
}

/// Resolved values in the order in which the policy declares them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parameters(Vec<(ParameterName, ParameterValue)>);

/// What a router reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Configuration {
    /// Counts the changes since the router was made.
    pub revision: Revision,
    /// All of its parameters.
    pub parameters: Parameters,
}

/// A change of some parameters or of all.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A value sets, `null` restores the startup value, an absent name is untouched.
    Patch(BTreeMap<String, Value>),
    /// Every parameter returns to its startup value.
    Reset,
}

/// Why a change is refused. The words follow `invalid policy parameters: `.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// The policy declares no such parameter.
    #[error("unknown parameter {0:?}")]
    Unknown(String),
    /// A value of the wrong type, in serde's words.
    #[error("{0}")]
    Type(String),
    /// Below zero.
    #[error("{0} must be finite and non-negative")]
    Negative(ParameterName),
    /// Outside of the range; Dynamo 1.7 would take it.
    #[error("{name} must be {allowed}")]
    Range {
        /// Which parameter.
        name: ParameterName,
        /// The range, for people.
        allowed: String,
    },
    /// The replacement needs inputs that the host does not supply.
    #[error("replacement changes routing requirements")]
    Inputs,
    /// The replacement treats session affinity otherwise.
    #[error("replacement changes affinity behaviour")]
    Affinity,
    /// The replacement names its workers otherwise.
    #[error("replacement changes the worker label")]
    Label,
    /// The builder's own refusal.
    #[error("{0}")]
    Build(String),
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::BuiltIn(range) => range.fmt(f),
            Rule::Number(max) => write!(f, "a number from 0 to {max}"),
            Rule::Whole(max) => write!(f, "a whole number from 0 to {max}"),
        }
    }
}

impl Parameter {
    /// The value in canonical form (-0 is 0), or why it is none.
    ///
    /// # Errors
    /// [`Invalid::Type`], [`Invalid::Negative`], [`Invalid::Range`], in this order.
    pub fn check(&self, value: &Value) -> Result<ParameterValue, Invalid> {
        match self.rule {
            Rule::BuiltIn(range) => self.check_built_in(range, value),
            Rule::Number(max) => {
                let number = self.number(value)?;
                if number <= max {
                    Ok(ParameterValue::number(number))
                } else {
                    Err(self.out_of_range())
                }
            }
            Rule::Whole(max) => {
                let number: u64 = serde_json::from_value(value.clone())
                    .map_err(|why| Invalid::Type(why.to_string()))?;
                if number <= max {
                    Ok(ParameterValue::integer(number))
                } else {
                    Err(self.out_of_range())
                }
            }
        }
    }

    fn check_built_in(&self, range: Range, value: &Value) -> Result<ParameterValue, Invalid> {
        if range != Range::Tokens {
            self.number(value)?;
        }
        let patch = Patch::from([(self.name.clone(), Some(ParameterValue::raw(value.clone())))]);
        schemas::parameter::check(PolicyKind::WorkerSelection, &patch, &BTreeMap::new(), false)
            .ok()
            .and_then(|mut checked| checked.remove(&self.name).flatten())
            .ok_or_else(|| self.out_of_range())
    }

    fn number(&self, value: &Value) -> Result<f64, Invalid> {
        let number: f64 =
            serde_json::from_value(value.clone()).map_err(|why| Invalid::Type(why.to_string()))?;
        if number.is_finite() && number >= 0.0 {
            Ok(number)
        } else {
            Err(Invalid::Negative(self.name.clone()))
        }
    }

    fn out_of_range(&self) -> Invalid {
        Invalid::Range {
            name: self.name.clone(),
            allowed: self.rule.to_string(),
        }
    }
}

impl Parameters {
    /// Everybody's startup value.
    #[must_use]
    pub fn startup(declared: &[Parameter]) -> Parameters {
        let value = |one: &Parameter| (one.name.clone(), one.startup.clone());
        Parameters(declared.iter().map(value).collect())
    }

    /// The values after a change.
    ///
    /// # Errors
    /// [`Invalid`], the first in name order; nothing is changed then.
    pub fn changed(&self, declared: &[Parameter], change: &Change) -> Result<Parameters, Invalid> {
        let patch = match change {
            Change::Reset => return Ok(Parameters::startup(declared)),
            Change::Patch(patch) => patch,
        };
        let mut after = self.clone();
        for (name, value) in patch {
            let parameter = declared
                .iter()
                .find(|parameter| parameter.name.as_str() == name)
                .ok_or_else(|| Invalid::Unknown(name.clone()))?;
            let value = match value {
                Value::Null => parameter.startup.clone(),
                Value::Bool(_)
                | Value::Number(_)
                | Value::String(_)
                | Value::Array(_)
                | Value::Object(_) => parameter.check(value)?,
            };
            for slot in after.0.iter_mut().filter(|slot| slot.0 == parameter.name) {
                slot.1 = value.clone();
            }
        }
        Ok(after)
    }

    /// The value of a parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ParameterValue> {
        let found = self.0.iter().find(|(known, _)| known.as_str() == name);
        found.map(|(_, value)| value)
    }

    /// The value as a number; 0 when there is none.
    #[must_use]
    pub fn number(&self, name: &str) -> f64 {
        self.get(name)
            .and_then(ParameterValue::as_f64)
            .unwrap_or(0.0)
    }

    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&ParameterName, &ParameterValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl Serialize for Parameters {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl From<&Patch> for Change {
    fn from(patch: &Patch) -> Change {
        let entry = |(name, value): (&ParameterName, &Option<ParameterValue>)| {
            let value = value.as_ref().map(|value| value.as_json().clone());
            (name.to_string(), value.unwrap_or(Value::Null))
        };
        Change::Patch(patch.iter().map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parameter(rule: Rule) -> Parameter {
        Parameter {
            name: ParameterName::new("p").unwrap(),
            rule,
            startup: ParameterValue::integer(0),
        }
    }

    #[test]
    fn rules_take_their_range_and_make_values_canonical() {
        let temperature = Rule::BuiltIn(Range::Temperature);
        let cases = [
            (Rule::Number(2.5), json!(2.5), Ok(json!(2.5))),
            (Rule::Number(2.5), json!(-0.0), Ok(json!(0.0))),
            (
                Rule::Number(2.5),
                json!(2.6),
                Err("p must be a number from 0 to 2.5"),
            ),
            (
                Rule::Number(2.5),
                json!(-1),
                Err("p must be finite and non-negative"),
            ),
            (Rule::Whole(7), json!(7), Ok(json!(7))),
            (
                Rule::Whole(7),
                json!(8),
                Err("p must be a whole number from 0 to 7"),
            ),
            (
                Rule::Whole(7),
                json!("7"),
                Err("invalid type: string \"7\", expected u64"),
            ),
            (
                temperature,
                json!(null),
                Err("invalid type: null, expected f64"),
            ),
        ];
        for (rule, value, expected) in cases {
            let checked = parameter(rule).check(&value);
            let checked = checked
                .map(|value| value.as_json().clone())
                .map_err(|why| why.to_string());
            assert_eq!(checked, expected.map_err(str::to_owned), "{rule} {value}");
        }
    }

    #[test]
    fn parameters_are_listed_in_declared_order() {
        let named = |name: &str| Parameter {
            name: ParameterName::new(name).unwrap(),
            ..parameter(Rule::Whole(9))
        };
        let values = Parameters::startup(&[named("b"), named("a")]);
        assert_eq!(serde_json::to_string(&values).unwrap(), r#"{"b":0,"a":0}"#);
        let change = Change::Patch([("a".to_owned(), json!(3))].into());
        let after = values.changed(&[named("b"), named("a")], &change).unwrap();
        assert_eq!(serde_json::to_string(&after).unwrap(), r#"{"b":0,"a":3}"#);
    }

    #[test]
    fn an_agents_patch_becomes_a_change() {
        let name = ParameterName::new("p").unwrap();
        let value = Patch::from([(name.clone(), Some(ParameterValue::number(0.5)))]);
        assert_eq!(
            Change::from(&value),
            Change::Patch([("p".to_owned(), json!(0.5))].into())
        );
        let restore = Patch::from([(name, None)]);
        assert_eq!(
            Change::from(&restore),
            Change::Patch([("p".to_owned(), json!(null))].into())
        );
    }
}
