//! Is a history linearizable? Judged per policy, as a register of revisions with compare-and-swap; and do reads with a
//! position see what was acknowledged up to it?
//!
//! Wing and Gong's search (place an operation that nothing unplaced precedes, go on, go back when stuck), where this register
//! leaves no choice, so that it never has to go back:
//! - an operation that changes nothing (a read, a refusal) is placed as soon as it fits: it may come first of all that
//!   overlap it, and whatever holds after it held before it;
//! - a revision that an acknowledgement or a read names was made by that command and no other;
//! - of the changes of unknown outcome that nobody saw, one that fits nowhere else comes first; else any: none of them ever
//!   ends, so whichever is left fits later.
//!
//! Written here because no maintained crate decides histories of thousands of operations (stateright's tester tries every
//! order, without a memory).

use std::collections::BTreeMap;

use schemas::CommandId;

use super::{Operation, Register, What};

/// Why a history is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// No order of the operations explains the answers.
    #[error(
        "policy {policy}: no order explains the answers; {placed} of {all} operations fit, then at {state:?} none of {stuck:?} does"
    )]
    NotLinearizable {
        /// Where.
        policy: usize,
        /// The longest beginning that fits.
        placed: usize,
        /// Operations in all.
        all: usize,
        /// The register there.
        state: Register,
        /// Operations that had to come next (at most five).
        stuck: Vec<Operation>,
    },
    /// A replica said that it had reached a position and did not show a change that was acknowledged at or before it.
    #[error("a read at position {position} does not show the change at {written}: {read:?}")]
    Missed {
        /// The change's place.
        written: u64,
        /// How far the replica said to be.
        position: u64,
        /// The read.
        read: Box<Operation>,
    },
    /// A replica answered although it had not reached the position that was asked for.
    #[error("a read that asked for more than the replica had was answered: {0:?}")]
    TooEarly(Box<Operation>),
}

/// What a judged history held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Judged {
    /// Policies.
    pub policies: usize,
    /// Acknowledged changes.
    pub written: usize,
    /// Refused changes.
    pub refused: usize,
    /// Changes of unknown outcome.
    pub unknown: usize,
    /// Reads that had to be fresh.
    pub reads: usize,
    /// Reads with a position.
    pub reads_after: usize,
}

/// Judges a history.
///
/// # Errors
/// The first [`Violation`].
pub fn check(history: &[Operation]) -> Result<Judged, Violation> {
    let mut judged = Judged::default();
    let mut policies: BTreeMap<usize, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        let here = policies.entry(operation.policy).or_default();
        match &operation.what {
            What::Written { .. } => judged.written += 1,
            What::Refused { .. } => judged.refused += 1,
            What::Unknown { .. } => judged.unknown += 1,
            What::Read { .. } => judged.reads += 1,
            What::ReadAfter { .. } => judged.reads_after += 1,
        }
        here.push(operation);
    }
    judged.policies = policies.len();
    for (policy, mut operations) in policies {
        operations.sort_by_key(|operation| operation.began_us);
        check_positions(&operations)?;
        // Reads with a position may be stale beyond it: they are judged by position alone.
        operations.retain(|operation| !matches!(operation.what, What::ReadAfter { .. }));
        Walk::new(policy, &operations).run()?;
    }
    Ok(judged)
}

/// A read at a position shows exactly the last change up to it.
fn check_positions(operations: &[&Operation]) -> Result<(), Violation> {
    let written: BTreeMap<u64, Register> = operations
        .iter()
        .filter_map(|operation| match operation.what {
            What::Written {
                command,
                revision,
                position,
                ..
            } => Some((
                position,
                Register {
                    revision,
                    command: Some(command),
                },
            )),
            What::Refused { .. }
            | What::Unknown { .. }
            | What::Read { .. }
            | What::ReadAfter { .. } => None,
        })
        .collect();
    for operation in operations {
        let What::ReadAfter {
            at_least,
            seen,
            position,
        } = operation.what
        else {
            continue;
        };
        let read = || Box::new((*operation).clone());
        if position < at_least {
            return Err(Violation::TooEarly(read()));
        }
        // A change of unknown outcome may lie between that one and the position: then the revision is higher.
        if let Some((at, last)) = written.range(..=position).next_back() {
            let shown = seen.revision > last.revision || seen == *last;
            if !shown {
                return Err(Violation::Missed {
                    written: *at,
                    position,
                    read: read(),
                });
            }
        }
    }
    Ok(())
}

