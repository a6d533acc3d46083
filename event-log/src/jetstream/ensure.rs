//! The stream behind the log: found or made, known again by its identity, compared with what is wanted.

use std::time::Duration;

use migrations::stream::{self, Discard, Retention, Storage, StreamConfiguration};
use schemas::{LogId, Position};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::connection::Refusal;
use super::{Inner, codes};
use crate::follow::Facts;
use crate::port::{Failure, Foreign};

#[derive(Deserialize)]
struct StreamInfo {
    config: Value,
    created: String,
    state: StreamState,
    #[serde(default)]
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct Cluster {
    #[serde(default)]
    replicas: Option<Vec<Follower>>,
}

/// As the leader sees it.
#[derive(Deserialize)]
struct Follower {
    /// Nanoseconds since the leader heard from it.
    #[serde(default)]
    active: u64,
    #[serde(default)]
    offline: bool,
}

impl StreamInfo {
    /// True when whoever answered hears a majority of the stream's servers, so that no other one can lead yet.
    fn is_led(&self) -> bool {
        let followers = self.cluster.as_ref().and_then(|all| all.replicas.as_ref());
        let Some(followers) = followers else {
            return true;
        };
        let heard = followers
            .iter()
            .filter(|one| !one.offline && one.active < HEARD_MAX_NANOS)
            .count();
        // With the leader itself.
        2 * (heard + 1) > followers.len() + 1
    }
}

/// Bound: followers are asked by their leader every second, and elect another one when they hear nothing for 4 s or more.
const HEARD_MAX_NANOS: u64 = 2_500_000_000;

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
}

/// "No such stream" from a server that is just coming up is no proof: it must be said this often before a log is gone.
const GONE_ANSWERS: usize = 3;
const GONE_PAUSE: Duration = Duration::from_millis(200);

/// How long a leader may tell an end before what this process has seen already, until that is believed. A leader that was
/// just elected answers before it has taken in all that it holds, and one that was cut off does until it notices.
const BEHIND_PATIENCE: Duration = Duration::from_secs(2);
const BEHIND_PAUSE: Duration = Duration::from_millis(100);

impl Inner {
    /// Asks the leader; refuses a log that is another one, that is gone, or that is configured to lose records.
    pub(super) async fn facts(&self) -> Result<Facts, Failure> {
        // Before the question: what comes while the answer is on its way may be newer than the answer.
        let seen = self.seen();
        let until = Instant::now() + BEHIND_PATIENCE;
        loop {
            let (facts, led) = self.ask().await?;
            if led {
                self.link.was_useful();
            } else {
                self.link.was_fruitless().await;
            }
            let over = Instant::now() >= until;
            if !led && over {
                // SUBTLE: a leader that is cut off answers until it notices, and what it says of the end is old by then
                // (`cluster leader-split`: a read that had asked for the head missed an acknowledged change). A moment is left
                // in which a healed one is wrong: JetStream has no read that is confirmed by a majority.
                return Err(Failure::Determinate(
                    "the leader of the stream hears no majority of its servers".to_owned(),
                ));
            }
            if led && (facts.last >= seen || over) {
                return Ok(facts);
            }
            tokio::time::sleep(BEHIND_PAUSE).await;
        }
    }

    /// What the leader says, and whether it can be sure to be the leader.
    async fn ask(&self) -> Result<(Facts, bool), Failure> {
        for answer in 1.. {
            let found = self
                .link
                .api(&format!("STREAM.INFO.{}", self.stream), &Value::Null)
                .await;
            match found {
                Ok(info) => return self.judge(&info).map(|facts| (facts, info.is_led())),
                Err(Refusal::Code {
                    code: codes::STREAM_NOT_FOUND,
                    ..
                }) => {}
                Err(why) => return Err(Failure::Determinate(why.words())),
            }
            match self.identity().known() {
                Some(known) if answer >= GONE_ANSWERS => {
                    return Err(Failure::Foreign(Foreign::Gone { known }));
                }
                Some(_) => tokio::time::sleep(GONE_PAUSE).await,
                None if self.identity().may_create() => {
                    return self.create().await.map(|facts| (facts, true));
                }
                None => {
                    return Err(Failure::Determinate(format!(
                        "there is no stream {} at NATS, and none may be made here",
                        self.stream
                    )));
                }
            }
        }
        Err(Failure::Determinate("the stream was not found".to_owned()))
    }

