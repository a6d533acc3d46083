//! The stage: three nats-servers with one network between them, two services that know all three, and an operator.

use std::path::{Path, PathBuf};
use std::time::Duration;

use event_log::testing::{Admin, NATS_NEWEST, NatsServer, ServerOptions};
use schemas::CommandId;
use serde_json::{Value, json};

use super::net::{Lane, Net};
use crate::binaries::target;
use crate::http::{Answer, Http};
use crate::process::free_port;
use crate::stage::Service;
use crate::wait::wait_until;

/// The stream.
pub const STREAM: &str = "ROUTER_POLICY";
/// How long anything may take to come right again after healing. Generous: a debug build shares two cores with six processes.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Services.
pub const SERVICES: usize = 2;
const NODES: usize = 3;
/// The operator's and the services' login, where a case gives them one.
pub const OPERATOR: (&str, &str) = ("operator", "operator");

/// How a stage is set.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// `sync_interval: always`.
    pub sync_always: bool,
    /// More lines of every server's configuration.
    pub configuration: String,
    /// Login of the services; the operator has one then, too.
    pub login: Option<(&'static str, &'static str)>,
    /// Folders of the servers' stores, where they are not below the stage's own.
    pub stores: Vec<PathBuf>,
}

/// Everything that runs.
#[derive(Debug)]
pub struct Stage {
    /// Services; first, so that they are killed first.
    pub services: Vec<Service>,
    /// Servers.
    pub servers: Vec<NatsServer>,
    /// Between them: servers are parties 0 to 2, services 3 and 4.
    pub net: Net,
    /// Past the network.
    pub admin: Admin,
    /// Where the operator and the ledger reach the servers.
    pub urls: String,
    /// Stores and logs.
    pub folder: PathBuf,
}

impl Stage {
    /// Sets it in `target/cluster/NAME`, which is emptied first.
    ///
    /// # Panics
    /// When something does not start.
    pub async fn set(name: &str, setup: &Setup) -> Stage {
        let folder = target().join("cluster").join(name);
        // It may not exist yet.
        let _ = std::fs::remove_dir_all(&folder);
        let net = Net::new(NODES + SERVICES);
        let servers = start_servers(&net, &folder, setup).await;
        let mut services = Vec::new();
        for number in 0..SERVICES {
            let mut doors = Vec::new();
            for (node, server) in servers.iter().enumerate() {
                let door = net.door(NODES + number, node, port_of(server)).await;
                let login = setup.login.map_or(String::new(), |(user, password)| {
                    format!("{user}:{password}@")
                });
                doors.push(format!("nats://{login}127.0.0.1:{door}"));
            }
            let service = Service::new(&format!("service{number}"), &folder, &doors.join(","))
                .with(&["--replicas", "3"]);
            services.push(service);
        }
        let urls = servers
            .iter()
            .map(NatsServer::url)
            .collect::<Vec<_>>()
            .join(",");
        let admin = Admin::connect(&urls, setup.login.map(|_| OPERATOR))
            .await
            .expect("the operator's URLs");
        let mut stage = Stage {
            services,
            servers,
            net,
            admin,
            urls,
            folder,
        };
        for service in &mut stage.services {
            service.start().await;
        }
        stage.whole().await;
        stage
    }

    /// Ends everything and removes its stores.
    pub async fn strike(self) {
        let folder = self.folder.clone();
        self.net.close().await;
        drop(self);
        // Stays for whoever looks when it cannot be removed.
        let _ = std::fs::remove_dir_all(&folder);
    }

    /// A service.
    #[must_use]
    pub fn service(&self, number: usize) -> &Http {
        &self.services[number].http
    }

    /// What the stream's leader says of the stream.
    ///
    /// # Errors
    /// What was said instead.
    pub async fn info(&self) -> Result<Value, String> {
        let what = format!("STREAM.INFO.{STREAM}");
        let info = self.admin.ask(&what, &Value::Null).await;
        info.map_err(|why| why.to_string())
    }

    /// The number of the server that leads the stream.
    ///
    /// # Panics
    /// When none does for too long.
    pub async fn leader(&self) -> usize {
        wait_until("the stream has a leader", PATIENCE, async || {
            let info = self.info().await?;
            let leader = info["cluster"]["leader"].as_str().unwrap_or_default();
            let found = self
                .servers
                .iter()
                .position(|server| server.name() == leader);
            found.ok_or_else(|| info["cluster"].to_string())
        })
        .await
    }

