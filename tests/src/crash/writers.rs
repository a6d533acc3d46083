//! Clients that change policies all the time, insist on knowing what became of each change, and write it into the ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use event_log::ambient::Tasks;
use reqwest::Method;
use schemas::CommandId;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::ledger::Ledger;
use crate::http::{Answer, Http};

/// What the clients are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// Begin one operation after another.
    Go,
    /// Begin none; find out about those that are open.
    Settle,
    /// The same, and end.
    End,
}

/// A policy that the clients fight over.
#[derive(Debug, Clone)]
pub struct Place {
    /// `worker_selection` or `busy_threshold`.
    pub kind: &'static str,
    /// Its scope.
    pub scope: Value,
    /// The parameter that is changed.
    pub parameter: &'static str,
}

impl Place {
    /// A worker selection policy of one model.
    #[must_use]
    pub fn model(model: &str) -> Place {
        Place {
            kind: "worker_selection",
            scope: json!({"model": model}),
            parameter: "router_temperature",
        }
    }

    fn change(&self, revision: u64, number: u64, dice: &mut fastrand::Rng) -> Value {
        let (step, wraps) = match self.kind {
            "busy_threshold" => (0.001, 1_000),
            _ => (0.001, 100_000),
        };
        let mut change =
            json!({"kind": self.kind, "scope": self.scope, "expected_revision": revision});
        match dice.u32(..20) {
            0 => change["reset"] = json!(true),
            1 => change["parameters"] = json!({ self.parameter: null }),
            _ => {
                let value = (number % wraps) as f64 * step;
                change["parameters"] = json!({ self.parameter: value });
            }
        }
        change
    }
}

/// The clients.
#[derive(Debug)]
pub struct Writers {
    tasks: Tasks,
    course: watch::Sender<Course>,
    idle: Arc<AtomicU64>,
    count: u64,
    /// Answers that no client may get.
    pub strange: Arc<std::sync::Mutex<Vec<String>>>,
}

/// How long one request may take. Short: a service that was killed does not answer, and the client should ask the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// A client that waits for the fate of one operation longer than this says so.
const FATE_MAX: Duration = Duration::from_secs(120);

impl Writers {
    /// `count` clients that send to any of the services.
    #[must_use]
    pub fn start(
        count: u64,
        services: &[String],
        places: &[Place],
        ledger: &Arc<Ledger>,
        seed: u64,
        pause: Duration,
    ) -> Writers {
        let writers = Writers {
            tasks: Tasks::new(),
            course: watch::Sender::new(Course::Go),
            idle: Arc::default(),
            count,
            strange: Arc::default(),
        };
        for number in 0..count {
            let client = Client {
                services: services
                    .iter()
                    .map(|base| Http::kept(base.clone(), PATIENCE))
                    .collect(),
                hasty: services
                    .iter()
                    .map(|base| Http::new(base.clone(), Duration::from_millis(3)))
                    .collect(),
                places: places.to_vec(),
                ledger: Arc::clone(ledger),
                dice: fastrand::Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(number)),
                strange: Arc::clone(&writers.strange),
                pause,
            };
            let (course, idle) = (writers.course.subscribe(), Arc::clone(&writers.idle));
            writers.tasks.start("writer", client.run(course, idle));
        }
        writers
    }

    /// Tells the clients what to do.
    pub fn course(&self, course: Course) {
        self.course.send_replace(course);
    }

    /// True when no client has anything open.
    #[must_use]
    pub fn are_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst) == self.count
    }

    /// Ends them once everything is known. False when that took too long.
    pub async fn end(self) -> bool {
        self.course(Course::End);
        let tasks = self.tasks;
        // Stopping cancels nothing here: the clients end by themselves.
        tasks.stop(FATE_MAX * 2).await
    }
}

struct Client {
    services: Vec<Http>,
    /// The same, given up at once: the caller that is gone before its answer.
    hasty: Vec<Http>,
    places: Vec<Place>,
    ledger: Arc<Ledger>,
    dice: fastrand::Rng,
    strange: Arc<std::sync::Mutex<Vec<String>>>,
    pause: Duration,
}

/// What one answer says of the operation.
#[derive(Debug)]
enum Said {
    Acknowledged(u64),
    Refused(String),
    NotApplied(String),
    Unknown,
    Strange(String),
}

fn said(answer: Result<Answer, String>) -> Said {
    let Ok(answer) = answer else {
        return Said::Unknown;
    };
    let code = answer.code().to_owned();
    match answer.status {
        200 => match answer.json["position"].as_u64() {
            Some(position) => Said::Acknowledged(position),
            None => Said::Strange(answer.text),
        },
        409 | 412 => Said::Refused(code),
        503 if answer.json["outcome"] == "not_applied" => Said::NotApplied(code),
        503 => Said::Unknown,
        other => Said::Strange(format!("{other}: {}", answer.text)),
    }
}

