//! `name=value` on the command line.

use std::str::FromStr;

use schemas::parameter::BadParameterName;
use schemas::{ParameterName, ParameterValue, PolicyKind};
use serde_json::Value;

/// One parameter to set, or (without a value) to remove.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    pub name: ParameterName,
    pub value: Option<ParameterValue>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BadAssignment {
    #[error("must be name=value")]
    NoEquals,
    #[error("name {0}")]
    Name(#[from] BadParameterName),
}

impl FromStr for Assignment {
    type Err = BadAssignment;
    /// The value is JSON where it reads as JSON, else a text.
    fn from_str(text: &str) -> Result<Assignment, BadAssignment> {
        let (name, value) = text.split_once('=').ok_or(BadAssignment::NoEquals)?;
        let value = match serde_json::from_str(value) {
            Ok(Value::Null) => None,
            Ok(json) => Some(ParameterValue::raw(json)),
            Err(_) => Some(ParameterValue::raw(Value::from(value))),
        };
        Ok(Assignment {
            name: ParameterName::new(name)?,
            value,
        })
    }
}

/// The kind of policy that these parameters belong to: thresholds when all of them are.
pub(crate) fn kind_of(assignments: &[Assignment]) -> PolicyKind {
    let threshold = |assignment: &Assignment| {
        let name = assignment.name.as_str();
        name.starts_with("active_") && name.contains("_threshold")
    };
    if assignments.iter().all(threshold) {
        PolicyKind::BusyThreshold
    } else {
        PolicyKind::WorkerSelection
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_json_where_they_read_as_json() {
        let value = |text: &str| text.parse::<Assignment>().expect("an assignment").value;
        assert_eq!(value("a=0.5"), Some(ParameterValue::number(0.5)));
        assert_eq!(value("a=null"), None);
        assert_eq!(value("a="), Some(ParameterValue::raw(Value::from(""))));
        assert_eq!(
            value("a=warm"),
            Some(ParameterValue::raw(Value::from("warm")))
        );
        assert_eq!(
            value("a=\"0.5\""),
            Some(ParameterValue::raw(Value::from("0.5")))
        );
        for bad in ["a", "", "=1", "a b=1"] {
            assert!(bad.parse::<Assignment>().is_err(), "{bad}");
        }
    }

    #[test]
    fn thresholds_are_known_by_their_names() {
        let kind = |texts: &[&str]| {
            let all: Vec<Assignment> = texts
                .iter()
                .map(|text| text.parse().expect("one"))
                .collect();
            kind_of(&all)
        };
        assert_eq!(
            kind(&["active_prefill_tokens_threshold_frac=1"]),
            PolicyKind::BusyThreshold
        );
        assert_eq!(kind(&["router_temperature=1"]), PolicyKind::WorkerSelection);
        let mixed = ["active_decode_blocks_threshold=1", "router_temperature=1"];
        assert_eq!(kind(&mixed), PolicyKind::WorkerSelection);
    }
}