    /// Waits until all three servers have all of the stream.
    ///
    /// # Panics
    /// When they do not in time.
    pub async fn whole(&self) {
        wait_until("all replicas are current", PATIENCE, async || {
            let info = self.info().await?;
            let followers = info["cluster"]["replicas"].as_array();
            let current = followers.is_some_and(|all| {
                all.len() == NODES - 1
                    && all.iter().all(|one| {
                        one["current"] == true
                            && one["offline"] != true
                            && one["lag"].as_u64().unwrap_or(0) == 0
                    })
            });
            if current {
                Ok(())
            } else {
                Err(info["cluster"].to_string())
            }
        })
        .await;
    }

    /// Changes what is configured of the stream.
    ///
    /// # Panics
    /// When the broker does not take it.
    pub async fn update_stream(&self, change: impl Fn(&mut Value)) {
        wait_until("the stream is reconfigured", PATIENCE, async || {
            let mut config = self.info().await?["config"].clone();
            change(&mut config);
            let what = format!("STREAM.UPDATE.{STREAM}");
            let done = self.admin.ask(&what, &config).await;
            done.map(|_| ()).map_err(|why| why.to_string())
        })
        .await;
    }

    /// Cuts a server off: what leaves it, what reaches it, or both.
    pub fn cut(&self, node: usize, outgoing: bool, incoming: bool) {
        self.net.set_all(node, outgoing, incoming, Lane::Cut);
    }

    /// One change of a policy of its own, without a key and without a condition.
    ///
    /// # Errors
    /// Why there was no answer.
    pub async fn change(&self, service: usize, model: &str, value: f64) -> Result<Answer, String> {
        let body = json!({"changes": [{"kind": "worker_selection", "scope": {"model": model},
            "parameters": {"router_temperature": value}}]});
        self.service(service).post("/v1/changes", &body).await
    }

    /// Waits until a change is accepted through every service, and each one's view is the same.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn works(&self) {
        let mut position = 0;
        for service in 0..SERVICES {
            let answer = wait_until("changes are accepted", PATIENCE, async || {
                let answer = self.change(service, "works", 0.5).await?;
                if answer.status == 200 {
                    Ok(answer)
                } else {
                    Err(answer.text)
                }
            })
            .await;
            position = position.max(answer.json["position"].as_u64().expect("a position"));
        }
        self.same_view(position).await;
    }

    /// Waits until both services tell the same of every policy.
    ///
    /// # Panics
    /// When they do not.
    pub async fn same_view(&self, min_position: u64) {
        let path = format!("/v1/policies?min_position={min_position}");
        wait_until("both services tell the same", PATIENCE, async || {
            let one = self.service(0).get(&path).await?;
            let other = self.service(1).get(&path).await?;
            if one.status == 200 && one.json == other.json {
                Ok(())
            } else {
                Err(format!("{} and {}", one.text, other.text))
            }
        })
        .await;
    }
}

async fn start_servers(net: &Net, folder: &Path, setup: &Setup) -> Vec<NatsServer> {
    let routes: Vec<u16> = (0..NODES).map(|_| free_port()).collect();
    let mut servers = Vec::new();
    for node in 0..NODES {
        let mut doors = Vec::new();
        for other in (0..NODES).filter(|other| *other != node) {
            let door = net.door(node, other, routes[other]).await;
            doors.push(format!("nats://127.0.0.1:{door}"));
        }
        // SUBTLE: servers tell each other where others listen, and would go round the network; so they tell a port where
        // nobody does, and clients are told of no server but those that they know.
        let configuration = format!(
            "cluster {{ name: C, listen: 127.0.0.1:{}, advertise: \"127.0.0.1:9\", no_advertise: true, routes: [{}] }}\n{}",
            routes[node],
            doors.join(", "),
            setup.configuration
        );
        let store = setup
            .stores
            .get(node)
            .cloned()
            .unwrap_or_else(|| folder.join(format!("nats{node}")));
        let options = ServerOptions {
            sync_always: setup.sync_always,
            store: Some(store),
            configuration,
        };
        servers.push(NatsServer::start(NATS_NEWEST, &options).expect("nats-server"));
    }
    servers
}

fn port_of(server: &NatsServer) -> u16 {
    let url = server.url();
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok());
    port.expect("a URL ends with its port")
}

/// A new command.
#[must_use]
pub fn new_command() -> CommandId {
    CommandId(event_log::ambient::new_id())
}
