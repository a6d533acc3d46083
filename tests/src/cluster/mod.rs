//! A cluster of three nats-servers and two services under load and faults, and what must hold afterwards.
//!
//! Owns: the network between them, writers and readers, the comparison of what they were told with the log, the faults.
//! `cargo xtask cluster` runs it; [`cases::ALL`] lists the faults, most of which are also tests.

pub mod cases;
mod client;
pub mod kills;
pub mod ledger;
pub mod load;
mod lost;
pub mod net;
mod power;
mod refusals;
pub mod stage;

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;

/// How a run is made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Leader kills under load.
    pub kills: u32,
    /// Writers during them.
    pub writers: usize,
    /// Of every random choice of the clients (not of the machine's timing).
    pub seed: u64,
    /// Only cases whose name contains one of these.
    pub only: Vec<String>,
    /// Leave out what takes longer than a minute.
    pub quick: bool,
}

/// Bound: one case, kills aside.
const CASE_MAX: Duration = Duration::from_secs(420);

/// Runs what was asked for, prints what happened, and tells whether all of it held.
#[must_use]
pub fn run(settings: &Settings) -> bool {
    let asked = |name: &str| {
        settings.only.is_empty()
            || settings
                .only
                .iter()
                .any(|only| name.contains(only.as_str()))
    };
    let begun = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    for case in cases::ALL {
        if !asked(case.name) || (settings.quick && !case.quick && settings.only.is_empty()) {
            continue;
        }
        let case_begun = Instant::now();
        println!("\n--- {}: {}", case.name, case.what);
        let held = run_one(case, settings);
        let took = case_begun.elapsed().as_secs_f64();
        println!(
            "{}  {} ({took:.1} s)",
            if held { "pass" } else { "FAIL" },
            case.name
        );
        if held {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    println!(
        "\ncluster: {passed} passed, {failed} failed in {:.0} s (seed {})",
        begun.elapsed().as_secs_f64(),
        settings.seed
    );
    failed == 0 && passed > 0
}

/// Runs one case; true when it held.
#[must_use]
pub fn run_one(case: &cases::Case, settings: &Settings) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let limit = CASE_MAX + Duration::from_secs(40) * settings.kills;
    let held = runtime.block_on(async {
        let run = AssertUnwindSafe((case.run)(settings.clone())).catch_unwind();
        match tokio::time::timeout(limit, run).await {
            Ok(Ok(())) => true,
            // What broke was printed by the panic.
            Ok(Err(_)) => false,
            Err(_) => {
                println!("it did not end within {limit:?}");
                false
            }
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    held
}

/// Runs the case of a test.
///
/// # Panics
/// When it does not hold.
pub fn run_test(name: &str) {
    let case = cases::ALL
        .iter()
        .find(|case| case.name == name)
        .expect("a case of that name");
    let settings = Settings {
        kills: 3,
        writers: 8,
        seed: 1,
        only: Vec::new(),
        quick: true,
    };
    assert!(
        run_one(case, &settings),
        "{name} did not hold; see its output"
    );
}
