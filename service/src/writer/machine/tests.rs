use super::*;
use bytes::Bytes;
use event_log::Entry;
use schemas::decide::{Change, Order, PolicyOrder};
use schemas::event::Actor;
use schemas::{CommandId, Hash, LogId, PolicyKind, Scope, Timestamp};
use uuid::Uuid;

use crate::projection::fold::{Projected, project};

fn command(id: u128) -> Command {
    let policy = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    };
    Command {
        command_id: CommandId(Uuid::from_u128(id)),
        actor: Actor {
            name: "a".parse().unwrap(),
            via: "b".parse().unwrap(),
        },
        at: Timestamp::from_unix_ms(1),
        reason: None,
        force: false,
        fingerprint: Hash::of(&[&id.to_be_bytes()]),
        order: Order::ChangePolicies(vec![PolicyOrder {
            policy,
            expected: None,
            change: Change::Reset,
        }]),
    }
}

fn looked(projected: &Projected) -> Input {
    Input::Looked(Box::new(Looked {
        snapshot: Arc::new(projected.snapshot()),
        first: Ok(None),
        foreign: None,
    }))
}

/// A write whose decision is committed.
fn committed(id: u128, position: u64) -> (WriteMachine, Decision) {
    let mut machine = WriteMachine::new(command(id));
    let Output::Commit(decision) = machine.step(looked(&Projected::default())) else {
        panic!("it is decided");
    };
    let committed = Committed {
        position: Position(position),
        attempts: 1,
    };
    let next = machine.step(Input::Committed(Ok(committed)));
    assert!(matches!(next, Output::WaitFor(at) if at == Position(position)));
    let next = machine.step(Input::Waited(Waited::Reached));
    assert!(matches!(next, Output::Read(at) if at == Position(position)));
    (machine, *decision)
}

/// The decision's record, folded at a position.
fn fold(projected: &mut Projected, decision: &Decision, position: u64) -> StoredRecord {
    projected.log_id = Some(LogId(Uuid::from_u128(9)));
    let entry = Entry {
        position: Position(position),
        subject: decision.subject.clone(),
        bytes: Bytes::from(decision.record.to_bytes()),
    };
    let reading = migrations::read(&entry.subject, &entry.bytes);
    let folded = project(projected, &entry, &reading);
    StoredRecord {
        position: entry.position,
        subject: entry.subject,
        verdict: folded.verdict,
        hash: projected.hash,
        chain: projected.chain,
        bytes: entry.bytes.to_vec(),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a test of one outcome")]
fn outcome(output: Output) -> Outcome {
    match output {
        Output::Done(outcome) => *outcome,
        other => panic!("{other:?}"),
    }
}

#[test]
fn regression_a_command_that_two_services_got_in_is_not_lost_because_one_record_is_void() {
    // One service's record of the command at 1, this one's at 2: a broker let both in.
    let (mut machine, decision) = committed(7, 2);
    let mut projected = Projected::default();
    let theirs = fold(&mut projected, &decision, 1);
    let ours = fold(&mut projected, &decision, 2);
    assert!(matches!(ours.verdict, Verdict::Void { .. }));
    let first = StoredCommand {
        position: theirs.position,
        fingerprint: Some(decision.record.fingerprint),
        verdict: theirs.verdict,
    };
    let own = Own {
        record: Ok(Some(ours)),
        first: Ok(Some(first)),
        snapshot: Arc::new(projected.snapshot()),
    };
    let written = outcome(machine.step(Input::Read(Box::new(own)))).unwrap();
    assert_eq!((written.position, written.repeated), (Position(1), true));
}

#[test]
fn regression_another_record_at_the_committed_position_is_no_verdict() {
    // The log was put back and grew to 2 again; this service has read another record there.
    let (mut machine, _) = committed(7, 2);
    let (_, other) = committed(8, 2);
    let mut projected = Projected::default();
    let theirs = fold(&mut projected, &other, 2);
    let own = Own {
        record: Ok(Some(theirs)),
        first: Ok(None),
        snapshot: Arc::new(projected.snapshot()),
    };
    let outcome = outcome(machine.step(Input::Read(Box::new(own))));
    assert!(
        matches!(outcome, Err(WriteError::Unknown(_))),
        "{outcome:?}"
    );
}

#[test]
fn regression_a_value_refused_by_a_schema_is_refused_by_the_newest_state_only() {
    let refused = |name: &str| Rejection::InvalidValue {
        name: name.to_owned(),
        value: "5".to_owned(),
        allowed: "less".to_owned(),
    };
    assert!(may_be_behind(&refused("custom_a")));
    // What is built in is the same everywhere, and is refused also while the log is away.
    assert!(!may_be_behind(&refused("router_temperature")));
    assert!(!may_be_behind(&refused("active_decode_blocks_threshold")));
}
