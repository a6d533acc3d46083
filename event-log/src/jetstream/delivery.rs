//! Deliveries of one ephemeral push consumer, exactly as they arrive. Nothing heals itself here; see `follow`.
//!
//! The consumer needs no acknowledgements, has flow control, sends heartbeats, lives in memory, and is removed by the broker
//! when nobody listens for [`INACTIVE_SECS`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::jetstream::message::Message as JetMessage;
use async_nats::{StatusCode, Subscriber};
use async_trait::async_trait;
use futures::StreamExt as _;
use migrations::stream::{log_subject, subject_prefix};
use schemas::{LogId, Position};
use serde::Deserialize;
use serde_json::json;

use super::Inner;
use super::connection::Refusal;
use crate::follow::{Arrival, Feed};
use crate::port::{Entry, Failure};

/// Seconds between heartbeats of a quiet consumer.
pub(super) const HEARTBEAT_SECS: u64 = 5;
const INACTIVE_SECS: u64 = 15;
const NANOS: u64 = 1_000_000_000;

/// Where a consumer starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Behind this position.
    After(Position),
    /// With the last record of each subject.
    Tails,
}

/// An open consumer.
pub(super) struct Delivery {
    log_id: LogId,
    client: async_nats::Client,
    context: async_nats::jetstream::Context,
    subscriber: Subscriber,
    left: u64,
    next: u64,
    /// What the process saw last, see [`Inner`].
    seen: Arc<AtomicU64>,
}

#[derive(Deserialize)]
struct Created {
    #[serde(default)]
    num_pending: u64,
}

impl Delivery {
    pub(super) async fn open(
        inner: &Inner,
        log_id: LogId,
        start: Start,
    ) -> Result<Delivery, Failure> {
        let failed = |why: Refusal| Failure::Determinate(why.words());
        let client = inner
            .link
            .client(inner.link.options().call_timeout)
            .await
            .map_err(failed)?;
        let inbox = client.new_inbox();
        let subscriber = client
            .subscribe(inbox.clone())
            .await
            .map_err(|why| Failure::Determinate(why.to_string()))?;
        let mut config = json!({
            "deliver_subject": inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": true,
            "idle_heartbeat": HEARTBEAT_SECS * NANOS,
            "inactive_threshold": INACTIVE_SECS * NANOS,
            "mem_storage": true,
            "num_replicas": 1,
            // A stream made anew holds none of these: its records can never be taken for this log's.
            "filter_subject": format!("{}.>", subject_prefix(log_id)),
        });
        match start {
            Start::After(Position(position)) => {
                config["deliver_policy"] = json!("by_start_sequence");
                config["opt_start_seq"] = json!(position.saturating_add(1));
            }
            Start::Tails => config["deliver_policy"] = json!("last_per_subject"),
        }
        let body = json!({ "stream_name": inner.stream, "config": config });
        let created: Created = inner
            .link
            .api(&format!("CONSUMER.CREATE.{}", inner.stream), &body)
            .await
            .map_err(failed)?;
        Ok(Delivery {
            log_id,
            context: async_nats::jetstream::new(client.clone()),
            client,
            subscriber,
            left: created.num_pending,
            next: 1,
            seen: Arc::clone(&inner.seen),
        })
    }

    /// What the consumer had to deliver when it was made.
    pub(super) fn left_at_start(&self) -> u64 {
        self.left
    }

    /// True when the consumer said that nothing was left behind its last delivery.
    pub(super) fn exhausted(&self) -> bool {
        self.left == 0
    }

    async fn take(&mut self) -> Option<Result<Arrival, Failure>> {
        let message = self.subscriber.next().await?;
        if let Some(status) = message.status {
            return Some(Ok(self.control(status, message).await));
        }
        let wire = message.subject.to_string();
        let message = JetMessage {
            message,
            context: self.context.clone(),
        };
        let info = match message.info() {
            Ok(info) => info,
            Err(why) => {
                return Some(Err(Failure::Determinate(format!(
                    "a delivery makes no sense: {why}"
                ))));
            }
        };
        self.left = info.pending;
        // SUBTLE: pushed records arrive under their own subject, not under the inbox.
        let Some(subject) = log_subject(self.log_id, &wire) else {
            return Some(Ok(Arrival::Other));
        };
        let (number, position) = (info.consumer_sequence, Position(info.stream_sequence));
        self.seen.fetch_max(position.0, Ordering::AcqRel);
        Some(Ok(Arrival::Record {
            number,
            entry: Entry {
                position,
                subject,
                bytes: message.message.payload.clone(),
            },
        }))
    }

    /// The next record of a consumer that is read to its end; an error when one is missing in between.
    pub(super) async fn record(&mut self) -> Option<Result<Entry, Failure>> {
        loop {
            match self.take().await? {
                Ok(Arrival::Record { number, entry }) if number == self.next => {
                    self.next += 1;
                    return Some(Ok(entry));
                }
                Ok(Arrival::Record { .. }) => {
                    return Some(Err(Failure::Determinate(
                        "records were lost on the way".to_owned(),
                    )));
                }
                Ok(Arrival::Heartbeat { .. } | Arrival::Other) => {}
                Err(why) => return Some(Err(why)),
            }
        }
    }

    async fn control(&self, status: StatusCode, message: async_nats::Message) -> Arrival {
        if status != StatusCode::IDLE_HEARTBEAT {
            return Arrival::Other;
        }
        let header = |name: &str| {
            let headers = message.headers.as_ref()?;
            headers.get(name).map(|value| value.as_str().to_owned())
        };
        // Flow control asks for an answer: by a reply subject, or, when it stalls, by a header of a heartbeat.
        let asked = message
            .reply
            .as_ref()
            .map(ToString::to_string)
            .or_else(|| header("Nats-Consumer-Stalled"));
        if let Some(reply) = asked {
            // A lost answer is asked for again with the next heartbeat.
            let _ = self.client.publish(reply, bytes::Bytes::new()).await;
        }
        header("Nats-Last-Consumer")
            .and_then(|number| number.parse().ok())
            .map_or(Arrival::Other, |delivered| Arrival::Heartbeat { delivered })
    }
}

#[async_trait]
impl Feed for Delivery {
    async fn arrival(&mut self) -> Option<Result<Arrival, Failure>> {
        self.take().await
    }
}
