//! `dev`: everything in one process, to try it: the service with an embedded log, and one agent for the given frontends.

use std::net::SocketAddr;

use event_log::{Options, ReaderWiring, Wiring};

use crate::arguments::Dev;
use crate::client::chain;
use crate::problem::Problem;
use crate::serve::{log_to_stderr, start, until_stopped, wire};

pub(crate) async fn run(options: Dev) -> Result<(), Problem> {
    // People look at the banner; what goes wrong still shows.
    log_to_stderr("warn");
    let log = Options {
        embedded_dir: options.data.join("log"),
        ..Options::default()
    };
    let wiring = wire("embedded", &options.data, log).await?;
    let mut config = service::Config::new(options.listen, &options.data);
    config.facade_disabled = crate::serve::facade_disabled();
    let running = start(config, wiring.clone(), &options.data).await?;
    let agent = if options.frontends.is_empty() {
        None
    } else {
        Some(agent(&options, wiring).await?)
    };
    print!("{}", banner(running.address(), &options));
    let ended = until_stopped(&running).await;
    println!(
        "stopping; everything that was acknowledged is in {}",
        options.data.display()
    );
    if let Some(agent) = agent {
        agent.stop().await;
    }
    running.stop().await;
    ended
}

async fn agent(options: &Dev, wiring: Wiring) -> Result<router_agent::Running, Problem> {
    let mut frontends = Vec::new();
    for url in &options.frontends {
        let frontend = router_agent::Frontend::dynamo(url, router_agent::Timeouts::default());
        let bad = |error: &dyn std::error::Error| {
            Problem::Usage(format!("--frontend {url}: {}", chain(error)))
        };
        frontends.push(frontend.map_err(|error| bad(&error))?);
    }
    let mut config = router_agent::Config::new(options.data.join("agent"), frontends);
    config.group = options.group.clone();
    let wiring = ReaderWiring {
        log: wiring.log,
        board: wiring.board,
    };
    router_agent::start(config, wiring)
        .await
        .map_err(|error| Problem::Failed(format!("the agent does not start: {}", chain(&error))))
}

/// Where everything is, and what to try next.
fn banner(address: SocketAddr, options: &Dev) -> String {
    let url = format!("http://{address}");
    let service = if url == "http://127.0.0.1:8090" {
        String::new()
    } else {
        format!("export ROUTER_POLICY_SERVICE={url}\n    ")
    };
    let frontends = if options.frontends.is_empty() {
        "\n  No frontend is looked after yet. Start one and give it to me:
    python -m dynamo.frontend --http-port 8000 --router-mode kv      (Dynamo 1.7, with a worker or a mocker)
    router-policy dev --frontend http://127.0.0.1:8000
  Changes, history and audit work already: a policy waits for the routers that it is for.\n"
            .to_owned()
    } else {
        format!(
            "\n  agent looks after    {}\n",
            options.frontends.join("\n                       ")
        )
    };
    format!(
        "router-policy dev: service, log and agent in one process (Ctrl-C stops it)

  fleet, as a frontend {url}/router_policy
  policies             {url}/v1/policies
  fleet and agents     {url}/v1/convergence
  API description      {url}/openapi.json
  kept in              {data}
{frontends}
  Try, in another terminal:
    {service}router-policy set router_temperature=0.3 --model mock-model --reason 'spread a little'
    router-policy get
    router-policy history --model mock-model
    router-policy set router_temperature=null --model mock-model
    router-policy audit
    router-policy status
",
        data = options.data.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev(frontends: &[&str]) -> Dev {
        Dev {
            frontends: frontends.iter().map(ToString::to_string).collect(),
            group: None,
            data: "data".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8090)),
        }
    }

    #[test]
    fn the_banner_says_what_to_do_without_a_frontend() {
        let usual = SocketAddr::from(([127, 0, 0, 1], 8090));
        let without = banner(usual, &dev(&[]));
        assert!(without.contains("dev --frontend"), "{without}");
        assert!(!without.contains("export"), "{without}");
        let with = banner(
            SocketAddr::from(([127, 0, 0, 1], 9)),
            &dev(&["http://a", "http://b"]),
        );
        assert!(
            with.contains("http://b") && !with.contains("dev --frontend"),
            "{with}"
        );
        assert!(
            with.contains("export ROUTER_POLICY_SERVICE=http://127.0.0.1:9"),
            "{with}"
        );
    }
}
