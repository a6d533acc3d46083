//! `/router_policy`: Dynamo's route, for the whole fleet.
//!
//! Source of statuses, words and the order of checks: Dynamo 1.7 (syntax and type, empty or reset, 404, 409, values).
//!
//! Different on purpose, besides strictness of bodies (see [`super::body`]):
//! - ids are fleet-wide and stable; a policy without live routers keeps its id and can be changed;
//! - a query on a PATCH must be `wait` and `timeout_ms` (a frontend ignores any): a misspelled wait must not pass for one;
//! - `scope` may stand for `router_id`; `reason` and `force` may be given;
//! - values outside the ranges of a frontend's startup, or that can break requests, are refused (a live frontend takes
//!   them); cache weights for a router without cache inputs are taken, and shown as refused by that replica.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use schemas::api::{ErrorCode, PatchAnswer, PatchRequest, RouterList};
use schemas::decide::PolicyOrder;
use schemas::{ParameterName, ParameterValue, Patch, PolicyKey, PolicyKind, Rejection, parameter};
use serde::Deserialize;

use super::body::Strict;
use super::problem::Problem;
use super::query::{StrictQuery, WaitQuery, command_key, if_match};
use super::writes::{self, Wanted};
use super::{App, fresh, views};
use crate::projection::Snapshot;

/// `?model=`, exact.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    model: Option<String>,
}

/// `GET /router_policy`.
pub async fn list(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<ListQuery>,
) -> Json<RouterList> {
    Json(RouterList {
        routers: views::routers(
            &app.projection.snapshot(),
            &app.fleet,
            query.model.as_deref(),
        ),
    })
}

/// `PATCH /router_policy`.
///
/// # Errors
/// See the table of Dynamo's answers; each as JSON with a `code`.
pub async fn patch(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<WaitQuery>,
    headers: HeaderMap,
    Strict(request): Strict<PatchRequest>,
) -> Result<Json<PatchAnswer>, Problem> {
    let key = command_key(&headers)?;
    let patience = query.patience()?;
    let precondition = if_match(&headers)?;
    let policy = match addressed(&app, &request) {
        // Another replica may have made the policy.
        Err(problem) if problem.status == StatusCode::NOT_FOUND => {
            fresh::catch_up_for_write(&app, key).await?;
            addressed(&app, &request)?
        }
        judged => judged?,
    };
    if precondition.is_some_and(|revision| revision != request.expected_revision) {
        return Err(Problem::new(
            StatusCode::PRECONDITION_FAILED,
            ErrorCode::PreconditionFailed,
            "If-Match and expected_revision name different revisions",
        )
        .field("If-Match"));
    }
    let snapshot = app.projection.snapshot();
    let parameters = match request.parameters {
        Some(parameters) => Some(named(
            &snapshot,
            &policy,
            &request.expected_revision,
            parameters,
        )?),
        None => None,
    };
    let change = writes::change(parameters, request.reset)?;
    let order = PolicyOrder {
        policy: policy.clone(),
        expected: Some(request.expected_revision),
        change,
    };
    let wanted = Wanted {
        reason: request.reason,
        force: request.force,
        ..Wanted::one(key, order)
    };
    let written = writes::write(&app, wanted).await?;
    let policies = [policy];
    let convergence = writes::wait(&app, &policies, written.position, patience).await;
    let [policy] = policies;
    Ok(Json(PatchAnswer {
        entry: views::entry(&app.projection.snapshot(), &app.fleet, &policy),
        position: written.position,
        command_id: written.command_id,
        convergence,
    }))
}

/// The policy that a request addresses, checked as far as a frontend checks before the revision.
fn addressed(app: &App, request: &PatchRequest) -> Result<PolicyKey, Problem> {
    let types = |text: &str| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            ErrorCode::MalformedBody,
            format!("Failed to deserialize the JSON body into the target type: {text}"),
        )
        .field("router_id")
    };
    let both = request.router_id.is_some() && request.scope.is_some();
    if both {
        return Err(types("give either `router_id` or `scope`"));
    }
    if request.router_id.is_none() && request.scope.is_none() {
        return Err(types("missing field `router_id`"));
    }
    let empty = request.parameters.as_ref().is_none_or(BTreeMap::is_empty);
    if (request.reset && request.parameters.is_some()) || (!request.reset && empty) {
        return Err(Problem::rejected(&Rejection::EmptyChange));
    }
    let snapshot = app.projection.snapshot();
    let agents = app.fleet.agents();
    let policy = match (&request.router_id, &request.scope) {
        (Some(id), _) => views::find(&snapshot, &agents, *id)
            .filter(|key| key.kind == PolicyKind::WorkerSelection)
            .ok_or_else(Problem::no_router)?,
        (None, scope) => PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope: scope.clone().unwrap_or_default(),
        },
    };
    if request.router_id.is_some() {
        let mut live = views::live_routers(&agents)
            .filter(|live| live.router.router.scope() == policy.scope)
            .peekable();
        let any = live.peek().is_some();
        if any && live.all(|live| live.router.local_revision.is_none()) {
            return Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                ErrorCode::NotConfigurable,
                "the selected worker policy does not support runtime configuration",
            ));
        }
    }
    Ok(policy)
}

/// Parameters by name. A text that cannot be a name is an unknown parameter, told only after a stale revision.
fn named(
    snapshot: &Snapshot,
    policy: &PolicyKey,
    expected: &schemas::Revision,
    parameters: BTreeMap<String, Option<ParameterValue>>,
) -> Result<Patch, Problem> {
    let mut patch = Patch::new();
    for (text, value) in parameters {
        match ParameterName::new(text.clone()) {
            Ok(name) => {
                patch.insert(name, value);
            }
            Err(_) => {
                let current = views::revision(snapshot, policy);
                let rejection = if *expected == current {
                    Rejection::UnknownParameter {
                        kind: policy.kind,
                        name: text,
                        known: parameter::built_in(policy.kind)
                            .iter()
                            .map(|known| known.name.to_owned())
                            .collect(),
                    }
                } else {
                    Rejection::StaleRevision {
                        policy: Box::new(policy.clone()),
                        expected: *expected,
                        current,
                    }
                };
                let mut problem = Problem::rejected(&rejection);
                if *expected != current {
                    problem.body.current_revision = Some(current);
                }
                return Err(problem);
            }
        }
    }
    Ok(patch)
}
