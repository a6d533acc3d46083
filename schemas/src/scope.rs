//! What a policy addresses, and where its records stand in the log.
//!
//! Owns: matching, the total order of specificity, and the one reversible encoding of scopes into subjects.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ids::{Hash, PolicyId};
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

impl JsonSchema for Endpoint {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Endpoint".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string", "pattern": "^[^/]+/[^/]+/[^/]+$",
            "description": "namespace/component/endpoint; a slash inside a part is %2F, a percent sign %25"
        })
    }
}

/// What a policy addresses: each part is one exact value, or absent for any.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    /// Model name, exact and case-sensitive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Name>,
    /// Role of the workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_type: Option<WorkerType>,
    /// `namespace/component/endpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// A label of frontends (`router-agent run --group`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Name>,
}

/// What is known of one router, for matching: never "any".
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct RouterKey {
    /// Model that the router serves.
    pub model: Name,
    /// Role of its workers.
    pub worker_type: WorkerType,
    /// Endpoint that its workers serve.
    pub endpoint: Endpoint,
}

impl RouterKey {
    /// The fleet-wide scope of exactly this router: any group.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope {
            model: Some(self.model.clone()),
            worker_type: Some(self.worker_type),
            endpoint: Some(self.endpoint.clone()),
            group: None,
        }
    }

    /// The fleet-wide `router_id` of the façade: the id of the policy with [`RouterKey::scope`].
    #[must_use]
    pub fn fleet_id(&self) -> PolicyId {
        PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope: self.scope(),
        }
        .id()
    }
}

impl Scope {
    /// True when the scope addresses this router of a frontend in this group.
    #[must_use]
    pub fn matches(&self, router: &RouterKey, group: Option<&Name>) -> bool {
        self.model
            .as_ref()
            .is_none_or(|model| *model == router.model)
            && self
                .worker_type
                .is_none_or(|worker_type| worker_type == router.worker_type)
            && self
                .endpoint
                .as_ref()
                .is_none_or(|endpoint| *endpoint == router.endpoint)
            && self
                .group
                .as_ref()
                .is_none_or(|wanted| Some(wanted) == group)
    }

    /// True when the scope addresses this model of a frontend in this group, whatever its worker type and endpoint (which
    /// scopes of `busy_threshold` never name).
    #[must_use]
    pub fn matches_model(&self, model: &Name, group: Option<&Name>) -> bool {
        self.model.as_ref().is_none_or(|wanted| wanted == model)
            && self
                .group
                .as_ref()
                .is_none_or(|wanted| Some(wanted) == group)
    }

    /// Rank among the scopes that match one router: an exact `group` beats anything without, then `endpoint`, then
    /// `model`, then `worker_type`. Two scopes that match one router and have the same rank are the same scope.
    #[must_use]
    pub fn specificity(&self) -> u8 {
        u8::from(self.group.is_some()) << 3
            | u8::from(self.endpoint.is_some()) << 2
            | u8::from(self.model.is_some()) << 1
            | u8::from(self.worker_type.is_some())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut part = |f: &mut fmt::Formatter<'_>, key: &str, value: &dyn fmt::Display| {
            let out = write!(f, "{separator}{key}={value}");
            separator = ",";
            out
        };
        if let Some(model) = &self.model {
            part(f, "model", model)?;
        }
        if let Some(worker_type) = &self.worker_type {
            part(f, "worker_type", worker_type)?;
        }
        if let Some(endpoint) = &self.endpoint {
            part(f, "endpoint", endpoint)?;
        }
        if let Some(group) = &self.group {
            part(f, "group", group)?;
        }
        if separator.is_empty() {
            f.write_str("any")
        } else {
            Ok(())
        }
    }
}

/// What the parameters of a policy mean.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Parameters of the worker selection policy (Dynamo `/router_policy`).
    WorkerSelection,
    /// Thresholds above which a model's workers count as busy (Dynamo `/busy_threshold`).
    BusyThreshold,
}

impl PolicyKind {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyKind::WorkerSelection => "worker_selection",
            PolicyKind::BusyThreshold => "busy_threshold",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Kind and scope: which policy.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct PolicyKey {
    /// Kind of the parameters.
    pub kind: PolicyKind,
    /// What it addresses.
    pub scope: Scope,
}

impl PolicyKey {
    /// The id used in URLs, and (see [`PolicyId`]) as the fleet-wide `router_id`.
    #[must_use]
    pub fn id(&self) -> PolicyId {
        PolicyId(Uuid::new_v5(
            &POLICY_NAMESPACE,
            self.subject().as_str().as_bytes(),
        ))
    }

