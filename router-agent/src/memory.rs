//! What the agent must know of a router or a model's thresholds beyond what the frontend lists.
//!
//! Owns: the types that are kept on disk (see [`crate::store`]) and how they learn. Pure.
//!
//! Invariant: what is about to be sent is in memory before it is sent, so that after a crash the agent's own change is
//! not taken for somebody else's.

use std::collections::{BTreeMap, BTreeSet};

use schemas::{Overlay, ParameterName, Patch, Position, Revision, RouterId};
use serde::{Deserialize, Serialize};

use crate::target::{Configuration, Thresholds, Values};

/// What is known of one router instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RouterMemory {
    /// Startup values, as far as they were seen: all of them in a listing at local revision 0, single ones in the answer
    /// to a patch that restored them. They never change while the instance lives.
    pub startup: Values,
    /// Names that an overlay of ours has set since.
    pub overlaid: BTreeSet<ParameterName>,
    /// The last local revision that was accounted for; a higher one is somebody else's.
    pub seen: Option<Revision>,
    /// A patch that was sent and whose answer is not known.
    pub doubt: Option<PatchSent>,
    /// The last refusal; it is not asked again until something changes.
    pub refused: Option<Nack>,
}

/// A patch whose answer is not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PatchSent {
    /// The local revision that it was based on.
    pub expected: Revision,
    /// What it carried.
    pub patch: Patch,
}

/// A refusal of one router.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nack {
    /// The effective policy's position that was refused.
    pub position: Position,
    /// The router's revision then.
    pub revision: Revision,
    /// The router's own words.
    pub words: String,
}

/// How a listing's revision relates to what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Movement {
    /// First met.
    Met,
    /// As known, or the agent's own.
    Ours,
    /// Somebody else changed the router.
    Foreign,
    /// The listing is older than what the router answered.
    Behind,
}

impl RouterMemory {
    /// Takes a listing in: learns startup values and accounts for the revision.
    pub fn see(&mut self, listed: &Configuration) -> Movement {
        if listed.revision == Revision::ZERO && self.seen.is_none_or(|seen| seen == Revision::ZERO)
        {
            self.startup = listed.parameters.clone();
        }
        let Some(seen) = self.seen else {
            self.seen = Some(listed.revision);
            return Movement::Met;
        };
        if listed.revision < seen {
            return Movement::Behind;
        }
        if listed.revision == seen {
            return Movement::Ours;
        }
        let landed = self.doubt.take().is_some_and(|sent| {
            sent.expected.next() == listed.revision && self.landed(&sent.patch, listed)
        });
        self.seen = Some(listed.revision);
        if landed {
            Movement::Ours
        } else {
            Movement::Foreign
        }
    }

    /// True when a patch of ours explains what is listed.
    ///
    /// SUBTLE: nothing is learnt here. Somebody else's change may stand where our patch did not land, and look the same as
    /// far as our values go (seed of `whatever_happened_the_end_state_is_the_policy`); an unknown startup value is asked
    /// for once more instead.
    fn landed(&self, patch: &Patch, listed: &Configuration) -> bool {
        patch.iter().all(|(name, value)| {
            let wanted = value.as_ref().or_else(|| self.startup.get(name));
            wanted.is_none() || listed.parameters.get(name) == wanted
        })
    }

    /// About to send a patch.
    pub fn sending(&mut self, expected: Revision, patch: &Patch) {
        for (name, value) in patch {
            if value.is_some() {
                self.overlaid.insert(name.clone());
            }
        }
        self.doubt = Some(PatchSent {
            expected,
            patch: patch.clone(),
        });
    }

    /// The router took the patch and answered.
    pub fn taken(&mut self, patch: &Patch, revision: Revision, parameters: &Values) {
        self.doubt = None;
        self.refused = None;
        self.seen = Some(self.seen.map_or(revision, |seen| seen.max(revision)));
        self.restored(patch, parameters);
    }

    /// The values that a patch restored are startup values.
    fn restored(&mut self, patch: &Patch, parameters: &Values) {
        for (name, _) in patch.iter().filter(|(_, value)| value.is_none()) {
            self.overlaid.remove(name);
            if let Some(value) = parameters.get(name) {
                self.startup.insert(name.clone(), value.clone());
            }
        }
    }
}

