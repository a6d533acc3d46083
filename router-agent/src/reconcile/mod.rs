//! The loop of one frontend: list, plan, apply, list again. A pure `step`; [`shell`] moves its inputs and outputs.
//!
//! Invariants:
//! - `applied` is only said by a listing that was asked for after the last change was answered;
//! - at most one listing, and one change per router, is on its way at a time;
//! - a refusal is asked once per effective policy position, router and local revision;
//! - one frontend's trouble never reaches another's loop.

pub mod course;
pub mod message;
pub mod model;
pub mod router;
pub mod shell;
pub mod standing;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use schemas::state::State;
use schemas::status::{ApplyState, Capability, FrontendStatus};
use schemas::{AgentId, Name, Position, RouterId};

use crate::memory::{FrontendMemory, ThresholdMemory};
use crate::target::{Listing, TargetError, Thresholds};
use course::{Course, Now};
pub use message::{Input, Mode, Output, Settings};
use model::Model;
use router::Router;
use standing::{Moment, Standing};

/// Bound: routers that are remembered after they left the listing (a stalled one is left out for a while).
const REMEMBERED_MAX: usize = 256;

/// What a judgement depends on beside the thing judged.
#[derive(Debug)]
pub struct Context<'a> {
    now: Now,
    settings: &'a Settings,
    desired: Option<&'a State>,
    ahead: Option<&'a AgentId>,
    number: u64,
}

/// The loop of one frontend.
#[derive(Debug)]
pub struct FrontendLoop {
    settings: Settings,
    desired: Option<Arc<State>>,
    rival: Option<AgentId>,
    capability: Capability,
    reachable: bool,
    error: Option<String>,
    /// When the listing that is on its way was asked for.
    asked: Moment,
    /// When the last successful one was.
    listed: Option<Moment>,
    routers: BTreeMap<RouterId, Router>,
    models: BTreeMap<Name, Model>,
    memory: FrontendMemory,
    /// Number of the next listing.
    next_number: u64,
    listing: bool,
    relist: bool,
    list_at: Duration,
    failures: u32,
}

impl FrontendLoop {
    /// Nothing met yet; `memory` is what an earlier process of the agent kept.
    #[must_use]
    pub fn new(settings: Settings, memory: FrontendMemory) -> FrontendLoop {
        FrontendLoop {
            settings,
            desired: None,
            rival: None,
            capability: Capability::Unknown,
            reachable: false,
            error: Some("not listed yet".to_owned()),
            asked: Moment::default(),
            listed: None,
            routers: BTreeMap::new(),
            models: BTreeMap::new(),
            memory,
            next_number: 1,
            listing: false,
            relist: false,
            list_at: Duration::ZERO,
            failures: 0,
        }
    }

