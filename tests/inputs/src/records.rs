//! Records of a log: reading and folding never fail, whatever is in them; what is understood encodes to what reads the same;
//! what is not costs no more memory than the record itself.

use schemas::event::record_hash;
use schemas::state::{Reading, State, Tail, Verdict, bootstrap};
use schemas::{Position, Subject};

/// Bound: what a stopped policy may keep of a record in words.
const WORDS_MAX: usize = 8_192;

const FIRST: &[u8] = include_bytes!("../../../migrations/golden/v1/policies.changed.json");

/// Parts: a subject and a record, again and again. A policy is there already.
pub(crate) fn check(input: &[u8]) {
    let mut state = State::default();
    let mut position = Position::START;
    let mut tails = Vec::new();
    let mut fold = |state: &mut State, subject: &Subject, bytes: &[u8]| {
        position = Position(position.0 + 1);
        let reading = read(subject, bytes);
        let verdict = state.evolve(position, subject, bytes, &reading);
        tails.push(Tail {
            position,
            subject: subject.clone(),
            bytes: bytes.to_vec(),
            reading,
        });
        verdict
    };
    let value: serde_json::Value = serde_json::from_slice(FIRST).expect("golden");
    let subject = Subject::from_log(value["subject"].as_str().expect("golden"));
    let verdict = fold(&mut state, &subject, FIRST);
    assert!(matches!(verdict, Verdict::Accepted { .. }), "{verdict:?}");

    let parts = crate::parts(input);
    for pair in parts.chunks(2) {
        let [subject, bytes] = pair else { break };
        let subject = Subject::from_log(&String::from_utf8_lossy(subject));
        let before = state.policies.clone();
        let verdict = fold(&mut state, &subject, bytes);
        match verdict {
            Verdict::Accepted { .. } => {}
            Verdict::Void { .. } | Verdict::Unreadable { .. } => {
                assert_eq!(state.policies, before, "changed although not accepted");
            }
        }
    }
    let stops = state.stops.values().chain(&state.stopped);
    for stop in stops.chain(&state.registry.stop) {
        assert!(stop.why.len() <= WORDS_MAX, "{} bytes", stop.why.len());
    }
    newest_of_each(&mut tails);
    let _ = bootstrap(&tails, state.position);
    // The state as a service keeps it.
    for document in state.policies.values() {
        let json = serde_json::to_vec(document).expect("a document encodes");
        let read: schemas::state::PolicyDocument =
            serde_json::from_slice(&json).expect("and decodes");
        assert_eq!(read, *document);
    }
}

fn read(subject: &Subject, bytes: &[u8]) -> Reading {
    let reading = migrations::read(subject, bytes);
    assert_eq!(migrations::read(subject, bytes), reading);
    let _ = record_hash(subject, bytes);
    match &reading {
        Reading::Known(record) => {
            assert_eq!(
                migrations::record::command_id(bytes),
                Some(record.command_id)
            );
            let again = record.to_bytes();
            let read = migrations::read(&record.subject(), &again);
            assert_eq!(read, reading, "decode after encode");
            let Reading::Known(read) = read else {
                unreachable!("equal to what is known")
            };
            assert_eq!(read.to_bytes(), again, "encode after decode");
        }
        Reading::Unknown { why, .. } => assert!(why.chars().count() <= 301, "{} bytes", why.len()),
    }
    reading
}

fn newest_of_each(tails: &mut Vec<Tail>) {
    tails.reverse();
    let mut seen = std::collections::BTreeSet::new();
    tails.retain(|tail| seen.insert(tail.subject.clone()));
}