/// What is known of one model's thresholds on one frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ThresholdMemory {
    /// What the frontend started with: first seen, before anything was set. `None` = off.
    pub startup: Thresholds,
    /// What the agent has set since.
    pub set: Overlay,
    /// What the frontend should list, as far as is known.
    pub seen: Thresholds,
    /// The model's routers when this was learnt. Any new id is a new set of workers, or a new process: its thresholds
    /// start from startup values again.
    pub routers: BTreeSet<RouterId>,
    /// Values that were sent and whose answer is not known.
    pub doubt: Option<Values>,
    /// The last refusal.
    pub refused: Option<ThresholdNack>,
    /// What was listed before the last values were taken: a frontend that still lists this has not acted yet.
    #[serde(skip)]
    pub before: Option<Thresholds>,
}

/// A refusal of thresholds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThresholdNack {
    /// The effective policy's position that was refused.
    pub position: Position,
    /// What the frontend listed then.
    pub listed: Thresholds,
    /// The frontend's own words.
    pub words: String,
}

impl ThresholdMemory {
    /// Takes a listing in.
    ///
    /// SUBTLE: the memory outlives the agent, so the same routers with our values in place are known again and nothing is
    /// learnt (`thresholds_memory_survives_the_agent`); new routers whose values are not ours are learnt anew
    /// (`a_restarted_frontend_is_learnt_anew`). New routers that still show what the agent had set keep the old memory:
    /// only a part of the workers came back.
    pub fn see(&mut self, listed: &Thresholds, routers: &BTreeSet<RouterId>) -> Movement {
        if self.startup.is_empty() {
            self.learn(listed);
            self.routers = routers.clone();
            return Movement::Met;
        }
        let renewed = if routers.is_empty() && self.routers.is_empty() {
            // Without routers to tell by (Dynamo 1.6): exactly the startup values again is a new start.
            !self.set.is_empty() && same(listed, &self.startup)
        } else {
            !routers.is_subset(&self.routers)
        };
        // Routers that are away for a moment are the same ones when they come back.
        if !routers.is_empty() {
            self.routers = routers.clone();
        }
        if same(listed, &self.seen) {
            self.before = None;
            return Movement::Ours;
        }
        let before = self.before.take();
        if let Some(sent) = self.doubt.take()
            && same(listed, &merged(&self.seen, &sent))
        {
            self.taken(&sent);
            return Movement::Ours;
        }
        let ours_in_place = !self.set.is_empty()
            && (self.set.iter())
                .all(|(name, value)| listed.get(name) == Some(&Some(value.clone())));
        if renewed && !ours_in_place {
            self.learn(listed);
            return Movement::Met;
        }
        self.seen = listed.clone();
        if before.is_some_and(|before| same(listed, &before)) {
            Movement::Behind
        } else {
            Movement::Foreign
        }
    }

    fn learn(&mut self, listed: &Thresholds) {
        *self = ThresholdMemory {
            startup: listed.clone(),
            seen: listed.clone(),
            routers: std::mem::take(&mut self.routers),
            ..ThresholdMemory::default()
        };
    }

    /// About to send values.
    pub fn sending(&mut self, values: &Values) {
        self.set.extend(
            values
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        self.doubt = Some(values.clone());
    }

    /// The frontend took them.
    pub fn taken(&mut self, values: &Values) {
        self.doubt = None;
        self.refused = None;
        let after = merged(&self.seen, values);
        self.before = Some(std::mem::replace(&mut self.seen, after));
    }
}

fn merged(thresholds: &Thresholds, values: &Values) -> Thresholds {
    let mut after = thresholds.clone();
    after.extend(
        values
            .iter()
            .map(|(name, value)| (name.clone(), Some(value.clone()))),
    );
    after
}

/// Equal in effect: off and the values that switch off are the same.
fn same(left: &Thresholds, right: &Thresholds) -> bool {
    let names: BTreeSet<&ParameterName> = left.keys().chain(right.keys()).collect();
    names.into_iter().all(|name| {
        let of = |side: &Thresholds| side.get(name).cloned().flatten();
        crate::threshold::equal(name, of(left).as_ref(), of(right).as_ref())
    })
}

/// Everything that is kept for one frontend.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FrontendMemory {
    /// By router.
    pub routers: BTreeMap<RouterId, RouterMemory>,
    /// By model.
    pub thresholds: BTreeMap<schemas::Name, ThresholdMemory>,
}
