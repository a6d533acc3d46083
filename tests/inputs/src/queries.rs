//! Query strings, path segments, cursors and `Last-Event-ID`, through the real routes of a service.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderValue, Request, Uri};

use crate::serving::{ask, policy_id};

const ROUTES: [&str; 16] = [
    "/v1/events",
    "/v1/audit",
    "/v1/policies/POLICY/history",
    "/v1/policies/POLICY/at",
    "/v1/policies/POLICY/diff",
    "/v1/policies",
    "/v1/effective",
    "/v1/convergence",
    "/v1/log/at",
    "/v1/log/next",
    "/router_policy",
    "/busy_threshold",
    "/v1/policies/SEGMENT",
    "/v1/parameters",
    "/SEGMENT",
    "/v1/log/head",
];

/// The first byte says which route, the second how the answer is asked for; then the query, and on further lines
/// `Last-Event-ID` and a path segment.
pub(crate) fn check(input: &[u8]) {
    let [route, accept, rest @ ..] = input else {
        return;
    };
    let mut lines = rest.splitn(3, |byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (query, last, segment) = (next(), next(), next());
    let path = ROUTES[usize::from(route.wrapping_sub(b'0')) % ROUTES.len()]
        .replace("POLICY", &policy_id())
        .replace("SEGMENT", &escape(segment));
    let uri = format!("{path}?{}", escape(query));
    let Ok(uri) = uri.parse::<Uri>() else {
        return;
    };
    let mut request = Request::get(uri);
    if !last.is_empty()
        && let Ok(value) = HeaderValue::from_bytes(last)
    {
        request = request.header("last-event-id", value);
    }
    request = match accept.wrapping_sub(b'0') % 4 {
        1 => request.header("accept", "text/event-stream"),
        2 => request.header("accept", "application/x-ndjson"),
        3 => request.header("accept", "text/csv, */*;q=0.1"),
        _ => request,
    };
    ask(request.body(Body::empty()).expect("a request"));
}

/// What a URI cannot hold is written with percent signs; a percent sign stays what it is.
fn escape(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        if byte.is_ascii_graphic() && !b"#?\"<>\\^`{|}".contains(byte) {
            out.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
