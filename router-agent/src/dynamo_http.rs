//! A Dynamo frontend over HTTP.
//!
//! Source of the routes, statuses and shapes: Dynamo 1.7 (`/router_policy`, `/router_policy/busy_threshold`) and 1.6
//! (`/busy_threshold` alone, same shape). Which of them a frontend is, is found out with every listing, so that an
//! upgraded frontend is met as what it is.
//! Each target has its own client and timeouts: a slow frontend holds up nobody else's requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Client, StatusCode, Url};
use schemas::status::Capability;
use schemas::{
    Endpoint, Name, ParameterName, ParameterValue, Patch, Revision, RouterId, RouterKey, WorkerType,
};
use serde::Deserialize;
use serde_json::Value;

use crate::target::{
    Applied, Configuration, Listing, PolicyTarget, RouterView, TargetError, Thresholds, Values,
};

/// Bound: an answer of a frontend; a thousand routers list in less than that, and no report could hold more.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Bound: a frontend's words as they are kept and reported.
const WORDS_CHARS_MAX: usize = 500;
/// Bound: routers and models that no scope can address, as they are named.
const UNADDRESSABLE_MAX: usize = 8;
/// The largest request body that a frontend takes (Dynamo 1.7, `/router_policy`).
const REQUEST_BYTES_MAX: usize = 16_384;

/// How long to wait for a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For a whole request, connection included.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(2),
            request: Duration::from_secs(5),
        }
    }
}

/// Why an address is not one of a frontend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// It cannot be read as a URL.
    #[error("{0:?} is not a URL like http://127.0.0.1:8000")]
    Malformed(String),
    /// It is not `http`.
    #[error(
        "{0:?} does not start with http://; frontends' admin routes are unauthenticated and belong on loopback"
    )]
    Scheme(String),
    /// Whoever shows the address, a report for example, would show the password too.
    #[error(
        "the address of a frontend must not hold a name or password (its admin routes ask for none)"
    )]
    Credentials,
    /// The client cannot be made.
    #[error("no HTTP client: {0}")]
    Client(String),
}

/// One Dynamo frontend.
#[derive(Debug)]
pub struct DynamoHttp {
    client: Client,
    base: Url,
    /// The last listing found no `/router_policy`, so thresholds are under `/busy_threshold`.
    legacy: AtomicBool,
}

impl DynamoHttp {
    /// The frontend at a base URL such as `http://127.0.0.1:8000`. Needs no frontend to be there.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn new(url: &str, timeouts: Timeouts) -> Result<DynamoHttp, BadAddress> {
        // Also where it cannot be read: the address goes into messages.
        if url.contains('@') {
            return Err(BadAddress::Credentials);
        }
        let mut base = Url::parse(url).map_err(|_| BadAddress::Malformed(url.to_owned()))?;
        if base.scheme() != "http" {
            return Err(BadAddress::Scheme(url.to_owned()));
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        base.set_query(None);
        base.set_fragment(None);
        let client = Client::builder()
            .connect_timeout(timeouts.connect)
            .timeout(timeouts.request)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|why| BadAddress::Client(chain(&why)))?;
        Ok(DynamoHttp {
            client,
            base,
            legacy: AtomicBool::new(false),
        })
    }

    /// The base URL, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    async fn get(&self, path: &str) -> Result<Answer, TargetError> {
        self.ask(path, |url| self.client.get(url)).await
    }

    async fn ask(
        &self,
        path: &str,
        request: impl FnOnce(Url) -> reqwest::RequestBuilder,
    ) -> Result<Answer, TargetError> {
        let url = self
            .base
            .join(path)
            .map_err(|why| TargetError::transient(why.to_string()))?;
        let lost = |why: reqwest::Error| TargetError::transient(chain(&why.without_url()));
        let mut response = request(url).send().await.map_err(lost)?;
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(lost)? {
            if body.len() + part.len() > ANSWER_BYTES_MAX {
                return Err(TargetError::transient(format!(
                    "answer of more than {ANSWER_BYTES_MAX} bytes"
                )));
            }
            body.extend_from_slice(&part);
        }
        Ok(Answer {
            status: response.status(),
            body,
        })
    }
}

