//! Hostile input: fuzzing, schemathesis, and clients that attack.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::frontend_half::root;
use crate::steps::{has_toolchain, program};
use crate::tally::{Found, Tally};

/// The version of cargo-fuzz that is installed, under `target/tools`, where there is none.
const CARGO_FUZZ: &str = "0.13.2";
/// Bound: memory of one target, in MiB.
const RSS_LIMIT_MIB: u32 = 2_048;
/// Bound: seconds that one input may take.
const INPUT_TIMEOUT_S: u32 = 20;

/// How long each target runs: until one of them is reached.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Executions.
    pub runs: u64,
    /// Seconds.
    pub seconds: u64,
}

/// Feeds the targets of `tests/fuzz` one after another and prints what each did.
pub fn fuzz(tally: &mut Tally, length: Length, only: &[String]) {
    tally.step("fuzz", || {
        let Some(cargo_fuzz) = cargo_fuzz() else {
            return Found::one(false);
        };
        let fuzz = Fuzz { cargo_fuzz };
        // Left by a run that was broken off.
        let _ = std::fs::remove_dir_all(temporary());
        if std::fs::create_dir_all(temporary()).is_err() {
            return Found::one(false);
        }
        if !fuzz
            .command("build")
            .status()
            .is_ok_and(|status| status.success())
        {
            return Found::one(false);
        }
        let mut targets = targets();
        targets.retain(|target| only.is_empty() || only.contains(target));
        println!(
            "{:<12} {:>12} {:>8} {:>9}  crashes",
            "target", "executions", "seconds", "per s"
        );
        let mut found = Found::default();
        for target in targets {
            let fine = fuzz.run(&target, length);
            found.passed += u64::from(fine);
            found.failed += u64::from(!fine);
        }
        let _ = std::fs::remove_dir_all(temporary());
        found
    });
}

/// Their seeds are a folder each.
fn targets() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("tests/inputs/seeds"));
    let names = entries.into_iter().flatten().flatten();
    let mut all: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    all.sort();
    all
}

struct Fuzz {
    cargo_fuzz: PathBuf,
}

impl Fuzz {
    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.cargo_fuzz);
        command
            .args(["fuzz", what, "--sanitizer", "none", "--fuzz-dir"])
            .arg(root().join("tests/fuzz"))
            .arg("--target-dir")
            .arg(root().join("target/fuzz"))
            .current_dir(root())
            .env_remove("CARGO_TARGET_DIR")
            // What targets leave behind is removed with it.
            .env("TMPDIR", temporary());
        // The flags of libFuzzer are unstable; where there is no nightly compiler, the stable one is told to take them.
        if has_toolchain("nightly") {
            command.env("RUSTUP_TOOLCHAIN", "nightly");
        } else {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        command
    }

    fn run(&self, target: &str, length: Length) -> bool {
        let corpus = root().join("target/fuzz-corpus").join(target);
        let artifacts = root().join("target/fuzz-artifacts").join(target);
        for folder in [&corpus, &artifacts] {
            if let Err(why) = std::fs::create_dir_all(folder) {
                println!("{}: {why}", folder.display());
                return false;
            }
        }
        let inputs = root().join("tests/inputs");
        let mut command = self.command("run");
        command.arg(target).arg(&corpus);
        command.arg(inputs.join("seeds").join(target));
        let regressions = inputs.join("regressions").join(target);
        if regressions.is_dir() {
            command.arg(regressions);
        }
        command.arg("--").args([
            format!("-runs={}", length.runs),
            format!("-max_total_time={}", length.seconds),
            format!("-rss_limit_mb={RSS_LIMIT_MIB}"),
            format!("-timeout={INPUT_TIMEOUT_S}"),
            format!("-artifact_prefix={}/", artifacts.display()),
            "-print_final_stats=1".to_owned(),
            "-verbosity=0".to_owned(),
            "-max_len=16384".to_owned(),
        ]);
        let started = Instant::now();
        let Ok(done) = command.output() else {
            println!("{target:<12} does not run");
            return false;
        };
        let said = String::from_utf8_lossy(&done.stderr);
        row(
            target,
            executions(&said),
            started.elapsed(),
            done.status.success(),
        );
        if !done.status.success() {
            let lines: Vec<&str> = said.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
        done.status.success()
    }
}

fn temporary() -> PathBuf {
    root().join("target/fuzz-tmp")
}

fn row(target: &str, executions: u64, took: Duration, fine: bool) {
    let seconds = took.as_secs().max(1);
    let crashes = u8::from(!fine);
    println!(
        "{target:<12} {executions:>12} {seconds:>8} {:>9}  {crashes}",
        executions / seconds
    );
}

/// From libFuzzer's last words.
fn executions(said: &str) -> u64 {
    said.lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

fn cargo_fuzz() -> Option<PathBuf> {
    let tools = root().join("target/tools");
    let program = tools.join("bin/cargo-fuzz");
    if program.exists() {
        return Some(program);
    }
    println!("installing cargo-fuzz {CARGO_FUZZ}");
    let done = Command::new(crate::steps::cargo())
        .args([
            "install",
            "--quiet",
            "--locked",
            "cargo-fuzz",
            "--version",
            CARGO_FUZZ,
            "--root",
        ])
        .arg(&tools)
        .status();
    done.is_ok_and(|status| status.success()).then_some(program)
}

/// schemathesis; few examples in CI.
pub fn schemathesis(tally: &mut Tally, examples: u32, quick: bool) {
    tally.step("schemathesis", || {
        let phases = if quick {
            "coverage"
        } else {
            "examples,coverage,fuzzing,stateful"
        };
        program("openapi", &[examples.to_string(), phases.to_owned()])
    });
}

/// The attacks.
pub fn hostile(tally: &mut Tally, quick: bool, attacks: &[String]) {
    tally.step("hostile", || {
        let mut arguments = attacks.to_vec();
        if quick {
            arguments.push("--quick".to_owned());
        }
        program("hostile", &arguments)
    });
}
