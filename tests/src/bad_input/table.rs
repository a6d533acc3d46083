//! The table: bodies of `PATCH /router_policy`. Status and order of checks follow Dynamo 1.7's frontends.

use reqwest::Method;
use serde_json::json;

use super::{Case, Target};

/// Every case.
#[must_use]
pub fn cases(target: &Target) -> Vec<Case> {
    let mut all = Vec::new();
    syntax(target, &mut all);
    shapes(target, &mut all);
    empty_changes(target, &mut all);
    values(target, &mut all);
    revisions(target, &mut all);
    scopes(target, &mut all);
    super::routes::add(target, &mut all);
    all
}

const JSON: &str = "application/json";

pub(super) fn case(
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

pub(super) fn patch(
    name: impl Into<String>,
    body: impl Into<Vec<u8>>,
    status: u16,
    code: &'static str,
) -> Case {
    case(name, Method::PATCH, "/router_policy", body, status, code)
}

/// A PATCH whose `parameters` is exactly this text.
pub(super) fn with(target: &Target, parameters: &str) -> String {
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
}

fn empty_changes(target: &Target, all: &mut Vec<Case>) {
    let (id, revision) = (&target.id, target.revision);
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
