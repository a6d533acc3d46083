//! What can go wrong, and the exit code of each. The texts are for people; the codes are for scripts and stay.

use schemas::api::{ErrorBody, ErrorCode, WriteOutcome};

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// No answer, and nothing was sent or only read.
    #[error(
        "{service} cannot be reached ({why}); is `router-policy serve` running there? (--service URL)"
    )]
    Unreachable { service: String, why: String },
    /// The service said no.
    #[error("{}", .0.error)]
    Answered(Box<ErrorBody>),
    /// The policy has moved on.
    #[error("{0}")]
    Stale(String, Box<ErrorBody>),
    /// A change whose fate is open.
    #[error(
        "{why}\nit may or may not be in the log; repeat the same command with --idempotency-key {key}: it is never applied twice"
    )]
    Unknown { key: String, why: String },
    /// A change that is kept but did not arrive everywhere in time.
    #[error("{0}")]
    NotConverged(String),
    /// Arguments that make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Something broke.
    #[error("{0}")]
    Failed(String),
}

impl Problem {
    /// See the help's list.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Problem::Unreachable { .. } | Problem::Failed(_) => 1,
            Problem::Usage(_) => 2,
            Problem::Answered(body) => code_of(body),
            Problem::Stale(..) => 4,
            Problem::NotConverged(_) => 5,
            Problem::Unknown { .. } => 6,
        }
    }
}

fn code_of(body: &ErrorBody) -> u8 {
    if body.outcome == Some(WriteOutcome::Unknown) {
        return 6;
    }
    match body.code {
        ErrorCode::OutcomeUnknown => 6,
        ErrorCode::StaleRevision | ErrorCode::PreconditionFailed | ErrorCode::Conflict => 4,
        ErrorCode::EmptyChange
        | ErrorCode::UnknownParameter
        | ErrorCode::InvalidValue
        | ErrorCode::InvalidScope
        | ErrorCode::InvalidSchema
        | ErrorCode::InvalidSet
        | ErrorCode::PolicyStopped
        | ErrorCode::NoSuchRevision
        | ErrorCode::NotConfigurable
        | ErrorCode::MalformedBody
        | ErrorCode::BodyTooLarge
        | ErrorCode::NotFound
        | ErrorCode::IdempotencyKeyReused
        | ErrorCode::BadQuery => 3,
        ErrorCode::UnsupportedMediaType
        | ErrorCode::RouteNotFound
        | ErrorCode::LogUnavailable
        | ErrorCode::ForeignLog
        | ErrorCode::MethodNotAllowed
        | ErrorCode::NoRecord
        | ErrorCode::Overloaded
        | ErrorCode::Timeout
        | ErrorCode::Internal => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_fate_is_never_reported_as_a_refusal() {
        let mut body = ErrorBody::new(ErrorCode::Internal, "x");
        assert_eq!(code_of(&body), 1);
        body.outcome = Some(WriteOutcome::Unknown);
        assert_eq!(code_of(&body), 6);
        body.code = ErrorCode::StaleRevision;
        body.outcome = Some(WriteOutcome::NotApplied);
        assert_eq!(code_of(&body), 4);
    }
}
