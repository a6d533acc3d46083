use super::*;
use bytes::Bytes;
use schemas::{LogId, Subject};
use uuid::Uuid;

const NOW: Duration = Duration::ZERO;

fn facts(last: u64) -> Facts {
    Facts {
        log_id: LogId(Uuid::from_u128(1)),
        last: Position(last),
        made: "then".to_owned(),
    }
}
/// A look that began before anything was delivered.
fn looked(last: u64) -> Input {
    looked_at(0, last)
}
fn looked_at(cursor: u64, last: u64) -> Input {
    let mark = Marked {
        position: Position(cursor),
        hash: mark(cursor),
    };
    Input::Looked(Ok((facts(last), mark)))
}
const NOWHERE: Marked = Marked {
    position: Position::START,
    hash: None,
};
fn away() -> Failure {
    Failure::Determinate("away".to_owned())
}
fn entry(position: u64) -> Entry {
    Entry {
        position: Position(position),
        subject: Subject::parameters(),
        bytes: Bytes::new(),
    }
}
fn record(number: u64, position: u64) -> Input {
    Input::Record {
        number,
        entry: entry(position),
    }
}
/// What the record of [`entry`] is known by.
fn mark(position: u64) -> Option<Hash> {
    (position > 0).then(|| record_hash(&entry(position).subject, &entry(position).bytes))
}
/// A consumer that had delivered something is replaced at once, another one after a pause.
fn reopen(after: u64, pause_ms: u64) -> Output {
    Output::Reopen {
        after: Position(after),
        pause: Duration::from_millis(pause_ms),
    }
}
/// A follower at `cursor` with a fresh consumer on a stream that ends at `last`.
fn open(cursor: u64, last: u64) -> FollowMachine {
    let mut machine = FollowMachine::new(Position(cursor), None, Duration::from_secs(30));
    let opened = Opened {
        facts: facts(last),
        left: last - cursor,
        mark: mark(cursor),
    };
    assert_eq!(
        machine.step(Input::Opened(Ok(opened)), NOW),
        Output::Nothing
    );
    machine
}

/// A reader looked at its record, and then the first consumer could not be made for a while: meanwhile the log was put back
/// and grew past it.
#[test]
fn regression_a_log_put_back_before_the_first_consumer_is_refused() {
    let rewritten = Output::End(EndedBy::Foreign(Foreign::Rewritten {
        position: Position(1),
    }));
    for (known, wanted) in [
        (mark(1), Output::Nothing),
        (None, Output::Nothing),
        (Some(Hash::of(&[b"of before"])), rewritten),
    ] {
        let mut machine = FollowMachine::new(Position(1), known, Duration::from_secs(30));
        let opened = Opened {
            facts: facts(2),
            left: 1,
            mark: mark(1),
        };
        let output = machine.step(Input::Opened(Ok(opened)), NOW);
        assert_eq!(output, wanted, "{known:?}");
    }
}

#[test]
fn records_come_out_once_and_in_order() {
    let mut machine = open(3, 9);
    assert_eq!(machine.step(record(1, 5), NOW), Output::Deliver(entry(5)));
    assert_eq!(
        machine.step(record(1, 5), NOW),
        Output::Nothing,
        "redelivered"
    );
    assert_eq!(
        machine.step(record(2, 4), NOW),
        Output::Nothing,
        "older than the cursor"
    );
    assert_eq!(machine.step(record(3, 9), NOW), Output::Deliver(entry(9)));
    assert_eq!(machine.cursor, Position(9));
}

#[test]
fn a_gap_in_the_deliveries_makes_a_new_consumer_at_the_own_cursor() {
    let mut machine = open(3, 9);
    machine.step(record(1, 5), NOW);
    assert_eq!(machine.step(record(3, 7), NOW), reopen(5, 0));
    assert_eq!(
        machine.step(record(4, 8), NOW),
        Output::Nothing,
        "from the old consumer"
    );
    assert_eq!(
        machine.step(Input::Broken(String::new()), NOW),
        Output::Nothing,
        "one is on its way"
    );
    assert_eq!(machine.cursor, Position(5));
}

