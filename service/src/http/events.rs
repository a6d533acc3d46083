//! `/v1/events`: every record after a position, then those to come, as SSE or NDJSON.
//!
//! No gap and no duplicate by construction: a stream reads from its own cursor, whenever the projection says that there is
//! more. A client that does not read costs one chunk: nothing is read for it before it takes the last one.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use schemas::api::ErrorCode;
use schemas::{LogId, Position};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::App;
use super::problem::Problem;
use super::query::{StrictQuery, position};
use super::weight;

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Server-sent events: `id` is the position, `data` the line.
    Sse,
    /// One line of JSON each.
    Ndjson,
}

/// `?after=&format=&log_id=`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    after: Option<String>,
    format: Option<Format>,
    log_id: Option<LogId>,
}

/// `GET /v1/events`. `Last-Event-ID` (of a reconnecting SSE client) beats `after`; without both it begins at the first
/// record.
///
/// # Errors
/// 400 for what is no position; 409 for a position that the log does not reach, or another log's; 503 for too many
/// streams.
pub async fn events(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mut after = match &query.after {
        Some(text) => position("after", text)?,
        None => Position::START,
    };
    if let Some(last) = headers.get("last-event-id") {
        after = position("Last-Event-ID", last.to_str().unwrap_or("?"))?;
    }
    let ndjson = accepts(&headers, "application/x-ndjson");
    let format = match query.format {
        Some(format) => format,
        None if ndjson => Format::Ndjson,
        None => Format::Sse,
    };
    // Watched before anything is read: what comes meanwhile wakes the stream.
    let positions = app.projection.positions();
    recognise(&app, query.log_id, after).await?;
    let permit = permit(&app)?;
    let tail = Tail {
        heartbeat: heartbeat(&app),
        app,
        cursor: after,
        positions,
        format,
        begun: false,
        _permit: permit,
    };
    let stream = futures::stream::unfold(tail, |mut tail| async move {
        let chunk = tail.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), tail))
    });
    let kind = match format {
        Format::Sse => "text/event-stream",
        Format::Ndjson => "application/x-ndjson",
    };
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(stream)).into_response())
}

/// True when a client asks for a media type.
#[must_use]
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|one| {
            one.split(';')
                .next()
                .is_some_and(|one| one.trim().eq_ignore_ascii_case(kind))
        })
}

/// A place among the open streams.
///
/// # Errors
/// 503.
pub fn permit(app: &App) -> Result<Open, Problem> {
    let permit = std::sync::Arc::clone(&app.streams)
        .try_acquire_owned()
        .map_err(|_| {
            app.metrics.limit("streams");
            Problem::overloaded("too many open streams")
        })?;
    app.metrics.streams.inc();
    Ok(Open {
        app: app.clone(),
        _permit: permit,
    })
}

/// Counts a stream while it is open.
pub struct Open {
    app: App,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.metrics.streams.dec();
    }
}

/// Ticks when a stream must show that it lives.
#[must_use]
pub fn heartbeat(app: &App) -> Interval {
    let every = app.config.heartbeat_interval;
    let mut ticks = tokio::time::interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Is this a place in the log that this service follows?
async fn recognise(app: &App, log_id: Option<LogId>, after: Position) -> Result<(), Problem> {
    let foreign = |text: String| Problem::new(StatusCode::CONFLICT, ErrorCode::ForeignLog, text);
    let snapshot = app.projection.snapshot();
    let ours = snapshot.log_id;
    if let Some(asked) = log_id.filter(|asked| Some(*asked) != ours) {
        return Err(match ours {
            Some(ours) => foreign(format!("this service follows log {ours}, not {asked}")),
            None => unmet(),
        });
    }
    if after > snapshot.state.position {
        // Another replica may be ahead of this one.
        let head = app.log.head().await.map_err(|why| {
            Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                ErrorCode::LogUnavailable,
                why.to_string(),
            )
        })?;
        if ours.is_some_and(|ours| ours != head.log_id) || after > head.position {
            return Err(foreign(format!(
                "the log ends at position {}, before position {after}",
                head.position
            )));
        }
    }
    Ok(())
}

fn unmet() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::LogUnavailable,
        "this service has not met its log yet",
    )
}

struct Tail {
    app: App,
    cursor: Position,
    positions: watch::Receiver<Position>,
    heartbeat: Interval,
    format: Format,
    begun: bool,
    _permit: Open,
}

impl Tail {
    /// The next bytes; `None` when the service stops or its store fails.
    async fn next(&mut self) -> Option<Bytes> {
        if !self.begun {
            // Tells the client at once that it is connected.
            self.begun = true;
            return Some(self.sign_of_life());
        }
        loop {
            let reached = *self.positions.borrow_and_update();
            if reached > self.cursor {
                let chunk = self.read().await?;
                if !chunk.is_empty() {
                    return Some(chunk);
                }
            }
            tokio::select! {
                () = self.app.stop.cancelled() => return None,
                changed = self.positions.changed() => changed.ok()?,
                _ = self.heartbeat.tick() => return Some(self.sign_of_life()),
            }
        }
    }

    async fn read(&mut self) -> Option<Bytes> {
        let piece = self.app.pieces.after(&self.app, self.cursor, self.format);
        let piece = match piece.await {
            Ok(piece) => piece,
            Err(why) => {
                tracing::error!(error = ?why, "the local store failed under an event stream");
                return None;
            }
        };
        self.cursor = piece.end;
        weight::wait(&self.app, piece.bytes).await
    }

    fn sign_of_life(&self) -> Bytes {
        Bytes::from_static(match self.format {
            Format::Sse => b": alive\n\n",
            Format::Ndjson => b"\n",
        })
    }
}
