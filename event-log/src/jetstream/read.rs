//! Reading single records and tails. What decisions rest on is asked of the leader (`STREAM.MSG.GET`), never of a replica.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use migrations::stream::{log_subject, wire_subject};
use schemas::{LogId, Position, Subject};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::connection::Refusal;
use super::delivery::{Delivery, Start};
use super::{Inner, codes};
use crate::port::{Entry, Failure, Head, Tails};

#[derive(Deserialize)]
struct Got {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    subject: String,
    seq: u64,
    #[serde(default)]
    data: String,
}

impl Inner {
    pub(super) async fn head(&self) -> Result<Head, Failure> {
        let facts = self.facts().await?;
        Ok(Head {
            log_id: facts.log_id,
            position: facts.last,
        })
    }

    pub(super) async fn next_on(
        &self,
        subject: &Subject,
        after: Position,
    ) -> Result<Option<Entry>, Failure> {
        let log_id = self.log_id().await?;
        let Some(from) = after.0.checked_add(1) else {
            return Ok(None);
        };
        let body = json!({ "seq": from, "next_by_subj": wire_subject(log_id, subject) });
        self.get(log_id, &body).await
    }

    pub(super) async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        let log_id = self.log_id().await?;
        if position == Position::START {
            return Ok(None);
        }
        self.get(log_id, &json!({ "seq": position.0 })).await
    }

    async fn get(&self, log_id: LogId, body: &Value) -> Result<Option<Entry>, Failure> {
        let got: Result<Got, Refusal> = self
            .link
            .api(&format!("STREAM.MSG.GET.{}", self.stream), body)
            .await;
        match got {
            Ok(got) => match entry(log_id, &got.message)? {
                Some(entry) => {
                    self.saw(entry.position);
                    Ok(Some(entry))
                }
                // A record of another log stands here.
                None => self.facts().await.map(|_| None),
            },
            // "Nothing" counts only when it is this log that has nothing.
            Err(Refusal::Code {
                code: codes::NO_MESSAGE_FOUND | codes::STREAM_NOT_FOUND,
                ..
            }) => self.facts().await.map(|_| None),
            Err(why) => Err(Failure::Determinate(why.words())),
        }
    }

    /// From a consumer that starts with the last record of each subject: any number of subjects, on every version
    /// (a batched direct get ends at 1,024, and may lag behind the leader).
    ///
    /// Invariant: the consumer's starting set is of a moment no later than `head`, which is asked after it was made, and
    /// what came after that moment follows one by one. So once `head` was passed, nothing up to the last delivery is missing.
    pub(super) async fn tails(&self) -> Result<Tails, Failure> {
        let before = self.facts().await?;
        let mut newest: BTreeMap<Subject, Entry> = BTreeMap::new();
        let mut up_to = before.last;
        if before.last > Position::START {
            let mut delivery = Delivery::open(self, before.log_id, Start::Tails).await?;
            let head = self.facts().await?;
            up_to = Position::START;
            while up_to < head.last {
                let until = Instant::now() + self.link.options().call_timeout;
                let next = tokio::time::timeout_at(until, delivery.record()).await;
                let entry = match next {
                    Ok(Some(entry)) => entry?,
                    Ok(None) => {
                        return Err(Failure::Determinate(
                            "the connection was lost while reading".to_owned(),
                        ));
                    }
                    // Silence with nothing left to come: the last records were removed from the stream behind our back.
                    Err(_) if delivery.exhausted() => {
                        up_to = head.last;
                        break;
                    }
                    Err(_) => {
                        return Err(Failure::Determinate(
                            "NATS stopped delivering while reading".to_owned(),
                        ));
                    }
                };
                up_to = entry.position;
                newest.insert(entry.subject.clone(), entry);
            }
        }
        Ok(Tails {
            entries: newest.into_values().collect(),
            up_to: Head {
                log_id: before.log_id,
                position: up_to,
            },
        })
    }
}

fn entry(log_id: LogId, message: &Message) -> Result<Option<Entry>, Failure> {
    let Some(subject) = log_subject(log_id, &message.subject) else {
        return Ok(None);
    };
    let bytes = STANDARD
        .decode(&message.data)
        .map_err(|why| Failure::Determinate(format!("JetStream answered nonsense: {why}")))?;
    Ok(Some(Entry {
        position: Position(message.seq),
        subject,
        bytes: Bytes::from(bytes),
    }))
}
