//! What a frontend must offer so that its routers can be kept on the policy, whatever carries the requests.
//!
//! Owns: the port `PolicyTarget` and its errors. Implementations: [`crate::dynamo_http`] (a Dynamo frontend over HTTP),
//! [`crate::in_process`] (live schedulers in this process) and [`crate::testing`] (a frontend in memory). Never does:
//! decide what to apply, retry, or wait.

use std::collections::BTreeMap;

use async_trait::async_trait;
use schemas::status::Capability;
use schemas::{Name, ParameterName, ParameterValue, Patch, Revision, RouterId, RouterKey};

/// Resolved values, by name.
pub type Values = BTreeMap<ParameterName, ParameterValue>;

/// One frontend.
#[async_trait]
pub trait PolicyTarget: Send + Sync + 'static {
    /// Everything that can be addressed now. An answer that cannot be understood is an error, never "no routers".
    ///
    /// # Errors
    /// [`TargetError::Transient`].
    async fn list(&self) -> Result<Listing, TargetError>;

    /// Patches one router, if its local revision is still `expected`. A value sets, `None` restores the startup value.
    ///
    /// # Errors
    /// [`TargetError`]. After [`TargetError::Transient`] the patch may have been applied.
    async fn apply(
        &self,
        router: RouterId,
        expected: Revision,
        patch: &Patch,
    ) -> Result<Applied, TargetError>;

    /// Sets busy thresholds of one model; names that are absent keep their value.
    ///
    /// # Errors
    /// [`TargetError`]. After [`TargetError::Transient`] they may have been set.
    async fn set_thresholds(&self, model: &Name, values: &Values) -> Result<(), TargetError>;
}

/// What a frontend listed.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// What the frontend offers.
    pub capability: Capability,
    /// Its routers, by id. A fresh frontend lists none for a moment.
    pub routers: BTreeMap<RouterId, RouterView>,
    /// Thresholds per model. A name that is listed as `null` (off) is there with `None`; one that the frontend does not
    /// know is absent.
    pub thresholds: BTreeMap<Name, Thresholds>,
    /// Routers and models that no scope can address, in words.
    pub unaddressable: Vec<String>,
}

/// Thresholds of one model as listed: `None` = off.
pub type Thresholds = BTreeMap<ParameterName, Option<ParameterValue>>;

/// One router as listed.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterView {
    /// Model, worker type and endpoint.
    pub key: RouterKey,
    /// `None` when its policy has no runtime configuration.
    pub configuration: Option<Configuration>,
}

/// A router's runtime configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Configuration {
    /// The router's own revision.
    pub revision: Revision,
    /// Every parameter, resolved.
    pub parameters: Values,
}

/// What a router answered to a patch that it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// Its revision now.
    pub revision: Revision,
    /// Every parameter, resolved.
    pub parameters: Values,
}

/// Why a frontend did not do something. Told apart by status, never by text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It will not, whatever the time (HTTP 400, 413, 415, 422). Asking again the same way is useless.
    #[error("{words} (status {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The frontend's own words.
        words: String,
    },
    /// The router has another revision by now (409).
    #[error("the router's revision has moved")]
    Conflict,
    /// There is no such router or model (404).
    #[error("the frontend no longer has it")]
    Gone,
    /// The frontend has no such function.
    #[error("{0}")]
    Unsupported(String),
    /// Not now: no connection, timeout, 5xx, or an answer that makes no sense. What was asked may have happened.
    #[error("{words}")]
    Transient {
        /// What went wrong.
        words: String,
    },
}

impl TargetError {
    /// A transient failure in these words.
    #[must_use]
    pub fn transient(words: impl Into<String>) -> TargetError {
        TargetError::Transient {
            words: words.into(),
        }
    }
}