    /// The subject that holds this policy's own records.
    #[must_use]
    pub fn subject(&self) -> Subject {
        let any = || ANY_TOKEN.to_owned();
        let name = |name: &Option<Name>| name.as_ref().map_or_else(any, Name::to_token);
        let endpoint = self.scope.endpoint.as_ref();
        Subject(
            [
                match self.kind {
                    PolicyKind::WorkerSelection => SELECTION_TOKEN.to_owned(),
                    PolicyKind::BusyThreshold => THRESHOLD_TOKEN.to_owned(),
                },
                name(&self.scope.model),
                self.scope
                    .worker_type
                    .map_or_else(any, |worker_type| worker_type.as_str().to_owned()),
                endpoint.map_or_else(any, |endpoint| endpoint.namespace.to_token()),
                endpoint.map_or_else(any, |endpoint| endpoint.component.to_token()),
                endpoint.map_or_else(any, |endpoint| endpoint.endpoint.to_token()),
                name(&self.scope.group),
            ]
            .join("."),
        )
    }
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.scope)
    }
}

/// Namespace of all policy ids (a UUID made once for this purpose).
const POLICY_NAMESPACE: Uuid = Uuid::from_u128(0x8a1b_4bf0_5d0e_5c55_9e0c_3f6e_1f4b_7a21);
const ANY_TOKEN: &str = "=";
const SELECTION_TOKEN: &str = "selection";
const THRESHOLD_TOKEN: &str = "threshold";
const SET_TOKEN: &str = "set";
const PARAMETERS_TOKEN: &str = "parameters";

/// Where records stand in a log: a dotted list of tokens, without the stream's prefix. Compare-and-swap is per subject.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Subject(String);

/// What a subject holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// Records that change exactly this policy.
    Policy(PolicyKey),
    /// Records that change exactly this set of policies at once (digest of their subjects).
    Set(String),
    /// Registrations of custom parameters.
    Parameters,
}

impl Subject {
    /// The subject of registrations of custom parameters.
    #[must_use]
    pub fn parameters() -> Subject {
        Subject(PARAMETERS_TOKEN.to_owned())
    }

