//! `/router_policy/busy_threshold` and `/busy_threshold`: Dynamo's routes, for the whole fleet. One store under both.
//!
//! As on a frontend a model alone reads, and `null` leaves unchanged (reset the policy under `/v1` to clear a threshold).
//! Different on purpose: a model is also known by its policy; `If-Match` is honoured; token counts end at 2^53 - 1; unknown
//! fields are refused; errors are JSON.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use schemas::api::{ErrorCode, ThresholdAnswer, ThresholdEntry, ThresholdList, ThresholdRequest};
use schemas::decide::{Change, PolicyOrder};
use schemas::parameter::{self, CustomParameters};
use schemas::{Name, ParameterName, ParameterValue, Patch, PolicyKind, Revision};

use super::body::Strict;
use super::problem::Problem;
use super::query::{StrictQuery, WaitQuery, command_key, if_match};
use super::writes::{self, Wanted};
use super::{App, fresh, views};

/// Answers carry the policy's revision as their `ETag`.
type Tagged<T> = ([(HeaderName, HeaderValue); 1], Json<T>);

/// `GET /busy_threshold`. A frontend takes any query and ignores it; so does this.
pub async fn list(State(app): State<App>) -> Json<ThresholdList> {
    Json(ThresholdList {
        thresholds: views::thresholds(&app.projection.snapshot(), &app.fleet),
    })
}

/// `POST /busy_threshold`.
///
/// # Errors
/// 404 for setting an unknown model, 400 for values out of range, 412 for a stale `If-Match`.
pub async fn set(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<WaitQuery>,
    headers: HeaderMap,
    Strict(request): Strict<ThresholdRequest>,
) -> Result<Tagged<ThresholdAnswer>, Problem> {
    let key = command_key(&headers)?;
    let patience = query.patience()?;
    let expected = if_match(&headers)?;
    let model = Name::new(request.model.clone());
    let patch = patch_of(&request)?;
    if patch.is_empty() {
        let entry = match &model {
            Ok(model) => views::threshold(&app.projection.snapshot(), &app.fleet, model),
            // As on a frontend, reading what cannot exist answers nulls.
            Err(_) => unknown(request.model),
        };
        let precondition = expected.is_none_or(|expected| expected == entry.revision);
        if !precondition {
            return Err(stale(entry.revision));
        }
        return Ok(tagged(ThresholdAnswer {
            entry,
            position: None,
            command_id: None,
            convergence: None,
        }));
    }
    check(&patch)?;
    let known = |model: &Name| {
        views::known_models(&app.projection.snapshot(), &app.fleet.agents()).contains(model)
    };
    let model = model.ok();
    if model.as_ref().is_some_and(|model| !known(model)) {
        // Another replica may have made its policy.
        fresh::catch_up_for_write(&app, key).await?;
    }
    let model = model.filter(known).ok_or_else(|| {
        Problem::not_found(format!(
            "Model '{}' not found. Thresholds can only be set for discovered models.",
            request.model
        ))
        .field("model")
    })?;
    let policies = [views::thresholds_key(&model)];
    let order = PolicyOrder {
        policy: policies[0].clone(),
        expected,
        change: Change::Patch(patch),
    };
    let wanted = Wanted {
        reason: request.reason,
        preconditioned: expected.is_some(),
        ..Wanted::one(key, order)
    };
    let written = writes::write(&app, wanted).await?;
    let convergence = writes::wait(&app, &policies, written.position, patience).await;
    Ok(tagged(ThresholdAnswer {
        entry: views::threshold(&app.projection.snapshot(), &app.fleet, &model),
        position: Some(written.position),
        command_id: Some(written.command_id),
        convergence,
    }))
}

/// Out of range is 400 here, as on a frontend.
fn check(patch: &Patch) -> Result<(), Problem> {
    let checked = parameter::check(
        PolicyKind::BusyThreshold,
        patch,
        &CustomParameters::new(),
        false,
    );
    if let Err(rejection) = checked {
        let mut problem = Problem::rejected(&rejection);
        problem.status = StatusCode::BAD_REQUEST;
        problem.body.error = rejection.to_string();
        problem.body.field = problem
            .body
            .field
            .map(|field| field.trim_start_matches("parameters.").to_owned());
        return Err(problem);
    }
    Ok(())
}

fn patch_of(request: &ThresholdRequest) -> Result<Patch, Problem> {
    let values = [
        (
            "active_decode_blocks_threshold",
            request
                .active_decode_blocks_threshold
                .map(ParameterValue::number),
        ),
        (
            "active_prefill_tokens_threshold",
            request
                .active_prefill_tokens_threshold
                .map(ParameterValue::integer),
        ),
        (
            "active_prefill_tokens_threshold_frac",
            request
                .active_prefill_tokens_threshold_frac
                .map(ParameterValue::number),
        ),
    ];
    let mut patch = Patch::new();
    for (name, value) in values {
        if let Some(value) = value {
            let name = ParameterName::new(name)
                .map_err(|why| Problem::bad_query(why.to_string()).field(name))?;
            patch.insert(name, Some(value));
        }
    }
    Ok(patch)
}

fn unknown(model: String) -> ThresholdEntry {
    ThresholdEntry {
        model,
        active_decode_blocks_threshold: None,
        active_prefill_tokens_threshold: None,
        active_prefill_tokens_threshold_frac: None,
        revision: Revision::ZERO,
        replicas: Vec::new(),
    }
}

fn stale(current: Revision) -> Problem {
    let mut problem = Problem::new(
        StatusCode::PRECONDITION_FAILED,
        ErrorCode::PreconditionFailed,
        format!("the thresholds have revision {current}"),
    )
    .field("If-Match");
    problem.body.current_revision = Some(current);
    problem
}

fn tagged(answer: ThresholdAnswer) -> Tagged<ThresholdAnswer> {
    let revision = answer.entry.revision;
    ([(header::ETAG, etag(revision))], Json(answer))
}

/// The `ETag` of a revision.
#[must_use]
pub fn etag(revision: Revision) -> HeaderValue {
    // Digits in quotes are always a header value.
    HeaderValue::from_str(&format!("\"{revision}\""))
        .unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}
