//! The status board: a KV bucket in the broker's memory, one key per agent, each report replacing the one before.
//!
//! Best effort: a report that was lost is replaced by the agent's next one, and a bucket that went away with the broker's
//! process is made again by the next report.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::kv::{Config, Entry, Operation, Store, Watch};
use async_nats::jetstream::stream::StorageType;
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use schemas::AgentId;
use schemas::status::AgentStatus;
use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::Link;
use crate::port::{Failure, Reports, StatusBoard};

/// How long a report stays without a newer one.
pub const REPORT_MAX_AGE: Duration = Duration::from_secs(60);
/// A watch that hears nothing for this long is ended, so that a subscription that stopped silently cannot hide the fleet:
/// agents report far more often.
const SILENCE_MAX: Duration = Duration::from_secs(20);

pub(super) struct KvBoard {
    pub(super) link: Arc<Link>,
}

impl KvBoard {
    async fn bucket(&self) -> Result<Store, Failure> {
        let options = self.link.options();
        let client = self
            .link
            .client(options.call_timeout)
            .await
            .map_err(|why| Failure::Determinate(why.words()))?;
        let mut context = async_nats::jetstream::new(client);
        context.set_timeout(options.call_timeout);
        if let Ok(bucket) = context.get_key_value(&options.status_bucket).await {
            return Ok(bucket);
        }
        let config = Config {
            bucket: options.status_bucket.clone(),
            description: "Newest report of every router agent".to_owned(),
            history: 1,
            max_age: REPORT_MAX_AGE,
            storage: StorageType::Memory,
            num_replicas: options.replicas,
            ..Config::default()
        };
        match context.create_key_value(config).await {
            Ok(bucket) => Ok(bucket),
            // Another process may have made it in between.
            Err(why) => context
                .get_key_value(&options.status_bucket)
                .await
                .map_err(|_| {
                    Failure::Determinate(format!("the status bucket cannot be made: {why}"))
                }),
        }
    }
}

/// The key of an agent: its name as one subject token (letters, digits, `-`, `_` and `=`), which any KV key may hold.
fn key(agent: &AgentId) -> String {
    agent.0.to_token()
}

#[async_trait]
impl StatusBoard for KvBoard {
    async fn report(&self, status: &AgentStatus) -> Result<(), Failure> {
        let value =
            serde_json::to_vec(status).map_err(|why| Failure::Determinate(why.to_string()))?;
        let bucket = self.bucket().await?;
        bucket
            .put(key(&status.agent), Bytes::from(value))
            .await
            .map(|_| ())
            .map_err(|why| {
                Failure::Indeterminate(format!("the report was not acknowledged: {why}"))
            })
    }

    async fn watch(&self) -> Result<Box<dyn Reports>, Failure> {
        let mut link = self.link.watch();
        let bucket = self.bucket().await?;
        let connected = *link.borrow_and_update();
        let watch = bucket.watch_with_history(">").await.map_err(|why| {
            Failure::Determinate(format!("the status bucket cannot be watched: {why}"))
        })?;
        Ok(Box::new(KvReports {
            watch,
            link,
            connected,
            silent_at: Instant::now() + SILENCE_MAX,
        }))
    }
}

struct KvReports {
    watch: Watch,
    link: watch::Receiver<bool>,
    /// What the link was when it was looked at last.
    connected: bool,
    /// When silence has lasted too long. Kept here, not in the future of `next`: callers drop that all the time.
    silent_at: Instant,
}

impl KvReports {
    /// The watch's next entry, or why there will be none.
    async fn entry(&mut self) -> Result<Entry, Failure> {
        let lost = |why: &str| Failure::Determinate(format!("status reports stopped: {why}"));
        loop {
            tokio::select! {
                // SUBTLE: a restarted broker has lost the bucket with its memory, and the watch waits for ever on one that
                // was made anew. So the watch does not outlive the link (`regression_reports_go_on_after_a_restart`).
                changed = self.link.changed() => {
                    changed.map_err(|_| lost("the connection is closed"))?;
                    let connected = *self.link.borrow_and_update();
                    let first = !self.connected && connected;
                    self.connected = connected;
                    if !first {
                        return Err(lost("the connection was lost in between"));
                    }
                }
                entry = tokio::time::timeout_at(self.silent_at, self.watch.next()) => {
                    let entry = entry
                        .map_err(|_| lost("nothing came for a while"))?
                        .ok_or_else(|| lost("the connection is closed"))?
                        .map_err(|why| lost(&why.to_string()))?;
                    self.silent_at = Instant::now() + SILENCE_MAX;
                    return Ok(entry);
                }
            }
        }
    }
}

#[async_trait]
impl Reports for KvReports {
    async fn next(&mut self) -> Result<AgentStatus, Failure> {
        loop {
            let entry = self.entry().await?;
            match entry.operation {
                Operation::Put => {}
                Operation::Delete | Operation::Purge => continue,
            }
            match serde_json::from_slice(&entry.value) {
                Ok(status) => return Ok(status),
                // Written by another version, or by somebody else: no reason to hide everybody's reports.
                Err(why) => {
                    tracing::warn!(key = entry.key, error = %why, "a status report cannot be read")
                }
            }
        }
    }
}
