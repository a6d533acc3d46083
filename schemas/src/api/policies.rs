//! Reading policies: lists, history, differences, and what is effective.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effective::Effective;
use crate::event::{Action, Actor, Reason};
use crate::ids::{CommandId, Hash, LogId, PolicyId, Position, Revision, Timestamp};
use crate::name::Name;
use crate::parameter::{CustomParameters, Overlay, ParameterName, ParameterValue};
use crate::scope::{PolicyKind, RouterKey, Scope};
use crate::state::Stop;

/// One policy. At revision 0 it was never changed and has no position, command, actor or time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyView {
    /// Its id.
    pub id: PolicyId,
    /// Kind of the parameters.
    pub kind: PolicyKind,
    /// What it addresses.
    pub scope: Scope,
    /// Its revision; also the `ETag`.
    pub revision: Revision,
    /// Explicit values; what is absent keeps each router's startup value.
    pub parameters: Overlay,
    /// Its last accepted record.
    pub position: Position,
    /// Command of that record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
    /// Who made that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// Live routers (for thresholds: models on frontends) that it addresses now.
    pub routers: u64,
    /// Set when it holds a record that this version cannot read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stop>,
}

/// Answer of `GET /v1/policies`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyList {
    /// Everything up to here is in.
    pub position: Position,
    /// The log; absent before it was met for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_id: Option<LogId>,
    /// Policies that were ever changed, in order of kind and scope.
    pub policies: Vec<PolicyView>,
}

/// One accepted change of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// The policy.
    pub id: PolicyId,
    /// Its kind.
    pub kind: PolicyKind,
    /// Its scope.
    pub scope: Scope,
    /// The revision that the change made.
    pub revision: Revision,
    /// What was done.
    pub action: Action,
    /// The whole overlay after it.
    pub parameters: Overlay,
    /// The record.
    pub position: Position,
    /// Hash of the record.
    pub hash: Hash,
    /// Its command.
    pub command_id: CommandId,
    /// Who.
    pub actor: Actor,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When.
    pub changed_at: Timestamp,
    /// True when ranges were lifted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
}

/// Answer of `GET /v1/policies/{id}/history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPage {
    /// Changes in the order asked for.
    pub entries: Vec<HistoryEntry>,
    /// Pass as `cursor` for the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One parameter's values at two revisions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DifferentValue {
    /// Before; `null` = not in the overlay.
    pub from: Option<ParameterValue>,
    /// After; `null` = not in the overlay.
    pub to: Option<ParameterValue>,
}

/// Answer of `GET /v1/policies/{id}/diff`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// The policy.
    pub id: PolicyId,
    /// Its kind.
    pub kind: PolicyKind,
    /// Its scope.
    pub scope: Scope,
    /// One revision.
    pub from: Revision,
    /// The other.
    pub to: Revision,
    /// Parameters that differ.
    pub parameters: BTreeMap<ParameterName, DifferentValue>,
}

/// Answer of `GET /v1/effective`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EffectiveView {
    /// Everything up to here is folded in.
    pub position: Position,
    /// Model.
    pub model: Name,
    /// The router, when worker type and endpoint were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterKey>,
    /// Group of the frontend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// What is wanted of the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_selection: Option<Effective>,
    /// What is wanted of the model's thresholds.
    pub busy_threshold: Effective,
}

/// Answer of `GET /v1/parameters` and `PUT /v1/parameters/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ParametersView {
    /// Revision of the registry.
    pub revision: Revision,
    /// Its last accepted record.
    pub position: Position,
    /// Custom parameters and their JSON Schemas.
    pub parameters: CustomParameters,
    /// Built-in parameters: kind, name, allowed values, Dynamo's default.
    pub built_in: Vec<BuiltInView>,
    /// Set when it holds a record that this version cannot read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stop>,
    /// The command, in the answer to a registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

/// One built-in parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BuiltInView {
    /// Kind of policy that has it.
    pub kind: PolicyKind,
    /// Its name.
    pub name: String,
    /// Allowed values, in words.
    pub allowed: String,
    /// Dynamo's default; absent = off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<f64>,
    /// True when a router without cache inputs refuses values above 0.
    pub cache_scoring: bool,
}