    /// The subject of changes of several policies at once: one per distinct set, so that bootstrap stays O(scopes).
    #[must_use]
    pub fn of_set<'a>(policies: impl IntoIterator<Item = &'a PolicyKey>) -> Subject {
        let subjects: std::collections::BTreeSet<Subject> =
            policies.into_iter().map(PolicyKey::subject).collect();
        let parts: Vec<&[u8]> = subjects
            .iter()
            .map(|subject| subject.0.as_bytes())
            .collect();
        let digest = Hash::of(&parts).to_string();
        Subject(format!("{SET_TOKEN}.{}", &digest[..32]))
    }

    /// Takes a subject as a log gave it. Any text is taken; [`Subject::address`] tells whether it means something.
    #[must_use]
    pub fn from_log(text: &str) -> Subject {
        Subject(text.to_owned())
    }

    /// The tokens, joined by dots.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What the subject holds; `None` for one that this version does not make.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        let tokens: Vec<&str> = self.0.split('.').collect();
        match tokens.as_slice() {
            [PARAMETERS_TOKEN] => Some(Address::Parameters),
            [SET_TOKEN, digest] => Some(Address::Set((*digest).to_owned())),
            [
                kind,
                model,
                worker_type,
                namespace,
                component,
                endpoint,
                group,
            ] => {
                let kind = match *kind {
                    SELECTION_TOKEN => PolicyKind::WorkerSelection,
                    THRESHOLD_TOKEN => PolicyKind::BusyThreshold,
                    _ => return None,
                };
                let name = |token: &str| -> Option<Option<Name>> {
                    if token == ANY_TOKEN {
                        Some(None)
                    } else {
                        Name::from_token(token).map(Some)
                    }
                };
                let worker_type = if *worker_type == ANY_TOKEN {
                    None
                } else {
                    Some(worker_type.parse::<WorkerType>().ok()?)
                };
                let endpoint = match (name(namespace)?, name(component)?, name(endpoint)?) {
                    (None, None, None) => None,
                    (Some(namespace), Some(component), Some(endpoint)) => Some(Endpoint {
                        namespace,
                        component,
                        endpoint,
                    }),
                    _ => return None,
                };
                let scope = Scope {
                    model: name(model)?,
                    worker_type,
                    endpoint,
                    group: name(group)?,
                };
                Some(Address::Policy(PolicyKey { kind, scope }))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn any_name() -> impl Strategy<Value = Name> {
        "[a-zA-Z0-9 ./*>=%é🚀_-]{1,12}".prop_map(|text| Name::new(text).unwrap())
    }

    fn any_scope() -> impl Strategy<Value = Scope> {
        (
            proptest::option::of(any_name()),
            proptest::option::of(proptest::sample::select(WorkerType::ALL.to_vec())),
            proptest::option::of((any_name(), any_name(), any_name())),
            proptest::option::of(any_name()),
        )
            .prop_map(|(model, worker_type, endpoint, group)| Scope {
                model,
                worker_type,
                endpoint: endpoint.map(|(namespace, component, endpoint)| Endpoint {
                    namespace,
                    component,
                    endpoint,
                }),
                group,
            })
    }

    proptest! {
        #[test]
        fn scopes_survive_the_way_into_subjects_and_json(scope in any_scope()) {
            for kind in [PolicyKind::WorkerSelection, PolicyKind::BusyThreshold] {
                let key = PolicyKey { kind, scope: scope.clone() };
                let subject = key.subject();
                prop_assert!(subject.as_str().bytes().all(|b| b.is_ascii_graphic() && !b"*>".contains(&b)));
                prop_assert_eq!(subject.address(), Some(Address::Policy(key)));
            }
            let json = serde_json::to_string(&scope).unwrap();
            prop_assert_eq!(serde_json::from_str::<Scope>(&json).unwrap(), scope);
        }
    }

    #[test]
    fn the_longest_scope_fits_a_nats_control_line() {
        let long = Name::new("é".repeat(256)).unwrap();
        let scope = Scope {
            model: Some(long.clone()),
            worker_type: Some(WorkerType::Aggregated),
            endpoint: Some(Endpoint {
                namespace: long.clone(),
                component: long.clone(),
                endpoint: long.clone(),
            }),
            group: Some(long),
        };
        let subject = PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope,
        }
        .subject();
        // 4,096 less a generous allowance for verb, prefix, inbox and lengths.
        assert!(
            subject.as_str().len() < 4_096 - 300,
            "{}",
            subject.as_str().len()
        );
        assert!(subject.address().is_some());
    }

    #[test]
    fn specificity_never_ties_among_matching_scopes() {
        let name = |text: &str| Name::new(text).unwrap();
        let router = RouterKey {
            model: name("m"),
            worker_type: WorkerType::Decode,
            endpoint: "n/c/e".parse().unwrap(),
        };
        let group = name("canary");
        let mut ranks = std::collections::BTreeSet::new();
        for bits in 0u8..16 {
            let scope = Scope {
                group: (bits & 8 != 0).then(|| group.clone()),
                endpoint: (bits & 4 != 0).then(|| router.endpoint.clone()),
                model: (bits & 2 != 0).then(|| router.model.clone()),
                worker_type: (bits & 1 != 0).then_some(router.worker_type),
            };
            assert!(scope.matches(&router, Some(&group)));
            assert_eq!(scope.matches(&router, None), bits & 8 == 0);
            assert!(ranks.insert(scope.specificity()));
        }
    }

    #[test]
    fn endpoints_with_slashes_and_percent_signs_read_back() {
        let endpoint = Endpoint {
            namespace: Name::new("a/b").unwrap(),
            component: Name::new("100%").unwrap(),
            endpoint: Name::new("%2F").unwrap(),
        };
        assert_eq!(endpoint.to_string(), "a%2Fb/100%25/%252F");
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        for bad in ["", "a", "a/b", "a/b/", "a/b/c/d", "a/b/%zz", "//"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn foreign_subjects_mean_nothing() {
        for text in [
            "",
            "selection",
            "selection.a.b.c",
            "x.=.=.=.=.=.=",
            "selection.=.=.a.=.=.=",
            "selection.=61.=.=.=.=.=",
        ] {
            assert_eq!(Subject::from_log(text).address(), None, "{text}");
        }
    }
}
