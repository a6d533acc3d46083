//! What a follower does next: pure. Deliveries, heartbeats, looks at the head and the link's comings and goings go in;
//! records, new consumers and ends come out.
//!
//! Invariant: positions that come out rise strictly, and none is skipped that the stream still holds: a consumer is trusted
//! only while its own numbering has no gap, and is replaced from the follower's own cursor otherwise.

use std::time::Duration;

use schemas::Position;

use super::Facts;
use crate::port::{Entry, Failure, Foreign};

/// What happened.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    /// A consumer was made, or could not be.
    Opened(Result<Opened, Failure>),
    /// A record came, numbered by its consumer.
    Record { number: u64, entry: Entry },
    /// The consumer lives and has delivered this many.
    Heartbeat { delivered: u64 },
    /// The deliveries ended, or made no sense.
    Broken,
    /// The link to the broker came back.
    LinkRestored,
    /// The watchdog's look at the head.
    Looked(Result<Facts, Failure>),
}

/// A consumer that was made.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    /// The stream, as it was just before.
    pub(crate) facts: Facts,
    /// Records that it has to deliver.
    pub(crate) left: u64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    /// Hand this record out.
    Deliver(Entry),
    /// Drop the consumer, if there is one, and make one behind this position, after a pause.
    Reopen { after: Position, pause: Duration },
    /// Go on.
    Nothing,
    /// Over.
    End(EndedBy),
}

/// Why it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// The log is another one, or behind.
    Foreign(Foreign),
    /// The log stayed out of reach.
    Away(String),
}

impl From<EndedBy> for Failure {
    fn from(why: EndedBy) -> Failure {
        match why {
            EndedBy::Foreign(how) => Failure::Foreign(how),
            EndedBy::Away(why) => Failure::Determinate(why),
        }
    }
}

#[derive(Debug)]
pub(crate) struct FollowMachine {
    cursor: Position,
    away_max: Duration,
    /// Deliveries of the present consumer; `None` while there is none.
    delivered: Option<u64>,
    /// The head at the watchdog's last look, and the cursor then.
    looked: Option<(Position, Position)>,
    /// Up to here nothing is left in the stream, though its head says so: records were removed behind our back.
    hollow: Position,
    created: Option<String>,
    away_since: Option<Duration>,
    failures: u32,
    reopened: u64,
}

impl FollowMachine {
    pub(crate) fn new(cursor: Position, away_max: Duration) -> FollowMachine {
        FollowMachine {
            cursor,
            away_max,
            delivered: None,
            looked: None,
            hollow: Position::START,
            created: None,
            away_since: None,
            failures: 0,
            reopened: 0,
        }
    }

    /// The next thing to do. `now` only has to rise.
    pub(crate) fn step(&mut self, input: Input, now: Duration) -> Output {
        match input {
            Input::Opened(Ok(opened)) => self.opened(opened),
            Input::Opened(Err(why)) | Input::Looked(Err(why)) => self.failed(why, now),
            Input::Record { number, entry } => self.record(number, entry),
            Input::Heartbeat { delivered } => match self.delivered {
                Some(received) if received != delivered => {
                    self.reopen("deliveries are missing before a heartbeat")
                }
                Some(_) | None => Output::Nothing,
            },
            Input::Broken => self.reopen("the deliveries broke off"),
            Input::LinkRestored => self.reopen("the connection was lost in between"),
            Input::Looked(Ok(facts)) => self.looked(facts),
        }
    }

    fn opened(&mut self, opened: Opened) -> Output {
        if let Some(how) = self.behind(&opened.facts) {
            return Output::End(EndedBy::Foreign(how));
        }
        self.away_since = None;
        self.failures = 0;
        self.delivered = Some(0);
        self.created = Some(opened.facts.made);
        self.looked = None;
        if opened.left == 0 {
            self.hollow = opened.facts.last;
        }
        Output::Nothing
    }

    fn record(&mut self, number: u64, entry: Entry) -> Output {
        let Some(received) = self.delivered else {
            return Output::Nothing;
        };
        if number <= received {
            return Output::Nothing;
        }
        if number != received + 1 {
            return self.reopen("a delivery is missing");
        }
        self.delivered = Some(number);
        if entry.position <= self.cursor {
            return Output::Nothing;
        }
        self.cursor = entry.position;
        Output::Deliver(entry)
    }

