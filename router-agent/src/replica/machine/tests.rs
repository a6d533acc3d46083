use super::*;
use bytes::Bytes;
use event_log::Tails;
use event_log::bootstrap::{BootstrapMachine, Input as BootInput, Output as BootOutput};
use schemas::LogId;
use schemas::Subject;
use uuid::Uuid;

fn log_id() -> LogId {
    LogId(Uuid::from_u128(1))
}

fn head(position: u64) -> Head {
    Head {
        log_id: log_id(),
        position: Position(position),
    }
}

fn record(position: u64) -> Input {
    let entry = Entry {
        position: Position(position),
        subject: Subject::parameters(),
        bytes: Bytes::new(),
    };
    let reading = migrations::read(&entry.subject, &entry.bytes);
    Input::Record(entry, Box::new(reading))
}

/// A replica that follows an empty log.
fn following() -> ReplicaMachine {
    let mut machine = ReplicaMachine::new(None);
    let made = Bootstrapped {
        log_id: log_id(),
        state: State::default(),
        record: None,
        replayed: false,
    };
    for input in [
        Input::Start,
        Input::Head(Ok(head(0))),
        Input::Bootstrapped(Ok(Box::new(made))),
        Input::Followed(Ok(())),
    ] {
        let _ = machine.step(input);
    }
    machine
}

#[test]
fn what_is_published_is_kept_first() {
    let out = following().step(record(1));
    assert!(
        matches!(out[..], [Output::Advance(_), Output::Publish(_)]),
        "{out:?}"
    );
}

#[test]
fn regression_after_a_failed_write_the_copy_is_written_whole() {
    let mut machine = following();
    let _ = machine.step(record(1));
    machine.not_kept();
    let out = machine.step(record(2));
    match &out[..] {
        [Output::Replace(kept), Output::Publish(_)] => {
            assert_eq!(
                (kept.0.position, kept.1.position),
                (Position(2), Position(2))
            );
        }
        other => panic!("{other:?}"),
    }
    let out = machine.step(record(3));
    assert!(matches!(out[0], Output::Advance(_)), "{out:?}");
    // Also when no further record comes.
    machine.not_kept();
    let out = machine.step(Input::Looked(Ok(head(3))));
    assert!(matches!(out[..], [Output::Replace(_)]), "{out:?}");
}

#[test]
fn regression_the_log_is_known_again_by_the_record_that_the_state_was_read_with() {
    let mut boot = BootstrapMachine::new(migrations::read);
    let Input::Record(entry, _) = record(7) else {
        unreachable!("it is one")
    };
    let hash = record_hash(&entry.subject, &entry.bytes);
    let tails = Tails {
        up_to: head(7),
        entries: vec![entry.clone()],
    };
    let mut out = boot.step(BootInput::Tails(Ok(tails)));
    while let BootOutput::Next(..) | BootOutput::At(_) | BootOutput::Open(_) | BootOutput::Record =
        out
    {
        out = boot.step(match out {
            BootOutput::Open(_) => BootInput::Opened(Ok(())),
            BootOutput::Record => BootInput::Record(Ok(entry.clone())),
            BootOutput::Next(..) | BootOutput::At(_) => BootInput::Next(Ok(None)),
            BootOutput::Tails | BootOutput::Done(_) => unreachable!("not asked for again"),
        });
    }
    let BootOutput::Done(Ok(made)) = out else {
        panic!("{out:?}")
    };
    let mut machine = ReplicaMachine::new(None);
    let _ = machine.step(Input::Start);
    let _ = machine.step(Input::Head(Ok(head(7))));
    // Nothing is asked of the log in between: it may be put back just then.
    let out = machine.step(Input::Bootstrapped(Ok(made)));
    let followed = out.iter().find_map(|one| {
        if let Output::Follow(seen) = one {
            Some(*seen)
        } else {
            None
        }
    });
    assert_eq!(
        followed,
        Some(Seen {
            log_id: log_id(),
            position: Position(7),
            record: Some(hash),
        }),
        "{out:?}"
    );
}
