//! Records of the log: what happened, once, for ever.
//!
//! Owns: the typed record and its bytes (CloudEvents 1.0 JSON, version 1). Reading bytes is `migrations::read`, which also
//! knows older versions. Never does: judge (see [`crate::state::State::evolve`]).
//!
//! Invariant: every record says in the envelope's `policies` attribute which policies it concerns, as subjects separated
//! by spaces, so that a reader that does not know the record's type can still stop exactly those policies.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{CommandId, Hash, Position, Revision, Timestamp};
use crate::name::Name;
use crate::parameter::{CustomParameters, Overlay, ParameterName, Patch};
use crate::scope::{PolicyKey, PolicyKind, Scope, Subject};

/// The CloudEvents `type` of [`Event::PoliciesChanged`] in today's version.
pub const POLICIES_CHANGED: &str = "router-policy.policies.changed.v1";
/// The CloudEvents `type` of [`Event::ParameterRegistered`] in today's version.
pub const PARAMETER_REGISTERED: &str = "router-policy.parameter.registered.v1";
/// The CloudEvents `source` of every record.
pub const SOURCE: &str = "/router-policy";

/// The longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 2_048;

/// Who asked for a change, as authentication found out; never from the request's body.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// Who.
    pub name: Name,
    /// How that is known: `loopback` (no token asked on this address), `token`, `jwt`, `mtls`.
    pub via: Name,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// Why a change was made, in the actor's words: at most 2,048 bytes, no control characters but newline and tab.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Reason(String);

impl JsonSchema for Reason {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Reason".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string", "maxLength": REASON_BYTES_MAX,
            "pattern": "^[^\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f]*$",
            "description": "Why a change was made, in the actor's words: at most 2,048 bytes, no control characters but newline and tab."
        })
    }
}

/// A text that is no reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be at most {REASON_BYTES_MAX} bytes without control characters other than newline and tab"
)]
pub struct BadReason;

impl Reason {
    /// Checks a text.
    ///
    /// # Errors
    /// [`BadReason`].
    pub fn new(text: impl Into<String>) -> Result<Reason, BadReason> {
        let text = text.into();
        let fine = text.len() <= REASON_BYTES_MAX
            && text
                .chars()
                .all(|c| !c.is_control() || matches!(c, '\n' | '\t'));
        if fine {
            Ok(Reason(text))
        } else {
            Err(BadReason)
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Reason::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// One record: one command that was decided, with who, when and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The command; at most one record has it.
    pub command_id: CommandId,
    /// Who.
    pub actor: Actor,
    /// When the command was decided, by the deciding service's clock. Order is by position, never by this.
    pub at: Timestamp,
    /// Why.
    pub reason: Option<Reason>,
    /// True when an admin lifted the ranges.
    pub forced: bool,
    /// Hash of the request as it was understood: the same idempotency key with another one is refused.
    pub fingerprint: Hash,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One or several policies were changed, all or none.
    PoliciesChanged {
        /// At least one; no policy twice; in [`PolicyKey`] order.
        changes: Vec<PolicyChange>,
    },
    /// A custom parameter was registered, or its schema replaced.
    ParameterRegistered {
        /// The parameter.
        name: ParameterName,
        /// Revision of the registry after it.
        revision: Revision,
        /// The registry's last accepted record when this one was decided.
        decided_on: Position,
        /// Hash of that record.
        previous_hash: Hash,
        /// The whole registry after it.
        registry: CustomParameters,
    },
}

/// One policy's part of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// Kind of the policy.
    pub kind: PolicyKind,
    /// Scope of the policy.
    pub scope: Scope,
    /// What was done.
    pub action: Action,
    /// The policy's revision after it.
    pub revision: Revision,
    /// The policy's last accepted record when this one was decided; 0 = none.
    pub decided_on: Position,
    /// Hash of that record; zeros = none.
    pub previous_hash: Hash,
    /// The whole overlay after it, so that one record is enough to know the policy.
    pub overlay: Overlay,
}

impl PolicyChange {
    /// Which policy.
    #[must_use]
    pub fn key(&self) -> PolicyKey {
        PolicyKey {
            kind: self.kind,
            scope: self.scope.clone(),
        }
    }
}

/// What was done to one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Values were set (value) and removed (`null`).
    Patched(Patch),
    /// The overlay was emptied.
    Reset,
    /// The overlay of an earlier revision was put back.
    RevertedTo(Revision),
}

impl Action {
    /// The name used by audit filters and exports.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Action::Patched(_) => "patched",
            Action::Reset => "reset",
            Action::RevertedTo(_) => "reverted",
        }
    }
}

