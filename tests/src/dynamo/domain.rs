//! One discovery domain: the frontends and workers that find each other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::install::Dynamo;
use crate::http::Http;
use crate::process::{Process, free_port};
use crate::wait::wait_until;

/// How long a frontend or worker may take to appear. Python imports dominate: a few seconds each on two cores.
const START_PATIENCE: Duration = Duration::from_secs(90);

/// Frontends and workers that find each other through one folder.
#[derive(Debug)]
pub struct Domain {
    dynamo: Dynamo,
    folder: PathBuf,
}

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Both phases.
    Aggregated,
    /// Only prefill.
    Prefill,
    /// Only decode.
    Decode,
}

/// A running mocker.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub process: Process,
}

/// A frontend that keeps its port through restarts.
#[derive(Debug)]
pub struct Frontend {
    name: String,
    port: u16,
    /// The process; `None` while it is down.
    pub process: Option<Process>,
    /// Its HTTP address.
    pub http: Http,
}

impl Domain {
    /// A domain in a folder of its own.
    ///
    /// # Panics
    /// When the folder cannot be made.
    #[must_use]
    pub fn new(dynamo: Dynamo, folder: &Path) -> Domain {
        std::fs::create_dir_all(folder.join("kv")).expect("folder");
        Domain {
            dynamo,
            folder: folder.to_path_buf(),
        }
    }

    fn python(&self, module: &str) -> Command {
        let mut command = Command::new(&self.dynamo.python);
        command
            .args(["-m", module])
            .env("DYN_FILE_KV", self.folder.join("kv"))
            .env("DYN_DISCOVERY_BACKEND", "file")
            .env("DYN_REQUEST_PLANE", "tcp")
            .env("DYN_EVENT_PLANE", "zmq")
            .env("DYN_TCP_RPC_HOST", "127.0.0.1")
            .env("DYN_TCP_RESPONSE_STREAM_HOST", "127.0.0.1")
            .env("DYN_EVENT_PLANE_HOST", "127.0.0.1")
            .env("HF_HUB_OFFLINE", "1")
            .env("TRANSFORMERS_OFFLINE", "1")
            .env("DYN_LOG", "info");
        command
    }

    /// Starts a worker of `model` in a Dynamo namespace.
    #[must_use]
    pub fn worker(&self, name: &str, model: &str, namespace: &str, role: Role) -> Worker {
        let mut command = self.python("dynamo.mocker");
        command.arg("--model-path").arg(&self.dynamo.model).args([
            "--model-name",
            model,
            "--block-size",
            "16",
            "--num-gpu-blocks-override",
            "4096",
            "--max-model-len",
            "8192",
            "--speedup-ratio",
            "10",
        ]);
        let component = match role {
            Role::Aggregated | Role::Decode => "backend",
            Role::Prefill => "prefill",
        };
        command.args([
            "--endpoint",
            &format!("dyn://{namespace}.{component}.generate"),
        ]);
        match role {
            Role::Aggregated => {}
            Role::Prefill => {
                let port = free_port().to_string();
                command.args([
                    "--disaggregation-mode",
                    "prefill",
                    "--bootstrap-ports",
                    &port,
                ]);
            }
            Role::Decode => {
                command.args(["--disaggregation-mode", "decode"]);
            }
        }
        Worker {
            process: Process::start(name, &self.folder, &mut command),
        }
    }

    /// Prepares a frontend; it is down until [`Domain::bring_up`].
    #[must_use]
    pub fn frontend(&self, name: &str) -> Frontend {
        let port = free_port();
        Frontend {
            name: name.to_owned(),
            port,
            process: None,
            http: Http::kept(format!("http://127.0.0.1:{port}"), Duration::from_secs(5)),
        }
    }

    /// Starts a frontend in KV mode with these flags more, without waiting for it.
    pub fn bring_up(&self, frontend: &mut Frontend, flags: &[&str]) {
        let mut command = self.python("dynamo.frontend");
        command
            .args(["--http-host", "127.0.0.1", "--router-mode", "kv"])
            .args(["--http-port", &frontend.port.to_string()])
            .args(flags);
        frontend.process = Some(Process::start(&frontend.name, &self.folder, &mut command));
    }
}

impl Frontend {
    /// Its base URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.http.base()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Waits until it serves the model.
    ///
    /// # Panics
    /// When it ends, or does not in time.
    pub async fn serves(&mut self, model: &str) {
        let what = format!("{} serves {model:?}", self.name);
        let http = self.http.clone();
        let process = self.process.as_mut().expect("a frontend that was started");
        wait_until(&what, START_PATIENCE, async || {
            assert!(process.is_running(), "it ended: {}", process.last_words());
            let models = http.get("/v1/models").await?;
            let listed = models.json["data"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one["id"].as_str() == Some(model)));
            if listed { Ok(()) } else { Err(models.text) }
        })
        .await;
    }

    /// Its routers of one model, as it lists them.
    ///
    /// # Errors
    /// Why it could not say.
    pub async fn routers(&self, model: &str) -> Result<Vec<Value>, String> {
        let answer = self.http.get("/router_policy").await?;
        let all = answer.json["routers"]
            .as_array()
            .ok_or_else(|| answer.text.clone())?;
        Ok(all
            .iter()
            .filter(|router| router["model"].as_str() == Some(model))
            .cloned()
            .collect())
    }

    /// Its only router of a model.
    ///
    /// # Errors
    /// What there is instead.
    pub async fn router(&self, model: &str) -> Result<Value, String> {
        let mut routers = self.routers(model).await?;
        match (routers.pop(), routers.is_empty()) {
            (Some(one), true) => Ok(one),
            (one, _) => Err(format!("{} has {one:?} and {routers:?}", self.name)),
        }
    }

    /// One resolved parameter of its only router of a model.
    ///
    /// # Errors
    /// What there is instead.
    pub async fn parameter(&self, model: &str, name: &str) -> Result<f64, String> {
        let router = self.router(model).await?;
        router["configuration"]["parameters"][name]
            .as_f64()
            .ok_or_else(|| router.to_string())
    }

    /// The thresholds of one model.
    ///
    /// # Errors
    /// What there is instead.
    pub async fn thresholds(&self, model: &str) -> Result<Value, String> {
        let answer = self.http.get("/busy_threshold").await?;
        answer.json["thresholds"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["model"].as_str() == Some(model)))
            .cloned()
            .ok_or(answer.text)
    }
}
