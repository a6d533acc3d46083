//! `/v1/log/…`: the log over HTTP, for followers without a broker.
//!
//! `head` is the log's own, and "no record" is only said when the log has none: a follower moves between replicas behind one
//! address, and would take one that is behind for a log that was cut off. Records themselves come from the local store.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemas::api::{ErrorCode, HeadView, Line, LogCondition, TailsView};
use schemas::{LogId, Position, Subject};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::problem::Problem;
use super::query::{NoQuery, StrictQuery, position};
use super::{App, fresh};
use crate::projection::keys::Index;
use crate::projection::store::{Direction, Portion, Store, StoredRecord};

/// A record as a line.
#[must_use]
pub fn line(record: StoredRecord) -> Line {
    let verbatim = std::str::from_utf8(&record.bytes)
        .ok()
        .filter(|text| !text.contains(['\n', '\r']))
        .and_then(|text| RawValue::from_string(text.to_owned()).ok())
        // Spaces around it would be lost, and `null` says that there is none.
        .filter(|raw| raw.get().len() == record.bytes.len() && raw.get() != "null");
    Line {
        position: record.position,
        subject: record.subject,
        hash: record.hash,
        chain: record.chain,
        verdict: record.verdict,
        base64: verbatim.is_none().then(|| STANDARD.encode(&record.bytes)),
        event: verbatim,
    }
}

fn met(app: &App) -> Result<(LogId, Position), Problem> {
    let snapshot = app.projection.snapshot();
    let log_id = snapshot.log_id.ok_or_else(|| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::LogUnavailable,
            "this service has not met its log yet",
        )
    })?;
    // SUBTLE: a store that is being made again lacks tails that followers have read. They would take that for a log that was
    // cut off (`a_service_that_rebuilds_its_store_is_no_log_that_was_cut_off`).
    if app.projection.condition().log == LogCondition::Starting {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::LogUnavailable,
            "this service has not caught up with its log yet",
        ));
    }
    Ok((log_id, snapshot.state.position))
}

fn no_record() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        ErrorCode::NoRecord,
        "no record there",
    )
}

/// `GET /v1/log/head`.
///
/// # Errors
/// 503 while the log cannot be asked; 409 when it is another log than before.
pub async fn head(
    State(app): State<App>,
    StrictQuery(NoQuery {}): StrictQuery<NoQuery>,
) -> Result<Json<HeadView>, Problem> {
    let head = fresh::head(&app).await?;
    Ok(Json(HeadView {
        log_id: head.log_id,
        position: head.position,
    }))
}

/// `GET /v1/log/tails`.
///
/// # Errors
/// 503 until the service has caught up with its log.
pub async fn tails(
    State(app): State<App>,
    StrictQuery(NoQuery {}): StrictQuery<NoQuery>,
) -> Result<Json<TailsView>, Problem> {
    let (log_id, _) = met(&app)?;
    let snapshot = app.projection.snapshot();
    let position = snapshot.state.position;
    let entries = app
        .projection
        .read(move |store| {
            let mut entries = Vec::with_capacity(snapshot.state.tails.len());
            for position in snapshot.state.tails.values() {
                entries.extend(store.record(*position)?.map(line));
            }
            Ok(entries)
        })
        .await?;
    Ok(Json(TailsView {
        log_id,
        position,
        entries,
    }))
}

/// `?position=`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtQuery {
    position: String,
}

/// `GET /v1/log/at`.
///
/// # Errors
/// 404 for a gap and beyond the log's end, 400 for what is no position, 503 while this service has not read that far.
pub async fn at(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<AtQuery>,
) -> Result<Json<Line>, Problem> {
    let position = position("position", &query.position)?;
    if position > app.projection.snapshot().state.position {
        if position > fresh::head(&app).await?.position {
            return Err(no_record());
        }
        fresh::catch_up(&app).await?;
    }
    let found = app
        .projection
        .read(move |store| store.record(position))
        .await?;
    found.map(line).map(Json).ok_or_else(no_record)
}

/// `?subject=&after=`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextQuery {
    subject: Subject,
    after: String,
}

/// `GET /v1/log/next`: the first record on a subject after a position.
///
/// # Errors
/// 404 when the log has none, 400 for what is no position, 503 until the service has caught up with its log.
pub async fn next(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<NextQuery>,
) -> Result<Json<Line>, Problem> {
    let after = position("after", &query.after)?;
    met(&app)?;
    let look = || {
        let subject = query.subject.clone();
        let one = Portion {
            records: 1,
            ..Portion::PIECE
        };
        let read = move |store: &Store| {
            store.indexed(Index::Subject, subject.as_str(), Direction::Up, after, one)
        };
        app.projection.read(read)
    };
    let mut found = look().await?;
    if found.is_empty() {
        fresh::catch_up(&app).await?;
        found = look().await?;
    }
    found
        .into_iter()
        .next()
        .map(line)
        .map(Json)
        .ok_or_else(no_record)
}
