//! The log behind the service and the agents: a port and its adapters.
//!
//! Owns: appending with compare-and-swap, reading, following; retry, attribution and classification of broker answers,
//! each in one place; the status board beside the log. The only crate that names a broker's or a store's client.
//! Never does: decide, judge or project.

pub mod ambient;
pub mod bootstrap;
pub mod commit;
#[cfg(feature = "testing")]
pub mod conformance;
pub mod connect;
pub mod crash;
pub mod embedded;
pub mod faulty;
pub mod follow;
pub mod http;
pub mod identity;
pub mod jetstream;
pub mod memory;
pub mod nats_config;
pub mod open_files;
pub mod options;
pub mod port;
#[cfg(feature = "testing")]
pub mod testing;

pub use commit::{CommitError, Committed, commit};
pub use connect::{BadLogUrl, ConnectError, LogUrl, connect, connect_reader};
pub use identity::Identity;
pub use options::Options;
pub use port::{
    Appended, Entry, EventLog, Failure, Foreign, Head, LogReader, ReaderWiring, Reports, Seen,
    StatusBoard, Subscription, Tails, Wiring,
};
