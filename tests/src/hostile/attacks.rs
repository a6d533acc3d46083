//! The attacks. Each returns what it saw that should not be; memory and the probe are judged by the caller.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures::stream::{StreamExt as _, iter};
use reqwest::Method;
use serde_json::{Value, json};

use super::bound::Held;
use super::herd::Herd;
use super::stage::{Against, Place};

type Seen<'a> = Pin<Box<dyn Future<Output = Vec<String>> + 'a>>;

/// One attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) against: Against,
    /// Clients, or requests.
    pub(super) clients: usize,
    /// The same where there is little time; 0 = left out.
    pub(super) quick: usize,
    /// What the process may hold for it; with the number of clients this is the bound on memory.
    pub(super) held: &'static [Held],
    pub(super) run: for<'a> fn(&'a Place, usize) -> Seen<'a>,
}

macro_rules! attacks {
    ($(($name:literal, $against:ident, $clients:literal, $quick:literal, [$($held:ident),*], $run:path),)*) => {
        vec![$(Attack {
            name: $name,
            against: Against::$against,
            clients: $clients,
            quick: $quick,
            held: &[$(Held::$held),*],
            run: |place, clients| Box::pin($run(place, clients)),
        }),*]
    };
}

/// In the order in which they are run.
pub(super) fn all() -> Vec<Attack> {
    attacks![
        ("slow heads", Service, 2_000, 100, [], slow_heads),
        ("slow bodies", Service, 2_000, 0, [Bodies], slow_bodies),
        ("endless heads", Service, 1_000, 100, [], endless_heads),
        ("many headers", Service, 2_000, 200, [], many_headers),
        ("huge queries", Service, 2_000, 200, [], huge_queries),
        ("endless chunks", Service, 500, 50, [Bodies], endless_chunks),
        ("compressed bombs", Service, 200, 20, [], compressed),
        ("deep JSON", Service, 1_000, 100, [], deep_json),
        ("hostile schemas", Service, 200, 10, [], hostile_schemas),
        ("distinct keys", Service, 4_000, 100, [Log], distinct_keys),
        ("long reports", Service, 400, 8, [Reports], long_reports),
        ("idle streams", Service, 10_000, 500, [], idle_streams),
        (
            "waiting writers",
            Service,
            2_000,
            300,
            [Log],
            waiting_writers
        ),
        (
            "deaf streams",
            Service,
            500,
            20,
            [Log, Answers],
            deaf_streams
        ),
        (
            "deaf exports",
            Service,
            500,
            20,
            [Log, Answers],
            deaf_exports
        ),
        (
            "deaf readers",
            Service,
            1_000,
            0,
            [Log, Answers],
            deaf_readers
        ),
        (
            "deaf pipelines",
            Service,
            200,
            20,
            [Log, Answers],
            deaf_pipelines
        ),
        ("idle connections", Service, 17_000, 0, [], idle_connections),
        ("idle connections", Poor, 1_500, 600, [], idle_connections),
        ("idle connections", Agent, 2_000, 600, [], idle_connections),
        ("slow heads", Agent, 1_000, 0, [], slow_heads),
        ("endless heads", Agent, 500, 100, [], endless_heads),
        (
            "idle connections",
            Frontend,
            6_000,
            300,
            [],
            idle_connections
        ),
        ("slow heads", Frontend, 1_000, 0, [], slow_heads),
        ("endless heads", Frontend, 500, 100, [], endless_heads),
        (
            "endless chunks",
            Frontend,
            500,
            50,
            [Bodies],
            endless_chunks
        ),
    ]
}

/// Longer than any time limit that a client is given.
const CUT_OFF: Duration = Duration::from_secs(150);

fn left(open: usize) -> Vec<String> {
    if open == 0 {
        Vec::new()
    } else {
        vec![format!("{open} connections were never closed")]
    }
}

async fn slow_heads(place: &Place, clients: usize) -> Vec<String> {
    let opening = b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ";
    let mut herd = Herd::gather(place.address, clients, opening).await;
    left(herd.dribble_until_closed(b"a", CUT_OFF).await)
}

async fn slow_bodies(place: &Place, clients: usize) -> Vec<String> {
    let opening = b"POST /v1/changes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 16000\r\n\r\n{";
    let mut herd = Herd::gather(place.address, clients, opening).await;
    left(herd.dribble_until_closed(b" ", CUT_OFF).await)
}

async fn endless_heads(place: &Place, clients: usize) -> Vec<String> {
    let mut opening = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ".to_vec();
    opening.resize(400 << 10, b'a');
    let mut herd = Herd::gather(place.address, clients, &opening).await;
    left(herd.dribble_until_closed(b"a", CUT_OFF).await)
}

