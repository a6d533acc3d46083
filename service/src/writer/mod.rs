//! The command loop: decide on the current state, commit, wait for the own projection, read the verdict.
//!
//! Owns: idempotency (by `command_id`), what a lost race means, and how many writes run at once.
//! Never does: retry or attribute an append (that is `event_log::commit`), or judge a record (that is the fold).
//!
//! Invariants:
//! - a write goes on when its client is gone: it runs in its own task, so an append is always followed to its verdict;
//! - a refusal is only given when no record of the command is, or can get, in the log;
//! - one command is worked on once at a time; whoever sends it again meanwhile gets the same outcome.

pub mod admission;
mod attempt;
pub mod fingerprint;
pub mod machine;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::EventLog;
use event_log::ambient::Tasks;
use schemas::decide::{Command, Order};
use schemas::event::Actor;
use schemas::{CommandId, Hash, PolicyKey, Position, Rejection, Revision, Timestamp};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::projection::Projection;
use admission::{Admission, Doubtful};

/// A write that is in the log and counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The command.
    pub command_id: CommandId,
    /// Its record.
    pub position: Position,
    /// True when the command was made before and this is its first outcome.
    pub repeated: bool,
}

/// Why a write is not, or not known to be, done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WriteError {
    /// Refused; nothing is in the log.
    #[error("{rejection}")]
    Refused {
        /// Why.
        rejection: Box<Rejection>,
        /// The newer change, where one made it stale.
        newer: Option<Box<Newer>>,
    },
    /// A change that was decided at the same time won; nothing was changed.
    #[error("another change was made at the same time: {why}")]
    Lost {
        /// What was in the way.
        why: String,
        /// The newer change.
        newer: Option<Box<Newer>>,
        /// The void record of this command, when it has one.
        position: Option<Position>,
    },
    /// The command's id was used for another request.
    #[error("this idempotency key was used with another request")]
    KeyReused {
        /// The record of that request, once it has one.
        position: Option<Position>,
    },
    /// The record is in the log, but this version cannot judge it.
    #[error("the record cannot be judged by this version: {0}")]
    Unreadable(String),
    /// It may be in the log.
    #[error("it could not be found out whether the change is in the log: {0}")]
    Unknown(String),
    /// The log cannot be reached; nothing of this attempt is in the log. (Of an attempt elsewhere under the same key nothing
    /// is known: the HTTP API says so.)
    #[error("the log cannot be written: {0}")]
    Unavailable(String),
    /// The log is another one than before; nothing of this attempt is in the log.
    #[error("{0}")]
    Foreign(String),
    /// Too many writes in progress; this attempt was not begun.
    #[error("too many writes in progress")]
    Overloaded,
    /// The local store failed before anything was appended.
    #[error("the local store cannot be read: {0}")]
    Store(String),
}

/// A change that came first.
#[derive(Debug, Clone, PartialEq)]
pub struct Newer {
    /// The revision that it made.
    pub revision: Revision,
    /// Who.
    pub actor: Option<Actor>,
    /// When.
    pub at: Option<Timestamp>,
    /// Its record.
    pub position: Position,
}

/// The outcome of a write.
pub type Outcome = Result<Written, WriteError>;

type Waiting = BTreeMap<CommandId, (Hash, watch::Receiver<Option<Outcome>>)>;

