//! What clients asked for and were told, and whether a log agrees with it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use schemas::CommandId;

use super::history::History;

/// What a client knows of its operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Nothing yet.
    Open,
    /// It is in the log at this position.
    Acknowledged {
        /// Where.
        position: u64,
        /// When, on the ledger's own clock.
        at: u64,
    },
    /// It is not in the log and never will be.
    Refused(String),
}

/// One operation: one key, whatever number of requests it takes.
#[derive(Debug, Clone)]
pub struct Operation {
    /// When it was begun, on the ledger's own clock.
    pub begun: u64,
    /// The reason that it gives, which is found again in the record.
    pub reason: String,
    /// What the client was told.
    pub told: Told,
}

/// Everything that the clients of one run did.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    clock: u64,
    operations: BTreeMap<CommandId, Operation>,
    counts: Counts,
}

/// How many operations are where.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// In the log.
    pub acknowledged: u64,
    /// Not in the log.
    pub refused: u64,
    /// Open now.
    pub open: u64,
}

/// What is wrong, counted; the words say where.
#[derive(Debug, Clone, Default)]
pub struct Violations {
    /// Acknowledged and not accepted at that position in the log.
    pub lost: u64,
    /// Refused and accepted in the log.
    pub resurrected: u64,
    /// Accepted more than once.
    pub duplicated: u64,
    /// Everything else: order, content, states that differ.
    pub other: u64,
    /// Each in words.
    pub words: Vec<String>,
}

impl Violations {
    /// True when nothing is wrong.
    #[must_use]
    pub fn none(&self) -> bool {
        self.words.is_empty()
    }

    /// Something that is none of the counted kinds.
    pub fn note(&mut self, words: String) {
        self.other += 1;
        self.words.push(words);
    }

    /// Adds what somebody else found.
    pub fn add(&mut self, more: Violations) {
        self.lost += more.lost;
        self.resurrected += more.resurrected;
        self.duplicated += more.duplicated;
        self.other += more.other;
        self.words.extend(more.words);
    }
}

impl Ledger {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new operation: its key, and a number that no other has.
    pub fn begin(&self) -> (CommandId, u64) {
        let mut pages = self.pages();
        pages.clock += 1;
        pages.counts.open += 1;
        let (id, number) = (CommandId(event_log::ambient::new_id()), pages.clock);
        let operation = Operation {
            begun: number,
            reason: format!("operation {number}"),
            told: Told::Open,
        };
        pages.operations.insert(id, operation);
        (id, number)
    }

    /// The client was told that it is in the log. False when it was told something else before.
    pub fn acknowledged(&self, id: CommandId, position: u64) -> bool {
        let mut pages = self.pages();
        pages.clock += 1;
        let at = pages.clock;
        let told = Told::Acknowledged { position, at };
        pages.settle(id, told)
    }

    /// The client was told that it is not in the log. False when it was told something else before.
    pub fn refused(&self, id: CommandId, code: &str) -> bool {
        self.pages().settle(id, Told::Refused(code.to_owned()))
    }

    /// How it stands.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.pages().counts
    }

    /// Everything, as of now.
    #[must_use]
    pub fn page(&self) -> BTreeMap<CommandId, Operation> {
        self.pages().operations.clone()
    }
}

impl Pages {
    fn settle(&mut self, id: CommandId, told: Told) -> bool {
        let Some(operation) = self.operations.get_mut(&id) else {
            return false;
        };
        match (&operation.told, &told) {
            (Told::Open, Told::Acknowledged { .. }) => self.counts.acknowledged += 1,
            (Told::Open, Told::Refused(_)) => self.counts.refused += 1,
            // Told twice (the same request to two replicas): it must be the same.
            (
                Told::Acknowledged { position, .. },
                Told::Acknowledged {
                    position: again, ..
                },
            ) => {
                return position == again;
            }
            (Told::Refused(_), Told::Refused(_)) => return true,
            (Told::Open | Told::Acknowledged { .. } | Told::Refused(_), _) => return false,
        }
        self.counts.open -= 1;
        operation.told = told;
        true
    }
}

