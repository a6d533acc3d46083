//! Real faults: crashes, damaged files, full disks, and the soak.

use crate::steps::program;
use crate::tally::Tally;

/// Crashes of each kind.
pub fn crash(tally: &mut Tally, rounds: u64, seed: Option<u64>, only: &[String]) {
    let mut words = vec!["--rounds".to_owned(), rounds.to_string()];
    words.extend(
        seed.into_iter()
            .flat_map(|seed| ["--seed".to_owned(), seed.to_string()]),
    );
    for kind in only {
        words.extend(["--only".to_owned(), kind.clone()]);
    }
    tally.step("crash", || program("crash", &words));
}

/// As many as fit into a minute of CI; full disks take longer and are left to `cargo xtask crash`.
pub fn crash_quick(tally: &mut Tally) {
    let only = ["service", "embedded", "broker", "agent", "files"].map(str::to_owned);
    crash(tally, 5, None, &only);
}

/// The whole fleet under all faults.
pub fn soak(tally: &mut Tally, minutes: f64, seed: Option<u64>, cluster: bool, calm: bool) {
    let mut words = vec!["--minutes".to_owned(), minutes.to_string()];
    words.extend(
        seed.into_iter()
            .flat_map(|seed| ["--seed".to_owned(), seed.to_string()]),
    );
    for (name, on) in [("--cluster", cluster), ("--calm", calm)] {
        if on {
            words.extend([name.to_owned(), "yes".to_owned()]);
        }
    }
    tally.step("soak", || program("soak", &words));
}
