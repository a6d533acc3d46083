//! Disaggregated models on the reference frontend: a router per role, and requests that go through each.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::site::{Site, chat, endless, plan, quick, role, words};
use common::{Log, agent_beside, name, until, values};
use reqwest::StatusCode;
use router_agent::frontend::{Hardware, ModelPlan, RolePlan, ServeError};
use scheduler::builtin::Startup;
use scheduler::busy::Thresholds;
use schemas::status::ApplyState;
use schemas::{PolicyKind, Scope, WorkerType};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Prefill workers 0 and 1, decode workers 2 and 3.
fn disaggregated(prefill: Hardware, decode: Hardware) -> Vec<RolePlan> {
    vec![
        role(WorkerType::Prefill, prefill),
        role(WorkerType::Decode, decode),
    ]
}

fn conditional(decode: &mut RolePlan) {
    decode.startup.conditional_decode = true;
}

async fn open(roles: Vec<RolePlan>) -> Site {
    Site::open(Thresholds::default(), &[plan(roles)]).await
}

fn routers(listing: &Value) -> &Vec<Value> {
    listing["routers"].as_array().unwrap()
}

async fn listing(site: &Site) -> Value {
    serde_json::from_str(&site.get("/router_policy").await).unwrap()
}

const CACHE: [&str; 4] = [
    "overlap_score_credit",
    "host_cache_hit_weight",
    "disk_cache_hit_weight",
    "shared_cache_multiplier",
];

