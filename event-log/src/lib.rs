//! The log behind the service and the agents: a port and its adapters.
//!
//! Owns: appending with compare-and-swap, reading, following; retry, attribution and classification of broker answers,
//! each in one place; the status board beside the log. The only crate that names a broker's or a store's client.
//! Never does: decide, judge or project.

pub mod ambient;
pub mod bootstrap;
pub mod commit;
pub mod memory;
pub mod port;

pub use commit::{CommitError, Committed, commit};
pub use port::{
    Appended, Entry, EventLog, Failure, Foreign, Head, LogReader, ReaderWiring, Reports, Seen,
    StatusBoard, Subscription, Tails, Wiring,
};
