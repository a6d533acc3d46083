//! The task that follows the log and keeps the projection on it.
//!
//! Owns: the shell that moves the inputs and outputs of the pure [`machine`], and what others are told about the log.
//! On a crash the store is at the end of some batch; the next start goes on from there.

pub mod machine;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use event_log::{Entry, EventLog, Failure, Head, Subscription, ambient};
use futures::FutureExt as _;
use schemas::api::LogCondition;
use schemas::state::{Reading, Verdict};
use schemas::{LogId, Position};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fold::{Projected, Write, json};
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

type Check = Pin<Box<dyn Future<Output = Result<Head, Failure>> + Send>>;

/// Follows the log until `stop`.
pub struct Follower {
    projection: Arc<Projection>,
    machine: FollowerMachine,
    log: Arc<dyn EventLog>,
    metrics: Arc<Metrics>,
    data_dir: PathBuf,
    records: Option<Box<dyn Subscription>>,
    check: Option<Check>,
}

impl Follower {
    /// Into this projection, from what is folded in; the log's identity is remembered in `data_dir`.
    #[must_use]
    pub fn new(
        projection: Arc<Projection>,
        projected: Projected,
        log: Arc<dyn EventLog>,
        metrics: Arc<Metrics>,
        data_dir: PathBuf,
    ) -> Follower {
        Follower {
            projection,
            machine: FollowerMachine::new(projected),
            log,
            metrics,
            data_dir,
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
                self.projection.publish(self.machine.projected());
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
                Input::Start
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
        let data_dir = self.data_dir.clone();
        let kept = self.projection.read(move |store| {
            store.apply(writes)?;
            Ok(open::remember_log(&data_dir, log_id))
        });
        Input::Remembered(match kept.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(why.to_string()),
            Err(why) => Err(why.to_string()),
        })
    }

    async fn write(&mut self, writes: Vec<Write>) -> Input {
        let written = self.projection.read(move |store| store.apply(writes)).await;
        if written.is_err() {
            self.metrics.store_errors.inc();
        }
        Input::Written(written.map_err(|why| why.to_string()))
    }

    fn tell(&self, told: Told) {
        let position = self.machine.projected().state.position;
        let detail = told.detail.map(|why| match told.log {
            LogCondition::Foreign => format!(
                "{why}; to follow the log that is there now, stop the service, run `router-policy adopt --data {}` and start it again",
                self.data_dir.display()
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
