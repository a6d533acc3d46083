//! Refusals: what was wrong with a command, as a value. Nothing changed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Position, Revision};
use crate::scope::{PolicyKey, PolicyKind};

/// Why a command was refused. The text names the field and what is allowed; [`Rejection::code`] is stable.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// The policy has another revision than the command expected.
    #[error("policy revision conflict: expected {expected}, current {current}")]
    StaleRevision {
        /// Which policy.
        policy: Box<PolicyKey>,
        /// What the command expected.
        expected: Revision,
        /// What the policy has.
        current: Revision,
    },
    /// The registry of custom parameters has another revision than the command expected.
    #[error("parameter registry revision conflict: expected {expected}, current {current}")]
    StaleRegistry {
        /// What the command expected.
        expected: Revision,
        /// What the registry has.
        current: Revision,
    },
    /// Neither a parameter nor a reset.
    #[error("provide either nonempty parameters or reset: true")]
    EmptyChange,
    /// No such parameter for this kind.
    #[error("unknown parameter {name:?} for {kind}; known: {}", known.join(", "))]
    UnknownParameter {
        /// Kind of the policy.
        kind: PolicyKind,
        /// The name that was given.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// A value outside its range, or of the wrong type.
    #[error("{name} must be {allowed}, got {value}")]
    InvalidValue {
        /// Parameter.
        name: String,
        /// The value that was given.
        value: String,
        /// What is allowed, in words.
        allowed: String,
    },
    /// More parameters than one patch may carry.
    #[error(
        "parameters has {count} entries, at most {} are allowed",
        crate::parameter::PARAMETERS_MAX
    )]
    TooManyParameters {
        /// How many were given.
        count: usize,
    },
    /// More than a frontend, or the log, takes in one piece.
    #[error("{field} would take {bytes} bytes in {place}, at most {max} are allowed")]
    TooLarge {
        /// Part of the request.
        field: &'static str,
        /// In what it would be too large.
        place: &'static str,
        /// How large it would be.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// A scope that this kind of policy cannot have.
    #[error("scope.{field} {why}")]
    InvalidScope {
        /// Part of the scope.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A schema that cannot be registered.
    #[error("schema of {name} {why}")]
    InvalidSchema {
        /// Parameter.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The set of changes is empty, too large, or names one policy twice.
    #[error("changes {why}")]
    InvalidSet {
        /// What is wrong.
        why: String,
    },
    /// The policy holds a record that this version cannot read; nothing may be decided on top of it.
    #[error(
        "{policy} is stopped: its record at position {position} cannot be read by this version ({why})"
    )]
    Stopped {
        /// Which policy.
        policy: Box<PolicyKey>,
        /// The record.
        position: Position,
        /// What could not be read.
        why: String,
    },
    /// The registry of custom parameters holds a record that this version cannot read.
    #[error(
        "the parameter registry is stopped: its record at position {position} cannot be read by this version ({why})"
    )]
    RegistryStopped {
        /// The record.
        position: Position,
        /// What could not be read.
        why: String,
    },
    /// No revision of that number.
    #[error("{policy} has no revision {revision}")]
    NoSuchRevision {
        /// Which policy.
        policy: Box<PolicyKey>,
        /// The revision that was asked for.
        revision: Revision,
    },
}

/// Stable names of refusals, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RejectionCode {
    /// [`Rejection::StaleRevision`], [`Rejection::StaleRegistry`]
    StaleRevision,
    /// [`Rejection::EmptyChange`]
    EmptyChange,
    /// [`Rejection::UnknownParameter`]
    UnknownParameter,
    /// [`Rejection::InvalidValue`], [`Rejection::TooManyParameters`], [`Rejection::TooLarge`]
    InvalidValue,
    /// [`Rejection::InvalidScope`]
    InvalidScope,
    /// [`Rejection::InvalidSchema`]
    InvalidSchema,
    /// [`Rejection::InvalidSet`]
    InvalidSet,
    /// [`Rejection::Stopped`], [`Rejection::RegistryStopped`]
    PolicyStopped,
    /// [`Rejection::NoSuchRevision`]
    NoSuchRevision,
}

impl Rejection {
    /// The stable name.
    #[must_use]
    pub fn code(&self) -> RejectionCode {
        match self {
            Rejection::StaleRevision { .. } | Rejection::StaleRegistry { .. } => {
                RejectionCode::StaleRevision
            }
            Rejection::EmptyChange => RejectionCode::EmptyChange,
            Rejection::UnknownParameter { .. } => RejectionCode::UnknownParameter,
            Rejection::InvalidValue { .. }
            | Rejection::TooManyParameters { .. }
            | Rejection::TooLarge { .. } => RejectionCode::InvalidValue,
            Rejection::InvalidScope { .. } => RejectionCode::InvalidScope,
            Rejection::InvalidSchema { .. } => RejectionCode::InvalidSchema,
            Rejection::InvalidSet { .. } => RejectionCode::InvalidSet,
            Rejection::Stopped { .. } | Rejection::RegistryStopped { .. } => {
                RejectionCode::PolicyStopped
            }
            Rejection::NoSuchRevision { .. } => RejectionCode::NoSuchRevision,
        }
    }

    /// The field that was wrong, where one was.
    #[must_use]
    pub fn field(&self) -> Option<String> {
        match self {
            Rejection::StaleRevision { .. } | Rejection::StaleRegistry { .. } => {
                Some("expected_revision".to_owned())
            }
            Rejection::EmptyChange | Rejection::TooManyParameters { .. } => {
                Some("parameters".to_owned())
            }
            Rejection::UnknownParameter { name, .. } | Rejection::InvalidValue { name, .. } => {
                Some(format!("parameters.{name}"))
            }
            Rejection::TooLarge { field, .. } => Some((*field).to_owned()),
            Rejection::InvalidScope { field, .. } => Some(format!("scope.{field}")),
            Rejection::InvalidSchema { .. } => Some("schema".to_owned()),
            Rejection::InvalidSet { .. } => Some("changes".to_owned()),
            Rejection::NoSuchRevision { .. } => Some("to_revision".to_owned()),
            Rejection::Stopped { .. } | Rejection::RegistryStopped { .. } => None,
        }
    }
}
