//! The end-to-end harness: real binaries, real nats-server, real Dynamo frontends, on loopback.
//!
//! Owns: starting and killing processes, waiting on values, the fleet scenarios and the table of bad input.
//! Never does: sleep for a fixed time and hope; touch a process that it did not start.

pub mod bad_input;
pub mod binaries;
pub mod cluster;
pub mod crash;
pub mod disk;
pub mod dynamo;
pub mod history;
pub mod hostile;
pub mod http;
pub mod openapi;
pub mod process;
pub mod proxy;
pub mod scenarios;
pub mod soak;
pub mod stage;
pub mod wait;
