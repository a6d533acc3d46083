//! What is shown of policies, routers and thresholds: pure functions over a snapshot and the agents' reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemas::api::{
    Configuration, PolicyView, Replica, RouterEntry, ThresholdEntry, ThresholdReplica,
};
use schemas::convergence::Heard;
use schemas::effective::{effective, effective_thresholds};
use schemas::state::State;
use schemas::status::{FrontendStatus, RouterStatus, ThresholdStatus};
use schemas::{
    Name, ParameterName, ParameterValue, PolicyId, PolicyKey, PolicyKind, Position, Revision,
    RouterKey, Scope,
};

use crate::fleet::Fleet;
use crate::projection::Snapshot;

/// One router as an agent reports it.
#[derive(Debug, Clone, Copy)]
pub struct LiveRouter<'a> {
    /// Whose report.
    pub heard: &'a Heard,
    /// On which frontend.
    pub frontend: &'a FrontendStatus,
    /// The router.
    pub router: &'a RouterStatus,
}

/// Every router that the agents report.
pub fn live_routers(agents: &[Arc<Heard>]) -> impl Iterator<Item = LiveRouter<'_>> {
    agents.iter().flat_map(|heard| {
        heard.status.frontends.iter().flat_map(move |frontend| {
            frontend.routers.iter().map(move |router| LiveRouter {
                heard,
                frontend,
                router,
            })
        })
    })
}

/// Every model's thresholds that the agents report.
pub fn live_thresholds(
    agents: &[Arc<Heard>],
) -> impl Iterator<Item = (&Heard, &FrontendStatus, &ThresholdStatus)> {
    agents.iter().flat_map(|heard| {
        heard.status.frontends.iter().flat_map(move |frontend| {
            frontend
                .thresholds
                .iter()
                .map(move |thresholds| (&**heard, frontend, thresholds))
        })
    })
}

/// Routers (for thresholds: models on frontends) that a policy addresses now.
#[must_use]
pub fn addressed(agents: &[Arc<Heard>], key: &PolicyKey) -> u64 {
    let count = match key.kind {
        PolicyKind::WorkerSelection => live_routers(agents)
            .filter(|live| {
                key.scope
                    .matches(&live.router.router, live.heard.status.group.as_ref())
            })
            .count(),
        PolicyKind::BusyThreshold => live_thresholds(agents)
            .filter(|(heard, _, at)| {
                key.scope
                    .matches_model(&at.model, heard.status.group.as_ref())
            })
            .count(),
    };
    count as u64
}

/// One policy.
#[must_use]
pub fn policy(state: &State, agents: &[Arc<Heard>], key: &PolicyKey) -> PolicyView {
    let document = state.policies.get(key);
    PolicyView {
        id: key.id(),
        kind: key.kind,
        scope: key.scope.clone(),
        revision: document.map_or(Revision::ZERO, |document| document.revision),
        parameters: document.map_or_else(Default::default, |document| document.overlay.clone()),
        position: document.map_or(Position::START, |document| document.position),
        command_id: document.map(|document| document.command_id),
        actor: document.map(|document| document.actor.clone()),
        reason: document.and_then(|document| document.reason.clone()),
        changed_at: document.map(|document| document.changed_at),
        routers: addressed(agents, key),
        stopped: state.stop_of(key).cloned(),
    }
}

/// The policy of an id: one that the log has named, or that of a live router.
#[must_use]
pub fn find(snapshot: &Snapshot, agents: &[Arc<Heard>], id: PolicyId) -> Option<PolicyKey> {
    if let Some(key) = snapshot.ids.get(&id) {
        return Some(key.clone());
    }
    let mut seen: Vec<&RouterKey> = Vec::new();
    for live in live_routers(agents) {
        let router = &live.router.router;
        if seen.contains(&router) {
            continue;
        }
        seen.push(router);
        if router.fleet_id() == id {
            return Some(PolicyKey {
                kind: PolicyKind::WorkerSelection,
                scope: router.scope(),
            });
        }
    }
    live_thresholds(agents)
        .map(|(_, _, at)| thresholds_key(&at.model))
        .find(|key| key.id() == id)
}

/// The policy of one model's thresholds, in any group.
#[must_use]
pub fn thresholds_key(model: &Name) -> PolicyKey {
    PolicyKey {
        kind: PolicyKind::BusyThreshold,
        scope: Scope {
            model: Some(model.clone()),
            ..Scope::default()
        },
    }
}

/// The façade's list: routers of the fleet, with each one's replicas.
#[must_use]
pub fn routers(snapshot: &Snapshot, fleet: &Fleet, model: Option<&str>) -> Vec<RouterEntry> {
    let agents = fleet.agents();
    let mut by_key: BTreeMap<&RouterKey, Vec<LiveRouter<'_>>> = BTreeMap::new();
    for live in live_routers(&agents) {
        let key = &live.router.router;
        if model.is_none_or(|model| key.model.as_str() == model) {
            by_key.entry(key).or_default().push(live);
        }
    }
    by_key
        .into_iter()
        .map(|(key, live)| router(snapshot, fleet, key, &live))
        .collect()
}

/// One router of the fleet.
#[must_use]
pub fn router(
    snapshot: &Snapshot,
    fleet: &Fleet,
    key: &RouterKey,
    live: &[LiveRouter<'_>],
) -> RouterEntry {
    let configurable = live.iter().any(|live| live.router.local_revision.is_some());
    let policy = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: key.scope(),
    };
    let mut parameters = reported(live.iter().map(|live| &live.router.parameters));
    let wanted = effective(&snapshot.state, key, None).overlay();
    parameters.extend(wanted);
    let configuration = Configuration {
        revision: revision(snapshot, &policy),
        parameters,
    };
    RouterEntry {
        router_id: policy.id(),
        model: Some(key.model.clone()),
        namespace: Some(key.endpoint.namespace.clone()),
        component: Some(key.endpoint.component.clone()),
        endpoint: Some(key.endpoint.endpoint.clone()),
        worker_type: Some(key.worker_type),
        // A router that is not live now is configured by its policy alone.
        configuration: (configurable || live.is_empty()).then_some(configuration),
        replicas: live.iter().map(|live| replica(fleet, live)).collect(),
    }
}

