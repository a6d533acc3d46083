//! The façade answers as a Dynamo 1.7 frontend does; its inputs are those that were recorded from one.

use reqwest::{Method, StatusCode};
use schemas::Position;
use schemas::status::ApplyState;
use serde_json::{Value, json};

use crate::support::{Fixture, agent, answer, defaults, fleet_id, with_router};

const JSON: &str = "application/json";

/// Sends a body as it is.
async fn raw(
    fixture: &Fixture,
    method: Method,
    path: &str,
    content_type: Option<&str>,
    body: impl Into<reqwest::Body>,
) -> (StatusCode, Value) {
    let mut request = fixture.request(method, path).body(body);
    if let Some(kind) = content_type {
        request = request.header("content-type", kind);
    }
    answer(request).await
}

/// `ID` stands for the router's id; the policy has revision 3.
/// Where the status differs from a frontend's on purpose, the frontend's is in the comment.
#[rustfmt::skip]
const PATCHES: &[(&str, &str, u16, &str, &str)] = &[
    // content type, body, status, code, start of the text
    (JSON, r#"{"router_id":"ID","expected_revision":3,"configuration":{"parameters":{"router_temperature":0.5}}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: configuration: unknown field"),
    (JSON, "", 400, "malformed_body", "Failed to parse the request body as JSON: EOF while parsing a value"),
    (JSON, "{bad", 400, "malformed_body", "Failed to parse the request body as JSON: key must be a string"),
    (JSON, r#"{"router_id":"x",}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: router_id: UUID parsing failed"),
    (JSON, "null", 422, "malformed_body", "Failed to deserialize the JSON body into the target type: invalid type: null"),
    (JSON, r#""x""#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: invalid type: string"),
    (JSON, "{}", 422, "malformed_body", "Failed to deserialize the JSON body into the target type: missing field"),
    // A frontend: 200.
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":0.1}} x"#, 400, "malformed_body", "Failed to parse the request body as JSON: trailing characters"),
    (JSON, r#"{"router_id":"ID","router_id":"ID","expected_revision":3,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: duplicate field `router_id`"),
    // A frontend takes the last one.
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":0.1,"router_temperature":0.2}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: parameters: duplicate field"),
    // A frontend takes fields by position.
    (JSON, r#"["ID",3,{"router_temperature":0.1}]"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type"),
    ("text/plain", "{}", 415, "unsupported_media_type", "Expected request with `Content-Type: application/json`"),
    ("application/x-www-form-urlencoded", "a=b", 415, "unsupported_media_type", "Expected request"),
    ("", "{}", 415, "unsupported_media_type", "Expected request"),
    ("application/merge-patch+json", r#"{"router_id":"ID","expected_revision":3,"parameters":{}}"#, 400, "empty_change", "provide either nonempty parameters or reset: true"),
    ("application/json; charset=utf-8", "{}", 422, "malformed_body", "Failed to deserialize"),
    (JSON, "\u{feff}{}", 400, "malformed_body", "Failed to parse the request body as JSON: expected value"),
    (JSON, r#"{"expected_revision":3,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: missing field `router_id`"),
    (JSON, r#"{"router_id":"00000000-0000-4000-8000-000000000000","expected_revision":3,"parameters":{"router_temperature":0.1}}"#, 404, "not_found", "router instance not found"),
    (JSON, r#"{"router_id":"zzz","expected_revision":3,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: router_id: UUID parsing failed"),
    (JSON, r#"{"router_id":null,"expected_revision":3,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: router_id"),
    (JSON, r#"{"router_id":"","expected_revision":3,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: router_id: UUID parsing failed"),
    (JSON, r#"{"router_id":"ID","parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: missing field `expected_revision`"),
    (JSON, r#"{"router_id":"ID","expected_revision":null,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: expected_revision: invalid type: null"),
    (JSON, r#"{"router_id":"ID","expected_revision":2,"parameters":{"router_temperature":0.1}}"#, 409, "stale_revision", "policy revision conflict: expected 2, current 3"),
    (JSON, r#"{"router_id":"ID","expected_revision":8,"parameters":{"router_temperature":0.1}}"#, 409, "stale_revision", "policy revision conflict: expected 8, current 3"),
    (JSON, r#"{"router_id":"ID","expected_revision":18446744073709551615,"parameters":{"router_temperature":0.1}}"#, 409, "stale_revision", "policy revision conflict: expected 18446744073709551615, current 3"),
    (JSON, r#"{"router_id":"ID","expected_revision":2,"reset":true}"#, 409, "stale_revision", "policy revision conflict: expected 2, current 3"),
    (JSON, r#"{"router_id":"ID","expected_revision":2,"parameters":{"nope":1}}"#, 409, "stale_revision", "policy revision conflict"),
    (JSON, r#"{"router_id":"ID","expected_revision":2,"parameters":{"no pe":1}}"#, 409, "stale_revision", "policy revision conflict"),
    (JSON, r#"{"router_id":"ID","expected_revision":-1,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: expected_revision: invalid value: integer `-1`"),
    (JSON, r#"{"router_id":"ID","expected_revision":3.0,"parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: expected_revision: invalid type: floating point"),
    (JSON, r#"{"router_id":"ID","expected_revision":"3","parameters":{"router_temperature":0.1}}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: expected_revision: invalid type: string"),
    (JSON, r#"{"router_id":"ID","expected_revision":3}"#, 400, "empty_change", "provide either nonempty parameters or reset: true"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":null}"#, 400, "empty_change", "provide either nonempty parameters or reset: true"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"reset":false}"#, 400, "empty_change", "provide either nonempty parameters or reset: true"),
    (JSON, r#"{"router_id":"00000000-0000-4000-8000-000000000000","expected_revision":3,"parameters":{}}"#, 400, "empty_change", "provide either"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"reset":null}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: reset: invalid type: null"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"reset":"true"}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: reset: invalid type: string"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"reset":1}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: reset: invalid type: integer"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"reset":true,"parameters":{}}"#, 400, "empty_change", "provide either"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"reset":true,"parameters":{"router_temperature":1}}"#, 400, "empty_change", "provide either"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":[1]}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: parameters: invalid type: sequence, expected a map"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":"x"}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: parameters: invalid type: string"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_queue_threshold":1}}"#, 422, "unknown_parameter", "invalid policy parameters: unknown parameter \"router_queue_threshold\""),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"":1}}"#, 422, "unknown_parameter", "invalid policy parameters: unknown parameter"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":0.1},"foo":1}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: foo: unknown field"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"overlap_score_credit":"0.5"}}"#, 422, "invalid_value", "invalid policy parameters: overlap_score_credit"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"overlap_score_credit":true}}"#, 422, "invalid_value", "invalid policy parameters: overlap_score_credit"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"overlap_score_credit":[1]}}"#, 422, "invalid_value", "invalid policy parameters: overlap_score_credit"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"overlap_score_credit":{}}}"#, 422, "invalid_value", "invalid policy parameters: overlap_score_credit"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":-0.1}}"#, 422, "invalid_value", "invalid policy parameters: router_temperature"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":NaN}}"#, 400, "malformed_body", "Failed to parse the request body as JSON: parameters.router_temperature: expected value"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":Infinity}}"#, 400, "malformed_body", "Failed to parse the request body as JSON: parameters.router_temperature: expected value"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":1e999}}"#, 400, "malformed_body", "Failed to parse the request body as JSON: parameters.router_temperature: number out of range"),
    // A frontend takes the next three, and then fails requests or its next startup.
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":1e308}}"#, 422, "invalid_value", "invalid policy parameters: router_temperature"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"decode_active_request_weight":1e308}}"#, 422, "invalid_value", "invalid policy parameters: decode_active_request_weight"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"host_cache_hit_weight":50}}"#, 422, "invalid_value", "invalid policy parameters: host_cache_hit_weight"),
    (JSON, r#"{"router_id":"ID","expected_revision":3,"parameters":{"router_temperature":0.5,"host_cache_hit_weight":50}}"#, 422, "invalid_value", "invalid policy parameters"),
    // Our own additions.
    (JSON, r#"{"router_id":"ID","scope":{},"expected_revision":3,"reset":true}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: give either"),
    (JSON, r#"{"scope":[null,null,null,null],"expected_revision":0,"reset":true}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: scope: invalid type: sequence"),
    (JSON, r#"{"scope":{"model":""},"expected_revision":0,"reset":true}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: scope.model"),
    (JSON, r#"{"scope":{"modle":"x"},"expected_revision":0,"reset":true}"#, 422, "malformed_body", "Failed to deserialize the JSON body into the target type: scope.modle: unknown field"),
    (JSON, "{\"router_id\":\"ID\",\"expected_revision\":3,\"reset\":true,\"reason\":\"\\u0000\"}", 422, "malformed_body", "Failed to deserialize the JSON body into the target type: reason"),
];

#[tokio::test(flavor = "multi_thread")]
async fn refused_patches_are_refused_as_by_a_frontend_and_change_nothing() {
    let fixture = with_router().await;
    let id = fleet_id("mock-model").to_string();
    for revision in 0..3 {
        let body = json!({"router_id": id, "expected_revision": revision, "parameters": {"router_temperature": 0.2}});
        let (status, answer) = fixture.send(Method::PATCH, "/router_policy", &body).await;
        assert_eq!(status, 200, "{answer}");
    }
    let before = fixture.running().digest();
    for (kind, body, status, code, text) in PATCHES {
        let kind = (!kind.is_empty()).then_some(*kind);
        let sent = body.replace("ID", &id);
        let (got, answer) = raw(&fixture, Method::PATCH, "/router_policy", kind, sent).await;
        assert_eq!(got.as_u16(), *status, "{body}: {answer}");
        assert_eq!(answer["code"], json!(code), "{body}: {answer}");
        let error = answer["error"].as_str().unwrap();
        assert!(error.starts_with(text), "{body}: {error}");
    }
    // A frontend ignores it; a misspelled `wait` must not pass for one.
    let body = json!({"router_id": id, "expected_revision": 3, "reset": true});
    let (status, answer) = fixture
        .send(Method::PATCH, "/router_policy?model=x", &body)
        .await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (400, &json!("bad_query"))
    );
    let invalid = b"{\"router_id\":\"\xff\xfe\"}".to_vec();
    let (status, answer) = raw(
        &fixture,
        Method::PATCH,
        "/router_policy",
        Some(JSON),
        invalid,
    )
    .await;
    assert_eq!(
        (status.as_u16(), &answer["field"]),
        (400, &json!("router_id"))
    );
    assert_eq!(
        fixture.running().digest(),
        before,
        "nothing may have changed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_end_at_16_kib() {
    let fixture = with_router().await;
    let body = json!({"router_id": fleet_id("mock-model"), "expected_revision": 0, "reset": true})
        .to_string();
    let padded = |length: usize| format!("{body}{}", " ".repeat(length - body.len()));
    for (length, status) in [(16_384, 200), (16_385, 413), (1 << 20, 413)] {
        let sent = padded(length);
        let (got, answer) = raw(&fixture, Method::PATCH, "/router_policy", Some(JSON), sent).await;
        assert_eq!(got.as_u16(), status, "{length}: {answer}");
        if status == 413 {
            assert_eq!(answer["code"], json!("body_too_large"));
            let text = answer["error"].as_str().unwrap();
            assert!(
                text.starts_with("Failed to buffer the request body"),
                "{text}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_shows_like_one_on_a_frontend() {
    let fixture = with_router().await;
    let id = fleet_id("mock-model");
    let patch = |revision: u64, rest: Value| {
        let mut body = json!({"router_id": id, "expected_revision": revision});
        body.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        body
    };
    let (_, list) = fixture.get("/router_policy").await;
    let entry = &list["routers"][0];
    assert_eq!(entry["router_id"], json!(id));
    assert_eq!(
        entry["configuration"],
        json!({"revision": 0, "parameters": defaults()})
    );
    for (field, value) in [
        ("model", "mock-model"),
        ("namespace", "dynamo"),
        ("component", "backend"),
        ("endpoint", "generate"),
        ("worker_type", "aggregated"),
    ] {
        assert_eq!(entry[field], json!(value));
    }
    assert_eq!(entry["replicas"][0]["agent"], json!("a"));

    let steps = [
        (
            json!({"parameters": {"router_temperature": 0.5}}),
            json!(0.5),
        ),
        (
            json!({"reset": false, "parameters": {"router_temperature": 2}}),
            json!(2.0),
        ),
        (json!({"parameters": {"router_temperature": 2}}), json!(2.0)),
        (
            json!({"parameters": {"router_temperature": -0.0}}),
            json!(0.0),
        ),
        (
            json!({"parameters": {"router_temperature": 0.7}}),
            json!(0.7),
        ),
        (
            json!({"parameters": {"router_temperature": null}}),
            json!(0.0),
        ),
        (
            json!({"parameters": {"router_temperature": 0.7}}),
            json!(0.7),
        ),
        (json!({"reset": true}), json!(0.0)),
        (json!({"reset": true}), json!(0.0)),
    ];
    for (n, (rest, temperature)) in steps.into_iter().enumerate() {
        let (status, answer) = fixture
            .send(
                Method::PATCH,
                "/router_policy",
                &patch(n as u64, rest.clone()),
            )
            .await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["configuration"]["revision"], json!(n + 1), "{rest}");
        let parameters = &answer["configuration"]["parameters"];
        assert_eq!(parameters["router_temperature"], temperature, "{rest}");
        assert_eq!(parameters["host_cache_hit_weight"], json!(0.75));
        assert!(answer["position"].is_u64() && answer["command_id"].is_string());
        let (_, list) = fixture.get("/router_policy?model=mock-model").await;
        assert_eq!(list["routers"][0]["configuration"], answer["configuration"]);
    }
    let spelled = id.0.simple().to_string();
    let body = json!({"router_id": spelled, "expected_revision": 9, "reset": true});
    let (status, _) = fixture.send(Method::PATCH, "/router_policy", &body).await;
    assert_eq!(status, 200, "an id without hyphens is the same id");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_without_runtime_configuration_is_null_and_cannot_be_patched() {
    let fixture = Fixture::new().await;
    let mut status = agent("a", 1, Position::START, ApplyState::Unsupported);
    status.frontends[0].routers[0].local_revision = None;
    fixture.report(status).await;
    let (_, list) = fixture.get("/router_policy").await;
    assert_eq!(list["routers"][0]["configuration"], Value::Null);
    let body = json!({"router_id": fleet_id("mock-model"), "expected_revision": 0, "parameters": {"router_temperature": 1}});
    let (status, answer) = fixture.send(Method::PATCH, "/router_policy", &body).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (422, &json!("not_configurable"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_can_be_patched_without_live_routers_and_keeps_its_id() {
    let fixture = Fixture::new().await;
    let scope = json!({"model": "later", "worker_type": "decode", "endpoint": "n/c/e"});
    let body = json!({"scope": scope, "expected_revision": 0, "parameters": {"router_temperature": 0.5}, "reason": "early"});
    let (status, answer) = fixture.send(Method::PATCH, "/router_policy", &body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["namespace"], json!("n"));
    let body = json!({"router_id": answer["router_id"], "expected_revision": 1, "reset": true});
    let (status, answer) = fixture.send(Method::PATCH, "/router_policy", &body).await;
    assert_eq!(status, 200, "{answer}");
    let body = json!({"scope": {"model": "later"}, "expected_revision": 0, "parameters": {"router_temperature": 0.5}});
    let (_, answer) = fixture.send(Method::PATCH, "/router_policy", &body).await;
    assert_eq!(
        (&answer["model"], &answer["namespace"]),
        (&json!("later"), &Value::Null)
    );
    let (_, list) = fixture.get("/router_policy").await;
    assert_eq!(list, json!({"routers": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_take_the_queries_that_a_frontend_takes() {
    let fixture = with_router().await;
    // (query, status, entries)
    for (query, status, entries) in [
        ("", 200, 1),
        ("?", 200, 1),
        ("?model=mock-model", 200, 1),
        ("?model=Mock-model", 200, 0),
        ("?model=nope", 200, 0),
        ("?model=", 200, 0),
        ("?model", 200, 0),
        ("?model=%ff", 200, 0),
        ("?model=mock+model", 200, 0),
        ("?foo=bar", 400, 0),
        ("?model=mock-model&model=x", 400, 0),
    ] {
        let (got, answer) = fixture.get(&format!("/router_policy{query}")).await;
        assert_eq!(got.as_u16(), status, "{query}");
        if status == 200 {
            assert_eq!(
                answer["routers"].as_array().unwrap().len(),
                entries,
                "{query}"
            );
        } else {
            let text = answer["error"].as_str().unwrap();
            assert!(
                text.starts_with("Failed to deserialize query string"),
                "{text}"
            );
        }
    }
}

/// Body, status, then either the code of the error or the three thresholds.
#[tokio::test(flavor = "multi_thread")]
async fn thresholds_answer_as_on_a_frontend() {
    let fixture = with_router().await;
    let cases = [
        (r#"{"model":"mock-model"}"#, 200, json!([null, null, null])),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":0.8}"#,
            200,
            json!([0.8, null, null]),
        ),
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold":1000}"#,
            200,
            json!([0.8, 1000, null]),
        ),
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold_frac":1.5}"#,
            200,
            json!([0.8, 1000, 1.5]),
        ),
        (r#"{"model":"mock-model"}"#, 200, json!([0.8, 1000, 1.5])),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":null}"#,
            200,
            json!([0.8, 1000, 1.5]),
        ),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":0,"active_prefill_tokens_threshold":0}"#,
            200,
            json!([0.0, 0, 1.5]),
        ),
        (r#"{"model":"nope"}"#, 200, json!([null, null, null])),
        (r#"{"model":""}"#, 200, json!([null, null, null])),
        (
            r#"{"model":"nope","active_decode_blocks_threshold":0.5}"#,
            404,
            json!("not_found"),
        ),
        (
            r#"{"model":"","active_decode_blocks_threshold":0.5}"#,
            404,
            json!("not_found"),
        ),
        (
            r#"{"active_decode_blocks_threshold":0.5}"#,
            422,
            json!("malformed_body"),
        ),
        (r#"{"model":5}"#, 422, json!("malformed_body")),
        (r#"{"model":null}"#, 422, json!("malformed_body")),
        // A frontend ignores it.
        (
            r#"{"model":"mock-model","foo":1}"#,
            422,
            json!("malformed_body"),
        ),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":-0.1}"#,
            400,
            json!("invalid_value"),
        ),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":1.0001}"#,
            400,
            json!("invalid_value"),
        ),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":1e999}"#,
            400,
            json!("malformed_body"),
        ),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":"0.5"}"#,
            422,
            json!("malformed_body"),
        ),
        (
            r#"{"model":"mock-model","active_decode_blocks_threshold":true}"#,
            422,
            json!("malformed_body"),
        ),
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold":-1}"#,
            422,
            json!("malformed_body"),
        ),
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold":1e3}"#,
            422,
            json!("malformed_body"),
        ),
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold":18446744073709551616}"#,
            422,
            json!("malformed_body"),
        ),
        // A frontend takes it, and no JSON reader in between keeps it.
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold":18446744073709551615}"#,
            400,
            json!("invalid_value"),
        ),
        (
            r#"{"model":"mock-model","active_prefill_tokens_threshold_frac":-0.1}"#,
            400,
            json!("invalid_value"),
        ),
        ("", 400, json!("malformed_body")),
        ("{}", 422, json!("malformed_body")),
        ("[]", 422, json!("malformed_body")),
        (
            r#"{"model":"mock-model","model":"x"}"#,
            422,
            json!("malformed_body"),
        ),
        // A frontend ignores them.
        (r#"{"model":"mock-model"} x"#, 400, json!("malformed_body")),
        (r#"{"model":"mock-model"}"#, 200, json!([0.0, 0, 1.5])),
    ];
    let shown = |answer: &Value| {
        json!([
            answer["active_decode_blocks_threshold"],
            answer["active_prefill_tokens_threshold"],
            answer["active_prefill_tokens_threshold_frac"],
        ])
    };
    let paths = ["/busy_threshold", "/router_policy/busy_threshold"];
    for (n, (body, status, wanted)) in cases.into_iter().enumerate() {
        let (got, answer) = raw(&fixture, Method::POST, paths[n % 2], Some(JSON), body).await;
        assert_eq!(got.as_u16(), status, "{body}: {answer}");
        if status == 200 {
            assert_eq!(shown(&answer), wanted, "{body}");
        } else {
            assert_eq!(answer["code"], wanted, "{body}: {answer}");
        }
    }
    for path in paths {
        let (_, list) = fixture.get(&format!("{path}?model=ignored")).await;
        assert_eq!(list["thresholds"].as_array().unwrap().len(), 1, "{list}");
        assert_eq!(shown(&list["thresholds"][0]), json!([0.0, 0, 1.5]));
    }
    let body = json!({"model": "mock-model", "active_decode_blocks_threshold": 0.5});
    for (tag, status) in [
        ("\"3\"", 412),
        ("\"4\"", 200),
        ("\"4\"", 412),
        ("4", 400),
        ("*", 200),
    ] {
        let sent = fixture.send_with(Method::POST, "/busy_threshold", ("if-match", tag), &body);
        assert_eq!(sent.await.0.as_u16(), status, "{tag}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_facade_can_be_switched_off() {
    let fixture = Fixture::with(|config| config.facade_disabled = true).await;
    for path in [
        "/router_policy",
        "/router_policy/busy_threshold",
        "/busy_threshold",
    ] {
        let (status, answer) = fixture.get(path).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (404, &json!("route_not_found")),
            "{path}"
        );
    }
    let (_, document) = fixture.get("/openapi.json").await;
    assert!(document["paths"].get("/router_policy").is_none());
    assert!(document["paths"].get("/v1/policies").is_some());
}
