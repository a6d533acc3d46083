//! The pure fold: one record in, writes for the store out.
//!
//! Invariant: loading a store gives the same [`Projected`] as folding the log up to its cursor.

use std::collections::BTreeMap;
use std::sync::Arc;

use event_log::Entry;
use schemas::event::{Event, PolicyChange, chain_hash, record_hash};
use schemas::scope::Address;
use schemas::state::{Reading, State, Verdict};
use schemas::{CommandId, Hash, LogId, PolicyId, PolicyKey};
use serde::Serialize;

use super::Snapshot;
use super::keys::{self, Index};
use super::store::{Cursor, StoredCommand, StoredRecord};

/// Everything that is folded in so far.
#[derive(Debug, Clone, Default)]
pub struct Projected {
    /// The policies.
    pub state: Arc<State>,
    /// The log, once one was met.
    pub log_id: Option<LogId>,
    /// Hash of the record at the cursor; zeros before the first.
    pub hash: Hash,
    /// The chain over the whole log.
    pub chain: Hash,
    /// Every policy that the log has ever named, by id.
    pub ids: Arc<BTreeMap<PolicyId, PolicyKey>>,
}

impl Projected {
    /// As others see it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            state: Arc::clone(&self.state),
            log_id: self.log_id,
            chain: self.chain,
            ids: Arc::clone(&self.ids),
        }
    }

    /// Makes policies findable by id.
    pub fn name(&mut self, key: &PolicyKey) {
        let id = key.id();
        if !self.ids.contains_key(&id) {
            Arc::make_mut(&mut self.ids).insert(id, key.clone());
        }
    }
}

/// One write to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Set.
    Put(Vec<u8>, Vec<u8>),
    /// Set unless there is a value: the first record of a command counts.
    PutNew(Vec<u8>, Vec<u8>),
}

/// One record, folded in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// For the store.
    pub writes: Vec<Write>,
    /// What became of the record.
    pub verdict: Verdict,
}

/// Folds one record in. Records come in order and once.
pub fn project(projected: &mut Projected, entry: &Entry, reading: &Reading) -> Folded {
    let Entry {
        position,
        subject,
        bytes,
    } = entry;
    let verdict = Arc::make_mut(&mut projected.state).evolve(*position, subject, bytes, reading);
    projected.hash = record_hash(subject, bytes);
    projected.chain = chain_hash(projected.chain, *position, subject, bytes);

    let concerned = concerned(entry, reading);
    let own = match subject.address() {
        Some(Address::Policy(key)) => Some(key),
        Some(Address::Set(_) | Address::Parameters) | None => None,
    };
    for key in &concerned {
        // A void set names policies that may not exist; only what a load would find again gets an id.
        let state = &projected.state;
        if own.as_ref() == Some(key)
            || state.policies.contains_key(key)
            || state.stops.contains_key(key)
        {
            projected.name(key);
        }
    }
    let mut writes = state_writes(&projected.state, entry, &concerned);
    let record = StoredRecord {
        position: *position,
        subject: subject.clone(),
        verdict: verdict.clone(),
        hash: projected.hash,
        chain: projected.chain,
        bytes: bytes.to_vec(),
    };
    writes.push(Write::Put(keys::record(*position), record.encode()));
    if let Some(id) = command_of(reading) {
        let command = StoredCommand {
            position: *position,
            fingerprint: match reading {
                Reading::Known(record) => Some(record.fingerprint),
                Reading::Unknown { .. } => None,
            },
            verdict: verdict.clone(),
        };
        writes.push(Write::PutNew(keys::command(id), json(&command)));
    }
    let mut index = |kind: Index, value: &str| {
        writes.push(Write::Put(kind.key(value, *position), Vec::new()));
    };
    index(Index::Subject, subject.as_str());
    for key in &concerned {
        index(Index::Policy, key.subject().as_str());
        if let Some(model) = &key.scope.model {
            index(Index::Model, model.as_str());
        }
    }
    if let Reading::Known(record) = reading {
        index(Index::Actor, record.actor.name.as_str());
    }
    let cursor = Cursor {
        position: *position,
        hash: projected.hash,
        chain: projected.chain,
    };
    writes.push(Write::Put(keys::CURSOR.to_vec(), json(&cursor)));
    Folded { writes, verdict }
}

/// Policies that a record changes, tries to change, or stops.
fn concerned(entry: &Entry, reading: &Reading) -> Vec<PolicyKey> {
    let mut keys: Vec<PolicyKey> = match reading {
        Reading::Known(record) => match &record.event {
            Event::PoliciesChanged { changes } => changes.iter().map(PolicyChange::key).collect(),
            Event::ParameterRegistered { .. } => Vec::new(),
        },
        Reading::Unknown { policies, .. } => policies.clone().unwrap_or_default(),
    };
    if let Some(Address::Policy(key)) = entry.subject.address()
        && !keys.contains(&key)
    {
        keys.push(key);
    }
    keys
}

fn command_of(reading: &Reading) -> Option<CommandId> {
    match reading {
        Reading::Known(record) => Some(record.command_id),
        Reading::Unknown { command_id, .. } => *command_id,
    }
}

fn state_writes(state: &State, entry: &Entry, concerned: &[PolicyKey]) -> Vec<Write> {
    let mut writes = vec![Write::Put(
        keys::tail(&entry.subject),
        json(&entry.position),
    )];
    for key in concerned {
        let subject = key.subject();
        if let Some(document) = state.policies.get(key)
            && document.position == entry.position
        {
            writes.push(Write::Put(keys::document(&subject), json(document)));
        }
        if let Some(stop) = state.stops.get(key) {
            writes.push(Write::Put(keys::stop(&subject), json(stop)));
        }
    }
    if entry.subject.address() == Some(Address::Parameters) {
        writes.push(Write::Put(keys::REGISTRY.to_vec(), json(&state.registry)));
    }
    if let Some(stop) = &state.stopped
        && stop.position == entry.position
    {
        writes.push(Write::Put(keys::STOPPED.to_vec(), json(stop)));
    }
    writes
}

/// Invariant: every map key here is a string and every number finite, so encoding cannot fail.
pub(super) fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Hash over everything that is known: log, position, chain, documents, registry, tails and stops.
#[must_use]
pub fn digest(snapshot: &Snapshot) -> Hash {
    let state = &snapshot.state;
    let mut parts = vec![
        json(&snapshot.log_id),
        json(&state.position),
        json(&snapshot.chain),
        json(&state.registry),
        json(&state.stopped),
    ];
    parts.extend(state.policies.values().map(json));
    parts.extend(state.tails.iter().map(|tail| json(&tail)));
    parts.extend(state.stops.iter().map(|stop| json(&stop)));
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Hash::of(&parts)
}
