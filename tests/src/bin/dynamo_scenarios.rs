//! Runs the scenarios with real Dynamo on one stage: `dynamo-scenarios [LETTER ... | latency]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let letters: Vec<String> = std::env::args().skip(1).collect();
    let known = router_policy_tests::scenarios::known();
    let unknown = letters.iter().find(|one| !known.contains(&one.as_str()));
    if let Some(unknown) = unknown {
        eprintln!("no scenario {unknown:?}; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    if router_policy_tests::scenarios::run_all(&letters) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
