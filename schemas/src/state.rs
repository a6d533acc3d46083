//! What a log says so far: every policy's document, folded from records in position order.
//!
//! Owns: `evolve`, the only place that judges records, and bootstrap from the last record of each subject.
//! Invariant: two readers that saw the same records up to a position have equal states, whichever way they came there.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{Actor, Event, PolicyChange, Reason, Record, record_hash};
use crate::ids::{CommandId, Hash, Position, Revision, Timestamp};
use crate::parameter::{CustomParameters, Overlay};
use crate::scope::{Address, PolicyKey, PolicyKind, Scope, Subject};

/// One policy as of its last accepted change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyDocument {
    /// Kind of the policy.
    pub kind: PolicyKind,
    /// What it addresses.
    pub scope: Scope,
    /// Number of accepted changes.
    pub revision: Revision,
    /// Explicit values.
    pub overlay: Overlay,
    /// Its last accepted record.
    pub position: Position,
    /// Hash of that record.
    pub hash: Hash,
    /// Command of that record.
    pub command_id: CommandId,
    /// Who made that change.
    pub actor: Actor,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// When, by the deciding service's clock.
    pub changed_at: Timestamp,
}

impl PolicyDocument {
    /// Which policy.
    #[must_use]
    pub fn key(&self) -> PolicyKey {
        PolicyKey {
            kind: self.kind,
            scope: self.scope.clone(),
        }
    }
}

/// The registry of custom parameters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Registry {
    /// Number of accepted registrations.
    pub revision: Revision,
    /// Its last accepted record.
    pub position: Position,
    /// Hash of that record.
    pub hash: Hash,
    /// Name and JSON Schema of each custom parameter.
    pub parameters: CustomParameters,
    /// Set when a registration could not be read: the registry holds, but nothing may be decided on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
}

/// A policy (or, without one, everything) that cannot be followed further by this version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stop {
    /// The first record that could not be read.
    pub position: Position,
    /// What could not be read.
    pub why: String,
}

/// A record as `migrations::read` found it.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    /// Understood.
    Known(Record),
    /// Not understood by this version.
    Unknown {
        /// The command, where at least the envelope could be read.
        command_id: Option<CommandId>,
        /// What could not be read.
        why: String,
        /// The policies concerned, where the envelope says so; `None` = it cannot be known.
        policies: Option<Vec<PolicyKey>>,
    },
}

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It counts.
    Accepted {
        /// False when the record's hash of its predecessor is not the hash of the predecessor that this reader saw: the
        /// log was changed after the fact, or the writer had seen another log.
        chained: bool,
    },
    /// It does not follow the last accepted record of a policy that it changes; for every reader alike nothing happened.
    Void {
        /// Which policy was in the way, in words.
        why: String,
    },
    /// This version cannot judge it; the policies that it concerns are stopped at what they were before.
    Unreadable {
        /// What could not be read.
        why: String,
    },
}

/// Everything that a log says up to `position`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    /// The last record that was folded in.
    pub position: Position,
    /// Policies that were ever changed.
    pub policies: BTreeMap<PolicyKey, PolicyDocument>,
    /// Custom parameters.
    pub registry: Registry,
    /// The last record of each subject, whatever became of it: what compare-and-swap is against.
    pub tails: BTreeMap<Subject, Position>,
    /// Policies that are stopped.
    pub stops: BTreeMap<PolicyKey, Stop>,
    /// Set when a record could not be read and does not say what it concerns: every policy is stopped.
    pub stopped: Option<Stop>,
}

impl State {
    /// Folds the next record in. Never fails: what cannot be read stops the policies that it concerns.
    ///
    /// Positions must rise; a record at or before [`State::position`] was seen already and must not be passed again.
    pub fn evolve(
        &mut self,
        position: Position,
        subject: &Subject,
        bytes: &[u8],
        reading: &Reading,
    ) -> Verdict {
        debug_assert!(
            position > self.position,
            "records are folded once and in order"
        );
        self.position = position;
        self.tails.insert(subject.clone(), position);
        let verdict = match reading {
            Reading::Unknown { why, policies, .. } => {
                self.stop(position, subject, policies.as_deref(), why)
            }
            Reading::Known(record) if record.subject() != *subject => {
                let why = format!("the record belongs to subject {}", record.subject());
                let keys = keys_of(record);
                self.stop(position, subject, Some(&keys), &why)
            }
            Reading::Known(record) => self.judge(position, record_hash(subject, bytes), record),
        };
        debug_assert!(
            self.policies
                .values()
                .all(|document| document.position <= self.position)
        );
        verdict
    }

