//! What happens around every request: counting, a deadline, and catching panics.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use schemas::api::ErrorCode;
use tokio::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;

use super::App;
use super::problem::Problem;
use super::weight;

/// Adds the layers.
pub(super) fn add(router: Router<App>, app: &App) -> Router<App> {
    router
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), around))
}

async fn around(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    // Bound: only methods that exist become label values.
    let method = match request.method().as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => {
            known.to_owned()
        }
        _ => "other".to_owned(),
    };
    // Until the head of the answer: a stream's body may take for ever.
    let answer = tokio::time::timeout(app.config.request_timeout, next.run(request)).await;
    let response = answer.unwrap_or_else(|_| {
        Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            ErrorCode::Timeout,
            "the answer took too long",
        )
        .into_response()
    });
    let mut response = weight::bounded(&app, response).await;
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    app.metrics.request(
        &route,
        &method,
        response.status().as_u16(),
        started.elapsed(),
    );
    response
}

fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown");
    tracing::error!(panic = what, "a request handler panicked");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        ErrorCode::Internal,
        "a fault of the service; see its log",
    )
    .into_response()
}
