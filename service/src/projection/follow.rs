//! The task that follows the log and keeps the projection on it.
//!
//! Owns: the check that the log is the one that was followed so far, and what others are told about the log.
//! On a crash the store is at the end of some batch; the next start goes on from there.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use event_log::{Entry, EventLog, Failure, Foreign, Head, Seen, Subscription, ambient, crash};
use futures::FutureExt as _;
use schemas::api::LogCondition;
use schemas::event::record_hash;
use schemas::state::Verdict;
use schemas::{LogId, Position};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fold::{Projected, Write, json, project};
use super::store::{Store, StoreError};
use super::{Projection, keys, open};
use crate::metrics::Metrics;

/// Bound: records in one batch of the store.
const BATCH_MAX: usize = 512;
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often the cursor is compared with the log's head.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);
/// Bound: how long readers of a store that is closed may take.
const CLOSE_ATTEMPTS: u32 = 500;
const CLOSE_PAUSE: Duration = Duration::from_millis(10);

/// Follows the log until `stop`.
pub struct Follower {
    /// Where it goes.
    pub projection: Arc<Projection>,
    /// What is folded in.
    pub projected: Projected,
    /// The log.
    pub log: Arc<dyn EventLog>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Where the log's identity is remembered, and the store is.
    pub data_dir: PathBuf,
    /// The store; `None` while it is not open.
    pub store: Option<Arc<Store>>,
    /// Its lock, which is held also while it is not open.
    pub lock: Arc<File>,
    /// See [`crate::Config::cache_bytes`].
    pub cache_bytes: u64,
}

