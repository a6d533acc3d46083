//! One suite that every adapter passes: the port's contract as named checks, with nothing but the port.
//!
//! Each check works on a log of its own, fresh from the [`Factory`], so checks cannot disturb each other.

mod bootstrapping;
mod committing;
mod following;
mod reading;
mod records;
mod writing;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::port::{EventLog, Failure, Head, Seen};

/// Makes logs for the checks.
#[async_trait]
pub trait Factory: Send + Sync {
    /// A new, empty log.
    async fn fresh(&self) -> Arc<dyn EventLog>;

    /// The same log after everything that holds it in this process was closed; `None` for a log that does not outlive its
    /// process.
    async fn reopen(&self, log: Arc<dyn EventLog>) -> Option<Arc<dyn EventLog>>;
}

/// What came of one check.
#[derive(Debug, Clone)]
pub struct Checked {
    /// The behaviour.
    pub name: &'static str,
    /// Why it does not hold, when it does not.
    pub outcome: Result<(), String>,
    /// How long the check took.
    pub took: Duration,
}

/// What came of the suite.
#[derive(Debug, Clone)]
pub struct Report {
    /// The adapter.
    pub name: String,
    /// Every check, in order.
    pub checks: Vec<Checked>,
}

impl Report {
    /// Checks that hold.
    #[must_use]
    pub fn passed(&self) -> usize {
        let passed = self.checks.iter().filter(|check| check.outcome.is_ok());
        passed.count()
    }

    /// True when every check holds.
    #[must_use]
    pub fn conforms(&self) -> bool {
        self.passed() == self.checks.len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} of {} checks",
            self.name,
            self.passed(),
            self.checks.len()
        )?;
        for check in &self.checks {
            let took = check.took.as_millis();
            match &check.outcome {
                Ok(()) => writeln!(f, "  ok      {:>6} ms  {}", took, check.name)?,
                Err(why) => writeln!(f, "  FAILED  {:>6} ms  {}: {why}", took, check.name)?,
            }
        }
        Ok(())
    }
}

type Outcome = Result<(), String>;
type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;
type Check = (&'static str, for<'a> fn(&'a dyn Factory) -> Running<'a>);

macro_rules! checks {
    ($($module:ident :: $name:ident),* $(,)?) => {
        &[$((stringify!($name), |factory| Box::pin($module::$name(factory)))),*]
    };
}

const CHECKS: &[Check] = checks![
    writing::the_first_record_expects_the_start,
    writing::a_stale_expectation_stores_nothing,
    writing::subjects_are_independent,
    writing::positions_rise_over_all_subjects,
    writing::an_identical_resend_is_a_conflict_and_stores_nothing,
    writing::of_200_writers_one_wins_each_place,
    writing::a_record_of_900_kib_is_kept_byte_for_byte,
    writing::bytes_that_are_no_text_are_kept,
    reading::an_empty_log_is_empty_and_not_an_error,
    reading::the_head_is_the_last_record,
    reading::next_on_finds_the_first_later_record_of_the_subject,
    reading::at_finds_exactly_that_position,
    reading::tails_hold_the_last_record_of_every_subject,
    reading::tails_of_2000_subjects_are_complete,
    reading::tails_under_writers_miss_nothing_up_to_their_head,
    reading::odd_names_stay_apart,
    reading::reopening_keeps_everything,
    following::a_follower_gets_everything_once_and_in_order,
    following::a_follower_starts_in_the_middle,
    following::a_follower_misses_nothing_while_others_write,
    following::a_cancelled_wait_loses_nothing,
    following::a_quiet_follower_waits,
    following::another_identity_is_refused,
    following::a_log_that_ends_before_what_was_seen_is_refused,
    committing::commit_finds_its_record_whatever_was_lost,
    committing::a_late_write_is_attributed,
    committing::a_lost_race_is_a_conflict_with_the_winner,
    committing::faults_from_seeds_never_store_twice_nor_lose,
    bootstrapping::a_bootstrap_equals_a_replay,
    bootstrapping::a_bootstrap_with_void_records_and_sets_equals_a_replay,
];

/// Bound: one check; longer means that something hangs.
const CHECK_MAX: Duration = Duration::from_secs(60);

/// Runs every check.
pub async fn run(name: &str, factory: &dyn Factory) -> Report {
    run_some(name, factory, |_| true).await
}

/// Runs the checks whose name is chosen.
pub async fn run_some(name: &str, factory: &dyn Factory, chosen: impl Fn(&str) -> bool) -> Report {
    let mut checks = Vec::new();
    for (check, run) in CHECKS.iter().filter(|(check, _)| chosen(check)) {
        let begun = tokio::time::Instant::now();
        let outcome = tokio::time::timeout(CHECK_MAX, run(factory))
            .await
            .unwrap_or_else(|_| Err(format!("took longer than {CHECK_MAX:?}")));
        checks.push(Checked {
            name: check,
            outcome,
            took: begun.elapsed(),
        });
    }
    Report {
        name: name.to_owned(),
        checks,
    }
}

fn said(why: Failure) -> String {
    why.to_string()
}

/// Fails the check unless the two are equal.
fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: found {found:?}, expected {expected:?}"))
    }
}

async fn head(log: &Arc<dyn EventLog>) -> Result<Head, String> {
    log.head().await.map_err(said)
}

async fn seen(log: &Arc<dyn EventLog>, position: u64) -> Result<Seen, String> {
    Ok(Seen {
        log_id: head(log).await?.log_id,
        position: schemas::Position(position),
        record: None,
    })
}
