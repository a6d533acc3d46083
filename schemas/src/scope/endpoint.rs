//! What a router serves: its workers' role and their endpoint.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::{BadName, Name};

/// The role of a router's workers (Dynamo 1.7 `worker_type`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum WorkerType {
    /// Workers that do both phases.
    Aggregated,
    /// Workers that only prefill.
    Prefill,
    /// Workers that only decode.
    Decode,
    /// Workers that only encode (multimodal).
    Encode,
}

impl WorkerType {
    /// All of them.
    pub const ALL: [WorkerType; 4] = [
        WorkerType::Aggregated,
        WorkerType::Prefill,
        WorkerType::Decode,
        WorkerType::Encode,
    ];

    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerType::Aggregated => "aggregated",
            WorkerType::Prefill => "prefill",
            WorkerType::Decode => "decode",
            WorkerType::Encode => "encode",
        }
    }
}

impl fmt::Display for WorkerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no worker type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be aggregated, prefill, decode or encode, not {0:?}")]
pub struct BadWorkerType(pub String);

impl FromStr for WorkerType {
    type Err = BadWorkerType;
    fn from_str(text: &str) -> Result<WorkerType, BadWorkerType> {
        WorkerType::ALL
            .into_iter()
            .find(|known| known.as_str() == text)
            .ok_or_else(|| BadWorkerType(text.to_owned()))
    }
}

/// A Dynamo endpoint, written `namespace/component/endpoint`. A slash inside a part is written `%2F`, a percent sign `%25`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Dynamo namespace.
    pub namespace: Name,
    /// Dynamo component.
    pub component: Name,
    /// Endpoint of that component.
    pub endpoint: Name,
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// Not three parts.
    #[error("must be namespace/component/endpoint")]
    Parts,
    /// A percent sign that starts neither `%2F` nor `%25`.
    #[error("has a percent sign that is not part of %2F or %25")]
    Escape,
    /// One of the parts is no name.
    #[error("{0} {1}")]
    Part(&'static str, BadName),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |name: &Name| name.as_str().replace('%', "%25").replace('/', "%2F");
        write!(
            f,
            "{}/{}/{}",
            part(&self.namespace),
            part(&self.component),
            part(&self.endpoint)
        )
    }
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;
    fn from_str(text: &str) -> Result<Endpoint, BadEndpoint> {
        let mut parts = text.split('/');
        let (Some(namespace), Some(component), Some(endpoint), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadEndpoint::Parts);
        };
        let part = |field, text: &str| {
            let plain = text.replace("%2F", "/").replace("%25", "%");
            let name = Name::new(plain).map_err(|why| BadEndpoint::Part(field, why))?;
            if name.as_str().replace('%', "%25").replace('/', "%2F") == text {
                Ok(name)
            } else {
                Err(BadEndpoint::Escape)
            }
        };
        Ok(Endpoint {
            namespace: part("namespace", namespace)?,
            component: part("component", component)?,
            endpoint: part("endpoint", endpoint)?,
        })
    }
}

impl Serialize for Endpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Three names of at least one character; a slash or percent sign in them is escaped.
const PATTERN: &str = concat!(
    "^(?:[^/%\\u0000-\\u001f\\u007f-\\u009f]|%2F|%25)+",
    "/(?:[^/%\\u0000-\\u001f\\u007f-\\u009f]|%2F|%25)+",
    "/(?:[^/%\\u0000-\\u001f\\u007f-\\u009f]|%2F|%25)+$"
);

impl JsonSchema for Endpoint {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Endpoint".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string", "pattern": PATTERN,
            "description": "namespace/component/endpoint; a slash inside a part is %2F, a percent sign %25"
        })
    }
}
