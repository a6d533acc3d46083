//! Sends the table of bad input to a service of its own and prints status, code and message of each.

use std::process::ExitCode;

fn main() -> ExitCode {
    if router_policy_tests::bad_input::run() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