fn replica(fleet: &Fleet, live: &LiveRouter<'_>) -> Replica {
    Replica {
        agent: live.heard.status.agent.clone(),
        frontend: live.frontend.frontend.clone(),
        group: live.heard.status.group.clone(),
        router_id: live.router.router_id,
        local_revision: live.router.local_revision,
        parameters: live.router.parameters.clone(),
        state: live.router.state,
        stale: fleet.stale(live.heard) || !live.frontend.reachable,
        error: live
            .router
            .error
            .clone()
            .or_else(|| live.frontend.error.clone()),
    }
}

/// The entry of a policy's scope, whether or not it is one router's and whether or not that is live.
#[must_use]
pub fn entry(snapshot: &Snapshot, fleet: &Fleet, policy: &PolicyKey) -> RouterEntry {
    let agents = fleet.agents();
    let scope = &policy.scope;
    if let (Some(model), Some(worker_type), Some(endpoint), None) = (
        &scope.model,
        scope.worker_type,
        &scope.endpoint,
        &scope.group,
    ) {
        let key = RouterKey {
            model: model.clone(),
            worker_type,
            endpoint: endpoint.clone(),
        };
        let live: Vec<LiveRouter<'_>> = live_routers(&agents)
            .filter(|live| live.router.router == key)
            .collect();
        return router(snapshot, fleet, &key, &live);
    }
    let document = snapshot.state.policies.get(policy);
    let endpoint = scope.endpoint.as_ref();
    RouterEntry {
        router_id: policy.id(),
        model: scope.model.clone(),
        namespace: endpoint.map(|endpoint| endpoint.namespace.clone()),
        component: endpoint.map(|endpoint| endpoint.component.clone()),
        endpoint: endpoint.map(|endpoint| endpoint.endpoint.clone()),
        worker_type: scope.worker_type,
        configuration: Some(Configuration {
            revision: revision(snapshot, policy),
            parameters: document
                .map(|document| document.overlay.clone())
                .unwrap_or_default(),
        }),
        replicas: live_routers(&agents)
            .filter(|live| scope.matches(&live.router.router, live.heard.status.group.as_ref()))
            .map(|live| replica(fleet, &live))
            .collect(),
    }
}

/// The policy's revision.
#[must_use]
pub fn revision(snapshot: &Snapshot, policy: &PolicyKey) -> Revision {
    snapshot
        .state
        .policies
        .get(policy)
        .map_or(Revision::ZERO, |document| document.revision)
}

type Values = BTreeMap<ParameterName, ParameterValue>;

/// What replicas report: the common value of each parameter, else that of the first replica that has it.
fn reported<'a>(replicas: impl Iterator<Item = &'a Values>) -> Values {
    let mut values = Values::new();
    for replica in replicas {
        for (name, value) in replica {
            values.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    values
}

/// The façade's list of thresholds.
#[must_use]
pub fn thresholds(snapshot: &Snapshot, fleet: &Fleet) -> Vec<ThresholdEntry> {
    known_models(snapshot, &fleet.agents())
        .iter()
        .map(|model| threshold(snapshot, fleet, model))
        .collect()
}

/// Models with thresholds: named by a policy, or reported by a live agent.
#[must_use]
pub fn known_models(snapshot: &Snapshot, agents: &[Arc<Heard>]) -> Vec<Name> {
    let mut models: Vec<Name> = snapshot
        .state
        .policies
        .keys()
        .filter(|key| key.kind == PolicyKind::BusyThreshold)
        .filter_map(|key| key.scope.model.clone())
        .chain(live_thresholds(agents).map(|(_, _, at)| at.model.clone()))
        .chain(live_routers(agents).map(|live| live.router.router.model.clone()))
        .collect();
    models.sort();
    models.dedup();
    models
}

/// One model's thresholds.
#[must_use]
pub fn threshold(snapshot: &Snapshot, fleet: &Fleet, model: &Name) -> ThresholdEntry {
    let agents = fleet.agents();
    let live: Vec<_> = live_thresholds(&agents)
        .filter(|(_, _, at)| at.model == *model)
        .collect();
    let mut values = reported(live.iter().map(|(_, _, at)| &at.thresholds));
    values.extend(effective_thresholds(&snapshot.state, model, None).overlay());
    ThresholdEntry {
        model: model.as_str().to_owned(),
        active_decode_blocks_threshold: float(&values, "active_decode_blocks_threshold"),
        active_prefill_tokens_threshold: values
            .get("active_prefill_tokens_threshold")
            .and_then(ParameterValue::as_u64),
        active_prefill_tokens_threshold_frac: float(
            &values,
            "active_prefill_tokens_threshold_frac",
        ),
        revision: revision(snapshot, &thresholds_key(model)),
        replicas: live
            .into_iter()
            .map(|(heard, frontend, at)| ThresholdReplica {
                agent: heard.status.agent.clone(),
                frontend: frontend.frontend.clone(),
                group: heard.status.group.clone(),
                thresholds: at.thresholds.clone(),
                state: at.state,
                stale: fleet.stale(heard) || !frontend.reachable,
                error: at.error.clone(),
            })
            .collect(),
    }
}

fn float(values: &Values, name: &str) -> Option<f64> {
    values.get(name).and_then(ParameterValue::as_f64)
}