    /// Why nothing may be decided on a policy, where that is so.
    #[must_use]
    pub fn stop_of(&self, key: &PolicyKey) -> Option<&Stop> {
        self.stops.get(key).or(self.stopped.as_ref())
    }

    /// The last record of a subject; [`Position::START`] when it has none.
    #[must_use]
    pub fn tail(&self, subject: &Subject) -> Position {
        self.tails.get(subject).copied().unwrap_or(Position::START)
    }

    fn judge(&mut self, position: Position, hash: Hash, record: &Record) -> Verdict {
        match &record.event {
            Event::PoliciesChanged { changes } => {
                self.judge_changes(position, hash, record, changes)
            }
            Event::ParameterRegistered {
                revision,
                decided_on,
                previous_hash,
                registry,
                ..
            } => {
                if let Some(stop) = &self.registry.stop {
                    let why = format!(
                        "follows the record at position {}, which could not be read",
                        stop.position
                    );
                    return Verdict::Unreadable { why };
                }
                if *decided_on != self.registry.position
                    || *revision != self.registry.revision.next()
                {
                    let why = format!(
                        "decided on position {decided_on} of the parameter registry, whose last accepted record is {}",
                        self.registry.position
                    );
                    return Verdict::Void { why };
                }
                let chained = *previous_hash == self.registry.hash;
                self.registry = Registry {
                    revision: *revision,
                    position,
                    hash,
                    parameters: registry.clone(),
                    stop: None,
                };
                Verdict::Accepted { chained }
            }
        }
    }

    fn judge_changes(
        &mut self,
        position: Position,
        hash: Hash,
        record: &Record,
        changes: &[PolicyChange],
    ) -> Verdict {
        // All or none: one policy in the way makes the whole record void, one stopped policy makes it unjudgeable.
        if let Some(stop) = changes
            .iter()
            .find_map(|change| self.stop_of(&change.key()))
        {
            let why = format!(
                "follows the record at position {}, which could not be read",
                stop.position
            );
            let stop = stop.clone();
            for change in changes {
                self.stops
                    .entry(change.key())
                    .or_insert_with(|| stop.clone());
            }
            return Verdict::Unreadable { why };
        }
        let mut chained = true;
        for change in changes {
            let key = change.key();
            let (last, revision, last_hash) = self
                .policies
                .get(&key)
                .map_or((Position::START, Revision::ZERO, Hash::ZERO), |document| {
                    (document.position, document.revision, document.hash)
                });
            if change.decided_on != last || change.revision != revision.next() {
                let why = format!(
                    "{key} was decided on position {} as revision {}, but its last accepted record is {last} with revision {revision}",
                    change.decided_on, change.revision
                );
                return Verdict::Void { why };
            }
            chained &= change.previous_hash == last_hash;
        }
        for change in changes {
            self.policies
                .insert(change.key(), document(position, hash, record, change));
        }
        Verdict::Accepted { chained }
    }

    fn stop(
        &mut self,
        position: Position,
        subject: &Subject,
        policies: Option<&[PolicyKey]>,
        why: &str,
    ) -> Verdict {
        let stop = Stop {
            position,
            why: why.to_owned(),
        };
        // A subject says what its records concern even when an envelope does not; only a set's does not.
        let mut concerned = policies.unwrap_or_default().to_vec();
        match subject.address() {
            Some(Address::Policy(key)) => concerned.push(key),
            Some(Address::Parameters) => {
                self.registry.stop.get_or_insert(stop.clone());
            }
            Some(Address::Set(_)) | None => {
                if policies.is_none() {
                    self.stopped.get_or_insert(stop.clone());
                }
            }
        }
        for key in concerned {
            self.stops.entry(key).or_insert_with(|| stop.clone());
        }
        Verdict::Unreadable {
            why: why.to_owned(),
        }
    }
}

fn keys_of(record: &Record) -> Vec<PolicyKey> {
    match &record.event {
        Event::PoliciesChanged { changes } => changes.iter().map(PolicyChange::key).collect(),
        Event::ParameterRegistered { .. } => Vec::new(),
    }
}

