//! The table itself. Status and order of checks follow Dynamo 1.7's frontends, where a frontend has the route.

use reqwest::Method;
use serde_json::json;

use super::{Case, Target};

/// Every case.
#[must_use]
pub fn cases(target: &Target) -> Vec<Case> {
    let mut all = Vec::new();
    syntax(target, &mut all);
    shapes(target, &mut all);
    values(target, &mut all);
    revisions(target, &mut all);
    scopes(target, &mut all);
    envelopes(target, &mut all);
    thresholds(&mut all);
    changes(target, &mut all);
    paths(&mut all);
    all
}

const JSON: &str = "application/json";

fn case(
    name: impl Into<String>,
    method: Method,
    path: &str,
    body: impl Into<Vec<u8>>,
    status: u16,
    code: &'static str,
) -> Case {
    let body = body.into();
    Case {
        name: name.into(),
        method,
        path: path.to_owned(),
        headers: vec![("content-type", JSON.to_owned())],
        body: Some(body),
        status,
        code,
    }
}

fn patch(
    name: impl Into<String>,
    body: impl Into<Vec<u8>>,
    status: u16,
    code: &'static str,
) -> Case {
    case(name, Method::PATCH, "/router_policy", body, status, code)
}

/// A PATCH whose `parameters` is exactly this text.
fn with(target: &Target, parameters: &str) -> String {
    format!(
        r#"{{"router_id":"{}","expected_revision":{},"parameters":{parameters}}}"#,
        target.id, target.revision
    )
}

