//! `effective`: what all matching policies together want of one router, or of one model's thresholds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Position, Revision};
use crate::name::Name;
use crate::parameter::{Overlay, ParameterName, ParameterValue};
use crate::scope::{PolicyKey, PolicyKind, RouterKey, Scope};
use crate::state::{State, Stop};

/// One value and where it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EffectiveValue {
    /// The value.
    pub value: ParameterValue,
    /// Scope of the policy that gave it: the most specific one that names the parameter.
    pub scope: Scope,
    /// Revision of that policy.
    pub revision: Revision,
}

/// What is wanted, and since when.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Effective {
    /// Explicit values; a parameter that is absent keeps its startup value.
    pub values: BTreeMap<ParameterName, EffectiveValue>,
    /// The newest accepted record among the matching policies; 0 = none matches.
    pub position: Position,
    /// Matching policies, least specific first.
    pub policies: Vec<PolicyKey>,
    /// Set when one of them is stopped: the values hold, but may be behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stop>,
}

impl Effective {
    /// The values alone.
    #[must_use]
    pub fn overlay(&self) -> Overlay {
        self.values
            .iter()
            .map(|(name, from)| (name.clone(), from.value.clone()))
            .collect()
    }
}

/// What the state wants of one router of a frontend in this group.
#[must_use]
pub fn effective(state: &State, router: &RouterKey, group: Option<&Name>) -> Effective {
    fold(state, PolicyKind::WorkerSelection, |scope| {
        scope.matches(router, group)
    })
}

/// Which thresholds the state wants for one model of a frontend in this group.
#[must_use]
pub fn effective_thresholds(state: &State, model: &Name, group: Option<&Name>) -> Effective {
    fold(state, PolicyKind::BusyThreshold, |scope| {
        scope.matches_model(model, group)
    })
}

fn fold(state: &State, kind: PolicyKind, matches: impl Fn(&Scope) -> bool) -> Effective {
    let mut matching: Vec<_> = state
        .policies
        .values()
        .filter(|document| document.kind == kind && matches(&document.scope))
        .collect();
    matching.sort_by_key(|document| document.scope.specificity());
    let mut effective = Effective {
        stopped: state
            .stops
            .iter()
            .find(|(key, _)| key.kind == kind && matches(&key.scope))
            .map(|(_, stop)| stop)
            .or(state.stopped.as_ref())
            .cloned(),
        ..Effective::default()
    };
    for document in matching {
        effective.position = effective.position.max(document.position);
        effective.policies.push(document.key());
        for (name, value) in &document.overlay {
            let from = EffectiveValue {
                value: value.clone(),
                scope: document.scope.clone(),
                revision: document.revision,
            };
            effective.values.insert(name.clone(), from);
        }
    }
    effective
}
