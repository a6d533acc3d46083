//! Answers that are errors.
//!
//! Owns: which status and code each refusal and failure has.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemas::api::{ErrorBody, ErrorCode, WriteOutcome};
use schemas::{Position, Rejection, RejectionCode};

use super::query::Key;
use crate::projection::store::StoreError;
use crate::writer::{Newer, WriteError};

/// An error with its status.
#[derive(Debug, Clone)]
pub struct Problem {
    /// HTTP status.
    pub status: StatusCode,
    /// The answer's body.
    pub body: Box<ErrorBody>,
}

impl Problem {
    /// Text, status and code.
    #[must_use]
    pub fn new(status: StatusCode, code: ErrorCode, error: impl Into<String>) -> Problem {
        Problem {
            status,
            body: Box::new(ErrorBody::new(code, error)),
        }
    }

    /// 400 for a query string or a header.
    #[must_use]
    pub fn bad_query(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, ErrorCode::BadQuery, error)
    }

    /// 404.
    #[must_use]
    pub fn not_found(error: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, error)
    }

    /// The façade's 404.
    #[must_use]
    pub fn no_router() -> Problem {
        Problem::not_found("router instance not found; query /router_policy on this service")
    }

    /// 503 for a bound that was reached.
    #[must_use]
    pub fn overloaded(error: impl Into<String>) -> Problem {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Overloaded,
            error,
        )
    }

    /// Names the field.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Problem {
        self.body.field = Some(field.into());
        self
    }

    fn newer(mut self, newer: Option<Box<Newer>>) -> Problem {
        if let Some(newer) = newer {
            self.body.current_revision = Some(newer.revision);
            self.body.changed_by = newer.actor;
            self.body.changed_at = newer.at;
            self.body.position = Some(newer.position).filter(|at| *at > Position::START);
        }
        self
    }

    /// A refusal.
    #[must_use]
    pub fn rejected(rejection: &Rejection) -> Problem {
        let code = rejection.code();
        let status = match code {
            RejectionCode::StaleRevision | RejectionCode::PolicyStopped => StatusCode::CONFLICT,
            RejectionCode::EmptyChange => StatusCode::BAD_REQUEST,
            RejectionCode::NoSuchRevision => StatusCode::NOT_FOUND,
            RejectionCode::UnknownParameter
            | RejectionCode::InvalidValue
            | RejectionCode::InvalidScope
            | RejectionCode::InvalidSchema
            | RejectionCode::InvalidSet => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let error = match code {
            // As a frontend words it.
            RejectionCode::UnknownParameter | RejectionCode::InvalidValue => {
                format!("invalid policy parameters: {rejection}")
            }
            RejectionCode::StaleRevision
            | RejectionCode::PolicyStopped
            | RejectionCode::EmptyChange
            | RejectionCode::NoSuchRevision
            | RejectionCode::InvalidScope
            | RejectionCode::InvalidSchema
            | RejectionCode::InvalidSet => rejection.to_string(),
        };
        let mut problem = Problem::new(status, ErrorCode::from(code), error);
        problem.body.field = rejection.field();
        problem
    }

    /// A write that was not done. `preconditioned`: the revision came as `If-Match`.
    ///
    /// Where nothing of this attempt is in the log, the code tells what it ran into and [`Key::not_applied`] what is known of
    /// the command.
    #[must_use]
    pub fn of_write(error: WriteError, key: Key, preconditioned: bool) -> Problem {
        let not_applied = key.not_applied();
        let unavailable = |code, outcome, text: String| {
            let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, text);
            problem.body.outcome = Some(outcome);
            problem
        };
        let text = error.to_string();
        let mut problem = match error {
            WriteError::Refused { rejection, newer } => {
                let mut problem = Problem::rejected(&rejection).newer(newer);
                if preconditioned && rejection.code() == RejectionCode::StaleRevision {
                    problem.status = StatusCode::PRECONDITION_FAILED;
                    problem.body.code = ErrorCode::PreconditionFailed;
                }
                problem
            }
            WriteError::Lost {
                newer, position, ..
            } => {
                let mut problem = Problem::new(StatusCode::CONFLICT, ErrorCode::Conflict, text);
                problem = problem.newer(newer);
                problem.body.position = position.or(problem.body.position);
                problem
            }
            WriteError::KeyReused { position } => {
                let mut problem = Problem::new(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    ErrorCode::IdempotencyKeyReused,
                    text,
                );
                problem.body.position = position;
                problem.field("Idempotency-Key")
            }
            WriteError::Unreadable(_) => {
                Problem::new(StatusCode::CONFLICT, ErrorCode::PolicyStopped, text)
            }
            WriteError::Unknown(_) => {
                unavailable(ErrorCode::OutcomeUnknown, WriteOutcome::Unknown, text)
            }
            WriteError::Unavailable(_) => unavailable(ErrorCode::LogUnavailable, not_applied, text),
            WriteError::Foreign(_) => unavailable(ErrorCode::ForeignLog, not_applied, text),
            WriteError::Overloaded => unavailable(ErrorCode::Overloaded, not_applied, text),
            WriteError::Store(_) => unavailable(ErrorCode::Internal, not_applied, text),
        };
        problem.body.command_id = Some(key.command_id);
        problem
    }
}

impl From<StoreError> for Problem {
    fn from(why: StoreError) -> Problem {
        // The details are for the log, not for clients.
        tracing::error!(error = ?why, "the local store failed");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorCode::Internal,
            "the local store failed",
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(&*self.body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
