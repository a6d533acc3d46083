//! What the crashes of one kind of process came to.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ledger::{Counts, Violations};

/// The tally of one kind.
#[derive(Debug, Default)]
pub struct Report {
    /// Which.
    pub kind: &'static str,
    /// SIGKILLs and aborts at named points.
    pub kills: u64,
    /// Of these, by named point.
    pub points: BTreeMap<String, u64>,
    /// What clients were told, over all rounds.
    pub counts: Counts,
    /// Times from start to ready.
    pub restarts: Vec<Duration>,
    /// Stores that came back as they were, compared pair by pair with the log.
    pub compared: u64,
    /// Stores that were set aside after a plain kill, with why.
    pub set_aside: Vec<String>,
    /// What must not be.
    pub violations: Violations,
}

impl Report {
    /// An empty one.
    #[must_use]
    pub fn new(kind: &'static str) -> Report {
        Report {
            kind,
            ..Report::default()
        }
    }

    /// Counts a kill.
    pub fn killed(&mut self, point: Option<&str>) {
        self.kills += 1;
        if let Some(point) = point {
            let name = point.split('#').next().unwrap_or(point);
            *self.points.entry(name.to_owned()).or_default() += 1;
        }
    }

    /// Adds what clients of one stage were told.
    pub fn told(&mut self, counts: Counts) {
        self.counts.acknowledged += counts.acknowledged;
        self.counts.refused += counts.refused;
        self.counts.open += counts.open;
    }

    /// Notes a violation, and says it at once.
    pub fn violation(&mut self, words: String) {
        println!("VIOLATION ({}) {words}", self.kind);
        self.violations.note(words);
    }

    /// Adds violations, and says them.
    pub fn violated(&mut self, found: Violations) {
        for words in &found.words {
            println!("VIOLATION ({}) {words}", self.kind);
        }
        self.violations.add(found);
    }

    /// The lines for people.
    pub fn print(&mut self) {
        self.restarts.sort_unstable();
        let middle = self.restarts.get(self.restarts.len() / 2);
        let ms = |time: Option<&Duration>| time.map_or(0, Duration::as_millis);
        println!(
            "{:<9} kills {:>4}, acknowledged {:>6}, refused {:>5}, lost {}, resurrected refusals {}, duplicated commands {}, other violations {}; stores compared {}; restart median {} ms, worst {} ms",
            self.kind,
            self.kills,
            self.counts.acknowledged,
            self.counts.refused,
            self.violations.lost,
            self.violations.resurrected,
            self.violations.duplicated,
            self.violations.other,
            self.compared,
            ms(middle),
            ms(self.restarts.last()),
        );
        let points: Vec<String> = self
            .points
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if !points.is_empty() {
            println!("          at named points: {}", points.join(", "));
        }
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for why in &self.set_aside {
            let why = why.split(';').next().unwrap_or(why);
            *reasons.entry(why).or_default() += 1;
        }
        for (why, count) in reasons {
            println!("          set aside after a plain kill: {count} x {why}");
        }
    }
}