#[async_trait]
impl PolicyTarget for DynamoHttp {
    async fn list(&self) -> Result<Listing, TargetError> {
        let routers = self.get("router_policy").await?.found()?;
        let legacy = routers.is_none();
        let thresholds = self.get(threshold_path(legacy)).await?.found()?;
        self.legacy.store(legacy, Ordering::Relaxed);
        listing(routers.as_deref(), thresholds.as_deref())
    }

    async fn apply(
        &self,
        router: RouterId,
        expected: Revision,
        patch: &Patch,
    ) -> Result<Applied, TargetError> {
        let body = serde_json::json!({
            "router_id": router, "expected_revision": expected, "parameters": patch,
        });
        let size = body.to_string().len();
        if size > REQUEST_BYTES_MAX {
            return Err(TargetError::Refused {
                status: StatusCode::PAYLOAD_TOO_LARGE.as_u16(),
                words: format!(
                    "the patch is {size} bytes long, a frontend takes {REQUEST_BYTES_MAX}"
                ),
            });
        }
        let answer = self
            .ask("router_policy", |url| self.client.patch(url).json(&body))
            .await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refusal());
        }
        let wire: RouterWire = understand(&answer.body)?;
        let configuration = wire
            .configuration
            .ok_or_else(|| TargetError::transient("answered 200 without a configuration"))?;
        if wire.router_id != router {
            return Err(TargetError::transient(format!(
                "answered for another router, {}",
                wire.router_id
            )));
        }
        Ok(Applied {
            revision: configuration.revision,
            parameters: named(configuration.parameters),
        })
    }

    async fn set_thresholds(&self, model: &Name, values: &Values) -> Result<(), TargetError> {
        let mut body: serde_json::Map<String, Value> = values
            .iter()
            .map(|(name, value)| (name.to_string(), value.as_json().clone()))
            .collect();
        body.insert("model".to_owned(), Value::from(model.as_str()));
        let path = threshold_path(self.legacy.load(Ordering::Relaxed));
        let answer = self
            .ask(path, |url| self.client.post(url).json(&body))
            .await?;
        if answer.status == StatusCode::OK {
            Ok(())
        } else {
            Err(answer.refusal())
        }
    }
}

/// What a frontend lists, from its answers to `/router_policy` and to the route of thresholds; `None` where it has no such
/// route.
///
/// # Errors
/// [`TargetError::Transient`] for what cannot be understood.
pub fn listing(routers: Option<&[u8]>, thresholds: Option<&[u8]>) -> Result<Listing, TargetError> {
    #[derive(Deserialize)]
    struct Routers {
        routers: Vec<RouterWire>,
    }
    #[derive(Deserialize)]
    struct Listed {
        thresholds: Vec<Value>,
    }
    let routers = routers.map(understand::<Routers>).transpose()?;
    let thresholds = thresholds.map(understand::<Listed>).transpose()?;
    let mut listing = Listing {
        capability: match (&routers, &thresholds) {
            (Some(_), _) => Capability::RouterPolicy,
            (None, Some(_)) => Capability::BusyThresholdOnly,
            (None, None) => Capability::None,
        },
        routers: BTreeMap::new(),
        thresholds: BTreeMap::new(),
        unaddressable: Vec::new(),
    };
    let mut unaddressable = Vec::new();
    for wire in routers.map(|all| all.routers).unwrap_or_default() {
        let id = wire.router_id;
        match wire.view() {
            Ok(view) => {
                listing.routers.insert(id, view);
            }
            Err(why) => unaddressable.push(format!("router {id}: {why}")),
        }
    }
    for wire in thresholds.map(|all| all.thresholds).unwrap_or_default() {
        let (model, values) = thresholds_of(&wire)?;
        match Name::new(model) {
            Ok(model) => {
                listing.thresholds.insert(model, values);
            }
            Err(why) => unaddressable.push(format!("thresholds of model {model:?}: model {why}")),
        }
    }
    let more = unaddressable.len().saturating_sub(UNADDRESSABLE_MAX);
    unaddressable.truncate(UNADDRESSABLE_MAX);
    listing.unaddressable = unaddressable.iter().map(|words| cut(words)).collect();
    if more > 0 {
        listing.unaddressable.push(format!("and {more} more"));
    }
    Ok(listing)
}

