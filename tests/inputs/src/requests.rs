//! Bodies of writes, through the real routes of a service: refused in its own words, or done; never a fault of the service.

use axum::body::Body;
use axum::http::{Method, Request};

use crate::serving::{ask, policy_id};

const ROUTES: [(&str, &str); 11] = [
    ("PATCH", "/router_policy"),
    ("POST", "/router_policy/busy_threshold"),
    ("POST", "/v1/changes"),
    ("POST", "/busy_threshold"),
    ("POST", "/v1/policies:validate"),
    ("PATCH", "/v1/policies/POLICY"),
    ("POST", "/v1/policies/POLICY/revert"),
    ("PUT", "/v1/parameters/custom"),
    ("POST", "/v1/status"),
    ("PATCH", "/router_policy?wait=converged&timeout_ms=0"),
    ("POST", "/v1/changes?wait=converged&timeout_ms=0"),
];

/// The first byte says which route (`0`, `1`, …), the second which headers; then the body.
pub(crate) fn check(input: &[u8]) {
    let [route, headers, body @ ..] = input else {
        return;
    };
    let (method, path) = ROUTES[usize::from(route.wrapping_sub(b'0')) % ROUTES.len()];
    let path = path.replace("POLICY", &policy_id());
    let method: Method = method.parse().expect("a method");
    let mut request = Request::builder().method(method).uri(path);
    request = match headers.wrapping_sub(b'0') % 8 {
        1 => request.header("content-type", "application/merge-patch+json"),
        2 => request.header("content-type", "text/plain"),
        _ => request.header("content-type", "application/json; charset=utf-8"),
    };
    request = match headers.wrapping_sub(b'0') % 8 {
        3 => request.header("if-match", "\"1\""),
        4 => request.header("if-match", "*"),
        5 => request.header("if-match", "\"2"),
        6 => request.header("idempotency-key", "again"),
        _ => request,
    };
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    ask(request);
}
