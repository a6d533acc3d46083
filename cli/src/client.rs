//! The service's HTTP API as calls. Answers come as JSON (for `--json`) and are read into `schemas::api` types for tables.

use std::time::Duration;

use reqwest::{Method, Url};
use schemas::api::ErrorBody;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::{Attempt, Problem, leaves_open, settle_fresh};

/// Bound: the longest `?wait=converged` (60 s), and some time for the way.
const ANSWER_LIMIT: Duration = Duration::from_secs(75);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// One service.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
}

/// Query parameters; absent ones are left out.
pub(crate) type Query<'a> = &'a [(&'a str, Option<String>)];

impl Client {
    pub(crate) fn new(service: &str) -> Result<Client, Problem> {
        let bad = |why: String| Problem::Usage(format!("--service {service:?} {why}"));
        let base = Url::parse(service).map_err(|error| bad(error.to_string()))?;
        if base.cannot_be_a_base() || !matches!(base.scheme(), "http" | "https") {
            return Err(bad("must be http://HOST:PORT".to_owned()));
        }
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .build()
            .map_err(|error| Problem::Failed(format!("no HTTP client: {}", chain(&error))))?;
        Ok(Client { http, base })
    }

    fn url(&self, path: &[&str], query: Query<'_>) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        url
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &[&str], query: Query<'_>) -> Result<Value, Problem> {
        let request = self.http.get(self.url(path, query)).timeout(ANSWER_LIMIT);
        let response = request.send().await.map_err(|error| self.away(&error))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| self.away(&error))?;
        self.judge(status, &body)
    }

    /// Writes under a key. What became of a write that was not answered is never guessed.
    pub(crate) async fn write(
        &self,
        method: Method,
        path: &[&str],
        query: Query<'_>,
        attempt: Attempt,
        body: &(impl Serialize + Sync),
    ) -> Result<Value, Problem> {
        let request = self
            .http
            .request(method, self.url(path, query))
            .header("idempotency-key", attempt.key.to_string())
            .timeout(ANSWER_LIMIT)
            .json(body);
        let unknown = |error: &reqwest::Error| Problem::Unknown {
            attempt,
            why: format!("no answer: {}", chain(error)),
        };
        let response = request.send().await.map_err(|error| {
            if error.is_connect() {
                self.away(&error)
            } else {
                unknown(&error)
            }
        })?;
        let status = response.status();
        let body = response.bytes().await.map_err(|error| unknown(&error))?;
        let mut judged = self.judge(status, &body);
        if attempt.fresh {
            judged = judged.map_err(settle_fresh);
        }
        if let Err(problem) = &judged
            && leaves_open(status.as_u16(), problem)
        {
            return Err(Problem::Unknown {
                attempt,
                why: problem.to_string(),
            });
        }
        judged
    }

    /// A stream of lines that has no end.
    pub(crate) async fn lines(
        &self,
        path: &[&str],
        query: Query<'_>,
    ) -> Result<reqwest::Response, Problem> {
        let request = self.http.get(self.url(path, query));
        let response = request.send().await.map_err(|error| self.away(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await.map_err(|error| self.away(&error))?;
        match self.judge(status, &body) {
            Ok(_) => Err(Problem::Failed(format!("unexpected status {status}"))),
            Err(problem) => Err(problem),
        }
    }

    fn judge(&self, status: reqwest::StatusCode, body: &[u8]) -> Result<Value, Problem> {
        if status.is_success() {
            return serde_json::from_slice(body).map_err(|error| {
                Problem::Failed(format!("{} answered no JSON: {error}", self.base))
            });
        }
        match serde_json::from_slice::<ErrorBody>(body) {
            Ok(body) => Err(Problem::Answered(Box::new(body))),
            Err(_) => Err(Problem::Failed(format!(
                "{} answered {status}: {}",
                self.base,
                String::from_utf8_lossy(&body[..body.len().min(300)])
            ))),
        }
    }

    fn away(&self, error: &reqwest::Error) -> Problem {
        Problem::Unreachable {
            service: self.base.to_string(),
            why: chain(error),
        }
    }
}

/// An answer as the type that the API says it is.
pub(crate) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, Problem> {
    T::deserialize(answer).map_err(|error| {
        Problem::Failed(format!(
            "the answer is not what this version expects ({error}); use the same version as the service, or --json"
        ))
    })
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
