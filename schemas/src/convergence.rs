//! `convergence`: the fleet's truth about one position, from the agents' latest reports.
//!
//! Invariant: "converged" is only said when every router that a policy addresses was listed with what is wanted, lately, by
//! an agent that is fresh and had folded the position in. Silence, staleness, an old listing and "no router at all" are
//! never convergence.

use std::borrow::Borrow;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Position, RouterId, Timestamp};
use crate::name::{AgentId, FrontendId, Name};
use crate::scope::{PolicyKey, PolicyKind, WorkerType};
use crate::status::{AgentStatus, ApplyState, Capability, FrontendStatus, LogState, addressed};

/// An agent's latest report and when it arrived, by the reader's own clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heard {
    /// The report.
    pub status: AgentStatus,
    /// When it arrived here. Ages are counted from this, never from the agent's clock.
    pub heard_at: Timestamp,
    /// Another live process reports under the same id, so that `status` tells only half.
    #[serde(default)]
    pub contested: bool,
}

impl Heard {
    /// Why too little is known of a frontend to take anything there for applied; none when enough is.
    ///
    /// SUBTLE: what a listing showed is as old as the report here and the listing in the report together. An agent that
    /// stood still reports at once what it knew before (`what_was_listed_too_long_ago_is_not_converged`). The age in the
    /// report is a difference of the agent's own times, so clocks need not agree.
    #[must_use]
    pub fn unknown(
        &self,
        frontend: &FrontendStatus,
        now: Timestamp,
        patience: Patience,
    ) -> Option<String> {
        if !frontend.reachable {
            let error = frontend.error.clone();
            return Some(error.unwrap_or_else(|| "unreachable".to_owned()));
        }
        let Some(listed_at) = frontend.listed_at else {
            return Some("not listed yet".to_owned());
        };
        let age_ms = (now.since_ms(self.heard_at))
            .saturating_add(self.status.reported_at.since_ms(listed_at));
        (age_ms > patience.stale_after_ms).then(|| format!("last listed {age_ms} ms ago"))
    }

    /// As it counts now: a frontend whose listing is too old is not known to be reachable, and says why. (Of a stale agent
    /// nothing counts; its frontends stay as it reported them.) Copied only where that changes something: reports can be
    /// long, and are looked at by every writer that waits.
    #[must_use]
    pub fn as_of(mut self: Arc<Self>, now: Timestamp, patience: Patience) -> Arc<Heard> {
        if now.since_ms(self.heard_at) > patience.stale_after_ms {
            return self;
        }
        let frontends = self.status.frontends.iter();
        let whys: Vec<Option<String>> = frontends
            .map(|frontend| {
                let why = self.unknown(frontend, now, patience)?;
                let told = !frontend.reachable && frontend.error.as_ref() == Some(&why);
                (!told).then_some(why)
            })
            .collect();
        if whys.iter().all(Option::is_none) {
            return self;
        }
        let frontends = Arc::make_mut(&mut self).status.frontends.iter_mut();
        for (frontend, why) in frontends.zip(whys) {
            if why.is_some() {
                frontend.reachable = false;
                frontend.error = why;
            }
        }
        self
    }
}

/// When silence counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// An agent that is silent for longer is stale, and a frontend that was listed longer ago is not known well enough, in
    /// milliseconds.
    pub stale_after_ms: u64,
    /// An agent that is silent for longer has left the fleet, in milliseconds.
    pub gone_after_ms: u64,
}

/// One place where a policy must arrive: a router, or one model's thresholds on one frontend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Agent that looks after it.
    pub agent: AgentId,
    /// Frontend.
    pub frontend: FrontendId,
    /// Model.
    pub model: Name,
    /// Role; absent for thresholds, and for a frontend that lists no routers (Dynamo 1.6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_type: Option<WorkerType>,
    /// The router; absent for thresholds, and for a frontend that lists no routers (Dynamo 1.6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router_id: Option<RouterId>,
    /// Where it stands.
    pub state: ApplyState,
    /// Why it is not applied, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An agent that cannot be counted on for an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// Which agent.
    pub agent: AgentId,
    /// Which frontend, when only one of its frontends is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<FrontendId>,
    /// What is known.
    pub why: String,
}

/// Where a change has arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Convergence {
    /// In one word.
    pub outcome: Outcome,
    /// The position that was asked about.
    pub position: Position,
    /// Places that have it.
    pub applied: Vec<Place>,
    /// Places that refused it.
    pub refused: Vec<Place>,
    /// Places that do not have it yet.
    pub pending: Vec<Place>,
    /// Agents or frontends of which too little is known to say.
    pub missing: Vec<Missing>,
}

/// The fleet's truth in one word.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every addressed router has it, and at least one is addressed.
    Converged,
    /// Every addressed router has answered for it, and at least one refused.
    Refused,
    /// Some are not there yet, or too little is known.
    Pending,
    /// No live router is addressed: it is kept, and applies to none.
    NoRouter,
}

const NO_ADMIN_ROUTES: &str = "it offers no admin routes (DYN_DISABLE_FRONTEND_ADMIN_API?)";
const NO_ROUTER_POLICY: &str = "Dynamo 1.6: no /router_policy";

