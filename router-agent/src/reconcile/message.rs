//! What goes into a frontend's loop and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use schemas::state::State;
use schemas::{AgentId, FrontendId, Name, Patch, Revision, RouterId};

use crate::memory::{RouterMemory, ThresholdMemory};
use crate::target::{Applied, Listing, TargetError, Values};

/// What to do about routers that are not as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Put the policy in place.
    #[default]
    Enforce,
    /// Only say so.
    Observe,
}

/// What the loop of one frontend is set to.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The agent that it belongs to.
    pub agent: AgentId,
    /// The frontend.
    pub frontend: FrontendId,
    /// Its label.
    pub group: Option<Name>,
    /// What to do.
    pub mode: Mode,
    /// How often to list.
    pub poll_interval: Duration,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Input {
    /// Another state is wanted; `None` while no policy is known.
    Desired(Option<Arc<State>>),
    /// Another live agent lists the same routers, or no longer does.
    Rival(Option<AgentId>),
    /// The listing asked for as `number` came.
    Listed {
        /// Which.
        number: u64,
        /// What.
        outcome: Result<Listing, TargetError>,
    },
    /// A router answered to a patch.
    Answered {
        /// Which router.
        router: RouterId,
        /// What.
        outcome: Result<Applied, TargetError>,
    },
    /// The frontend answered to thresholds.
    ThresholdsAnswered {
        /// Which model.
        model: Name,
        /// What.
        outcome: Result<(), TargetError>,
    },
    /// Time has passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Ask for a listing.
    List {
        /// To be given back with it.
        number: u64,
    },
    /// Keep this on disk before doing anything that follows.
    Remember {
        /// Which router.
        router: RouterId,
        /// What.
        memory: Box<RouterMemory>,
    },
    /// Drop what is kept.
    Forget {
        /// Which router.
        router: RouterId,
    },
    /// Keep this on disk before doing anything that follows.
    RememberThresholds {
        /// Which model.
        model: Name,
        /// What.
        memory: Box<ThresholdMemory>,
    },
    /// Patch a router.
    Apply {
        /// Which.
        router: RouterId,
        /// On which revision.
        expected: Revision,
        /// With what.
        patch: Patch,
    },
    /// Set thresholds.
    SetThresholds {
        /// Which model.
        model: Name,
        /// To what.
        values: Values,
    },
}
