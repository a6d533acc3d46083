//! The stage of the scenarios: three Dynamo frontends, two workers, one nats-server, two service replicas, three agents.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions};
use serde_json::{Value, json};

use crate::binaries::{binary, target};
use crate::dynamo::{Domain, Dynamo, Frontend, Role, V1_7, Worker};
use crate::http::{Http, query_value};
use crate::process::{Process, free_port};
use crate::wait::wait_until;

/// The model that both everyday workers serve.
pub const MODEL: &str = "mock-model";
/// How long the fleet may take to agree. Generous: two cores run fourteen processes, most of them debug builds or Python.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Startup flags of the three frontends. The third differs, so that "back to its own startup value" can be seen.
pub const FLAGS: [&[&str]; 3] = [
    &["--active-decode-blocks-threshold", "0.85"],
    &["--active-decode-blocks-threshold", "0.85"],
    &[
        "--active-decode-blocks-threshold",
        "0.6",
        "--router-temperature",
        "0.5",
    ],
];

/// One service replica that keeps its port and its folder through restarts.
#[derive(Debug)]
pub struct Service {
    name: String,
    log: String,
    folder: PathBuf,
    port: u16,
    arguments: Vec<String>,
    /// The process; `None` while it is down.
    pub process: Option<Process>,
    /// Its HTTP address.
    pub http: Http,
}

impl Service {
    /// Prepares one; it is down until [`Service::start`].
    #[must_use]
    pub fn new(name: &str, folder: &Path, log: &str) -> Service {
        let port = free_port();
        Service {
            name: name.to_owned(),
            log: log.to_owned(),
            folder: folder.join(name),
            port,
            arguments: Vec::new(),
            process: None,
            http: Http::new(format!("http://127.0.0.1:{port}"), Duration::from_secs(70)),
        }
    }

    /// The same with more arguments.
    #[must_use]
    pub fn with(mut self, arguments: &[&str]) -> Service {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// Its local stores.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// When it ends instead, or is not ready in time.
    pub async fn start(&mut self) {
        self.launch();
        let what = format!("{} is ready", self.name);
        wait_until(&what, PATIENCE, async || self.ready().await).await;
    }

    /// Whether it is ready.
    ///
    /// # Errors
    /// What it says instead.
    ///
    /// # Panics
    /// When it has ended.
    pub async fn ready(&mut self) -> Result<(), String> {
        let process = self.process.as_mut().expect("it was started");
        assert!(process.is_running(), "it ended: {}", process.last_words());
        match self.http.get("/readyz").await? {
            ready if ready.status == 200 => Ok(()),
            other => Err(other.text),
        }
    }

    /// Starts it, without waiting for anything.
    pub fn launch(&mut self) {
        let mut command = Command::new(binary("router-policy"));
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.port)])
            .args(["--log", &self.log])
            .arg("--data")
            .arg(&self.folder)
            .args(&self.arguments);
        self.process = Some(Process::start(&self.name, &self.folder, &mut command));
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// One agent that keeps its folder through restarts.
#[derive(Debug)]
pub struct Agent {
    name: String,
    log: String,
    frontend: String,
    folder: PathBuf,
    /// The process; `None` while it is down.
    pub process: Option<Process>,
}

impl Agent {
    /// Prepares one for a frontend; it is down until [`Agent::start`].
    #[must_use]
    pub fn new(name: &str, folder: &Path, log: &str, frontend: &str) -> Agent {
        Agent {
            name: name.to_owned(),
            log: log.to_owned(),
            frontend: frontend.to_owned(),
            folder: folder.join(name),
            process: None,
        }
    }

    /// Starts it, without waiting for anything.
    pub fn start(&mut self) {
        let mut command = Command::new(binary("router-agent"));
        command
            .args(["run", "--log", &self.log, "--frontend", &self.frontend])
            .arg("--state")
            .arg(&self.folder);
        self.process = Some(Process::start(&self.name, &self.folder, &mut command));
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }
}

