//! Changing policies: one or several at once.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::policies::PolicyView;
use crate::convergence::Convergence;
use crate::decide::SET_POLICIES_MAX;
use crate::event::Reason;
use crate::ids::{CommandId, Position, Revision, RouterId};
use crate::name::{AgentId, FrontendId, Name};
use crate::parameter::{Overlay, Patch};
use crate::scope::{PolicyKind, RouterKey, Scope};

/// Says in a schema that exactly one of nonempty `parameters` and `reset: true` is given.
pub(super) fn parameters_or_reset(schema: &mut Schema) {
    one_of(
        schema,
        json!([
            {
                "required": ["parameters"],
                "properties": {
                    "parameters": { "type": "object", "minProperties": 1 },
                    "reset": { "const": false }
                }
            },
            {
                "required": ["reset"],
                "properties": { "reset": { "const": true }, "parameters": { "type": "null" } }
            }
        ]),
    );
}

/// Adds alternatives that exclude each other.
pub(super) fn one_of(schema: &mut Schema, alternatives: Value) {
    let all = schema
        .ensure_object()
        .entry("allOf")
        .or_insert_with(|| json!([]));
    if let Some(all) = all.as_array_mut() {
        all.push(json!({ "anyOf": alternatives }));
    }
}

/// Body of `POST /v1/changes` and `POST /v1/policies:validate`: all changes are made in one record, or none is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangesRequest {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Lift the ranges of built-in parameters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// One to 64 changes of different policies.
    #[schemars(length(min = 1, max = SET_POLICIES_MAX))]
    pub changes: Vec<ChangeRequest>,
}

/// One policy's part: nonempty `parameters` or `reset: true`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = parameters_or_reset)]
pub struct ChangeRequest {
    /// Kind of the policy.
    pub kind: PolicyKind,
    /// What it addresses.
    pub scope: Scope,
    /// The revision that the change was written against; absent = whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_revision: Option<Revision>,
    /// A value sets, `null` removes, an absent name is untouched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Patch>,
    /// Empty the overlay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
}

/// Body of `PATCH /v1/policies/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = parameters_or_reset)]
pub struct PolicyPatchRequest {
    /// A value sets, `null` removes, an absent name is untouched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Patch>,
    /// Empty the overlay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
    /// The revision that the change was written against (409 when stale); `If-Match` does the same with 412.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_revision: Option<Revision>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Lift the ranges of built-in parameters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Body of `POST /v1/policies/{id}/revert`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RevertRequest {
    /// The revision whose overlay is put back; 0 empties it. History is kept: this makes a new revision.
    pub to_revision: Revision,
    /// The revision that the revert was written against; absent = whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_revision: Option<Revision>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Lift the ranges of built-in parameters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Body of `PUT /v1/parameters/{name}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterRequest {
    /// JSON Schema (2020-12) of the parameter's values.
    #[schemars(extend("type" = "object"))]
    pub schema: serde_json::Value,
    /// The registry's revision that this was written against; absent = whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_revision: Option<Revision>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Answer of every write under `/v1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WriteAnswer {
    /// The record of the change.
    pub position: Position,
    /// Its command.
    pub command_id: CommandId,
    /// The policies that it changed, as they are now.
    pub policies: Vec<PolicyView>,
    /// Where it has arrived, when that was asked for with `?wait=converged`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convergence: Option<Convergence>,
}

/// Answer of `POST /v1/policies:validate`: what the changes would do now. Nothing is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidateAnswer {
    /// Decided on everything up to here.
    pub position: Position,
    /// The policies as they would be.
    pub policies: Vec<PolicyView>,
    /// Every live router and threshold whose policies are among them.
    pub routers: Vec<ValidatedRouter>,
}

/// What the changes would do to one router, or to one model's thresholds on one frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidatedRouter {
    /// Agent.
    pub agent: AgentId,
    /// Frontend.
    pub frontend: FrontendId,
    /// Kind of the policy.
    pub kind: PolicyKind,
    /// Model.
    pub model: Name,
    /// The router; absent for thresholds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterKey>,
    /// Its own id; absent for thresholds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_id: Option<RouterId>,
    /// What the policies want of it now.
    pub before: Overlay,
    /// What they would want.
    pub after: Overlay,
    /// Why it would not follow, as far as that is known beforehand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}
