//! The façade: the bodies of Dynamo 1.7's `/router_policy` and `/busy_threshold`, for a whole fleet.
//!
//! A tool written for one frontend finds every field that it knows, with the same meaning; fields that a frontend does not
//! have (`replicas`, `position`, `command_id`, …) are added beside them.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::changes::{one_of, parameters_or_reset};
use crate::convergence::Convergence;
use crate::event::Reason;
use crate::ids::{CommandId, PolicyId, Position, Revision, RouterId};
use crate::name::{AgentId, FrontendId, Name};
use crate::parameter::{ParameterName, ParameterValue, TOKENS_MAX, WEIGHT_MAX};
use crate::scope::{Scope, WorkerType};
use crate::status::ApplyState;

/// Answer of `GET /router_policy`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouterList {
    /// One entry per model, namespace, component, endpoint and worker type that a live agent reports.
    pub routers: Vec<RouterEntry>,
}

/// One router of the fleet: the same router on every frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouterEntry {
    /// Stable id: the id of the policy of exactly this router, in any group.
    pub router_id: PolicyId,
    /// Model. `null` (here and in the next four) only in the answer to a PATCH by a scope that leaves it open.
    pub model: Option<Name>,
    /// Dynamo namespace.
    pub namespace: Option<Name>,
    /// Dynamo component.
    pub component: Option<Name>,
    /// Endpoint of the component.
    pub endpoint: Option<Name>,
    /// Role of the workers.
    pub worker_type: Option<WorkerType>,
    /// `null` when no replica has runtime configuration.
    pub configuration: Option<Configuration>,
    /// The router on each frontend.
    #[serde(default)]
    pub replicas: Vec<Replica>,
}

/// What a router is configured to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Revision of the policy; send it back as `expected_revision`.
    pub revision: Revision,
    /// Resolved values: what the policies want, over what the replicas report.
    pub parameters: BTreeMap<ParameterName, ParameterValue>,
}

/// A router on one frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Replica {
    /// Agent that reports it.
    pub agent: AgentId,
    /// Frontend.
    pub frontend: FrontendId,
    /// Group of the frontend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// The router's own id.
    pub router_id: RouterId,
    /// The router's own revision; absent when it has no runtime configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_revision: Option<Revision>,
    /// What it listed last.
    pub parameters: BTreeMap<ParameterName, ParameterValue>,
    /// Where it stands.
    pub state: ApplyState,
    /// True when its agent has been silent for too long: the rest may be old.
    pub stale: bool,
    /// Why it is not applied, in the router's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Body of `PATCH /router_policy`: `router_id` or `scope`; nonempty `parameters` or `reset: true`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = parameters_or_reset, transform = router_or_scope)]
pub struct PatchRequest {
    /// Fleet-wide id, as listed.
    #[schemars(with = "PolicyId")]
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub router_id: Option<PolicyId>,
    /// Instead of `router_id`: a scope; no router needs to be live.
    #[schemars(with = "Scope")]
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    pub scope: Option<Scope>,
    /// The revision that the change was written against.
    pub expected_revision: Revision,
    /// A value sets, `null` removes, an absent name is untouched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BTreeMap<String, Option<ParameterValue>>>,
    /// Empty the overlay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Lift the ranges of built-in parameters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

fn router_or_scope(schema: &mut Schema) {
    one_of(
        schema,
        serde_json::json!([
            { "required": ["router_id"], "properties": { "scope": false } },
            { "required": ["scope"], "properties": { "router_id": false } }
        ]),
    );
}

/// A field that may be absent but not `null`, as on a frontend.
fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// Answer of `PATCH /router_policy`: the entry as it is listed now, and where the change stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PatchAnswer {
    /// The entry.
    #[serde(flatten)]
    pub entry: RouterEntry,
    /// The record of the change.
    pub position: Position,
    /// Its command.
    pub command_id: CommandId,
    /// Where it has arrived, when that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convergence: Option<Convergence>,
}

/// Answer of `GET /busy_threshold`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdList {
    /// One entry per model that is known from a policy or from a live agent.
    pub thresholds: Vec<ThresholdEntry>,
}

/// Thresholds of one model: what the policies want, over what the frontends report. `null` = off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdEntry {
    /// Model, as asked for.
    pub model: String,
    /// Share of active decode blocks, 0 to 1.
    pub active_decode_blocks_threshold: Option<f64>,
    /// Active prefill tokens.
    pub active_prefill_tokens_threshold: Option<u64>,
    /// Active prefill tokens as a share of the most that fit.
    pub active_prefill_tokens_threshold_frac: Option<f64>,
    /// Revision of the policy of exactly this model, in any group.
    #[serde(default)]
    pub revision: Revision,
    /// The thresholds on each frontend.
    #[serde(default)]
    pub replicas: Vec<ThresholdReplica>,
}

/// One model's thresholds on one frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdReplica {
    /// Agent that reports them.
    pub agent: AgentId,
    /// Frontend.
    pub frontend: FrontendId,
    /// Group of the frontend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// What it listed last; absent names are off.
    pub thresholds: BTreeMap<ParameterName, ParameterValue>,
    /// Where they stand.
    pub state: ApplyState,
    /// True when the agent has been silent for too long.
    pub stale: bool,
    /// Why they are not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Body of `POST /busy_threshold`. A model alone reads; `null` leaves unchanged, as on a frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThresholdRequest {
    /// Model.
    pub model: String,
    /// Share of active decode blocks, 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_decode_blocks_threshold: Option<f64>,
    /// Active prefill tokens.
    #[schemars(range(max = TOKENS_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_prefill_tokens_threshold: Option<u64>,
    /// Active prefill tokens as a share of the most that fit.
    #[schemars(range(min = 0.0, max = WEIGHT_MAX))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_prefill_tokens_threshold_frac: Option<f64>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Answer of `POST /busy_threshold`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdAnswer {
    /// The entry.
    #[serde(flatten)]
    pub entry: ThresholdEntry,
    /// The record of the change; absent when it only read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
    /// Where it has arrived, when that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convergence: Option<Convergence>,
}