async fn many_headers(place: &Place, clients: usize) -> Vec<String> {
    let mut opening = b"GET /v1/policies HTTP/1.1\r\nHost: x\r\n".to_vec();
    for header in 0..5_000 {
        opening.extend_from_slice(format!("X-{header}: {header}\r\n").as_bytes());
    }
    opening.extend_from_slice(b"\r\n");
    let mut herd = Herd::gather(place.address, clients, &opening).await;
    left(herd.dribble_until_closed(b"", CUT_OFF).await)
}

async fn huge_queries(place: &Place, clients: usize) -> Vec<String> {
    let mut opening = b"GET /v1/audit?model=".to_vec();
    opening.resize(300 << 10, b'a');
    opening.extend_from_slice(b" HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut herd = Herd::gather(place.address, clients, &opening).await;
    left(herd.dribble_until_closed(b"", CUT_OFF).await)
}

async fn endless_chunks(place: &Place, clients: usize) -> Vec<String> {
    let mut opening = b"PATCH /router_policy HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..64 {
        opening.extend_from_slice(b"400\r\n");
        opening.extend(std::iter::repeat_n(b' ', 1_024));
        opening.extend_from_slice(b"\r\n");
    }
    let mut herd = Herd::gather(place.address, clients, &opening).await;
    left(herd.dribble_until_closed(b"1\r\n \r\n", CUT_OFF).await)
}

/// Sends all at once, `at_once` at a time; names statuses that are not expected.
async fn each(
    clients: usize,
    at_once: usize,
    expected: &[u16],
    send: impl AsyncFn(usize) -> Result<u16, String>,
) -> Vec<String> {
    let sent = iter(0..clients).map(|n| send(n)).buffer_unordered(at_once);
    let wrong = sent.filter_map(async |status| match status {
        Ok(status) if expected.contains(&status) => None,
        Ok(status) => Some(format!("answered {status}")),
        Err(why) => Some(why),
    });
    let mut wrong: Vec<String> = wrong.collect().await;
    wrong.sort();
    wrong.dedup();
    wrong.truncate(4);
    wrong
}

const JSON: (&str, &str) = ("content-type", "application/json");

async fn compressed(place: &Place, clients: usize) -> Vec<String> {
    // A gzip head and what would be a long run of zeros; nothing here may unpack it.
    let mut bomb = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    bomb.resize(16_000, 0);
    let headers = [JSON, ("content-encoding", "gzip")];
    each(clients, 64, &[400], async |_| {
        let path = "/v1/changes";
        let answer = place
            .http
            .send(Method::POST, path, &headers, Some(bomb.clone()));
        answer.await.map(|answer| answer.status)
    })
    .await
}

async fn deep_json(place: &Place, clients: usize) -> Vec<String> {
    let mut deep =
        br#"{"changes":[{"kind":"worker_selection","scope":{},"parameters":{"a":"#.to_vec();
    deep.resize(16_000, b'[');
    each(clients, 64, &[400], async |_| {
        let answer = place
            .http
            .send(Method::POST, "/v1/changes", &[JSON], Some(deep.clone()));
        answer.await.map(|answer| answer.status)
    })
    .await
}

async fn hostile_schemas(place: &Place, clients: usize) -> Vec<String> {
    let schemas = [
        json!({"pattern": "(?=(a+)+b)x"}),
        json!({"pattern": "((a{1000}){1000}){10}"}),
        json!({"$ref": "#"}),
        json!({"$ref": "http://127.0.0.1:1/x"}),
    ];
    each(clients, 64, &[422], async |n| {
        let body = json!({"schema": schemas[n % schemas.len()]}).to_string();
        let path = "/v1/parameters/hostile";
        let answer = place
            .http
            .send(Method::PUT, path, &[JSON], Some(body.into_bytes()));
        answer.await.map(|answer| answer.status)
    })
    .await
}

fn change(model: &str, reason: &str) -> Vec<u8> {
    json!({"reason": reason, "changes": [{"kind": "worker_selection", "scope": {"model": model},
        "parameters": {"router_temperature": 0.5}}]})
    .to_string()
    .into_bytes()
}

fn new_key() -> String {
    event_log::ambient::new_id().to_string()
}

