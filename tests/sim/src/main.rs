//! `sim --seeds N`: runs seeds and judges them. See `--help`.

use std::process::{Command, ExitCode};

use clap::Parser;
use sim::marks::{BRANCHES, FAULTS, Marks};
use sim::mutation::Mutation;
use sim::{Report, WORLDS, run};

/// Deterministic simulation of a whole fleet.
#[derive(Debug, Parser)]
struct Arguments {
    /// Seeds to run, beside the regressions.
    #[arg(long, default_value_t = 500)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print what happens (with --seed).
    #[arg(long)]
    trace: bool,
    /// Put each documented fault into the shells and see that it is caught.
    #[arg(long)]
    mutations: bool,
    /// Threads. What is printed does not depend on it.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// Seeds that found a fault once: `seed version why`.
const REGRESSIONS: &str = include_str!("../regressions.txt");
/// Marks are demanded of runs of at least this many seeds.
const MARKS_FROM: u64 = 500;
/// A mutation must be caught within this many seeds.
const CAUGHT_WITHIN: u64 = 600;
/// Seeds of a mutation that are run before looking.
const AT_ONCE: u64 = 20;
/// Of what caught a mutation, so much is printed.
const WORDS_CHARS_MAX: usize = 160;
/// Each of so many seeds is run twice.
const TWICE_EVERY: u64 = 50;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        let report = run(seed, None, arguments.trace);
        println!(
            "seed {seed}: hash {:016x}, {} steps",
            report.hash, report.steps
        );
        return if tell(&report) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    if arguments.mutations {
        return mutations(&arguments);
    }
    let well = regressions() & seeds(&arguments);
    if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints what is wrong with a seed; true when nothing is.
fn tell(report: &Report) -> bool {
    if report.violations.is_empty() {
        return true;
    }
    println!(
        "FAIL seed {} of worlds {WORLDS} at commit {}",
        report.seed,
        commit()
    );
    for what in &report.violations {
        println!("     {what}");
    }
    println!("     again: cargo xtask sim --seed {} --trace", report.seed);
    false
}

fn commit() -> String {
    let out = Command::new("git")
        .args(["rev-parse", "--short", "HEAD"])
        .output();
    out.ok()
        .map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}

fn regressions() -> bool {
    let mut well = true;
    let mut count = 0;
    for line in REGRESSIONS.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(Ok(seed)), Some(Ok(worlds))) = (
            words.next().map(str::parse::<u64>),
            words.next().map(str::parse::<u32>),
        ) else {
            continue;
        };
        // A seed of other worlds means nothing here; its fault has a test of its own beside the fix.
        if worlds == WORLDS {
            count += 1;
            well &= tell(&run(seed, None, false));
        }
    }
    println!(
        "regressions: {count} seeds, {}",
        if well { "all well" } else { "FAILED" }
    );
    well
}

/// Runs seeds on several threads; the reports come in the order of the seeds.
fn spread(from: u64, count: u64, threads: u64, mutation: Option<Mutation>) -> Vec<Report> {
    let threads = threads.clamp(1, 64);
    let mut reports: Vec<Report> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Vec<Report> {
                    (from..from + count)
                        .filter(|seed| seed % threads == thread)
                        .map(|seed| run(seed, mutation, false))
                        .collect()
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect()
    });
    reports.sort_by_key(|report| report.seed);
    reports
}

fn seeds(arguments: &Arguments) -> bool {
    let (from, count) = (arguments.from, arguments.seeds);
    let reports = spread(from, count, arguments.threads, None);
    // A thread that broke off took its seeds with it.
    let mut well = reports.len() as u64 == count;
    let (mut marks, mut failed, mut steps, mut time_us) = (Marks::default(), 0, 0, 0);
    for report in &reports {
        marks.add(&report.marks);
        steps += report.steps;
        time_us += report.time_us;
        if !tell(report) {
            failed += 1;
        }
    }
    let mut twice = 0;
    for report in reports
        .iter()
        .filter(|report| report.seed % TWICE_EVERY == 0)
    {
        twice += 1;
        let again = run(report.seed, None, false);
        if again.hash != report.hash {
            println!("FAIL seed {} has two histories", report.seed);
            well = false;
        }
    }
    let missed =
        table("fault injected", FAULTS, &marks) + table("branch reached", BRANCHES, &marks);
    // The first seeds are known to reach all; elsewhere the rarest come a few times in a thousand.
    let enough = if from == 0 {
        MARKS_FROM
    } else {
        MARKS_FROM * 8
    };
    if missed > 0 && count >= enough {
        println!("FAIL {missed} marks were not reached");
        well = false;
    }
    println!(
        "{} seeds from {from}, worlds {WORLDS}: {steps} steps, {} h of virtual time, {twice} run twice with the same hash",
        reports.len(),
        time_us / 3_600_000_000,
    );
    println!("violations: {failed}");
    well && failed == 0
}

fn table(title: &str, names: &[&str], marks: &Marks) -> u32 {
    println!("\n{title:<50} times");
    let mut missed = 0;
    for name in names {
        let count = marks.count(name);
        println!(
            "{name:<50} {count}{}",
            if count == 0 { "  <- never" } else { "" }
        );
        missed += u32::from(count == 0);
    }
    println!();
    missed
}

fn mutations(arguments: &Arguments) -> ExitCode {
    let mut missed = 0;
    for mutation in Mutation::ALL {
        let caught = (0..CAUGHT_WITHIN / AT_ONCE).find_map(|chunk| {
            let from = arguments.from + chunk * AT_ONCE;
            let reports = spread(from, AT_ONCE, arguments.threads, Some(mutation));
            reports.into_iter().find_map(|report| {
                let what = report.violations.into_iter().next()?;
                Some((report.seed, what))
            })
        });
        match caught {
            Some((seed, what)) => {
                let what: String = what.chars().take(WORDS_CHARS_MAX).collect();
                println!("ok   {mutation:?}: caught by seed {seed}: {what}");
            }
            None => {
                println!("FAIL {mutation:?}: not caught by {CAUGHT_WITHIN} seeds");
                missed += 1;
            }
        }
    }
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
