//! What no recorded answer shows: stalled and retired routers, callers that hang up, the switch, 529.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use scheduler::busy::{Models, Overloaded, Thresholds};
use scheduler::facade::{self, Frontend};
use scheduler::{Registration, Registry};
use schemas::{Revision, RouterId};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::ServiceExt;
use uuid::Uuid;

use support::probe::{Watch, watched};
use support::{IMPATIENCE, PATIENCE, Router, key, query, router};

fn id(number: u128) -> RouterId {
    RouterId(Uuid::from_u128(number))
}

fn app(routers: &Registry, patience: Duration) -> axum::Router {
    let frontend = Frontend {
        routers: routers.clone(),
        models: Models::new(Thresholds::default()),
        patience,
    };
    facade::routes(frontend, false).fallback(facade::not_found)
}

async fn ask(
    app: &axum::Router,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let body = body.map_or(Body::empty(), |body| Body::from(body.to_string()));
    let answer = app
        .clone()
        .oneshot(request.body(body).unwrap())
        .await
        .unwrap();
    let status = answer.status();
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20)
        .await
        .unwrap();
    (
        status,
        serde_json::from_slice(&bytes).unwrap_or(Value::Null),
    )
}

fn listed(answer: &Value) -> Vec<String> {
    let routers = answer["routers"].as_array().unwrap();
    let mut ids: Vec<String> = routers
        .iter()
        .map(|router| router["router_id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort_unstable();
    ids
}

fn registered(registry: &Registry, number: u128) -> (Router, Registration, Arc<Watch>) {
    let (policy, watch) = watched();
    let router = router(policy, 2);
    let registration = registry.register(id(number), key("m"), router.control.clone());
    (router, registration, watch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stalled_router_is_left_out_and_hides_nobody() {
    let registry = Registry::new();
    let (sick, _sick, watch) = registered(&registry, 1);
    let (_well, _well2, _) = registered(&registry, 2);
    let (gone, _gone, _) = registered(&registry, 3);
    drop(gone);
    watch.close();
    let scheduler = Arc::clone(&sick.scheduler);
    let mut held = JoinSet::new();
    held.spawn(async move { drop(scheduler.select_without_admission(query(16)).await) });
    watch.reached(1).await;

    let app = app(&registry, IMPATIENCE);
    let (status, answer) = ask(&app, "GET", "/router_policy", None).await;
    assert_eq!(
        (status, listed(&answer)),
        (StatusCode::OK, vec![id(2).to_string()])
    );
    let patch = |number| json!({"router_id": id(number), "expected_revision": 0, "parameters": {"value": 1}});
    let (status, answer) = ask(&app, "PATCH", "/router_policy", Some(patch(1))).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{answer}");
    let (status, _) = ask(&app, "PATCH", "/router_policy", Some(patch(2))).await;
    assert_eq!(status, StatusCode::OK);
    let (status, answer) = ask(&app, "PATCH", "/router_policy", Some(patch(3))).await;
    assert_eq!(
        (status, answer["error"].as_str().unwrap()),
        (
            StatusCode::NOT_FOUND,
            "router instance not found; query /router_policy on this frontend"
        )
    );

    watch.open();
    held.join_all().await;
    let (_, answer) = ask(&app, "GET", "/router_policy?model=m", None).await;
    assert_eq!(listed(&answer), [id(1).to_string(), id(2).to_string()]);
    assert_eq!(
        sick.control.read(PATIENCE).await.unwrap().unwrap().revision,
        Revision(0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_that_hangs_up_changes_nothing() {
    let registry = Registry::new();
    let (router, _registration, watch) = registered(&registry, 1);
    watch.close();
    let scheduler = Arc::clone(&router.scheduler);
    let mut held = JoinSet::new();
    held.spawn(async move { drop(scheduler.select_without_admission(query(16)).await) });
    watch.reached(1).await;
    let app = app(&registry, PATIENCE);
    let patch = json!({"router_id": id(1), "expected_revision": 0, "parameters": {"value": 1}});
    let mut asked = Box::pin(ask(&app, "PATCH", "/router_policy", Some(patch)));
    // Posted, then hung up.
    while watch.alive() < 2 {
        assert!(futures::poll!(asked.as_mut()).is_pending());
    }
    drop(asked);
    watch.open();
    held.join_all().await;
    assert_eq!(
        router
            .control
            .read(PATIENCE)
            .await
            .unwrap()
            .unwrap()
            .revision,
        Revision(0)
    );
}

#[tokio::test]
async fn the_switch_takes_all_three_paths_away() {
    let frontend = || Frontend {
        routers: Registry::new(),
        models: Models::default(),
        patience: PATIENCE,
    };
    let cases = [
        (Some("1"), true),
        (Some(" TRUE "), true),
        (Some("yes"), true),
        (Some("on"), true),
        (Some("0"), false),
        (Some("false"), false),
        (Some(""), false),
        (None, false),
    ];
    for (value, disabled) in cases {
        assert_eq!(facade::is_disabled(value), disabled, "{value:?}");
        let app = facade::routes(frontend(), disabled).fallback(facade::not_found);
        for path in [
            "/router_policy",
            "/router_policy/busy_threshold",
            "/busy_threshold",
        ] {
            let (status, answer) = ask(&app, "GET", path, None).await;
            assert_eq!(
                status == StatusCode::NOT_FOUND,
                disabled,
                "{value:?} {path}"
            );
            if disabled {
                let expected = json!({"message": format!("Route not found: GET {path}"), "type": "Not Found", "code": 404});
                assert_eq!(answer, expected);
            }
        }
    }
}

#[tokio::test]
async fn an_overloaded_model_answers_529() {
    let answer = facade::overloaded(&Overloaded("m".to_owned()));
    assert_eq!(answer.status().as_u16(), 529);
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20)
        .await
        .unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&body["type"], &body["code"]),
        (&json!("Overloaded"), &json!(529))
    );
    assert!(body["message"].as_str().unwrap().contains("'m'"));
}

#[tokio::test]
async fn other_methods_are_told_which_there_are() {
    let app = app(&Registry::new(), PATIENCE);
    let request = Request::builder()
        .method("DELETE")
        .uri("/router_policy")
        .body(Body::empty())
        .unwrap();
    let answer = app.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    let allowed = answer.headers()["allow"].to_str().unwrap();
    let mut methods: Vec<&str> = allowed.split(',').collect();
    methods.sort_unstable();
    assert_eq!(methods, ["GET", "HEAD", "PATCH"]);
}

#[tokio::test]
async fn damaged_bodies_are_refused_and_change_nothing() {
    let registry = Registry::new();
    let (router, _registration, _) = registered(&registry, 1);
    let app = app(&registry, PATIENCE);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut answers = std::collections::BTreeMap::new();
    let mut revision = 0;
    for _ in 0..3_000 {
        let body = json!({"router_id": id(1), "expected_revision": revision, "parameters": {"value": rng.u16(..)}});
        let mut body = body.to_string().into_bytes();
        for _ in 0..rng.usize(..3) {
            let at = rng.usize(..body.len());
            match rng.u8(..3) {
                0 => body[at] = rng.u8(..),
                1 => drop(body.drain(at..)),
                _ => body.insert(at, b"{}[]\",:-0e"[rng.usize(..10)]),
            }
            if body.is_empty() {
                break;
            }
        }
        let request = Request::builder()
            .method("PATCH")
            .uri("/router_policy")
            .header("content-type", "application/json");
        let answer = app
            .clone()
            .oneshot(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        let status = answer.status().as_u16();
        revision += u64::from(status == 200);
        assert_eq!(
            router
                .control
                .read(PATIENCE)
                .await
                .unwrap()
                .unwrap()
                .revision,
            Revision(revision)
        );
        *answers.entry(status).or_insert(0) += 1;
    }
    assert!(
        answers
            .keys()
            .all(|status| [200, 400, 404, 409, 422].contains(status)),
        "{answers:?}"
    );
    assert!(answers.len() >= 4, "{answers:?}");
}
