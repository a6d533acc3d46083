//! The help texts, word for word: they are documentation that people copy from.

use std::path::Path;
use std::process::Command;

/// One golden file per command; `BLESS=1` writes them anew.
#[test]
fn golden_help_of_every_command() {
    let commands = [
        "",
        "serve",
        "dev",
        "adopt",
        "nats-config",
        "get",
        "set",
        "reset",
        "revert",
        "history",
        "diff",
        "audit",
        "watch",
        "status",
        "wait",
    ];
    let bless = std::env::var_os("BLESS").is_some();
    for command in commands {
        let mut help = Command::new(env!("CARGO_BIN_EXE_router-policy"));
        if !command.is_empty() {
            help.arg(command);
        }
        let out = help
            .arg("--help")
            .env_remove("ROUTER_POLICY_SERVICE")
            .output()
            .expect("it runs");
        assert!(out.status.success(), "{command}: {out:?}");
        let text = String::from_utf8(out.stdout).expect("UTF-8");
        let name = if command.is_empty() {
            "router-policy"
        } else {
            command
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(format!("{name}.txt"));
        if bless {
            std::fs::write(&path, &text).expect("golden written");
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            text, golden,
            "help of {name} changed; `cargo xtask bless` writes it anew"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2_and_an_absent_service_with_1() {
    let run = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_router-policy"))
            .args(arguments)
            .env_remove("ROUTER_POLICY_SERVICE")
            .output()
            .expect("it runs");
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    // Port 1 of loopback: nobody listens there.
    let nobody = "--service=http://127.0.0.1:1";
    for (arguments, code) in [
        (vec!["frobnicate"], 2),
        (vec!["set", "router_temperature", "--model", "m"], 2),
        (vec!["set", "router_temperature=0.3", nobody], 2),
        (vec!["reset", "--any", "--model", "m", nobody], 2),
        (vec!["get", "--service", "ftp://x"], 2),
        (vec!["get", nobody], 1),
        (
            vec!["set", "router_temperature=0.3", "--model", "m", nobody],
            1,
        ),
        (
            vec![
                "set",
                "router_temperature=0.3",
                "--model",
                "m",
                "--expect",
                "0",
                nobody,
            ],
            1,
        ),
    ] {
        let (got, said) = run(&arguments);
        assert_eq!(got, Some(code), "{arguments:?}: {said}");
        assert!(!said.is_empty(), "{arguments:?} says nothing");
    }
}
