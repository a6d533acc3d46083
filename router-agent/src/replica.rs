//! The agent's replica: follows the log, keeps a local copy, and says how well it follows.
//!
//! Invariants: a log that is not the one followed so far is never followed (see [`crate::adopt`]); an agent that is behind
//! publishes the end state once, not every step; what is enforced never goes back within one process.

use std::sync::Arc;
use std::time::Duration;

use event_log::{Entry, Failure, Foreign, Head, LogReader, Seen, ambient, bootstrap, crash};
use schemas::event::{Event, record_hash};
use schemas::state::{Reading, State};
use schemas::status::{LogFollowing, LogState};
use schemas::{Hash, PolicyKey, Position};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::local_copy::{Cursor, Kept, LocalCopy};

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
const IDLE: Duration = Duration::from_millis(50);
/// How often the log's head is asked for while following.
const LOOK: Duration = Duration::from_secs(5);
/// Bound: records written without that.
const UNSYNCED_MAX: u32 = 1_000;
/// Further behind than this many places (with or without records), starting from the tails is cheaper than catching up.
const FAR_BEHIND: u64 = 10_000;

/// Follows the log.
pub struct Replica {
    log: Arc<dyn LogReader>,
    copy: LocalCopy,
    state: State,
    cursor: Option<Cursor>,
    outdated: bool,
    unsynced: u32,
    /// A write of the copy failed: records are missing in it, and only the whole state makes it right again.
    incomplete: bool,
    /// Nothing is published before this is reached.
    publish_from: Position,
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
        let (state, cursor, outdated) = match kept {
            Some(kept) => (kept.state, Some(kept.cursor), kept.outdated),
            None => (State::default(), None, false),
        };
        Replica {
            log,
            copy,
            state,
            cursor,
            outdated,
            unsynced: 0,
            incomplete: false,
            publish_from: Position::START,
            followed,
        }
    }

    /// Follows until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut attempt = 0;
        while !stop.is_cancelled() {
            let position = self.state.position;
            let failure = tokio::select! {
                () = stop.cancelled() => break,
                failure = self.session() => failure,
            };
            if self.state.position > position {
                attempt = 0;
            }
            let wait = match &failure {
                Failure::Foreign(_) => RETRY_MAX,
                Failure::Determinate(_) | Failure::Indeterminate(_) => {
                    ambient::backoff(RETRY_MIN, RETRY_MAX, attempt)
                }
            };
            attempt += 1;
            self.lost(&failure);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.sync().await;
    }

    /// Meets the log, catches up and follows; ends with what went wrong.
    async fn session(&mut self) -> Failure {
        match self.follow().await {
            Ok(never) => match never {},
            Err(failure) => failure,
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Failure> {
        let head = self.log.head().await?;
        let mut from_tails = self.outdated;
        match self.cursor {
            None => from_tails = true,
            Some(cursor) => {
                recognise(&*self.log, cursor, head).await?;
                from_tails |= head.position.0.saturating_sub(cursor.position.0) > FAR_BEHIND;
            }
        }
        if from_tails {
            self.bootstrap().await?;
        }
        let Some(cursor) = self.cursor else {
            return Err(Failure::Determinate("the log has no cursor".to_owned()));
        };
        let mut records = self
            .log
            .follow(Seen {
                log_id: cursor.log_id,
                position: cursor.position,
            })
            .await?;
        self.publish_from = head.position.max(self.state.position);
        if self.state.position >= self.publish_from {
            self.publish(LogState::Following, None);
        }
        let log = self.log.clone();
        let mut probe = Box::pin(look(log.clone()));
        loop {
            let idle = async {
                if self.unsynced == 0 {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(IDLE).await;
            };
            tokio::select! {
                entry = records.next() => self.fold(cursor, entry?).await,
                () = idle => self.sync().await,
                seen = &mut probe => {
                    self.looked(seen)?;
                    if self.incomplete {
                        self.keep_all().await;
                    }
                    probe = Box::pin(look(log.clone()));
                }
            }
        }
    }

    /// What looking for the log's head said. A subscription bridges an outage in silence for a while; the report does not.
    fn looked(&self, seen: Result<Head, Failure>) -> Result<(), Failure> {
        match seen {
            Ok(head) => {
                let behind = head.position > self.state.position;
                let following = self.followed.borrow().log.state == LogState::Following;
                if !following && !behind {
                    self.publish(LogState::Following, None);
                }
                Ok(())
            }
            Err(Failure::Foreign(why)) => Err(Failure::Foreign(why)),
            Err(failure @ (Failure::Determinate(_) | Failure::Indeterminate(_))) => {
                self.lost(&failure);
                Ok(())
            }
        }
    }

    async fn bootstrap(&mut self) -> Result<(), Failure> {
        let made = bootstrap::bootstrap(&*self.log).await?;
        let position = made.state.position;
        if let Some(cursor) = self.cursor
            && (cursor.log_id != made.log_id || position < cursor.position)
        {
            // It was another one a moment ago: look again, and refuse it then.
            return Err(Failure::Determinate("the log changed meanwhile".to_owned()));
        }
        let hash = match self.log.at(position).await? {
            Some(entry) => record_hash(&entry.subject, &entry.bytes),
            None => Hash::ZERO,
        };
        let cursor = Cursor {
            log_id: made.log_id,
            position,
            hash,
        };
        tracing::info!(log_id = %cursor.log_id, position = %position, replayed = made.replayed, policies = made.state.policies.len(), "state read from the log");
        self.state = made.state;
        self.cursor = Some(cursor);
        self.outdated = false;
        self.keep_all().await;
        self.publish(LogState::Following, None);
        Ok(())
    }

    /// Keeps the whole state.
    async fn keep_all(&mut self) {
        if let Some(cursor) = self.cursor {
            let (copy, state) = (self.copy.clone(), self.state.clone());
            self.incomplete = false;
            self.keep(move || copy.replace(&state, cursor)).await;
        }
    }

    async fn fold(&mut self, cursor: Cursor, entry: Entry) {
        if entry.position <= self.state.position {
            return;
        }
        let reading = migrations::read(&entry.subject, &entry.bytes);
        let verdict = self
            .state
            .evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        tracing::debug!(position = %entry.position, subject = %entry.subject, ?verdict, "record");
        let cursor = Cursor {
            log_id: cursor.log_id,
            position: entry.position,
            hash: record_hash(&entry.subject, &entry.bytes),
        };
        self.cursor = Some(cursor);
        let changed = changed(&reading);
        let (copy, part) = (self.copy.clone(), part(&self.state, &changed));
        self.unsynced += 1;
        // Kept before it is published: an agent that is killed must not know less afterwards than what it has applied.
        crash::point("replica.before_keep");
        if self.incomplete {
            // SUBTLE: a record alone would leave a hole below the cursor, which nobody finds later
            // (`cargo xtask crash --only disk-full`).
            self.keep_all().await;
        } else {
            self.keep(move || copy.advance(&part, cursor, &entry.subject, &changed))
                .await;
        }
        crash::point("replica.kept");
        if self.state.position >= self.publish_from {
            self.publish(LogState::Following, None);
        }
        if self.unsynced >= UNSYNCED_MAX {
            self.sync().await;
        }
    }

    async fn sync(&mut self) {
        if self.unsynced > 0 {
            self.unsynced = 0;
            let copy = self.copy.clone();
            self.keep(move || copy.sync()).await;
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
        self.incomplete = true;
    }

    fn publish(&self, state: LogState, error: Option<String>) {
        let wanted = Arc::new(self.state.clone());
        let log = LogFollowing {
            state,
            log_id: self.cursor.map(|cursor| cursor.log_id),
            position: wanted.position,
            error,
        };
        self.followed.send_modify(|followed| {
            if followed.log.state != log.state {
                tracing::info!(state = ?log.state, position = %log.position, "log");
            }
            *followed = Followed {
                state: Some(wanted),
                log,
            };
        });
    }

    /// The log is away, or is not the right one: what is published stays, with words.
    fn lost(&self, failure: &Failure) {
        let words = failure.to_string();
        self.followed.send_if_modified(|followed| {
            let state = match failure {
                Failure::Foreign(_) => LogState::Refused,
                Failure::Determinate(_) | Failure::Indeterminate(_) => match &followed.state {
                    Some(_) => LogState::LocalCopy,
                    None => LogState::Starting,
                },
            };
            let changed = followed.log.state != state || followed.log.error.as_ref() != Some(&words);
            if followed.log.state != state || followed.log.error.is_none() {
                if state == LogState::Refused {
                    tracing::error!(error = %words, "the log is refused; the last known policy holds (see `router-agent adopt`)");
                } else {
                    tracing::warn!(state = ?state, error = %words, "the log is away");
                }
            }
            followed.log.state = state;
            followed.log.error = Some(words);
            changed
        });
    }
}

/// Asks for the head after a while.
async fn look(log: Arc<dyn LogReader>) -> Result<Head, Failure> {
    tokio::time::sleep(LOOK).await;
    log.head().await
}

/// Refuses a log that is not the one of the cursor.
async fn recognise(log: &dyn LogReader, cursor: Cursor, head: Head) -> Result<(), Failure> {
    if head.log_id != cursor.log_id {
        return Err(Failure::Foreign(Foreign::OtherIdentity {
            known: cursor.log_id,
            actual: head.log_id,
        }));
    }
    if head.position < cursor.position {
        return Err(Failure::Foreign(Foreign::Behind {
            known: cursor.position,
            actual: head.position,
        }));
    }
    if cursor.hash == Hash::ZERO {
        return Ok(());
    }
    let there = log.at(cursor.position).await?;
    if there.map(|entry| record_hash(&entry.subject, &entry.bytes)) == Some(cursor.hash) {
        Ok(())
    } else {
        Err(Failure::Foreign(Foreign::Rewritten {
            position: cursor.position,
        }))
    }
}

/// The policies whose documents a record may have changed.
fn changed(reading: &Reading) -> Vec<PolicyKey> {
    match reading {
        Reading::Known(record) => match &record.event {
            Event::PoliciesChanged { changes } => {
                changes.iter().map(|change| change.key()).collect()
            }
            Event::ParameterRegistered { .. } => Vec::new(),
        },
        Reading::Unknown { .. } => Vec::new(),
    }
}

/// The part of a state that one record's write needs, so that a record costs what it changes and not the whole state.
fn part(state: &State, changed: &[PolicyKey]) -> State {
    State {
        position: state.position,
        policies: changed
            .iter()
            .filter_map(|key| Some((key.clone(), state.policies.get(key)?.clone())))
            .collect(),
        registry: state.registry.clone(),
        tails: Default::default(),
        stops: state.stops.clone(),
        stopped: state.stopped.clone(),
    }
}

#[cfg(test)]
mod tests;