/// Where the changes of these policies up to `position` have arrived.
#[must_use]
pub fn convergence<H: Borrow<Heard>>(
    heard: &[H],
    policies: &[PolicyKey],
    position: Position,
    now: Timestamp,
    patience: Patience,
) -> Convergence {
    let mut out = Convergence {
        outcome: Outcome::Pending,
        position,
        applied: Vec::new(),
        refused: Vec::new(),
        pending: Vec::new(),
        missing: Vec::new(),
    };
    for heard in heard.iter().map(Borrow::borrow) {
        let status = &heard.status;
        let silent_ms = now.since_ms(heard.heard_at);
        if silent_ms > patience.gone_after_ms {
            continue;
        }
        if heard.contested {
            // Whatever its group: the process that is not seen may be of another one.
            out.missing.push(Missing {
                agent: status.agent.clone(),
                frontend: None,
                why: format!(
                    "two processes report as agent {}; give each an id of its own",
                    status.agent
                ),
            });
            continue;
        }
        let group = status.group.as_ref();
        if policies
            .iter()
            .all(|policy| policy.scope.group.is_some() && policy.scope.group.as_ref() != group)
        {
            continue;
        }
        let mut miss = |frontend: Option<&FrontendId>, why: String| {
            out.missing.push(Missing {
                agent: status.agent.clone(),
                frontend: frontend.cloned(),
                why,
            });
        };
        if silent_ms > patience.stale_after_ms {
            miss(None, format!("stale: silent for {silent_ms} ms"));
            continue;
        }
        if status.log.position < position {
            let state = match status.log.state {
                LogState::Starting => "starting",
                LogState::Following => "behind",
                LogState::LocalCopy => "without the log",
                LogState::Refused => "refusing the log",
            };
            miss(
                None,
                format!("{state}: at position {}", status.log.position),
            );
            continue;
        }
        let mut known = Vec::new();
        for frontend in &status.frontends {
            if let Some(why) = heard.unknown(frontend, now, patience) {
                miss(Some(&frontend.frontend), why);
                continue;
            }
            known.push(frontend);
            match frontend.capability {
                Capability::Unknown => {
                    miss(Some(&frontend.frontend), "not listed yet".to_owned());
                }
                // Its models are not known, so a policy may address one of them.
                Capability::None => miss(Some(&frontend.frontend), NO_ADMIN_ROUTES.to_owned()),
                Capability::RouterPolicy | Capability::BusyThresholdOnly => {}
            }
        }
        sort_places(status, &known, policies, position, &mut out);
    }
    out.outcome = if !out.pending.is_empty() || !out.missing.is_empty() {
        Outcome::Pending
    } else if !out.refused.is_empty() {
        Outcome::Refused
    } else if out.applied.is_empty() {
        Outcome::NoRouter
    } else {
        Outcome::Converged
    };
    out
}

/// Sorts every place of one agent that the policies address; of its frontends those that are known well enough.
fn sort_places(
    status: &AgentStatus,
    known: &[&FrontendStatus],
    policies: &[PolicyKey],
    position: Position,
    out: &mut Convergence,
) {
    let group = status.group.as_ref();
    for frontend in known {
        let routers = frontend.routers.iter().filter(|router| {
            policies.iter().any(|policy| {
                policy.kind == PolicyKind::WorkerSelection
                    && addressed(&policy.scope, router, group)
            })
        });
        out.refused.extend(unsupported(status, frontend, policies));
        let thresholds = frontend.thresholds.iter().filter(|at| {
            policies.iter().any(|policy| {
                policy.kind == PolicyKind::BusyThreshold
                    && policy.scope.matches_model(&at.model, group)
            })
        });
        let places = routers
            .map(|router| {
                let place = Place {
                    agent: status.agent.clone(),
                    frontend: frontend.frontend.clone(),
                    model: router.router.model.clone(),
                    worker_type: Some(router.router.worker_type),
                    router_id: Some(router.router_id),
                    state: router.state,
                    error: router.error.clone(),
                };
                (place, router.position)
            })
            .chain(thresholds.map(|at| {
                let place = Place {
                    agent: status.agent.clone(),
                    frontend: frontend.frontend.clone(),
                    model: at.model.clone(),
                    worker_type: None,
                    router_id: None,
                    state: at.state,
                    error: at.error.clone(),
                };
                (place, at.position)
            }));
        for (mut place, seen) in places {
            let list = match place.state {
                // A verdict about an older position says nothing about this one.
                _ if seen < position => {
                    place.state = ApplyState::Pending;
                    &mut out.pending
                }
                ApplyState::Applied => &mut out.applied,
                ApplyState::Refused | ApplyState::Unsupported => &mut out.refused,
                ApplyState::Pending | ApplyState::Drifted | ApplyState::Stopped => &mut out.pending,
            };
            list.push(place);
        }
    }
}

/// Models whose workers a policy selects on a frontend that cannot take it. Such a frontend lists no routers, but its
/// thresholds name its models; which roles those have is not known, so a scope's `worker_type` and `endpoint` narrow
/// nothing here: too many are said to lack the policy, never too few.
fn unsupported<'a>(
    status: &'a AgentStatus,
    frontend: &'a FrontendStatus,
    policies: &'a [PolicyKey],
) -> impl Iterator<Item = Place> + 'a {
    let group = status.group.as_ref();
    let lacks = frontend.capability == Capability::BusyThresholdOnly;
    let models = frontend.thresholds.iter().map(|at| &at.model);
    models
        .filter(move |model| {
            let addressed = |policy: &PolicyKey| {
                policy.kind == PolicyKind::WorkerSelection
                    && policy.scope.matches_model(model, group)
            };
            lacks && policies.iter().any(addressed)
        })
        .map(|model| Place {
            agent: status.agent.clone(),
            frontend: frontend.frontend.clone(),
            model: model.clone(),
            worker_type: None,
            router_id: None,
            state: ApplyState::Unsupported,
            error: Some(NO_ROUTER_POLICY.to_owned()),
        })
}
