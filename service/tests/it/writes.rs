//! What a write promises: one outcome per command, no lost change, no change that was refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use event_log::Appended;
use event_log::faulty::{AppendFault, Faulty};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Fixture, change, memory_log};

fn expecting(revision: u64, temperature: f64) -> Value {
    let mut change = change("m", temperature);
    change["expected_revision"] = json!(revision);
    json!({"changes": [change]})
}

async fn records(fixture: &Fixture) -> Vec<Value> {
    let (_, page) = fixture.get("/v1/audit?order=oldest&limit=1000").await;
    page["entries"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_revision_is_refused_with_who_and_when() {
    let fixture = Fixture::new().await;
    fixture.set("m", 0.1).await;
    let (status, answer) = fixture
        .send(Method::POST, "/v1/changes", &expecting(0, 0.2))
        .await;
    assert_eq!(status, 409);
    assert_eq!(answer["code"], json!("stale_revision"));
    assert_eq!(answer["current_revision"], json!(1));
    assert_eq!(answer["changed_by"]["name"], json!("local"));
    assert!(answer["changed_at"].is_string());
    assert_eq!(records(&fixture).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_racing_writers_one_wins_on_two_replicas() {
    let log = memory_log(1);
    let (one, other) = (
        Fixture::over(Arc::clone(&log)).await,
        Fixture::over(log).await,
    );
    for round in 0..5u64 {
        let body = |n: u64| expecting(round, n as f64 / 100.0);
        let all = futures::future::join_all((0..64u64).map(|n| {
            let fixture = if n % 2 == 0 { &one } else { &other };
            let body = body(n);
            async move { fixture.send(Method::POST, "/v1/changes", &body).await }
        }))
        .await;
        let won = all.iter().filter(|(status, _)| *status == 200).count();
        let lost = all.iter().filter(|(status, _)| *status == 409).count();
        assert_eq!((won, lost), (1, 63), "{all:?}");
        assert_eq!(records(&one).await.len() as u64, round + 1);
    }
    let position = one.running().position();
    assert!(
        other
            .running()
            .wait_for(position, crate::support::PATIENCE)
            .await
    );
    assert_eq!(one.running().digest(), other.running().digest());
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_without_a_revision_all_land_on_two_replicas() {
    let log = memory_log(1);
    let (one, other) = (
        Fixture::over(Arc::clone(&log)).await,
        Fixture::over(log).await,
    );
    let all = futures::future::join_all((0..32u64).map(|n| {
        let fixture = if n % 2 == 0 { &one } else { &other };
        async move {
            let body = json!({"changes": [change("m", n as f64)]});
            fixture.send(Method::POST, "/v1/changes", &body).await
        }
    }))
    .await;
    for (status, answer) in &all {
        assert_eq!(*status, 200, "{answer}");
    }
    // What came through the other one may not have reached this one yet.
    let position = other.running().position();
    assert!(
        one.running()
            .wait_for(position, crate::support::PATIENCE)
            .await
    );
    let revisions: BTreeSet<u64> = records(&one)
        .await
        .iter()
        .map(|entry| entry["changes"][0]["revision"].as_u64().unwrap())
        .collect();
    assert_eq!(revisions, (1..=32).collect(), "revisions are dense");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_has_one_outcome() {
    let fixture = Fixture::new().await;
    let post = |key: &'static str, body: Value| {
        let fixture = &fixture;
        async move {
            fixture
                .send_with(Method::POST, "/v1/changes", ("idempotency-key", key), &body)
                .await
        }
    };
    let (status, first) = post("deploy 17", expecting(0, 2.0)).await;
    assert_eq!(status, 200);
    // Spelled otherwise, and stale by now: it is the same request, so it has the same outcome.
    let respelled: Value =
        serde_json::from_str(&expecting(0, 2.0).to_string().replace("2.0", "2")).unwrap();
    let (status, again) = post("deploy 17", respelled).await;
    assert_eq!(status, 200);
    assert_eq!(again["position"], first["position"]);
    assert_eq!(again["command_id"], first["command_id"]);
    let (status, other) = post("deploy 17", expecting(0, 3.0)).await;
    assert_eq!(
        (status.as_u16(), &other["code"]),
        (422, &json!("idempotency_key_reused"))
    );
    // A refusal is not remembered: nothing happened.
    let key = "0e0c5e1e-27a4-4bd8-a0f7-5d0d5e8a1b11";
    assert_eq!(post(key, expecting(5, 1.0)).await.0, 409);
    let (status, answer) = post(key, expecting(1, 1.0)).await;
    assert_eq!(status, 200);
    assert_eq!(answer["command_id"], json!(key));
    for bad in ["", " ", "\u{e9}", &"x".repeat(257)] {
        let request = fixture
            .request(Method::POST, "/v1/changes")
            .header("idempotency-key", bad)
            .json(&expecting(2, 1.0));
        assert_eq!(crate::support::answer(request).await.0, 400, "{bad:?}");
    }
    assert_eq!(records(&fixture).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_has_one_outcome_on_two_replicas() {
    let log = memory_log(1);
    let (one, other) = (
        Fixture::over(Arc::clone(&log)).await,
        Fixture::over(log).await,
    );
    for round in 0..20u64 {
        let key = format!("round {round}");
        let body = expecting(round, 1.0);
        let post = |fixture| {
            Fixture::send_with(
                fixture,
                Method::POST,
                "/v1/changes",
                ("idempotency-key", &key),
                &body,
            )
        };
        let (left, right) = tokio::join!(post(&one), post(&other));
        assert_eq!(
            (left.0.as_u16(), right.0.as_u16()),
            (200, 200),
            "{left:?} {right:?}"
        );
        assert_eq!(left.1["position"], right.1["position"]);
        assert_eq!(records(&one).await.len() as u64, round + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_in_flight_waits_for_the_first() {
    let faulty = Faulty::new(memory_log(1));
    faulty.script([AppendFault::Delay(Duration::from_millis(300))]);
    let fixture = Fixture::over(Arc::new(faulty)).await;
    let body = json!({"changes": [change("m", 1.0)]});
    let other = json!({"changes": [change("m", 2.0)]});
    let post =
        |body| fixture.send_with(Method::POST, "/v1/changes", ("idempotency-key", "k"), body);
    let begun = async {
        fixture
            .until("/metrics", |text| {
                text.as_str()
                    .unwrap()
                    .contains("router_policy_writes_in_progress 1")
            })
            .await;
        post(&other).await
    };
    let (one, two, conflicting) = tokio::join!(post(&body), post(&body), begun);
    assert_eq!(one.0, 200, "{}", one.1);
    assert_eq!(one.1, two.1);
    assert_eq!(conflicting.0, 422, "{}", conflicting.1);
    assert_eq!(records(&fixture).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_acknowledgements_and_late_appends_leave_one_record_each() {
    use AppendFault::{ConflictWithItself, LateLanding, LostAcknowledgement, LostRequest, Refused};
    let faults = [
        LostAcknowledgement,
        LostRequest,
        LateLanding,
        ConflictWithItself,
    ];
    for fault in faults {
        let faulty = Faulty::new(memory_log(1));
        let fixture = Fixture::over(Arc::new(faulty.clone())).await;
        faulty.script([fault]);
        let (status, answer) = fixture
            .send(Method::POST, "/v1/changes", &expecting(0, 1.0))
            .await;
        assert_eq!(status, 200, "{fault:?}: {answer}");
        faulty.land_late().await;
        fixture.set("other", 1.0).await;
        let accepted = records(&fixture).await;
        assert_eq!(accepted.len(), 2, "{fault:?}: {accepted:?}");
    }
    let faulty = Faulty::new(memory_log(1));
    let fixture = Fixture::over(Arc::new(faulty.clone())).await;
    faulty.script([Refused]);
    let (status, answer) = fixture
        .send(Method::POST, "/v1/changes", &expecting(0, 1.0))
        .await;
    assert_eq!(status, 503);
    assert_eq!(answer["code"], json!("log_unavailable"));
    assert_eq!(answer["outcome"], json!("not_applied"));
    assert!(records(&fixture).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_said_and_found_out_by_repeating() {
    let faulty = Faulty::new(memory_log(1));
    let dir = tempfile::tempdir().unwrap();
    let mut config = crate::support::config(dir.path());
    config.write_timeout = Duration::from_millis(300);
    let mut fixture = Fixture::stopped(Arc::new(faulty.clone()), config);
    fixture.start().await;
    fixture.ready().await;
    let post = || {
        fixture.send_with(
            Method::POST,
            "/v1/changes",
            ("idempotency-key", "k"),
            &KEYED,
        )
    };
    static KEYED: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| expecting(0, 1.0));
    faulty.script([AppendFault::Delay(Duration::from_secs(2))]);
    let (status, answer) = post().await;
    assert_eq!(
        (status.as_u16(), &answer["outcome"]),
        (503, &json!("unknown")),
        "{answer}"
    );
    assert!(answer["command_id"].is_string());
    // With the log away it must not be called "not applied": the first one may be there.
    faulty.set_reachable(false);
    let (status, answer) = post().await;
    assert_eq!(
        (status.as_u16(), &answer["outcome"]),
        (503, &json!("unknown")),
        "{answer}"
    );
    faulty.set_reachable(true);
    let repeated = async {
        loop {
            let (status, answer) = post().await;
            if status == 200 {
                return answer;
            }
            assert_eq!(status, 503, "{answer}");
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, repeated)
        .await
        .unwrap();
    assert_eq!(records(&fixture).await.len(), 1);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_all_or_nothing_and_a_lost_race_is_told() {
    let fixture = Fixture::new().await;
    let set = |revision: u64, bad: bool| {
        let mut first = change("m", 0.5);
        first["expected_revision"] = json!(revision);
        let value = if bad { json!(7) } else { json!(0.5) };
        json!({"changes": [first, {
            "kind": "busy_threshold", "scope": {"model": "m"},
            "parameters": {"active_decode_blocks_threshold": value}
        }]})
    };
    let (status, answer) = fixture
        .send(Method::POST, "/v1/changes", &set(0, true))
        .await;
    assert_eq!(status, 422, "{answer}");
    let (_, list) = fixture.get("/v1/policies").await;
    assert!(list["policies"].as_array().unwrap().is_empty());
    let (status, answer) = fixture
        .send(Method::POST, "/v1/changes", &set(0, false))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["policies"].as_array().unwrap().len(), 2);

    // Sets and single changes race on different subjects: compare-and-swap cannot see it, the fold does.
    for round in 0..10u64 {
        let revision = round + 1;
        let (set, single) = (set(revision, false), expecting(revision, 0.9));
        let (one, other) = tokio::join!(
            fixture.send(Method::POST, "/v1/changes", &set),
            fixture.send(Method::POST, "/v1/changes", &single),
        );
        let mut statuses = [one.0.as_u16(), other.0.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409], "{one:?} {other:?}");
    }
    let accepted = records(&fixture)
        .await
        .iter()
        .filter(|entry| entry["verdict"]["verdict"] == json!("accepted"))
        .count();
    assert_eq!(accepted, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_void_record_is_told_to_whoever_repeats_it() {
    let log = memory_log(1);
    let fixture = Fixture::over(Arc::clone(&log)).await;
    fixture.set("m", 0.1).await;
    // A record that was decided on what is no longer so, as of a broker that let two winners in.
    let at = log.at(schemas::Position(1)).await.unwrap().unwrap();
    let mut event: Value = serde_json::from_slice(&at.bytes).unwrap();
    let key = "0e0c5e1e-27a4-4bd8-a0f7-5d0d5e8a1b22";
    event["id"] = json!(key);
    let bytes = serde_json::to_vec(&event).unwrap();
    log.append(&at.subject, at.position, bytes.into())
        .await
        .unwrap();
    assert!(
        fixture
            .running()
            .wait_for(schemas::Position(2), crate::support::PATIENCE)
            .await
    );
    let body = json!({"changes": [change("m", 0.1)]});
    let (status, answer) = fixture
        .send_with(Method::POST, "/v1/changes", ("idempotency-key", key), &body)
        .await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (409, &json!("conflict")),
        "{answer}"
    );
    assert_eq!(answer["position"], json!(2));
    // The next change goes on from the last accepted one, on the new tail.
    let (status, answer) = fixture
        .send(Method::POST, "/v1/changes", &expecting(1, 0.3))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["policies"][0]["revision"], json!(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_writes_are_refused_before_they_begin() {
    let faulty = Faulty::new(memory_log(1));
    let dir = tempfile::tempdir().unwrap();
    let mut config = crate::support::config(dir.path());
    config.writes_max = 1;
    let mut fixture = Fixture::stopped(Arc::new(faulty.clone()), config);
    fixture.start().await;
    fixture.ready().await;
    faulty.script([AppendFault::Delay(Duration::from_millis(500))]);
    let (one, other) = (
        json!({"changes": [change("a", 1.0)]}),
        json!({"changes": [change("b", 1.0)]}),
    );
    let second = async {
        fixture
            .until("/metrics", |text| {
                text.as_str()
                    .unwrap()
                    .contains("router_policy_writes_in_progress 1")
            })
            .await;
        fixture.send(Method::POST, "/v1/changes", &other).await
    };
    let (first, second) = tokio::join!(fixture.send(Method::POST, "/v1/changes", &one), second);
    assert_eq!(first.0, 200);
    assert_eq!(
        (second.0.as_u16(), &second.1["code"]),
        (503, &json!("overloaded"))
    );
    assert_eq!(second.1["outcome"], json!("not_applied"));
    fixture.stop().await;
}

/// A service whose writes give up early, and its link to the log.
async fn impatient(writes_max: usize) -> (Fixture, Faulty, tempfile::TempDir) {
    let faulty = Faulty::new(memory_log(1));
    let dir = tempfile::tempdir().unwrap();
    let mut config = crate::support::config(dir.path());
    config.writes_max = writes_max;
    config.write_timeout = Duration::from_millis(300);
    let mut fixture = Fixture::stopped(Arc::new(faulty.clone()), config);
    fixture.start().await;
    fixture.ready().await;
    (fixture, faulty, dir)
}

/// One attempt that lands late, and nothing but lost ones after it.
fn one_late_attempt() -> impl Iterator<Item = AppendFault> {
    std::iter::once(AppendFault::LateLanding)
        .chain(std::iter::repeat_n(AppendFault::LostRequest, 50))
}

async fn post(fixture: &Fixture, key: &str, body: &Value) -> (u16, Value) {
    let header = ("idempotency-key", key);
    let (status, answer) = fixture
        .send_with(Method::POST, "/v1/changes", header, body)
        .await;
    (status.as_u16(), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_doubt_is_never_called_not_applied_because_of_too_many_writes() {
    let (fixture, faulty, _dir) = impatient(1).await;
    let body = expecting(0, 1.0);
    faulty.script(one_late_attempt());
    let (status, answer) = post(&fixture, "k", &body).await;
    assert_eq!((status, &answer["outcome"]), (503, &json!("unknown")));
    faulty.heal();
    faulty.script([AppendFault::Delay(Duration::from_secs(30))]);
    let other = json!({"changes": [change("other", 1.0)]});
    let repeated = async {
        fixture
            .until("/metrics", |text| {
                let text = text.as_str().unwrap();
                text.contains("router_policy_writes_in_progress 1")
            })
            .await;
        post(&fixture, "k", &body).await
    };
    let (_, (status, answer)) = tokio::join!(post(&fixture, "other", &other), repeated);
    assert_eq!(
        (status, &answer["outcome"]),
        (503, &json!("unknown")),
        "{answer}"
    );
    faulty.land_late().await;
    assert_eq!(post(&fixture, "k", &body).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_in_doubt_is_never_refused_by_a_schema_that_came_later() {
    let (fixture, faulty, _dir) = impatient(16).await;
    let schema = async |schema: Value| {
        let path = "/v1/parameters/blocks";
        let body = json!({ "schema": schema });
        assert_eq!(fixture.send(Method::PUT, path, &body).await.0, 200);
    };
    schema(json!({"type": "integer"})).await;
    let mut one = change("m", 0.5);
    one["parameters"] = json!({"blocks": 5});
    let body = json!({"changes": [one]});
    faulty.script(one_late_attempt());
    let (status, answer) = post(&fixture, "k", &body).await;
    assert_eq!((status, &answer["outcome"]), (503, &json!("unknown")));
    faulty.heal();
    schema(json!({"type": "integer", "maximum": 1})).await;
    let (status, answer) = post(&fixture, "k", &body).await;
    assert_eq!(
        (status, &answer["outcome"]),
        (503, &json!("unknown")),
        "{answer}"
    );
    assert_eq!(post(&fixture, "another", &body).await.0, 422);
    // It does land, and counts: that is what a refusal would have denied.
    let landed = faulty.land_late().await.unwrap().unwrap();
    let Appended::Committed(position) = landed else {
        panic!("{landed:?}");
    };
    let running = fixture.running();
    assert!(running.wait_for(position, crate::support::PATIENCE).await);
    let (status, answer) = post(&fixture, "k", &body).await;
    assert_eq!((status, &answer["position"]), (200, &json!(position)));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_with_two_bodies_on_two_replicas_is_never_refused_and_applied() {
    let log = memory_log(1);
    let one = Fixture::over(Arc::clone(&log)).await;
    let link = Faulty::new(Arc::clone(&log));
    let other = Fixture::over(Arc::new(link.clone())).await;
    link.set_frozen(true);
    // The delivery that was waited for already still comes.
    one.set("first", 1.0).await;
    let position = schemas::Position(1);
    assert!(
        other
            .running()
            .wait_for(position, crate::support::PATIENCE)
            .await
    );
    let body = |model| json!({"changes": [change(model, 1.0)]});
    assert_eq!(post(&one, "k", &body("a")).await.0, 200);
    let thaw = async {
        let written = schemas::Position(3);
        assert!(
            one.running()
                .wait_for(written, crate::support::PATIENCE)
                .await
        );
        link.set_frozen(false);
    };
    let second = body("b");
    let ((status, answer), ()) = tokio::join!(post(&other, "k", &second), thaw);
    assert_eq!((status, &answer["position"]), (200, &json!(3)), "{answer}");
    let (_, list) = one.get("/v1/policies?model=b").await;
    assert_eq!(list["policies"][0]["revision"], json!(1));
    // Later, when the first record is known, the key is taken.
    assert_eq!(post(&other, "k", &body("c")).await.0, 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_key_of_the_client_may_stand_for_an_attempt_made_elsewhere() {
    let log = memory_log(1);
    let one = Fixture::over(Arc::clone(&log)).await;
    let link = Faulty::new(Arc::clone(&log));
    let other = Fixture::over(Arc::new(link.clone())).await;
    link.set_frozen(true);
    // The delivery that was waited for already still comes.
    one.set("first", 1.0).await;
    let position = schemas::Position(1);
    let patience = crate::support::PATIENCE;
    assert!(other.running().wait_for(position, patience).await);
    let body = json!({"changes": [change("m", 1.0)]});
    assert_eq!(post(&one, "k", &body).await.0, 200);
    link.set_reachable(false);
    let (status, answer) = post(&other, "k", &body).await;
    assert_eq!(
        (status, &answer["code"], &answer["outcome"]),
        (503, &json!("log_unavailable"), &json!("unknown")),
        "{answer}"
    );
    let (_, answer) = other.send(Method::POST, "/v1/changes", &body).await;
    assert_eq!(
        answer["outcome"],
        json!("not_applied"),
        "its key was made for it: {answer}"
    );
}
