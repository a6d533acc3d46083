//! Reading bodies, strictly.
//!
//! Owns: content type, time, size, syntax, types and strictness of JSON bodies, in this order, with a frontend's statuses
//! and words: 415, 408 (a frontend waits for ever), 413, 400 (syntax), 422 (types).
//!
//! Stricter than a Dynamo frontend on purpose, because each of these hides a mistake:
//!
//! | body | a frontend | here |
//! |---|---|---|
//! | bytes after the JSON value | ignores them | 400 |
//! | the same key twice, also inside `parameters` | takes the last one (422 at the top) | 422 |
//! | an array where an object belongs (fields by position) | takes it | 422 |
//! | unknown fields in `/busy_threshold` | ignores them | 422 |
//! | `/busy_threshold` over 16 KiB | takes up to 2 MiB | 413 |

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt as _;
use schemas::api::{
    ChangesRequest, ErrorCode, ParameterRequest, PatchRequest, PolicyPatchRequest, RevertRequest,
    ThresholdRequest,
};
use schemas::status::AgentStatus;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::App;
use super::problem::Problem;

/// The largest body of a write, in bytes (a frontend's limit for `/router_policy`).
pub const BODY_BYTES_MAX: usize = 16_384;
/// The largest report of an agent, in bytes: about 2,000 routers.
pub const STATUS_BYTES_MAX: usize = 1 << 20;