#[tokio::test]
async fn the_listing_shows_each_role_with_the_values_that_its_startup_rules_demand() {
    let mut conditional_roles = disaggregated(quick(), quick());
    conditional(&mut conditional_roles[1]);
    conditional_roles.push(RolePlan {
        startup: Startup {
            load_only: true,
            ..Startup::of(WorkerType::Encode)
        },
        ..role(WorkerType::Encode, quick())
    });
    conditional_roles[0].startup.given = [
        ("overlap_score_credit".to_owned(), 0.into()),
        ("host_cache_hit_weight".to_owned(), 0.5.into()),
    ]
    .into();
    let mut plain = disaggregated(quick(), quick());
    plain[1].startup.given = [("shared_cache_multiplier".to_owned(), 0.5.into())].into();
    plain.push(role(WorkerType::Encode, quick()));
    let plans = [
        ModelPlan::new(name("conditional"), conditional_roles),
        ModelPlan::new(name("plain"), plain),
    ];
    let site = Site::open(Thresholds::default(), &plans).await;
    let listed = listing(&site).await;
    let mut shown: Vec<(String, [f64; 4])> = Vec::new();
    for router in routers(&listed) {
        let key = ["model", "worker_type", "namespace", "component", "endpoint"];
        let key = key.map(|part| router[part].as_str().unwrap());
        let parameters = &router["configuration"]["parameters"];
        assert_eq!(router["configuration"]["revision"], 0, "{router}");
        let weights = CACHE.map(|name| parameters[name].as_f64().unwrap());
        shown.push((key.join(" "), weights));
    }
    shown.sort_by(|one, other| one.0.cmp(&other.0));
    let defaults = [1.0, 0.75, 0.25, 0.0];
    let wanted = [
        ("conditional decode dynamo decode generate", defaults),
        ("conditional encode dynamo encode generate", [0.0; 4]),
        (
            "conditional prefill dynamo prefill generate",
            [0.0, 0.5, 0.0, 0.0],
        ),
        ("plain decode dynamo decode generate", [0.0; 4]),
        ("plain encode dynamo encode generate", defaults),
        ("plain prefill dynamo prefill generate", defaults),
    ];
    let wanted: Vec<(String, [f64; 4])> = wanted
        .into_iter()
        .map(|(key, weights)| (key.to_owned(), weights))
        .collect();
    assert_eq!(shown, wanted);

    // Each refuses or takes a cache weight by its own rules.
    for router in routers(&listed) {
        let change = json!({
            "router_id": router["router_id"], "expected_revision": 0, "parameters": { "overlap_score_credit": 0.5 },
        });
        let url = format!("{}/router_policy", site.url);
        let answer = site.client.patch(url).json(&change).send().await.unwrap();
        let cacheless = (&router["model"], &router["worker_type"])
            == (&"plain".into(), &"decode".into())
            || (&router["model"], &router["worker_type"])
                == (&"conditional".into(), &"encode".into());
        let wanted = if cacheless { 422 } else { 200 };
        assert_eq!(answer.status().as_u16(), wanted, "{router}");
    }
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_disaggregated_request_streams_from_its_decode_worker_end_to_end() {
    let mut roles = disaggregated(quick(), quick());
    roles.push(role(WorkerType::Encode, quick()));
    let site = open(roles).await;
    let mut body = chat(&words(99));
    body["stream"] = true.into();
    let (status, text) = site.post("/v1/chat/completions", body.clone()).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let text = text.as_str().unwrap();
    let events: Vec<&str> = (text.lines())
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(
        (events.len(), events.last()),
        (6, Some(&"[DONE]")),
        "{text}"
    );
    let event = |at: usize| -> Value { serde_json::from_str(events[at]).unwrap() };
    let said = |at: usize| event(at)["choices"][0]["delta"]["content"].clone();
    assert_eq!([1, 2, 3].map(said), ["every ", "request ", "finds "]);
    let workers = event(0)["nvext"]["worker_id"].clone();
    let worker = |role: &str| workers[format!("{role}_worker_id")].as_u64().unwrap();
    let (encode, prefill, decode) = (worker("encode"), worker("prefill"), worker("decode"));
    assert!(
        [0, 1].contains(&prefill) && [2, 3].contains(&decode),
        "{workers}"
    );
    assert!([4, 5].contains(&encode), "{workers}");
    site.idle().await;

    // The prefill worker holds the prompt now, and gets it again.
    body["stream"] = false.into();
    for _ in 0..5 {
        let (_, again) = site.post("/v1/chat/completions", body.clone()).await;
        let cached = &again["usage"]["prompt_tokens_details"]["cached_tokens"];
        let at = &again["nvext"]["worker_id"]["prefill_worker_id"];
        assert_eq!((at, cached), (&json!(prefill), &json!(96)), "{again}");
        site.idle().await;
    }
    let metrics = site.get("/metrics").await;
    for (role, worker, requests) in [("prefill", prefill, 6), ("encode", encode, 6)] {
        let line = format!(
            "router_frontend_requests_total{{model=\"m\",worker_type=\"{role}\",worker=\"{worker}\"}} {requests}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let decoded = (site.frontend.counts().into_iter())
        .filter(|one| one.worker_type == WorkerType::Decode)
        .map(|one| one.counts.requests);
    assert_eq!(decoded.sum::<u64>(), 6);
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_conditional_decode_worker_prefills_what_is_little_itself() {
    let mut roles = disaggregated(quick(), quick());
    conditional(&mut roles[1]);
    let site = open(roles).await;
    let tokens: Vec<u32> = (0..200).collect();
    let serve = || async {
        let mut open = site.frontend.complete("m", &tokens, 2).await.unwrap();
        while open.pieces.recv().await.is_some() {}
        site.idle().await;
        open.placed
    };
    let far = serve().await;
    assert!(far.prefill_worker < 2 && far.decode_worker >= 2, "{far:?}");
    // Eight tokens are new to the worker that has decoded it.
    let near = serve().await;
    assert_eq!(near.decode_worker, far.decode_worker);
    assert_eq!(near.prefill_worker, far.decode_worker);
    assert_eq!((near.cached_tokens, near.prompt_tokens), (192, 200));
    let selected = site.frontend.select("m", &tokens).await.unwrap();
    assert_eq!(selected, near);
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_policy_of_prefill_workers_changes_the_selection_of_prefill_workers_only() {
    // Whatever decodes never ends, so that its worker stays loaded.
    let slow = Hardware {
        prefill_tokens_per_s: 1e6,
        ..endless()
    };
    let site = open(disaggregated(quick(), slow)).await;
    let tokens: Vec<u32> = (0..200).collect();
    let served = site.frontend.complete("m", &tokens, 0).await.unwrap();
    let holder = served.placed.prefill_worker;
    site.idle().await;
    let open = site.frontend.complete("m", &[7; 900], 2).await.unwrap();
    let idle = 5 - open.placed.decode_worker;
    let asked = || async {
        let mut asked = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..64 {
            let placed = site.frontend.select("m", &tokens).await.unwrap();
            asked.0.insert(placed.prefill_worker);
            asked.1.insert(placed.decode_worker);
        }
        asked
    };
    while site
        .frontend
        .select("m", &tokens)
        .await
        .unwrap()
        .cached_tokens
        == 0
    {
        tokio::task::yield_now().await;
    }
    let before = asked().await;
    assert_eq!(before, ([holder].into(), [idle].into()));

    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(1);
    let scope = Scope {
        worker_type: Some(WorkerType::Prefill),
        ..Scope::default()
    };
    let overlay = values(&[("overlap_score_credit", 0.0), ("router_temperature", 1.0)]);
    let set = log.set_overlay(PolicyKind::WorkerSelection, &scope, overlay);
    let position = set.await;
    let agent = agent_beside(folder.path(), &log, &site.frontend.target()).await;
    let settled = |status: &schemas::status::AgentStatus| {
        let routers = &status.frontends[0].routers;
        let there = routers
            .iter()
            .filter(|router| router.state == ApplyState::Applied && router.position >= position);
        there.count() == 2
    };
    until(&agent, "both routers", settled).await;
    let revision = |listed: &Value, role: &str| {
        let router = routers(listed)
            .iter()
            .find(|one| one["worker_type"] == role);
        let configuration = &router.unwrap()["configuration"];
        let temperature = &configuration["parameters"]["router_temperature"];
        (configuration["revision"].clone(), temperature.clone())
    };
    let listed = listing(&site).await;
    assert_eq!(revision(&listed, "prefill"), (json!(1), json!(1.0)));
    assert_eq!(revision(&listed, "decode"), (json!(0), json!(0.0)));
    let after = asked().await;
    assert_eq!(after, ([0, 1].into(), [idle].into()));
    assert!(agent.stop().await);
    drop(open);
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn prefill_workers_past_their_thresholds_refuse_while_decode_workers_are_idle() {
    let startup = Thresholds {
        active_prefill_tokens_threshold: Some(10),
        ..Thresholds::default()
    };
    let roles = disaggregated(endless(), quick());
    let site = Site::open(startup, &[plan(roles)]).await;
    let mut held = JoinSet::new();
    for number in 1..=2_u32 {
        let (frontend, tokens) = (Arc::clone(&site.frontend), vec![number; 200]);
        held.spawn(async move { frontend.complete("m", &tokens, 1).await.map(drop) });
        while site.frontend.serving() < number as usize {
            tokio::task::yield_now().await;
        }
    }
    let refused = || async {
        let (status, _) = site
            .post("/v1/select", json!({ "model": "m", "prompt": "a" }))
            .await;
        status.as_u16() == 529
    };
    while !refused().await {
        tokio::task::yield_now().await;
    }
    let (status, said) = site.post("/v1/chat/completions", chat("a")).await;
    assert_eq!(
        (status.as_u16(), &said["type"]),
        (529, &json!("Overloaded"))
    );
    held.shutdown().await;
    site.idle().await;
    assert!(!refused().await);
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_request_whose_prefill_or_decode_worker_is_removed_ends_and_leaves_no_booking() {
    let site = open(disaggregated(endless(), endless())).await;
    let frontend = Arc::clone(&site.frontend);
    let waiting = async { frontend.complete("m", &[1; 500], 1).await.map(drop) };
    let removing = async {
        while site.frontend.serving() == 0 {
            tokio::task::yield_now().await;
        }
        for worker in 0..2 {
            assert!(site.frontend.remove_worker(&name("m"), worker).await);
        }
    };
    let (ended, ()) = tokio::join!(waiting, removing);
    assert_eq!(ended, Err(ServeError::NoWorker("m".to_owned())));
    site.idle().await;
    for (role, worker) in [(WorkerType::Aggregated, 0), (WorkerType::Prefill, 2)] {
        let added = site.frontend.add_worker(&name("m"), role, worker);
        assert!(!added, "no such role, or another role's worker");
    }
    assert!(site.frontend.stop().await);

    let quick_prefill = open(disaggregated(quick(), endless())).await;
    let frontend = &quick_prefill.frontend;
    let mut served = frontend.complete("m", &[1; 500], 1).await.unwrap();
    let worker = served.placed.decode_worker;
    assert!(frontend.remove_worker(&name("m"), worker).await);
    let last = served.pieces.recv().await;
    assert_eq!(last, Some(Err(ServeError::NoWorker("m".to_owned()))));
    quick_prefill.idle().await;
    assert!(frontend.stop().await);
}
