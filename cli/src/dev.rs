//! `dev`: everything in one process, to try it: the service with an embedded log, and one agent for the given frontends, or
//! the demo fleet of [`crate::demo`].

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;

use event_log::{LogUrl, Options, ReaderWiring, Wiring};

use crate::arguments::Dev;
use crate::client::chain;
use crate::demo::{self, Demo};
use crate::problem::Problem;
use crate::serve::{log_to_stderr, start, until_stopped, wire};

pub(crate) async fn run(options: Dev) -> Result<(), Problem> {
    // People look at the banner; what goes wrong still shows.
    log_to_stderr("warn");
    let log = Options {
        embedded_dir: options.data.join("log"),
        ..Options::default()
    };
    let wiring = wire(&LogUrl::Embedded(None), &options.data, log).await?;
    let mut config = service::Config::new(options.listen, &options.data);
    config.facade_disabled = crate::serve::facade_disabled();
    let running = start(config, wiring.clone(), &options.data).await?;
    let (mut agent, mut demo) = (None, None);
    if !options.frontends.is_empty() {
        agent = Some(self::agent(&options, wiring).await?);
    } else if !options.no_demo {
        demo = Some(Demo::start(&options.data, options.group.as_ref(), &wiring).await?);
    }
    let fleet = demo.as_ref().map(Demo::addresses);
    say(&banner(
        running.address(),
        &options,
        fleet.as_deref(),
        &me(),
    ));
    let show = async {
        match &demo {
            Some(demo) => demo.show().await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = until_stopped(&running) => ended,
        () = show => Ok(()),
    };
    // Over the "^C" that the terminal shows.
    let start = if std::io::stdout().is_terminal() {
        "\r\x1b[K"
    } else {
        ""
    };
    say(&format!(
        "{start}stopping; everything that was acknowledged is in {}\n",
        options.data.display()
    ));
    if let Some(agent) = agent {
        agent.stop().await;
    }
    if let Some(demo) = demo {
        demo.stop().await;
    }
    running.stop().await;
    ended
}

/// A closed stdout is no reason to end.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(why) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        tracing::debug!(error = %why, "nobody reads");
    }
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

/// How this program was called, to be called like that again: `cargo run` leaves it on nobody's path.
fn me() -> String {
    let called = std::env::args().next().unwrap_or_default();
    if called.is_empty() || called.len() > CALLED_CHARS_MAX {
        "router-policy".to_owned()
    } else {
        called
    }
}

/// Longer ones would not fit beside a command on a terminal of 80 columns.
const CALLED_CHARS_MAX: usize = 30;

/// Where everything is, and what to try next. `fleet`: the demo's frontends.
fn banner(address: SocketAddr, options: &Dev, fleet: Option<&[String]>, me: &str) -> String {
    let url = format!("http://{address}");
    let service = if url == "http://127.0.0.1:8090" {
        String::new()
    } else {
        format!("export ROUTER_POLICY_SERVICE={url}\n  ")
    };
    let indented = "\n                       ";
    let frontends = if let Some(fleet) = fleet {
        format!("\n  demo frontends       {}\n", fleet.join(indented))
    } else if options.frontends.is_empty() {
        format!(
            "\n  No frontend is looked after yet. Start one (Dynamo 1.7, with a worker or a
  mocker) and give it to me:
    python -m dynamo.frontend --http-port 8000 --router-mode kv
    {me} dev --frontend http://127.0.0.1:8000
  Changes, history and audit work already: a policy waits for its routers.\n"
        )
    } else {
        format!(
            "\n  agent looks after    {}\n",
            options.frontends.join(indented)
        )
    };
    let commands = if fleet.is_some() {
        demo_commands(me)
    } else {
        commands(me)
    };
    format!(
        "router-policy dev: service, log and agents in one process (Ctrl-C stops it)

  fleet, as a frontend {url}/router_policy
  policies             {url}/v1/policies
  fleet and agents     {url}/v1/convergence
  API description      {url}/openapi.json
  kept in              {data}
{frontends}
  Try, in another terminal:

  {service}{commands}",
        data = options.data.display(),
    )
}

fn commands(me: &str) -> String {
    format!(
        "{me} set router_temperature=0.3 --model mock-model
  {me} get
  {me} history --model mock-model
  {me} set router_temperature=null --model mock-model
  {me} audit
  {me} status
"
    )
}

fn demo_commands(me: &str) -> String {
    let model = demo::MODEL;
    format!(
        "# no credit for cached blocks: hits fall; null is the startup value again
  {me} set overlap_score_credit=0 --model {model}
  {me} set overlap_score_credit=null --model {model}
  # spread the requests; with --wait it ends when all three have it
  {me} set router_temperature=1 --model {model}
  {me} history --model {model}
  {me} status

  Each worker's share of the requests, and how much of their prompts it had
  cached, in the last second:

"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dev(frontends: &[&str]) -> Dev {
        Dev {
            frontends: frontends.iter().map(ToString::to_string).collect(),
            no_demo: false,
            group: None,
            data: "data".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 8090)),
        }
    }

    #[test]
    fn the_banner_fits_a_terminal_of_80_columns() {
        let address = SocketAddr::from(([127, 0, 0, 1], 65_535));
        let fleet = ["demo-1 http://127.0.0.1:65535".to_owned()];
        for (frontends, fleet) in [
            (&[][..], None),
            (&["http://a"], None),
            (&[], Some(&fleet[..])),
        ] {
            let banner = banner(
                address,
                &dev(frontends),
                fleet,
                "target/release/router-policy",
            );
            for line in banner.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }

    #[test]
    fn the_banner_says_what_to_do_without_a_frontend() {
        let usual = SocketAddr::from(([127, 0, 0, 1], 8090));
        let without = banner(usual, &dev(&[]), None, "router-policy");
        assert!(without.contains("dev --frontend"), "{without}");
        assert!(!without.contains("export"), "{without}");
        let with = banner(
            SocketAddr::from(([127, 0, 0, 1], 9)),
            &dev(&["http://a", "http://b"]),
            None,
            "router-policy",
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
