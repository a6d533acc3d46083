//! One router's part of the loop: what a listing means for it, and what an answer means.

use schemas::effective::effective;
use schemas::status::{ApplyState, RouterStatus};
use schemas::{Patch, Position, Revision, RouterId, RouterKey};

use super::course::{Course, Now};
use super::{Context, Mode};
use crate::memory::{Movement, Nack, RouterMemory};
use crate::plan::{Plan, plan};
use crate::target::{Applied, Configuration, RouterView, TargetError};

/// One router as the loop knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Router {
    /// Model, worker type and endpoint.
    pub key: RouterKey,
    /// What was listed last.
    pub observed: Option<Configuration>,
    /// Where it stands.
    pub course: Course,
    /// A patch that may go out as soon as the course allows.
    pub owed: Option<Owed>,
    /// The patch that is on its way.
    sent: Option<Owed>,
    /// The patch that was acknowledged and not yet seen in a listing.
    acknowledged: Option<Patch>,
}

/// A patch and what it was planned on.
#[derive(Debug, Clone, PartialEq)]
pub struct Owed {
    /// The router's revision.
    pub expected: Revision,
    /// What to send.
    pub patch: Patch,
    /// The effective policy's position.
    pub policy: Position,
    /// The state's position.
    pub position: Position,
}

impl Router {
    /// Just met.
    #[must_use]
    pub fn new(now: Now, view: &RouterView) -> Router {
        Router {
            key: view.key.clone(),
            observed: None,
            course: Course::new(now),
            owed: None,
            sent: None,
            acknowledged: None,
        }
    }

    /// Takes a listing in. Changes nothing while a change is on its way, or when the listing is older than the last one.
    pub fn judge(&mut self, context: &Context<'_>, view: &RouterView, memory: &mut RouterMemory) {
        if self.course.busy || context.number < self.course.listing_from {
            return;
        }
        let now = context.now;
        self.key = view.key.clone();
        let before = std::mem::replace(&mut self.observed, view.configuration.clone());
        let movement = match &self.observed {
            Some(listed) => memory.see(listed),
            None => Movement::Met,
        };
        let changed_in_place = match (&before, &self.observed) {
            (Some(before), Some(listed)) => {
                before.revision == listed.revision && before.parameters != listed.parameters
            }
            _ => false,
        };
        if movement == Movement::Foreign || changed_in_place {
            self.course.drifted();
        }
        self.owed = None;
        let unseen = self.unseen(movement, memory);
        let Some(state) = context.desired else {
            let words = Some("no policy is known yet".to_owned());
            self.course
                .enter(now, ApplyState::Pending, Position::START, words);
            return;
        };
        let wanted = effective(state, &self.key, context.settings.group.as_ref());
        let position = state.position;
        let planned = plan(&wanted.overlay(), self.observed.as_ref(), memory);
        let words = planned.to_string();
        let (expected, patch) = match planned {
            Plan::Nothing => {
                let stopped = wanted.stopped.as_ref().map(|stop| stop.why.as_str());
                return self.course.settle(now, position, stopped);
            }
            Plan::Unsupported { .. } => {
                return self
                    .course
                    .enter(now, ApplyState::Unsupported, position, Some(words));
            }
            Plan::Patch {
                expected, patch, ..
            } => (expected, patch),
        };
        if context.settings.mode == Mode::Observe {
            return self
                .course
                .enter(now, ApplyState::Drifted, position, Some(words));
        }
        if let Some(refused) = memory
            .refused
            .as_ref()
            .filter(|refused| refused.position == wanted.position && refused.revision == expected)
        {
            let words = Some(refused.words.clone());
            return self.course.enter(now, ApplyState::Refused, position, words);
        }
        if super::held_back(&mut self.course, context, position) {
            return;
        }
        if unseen {
            self.course.unseen(now);
        }
        self.course.pend(now, position);
        self.owed = Some(Owed {
            expected,
            patch,
            policy: wanted.position,
            position,
        });
    }

    /// True when the last change was acknowledged, nobody else has changed the router since, and yet it is not listed.
    fn unseen(&mut self, movement: Movement, memory: &RouterMemory) -> bool {
        let (Some(patch), Some(listed)) = (self.acknowledged.take(), &self.observed) else {
            return false;
        };
        movement != Movement::Foreign
            && patch.iter().any(|(name, value)| {
                let wanted = value.as_ref().or_else(|| memory.startup.get(name));
                listed.parameters.get(name) != wanted
            })
    }

    /// A patch goes out.
    pub fn send(&mut self, now: Now, memory: &mut RouterMemory) -> Option<Owed> {
        let owed = self.owed.take()?;
        memory.sending(owed.expected, &owed.patch);
        self.course.send(now);
        self.sent = Some(owed.clone());
        Some(owed)
    }

    /// The answer came. Only a listing from number `listing_from` on counts after it.
    pub fn answered(
        &mut self,
        now: Now,
        listing_from: u64,
        outcome: Result<Applied, TargetError>,
        memory: &mut RouterMemory,
    ) {
        self.course.busy = false;
        self.course.listing_from = listing_from;
        let Some(sent) = self.sent.take() else {
            return;
        };
        match outcome {
            Ok(applied) => {
                memory.taken(&sent.patch, applied.revision, &applied.parameters);
                self.acknowledged = Some(sent.patch);
                self.course.acknowledge();
            }
            Err(TargetError::Refused { words, .. } | TargetError::Unsupported(words)) => {
                memory.doubt = None;
                memory.refused = Some(Nack {
                    position: sent.policy,
                    revision: sent.expected,
                    words: words.clone(),
                });
                self.course
                    .enter(now, ApplyState::Refused, sent.position, Some(words));
            }
            Err(TargetError::Conflict) => {
                memory.doubt = None;
                self.course.conflict(now);
            }
            Err(TargetError::Gone) => {
                memory.doubt = None;
                self.course.fail(now, super::course::BACKOFF_MAX);
            }
            Err(TargetError::Transient { words }) => {
                self.course.fail(now, super::course::BACKOFF_MAX);
                self.course.error = Some(words);
            }
        }
    }

    /// As reported.
    #[must_use]
    pub fn status(&self, id: RouterId) -> RouterStatus {
        RouterStatus {
            router_id: id,
            router: self.key.clone(),
            local_revision: self.observed.as_ref().map(|listed| listed.revision),
            parameters: self
                .observed
                .as_ref()
                .map(|listed| listed.parameters.clone())
                .unwrap_or_default(),
            state: self.course.state,
            position: self.course.position,
            error: self.course.error.clone(),
            since: self.course.since,
            drifts: self.course.drifts,
        }
    }
}
