//! A state from a log without reading its whole history, checked so that it equals the fold of the whole history.
//!
//! Owns: the pure [`BootstrapMachine`] and the shell around it, [`bootstrap`].

use std::collections::BTreeSet;

use schemas::event::record_hash;
use schemas::state::{self, Check, Reading, State, Tail};
use schemas::{Hash, LogId, Position, Subject};

use crate::port::{Entry, Failure, Head, LogReader, Seen, Tails};

/// A state and the log that it is of.
#[derive(Debug, Clone)]
pub struct Bootstrapped {
    /// The log.
    pub log_id: LogId,
    /// Everything up to its position.
    pub state: State,
    /// Hash of the record at that position, as it was read with the state; `None` when there is none (the log is empty, or
    /// its last records were removed). A reader that follows from here knows the log again by it: asking for it later could
    /// find another record there, or none.
    pub record: Option<Hash>,
    /// True when the whole history had to be read.
    pub replayed: bool,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// Begin.
    Start,
    /// The tails were read.
    Tails(Result<Tails, Failure>),
    /// A check's record was looked up.
    Next(Result<Option<Entry>, Failure>),
    /// The whole history can be read now.
    Opened(Result<(), Failure>),
    /// Its next record.
    Record(Result<Entry, Failure>),
}

/// What to do next.
#[derive(Debug)]
pub enum Output {
    /// Read the last record of each subject.
    Tails,
    /// Look up the first record on a subject after a position.
    Next(Subject, Position),
    /// Look up the record at a position (answered as [`Input::Next`]).
    At(Position),
    /// Follow from here.
    Open(Seen),
    /// Read on.
    Record,
    /// Over.
    Done(Result<Box<Bootstrapped>, Failure>),
}

/// How a reader understands records: `migrations::read`.
pub type Read = fn(&Subject, &[u8]) -> Reading;

/// Decides how a bootstrap goes on: from the last record of each subject (O(scopes)), or, where those cannot tell, from all.
#[derive(Debug)]
pub struct BootstrapMachine {
    read: Read,
    head: Option<Head>,
    shortcut: Option<State>,
    checks: BTreeSet<Check>,
    folded: State,
    /// The last record that was read.
    last: Option<(Position, Hash)>,
}

impl BootstrapMachine {
    /// Nothing read yet.
    #[must_use]
    pub fn new(read: Read) -> BootstrapMachine {
        BootstrapMachine {
            read,
            head: None,
            shortcut: None,
            checks: BTreeSet::new(),
            folded: State::default(),
            last: None,
        }
    }

    /// The next thing to do.
    pub fn step(&mut self, input: Input) -> Output {
        match input {
            Input::Start => Output::Tails,
            Input::Tails(Ok(tails)) => self.tails(tails),
            Input::Next(Ok(found)) => {
                let check = self.checks.pop_first();
                let found = found.as_ref().map(mark);
                if check.is_none_or(|check| check.holds(found)) {
                    self.check()
                } else {
                    self.replay()
                }
            }
            Input::Opened(Ok(())) => Output::Record,
            Input::Record(Ok(entry)) => {
                let reading = (self.read)(&entry.subject, &entry.bytes);
                (self.folded).evolve(entry.position, &entry.subject, &entry.bytes, &reading);
                self.last = Some(mark(&entry));
                if self
                    .head
                    .is_some_and(|head| self.folded.position < head.position)
                {
                    return Output::Record;
                }
                let state = std::mem::take(&mut self.folded);
                self.done(state, true)
            }
            Input::Tails(Err(why))
            | Input::Next(Err(why))
            | Input::Opened(Err(why))
            | Input::Record(Err(why)) => Output::Done(Err(why)),
        }
    }

    fn tails(&mut self, tails: Tails) -> Output {
        self.head = Some(tails.up_to);
        let newest = tails.entries.iter().max_by_key(|entry| entry.position);
        self.last = newest.map(mark);
        let readings: Vec<Tail> = tails
            .entries
            .into_iter()
            .map(|entry| Tail {
                reading: (self.read)(&entry.subject, &entry.bytes),
                position: entry.position,
                subject: entry.subject,
                bytes: entry.bytes.to_vec(),
            })
            .collect();
        match state::bootstrap(&readings, tails.up_to.position) {
            Some((state, checks)) => {
                self.shortcut = Some(state);
                self.checks = checks;
                self.check()
            }
            None => self.replay(),
        }
    }

    fn check(&mut self) -> Output {
        match self.checks.first() {
            Some(Check::Next { subject, after, .. }) => {
                return Output::Next(subject.clone(), *after);
            }
            Some(Check::At { position, .. }) => return Output::At(*position),
            None => {}
        }
        let state = self.shortcut.take().unwrap_or_default();
        self.done(state, false)
    }

    fn replay(&mut self) -> Output {
        match self.head {
            Some(head) if head.position > Position::START => Output::Open(Seen {
                log_id: head.log_id,
                position: Position::START,
                record: None,
            }),
            Some(_) | None => self.done(State::default(), true),
        }
    }

    fn done(&self, state: State, replayed: bool) -> Output {
        let Some(head) = self.head else {
            let why = "the log was not asked for its tails".to_owned();
            return Output::Done(Err(Failure::Determinate(why)));
        };
        Output::Done(Ok(Box::new(Bootstrapped {
            log_id: head.log_id,
            record: self
                .last
                .filter(|(position, _)| *position == state.position)
                .map(|(_, hash)| hash),
            state,
            replayed,
        })))
    }
}

fn mark(entry: &Entry) -> (Position, Hash) {
    (entry.position, record_hash(&entry.subject, &entry.bytes))
}

/// Reads the state of the log.
///
/// # Errors
/// [`Failure`] of the log.
pub async fn bootstrap(log: &dyn LogReader) -> Result<Bootstrapped, Failure> {
    let mut machine = BootstrapMachine::new(migrations::read);
    let mut records = None;
    let mut input = Input::Start;
    loop {
        input = match machine.step(input) {
            Output::Tails => Input::Tails(log.tails().await),
            Output::Next(subject, after) => Input::Next(log.next_on(&subject, after).await),
            Output::At(position) => Input::Next(log.at(position).await),
            Output::Open(seen) => Input::Opened(match log.follow(seen).await {
                Ok(opened) => {
                    records = Some(opened);
                    Ok(())
                }
                Err(why) => Err(why),
            }),
            Output::Record => Input::Record(match &mut records {
                Some(records) => records.next().await,
                None => Err(Failure::Determinate("nothing is followed".to_owned())),
            }),
            Output::Done(outcome) => return outcome.map(|made| *made),
        };
    }
}

/// Folds the whole history up to `up_to`.
///
/// # Errors
/// [`Failure`] of the log.
pub async fn replay(log: &dyn LogReader, log_id: LogId, up_to: Position) -> Result<State, Failure> {
    let mut state = State::default();
    if up_to == Position::START {
        return Ok(state);
    }
    let mut records = log
        .follow(Seen {
            log_id,
            position: Position::START,
            record: None,
        })
        .await?;
    while state.position < up_to {
        let entry = records.next().await?;
        let reading = migrations::read(&entry.subject, &entry.bytes);
        state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
    }
    Ok(state)
}
