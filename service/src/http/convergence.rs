//! `/v1/convergence`: the fleet as its agents report it, and `POST /v1/status`, where agents without a broker report.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use schemas::api::{AgentView, ErrorCode, FleetView};
use schemas::status::AgentStatus;
use schemas::{Hash, PolicyKey, Position};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, Interval};

use super::App;
use super::body::Strict;
use super::events::{Open, accepts, heartbeat, permit};
use super::policies::by_id;
use super::problem::Problem;
use super::query::{NoQuery, StrictQuery, position};
use super::weight;

/// `?policy=&position=`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvergenceQuery {
    policy: Option<String>,
    position: Option<String>,
}

/// `GET /v1/convergence`: the whole fleet, or one policy's way through it; as SSE when the client accepts only that.
///
/// # Errors
/// 404 for an unknown policy; 400 for a position without a policy; 503 for too many streams.
pub async fn convergence(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<ConvergenceQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let policy = query
        .policy
        .as_deref()
        .map(|id| by_id(&app, id))
        .transpose()?;
    let asked = query
        .position
        .as_deref()
        .map(|text| position("position", text))
        .transpose()?;
    if asked.is_some() && policy.is_none() {
        return Err(Problem::bad_query("position needs policy too").field("policy"));
    }
    let question = Question { policy, asked };
    if !accepts(&headers, "text/event-stream") {
        let body = question.answer(&app);
        return Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response());
    }
    let watching = Watching {
        _open: permit(&app)?,
        heartbeat: heartbeat(&app),
        reports: app.fleet.changes(),
        positions: app.projection.positions(),
        app,
        question,
        told: None,
    };
    let stream = futures::stream::unfold(watching, |mut watching| async move {
        let chunk = watching.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), watching))
    });
    Ok((
        [(header::CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(stream),
    )
        .into_response())
}

struct Question {
    policy: Option<PolicyKey>,
    asked: Option<Position>,
}

impl Question {
    fn answer(&self, app: &App) -> Vec<u8> {
        // Encoding plain values cannot fail.
        match &self.policy {
            None => serde_json::to_vec(&fleet(app)).unwrap_or_default(),
            Some(policy) => {
                let snapshot = app.projection.snapshot();
                let last = snapshot
                    .state
                    .policies
                    .get(policy)
                    .map_or(Position::START, |document| document.position);
                let policies = std::slice::from_ref(policy);
                let answer = app.fleet.convergence(policies, self.asked.unwrap_or(last));
                serde_json::to_vec(&answer).unwrap_or_default()
            }
        }
    }
}

fn fleet(app: &App) -> FleetView {
    let position = app.projection.snapshot().state.position;
    FleetView {
        position,
        agents: app
            .fleet
            .agents()
            .into_iter()
            .map(|heard| AgentView {
                silent_ms: app.fleet.silent_ms(&heard),
                stale: app.fleet.stale(&heard),
                current: heard.status.log.position >= position,
                status: heard.status.clone(),
            })
            .collect(),
    }
}

/// Bound: answers of one stream per second.
const PAUSE: Duration = Duration::from_millis(100);
/// Staleness comes by silence: looked for this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

struct Watching {
    app: App,
    question: Question,
    reports: watch::Receiver<u64>,
    positions: watch::Receiver<Position>,
    heartbeat: Interval,
    /// Of the last answer.
    told: Option<Hash>,
    _open: Open,
}

impl Watching {
    async fn next(&mut self) -> Option<Bytes> {
        // Ages change with every look, so an answer differs from the one before whenever it is made: the pause is what
        // bounds them, not the comparison.
        if self.told.is_some() {
            tokio::time::sleep(PAUSE).await;
        }
        loop {
            self.reports.borrow_and_update();
            self.positions.borrow_and_update();
            let answer = self.question.answer(&self.app);
            let hash = Hash::of(&[&answer]);
            if self.told != Some(hash) {
                let event = [b"data: ", answer.as_slice(), b"\n\n"].concat();
                self.told = Some(hash);
                return weight::wait(&self.app, event.into()).await;
            }
            let look = tokio::time::sleep_until(Instant::now() + LOOK_INTERVAL);
            tokio::select! {
                () = self.app.stop.cancelled() => return None,
                _ = self.heartbeat.tick() => return Some(Bytes::from_static(b": alive\n\n")),
                changed = self.reports.changed() => changed.ok()?,
                changed = self.positions.changed() => changed.ok()?,
                () = look => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// `POST /v1/status`.
///
/// # Errors
/// 503 when the board cannot be reached.
pub async fn report(
    State(app): State<App>,
    StrictQuery(NoQuery {}): StrictQuery<NoQuery>,
    Strict(status): Strict<AgentStatus>,
) -> Result<StatusCode, Problem> {
    app.board.report(&status).await.map_err(|why| {
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::LogUnavailable,
            why.to_string(),
        )
    })?;
    Ok(StatusCode::NO_CONTENT)
}
