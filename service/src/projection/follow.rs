//! The task that follows the log and keeps the projection on it.
//!
//! Owns: the shell that moves the inputs and outputs of the pure [`machine`], and what others are told about the log.
//! On a crash the store is at the end of some batch; the next start goes on from there.

pub mod machine;

use std::fs::File;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use event_log::{Entry, EventLog, Failure, Head, Subscription, ambient, crash};
use futures::FutureExt as _;
use schemas::api::LogCondition;
use schemas::state::{Reading, Verdict};
use schemas::{LogId, Position};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fold::{Projected, Write, json};
use super::store::{Store, StoreError};
use super::{Projection, keys, open};
use crate::metrics::Metrics;
use machine::{FollowerMachine, Input, Output, Told};

/// Bound: records in one batch of the store.
const BATCH_MAX: usize = 512;
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often the cursor is compared with the log's head.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Bound: how long that may take.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// Bound: how long readers of a store that is closed may take.
const CLOSE_ATTEMPTS: u32 = 500;
const CLOSE_PAUSE: Duration = Duration::from_millis(10);

type Check = Pin<Box<dyn Future<Output = Result<Head, Failure>> + Send>>;

/// The local store and its folder.
pub struct Disk {
    /// Where the log's identity is remembered, and the store is.
    pub data_dir: PathBuf,
    /// The store; `None` while it is not open.
    pub store: Option<Arc<Store>>,
    /// Its lock, which is held also while it is not open.
    pub lock: Arc<File>,
    /// See [`crate::Config::cache_bytes`].
    pub cache_bytes: u64,
}

/// Follows the log until `stop`.
pub struct Follower {
    projection: Arc<Projection>,
    machine: FollowerMachine,
    log: Arc<dyn EventLog>,
    metrics: Arc<Metrics>,
    disk: Disk,
    /// A write failed since the store was opened.
    broken: bool,
    records: Option<Box<dyn Subscription>>,
    check: Option<Check>,
}

impl Follower {
    /// Into this projection, from what is folded in.
    #[must_use]
    pub fn new(
        projection: Arc<Projection>,
        projected: Projected,
        log: Arc<dyn EventLog>,
        metrics: Arc<Metrics>,
        disk: Disk,
    ) -> Follower {
        Follower {
            projection,
            machine: FollowerMachine::new(projected),
            log,
            metrics,
            disk,
            broken: false,
            records: None,
            check: None,
        }
    }

