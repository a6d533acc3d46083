//! `POST /v1/policies:validate`: what changes would do, without making them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use event_log::ambient;
use schemas::api::{ChangesRequest, PolicyView, ValidateAnswer, ValidatedRouter};
use schemas::convergence::Heard;
use schemas::decide::{Command, decide};
use schemas::effective::{effective as effective_of, effective_thresholds};
use schemas::state::{Reading, State as Folded};
use schemas::status::Capability;
use schemas::{CommandId, Hash, PolicyKey, PolicyKind, Position};

use super::App;
use super::body::Strict;
use super::policies::orders;
use super::problem::Problem;
use super::query::{NoQuery, StrictQuery};
use super::{views, writes};

/// `POST /v1/policies:validate`: what the changes would do.
///
/// # Errors
/// As `POST /v1/changes`, as far as it can be said beforehand.
pub async fn validate(
    State(app): State<App>,
    StrictQuery(NoQuery {}): StrictQuery<NoQuery>,
    Strict(request): Strict<ChangesRequest>,
) -> Result<Json<ValidateAnswer>, Problem> {
    let order = orders(&request)?;
    let keys = crate::writer::policies_of(&order);
    let command = Command {
        command_id: CommandId(ambient::new_id()),
        actor: writes::actor()?,
        at: ambient::now(),
        reason: request.reason,
        force: request.force,
        fingerprint: Hash::ZERO,
        order,
    };
    let snapshot = app.projection.snapshot();
    let decision =
        decide(&snapshot.state, &command).map_err(|rejection| Problem::rejected(&rejection))?;
    let mut after = Folded::clone(&snapshot.state);
    after.evolve(
        Position(snapshot.state.position.0.saturating_add(1)),
        &decision.subject,
        &decision.record.to_bytes(),
        &Reading::Known(decision.record),
    );
    let agents = app.fleet.agents();
    let policies = keys
        .iter()
        .map(|key| {
            let before = views::policy(&snapshot.state, &agents, key);
            let would = views::policy(&after, &agents, key);
            // It has no record: only revision and values are as they would be.
            PolicyView {
                revision: would.revision,
                parameters: would.parameters,
                ..before
            }
        })
        .collect();
    Ok(Json(ValidateAnswer {
        position: snapshot.state.position,
        policies,
        routers: validated(&app, &agents, &snapshot.state, &after, &keys),
    }))
}

fn validated(
    app: &App,
    agents: &[Arc<Heard>],
    before: &Folded,
    after: &Folded,
    keys: &[PolicyKey],
) -> Vec<ValidatedRouter> {
    let concerned = |kind, matches: &dyn Fn(&PolicyKey) -> bool| {
        keys.iter().any(|key| key.kind == kind && matches(key))
    };
    let mut routers = Vec::new();
    for live in views::live_routers(agents) {
        let (key, group) = (&live.router.router, live.heard.status.group.as_ref());
        let kind = PolicyKind::WorkerSelection;
        if !concerned(kind, &|policy| policy.scope.matches(key, group)) {
            continue;
        }
        let unconfigurable = live.router.local_revision.is_none();
        let problem = if app.fleet.stale(live.heard) {
            Some("its agent is silent".to_owned())
        } else if !live.frontend.reachable {
            Some("its frontend is unreachable".to_owned())
        } else if live.frontend.capability != Capability::RouterPolicy {
            Some("its frontend cannot apply router policies".to_owned())
        } else if unconfigurable {
            Some("its selection policy has no runtime configuration".to_owned())
        } else {
            // Refused so far, and asked for the same again.
            live.router.error.clone()
        };
        routers.push(ValidatedRouter {
            agent: live.heard.status.agent.clone(),
            frontend: live.frontend.frontend.clone(),
            kind,
            model: key.model.clone(),
            router: Some(key.clone()),
            router_id: Some(live.router.router_id),
            before: effective_of(before, key, group).overlay(),
            after: effective_of(after, key, group).overlay(),
            problem,
        });
    }
    for (heard, frontend, at) in views::live_thresholds(agents) {
        let group = heard.status.group.as_ref();
        let kind = PolicyKind::BusyThreshold;
        if !concerned(kind, &|policy| policy.scope.matches_model(&at.model, group)) {
            continue;
        }
        routers.push(ValidatedRouter {
            agent: heard.status.agent.clone(),
            frontend: frontend.frontend.clone(),
            kind,
            model: at.model.clone(),
            router: None,
            router_id: None,
            before: effective_thresholds(before, &at.model, group).overlay(),
            after: effective_thresholds(after, &at.model, group).overlay(),
            problem: if app.fleet.stale(heard) {
                Some("its agent is silent".to_owned())
            } else {
                at.error.clone()
            },
        });
    }
    routers
}
