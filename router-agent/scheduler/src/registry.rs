//! The routers of one frontend: which there are, and how to reach each.
//!
//! Owns: the map from router id to control. Never does: keep a router alive, or make an id.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use schemas::{RouterId, RouterKey};

use crate::control::Control;

/// One router as listed.
#[derive(Debug, Clone)]
pub struct Router {
    /// Its id; a recreated router has another.
    pub id: RouterId,
    /// What it serves.
    pub key: RouterKey,
    /// How to reach it.
    pub control: Control,
}

type Routers = BTreeMap<RouterId, (RouterKey, Control)>;

/// All routers of a frontend.
#[derive(Debug, Clone, Default)]
pub struct Registry(Arc<Mutex<Routers>>);

/// Lists a router for as long as it is kept.
#[derive(Debug)]
#[must_use = "dropping it takes the router off the list"]
pub struct Registration {
    id: RouterId,
    routers: Weak<Mutex<Routers>>,
}

fn lock(routers: &Mutex<Routers>) -> MutexGuard<'_, Routers> {
    routers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// None yet.
    #[must_use]
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Lists a router. The caller makes the id, and a new one for every new router.
    pub fn register(&self, id: RouterId, key: RouterKey, control: Control) -> Registration {
        lock(&self.0).insert(id, (key, control));
        Registration {
            id,
            routers: Arc::downgrade(&self.0),
        }
    }

    /// The routers of a model, or all; retired ones are left out. Ordered by id.
    #[must_use]
    pub fn list(&self, model: Option<&str>) -> Vec<Router> {
        let routers = lock(&self.0);
        routers
            .iter()
            .filter(|(_, (key, _))| model.is_none_or(|model| key.model.as_str() == model))
            .filter(|(_, (_, control))| control.is_live())
            .map(|(id, (key, control))| Router {
                id: *id,
                key: key.clone(),
                control: control.clone(),
            })
            .collect()
    }

    /// One router, unless it is retired.
    #[must_use]
    pub fn find(&self, id: RouterId) -> Option<Router> {
        let found = lock(&self.0).get(&id).cloned();
        found
            .filter(|(_, control)| control.is_live())
            .map(|(key, control)| Router { id, key, control })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(routers) = self.routers.upgrade() {
            lock(&routers).remove(&self.id);
        }
    }
}
