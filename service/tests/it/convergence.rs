//! Waiting for the fleet: what is said, and when.

use std::time::Duration;

use reqwest::Method;
use schemas::Position;
use schemas::convergence::Patience;
use schemas::status::ApplyState;
use serde_json::{Value, json};

use crate::support::{Fixture, agent, change, fleet_id, with_router};

async fn waiting(fixture: &Fixture, model: &str, timeout_ms: u64) -> Value {
    let path = format!("/v1/changes?wait=converged&timeout_ms={timeout_ms}");
    let body = json!({"changes": [change(model, 0.5)]});
    let (status, answer) = fixture.send(Method::POST, &path, &body).await;
    assert_eq!(status, 200, "{answer}");
    answer["convergence"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_no_router_matches_is_never_called_converged() {
    let fixture = with_router().await;
    let report = async {
        assert!(
            fixture
                .running()
                .wait_for(Position(1), crate::support::PATIENCE)
                .await
        );
        fixture
            .report(agent("a", 2, Position(1), ApplyState::Applied))
            .await;
    };
    let (answer, ()) = tokio::join!(waiting(&fixture, "nobody", 30_000), report);
    assert_eq!(answer["outcome"], json!("no_router"));
    let (_, list) = fixture.get("/v1/policies?model=nobody").await;
    assert_eq!(list["policies"][0]["routers"], json!(0));
}

/// Reports of two agents while a writer waits -> what it is told.
async fn check(reports: &[(&str, ApplyState)], timeout_ms: u64, wanted: &str) -> Value {
    let fixture = Fixture::new().await;
    for id in ["a", "b"] {
        fixture
            .report(agent(id, 1, Position::START, ApplyState::Applied))
            .await;
    }
    let fleet = async {
        assert!(
            fixture
                .running()
                .wait_for(Position(1), crate::support::PATIENCE)
                .await
        );
        for (n, (id, state)) in reports.iter().enumerate() {
            fixture
                .report(agent(id, 2 + n as u64, Position(1), *state))
                .await;
        }
    };
    let (answer, ()) = tokio::join!(waiting(&fixture, "mock-model", timeout_ms), fleet);
    assert_eq!(answer["outcome"], json!(wanted), "{answer}");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn converged_is_said_when_every_router_has_it() {
    use ApplyState::{Applied, Pending};
    let answer = check(
        &[("a", Applied), ("b", Pending), ("b", Applied)],
        30_000,
        "converged",
    )
    .await;
    assert_eq!(answer["applied"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_names_the_router_and_its_words() {
    let answer = check(
        &[("a", ApplyState::Applied), ("b", ApplyState::Refused)],
        30_000,
        "refused",
    )
    .await;
    assert_eq!(answer["refused"][0]["agent"], json!("b"));
    assert_eq!(
        answer["refused"][0]["error"],
        json!("replacement changes routing requirements")
    );
    assert_eq!(answer["applied"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_answer_is_missing_when_time_is_up() {
    let answer = check(&[("a", ApplyState::Applied)], 300, "pending").await;
    assert_eq!(answer["missing"][0]["agent"], json!("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_converged_before_the_agents_had_time_to_report() {
    // A service that has just started has heard of one of two agents; the other one's router lacks the change.
    let (never, soon) = (Duration::from_secs(3_600), Duration::from_millis(700));
    for (settle, timeout_ms, wanted) in [(never, 300, "pending"), (soon, 30_000, "converged")] {
        let fixture = Fixture::with(|config| config.fleet_settle = settle).await;
        // Known before the fleet settles, however busy the machine is; it has the change only with its second report.
        fixture
            .report(agent("a", 1, Position::START, ApplyState::Applied))
            .await;
        fixture
            .until("/v1/convergence", |fleet| fleet["agents"] != json!([]))
            .await;
        let report = async {
            assert!(
                fixture
                    .running()
                    .wait_for(Position(1), crate::support::PATIENCE)
                    .await
            );
            fixture
                .report(agent("a", 2, Position(1), ApplyState::Applied))
                .await;
        };
        let (answer, ()) = tokio::join!(waiting(&fixture, "mock-model", timeout_ms), report);
        assert_eq!(answer["outcome"], json!(wanted), "{answer}");
        assert_eq!(answer["applied"].as_array().unwrap().len(), 1, "{answer}");
        let id = fleet_id("mock-model");
        let (_, answer) = fixture.get(&format!("/v1/convergence?policy={id}")).await;
        assert_eq!(answer["outcome"], json!(wanted), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_an_agent_that_said_goodbye_and_for_one_that_did_not_all_do() {
    for (leaving, wanted) in [(true, "converged"), (false, "pending")] {
        let fixture = Fixture::new().await;
        for id in ["a", "b"] {
            fixture
                .report(agent(id, 1, Position::START, ApplyState::Applied))
                .await;
        }
        fixture
            .until("/v1/convergence", |fleet| {
                fleet["agents"].as_array().is_some_and(|all| all.len() == 2)
            })
            .await;
        let report = async {
            assert!(
                fixture
                    .running()
                    .wait_for(Position(1), crate::support::PATIENCE)
                    .await
            );
            fixture
                .report(agent("a", 2, Position(1), ApplyState::Applied))
                .await;
            let mut last = agent("b", 2, Position::START, ApplyState::Applied);
            last.leaving = leaving;
            fixture.report(last).await;
        };
        let timeout_ms = if leaving { 30_000 } else { 300 };
        let (answer, ()) = tokio::join!(waiting(&fixture, "mock-model", timeout_ms), report);
        assert_eq!(answer["outcome"], json!(wanted), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_agents_become_stale_and_then_leave() {
    let fixture = Fixture::with(|config| {
        config.patience = Patience {
            stale_after_ms: 150,
            gone_after_ms: 600,
        };
    })
    .await;
    fixture
        .report(agent("a", 1, Position::START, ApplyState::Applied))
        .await;
    fixture
        .until("/v1/convergence", |fleet| {
            fleet["agents"][0]["stale"] == json!(true)
        })
        .await;
    let (_, list) = fixture.get("/router_policy").await;
    assert_eq!(list["routers"][0]["replicas"][0]["stale"], json!(true));
    fixture
        .until("/v1/convergence", |fleet| fleet["agents"] == json!([]))
        .await;
    let (_, list) = fixture.get("/router_policy").await;
    assert_eq!(list["routers"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_reports_a_second_never_make_an_edit_stale() {
    let fixture = with_router().await;
    let done = tokio_util::sync::CancellationToken::new();
    let reports = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(5));
        for report in 2.. {
            tokio::select! {
                () = done.cancelled() => return report,
                _ = ticks.tick() => {}
            }
            let status =
                serde_json::to_value(agent("a", report, Position::START, ApplyState::Applied))
                    .unwrap();
            let (answer, _) = fixture.send(Method::POST, "/v1/status", &status).await;
            assert_eq!(answer, 204);
        }
        0
    };
    let edits = async {
        for _ in 0..50 {
            let (_, list) = fixture.get("/router_policy").await;
            let revision = &list["routers"][0]["configuration"]["revision"];
            let body = json!({"router_id": fleet_id("mock-model"), "expected_revision": revision, "parameters": {"router_temperature": 0.5}});
            let (status, answer) = fixture.send(Method::PATCH, "/router_policy", &body).await;
            assert_eq!(status, 200, "{answer}");
        }
        done.cancel();
    };
    let (reports, ()) = tokio::join!(reports, edits);
    assert!(reports > 20, "{reports}");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_and_questions_are_checked() {
    let fixture = with_router().await;
    let body = json!({"changes": [change("m", 1.0)]});
    for query in [
        "wait=maybe",
        "timeout_ms=60001",
        "timeout_ms=-1",
        "wiat=converged",
        "wait=converged&wait=converged",
    ] {
        let (status, answer) = fixture
            .send(Method::POST, &format!("/v1/changes?{query}"), &body)
            .await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (400, &json!("bad_query")),
            "{query}"
        );
    }
    let id = fleet_id("mock-model");
    let (status, answer) = fixture.get(&format!("/v1/convergence?policy={id}")).await;
    assert_eq!(
        (status.as_u16(), &answer["outcome"]),
        (200, &json!("converged"))
    );
    let (_, answer) = fixture
        .get(&format!("/v1/convergence?policy={id}&position=9"))
        .await;
    assert_eq!(answer["outcome"], json!("pending"));
    assert_eq!(fixture.get("/v1/convergence?position=9").await.0, 400);
    assert_eq!(fixture.get("/v1/convergence?policy=x").await.0, 404);
}
