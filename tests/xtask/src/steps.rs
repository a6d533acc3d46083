//! The steps. One debug build serves all of them.

use std::path::PathBuf;
use std::process::Command;

use crate::tally::{Found, Tally, run, run_counting};
use crate::{cluster, tree};

/// Set for processes that would otherwise ask cargo for our binaries: they are built.
const BUILT: &str = "ROUTER_POLICY_BINARIES_BUILT";
/// Golden tests write instead of compare when this is set.
const BLESS: &str = "BLESS";

/// Cargo, as this was called by it.
#[must_use]
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

pub(crate) fn cargo_with(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(arguments);
    command
}

fn has(subcommand: &str) -> bool {
    cargo_with(&[subcommand, "--version"])
        .output()
        .is_ok_and(|out| out.status.success())
}

/// Is there such a toolchain?
pub(crate) fn has_toolchain(name: &str) -> bool {
    let asked = Command::new("rustc")
        .args([&format!("+{name}"), "--version"])
        .output();
    asked.is_ok_and(|out| out.status.success())
}

/// Everything, cheapest first. What needs built binaries is skipped when they do not build.
pub fn test(tally: &mut Tally, ci: bool, quick: bool) {
    fmt(tally);
    clippy(tally);
    unit(tally, ci);
    tally.step("tree", tree::prove);
    deny(tally);
    bad_input(tally);
    crate::faults::crash_quick(tally);
    crate::sim::sim_ci(tally);
    crate::hostile::schemathesis(tally, 5, true);
    // A command of its own until it has passed on a clean machine.
    tally.skip("hostile", "run `cargo xtask hostile`");
    if quick {
        tally.skip("conformance", "--quick");
        tally.skip("cluster", "--quick");
        tally.skip("dynamo", "--quick");
        return;
    }
    conformance(tally);
    cluster::quick(tally);
    dynamo(tally, &[]);
}

/// Format.
pub fn fmt(tally: &mut Tally) {
    tally.step("fmt", || run(&mut cargo_with(&["fmt", "--all", "--check"])));
}

/// Lints.
pub fn clippy(tally: &mut Tally) {
    tally.step("clippy", || {
        let arguments = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ];
        run(&mut cargo_with(&arguments))
    });
}

/// Tests that need no Dynamo.
pub fn unit(tally: &mut Tally, ci: bool) {
    tally.step("tests", || {
        if !build() {
            return Found::one(false);
        }
        let mut command = if has("nextest") {
            let profile = if ci { "ci" } else { "default" };
            cargo_with(&[
                "nextest",
                "run",
                "--workspace",
                "--locked",
                "--profile",
                profile,
            ])
        } else {
            println!(
                "cargo-nextest is not installed; cargo test does the same, one crate after another"
            );
            cargo_with(&["test", "--workspace", "--locked", "--no-fail-fast"])
        };
        run_counting(command.env(BUILT, "1"))
    });
}

/// Licences, sources, bans.
pub fn deny(tally: &mut Tally) {
    if has("deny") {
        tally.step("deny", || {
            run(&mut cargo_with(&[
                "deny",
                "--offline",
                "check",
                "bans",
                "licenses",
                "sources",
            ]))
        });
    } else {
        tally.skip("deny", "cargo-deny is not installed");
    }
}

/// The table of bad requests.
pub fn bad_input(tally: &mut Tally) {
    tally.step("bad-input", || program("bad-input", &[]));
}

/// The scenarios with real Dynamo.
pub fn dynamo(tally: &mut Tally, scenarios: &[String]) {
    tally.step("dynamo", || program("dynamo-scenarios", scenarios));
}

/// The log's suite against every adapter and every supported server.
pub fn conformance(tally: &mut Tally) {
    tally.step("conformance", || program("examples/conformance", &[]));
}

/// Golden files.
pub fn bless(tally: &mut Tally) {
    tally.step("bless", || {
        let arguments = [
            "test",
            "--workspace",
            "--quiet",
            "--",
            "golden",
            "documents",
        ];
        run(cargo_with(&arguments).env(BLESS, "1"))
    });
}

/// Everything, as the tests need it: one build serves every step.
fn build() -> bool {
    let arguments = [
        "build",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
    ];
    run(&mut cargo_with(&arguments)).failed == 0
}

/// One of the programs of the tests crate, with all binaries built.
pub(crate) fn program(name: &str, arguments: &[String]) -> Found {
    if !build() {
        return Found::one(false);
    }
    let mut command = Command::new(built(name));
    run_counting(command.args(arguments).env(BUILT, "1"))
}

/// Next to this very program.
fn built(name: &str) -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|me| me.parent().map(|folder| folder.join(name)))
        .unwrap_or_else(|| PathBuf::from(name))
}