    /// Takes one input in and says what to do.
    #[must_use]
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Desired(state) => {
                self.desired = state;
                self.owe_nothing();
                self.list_now(now);
            }
            Input::Rival(rival) => {
                if self.rival != rival {
                    self.rival = rival;
                    self.owe_nothing();
                    self.list_now(now);
                }
            }
            Input::Listed { number, outcome } => self.listed(now, number, outcome, &mut out),
            Input::Answered { router, outcome } => {
                let memory = self.memory.routers.entry(router).or_default();
                if let Some(known) = self.routers.get_mut(&router) {
                    known.answered(now, self.next_number, outcome, memory);
                    self.list_soon(now, known_wait(&self.routers, router));
                }
                out.push(remember(router, &self.memory));
            }
            Input::ThresholdsAnswered { model, outcome } => {
                let memory = self.memory.thresholds.entry(model.clone()).or_default();
                if let Some(known) = self.models.get_mut(&model) {
                    known.answered(now, self.next_number, outcome, memory);
                    let wait = known.course.not_before;
                    self.list_soon(now, wait);
                }
                out.push(remember_thresholds(model, &self.memory));
            }
            Input::Tick => {}
        }
        self.act(now, &mut out);
        out
    }

    /// When [`Input::Tick`] is due, counted like [`Now::elapsed`].
    #[must_use]
    pub fn wake_at(&self) -> Duration {
        let courses = self.owing().map(|course| course.not_before);
        let list = (!self.listing).then_some(self.list_at);
        courses.chain(list).min().unwrap_or(Duration::MAX)
    }

    fn owing(&self) -> impl Iterator<Item = &Course> {
        let routers = self
            .routers
            .values()
            .filter(|router| router.owed.is_some())
            .map(|router| &router.course);
        let models = self
            .models
            .values()
            .filter(|model| model.owed.is_some())
            .map(|model| &model.course);
        routers.chain(models).filter(|course| !course.busy)
    }

    /// What waits to be tried again was planned on what was known before; the next listing plans anew.
    fn owe_nothing(&mut self) {
        for router in self.routers.values_mut() {
            router.owed = None;
        }
        for model in self.models.values_mut() {
            model.owed = None;
        }
    }

    fn list_now(&mut self, now: Now) {
        if self.listing {
            self.relist = true;
        } else {
            self.list_at = now.elapsed;
        }
    }

    fn list_soon(&mut self, now: Now, not_before: Duration) {
        if not_before <= now.elapsed {
            self.list_now(now);
        } else {
            self.list_at = self.list_at.min(not_before);
        }
    }

    fn listed(
        &mut self,
        now: Now,
        number: u64,
        outcome: Result<Listing, TargetError>,
        out: &mut Vec<Output>,
    ) {
        self.listing = false;
        match outcome {
            Err(why) => {
                self.reachable = false;
                self.error = Some(why.to_string());
                let wait = course::backoff(self.settings.poll_interval, self.failures, now.draw);
                self.failures = self.failures.saturating_add(1);
                self.list_at = now.elapsed + wait;
                self.relist = false;
            }
            Ok(listing) => {
                self.failures = 0;
                self.reachable = true;
                self.capability = listing.capability;
                // SUBTLE: not when the answer came. It may have waited for this process, which stood still
                // (`what_a_listing_shows_is_as_old_as_the_question`).
                self.listed = Some(self.asked);
                self.error = shortcomings(&listing);
                self.list_at = now.elapsed + self.settings.poll_interval;
                self.take_in(now, number, &listing, out);
                if std::mem::take(&mut self.relist) {
                    self.list_at = now.elapsed;
                }
            }
        }
    }

    fn take_in(&mut self, now: Now, number: u64, listing: &Listing, out: &mut Vec<Output>) {
        let context = Context {
            now,
            settings: &self.settings,
            desired: self.desired.as_deref(),
            ahead: (self.rival.as_ref()).filter(|rival| **rival < self.settings.agent),
            number,
        };
        // A router whose change is on its way stays until the answer is in.
        self.routers
            .retain(|id, router| router.course.busy || listing.routers.contains_key(id));
        for (id, view) in &listing.routers {
            let router = (self.routers.entry(*id)).or_insert_with(|| Router::new(now, view));
            let memory = self.memory.routers.entry(*id).or_default();
            let before = memory.clone();
            router.judge(&context, view, memory);
            if *memory != before {
                out.push(Output::Remember {
                    router: *id,
                    memory: Box::new(memory.clone()),
                });
            }
        }
        let mut of_model: BTreeMap<&Name, BTreeSet<RouterId>> = BTreeMap::new();
        for (id, view) in &listing.routers {
            of_model.entry(&view.key.model).or_default().insert(*id);
        }
        self.models
            .retain(|name, model| model.course.busy || listing.thresholds.contains_key(name));
        for (name, listed) in &listing.thresholds {
            let model = (self.models.entry(name.clone())).or_insert_with(|| Model::new(now));
            let memory = self.memory.thresholds.entry(name.clone()).or_default();
            let before = memory.clone();
            let routers = of_model.remove(name).unwrap_or_default();
            model.judge(&context, name, listed, &routers, memory);
            if *memory != before {
                out.push(Output::RememberThresholds {
                    model: name.clone(),
                    memory: Box::new(memory.clone()),
                });
            }
        }
        for name in of_model.into_keys() {
            self.unlisted(now, name);
        }
        self.forget(out);
    }

    /// A model that has routers but no thresholds in the listing: said only where a policy wants some.
    fn unlisted(&mut self, now: Now, name: &Name) {
        let Some(state) = &self.desired else { return };
        let group = self.settings.group.as_ref();
        let wanted = schemas::effective::effective_thresholds(state, name, group);
        if wanted.values.is_empty() {
            return;
        }
        let words = crate::threshold::plan(
            &wanted.overlay(),
            &Thresholds::new(),
            &ThresholdMemory::default(),
        )
        .to_string();
        let model = (self.models.entry(name.clone())).or_insert_with(|| Model::new(now));
        (model.course).enter(now, ApplyState::Unsupported, state.position, Some(words));
    }

    fn forget(&mut self, out: &mut Vec<Output>) {
        while self.memory.routers.len() > REMEMBERED_MAX.max(self.routers.len()) {
            let gone = (self.memory.routers.keys())
                .find(|id| !self.routers.contains_key(*id))
                .copied();
            let Some(router) = gone else { return };
            self.memory.routers.remove(&router);
            out.push(Output::Forget { router });
        }
    }

    /// Sends what is due.
    fn act(&mut self, now: Now, out: &mut Vec<Output>) {
        for (id, router) in &mut self.routers {
            if !due(&router.course, now) {
                continue;
            }
            let memory = self.memory.routers.entry(*id).or_default();
            if let Some(owed) = router.send(now, memory) {
                out.push(Output::Remember {
                    router: *id,
                    memory: Box::new(memory.clone()),
                });
                out.push(Output::Apply {
                    router: *id,
                    expected: owed.expected,
                    patch: owed.patch,
                });
            }
        }
        for (name, model) in &mut self.models {
            if !due(&model.course, now) {
                continue;
            }
            let memory = self.memory.thresholds.entry(name.clone()).or_default();
            if let Some(owed) = model.send(now, memory) {
                out.push(Output::RememberThresholds {
                    model: name.clone(),
                    memory: Box::new(memory.clone()),
                });
                out.push(Output::SetThresholds {
                    model: name.clone(),
                    values: owed.values,
                });
            }
        }
        if !self.listing && now.elapsed >= self.list_at {
            self.listing = true;
            self.asked = Moment::of(now);
            out.push(Output::List {
                number: self.next_number,
            });
            self.next_number += 1;
        }
    }

    /// As reported, and when it was found out.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            status: self.status(),
            listed: self.listed,
        }
    }

    /// As reported at the time of the listing.
    #[must_use]
    pub fn status(&self) -> FrontendStatus {
        let drifting = || {
            let routers = self.routers.values().map(|router| &router.course);
            let models = self.models.values().map(|model| &model.course);
            routers
                .chain(models)
                .any(|course| course.contested())
                .then(|| "somebody who is no agent known here".to_owned())
        };
        FrontendStatus {
            frontend: self.settings.frontend.clone(),
            capability: self.capability,
            reachable: self.reachable,
            error: self.error.clone(),
            listed_at: self.listed.map(|moment| moment.wall),
            rival: (self.rival.as_ref().map(|rival| self.rival_in_words(rival))).or_else(drifting),
            routers: (self.routers.iter())
                .map(|(id, router)| router.status(*id))
                .collect(),
            thresholds: (self.models.iter())
                .map(|(name, model)| model.status(name))
                .collect(),
        }
    }

    fn rival_in_words(&self, rival: &AgentId) -> String {
        if *rival != self.settings.agent {
            return rival.to_string();
        }
        format!(
            "another process also reports as agent {rival}: give each an id (--agent-id) and a state folder of its own"
        )
    }
}

