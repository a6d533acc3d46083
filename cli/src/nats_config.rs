//! `nats-config`: a configuration of nats-server with least privileges, and its keys.

use std::fs;
use std::path::Path;

use event_log::nats_config::{Login, Names, Part, Server, UserKey, render};

use crate::arguments::NatsConfig;
use crate::client::chain;
use crate::problem::Problem;

pub(crate) fn run(options: &NatsConfig) -> Result<(), Problem> {
    let failed = |path: &Path, why: &dyn std::fmt::Display| {
        Problem::Failed(format!("{}: {why}", path.display()))
    };
    fs::create_dir_all(&options.out).map_err(|why| failed(&options.out, &why))?;
    let mut parts = vec![Part::Service];
    parts.extend(options.agents.iter().cloned().map(Part::Agent));
    parts.extend(options.operator.then_some(Part::Operator));
    let mut logins = Vec::new();
    for part in parts {
        let path = options.out.join(format!("{}.nk", part.file_name()));
        let key = UserKey::read_or_make(&path).map_err(|why| Problem::Failed(chain(&why)))?;
        let public_key = key.public_key;
        logins.push((path, Login { part, public_key }));
    }
    let scheme = if options.tls_cert.is_some() {
        "tls"
    } else {
        "nats"
    };
    let server = Server {
        listen: options.listen.clone(),
        store: options.store.clone(),
        tls: options.tls_cert.clone().zip(options.tls_key.clone()),
    };
    let names = Names {
        stream: options.stream.clone(),
        ..Names::default()
    };
    let only: Vec<Login> = logins.iter().map(|(_, login)| login.clone()).collect();
    let config = options.out.join("nats-server.conf");
    fs::write(&config, render(&server, &names, &only)).map_err(|why| failed(&config, &why))?;
    println!("nats-server -c {}", config.display());
    for (path, login) in &logins {
        let url = format!("{scheme}://{}", options.listen);
        let path = path.display();
        match &login.part {
            Part::Service => println!("router-policy serve --log {url} --nats-nkey {path}"),
            Part::Agent(agent) => println!(
                "router-agent run --log {url} --nkey {path} --agent-id {agent} --frontend URL --state FOLDER"
            ),
            Part::Operator => println!(
                "nats --server {url} --nkey {path} stream info {}",
                names.stream
            ),
        }
    }
    Ok(())
}
