//! A frontend in memory that behaves as Dynamo 1.7 does, with faults on demand: for tests and simulations.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use schemas::status::Capability;
use schemas::{Name, ParameterName, Patch, Revision, RouterId, RouterKey};

use crate::target::{
    Applied, Configuration, Listing, PolicyTarget, RouterView, TargetError, Thresholds, Values,
};

/// What goes wrong with the next change.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Answered with this; nothing changes.
    Error(TargetError),
    /// It happens, but the answer is lost.
    LostAnswer,
    /// Answered as done (with the values that were asked for), but nothing changes.
    Ignored,
}

/// One router of the frontend.
#[derive(Debug, Clone, PartialEq)]
pub struct FakeRouter {
    /// Model, worker type and endpoint.
    pub key: RouterKey,
    /// What it started with.
    pub startup: Values,
    /// Explicit values since.
    pub overlay: Values,
    /// Its revision.
    pub revision: Revision,
    /// False when its policy has no runtime configuration.
    pub configurable: bool,
    /// Names for which a value above 0 is refused (cache weights on a router without cache inputs).
    pub refuses: Vec<ParameterName>,
}

impl FakeRouter {
    /// A router at revision 0.
    #[must_use]
    pub fn new(key: RouterKey, startup: Values) -> FakeRouter {
        FakeRouter {
            key,
            startup,
            overlay: Values::new(),
            revision: Revision::ZERO,
            configurable: true,
            refuses: Vec::new(),
        }
    }

    /// Every parameter, resolved.
    #[must_use]
    pub fn parameters(&self) -> Values {
        let mut parameters = self.startup.clone();
        parameters.extend(self.overlay.clone());
        parameters
    }

    fn take(&mut self, patch: &Patch) -> Result<(), TargetError> {
        for (name, value) in patch {
            let above_0 = value.as_ref().and_then(|value| value.as_f64()) > Some(0.0);
            let words = if !self.startup.contains_key(name) {
                format!("invalid policy parameters: unknown field `{name}`")
            } else if above_0 && self.refuses.contains(name) {
                "invalid policy parameters: replacement changes routing requirements".to_owned()
            } else {
                continue;
            };
            return Err(TargetError::Refused { status: 422, words });
        }
        self.overlay = schemas::parameter::apply(&self.overlay, patch);
        self.revision = self.revision.next();
        Ok(())
    }
}

/// A frontend in memory.
#[derive(Debug, Clone, Default)]
pub struct FakeFrontend {
    /// Its routers.
    pub routers: BTreeMap<RouterId, FakeRouter>,
    /// Its models' thresholds.
    pub thresholds: BTreeMap<Name, Thresholds>,
    /// Faults of the next changes, in order.
    pub faults: VecDeque<Fault>,
    /// Why nothing is answered at all; `None` = all is well.
    pub down: Option<TargetError>,
    /// True = no `/router_policy` (Dynamo 1.6).
    pub legacy: bool,
    /// How many changes were asked for.
    pub asked: u64,
}

impl FakeFrontend {
    /// What it lists.
    ///
    /// # Errors
    /// [`FakeFrontend::down`].
    pub fn list(&self) -> Result<Listing, TargetError> {
        if let Some(why) = &self.down {
            return Err(why.clone());
        }
        let view = |router: &FakeRouter| RouterView {
            key: router.key.clone(),
            configuration: router.configurable.then(|| Configuration {
                revision: router.revision,
                parameters: router.parameters(),
            }),
        };
        Ok(Listing {
            capability: if self.legacy {
                Capability::BusyThresholdOnly
            } else {
                Capability::RouterPolicy
            },
            routers: (self.routers.iter())
                .filter(|_| !self.legacy)
                .map(|(id, router)| (*id, view(router)))
                .collect(),
            thresholds: self.thresholds.clone(),
            unaddressable: Vec::new(),
        })
    }

    /// Patches a router.
    ///
    /// # Errors
    /// As a frontend would, or as the next fault says.
    pub fn apply(
        &mut self,
        id: RouterId,
        expected: Revision,
        patch: &Patch,
    ) -> Result<Applied, TargetError> {
        self.asked += 1;
        if let Some(why) = &self.down {
            return Err(why.clone());
        }
        let fault = self.faults.pop_front();
        if let Some(Fault::Error(why)) = fault {
            return Err(why);
        }
        let router = self.routers.get_mut(&id).ok_or(TargetError::Gone)?;
        if router.revision != expected {
            return Err(TargetError::Conflict);
        }
        let mut after = router.clone();
        after.take(patch)?;
        let applied = Applied {
            revision: after.revision,
            parameters: after.parameters(),
        };
        match fault {
            Some(Fault::Ignored) => Ok(applied),
            Some(Fault::LostAnswer) => {
                *router = after;
                Err(TargetError::transient("timed out"))
            }
            Some(Fault::Error(_)) | None => {
                *router = after;
                Ok(applied)
            }
        }
    }

    /// Sets thresholds.
    ///
    /// # Errors
    /// As a frontend would, or as the next fault says.
    pub fn set_thresholds(&mut self, model: &Name, values: &Values) -> Result<(), TargetError> {
        self.asked += 1;
        if let Some(why) = &self.down {
            return Err(why.clone());
        }
        let fault = self.faults.pop_front();
        if let Some(Fault::Error(why)) = fault {
            return Err(why);
        }
        let thresholds = self.thresholds.get_mut(model).ok_or(TargetError::Gone)?;
        if fault != Some(Fault::Ignored) {
            for (name, value) in values {
                if let Some(known) = thresholds.get_mut(name) {
                    *known = Some(value.clone());
                }
            }
        }
        match fault {
            Some(Fault::LostAnswer) => Err(TargetError::transient("timed out")),
            Some(Fault::Ignored | Fault::Error(_)) | None => Ok(()),
        }
    }
}

/// The same as a target, with a delay for each answer.
#[derive(Debug, Default)]
pub struct FakeTarget {
    frontend: Mutex<FakeFrontend>,
    delay: Mutex<Duration>,
}

impl FakeTarget {
    /// A target that is this frontend.
    #[must_use]
    pub fn new(frontend: FakeFrontend) -> FakeTarget {
        FakeTarget {
            frontend: Mutex::new(frontend),
            delay: Mutex::default(),
        }
    }

    /// The frontend, to look at and to change behind everybody's back.
    pub fn frontend(&self) -> MutexGuard<'_, FakeFrontend> {
        self.frontend.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every answer takes this long from now on.
    pub fn slow_down(&self, delay: Duration) {
        *self.delay.lock().unwrap_or_else(PoisonError::into_inner) = delay;
    }

    async fn wait(&self) {
        let delay = *self.delay.lock().unwrap_or_else(PoisonError::into_inner);
        if delay > Duration::ZERO {
            tokio::time::sleep(delay).await;
        }
    }
}

#[async_trait]
impl PolicyTarget for FakeTarget {
    async fn list(&self) -> Result<Listing, TargetError> {
        self.wait().await;
        self.frontend().list()
    }

    async fn apply(
        &self,
        router: RouterId,
        expected: Revision,
        patch: &Patch,
    ) -> Result<Applied, TargetError> {
        self.wait().await;
        self.frontend().apply(router, expected, patch)
    }

    async fn set_thresholds(&self, model: &Name, values: &Values) -> Result<(), TargetError> {
        self.wait().await;
        self.frontend().set_thresholds(model, values)
    }
}
