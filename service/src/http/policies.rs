//! `/v1/policies`, `/v1/changes`, `/v1/effective`: policies as they are, and changing them.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use schemas::api::{
    ChangesRequest, EffectiveView, ErrorCode, PolicyList, PolicyPatchRequest, PolicyView,
    WriteAnswer,
};
use schemas::decide::{Order, PolicyOrder};
use schemas::effective::{effective as effective_of, effective_thresholds};
use schemas::{Endpoint, Name, PolicyId, PolicyKey, PolicyKind, RouterKey, WorkerType};
use serde::Deserialize;

use super::body::Strict;
use super::fresh::AtLeast;
use super::problem::Problem;
use super::query::{Key, Segment, StrictQuery, WaitQuery, command_key, if_match};
use super::thresholds::etag;
use super::views;
use super::writes::{self, Wanted};
use super::{App, fresh};
use crate::writer::Written;

/// Answers carry the policy's revision as their `ETag`.
pub type Tagged<T> = ([(HeaderName, HeaderValue); 1], Json<T>);

/// Parts of a scope, each exact.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScopeQuery {
    kind: Option<PolicyKind>,
    model: Option<Name>,
    worker_type: Option<WorkerType>,
    endpoint: Option<Endpoint>,
    group: Option<Name>,
    min_position: Option<String>,
}

impl ScopeQuery {
    fn admits(&self, key: &PolicyKey) -> bool {
        fn same<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        self.kind.is_none_or(|kind| kind == key.kind)
            && same(self.model.as_ref(), key.scope.model.as_ref())
            && same(self.worker_type.as_ref(), key.scope.worker_type.as_ref())
            && same(self.endpoint.as_ref(), key.scope.endpoint.as_ref())
            && same(self.group.as_ref(), key.scope.group.as_ref())
    }
}

/// `GET /v1/policies`.
///
/// # Errors
/// 409 and 503 when this replica does not have the position that was asked for.
pub async fn list(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<ScopeQuery>,
) -> Result<Json<PolicyList>, Problem> {
    fresh::reach(&app, query.min_position.as_deref()).await?;
    let snapshot = app.projection.snapshot();
    let agents = app.fleet.agents();
    let stopped = snapshot
        .state
        .stops
        .keys()
        .filter(|key| !snapshot.state.policies.contains_key(key));
    let mut keys: Vec<&PolicyKey> = snapshot
        .state
        .policies
        .keys()
        .chain(stopped)
        .filter(|key| query.admits(key))
        .collect();
    keys.sort();
    Ok(Json(PolicyList {
        position: snapshot.state.position,
        log_id: snapshot.log_id,
        policies: keys
            .into_iter()
            .map(|key| views::policy(&snapshot.state, &agents, key))
            .collect(),
    }))
}

/// The policy of a path, by its id.
///
/// # Errors
/// 404.
pub fn by_id(app: &App, id: &str) -> Result<PolicyKey, Problem> {
    let id: Option<PolicyId> = id.parse().ok();
    id.and_then(|id| views::find(&app.projection.snapshot(), &app.fleet.agents(), id))
        .ok_or_else(|| Problem::not_found("no such policy").field("id"))
}

/// As [`by_id`], for a write: before it says that there is no such policy it catches up with the log, so that a policy made
/// through one replica can be changed through another.
///
/// # Errors
/// 404; 503 while the log cannot be asked.
pub async fn by_id_for_write(app: &App, id: &str, key: Key) -> Result<PolicyKey, Problem> {
    match by_id(app, id) {
        // A text that cannot be an id is the id of nothing, also on other replicas.
        Err(_) if id.parse::<PolicyId>().is_ok() => {
            fresh::catch_up_for_write(app, key).await?;
            by_id(app, id)
        }
        known => known,
    }
}

/// `GET /v1/policies/{id}`.
///
/// # Errors
/// 404; 409 and 503 when this replica does not have the position that was asked for.
pub async fn get(
    State(app): State<App>,
    Segment(id): Segment,
    StrictQuery(query): StrictQuery<AtLeast>,
) -> Result<Tagged<PolicyView>, Problem> {
    query.reach(&app).await?;
    let key = by_id(&app, &id)?;
    let view = views::policy(&app.projection.snapshot().state, &app.fleet.agents(), &key);
    Ok(([(header::ETAG, etag(view.revision))], Json(view)))
}

