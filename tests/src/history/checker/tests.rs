//! Histories that can be, and histories that cannot.

use schemas::CommandId;
use uuid::Uuid;

use super::*;

fn id(number: u64) -> CommandId {
    CommandId(Uuid::from_u128(u128::from(number)))
}

fn at(began_us: u64, ended_us: u64, what: What) -> Operation {
    Operation {
        client: 0,
        policy: 0,
        replica: 0,
        began_us,
        ended_us,
        what,
    }
}

/// Command `n` made revision `revision` when `expected` held; its position is ten times its revision.
fn written(n: u64, expected: u64, revision: u64) -> What {
    What::Written {
        command: id(n),
        expected: Some(expected),
        revision,
        position: revision * 10,
    }
}

fn unconditional(n: u64, revision: u64) -> What {
    What::Written {
        command: id(n),
        expected: None,
        revision,
        position: revision * 10,
    }
}

fn refused(n: u64, expected: u64) -> What {
    What::Refused {
        command: id(n),
        expected,
    }
}

fn unknown(n: u64, expected: Option<u64>) -> What {
    What::Unknown {
        command: id(n),
        expected,
    }
}

fn register(n: u64, revision: u64) -> Register {
    Register {
        revision,
        command: (n > 0).then(|| id(n)),
    }
}

fn read(n: u64, revision: u64) -> What {
    What::Read {
        seen: register(n, revision),
    }
}

fn read_after(n: u64, revision: u64, at_least: u64, position: u64) -> What {
    What::ReadAfter {
        at_least,
        seen: register(n, revision),
        position,
    }
}