/// One order, as it grows.
struct Walk<'a> {
    policy: usize,
    operations: &'a [&'a Operation],
    /// Who made a revision, where somebody was told.
    makers: BTreeMap<u64, CommandId>,
    /// The revision that a command made, the same way.
    made: BTreeMap<CommandId, u64>,
    placed: Vec<bool>,
    /// Operations that must still be placed: all but the unknown ones.
    due: usize,
    /// Everything before it is placed.
    first: usize,
    state: Register,
}

impl<'a> Walk<'a> {
    /// `operations` by beginning.
    fn new(policy: usize, operations: &'a [&'a Operation]) -> Walk<'a> {
        let told: Vec<(u64, CommandId)> = operations
            .iter()
            .filter_map(|operation| match operation.what {
                What::Written {
                    command, revision, ..
                } => Some((revision, command)),
                What::Read { seen } => seen.command.map(|command| (seen.revision, command)),
                What::Refused { .. } | What::Unknown { .. } | What::ReadAfter { .. } => None,
            })
            .collect();
        Walk {
            policy,
            operations,
            // Where two were told different things one of the two operations will not fit.
            makers: told.iter().copied().collect(),
            made: told
                .iter()
                .map(|(revision, command)| (*command, *revision))
                .collect(),
            placed: vec![false; operations.len()],
            due: operations.iter().filter(|one| !is_unknown(one)).count(),
            first: 0,
            state: Register::EMPTY,
        }
    }

    fn run(mut self) -> Result<(), Violation> {
        loop {
            self.place_what_changes_nothing();
            if self.due == 0 {
                return Ok(());
            }
            let Some((at, next)) = self.next_change() else {
                return Err(self.violation());
            };
            self.place(at);
            self.state = next;
        }
    }

    /// Operations that may come next: not placed, and begun before the first end among those that must be placed.
    fn candidates(&self) -> Vec<usize> {
        let mut horizon = u64::MAX;
        let mut found = Vec::new();
        for at in self.first..self.operations.len() {
            let operation = self.operations[at];
            // By beginning: once one begins after that end, so do all that follow.
            if operation.began_us > horizon {
                break;
            }
            if !self.placed[at] {
                found.push(at);
                if !is_unknown(operation) {
                    horizon = horizon.min(operation.ended_us);
                }
            }
        }
        found
    }

    fn place(&mut self, at: usize) {
        self.placed[at] = true;
        self.due -= usize::from(!is_unknown(self.operations[at]));
    }

    fn place_what_changes_nothing(&mut self) {
        loop {
            let state = self.state;
            let fits: Vec<usize> = self
                .candidates()
                .into_iter()
                .filter(|at| match self.operations[*at].what {
                    What::Read { seen } => seen == state,
                    What::Refused { expected, .. } => expected != state.revision,
                    What::Written { .. } | What::Unknown { .. } | What::ReadAfter { .. } => false,
                })
                .collect();
            for at in &fits {
                self.place(*at);
            }
            while self.placed.get(self.first) == Some(&true) {
                self.first += 1;
            }
            if fits.is_empty() {
                return;
            }
        }
    }

    /// The change that makes the next revision.
    fn next_change(&self) -> Option<(usize, Register)> {
        let next = self.state.revision + 1;
        let maker = self.makers.get(&next);
        let fitting: Vec<(usize, CommandId, Option<u64>)> = self
            .candidates()
            .into_iter()
            .filter_map(|at| {
                let (command, expected, made) = match self.operations[at].what {
                    What::Written {
                        command,
                        expected,
                        revision,
                        ..
                    } => (command, expected, Some(revision)),
                    What::Unknown { command, expected } => {
                        (command, expected, self.made.get(&command).copied())
                    }
                    What::Refused { .. } | What::Read { .. } | What::ReadAfter { .. } => {
                        return None;
                    }
                };
                let fits = expected.is_none_or(|expected| expected == self.state.revision)
                    && made.is_none_or(|made| made == next)
                    && maker.is_none_or(|maker| *maker == command);
                fits.then_some((at, command, expected))
            })
            .collect();
        let (at, command, _) = fitting
            .iter()
            .find(|(_, _, expected)| expected.is_some())
            .or(fitting.first())?;
        let register = Register {
            revision: next,
            command: Some(*command),
        };
        Some((*at, register))
    }

    fn violation(&self) -> Violation {
        Violation::NotLinearizable {
            policy: self.policy,
            placed: self.placed.iter().filter(|placed| **placed).count(),
            all: self.operations.len(),
            state: self.state,
            stuck: self
                .candidates()
                .into_iter()
                .take(5)
                .map(|at| self.operations[at].clone())
                .collect(),
        }
    }
}

fn is_unknown(operation: &Operation) -> bool {
    matches!(operation.what, What::Unknown { .. })
}

#[cfg(test)]
mod tests;
