//! The reference frontend over HTTP: overlap is real, the gate gates, and nothing that was booked stays booked.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::sync::Arc;

use common::name;
use common::site::{Site, chat, endless, plan, quick, role, words};
use futures::FutureExt as _;
use reqwest::StatusCode;
use router_agent::frontend::{Hardware, HostError, ModelPlan, Reference};
use scheduler::busy::Thresholds;
use schemas::WorkerType;
use serde_json::{Value, json};

/// Two aggregated workers.
fn workers(hardware: Hardware) -> ModelPlan {
    plan(vec![role(WorkerType::Aggregated, hardware)])
}

async fn open(hardware: Hardware, startup: Thresholds) -> Site {
    Site::open(startup, &[workers(hardware)]).await
}

#[tokio::test]
async fn a_prompt_goes_back_to_the_worker_that_holds_its_blocks() {
    let site = open(quick(), Thresholds::default()).await;
    let body = chat(&words(99));
    let (status, first) = site.post("/v1/chat/completions", body.clone()).await;
    assert_eq!(status, StatusCode::OK, "{first}");
    let worker = first["nvext"]["worker_id"]["decode_worker_id"].clone();
    assert!(worker.is_u64(), "{first}");
    assert_eq!(first["usage"]["prompt_tokens"], 100);
    assert_eq!(first["usage"]["completion_tokens"], 3);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    site.idle().await;
    for _ in 0..10 {
        let (_, again) = site.post("/v1/chat/completions", body.clone()).await;
        assert_eq!(again["nvext"]["worker_id"]["decode_worker_id"], worker);
        let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert_eq!(*cached, 96, "six full blocks of 16");
        site.idle().await;
    }
    let select = json!({ "model": "m", "messages": body["messages"] });
    let (_, selected) = site.post("/v1/select", select).await;
    assert_eq!(
        (&selected["worker_id"], &selected["cached_tokens"]),
        (&worker, &json!(96))
    );
    let metrics = site.get("/metrics").await;
    let line = format!(
        "router_frontend_requests_total{{model=\"m\",worker_type=\"aggregated\",worker=\"{worker}\"}} 11"
    );
    assert!(metrics.contains(&line), "{metrics}");
    assert!(
        metrics.contains("router_frontend_kv_hit_rate{model=\"m\"} 0.909"),
        "{metrics}"
    );
    assert!(site.get("/v1/models").await.contains("\"id\":\"m\""));
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_stream_is_server_sent_events_and_ends_with_done() {
    let site = open(quick(), Thresholds::default()).await;
    let mut body = chat("one two");
    body["stream"] = true.into();
    let (status, text) = site.post("/v1/chat/completions", body).await;
    assert_eq!(status, StatusCode::OK);
    let text = text.as_str().unwrap();
    let events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(events.len(), 6, "{text}");
    assert_eq!(events.last(), Some(&"[DONE]"));
    let event = |at: usize| -> Value { serde_json::from_str(events[at]).unwrap() };
    assert!(event(0)["nvext"]["worker_id"]["prefill_worker_id"].is_u64());
    assert_eq!(event(1)["choices"][0]["delta"]["content"], "every ");
    assert_eq!(event(4)["choices"][0]["finish_reason"], "length");
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn bad_requests_say_what_is_wrong_and_serve_nothing() {
    let site = open(quick(), Thresholds::default()).await;
    let mut other = chat("a");
    other["model"] = "other".into();
    for (path, body, status, word) in [
        ("/v1/chat/completions", other, 404, "other"),
        (
            "/v1/chat/completions",
            json!({ "model": "m" }),
            422,
            "messages",
        ),
        ("/v1/chat/completions", chat(&words(40_000)), 400, "40001"),
        ("/v1/select", json!({ "model": "m" }), 400, "one of"),
        ("/v1/select", json!({ "model": "m", "x": 1 }), 422, "x"),
        ("/v1/nothing", json!({}), 404, "not found"),
    ] {
        let (found, answer) = site.post(path, body).await;
        assert_eq!(found.as_u16(), status, "{answer}");
        let said = answer["message"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains(word), "{path}: {answer}");
    }
    let counts = site.frontend.counts();
    assert!(counts.iter().all(|one| one.counts.requests == 0));
    let twice = site.frontend.host(&workers(quick()));
    assert_eq!(twice, Err(HostError::Already(name("m"))));
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_model_past_its_thresholds_answers_529_until_a_client_goes_away() {
    let startup = Thresholds {
        active_prefill_tokens_threshold: Some(10),
        ..Thresholds::default()
    };
    let site = open(endless(), startup).await;
    let mut held = tokio::task::JoinSet::new();
    for number in 1..=2 {
        let (frontend, tokens) = (Arc::clone(&site.frontend), vec![number; 200]);
        held.spawn(async move { frontend.complete("m", &tokens, 1).await.map(drop) });
        while site.frontend.serving() < number as usize {
            tokio::task::yield_now().await;
        }
    }
    let select = json!({ "model": "m", "prompt": "a" });
    while site.post("/v1/select", select.clone()).await.0.as_u16() != 529 {
        tokio::task::yield_now().await;
    }
    let (status, refused) = site.post("/v1/chat/completions", chat("a")).await;
    assert_eq!(status.as_u16(), 529);
    assert_eq!(refused["type"], "Overloaded", "{refused}");
    assert!(
        site.get("/metrics")
            .await
            .contains("limit=\"busy_threshold\"} ")
    );
    // Whoever waits goes away: what was booked is free again.
    held.shutdown().await;
    site.idle().await;
    let (status, placed) = site.post("/v1/select", select).await;
    assert_eq!(status, StatusCode::OK, "{placed}");
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn requests_of_a_worker_that_is_removed_end_and_the_rest_goes_on() {
    let site = open(endless(), Thresholds::default()).await;
    let frontend = Arc::clone(&site.frontend);
    let waiting = async { frontend.complete("m", &[1; 500], 1).await.map(drop) };
    let removing = async {
        while site.frontend.serving() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(site.frontend.remove_worker(&name("m"), 0).await);
        assert!(site.frontend.remove_worker(&name("m"), 1).await);
    };
    let (ended, ()) = tokio::join!(waiting, removing);
    assert!(
        ended
            .unwrap_err()
            .to_string()
            .contains("no worker of model 'm'")
    );
    let none = site.frontend.select("m", &[1]).await.unwrap_err();
    assert!(none.to_string().contains("no worker"), "{none}");
    assert!(
        site.frontend
            .add_worker(&name("m"), WorkerType::Aggregated, 1)
            && !site
                .frontend
                .add_worker(&name("m"), WorkerType::Aggregated, 1)
    );
    assert_eq!(
        site.frontend
            .select("m", &[1])
            .await
            .unwrap()
            .prefill_worker,
        1
    );
    site.idle().await;
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn the_facade_is_mounted_and_changes_what_selects() {
    let site = open(quick(), Thresholds::default()).await;
    let listed: Value = serde_json::from_str(&site.get("/router_policy").await).unwrap();
    let id = listed["routers"][0]["router_id"].clone();
    assert_eq!(
        listed["routers"][0]["configuration"]["revision"], 0,
        "{listed}"
    );
    let change = json!({ "router_id": id, "expected_revision": 0, "parameters": { "router_temperature": 0.5 } });
    let url = format!("{}/router_policy", site.url);
    let changed = site.client.patch(url).json(&change).send().await.unwrap();
    assert_eq!(changed.status(), StatusCode::OK);
    let busy = json!({ "model": "m", "active_decode_blocks_threshold": 0.5 });
    assert_eq!(site.post("/busy_threshold", busy).await.0, StatusCode::OK);
    assert!(site.frontend.retire(&name("m")) && !site.frontend.retire(&name("m")));
    assert_eq!(site.get("/router_policy").await, "{\"routers\":[]}");
    assert!(site.frontend.stop().await);
}

/// Dynamo's index panics when it is told of a block after its end; a request whose task breaks ends the whole frontend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_a_model_that_is_retired_while_it_prefills_breaks_nothing() {
    let frontend = Reference::new(Thresholds::default());
    for round in 0..200_u32 {
        frontend.host(&workers(quick())).unwrap();
        let prompts: Vec<Vec<u32>> = (0..8).map(|one| vec![round * 8 + one; 64]).collect();
        let asked = prompts
            .iter()
            .map(|tokens| frontend.complete("m", tokens, 1));
        let retired = async {
            for _ in 0..round % 10 {
                tokio::task::yield_now().await;
            }
            frontend.retire(&name("m"))
        };
        let (_, retired) = tokio::join!(futures::future::join_all(asked), retired);
        assert!(retired);
    }
    assert!(
        frontend.ended().now_or_never().is_none(),
        "it ended by itself"
    );
    assert!(frontend.stop().await);
}
