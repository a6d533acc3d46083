//! `sim --seeds N`: see `--help`.
fn main() {
    for seed in 0..20 {
        let report = sim::run(seed, None, std::env::args().nth(1).is_some());
        println!(
            "{seed} {:x} {} {} {:?}",
            report.hash, report.steps, report.time_us, report.violations
        );
    }
}
