//! Before this service says that something is not there: what the log itself says, which another replica may have written.

use std::time::Duration;

use axum::http::StatusCode;
use event_log::{Failure, Head};
use schemas::Position;
use schemas::api::ErrorCode;
use serde::Deserialize;
use tokio::time::Instant;

use super::App;
use super::problem::Problem;
use super::query::{Key, position};

/// Bound: how long a request waits for this replica to catch up with its log.
const PATIENCE: Duration = Duration::from_secs(2);

/// The log's head, by its leader.
///
/// # Errors
/// 503 while the log cannot be asked; 409 when it is not the log that this service follows.
pub async fn head(app: &App) -> Result<Head, Problem> {
    let asked = tokio::time::timeout(PATIENCE, app.log.head()).await;
    let head = match asked {
        Ok(Ok(head)) => head,
        Ok(Err(Failure::Foreign(foreign))) => return Err(another(foreign.to_string())),
        Ok(Err(why @ (Failure::Determinate(_) | Failure::Indeterminate(_)))) => {
            return Err(unavailable(why.to_string()));
        }
        Err(_) => return Err(unavailable("the log does not answer")),
    };
    match app.projection.snapshot().log_id {
        Some(ours) if ours != head.log_id => Err(another(format!(
            "this service follows log {ours}, not {}, which is there now",
            head.log_id
        ))),
        Some(_) | None => Ok(head),
    }
}

/// Waits until everything that the log holds now is folded in.
///
/// # Errors
/// As [`head`]; 503 when this service stays behind for too long.
pub async fn catch_up(app: &App) -> Result<(), Problem> {
    let deadline = Instant::now() + PATIENCE;
    let head = head(app).await?;
    if app.projection.wait_for(head.position, deadline).await {
        return Ok(());
    }
    Err(behind(head.position))
}

/// `?min_position=`: what a read must have in it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtLeast {
    min_position: Option<String>,
}

impl AtLeast {
    /// See [`reach`].
    ///
    /// # Errors
    /// As [`reach`].
    pub async fn reach(&self, app: &App) -> Result<(), Problem> {
        reach(app, self.min_position.as_deref()).await
    }
}

/// Waits until this replica has folded in a position that a client has seen elsewhere (in the answer to its write, for
/// example), so that what is read then holds it.
///
/// # Errors
/// 400 for what is no position; 503 when this replica stays behind, or the log itself does not reach the position; 409 when it
/// is not the log that this service follows.
pub async fn reach(app: &App, min_position: Option<&str>) -> Result<(), Problem> {
    let Some(text) = min_position else {
        return Ok(());
    };
    let wanted = position("min_position", text)?;
    let reached = |patience| app.projection.wait_for(wanted, Instant::now() + patience);
    if reached(PATIENCE).await {
        return Ok(());
    }
    let head = head(app).await?;
    if reached(Duration::ZERO).await {
        return Ok(());
    }
    if head.position < wanted {
        // Not "another log": a leader that is cut off tells an old end until it notices.
        return Err(unavailable(format!(
            "the log ends at position {}, before position {wanted}",
            head.position
        ))
        .field("min_position"));
    }
    Err(behind(wanted))
}

/// [`catch_up`], unless this replica has read as far as `position` already.
///
/// # Errors
/// As [`catch_up`].
pub async fn catch_up_with(app: &App, position: Position) -> Result<(), Problem> {
    if position <= app.projection.snapshot().state.position {
        return Ok(());
    }
    catch_up(app).await
}

/// [`catch_up`], for a write that has not begun.
///
/// # Errors
/// As a write's: 503 with what is known of the command.
pub async fn catch_up_for_write(app: &App, key: Key) -> Result<(), Problem> {
    catch_up(app).await.map_err(|mut problem| {
        problem.status = StatusCode::SERVICE_UNAVAILABLE;
        problem.body.outcome = Some(key.not_applied());
        problem.body.command_id = Some(key.command_id);
        problem
    })
}

fn unavailable(why: impl Into<String>) -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::LogUnavailable,
        why,
    )
}

fn behind(position: Position) -> Problem {
    unavailable(format!(
        "this service is behind its log, which holds position {position}"
    ))
}

fn another(why: String) -> Problem {
    Problem::new(StatusCode::CONFLICT, ErrorCode::ForeignLog, why)
}