fn document(
    position: Position,
    hash: Hash,
    record: &Record,
    change: &PolicyChange,
) -> PolicyDocument {
    PolicyDocument {
        kind: change.kind,
        scope: change.scope.clone(),
        revision: change.revision,
        overlay: change.overlay.clone(),
        position,
        hash,
        command_id: record.command_id,
        actor: record.actor.clone(),
        reason: record.reason.clone(),
        changed_at: record.at,
    }
}

/// The last record of one subject, as read for a bootstrap.
#[derive(Debug, Clone, PartialEq)]
pub struct Tail {
    /// Its position.
    pub position: Position,
    /// Its subject.
    pub subject: Subject,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What `migrations::read` made of it.
    pub reading: Reading,
}

/// A condition under which a state made from tails is right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// The first record on `subject` after `after` does not come before `not_before`.
    Next {
        /// Where to look.
        subject: Subject,
        /// Look behind this.
        after: Position,
        /// A record found earlier than this spoils the shortcut.
        not_before: Position,
    },
    /// The record at `position` is the one with this hash.
    At {
        /// Where to look.
        position: Position,
        /// What must be there.
        hash: Hash,
    },
}

impl Check {
    /// True when what was found (position and hash of the record) is as it must be.
    #[must_use]
    pub fn holds(&self, found: Option<(Position, Hash)>) -> bool {
        match self {
            Check::Next { not_before, .. } => {
                found.is_none_or(|(position, _)| position >= *not_before)
            }
            Check::At { hash, .. } => found.is_some_and(|(_, there)| there == *hash),
        }
    }
}

/// A state from the last record of each subject, in O(scopes) instead of O(history).
///
/// `up_to` is the log's head when the tails were read. The state is right when every check holds; `None` means that the
/// shortcut cannot tell (an unreadable or foreign tail) and the whole log must be folded instead. The checks find void
/// records: a tail counts only when nothing that touches the same policies stands between it and what it was decided on, and
/// only when that still stands there. (A log that was put back to an older state may hold records that were decided on what
/// it lost.)
#[must_use]
pub fn bootstrap(tails: &[Tail], up_to: Position) -> Option<(State, BTreeSet<Check>)> {
    let mut state = State {
        position: up_to,
        ..State::default()
    };
    let mut touching: BTreeMap<PolicyKey, BTreeSet<&Subject>> = BTreeMap::new();
    let mut known = Vec::new();
    for tail in tails {
        let Reading::Known(record) = &tail.reading else {
            return None;
        };
        if record.subject() != tail.subject {
            return None;
        }
        state.tails.insert(tail.subject.clone(), tail.position);
        for key in keys_of(record) {
            touching.entry(key).or_default().insert(&tail.subject);
        }
        known.push((tail, record));
    }
    // In position order, so that the later of two tails of one policy stays.
    known.sort_by_key(|(tail, _)| tail.position);
    let mut checks = BTreeSet::new();
    for (tail, record) in known {
        let hash = record_hash(&tail.subject, &tail.bytes);
        match &record.event {
            Event::PoliciesChanged { changes } => {
                for change in changes {
                    let key = change.key();
                    let subjects = touching.get(&key).into_iter().flatten();
                    checks.extend(decided_on(change.decided_on, change.previous_hash));
                    checks.extend(subjects.map(|subject| Check::Next {
                        subject: (*subject).clone(),
                        after: change.decided_on,
                        not_before: tail.position,
                    }));
                    state
                        .policies
                        .insert(key, document(tail.position, hash, record, change));
                }
            }
            Event::ParameterRegistered {
                revision,
                decided_on: decided,
                previous_hash,
                registry,
                ..
            } => {
                checks.extend(decided_on(*decided, *previous_hash));
                checks.insert(Check::Next {
                    subject: tail.subject.clone(),
                    after: *decided,
                    not_before: tail.position,
                });
                state.registry = Registry {
                    revision: *revision,
                    position: tail.position,
                    hash,
                    parameters: registry.clone(),
                    stop: None,
                };
            }
        }
    }
    Some((state, checks))
}

/// What a record was decided on must be there; nothing has to be before the first.
fn decided_on(position: Position, hash: Hash) -> Option<Check> {
    (position > Position::START).then_some(Check::At { position, hash })
}
