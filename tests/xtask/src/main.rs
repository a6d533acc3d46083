//! `cargo xtask NAME`: everything that a developer or CI runs. Only wires names to steps.

mod arguments;
mod cluster;
mod faults;
mod frontend_half;
mod hostile;
mod sim;
mod steps;
mod tally;
mod tree;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Arguments, Bench, Task};
use crate::tally::Tally;

fn main() -> ExitCode {
    let mut tally = Tally::default();
    match Arguments::parse().task {
        Task::Test { ci, quick } => steps::test(&mut tally, ci, quick),
        Task::Fmt => steps::fmt(&mut tally),
        Task::Clippy => steps::clippy(&mut tally),
        Task::Unit { ci } => steps::unit(&mut tally, ci),
        Task::Tree => tally.step("tree", tree::prove),
        Task::Deny => steps::deny(&mut tally),
        Task::BadInput => steps::bad_input(&mut tally),
        Task::Conformance => steps::conformance(&mut tally),
        Task::Dynamo { scenarios } => steps::dynamo(&mut tally, &scenarios),
        Task::Cluster(options) => cluster::run(&mut tally, &options),
        Task::Parity { cases, seed } => frontend_half::parity(&mut tally, cases, seed),
        Task::Crash { rounds, seed, only } => faults::crash(&mut tally, rounds, seed, &only),
        Task::Soak {
            minutes,
            seed,
            cluster,
            calm,
        } => faults::soak(&mut tally, minutes, seed, cluster, calm),
        Task::Transcripts => frontend_half::transcripts(&mut tally),
        Task::Bench { what } => match what {
            Bench::Selection => frontend_half::bench_selection(&mut tally),
        },
        Task::Sim { arguments } => sim::sim(&mut tally, &arguments),
        Task::Fuzz {
            runs,
            seconds,
            targets,
        } => hostile::fuzz(&mut tally, hostile::Length { runs, seconds }, &targets),
        Task::Schemathesis { examples } => hostile::schemathesis(&mut tally, examples, false),
        Task::Hostile { quick, attacks } => hostile::hostile(&mut tally, quick, &attacks),
        Task::Bless => steps::bless(&mut tally),
    }
    tally.close()
}