/// Everything that runs during a scenario.
#[derive(Debug)]
pub struct Stage {
    /// Agents, one per frontend. First, so that they are killed first.
    pub agents: Vec<Agent>,
    /// Service replicas on one NATS.
    pub services: Vec<Service>,
    /// The log.
    pub nats: NatsServer,
    /// False while the log is killed.
    pub nats_up: bool,
    /// Dynamo frontends.
    pub frontends: Vec<Frontend>,
    /// Mocker workers of [`MODEL`].
    pub workers: Vec<Worker>,
    /// Where they find each other.
    pub domain: Domain,
    /// Logs and stores of everything.
    pub folder: PathBuf,
}

impl Stage {
    /// Sets the stage in `target/scenarios/NAME`, which is emptied first and stays until [`Stage::strike`].
    ///
    /// # Panics
    /// When something does not start.
    pub async fn set(name: &str) -> Stage {
        let folder = target().join("scenarios").join(name);
        // It may not exist yet.
        let _ = std::fs::remove_dir_all(&folder);
        let domain = Domain::new(Dynamo::installed(V1_7), &folder.join("dynamo"));
        let workers = ["worker1", "worker2"]
            .map(|worker| domain.worker(worker, MODEL, "dynamo", Role::Aggregated))
            .into();
        let mut frontends: Vec<Frontend> = ["frontend0", "frontend1", "frontend2"]
            .map(|frontend| domain.frontend(frontend))
            .into();
        for (frontend, flags) in frontends.iter_mut().zip(FLAGS) {
            domain.bring_up(frontend, flags);
        }
        let options = ServerOptions {
            sync_always: true,
            store: Some(folder.join("nats")),
            ..ServerOptions::default()
        };
        let nats = NatsServer::start(NATS_NEWEST, &options).expect("nats-server");
        let mut services = ["service0", "service1"]
            .map(|service| Service::new(service, &folder, &nats.url()))
            .into_iter()
            .collect::<Vec<_>>();
        for service in &mut services {
            service.start().await;
        }
        for frontend in &mut frontends {
            frontend.serves(MODEL).await;
        }
        let mut agents: Vec<Agent> = frontends
            .iter()
            .enumerate()
            .map(|(n, frontend)| {
                Agent::new(&format!("agent{n}"), &folder, &nats.url(), frontend.url())
            })
            .collect();
        for agent in &mut agents {
            agent.start();
        }
        Stage {
            agents,
            services,
            nats,
            nats_up: true,
            frontends,
            workers,
            domain,
            folder,
        }
    }

    /// Ends everything and removes its stores. What a failure needs for its explanation is kept by not calling this.
    pub fn strike(self) {
        let folder = self.folder.clone();
        drop(self);
        if let Err(error) = std::fs::remove_dir_all(&folder) {
            println!("{} is left behind: {error}", folder.display());
        }
    }

    /// A service replica.
    #[must_use]
    pub fn service(&self, n: usize) -> &Http {
        &self.services[n].http
    }

    /// SIGKILL to nats-server; its store stays.
    pub fn stop_log(&mut self) {
        self.nats.kill();
        self.nats_up = false;
    }

