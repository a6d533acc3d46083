//! The frontend half against Dynamo itself: parity, recorded answers, and what a live selector costs.
//!
//! The parity workspace has a lock file and a target folder of its own (`target/parity`): it pulls in axum 0.8.4 and zmq,
//! and its build must not disturb the product's.

use std::path::PathBuf;
use std::process::Command;

use crate::steps::cargo_with;
use crate::tally::{Tally, run, run_counting};

/// Selection by selection.
pub fn parity(tally: &mut Tally, cases: u64, seed: Option<u64>) {
    tally.step("parity", || {
        let mut command = parity_program("parity");
        command.arg(cases.to_string());
        command.args(seed.map(|seed| seed.to_string()));
        run(&mut command)
    });
}

/// Answer by answer.
pub fn transcripts(tally: &mut Tally) {
    tally.step("transcripts", || {
        // With its output: which cases were replayed, and which differ on purpose.
        let arguments = [
            "test",
            "--locked",
            "-p",
            "scheduler",
            "--test",
            "transcripts",
        ];
        run_counting(cargo_with(&arguments).args(["--", "--nocapture"]))
    });
}

/// Nanosecond by nanosecond.
pub fn bench_selection(tally: &mut Tally) {
    tally.step("bench selection", || {
        run(&mut parity_program("selection_bench"))
    });
}

/// A program of the parity workspace, built when it is not.
fn parity_program(name: &str) -> Command {
    let arguments = ["run", "--locked", "--quiet", "--manifest-path"];
    let mut command = cargo_with(&arguments);
    command
        .arg(root().join("tests/parity/Cargo.toml"))
        .args(["--bin", name])
        .env("CARGO_TARGET_DIR", root().join("target/parity"))
        .arg("--");
    command
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map_or(here.clone(), PathBuf::from)
}
