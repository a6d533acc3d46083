//! Bad input: what the façade answers to it, and that none of it changes anything.

mod routes;
mod table;

use reqwest::Method;
use serde_json::{Value, json};

use crate::binaries::target;
use crate::http::{Answer, Http};
use crate::stage::Service;

/// One bad request and what must come back.
#[derive(Debug)]
pub struct Case {
    /// What is wrong with it.
    pub name: String,
    /// Method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Option<Vec<u8>>,
    /// Status.
    pub status: u16,
    /// Code of the problem; empty where there is no body of ours (a router's own 405, for example).
    pub code: &'static str,
}

/// The policy that the cases try to change, at a known revision.
#[derive(Debug)]
pub struct Target {
    /// Its id.
    pub id: String,
    /// Its revision.
    pub revision: u64,
    /// An idempotency key that was used for another request.
    pub used_key: String,
}

/// Model of [`Target`].
const MODEL: &str = "mock-model";

/// Starts a service, sends every case, prints a line for each. True when all were answered as they must be and the log and
/// the policies are what they were.
///
/// # Panics
/// When the service does not start.
#[must_use]
pub fn run() -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(all())
}

async fn all() -> bool {
    let folder = target().join("scenarios").join("bad-input");
    // It may not exist yet.
    let _ = std::fs::remove_dir_all(&folder);
    let mut service = Service::new("service", &folder, "embedded");
    service.start().await;
    let http = service.http.clone();
    let target = prepare(&http).await;
    let before = fingerprint(&http).await;
    let (mut passed, mut failed) = (0, 0);
    println!("     status code                     request: message");
    for case in table::cases(&target) {
        let headers: Vec<(&str, &str)> = case
            .headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let answer = http
            .send(case.method.clone(), &case.path, &headers, case.body.clone())
            .await;
        let same = fingerprint(&http).await == before;
        let right = answer
            .as_ref()
            .is_ok_and(|answer| answer.status == case.status && answer.code() == case.code)
            && same;
        println!(
            "{} {}",
            if right { "ok  " } else { "FAIL" },
            line(&case, &answer)
        );
        if right {
            passed += 1;
        } else {
            println!(
                "     wanted {} {:?}; nothing changed: {same}",
                case.status, case.code
            );
            failed += 1;
        }
    }
    println!(
        "bad-input: {passed} passed, {failed} failed; nothing changed: {}",
        fingerprint(&http).await == before
    );
    let all = failed == 0 && passed >= 60;
    if all {
        // What a failure needs for its explanation is kept.
        drop(service);
        let _ = std::fs::remove_dir_all(&folder);
    }
    all
}

fn line(case: &Case, answer: &Result<Answer, String>) -> String {
    match answer {
        Ok(answer) => {
            let message: String = answer.json["error"]
                .as_str()
                .unwrap_or(&answer.text)
                .chars()
                .take(150)
                .collect();
            format!(
                "{} {:<24} {}: {message}",
                answer.status,
                answer.code(),
                case.name
            )
        }
        Err(error) => format!("no answer to {}: {error}", case.name),
    }
}

/// One policy with two changes, made with a known key.
async fn prepare(http: &Http) -> Target {
    let scope =
        json!({"model": MODEL, "worker_type": "aggregated", "endpoint": "dynamo/backend/generate"});
    let used_key = "0b5e1e0e-6f3c-4d55-9d3c-3f6a5a1c0001".to_owned();
    let mut last = Value::Null;
    for (revision, key) in [
        (0, used_key.as_str()),
        (1, "0b5e1e0e-6f3c-4d55-9d3c-3f6a5a1c0002"),
    ] {
        let body = json!({"changes": [{"kind": "worker_selection", "scope": scope,
            "expected_revision": revision, "parameters": {"router_temperature": 0.25}}]});
        let headers = [
            ("content-type", "application/json"),
            ("idempotency-key", key),
        ];
        let sent = Some(body.to_string().into_bytes());
        let done = http.send(Method::POST, "/v1/changes", &headers, sent).await;
        last = done.expect("an answer").expect(200).json;
    }
    let policy = &last["policies"][0];
    Target {
        id: policy["id"].as_str().expect("an id").to_owned(),
        revision: policy["revision"].as_u64().expect("a revision"),
        used_key,
    }
}

/// Everything that a change would move: the log's head, and every policy.
async fn fingerprint(http: &Http) -> (String, Value, String) {
    let head = http
        .get("/v1/log/head")
        .await
        .expect("an answer")
        .expect(200);
    let policies = http
        .get("/v1/policies")
        .await
        .expect("an answer")
        .expect(200);
    let parameters = http
        .get("/v1/parameters")
        .await
        .expect("an answer")
        .expect(200);
    (
        head.text,
        policies.json["policies"].clone(),
        parameters.text,
    )
}
