//! The frontend half: worker selection policies whose parameters change while Dynamo's own scheduler runs.
//!
//! The published `dynamo-kv-router` =1.6.1 fixes a router's policy when the router is built. This crate puts a
//! [`LiveSelector`] into its `LocalScheduler` and hands out a [`Control`] that reads and replaces the policy, plus the
//! HTTP façade that Dynamo 1.7 has ([`facade`]) and busy thresholds that gate ([`busy`]).
//!
//! Owns: policies, their replacement, their façade. Never does: know a log, an agent or a service; copy Dynamo's scheduler.
//!
//! # How a change reaches a selection
//! Caller: judge the patch, build and warm a whole policy, post it, ring the bell. Scheduler actor: at the start of its next
//! selection, or of the bell's, take what is posted, keep it or answer a conflict, put the old policy into the bin.
//! Caller: hear the answer, empty the bin. So a replacement stands between two selections and never inside one, a change
//! whose caller gave up is skipped, and policies are built and dropped outside the actor.
//!
//! # What the published crate's seams do not allow, and what stands in
//! - No command can be put into its actor. The bell is `select_without_admission` with a request that only our selector
//!   recognises: it turns the selector without selecting. It costs one projection of the workers' loads and touches neither
//!   the queue, nor bookings, nor the KV index. Like any message it lets the actor do cleanup that is due.
//! - Declared inputs, affinity and label are read once, when the scheduler is built. A replacement that needs more is
//!   refused; one that needs less is accepted, and the host goes on supplying (and booking with) what it supplied.
//! - While an overlap refresh is awaited the actor answers no bell. Such an update waits, at most for its patience.
//! - The overload provider runs while the crate holds the workers' watch: it must not read that watch (see
//!   [`dynamo::start`]), and it must return a set of its own, so a selection allocates while some worker is busy.
//! - `LocalScheduler` spawns tasks that keep its actor alive until its token is cancelled: dropping alone does not retire it.
//! - `log_selection` of the crate prints the label of the policy that it selected with; the label cannot change, so neither
//!   can that.

pub mod builtin;
pub mod busy;
mod control;
pub mod dynamo;
#[cfg(feature = "facade")]
pub mod facade;
pub mod index;
mod live;
pub mod overlap_floor;
mod parameters;
mod policy;
mod registry;
mod swap;
/// The synchronisation of [`swap`], in one place so that a model checker can replace it.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
}
mod warm;

pub use control::{Bell, Control, ReadError, Unattached, UpdateError};
pub use live::LiveSelector;
pub use parameters::{Change, Configuration, Invalid, Parameter, Parameters, Rule};
pub use policy::{Builder, Policy, Replacement};
pub use registry::{Registration, Registry, Router};
