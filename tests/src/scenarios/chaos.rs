//! Killed services, a log that goes away, agents on their own copy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use schemas::CommandId;
use schemas::event::Event;
use schemas::state::{Reading, Verdict};
use serde_json::json;

use super::everyday::converged;
use crate::http::Http;
use crate::stage::{FLAGS, MODEL, PATIENCE, Stage};
use crate::wait::wait_until;

const TEMPERATURE: &str = "router_temperature";
const CHANGES: usize = 200;
const WRITERS: usize = 64;
/// Decides which replica is killed: odd numbers the second one.
const SEED: &str = "SCENARIO_SEED";
/// Policies that the writers fight over.
const POLICIES: usize = 4;

/// What the writers were told.
#[derive(Debug, Default)]
struct Told {
    /// Commands that were acknowledged, with their position.
    acknowledged: BTreeMap<CommandId, u64>,
    /// Commands that were refused for good.
    refused: BTreeSet<CommandId>,
    next: usize,
}

pub(super) async fn kill_9_amid_200_changes(stage: &mut Stage) {
    let seed: u64 = std::env::var(SEED)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| u64::from(event_log::ambient::new_id().as_bytes()[15]));
    let victim = usize::from(seed % 2 == 1);
    println!("      {SEED}={seed}: service{victim} is killed");
    let told = Mutex::new(Told::default());
    let services = [stage.service(0).clone(), stage.service(1).clone()];
    let acknowledged = || told.lock().expect("no panic while held").acknowledged.len();
    let writers = futures::future::join_all((0..WRITERS).map(|n| write_all(n, &services, &told)));
    let killer = async {
        let reached = async |count: usize| {
            wait_until(
                "enough changes are acknowledged",
                PATIENCE,
                async || match acknowledged() {
                    now if now >= count => Ok(()),
                    now => Err(format!("{now}")),
                },
            )
            .await;
        };
        reached(CHANGES / 4).await;
        stage.services[victim].kill();
        reached(CHANGES / 2).await;
        stage.services[victim].start().await;
    };
    futures::future::join(writers, killer).await;
    let told = told.into_inner().expect("no panic while held");
    assert_eq!(told.acknowledged.len(), CHANGES);
    check_log(&stage.nats.url(), &told).await;
}

/// One writer: takes the next change until none is left, and insists on each.
async fn write_all(writer: usize, services: &[Http; 2], told: &Mutex<Told>) {
    loop {
        let number = {
            let mut told = told.lock().expect("no panic while held");
            if told.next == CHANGES {
                return;
            }
            told.next += 1;
            told.next
        };
        let mut turn = writer + number;
        wait_until("a change is acknowledged", PATIENCE * 3, async || {
            turn += 1;
            one_try(number, turn, services, told).await
        })
        .await;
    }
}

/// Reads the revision, sends the change under a key of its own, and repeats the very same request while its fate is open.
async fn one_try(
    number: usize,
    turn: usize,
    services: &[Http; 2],
    told: &Mutex<Told>,
) -> Result<(), String> {
    let scope = json!({"model": format!("storm-{}", number % POLICIES)});
    let path = format!(
        "/v1/policies?kind=worker_selection&model=storm-{}",
        number % POLICIES
    );
    let listed = services[turn % 2].get(&path).await?;
    let policies = listed.json["policies"]
        .as_array()
        .ok_or_else(|| listed.text.clone())?;
    let current = policies.iter().find(|one| one["scope"] == scope);
    let revision = current.map_or(json!(0), |policy| policy["revision"].clone());
    let reason = format!("change {number}");
    let id = CommandId(event_log::ambient::new_id());
    let key = id.to_string();
    let body = json!({"reason": reason, "changes": [{"kind": "worker_selection", "scope": scope,
        "expected_revision": revision, "parameters": {TEMPERATURE: number}}]});
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key.as_str()),
    ];
    let mut at = turn;
    wait_until("the fate of a try is known", PATIENCE, async || {
        at += 1;
        let sent = body.to_string().into_bytes();
        let method = reqwest::Method::POST;
        let answer = services[at % 2]
            .send(method, "/v1/changes", &headers, Some(sent))
            .await?;
        let mut told = told.lock().expect("no panic while held");
        match answer.status {
            200 => {
                let position = answer.json["position"].as_u64().expect("a position");
                told.acknowledged.insert(id, position);
                Ok(Ok(()))
            }
            409 | 422 => {
                told.refused.insert(id);
                Ok(Err(answer.text))
            }
            503 => Err(answer.text),
            other => panic!("unexpected {other}: {}", answer.text),
        }
    })
    .await
}

