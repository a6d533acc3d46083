//! Writers and readers over HTTP, and everything that they were told.
//!
//! Half of the writes bring a key and are repeated with it until their fate is known; the other half bring none, so that the
//! service itself has to say whether a change was made: what it calls not applied must never show up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::ambient::Tasks;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Method;
use schemas::CommandId;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::stage::new_command;
use crate::history::recorder::Recorder;
use crate::history::{Operation, Register, What};
use crate::http::{Answer, Http};

/// Policies that the writers fight over.
pub const POLICIES: usize = 8;
/// Readers with a position, and readers that ask the log's head first.
const READERS: usize = 2;
/// How long a write of unknown fate is repeated.
const INSIST: Duration = Duration::from_secs(60);

/// What everybody was told.
#[derive(Debug, Default)]
pub struct Told {
    /// Acknowledged changes and their positions.
    pub acknowledged: BTreeMap<CommandId, u64>,
    /// Refused because of another change, with the answer.
    pub refused: BTreeMap<CommandId, String>,
    /// Said to be not applied.
    pub not_applied: BTreeSet<CommandId>,
    /// Never found out.
    pub unknown: BTreeSet<CommandId>,
    /// Writes that were unknown at first and then found out.
    pub resolved: u64,
    /// Answers by status and code, of all tries and reads.
    pub answers: BTreeMap<String, u64>,
    /// Answers that should not have been given.
    pub wrong: Vec<String>,
    /// Places of unconditional changes, whose revision only the log tells.
    unconditional: BTreeMap<u64, Operation>,
}

/// The newest acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledged {
    /// When the write was sent.
    pub sent: Instant,
    /// When the answer came.
    pub came: Instant,
    /// How many there were.
    pub count: u64,
}

/// Shared by all clients.
#[derive(Debug)]
pub struct Load {
    services: Vec<Http>,
    /// Names the policies, so that two loads on one log do not share any.
    seed: u64,
    /// What is told of the log's end is not judged, see [`Load::forgive_old_ends`].
    forgiving: AtomicBool,
    recorder: Recorder,
    told: Mutex<Told>,
    /// The last revision of each policy that anybody saw, and the last acknowledged position.
    seen: Mutex<(Vec<u64>, Vec<u64>)>,
    acknowledged: watch::Sender<Acknowledged>,
    stop: CancellationToken,
    tasks: Tasks,
}

impl Load {
    /// Starts writers and readers.
    #[must_use]
    pub fn start(services: Vec<Http>, writers: usize, seed: u64) -> Arc<Load> {
        let now = Instant::now();
        let load = Arc::new(Load {
            services,
            seed,
            forgiving: AtomicBool::new(false),
            recorder: Recorder::default(),
            told: Mutex::default(),
            seen: Mutex::new((vec![0; POLICIES], vec![0; POLICIES])),
            acknowledged: watch::Sender::new(Acknowledged {
                sent: now,
                came: now,
                count: 0,
            }),
            stop: CancellationToken::new(),
            tasks: Tasks::new(),
        });
        for client in 0..writers + 2 * READERS {
            let rng = SmallRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(client as u64));
            let mut client = Client {
                load: Arc::clone(&load),
                number: client,
                rng,
                positions: vec![0; load.services.len()],
            };
            load.tasks.start("client", async move {
                while !client.load.stop.is_cancelled() {
                    match client.number {
                        number if number < READERS => client.read_after().await,
                        number if number < 2 * READERS => client.read_fresh().await,
                        _ => client.write().await,
                    }
                }
            });
        }
        load
    }

    /// Leaves out of the history what rests on the log's end as its leader tells it: fresh reads, and refusals by a replica that is
    /// behind. A leader that was cut off and comes back tells an old end for a moment, and JetStream has no read that a majority
    /// confirms.
    pub fn forgive_old_ends(&self) {
        self.forgiving.store(true, Ordering::Release);
    }

    /// Tells of each acknowledgement.
    pub fn acknowledgements(&self) -> watch::Receiver<Acknowledged> {
        self.acknowledged.subscribe()
    }

    /// Waits until so many more writes are acknowledged that were sent after now; returns when the first of them was.
    ///
    /// # Panics
    /// When that takes longer than `patience`.
    pub async fn goes_on(&self, more: u64, patience: Duration) -> Instant {
        let from = Instant::now();
        let mut acknowledged = self.acknowledgements();
        let wait = async {
            let first = *acknowledged
                .wait_for(|one| one.sent > from)
                .await
                .expect("the load holds the sender");
            acknowledged
                .wait_for(|one| one.count >= first.count + more)
                .await
                .expect("the load holds the sender");
            first.came
        };
        match tokio::time::timeout(patience, wait).await {
            Ok(came) => came,
            Err(_) => panic!(
                "no writes were accepted for {patience:?}: {}",
                self.summary()
            ),
        }
    }

    /// Lets every client finish what it has begun.
    ///
    /// # Panics
    /// When one does not.
    pub async fn end(&self) {
        self.stop.cancel();
        assert!(
            self.tasks.stop(INSIST + Duration::from_secs(80)).await,
            "a client does not end"
        );
    }

    /// What everybody was told.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history, once the log has told the revisions (by position) of the changes that named none.
    #[must_use]
    pub fn history(&self, revisions: &BTreeMap<u64, u64>) -> Vec<Operation> {
        let mut history = self.recorder.history();
        for (position, operation) in &self.told().unconditional {
            let mut operation = operation.clone();
            if let (What::Written { revision, .. }, Some(found)) =
                (&mut operation.what, revisions.get(position))
            {
                *revision = *found;
            }
            history.push(operation);
        }
        if self.forgiving.load(Ordering::Acquire) {
            history.retain(|one| !matches!(one.what, What::Read { .. } | What::Refused { .. }));
        }
        history.sort_by_key(|operation| operation.began_us);
        history
    }

    /// In one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let told = self.told();
        format!(
            "writes: {} acknowledged, {} refused, {} not applied, {} unknown at first and found out, {} unknown for good; answers {:?}",
            told.acknowledged.len(),
            told.refused.len(),
            told.not_applied.len(),
            told.resolved,
            told.unknown.len(),
            told.answers
        )
    }

    fn see(&self, policy: usize, revision: u64, position: Option<u64>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0[policy] = seen.0[policy].max(revision);
        if let Some(position) = position {
            seen.1[policy] = seen.1[policy].max(position);
        }
    }

    fn seen(&self, policy: usize) -> (u64, u64) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.0[policy], seen.1[policy])
    }

    fn wrong(&self, what: &str, answer: &Answer) {
        let text = format!("{what}: {} {}", answer.status, answer.text);
        self.told().wrong.push(text);
    }
}

struct Client {
    load: Arc<Load>,
    number: usize,
    rng: SmallRng,
    /// The last position that each replica told.
    positions: Vec<u64>,
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