    async fn create(&self) -> Result<Facts, Failure> {
        let log_id = LogId(crate::ambient::new_id());
        let wanted = stream::wanted(log_id, self.link.options().replicas);
        let body = to_wire(&self.stream, &wanted);
        let made = self
            .link
            .api(&format!("STREAM.CREATE.{}", self.stream), &body)
            .await;
        match made {
            Ok(info) => {
                let facts = self.judge(&info)?;
                tracing::info!(stream = self.stream, %log_id, "made a new log");
                Ok(facts)
            }
            // Somebody else was faster: theirs is the log.
            Err(Refusal::Code {
                code: codes::STREAM_NAME_IN_USE,
                ..
            }) => {
                let found = self
                    .link
                    .api(&format!("STREAM.INFO.{}", self.stream), &Value::Null)
                    .await;
                found
                    .map_err(|why| Failure::Determinate(why.words()))
                    .and_then(|info| self.judge(&info))
            }
            Err(why) => Err(Failure::Determinate(format!(
                "the stream {} could not be made: {}",
                self.stream,
                why.words()
            ))),
        }
    }

    fn judge(&self, info: &StreamInfo) -> Result<Facts, Failure> {
        let found = from_wire(&info.config);
        let Some(log_id) = found
            .log_id
            .as_ref()
            .and_then(|id| id.parse::<LogId>().ok())
        else {
            return Err(Failure::Determinate(format!(
                "the stream {} is no log of router policies: its metadata has no {}",
                self.stream,
                stream::LOG_ID_KEY
            )));
        };
        if let Some(known) = self.identity().known().filter(|known| *known != log_id) {
            return Err(Failure::Foreign(Foreign::OtherIdentity {
                known,
                actual: log_id,
            }));
        }
        let differences = stream::diff(
            &stream::wanted(log_id, self.link.options().replicas),
            &found,
        );
        self.tell(&differences);
        let fatal: Vec<String> = differences
            .iter()
            .filter(|difference| difference.fatal)
            .map(ToString::to_string)
            .collect();
        if !fatal.is_empty() {
            return Err(Failure::Determinate(format!(
                "the stream {} is configured to lose records: {}",
                self.stream,
                fatal.join("; ")
            )));
        }
        self.identity().meet(log_id).map_err(Failure::Foreign)?;
        self.looked
            .store(true, std::sync::atomic::Ordering::Release);
        Ok(Facts {
            log_id,
            last: Position(info.state.last_seq),
            made: info.created.clone(),
        })
    }

    /// Logs every difference once, and again when the differences change.
    fn tell(&self, differences: &[stream::Difference]) {
        let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
        let mut told = self
            .told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if *told == lines {
            return;
        }
        for (line, difference) in lines.iter().zip(differences) {
            if difference.fatal {
                tracing::error!(stream = self.stream, "configuration of the stream: {line}");
            } else {
                tracing::warn!(stream = self.stream, "configuration of the stream: {line}");
            }
        }
        *told = lines;
    }
}

/// As `$JS.API.STREAM.CREATE` wants it.
fn to_wire(name: &str, wanted: &StreamConfiguration) -> Value {
    let limit = |limit: Option<u64>| limit.map_or(json!(-1), Value::from);
    let mut out = json!({
        "name": name,
        "subjects": wanted.subjects,
        "storage": match wanted.storage { Storage::File => "file", Storage::Memory => "memory" },
        "retention": match wanted.retention {
            Retention::Limits => "limits",
            Retention::Interest => "interest",
            Retention::WorkQueue => "workqueue",
        },
        "discard": match wanted.discard { Discard::New => "new", Discard::Old => "old" },
        "max_msgs": limit(wanted.max_messages),
        "max_msgs_per_subject": limit(wanted.max_messages_per_subject),
        "max_bytes": limit(wanted.max_bytes),
        "max_age": wanted.max_age_ms.unwrap_or(0) * 1_000_000,
        "max_msg_size": limit(wanted.max_message_bytes),
        "max_consumers": limit(wanted.max_consumers),
        "num_replicas": wanted.replicas,
        "duplicate_window": wanted.duplicate_window_secs * 1_000_000_000,
        "deny_delete": wanted.deny_delete,
        "deny_purge": wanted.deny_purge,
        "allow_rollup_hdrs": wanted.allow_rollup,
        "allow_direct": wanted.allow_direct,
        "metadata": { stream::LOG_ID_KEY: wanted.log_id },
    });
    // Unknown to 2.10; left out where it is not wanted, which is everywhere.
    if wanted.allow_message_ttl {
        out["allow_msg_ttl"] = json!(true);
    }
    out
}