fn syntax(target: &Target, all: &mut Vec<Case>) {
    let good = with(target, r#"{"router_temperature":0.5}"#);
    let malformed: [(&str, Vec<u8>); 14] = [
        ("empty body", Vec::new()),
        ("not JSON", b"temperature=0.5".to_vec()),
        ("cut off", good.as_bytes()[..good.len() - 2].to_vec()),
        ("trailing bytes", format!("{good} x").into_bytes()),
        ("two documents", format!("{good}{good}").into_bytes()),
        (
            "byte order mark",
            [b"\xef\xbb\xbf", good.as_bytes()].concat(),
        ),
        (
            "NaN",
            with(target, r#"{"router_temperature":NaN}"#).into_bytes(),
        ),
        (
            "Infinity",
            with(target, r#"{"router_temperature":Infinity}"#).into_bytes(),
        ),
        (
            "1e400",
            with(target, r#"{"router_temperature":1e400}"#).into_bytes(),
        ),
        (
            "-1e400",
            with(target, r#"{"router_temperature":-1e400}"#).into_bytes(),
        ),
        (
            "a leading plus",
            with(target, r#"{"router_temperature":+1}"#).into_bytes(),
        ),
        (
            "a leading zero",
            with(target, r#"{"router_temperature":01}"#).into_bytes(),
        ),
        (
            "trailing comma",
            with(target, r#"{"router_temperature":1,}"#).into_bytes(),
        ),
        (
            "invalid UTF-8",
            [b"{\"router_id\":\"\xff\xfe\",\"expected_revision\":0}".as_slice()].concat(),
        ),
    ];
    for (name, body) in malformed {
        all.push(patch(name, body, 400, "malformed_body"));
    }
    let deep = format!("{}{}", "[".repeat(3_000), "]".repeat(3_000));
    let nested = with(target, &format!(r#"{{"router_temperature":{deep}}}"#));
    all.push(patch(
        "3,000 nested arrays in a value",
        nested,
        400,
        "malformed_body",
    ));
    all.push(patch("3,000 nested arrays", deep, 422, "malformed_body"));
}

fn shapes(target: &Target, all: &mut Vec<Case>) {
    let (id, revision) = (&target.id, target.revision);
    for (name, body) in [
        ("an array", json!([])),
        (
            "positional array",
            json!([id, revision, {"router_temperature": 0.5}]),
        ),
        ("a number", json!(5)),
        ("null", json!(null)),
        (
            "no expected_revision",
            json!({"router_id": id, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "null expected_revision",
            json!({"router_id": id, "expected_revision": null, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "negative revision",
            json!({"router_id": id, "expected_revision": -1, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "fractional revision",
            json!({"router_id": id, "expected_revision": 2.5, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "revision as text",
            json!({"router_id": id, "expected_revision": "2", "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "bad router_id",
            json!({"router_id": "router-1", "expected_revision": revision, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "router_id null",
            json!({"router_id": null, "expected_revision": revision, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "unknown field",
            json!({"router_id": id, "expected_revision": revision, "parameters": {"router_temperature": 0.5}, "dry_run": true}),
        ),
        (
            "an actor in the body",
            json!({"router_id": id, "expected_revision": revision, "parameters": {"router_temperature": 0.5}, "actor": "root"}),
        ),
        (
            "parameters as list",
            json!({"router_id": id, "expected_revision": revision, "parameters": [["router_temperature", 0.5]]}),
        ),
        (
            "reset as text",
            json!({"router_id": id, "expected_revision": revision, "reset": "true"}),
        ),
        (
            "a reason of 3,000 bytes",
            json!({"router_id": id, "expected_revision": revision, "reset": true, "reason": "x".repeat(3_000)}),
        ),
        (
            "a reason with a NUL",
            json!({"router_id": id, "expected_revision": revision, "reset": true, "reason": "a\u{0}b"}),
        ),
    ] {
        all.push(patch(name, body.to_string(), 422, "malformed_body"));
    }
    for (name, body) in [
        (
            "no parameters",
            json!({"router_id": id, "expected_revision": revision}),
        ),
        (
            "empty parameters",
            json!({"router_id": id, "expected_revision": revision, "parameters": {}}),
        ),
        (
            "parameters null",
            json!({"router_id": id, "expected_revision": revision, "parameters": null}),
        ),
        (
            "reset false alone",
            json!({"router_id": id, "expected_revision": revision, "reset": false}),
        ),
        (
            "reset with parameters",
            json!({"router_id": id, "expected_revision": revision, "reset": true, "parameters": {"router_temperature": 0.5}}),
        ),
        (
            "reset with empty parameters",
            json!({"router_id": id, "expected_revision": revision, "reset": true, "parameters": {}}),
        ),
    ] {
        all.push(patch(name, body.to_string(), 400, "empty_change"));
    }
}

fn values(target: &Target, all: &mut Vec<Case>) {
    for (name, parameters) in [
        ("a negative weight", r#"{"prefill_load_scale":-1}"#),
        (
            "the smallest negative number",
            r#"{"prefill_load_scale":-5e-324}"#,
        ),
        (
            "1e308, which fails requests",
            r#"{"decode_active_request_weight":1e308}"#,
        ),
        ("a denormal temperature", r#"{"router_temperature":1e-308}"#),
        (
            "a host weight that startup refuses",
            r#"{"host_cache_hit_weight":1.5}"#,
        ),
        (
            "a shared weight that startup refuses",
            r#"{"shared_cache_multiplier":2}"#,
        ),
        ("a number as text", r#"{"router_temperature":"0.5"}"#),
        ("a boolean", r#"{"router_temperature":true}"#),
        ("a list", r#"{"router_temperature":[0.5]}"#),
        ("an object", r#"{"router_temperature":{"value":0.5}}"#),
        (
            "one bad value among good ones",
            r#"{"router_temperature":0.5,"prefill_load_scale":-1}"#,
        ),
    ] {
        all.push(patch(name, with(target, parameters), 422, "invalid_value"));
    }
    for (name, parameters) in [
        ("unknown parameter", r#"{"temperature":0.5}"#),
        ("parameter in another case", r#"{"Router_Temperature":0.5}"#),
        ("empty parameter name", r#"{"":0.5}"#),
        (
            "a threshold among weights",
            r#"{"active_decode_blocks_threshold":0.5}"#,
        ),
        ("unknown parameter removed", r#"{"temperature":null}"#),
        (
            "a name with a homoglyph",
            r#"{"router_temper\u0430ture":0.5}"#,
        ),
    ] {
        all.push(patch(
            name,
            with(target, parameters),
            422,
            "unknown_parameter",
        ));
    }
    let twice = r#"{"router_temperature":0.5,"router_temperature":0.7}"#;
    all.push(patch(
        "duplicate parameter",
        with(target, twice),
        422,
        "malformed_body",
    ));
    let twice = format!(
        r#"{{"router_id":"{0}","router_id":"{0}","expected_revision":{1},"reset":true}}"#,
        target.id, target.revision
    );
    all.push(patch("duplicate field", twice, 422, "malformed_body"));
}

fn revisions(target: &Target, all: &mut Vec<Case>) {
    for (name, revision) in [
        ("stale", target.revision - 1),
        ("revision 0", 0),
        ("future", target.revision + 1),
        ("the largest revision", u64::MAX),
    ] {
        let body = json!({"router_id": target.id, "expected_revision": revision, "parameters": {"router_temperature": 0.5}});
        all.push(patch(name, body.to_string(), 409, "stale_revision"));
    }
    let body = json!({"router_id": target.id, "expected_revision": target.revision - 1, "parameters": {"nonsense": -1}});
    all.push(patch(
        "stale and bad: stale is said",
        body.to_string(),
        409,
        "stale_revision",
    ));
    let body = format!(
        r#"{{"router_id":"{}","expected_revision":18446744073709551616,"reset":true}}"#,
        target.id
    );
    all.push(patch(
        "revision beyond 64 bits",
        body,
        422,
        "malformed_body",
    ));
    let body = json!({"router_id": "11111111-2222-5333-8444-555555555555", "expected_revision": 0, "parameters": {"nonsense": -1}});
    all.push(patch("unknown router", body.to_string(), 404, "not_found"));
}

fn scopes(target: &Target, all: &mut Vec<Case>) {
    let scoped = |scope: serde_json::Value| {
        json!({"scope": scope, "expected_revision": 0, "parameters": {"router_temperature": 0.5}})
            .to_string()
    };
    for (name, scope) in [
        ("unknown part of a scope", json!({"models": "m"})),
        ("empty model", json!({"model": ""})),
        ("model with a newline", json!({"model": "a\nb"})),
        ("model with a NUL", json!({"model": "a\u{0}"})),
        ("model of 513 bytes", json!({"model": "m".repeat(513)})),
        ("unknown worker type", json!({"worker_type": "encoder"})),
        (
            "endpoint with two parts",
            json!({"endpoint": "dynamo/backend"}),
        ),
        (
            "endpoint with dots",
            json!({"endpoint": "dynamo.backend.generate"}),
        ),
        ("scope as text", json!("model=m")),
        ("scope null", json!(null)),
    ] {
        all.push(patch(name, scoped(scope), 422, "malformed_body"));
    }
    let body = json!({"router_id": target.id, "scope": {"model": "m"}, "expected_revision": 0, "reset": true});
    all.push(patch(
        "router_id and scope",
        body.to_string(),
        422,
        "malformed_body",
    ));
    let body = json!({"expected_revision": 0, "reset": true});
    all.push(patch(
        "neither router_id nor scope",
        body.to_string(),
        422,
        "malformed_body",
    ));
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
    all.push(patch("1 MiB body", padded(1 << 20), 413, "body_too_large"));
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
    let get = |name: &str, path: &str, status, code| Case {
        name: name.to_owned(),
        method: Method::GET,
        path: path.to_owned(),
        headers: Vec::new(),
        body: None,
        status,
        code,
    };
    all.push(get(
        "unknown query key",
        "/router_policy?models=m",
        400,
        "bad_query",
    ));
    all.push(get(
        "repeated query key",
        "/router_policy?model=a&model=b",
        400,
        "bad_query",
    ));
    all.push(get(
        "a cursor of nobody's",
        "/v1/audit?cursor=%00%ff",
        400,
        "bad_query",
    ));
    all.push(get("a limit of -1", "/v1/audit?limit=-1", 400, "bad_query"));
    all.push(get(
        "events after -1",
        "/v1/events?after=-1&format=ndjson",
        400,
        "bad_query",
    ));
    all.push(get("unknown route", "/v2/policies", 404, "route_not_found"));
    all.push(get(
        "trailing slash",
        "/router_policy/",
        404,
        "route_not_found",
    ));
    all.push(get(
        "double slash",
        "//router_policy",
        404,
        "route_not_found",
    ));
    all.push(get(
        "another case",
        "/ROUTER_POLICY",
        404,
        "route_not_found",
    ));
    all.push(get(
        "an encoded letter",
        "/%72outer_policy",
        404,
        "route_not_found",
    ));
    all.push(case(
        "DELETE",
        Method::DELETE,
        "/router_policy",
        "",
        405,
        "method_not_allowed",
    ));
    all.push(case(
        "PUT",
        Method::PUT,
        "/router_policy",
        "{}",
        405,
        "method_not_allowed",
    ));
}
