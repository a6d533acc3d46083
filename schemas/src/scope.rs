//! What a policy addresses.
//!
//! Owns: matching and the total order of specificity; in its parts, roles and endpoints ([`endpoint`]) and the encoding of
//! scopes into subjects ([`subject`]).

mod endpoint;
mod subject;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use endpoint::{BadEndpoint, BadWorkerType, Endpoint, WorkerType};
pub use subject::{Address, Subject};

use crate::ids::PolicyId;
use crate::name::Name;

/// What a policy addresses: each part is one exact value, or absent for any.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Model name, exact and case-sensitive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Name>,
    /// Role of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_type: Option<WorkerType>,
    /// `namespace/component/endpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// A label of frontends (`router-agent run --group`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
}

/// What is known of one router, for matching: never "any".
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct RouterKey {
    /// Model that the router serves.
    pub model: Name,
    /// Role of its workers.
    pub worker_type: WorkerType,
    /// Endpoint that its workers serve.
    pub endpoint: Endpoint,
}

impl RouterKey {
    /// The fleet-wide scope of exactly this router: any group.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope {
            model: Some(self.model.clone()),
            worker_type: Some(self.worker_type),
            endpoint: Some(self.endpoint.clone()),
            group: None,
        }
    }

    /// The fleet-wide `router_id` of the façade: the id of the policy with [`RouterKey::scope`].
    #[must_use]
    pub fn fleet_id(&self) -> PolicyId {
        PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope: self.scope(),
        }
        .id()
    }
}

impl Scope {
    /// True when the scope addresses this router of a frontend in this group.
    #[must_use]
    pub fn matches(&self, router: &RouterKey, group: Option<&Name>) -> bool {
        self.model
            .as_ref()
            .is_none_or(|model| *model == router.model)
            && self
                .worker_type
                .is_none_or(|worker_type| worker_type == router.worker_type)
            && self
                .endpoint
                .as_ref()
                .is_none_or(|endpoint| *endpoint == router.endpoint)
            && self
                .group
                .as_ref()
                .is_none_or(|wanted| Some(wanted) == group)
    }

    /// True when the scope addresses this model of a frontend in this group, whatever its worker type and endpoint (which
    /// scopes of `busy_threshold` never name).
    #[must_use]
    pub fn matches_model(&self, model: &Name, group: Option<&Name>) -> bool {
        self.model.as_ref().is_none_or(|wanted| wanted == model)
            && self
                .group
                .as_ref()
                .is_none_or(|wanted| Some(wanted) == group)
    }

    /// Rank among the scopes that match one router: an exact `group` beats anything without, then `endpoint`, then
    /// `model`, then `worker_type`. Two scopes that match one router and have the same rank are the same scope.
    #[must_use]
    pub fn specificity(&self) -> u8 {
        u8::from(self.group.is_some()) << 3
            | u8::from(self.endpoint.is_some()) << 2
            | u8::from(self.model.is_some()) << 1
            | u8::from(self.worker_type.is_some())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |f: &mut fmt::Formatter<'_>, key: &str, value: &dyn fmt::Display| {
            let out = write!(f, "{separator}{key}={value}");
            separator = ",";
            out
        };
        if let Some(model) = &self.model {
            part(f, "model", model)?;
        }
        if let Some(worker_type) = &self.worker_type {
            part(f, "worker_type", worker_type)?;
        }
        if let Some(endpoint) = &self.endpoint {
            part(f, "endpoint", endpoint)?;
        }
        if let Some(group) = &self.group {
            part(f, "group", group)?;
        }
        if separator.is_empty() {
            f.write_str("any")
        } else {
            Ok(())
        }
    }
}

/// What the parameters of a policy mean.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Parameters of the worker selection policy (Dynamo `/router_policy`).
    WorkerSelection,
    /// Thresholds above which a model's workers count as busy (Dynamo `/busy_threshold`).
    BusyThreshold,
}

impl PolicyKind {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyKind::WorkerSelection => "worker_selection",
            PolicyKind::BusyThreshold => "busy_threshold",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Kind and scope: which policy.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct PolicyKey {
    /// Kind of the parameters.
    pub kind: PolicyKind,
    /// What it addresses.
    pub scope: Scope,
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.scope)
    }
}
