//! Real Dynamo on one machine: frontends and mocker workers, CPU only, loopback only, discovery in a folder.

mod domain;
mod install;

pub use domain::{Domain, Frontend, Role, Worker};
pub use install::{Dynamo, V1_6, V1_7};
