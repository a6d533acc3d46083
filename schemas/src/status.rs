//! What agents report: how far each follows the log, and what each router of its frontends really has.
//!
//! Status is no part of any policy and has no revision: reports never make an editor's write stale.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{LogId, Position, Revision, RouterId, Timestamp};
use crate::name::{AgentId, FrontendId, Name};
use crate::parameter::{ParameterName, ParameterValue};
use crate::scope::{RouterKey, Scope};

/// One agent's report about itself and its frontends. Each report replaces the one before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentStatus {
    /// Which agent.
    pub agent: AgentId,
    /// Label of its frontends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
    /// Version of the agent.
    pub version: String,
    /// When this process of the agent started, by its own clock.
    pub started_at: Timestamp,
    /// When this was reported, by the agent's own clock.
    pub reported_at: Timestamp,
    /// Counts the reports of one process: of two reports with the same `started_at` the higher one is newer.
    pub report: u64,
    /// The agent reports at least this often, in milliseconds.
    pub interval_ms: u64,
    /// This is its last report: it stops on purpose, and has left the fleet. One that is killed says nothing and turns stale.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// How it follows the log.
    pub log: LogFollowing,
    /// Its frontends, by id.
    pub frontends: Vec<FrontendStatus>,
}

/// How an agent follows the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogFollowing {
    /// Whether it does.
    pub state: LogState,
    /// The log that it follows, once it has met one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_id: Option<LogId>,
    /// Everything up to here is folded in.
    pub position: Position,
    /// What is wrong, when something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Whether an agent follows the log.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LogState {
    /// No policy is known yet: neither the log nor a local copy could be read. Routers are left alone.
    Starting,
    /// It follows, up to `position`.
    Following,
    /// The log is away; the local copy up to `position` is enforced.
    LocalCopy,
    /// The log under this name is not the one that was followed (made anew, or behind): refused; the last known policy is
    /// enforced.
    Refused,
}

/// One frontend as its agent sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrontendStatus {
    /// Which frontend.
    pub frontend: FrontendId,
    /// What it can do.
    pub capability: Capability,
    /// False when the last listing failed or, as a service shows it, is too old; the routers below are then the last known ones.
    pub reachable: bool,
    /// Why the last listing failed, how old it is when it is too old, or what else is wrong with the frontend as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When the last successful listing was asked for, by the agent's clock. What a service believes of the frontend is as
    /// old as its report (`silent_ms`) and the time from here to `reported_at` together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed_at: Option<Timestamp>,
    /// Another agent that seems to work on this frontend too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rival: Option<String>,
    /// Its routers.
    pub routers: Vec<RouterStatus>,
    /// Busy thresholds, per model.
    pub thresholds: Vec<ThresholdStatus>,
}

/// What a frontend offers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Not met yet.
    Unknown,
    /// Dynamo 1.7 and later: router policies and busy thresholds.
    RouterPolicy,
    /// Dynamo 1.6: only busy thresholds; router policies cannot be applied there.
    BusyThresholdOnly,
    /// Its admin routes are switched off (`DYN_DISABLE_FRONTEND_ADMIN_API`), or it has none.
    None,
}

/// Where one router, or one model's thresholds, stands against what is wanted.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ApplyState {
    /// The last listing showed everything that is wanted.
    Applied,
    /// Not yet: a change is on its way, was not seen in a listing yet, or waits for a retry.
    Pending,
    /// The router refused the change; `error` has its words. Tried again when the policy, the router or its revision
    /// changes.
    Refused,
    /// Changed behind the agent's back, and the agent only observes.
    Drifted,
    /// A policy for it cannot be read by this version of the agent; the last readable one is enforced.
    Stopped,
    /// The frontend has no way to apply it.
    Unsupported,
}

/// One router as its agent sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RouterStatus {
    /// Its id, as listed last.
    pub router_id: RouterId,
    /// Model, worker type and endpoint.
    #[serde(flatten)]
    pub router: RouterKey,
    /// The router's own revision; absent when it has no runtime configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_revision: Option<Revision>,
    /// What it listed last.
    pub parameters: BTreeMap<ParameterName, ParameterValue>,
    /// Where it stands.
    pub state: ApplyState,
    /// `state` was found with everything up to here folded in. `applied` counts for a change at a position when this is at
    /// or after it.
    pub position: Position,
    /// The router's or the network's own words, when something is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it came into `state`, by the agent's clock.
    pub since: Timestamp,
    /// How often somebody changed it behind the agent's back, since the agent met it.
    pub drifts: u64,
}

/// One model's thresholds on one frontend as its agent sees them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThresholdStatus {
    /// Model.
    pub model: Name,
    /// What the frontend listed last; absent names are off.
    pub thresholds: BTreeMap<ParameterName, ParameterValue>,
    /// Where it stands.
    pub state: ApplyState,
    /// As in [`RouterStatus::position`].
    pub position: Position,
    /// The frontend's or the network's own words, when something is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it came into `state`.
    pub since: Timestamp,
    /// How often somebody changed them behind the agent's back.
    pub drifts: u64,
}

/// Bound: reports longer than this (about 40 routers) are counted by their bytes as JSON, not only by number.
pub const LONG_REPORT_BYTES: usize = 16 << 10;
/// Bound: bytes of all long reports that one place keeps, as JSON; as values they take some six times that.
pub const LONG_REPORTS_BYTES_MAX: usize = 16 << 20;

/// Whether there is room for a report beside the others that are kept, all by their [`AgentStatus::bytes`].
#[must_use]
pub fn has_room(bytes: usize, others: impl Iterator<Item = usize>) -> bool {
    let is_long = |bytes: &usize| *bytes > LONG_REPORT_BYTES;
    !is_long(&bytes) || others.filter(is_long).sum::<usize>() + bytes <= LONG_REPORTS_BYTES_MAX
}

impl AgentStatus {
    /// Its length as JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // Encoding plain values cannot fail.
        serde_json::to_vec(self).map_or(0, |json| json.len())
    }

    /// True when `self` was reported after `other`, whatever the clocks say within one process of the agent.
    #[must_use]
    pub fn newer_than(&self, other: &AgentStatus) -> bool {
        (self.started_at, self.report) > (other.started_at, other.report)
    }
}

/// Does a status concern a scope?
pub(crate) fn addressed(scope: &Scope, router: &RouterStatus, group: Option<&Name>) -> bool {
    scope.matches(&router.router, group)
}