/// `(name, history, possible)`.
fn cases() -> Vec<(&'static str, Vec<Operation>, bool)> {
    vec![
        ("nothing", vec![], true),
        (
            "one after the other",
            vec![
                at(0, 1, read(0, 0)),
                at(2, 3, written(1, 0, 1)),
                at(4, 5, read(1, 1)),
                at(6, 7, refused(2, 0)),
                at(8, 9, written(3, 1, 2)),
            ],
            true,
        ),
        (
            "overlapping changes order themselves",
            vec![
                at(0, 9, unconditional(1, 2)),
                at(1, 8, unconditional(2, 1)),
                at(2, 7, read(2, 1)),
            ],
            true,
        ),
        (
            "lost update: two changes made one revision",
            vec![at(0, 5, written(1, 0, 1)), at(1, 6, written(2, 0, 1))],
            false,
        ),
        (
            "lost update: an acknowledged change is not in a later read",
            vec![at(0, 1, written(1, 0, 1)), at(2, 3, read(0, 0))],
            false,
        ),
        (
            "stale read",
            vec![
                at(0, 1, written(1, 0, 1)),
                at(2, 3, written(2, 1, 2)),
                at(4, 5, read(1, 1)),
            ],
            false,
        ),
        (
            "a read that overlaps a change may see either",
            vec![
                at(0, 9, written(1, 0, 1)),
                at(1, 2, read(0, 0)),
                at(3, 4, read(1, 1)),
            ],
            true,
        ),
        (
            "reads go back",
            vec![
                at(0, 9, written(1, 0, 1)),
                at(1, 2, read(1, 1)),
                at(3, 4, read(0, 0)),
            ],
            false,
        ),
        (
            "reordered: the later change has the lower revision",
            vec![at(0, 1, unconditional(1, 2)), at(2, 3, unconditional(2, 1))],
            false,
        ),
        (
            "a revision is skipped",
            vec![at(0, 1, written(1, 0, 1)), at(2, 3, unconditional(2, 3))],
            false,
        ),
        (
            "refused although the expected revision held all the time",
            vec![at(0, 1, written(1, 0, 1)), at(2, 3, refused(2, 1))],
            false,
        ),
        (
            "refused and there",
            vec![at(0, 1, refused(1, 5)), at(2, 3, read(1, 1))],
            false,
        ),
        (
            "an unknown change took effect much later",
            vec![
                at(0, 1, unknown(1, Some(1))),
                at(2, 3, written(2, 0, 1)),
                at(4, 5, read(2, 1)),
                at(6, 7, read(1, 2)),
            ],
            true,
        ),
        (
            "an unknown change never took effect",
            vec![at(0, 1, unknown(1, Some(0))), at(2, 3, written(2, 0, 1))],
            true,
        ),
        (
            "an unknown change took effect twice",
            vec![
                at(0, 1, unknown(1, None)),
                at(2, 3, read(1, 1)),
                at(4, 5, written(2, 1, 2)),
                at(6, 7, read(1, 3)),
            ],
            false,
        ),
        (
            "an unknown change took effect before it was sent",
            vec![at(0, 1, read(1, 1)), at(2, 3, unknown(1, Some(0)))],
            false,
        ),
        (
            "of several unknown changes some fill the gaps",
            vec![
                at(0, 1, unknown(1, None)),
                at(0, 1, unknown(2, None)),
                at(0, 1, unknown(3, None)),
                at(2, 3, unconditional(4, 2)),
                at(4, 5, unconditional(5, 4)),
                at(6, 7, read(5, 4)),
            ],
            true,
        ),
        (
            "too few unknown changes for the gaps",
            vec![
                at(0, 1, unknown(1, None)),
                at(2, 3, unconditional(4, 2)),
                at(4, 5, unconditional(5, 4)),
            ],
            false,
        ),
        (
            "an unknown change that fits in one place only is kept for nothing else",
            vec![
                at(0, 1, unknown(1, None)),
                at(0, 1, unknown(2, Some(0))),
                at(2, 3, unconditional(4, 2)),
                at(4, 5, unconditional(5, 4)),
            ],
            true,
        ),
        (
            "an unknown change that a read saw cannot fill another gap",
            vec![
                at(0, 1, unknown(1, None)),
                at(2, 3, unconditional(4, 2)),
                at(4, 5, read(1, 3)),
            ],
            false,
        ),
        (
            "two reads saw two makers of one revision",
            vec![
                at(0, 1, unknown(1, None)),
                at(0, 1, unknown(2, None)),
                at(2, 9, read(1, 1)),
                at(2, 9, read(2, 1)),
            ],
            false,
        ),
        (
            "a read with a position sees what is there, also through a replica that is behind others",
            vec![
                at(0, 1, written(1, 0, 1)),
                at(2, 3, written(2, 1, 2)),
                at(4, 5, read_after(1, 1, 10, 15)),
                at(6, 7, read_after(2, 2, 20, 20)),
            ],
            true,
        ),
        (
            "a read with a position misses an acknowledged change",
            vec![
                at(0, 1, written(1, 0, 1)),
                at(2, 3, written(2, 1, 2)),
                at(4, 5, read_after(1, 1, 20, 20)),
            ],
            false,
        ),
        (
            "a read with a position shows another command",
            vec![
                at(0, 1, written(1, 0, 1)),
                at(4, 5, read_after(7, 1, 10, 10)),
            ],
            false,
        ),
        (
            "a read with a position was answered before it was reached",
            vec![
                at(0, 1, written(1, 0, 1)),
                at(4, 5, read_after(0, 0, 10, 9)),
            ],
            false,
        ),
    ]
}

#[test]
fn possible_histories_pass_and_impossible_ones_fail() {
    for (name, history, possible) in cases() {
        let judged = check(&history);
        assert_eq!(judged.is_ok(), possible, "{name}: {judged:?}");
    }
}

#[test]
fn policies_are_judged_apart() {
    let other = |mut operation: Operation| {
        operation.policy = 1;
        operation
    };
    let history = [
        at(0, 1, written(1, 0, 1)),
        other(at(2, 3, read(0, 0))),
        other(at(4, 5, written(2, 0, 1))),
    ];
    let judged = check(&history).expect("possible");
    assert_eq!((judged.policies, judged.written, judged.reads), (2, 2, 1));
}

