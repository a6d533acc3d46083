//! `decide`: from a command and a state to one record, or a refusal. Pure: time and ids come in with the command.

use crate::event::{Action, Actor, Event, PolicyChange, Reason, Record};
use crate::ids::{CommandId, Hash, Position, Revision, Timestamp};
use crate::parameter::{self, Overlay, ParameterName, Patch};
use crate::rejection::Rejection;
use crate::scope::{PolicyKey, PolicyKind, Subject};
use crate::state::State;

/// Bound: policies in one atomic change (each carries its overlay; the record must stay below a broker's 1 MiB).
pub const SET_POLICIES_MAX: usize = 64;

/// Bound: bytes of one policy's parameters as JSON. A frontend refuses bodies above 16,384 bytes (Dynamo 1.7); the rest is
/// for the router's id and revision.
pub const OVERLAY_BYTES_MAX: usize = 15 * 1024;

/// Bound: bytes of one record. A broker takes 1 MiB by default, with the headers.
pub const RECORD_BYTES_MAX: usize = 512 * 1024;

/// Something that somebody wants to be so.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// At most one record has it.
    pub command_id: CommandId,
    /// Who.
    pub actor: Actor,
    /// When, by the clock of the service that decides.
    pub at: Timestamp,
    /// Why.
    pub reason: Option<Reason>,
    /// Lift the ranges of built-in parameters (admins).
    pub force: bool,
    /// Hash of the request as it was understood.
    pub fingerprint: Hash,
    /// What.
    pub order: Order,
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Change policies, all or none.
    ChangePolicies(Vec<PolicyOrder>),
    /// Register a custom parameter or replace its schema.
    RegisterParameter {
        /// The parameter.
        name: ParameterName,
        /// JSON Schema of its values.
        schema: serde_json::Value,
        /// The registry's revision that this was written against; `None` = whatever it is.
        expected: Option<Revision>,
    },
}

/// One policy's part of a command.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyOrder {
    /// Which policy.
    pub policy: PolicyKey,
    /// The revision that this was written against; `None` = whatever it is.
    pub expected: Option<Revision>,
    /// What to do.
    pub change: Change,
}

/// What to do with one policy.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Set and remove values.
    Patch(Patch),
    /// Empty the overlay.
    Reset,
    /// Put back the overlay of an earlier revision, which the caller has looked up.
    Revert {
        /// That revision.
        to: Revision,
        /// Its overlay.
        overlay: Overlay,
    },
}

/// A record that may be appended while the subject's last record is still `expected_tail`.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Where it goes.
    pub subject: Subject,
    /// Compare-and-swap: the subject's last record.
    pub expected_tail: Position,
    /// What goes there.
    pub record: Record,
}

/// Decides a command on a state.
///
/// Order of checks per policy: scope, empty change, revision, values; the first policy that fails refuses all.
///
/// # Errors
/// [`Rejection`]; nothing may be appended then.
pub fn decide(state: &State, command: &Command) -> Result<Decision, Rejection> {
    let event = match &command.order {
        Order::ChangePolicies(orders) => {
            check_set(orders)?;
            let mut changes = orders
                .iter()
                .map(|order| decide_policy(state, order, command.force))
                .collect::<Result<Vec<_>, _>>()?;
            changes.sort_by_key(PolicyChange::key);
            Event::PoliciesChanged { changes }
        }
        Order::RegisterParameter {
            name,
            schema,
            expected,
        } => decide_registration(state, name, schema, *expected)?,
    };
    let record = Record {
        command_id: command.command_id,
        actor: command.actor.clone(),
        at: command.at,
        reason: command.reason.clone(),
        forced: command.force,
        fingerprint: command.fingerprint,
        event,
    };
    let field = match &command.order {
        Order::ChangePolicies(_) => "parameters",
        Order::RegisterParameter { .. } => "schema",
    };
    bounded(
        field,
        "one record",
        record.to_bytes().len(),
        RECORD_BYTES_MAX,
    )?;
    let subject = record.subject();
    Ok(Decision {
        expected_tail: state.tail(&subject),
        subject,
        record,
    })
}

fn bounded(
    field: &'static str,
    place: &'static str,
    bytes: usize,
    max: usize,
) -> Result<(), Rejection> {
    if bytes <= max {
        return Ok(());
    }
    Err(Rejection::TooLarge {
        field,
        place,
        bytes,
        max,
    })
}

