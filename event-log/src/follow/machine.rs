//! What a follower does next: pure. Deliveries, heartbeats, looks at the head and the link's comings and goings go in;
//! records, new consumers and ends come out.
//!
//! Invariant: positions that come out rise strictly, and none is skipped that the stream still holds: a consumer is trusted
//! only while its own numbering has no gap, and is replaced from the follower's own cursor otherwise; and only while the record
//! at that cursor is still the one that was delivered.

use std::time::Duration;

use schemas::event::record_hash;
use schemas::{Hash, Position};

use super::Facts;
use crate::port::{Entry, Failure, Foreign};

/// What happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// A consumer was made, or could not be.
    Opened(Result<Opened, Failure>),
    /// A record came, numbered by its consumer.
    Record {
        /// Counts the consumer's records from 1.
        number: u64,
        /// The record.
        entry: Entry,
    },
    /// The consumer lives and has delivered this many.
    Heartbeat {
        /// How many.
        delivered: u64,
    },
    /// The deliveries ended, or made no sense.
    Broken(String),
    /// The link to the broker came back.
    LinkRestored,
    /// The watchdog's look at the head, and at the record where the cursor was when it was asked for.
    Looked(Result<(Facts, Marked), Failure>),
}

/// A record that was looked up by its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marked {
    /// Where.
    pub position: Position,
    /// Its hash; `None` when there is none.
    pub hash: Option<Hash>,
}

/// A consumer that was made.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The stream, as it was just before.
    pub facts: Facts,
    /// Records that it has to deliver.
    pub left: u64,
    /// Hash of the record at the cursor, looked up after the consumer was made; `None` when there is none.
    pub mark: Option<Hash>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Hand this record out.
    Deliver(Entry),
    /// Drop the consumer, if there is one, and make one behind this position, after a pause.
    Reopen {
        /// Behind here.
        after: Position,
        /// First wait this long.
        pause: Duration,
    },
    /// Go on.
    Nothing,
    /// Over.
    End(EndedBy),
}

/// Why it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndedBy {
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

/// Decides how a follower goes on.
#[derive(Debug)]
pub struct FollowMachine {
    cursor: Position,
    away_max: Duration,
    /// Deliveries of the present consumer; `None` while there is none.
    delivered: Option<u64>,
    /// The head at the watchdog's last look, and the cursor then.
    looked: Option<(Position, Position)>,
    /// Up to here nothing is left in the stream, though its head says so: records were removed behind our back.
    hollow: Position,
    created: Option<String>,
    /// Hash of the record at the cursor, once one was delivered or looked up.
    mark: Option<Hash>,
    away_since: Option<Duration>,
    failures: u32,
    reopened: u64,
    /// Feeds in a row that were given up before they delivered anything.
    fruitless: u32,
    /// The present feed had nothing to deliver when it was opened.
    idle: bool,
}

impl FollowMachine {
    /// Everything up to `cursor` is known, and the hash of the record there if the reader kept it; a log that stays out of
    /// reach for `away_max` ends it.
    ///
    /// SUBTLE: whoever looked at that record before cannot do without: the log may be another one when the first consumer is
    /// made (`regression_a_log_put_back_before_the_first_consumer_is_refused`).
    #[must_use]
    pub fn new(cursor: Position, mark: Option<Hash>, away_max: Duration) -> FollowMachine {
        FollowMachine {
            cursor,
            away_max,
            delivered: None,
            looked: None,
            hollow: Position::START,
            created: None,
            mark,
            away_since: None,
            failures: 0,
            reopened: 0,
            fruitless: 0,
            idle: false,
        }
    }

    /// The last record that was handed out, or where it began.
    #[must_use]
    pub fn cursor(&self) -> Position {
        self.cursor
    }

    /// The next thing to do. `now` only has to rise.
    pub fn step(&mut self, input: Input, now: Duration) -> Output {
        match input {
            Input::Opened(Ok(opened)) => self.opened(opened),
            Input::Opened(Err(why)) | Input::Looked(Err(why)) => self.failed(why, now),
            Input::Record { number, entry } => self.record(number, entry),
            Input::Heartbeat { delivered } => match self.delivered {
                Some(received) if received != delivered => {
                    self.reopen("deliveries are missing before a heartbeat")
                }
                Some(_) if self.idle => {
                    // A quiet log's feed has done all it could.
                    self.fruitless = 0;
                    Output::Nothing
                }
                Some(_) | None => Output::Nothing,
            },
            Input::Broken(why) => {
                if self.fruitless >= FRUITLESS_MAX {
                    return Output::End(EndedBy::Away(why));
                }
                self.reopen(&why)
            }
            Input::LinkRestored => self.reopen("the connection was lost in between"),
            Input::Looked(Ok((facts, mark))) => self.looked(facts, mark),
        }
    }

    fn opened(&mut self, opened: Opened) -> Output {
        if let Some(how) = behind(self.cursor, &opened.facts) {
            return Output::End(EndedBy::Foreign(how));
        }
        // SUBTLE: a log that was put back to an older state may have grown past the cursor again before anybody looked; only
        // the record itself tells (`regression_a_log_that_was_put_back_and_grew_past_the_cursor_is_refused`).
        if self.mark.is_some() && self.mark != opened.mark {
            return Output::End(EndedBy::Foreign(Foreign::Rewritten {
                position: self.cursor,
            }));
        }
        self.mark = opened.mark;
        self.away_since = None;
        self.failures = 0;
        self.delivered = Some(0);
        self.created = Some(opened.facts.made);
        self.looked = None;
        self.idle = opened.left == 0;
        if self.idle {
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
        self.mark = Some(record_hash(&entry.subject, &entry.bytes));
        self.fruitless = 0;
        Output::Deliver(entry)
    }

    fn looked(&mut self, facts: Facts, mark: Marked) -> Output {
        self.away_since = None;
        self.failures = 0;
        let rewritten =
            self.mark.is_some() && mark.position == self.cursor && mark.hash != self.mark;
        // SUBTLE: against the cursor of then. Records that came while the answer was on its way are newer than the answer
        // (`regression_a_record_that_overtakes_a_look_is_no_sign_of_another_log`).
        if let Some(how) =
            behind(mark.position, &facts).or(rewritten.then_some(Foreign::Rewritten {
                position: self.cursor,
            }))
        {
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

    fn reopen(&mut self, why: &str) -> Output {
        let Some(received) = self.delivered.take() else {
            // One is being made already.
            return Output::Nothing;
        };
        self.reopened += 1;
        self.looked = None;
        tracing::info!(position = %self.cursor, reason = why, times = self.reopened, "reading on from the own cursor with a new consumer");
        let pause = if received == 0 {
            self.fruitless += 1;
            pause(self.fruitless)
        } else {
            Duration::ZERO
        };
        Output::Reopen {
            after: self.cursor,
            pause,
        }
    }
}

fn behind(cursor: Position, facts: &Facts) -> Option<Foreign> {
    (facts.last < cursor).then_some(Foreign::Behind {
        known: cursor,
        actual: facts.last,
    })
}

/// Bound: feeds in a row that break before their first record, before the follower ends; something is wrong with the record.
const FRUITLESS_MAX: u32 = 10;

/// Bound: a broker that is away is tried at most every two seconds.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(100)
        .saturating_mul(2u32.saturating_pow(failures.saturating_sub(1).min(8)))
        .min(Duration::from_secs(2))
}

#[cfg(test)]
mod tests;
