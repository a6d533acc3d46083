//! The fleet of a soak: broker, two services, three agents with two frontends each, and a proxy on every link.

use std::path::{Path, PathBuf};
use std::time::Duration;

use event_log::testing::{NATS_NEWEST, NatsCluster, NatsServer, ServerOptions};

use crate::crash::frontend::MODEL;
use crate::crash::program::Program;
use crate::proxy::{Link, Proxy};

/// Frontends of each agent.
const FRONTENDS: usize = 2;

/// Everything that runs.
#[derive(Debug)]
pub struct Fleet {
    /// nats-servers: one, or a cluster of three.
    pub brokers: Vec<NatsServer>,
    /// Where the log is, without a proxy.
    pub log: String,
    /// Services.
    pub services: Vec<Program>,
    /// Agents.
    pub agents: Vec<Program>,
    /// Frontends, two per agent.
    pub frontends: Vec<Program>,
    /// Links, with what they are between.
    pub links: Vec<(String, Proxy)>,
    /// Everything's folder.
    pub folder: PathBuf,
}

impl Fleet {
    /// Starts everything and waits until it is ready.
    ///
    /// # Errors
    /// What did not start.
    pub async fn start(folder: &Path, cluster: bool) -> Result<Fleet, String> {
        let no = |why: &dyn std::fmt::Display| why.to_string();
        let options = |name: &str| ServerOptions {
            sync_always: true,
            store: Some(folder.join(name)),
            ..ServerOptions::default()
        };
        let (brokers, log) = if cluster {
            // Their folders are temporary: the options are one for all three.
            let options = ServerOptions {
                sync_always: true,
                ..ServerOptions::default()
            };
            let cluster = NatsCluster::start(NATS_NEWEST, &options).map_err(|why| no(&why))?;
            let urls = cluster.urls();
            (cluster.servers, urls)
        } else {
            let nats = NatsServer::start(NATS_NEWEST, &options("nats")).map_err(|why| no(&why))?;
            let url = nats.url();
            (vec![nats], url)
        };
        let mut fleet = Fleet {
            brokers,
            log,
            services: Vec::new(),
            agents: Vec::new(),
            frontends: Vec::new(),
            links: Vec::new(),
            folder: folder.to_owned(),
        };
        for n in 0..2 {
            let name = format!("service{n}");
            let log = fleet.link_to_log(&name, cluster).await?;
            let mut service = Program::service(&name, folder, &log);
            if cluster {
                service.argument("--replicas");
                service.argument("3");
            }
            service.up(None).await?;
            fleet.services.push(service);
        }
        for n in 0..3 {
            let mut urls = Vec::new();
            for m in 0..FRONTENDS {
                let name = format!("frontend{n}{m}");
                let mut frontend = Program::frontend(&name, folder, MODEL);
                frontend.up(None).await?;
                let target = frontend.url().replace("http://", "");
                let proxy = Proxy::start(&target).await.map_err(|why| no(&why))?;
                urls.push(format!("http://{}", proxy.address()));
                fleet.links.push((format!("agent{n}-{name}"), proxy));
                fleet.frontends.push(frontend);
            }
            let name = format!("agent{n}");
            let log = fleet.link_to_log(&name, cluster).await?;
            let mut agent = Program::agent(&name, folder, &log, &urls);
            agent.up(None).await?;
            fleet.agents.push(agent);
        }
        Ok(fleet)
    }

    /// A log URL through a proxy. Clients of a cluster find the other servers by themselves, past any proxy.
    async fn link_to_log(&mut self, name: &str, cluster: bool) -> Result<String, String> {
        if cluster {
            return Ok(self.log.clone());
        }
        let target = self.log.replace("nats://", "");
        let proxy = Proxy::start(&target).await.map_err(|why| why.to_string())?;
        let url = format!("nats://{}", proxy.address());
        self.links.push((format!("{name}-broker"), proxy));
        Ok(url)
    }

    /// Heals every link and starts everything that is down.
    ///
    /// # Errors
    /// What does not come up.
    pub async fn heal(&mut self) -> Result<(), String> {
        for (_, link) in &self.links {
            link.set(Link::Open);
        }
        let all = self.services.iter_mut().chain(&mut self.agents);
        for program in all.chain(&mut self.frontends) {
            if !program.is_running() {
                program.start(None);
            }
        }
        let all = self.services.iter_mut().chain(&mut self.frontends);
        for program in all {
            if let Err(why) = program.ready().await {
                return Err(format!("not ready after healing: {why:?}"));
            }
        }
        Ok(())
    }

    /// Lets a process stand still for a while.
    pub async fn pause(process: u32, time: Duration) {
        signal(process, "-STOP");
        tokio::time::sleep(time).await;
        signal(process, "-CONT");
    }
}

fn signal(process: u32, signal: &str) {
    // One that is gone needs none.
    let _ = std::process::Command::new("kill")
        .args([signal, &process.to_string()])
        .stderr(std::process::Stdio::null())
        .status();
}
