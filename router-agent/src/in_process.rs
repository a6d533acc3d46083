//! Live schedulers in this very process as a [`PolicyTarget`]: the same listing and refusals as over HTTP, without HTTP.
//!
//! Owns: the translation between the agent's words and those of `scheduler`. Never does: keep a router alive (registry and
//! worker sets are weak), or judge a change.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use scheduler::busy::{Models, Thresholds as Busy};
use scheduler::{Change, Configuration as Live, Registry, UpdateError};
use schemas::status::Capability;
use schemas::{Name, ParameterName, ParameterValue, Patch, Revision, RouterId};
use serde_json::Value;

use crate::target::{
    Applied, Configuration, Listing, PolicyTarget, RouterView, TargetError, Thresholds, Values,
};

/// The routers and busy thresholds of a frontend in this process.
#[derive(Debug, Clone)]
pub struct InProcess {
    /// Its routers.
    pub routers: Registry,
    /// Its models' busy thresholds.
    pub models: Models,
    /// How long a scheduler may take to answer. One that takes longer is left out of the listing, as a frontend does.
    pub patience: Duration,
}

#[async_trait]
impl PolicyTarget for InProcess {
    async fn list(&self) -> Result<Listing, TargetError> {
        let routers = self.routers.list(None);
        // All at once: a stalled scheduler costs its own patience, and only itself a place on the list.
        let read = routers.iter().map(|one| one.control.read(self.patience));
        let read = join_all(read).await;
        let mut listing = Listing {
            capability: Capability::RouterPolicy,
            routers: BTreeMap::new(),
            thresholds: BTreeMap::new(),
            unaddressable: Vec::new(),
        };
        for (router, read) in routers.into_iter().zip(read) {
            match read {
                Ok(live) => {
                    let view = RouterView {
                        key: router.key,
                        configuration: live.map(|live| Configuration {
                            revision: live.revision,
                            parameters: values(&live),
                        }),
                    };
                    listing.routers.insert(router.id, view);
                }
                Err(why) => {
                    tracing::warn!(router = %router.id, error = %why, "left out of the listing");
                }
            }
        }
        for (model, busy) in self.models.list() {
            match Name::new(model.as_str()) {
                Ok(model) => {
                    listing.thresholds.insert(model, thresholds(&busy)?);
                }
                Err(why) => listing
                    .unaddressable
                    .push(format!("thresholds of model {model:?}: model {why}")),
            }
        }
        Ok(listing)
    }

    async fn apply(
        &self,
        router: RouterId,
        expected: Revision,
        patch: &Patch,
    ) -> Result<Applied, TargetError> {
        let router = self.routers.find(router).ok_or(TargetError::Gone)?;
        let change = Change::from(patch);
        let updated = router
            .control
            .update(expected, &change, self.patience)
            .await
            .map_err(|why| refusal(&why))?;
        Ok(Applied {
            revision: updated.revision,
            parameters: values(&updated),
        })
    }

    async fn set_thresholds(&self, model: &Name, values: &Values) -> Result<(), TargetError> {
        let some = busy(values)?;
        some.check().map_err(|why| refused(400, &why))?;
        match self.models.set(model.as_str(), &some) {
            Ok(_) => Ok(()),
            Err(scheduler::busy::UnknownModel(_)) => Err(TargetError::Gone),
        }
    }
}

fn values(live: &Live) -> Values {
    let pair = |(name, value): (&ParameterName, &ParameterValue)| (name.clone(), value.clone());
    live.parameters.iter().map(pair).collect()
}

/// Statuses are those that the façade answers with.
fn refusal(why: &UpdateError) -> TargetError {
    match why {
        UpdateError::Retired => TargetError::Gone,
        UpdateError::Conflict { .. } => TargetError::Conflict,
        UpdateError::Empty => refused(400, why),
        UpdateError::Invalid(_) | UpdateError::Unsupported => refused(422, why),
        UpdateError::TimedOut(_) | UpdateError::Crowded => TargetError::transient(why.to_string()),
    }
}

fn refused(status: u16, why: &dyn std::fmt::Display) -> TargetError {
    TargetError::Refused {
        status,
        words: why.to_string(),
    }
}

/// As a frontend lists them: every name, `None` where nothing is judged.
fn thresholds(busy: &Busy) -> Result<Thresholds, TargetError> {
    let listed = serde_json::to_value(busy).ok();
    let Some(Value::Object(fields)) = listed else {
        return Err(TargetError::transient("thresholds that are no object"));
    };
    let pair = |(name, value): (String, Value)| {
        let value = (!value.is_null()).then(|| ParameterValue::raw(value));
        Some((ParameterName::new(name).ok()?, value))
    };
    Ok(fields.into_iter().filter_map(pair).collect())
}

fn busy(values: &Values) -> Result<Busy, TargetError> {
    let mut some = Busy::default();
    for (name, value) in values {
        let wrong = || {
            let json = value.as_json();
            refused(400, &format!("{name} cannot be {json}"))
        };
        match name.as_str() {
            "active_decode_blocks_threshold" => {
                some.active_decode_blocks_threshold = Some(value.as_f64().ok_or_else(wrong)?);
            }
            "active_prefill_tokens_threshold" => {
                let tokens = value.as_json().as_u64().ok_or_else(wrong)?;
                some.active_prefill_tokens_threshold = Some(tokens);
            }
            "active_prefill_tokens_threshold_frac" => {
                some.active_prefill_tokens_threshold_frac = Some(value.as_f64().ok_or_else(wrong)?);
            }
            _ => return Err(refused(400, &format!("unknown threshold {name}"))),
        }
    }
    Ok(some)
}
