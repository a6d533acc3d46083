//! The attacks. Each returns what it saw that should not be; memory and the probe are judged by the caller.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures::stream::{StreamExt as _, iter};
use reqwest::Method;
use serde_json::{Value, json};

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
    /// Memory that it may cost beyond what there was before, at its peak.
    pub(super) bound_mib: u64,
    pub(super) run: for<'a> fn(&'a Place, usize) -> Seen<'a>,
}

macro_rules! attack {
    ($name:literal, $against:ident, $clients:literal, $quick:literal, $bound:literal, $run:path) => {
        Attack {
            name: $name,
            against: Against::$against,
            clients: $clients,
            quick: $quick,
            bound_mib: $bound,
            run: |place, clients| Box::pin($run(place, clients)),
        }
    };
}

/// In the order in which they are run.
pub(super) fn all() -> Vec<Attack> {
    vec![
        attack!("slow heads", Service, 2_000, 100, 128, slow_heads),
        attack!("slow bodies", Service, 2_000, 0, 128, slow_bodies),
        attack!("endless heads", Service, 1_000, 100, 128, endless_heads),
        attack!("many headers", Service, 2_000, 200, 64, many_headers),
        attack!("huge queries", Service, 2_000, 200, 64, huge_queries),
        attack!("endless chunks", Service, 500, 50, 64, endless_chunks),
        attack!("compressed bombs", Service, 200, 20, 64, compressed),
        attack!("deep JSON", Service, 1_000, 100, 64, deep_json),
        attack!("hostile schemas", Service, 200, 10, 128, hostile_schemas),
        attack!("distinct keys", Service, 4_000, 100, 192, distinct_keys),
        attack!("long reports", Service, 150, 8, 512, long_reports),
        attack!("idle streams", Service, 10_000, 500, 512, idle_streams),
        attack!("waiting writers", Service, 2_000, 50, 256, waiting_writers),
        attack!("deaf streams", Service, 500, 20, 256, deaf_streams),
        attack!("deaf exports", Service, 500, 20, 256, deaf_exports),
        attack!("deaf readers", Service, 1_000, 0, 768, deaf_readers),
        attack!("deaf pipelines", Service, 200, 20, 256, deaf_pipelines),
        attack!(
            "idle connections",
            Service,
            17_000,
            0,
            256,
            idle_connections
        ),
        attack!("idle connections", Poor, 1_500, 600, 128, idle_connections),
        attack!("idle connections", Agent, 2_000, 600, 64, idle_connections),
        attack!("slow heads", Agent, 1_000, 0, 64, slow_heads),
        attack!("endless heads", Agent, 500, 100, 64, endless_heads),
        attack!(
            "idle connections",
            Frontend,
            6_000,
            300,
            192,
            idle_connections
        ),
        attack!("slow heads", Frontend, 1_000, 0, 128, slow_heads),
        attack!("endless heads", Frontend, 500, 100, 128, endless_heads),
        attack!("endless chunks", Frontend, 500, 50, 128, endless_chunks),
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

async fn distinct_keys(place: &Place, clients: usize) -> Vec<String> {
    // 503: more at once than a slow disk takes in the time of a write.
    each(clients, 64, &[200, 503], async |n| {
        let key = format!("key-{n}-{}", "k".repeat(200));
        let headers = [JSON, ("idempotency-key", key.as_str())];
        let body = change(&format!("m{}", n % 50), &"r".repeat(2_000));
        let answer = place
            .http
            .send(Method::POST, "/v1/changes", &headers, Some(body));
        answer.await.map(|answer| answer.status)
    })
    .await
}

async fn long_reports(place: &Place, clients: usize) -> Vec<String> {
    let golden = include_str!("../../inputs/status.json");
    let golden: Value = serde_json::from_str(golden).expect("golden");
    // Refused once too much is kept.
    each(clients, 16, &[204, 503], async |n| {
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
    // Addresses the live router of the stage, with a value that it takes: converges, or is named as pending. More than 256
    // that are being written at once are answered 503, whoever sends them.
    each(clients, 200, &[200, 503], async |n| {
        let body = change("mock-model", &format!("waiting {n}"));
        let path = "/v1/changes?wait=converged&timeout_ms=60000";
        let answer = place.http.send(Method::POST, path, &[JSON], Some(body));
        answer.await.map(|answer| answer.status)
    })
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
    each(records, 32, &[200, 503], async |n| {
        let body = json!({"changes": [{"kind": "worker_selection",
            "scope": {"model": format!("heavy{}", n % 64)}, "parameters": {"weight": "w".repeat(14_000)}}]});
        let body = body.to_string().into_bytes();
        let answer = place.http.send(Method::POST, "/v1/changes", &[JSON], Some(body));
        answer.await.map(|answer| answer.status)
    })
    .await
}

async fn deaf_streams(place: &Place, clients: usize) -> Vec<String> {
    let herd = Herd::gather(place.address, clients, &asking("/v1/events?after=0")).await;
    let wrong = weigh_down(place, (clients * 2).min(300)).await;
    drop(herd);
    wrong
}

async fn deaf_exports(place: &Place, clients: usize) -> Vec<String> {
    let mut wrong = weigh_down(place, 64).await;
    let mut herd = Herd::gather(
        place.address,
        clients,
        &asking("/v1/audit?format=ndjson&order=oldest"),
    )
    .await;
    // They are there until they are cut off; a while is enough to see what they cost.
    let open = herd.read(12).await;
    if open.len() != herd.len() {
        wrong.push("exports were lost".to_owned());
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    wrong
}

async fn deaf_readers(place: &Place, clients: usize) -> Vec<String> {
    let mut wrong = weigh_down(place, 64).await;
    let mut herd = Herd::gather(place.address, clients, &asking("/v1/policies")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let open = herd.dribble_until_closed(b"", CUT_OFF).await;
    wrong.extend(left(open));
    wrong
}

async fn deaf_pipelines(place: &Place, clients: usize) -> Vec<String> {
    let mut wrong = weigh_down(place, 64).await;
    let opening = asking("/v1/log/tails").repeat(1_000);
    let herd = Herd::gather(place.address, clients, &opening).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    if herd.len() == 0 {
        wrong.push("nobody could connect".to_owned());
    }
    wrong
}

async fn idle_connections(place: &Place, clients: usize) -> Vec<String> {
    let mut herd = Herd::gather(place.address, clients, b"").await;
    left(herd.dribble_until_closed(b"", CUT_OFF).await)
}