/// A long history of 32 overlapping clients with everything in it, made from an order that is known to be possible.
fn long(operations: u64) -> Vec<Operation> {
    let mut history = Vec::new();
    let mut revision = 0;
    let mut last = 0;
    for n in 1..=operations {
        // Each takes effect at 100 n and overlaps the 30 before and after it.
        let (began, ended) = ((100 * n).saturating_sub(1_500), 100 * n + 1_500);
        let what = match n % 5 {
            0 => read(last, revision),
            1 => refused(n, revision + 7),
            2 if n % 2 == 0 => {
                revision += 1;
                last = n;
                unknown(n, None)
            }
            2 => unknown(n, Some(revision + 1_000_000)),
            _ => {
                revision += 1;
                last = n;
                if n % 3 == 0 {
                    unconditional(n, revision)
                } else {
                    written(n, revision - 1, revision)
                }
            }
        };
        history.push(at(began, ended, what));
    }
    history
}

#[test]
fn a_long_history_is_judged_quickly_and_one_wrong_answer_in_it_is_found() {
    let mut history = long(4_000);
    let judged = check(&history).expect("possible");
    assert_eq!(judged.unknown, 800);
    let wrong = history
        .iter()
        .rposition(|operation| matches!(operation.what, What::Read { .. }))
        .expect("a read");
    // What was there 2,000 operations earlier.
    let stale = history[wrong - 2_000].what.clone();
    history[wrong].what = stale;
    assert!(matches!(
        check(&history),
        Err(Violation::NotLinearizable { .. })
    ));
}

/// Every order there is, one after the other.
fn any_order_fits(left: &[Operation], state: Register) -> bool {
    if left.iter().all(is_unknown) {
        return true;
    }
    let horizon = left
        .iter()
        .filter(|one| !is_unknown(one))
        .map(|one| one.ended_us)
        .min();
    (0..left.len()).any(|at| {
        let next = Register {
            revision: state.revision + 1,
            command: None,
        };
        let after = match left[at].what {
            What::Read { seen } => (seen == state).then_some(state),
            What::Refused { expected, .. } => (expected != state.revision).then_some(state),
            What::Written {
                command,
                expected,
                revision,
                ..
            } => (expected.is_none_or(|one| one == state.revision) && revision == next.revision)
                .then_some(Register {
                    command: Some(command),
                    ..next
                }),
            What::Unknown { command, expected } => expected
                .is_none_or(|one| one == state.revision)
                .then_some(Register {
                    command: Some(command),
                    ..next
                }),
            What::ReadAfter { .. } => None,
        };
        let in_time = horizon.is_none_or(|end| left[at].began_us <= end);
        let mut rest = left.to_vec();
        rest.remove(at);
        in_time && after.is_some_and(|after| any_order_fits(&rest, after))
    })
}

#[test]
fn the_verdict_is_the_one_of_trying_every_order() {
    use rand::rngs::SmallRng;
    use rand::{RngExt as _, SeedableRng as _};
    let mut rng = SmallRng::seed_from_u64(7);
    let mut verdicts = [0, 0];
    for _ in 0..6_000 {
        let history: Vec<Operation> = (1..=rng.random_range(1..=6u64))
            .map(|n| {
                let began = rng.random_range(0..8u64);
                let revision = rng.random_range(0..=3u64);
                let what = match rng.random_range(0..6u32) {
                    0 => read(
                        if revision == 0 {
                            0
                        } else {
                            rng.random_range(1..=6u64)
                        },
                        revision,
                    ),
                    1 => refused(n, revision),
                    2 => unknown(n, None),
                    3 => unknown(n, Some(revision)),
                    4 => written(n, revision, revision + 1),
                    _ => unconditional(n, revision + 1),
                };
                at(began, began + rng.random_range(0..6u64), what)
            })
            .collect();
        let possible = any_order_fits(&history, Register::EMPTY);
        assert_eq!(check(&history).is_ok(), possible, "{history:#?}");
        verdicts[usize::from(possible)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 500), "{verdicts:?}");
}

#[test]
fn a_history_that_was_kept_reads_back() {
    let history = long(50);
    let folder = event_log::testing::TemporaryFolder::new().expect("a folder");
    let path = folder.path().join("deep/history.ndjson");
    crate::history::recorder::keep(&history, &path).expect("written");
    let read = crate::history::recorder::read(&path).expect("read");
    assert_eq!(read, history);
}