/// Why following ended for now.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Log(#[from] Failure),
    #[error("the local store cannot be written")]
    Store(#[from] StoreError),
    #[error("the local store cannot be opened again: {0}")]
    Reopen(String),
    #[error("the file log-id cannot be written")]
    Identity(#[from] std::io::Error),
    #[error("the service stops")]
    Stopping,
}

impl Follower {
    /// Follows, again and again, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut attempt = 0;
        loop {
            let before = self.projected.state.position;
            let ended = self.follow(&stop).await;
            let Err(ended) = ended else { return };
            if matches!(ended, Ended::Stopping) {
                return;
            }
            attempt = if self.projected.state.position > before {
                0
            } else {
                attempt + 1
            };
            self.tell_end(&ended, attempt);
            // sled takes nothing any more after one failed write, also when there is room again.
            let broken = matches!(ended, Ended::Store(_));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(ambient::backoff(RETRY_BASE, RETRY_MAX, attempt)) => {}
            }
            if broken {
                self.close().await;
            }
        }
    }

    fn tell_end(&self, ended: &Ended, attempt: u32) {
        let position = self.projected.state.position;
        let (log, detail) = match ended {
            Ended::Log(Failure::Foreign(foreign)) => {
                let detail = format!(
                    "{foreign}; to follow the log that is there now, stop the service, run `router-policy adopt --data {}` and start it again",
                    self.data_dir.display()
                );
                (LogCondition::Foreign, detail)
            }
            Ended::Log(Failure::Determinate(why) | Failure::Indeterminate(why)) => {
                (LogCondition::Away, why.clone())
            }
            Ended::Store(StoreError::Sled(why)) => (LogCondition::Away, format!("{ended}: {why}")),
            Ended::Store(StoreError::Damaged(why) | StoreError::Panicked(why)) => {
                (LogCondition::Away, format!("{ended}: {why}"))
            }
            Ended::Store(StoreError::Reopening) | Ended::Reopen(_) => {
                (LogCondition::Away, ended.to_string())
            }
            Ended::Identity(why) => (LogCondition::Away, format!("{ended}: {why}")),
            Ended::Stopping => return,
        };
        let was = self.projection.condition().log;
        if was != log {
            if log == LogCondition::Foreign {
                tracing::error!(%position, detail, "the log is not the one that was followed; refusing it");
            } else {
                tracing::warn!(%position, detail, "following the log stopped; trying again");
            }
        } else if attempt == 1 {
            tracing::debug!(%position, detail, "following the log failed");
        }
        self.metrics.log_condition(log);
        self.projection.tell(|condition| {
            // What was never caught up with stays unready.
            let starting = condition.log == LogCondition::Starting && log == LogCondition::Away;
            condition.log = if starting {
                LogCondition::Starting
            } else {
                log
            };
            condition.detail = Some(detail);
        });
    }

    async fn follow(&mut self, stop: &CancellationToken) -> Result<(), Ended> {
        if self.store.is_none() {
            self.reopen().await?;
        }
        let head = self.recognise().await?;
        self.remember(head.log_id).await?;
        let seen = Seen {
            log_id: head.log_id,
            position: self.projected.state.position,
        };
        let mut records = self.log.follow(seen).await?;
        self.note_head(head);
        let mut check = Box::pin(check(Arc::clone(&self.log)));
        let mut last_check = self.projected.state.position;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Err(Ended::Stopping),
                first = records.next() => {
                    let batch = drain(first?, records.as_mut());
                    self.fold(batch.0).await?;
                    if let Some(failure) = batch.1 {
                        return Err(failure.into());
                    }
                }
                head = &mut check => {
                    let head = head?;
                    // SUBTLE: `last_check` is where the cursor was before the question. Records that came while the answer was on
                    // its way are newer than the answer.
                    self.still_the_same(head, last_check)?;
                    let position = self.projected.state.position;
                    if head.position > position && position == last_check {
                        return Err(Failure::Determinate(format!(
                            "the log goes on to position {}, but nothing after {position} is delivered",
                            head.position
                        )).into());
                    }
                    last_check = position;
                    self.note_head(head);
                    check = Box::pin(self::check(Arc::clone(&self.log)));
                }
            }
        }
    }

    /// Is this the log that was followed so far?
    async fn recognise(&self) -> Result<Head, Failure> {
        let head = self.log.head().await?;
        let position = self.projected.state.position;
        self.still_the_same(head, position)?;
        if position > Position::START {
            let there = self.log.at(position).await?;
            let same = there.is_some_and(|entry| {
                record_hash(&entry.subject, &entry.bytes) == self.projected.hash
            });
            if !same {
                return Err(Failure::Foreign(Foreign::Rewritten { position }));
            }
        }
        Ok(head)
    }

    /// `position`: where the cursor was when the head was asked for.
    fn still_the_same(&self, head: Head, position: Position) -> Result<(), Failure> {
        if let Some(known) = self.projected.log_id.filter(|known| *known != head.log_id) {
            return Err(Failure::Foreign(Foreign::OtherIdentity {
                known,
                actual: head.log_id,
            }));
        }
        if head.position < position {
            return Err(Failure::Foreign(Foreign::Behind {
                known: position,
                actual: head.position,
            }));
        }
        Ok(())
    }

    /// Writes the log's identity down before the first record of it is taken in.
    async fn remember(&mut self, log_id: LogId) -> Result<(), Ended> {
        let writes = vec![Write::Put(keys::LOG_ID.to_vec(), json(&log_id))];
        let data_dir = self.data_dir.clone();
        self.write(move |store| {
            store.apply(writes)?;
            Ok(open::remember_log(&data_dir, log_id))
        })
        .await??;
        if self.projected.log_id != Some(log_id) {
            self.projected.log_id = Some(log_id);
            self.publish();
        }
        Ok(())
    }

    /// Writes to the store, off the async threads.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(store) = self.store.clone() else {
            return Err(StoreError::Reopening);
        };
        tokio::task::spawn_blocking(move || write(&store))
            .await
            .unwrap_or_else(|panic| Err(StoreError::Panicked(panic.to_string())))
    }

    /// Publishes, unless more was published already.
    ///
    /// SUBTLE: a store that was opened again may be behind what was published. Until it has caught up nobody reads from it
    /// and nothing is published: a command that is missing in it would look as if it had never been made
    /// (`cargo xtask crash --only disk-full`).
    fn publish(&self) {
        let published = self.projection.snapshot().state.position;
        if self.projected.state.position >= published {
            if let Some(store) = &self.store {
                self.projection.admit(store);
            }
            self.projection.publish(&self.projected);
        }
    }

    /// Closes the store after a fault, so that it can be opened again.
    async fn close(&mut self) {
        self.projection.withdraw();
        if let Some(store) = self.store.take() {
            // Readers hold it for one read each.
            for _ in 0..CLOSE_ATTEMPTS {
                if Arc::strong_count(&store) == 1 {
                    break;
                }
                tokio::time::sleep(CLOSE_PAUSE).await;
            }
            let closed = tokio::task::spawn_blocking(move || drop(store)).await;
            if let Err(panic) = closed {
                tracing::warn!(error = %panic, "closing the local store");
            }
        }
    }

    /// Opens the store again; it may be some records behind then, which are read from the log again.
    async fn reopen(&mut self) -> Result<(), Ended> {
        let (data_dir, lock, cache_bytes) = (
            self.data_dir.clone(),
            Arc::clone(&self.lock),
            self.cache_bytes,
        );
        let opened =
            tokio::task::spawn_blocking(move || open::reopen(&data_dir, cache_bytes, &lock))
                .await
                .map_err(|panic| Ended::Reopen(panic.to_string()))?
                .map_err(|why| match why {
                    open::OpenError::Io { path, source } => {
                        Ended::Reopen(format!("{}: {source}", path.display()))
                    }
                    open::OpenError::InUse(_)
                    | open::OpenError::LogId(_)
                    | open::OpenError::Store { .. } => Ended::Reopen(why.to_string()),
                })?;
        if let Some(why) = &opened.rebuilt {
            self.metrics.store_rebuilds.inc();
            tracing::error!(
                why,
                "the local store could not be used; it is made anew from the log"
            );
        }
        let position = opened.projected.state.position;
        tracing::info!(%position, "the local store is open again");
        self.store = Some(opened.store);
        self.projected = opened.projected;
        self.publish();
        Ok(())
    }

    async fn fold(&mut self, batch: Vec<Entry>) -> Result<(), Ended> {
        let before = self.projected.clone();
        let mut writes = Vec::new();
        let mut verdicts = Vec::with_capacity(batch.len());
        for entry in &batch {
            if entry.position <= self.projected.state.position {
                // A redelivery: folded in already.
                continue;
            }
            let reading = migrations::read(&entry.subject, &entry.bytes);
            let folded = project(&mut self.projected, entry, &reading);
            writes.extend(folded.writes);
            verdicts.push((entry.position, folded.verdict));
        }
        crash::point("projection.before_store");
        let written = self.write(move |store| store.apply(writes)).await;
        crash::point("projection.stored");
        if let Err(why) = written {
            // Nothing is told that the store does not hold.
            self.projected = before;
            self.metrics.store_errors.inc();
            return Err(why.into());
        }
        self.publish();
        self.count(&verdicts);
        let position = self.projected.state.position;
        self.projection.tell(|condition| {
            if condition.head.is_some_and(|head| head <= position) {
                condition.behind_since = None;
                if condition.log == LogCondition::Starting {
                    condition.log = LogCondition::Following;
                }
            }
        });
        Ok(())
    }

    fn count(&self, verdicts: &[(Position, Verdict)]) {
        for (position, verdict) in verdicts {
            self.metrics.record(verdict);
            match verdict {
                Verdict::Accepted { chained: true } => {}
                Verdict::Accepted { chained: false } => {
                    tracing::error!(%position, "the record does not chain to the one before it: the log was changed");
                }
                Verdict::Void { why } => tracing::info!(%position, why, "void record"),
                Verdict::Unreadable { why } => {
                    tracing::error!(%position, why, "a record cannot be read by this version; its policies are stopped");
                }
            }
        }
        self.metrics.projected(&self.projected.state);
    }

    fn note_head(&self, head: Head) {
        let position = self.projected.state.position;
        self.metrics.head(head.position);
        self.metrics.log_condition(LogCondition::Following);
        self.projection.tell(|condition| {
            let behind = head.position > position;
            condition.head = Some(head.position);
            condition.behind_since = match (behind, condition.behind_since) {
                (false, _) => None,
                (true, since) => since.or_else(|| Some(Instant::now())),
            };
            if condition.log != LogCondition::Starting || !behind {
                condition.log = LogCondition::Following;
            }
            condition.detail = None;
        });
    }
}

/// Everything that is there already goes into one batch.
fn drain(first: Entry, records: &mut dyn Subscription) -> (Vec<Entry>, Option<Failure>) {
    let mut batch = vec![first];
    while batch.len() < BATCH_MAX {
        match records.next().now_or_never() {
            Some(Ok(entry)) => batch.push(entry),
            Some(Err(failure)) => return (batch, Some(failure)),
            None => break,
        }
    }
    (batch, None)
}

async fn check(log: Arc<dyn EventLog>) -> Result<Head, Failure> {
    tokio::time::sleep(CHECK_INTERVAL).await;
    let away = || Failure::Determinate("the log does not answer".to_owned());
    tokio::time::timeout(CHECK_TIMEOUT, log.head())
        .await
        .unwrap_or_else(|_| Err(away()))
}
