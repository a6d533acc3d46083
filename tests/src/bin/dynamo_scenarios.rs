//! Runs the scenarios with real Dynamo on one stage: `dynamo-scenarios [LETTER ... | latency]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let letters: Vec<String> = std::env::args().skip(1).collect();
    if router_policy_tests::scenarios::run_all(&letters) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
