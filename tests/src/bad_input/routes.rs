//! The table, continued: headers and sizes, and every other route.

use reqwest::Method;
use serde_json::json;

use super::table::{case, patch, with};
use super::{Case, Target};

/// Every case of these.
pub(super) fn add(target: &Target, all: &mut Vec<Case>) {
    envelopes(target, all);
    thresholds(all);
    changes(target, all);
    paths(all);
}

fn envelopes(target: &Target, all: &mut Vec<Case>) {
    let good = with(target, r#"{"router_temperature":0.5}"#);
    let padded = |bytes: usize| format!("{good}{}", " ".repeat(bytes - good.len()));
    all.push(patch(
        "17 KiB body",
        padded(17 * 1_024),
        413,
        "body_too_large",
    ));
    all.push(patch(
        "one byte over 16 KiB",
        padded(16 * 1_024 + 1),
        413,
        "body_too_large",
    ));
    all.push(patch(
        "64 KiB body",
        padded(64 << 10),
        413,
        "body_too_large",
    ));
    for (name, kind) in [
        ("content type text/plain", "text/plain"),
        ("content type form", "application/x-www-form-urlencoded"),
        ("content type nonsense", "json"),
    ] {
        let mut one = patch(name, good.clone(), 415, "unsupported_media_type");
        one.headers = vec![("content-type", kind.to_owned())];
        all.push(one);
    }
    let mut one = patch(
        "no content type",
        good.clone(),
        415,
        "unsupported_media_type",
    );
    one.headers = Vec::new();
    all.push(one);
    let mut one = patch(
        "an idempotency key that was used for another request",
        good.clone(),
        422,
        "idempotency_key_reused",
    );
    one.headers
        .push(("idempotency-key", target.used_key.clone()));
    all.push(one);
    let mut one = case(
        "If-Match of another revision",
        Method::PATCH,
        &format!("/v1/policies/{}", target.id),
        json!({"parameters": {"router_temperature": 0.5}}).to_string(),
        412,
        "precondition_failed",
    );
    one.headers
        .push(("if-match", format!("\"{}\"", target.revision + 7)));
    all.push(one);
}

fn thresholds(all: &mut Vec<Case>) {
    let post = |name: &str, body: serde_json::Value, status, code| {
        case(
            name,
            Method::POST,
            "/busy_threshold",
            body.to_string(),
            status,
            code,
        )
    };
    all.push(post(
        "threshold above 1",
        json!({"model": "mock-model", "active_decode_blocks_threshold": 1.5}),
        400,
        "invalid_value",
    ));
    all.push(post(
        "negative threshold",
        json!({"model": "mock-model", "active_decode_blocks_threshold": -0.1}),
        400,
        "invalid_value",
    ));
    all.push(post(
        "fractional tokens",
        json!({"model": "mock-model", "active_prefill_tokens_threshold": 1.5}),
        422,
        "malformed_body",
    ));
    all.push(post(
        "negative tokens",
        json!({"model": "mock-model", "active_prefill_tokens_threshold": -1}),
        422,
        "malformed_body",
    ));
    all.push(post(
        "threshold as text",
        json!({"model": "mock-model", "active_decode_blocks_threshold": "0.5"}),
        422,
        "malformed_body",
    ));
    all.push(post(
        "threshold without a model",
        json!({"active_decode_blocks_threshold": 0.5}),
        422,
        "malformed_body",
    ));
    all.push(post(
        "threshold of an unknown model",
        json!({"model": "nobody serves this", "active_decode_blocks_threshold": 0.5}),
        404,
        "not_found",
    ));
    all.push(post(
        "unknown threshold",
        json!({"model": "mock-model", "busy": 0.5}),
        422,
        "malformed_body",
    ));
}

fn changes(target: &Target, all: &mut Vec<Case>) {
    let post = |name: &str, body: serde_json::Value, status, code| {
        case(
            name,
            Method::POST,
            "/v1/changes",
            body.to_string(),
            status,
            code,
        )
    };
    let one = json!({"kind": "worker_selection", "scope": {"model": "m"}, "parameters": {"router_temperature": 0.5}});
    all.push(post(
        "no changes",
        json!({"changes": []}),
        422,
        "invalid_set",
    ));
    all.push(post("65 changes", json!({"changes": (0..65).map(|n| json!({"kind": "worker_selection", "scope": {"model": format!("m{n}")}, "reset": true})).collect::<Vec<_>>()}), 422, "invalid_set"));
    all.push(post(
        "one policy twice",
        json!({"changes": [one, one]}),
        422,
        "invalid_set",
    ));
    all.push(post(
        "unknown kind",
        json!({"changes": [{"kind": "router", "scope": {}, "reset": true}]}),
        422,
        "malformed_body",
    ));
    all.push(post("a threshold of an endpoint", json!({"changes": [{"kind": "busy_threshold", "scope": {"endpoint": "a/b/c"}, "parameters": {"active_decode_blocks_threshold": 0.5}}]}), 422, "invalid_scope"));
    all.push(post("a good change beside a bad one", json!({"changes": [one, {"kind": "worker_selection", "scope": {"model": "n"}, "parameters": {"router_temperature": -1}}]}), 422, "invalid_value"));
    let positional = json!([null, false, [["worker_selection", {"model": "m"}, null, null, true]]]);
    all.push(post("positional arrays", positional, 422, "malformed_body"));
    let revert = format!("/v1/policies/{}/revert", target.id);
    all.push(case(
        "revert to a revision that is not there",
        Method::POST,
        &revert,
        r#"{"to_revision":99}"#,
        404,
        "no_such_revision",
    ));
    all.push(case(
        "a schema that is none",
        Method::PUT,
        "/v1/parameters/my_weight",
        r#"{"schema":{"type":"numbre"}}"#,
        422,
        "invalid_schema",
    ));
}

fn paths(all: &mut Vec<Case>) {
    for (name, path, status, code) in [
        (
            "unknown query key",
            "/router_policy?models=m",
            400,
            "bad_query",
        ),
        (
            "repeated query key",
            "/router_policy?model=a&model=b",
            400,
            "bad_query",
        ),
        (
            "a cursor of nobody's",
            "/v1/audit?cursor=%00%ff",
            400,
            "bad_query",
        ),
        ("a limit of -1", "/v1/audit?limit=-1", 400, "bad_query"),
        (
            "events after -1",
            "/v1/events?after=-1&format=ndjson",
            400,
            "bad_query",
        ),
        ("unknown route", "/v2/policies", 404, "route_not_found"),
        ("trailing slash", "/router_policy/", 404, "route_not_found"),
        ("double slash", "//router_policy", 404, "route_not_found"),
        ("another case", "/ROUTER_POLICY", 404, "route_not_found"),
        (
            "an encoded letter",
            "/%72outer_policy",
            404,
            "route_not_found",
        ),
    ] {
        let mut one = case(name, Method::GET, path, "", status, code);
        (one.headers, one.body) = (Vec::new(), None);
        all.push(one);
    }
    let of = |method: Method, body: &str| {
        case(
            method.to_string(),
            method,
            "/router_policy",
            body,
            405,
            "method_not_allowed",
        )
    };
    all.push(of(Method::DELETE, ""));
    all.push(of(Method::PUT, "{}"));
}
