//! The HTTP façade of one frontend, answer for answer with Dynamo 1.7: `/router_policy`, `/router_policy/busy_threshold` and
//! `/busy_threshold` (one store under two names).
//!
//! Owns: statuses, error texts, limits. Never does: decide a change.
//!
//! Source: recorded answers of Dynamo 1.7 (`golden/transcripts.jsonl`, replayed by `tests/transcripts.rs`); where ours differ on
//! purpose `golden/differences.json` says why. Order of checks: content type, size, syntax, types, empty change, router
//! unknown, revision, values.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch};
use axum::{Json, Router};
use futures::future::join_all;
use schemas::{Revision, RouterId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tower_http::timeout::TimeoutLayer;

use crate::busy::{Models, Overloaded, Thresholds};
use crate::control::UpdateError;
use crate::parameters::{Change, Configuration};
use crate::registry::{self, Registry};

/// Environment variable that takes the façade away.
pub const ADMIN_SWITCH: &str = "DYN_DISABLE_FRONTEND_ADMIN_API";
/// A patience for [`Frontend`] that no scheduler that works ever needs.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Bound: Dynamo's limit for a policy change.
const POLICY_BODY_MAX: usize = 16 * 1024;
/// Bound: Dynamo's limit for thresholds.
const BUSY_BODY_MAX: usize = 2 * 1024 * 1024;
/// Bound: a client that sends slower than this is cut off.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// What the façade shows and changes.
#[derive(Debug, Clone)]
pub struct Frontend {
    /// Its routers.
    pub routers: Registry,
    /// Its models' busy thresholds.
    pub models: Models,
    /// How long a scheduler may take to answer. One that takes longer is not listed, and not changed.
    pub patience: Duration,
}

/// True for the values of [`ADMIN_SWITCH`] that Dynamo takes for yes.
#[must_use]
pub fn is_disabled(switch: Option<&str>) -> bool {
    let switch = switch.unwrap_or_default().trim().to_lowercase();
    matches!(switch.as_str(), "1" | "true" | "on" | "yes")
}

/// The routes, to merge into a frontend's own. None of them when `disabled`.
pub fn routes(frontend: Frontend, disabled: bool) -> Router {
    if disabled {
        return Router::new();
    }
    let busy = || {
        get(busy_list)
            .post(busy_set)
            .layer(DefaultBodyLimit::max(BUSY_BODY_MAX))
    };
    let policy = get(list)
        .merge(patch(change))
        .layer(DefaultBodyLimit::max(POLICY_BODY_MAX));
    Router::new()
        .route("/router_policy", policy)
        .route("/router_policy/busy_threshold", busy())
        .route("/busy_threshold", busy())
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            REQUEST_MAX,
        ))
        .with_state(frontend)
}

/// What Dynamo answers to paths that it does not know: a frontend's fallback.
pub async fn not_found(method: Method, uri: Uri) -> Response {
    let message = format!("Route not found: {method} {}", uri.path());
    let body = json!({ "message": message, "type": "Not Found", "code": 404 });
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

/// The 529 answer of an overloaded model.
#[must_use]
pub fn overloaded(why: &Overloaded) -> Response {
    let status = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let body = json!({ "message": why.to_string(), "type": "Overloaded", "code": status.as_u16() });
    (status, Json(body)).into_response()
}

fn error(status: StatusCode, text: impl std::fmt::Display) -> Response {
    (status, Json(json!({ "error": text.to_string() }))).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    model: Option<String>,
}

#[derive(Serialize)]
struct Entry<'a> {
    router_id: RouterId,
    model: &'a str,
    namespace: &'a str,
    component: &'a str,
    endpoint: &'a str,
    worker_type: schemas::WorkerType,
    configuration: Option<&'a Configuration>,
}

#[derive(Serialize)]
struct Listing<'a> {
    routers: Vec<Entry<'a>>,
}

impl<'a> Entry<'a> {
    fn new(router: &'a registry::Router, configuration: Option<&'a Configuration>) -> Entry<'a> {
        Entry {
            router_id: router.id,
            model: router.key.model.as_str(),
            namespace: router.key.endpoint.namespace.as_str(),
            component: router.key.endpoint.component.as_str(),
            endpoint: router.key.endpoint.endpoint.as_str(),
            worker_type: router.key.worker_type,
            configuration,
        }
    }
}

