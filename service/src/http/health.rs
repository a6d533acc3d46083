//! Health, metrics and the page.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use schemas::api::{Health, LogCondition};

use super::App;

/// `GET /livez`: the process answers.
pub async fn livez(State(app): State<App>) -> Json<Health> {
    Json(Health {
        ready: true,
        ..health(&app)
    })
}

/// `GET /readyz`: 200 once it has caught up with its log, also while the log is away (reads go on); 503 while it starts,
/// and when the log is not the one that was followed so far.
pub async fn readyz(State(app): State<App>) -> Response {
    let health = health(&app);
    let status = if health.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(health)).into_response()
}

fn health(app: &App) -> Health {
    let condition = app.projection.condition();
    let snapshot = app.projection.snapshot();
    Health {
        ready: match condition.log {
            LogCondition::Following | LogCondition::Away => true,
            LogCondition::Starting | LogCondition::Foreign => false,
        },
        log: condition.log,
        log_id: snapshot.log_id,
        position: snapshot.state.position,
        head: condition.head,
        behind_ms: condition.behind_since.map_or(0, |since| {
            u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
        }),
        detail: condition.detail,
        rebuilt: app.projection.rebuilt.clone(),
    }
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<App>) -> Response {
    app.metrics
        .answers_waiting(super::weight::waiting_kib(&app));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics.text()).into_response()
}

/// `GET /`: a page that leads to the API.
pub async fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    (
        [(header::CONTENT_SECURITY_POLICY, policy)],
        Html(include_str!("page.html")),
    )
        .into_response()
}
