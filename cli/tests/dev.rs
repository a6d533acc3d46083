//! `router-policy dev` as a person meets it: one process, and every client command against it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

struct Dev {
    child: Child,
    url: String,
}

impl Dev {
    fn start(data: &Path) -> Dev {
        let mut child = Command::new(env!("CARGO_BIN_EXE_router-policy"))
            .args(["dev", "--no-demo", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let url = lines
            .by_ref()
            .map(|line| line.expect("a line"))
            .find_map(|line| {
                line.split_once("policies ")
                    .map(|(_, url)| url.trim().to_owned())
            })
            .expect("the banner has the URL");
        // The rest of the banner is read, so that the child never waits for a reader.
        std::thread::spawn(move || lines.count());
        let url = url
            .strip_suffix("/v1/policies")
            .expect("the route")
            .to_owned();
        Dev { child, url }
    }

    /// Exit code, stdout, stderr.
    fn client(&self, arguments: &[&str]) -> (i32, String, String) {
        let out = Command::new(env!("CARGO_BIN_EXE_router-policy"))
            .args(arguments)
            .env("ROUTER_POLICY_SERVICE", &self.url)
            .output()
            .expect("it runs");
        (
            out.status.code().unwrap_or(-1),
            String::from_utf8(out.stdout).expect("UTF-8"),
            String::from_utf8(out.stderr).expect("UTF-8"),
        )
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let (code, stdout, stderr) = self.client(arguments);
        assert_eq!(code, 0, "{arguments:?}: {stdout}{stderr}");
        stdout
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let text = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    fn stop(mut self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()));
        let status = self.child.wait().expect("it ends");
        assert_eq!(status.code(), Some(0), "{signal} is a clean end");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Only matters when an assertion failed before `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MODEL: [&str; 2] = ["--model", "a/b c.*>é"];

/// A command about [`MODEL`].
fn of<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &MODEL[..]].concat()
}

#[test]
fn every_command_works_against_dev_and_a_restart_keeps_everything() {
    let folder = std::env::temp_dir().join(format!("router-policy-dev-{}", std::process::id()));
    let dev = Dev::start(&folder);
    sets_say_what_they_saw(&dev);
    refusals_have_their_exit_codes(&dev);
    the_past_can_be_read_and_put_back(&dev);
    everything_is_in_the_log(&dev);
    let before = dev.json(&["get"]);
    dev.stop("-INT");
    let again = Dev::start(&folder);
    assert_eq!(again.json(&["get"])["policies"], before["policies"]);
    again.stop("-TERM");
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Revisions 1 and 2.
fn sets_say_what_they_saw(dev: &Dev) {
    assert_eq!(dev.json(&["get"])["policies"], serde_json::json!([]));
    let set = dev.json(&of(&[
        "set",
        "router_temperature=0.3",
        "--reason",
        "spread",
    ]));
    assert_eq!(set["policies"][0]["revision"], 1, "{set}");
    let set = of(&["set", "router_temperature=0.5", "prefill_load_scale=2"]);
    let (code, stdout, stderr) = dev.client(&set);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stderr.contains("revision 1") && stderr.contains("spread"),
        "what it saw: {stderr}"
    );
    assert!(stdout.contains("router_temperature = 0.5"), "{stdout}");
}

/// Revision 3.
fn refusals_have_their_exit_codes(dev: &Dev) {
    let late = of(&["set", "router_temperature=0.9", "--expect", "1"]);
    let stale = dev.client(&late);
    assert_eq!(stale.0, 4, "{stale:?}");
    let said = stale.2.contains("local") && stale.2.contains("--expect 2");
    assert!(said, "who, and what to do: {stale:?}");
    let stale = dev.client(&[&late[..], &["--json"]].concat());
    let body: Value = serde_json::from_str(&stale.1).expect("JSON");
    let seen = (stale.0, &body["code"], &body["current_revision"]);
    assert_eq!(seen, (4, &"stale_revision".into(), &2.into()));
    for bad in [
        "router_temperature=-1",
        "temperature=1",
        "router_temperature=hot",
    ] {
        let refused = dev.client(&of(&["set", bad]));
        assert_eq!(refused.0, 3, "{bad}: {refused:?}");
    }
    let waiting = of(&[
        "set",
        "router_temperature=0.6",
        "--wait",
        "--timeout",
        "200ms",
    ]);
    let waited = dev.client(&waiting);
    assert_eq!(waited.0, 5, "nobody has it: {waited:?}");
    let waited = dev.client(&of(&["wait", "--timeout", "100ms"]));
    assert_eq!(waited.0, 5, "{waited:?}");
}

/// Revisions 4 and 5.
fn the_past_can_be_read_and_put_back(dev: &Dev) {
    let history = dev.json(&of(&["history"]));
    let entries = history["entries"].as_array().expect("entries");
    let revisions: Vec<&Value> = entries.iter().map(|one| &one["revision"]).collect();
    assert_eq!(revisions, [3, 2, 1], "{history}");
    let diff = dev.json(&of(&["diff", "--from", "1", "--to", "2"]));
    assert_eq!(
        diff["parameters"]["router_temperature"]["to"], 0.5,
        "{diff}"
    );
    let revert = dev.json(&of(&["revert", "--to", "1"]));
    let wanted = serde_json::json!({"router_temperature": 0.3});
    assert_eq!(revert["policies"][0]["parameters"], wanted, "{revert}");
    let id = revert["policies"][0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert_eq!(dev.json(&["get", "--id", &id])["revision"], 4);
    let key = "0b5e1e0e-6f3c-4d55-9d3c-3f6a5a1c0009";
    let reset = of(&["reset", "--expect", "4", "--idempotency-key", key]);
    let (first, second) = (dev.json(&reset), dev.json(&reset));
    assert_eq!(
        first["position"], second["position"],
        "the same key is one change"
    );
}

/// One change more, of another kind: six in all.
fn everything_is_in_the_log(dev: &Dev) {
    let thresholds = dev.json(&of(&["set", "active_decode_blocks_threshold=0.8"]));
    assert_eq!(
        thresholds["policies"][0]["kind"], "busy_threshold",
        "the name tells the kind"
    );
    let audit = dev.json(&["audit", "--oldest"]);
    assert_eq!(
        audit["entries"].as_array().map(Vec::len),
        Some(6),
        "{audit}"
    );
    let watched = dev.ok(&["watch", "--after", "0", "--count", "6", "--json"]);
    assert_eq!(watched.lines().count(), 6, "{watched}");
    for people in [
        vec!["get"],
        vec!["audit"],
        vec!["status"],
        of(&["history"]),
        of(&["diff"]),
        vec!["watch", "--after", "0", "--count", "1"],
    ] {
        assert!(!dev.ok(&people).is_empty(), "{people:?} shows something");
    }
}