    /// Follows, again and again, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut outputs = self.machine.step(Input::Start);
        loop {
            let mut request = None;
            for output in outputs {
                request = self.carry_out(output).or(request);
            }
            let input = match request {
                // A write that is begun is seen through.
                Some(Output::Write(writes)) => self.write(writes).await,
                Some(Output::Remember(log_id)) => self.remember(log_id).await,
                request => tokio::select! {
                    () = stop.cancelled() => return,
                    input = self.next(request) => input,
                },
            };
            outputs = self.machine.step(input);
        }
    }

    /// Does what is done at once; gives back what has to be waited for.
    fn carry_out(&self, output: Output) -> Option<Output> {
        match output {
            Output::Publish => {
                self.publish();
                None
            }
            Output::Verdicts(verdicts) => {
                self.count(&verdicts);
                None
            }
            Output::Tell(told) => {
                self.tell(told);
                None
            }
            Output::AskHead
            | Output::Find(_)
            | Output::Remember(_)
            | Output::Follow(_)
            | Output::Write(_)
            | Output::Wait { .. } => Some(output),
        }
    }

    /// Waits for what was asked for, or for whatever comes while following.
    async fn next(&mut self, request: Option<Output>) -> Input {
        match request {
            Some(Output::AskHead) => Input::Head(self.log.head().await),
            Some(Output::Find(position)) => Input::Found(self.log.at(position).await),
            Some(Output::Follow(seen)) => match self.log.follow(seen).await {
                Ok(records) => {
                    self.records = Some(records);
                    self.check = Some(Box::pin(check(Arc::clone(&self.log))));
                    Input::Followed(Ok(()))
                }
                Err(why) => Input::Followed(Err(why)),
            },
            Some(Output::Wait { attempt }) => {
                (self.records, self.check) = (None, None);
                tokio::time::sleep(ambient::backoff(RETRY_BASE, RETRY_MAX, attempt)).await;
                self.restore().await
            }
            Some(Output::Remember(log_id)) => self.remember(log_id).await,
            Some(Output::Write(writes)) => self.write(writes).await,
            Some(Output::Publish | Output::Verdicts(_) | Output::Tell(_)) | None => {
                self.following().await
            }
        }
    }

    async fn following(&mut self) -> Input {
        let (Some(records), Some(checking)) = (&mut self.records, &mut self.check) else {
            return std::future::pending().await;
        };
        tokio::select! {
            first = records.next() => match first {
                Ok(first) => {
                    let (batch, ended) = drain(first, records.as_mut());
                    Input::Records(batch, ended)
                }
                Err(why) => Input::Records(Vec::new(), Some(why)),
            },
            head = checking => {
                self.check = Some(Box::pin(check(Arc::clone(&self.log))));
                Input::Checked(head)
            }
        }
    }

    async fn remember(&mut self, log_id: LogId) -> Input {
        let writes = vec![Write::Put(keys::LOG_ID.to_vec(), json(&log_id))];
        let data_dir = self.disk.data_dir.clone();
        let kept = self.change(move |store| {
            store.apply(writes)?;
            Ok(open::remember_log(&data_dir, log_id))
        });
        Input::Remembered(match kept.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(format!("the file log-id cannot be written: {why}")),
            Err(why) => Err(unwritten(&why)),
        })
    }

    async fn write(&mut self, writes: Vec<Write>) -> Input {
        crash::point("projection.before_store");
        let written = self.change(move |store| store.apply(writes)).await;
        crash::point("projection.stored");
        if written.is_err() {
            self.metrics.store_errors.inc();
        }
        Input::Written(written.map_err(|why| unwritten(&why)))
    }

    /// Changes the store, off the async threads.
    async fn change<T: Send + 'static>(
        &mut self,
        change: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(store) = self.disk.store.clone() else {
            return Err(StoreError::Reopening);
        };
        let changed = tokio::task::spawn_blocking(move || change(&store))
            .await
            .unwrap_or_else(|panic| Err(StoreError::Panicked(panic.to_string())));
        self.broken |= changed.is_err();
        changed
    }

    /// Publishes, unless more was published already.
    ///
    /// SUBTLE: a store that was opened again may be behind what was published. Until it has caught up nobody reads from it
    /// and nothing is published: a command that is missing in it would look as if it had never been made
    /// (`cargo xtask crash --only disk-full`).
    fn publish(&self) {
        let projected = self.machine.projected();
        let published = self.projection.snapshot().state.position;
        if projected.state.position >= published {
            if let Some(store) = &self.disk.store {
                self.projection.admit(store);
            }
            self.projection.publish(projected);
        }
    }

    /// Opens a broken store again. sled takes nothing any more after one failed write, also when there is room again.
    async fn restore(&mut self) -> Input {
        if std::mem::take(&mut self.broken) {
            self.close().await;
        }
        if self.disk.store.is_none()
            && let Err(why) = self.reopen().await
        {
            return Input::Unopened(format!("the local store cannot be opened again: {why}"));
        }
        Input::Start
    }

    async fn close(&mut self) {
        self.projection.withdraw();
        if let Some(store) = self.disk.store.take() {
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

    /// It may be some records behind then, which are read from the log again.
    async fn reopen(&mut self) -> Result<(), String> {
        let (data_dir, lock) = (self.disk.data_dir.clone(), Arc::clone(&self.disk.lock));
        let cache_bytes = self.disk.cache_bytes;
        let opened =
            tokio::task::spawn_blocking(move || open::reopen(&data_dir, cache_bytes, &lock))
                .await
                .map_err(|panic| panic.to_string())?
                .map_err(|why| match why {
                    open::OpenError::Io { path, source } => format!("{}: {source}", path.display()),
                    open::OpenError::InUse(_)
                    | open::OpenError::LogId(_)
                    | open::OpenError::Store { .. } => why.to_string(),
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
        self.disk.store = Some(opened.store);
        self.machine.reopened(opened.projected);
        self.publish();
        Ok(())
    }

    fn tell(&self, told: Told) {
        let position = self.machine.projected().state.position;
        let detail = told.detail.map(|why| match told.log {
            LogCondition::Foreign => format!(
                "{why}; to follow the log that is there now, stop the service, run `router-policy adopt --data {}` and start it again",
                self.disk.data_dir.display()
            ),
            LogCondition::Starting | LogCondition::Following | LogCondition::Away => why,
        });
        let was = self.projection.condition();
        if let Some(detail) = &detail {
            if told.log == LogCondition::Foreign && was.log != LogCondition::Foreign {
                tracing::error!(%position, detail, "the log is not the one that was followed; refusing it");
            } else if was.log != told.log || was.detail.is_none() {
                tracing::warn!(%position, detail, "following the log stopped; trying again");
            }
        }
        if let Some(head) = told.head {
            self.metrics.head(head);
        }
        self.metrics.log_condition(told.log);
        self.projection.tell(|condition| {
            condition.log = told.log;
            condition.detail = detail;
            condition.head = told.head;
            condition.behind_since = match (told.behind, condition.behind_since) {
                (false, _) => None,
                (true, since) => since.or_else(|| Some(Instant::now())),
            };
        });
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
        self.metrics.projected(&self.machine.projected().state);
    }
}

/// Everything that is there already goes into one batch.
fn drain(first: Entry, records: &mut dyn Subscription) -> (Vec<(Entry, Reading)>, Option<Failure>) {
    let mut batch = vec![read(first)];
    while batch.len() < BATCH_MAX {
        match records.next().now_or_never() {
            Some(Ok(entry)) => batch.push(read(entry)),
            Some(Err(failure)) => return (batch, Some(failure)),
            None => break,
        }
    }
    (batch, None)
}

fn read(entry: Entry) -> (Entry, Reading) {
    let reading = migrations::read(&entry.subject, &entry.bytes);
    (entry, reading)
}

async fn check(log: Arc<dyn EventLog>) -> Result<Head, Failure> {
    tokio::time::sleep(CHECK_INTERVAL).await;
    let away = || Failure::Determinate("the log does not answer".to_owned());
    tokio::time::timeout(CHECK_TIMEOUT, log.head())
        .await
        .unwrap_or_else(|_| Err(away()))
}

fn unwritten(why: &StoreError) -> String {
    format!("the local store cannot be written: {why}")
}