/// `PATCH /v1/policies/{id}`.
///
/// # Errors
/// 404, 409 (stale `expected_revision`), 412 (stale `If-Match`), 422 (values).
pub async fn patch(
    State(app): State<App>,
    Segment(id): Segment,
    StrictQuery(query): StrictQuery<WaitQuery>,
    headers: HeaderMap,
    Strict(request): Strict<PolicyPatchRequest>,
) -> Result<Tagged<WriteAnswer>, Problem> {
    let key = command_key(&headers)?;
    let precondition = if_match(&headers)?;
    let change = writes::change(request.parameters, request.reset)?;
    let policy = by_id_for_write(&app, &id, key).await?;
    let expected = agreed(precondition, request.expected_revision)?;
    let order = PolicyOrder {
        policy,
        expected,
        change,
    };
    let wanted = Wanted {
        reason: request.reason,
        force: request.force,
        preconditioned: precondition.is_some(),
        ..Wanted::one(key, order)
    };
    answer(&app, wanted, query).await
}

/// One expected revision from the two places that may name it.
///
/// # Errors
/// 412 when they differ: at least one of them is not the current one.
pub fn agreed(
    precondition: Option<schemas::Revision>,
    expected: Option<schemas::Revision>,
) -> Result<Option<schemas::Revision>, Problem> {
    match (precondition, expected) {
        (Some(one), Some(other)) if one != other => Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            ErrorCode::PreconditionFailed,
            "If-Match and expected_revision name different revisions",
        )
        .field("If-Match")),
        (one, other) => Ok(one.or(other)),
    }
}

/// Writes, waits when asked to, and shows the policies as they are then.
///
/// # Errors
/// A [`Problem`] for every refusal and failure.
pub async fn answer(
    app: &App,
    wanted: Wanted,
    query: WaitQuery,
) -> Result<Tagged<WriteAnswer>, Problem> {
    let patience = query.patience()?;
    let policies = crate::writer::policies_of(&wanted.order);
    let Written {
        command_id,
        position,
        repeated: _,
    } = writes::write(app, wanted).await?;
    let convergence = writes::wait(app, &policies, position, patience).await;
    let snapshot = app.projection.snapshot();
    let agents = app.fleet.agents();
    let policies: Vec<PolicyView> = policies
        .iter()
        .map(|key| views::policy(&snapshot.state, &agents, key))
        .collect();
    let tag = policies
        .first()
        .map_or(schemas::Revision::ZERO, |policy| policy.revision);
    let answer = WriteAnswer {
        position,
        command_id,
        policies,
        convergence,
    };
    Ok(([(header::ETAG, etag(tag))], Json(answer)))
}

/// The order of a list of changes.
///
/// # Errors
/// 400 for a change that is neither parameters nor reset.
pub fn orders(request: &ChangesRequest) -> Result<Order, Problem> {
    let orders = request
        .changes
        .iter()
        .enumerate()
        .map(|(n, change)| {
            Ok(PolicyOrder {
                policy: PolicyKey {
                    kind: change.kind,
                    scope: change.scope.clone(),
                },
                expected: change.expected_revision,
                change: writes::change(change.parameters.clone(), change.reset)
                    .map_err(|problem| problem.field(format!("changes[{n}].parameters")))?,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(Order::ChangePolicies(orders))
}

/// `POST /v1/changes`.
///
/// # Errors
/// 400, 409, 422; all changes are refused together.
pub async fn change(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<WaitQuery>,
    headers: HeaderMap,
    Strict(request): Strict<ChangesRequest>,
) -> Result<Json<WriteAnswer>, Problem> {
    let wanted = Wanted {
        key: command_key(&headers)?,
        order: orders(&request)?,
        reason: request.reason,
        force: request.force,
        preconditioned: false,
    };
    answer(&app, wanted, query).await.map(|(_, answer)| answer)
}

/// One router, or one model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectiveQuery {
    model: Name,
    worker_type: Option<WorkerType>,
    endpoint: Option<Endpoint>,
    group: Option<Name>,
    min_position: Option<String>,
}

/// `GET /v1/effective`.
///
/// # Errors
/// 400 when only one of worker type and endpoint is given; 409 and 503 when this replica does not have the position that was
/// asked for.
pub async fn effective(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<EffectiveQuery>,
) -> Result<Json<EffectiveView>, Problem> {
    fresh::reach(&app, query.min_position.as_deref()).await?;
    let state = &app.projection.snapshot().state;
    let group = query.group.as_ref();
    let router = match (query.worker_type, query.endpoint) {
        (Some(worker_type), Some(endpoint)) => Some(RouterKey {
            model: query.model.clone(),
            worker_type,
            endpoint,
        }),
        (None, None) => None,
        (Some(_), None) => {
            return Err(Problem::bad_query("worker_type needs endpoint too").field("endpoint"));
        }
        (None, Some(_)) => {
            let text = "endpoint needs worker_type too";
            return Err(Problem::bad_query(text).field("worker_type"));
        }
    };
    Ok(Json(EffectiveView {
        position: state.position,
        worker_selection: router
            .as_ref()
            .map(|router| effective_of(state, router, group)),
        busy_threshold: effective_thresholds(state, &query.model, group),
        model: query.model,
        router,
        group: query.group,
    }))
}
