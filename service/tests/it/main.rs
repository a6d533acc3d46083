//! The service as its clients see it: in this process, on a free port, over a log in memory.
#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "tests stop at the first surprise"
)]

mod audit;
mod chaos;
mod convergence;
mod documents;
mod events;
mod exposure;
mod facade;
mod limits;
mod policies;
mod replicas;
mod store;
mod support;
mod writes;