fn check_set(orders: &[PolicyOrder]) -> Result<(), Rejection> {
    let refuse = |why: String| Err(Rejection::InvalidSet { why });
    if orders.is_empty() {
        return refuse("must not be empty".to_owned());
    }
    if orders.len() > SET_POLICIES_MAX {
        return refuse(format!(
            "has {} entries, at most {SET_POLICIES_MAX} are allowed",
            orders.len()
        ));
    }
    let mut seen = std::collections::BTreeSet::new();
    match orders.iter().find(|order| !seen.insert(&order.policy)) {
        Some(twice) => refuse(format!("names {} twice", twice.policy)),
        None => Ok(()),
    }
}

/// Judges a scope for a kind of policy.
///
/// # Errors
/// [`Rejection::InvalidScope`]: busy thresholds hold for a whole model, so they name neither worker type nor endpoint.
pub fn check_scope(policy: &PolicyKey) -> Result<(), Rejection> {
    match policy.kind {
        PolicyKind::WorkerSelection => Ok(()),
        PolicyKind::BusyThreshold => {
            let refuse = |field, why: &str| {
                Err(Rejection::InvalidScope {
                    field,
                    why: why.to_owned(),
                })
            };
            if policy.scope.worker_type.is_some() {
                return refuse(
                    "worker_type",
                    "cannot be set for busy_threshold: thresholds hold for a whole model",
                );
            }
            if policy.scope.endpoint.is_some() {
                return refuse(
                    "endpoint",
                    "cannot be set for busy_threshold: thresholds hold for a whole model",
                );
            }
            Ok(())
        }
    }
}

fn decide_policy(
    state: &State,
    order: &PolicyOrder,
    force: bool,
) -> Result<PolicyChange, Rejection> {
    let policy = &order.policy;
    check_scope(policy)?;
    if matches!(&order.change, Change::Patch(patch) if patch.is_empty()) {
        return Err(Rejection::EmptyChange);
    }
    if let Some(stop) = state.stop_of(policy) {
        return Err(Rejection::Stopped {
            policy: Box::new(policy.clone()),
            position: stop.position,
            why: stop.why.clone(),
        });
    }
    let empty = Overlay::new();
    let (revision, position, hash, overlay) = state.policies.get(policy).map_or(
        (Revision::ZERO, Position::START, Hash::ZERO, &empty),
        |document| {
            (
                document.revision,
                document.position,
                document.hash,
                &document.overlay,
            )
        },
    );
    if let Some(expected) = order.expected.filter(|expected| *expected != revision) {
        return Err(Rejection::StaleRevision {
            policy: Box::new(policy.clone()),
            expected,
            current: revision,
        });
    }
    let (action, overlay) = match &order.change {
        Change::Patch(patch) => {
            let patch = parameter::check(policy.kind, patch, &state.registry.parameters, force)?;
            let after = parameter::apply(overlay, &patch);
            if after.len() > parameter::PARAMETERS_MAX {
                return Err(Rejection::TooManyParameters { count: after.len() });
            }
            (Action::Patched(patch), after)
        }
        Change::Reset => (Action::Reset, Overlay::new()),
        Change::Revert {
            to,
            overlay: earlier,
        } => {
            // Judged again: what was allowed (or forced) then need not be allowed now.
            let patch = earlier
                .iter()
                .map(|(name, value)| (name.clone(), Some(value.clone())))
                .collect();
            parameter::check(policy.kind, &patch, &state.registry.parameters, force)?;
            (Action::RevertedTo(*to), earlier.clone())
        }
    };
    // Invariant: string keys and finite numbers only, so encoding cannot fail.
    let bytes = serde_json::to_vec(&overlay).map_or(usize::MAX, |encoded| encoded.len());
    bounded("parameters", "one policy", bytes, OVERLAY_BYTES_MAX)?;
    Ok(PolicyChange {
        kind: policy.kind,
        scope: policy.scope.clone(),
        action,
        revision: revision.next(),
        decided_on: position,
        previous_hash: hash,
        overlay,
    })
}

fn decide_registration(
    state: &State,
    name: &ParameterName,
    schema: &serde_json::Value,
    expected: Option<Revision>,
) -> Result<Event, Rejection> {
    let current = &state.registry;
    if let Some(stop) = &current.stop {
        return Err(Rejection::RegistryStopped {
            position: stop.position,
            why: stop.why.clone(),
        });
    }
    if let Some(expected) = expected.filter(|expected| *expected != current.revision) {
        return Err(Rejection::StaleRegistry {
            expected,
            current: current.revision,
        });
    }
    parameter::check_schema(name, schema)?;
    let mut registry = current.parameters.clone();
    registry.insert(name.clone(), schema.clone());
    if registry.len() > parameter::PARAMETERS_MAX {
        return Err(Rejection::TooManyParameters {
            count: registry.len(),
        });
    }
    Ok(Event::ParameterRegistered {
        name: name.clone(),
        revision: current.revision.next(),
        decided_on: current.position,
        previous_hash: current.hash,
        registry,
    })
}
