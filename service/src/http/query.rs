//! Reading query strings and headers, strictly: unknown and repeated keys are refused.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use event_log::ambient;
use schemas::api::WriteOutcome;
use schemas::{CommandId, Position, Revision};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use uuid::Uuid;

use super::problem::Problem;

/// A query string of type `T`.
#[derive(Debug)]
pub struct StrictQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for StrictQuery<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(StrictQuery(query)),
            Err(why) => Err(Problem::bad_query(why.body_text())),
        }
    }
}

/// The one variable segment of a path.
#[derive(Debug)]
pub struct Segment(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(segment)) => Ok(Segment(segment)),
            // Percent-encoded bytes that are no UTF-8: refused in the same shape as everything else.
            Err(why) => Err(Problem::bad_query(why.body_text())),
        }
    }
}

/// No query at all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// What a writer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// The change is in the log (the default).
    Committed,
    /// The fleet has it.
    Converged,
}

/// `?wait=converged&timeout_ms=`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    wait: Option<WaitFor>,
    timeout_ms: Option<u64>,
}

/// Default and longest wait for convergence, in milliseconds.
const WAIT_DEFAULT_MS: u64 = 10_000;
const WAIT_MAX_MS: u64 = 60_000;

impl WaitQuery {
    /// How long to wait for convergence; `None` = not at all.
    ///
    /// # Errors
    /// 400 for more than 60,000 ms.
    pub fn patience(self) -> Result<Option<Duration>, Problem> {
        let ms = self.timeout_ms.unwrap_or(WAIT_DEFAULT_MS);
        if ms > WAIT_MAX_MS {
            let text = format!("timeout_ms must be at most {WAIT_MAX_MS}, got {ms}");
            return Err(Problem::bad_query(text).field("timeout_ms"));
        }
        Ok(match self.wait {
            Some(WaitFor::Converged) => Some(Duration::from_millis(ms)),
            Some(WaitFor::Committed) | None => None,
        })
    }
}

/// Which command a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The command.
    pub command_id: CommandId,
    /// True when the client named it: it may have been tried before, through another replica or before a restart.
    pub supplied: bool,
}

impl Key {
    /// What is known of the command when nothing of this attempt is in the log, and the log cannot be asked. A key that the
    /// client named may have been tried elsewhere, and that attempt's record may be there.
    #[must_use]
    pub fn not_applied(self) -> WriteOutcome {
        if self.supplied {
            WriteOutcome::Unknown
        } else {
            WriteOutcome::NotApplied
        }
    }
}

/// The command of a write: `Idempotency-Key` when given (a UUID as it is, other text by hash), else a new one.
///
/// # Errors
/// 400 for a key that is empty, longer than 256 bytes, repeated, or not visible ASCII.
pub fn command_key(headers: &HeaderMap) -> Result<Key, Problem> {
    const HEADER: &str = "idempotency-key";
    let bad =
        |why: &str| Problem::bad_query(format!("Idempotency-Key {why}")).field("Idempotency-Key");
    let mut keys = headers.get_all(HEADER).iter();
    let Some(key) = keys.next() else {
        return Ok(Key {
            command_id: CommandId(ambient::new_id()),
            supplied: false,
        });
    };
    if keys.next().is_some() {
        return Err(bad("is given twice"));
    }
    let key = key
        .to_str()
        .map_err(|_| bad("must be visible ASCII"))?
        .trim();
    if key.is_empty() || key.len() > 256 {
        return Err(bad("must be 1 to 256 characters"));
    }
    let id = Uuid::parse_str(key).unwrap_or_else(|_| Uuid::new_v5(&KEY_NAMESPACE, key.as_bytes()));
    Ok(Key {
        command_id: CommandId(id),
        supplied: true,
    })
}

/// Namespace of idempotency keys that are no UUIDs (a UUID made once for this purpose).
const KEY_NAMESPACE: Uuid = Uuid::from_u128(0x5f1d_7c1e_93b4_5a0f_8f0e_2a64_0c7b_e1d3);

/// The revision of `If-Match`; `None` when absent or `*`.
///
/// # Errors
/// 400 for anything but `*` or one `"revision"`.
pub fn if_match(headers: &HeaderMap) -> Result<Option<Revision>, Problem> {
    let bad = || {
        Problem::bad_query("If-Match must be * or one revision in double quotes").field("If-Match")
    };
    let mut values = headers.get_all("if-match").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(bad());
    }
    let text = value.to_str().map_err(|_| bad())?.trim();
    if text == "*" {
        return Ok(None);
    }
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .map(|revision| Some(Revision(revision)))
        .ok_or_else(bad)
}

/// A position as a client writes it: decimal digits.
///
/// # Errors
/// 400 naming the field.
pub fn position(field: &str, text: &str) -> Result<Position, Problem> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|_| digits)
        .map(Position)
        .ok_or_else(|| {
            Problem::bad_query(format!(
                "{field} must be a position (a whole number from 0), got {text:?}"
            ))
            .field(field)
        })
}
