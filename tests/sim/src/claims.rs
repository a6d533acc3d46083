//! What is claimed about routers, judged where it is claimed.

use crate::world::World;
use router_agent::target::{Listing, Values};
use schemas::status::{ApplyState, FrontendStatus};
use schemas::{Patch, RouterId};

impl World {
    /// What is patched is what one prefix of the log wants, and nothing else.
    pub(crate) fn check_patch(&mut self, i: usize, at: usize, router: RouterId, patch: &Patch) {
        let it = &self.agents[i].loops[at];
        let key = it
            .status
            .routers
            .iter()
            .find(|known| known.router_id == router);
        let (Some(state), Some(key)) = (&it.desired, key) else {
            let what = format!("agent {i} patches router {router} without a policy");
            return self.oracle.violation(what);
        };
        let group = self.agents[i].group.as_ref();
        let wanted = schemas::effective::effective(state, &key.router, group).overlay();
        let set: Values = patch
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
            .collect();
        if set != wanted {
            let what = format!("agent {i} patches router {router} with {set:?}, not {wanted:?}");
            self.oracle.violation(what);
        }
    }

    /// "Applied" is true of the listing, which was asked for after the last answer; it never goes back.
    pub(crate) fn check_listing(
        &mut self,
        i: usize,
        at: usize,
        asked: u64,
        listing: &Listing,
        before: &FrontendStatus,
    ) {
        let group = self.agents[i].group.clone();
        let it = &mut self.agents[i].loops[at];
        let frontend = it.frontend;
        let mut wrong = Vec::new();
        for router in &it.status.routers {
            let mark = match router.state {
                ApplyState::Applied => "state applied",
                ApplyState::Refused => "state refused",
                ApplyState::Stopped => "state stopped",
                ApplyState::Unsupported => "state unsupported",
                ApplyState::Drifted | ApplyState::Pending => continue,
            };
            let id = router.router_id;
            let known = before.routers.iter().find(|known| known.router_id == id);
            if known.is_none_or(|known| known.state != router.state) {
                self.marks.hit(mark);
            }
            if !matches!(router.state, ApplyState::Applied | ApplyState::Stopped) {
                continue;
            }
            let last = it.applied.entry(id).or_default();
            if router.position < *last {
                wrong.push(format!(
                    "router {id} applied goes back from {last} to {}",
                    router.position
                ));
            }
            *last = router.position;
            let Some(view) = listing.routers.get(&id) else {
                continue;
            };
            let fresh = known.is_none_or(|known| {
                known.state != router.state || known.position != router.position
            });
            if fresh
                && it
                    .answered
                    .get(&id)
                    .is_some_and(|answered| *answered > asked)
            {
                wrong.push(format!(
                    "router {id} is said to be applied by a listing older than the last change"
                ));
            }
            let Some(state) = &it.desired else { continue };
            let wanted = schemas::effective::effective(state, &view.key, group.as_ref()).overlay();
            let Some(real) = self.frontends[frontend].fake.routers.get(&id) else {
                continue;
            };
            if let Some(listed) = &view.configuration {
                let mut should = real.startup.clone();
                should.extend(wanted);
                if listed.parameters != should {
                    wrong.push(format!(
                        "router {id} is said to be applied at {} with {:?}, not {should:?}",
                        router.position, listed.parameters
                    ));
                }
            }
        }
        if it.status.routers.iter().any(|router| router.drifts > 0) {
            self.marks.hit("drift seen");
        }
        for what in wrong {
            self.oracle.violation(format!("agent {i}: {what}"));
        }
    }
}
