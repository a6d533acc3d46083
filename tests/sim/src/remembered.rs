//! Memory of routers and thresholds as an agent's folder holds it.

use crate::plan::MS;
use router_agent::memory::{FrontendMemory, RouterMemory, ThresholdMemory};
use schemas::{Name, RouterId};
use std::collections::{BTreeMap, VecDeque};

/// Memory as a folder holds it: written at once, with the system within half a second.
#[derive(Debug, Default)]
pub struct MemoryDisk {
    flushed: BTreeMap<usize, FrontendMemory>,
    written: VecDeque<(u64, usize, Change)>,
    /// It was lost, wholly or in part.
    pub lost: bool,
}

impl MemoryDisk {
    pub(crate) fn keep(&mut self, now: u64, frontend: usize, change: Change) {
        let new_startup = match &change {
            Change::Thresholds(model, memory) => {
                let before = self.load(frontend);
                let known = before.thresholds.get(model);
                known.is_none_or(|known| known.startup != memory.startup)
            }
            Change::Router(..) => false,
        };
        self.written.push_back((now, frontend, change));
        let flushed = if new_startup {
            self.written.len()
        } else {
            (self.written.iter())
                .take_while(|(at, ..)| at + 500 * MS < now)
                .count()
        };
        self.flush(flushed);
    }

    fn flush(&mut self, count: usize) {
        for (_, frontend, change) in self.written.drain(..count) {
            apply(self.flushed.entry(frontend).or_default(), &change);
        }
    }

    pub(crate) fn load(&self, frontend: usize) -> FrontendMemory {
        let mut memory = self.flushed.get(&frontend).cloned().unwrap_or_default();
        for (_, at, change) in &self.written {
            if *at == frontend {
                apply(&mut memory, change);
            }
        }
        memory
    }

    /// The process ends suddenly: a part of what was written last is lost.
    pub fn crash(&mut self, now: u64, chance: f64, power: bool) {
        if !power {
            let flushed = (self.written.iter())
                .take_while(|(at, ..)| at + 500 * MS < now)
                .count();
            self.flush(flushed);
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a small number"
        )]
        let survive = (self.written.len() as f64 * chance) as usize;
        self.flush(survive);
        self.written.clear();
    }

    /// Everything is gone.
    pub fn wipe(&mut self) {
        *self = MemoryDisk {
            lost: true,
            ..MemoryDisk::default()
        };
    }

    /// What `adopt` forgets.
    pub fn forget_refusals(&mut self) {
        let all = self.written.len();
        self.flush(all);
        for memory in self.flushed.values_mut() {
            for router in memory.routers.values_mut() {
                router.refused = None;
            }
            for model in memory.thresholds.values_mut() {
                model.refused = None;
            }
        }
    }
}

#[derive(Debug)]
pub(crate) enum Change {
    Router(RouterId, Option<Box<RouterMemory>>),
    Thresholds(Name, Box<ThresholdMemory>),
}

fn apply(memory: &mut FrontendMemory, change: &Change) {
    match change {
        Change::Router(id, Some(kept)) => {
            memory.routers.insert(*id, (**kept).clone());
        }
        Change::Router(id, None) => {
            memory.routers.remove(id);
        }
        Change::Thresholds(model, kept) => {
            memory.thresholds.insert(model.clone(), (**kept).clone());
        }
    }
}
