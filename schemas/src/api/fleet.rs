//! The fleet as its agents report it, and the service's own health.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{LogId, Position};
use crate::status::AgentStatus;

/// Answer of `GET /v1/convergence` without a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetView {
    /// The service has folded everything up to here.
    pub position: Position,
    /// Agents that were heard of lately, by id.
    pub agents: Vec<AgentView>,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentView {
    /// Its latest report.
    #[serde(flatten)]
    pub status: AgentStatus,
    /// How long it has been silent, in milliseconds, by the service's clock.
    pub silent_ms: u64,
    /// True when it has been silent for too long.
    pub stale: bool,
    /// True when it had folded everything that the service had when it reported, or more.
    pub current: bool,
}

/// How the service stands to its log.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LogCondition {
    /// It has not caught up with the log since it started.
    Starting,
    /// It follows.
    Following,
    /// The log cannot be reached; reads go on from the local store, writes are refused.
    Away,
    /// The log is not the one that was followed so far; reads go on from the local store, writes are refused.
    Foreign,
}

/// Answer of `GET /readyz` and `GET /livez`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// True when the answer is 200.
    pub ready: bool,
    /// How the service stands to its log.
    pub log: LogCondition,
    /// The log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_id: Option<LogId>,
    /// Everything up to here is folded in.
    pub position: Position,
    /// The log's last record, when it was asked last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Position>,
    /// How long the service has been behind the log, in milliseconds.
    pub behind_ms: u64,
    /// What is wrong, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why the local store was made anew at this start, when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<String>,
}
