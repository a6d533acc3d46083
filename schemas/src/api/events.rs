//! The log over HTTP: records as lines, for followers without a broker.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ids::{Hash, LogId, Position};
use crate::scope::Subject;
use crate::state::Verdict;

/// One record, as one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// Its place.
    pub position: Position,
    /// Where it was written to.
    pub subject: Subject,
    /// Its hash.
    pub hash: Hash,
    /// The chain over the whole log up to it.
    pub chain: Hash,
    /// What became of it, in the eyes of this service.
    pub verdict: Verdict,
    /// The record, byte for byte; `null` when its bytes are not JSON text on one line.
    #[schemars(with = "Option<serde_json::Value>")]
    pub event: Option<Box<RawValue>>,
    /// The record's bytes, when `event` cannot hold them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// Answer of `GET /v1/log/head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeadView {
    /// Which log.
    pub log_id: LogId,
    /// Its last record, as far as this service has read.
    pub position: Position,
}

/// Answer of `GET /v1/log/tails`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct TailsView {
    /// Which log.
    pub log_id: LogId,
    /// Nothing at or before this position is missing from `entries`; nothing after it is in.
    pub position: Position,
    /// The last record of every subject.
    pub entries: Vec<Line>,
}
