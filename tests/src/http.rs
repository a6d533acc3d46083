//! A small HTTP client whose failures are values and whose answers are JSON where they can be.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Method};
use serde_json::Value;

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body as text.
    pub text: String,
    /// Body as JSON; `null` when it is none.
    pub json: Value,
}

impl Answer {
    /// The answer, if it has this status.
    ///
    /// # Panics
    /// With the whole answer, if it has another.
    #[must_use]
    #[track_caller]
    pub fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "answer: {}", self.text);
        self
    }

    /// The problem's code, or nothing.
    #[must_use]
    pub fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }
}

/// One server.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client,
    base: String,
}

impl Http {
    /// A server at a base URL, asked with this time limit per request, each over a connection of its own: what one request
    /// does to its connection (a refused body ends it) is not the next one's problem.
    #[must_use]
    pub fn new(base: impl Into<String>, limit: Duration) -> Http {
        Http::with_idle(base, limit, 0)
    }

    /// The same with connections that are kept, for measuring.
    #[must_use]
    pub fn kept(base: impl Into<String>, limit: Duration) -> Http {
        Http::with_idle(base, limit, 4)
    }

    fn with_idle(base: impl Into<String>, limit: Duration, idle: usize) -> Http {
        let client = Client::builder()
            .timeout(limit)
            .pool_max_idle_per_host(idle)
            .no_proxy()
            .build()
            .expect("an HTTP client");
        Http {
            client,
            base: base.into(),
        }
    }

    /// Its base URL.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// One request.
    ///
    /// # Errors
    /// The reason why there was no (whole) answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Vec<u8>>,
    ) -> Result<Answer, String> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(|error| chain(&error))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response.text().await.map_err(|error| chain(&error))?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer {
            status,
            headers,
            text,
            json,
        })
    }

    /// GET.
    ///
    /// # Errors
    /// As [`Http::send`].
    pub async fn get(&self, path: &str) -> Result<Answer, String> {
        self.send(Method::GET, path, &[], None).await
    }

    /// PATCH with a JSON body.
    ///
    /// # Errors
    /// As [`Http::send`].
    pub async fn patch(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.json(Method::PATCH, path, body).await
    }

    /// POST with a JSON body.
    ///
    /// # Errors
    /// As [`Http::send`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.json(Method::POST, path, body).await
    }

    async fn json(&self, method: Method, path: &str, body: &Value) -> Result<Answer, String> {
        let headers = [("content-type", "application/json")];
        self.send(method, path, &headers, Some(body.to_string().into_bytes()))
            .await
    }
}

/// Percent-encodes one query value.
#[must_use]
pub fn query_value(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
