//! Properties of the pure core over random histories: races, sets, void and unreadable records.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should panic where it stands"
)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use schemas::decide::{Change, Command, Decision, Order, PolicyOrder, decide};
use schemas::event::record_hash;
use schemas::event::{Actor, Event, Record};
use schemas::state::{Check, Reading, State, Tail, Verdict, bootstrap};
use schemas::{
    CommandId, Hash, Name, ParameterName, ParameterValue, Patch, PolicyKey, PolicyKind, Position,
    Rejection, Revision, Scope, Subject, Timestamp,
};
use uuid::Uuid;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn key(number: u8) -> PolicyKey {
    let scope = Scope {
        model: Some(name(&format!("model {number}"))),
        ..Scope::default()
    };
    PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope,
    }
}

fn command(number: u64, orders: Vec<PolicyOrder>) -> Command {
    Command {
        command_id: CommandId(Uuid::from_u128(u128::from(number))),
        actor: Actor {
            name: name("ada"),
            via: name("loopback"),
        },
        at: Timestamp::from_unix_ms(number),
        reason: None,
        force: false,
        fingerprint: Hash::ZERO,
        order: Order::ChangePolicies(orders),
    }
}

fn patch_order(policy: PolicyKey, temperature: Option<f64>) -> PolicyOrder {
    let name = ParameterName::new("router_temperature").unwrap();
    let patch = Patch::from([(name, temperature.map(ParameterValue::number))]);
    PolicyOrder {
        policy,
        expected: None,
        change: Change::Patch(patch),
    }
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    /// Somebody decides on today's state and appends.
    Change(Vec<u8>),
    /// Somebody decided on a state that many records ago was today's, and a broker lets it in.
    Stale(Vec<u8>, usize),
    /// The last record again.
    Again,
    /// Something that this version cannot read, on one policy's subject.
    Garbage(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || {
        proptest::collection::btree_set(0u8..4, 1..3)
            .prop_map(|keys| keys.into_iter().collect::<Vec<_>>())
    };
    prop_oneof![
        12 => keys().prop_map(Step::Change),
        4 => (keys(), 1usize..5).prop_map(|(keys, back)| Step::Stale(keys, back)),
        1 => Just(Step::Again),
    ]
}

fn step_with_garbage() -> impl Strategy<Value = Step> {
    prop_oneof![12 => step(), 1 => (0u8..4).prop_map(Step::Garbage)]
}

struct Entry {
    position: Position,
    subject: Subject,
    bytes: Vec<u8>,
    reading: Reading,
}

/// A log and the states after each record, as a single honest reader sees them.
fn run(steps: &[Step]) -> (Vec<Entry>, Vec<State>, Vec<Verdict>) {
    let (mut log, mut states, mut verdicts) =
        (Vec::<Entry>::new(), vec![State::default()], Vec::new());
    for (number, step) in steps.iter().enumerate() {
        let today = states.last().unwrap().clone();
        let make = |keys: &[u8], state: &State| -> Option<Decision> {
            let orders = keys
                .iter()
                .map(|k| patch_order(key(*k), Some(1.0 + number as f64)))
                .collect();
            decide(state, &command(number as u64, orders)).ok()
        };
        let (subject, bytes, reading) = match step {
            Step::Change(keys) => match make(keys, &today) {
                Some(decision) => entry_of(decision.record),
                None => continue,
            },
            Step::Stale(keys, back) => {
                match make(keys, &states[states.len().saturating_sub(1 + back)]) {
                    Some(decision) => entry_of(decision.record),
                    None => continue,
                }
            }
            Step::Again => match log.last() {
                Some(last) => (
                    last.subject.clone(),
                    last.bytes.clone(),
                    last.reading.clone(),
                ),
                None => continue,
            },
            Step::Garbage(k) => {
                let reading = Reading::Unknown {
                    command_id: None,
                    why: "garbage".to_owned(),
                    policies: None,
                };
                (key(*k).subject(), b"garbage".to_vec(), reading)
            }
        };
        // Positions have gaps.
        let position = Position(today.position.0 + 1 + number as u64 % 3);
        let mut next = today;
        verdicts.push(next.evolve(position, &subject, &bytes, &reading));
        log.push(Entry {
            position,
            subject,
            bytes,
            reading,
        });
        states.push(next);
    }
    (log, states, verdicts)
}

fn entry_of(record: Record) -> (Subject, Vec<u8>, Reading) {
    (record.subject(), record.to_bytes(), Reading::Known(record))
}

fn holds(log: &[Entry], check: &Check) -> bool {
    let found = match check {
        Check::Next { subject, after, .. } => log
            .iter()
            .find(|entry| entry.subject == *subject && entry.position > *after),
        Check::At { position, .. } => log.iter().find(|entry| entry.position == *position),
    };
    check.holds(found.map(|entry| (entry.position, record_hash(&entry.subject, &entry.bytes))))
}

#[test]
fn regression_a_tail_that_was_decided_on_what_the_log_lost_is_not_taken() {
    let steps = [
        Step::Change(vec![0]),
        Step::Change(vec![0]),
        Step::Change(vec![0, 1]),
    ];
    let (mut log, states, _) = run(&steps);
    // The log was put back to its first record; then the set, decided on the second, was appended.
    log.remove(1);
    let mut folded = State::default();
    for entry in &log {
        folded.evolve(entry.position, &entry.subject, &entry.bytes, &entry.reading);
    }
    assert_ne!(folded.policies, states[3].policies, "the set is void");
    let tails: Vec<Tail> = log
        .iter()
        .map(|entry| Tail {
            position: entry.position,
            subject: entry.subject.clone(),
            bytes: entry.bytes.clone(),
            reading: entry.reading.clone(),
        })
        .collect();
    let (_, checks) = bootstrap(&tails, folded.position).unwrap();
    assert!(!checks.iter().all(|check| holds(&log, check)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A state made from tails equals the fold of everything, or says that it cannot tell.
    #[test]
    fn bootstrap_from_tails_is_the_fold_of_everything(steps in proptest::collection::vec(step_with_garbage(), 0..40)) {
        let (log, states, _) = run(&steps);
        let folded = states.last().unwrap();
        let mut last = BTreeMap::new();
        for entry in &log {
            last.insert(&entry.subject, entry);
        }
        let tails: Vec<Tail> = last
            .values()
            .map(|entry| Tail {
                position: entry.position,
                subject: entry.subject.clone(),
                bytes: entry.bytes.clone(),
                reading: entry.reading.clone(),
            })
            .collect();
        let Some((state, checks)) = bootstrap(&tails, folded.position) else { return Ok(()) };
        let right = checks.iter().all(|check| holds(&log, check));
        if right {
            prop_assert_eq!(&state, folded);
        }
    }

    /// Without lost races the shortcut is always taken.
    #[test]
    fn bootstrap_always_works_on_an_honest_log(keys in proptest::collection::vec(
        proptest::collection::btree_set(0u8..4, 1..4), 1..30)) {
        let steps: Vec<Step> = keys.into_iter().map(|keys| Step::Change(keys.into_iter().collect())).collect();
        let (log, states, _) = run(&steps);
        let mut last = BTreeMap::new();
        for entry in &log {
            last.insert(&entry.subject, entry);
        }
        let tails: Vec<Tail> = last.values().map(|entry| Tail {
            position: entry.position, subject: entry.subject.clone(), bytes: entry.bytes.clone(), reading: entry.reading.clone(),
        }).collect();
        let (state, checks) = bootstrap(&tails, states.last().unwrap().position).unwrap();
        for check in checks {
            prop_assert!(holds(&log, &check));
        }
        prop_assert_eq!(&state, states.last().unwrap());
    }

    /// Revisions are dense, nothing void counts, and what was decided on today's state is accepted.
    #[test]
    fn accepted_records_make_dense_revisions(steps in proptest::collection::vec(step(), 0..60)) {
        let (log, states, verdicts) = run(&steps);
        let mut revisions: BTreeMap<PolicyKey, Revision> = BTreeMap::new();
        for ((entry, verdict), before) in log.iter().zip(&verdicts).zip(&states) {
            let Reading::Known(Record { event: Event::PoliciesChanged { changes }, .. }) = &entry.reading else { continue };
            let follows = changes.iter().all(|change| {
                change.decided_on == before.policies.get(&change.key()).map_or(Position::START, |d| d.position)
            });
            prop_assert_eq!(matches!(verdict, Verdict::Accepted { .. }), follows);
            if follows {
                prop_assert_eq!(verdict, &Verdict::Accepted { chained: true });
                for change in changes {
                    let last = revisions.entry(change.key()).or_default();
                    prop_assert_eq!(change.revision, last.next());
                    *last = change.revision;
                }
            }
        }
        let state = states.last().unwrap();
        for (key, revision) in revisions {
            prop_assert_eq!(state.policies[&key].revision, revision);
        }
    }

    /// A stopped policy keeps what it had; policies that share no record with it go on.
    #[test]
    fn garbage_stops_what_it_concerns(steps in proptest::collection::vec(step_with_garbage(), 0..40)) {
        let (_, states, _) = run(&steps);
        for (before, after) in states.iter().zip(states.iter().skip(1)) {
            for (key, document) in &after.policies {
                if before.stop_of(key).is_some() {
                    prop_assert_eq!(Some(document), before.policies.get(key));
                }
            }
            prop_assert!(after.stopped.is_none(), "a policy's own subject says what it concerns");
        }
    }
}

#[test]
fn two_winners_let_in_by_a_broker_are_one_winner_for_every_reader() {
    let start = State::default();
    let first = decide(&start, &command(1, vec![patch_order(key(0), Some(1.0))])).unwrap();
    let second = decide(&start, &command(2, vec![patch_order(key(0), Some(2.0))])).unwrap();
    let mut state = start;
    let fold = |state: &mut State, at, decision: Decision| {
        let (subject, bytes, reading) = entry_of(decision.record);
        state.evolve(Position(at), &subject, &bytes, &reading)
    };
    assert_eq!(
        fold(&mut state, 1, first),
        Verdict::Accepted { chained: true }
    );
    assert!(matches!(fold(&mut state, 2, second), Verdict::Void { .. }));
    assert_eq!(state.policies[&key(0)].revision, Revision(1));
    assert_eq!(
        state.tail(&key(0).subject()),
        Position(2),
        "the next append must expect the void record"
    );
}

#[test]
fn a_set_and_a_single_change_that_race_cannot_both_win() {
    let start = State::default();
    let set = decide(
        &start,
        &command(
            1,
            vec![
                patch_order(key(0), Some(1.0)),
                patch_order(key(1), Some(1.0)),
            ],
        ),
    )
    .unwrap();
    let single = decide(&start, &command(2, vec![patch_order(key(1), Some(2.0))])).unwrap();
    assert_ne!(
        set.subject, single.subject,
        "compare-and-swap alone would let both in"
    );
    let mut state = start;
    for (at, decision, wins) in [(5, single, true), (9, set, false)] {
        let (subject, bytes, reading) = entry_of(decision.record);
        let verdict = state.evolve(Position(at), &subject, &bytes, &reading);
        assert_eq!(
            matches!(verdict, Verdict::Accepted { .. }),
            wins,
            "{verdict:?}"
        );
    }
    assert!(!state.policies.contains_key(&key(0)), "all or none");
}

#[test]
fn a_record_changed_after_the_fact_breaks_the_chain_of_its_follower() {
    let start = State::default();
    let first = decide(&start, &command(1, vec![patch_order(key(0), Some(1.0))])).unwrap();
    let mut honest = start.clone();
    let (subject, bytes, reading) = entry_of(first.record.clone());
    honest.evolve(Position(1), &subject, &bytes, &reading);
    let second = decide(&honest, &command(2, vec![patch_order(key(0), None)])).unwrap();

    let mut edited = first.record;
    edited.actor.name = name("mallory");
    let mut state = start;
    let (subject, bytes, reading) = entry_of(edited);
    state.evolve(Position(1), &subject, &bytes, &reading);
    let (subject, bytes, reading) = entry_of(second.record);
    assert_eq!(
        state.evolve(Position(2), &subject, &bytes, &reading),
        Verdict::Accepted { chained: false }
    );
}

#[test]
fn refusals_name_the_field_and_change_nothing() {
    let state = State::default();
    let order = |change, expected| {
        vec![PolicyOrder {
            policy: key(0),
            expected,
            change,
        }]
    };
    let patch = |json: serde_json::Value| Change::Patch(serde_json::from_value(json).unwrap());
    let threshold_on_endpoint = PolicyKey {
        kind: PolicyKind::BusyThreshold,
        scope: Scope {
            endpoint: Some("n/c/e".parse().unwrap()),
            ..Scope::default()
        },
    };
    let cases: Vec<(Vec<PolicyOrder>, &str)> = vec![
        (vec![], "changes"),
        (order(patch(serde_json::json!({})), None), "parameters"),
        (
            order(patch(serde_json::json!({"router_temperature": -1})), None),
            "parameters.router_temperature",
        ),
        (
            order(patch(serde_json::json!({"nope": 1})), None),
            "parameters.nope",
        ),
        (order(Change::Reset, Some(Revision(3))), "expected_revision"),
        (
            [order(Change::Reset, None), order(Change::Reset, None)].concat(),
            "changes",
        ),
        (
            vec![PolicyOrder {
                policy: threshold_on_endpoint,
                expected: None,
                change: Change::Reset,
            }],
            "scope.endpoint",
        ),
    ];
    for (orders, field) in cases {
        let refused = decide(&state, &command(1, orders.clone())).unwrap_err();
        assert_eq!(
            refused.field().as_deref(),
            Some(field),
            "{orders:?}: {refused}"
        );
    }
}

#[test]
fn a_change_that_alters_nothing_is_still_a_revision() {
    let mut state = State::default();
    for revision in 1..=3 {
        let decision = decide(&state, &command(revision, vec![patch_order(key(0), None)])).unwrap();
        let (subject, bytes, reading) = entry_of(decision.record);
        state.evolve(Position(revision), &subject, &bytes, &reading);
        assert_eq!(state.policies[&key(0)].revision, Revision(revision));
    }
}

#[test]
fn a_revert_is_judged_by_todays_rules() {
    let state = State::default();
    let overlay = serde_json::from_value(serde_json::json!({"host_cache_hit_weight": 50})).unwrap();
    let revert = PolicyOrder {
        policy: key(0),
        expected: None,
        change: Change::Revert {
            to: Revision(1),
            overlay,
        },
    };
    let mut revert = command(1, vec![revert]);
    assert!(matches!(
        decide(&state, &revert),
        Err(Rejection::InvalidValue { .. })
    ));
    revert.force = true;
    assert!(decide(&state, &revert).unwrap().record.forced);
}

#[test]
fn regression_a_policy_that_no_frontend_and_a_record_that_no_broker_takes_is_refused() {
    let blob = ParameterName::new("blob").unwrap();
    let mut state = State::default();
    let schema = serde_json::json!({"type": "string"});
    state.registry.parameters.insert(blob.clone(), schema);
    let order = |number: u8, length: usize| {
        let value = serde_json::json!({"blob": "x".repeat(length)});
        PolicyOrder {
            policy: key(number),
            expected: None,
            change: Change::Patch(serde_json::from_value(value).unwrap()),
        }
    };
    let decided = |orders| decide(&state, &command(1, orders)).map(|_| ());
    let few = (0..16).map(|number| order(number, 14_000)).collect();
    assert_eq!(decided(few), Ok(()));
    let many = (0..32).map(|number| order(number, 14_000)).collect();
    for too_large in [vec![order(0, 16_400)], many] {
        let rejection = decided(too_large).unwrap_err();
        assert!(
            matches!(rejection, Rejection::TooLarge { .. }),
            "{rejection}"
        );
        assert_eq!(rejection.code(), schemas::RejectionCode::InvalidValue);
        assert_eq!(rejection.field().as_deref(), Some("parameters"));
    }
}
