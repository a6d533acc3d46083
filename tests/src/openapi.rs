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
    let hooks = folder.join("rules_of_requests.py");
    std::fs::write(&hooks, include_str!("openapi/rules_of_requests.py")).expect("hooks");
    let rules: Vec<_> = RULES.iter().map(Rule::as_json).collect();
    let output = Command::new(installed())
        .args(["run", &format!("{}/openapi.json", stage.http.base())])
        // It follows the log in every form, without an end; `tests/inputs` asks it.
        .args(["--exclude-path", "/v1/events"])
        // Our own checks take their place: the same ones, but for the rules below.
        .args([
            "--exclude-checks",
            "positive_data_acceptance,not_a_server_error",
        ])
        .args(["--phases", phases, "--max-examples", &examples.to_string()])
        .args(["--workers", "1", "--request-timeout", "60"])
        // Making a report of an agent (frontends, routers, values of any shape) takes Hypothesis longer than it allows itself
        // beside other work; it says nothing of the service.
        .args(["--suppress-health-check", "too_slow"])
        .args(["--continue-on-failure", "--warnings", "off", "--no-color"])
        .env("SCHEMATHESIS_HOOKS", "rules_of_requests")
        .env("PYTHONPATH", &folder)
        .env("RULES", json!(rules).to_string())
        .env("RULES_MET", folder.join("rules-met"))
        .current_dir(&folder)
        .output();
    let (fine, printed) = match &output {
        Ok(output) => (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        ),
        Err(why) => (false, why.to_string()),
    };
    println!("{printed}");
    println!("valid requests that a rule beyond the schema refused:");
    println!(
        "{}",
        std::fs::read_to_string(folder.join("rules-met")).unwrap_or_default()
    );
    let said = stage.said();
    if !said.is_empty() {
        println!("the service said:\n{said}");
    }
    let fine = fine && said.is_empty();
    println!(
        "openapi: {} passed, {} failed",
        u8::from(fine),
        u8::from(!fine)
    );
    fine
}

/// A rule that JSON Schema does not say: a request that the document allows is refused by it all the same.
struct Rule {
    /// Method and path; `*`: all that have such a part.
    operation: &'static str,
    status: u16,
    code: &'static str,
    /// Part of what is answered.
    words: &'static str,
    /// Why the schema does not say it. Shown beside how often it was met.
    why: &'static str,
}

impl Rule {
    fn as_json(&self) -> serde_json::Value {
        json!([self.operation, self.status, self.code, self.words, self.why])
    }
}

const fn rule(
    operation: &'static str,
    status: u16,
    code: &'static str,
    words: &'static str,
    why: &'static str,
) -> Rule {
    Rule {
        operation,
        status,
        code,
        words,
        why,
    }
}

/// All of them.
#[rustfmt::skip]
const RULES: &[Rule] = &[
    rule("*", 422, "malformed_body", "invalid type: floating point", "1.0 is an integer to JSON Schema; a frontend and we take only 1"),
    rule("*", 422, "malformed_body", "at most", "lengths are in bytes of UTF-8; JSON Schema counts characters"),
    rule("*", 400, "bad_query", "at most 512 are allowed", "the same, in a query"),
    rule("*", 400, "bad_query", "not an RFC 3339 time between", "years before 1970 are times to `date-time`"),
    rule("*", 422, "malformed_body", "not an RFC 3339 time between", "the same, in a body"),
    rule("*", 422, "unknown_parameter", "", "which names there are is what /v1/parameters says"),
    rule("*", 422, "invalid_value", "", "values are judged by the schema and the range of their parameter (/v1/parameters)"),
    rule("*", 422, "invalid_scope", "", "thresholds are of a model, and of no worker type or endpoint: depends on `kind`"),
    rule("*", 422, "invalid_set", "", "no policy twice: uniqueness by a part of an item"),
    rule("POST /router_policy/busy_threshold", 400, "invalid_value", "", "0, or at least 1e-9"),
    rule("POST /busy_threshold", 400, "invalid_value", "", "0, or at least 1e-9"),
    rule("PUT /v1/parameters/{name}", 422, "invalid_schema", "", "a JSON Schema of bounded size without references to elsewhere, under a name that is no built-in one's"),
    rule("GET /v1/policies/{id}/at", 400, "bad_query", "give one of time, position and revision", "one of three query keys"),
    rule("GET /v1/effective", 400, "bad_query", "needs", "two query keys together"),
    rule("GET /v1/convergence", 400, "bad_query", "position", "a query key only beside another one"),
    rule("GET /v1/audit", 400, "bad_query", "limit must be from 1 to", "over 1,000 only for exports"),
    rule("GET /v1/audit", 400, "bad_query", "cursor", "a cursor belongs to its filters"),
    rule("GET /v1/policies", 503, "log_unavailable", "the log ends at position", "a position that may come yet: a leader that is cut off tells an old end"),
    rule("GET /v1/policies/{id}", 503, "log_unavailable", "the log ends at position", "the same"),
    rule("GET /v1/effective", 503, "log_unavailable", "the log ends at position", "the same"),
    rule("*", 412, "precondition_failed", "", "the revision is what the policy has"),
    rule("*", 422, "idempotency_key_reused", "", "a key belongs to its first request"),
    rule("*", 413, "body_too_large", "", "16 KiB for the whole body"),
];

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
