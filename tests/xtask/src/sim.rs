//! The deterministic simulation.

use crate::steps::cargo_with;
use crate::tally::{Tally, run};

/// Seeds of a run in CI; every fault and branch must be reached within them.
const SEEDS_CI: &str = "500";

/// Runs the simulation with these arguments (`--help` lists them); regressions come first, always.
pub fn sim(tally: &mut Tally, arguments: &[String]) {
    tally.step("sim", || {
        let mut command = cargo_with(&["run", "--quiet", "--locked", "--package", "sim", "--"]);
        run(command.args(arguments))
    });
}

/// As CI runs it. (The proof that the net can fail, `--mutations`, takes longer.)
pub fn sim_ci(tally: &mut Tally) {
    sim(tally, &["--seeds".to_owned(), SEEDS_CI.to_owned()]);
}
