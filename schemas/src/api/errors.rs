//! Errors: one shape for all routes. `error` is for people and may change; `code` is for programs and stays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::Actor;
use crate::ids::{CommandId, Position, Revision, Timestamp};
use crate::rejection::RejectionCode;

/// Stable names of errors.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 409: the policy has another revision than expected; the current one is in the answer.
    StaleRevision,
    /// 400: neither parameters nor `reset: true`, or both.
    EmptyChange,
    /// 422: no such parameter.
    UnknownParameter,
    /// 422 (busy thresholds: 400): a value outside its range or of the wrong type.
    InvalidValue,
    /// 422: this kind of policy cannot have such a scope.
    InvalidScope,
    /// 422: not a JSON Schema that can be registered.
    InvalidSchema,
    /// 422: the list of changes is empty, too long, or names a policy twice.
    InvalidSet,
    /// 409: the policy holds a record that this version cannot read.
    PolicyStopped,
    /// 404: the policy has no such revision.
    NoSuchRevision,
    /// 422: the router's selection policy has no runtime configuration.
    NotConfigurable,
    /// 400 (syntax) or 422 (type): the body is not what the route takes.
    MalformedBody,
    /// 415: the body is not declared as JSON.
    UnsupportedMediaType,
    /// 413: the body is too large.
    BodyTooLarge,
    /// 404: no such router, policy or model.
    NotFound,
    /// 404: no such route.
    RouteNotFound,
    /// 412: `If-Match` names another revision.
    PreconditionFailed,
    /// 422: the idempotency key was used with another request.
    IdempotencyKeyReused,
    /// 503: whether the change is in the log could not be found out; repeat it with the same key.
    OutcomeUnknown,
    /// 503: the log cannot be reached; nothing was changed.
    LogUnavailable,
    /// 503 for writes, 409 for followers: the log is not the one that was followed so far.
    ForeignLog,
    /// 409: a change decided at the same time won, or too many writers change the policy; nothing was changed.
    Conflict,
    /// 400: the query string or a header is not what the route takes.
    BadQuery,
    /// 405: the route has no such method.
    MethodNotAllowed,
    /// 404: no record there.
    NoRecord,
    /// 503: too many requests in progress; nothing was changed.
    Overloaded,
    /// 408: the request's body took too long; 504: the answer did.
    Timeout,
    /// 500: a fault of the service.
    Internal,
}

impl From<RejectionCode> for ErrorCode {
    fn from(code: RejectionCode) -> ErrorCode {
        match code {
            RejectionCode::StaleRevision => ErrorCode::StaleRevision,
            RejectionCode::EmptyChange => ErrorCode::EmptyChange,
            RejectionCode::UnknownParameter => ErrorCode::UnknownParameter,
            RejectionCode::InvalidValue => ErrorCode::InvalidValue,
            RejectionCode::InvalidScope => ErrorCode::InvalidScope,
            RejectionCode::InvalidSchema => ErrorCode::InvalidSchema,
            RejectionCode::InvalidSet => ErrorCode::InvalidSet,
            RejectionCode::PolicyStopped => ErrorCode::PolicyStopped,
            RejectionCode::NoSuchRevision => ErrorCode::NoSuchRevision,
        }
    }
}

/// What is known about a write that was not answered with success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WriteOutcome {
    /// It is not in the log and will not be. Never said of a write whose `Idempotency-Key` came from the client and that the
    /// service could not look up in the log: an earlier attempt, through another replica or before a restart, may have
    /// landed.
    NotApplied,
    /// It may be in the log; with a `code` other than `outcome_unknown` only by an earlier attempt. Repeating it with the same `Idempotency-Key` (the `command_id`) is safe.
    Unknown,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// For people.
    pub error: String,
    /// For programs.
    pub code: ErrorCode,
    /// The field of the request that was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The revision that the policy has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_revision: Option<Revision>,
    /// Who made the newer change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<Actor>,
    /// When the newer change was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// Where the record of the newer change, or of this command, stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// What is known about a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<WriteOutcome>,
    /// The write's command: send it as `Idempotency-Key` to repeat the write safely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<CommandId>,
}

impl ErrorBody {
    /// An error with text and code alone.
    #[must_use]
    pub fn new(code: ErrorCode, error: impl Into<String>) -> ErrorBody {
        ErrorBody {
            error: error.into(),
            code,
            field: None,
            current_revision: None,
            changed_by: None,
            changed_at: None,
            position: None,
            outcome: None,
            command_id: None,
        }
    }
}