/// Compares what clients were told with a log that was read afterwards. With `complete` nobody is at work any more: the log
/// must hold exactly what was acknowledged.
#[must_use]
pub fn check(
    page: &BTreeMap<CommandId, Operation>,
    history: &History,
    complete: bool,
) -> Violations {
    let mut found = Violations::default();
    for (id, places) in &history.accepted {
        if places.len() > 1 {
            found.duplicated += 1;
            let words = format!("{id} is accepted {} times: {places:?}", places.len());
            found.words.push(words);
        }
        match page.get(id) {
            None if complete => found.note(format!("{id} at {places:?} was never asked for")),
            Some(one) if complete && one.told == Told::Open => {
                found.note(format!("{id} at {places:?} was never answered"));
            }
            None | Some(_) => {}
        }
    }
    for (id, operation) in page {
        let places = history.accepted.get(id).map_or(&[][..], Vec::as_slice);
        match &operation.told {
            Told::Open => {}
            Told::Acknowledged { position, .. } => {
                let there = places.iter().any(|place| place.0 == *position);
                if !there {
                    found.lost += 1;
                    found.words.push(format!(
                        "{id} ({}) was acknowledged at {position}, the log has it at {places:?} and ends at {}",
                        operation.reason,
                        history.state.position
                    ));
                } else if history.reasons.get(id) != Some(&operation.reason) {
                    found.note(format!("{id} is not what was asked for"));
                }
            }
            Told::Refused(code) => {
                if !places.is_empty() {
                    found.resurrected += 1;
                    let words = format!("{id} was refused ({code}) and is accepted at {places:?}");
                    found.words.push(words);
                }
            }
        }
    }
    found.other += disorder(page, &mut found.words);
    found
}

/// What was begun after something else was acknowledged must stand behind it.
fn disorder(page: &BTreeMap<CommandId, Operation>, words: &mut Vec<String>) -> u64 {
    let mut moments: Vec<(u64, bool, u64)> = Vec::new();
    for operation in page.values() {
        if let Told::Acknowledged { position, at } = operation.told {
            moments.push((operation.begun, false, position));
            moments.push((at, true, position));
        }
    }
    moments.sort_unstable();
    let (mut highest, mut found) = (0, 0);
    for (_, acknowledged, position) in moments {
        if acknowledged {
            highest = highest.max(position);
        } else if position < highest {
            found += 1;
            words.push(format!(
                "{position} was begun after {highest} was acknowledged"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::Position;

    fn history(accepted: &[(CommandId, &[u64])], ledger: &Ledger) -> History {
        let page = ledger.page();
        let mut history = History::default();
        for (id, places) in accepted {
            let places = places.iter().copied().map(Position).collect();
            history.accepted.insert(*id, places);
            let reason = page.get(id).map(|one| one.reason.clone());
            history.reasons.insert(*id, reason.unwrap_or_default());
        }
        history
    }

    fn count(found: &Violations) -> [u64; 4] {
        [found.lost, found.resurrected, found.duplicated, found.other]
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let ledger = Ledger::default();
        let [(one, _), (two, _), (three, _)] = [ledger.begin(), ledger.begin(), ledger.begin()];
        assert!(ledger.acknowledged(one, 5) && ledger.refused(two, "stale_revision"));
        type Accepted<'a> = &'a [(CommandId, &'a [u64])];
        let cases: [(Accepted<'_>, [u64; 4]); 5] = [
            (&[(one, &[5])], [0, 0, 0, 0]),
            (&[], [1, 0, 0, 0]),
            (&[(one, &[5]), (two, &[6])], [0, 1, 0, 0]),
            (&[(one, &[5, 7])], [0, 0, 1, 0]),
            (&[(one, &[5]), (three, &[6])], [0, 0, 0, 1]),
        ];
        for (accepted, wanted) in cases {
            let found = check(&ledger.page(), &history(accepted, &ledger), true);
            assert_eq!(count(&found), wanted, "{accepted:?}: {:?}", found.words);
        }
        assert!(!ledger.refused(one, "late"), "acknowledged before");
    }

    #[test]
    fn what_was_begun_later_stands_behind() {
        let ledger = Ledger::default();
        let (one, _) = ledger.begin();
        ledger.acknowledged(one, 5);
        let (two, _) = ledger.begin();
        ledger.acknowledged(two, 4);
        let there = history(&[(one, &[5]), (two, &[4])], &ledger);
        assert_eq!(count(&check(&ledger.page(), &there, true)), [0, 0, 0, 1]);
    }
}