/// The CloudEvents envelope. Attributes that are not listed (extensions such as `traceparent`) are kept in the bytes and
/// ignored here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Envelope<D> {
    /// `1.0`.
    pub specversion: String,
    /// The command's id.
    pub id: CommandId,
    /// [`SOURCE`].
    pub source: String,
    /// Kind and version of the data, for example [`POLICIES_CHANGED`].
    #[serde(rename = "type")]
    pub kind: String,
    /// The subject that the record was written to.
    pub subject: Subject,
    /// When it was decided.
    pub time: Timestamp,
    /// `application/json`.
    pub datacontenttype: String,
    /// The policies concerned: their subjects, separated by spaces; empty when none is.
    pub policies: String,
    /// What happened.
    pub data: D,
}

/// `data` of [`POLICIES_CHANGED`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoliciesChanged {
    /// Who.
    pub actor: Actor,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// True when an admin lifted the ranges.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
    /// Hash of the request.
    pub fingerprint: Hash,
    /// At least one; no policy twice.
    #[schemars(length(min = 1))]
    pub changes: Vec<PolicyChange>,
}

/// `data` of [`PARAMETER_REGISTERED`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParameterRegistered {
    /// Who.
    pub actor: Actor,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Hash of the request.
    pub fingerprint: Hash,
    /// The parameter.
    pub name: ParameterName,
    /// Revision of the registry after it.
    pub revision: Revision,
    /// The registry's last accepted record when this one was decided.
    pub decided_on: Position,
    /// Hash of that record.
    pub previous_hash: Hash,
    /// The whole registry after it.
    pub registry: CustomParameters,
}

impl Record {
    /// The subject that the record belongs to.
    #[must_use]
    pub fn subject(&self) -> Subject {
        match &self.event {
            Event::PoliciesChanged { changes } => {
                let keys: Vec<PolicyKey> = changes.iter().map(PolicyChange::key).collect();
                match keys.as_slice() {
                    [one] => one.subject(),
                    several => Subject::of_set(several),
                }
            }
            Event::ParameterRegistered { .. } => Subject::parameters(),
        }
    }

    /// The record as bytes: today's version, fields in a fixed order, so the same record always has the same bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let subject = self.subject();
        let encoded = match &self.event {
            Event::PoliciesChanged { changes } => {
                let subjects: Vec<String> = changes
                    .iter()
                    .map(|change| change.key().subject().to_string())
                    .collect();
                let data = PoliciesChanged {
                    actor: self.actor.clone(),
                    reason: self.reason.clone(),
                    forced: self.forced,
                    fingerprint: self.fingerprint,
                    changes: changes.clone(),
                };
                serde_json::to_vec(&self.envelope(
                    POLICIES_CHANGED,
                    subject,
                    subjects.join(" "),
                    data,
                ))
            }
            Event::ParameterRegistered {
                name,
                revision,
                decided_on,
                previous_hash,
                registry,
            } => {
                let data = ParameterRegistered {
                    actor: self.actor.clone(),
                    reason: self.reason.clone(),
                    fingerprint: self.fingerprint,
                    name: name.clone(),
                    revision: *revision,
                    decided_on: *decided_on,
                    previous_hash: *previous_hash,
                    registry: registry.clone(),
                };
                serde_json::to_vec(&self.envelope(
                    PARAMETER_REGISTERED,
                    subject,
                    String::new(),
                    data,
                ))
            }
        };
        // Invariant: every map key in a record is a string and every number finite, so encoding cannot fail.
        encoded.unwrap_or_default()
    }

    fn envelope<D>(&self, kind: &str, subject: Subject, policies: String, data: D) -> Envelope<D> {
        Envelope {
            specversion: "1.0".to_owned(),
            id: self.command_id,
            source: SOURCE.to_owned(),
            kind: kind.to_owned(),
            subject,
            time: self.at,
            datacontenttype: "application/json".to_owned(),
            policies,
            data,
        }
    }
}

/// The hash of one record as it stands in a log: over its subject and its bytes.
#[must_use]
pub fn record_hash(subject: &Subject, bytes: &[u8]) -> Hash {
    Hash::of(&[subject.as_str().as_bytes(), bytes])
}

/// The next link of the chain over a whole log: over the link before, the position, the subject and the bytes.
#[must_use]
pub fn chain_hash(previous: Hash, position: Position, subject: &Subject, bytes: &[u8]) -> Hash {
    Hash::of(&[
        &previous.0,
        &position.0.to_be_bytes(),
        subject.as_str().as_bytes(),
        bytes,
    ])
}
