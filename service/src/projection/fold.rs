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
        if let (Verdict::Accepted { .. }, Some(fingerprint)) = (&verdict, command.fingerprint) {
            let key = keys::accepted_request(id, fingerprint);
            writes.push(Write::PutNew(key, json(&command)));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;
    use schemas::decide::{Change, Command, Order, PolicyOrder, decide};
    use schemas::event::Actor;
    use schemas::{PolicyKind, Position, Scope, Timestamp};
    use uuid::Uuid;

    use crate::projection::store::Store;

    /// What one record is to be.
    #[derive(Debug, Clone, Copy)]
    enum Kind {
        /// Of one model.
        Single(u8),
        /// Of two models at once.
        Set(u8, u8),
        /// A custom parameter.
        Registration(u8),
        /// The record before, once more under another id: void.
        Void,
        /// Of a kind that nobody knows, on a model's subject.
        Unknown(u8),
        /// Not even JSON, on a subject that means nothing.
        Noise,
    }

    fn any_kind() -> impl Strategy<Value = Kind> {
        prop_oneof![
            6 => (0u8..4).prop_map(Kind::Single),
            3 => (0u8..4, 0u8..4).prop_map(|(one, other)| Kind::Set(one, other)),
            1 => (0u8..3).prop_map(Kind::Registration),
            2 => Just(Kind::Void),
            1 => (0u8..4).prop_map(Kind::Unknown),
            1 => Just(Kind::Noise),
        ]
    }

    fn key(model: u8) -> PolicyKey {
        PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope: Scope {
                model: Some(format!("m{model}").parse().unwrap()),
                ..Scope::default()
            },
        }
    }

    /// A log with such records, as far as they can be decided.
    fn log(kinds: &[Kind]) -> Vec<Entry> {
        let mut state = State::default();
        let mut entries: Vec<Entry> = Vec::new();
        for (n, kind) in kinds.iter().enumerate() {
            let change = |models: &[u8]| {
                let mut models = models.to_vec();
                models.dedup();
                let orders = models.iter().map(|model| PolicyOrder {
                    policy: key(*model),
                    expected: None,
                    change: Change::Reset,
                });
                Order::ChangePolicies(orders.collect())
            };
            let order = match kind {
                Kind::Single(model) => Some(change(&[*model])),
                Kind::Set(one, other) => Some(change(&[*one, *other])),
                Kind::Registration(name) => Some(Order::RegisterParameter {
                    name: schemas::ParameterName::new(format!("p{name}")).unwrap(),
                    schema: serde_json::json!({}),
                    expected: None,
                }),
                Kind::Void | Kind::Unknown(_) | Kind::Noise => None,
            };
            let id = Uuid::from_u128(n as u128 + 1);
            let (subject, bytes) = match (kind, order) {
                (_, Some(order)) => {
                    let command = Command {
                        command_id: CommandId(id),
                        actor: Actor {
                            name: "a".parse().unwrap(),
                            via: "b".parse().unwrap(),
                        },
                        at: Timestamp::from_unix_ms(n as u64),
                        reason: None,
                        force: false,
                        fingerprint: Hash::ZERO,
                        order,
                    };
                    match decide(&state, &command) {
                        Ok(decision) => (decision.subject, decision.record.to_bytes()),
                        Err(_) => continue,
                    }
                }
                (Kind::Void, None) => match entries.last() {
                    Some(last) => {
                        let text = String::from_utf8_lossy(&last.bytes).into_owned();
                        let before = Uuid::from_u128(n as u128).to_string();
                        (
                            last.subject.clone(),
                            text.replace(&before, &id.to_string()).into_bytes(),
                        )
                    }
                    None => continue,
                },
                (Kind::Unknown(model), None) => (
                    key(*model).subject(),
                    format!(r#"{{"id":"{id}","type":"new"}}"#).into_bytes(),
                ),
                (_, None) => (schemas::Subject::from_log("what"), b"\xff".to_vec()),
            };
            let entry = Entry {
                // With gaps.
                position: Position(n as u64 * 2 + 1),
                subject,
                bytes: Bytes::from(bytes),
            };
            let reading = migrations::read(&entry.subject, &entry.bytes);
            state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
            entries.push(entry);
        }
        entries
    }

    fn same(left: &Projected, right: &Projected) {
        assert_eq!(left.state, right.state);
        assert_eq!((left.hash, left.chain), (right.hash, right.chain));
        assert_eq!(left.ids, right.ids);
        assert_eq!(digest(&left.snapshot()), digest(&right.snapshot()));
    }

    /// A store and what it is over, gone with their last handles.
    fn empty_store() -> (Store, sled::Db) {
        let db = sled::Config::new().temporary(true).open().unwrap();
        let lock = Arc::new(tempfile::tempfile().unwrap());
        (Store::new(db.clone(), lock), db)
    }

    /// The same record with other words in it.
    fn reworded(entry: &mut Entry, words: &[(&dyn std::fmt::Display, &dyn std::fmt::Display)]) {
        let text = String::from_utf8_lossy(&entry.bytes).into_owned();
        let text = (words.iter()).fold(text, |text, (from, to)| {
            text.replace(&from.to_string(), &to.to_string())
        });
        entry.bytes = Bytes::from(text);
    }

    #[test]
    fn regression_a_command_is_answered_by_its_accepted_record() {
        let (store, _) = empty_store();
        // Record 2 is void and carries the id of a command whose other record, at 3, counts.
        let mut entries = log(&[Kind::Single(0), Kind::Void, Kind::Single(1)]);
        let (void, counts) = (CommandId(Uuid::from_u128(2)), CommandId(Uuid::from_u128(3)));
        reworded(&mut entries[1], &[(&void, &counts)]);
        let mut projected = Projected::default();
        for entry in &entries {
            let reading = migrations::read(&entry.subject, &entry.bytes);
            store
                .apply(project(&mut projected, entry, &reading).writes)
                .unwrap();
        }
        let found = store.command(counts, None).unwrap().unwrap();
        assert_eq!(found.position, entries[2].position);
        assert!(matches!(found.verdict, Verdict::Accepted { .. }));
    }

    #[test]
    fn regression_each_request_under_one_id_is_answered_by_its_own_record() {
        let (store, _) = empty_store();
        // Two services were given one id with two requests at once, and both records count.
        let mut entries = log(&[Kind::Single(0), Kind::Single(1)]);
        let (id, other) = (CommandId(Uuid::from_u128(1)), Uuid::from_u128(2));
        let request = Hash([0x11; 32]);
        reworded(&mut entries[1], &[(&other, &id), (&Hash::ZERO, &request)]);
        let mut projected = Projected::default();
        for entry in &entries {
            let reading = migrations::read(&entry.subject, &entry.bytes);
            let folded = project(&mut projected, entry, &reading);
            assert!(matches!(folded.verdict, Verdict::Accepted { .. }));
            store.apply(folded.writes).unwrap();
        }
        let at = |request| store.command(id, request).unwrap().unwrap().position;
        assert_eq!(at(Some(Hash::ZERO)), entries[0].position);
        assert_eq!(at(Some(request)), entries[1].position);
        // Of a third one, any of them says that the key was used.
        let (used, _) = (at(Some(Hash([0x22; 32]))), at(None));
        assert!(entries.iter().any(|entry| entry.position == used));
        store.load().unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_loaded_store_equals_the_fold_whatever_the_batches(
            kinds in proptest::collection::vec(any_kind(), 0..24),
            batch in 1usize..7,
            hole in 0usize..10_000,
        ) {
            let (store, db) = empty_store();
            let entries = log(&kinds);
            let mut projected = Projected::default();
            for chunk in entries.chunks(batch) {
                let mut writes = Vec::new();
                for entry in chunk {
                    let reading = migrations::read(&entry.subject, &entry.bytes);
                    writes.extend(project(&mut projected, entry, &reading).writes);
                }
                store.apply(writes).unwrap();
                same(&store.load().unwrap(), &projected);
            }
            for entry in &entries {
                let stored = store.record(entry.position).unwrap().unwrap();
                prop_assert_eq!(&stored.bytes, &entry.bytes.to_vec());
            }
            // A pair that is lost or another one is found, whichever it is.
            let keys: Vec<sled::IVec> = db.iter().keys().map(Result::unwrap).collect();
            if !keys.is_empty() {
                let key = &keys[hole % keys.len()];
                let value = db.remove(key).unwrap().unwrap();
                prop_assert!(store.load().is_err(), "without {:?}", key);
                db.insert(key, b"another").unwrap();
                prop_assert!(store.load().is_err(), "another {:?}", key);
                db.insert(key, value).unwrap();
                same(&store.load().unwrap(), &projected);
            }
        }
    }
}