/// A request body.
pub trait JsonBody: DeserializeOwned {
    /// Where objects belong: paths of field names, `*` for every item of a list.
    const OBJECTS: &'static [&'static [&'static str]];
    /// The largest body, in bytes.
    const BYTES_MAX: usize = BODY_BYTES_MAX;
}

impl JsonBody for PatchRequest {
    const OBJECTS: &'static [&'static [&'static str]] = &[&[], &["scope"]];
}
impl JsonBody for ThresholdRequest {
    const OBJECTS: &'static [&'static [&'static str]] = &[&[]];
}
impl JsonBody for ChangesRequest {
    const OBJECTS: &'static [&'static [&'static str]] =
        &[&[], &["changes", "*"], &["changes", "*", "scope"]];
}
impl JsonBody for PolicyPatchRequest {
    const OBJECTS: &'static [&'static [&'static str]] = &[&[]];
}
impl JsonBody for RevertRequest {
    const OBJECTS: &'static [&'static [&'static str]] = &[&[]];
}
impl JsonBody for ParameterRequest {
    const OBJECTS: &'static [&'static [&'static str]] = &[&[]];
}
impl JsonBody for AgentStatus {
    const OBJECTS: &'static [&'static [&'static str]] = &[&[]];
    const BYTES_MAX: usize = STATUS_BYTES_MAX;
}

/// A strictly read JSON body.
#[derive(Debug)]
pub struct Strict<T>(pub T);

impl<T: JsonBody> FromRequest<App> for Strict<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_content_type(&parts.headers)?;
        let patience = app.config.body_read_timeout;
        let Ok(bytes) = tokio::time::timeout(patience, read(body, T::BYTES_MAX)).await else {
            app.metrics.limit("bodies");
            return Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                ErrorCode::Timeout,
                format!("the request body took longer than {patience:?}"),
            ));
        };
        parse(&bytes?).map(Strict)
    }
}

fn check_content_type(headers: &HeaderMap) -> Result<(), Problem> {
    let json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|essence| essence.trim().to_ascii_lowercase())
        .is_some_and(|essence| {
            essence.strip_prefix("application/").is_some_and(|subtype| {
                subtype == "json" || (subtype.len() > 5 && subtype.ends_with("+json"))
            })
        });
    if json {
        Ok(())
    } else {
        Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorCode::UnsupportedMediaType,
            "Expected request with `Content-Type: application/json`",
        ))
    }
}

async fn read(mut body: Body, bytes_max: usize) -> Result<bytes::Bytes, Problem> {
    let mut read = bytes::BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|_| malformed(StatusCode::BAD_REQUEST, "Failed to buffer the request body"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if read.len() + data.len() > bytes_max {
            discard(body).await;
            return Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                ErrorCode::BodyTooLarge,
                format!(
                    "Failed to buffer the request body: length limit exceeded ({bytes_max} bytes)"
                ),
            ));
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// Bound: bytes and time for what follows after the limit.
const DISCARDED_MAX: usize = 2 << 20;
const DISCARD_PATIENCE: Duration = Duration::from_secs(2);

/// Reads on, so that a client that still sends gets to read its answer and not a connection that broke off
/// (`bodies_end_at_16_kib`).
async fn discard(mut body: Body) {
    let rest = async {
        let mut left = DISCARDED_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, bytes::Bytes::len);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // What takes longer is broken off.
    let _ = tokio::time::timeout(DISCARD_PATIENCE, rest).await;
}

fn malformed(status: StatusCode, error: impl Into<String>) -> Problem {
    Problem::new(status, ErrorCode::MalformedBody, error)
}

/// Reads a body of type `T`.
///
/// # Errors
/// 400 for syntax, 422 for types, both naming the field.
pub fn parse<T: JsonBody>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let typed: T = serde_path_to_error::deserialize(&mut reader).map_err(|why| explain(&why))?;
    reader.end().map_err(|why| syntax(&why.to_string(), None))?;
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let Unique(value) =
        serde_path_to_error::deserialize(&mut reader).map_err(|why| explain(&why))?;
    for path in T::OBJECTS {
        if let Some(at) = not_an_object(&value, path, String::new()) {
            let named = if at.is_empty() {
                "the body".to_owned()
            } else {
                at.clone()
            };
            let text = format!("{TYPES}: {named}: invalid type: sequence, expected an object");
            let problem = malformed(StatusCode::UNPROCESSABLE_ENTITY, text);
            return Err(if at.is_empty() {
                problem
            } else {
                problem.field(at)
            });
        }
    }
    Ok(typed)
}

const SYNTAX: &str = "Failed to parse the request body as JSON";
const TYPES: &str = "Failed to deserialize the JSON body into the target type";

fn explain(why: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    let path = why.path().to_string();
    let field = (!matches!(path.as_str(), "" | "." | "?")).then_some(path);
    match why.inner().classify() {
        serde_json::error::Category::Data => {
            let text = match &field {
                Some(field) => format!("{TYPES}: {field}: {}", why.inner()),
                None => format!("{TYPES}: {}", why.inner()),
            };
            let problem = malformed(StatusCode::UNPROCESSABLE_ENTITY, text);
            match field {
                Some(field) => problem.field(field),
                None => problem,
            }
        }
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => syntax(&why.inner().to_string(), field),
    }
}

fn syntax(why: &str, field: Option<String>) -> Problem {
    match field {
        Some(field) => {
            malformed(StatusCode::BAD_REQUEST, format!("{SYNTAX}: {field}: {why}")).field(field)
        }
        None => malformed(StatusCode::BAD_REQUEST, format!("{SYNTAX}: {why}")),
    }
}

fn not_an_object(value: &Value, path: &[&str], at: String) -> Option<String> {
    match path.split_first() {
        None => (!value.is_object() && !value.is_null()).then_some(at),
        Some((&"*", rest)) => value
            .as_array()?
            .iter()
            .enumerate()
            .find_map(|(n, item)| not_an_object(item, rest, format!("{at}[{n}]"))),
        Some((field, rest)) => {
            let dot = if at.is_empty() { "" } else { "." };
            not_an_object(value.get(*field)?, rest, format!("{at}{dot}{field}"))
        }
    }
}

/// Any JSON, in which no object has a key twice.
struct Unique(Value);

impl<'de> serde::Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated keys")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(all.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if all.contains_key(&key) {
                let why = format_args!("duplicate field `{key}`").to_string();
                return Err(serde::de::Error::custom(why));
            }
            let Unique(value) = fields.next_value()?;
            all.insert(key, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_read_strictly_and_faults_name_the_field() {
        // (body, status, field)
        let cases: &[(&[u8], u16, Option<&str>)] = &[
            (br#"{"changes":[{"kind":"worker_selection","scope":{},"reset":true}]}"#, 200, None),
            (br#"{"changes":[{"kind":"worker_selection","scope":[null,null,null,null],"reset":true}]}"#, 422, Some("changes[0].scope")),
            (br#"{"changes":[["worker_selection",{}]]}"#, 422, Some("changes[0]")),
            (br#"[null,false,[]]"#, 422, None),
            (br#"{"changes":[{"kind":"worker_selection","scope":{},"parameters":{"a":{"x":1,"x":2}}}]}"#, 422, Some("changes[0].parameters.a")),
            (br#"{"changes":[{"kind":"worker_selection","scope":{},"parameters":{"a":1,"a":2}}]}"#, 422, Some("changes[0].parameters")),
            (br#"{"changes":[],"changes":[]}"#, 422, None),
            (br#"{"changes":[]} x"#, 400, None),
            (br#"{"changes":[]}{}"#, 400, None),
            (br#"{"changes":[{"kind":"worker_selection","scope":{},"parameters":{"a":1e999}}]}"#, 400, Some("changes[0].parameters.a")),
            (b"{\"changes\":[]}\n \t", 200, None),
            (b"\xef\xbb\xbf{\"changes\":[]}", 400, None),
            (b"{\"reason\":\"\xff\",\"changes\":[]}", 400, Some("reason")),
            (br#"{"changes":[],"surprise":1}"#, 422, Some("surprise")),
            (b"", 400, None),
        ];
        for (body, status, field) in cases {
            let shown = String::from_utf8_lossy(body);
            match parse::<ChangesRequest>(body) {
                Ok(_) => assert_eq!(*status, 200, "{shown}"),
                Err(problem) => {
                    assert_eq!(problem.status.as_u16(), *status, "{shown}: {problem:?}");
                    assert_eq!(
                        problem.body.field.as_deref(),
                        *field,
                        "{shown}: {problem:?}"
                    );
                }
            }
        }
    }
}
