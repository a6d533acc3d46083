//! schemathesis against `/openapi.json` of a real service with policies and a live router: no server error, no answer that the
//! document does not know, no answer of another shape than it says.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::binaries::{binary, target, tools};
use crate::http::Http;
use crate::process::{Process, free_port};
use crate::wait::wait_until;

/// The version that the checks below are named after.
const VERSION: &str = "4.32.5";
const STARTING: Duration = Duration::from_secs(60);

/// Runs it with at most this many examples per operation and phase; prints what it says. True when nothing failed.
///
/// # Panics
/// When the processes do not start, or schemathesis cannot be installed.
#[must_use]
pub fn run(examples: u32, phases: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let folder = target().join("scenarios").join("openapi");
    // It may not exist yet.
    let _ = std::fs::remove_dir_all(&folder);
    let stage = runtime.block_on(Stage::set(&folder));
    let status = Command::new(installed())
        .args(["run", &format!("{}/openapi.json", stage.http.base())])
        // A stream without an end; `tests/inputs` asks it.
        .args(["--exclude-path", "/v1/events"])
        // A JSON Schema cannot say "parameters or reset", or "a name that is not a built-in one"; those are refused.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--phases", phases, "--max-examples", &examples.to_string()])
        .args(["--workers", "2", "--request-timeout", "60"])
        .args(["--continue-on-failure", "--suppress-health-check", "all"])
        .args(["--warnings", "off", "--no-color"])
        .current_dir(&folder)
        .status();
    let said = stage.said();
    if !said.is_empty() {
        println!("the service said:\n{said}");
    }
    let fine = status.is_ok_and(|status| status.success()) && said.is_empty();
    println!(
        "openapi: {} passed, {} failed",
        u8::from(fine),
        u8::from(!fine)
    );
    fine
}

/// The program, in an environment of its own that is made once.
fn installed() -> PathBuf {
    let root = tools().join(format!("schemathesis-{VERSION}"));
    let program = root.join("bin/schemathesis");
    let works = |program: &PathBuf| {
        let asked = Command::new(program).arg("--version").output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    if !works(&program) {
        // A half-made environment is worse than none.
        let _ = std::fs::remove_dir_all(&root);
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(&root)
            .status();
        assert!(made.is_ok_and(|made| made.success()), "python3 -m venv");
        let package = format!("schemathesis=={VERSION}");
        let done = Command::new(root.join("bin/python"))
            .args(["-m", "pip", "install", "-q", &package])
            .status();
        assert!(
            done.is_ok_and(|done| done.success()),
            "pip install {package}"
        );
        assert!(works(&program), "{package} does not run");
    }
    program
}

struct Stage {
    http: Http,
    service: Process,
    _agent: Process,
    _frontend: Process,
}

impl Stage {
    async fn set(folder: &std::path::Path) -> Stage {
        let ports = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let urls = ports.each_ref().map(|port| format!("http://{port}"));
        let mut serve = Command::new(binary("router-policy"));
        serve
            .args(["serve", "--listen", &ports[0], "--data"])
            .arg(folder.join("service"));
        let mut host = Command::new(binary("router-agent"));
        host.args(["frontend", "--listen", &ports[1]]);
        let mut run = Command::new(binary("router-agent"));
        run.args(["run", "--log", &urls[0], "--frontend", &urls[1], "--state"])
            .arg(folder.join("agent"));
        let stage = Stage {
            http: Http::new(urls[0].clone(), STARTING),
            service: Process::start("service", folder, &mut serve),
            _frontend: Process::start("frontend", folder, &mut host),
            _agent: Process::start("agent", folder, &mut run),
        };
        stage.fill().await;
        stage
    }

    /// Policies with a history, and a router that has them.
    async fn fill(&self) {
        let selection = json!({"kind": "worker_selection", "scope": {"model": "mock-model"},
            "parameters": {"router_temperature": 0.5}});
        let thresholds = json!({"kind": "busy_threshold", "scope": {"model": "mock-model"},
            "parameters": {"active_decode_blocks_threshold": 0.5}});
        let any = json!({"kind": "worker_selection", "scope": {"group": "canary"}, "reset": true});
        for changes in [
            json!([selection, thresholds]),
            json!([selection]),
            json!([any]),
        ] {
            let body = json!({"reason": "to have something", "changes": changes});
            wait_until("a change is made", STARTING, async || {
                match self.http.post("/v1/changes", &body).await? {
                    made if made.status == 200 => Ok(()),
                    other => Err(other.text),
                }
            })
            .await;
        }
        wait_until("the router has its policy", STARTING, async || {
            let fleet = self.http.get("/router_policy").await?;
            let replicas = fleet.json["routers"][0]["replicas"].as_array();
            match replicas {
                Some(replicas) if replicas.iter().any(|one| one["state"] == "applied") => Ok(()),
                _ => Err(fleet.text),
            }
        })
        .await;
    }

    /// What a service in good health never says.
    fn said(&self) -> String {
        let log = self.service.log();
        let bad = log
            .lines()
            .filter(|line| line.contains("panicked") || line.contains("ERROR"));
        bad.take(20).collect::<Vec<_>>().join("\n")
    }
}