async fn list(
    State(frontend): State<Frontend>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Response {
    let Query(query) = match query {
        Ok(query) => query,
        Err(why) => return error(why.status(), why.body_text()),
    };
    let routers = frontend.routers.list(query.model.as_deref());
    // All at once: a stalled scheduler costs its own patience, and only itself a place on the list.
    let read = routers
        .iter()
        .map(|router| router.control.read(frontend.patience));
    let read = join_all(read).await;
    let answered = routers
        .iter()
        .zip(&read)
        .filter_map(|(router, read)| match read {
            Ok(configuration) => Some(Entry::new(router, configuration.as_deref())),
            Err(why) => {
                tracing::warn!(router = %router.id, error = %why, "left out of the listing");
                None
            }
        });
    let routers = answered.collect();
    Json(Listing { routers }).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyPatch {
    router_id: RouterId,
    expected_revision: u64,
    parameters: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    reset: bool,
}

async fn change(
    State(frontend): State<Frontend>,
    body: Result<Json<PolicyPatch>, JsonRejection>,
) -> Response {
    let Json(body) = match body {
        Ok(body) => body,
        Err(why) => return error(why.status(), why.body_text()),
    };
    let change = match (body.parameters, body.reset) {
        (Some(patch), false) if !patch.is_empty() => Change::Patch(patch),
        (None, true) => Change::Reset,
        (Some(_) | None, _) => return refused(&UpdateError::Empty),
    };
    let Some(router) = frontend.routers.find(body.router_id) else {
        return refused(&UpdateError::Retired);
    };
    let expected = Revision(body.expected_revision);
    match router
        .control
        .update(expected, &change, frontend.patience)
        .await
    {
        Ok(configuration) => Json(Entry::new(&router, Some(&configuration))).into_response(),
        Err(why) => refused(&why),
    }
}

fn refused(why: &UpdateError) -> Response {
    let status = match why {
        UpdateError::Empty => StatusCode::BAD_REQUEST,
        UpdateError::Retired => StatusCode::NOT_FOUND,
        UpdateError::Conflict { .. } => StatusCode::CONFLICT,
        UpdateError::Invalid(_) | UpdateError::Unsupported => StatusCode::UNPROCESSABLE_ENTITY,
        UpdateError::TimedOut(_) => StatusCode::GATEWAY_TIMEOUT,
        UpdateError::Crowded => StatusCode::SERVICE_UNAVAILABLE,
    };
    error(status, why)
}

#[derive(Deserialize)]
struct BusyThresholdRequest {
    model: String,
    active_decode_blocks_threshold: Option<f64>,
    active_prefill_tokens_threshold: Option<u64>,
    active_prefill_tokens_threshold_frac: Option<f64>,
}

#[derive(Serialize)]
struct Busy {
    model: String,
    #[serde(flatten)]
    thresholds: Thresholds,
}

#[derive(Serialize)]
struct BusyListing {
    thresholds: Vec<Busy>,
}

async fn busy_list(State(frontend): State<Frontend>) -> Response {
    let entry = |(model, thresholds)| Busy { model, thresholds };
    let thresholds = frontend.models.list().into_iter().map(entry).collect();
    Json(BusyListing { thresholds }).into_response()
}

async fn busy_set(
    State(frontend): State<Frontend>,
    body: Result<Json<BusyThresholdRequest>, JsonRejection>,
) -> Response {
    let Json(body) = match body {
        Ok(body) => body,
        // Of these routes only type errors are JSON.
        Err(why @ JsonRejection::JsonDataError(_)) => return error(why.status(), why.body_text()),
        Err(why) => return why.into_response(),
    };
    let some = Thresholds {
        active_decode_blocks_threshold: body.active_decode_blocks_threshold,
        active_prefill_tokens_threshold: body.active_prefill_tokens_threshold,
        active_prefill_tokens_threshold_frac: body.active_prefill_tokens_threshold_frac,
    };
    if let Err(why) = some.check() {
        return error(StatusCode::BAD_REQUEST, why);
    }
    let model = body.model;
    let thresholds = if some.is_empty() {
        Ok(frontend.models.read(&model).unwrap_or_default())
    } else {
        frontend.models.set(&model, &some)
    };
    match thresholds {
        Ok(thresholds) => Json(Busy { model, thresholds }).into_response(),
        Err(why) => error(StatusCode::NOT_FOUND, why),
    }
}