    /// Starts nats-server again, on the same port with the same store.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn resume_log(&mut self) {
        self.nats.restart().expect("nats-server");
        self.nats_up = true;
    }

    /// Starts what is down, empties every policy and waits until the fleet has settled on that.
    ///
    /// # Panics
    /// When it does not settle.
    pub async fn calm(&mut self) {
        if !self.nats_up {
            self.resume_log();
        }
        for service in &mut self.services {
            if service.process.is_none() {
                service.start().await;
            }
        }
        for (frontend, flags) in self.frontends.iter_mut().zip(FLAGS) {
            if frontend.process.is_none() {
                self.domain.bring_up(frontend, flags);
            }
        }
        for frontend in &mut self.frontends {
            frontend.serves(MODEL).await;
        }
        for agent in &mut self.agents {
            if agent.process.is_none() {
                agent.start();
            }
        }
        self.reset_everything().await;
        self.replicas(MODEL, 3).await;
    }

    /// Resets every policy that has parameters.
    ///
    /// # Panics
    /// When that is not accepted in time.
    pub async fn reset_everything(&self) {
        let service = self.service(0);
        wait_until("every policy is reset", PATIENCE, async || {
            let all = service.get("/v1/policies").await?;
            let changes: Vec<Value> = all.json["policies"]
                .as_array()
                .ok_or_else(|| all.text.clone())?
                .iter()
                .filter(|policy| {
                    policy["parameters"]
                        .as_object()
                        .is_some_and(|p| !p.is_empty())
                })
                .map(|policy| {
                    json!({"kind": policy["kind"], "scope": policy["scope"], "reset": true,
                        "expected_revision": policy["revision"]})
                })
                .collect();
            if changes.is_empty() {
                return Ok(());
            }
            for change in changes {
                let body = json!({"reason": "between scenarios", "changes": [change]});
                let done = service.post("/v1/changes", &body).await?;
                if done.status != 200 {
                    return Err(done.text);
                }
            }
            Err("just reset".to_owned())
        })
        .await;
    }

    /// Waits until the fleet view lists one router of `model` with this many replicas, all applied, and returns its entry.
    ///
    /// # Panics
    /// When it does not.
    pub async fn replicas(&self, model: &str, count: usize) -> Value {
        let what = format!("{count} replicas of {model:?} are applied");
        let path = format!("/router_policy?model={}", query_value(model));
        wait_until(&what, PATIENCE, async || {
            let listed = self.service(0).get(&path).await?;
            let routers = listed.json["routers"].as_array();
            match routers.map(Vec::as_slice) {
                Some([one]) if applied(one) == count => Ok(one.clone()),
                _ => Err(listed.text),
            }
        })
        .await
    }

    /// Patches the fleet's router of `model` through service `n` and waits for the answer about convergence.
    ///
    /// # Panics
    /// When it is not answered with 200.
    pub async fn change(&self, n: usize, model: &str, parameters: Value) -> Value {
        self.act(n, model, json!({"parameters": parameters})).await
    }

    /// Resets the fleet's router of `model`.
    ///
    /// # Panics
    /// As [`Stage::change`].
    pub async fn reset(&self, n: usize, model: &str) -> Value {
        self.act(n, model, json!({"reset": true})).await
    }

    async fn act(&self, n: usize, model: &str, mut body: Value) -> Value {
        let entry = self.entry(n, model).await;
        body["router_id"] = entry["router_id"].clone();
        body["expected_revision"] = entry["configuration"]["revision"].clone();
        let done = self
            .service(n)
            .patch("/router_policy?wait=converged&timeout_ms=30000", &body)
            .await
            .unwrap_or_else(|error| panic!("no answer: {error}"));
        done.expect(200).json
    }

    /// The fleet's only entry for `model` at service `n`.
    ///
    /// # Panics
    /// When there is not exactly one.
    pub async fn entry(&self, n: usize, model: &str) -> Value {
        let path = format!("/router_policy?model={}", query_value(model));
        wait_until("the fleet lists the model", PATIENCE, async || {
            let listed = self.service(n).get(&path).await?;
            match listed.json["routers"].as_array().map(Vec::as_slice) {
                Some([one]) => Ok(one.clone()),
                _ => Err(listed.text),
            }
        })
        .await
    }

    /// One parameter as every frontend lists it right now.
    ///
    /// # Panics
    /// When a frontend cannot say.
    pub async fn listed(&self, model: &str, name: &str) -> Vec<f64> {
        let mut all = Vec::new();
        for frontend in &self.frontends {
            let value = frontend.parameter(model, name).await;
            all.push(value.unwrap_or_else(|seen| panic!("{}: {seen}", frontend.url())));
        }
        all
    }
}

/// How many replicas of a fleet entry are applied.
#[must_use]
pub fn applied(entry: &Value) -> usize {
    entry["replicas"].as_array().map_or(0, |all| {
        all.iter().filter(|one| one["state"] == "applied").count()
    })
}
