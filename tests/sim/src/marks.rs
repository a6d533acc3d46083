//! What was reached: each fault injected and each branch taken, counted, so that a net that meets nothing is noticed.

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Debug, Clone, Default)]
pub struct Marks(BTreeMap<&'static str, u64>);

impl Marks {
    /// It was reached.
    pub fn hit(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Marks) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// How often.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// Every kind of fault; a run of some hundred seeds meets them all.
pub const FAULTS: &[&str] = &[
    "request to the broker lost",
    "answer of the broker lost",
    "append lands after its caller gave up",
    "append duplicate acknowledged",
    "append conflict with itself",
    "append conflict unresolved (10164)",
    "append in process (10158)",
    "append refused (full disk)",
    "two winners let in",
    "positions with gaps",
    "broker away",
    "delivery lost",
    "delivery repeated",
    "redelivery from an older position",
    "consumer stops silently",
    "cut off both ways",
    "cut off from the broker",
    "cut off from answers",
    "service killed",
    "service loses power",
    "service store wiped",
    "service folder wiped",
    "service stands still",
    "service store cannot be written",
    "agent killed",
    "agent loses power",
    "agent copy wiped",
    "agent folder wiped",
    "agent stands still",
    "agent too old for a record",
    "service too old for a record",
    "agent upgraded",
    "clock leaps forward",
    "clock leaps back",
    "record of a future version",
    "log deleted",
    "log made anew",
    "log put back to an older state",
    "log put back and grown past a reader",
    "reply to a client lost",
    "command sent twice at once",
    "command sent to another service",
    "key used with another body",
    "frontend restarts",
    "router recreated",
    "router retired",
    "router left out of a listing",
    "frontend does not answer",
    "frontend is slow",
    "frontend call lost",
    "frontend answer lost",
    "frontend change lands late",
    "frontend acknowledges and ignores",
    "router changed by somebody else",
    "thresholds changed by somebody else",
];

/// Every branch that must be reached.
pub const BRANCHES: &[&str] = &[
    "write accepted",
    "write repeated",
    "write refused: stale",
    "write refused: other",
    "write lost: void record",
    "write lost or refused after a conflict",
    "write outcome unknown",
    "write unavailable",
    "write refused: overloaded",
    "write refused: key reused",
    "write refused: foreign log",
    "write joined",
    "commit attributed after a conflict",
    "commit definite conflict",
    "commit indeterminate",
    "commit waits",
    "service asks for the head again",
    "service refuses the log",
    "service store write failed",
    "void record",
    "unreadable record",
    "set of changes accepted",
    "parameter registered",
    "revert accepted",
    "bootstrap from tails",
    "bootstrap replays",
    "agent starts from its copy",
    "agent refuses the log",
    "agent without the log",
    "feed made again",
    "feed ended",
    "patch applied",
    "patch conflict",
    "patch refused",
    "router gone",
    "thresholds set",
    "state applied",
    "state refused",
    "state stopped",
    "state unsupported",
    "drift seen",
    "fleet converged",
    "fleet refused",
    "fleet pending",
    "fleet without a router",
    "operator adopts",
    "healed and converged",
];
