//! One attempt to append: a publish with compare-and-swap on its subject.
//!
//! `Nats-Msg-Id` is not set. The broker's memory of ids is stream-wide, ends after its window, and is asked only after
//! compare-and-swap on some versions; compare-and-swap itself keeps a record from being stored twice, for ever.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use bytes::Bytes;
use migrations::stream::wire_subject;
use schemas::{LogId, Position, Subject};
use serde::Deserialize;
use tokio::time::Instant;

use super::Inner;
use super::codes::{self, Publish};
use super::connection::{Refusal, parse};
use crate::port::{Appended, Failure};

#[derive(Deserialize)]
struct Acknowledged {
    seq: u64,
}

impl Inner {
    pub(super) async fn append(
        &self,
        subject: &Subject,
        expected: Position,
        bytes: Bytes,
    ) -> Result<Appended, Failure> {
        let log_id = self.log_id().await?;
        let until = Instant::now() + self.link.options().call_timeout;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.0.to_string());
        for attempt in 0.. {
            // The subject names the log, so this can never land in another one, however late it is sent.
            let answer = self
                .link
                .send(
                    wire_subject(log_id, subject),
                    Some(headers.clone()),
                    bytes.clone(),
                    until,
                )
                .await
                .and_then(|bytes| parse::<Acknowledged>(&bytes));
            if answer.as_ref().err() != Some(&Refusal::Nobody) {
                return self.classify(answer).await;
            }
            // Nobody took it: nothing is under way, so this is still the first attempt. A cluster elects, or the log is gone.
            let pause = crate::ambient::backoff(
                Duration::from_millis(20),
                Duration::from_millis(250),
                attempt,
            );
            if Instant::now() + pause >= until {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        Err(self.why_nobody(log_id).await)
    }

    async fn classify(&self, answer: Result<Acknowledged, Refusal>) -> Result<Appended, Failure> {
        match answer {
            Ok(acknowledged) => {
                self.link.was_useful();
                let position = Position(acknowledged.seq);
                self.saw(position);
                Ok(Appended::Committed(position))
            }
            Err(Refusal::Code { code, description }) => {
                let words = format!("{description} (JetStream error {code})");
                match codes::publish(code) {
                    Publish::Conflict => Ok(Appended::Conflict),
                    Publish::Refused => Err(Failure::Determinate(words)),
                    Publish::Unknown => Err(Failure::Indeterminate(words)),
                }
            }
            Err(refusal @ (Refusal::NotSent(_) | Refusal::Nobody)) => {
                Err(Failure::Determinate(refusal.words()))
            }
            // SUBTLE: what the client has taken it may still send after a reconnect, long after this answer
            // (`regression_a_publish_that_timed_out_may_land_later`).
            Err(refusal @ (Refusal::Silent(_) | Refusal::Garbled(_))) => {
                Err(Failure::Indeterminate(refusal.words()))
            }
        }
    }

    /// No stream takes the log's subjects: says whether the log is gone, or only away.
    async fn why_nobody(&self, log_id: LogId) -> Failure {
        match self.facts().await {
            Err(Failure::Foreign(how)) => Failure::Foreign(how),
            Ok(_) | Err(Failure::Determinate(_) | Failure::Indeterminate(_)) => {
                Failure::Determinate(format!(
                    "no server takes changes for log {log_id} at the moment"
                ))
            }
        }
    }
}