/// As `$JS.API.STREAM.INFO` gives it. Absent means what NATS means by it.
fn from_wire(config: &Value) -> StreamConfiguration {
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let on = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let number = |key: &str| config.get(key).and_then(Value::as_i64).unwrap_or(0);
    let limit = |key: &str| u64::try_from(number(key)).ok().filter(|limit| *limit > 0);
    let there = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    StreamConfiguration {
        subjects: config
            .get("subjects")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(ToOwned::to_owned)
            .collect(),
        storage: if text("storage") == "memory" {
            Storage::Memory
        } else {
            Storage::File
        },
        retention: match text("retention") {
            "interest" => Retention::Interest,
            "workqueue" => Retention::WorkQueue,
            _ => Retention::Limits,
        },
        discard: if text("discard") == "new" {
            Discard::New
        } else {
            Discard::Old
        },
        max_messages: limit("max_msgs"),
        max_messages_per_subject: limit("max_msgs_per_subject"),
        max_bytes: limit("max_bytes"),
        max_age_ms: limit("max_age").map(|nanos| (nanos / 1_000_000).max(1)),
        max_message_bytes: limit("max_msg_size"),
        max_consumers: limit("max_consumers"),
        replicas: usize::try_from(number("num_replicas")).unwrap_or(1).max(1),
        duplicate_window_secs: limit("duplicate_window").unwrap_or(0) / 1_000_000_000,
        deny_delete: on("deny_delete"),
        deny_purge: on("deny_purge"),
        allow_rollup: on("allow_rollup_hdrs"),
        allow_direct: on("allow_direct"),
        allow_message_ttl: on("allow_msg_ttl"),
        subject_delete_markers: number("subject_delete_marker_ttl") != 0,
        no_ack: on("no_ack"),
        sealed: on("sealed"),
        derived: there("mirror") || there("sources") || there("subject_transform"),
        log_id: config
            .pointer(&format!("/metadata/{}", stream::LOG_ID_KEY))
            .and_then(Value::as_str)
            .map(ToOwned::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wanted_configuration_reads_back_from_the_wire() {
        let wanted = stream::wanted(LogId(uuid::Uuid::from_u128(5)), 3);
        assert_eq!(from_wire(&to_wire("S", &wanted)), wanted);
    }

    #[test]
    fn a_leader_is_believed_while_it_hears_a_majority() {
        let is_led = |cluster: Value| {
            let info = json!({ "config": {}, "created": "", "state": { "last_seq": 1 }, "cluster": cluster });
            serde_json::from_value::<StreamInfo>(info).unwrap().is_led()
        };
        let heard = json!({ "active": 300_000_000u64 });
        let lost = json!({ "active": 3_000_000_000u64 });
        let away = json!({ "active": 1, "offline": true });
        assert!(is_led(Value::Null) && is_led(json!({ "leader": "one" })));
        assert!(is_led(json!({ "replicas": [heard, lost] })));
        assert!(!is_led(json!({ "replicas": [lost, away] })));
        assert!(!is_led(json!({ "replicas": [heard, lost, lost, away] })));
    }

    #[test]
    fn what_nats_leaves_out_is_what_it_means() {
        let found =
            from_wire(&json!({ "name": "S", "max_age": 1, "max_msgs": -1, "max_bytes": 0 }));
        assert_eq!(found.max_age_ms, Some(1), "a nanosecond is a limit");
        assert_eq!((found.max_messages, found.max_bytes), (None, None));
        assert!(!found.deny_delete && !found.deny_purge);
        assert_eq!(found.discard, Discard::Old);
    }
}
