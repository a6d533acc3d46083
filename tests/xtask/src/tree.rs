//! Proofs of absence: what must not depend on what, from cargo's own dependency graph.

use std::process::Command;

use crate::tally::Found;

/// Proves every absence and prints the evidence.
#[must_use]
pub fn prove() -> Found {
    let mut found = Found::default();
    let mut judge = |right: bool, claim: &str, evidence: &str| {
        println!(
            "{} {claim}: {evidence}",
            if right { "ok  " } else { "FAIL" }
        );
        found.passed += u64::from(right);
        found.failed += u64::from(!right);
    };
    for (package, absent) in [
        ("schemas", "tokio"),
        ("schemas", "rand"),
        ("migrations", "tokio"),
        ("service", "router-agent"),
        ("router-agent", "service"),
        ("scheduler", "event-log"),
        ("scheduler", "async-nats"),
        ("scheduler", "router-agent"),
    ] {
        let all = packages_under(package);
        let there = all.iter().any(|one| one == absent);
        let evidence = format!(
            "cargo tree -p {package} -e normal lists {} packages",
            all.len()
        );
        judge(
            !there && all.len() > 1,
            &format!("{package} does not depend on {absent}"),
            &evidence,
        );
    }
    for (library, allowed) in [
        ("async-nats", vec!["event-log"]),
        ("fjall", vec!["event-log"]),
        ("dynamo-kv-router", vec!["scheduler"]),
        (
            "axum",
            vec!["inputs", "router-agent", "scheduler", "service"],
        ),
        (
            "service",
            vec!["cli", "inputs", "router-policy-tests", "sim"],
        ),
        (
            "router-agent",
            vec!["cli", "inputs", "router-policy-tests", "sim"],
        ),
    ] {
        let users = users_of(library);
        let right = !users.is_empty() && users.iter().all(|user| allowed.contains(&user.as_str()));
        let claim = format!("{library} is used by nobody but {}", allowed.join(", "));
        let evidence = format!("cargo tree -i {library} -e normal: {}", users.join(", "));
        judge(right, &claim, &evidence);
    }
    // What ends a process on purpose is in no program that people get; the tests show that it would be seen here.
    for (package, there) in [
        ("cli", false),
        ("router-agent", false),
        ("router-policy-tests", true),
    ] {
        let lines = tree(&["-p", package, "-e", "features"]);
        let seen = lines.contains("\"crash-points\"");
        let word = if there { "has" } else { "has no" };
        let evidence = format!(
            "cargo tree -p {package} -e features: {} lines",
            lines.lines().count()
        );
        judge(
            seen == there && lines.lines().count() > 1,
            &format!("{package} {word} crash points"),
            &evidence,
        );
    }
    found
}

/// Names of everything that a package depends on, itself included.
fn packages_under(package: &str) -> Vec<String> {
    let out = tree(&["-p", package, "--prefix", "none"]);
    let mut names: Vec<String> = out.lines().filter_map(first_word).collect();
    names.sort();
    names.dedup();
    names
}

/// Names of the packages that use a library directly.
fn users_of(library: &str) -> Vec<String> {
    let out = tree(&[
        "--workspace",
        "-i",
        library,
        "--prefix",
        "depth",
        "--depth",
        "1",
    ]);
    let mut names: Vec<String> = out
        .lines()
        .filter_map(|line| line.strip_prefix('1'))
        .filter_map(first_word)
        .collect();
    names.sort();
    names.dedup();
    names
}

fn first_word(line: &str) -> Option<String> {
    line.split_whitespace().next().map(ToOwned::to_owned)
}

fn tree(arguments: &[&str]) -> String {
    let out = Command::new(crate::steps::cargo())
        .args(["tree", "--locked", "-e", "normal"])
        .args(arguments)
        .output();
    match out {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).into_owned(),
        Ok(out) => {
            println!("{}", String::from_utf8_lossy(&out.stderr));
            String::new()
        }
        Err(error) => {
            println!("cargo tree: {error}");
            String::new()
        }
    }
}
