//! The audit: every record with what became of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{Action, Actor, Reason};
use crate::ids::{CommandId, Hash, PolicyId, Position, Revision, Timestamp};
use crate::parameter::{Overlay, ParameterName};
use crate::scope::{PolicyKind, Scope, Subject};
use crate::state::Verdict;

/// Which end comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditOrder {
    /// Highest position first.
    #[default]
    Newest,
    /// Lowest position first.
    Oldest,
}

/// One record. Fields that a record of an unknown kind does not show are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// Its place.
    pub position: Position,
    /// Where it was written to.
    pub subject: Subject,
    /// What became of it.
    pub verdict: Verdict,
    /// Its hash.
    pub hash: Hash,
    /// The chain over the whole log up to it.
    pub chain: Hash,
    /// Its command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// When, by the deciding service's clock. Order is by position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// True when ranges were lifted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// Policies that it changes (or would have).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<AuditChange>,
    /// The custom parameter that it registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<ParameterName>,
}

/// One policy's part of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditChange {
    /// The policy.
    pub id: PolicyId,
    /// Its kind.
    pub kind: PolicyKind,
    /// Its scope.
    pub scope: Scope,
    /// What was done.
    pub action: Action,
    /// The revision that it makes.
    pub revision: Revision,
    /// The whole overlay after it.
    pub parameters: Overlay,
}

/// Answer of `GET /v1/audit` as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditPage {
    /// Records in the order asked for. May be fewer than `limit`, even none, while there are more.
    pub entries: Vec<AuditEntry>,
    /// Pass as `cursor` (with the same filters and order) for the next page; absent at the end. Valid for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
