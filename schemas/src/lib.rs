//! The words of the Router Policy Service and its pure core.
//!
//! Owns: scopes, parameters, commands, events, documents, status, and the functions [`decide::decide`],
//! [`state::State::evolve`], [`effective::effective`], [`parameter::check`] and [`convergence::convergence`].
//! Never does: I/O, clocks, randomness, async. Time and ids are arguments; every collection is ordered.

pub mod api;
pub mod convergence;
pub mod decide;
pub mod effective;
pub mod event;
pub mod ids;
pub mod name;
pub mod parameter;
pub mod rejection;
pub mod scope;
pub mod state;
pub mod status;

pub use ids::{CommandId, Hash, LogId, PolicyId, Position, Revision, RouterId, Timestamp};
pub use name::{AgentId, FrontendId, Name};
pub use parameter::{Overlay, ParameterName, ParameterValue, Patch};
pub use rejection::{Rejection, RejectionCode};
pub use scope::{Endpoint, PolicyKey, PolicyKind, RouterKey, Scope, Subject, WorkerType};
