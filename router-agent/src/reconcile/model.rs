//! One model's thresholds: their part of the loop.

use std::collections::BTreeSet;

use schemas::effective::effective_thresholds;
use schemas::status::{ApplyState, ThresholdStatus};
use schemas::{Name, Position, RouterId};

use super::course::{Course, Now};
use super::{Context, Mode};
use crate::memory::{Movement, ThresholdMemory, ThresholdNack};
use crate::target::{TargetError, Thresholds, Values};
use crate::threshold::{Plan, plan};

/// One model's thresholds as the loop knows them.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// What was listed last.
    pub observed: Thresholds,
    /// Where they stand.
    pub course: Course,
    /// Values that may go out as soon as the course allows.
    pub owed: Option<Owed>,
    sent: Option<Owed>,
    acknowledged: Option<Values>,
}

/// Values and what they were planned on.
#[derive(Debug, Clone, PartialEq)]
pub struct Owed {
    /// What to send.
    pub values: Values,
    /// The effective policy's position.
    pub policy: Position,
    /// The state's position.
    pub position: Position,
}

impl Model {
    /// Just met.
    #[must_use]
    pub fn new(now: Now) -> Model {
        Model {
            observed: Thresholds::new(),
            course: Course::new(now),
            owed: None,
            sent: None,
            acknowledged: None,
        }
    }

    /// Takes a listing in; `routers` are the model's routers in the same listing.
    pub fn judge(
        &mut self,
        context: &Context<'_>,
        model: &Name,
        listed: &Thresholds,
        routers: &BTreeSet<RouterId>,
        memory: &mut ThresholdMemory,
    ) {
        if self.course.busy || context.number < self.course.listing_from {
            return;
        }
        let now = context.now;
        self.observed = listed.clone();
        let movement = memory.see(listed, routers);
        if movement == Movement::Foreign {
            self.course.drifted();
        }
        self.owed = None;
        let unseen = self.acknowledged.take().is_some_and(|values| {
            matches!(movement, Movement::Ours | Movement::Behind)
                && values
                    .iter()
                    .any(|(name, value)| listed.get(name) != Some(&Some(value.clone())))
        });
        let Some(state) = context.desired else {
            let words = Some("no policy is known yet".to_owned());
            self.course
                .enter(now, ApplyState::Pending, Position::START, words);
            return;
        };
        let wanted = effective_thresholds(state, model, context.settings.group.as_ref());
        let position = state.position;
        let planned = plan(&wanted.overlay(), listed, memory);
        let words = planned.to_string();
        let values = match planned {
            Plan::Nothing => {
                let stopped = wanted.stopped.as_ref().map(|stop| stop.why.as_str());
                return self.course.settle(now, position, stopped);
            }
            Plan::Unsupported { .. } => {
                return self
                    .course
                    .enter(now, ApplyState::Unsupported, position, Some(words));
            }
            Plan::Set { values, .. } => values,
        };
        if context.settings.mode == Mode::Observe {
            return self
                .course
                .enter(now, ApplyState::Drifted, position, Some(words));
        }
        if let Some(refused) = memory
            .refused
            .as_ref()
            .filter(|refused| refused.position == wanted.position && refused.listed == *listed)
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
            values,
            policy: wanted.position,
            position,
        });
    }

    /// Values go out.
    pub fn send(&mut self, now: Now, memory: &mut ThresholdMemory) -> Option<Owed> {
        let owed = self.owed.take()?;
        memory.sending(&owed.values);
        self.course.send(now);
        self.sent = Some(owed.clone());
        Some(owed)
    }

    /// The answer came. Only a listing from number `listing_from` on counts after it.
    pub fn answered(
        &mut self,
        now: Now,
        listing_from: u64,
        outcome: Result<(), TargetError>,
        memory: &mut ThresholdMemory,
    ) {
        self.course.busy = false;
        self.course.listing_from = listing_from;
        let Some(sent) = self.sent.take() else {
            return;
        };
        match outcome {
            Ok(()) => {
                memory.taken(&sent.values);
                self.acknowledged = Some(sent.values);
                self.course.acknowledge();
            }
            Err(TargetError::Refused { words, .. } | TargetError::Unsupported(words)) => {
                memory.doubt = None;
                memory.refused = Some(ThresholdNack {
                    position: sent.policy,
                    listed: self.observed.clone(),
                    words: words.clone(),
                });
                self.course
                    .enter(now, ApplyState::Refused, sent.position, Some(words));
            }
            Err(TargetError::Conflict | TargetError::Gone) => {
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
    pub fn status(&self, model: &Name) -> ThresholdStatus {
        ThresholdStatus {
            model: model.clone(),
            thresholds: self
                .observed
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
                .collect(),
            state: self.course.state,
            position: self.course.position,
            error: self.course.error.clone(),
            since: self.course.since,
            drifts: self.course.drifts,
        }
    }
}
