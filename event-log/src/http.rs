//! A log read through a service (`/v1/log/…`, `/v1/events`), for agents without NATS. Reading and reporting only.
//!
//! Trusts the service for order and completeness within one answer; checks identity, head and each record's hash itself.

mod line;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use reqwest::StatusCode;
use schemas::status::AgentStatus;
use schemas::{LogId, Position, Subject};
use serde::Deserialize;
use tokio::sync::watch;

use crate::connect::redact;
use crate::follow::{self, Facts, OpenFeed, Source};
use crate::options::Options;
use crate::port::{
    Entry, Failure, Foreign, Head, LogReader, Reports, Seen, StatusBoard, Subscription, Tails,
};

use line::{Line, Lines, entry};

/// The longest line of an event stream, in bytes: a record of 1 MiB in base64 with what surrounds it.
pub const LINE_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Bound: the largest answer that is not a stream (tails of some 100,000 policies).
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The service sends an empty line every 5 s; three missing ones mean that the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A log behind a service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HttpLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    url: String,
    client: reqwest::Client,
    options: Options,
    /// There is no link to come and go; held so that watchers see no end.
    link: watch::Sender<bool>,
}

#[derive(Deserialize)]
struct HeadAnswer {
    log_id: LogId,
    position: Position,
}

#[derive(Deserialize)]
struct TailsAnswer<'a> {
    log_id: LogId,
    position: Position,
    #[serde(borrow)]
    entries: Vec<Line<'a>>,
}

#[derive(Deserialize, Default)]
struct Problem {
    #[serde(default)]
    error: String,
    #[serde(default)]
    code: String,
    #[serde(default)]
    log_id: Option<LogId>,
    #[serde(default)]
    position: Option<Position>,
}

impl HttpLog {
    /// For a service at `url`. Does not connect.
    ///
    /// # Errors
    /// In words, when no HTTP client can be made with these options.
    pub fn new(url: &str, options: Options) -> Result<HttpLog, String> {
        let mut headers = reqwest::header::HeaderMap::new();
        if let Some(token) = &options.token {
            let mut value = reqwest::header::HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| "the token has characters that no header may have".to_owned())?;
            value.set_sensitive(true);
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        let client = reqwest::Client::builder()
            .default_headers(headers)
            .connect_timeout(options.call_timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|why| why.to_string())?;
        Ok(HttpLog {
            inner: Arc::new(Inner {
                url: url.trim_end_matches('/').to_owned(),
                client,
                options,
                link: watch::Sender::new(true),
            }),
        })
    }
}

impl Inner {
    fn away(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Determinate(format!("the service at {}: {why}", redact(&self.url)))
    }

    fn lost(&self, why: &reqwest::Error) -> Failure {
        // The innermost cause says what happened; the URL is in the message already.
        let mut cause: &dyn std::error::Error = why;
        while let Some(next) = cause.source() {
            cause = next;
        }
        self.away(&cause)
    }

    fn place(&self, path: &str, query: &[(&str, String)]) -> Result<reqwest::Url, Failure> {
        let place = format!("{}{path}", self.url);
        let parsed = if query.is_empty() {
            reqwest::Url::parse(&place)
        } else {
            reqwest::Url::parse_with_params(&place, query)
        };
        parsed.map_err(|why| self.away(&why))
    }

    /// `None` for "no such record".
    async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Option<Bytes>, Failure> {
        let request = self.client.get(self.place(path, query)?);
        let whole = async {
            let answer = request.send().await.map_err(|why| self.lost(&why))?;
            let status = answer.status();
            let body = whole(answer, ANSWER_BYTES_MAX)
                .await
                .map_err(|why| self.away(&why))?;
            Ok::<_, Failure>((status, body))
        };
        let (status, body) = tokio::time::timeout(
            self.options.call_timeout.max(Duration::from_secs(10)),
            whole,
        )
        .await
        .map_err(|_| self.away(&"no answer in time"))??;
        if status.is_success() {
            return Ok(Some(body));
        }
        let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
        if status == StatusCode::NOT_FOUND && problem.code == "no_record" {
            return Ok(None);
        }
        Err(self.refused(status, &problem))
    }

    fn refused(&self, status: StatusCode, problem: &Problem) -> Failure {
        self.away(&format_args!("{status} {} {}", problem.code, problem.error))
    }

    fn parse<'a, T: Deserialize<'a>>(&self, body: &'a [u8]) -> Result<T, Failure> {
        serde_json::from_slice(body)
            .map_err(|why| self.away(&format_args!("answered nonsense: {why}")))
    }

    async fn head(&self) -> Result<Head, Failure> {
        let body = self.get("/v1/log/head", &[]).await?;
        let head: HeadAnswer = self.parse(&body.unwrap_or_default())?;
        self.options
            .identity
            .meet(head.log_id)
            .map_err(Failure::Foreign)?;
        Ok(Head {
            log_id: head.log_id,
            position: head.position,
        })
    }

    async fn one(&self, path: &str, query: &[(&str, String)]) -> Result<Option<Entry>, Failure> {
        match self.get(path, query).await? {
            Some(body) => self.entry(&body).map(Some),
            // "Nothing" counts only when it is the log that is meant that has nothing.
            None => self.head().await.map(|_| None),
        }
    }

    fn entry(&self, line: &[u8]) -> Result<Entry, Failure> {
        entry(&self.parse(line)?).map_err(|why| self.away(&why))
    }
}

