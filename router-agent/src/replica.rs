//! The agent's replica: follows the log, keeps a local copy, and says how well it follows.
//!
//! Owns: the shell that moves the inputs and outputs of the pure [`machine`], and the local copy's writes.
//! Invariants: a log that is not the one followed so far is never followed (see [`crate::adopt`]); an agent that is behind
//! publishes the end state once, not every step; what is enforced never goes back within one process.

pub mod machine;
pub mod message;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use event_log::{Failure, Head, LogReader, Subscription, ambient, bootstrap, crash};
use schemas::Position;
use schemas::state::State;
use schemas::status::{LogFollowing, LogState};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::local_copy::{Kept, LocalCopy};
use machine::{Input, Output, ReplicaMachine};

/// What is followed, as the frontends' loops and the report see it.
#[derive(Debug, Clone)]
pub struct Followed {
    /// What is wanted; `None` while no policy is known.
    pub state: Option<Arc<State>>,
    /// How it is followed.
    pub log: LogFollowing,
}

impl Followed {
    /// At the start: the copy's state, if there is one.
    #[must_use]
    pub fn at_start(kept: Option<&Kept>) -> Followed {
        Followed {
            state: kept.map(|kept| Arc::new(kept.state.clone())),
            log: LogFollowing {
                state: kept.map_or(LogState::Starting, |_| LogState::LocalCopy),
                log_id: kept.map(|kept| kept.cursor.log_id),
                position: kept.map_or(Position::START, |kept| kept.cursor.position),
                error: None,
            },
        }
    }
}

/// First and longest wait before the log is tried again.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Nothing new for this long: the copy is made to survive a power cut.
pub const IDLE: Duration = Duration::from_millis(50);
/// How often the log's head is asked for while following.
pub const LOOK: Duration = Duration::from_secs(5);

type Probe = Pin<Box<dyn Future<Output = Result<Head, Failure>> + Send>>;

/// Follows the log.
pub struct Replica {
    log: Arc<dyn LogReader>,
    copy: LocalCopy,
    machine: ReplicaMachine,
    records: Option<Box<dyn Subscription>>,
    probe: Option<Probe>,
    followed: watch::Sender<Followed>,
}

impl Replica {
    /// Starts from the copy.
    #[must_use]
    pub fn new(
        log: Arc<dyn LogReader>,
        copy: LocalCopy,
        kept: Option<Kept>,
        followed: watch::Sender<Followed>,
    ) -> Replica {
        Replica {
            log,
            copy,
            machine: ReplicaMachine::new(kept),
            records: None,
            probe: None,
            followed,
        }
    }

