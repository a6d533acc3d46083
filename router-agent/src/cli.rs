//! The command line of `router-agent`: flags, their environment names, and what they mean.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use event_log::LogUrl;
use router_agent::{AgentError, Config, Frontend, Mode, Timeouts};
use schemas::{AgentId, Name};

/// Keeps the routers of Dynamo frontends on the fleet's policy.
#[derive(Debug, Parser)]
#[command(name = "router-agent", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Follow the log and keep frontends on it, until stopped.
    Run(Box<Run>),
    /// Take a log that was made anew, or put back to an older state, for the right one.
    ///
    /// Sets the local copy aside; the next start begins from whatever log is there. The agent must not run meanwhile.
    /// Startup values of busy thresholds and the agent's name are kept.
    Adopt {
        /// State folder of the agent.
        #[arg(long, env = "ROUTER_AGENT_STATE", value_name = "DIR")]
        state: PathBuf,
    },
    /// Be a frontend with simulated workers behind Dynamo's own scheduler: to try policies without Dynamo or a GPU.
    Frontend(Box<crate::host::Host>),
}

/// Flags of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Where the log is: nats://HOST:PORT, tls://HOST:PORT, or http://HOST:PORT of a service.
    #[arg(long, env = "ROUTER_AGENT_LOG", value_name = "URL")]
    pub log: LogUrl,
    /// Base URL of a frontend, such as http://127.0.0.1:8000. Once per frontend (in the environment: separated by commas).
    #[arg(
        long = "frontend",
        env = "ROUTER_AGENT_FRONTENDS",
        value_name = "URL",
        value_delimiter = ',',
        required = true
    )]
    pub frontends: Vec<String>,
    /// Label of these frontends, for policies of a group such as "canary".
    #[arg(long, env = "ROUTER_AGENT_GROUP", value_name = "NAME")]
    pub group: Option<Name>,
    /// Folder of its own for the agent's name, its copy of the policies and the startup values of thresholds.
    #[arg(long, env = "ROUTER_AGENT_STATE", value_name = "DIR")]
    pub state: PathBuf,
    /// How often each frontend is listed.
    #[arg(long, env = "ROUTER_AGENT_POLL_INTERVAL", value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub poll_interval: Duration,
    /// enforce: put the policy in place; observe: only report where it is not.
    #[arg(long, env = "ROUTER_AGENT_MODE", value_enum, default_value = "enforce")]
    pub mode: ModeFlag,
    /// The agent's name in status reports. Default: made at the first start and kept in the state folder.
    #[arg(long, env = "ROUTER_AGENT_ID", value_name = "NAME")]
    pub agent_id: Option<AgentId>,
    /// How often status is reported at least; changes are reported at once.
    #[arg(long, env = "ROUTER_AGENT_REPORT_INTERVAL", value_name = "TIME", default_value = "5s", value_parser = interval)]
    pub report_interval: Duration,
    /// Serve /livez and /readyz here, such as 127.0.0.1:8091. Ready = every frontend's routers are on the policy.
    #[arg(long, env = "ROUTER_AGENT_HEALTH", value_name = "ADDRESS:PORT")]
    pub health: Option<SocketAddr>,
    /// How long to wait for a connection to a frontend.
    #[arg(long, env = "ROUTER_AGENT_CONNECT_TIMEOUT", value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub connect_timeout: Duration,
    /// How long to wait for a frontend's answer.
    #[arg(long, env = "ROUTER_AGENT_REQUEST_TIMEOUT", value_name = "TIME", default_value = "5s", value_parser = interval)]
    pub request_timeout: Duration,
    /// Name of the JetStream stream.
    #[arg(long, env = "ROUTER_AGENT_STREAM", value_name = "NAME", default_value = migrations::stream::STREAM_DEFAULT)]
    pub stream: String,
    /// NATS credentials file.
    #[arg(long, env = "ROUTER_AGENT_CREDENTIALS", value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// File with the agent's nkey for NATS, as `router-policy nats-config` makes it.
    #[arg(
        long,
        env = "ROUTER_AGENT_NKEY",
        value_name = "FILE",
        conflicts_with = "credentials"
    )]
    pub nkey: Option<PathBuf>,
    /// Certificate authorities for tls://, a PEM file, in addition to the system's.
    #[arg(long, env = "ROUTER_AGENT_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// File with the bearer token for http://.
    #[arg(long, env = "ROUTER_AGENT_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// See [`Run::mode`].
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum ModeFlag {
    /// Put the policy in place.
    Enforce,
    /// Only report.
    Observe,
}