/// Takes writes.
pub struct Writer {
    log: Arc<dyn EventLog>,
    projection: Arc<Projection>,
    metrics: Arc<Metrics>,
    tasks: Tasks,
    in_flight: Mutex<Waiting>,
    permits: Arc<Semaphore>,
    timeout: Duration,
    doubtful: Mutex<Doubtful>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl Writer {
    /// At most `writes_max` writes run at once, each for at most `timeout`.
    #[must_use]
    pub fn new(
        log: Arc<dyn EventLog>,
        projection: Arc<Projection>,
        metrics: Arc<Metrics>,
        tasks: Tasks,
        writes_max: usize,
        timeout: Duration,
    ) -> Writer {
        Writer {
            log,
            projection,
            metrics,
            tasks,
            in_flight: Mutex::default(),
            permits: Arc::new(Semaphore::new(writes_max)),
            timeout,
            doubtful: Mutex::default(),
        }
    }

    /// Makes a change. `command.fingerprint` is set here.
    ///
    /// # Errors
    /// [`WriteError`].
    pub async fn write(self: &Arc<Self>, mut command: Command) -> Outcome {
        command.fingerprint = fingerprint::fingerprint(&command);
        let mut outcome = self.join(command)?;
        let done = outcome.wait_for(Option::is_some).await;
        match done {
            Ok(done) => done
                .clone()
                .unwrap_or_else(|| Err(WriteError::Unknown("it was given up".to_owned()))),
            Err(_) => Err(WriteError::Unknown("the service stops".to_owned())),
        }
    }

    /// Joins the same command in flight, or begins it.
    fn join(
        self: &Arc<Self>,
        command: Command,
    ) -> Result<watch::Receiver<Option<Outcome>>, WriteError> {
        let id = command.command_id;
        let mut in_flight = self.in_flight();
        let known = in_flight.get(&id);
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        let admission = self.doubtful().admit(
            id,
            command.fingerprint,
            known.map(|(fingerprint, _)| *fingerprint),
            permit.is_some(),
        );
        match admission {
            Admission::Begin => {}
            Admission::Join => {
                let gone = || WriteError::Unknown("it was given up".to_owned());
                return known.map(|(_, outcome)| outcome.clone()).ok_or_else(gone);
            }
            Admission::Refuse(why) => {
                if permit.is_none() && known.is_none() {
                    self.metrics.limit("writes");
                    self.metrics.write("overloaded", Duration::ZERO);
                }
                return Err(why);
            }
        }
        let (tell, outcome) = watch::channel(None);
        in_flight.insert(id, (command.fingerprint, outcome.clone()));
        drop(in_flight);
        let writer = Arc::clone(self);
        self.metrics.writes_in_progress.inc();
        self.tasks.start("write", async move {
            let started = Instant::now();
            let deadline = started + writer.timeout;
            // Removed also when this task is dropped half way.
            let _gone = Gone(&writer, id);
            let outcome = writer.decide_and_commit(&command, deadline).await;
            let outcome = writer.doubtful().judge(id, outcome);
            writer.report(&command, &outcome, started.elapsed());
            tell.send_replace(Some(outcome));
            drop(permit);
        });
        Ok(outcome)
    }

    fn in_flight(&self) -> MutexGuard<'_, Waiting> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn doubtful(&self) -> MutexGuard<'_, Doubtful> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, command: &Command, outcome: &Outcome, took: Duration) {
        let command_id = command.command_id;
        let scope = scope_of(&command.order);
        let name = match outcome {
            Ok(Written {
                position, repeated, ..
            }) => {
                tracing::info!(%command_id, %position, scope, repeated, "change made");
                if *repeated { "repeated" } else { "accepted" }
            }
            Err(why) => {
                let name = match why {
                    WriteError::Refused { .. }
                    | WriteError::KeyReused { .. }
                    | WriteError::Unreadable(_) => "refused",
                    WriteError::Lost { .. } => "conflict",
                    WriteError::Unknown(_) => "unknown",
                    WriteError::Unavailable(_) | WriteError::Foreign(_) | WriteError::Store(_) => {
                        "unavailable"
                    }
                    WriteError::Overloaded => "overloaded",
                };
                if matches!(name, "unknown" | "unavailable") {
                    tracing::warn!(%command_id, scope, error = %why, "change not made");
                }
                name
            }
        };
        self.metrics.write(name, took);
    }
}

/// Takes a command out of those in flight.
struct Gone<'a>(&'a Writer, CommandId);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.in_flight().remove(&self.1);
        self.0.metrics.writes_in_progress.dec();
    }
}

/// The policies that an order names.
#[must_use]
pub fn policies_of(order: &Order) -> Vec<PolicyKey> {
    match order {
        Order::ChangePolicies(orders) => orders.iter().map(|order| order.policy.clone()).collect(),
        Order::RegisterParameter { .. } => Vec::new(),
    }
}

fn scope_of(order: &Order) -> String {
    match order {
        Order::ChangePolicies(orders) => match orders.as_slice() {
            [one] => one.policy.to_string(),
            several => format!("{} policies", several.len()),
        },
        Order::RegisterParameter { name, .. } => format!("parameter {name}"),
    }
}
