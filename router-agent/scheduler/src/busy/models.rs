//! The worker sets of every model of a frontend, and the gate before them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::busy::{Overloaded, Thresholds, UnknownModel, WorkerSet};

type Sets = BTreeMap<String, BTreeMap<String, Weak<WorkerSet>>>;

/// The worker sets of every model of a frontend.
#[derive(Debug, Clone, Default)]
pub struct Models {
    startup: Thresholds,
    sets: Arc<Mutex<Sets>>,
}

impl Models {
    /// New worker sets start from these.
    #[must_use]
    pub fn new(startup: Thresholds) -> Models {
        Models {
            startup,
            sets: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        for of_model in sets.values_mut() {
            of_model.retain(|_, set| set.strong_count() > 0);
        }
        sets.retain(|_, of_model| !of_model.is_empty());
        sets
    }

    /// A worker set was discovered; it counts for as long as the answer is kept. `set` names it within the model.
    #[must_use]
    pub fn discover(&self, model: &str, set: &str) -> Arc<WorkerSet> {
        let found = Arc::new(WorkerSet::new(self.startup));
        let mut sets = self.lock();
        let of_model = sets.entry(model.to_owned()).or_default();
        of_model.insert(set.to_owned(), Arc::downgrade(&found));
        found
    }

    fn sets(&self, model: &str) -> Vec<Arc<WorkerSet>> {
        let sets = self.lock();
        let of_model = sets.get(model).into_iter().flat_map(BTreeMap::values);
        of_model.filter_map(Weak::upgrade).collect()
    }

    /// Thresholds of a model: those of its first worker set by name. `None` when it has none.
    #[must_use]
    pub fn read(&self, model: &str) -> Option<Thresholds> {
        self.sets(model).first().map(|set| set.thresholds())
    }

    /// Sets what `some` has in every worker set of the model.
    ///
    /// # Errors
    /// [`UnknownModel`].
    pub fn set(&self, model: &str, some: &Thresholds) -> Result<Thresholds, UnknownModel> {
        for set in self.sets(model) {
            set.set(some);
        }
        self.read(model)
            .ok_or_else(|| UnknownModel(model.to_owned()))
    }

    /// Every discovered model with its thresholds, by name.
    #[must_use]
    pub fn list(&self) -> Vec<(String, Thresholds)> {
        let models: Vec<String> = self.lock().keys().cloned().collect();
        let read = |model: String| self.read(&model).map(|thresholds| (model, thresholds));
        models.into_iter().filter_map(read).collect()
    }

    /// Lets a request of the model in, unless all workers of all its worker sets are busy. A model without workers passes:
    /// that is another error, and not this one's.
    ///
    /// # Errors
    /// [`Overloaded`].
    pub fn gate(&self, model: &str) -> Result<(), Overloaded> {
        let counts = self
            .sets(model)
            .iter()
            .map(|set| set.count())
            .fold((0, 0), |(workers, busy), (more, more_busy)| {
                (workers + more, busy + more_busy)
            });
        match counts {
            (0, _) => Ok(()),
            (workers, busy) if workers == busy => Err(Overloaded(model.to_owned())),
            (_, _) => Ok(()),
        }
    }
}