fn due(course: &Course, now: Now) -> bool {
    !course.busy && course.not_before <= now.elapsed
}

fn known_wait(routers: &BTreeMap<RouterId, Router>, id: RouterId) -> Duration {
    routers
        .get(&id)
        .map_or(Duration::ZERO, |router| router.course.not_before)
}

fn remember(router: RouterId, memory: &FrontendMemory) -> Output {
    Output::Remember {
        router,
        memory: Box::new(memory.routers.get(&router).cloned().unwrap_or_default()),
    }
}

fn remember_thresholds(model: Name, memory: &FrontendMemory) -> Output {
    let kept = memory.thresholds.get(&model).cloned().unwrap_or_default();
    Output::RememberThresholds {
        model,
        memory: Box::new(kept),
    }
}

/// What a frontend cannot do, in words.
fn shortcomings(listing: &Listing) -> Option<String> {
    let mut words = Vec::new();
    match listing.capability {
        Capability::BusyThresholdOnly => words.push(
            "it has no /router_policy (Dynamo before 1.7): only busy thresholds can be applied"
                .to_owned(),
        ),
        Capability::None => {
            words.push("its admin routes are switched off, or it has none".to_owned());
        }
        Capability::Unknown | Capability::RouterPolicy => {}
    }
    words.extend(listing.unaddressable.iter().cloned());
    (!words.is_empty()).then(|| words.join("; "))
}

/// Leaves a router alone that another agent looks after, or that is being changed again and again by somebody else.
fn held_back(course: &mut Course, context: &Context<'_>, position: Position) -> bool {
    let now = context.now;
    if let Some(other) = context.ahead {
        let words = format!("left to agent {other}, which works on this frontend too");
        course.enter(now, ApplyState::Pending, position, Some(words));
        return true;
    }
    let Some(until) = course.held_until(now) else {
        return false;
    };
    let words = format!(
        "changed away again and again by somebody else; next attempt in {} s",
        until.saturating_sub(now.elapsed).as_secs() + 1
    );
    course.enter(now, ApplyState::Drifted, position, Some(words));
    true
}
