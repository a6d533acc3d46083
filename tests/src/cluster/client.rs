//! One client of a load: writes, repeats, reads, and notes what it was told.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::SmallRng;
use reqwest::Method;
use schemas::CommandId;
use serde_json::json;
use tokio::time::Instant;

use super::load::{Acknowledged, INSIST, Load, POLICIES, READERS};
use super::stage::new_command;
use crate::history::{Operation, Register, What};
use crate::http::Answer;

/// A writer or a reader, by its number.
pub(super) struct Client {
    pub(super) load: Arc<Load>,
    pub(super) number: usize,
    pub(super) rng: SmallRng,
    /// The last position that each replica told.
    pub(super) positions: Vec<u64>,
}

/// A write on its way.
struct Write {
    policy: usize,
    command: CommandId,
    expected: Option<u64>,
    replica: usize,
    began_us: u64,
}

/// What one try told.
enum Fate {
    Acknowledged(u64),
    Refused(String),
    NotApplied,
    Open,
}

impl Client {
    fn note(&self, write: &Write, what: What) -> Operation {
        Operation {
            client: self.number,
            policy: write.policy,
            replica: write.replica,
            began_us: write.began_us,
            ended_us: self.load.recorder.now_us(),
            what,
        }
    }

    fn model(&self, policy: usize) -> String {
        format!("storm-{}-{policy}", self.load.seed)
    }

    /// The next thing that it does.
    pub(super) async fn act(&mut self) {
        match self.number {
            number if number < READERS => self.read_after().await,
            number if number < 2 * READERS => self.read_fresh().await,
            _ => self.write().await,
        }
    }

    async fn write(&mut self) {
        let policy = self.rng.random_range(0..POLICIES);
        let conditional = self.rng.random_range(0..6u32) > 0;
        let keyed = self.rng.random_bool(0.5);
        let mut write = Write {
            policy,
            command: new_command(),
            expected: conditional.then(|| self.load.seen(policy).0),
            replica: self.rng.random_range(0..self.load.services.len()),
            began_us: self.load.recorder.now_us(),
        };
        let sent = Instant::now();
        let mut named = keyed;
        let mut doubted = false;
        let fate = loop {
            match self.one_try(&mut write, named).await {
                Fate::Open if sent.elapsed() < INSIST => {
                    named = true;
                    doubted = true;
                    let pause = Duration::from_millis(self.rng.random_range(50..400u64));
                    tokio::time::sleep(pause).await;
                    write.replica = self.rng.random_range(0..self.load.services.len());
                }
                fate @ (Fate::Acknowledged(_)
                | Fate::Refused(_)
                | Fate::NotApplied
                | Fate::Open) => break fate,
            }
        };
        let known = !matches!(fate, Fate::Open);
        self.load.told().resolved += u64::from(doubted && known);
        self.settle(&write, fate, sent).await;
    }

    async fn settle(&mut self, write: &Write, fate: Fate, sent: Instant) {
        let Write {
            command, expected, ..
        } = *write;
        match fate {
            Fate::Acknowledged(position) => {
                let revision = expected.map_or(0, |expected| expected + 1);
                let operation = self.note(
                    write,
                    What::Written {
                        command,
                        expected,
                        revision,
                        position,
                    },
                );
                let mut told = self.load.told();
                told.acknowledged.insert(command, position);
                if expected.is_none() {
                    told.unconditional.insert(position, operation);
                } else {
                    self.load.recorder.note(operation);
                }
                drop(told);
                self.load.see(write.policy, revision, Some(position));
                self.load.acknowledged.send_modify(|last| {
                    *last = Acknowledged {
                        sent: last.sent.max(sent),
                        came: Instant::now(),
                        count: last.count + 1,
                    };
                });
            }
            Fate::Refused(answer) => {
                self.load.told().refused.insert(command, answer);
                if let Some(expected) = expected {
                    let operation = self.note(write, What::Refused { command, expected });
                    self.load.recorder.note(operation);
                }
                // The next one should know better.
                self.look(write.policy, write.replica, None).await;
            }
            Fate::NotApplied => {
                self.load.told().not_applied.insert(command);
                let pause = Duration::from_millis(self.rng.random_range(20..200u64));
                tokio::time::sleep(pause).await;
            }
            Fate::Open => {
                self.load.told().unknown.insert(command);
                let operation = self.note(write, What::Unknown { command, expected });
                self.load.recorder.note(operation);
            }
        }
    }

