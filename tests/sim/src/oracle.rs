//! What must be true, judged apart from the workload: a second fold of the log as the broker really has it, and every claim
//! that a node makes about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use event_log::Entry;
use schemas::event::{Event, chain_hash};
use schemas::state::{Reading, State, Verdict};
use schemas::{CommandId, Hash, LogId, PolicyKey, Position, Revision};

/// The log folded up to one record.
#[derive(Debug)]
pub struct Fold {
    /// As today's version reads it.
    pub state: State,
    /// As a version that does not know sets reads it.
    pub old: State,
    /// The chain.
    pub chain: Hash,
    /// What became of the record.
    pub verdict: Verdict,
}

/// What was said to clients about one request of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is in the log at this position, and counts.
    Accepted(Position),
    /// It is not in the log, and never will be (or its record is void).
    Refused,
}

/// The judge.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Folds of the present log, one per record.
    folds: Vec<Arc<Fold>>,
    /// Every fold that any log ever had, by place.
    ever: BTreeMap<(LogId, Position), Vec<Arc<Fold>>>,
    /// Accepted records of the present log.
    accepted: BTreeMap<(CommandId, Hash), Position>,
    /// The last accepted record of each policy.
    revisions: BTreeMap<PolicyKey, (Revision, Position)>,
    claims: BTreeMap<(CommandId, Hash), Claim>,
    /// The newest record was let in although its place was taken. A command whose void record was answered before the
    /// broker lets in another one of it cannot be answered rightly by anybody.
    pub let_in: bool,
    /// The log lost records: claims about those no longer hold.
    pub destroyed: bool,
    /// What was found wrong.
    pub violations: Vec<String>,
}

/// As a version that does not know sets reads a record.
#[must_use]
pub fn read_as_old(subject: &schemas::Subject, bytes: &[u8]) -> Reading {
    match migrations::read(subject, bytes) {
        Reading::Known(record) => match &record.event {
            Event::PoliciesChanged { changes } if changes.len() > 1 => Reading::Unknown {
                command_id: Some(record.command_id),
                why: "a set".to_owned(),
                policies: Some(changes.iter().map(|change| change.key()).collect()),
            },
            Event::PoliciesChanged { .. } | Event::ParameterRegistered { .. } => {
                Reading::Known(record)
            }
        },
        unknown @ Reading::Unknown { .. } => unknown,
    }
}