fn understand<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, TargetError> {
    serde_json::from_slice(body)
        .map_err(|why| TargetError::transient(format!("answered what cannot be understood: {why}")))
}

fn threshold_path(legacy: bool) -> &'static str {
    if legacy {
        "busy_threshold"
    } else {
        "router_policy/busy_threshold"
    }
}

struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

impl Answer {
    /// The body of an answer; `None` when there is no such route.
    fn found(self) -> Result<Option<Vec<u8>>, TargetError> {
        match self.status {
            StatusCode::OK => Ok(Some(self.body)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.unexpected()),
        }
    }

    /// The frontend's own words: its `error` or `message`, else the body, cut.
    fn words(&self) -> String {
        let value: Option<Value> = serde_json::from_slice(&self.body).ok();
        let field = |name: &str| value.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let words = field("error")
            .or_else(|| field("message"))
            .unwrap_or_else(|| String::from_utf8_lossy(&self.body).into_owned());
        let words = cut(&words);
        if words.trim().is_empty() {
            format!("status {}", self.status.as_u16())
        } else {
            words
        }
    }

    fn unexpected(&self) -> TargetError {
        TargetError::transient(format!(
            "{} (status {})",
            self.words(),
            self.status.as_u16()
        ))
    }

    fn refusal(&self) -> TargetError {
        match self.status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => TargetError::Refused {
                status: self.status.as_u16(),
                words: self.words(),
            },
            StatusCode::CONFLICT => TargetError::Conflict,
            StatusCode::NOT_FOUND => TargetError::Gone,
            // Anything else may be somebody in between, or a frontend that is starting or stopping.
            _ => self.unexpected(),
        }
    }
}

#[derive(Deserialize)]
struct RouterWire {
    router_id: RouterId,
    model: String,
    namespace: String,
    component: String,
    endpoint: String,
    worker_type: String,
    configuration: Option<ConfigurationWire>,
}

#[derive(Deserialize)]
struct ConfigurationWire {
    revision: Revision,
    parameters: BTreeMap<String, Value>,
}

impl RouterWire {
    fn view(self) -> Result<RouterView, String> {
        let name =
            |field: &str, text: String| Name::new(text).map_err(|why| format!("{field} {why}"));
        let worker_type: WorkerType = self
            .worker_type
            .parse()
            .map_err(|why| format!("worker_type {why}"))?;
        Ok(RouterView {
            key: RouterKey {
                model: name("model", self.model)?,
                worker_type,
                endpoint: Endpoint {
                    namespace: name("namespace", self.namespace)?,
                    component: name("component", self.component)?,
                    endpoint: name("endpoint", self.endpoint)?,
                },
            },
            configuration: self.configuration.map(|wire| Configuration {
                revision: wire.revision,
                parameters: named(wire.parameters),
            }),
        })
    }
}

/// Values by name. A name that no policy can have is left out: nobody can set it, and `null` restores it with the rest.
fn named(values: BTreeMap<String, Value>) -> Values {
    values
        .into_iter()
        .filter_map(|(name, value)| {
            Some((ParameterName::new(name).ok()?, ParameterValue::raw(value)))
        })
        .collect()
}

fn thresholds_of(wire: &Value) -> Result<(&str, Thresholds), TargetError> {
    let nonsense = || TargetError::transient("listed thresholds that cannot be understood");
    let fields = wire.as_object().ok_or_else(nonsense)?;
    let model = fields
        .get("model")
        .and_then(Value::as_str)
        .ok_or_else(nonsense)?;
    let values = fields
        .iter()
        .filter(|(name, value)| *name != "model" && (value.is_null() || value.is_number()))
        .filter_map(|(name, value)| {
            let value = (!value.is_null()).then(|| ParameterValue::raw(value.clone()));
            Some((ParameterName::new(name.as_str()).ok()?, value))
        })
        .collect();
    Ok((model, values))
}

/// Words of a frontend as they are kept and reported: one line, not too long.
fn cut(words: &str) -> String {
    words
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(WORDS_CHARS_MAX)
        .collect()
}

/// The whole chain of an error in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !words.ends_with(&next) {
            words = format!("{words}: {next}");
        }
        cause = error.source();
    }
    words
}
