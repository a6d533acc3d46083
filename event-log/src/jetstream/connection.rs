//! The connection to the broker: made when first needed, kept by the client, and asked through one door.
//!
//! Owns: connecting, waiting for the link, requests to the JetStream API with retry while a cluster elects.
//! Never does: interpret what a request was for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::client::{Request, RequestErrorKind};
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, HeaderMap};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use super::codes;
use super::login::login;
use crate::connect::redact;
use crate::nats_config::{self, UserKey};
use crate::options::Options;

/// Why a request got no useful answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nothing was sent: the broker is not connected, or the request itself is impossible.
    NotSent(String),
    /// Somebody took the request away from the client, and no answer came in time.
    Silent(String),
    /// The broker said that nobody is there to answer: nothing was taken.
    Nobody,
    /// The broker refused.
    Code { code: u64, description: String },
    /// An answer that makes no sense.
    Garbled(String),
}

impl Refusal {
    /// In words.
    pub(super) fn words(&self) -> String {
        match self {
            Refusal::NotSent(why) | Refusal::Silent(why) | Refusal::Garbled(why) => why.clone(),
            Refusal::Nobody => {
                "JetStream does not answer (it is starting, electing, or off)".to_owned()
            }
            Refusal::Code { code, description } => {
                format!("{description} (JetStream error {code})")
            }
        }
    }
}

/// The link to the broker.
pub(super) struct Link {
    /// With passwords, if any: never shown.
    urls: String,
    /// Without.
    shown: String,
    options: Options,
    client: OnceCell<Client>,
    connected: watch::Sender<bool>,
    /// What the client or the server complained about last; none since the last connection.
    complaint: Arc<Mutex<Option<Complaint>>>,
    /// Since when requests have got no useful answer although the link stands.
    fruitless_since: Mutex<Option<Instant>>,
}

/// Bound: how long a server that is connected may be of no use until another one is tried, and how often.
const FRUITLESS_MAX: Duration = Duration::from_secs(4);

/// Something that the client or the server did not like.
#[derive(Debug, Clone)]
struct Complaint {
    words: String,
    at: Instant,
}

