//! Names and values of parameters.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