/// The log itself, not what a service says of it, against what the writers were told.
async fn check_log(url: &str, told: &Told) {
    let url = url.parse().expect("a log URL");
    let wiring = event_log::connect_reader(&url, event_log::Options::default())
        .await
        .expect("a reader");
    let head = wiring.log.head().await.expect("head");
    let seen = event_log::Seen {
        log_id: head.log_id,
        position: schemas::Position::START,
        record: None,
    };
    let mut records = wiring.log.follow(seen).await.expect("records");
    let mut state = schemas::state::State::default();
    let mut accepted: BTreeMap<CommandId, Vec<u64>> = BTreeMap::new();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    while state.position < head.position {
        let entry = records.next().await.expect("a record");
        let reading = migrations::read(&entry.subject, &entry.bytes);
        let verdict = state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        let Reading::Known(record) = reading else {
            panic!("unreadable: {reading:?}");
        };
        let reason = record
            .reason
            .map_or_else(String::new, |reason| reason.to_string());
        let storm = reason.starts_with("change ");
        if !storm || matches!(verdict, Verdict::Void { .. }) {
            continue;
        }
        assert_eq!(verdict, Verdict::Accepted { chained: true }, "{reason}");
        let id = record.command_id;
        accepted.entry(id).or_default().push(entry.position.0);
        let Event::PoliciesChanged { changes } = record.event else {
            panic!("no change: {entry:?}");
        };
        let revision = changes[0].revision.0;
        let before = last
            .insert(changes[0].scope.to_string(), revision)
            .unwrap_or(0);
        assert_eq!(revision, before + 1, "revisions are dense");
    }
    for (id, position) in &told.acknowledged {
        assert_eq!(
            accepted.get(id),
            Some(&vec![*position]),
            "{id} was acknowledged: accepted once, and there"
        );
    }
    for id in &told.refused {
        assert!(
            !accepted.contains_key(id),
            "{id} was refused and is accepted in the log"
        );
    }
    assert_eq!(accepted.len(), CHANGES, "nothing else is accepted");
    assert_eq!(last.values().sum::<u64>(), CHANGES as u64, "{last:?}");
}

pub(super) async fn the_log_goes_away(stage: &mut Stage) {
    converged(&stage.change(0, MODEL, json!({TEMPERATURE: 0.3})).await, 3);
    let entry = stage.entry(0, MODEL).await;
    stage.stop_log();
    let body = json!({"router_id": entry["router_id"],
        "expected_revision": entry["configuration"]["revision"], "parameters": {TEMPERATURE: 0.6}});
    for service in 0..2 {
        let refused = stage.service(service).patch("/router_policy", &body).await;
        let refused = refused.expect("an answer").expect(503);
        assert_eq!(refused.json["outcome"], "not_applied", "{}", refused.text);
    }
    // The agents hold: they even put drift back, from what they know.
    let frontend = &stage.frontends[0];
    let router = frontend.router(MODEL).await.expect("one router");
    let behind = json!({"router_id": router["router_id"],
        "expected_revision": router["configuration"]["revision"], "parameters": {TEMPERATURE: 0.9}});
    let done = frontend.http.patch("/router_policy", &behind).await;
    assert_eq!(done.expect("an answer").status, 200);
    wait_until(
        "drift is put back without the log",
        PATIENCE,
        async || match frontend.parameter(MODEL, TEMPERATURE).await? {
            0.3 => Ok(()),
            other => Err(other.to_string()),
        },
    )
    .await;
    assert_eq!(stage.listed(MODEL, TEMPERATURE).await, [0.3; 3]);
    stage.resume_log();
    let answer = wait_until(
        "a write is accepted again and converges",
        PATIENCE,
        async || {
            let path = "/router_policy?wait=converged&timeout_ms=30000";
            let answer = stage.service(0).patch(path, &body).await?;
            match answer.status {
                200 => Ok(answer.json),
                503 => Err(answer.text),
                other => panic!("unexpected {other}: {}", answer.text),
            }
        },
    )
    .await;
    converged(&answer, 3);
    assert_eq!(stage.listed(MODEL, TEMPERATURE).await, [0.6; 3]);
}

pub(super) async fn an_agent_works_from_its_copy(stage: &mut Stage) {
    converged(&stage.change(0, MODEL, json!({TEMPERATURE: 0.3})).await, 3);
    stage.stop_log();
    stage.agents[0].kill();
    stage.frontends[0].kill();
    stage.domain.bring_up(&mut stage.frontends[0], FLAGS[0]);
    stage.agents[0].start();
    stage.frontends[0].serves(MODEL).await;
    let frontend = &stage.frontends[0];
    wait_until(
        "the policy comes from the agent's copy",
        PATIENCE,
        async || match frontend.parameter(MODEL, TEMPERATURE).await? {
            0.3 => Ok(()),
            other => Err(other.to_string()),
        },
    )
    .await;
    stage.resume_log();
    let what = "writes are accepted again";
    wait_until(what, PATIENCE, async || {
        let ready = stage.service(0).get("/readyz").await?;
        if ready.status == 200 {
            Ok(())
        } else {
            Err(ready.text)
        }
    })
    .await;
    converged(&stage.change(0, MODEL, json!({TEMPERATURE: 0.4})).await, 3);
    assert_eq!(stage.listed(MODEL, TEMPERATURE).await, [0.4; 3]);
}