/// How often the state of the link is looked at while waiting for it. Bound on missing one of the client's events.
const LINK_POLL: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Answer {
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl Link {
    pub(super) fn new(urls: String, options: Options) -> Link {
        Link {
            shown: redact(&urls),
            urls,
            options,
            client: OnceCell::new(),
            connected: watch::Sender::new(false),
            complaint: Arc::default(),
            fruitless_since: Mutex::default(),
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// Changes whenever the link comes or goes.
    pub(super) fn watch(&self) -> watch::Receiver<bool> {
        self.connected.subscribe()
    }

    /// The client, connected; waits at most `patience`.
    pub(super) async fn client(&self, patience: Duration) -> Result<Client, Refusal> {
        let until = Instant::now() + patience;
        let away = || {
            let reason = self.complaint_since(None);
            Refusal::NotSent(format!("NATS at {} is not reachable{reason}", self.shown))
        };
        let client = tokio::time::timeout_at(until, self.client.get_or_try_init(|| self.make()))
            .await
            .map_err(|_| away())??;
        let mut changes = self.connected.subscribe();
        while client.connection_state() != State::Connected {
            if Instant::now() >= until {
                return Err(away());
            }
            // Either wakes: an event, or the next look.
            let _ = tokio::time::timeout(LINK_POLL, changes.changed()).await;
        }
        Ok(client.clone())
    }

    /// The last complaint, if it came since then, to go on a sentence with; empty otherwise.
    fn complaint_since(&self, since: Option<Instant>) -> String {
        self.complaint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .filter(|complaint| since.is_none_or(|since| complaint.at >= since))
            .map_or_else(String::new, |complaint| format!(": {}", complaint.words))
    }

    async fn make(&self) -> Result<Client, Refusal> {
        let wrong = |why: String| Refusal::NotSent(format!("NATS at {}: {why}", self.shown));
        let connected = self.connected.clone();
        let urls = self.shown.clone();
        let complaint = self.complaint.clone();
        let mut options = ConnectOptions::new()
            .name(&self.options.client_name)
            .retry_on_initial_connect()
            .ping_interval(Duration::from_secs(5))
            .connection_timeout(Duration::from_secs(2))
            .reconnect_delay_callback(|attempt| {
                let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
                crate::ambient::backoff(Duration::from_millis(50), Duration::from_secs(1), attempt)
            })
            .event_callback(move |event| {
                let (connected, urls) = (connected.clone(), urls.clone());
                note(&complaint, &event);
                async move { told(&connected, &urls, &event) }
            });
        // The client knows servers by host and port alone: what stands before the `@` must be said to it.
        options = match login(&self.urls) {
            Some((user, Some(password))) => options.user_and_password(user, password),
            Some((token, None)) => options.token(token),
            None => options,
        };
        if let Some(path) = &self.options.credentials {
            options = options
                .credentials_file(path)
                .await
                .map_err(|why| wrong(format!("credentials {}: {why}", path.display())))?;
        }
        if let Some(path) = &self.options.nkey {
            let key = UserKey::read(path).map_err(|why| wrong(why.to_string()))?;
            options = options
                .custom_inbox_prefix(nats_config::inbox(&key.public_key))
                .nkey(key.seed.0);
        }
        if let Some(path) = &self.options.root_certificates {
            options = options.add_root_certificates(path.clone());
        }
        let servers: Vec<&str> = self.urls.split(',').collect();
        options
            .connect(servers)
            .await
            .map_err(|why| wrong(why.to_string()))
    }

    /// One publish or request, sent once.
    pub(super) async fn send(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
        until: Instant,
    ) -> Result<Bytes, Refusal> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let client = self.client(left(until)).await?;
        let mut request = Request::new()
            .payload(payload)
            .timeout(Some(left(until).max(LINK_POLL)));
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let sent = Instant::now();
        let answer = client.send_request(subject, request).await;
        let fruitless = match &answer {
            Ok(answer) => leaderless(&answer.payload),
            Err(_) => true,
        };
        if fruitless {
            self.was_fruitless().await;
        }
        match answer {
            Ok(answer) => Ok(answer.payload),
            Err(why) => Err(match why.kind() {
                RequestErrorKind::NoResponders => Refusal::Nobody,
                RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                    Refusal::NotSent(why.to_string())
                }
                // A refused permission is told beside the request, and the request stays unanswered.
                RequestErrorKind::TimedOut => {
                    let reason = self.complaint_since(Some(sent));
                    let shown = &self.shown;
                    Refusal::Silent(format!("NATS at {shown} did not answer in time{reason}"))
                }
                RequestErrorKind::Other => Refusal::Silent(why.to_string()),
            }),
        }
    }

    /// The broker gave an answer that only a server among a majority can give.
    pub(super) fn was_useful(&self) {
        *self
            .fruitless_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The broker gave none: when that goes on for too long, another server is tried.
    ///
    /// SUBTLE: a server that is cut off from the others answers its clients' pings for ever, and a leader that is also questions,
    /// so they stay with it although another server of their list could serve them (`cluster leader-split`: no change was
    /// accepted for as long as the cut lasted).
    pub(super) async fn was_fruitless(&self) {
        let overdue = {
            let mut since = self
                .fruitless_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let first = *since.get_or_insert_with(Instant::now);
            let overdue = first.elapsed() >= FRUITLESS_MAX;
            if overdue {
                *since = Some(Instant::now());
            }
            overdue
        };
        let Some(client) = self.client.get() else {
            return;
        };
        if overdue && self.urls.contains(',') && client.connection_state() == State::Connected {
            tracing::warn!(
                urls = self.shown,
                "the NATS server is of no use; trying another one"
            );
            // Fails only for a client that is closed.
            let _ = client.force_reconnect().await;
        }
    }

    /// A request to the JetStream API; asked again, within the call's time, while a cluster elects.
    pub(super) async fn api<V: DeserializeOwned>(
        &self,
        what: &str,
        body: &Value,
    ) -> Result<V, Refusal> {
        let until = Instant::now() + self.options.call_timeout;
        for attempt in 0.. {
            let payload = Bytes::from(body.to_string());
            let answer = self
                .send(format!("$JS.API.{what}"), None, payload, until)
                .await
                .and_then(|bytes| parse(&bytes));
            let again = match &answer {
                Err(Refusal::Nobody) => true,
                Err(Refusal::Code { code, .. }) => codes::passes(*code),
                Ok(_) | Err(Refusal::NotSent(_) | Refusal::Silent(_) | Refusal::Garbled(_)) => {
                    false
                }
            };
            let pause = crate::ambient::backoff(
                Duration::from_millis(20),
                Duration::from_millis(250),
                attempt,
            );
            if !again || Instant::now() + pause >= until {
                return answer;
            }
            tokio::time::sleep(pause).await;
        }
        Err(Refusal::Nobody)
    }
}

/// True for an answer that nobody leads.
fn leaderless(payload: &Bytes) -> bool {
    match parse::<Value>(payload) {
        Err(Refusal::Code { code, .. }) => codes::passes(code),
        Ok(_)
        | Err(Refusal::NotSent(_) | Refusal::Silent(_) | Refusal::Nobody | Refusal::Garbled(_)) => {
            false
        }
    }
}

/// An answer of the API: what was asked for, or an error with a code.
pub(super) fn parse<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, Refusal> {
    let garbled =
        |why: serde_json::Error| Refusal::Garbled(format!("JetStream answered nonsense: {why}"));
    let answer: Answer = serde_json::from_slice(bytes).map_err(garbled)?;
    match answer.error {
        Some(ApiError {
            err_code,
            description,
        }) => Err(Refusal::Code {
            code: err_code,
            description,
        }),
        None => serde_json::from_slice(bytes).map_err(garbled),
    }
}

fn note(complaint: &Mutex<Option<Complaint>>, event: &Event) {
    let mut complaint = complaint.lock().unwrap_or_else(PoisonError::into_inner);
    let because = |words: String| {
        let at = Instant::now();
        Some(Complaint { words, at })
    };
    match event {
        // What was said just before is the reason of the reconnect.
        Event::Connected => {
            complaint.take_if(|complaint| complaint.at.elapsed() > FRUITLESS_MAX);
        }
        Event::ServerError(why) => *complaint = because(why.to_string()),
        Event::ClientError(why) => *complaint = because(why.to_string()),
        Event::Disconnected
        | Event::LameDuckMode
        | Event::Draining
        | Event::Closed
        | Event::SlowConsumer(_) => {}
    }
}

/// Logged once per change of the link, however often the client tries.
fn told(connected: &watch::Sender<bool>, urls: &str, event: &Event) {
    match event {
        Event::Connected => {
            connected.send_replace(true);
            tracing::info!(urls, "connected to NATS");
        }
        Event::Disconnected => {
            connected.send_replace(false);
            tracing::warn!(urls, "lost the connection to NATS; reconnecting");
        }
        Event::LameDuckMode => tracing::info!(urls, "the NATS server is shutting down"),
        Event::SlowConsumer(_) => {
            tracing::warn!(urls, "records were dropped on the way; reading them again")
        }
        Event::ServerError(why) => {
            tracing::error!(urls, error = %why, "the NATS server refused something")
        }
        // One per failed attempt to connect: the change of the link was told already.
        Event::ClientError(why) => tracing::debug!(urls, error = %why, "cannot connect to NATS"),
        Event::Draining | Event::Closed => {
            connected.send_replace(false);
        }
    }
}