    fn looked(&mut self, facts: Facts) -> Output {
        self.away_since = None;
        self.failures = 0;
        if let Some(how) = self.behind(&facts) {
            return Output::End(EndedBy::Foreign(how));
        }
        if self.delivered.is_none() {
            return Output::Nothing;
        }
        if self
            .created
            .as_ref()
            .is_some_and(|created| *created != facts.made)
        {
            return self.reopen("the stream was put back from a copy");
        }
        let before = self.looked.replace((facts.last, self.cursor));
        let stuck = before.is_some_and(|(head, cursor)| {
            cursor == self.cursor && self.cursor < head && self.hollow < head
        });
        if stuck {
            self.reopen("the head of the log went on, but nothing was delivered")
        } else {
            Output::Nothing
        }
    }

    fn behind(&self, facts: &Facts) -> Option<Foreign> {
        (facts.last < self.cursor).then_some(Foreign::Behind {
            known: self.cursor,
            actual: facts.last,
        })
    }

    fn failed(&mut self, why: Failure, now: Duration) -> Output {
        let words = match why {
            Failure::Foreign(how) => return Output::End(EndedBy::Foreign(how)),
            Failure::Determinate(words) | Failure::Indeterminate(words) => words,
        };
        let since = *self.away_since.get_or_insert(now);
        if now.saturating_sub(since) >= self.away_max {
            return Output::End(EndedBy::Away(words));
        }
        if self.delivered.is_some() {
            // A look that failed says nothing about the deliveries; the next look tells.
            return Output::Nothing;
        }
        self.failures += 1;
        Output::Reopen {
            after: self.cursor,
            pause: pause(self.failures),
        }
    }

    fn reopen(&mut self, why: &'static str) -> Output {
        if self.delivered.take().is_none() {
            // One is being made already.
            return Output::Nothing;
        }
        self.reopened += 1;
        self.looked = None;
        tracing::info!(position = %self.cursor, reason = why, times = self.reopened, "reading on from the own cursor with a new consumer");
        Output::Reopen {
            after: self.cursor,
            pause: Duration::ZERO,
        }
    }
}

/// Bound: a broker that is away is tried at most every two seconds.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(100)
        .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(8)))
        .min(Duration::from_secs(2))
}

#[cfg(test)]
mod tests {
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
    fn looked(last: u64) -> Input {
        Input::Looked(Ok(facts(last)))
    }
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
    fn reopen(after: u64) -> Output {
        Output::Reopen {
            after: Position(after),
            pause: Duration::ZERO,
        }
    }
    /// A follower at `cursor` with a fresh consumer on a stream that ends at `last`.
    fn open(cursor: u64, last: u64) -> FollowMachine {
        let mut machine = FollowMachine::new(Position(cursor), Duration::from_secs(30));
        let opened = Opened {
            facts: facts(last),
            left: last - cursor,
        };
        assert_eq!(
            machine.step(Input::Opened(Ok(opened)), NOW),
            Output::Nothing
        );
        machine
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
        assert_eq!(machine.step(record(3, 7), NOW), reopen(5));
        assert_eq!(
            machine.step(record(4, 8), NOW),
            Output::Nothing,
            "from the old consumer"
        );
        assert_eq!(
            machine.step(Input::Broken, NOW),
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
            reopen(1)
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
        assert_eq!(machine.step(looked(6), NOW), reopen(4));
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
        assert_eq!(machine.step(looked(6), NOW), reopen(4));
        let hollow = Opened {
            facts: facts(6),
            left: 0,
        };
        machine.step(Input::Opened(Ok(hollow)), NOW);
        for _ in 0..5 {
            assert_eq!(machine.step(looked(6), NOW), Output::Nothing);
        }
        machine.step(looked(7), NOW);
        assert_eq!(
            machine.step(looked(7), NOW),
            reopen(4),
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
        assert_eq!(machine.step(looked(3), NOW), Output::End(behind.clone()));
        let mut machine = FollowMachine::new(Position(4), Duration::from_secs(30));
        let short = Opened {
            facts: facts(3),
            left: 0,
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
        assert_eq!(machine.step(Input::Looked(Ok(other)), NOW), reopen(4));
    }

    #[test]
    fn a_broker_that_is_away_is_tried_again_until_the_limit() {
        let mut machine = FollowMachine::new(Position(4), Duration::from_secs(30));
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
        assert_eq!(machine.step(Input::LinkRestored, NOW), reopen(2));
    }
}