impl Client {
    async fn run(mut self, mut course: watch::Receiver<Course>, idle: Arc<AtomicU64>) {
        loop {
            let now = *course.borrow_and_update();
            match now {
                Course::Go => {
                    self.operate().await;
                    if !self.pause.is_zero() {
                        tokio::time::sleep(self.pause).await;
                    }
                }
                Course::Settle => {
                    idle.fetch_add(1, Ordering::SeqCst);
                    let changed = course.changed().await;
                    idle.fetch_sub(1, Ordering::SeqCst);
                    if changed.is_err() {
                        return;
                    }
                }
                Course::End => return,
            }
        }
    }

    async fn operate(&mut self) {
        let first = self.dice.usize(..self.places.len());
        let mut places = vec![self.places[first].clone()];
        if self.places.len() > 1 && self.dice.u32(..10) == 0 {
            let second = (first + 1) % self.places.len();
            places.push(self.places[second].clone());
        }
        let at = self.dice.usize(..self.services.len());
        let Some(mut revisions) = self.revisions(at, &places).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            return;
        };
        // A revision that is not there yet may be there for the next request under the same key: then only one is sent.
        let early = match self.dice.u32(..20) {
            0 => {
                revisions[0] = revisions[0].saturating_sub(1);
                false
            }
            1 => {
                revisions[0] += 3;
                true
            }
            _ => false,
        };
        let (id, number) = self.ledger.begin();
        let changes: Vec<Value> = places
            .iter()
            .zip(revisions)
            .map(|(place, revision)| place.change(revision, number, &mut self.dice))
            .collect();
        let body = json!({"reason": format!("operation {number}"), "changes": changes});
        self.insist(id, &body, at, early).await;
    }

    /// The revision of each place as a service has it.
    async fn revisions(&self, at: usize, places: &[Place]) -> Option<Vec<u64>> {
        let listed = self.services[at].get("/v1/policies").await.ok()?;
        let policies = listed.json["policies"].as_array()?;
        let revision = |place: &Place| {
            let found = policies
                .iter()
                .find(|one| one["kind"] == place.kind && one["scope"] == place.scope);
            found.map_or(0, |policy| policy["revision"].as_u64().unwrap_or(0))
        };
        Some(places.iter().map(revision).collect())
    }

    /// Sends it under its key until its fate is known.
    async fn insist(&mut self, id: CommandId, body: &Value, mut at: usize, once: bool) {
        let begun = Instant::now();
        let key = id.to_string();
        let mut doubt = false;
        match self.dice.u32(..20) {
            _ if once => {}
            0 => {
                // The caller is gone before its answer.
                let _ = send(&self.hasty[at], &key, body).await;
                doubt = true;
            }
            1 if self.services.len() > 1 => {
                let other = (at + 1) % self.services.len();
                let (one, two) = futures::future::join(
                    send(&self.services[at], &key, body),
                    send(&self.services[other], &key, body),
                )
                .await;
                let settled = [
                    self.note(id, said(one), true),
                    self.note(id, said(two), true),
                ];
                if settled.contains(&true) {
                    return;
                }
                doubt = true;
            }
            _ => {}
        }
        loop {
            let answer = said(send(&self.services[at], &key, body).await);
            let unknown = matches!(answer, Said::Unknown);
            // Whoever was told "not applied" may leave it at that, or try again.
            let goes_on = doubt || self.dice.bool();
            if self.note(id, answer, goes_on) {
                return;
            }
            doubt |= unknown;
            if begun.elapsed() > FATE_MAX {
                self.complain(format!("{id}: no fate within {FATE_MAX:?}"));
                return;
            }
            at = self.dice.usize(..self.services.len());
            let pause = Duration::from_millis(self.dice.u64(5..40));
            tokio::time::sleep(pause).await;
        }
    }

    /// Writes down what was said. True when that settles it.
    fn note(&self, id: CommandId, said: Said, goes_on: bool) -> bool {
        let words = format!("{said:?}");
        let consistent = match &said {
            Said::Acknowledged(position) => self.ledger.acknowledged(id, *position),
            Said::Refused(code) => self.ledger.refused(id, code),
            Said::NotApplied(code) if !goes_on => self.ledger.refused(id, code),
            Said::NotApplied(_) | Said::Unknown => return false,
            Said::Strange(words) => {
                self.complain(format!("{id}: {words}"));
                return false;
            }
        };
        if !consistent {
            let before = self.ledger.page().get(&id).map(|one| one.told.clone());
            self.complain(format!("{id}: {before:?}, then {words}"));
        }
        true
    }

    fn complain(&self, words: String) {
        let mut strange = self
            .strange
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // Bound: what is read by nobody.
        if strange.len() < 20 {
            strange.push(words);
        }
    }
}

async fn send(http: &Http, key: &str, body: &Value) -> Result<Answer, String> {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ];
    let sent = body.to_string().into_bytes();
    http.send(Method::POST, "/v1/changes", &headers, Some(sent))
        .await
}