#[test]
fn a_heartbeat_that_counts_more_than_came_makes_a_new_consumer() {
    let mut machine = open(0, 2);
    machine.step(record(1, 1), NOW);
    assert_eq!(
        machine.step(Input::Heartbeat { delivered: 1 }, NOW),
        Output::Nothing
    );
    assert_eq!(
        machine.step(Input::Heartbeat { delivered: 2 }, NOW),
        reopen(1, 0)
    );
}

#[test]
fn a_silent_consumer_is_noticed_by_the_second_look_at_the_head() {
    let mut machine = open(4, 4);
    assert_eq!(
        machine.step(looked(6), NOW),
        Output::Nothing,
        "they may be on their way"
    );
    assert_eq!(machine.step(looked(6), NOW), reopen(4, 100));
}

#[test]
fn a_follower_that_makes_progress_is_left_alone() {
    let mut machine = open(0, 100);
    for at in 1..10 {
        machine.step(record(at, at), NOW);
        assert_eq!(machine.step(looked(100 + at), NOW), Output::Nothing);
    }
    let mut machine = open(4, 4);
    for _ in 0..5 {
        assert_eq!(
            machine.step(looked(4), NOW),
            Output::Nothing,
            "quiet, and at the head"
        );
    }
}

#[test]
fn a_hole_at_the_end_of_the_stream_does_not_reopen_for_ever() {
    let mut machine = open(4, 4);
    machine.step(looked(6), NOW);
    assert_eq!(machine.step(looked(6), NOW), reopen(4, 100));
    let hollow = Opened {
        facts: facts(6),
        left: 0,
        mark: mark(1),
    };
    machine.step(Input::Opened(Ok(hollow)), NOW);
    for _ in 0..5 {
        assert_eq!(machine.step(looked(6), NOW), Output::Nothing);
    }
    machine.step(looked(7), NOW);
    assert_eq!(
        machine.step(looked(7), NOW),
        reopen(4, 200),
        "but a later record counts"
    );
}

#[test]
fn another_log_ends_it() {
    let gone = Foreign::Gone {
        known: LogId(Uuid::from_u128(1)),
    };
    let mut machine = open(4, 4);
    assert_eq!(
        machine.step(Input::Looked(Err(Failure::Foreign(gone.clone()))), NOW),
        Output::End(EndedBy::Foreign(gone))
    );
    let behind = EndedBy::Foreign(Foreign::Behind {
        known: Position(4),
        actual: Position(3),
    });
    let mut machine = open(4, 4);
    assert_eq!(
        machine.step(looked_at(4, 3), NOW),
        Output::End(behind.clone())
    );
    let mut machine = FollowMachine::new(Position(4), None, Duration::from_secs(30));
    let short = Opened {
        facts: facts(3),
        left: 0,
        mark: mark(1),
    };
    assert_eq!(
        machine.step(Input::Opened(Ok(short)), NOW),
        Output::End(behind)
    );
}

#[test]
fn a_stream_with_another_birthday_is_read_anew_from_the_own_cursor() {
    let mut machine = open(4, 4);
    let mut other = facts(9);
    other.made = "later".to_owned();
    assert_eq!(
        machine.step(Input::Looked(Ok((other, NOWHERE))), NOW),
        reopen(4, 100)
    );
}

#[test]
fn a_broker_that_is_away_is_tried_again_until_the_limit() {
    let mut machine = FollowMachine::new(Position(4), None, Duration::from_secs(30));
    let mut pauses = Vec::new();
    for second in 0..30 {
        match machine.step(Input::Opened(Err(away())), Duration::from_secs(second)) {
            Output::Reopen { after, pause } => {
                assert_eq!(after, Position(4));
                pauses.push(pause.as_millis());
            }
            Output::Deliver(_) | Output::Nothing | Output::End(_) => panic!("gave up early"),
        }
    }
    assert_eq!(pauses[..6], [100, 200, 400, 800, 1_600, 2_000]);
    let end = machine.step(Input::Opened(Err(away())), Duration::from_secs(30));
    assert_eq!(end, Output::End(EndedBy::Away("away".to_owned())));
}