    async fn one_try(&self, write: &mut Write, named: bool) -> Fate {
        let value = f64::from(u32::try_from(write.began_us % 1_000).unwrap_or(0)) / 1_000.0;
        let mut change = json!({"kind": "worker_selection",
            "scope": {"model": self.model(write.policy)},
            "parameters": {"router_temperature": value}});
        if let Some(expected) = write.expected {
            change["expected_revision"] = json!(expected);
        }
        // The same body in every try.
        let body = json!({"changes": [change]}).to_string().into_bytes();
        let key = write.command.to_string();
        let mut headers = vec![("content-type", "application/json")];
        if named {
            headers.push(("idempotency-key", key.as_str()));
        }
        let service = &self.load.services[write.replica];
        let answer = service
            .send(Method::POST, "/v1/changes", &headers, Some(body))
            .await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => {
                *self
                    .load
                    .told()
                    .answers
                    .entry(format!("no answer: {why}"))
                    .or_default() += 1;
                return Fate::Open;
            }
        };
        let label = format!("{} {}", answer.status, answer.code());
        *self.load.told().answers.entry(label).or_default() += 1;
        if !named && let Some(command) = command_of(&answer) {
            write.command = command;
        }
        let outcome = answer.json["outcome"].as_str().unwrap_or_default();
        match (answer.status, answer.code(), outcome) {
            (200, ..) => Fate::Acknowledged(answer.json["position"].as_u64().unwrap_or(0)),
            (409, "stale_revision" | "conflict", _) => Fate::Refused(answer.text),
            (503, "foreign_log", _) => {
                self.load.wrong("the log was always the same", &answer);
                Fate::Open
            }
            (503, _, "not_applied") if named => {
                self.load
                    .wrong("a named command is never called not applied", &answer);
                Fate::NotApplied
            }
            (503, _, "not_applied") => Fate::NotApplied,
            (503, _, "unknown") => Fate::Open,
            _ => {
                self.load.wrong("a write", &answer);
                Fate::Open
            }
        }
    }

    /// A read that holds everything up to a position.
    async fn look(
        &mut self,
        policy: usize,
        replica: usize,
        at_least: Option<u64>,
    ) -> Option<(Register, u64)> {
        let mut path = format!(
            "/v1/policies?kind=worker_selection&model={}",
            self.model(policy)
        );
        if let Some(position) = at_least {
            path.push_str(&format!("&min_position={position}"));
        }
        let answer = self.load.services[replica].get(&path).await.ok()?;
        let label = format!("read {} {}", answer.status, answer.code());
        *self.load.told().answers.entry(label).or_default() += 1;
        match answer.status {
            200 => {}
            503 => return None,
            _ => {
                self.load.wrong("a read", &answer);
                return None;
            }
        }
        let policies = answer.json["policies"].as_array();
        let seen = match policies.and_then(|policies| policies.first()) {
            Some(view) => Register {
                revision: view["revision"].as_u64().unwrap_or(0),
                command: view["command_id"].as_str().and_then(|id| id.parse().ok()),
            },
            None => Register::EMPTY,
        };
        self.load.see(policy, seen.revision, None);
        Some((seen, answer.json["position"].as_u64().unwrap_or(0)))
    }

    /// Reads what was acknowledged last, through any replica; or reads a replica again, which must not go back.
    async fn read_after(&mut self) {
        let policy = self.rng.random_range(0..POLICIES);
        let replica = self.rng.random_range(0..self.load.services.len());
        let bounded = self.rng.random_bool(0.6);
        let at_least = if bounded {
            self.load.seen(policy).1
        } else {
            self.positions[replica]
        };
        let began_us = self.load.recorder.now_us();
        let asked = bounded.then_some(at_least);
        if let Some((seen, position)) = self.look(policy, replica, asked).await {
            self.positions[replica] = self.positions[replica].max(position);
            let what = What::ReadAfter {
                at_least,
                seen,
                position,
            };
            self.read(policy, replica, began_us, what);
        }
        self.breathe().await;
    }

    /// Asks where the log ends, then reads with that position through any replica: must see everything acknowledged before.
    async fn read_fresh(&mut self) {
        let policy = self.rng.random_range(0..POLICIES);
        let replica = self.rng.random_range(0..self.load.services.len());
        let asked = self.rng.random_range(0..self.load.services.len());
        let began_us = self.load.recorder.now_us();
        let head = self.load.services[asked].get("/v1/log/head").await;
        let head = head.ok().filter(|head| head.status == 200);
        let head = head.and_then(|head| head.json["position"].as_u64());
        if let Some(head) = head
            && let Some((seen, _)) = self.look(policy, replica, Some(head)).await
        {
            self.read(policy, replica, began_us, What::Read { seen });
        }
        self.breathe().await;
    }

    fn read(&self, policy: usize, replica: usize, began_us: u64, what: What) {
        self.load.recorder.note(Operation {
            client: self.number,
            policy,
            replica,
            began_us,
            ended_us: self.load.recorder.now_us(),
            what,
        });
    }

    /// Readers leave room for the writers.
    async fn breathe(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.rng.random_range(5..25u64))).await;
    }
}

fn command_of(answer: &Answer) -> Option<CommandId> {
    answer.json["command_id"].as_str()?.parse().ok()
}
