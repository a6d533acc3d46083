//! Many writers on two replicas whose links to the log misbehave: what was acknowledged is there once, what was refused is
//! not there, and revisions are dense.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use event_log::faulty::{Faulty, Rates};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, change, memory_log};

const WRITERS: u64 = 12;
const CHANGES: u64 = 8;

/// Repeats one command until its outcome is known; true = made.
async fn outcome(fixture: &Fixture, key: &str, body: &Value) -> bool {
    loop {
        let header = ("idempotency-key", key);
        let (status, answer) = fixture
            .send_with(Method::POST, "/v1/changes", header, body)
            .await;
        match status.as_u16() {
            200 => return true,
            409 => return false,
            503 => tokio::task::yield_now().await,
            _ => panic!("{status} {answer}"),
        }
    }
}

/// One seed of misbehaviour.
async fn check(seed: u64) {
    let log = memory_log(1);
    let links = [Faulty::new(Arc::clone(&log)), Faulty::new(Arc::clone(&log))];
    let mut replicas = Vec::new();
    let mut dirs = Vec::new();
    for link in &links {
        let dir = tempfile::tempdir().unwrap();
        let mut config = crate::support::config(dir.path());
        config.write_timeout = Duration::from_millis(400);
        let mut fixture = Fixture::stopped(Arc::new(link.clone()), config);
        fixture.start().await;
        fixture.ready().await;
        replicas.push(fixture);
        dirs.push(dir);
    }
    for (n, link) in links.iter().enumerate() {
        let rates = Rates {
            append: 40,
            read: 5,
            landing: 30,
        };
        link.seed(seed * 2 + n as u64, rates);
    }
    let writers = (0..WRITERS).map(|writer| {
        let replicas = &replicas;
        async move {
            let mut made = BTreeMap::new();
            for n in 0..CHANGES {
                let fixture = &replicas[usize::try_from((writer + n) % 2).unwrap()];
                let id = uuid::Uuid::from_u128(u128::from(1 + writer * 1_000 + n)).to_string();
                let mut one = change(&format!("m{}", writer % 3), n as f64);
                if n % 2 == 0 {
                    let path = format!("/v1/policies?model=m{}", writer % 3);
                    let (_, list) = fixture.get(&path).await;
                    let revision = list["policies"][0]["revision"].as_u64().unwrap_or(0);
                    one["expected_revision"] = json!(revision);
                }
                let body = json!({"changes": [one]});
                made.insert(id.clone(), outcome(fixture, &id, &body).await);
            }
            made
        }
    });
    let all = futures::future::join_all(writers);
    let outcomes = tokio::time::timeout(3 * PATIENCE, all).await.unwrap();
    for link in &links {
        link.heal();
        while link.land_late().await.is_some() {}
    }
    let head = log.head().await.unwrap().position;
    for replica in &replicas {
        assert!(replica.running().wait_for(head, PATIENCE).await);
    }
    assert_eq!(
        replicas[0].running().digest(),
        replicas[1].running().digest()
    );
    let (_, page) = replicas[0].get("/v1/audit?order=oldest&limit=1000").await;
    let mut accepted: BTreeMap<String, u64> = BTreeMap::new();
    let mut revisions: BTreeMap<String, u64> = BTreeMap::new();
    for entry in page["entries"].as_array().unwrap() {
        if entry["verdict"]["verdict"] != json!("accepted") {
            continue;
        }
        let id = entry["command_id"].as_str().unwrap().to_owned();
        *accepted.entry(id).or_default() += 1;
        let one = &entry["changes"][0];
        let last = revisions
            .entry(one["id"].as_str().unwrap().to_owned())
            .or_default();
        *last += 1;
        assert_eq!(
            one["revision"],
            json!(*last),
            "seed {seed}: revisions are dense"
        );
    }
    let unconditional = usize::try_from(WRITERS * CHANGES / 2).unwrap();
    assert!(
        accepted.len() >= unconditional,
        "seed {seed}: {}",
        accepted.len()
    );
    for (id, made) in outcomes.into_iter().flatten() {
        let times = accepted.get(&id).copied().unwrap_or(0);
        assert_eq!(times, u64::from(made), "seed {seed}: {id}");
    }
    for replica in &mut replicas {
        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_changes_are_there_once_and_refused_ones_never() {
    for seed in [1, 2, 3] {
        check(seed).await;
    }
}
