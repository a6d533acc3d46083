//! What can go wrong, and the exit code of each. The texts are for people; the codes are for scripts and stay.

use schemas::api::{ErrorBody, ErrorCode, WriteOutcome};
use schemas::{CommandId, Revision};

/// What makes a repeated write the same write: the service refuses the key when the expectation differs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    pub(crate) key: CommandId,
    pub(crate) expected: Revision,
    /// The key was made for this request: nobody can have sent it before.
    pub(crate) fresh: bool,
}

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
        "{why}\nit may or may not be in the log; repeat the same command with --expect {} --idempotency-key {}: it is never applied twice",
        .attempt.expected, .attempt.key
    )]
    Unknown { attempt: Attempt, why: String },
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

/// What an answer says of a write under a key that nobody sent before. A service cannot know that, so it leaves open
/// whether an earlier request got into the log; the one who made the key knows that there was none.
pub(crate) fn settle_fresh(mut answered: Problem) -> Problem {
    if let Problem::Answered(body) = &mut answered
        && matches!(
            body.code,
            ErrorCode::LogUnavailable | ErrorCode::ForeignLog | ErrorCode::Overloaded
        )
    {
        body.outcome = Some(WriteOutcome::NotApplied);
    }
    answered
}

/// Whether a write that was answered so may be in the log all the same. A service that knows better says so in `outcome`;
/// an answer that is no JSON is none of the service's, but of something between.
pub(crate) fn leaves_open(status: u16, answered: &Problem) -> bool {
    match answered {
        Problem::Answered(body) => match body.outcome {
            Some(outcome) => outcome == WriteOutcome::Unknown,
            None => matches!(
                body.code,
                ErrorCode::OutcomeUnknown | ErrorCode::Timeout | ErrorCode::Internal
            ),
        },
        Problem::Failed(_) => status >= 500 || (200..300).contains(&status),
        Problem::Unknown { .. } => true,
        Problem::Unreachable { .. }
        | Problem::Stale(..)
        | Problem::NotConverged(_)
        | Problem::Usage(_) => false,
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
    fn a_first_request_that_found_no_log_was_not_applied() {
        for (code, exit) in [
            (ErrorCode::LogUnavailable, 1),
            (ErrorCode::ForeignLog, 1),
            (ErrorCode::Overloaded, 1),
            (ErrorCode::OutcomeUnknown, 6),
        ] {
            let mut body = ErrorBody::new(code, "x");
            body.outcome = Some(WriteOutcome::Unknown);
            let repeated = Problem::Answered(Box::new(body.clone()));
            assert_eq!(repeated.exit_code(), 6, "{code:?}");
            assert!(leaves_open(503, &repeated), "{code:?}");
            let first = settle_fresh(Problem::Answered(Box::new(body)));
            assert_eq!(first.exit_code(), exit, "{code:?}");
            assert_eq!(leaves_open(503, &first), exit == 6, "{code:?}");
        }
    }

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

    #[test]
    fn only_an_answer_that_says_so_settles_a_write() {
        let answered = |code, outcome| {
            let mut body = ErrorBody::new(code, "x");
            body.outcome = outcome;
            Problem::Answered(Box::new(body))
        };
        for (open, status, problem) in [
            (true, 504, answered(ErrorCode::Timeout, None)),
            (true, 500, answered(ErrorCode::Internal, None)),
            (
                false,
                500,
                answered(ErrorCode::Internal, Some(WriteOutcome::NotApplied)),
            ),
            (
                true,
                503,
                answered(ErrorCode::LogUnavailable, Some(WriteOutcome::Unknown)),
            ),
            (false, 503, answered(ErrorCode::Overloaded, None)),
            (false, 409, answered(ErrorCode::Conflict, None)),
            (true, 502, Problem::Failed("bad gateway".to_owned())),
            (true, 200, Problem::Failed("no JSON".to_owned())),
            (false, 404, Problem::Failed("no JSON".to_owned())),
        ] {
            assert_eq!(leaves_open(status, &problem), open, "{status} {problem:?}");
        }
    }
}
