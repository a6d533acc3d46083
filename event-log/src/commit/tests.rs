use super::*;
use schemas::LogId;
use uuid::Uuid;

const OURS: CommandId = CommandId(Uuid::from_u128(1));
const THEIRS: CommandId = CommandId(Uuid::from_u128(2));
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_secs(11);
const GONE: Foreign = Foreign::Gone {
    known: LogId(Uuid::from_u128(3)),
};

fn lost() -> Input {
    Input::Attempted(Err(Failure::Indeterminate("no answer".to_owned())))
}
fn refused() -> Input {
    Input::Attempted(Err(Failure::Determinate("disk full".to_owned())))
}
fn conflict() -> Input {
    Input::Attempted(Ok(Appended::Conflict))
}
fn foreign() -> Input {
    Input::Attempted(Err(Failure::Foreign(GONE)))
}
fn stored(position: u64) -> Input {
    Input::Attempted(Ok(Appended::Committed(Position(position))))
}
fn read(position: u64, command_id: CommandId) -> Input {
    Input::Read(Ok(Some(Found {
        position: Position(position),
        command_id: Some(command_id),
    })))
}
fn nothing() -> Input {
    Input::Read(Ok(None))
}
fn unreadable() -> Input {
    Input::Read(Err(Failure::Determinate("away".to_owned())))
}
fn done(position: u64, attempts: u32) -> Output {
    Output::Done(Ok(Committed {
        position: Position(position),
        attempts,
    }))
}
fn conflict_with(actual: Option<u64>) -> Output {
    Output::Done(Err(CommitError::Conflict {
        actual: actual.map(Position),
    }))
}
fn unknown(why: &str) -> Output {
    Output::Done(Err(CommitError::Indeterminate(why.to_owned())))
}
fn wait(ms: u64) -> Output {
    Output::Wait(Duration::from_millis(ms))
}

#[track_caller]
fn check(script: Vec<(Input, Duration, Output)>) {
    let mut machine = CommitMachine::new(OURS, Duration::from_secs(10));
    assert_eq!(machine.step(Input::Start, Duration::ZERO), Output::Append);
    for (at, (input, elapsed, expected)) in script.into_iter().enumerate() {
        assert_eq!(machine.step(input, elapsed), expected, "step {at}");
    }
}

#[test]
fn an_acknowledged_attempt_is_committed() {
    check(vec![(stored(4), SOON, done(4, 1))]);
}

#[test]
fn a_lost_acknowledgement_is_found_in_the_log() {
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (read(4, OURS), SOON, done(4, 1)),
    ]);
}

#[test]
fn a_lost_request_is_sent_again() {
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(20)),
        (Input::Waited, SOON, Output::Append),
        (stored(4), SOON, done(4, 2)),
    ]);
}

#[test]
fn a_late_write_shows_as_a_conflict_with_ourselves() {
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(20)),
        (Input::Waited, SOON, Output::Append),
        (conflict(), SOON, Output::ReadNext),
        (read(5, OURS), SOON, done(5, 2)),
    ]);
}

#[test]
fn a_conflict_on_the_first_attempt_may_be_ourselves_from_before_a_crash() {
    check(vec![
        (conflict(), SOON, Output::ReadNext),
        (read(5, OURS), SOON, done(5, 1)),
    ]);
}

#[test]
fn a_place_taken_by_another_is_a_conflict_whatever_was_lost_before() {
    check(vec![
        (conflict(), SOON, Output::ReadNext),
        (read(5, THEIRS), SOON, conflict_with(Some(5))),
    ]);
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (read(5, THEIRS), SOON, conflict_with(Some(5))),
    ]);
}

#[test]
fn an_unreadable_record_in_our_place_is_not_ours() {
    let stranger = Input::Read(Ok(Some(Found {
        position: Position(5),
        command_id: None,
    })));
    check(vec![
        (conflict(), SOON, Output::ReadNext),
        (stranger, SOON, conflict_with(Some(5))),
    ]);
}

#[test]
fn an_expectation_that_is_on_no_record_is_a_conflict_with_nobody() {
    check(vec![
        (conflict(), SOON, Output::ReadNext),
        (nothing(), SOON, conflict_with(None)),
    ]);
}

#[test]
fn a_conflict_with_nobody_after_a_doubt_is_no_verdict() {
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(20)),
        (Input::Waited, SOON, Output::Append),
        (conflict(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(40)),
        (Input::Waited, SOON, Output::Append),
        (stored(9), SOON, done(9, 3)),
    ]);
}

#[test]
fn a_definite_refusal_is_one_only_without_an_earlier_doubt() {
    check(vec![(
        refused(),
        SOON,
        Output::Done(Err(CommitError::Determinate("disk full".to_owned()))),
    )]);
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(20)),
        (Input::Waited, SOON, Output::Append),
        (refused(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(40)),
        (Input::Waited, LATE, Output::ReadNext),
        (nothing(), LATE, unknown("disk full")),
    ]);
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (nothing(), SOON, wait(20)),
        (Input::Waited, SOON, Output::Append),
        (refused(), SOON, Output::ReadNext),
        (read(6, OURS), SOON, done(6, 2)),
    ]);
}

#[test]
fn a_conflict_that_cannot_be_attributed_stays_unknown() {
    check(vec![
        (conflict(), SOON, Output::ReadNext),
        (unreadable(), SOON, wait(20)),
        (Input::Waited, SOON, Output::ReadNext),
        (unreadable(), LATE, unknown("away")),
    ]);
}

#[test]
fn nothing_is_sent_after_the_deadline_and_one_last_look_decides() {
    check(vec![
        (lost(), SOON, Output::ReadNext),
        (unreadable(), Duration::from_millis(9_995), wait(5)),
        (Input::Waited, LATE, Output::ReadNext),
        (read(7, OURS), LATE, done(7, 1)),
    ]);
    check(vec![
        (lost(), LATE, Output::ReadNext),
        (nothing(), LATE, unknown("no answer")),
    ]);
}

#[test]
fn waits_double_up_to_a_second() {
    let mut machine = CommitMachine::new(OURS, Duration::from_secs(60));
    let mut waits = Vec::new();
    for _ in 0..8 {
        machine.step(lost(), SOON);
        if let Output::Wait(full) = machine.step(nothing(), SOON) {
            waits.push(full.as_millis());
        }
        machine.step(Input::Waited, SOON);
    }
    assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
}

#[test]
fn another_log_is_a_verdict_only_without_a_doubt() {
    check(vec![(
        foreign(),
        SOON,
        Output::Done(Err(CommitError::Foreign(GONE))),
    )]);
    let mut machine = CommitMachine::new(OURS, Duration::from_secs(10));
    machine.step(Input::Start, SOON);
    machine.step(lost(), SOON);
    let end = machine.step(Input::Read(Err(Failure::Foreign(GONE))), SOON);
    assert!(
        matches!(end, Output::Done(Err(CommitError::Indeterminate(_)))),
        "{end:?}"
    );
}
