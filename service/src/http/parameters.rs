//! `/v1/parameters`: built-in and custom parameters.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use schemas::api::{BuiltInView, ErrorCode, ParameterRequest, ParametersView};
use schemas::decide::Order;
use schemas::{CommandId, ParameterName, PolicyKind, parameter};

use super::App;
use super::body::Strict;
use super::policies::agreed;
use super::problem::Problem;
use super::query::{NoQuery, Segment, StrictQuery, command_key, if_match};
use super::writes::{self, Wanted};

/// `GET /v1/parameters`.
pub async fn list(
    State(app): State<App>,
    StrictQuery(NoQuery {}): StrictQuery<NoQuery>,
) -> Json<ParametersView> {
    Json(view(&app, None))
}

/// `PUT /v1/parameters/{name}`.
///
/// # Errors
/// 409 or 412 (stale), 422 (name or schema).
pub async fn register(
    State(app): State<App>,
    Segment(name): Segment,
    StrictQuery(NoQuery {}): StrictQuery<NoQuery>,
    headers: HeaderMap,
    Strict(request): Strict<ParameterRequest>,
) -> Result<Json<ParametersView>, Problem> {
    let key = command_key(&headers)?;
    let precondition = if_match(&headers)?;
    let name = ParameterName::new(name).map_err(|why| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            ErrorCode::InvalidSchema,
            format!("the parameter's name {why}"),
        )
        .field("name")
    })?;
    let wanted = Wanted {
        key,
        reason: request.reason,
        force: false,
        order: Order::RegisterParameter {
            name,
            schema: request.schema,
            expected: agreed(precondition, request.expected_revision)?,
        },
        preconditioned: precondition.is_some(),
    };
    let written = writes::write(&app, wanted).await?;
    Ok(Json(view(&app, Some(written.command_id))))
}

fn view(app: &App, command_id: Option<CommandId>) -> ParametersView {
    let snapshot = app.projection.snapshot();
    let registry = &snapshot.state.registry;
    let built_in = [PolicyKind::WorkerSelection, PolicyKind::BusyThreshold]
        .into_iter()
        .flat_map(|kind| {
            parameter::built_in(kind)
                .iter()
                .map(move |known| BuiltInView {
                    kind,
                    name: known.name.to_owned(),
                    allowed: known.range.to_string(),
                    default: known.default,
                    cache_scoring: known.cache_scoring,
                })
        })
        .collect();
    ParametersView {
        revision: registry.revision,
        position: registry.position,
        parameters: registry.parameters.clone(),
        built_in,
        stopped: registry.stop.clone(),
        command_id,
    }
}