/// What a follower reads from an event stream that comes in these pieces and then ends: records, `None` for heartbeats, and
/// last the failure, if there is one.
#[cfg(feature = "testing")]
pub async fn read_stream(pieces: Vec<Bytes>) -> Vec<Result<Option<Entry>, Failure>> {
    use crate::follow::{Arrival, Feed as _};
    let pieces = futures::stream::iter(pieces.into_iter().map(Ok));
    let mut lines = Lines::new("here".to_owned(), pieces.boxed());
    let mut read = Vec::new();
    while let Some(arrival) = lines.arrival().await {
        let over = arrival.is_err();
        read.push(arrival.map(|arrival| match arrival {
            Arrival::Record { entry, .. } => Some(entry),
            Arrival::Heartbeat { .. } | Arrival::Other => None,
        }));
        if over {
            break;
        }
    }
    read
}

async fn whole(answer: reqwest::Response, bound: usize) -> Result<Bytes, String> {
    let mut body = BytesMut::new();
    let mut chunks = answer.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|why| why.to_string())?;
        if body.len() + chunk.len() > bound {
            return Err(format!("answered more than {bound} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

#[async_trait]
impl Source for Inner {
    async fn open(&self, log_id: LogId, after: Position) -> Result<OpenFeed, Failure> {
        let head = self.head().await?;
        let query = [
            ("after", after.to_string()),
            ("format", "ndjson".to_owned()),
            ("log_id", log_id.to_string()),
        ];
        let request = self.client.get(self.place("/v1/events", &query)?);
        let answer = tokio::time::timeout(SILENCE_MAX, request.send())
            .await
            .map_err(|_| self.away(&"no answer in time"))?
            .map_err(|why| self.lost(&why))?;
        let status = answer.status();
        if !status.is_success() {
            let body = tokio::time::timeout(SILENCE_MAX, whole(answer, LINE_BYTES_MAX)).await;
            let body = body.ok().and_then(Result::ok).unwrap_or_default();
            let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
            return Err(
                if status == StatusCode::CONFLICT && problem.code == "foreign_log" {
                    Failure::Foreign(foreign(log_id, after, &problem, head))
                } else {
                    self.refused(status, &problem)
                },
            );
        }
        Ok(OpenFeed {
            left: head.position.0.saturating_sub(after.0).min(1),
            facts: facts(head),
            feed: Box::new(Lines::new(redact(&self.url), answer.bytes_stream().boxed())),
        })
    }

    async fn record(&self, position: Position) -> Result<Option<Entry>, Failure> {
        let query = [("position", position.to_string())];
        self.one("/v1/log/at", &query).await
    }

    async fn look(&self) -> Result<Facts, Failure> {
        self.head().await.map(facts)
    }

    fn link(&self) -> watch::Receiver<bool> {
        self.link.subscribe()
    }

    fn options(&self) -> &Options {
        &self.options
    }
}

fn facts(head: Head) -> Facts {
    Facts {
        log_id: head.log_id,
        last: head.position,
        made: String::new(),
    }
}

fn foreign(known: LogId, after: Position, problem: &Problem, head: Head) -> Foreign {
    let actual = problem.log_id.unwrap_or(head.log_id);
    if actual == known {
        Foreign::Behind {
            known: after,
            actual: problem.position.unwrap_or(head.position),
        }
    } else {
        Foreign::OtherIdentity { known, actual }
    }
}

#[async_trait]
impl LogReader for HttpLog {
    async fn head(&self) -> Result<Head, Failure> {
        self.inner.head().await
    }

    async fn tails(&self) -> Result<Tails, Failure> {
        let body = self
            .inner
            .get("/v1/log/tails", &[])
            .await?
            .unwrap_or_default();
        let answer: TailsAnswer<'_> = self.inner.parse(&body)?;
        self.inner
            .options
            .identity
            .meet(answer.log_id)
            .map_err(Failure::Foreign)?;
        let entries: Result<Vec<Entry>, String> = answer.entries.iter().map(entry).collect();
        Ok(Tails {
            entries: entries.map_err(|why| self.inner.away(&why))?,
            up_to: Head {
                log_id: answer.log_id,
                position: answer.position,
            },
        })
    }

    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure> {
        let query = [
            ("subject", subject.to_string()),
            ("after", after.to_string()),
        ];
        self.inner.one("/v1/log/next", &query).await
    }

    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        let query = [("position", position.to_string())];
        self.inner.one("/v1/log/at", &query).await
    }

    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure> {
        follow::follow(self.inner.clone(), seen).await
    }
}

#[async_trait]
impl StatusBoard for HttpLog {
    async fn report(&self, status: &AgentStatus) -> Result<(), Failure> {
        let request = self
            .inner
            .client
            .post(format!("{}/v1/status", self.inner.url))
            .json(status);
        let answer = tokio::time::timeout(self.inner.options.call_timeout, request.send())
            .await
            .map_err(|_| {
                Failure::Indeterminate(format!(
                    "the service at {}: no answer in time",
                    redact(&self.inner.url)
                ))
            })?
            .map_err(|why| self.inner.lost(&why))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let body = whole(answer, LINE_BYTES_MAX).await.unwrap_or_default();
        Err(self
            .inner
            .refused(status, &serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn watch(&self) -> Result<Box<dyn Reports>, Failure> {
        Err(Failure::Determinate(
            "agents' reports cannot be watched through a service; ask its /v1/convergence"
                .to_owned(),
        ))
    }
}
