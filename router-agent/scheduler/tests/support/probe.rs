//! A policy that can be watched: who is alive, who drops it, and a gate that holds its selections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use scheduler::dynamo::{
    KvRouterConfig, WorkerCandidates, WorkerInputView, WorkerPicker, WorkerScorer,
    WorkerSelectionContext, WorkerSelectionPolicy, WorkerSelectionPolicyError,
};
use scheduler::{Builder, Invalid, Parameter, Parameters, Policy, Replacement, Rule};
use schemas::{ParameterName, ParameterValue};

/// What tests see of all policies of one router.
#[derive(Debug, Default)]
pub struct Watch {
    /// Pickers that exist.
    pub alive: AtomicUsize,
    /// Selections that came as far as the picker.
    pub picked: AtomicUsize,
    /// Selections whose scorer and picker came from different policies.
    pub mixed: AtomicUsize,
    /// `value` of the policy that picked last.
    pub last: AtomicUsize,
    /// Names of the threads that dropped a picker.
    pub dropped_on: Mutex<Vec<String>>,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Watch {
    /// Holds every selection that reaches the picker from now on.
    pub fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }

    /// Lets them go on.
    pub fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.opened.notify_all();
    }

    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }

    /// Waits until that many selections have reached the picker.
    pub async fn reached(&self, picked: usize) {
        while self.picked.load(Ordering::SeqCst) < picked {
            tokio::task::yield_now().await;
        }
    }
}

/// Builds policies with one parameter, `value`, that both their parts carry.
pub struct Watched {
    declared: [Parameter; 1],
    watch: Arc<Watch>,
}

/// A router's policy and the watch over it.
pub fn watched() -> (Policy, Arc<Watch>) {
    let watch = Arc::new(Watch::default());
    let declared = [Parameter {
        name: ParameterName::new("value").unwrap(),
        rule: Rule::Whole(u64::from(u32::MAX)),
        startup: ParameterValue::integer(0),
    }];
    let builder = Watched {
        declared,
        watch: Arc::clone(&watch),
    };
    (Policy::Live(Box::new(builder)), watch)
}

impl Builder for Watched {
    fn parameters(&self) -> &[Parameter] {
        &self.declared
    }

    fn build(&self, parameters: &Parameters) -> Result<Replacement, Invalid> {
        let value = parameters.number("value") as usize;
        let watch = Arc::clone(&self.watch);
        watch.alive.fetch_add(1, Ordering::SeqCst);
        let worker_label = "decode";
        let policy = WorkerSelectionPolicy::new(
            KvRouterConfig::default(),
            worker_label,
            vec![Box::new(Scorer(value))],
            Box::new(Picker { value, watch }),
        );
        Ok(Replacement {
            policy,
            worker_label,
        })
    }

    fn warms(&self) -> bool {
        false
    }
}

struct Scorer(usize);

impl WorkerScorer for Scorer {
    fn score(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        _: WorkerCandidates<'_>,
        costs: &mut [f64],
    ) -> Result<(), WorkerSelectionPolicyError> {
        costs.fill(self.0 as f64);
        Ok(())
    }
}

struct Picker {
    value: usize,
    watch: Arc<Watch>,
}

impl WorkerPicker for Picker {
    fn pick(
        &mut self,
        _: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let watch = &self.watch;
        let costs = input.candidates().iter().map(|candidate| candidate.cost());
        let mixed = costs.filter(|cost| *cost != self.value as f64).count();
        watch.mixed.fetch_add(mixed, Ordering::SeqCst);
        watch.last.store(self.value, Ordering::SeqCst);
        watch.picked.fetch_add(1, Ordering::SeqCst);
        let mut closed = watch.closed.lock().unwrap();
        while *closed {
            closed = watch.opened.wait(closed).unwrap();
        }
        Ok(0)
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.watch.alive.fetch_sub(1, Ordering::SeqCst);
        let name = std::thread::current()
            .name()
            .unwrap_or("unnamed")
            .to_owned();
        self.watch.dropped_on.lock().unwrap().push(name);
    }
}
