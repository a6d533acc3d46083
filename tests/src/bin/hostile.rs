//! Runs the attacks and prints their table: `hostile [--quick] [ATTACK…]`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let (flags, names): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|argument| argument.starts_with("--"));
    // Thousands of connections are made from here.
    if let Err(why) = event_log::open_files::raise() {
        println!("the limit of open files could not be raised: {why}");
    }
    let quick = flags.iter().any(|flag| flag == "--quick");
    if router_policy_tests::hostile::run(quick, &names) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