    /// Follows until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut outputs = self.machine.step(Input::Start);
        loop {
            // Kept before it is published: writes are done before anything waits, so a stop tears none of them apart.
            let mut request = None;
            for output in outputs {
                request = self.carry_out(output).await.or(request);
            }
            let input = tokio::select! {
                () = stop.cancelled() => break,
                input = self.next(request) => input,
            };
            outputs = self.machine.step(input);
        }
        for output in self.machine.step(Input::Idle) {
            self.carry_out(output).await;
        }
    }

    /// Does what is done at once; gives back what has to be waited for.
    async fn carry_out(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Replace(kept) => {
                let copy = self.copy.clone();
                self.keep(move || copy.replace(&kept.0, kept.1)).await;
                None
            }
            Output::Advance(advance) => {
                crash::point("replica.before_keep");
                let copy = self.copy.clone();
                self.keep(move || {
                    copy.advance(
                        &advance.part,
                        advance.cursor,
                        &advance.subject,
                        &advance.changed,
                    )
                })
                .await;
                crash::point("replica.kept");
                None
            }
            Output::Sync => {
                let copy = self.copy.clone();
                self.keep(move || copy.sync()).await;
                None
            }
            Output::Publish(followed) => {
                self.publish(*followed);
                None
            }
            Output::AskHead
            | Output::Find(_)
            | Output::Bootstrap
            | Output::Follow(_)
            | Output::Wait { .. } => Some(output),
        }
    }

    /// Waits for what was asked for, or for whatever comes while following.
    async fn next(&mut self, request: Option<Output>) -> Input {
        match request {
            Some(Output::AskHead) => Input::Head(self.log.head().await),
            Some(Output::Find(position)) => Input::Found(self.log.at(position).await),
            Some(Output::Bootstrap) => {
                Input::Bootstrapped(bootstrap::bootstrap(&*self.log).await.map(Box::new))
            }
            Some(Output::Follow(seen)) => match self.log.follow(seen).await {
                Ok(records) => {
                    self.records = Some(records);
                    self.probe = Some(Box::pin(look(self.log.clone())));
                    Input::Followed(Ok(()))
                }
                Err(why) => Input::Followed(Err(why)),
            },
            Some(Output::Wait { attempt, foreign }) => {
                (self.records, self.probe) = (None, None);
                let wait = if foreign {
                    RETRY_MAX
                } else {
                    ambient::backoff(RETRY_MIN, RETRY_MAX, attempt)
                };
                tokio::time::sleep(wait).await;
                Input::Start
            }
            Some(Output::Replace(_) | Output::Advance(_) | Output::Sync | Output::Publish(_))
            | None => self.following().await,
        }
    }

    async fn following(&mut self) -> Input {
        let (records, probe, unsynced) =
            (&mut self.records, &mut self.probe, self.machine.unsynced());
        let record = async {
            match records {
                Some(records) => records.next().await,
                None => std::future::pending().await,
            }
        };
        let probed = async {
            match probe {
                Some(probe) => probe.await,
                None => std::future::pending().await,
            }
        };
        let idle = async {
            if !unsynced {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(IDLE).await;
        };
        tokio::select! {
            record = record => match record {
                Ok(entry) => {
                    let reading = migrations::read(&entry.subject, &entry.bytes);
                    Input::Record(entry, Box::new(reading))
                }
                Err(why) => Input::Ended(why),
            },
            () = idle => Input::Idle,
            seen = probed => {
                self.probe = Some(Box::pin(look(self.log.clone())));
                Input::Looked(seen)
            }
        }
    }

    /// A copy that cannot be written is no reason to stop enforcing: it is behind then, and caught up from the log.
    async fn keep(
        &mut self,
        write: impl FnOnce() -> Result<(), crate::store::StoreError> + Send + 'static,
    ) {
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => return,
            Ok(Err(why)) => tracing::error!(error = %why, "the local copy cannot be written"),
            Err(why) => tracing::error!(error = %why, "the local copy cannot be written"),
        }
        self.machine.not_kept();
    }

    fn publish(&self, next: Followed) {
        self.followed.send_if_modified(|followed| {
            let told = followed.log.state == next.log.state
                && followed.log.error.is_some() == next.log.error.is_some();
            if !told {
                tell(&next.log);
            }
            let same = match (&followed.state, &next.state) {
                (Some(before), Some(after)) => Arc::ptr_eq(before, after),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let changed = !same || followed.log != next.log;
            *followed = next;
            changed
        });
    }
}

fn tell(log: &LogFollowing) {
    let (state, position) = (log.state, log.position);
    match (state, &log.error) {
        (LogState::Refused, error) => {
            let error = error.as_deref().unwrap_or_default();
            tracing::error!(
                error,
                "the log is refused; the last known policy holds (see `router-agent adopt`)"
            );
        }
        (_, Some(error)) => tracing::warn!(?state, error, "the log is away"),
        (_, None) => tracing::info!(?state, %position, "log"),
    }
}

/// Asks for the head after a while.
async fn look(log: Arc<dyn LogReader>) -> Result<Head, Failure> {
    tokio::time::sleep(LOOK).await;
    log.head().await
}

#[cfg(test)]
mod tests;