/// Makes a change as a careful client does: what was not done or is not known (503) is repeated under the same key.
async fn insist(place: &Place, key: &str, body: Vec<u8>) -> Result<u16, String> {
    let began = tokio::time::Instant::now();
    let headers = [JSON, ("idempotency-key", key)];
    loop {
        let sent = place
            .http
            .send(Method::POST, "/v1/changes", &headers, Some(body.clone()));
        let answer = sent.await?;
        if answer.status != 503 || began.elapsed() > super::PATIENCE {
            return Ok(answer.status);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn distinct_keys(place: &Place, clients: usize) -> Vec<String> {
    each(clients, 64, &[200], async |n| {
        let key = format!("key-{n}-{}", "k".repeat(200));
        insist(
            place,
            &key,
            change(&format!("m{}", n % 50), &"r".repeat(2_000)),
        )
        .await
    })
    .await
}

/// Bound: reports that are sent at the same time.
pub(super) const REPORTS_AT_ONCE: usize = 16;

async fn long_reports(place: &Place, clients: usize) -> Vec<String> {
    let golden = include_str!("../../inputs/status.json");
    let golden: Value = serde_json::from_str(golden).expect("golden");
    // Refused once too much is kept.
    each(clients, REPORTS_AT_ONCE, &[204, 503], async |n| {
        let mut status = golden.clone();
        status["agent"] = json!(format!("agent-{n}"));
        let router = status["frontends"][0]["routers"][0].clone();
        status["frontends"][0]["routers"] = json!(vec![router; 1_400]);
        let body = status.to_string().into_bytes();
        let answer = place
            .http
            .send(Method::POST, "/v1/status", &[JSON], Some(body));
        answer.await.map(|answer| answer.status)
    })
    .await
}

fn asking(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()
}

async fn idle_streams(place: &Place, clients: usize) -> Vec<String> {
    let head = place.http.get("/v1/log/head").await;
    let after = head
        .map(|head| head.json["position"].to_string())
        .unwrap_or_default();
    let opening = asking(&format!("/v1/events?after={after}"));
    let mut herd = Herd::gather(place.address, clients, &opening).await;
    let open = herd.read(12).await;
    let streaming = open.iter().filter(|read| read.ends_with(b" 200")).count();
    let mut wrong = Vec::new();
    if streaming < clients {
        wrong.push(format!("{streaming} of {clients} streams were opened"));
    }
    // One change reaches them all, and the service goes on.
    let body = change("streams", "for all streams");
    let done = place
        .http
        .send(Method::POST, "/v1/changes", &[JSON], Some(body))
        .await;
    if !done.is_ok_and(|answer| answer.status == 200) {
        wrong.push("a change was not made beside the streams".to_owned());
    }
    drop(herd);
    wrong
}

async fn waiting_writers(place: &Place, clients: usize) -> Vec<String> {
    let before = revision(place, "mock-model").await;
    // All at once. They address the live router of the stage with a value that it takes, and wait for it.
    let sent = iter(0..clients).map(async |n| {
        let body = change("mock-model", &format!("waiting {n}"));
        let path = "/v1/changes?wait=converged&timeout_ms=60000";
        place
            .http
            .send(Method::POST, path, &[JSON], Some(body))
            .await
    });
    let answers: Vec<_> = sent.buffer_unordered(clients).collect().await;
    let mut wrong = Vec::new();
    let mut positions = std::collections::BTreeSet::new();
    let (mut made, mut refused, mut lost) = (0_u64, 0, 0);
    for answer in answers {
        match answer {
            Ok(answer) if answer.status == 200 => {
                made += 1;
                positions.insert(answer.json["position"].as_u64().unwrap_or_default());
                let outcome = answer.json["convergence"]["outcome"].as_str();
                if outcome != Some("converged") {
                    wrong.push(format!("waited in vain: {outcome:?}"));
                }
            }
            // More than may be written at once: refused, nothing done, come again.
            Ok(answer)
                if answer.code() == "overloaded" && answer.headers.contains_key("retry-after") =>
            {
                refused += 1;
            }
            // All write the same policy: who lost every race within the time for a write is told so, and nothing was done.
            Ok(answer) if answer.status == 409 && answer.code() == "conflict" => lost += 1,
            Ok(answer) => wrong.push(format!("answered {} {}", answer.status, answer.text)),
            Err(why) => wrong.push(why),
        }
    }
    println!(
        "      {made} changes made and waited for, {refused} refused with Retry-After, {lost} lost the race"
    );
    if made == 0 || positions.len() as u64 != made {
        wrong.push(format!("{made} changes at {} positions", positions.len()));
    }
    // Whoever was told that nothing was done left no revision behind.
    let after = revision(place, "mock-model").await;
    let revisions = after.clone().and_then(|after| Ok(after - before.clone()?));
    if revisions != Ok(made) {
        wrong.push(format!(
            "{made} changes, revisions: {before:?} to {after:?}"
        ));
    }
    wrong.extend(missing(place, &positions).await);
    wrong.sort();
    wrong.dedup();
    wrong.truncate(4);
    wrong
}

/// Of a model's policy; 0 when it was never changed.
async fn revision(place: &Place, model: &str) -> Result<u64, String> {
    let path = format!("/v1/policies?kind=worker_selection&model={model}");
    let answer = place.http.get(&path).await?;
    let policies = answer.json["policies"].as_array().ok_or(answer.text)?;
    let own = (policies.iter()).find(|policy| policy["scope"] == json!({"model": model}));
    Ok(own.map_or(0, |policy| policy["revision"].as_u64().unwrap_or(0)))
}

/// Which of these records the service does not have.
async fn missing(place: &Place, positions: &std::collections::BTreeSet<u64>) -> Vec<String> {
    let asked = iter(positions).map(async |position| {
        let path = format!("/v1/log/at?position={position}");
        match place.http.get(&path).await {
            Ok(answer) if answer.json["verdict"]["verdict"] == "accepted" => None,
            Ok(answer) => Some(format!("lost: {position}: {}", answer.text)),
            Err(why) => Some(why),
        }
    });
    asked
        .buffer_unordered(32)
        .filter_map(async |wrong| wrong)
        .collect()
        .await
}

/// Policies with long values, and records of them: what a reader who does not read keeps back is worth something.
async fn weigh_down(place: &Place, records: usize) -> Vec<String> {
    let schema = json!({"schema": {"type": "string"}}).to_string();
    let path = "/v1/parameters/weight";
    let sent = place
        .http
        .send(Method::PUT, path, &[JSON], Some(schema.into_bytes()))
        .await;
    if let Err(why) = sent {
        return vec![why];
    }
    each(records, 32, &[200], async |n| {
        let body = json!({"changes": [{"kind": "worker_selection",
            "scope": {"model": format!("heavy{}", n % 64)}, "parameters": {"weight": "w".repeat(14_000)}}]});
        insist(place, &new_key(), body.to_string().into_bytes()).await
    })
    .await
}

async fn deaf_streams(place: &Place, clients: usize) -> Vec<String> {
    let herd = Herd::gather(place.address, clients, &asking("/v1/events?after=0")).await;
    let wrong = weigh_down(place, clients * 4).await;
    drop(herd);
    wrong
}

async fn deaf_exports(place: &Place, clients: usize) -> Vec<String> {
    let mut wrong = weigh_down(place, 64).await;
    let before = place.open_files();
    let opening = asking("/v1/audit?format=ndjson&order=oldest");
    let mut herd = Herd::gather(place.address, clients, &opening).await;
    let open = herd.read(12).await;
    let answered = open
        .iter()
        .filter(|read| read.starts_with(b"HTTP/1.1 "))
        .count();
    if answered != clients {
        wrong.push(format!("{answered} of {clients} exports were answered"));
    }
    wrong.extend(let_go(place, before).await);
    drop(herd);
    wrong
}

async fn deaf_readers(place: &Place, clients: usize) -> Vec<String> {
    let mut wrong = weigh_down(place, 64).await;
    let before = place.open_files();
    let herd = Herd::gather(place.address, clients, &asking("/v1/policies")).await;
    wrong.extend(let_go(place, before).await);
    drop(herd);
    wrong
}

async fn deaf_pipelines(place: &Place, clients: usize) -> Vec<String> {
    let mut wrong = weigh_down(place, 64).await;
    let before = place.open_files();
    let opening = asking("/v1/log/tails").repeat(1_000);
    let herd = Herd::gather(place.address, clients, &opening).await;
    if herd.len() != clients {
        wrong.push(format!("{} of {clients} could connect", herd.len()));
    }
    wrong.extend(let_go(place, before).await);
    drop(herd);
    wrong
}

/// Files (stores, and other clients) that may be opened meanwhile.
const OTHER_FILES: usize = 64;

/// Waits until the process has closed its side. A client that reads nothing does not see that.
async fn let_go(place: &Place, before: usize) -> Vec<String> {
    let deadline = tokio::time::Instant::now() + CUT_OFF;
    loop {
        let open = place.open_files();
        if open <= before + OTHER_FILES {
            return Vec::new();
        }
        if tokio::time::Instant::now() > deadline {
            return vec![format!("{before} files were open before, {open} still are")];
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn idle_connections(place: &Place, clients: usize) -> Vec<String> {
    let mut herd = Herd::gather(place.address, clients, b"").await;
    left(herd.dribble_until_closed(b"", CUT_OFF).await)
}
