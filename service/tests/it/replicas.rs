//! A replica that is behind another one: it looks into the log before it says that something is not there.

use std::sync::Arc;

use event_log::faulty::Faulty;
use reqwest::Method;
use schemas::Position;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, memory_log};

/// Two replicas of one log with one record; the second one sees nothing new before its link is thawed.
async fn one_and_a_frozen_one() -> (Fixture, Fixture, Faulty) {
    let log = memory_log(1);
    let one = Fixture::over(Arc::clone(&log)).await;
    let link = Faulty::new(log);
    let other = Fixture::over(Arc::new(link.clone())).await;
    link.set_frozen(true);
    // The delivery that was waited for already still comes.
    one.set("first", 0.1).await;
    assert!(other.running().wait_for(Position(1), PATIENCE).await);
    (one, other, link)
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_replica_that_is_behind_tells_the_logs_head_and_never_that_a_record_is_not_there()
 {
    let (one, other, link) = one_and_a_frozen_one().await;
    one.set("m", 0.1).await;
    let (status, head) = other.get("/v1/log/head").await;
    assert_eq!((status.as_u16(), &head["position"]), (200, &json!(2)));
    assert_eq!(other.running().position(), Position(1));
    let subject = one.get("/v1/log/at?position=2").await.1["subject"].clone();
    let next = format!("/v1/log/next?subject={}&after=0", subject.as_str().unwrap());
    for path in ["/v1/log/at?position=2", &next] {
        let (status, answer) = other.get(path).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (503, &json!("log_unavailable")),
            "{path}: {answer}"
        );
    }
    let (status, answer) = other.get("/v1/log/at?position=3").await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (404, &json!("no_record")),
        "beyond the log's own end"
    );
    link.set_frozen(false);
    let (status, line) = other.get("/v1/log/at?position=2").await;
    assert_eq!((status.as_u16(), &line["position"]), (200, &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_policy_made_on_one_replica_can_be_changed_on_another_at_once() {
    let patch: Value = json!({"parameters": {"router_temperature": 0.5}});
    let threshold = json!({"model": "m2", "active_decode_blocks_threshold": 0.5});
    for which in ["patch", "revert", "facade", "threshold"] {
        let (one, other, link) = one_and_a_frozen_one().await;
        let kind = if which == "threshold" {
            "busy_threshold"
        } else {
            "worker_selection"
        };
        let made = json!({"changes": [{"kind": kind, "scope": {"model": "m2"}, "parameters":
            if which == "threshold" {
                json!({"active_decode_blocks_threshold": 0.1})
            } else {
                json!({"router_temperature": 0.1})
            }
        }]});
        let (status, made) = one.send(Method::POST, "/v1/changes", &made).await;
        assert_eq!(status, 200, "{made}");
        let id = made["policies"][0]["id"].as_str().unwrap().to_owned();
        let write = async || match which {
            "patch" => {
                let path = format!("/v1/policies/{id}");
                other.send(Method::PATCH, &path, &patch).await
            }
            "revert" => {
                let path = format!("/v1/policies/{id}/revert");
                let body = json!({"to_revision": 1});
                other.send(Method::POST, &path, &body).await
            }
            "facade" => {
                let body = json!({"router_id": id, "expected_revision": 1,
                    "parameters": {"router_temperature": 0.5}});
                other.send(Method::PATCH, "/router_policy", &body).await
            }
            _ => {
                other
                    .send(Method::POST, "/busy_threshold", &threshold)
                    .await
            }
        };
        let (status, behind) = other.get(&format!("/v1/policies/{id}")).await;
        assert_eq!(status, 404, "a read tells what this replica has: {behind}");
        let (status, behind) = write().await;
        assert_eq!(
            (status.as_u16(), &behind["code"], &behind["outcome"]),
            (503, &json!("log_unavailable"), &json!("not_applied")),
            "{which}: {behind}"
        );
        link.set_frozen(false);
        let (status, answer) = write().await;
        assert_eq!(status, 200, "{which}: {answer}");
        assert!(other.running().wait_for(Position(3), PATIENCE).await);
    }
    let (_one, other, link) = one_and_a_frozen_one().await;
    let nobody = "/v1/policies/00000000-0000-0000-0000-000000000001";
    assert_eq!(other.send(Method::PATCH, nobody, &patch).await.0, 404);
    link.set_reachable(false);
    let (status, answer) = other.send(Method::PATCH, nobody, &patch).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (503, &json!("log_unavailable")),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_read_with_a_position_holds_it_on_any_replica_or_is_refused() {
    let (one, other, link) = one_and_a_frozen_one().await;
    one.set("m", 0.1).await;
    let (_, all) = one.get("/v1/policies?model=m&min_position=2").await;
    let id = all["policies"][0]["id"].as_str().unwrap().to_owned();
    let paths = [
        "/v1/policies?min_position=2".to_owned(),
        format!("/v1/policies/{id}?min_position=2"),
        "/v1/effective?model=m&min_position=2".to_owned(),
        format!("/v1/policies/{id}/at?position=2"),
    ];
    let (first, other) = (&one, &other);
    let behind = paths.iter().map(|path| async move {
        let (status, answer) = other.get(path).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (503, &json!("log_unavailable")),
            "{path}: {answer}"
        );
        assert_eq!(first.get(path).await.0, 200, "{path}");
    });
    futures::future::join_all(behind).await;
    link.set_frozen(false);
    for path in &paths {
        let (status, answer) = other.get(path).await;
        assert_eq!(status, 200, "{path}: {answer}");
    }
    for (path, status, code) in [
        ("/v1/policies?min_position=3", 503, "log_unavailable"),
        ("/v1/policies?min_position=-1", 400, "bad_query"),
    ] {
        let (found, answer) = other.get(path).await;
        assert_eq!(
            (found.as_u16(), answer["code"].as_str().unwrap()),
            (status, code),
            "{path}: {answer}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_what_held_at_a_position_is_not_told_from_before_it() {
    let (one, other, link) = one_and_a_frozen_one().await;
    let (_, all) = one.get("/v1/policies?model=first").await;
    let id = all["policies"][0]["id"].as_str().unwrap().to_owned();
    one.set("first", 0.7).await;
    let path = format!("/v1/policies/{id}/at?position=2");
    let (status, answer) = other.get(&path).await;
    assert_eq!(status, 503, "{answer}");
    link.set_frozen(false);
    let (_, answer) = other.get(&path).await;
    assert_eq!(answer["revision"], json!(2));
}
