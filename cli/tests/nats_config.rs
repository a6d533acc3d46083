//! `nats-config` against a real nats-server: what it writes is taken, keys are kept, and nothing secret is shown.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use event_log::testing::{NATS_VERSIONS, nats_binary};

fn run(out: &Path, agents: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router-policy"));
    command
        .args(["nats-config", "--operator", "--out"])
        .arg(out);
    for agent in agents {
        command.args(["--agent", agent]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

fn seeds(out: &Path) -> BTreeSet<String> {
    fs::read_dir(out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "nk"))
        .map(|path| fs::read_to_string(path).unwrap().trim().to_owned())
        .collect()
}

#[test]
fn every_server_version_takes_what_is_written_and_keys_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    run(out, &["one"]);
    let first = seeds(out);
    assert_eq!(first.len(), 3, "service, one, operator");

    let shown = run(out, &["one", "meta-llama/Llama 3.1"]);
    let second = seeds(out);
    assert_eq!(second.len(), 4);
    assert!(second.is_superset(&first), "keys that were there are kept");

    let config = out.join("nats-server.conf");
    let text = fs::read_to_string(&config).unwrap();
    let printed = String::from_utf8(shown.stdout).unwrap();
    for seed in &second {
        assert!(
            !text.contains(seed),
            "a secret in the server's configuration"
        );
        assert!(!printed.contains(seed), "a secret on the screen");
    }
    for version in NATS_VERSIONS {
        let checked = Command::new(nats_binary(version).unwrap())
            .args(["-t", "-c"])
            .arg(&config)
            .output()
            .unwrap();
        assert!(checked.status.success(), "{version}: {checked:?}");
    }
}