impl Oracle {
    /// Notes what is wrong.
    pub fn violation(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    /// A record stands in the log now. Gives back what became of it.
    pub fn stored(&mut self, log_id: LogId, entry: &Entry) -> Verdict {
        let before = self.folds.last();
        let mut state = before.map(|fold| fold.state.clone()).unwrap_or_default();
        let mut old = before.map(|fold| fold.old.clone()).unwrap_or_default();
        let chain = before.map_or(Hash::ZERO, |fold| fold.chain);
        let reading = migrations::read(&entry.subject, &entry.bytes);
        let verdict = state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        let reading_old = read_as_old(&entry.subject, &entry.bytes);
        old.evolve(entry.position, &entry.subject, &entry.bytes, &reading_old);
        if let (Reading::Known(record), Verdict::Accepted { .. }) = (&reading, &verdict) {
            self.accept(entry.position, record);
        }
        let fold = Arc::new(Fold {
            state,
            old,
            chain: chain_hash(chain, entry.position, &entry.subject, &entry.bytes),
            verdict: verdict.clone(),
        });
        self.ever
            .entry((log_id, entry.position))
            .or_default()
            .push(Arc::clone(&fold));
        self.folds.push(fold);
        verdict
    }

    fn accept(&mut self, position: Position, record: &schemas::event::Record) {
        let id = (record.command_id, record.fingerprint);
        if let Some(before) = self.accepted.insert(id, position) {
            self.violation(format!(
                "command {} has two accepted records: {before} and {position}",
                record.command_id
            ));
        }
        if self.claims.get(&id) == Some(&Claim::Refused) && !self.destroyed && !self.let_in {
            self.violation(format!(
                "command {} was said to be refused and is accepted at {position}",
                record.command_id
            ));
        }
        if let Event::PoliciesChanged { changes } = &record.event {
            for change in changes {
                let last = self.revisions.get(&change.key()).copied();
                let (revision, decided) = last.unwrap_or((Revision::ZERO, Position::START));
                if change.revision != revision.next() || change.decided_on != decided {
                    self.violation(format!(
                        "{} at {position}: revision {} follows {revision}",
                        change.key(),
                        change.revision
                    ));
                }
                self.revisions
                    .insert(change.key(), (change.revision, position));
            }
        }
    }

    /// A service said something about a command to its client.
    pub fn claimed(&mut self, id: CommandId, fingerprint: Hash, claim: Claim) {
        let known = (id, fingerprint);
        let there = self.accepted.get(&known).copied();
        match claim {
            Claim::Accepted(position) => {
                if there != Some(position) && !self.destroyed {
                    self.violation(format!(
                        "command {id} was said to be accepted at {position}, but {there:?} is true"
                    ));
                }
            }
            Claim::Refused => {
                if there.is_some() && !self.destroyed {
                    self.violation(format!(
                        "command {id} was said to be refused, but is accepted at {there:?}"
                    ));
                }
                if matches!(self.claims.get(&known), Some(Claim::Accepted(_))) && !self.destroyed {
                    self.violation(format!(
                        "command {id} was said to be accepted, then refused"
                    ));
                }
            }
        }
        self.claims.entry(known).or_insert(claim);
    }

    /// At the end: what was acknowledged is there, in order.
    pub fn acknowledged_is_there(&mut self) {
        if self.destroyed {
            return;
        }
        let lost: Vec<String> = self
            .claims
            .iter()
            .filter_map(|(id, claim)| match claim {
                Claim::Accepted(position) if self.accepted.get(id) != Some(position) => Some(
                    format!("acknowledged change {} at {position} is gone", id.0),
                ),
                Claim::Accepted(_) | Claim::Refused => None,
            })
            .collect();
        for what in lost {
            self.violation(what);
        }
    }

    /// The log lost everything after a position; `None` = everything.
    pub fn cut(&mut self, after: Option<Position>) {
        self.destroyed = true;
        self.claims.clear();
        let keep = after.map_or(0, |after| {
            self.folds
                .iter()
                .take_while(|fold| fold.state.position <= after)
                .count()
        });
        self.folds.truncate(keep);
        self.accepted
            .retain(|_, position| after.is_some_and(|after| *position <= after));
        self.revisions = self.folds.last().map_or_else(BTreeMap::new, |fold| {
            fold.state
                .policies
                .iter()
                .map(|(key, document)| (key.clone(), (document.revision, document.position)))
                .collect()
        });
    }

    /// A state that a node shows must be the fold of one log up to there.
    pub fn shown(
        &mut self,
        who: &str,
        log_id: Option<LogId>,
        state: &State,
        old: bool,
        chain: Option<Hash>,
    ) {
        if state.position == Position::START {
            return;
        }
        let Some(log_id) = log_id else {
            self.violation(format!("{who} shows a state of no log"));
            return;
        };
        // A position without a record (a gap at the end) has the state of the record before it.
        let found = self
            .ever
            .range((log_id, Position::START)..=(log_id, state.position))
            .next_back();
        let right = found.is_some_and(|(_, variants)| {
            variants.iter().any(|fold| {
                let wanted = if old { &fold.old } else { &fold.state };
                chain.is_none_or(|chain| chain == fold.chain) && same(wanted, state)
            })
        });
        if !right {
            let real = found
                .and_then(|(_, variants)| variants.last())
                .map(|fold| if old { &fold.old } else { &fold.state });
            let what = real.map_or_else(
                || "there is none".to_owned(),
                |real| difference(real, state),
            );
            self.violation(format!(
                "{who} shows a state at {} that no log ever had: {what}",
                state.position
            ));
        }
    }

    /// States of the present log from a position on, as one version reads them.
    pub fn since(&self, position: Position, old: bool) -> impl Iterator<Item = &State> {
        let first = self
            .folds
            .iter()
            .rposition(|fold| fold.state.position <= position)
            .unwrap_or(0);
        self.folds[first..]
            .iter()
            .map(move |fold| if old { &fold.old } else { &fold.state })
    }

    /// The present state.
    #[must_use]
    pub fn now(&self, old: bool) -> Option<&State> {
        self.folds
            .last()
            .map(|fold| if old { &fold.old } else { &fold.state })
    }

    /// The fold's chain at the end.
    #[must_use]
    pub fn chain(&self) -> Hash {
        self.folds.last().map_or(Hash::ZERO, |fold| fold.chain)
    }
}

/// Equal but for a gap at the end.
fn same(left: &State, right: &State) -> bool {
    left.policies == right.policies
        && left.registry == right.registry
        && left.tails == right.tails
        && left.stops == right.stops
        && left.stopped == right.stopped
}

/// Where two states differ first.
fn difference(real: &State, shown: &State) -> String {
    let policy = real
        .policies
        .keys()
        .chain(shown.policies.keys())
        .find(|key| real.policies.get(*key) != shown.policies.get(*key));
    if let Some(key) = policy {
        let at = |state: &State| state.policies.get(key).map(|document| document.position);
        return format!("{key} of {:?}, not {:?}", at(shown), at(real));
    }
    if real.tails != shown.tails {
        return format!("tails {:?}, not {:?}", shown.tails, real.tails);
    }
    if real.registry != shown.registry {
        return format!(
            "registry of {}, not {}",
            shown.registry.position, real.registry.position
        );
    }
    format!("stops {:?}, not {:?}", shown.stops, real.stops)
}