#[test]
fn a_failed_look_alone_disturbs_no_deliveries() {
    let mut machine = open(0, 9);
    assert_eq!(
        machine.step(Input::Looked(Err(away())), NOW),
        Output::Nothing
    );
    assert_eq!(machine.step(record(1, 1), NOW), Output::Deliver(entry(1)));
}

#[test]
fn a_restored_link_makes_a_new_consumer() {
    let mut machine = open(2, 9);
    assert_eq!(machine.step(Input::LinkRestored, NOW), reopen(2, 100));
}

#[test]
fn a_feed_that_breaks_at_the_same_record_again_and_again_ends_it() {
    let mut machine = open(2, 9);
    let mut pauses = Vec::new();
    let end = loop {
        match machine.step(Input::Broken("garbled".to_owned()), NOW) {
            Output::Reopen { pause, .. } => pauses.push(pause.as_millis()),
            Output::End(why) => break why,
            Output::Deliver(_) | Output::Nothing => panic!("went on"),
        }
        let opened = Opened {
            facts: facts(9),
            left: 7,
            mark: mark(1),
        };
        machine.step(Input::Opened(Ok(opened)), NOW);
    };
    assert_eq!(end, EndedBy::Away("garbled".to_owned()));
    assert_eq!(pauses.len(), 10);
    assert_eq!(pauses[..3], [100, 200, 400]);
}

#[test]
fn a_quiet_feed_that_is_cut_now_and_then_never_ends_it() {
    let mut machine = open(9, 9);
    for _ in 0..50 {
        machine.step(Input::Heartbeat { delivered: 0 }, NOW);
        assert_eq!(
            machine.step(Input::Broken("cut".to_owned()), NOW),
            reopen(9, 100)
        );
        let opened = Opened {
            facts: facts(9),
            left: 0,
            mark: mark(1),
        };
        machine.step(Input::Opened(Ok(opened)), NOW);
    }
}

#[test]
fn regression_a_record_that_overtakes_a_look_is_no_sign_of_another_log() {
    let mut machine = open(4, 9);
    // Asked at 4, answered with 5; 6 came first.
    machine.step(record(1, 5), NOW);
    machine.step(record(2, 6), NOW);
    assert_eq!(machine.step(looked_at(4, 5), NOW), Output::Nothing);
    let behind = Foreign::Behind {
        known: Position(6),
        actual: Position(5),
    };
    assert_eq!(
        machine.step(looked_at(6, 5), NOW),
        Output::End(EndedBy::Foreign(behind))
    );
}

#[test]
fn regression_a_log_that_was_put_back_and_grew_past_the_cursor_is_refused() {
    let mut machine = open(3, 9);
    machine.step(record(1, 5), NOW);
    machine.step(Input::LinkRestored, NOW);
    let other = Hash::of(&[b"another record"]);
    for there in [Some(other), None] {
        let mut machine = open(3, 9);
        machine.step(record(1, 5), NOW);
        machine.step(Input::LinkRestored, NOW);
        let opened = Opened {
            facts: facts(9),
            left: 4,
            mark: there,
        };
        let rewritten = Foreign::Rewritten {
            position: Position(5),
        };
        assert_eq!(
            machine.step(Input::Opened(Ok(opened)), NOW),
            Output::End(EndedBy::Foreign(rewritten))
        );
    }
    let opened = Opened {
        facts: facts(9),
        left: 4,
        mark: mark(5),
    };
    let next = machine.step(Input::Opened(Ok(opened)), NOW);
    assert_eq!(next, Output::Nothing);
}

#[test]
fn regression_another_record_at_the_cursor_is_noticed_on_a_quiet_log() {
    let mut machine = open(3, 5);
    machine.step(record(1, 5), NOW);
    let at = |hash| {
        let mark = Marked {
            position: Position(5),
            hash,
        };
        Input::Looked(Ok((facts(5), mark)))
    };
    assert_eq!(machine.step(at(mark(5)), NOW), Output::Nothing);
    let rewritten = Foreign::Rewritten {
        position: Position(5),
    };
    assert_eq!(
        machine.step(at(Some(Hash::of(&[b"another"]))), NOW),
        Output::End(EndedBy::Foreign(rewritten))
    );
}
