//! The processes that are attacked: a service on its own log, an agent with a health port, and a reference frontend.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;

use super::probe::Question;
use crate::binaries::{binary, target};
use crate::http::Http;
use crate::process::{Process, free_port};
use crate::wait::wait_until;

/// Whom an attack is against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Against {
    Service,
    Agent,
    Frontend,
    /// A service that may open few files.
    Poor,
}

impl Against {
    pub(super) fn name(self) -> &'static str {
        match self {
            Against::Service => "service",
            Against::Agent => "agent",
            Against::Frontend => "frontend",
            Against::Poor => "few files",
        }
    }
}

/// One process, and how to ask it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) process: u32,
    pub(super) address: SocketAddr,
    pub(super) http: Http,
    pub(super) probes: Vec<Question>,
}

impl Place {
    /// Files that the process has open; connections are among them.
    pub(super) fn open_files(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.process));
        open.map_or(0, Iterator::count)
    }
}

/// Open files of the poor service.
pub(super) const FEW_FILES: usize = 512;
const STARTING: Duration = Duration::from_secs(60);

pub(super) struct Stage {
    folder: PathBuf,
    agent: (Process, u16),
    frontend: (Process, u16),
    service: (Process, u16),
    poor: (Process, u16),
}

impl Stage {
    pub(super) async fn set() -> Stage {
        let folder = target().join("scenarios").join("hostile");
        // It may not exist yet.
        let _ = std::fs::remove_dir_all(&folder);
        let start = |name: &str, program: &str, files: &str, port: u16, arguments: &[&str]| {
            let mut command = Command::new("sh");
            command
                .args(["-c", &format!("ulimit {files}; exec \"$@\""), "sh"])
                .arg(binary(program))
                .args(arguments);
            (Process::start(name, &folder, &mut command), port)
        };
        // As a system starts them: each raises it for itself.
        let most = "-S -n 1024";
        let few = format!("-n {FEW_FILES}");
        let ports = [(); 4].map(|()| free_port());
        let at = |port: u16| format!("127.0.0.1:{port}");
        let data = |name: &str| folder.join(name).display().to_string();
        let serve = |name: &str, files: &str, port: u16| {
            let arguments = ["serve", "--listen", &at(port), "--data", &data(name)];
            start(name, "router-policy", files, port, &arguments)
        };
        let service = serve("service", most, ports[0]);
        let poor = serve("poor", &few, ports[1]);
        let listen = at(ports[2]);
        let arguments = ["frontend", "--listen", &listen];
        let frontend = start("frontend", "router-agent", most, ports[2], &arguments);
        let log = format!("http://{}", at(ports[0]));
        let url = format!("http://{}", at(ports[2]));
        let (state, health) = (data("agent"), at(ports[3]));
        let arguments = [
            "run",
            "--log",
            &log,
            "--frontend",
            &url,
            "--state",
            &state,
            "--health",
            &health,
        ];
        let agent = start("agent", "router-agent", most, ports[3], &arguments);
        let stage = Stage {
            folder,
            agent,
            frontend,
            service,
            poor,
        };
        stage.ready().await;
        stage
    }

    async fn ready(&self) {
        for against in [
            Against::Service,
            Against::Poor,
            Against::Frontend,
            Against::Agent,
        ] {
            let place = self.place(against);
            for question in &place.probes {
                wait_until(
                    &format!("{} is there", question.url),
                    STARTING,
                    async || {
                        let asked = super::probe::once(question).await;
                        asked.map_err(|why| format!("{why:?}"))
                    },
                )
                .await;
            }
        }
    }

    pub(super) fn place(&self, against: Against) -> Place {
        let (process, port) = match against {
            Against::Service => &self.service,
            Against::Agent => &self.agent,
            Against::Frontend => &self.frontend,
            Against::Poor => &self.poor,
        };
        let base = format!("http://127.0.0.1:{port}");
        let get = |path: &str| Question::get(format!("{base}{path}"));
        let change = json!({"reason": "an ordinary change", "changes": [{"kind": "worker_selection",
            "scope": {"model": "probe"}, "parameters": {"router_temperature": 0.5}}]});
        let probes = match against {
            Against::Service | Against::Poor => vec![
                get("/readyz"),
                Question {
                    method: Method::POST,
                    url: format!("{base}/v1/changes"),
                    body: Some(change.to_string()),
                },
                get("/router_policy"),
                get("/v1/audit?limit=1"),
            ],
            Against::Agent => vec![get("/livez"), get("/readyz")],
            Against::Frontend => vec![get("/router_policy"), get("/busy_threshold")],
        };
        Place {
            process: process.id(),
            address: SocketAddr::from(([127, 0, 0, 1], *port)),
            http: Http::new(base, super::PATIENCE),
            probes,
        }
    }

    /// The last words of a process that has ended.
    pub(super) fn fallen(&mut self) -> Option<String> {
        let all = [
            &mut self.service,
            &mut self.agent,
            &mut self.frontend,
            &mut self.poor,
        ];
        all.into_iter()
            .find_map(|(process, _)| (!process.is_running()).then(|| process.last_words()))
    }

    /// Ends everything and removes it.
    pub(super) fn strike(self) {
        let folder = self.folder.clone();
        drop(self);
        // What is left is overwritten by the next run.
        let _ = std::fs::remove_dir_all(folder);
    }
}
