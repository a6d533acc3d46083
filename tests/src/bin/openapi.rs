//! Runs schemathesis against a real service: `openapi EXAMPLES PHASES`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let examples = arguments.next().and_then(|examples| examples.parse().ok());
    let phases = arguments.next();
    let phases = phases
        .as_deref()
        .unwrap_or("examples,coverage,fuzzing,stateful");
    if router_policy_tests::openapi::run(examples.unwrap_or(100), phases) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
