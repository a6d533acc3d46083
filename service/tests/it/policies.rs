//! Policies under `/v1`: reading, changing, history, reverting, and what is effective.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Fixture, fleet_id, with_router};

#[tokio::test(flavor = "multi_thread")]
async fn history_tells_every_revision_and_revert_appends_one() {
    let fixture = Fixture::new().await;
    let first = fixture.set("m", 0.1).await;
    let id = first["policies"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/policies/{id}");
    fixture.set("other", 9.0).await;
    for temperature in [0.2, 0.3] {
        fixture.set("m", temperature).await;
    }
    let (status, answer) = fixture
        .send(
            Method::POST,
            &format!("{path}/revert"),
            &json!({"to_revision": 1, "expected_revision": 3, "reason": "worse"}),
        )
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["policies"][0]["revision"], json!(4));
    assert_eq!(
        answer["policies"][0]["parameters"],
        json!({"router_temperature": 0.1})
    );
    let (status, answer) = fixture
        .send(
            Method::POST,
            &format!("{path}/revert"),
            &json!({"to_revision": 0}),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &answer["policies"][0]["parameters"]),
        (200, &json!({}))
    );
    let (status, answer) = fixture
        .send(
            Method::POST,
            &format!("{path}/revert"),
            &json!({"to_revision": 99}),
        )
        .await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (404, &json!("no_such_revision"))
    );

    let (_, page) = fixture.get(&format!("{path}/history?order=oldest")).await;
    let told: Vec<(u64, Value)> = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["revision"].as_u64().unwrap(),
                entry["parameters"].clone(),
            )
        })
        .collect();
    let t = |value: f64| json!({"router_temperature": value});
    assert_eq!(
        told,
        [
            (1, t(0.1)),
            (2, t(0.2)),
            (3, t(0.3)),
            (4, t(0.1)),
            (5, json!({}))
        ]
    );
    let (_, page) = fixture.get(&format!("{path}/history?limit=2")).await;
    let cursor = page["next_cursor"].as_str().unwrap();
    let (_, page) = fixture
        .get(&format!("{path}/history?limit=3&cursor={cursor}"))
        .await;
    assert_eq!(page["entries"][0]["revision"], json!(3));
    assert!(page.get("next_cursor").is_none());

    let (_, entry) = fixture.get(&format!("{path}/at?position=3")).await;
    assert_eq!(entry["revision"], json!(2));
    let at = entry["changed_at"].as_str().unwrap();
    let (status, entry) = fixture.get(&format!("{path}/at?time={at}")).await;
    assert_eq!(status, 200);
    assert!(entry["revision"].as_u64().unwrap() >= 2);
    for (query, status) in [
        ("time=1999-01-01T00:00:00Z", 404),
        ("revision=6", 404),
        ("revision=5", 200),
        ("", 400),
        ("revision=1&position=1", 400),
        ("position=x", 400),
    ] {
        assert_eq!(
            fixture.get(&format!("{path}/at?{query}")).await.0.as_u16(),
            status,
            "{query}"
        );
    }
    let (_, diff) = fixture.get(&format!("{path}/diff?from=1&to=3")).await;
    assert_eq!(
        diff["parameters"],
        json!({"router_temperature": {"from": 0.1, "to": 0.3}})
    );
    let (_, diff) = fixture.get(&format!("{path}/diff?from=3&to=5")).await;
    assert_eq!(
        diff["parameters"],
        json!({"router_temperature": {"from": 0.3, "to": null}})
    );
    assert_eq!(
        fixture.get(&format!("{path}/diff?from=1&to=9")).await.0,
        404
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn if_match_is_a_precondition_and_the_tag_is_the_revision() {
    let fixture = with_router().await;
    let path = format!("/v1/policies/{}", fleet_id("mock-model"));
    let response = fixture.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(
        response.headers()["etag"],
        "\"0\"",
        "a live router has a policy of revision 0"
    );
    let body = json!({"parameters": {"router_temperature": 1}});
    for (tag, status) in [
        ("\"0\"", 200),
        ("\"0\"", 412),
        ("\"1\"", 200),
        ("*", 200),
        ("W/\"3\"", 400),
        ("3", 400),
        ("\"-1\"", 400),
    ] {
        let sent = fixture.send_with(Method::PATCH, &path, ("if-match", tag), &body);
        let (got, answer) = sent.await;
        assert_eq!(got.as_u16(), status, "{tag}: {answer}");
        if status == 412 {
            assert_eq!(answer["code"], json!("precondition_failed"));
            assert_eq!(answer["current_revision"], json!(1));
        }
    }
    let mut stale = body.clone();
    stale["expected_revision"] = json!(1);
    assert_eq!(fixture.send(Method::PATCH, &path, &stale).await.0, 409);
    assert_eq!(
        fixture
            .send_with(Method::PATCH, &path, ("if-match", "\"3\""), &stale)
            .await
            .0,
        412
    );
    assert_eq!(
        fixture
            .send(Method::PATCH, "/v1/policies/nope", &body)
            .await
            .0,
        404
    );
    assert_eq!(fixture.send(Method::PATCH, &path, &json!({})).await.0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_specific_scope_wins_and_is_named() {
    let fixture = Fixture::new().await;
    let body = json!({"changes": [
        {"kind": "worker_selection", "scope": {}, "parameters": {"router_temperature": 0.1, "prefill_load_scale": 2}},
        {"kind": "worker_selection", "scope": {"model": "m*>é"}, "parameters": {"router_temperature": 0.2}},
        {"kind": "worker_selection", "scope": {"group": "canary"}, "parameters": {"router_temperature": 0.3}},
        {"kind": "busy_threshold", "scope": {"model": "m*>é"}, "parameters": {"active_prefill_tokens_threshold": 5}},
    ]});
    let (status, answer) = fixture.send(Method::POST, "/v1/changes", &body).await;
    assert_eq!(status, 200, "{answer}");
    let router = "model=m*%3E%C3%A9&worker_type=decode&endpoint=n/c/e";
    let (_, view) = fixture.get(&format!("/v1/effective?{router}")).await;
    assert_eq!(
        view["worker_selection"]["values"]["router_temperature"]["value"],
        json!(0.2)
    );
    assert_eq!(
        view["worker_selection"]["values"]["router_temperature"]["scope"],
        json!({"model": "m*>é"})
    );
    assert_eq!(
        view["worker_selection"]["values"]["prefill_load_scale"]["scope"],
        json!({})
    );
    assert_eq!(
        view["busy_threshold"]["values"]["active_prefill_tokens_threshold"]["value"],
        json!(5)
    );
    let (_, view) = fixture
        .get(&format!("/v1/effective?{router}&group=canary"))
        .await;
    assert_eq!(
        view["worker_selection"]["values"]["router_temperature"]["value"],
        json!(0.3)
    );
    for (query, status) in [
        ("model=m", 200),
        ("", 400),
        ("model=m&worker_type=decode", 400),
        ("model=m&endpoint=n/c/e", 400),
        ("model=m&worker_type=x&endpoint=n/c/e", 400),
        ("model=", 400),
    ] {
        assert_eq!(
            fixture
                .get(&format!("/v1/effective?{query}"))
                .await
                .0
                .as_u16(),
            status,
            "{query}"
        );
    }
    let (_, list) = fixture
        .get("/v1/policies?kind=worker_selection&model=m*%3E%C3%A9")
        .await;
    assert_eq!(list["policies"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_tells_what_would_be_and_writes_nothing() {
    let fixture = with_router().await;
    let before = fixture.running().digest();
    let body = json!({"changes": [{"kind": "worker_selection", "scope": {}, "parameters": {"router_temperature": 0.5}}]});
    let (status, answer) = fixture
        .send(Method::POST, "/v1/policies:validate", &body)
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["policies"][0]["revision"], json!(1));
    assert_eq!(answer["routers"][0]["before"], json!({}));
    assert_eq!(
        answer["routers"][0]["after"],
        json!({"router_temperature": 0.5})
    );
    let bad = json!({"changes": [{"kind": "worker_selection", "scope": {}, "parameters": {"router_temperature": -1}}]});
    let (status, answer) = fixture
        .send(Method::POST, "/v1/policies:validate", &bad)
        .await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (422, &json!("invalid_value"))
    );
    assert_eq!(fixture.running().digest(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_parameters_are_registered_before_they_are_used() {
    let fixture = Fixture::new().await;
    let change = json!({"changes": [{"kind": "worker_selection", "scope": {}, "parameters": {"min_blocks": 3}}]});
    let (status, answer) = fixture.send(Method::POST, "/v1/changes", &change).await;
    assert_eq!(
        (status.as_u16(), &answer["field"]),
        (422, &json!("parameters.min_blocks"))
    );
    let path = "/v1/parameters/min_blocks";
    for (body, status) in [
        (json!({"schema": {"type": "nonsense"}}), 422),
        (
            json!({"schema": {"type": "integer", "minimum": 0}, "expected_revision": 1}),
            409,
        ),
        (
            json!({"schema": {"type": "integer", "minimum": 0}, "expected_revision": 0}),
            200,
        ),
        (
            json!({"schema": {"type": "integer", "minimum": 0}, "expected_revision": 0}),
            409,
        ),
    ] {
        let (got, answer) = fixture.send(Method::PUT, path, &body).await;
        assert_eq!(got.as_u16(), status, "{body}: {answer}");
    }
    assert_eq!(
        fixture
            .send(
                Method::PUT,
                "/v1/parameters/router_temperature",
                &json!({"schema": {}})
            )
            .await
            .0,
        422
    );
    assert_eq!(
        fixture
            .send(Method::PUT, "/v1/parameters/a%20b", &json!({"schema": {}}))
            .await
            .0,
        422
    );
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &change).await.0,
        200
    );
    let (_, view) = fixture.get("/v1/parameters").await;
    assert_eq!(view["revision"], json!(1));
    assert_eq!(view["built_in"].as_array().unwrap().len(), 11);
}