/// Why the program ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A frontend's address.
    #[error("--frontend")]
    Frontend(#[from] router_agent::dynamo_http::BadAddress),
    /// The log.
    #[error("--log")]
    Log(#[from] event_log::ConnectError),
    /// The token file.
    #[error("--token-file {path}")]
    Token {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The token file holds none.
    #[error("--token-file {0} is empty")]
    NoToken(PathBuf),
    /// The agent.
    #[error("the agent cannot start")]
    Agent(#[from] AgentError),
    /// The copy to set aside.
    #[error("the log cannot be adopted")]
    Adopt(#[source] AgentError),
    /// A model of the reference frontend.
    #[error("a model cannot be hosted")]
    Host(#[from] router_agent::frontend::HostError),
    /// A flag of the reference frontend about a role that it does not host.
    #[error("{flag} {role}: no {role} workers are hosted (see --workers)")]
    Role {
        /// Which flag.
        flag: &'static str,
        /// Which role.
        role: schemas::WorkerType,
    },
    /// An endpoint of the reference frontend.
    #[error("--endpoint")]
    Endpoint(#[from] schemas::scope::BadEndpoint),
    /// Busy thresholds of the reference frontend.
    #[error("busy thresholds to start with")]
    Threshold(#[from] scheduler::busy::BadThreshold),
    /// The reference frontend's listener.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Signals or threads of the system.
    #[error("the system refuses")]
    System(#[from] std::io::Error),
    /// A task broke; its panic was logged.
    #[error("the agent ended by itself")]
    Ended,
}

impl Run {
    /// What the agent is set to.
    ///
    /// # Errors
    /// [`CliError::Frontend`].
    pub fn config(&self) -> Result<Config, CliError> {
        let timeouts = Timeouts {
            connect: self.connect_timeout,
            request: self.request_timeout,
        };
        let frontends: Result<Vec<Frontend>, _> = (self.frontends.iter())
            .map(|url| Frontend::dynamo(url.trim(), timeouts))
            .collect();
        Ok(Config {
            agent: self.agent_id.clone(),
            group: self.group.clone(),
            mode: match self.mode {
                ModeFlag::Enforce => Mode::Enforce,
                ModeFlag::Observe => Mode::Observe,
            },
            poll_interval: self.poll_interval,
            report_interval: self.report_interval,
            health: self.health,
            ..Config::new(self.state.clone(), frontends?)
        })
    }

    /// How the log is reached.
    ///
    /// # Errors
    /// [`CliError::Token`], [`CliError::NoToken`].
    pub fn options(&self) -> Result<event_log::Options, CliError> {
        let token = match &self.token_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|source| CliError::Token {
                    path: path.clone(),
                    source,
                })?;
                let token = text.trim_start_matches('\u{feff}').trim().to_owned();
                if token.is_empty() {
                    return Err(CliError::NoToken(path.clone()));
                }
                Some(token)
            }
        };
        Ok(event_log::Options {
            stream: self.stream.clone(),
            credentials: self.credentials.clone(),
            nkey: self.nkey.clone(),
            root_certificates: self.ca.clone(),
            token,
            client_name: "router-agent".to_owned(),
            ..event_log::Options::default()
        })
    }
}

/// A time such as `500ms`, `1s`, `1.5s` or `2m`: 10 ms to 1 hour.
fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a time from 10ms to 60m, such as 500ms, 1s or 2m".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let time = number * seconds;
    if (0.01..=3_600.0).contains(&time) {
        Ok(Duration::from_secs_f64(time))
    } else {
        Err(wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, ms) in [
            ("1s", 1_000),
            ("500ms", 500),
            ("1.5s", 1_500),
            ("2m", 120_000),
        ] {
            assert_eq!(interval(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in [
            "", "1", "s", "-1s", "0s", "1h", "NaNs", "infs", "1e9s", "1 s",
        ] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_become_a_config() {
        let line = "router-agent run --log nats://127.0.0.1:4222 --frontend http://127.0.0.1:8000/ \
                    --frontend http://127.0.0.1:8001 --group canary --state /tmp/a --poll-interval 2s --mode observe";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Run(run) = cli.command else {
            panic!("not run");
        };
        let config = run.config().unwrap();
        let ids: Vec<&str> = (config.frontends.iter())
            .map(|frontend| frontend.id.0.as_str())
            .collect();
        assert_eq!(ids, ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]);
        assert_eq!(config.mode, Mode::Observe);
        assert_eq!(config.poll_interval, Duration::from_secs(2));
        for bad in [
            "router-agent run --log nats://127.0.0.1 --state /tmp/a",
            "router-agent run --log ftp://x --frontend http://127.0.0.1:8000 --state /tmp/a",
            "router-agent run --frontend http://127.0.0.1:8000 --state /tmp/a",
        ] {
            assert!(
                Cli::try_parse_from(bad.split_whitespace()).is_err(),
                "{bad}"
            );
        }
        let line = "router-agent run --log nats://h --frontend https://127.0.0.1 --state /tmp/a";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Run(run) = cli.command else {
            panic!("not run");
        };
        assert!(matches!(run.config(), Err(CliError::Frontend(_))));
    }
}
