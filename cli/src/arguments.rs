//! Every argument of the binary, and the words of its help.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use schemas::{
    AgentId, CommandId, Endpoint, Name, PolicyId, PolicyKind, Revision, Timestamp, WorkerType,
};

use crate::assignment::Assignment;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: the service or its log cannot be reached, or something broke
  2  wrong usage
  3  refused: a bad value, an unknown name, nothing to change
  4  stale: somebody changed the policy since; nothing was changed
  5  not converged: the change is kept, but not every router has it (yet)
  6  outcome unknown: repeat with the same --expect and --idempotency-key";

/// Change router policies fleet-wide, and see where they have arrived.
#[derive(Debug, Parser)]
#[command(name = "router-policy", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The service that client commands talk to.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "ROUTER_POLICY_SERVICE",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8090"
    )]
    pub service: String,
    /// Print JSON for machines instead of tables for people.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the service.
    Serve(Serve),
    /// Try everything with one command: service, embedded log, agents and demo frontends in one process, no NATS.
    Dev(Dev),
    /// Take the log that is there now for the right one, after it was lost or restored on purpose.
    Adopt(Adopt),
    /// Write a configuration of nats-server, and the keys that go with it: each process may do its part and nothing else.
    NatsConfig(NatsConfig),
    #[command(flatten)]
    Client(Client),
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Where to listen. Anything but loopback needs --insecure: there are no tokens yet.
    #[arg(long, default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Folder of the local stores (and of the log itself, with --log embedded).
    #[arg(long, default_value = "router-policy-data", value_name = "FOLDER")]
    pub data: PathBuf,
    /// The log: `embedded`, `embedded:FOLDER`, `nats://HOST:PORT` or `tls://HOST:PORT`.
    #[arg(long, default_value = "embedded", value_name = "LOG")]
    pub log: String,
    /// Credentials file for NATS (operator mode).
    #[arg(long, value_name = "FILE")]
    pub nats_creds: Option<PathBuf>,
    /// File with a user's nkey for NATS, as `router-policy nats-config` makes it.
    #[arg(long, value_name = "FILE", conflicts_with = "nats_creds")]
    pub nats_nkey: Option<PathBuf>,
    /// Certificate authorities for tls://, a PEM file, in addition to the system's.
    #[arg(long, value_name = "FILE")]
    pub nats_ca: Option<PathBuf>,
    /// Name of the JetStream stream.
    #[arg(long, default_value = "ROUTER_POLICY", value_name = "NAME")]
    pub stream: String,
    /// Replicas of the JetStream stream, when it is created: 1, 3 or 5.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub replicas: usize,
    /// Listen on a non-loopback address although everybody who reaches it may change policies.
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// A Dynamo frontend to look after; repeat for several. Without one, three demo frontends with simulated workers start.
    #[arg(long = "frontend", value_name = "URL")]
    pub frontends: Vec<String>,
    /// No demo frontends: the service alone, to look at the commands.
    #[arg(long)]
    pub no_demo: bool,
    /// Label of these frontends, for policies of a group.
    #[arg(long, value_name = "NAME")]
    pub group: Option<Name>,
    /// Folder for everything that is kept.
    #[arg(long, default_value = "router-policy-data", value_name = "FOLDER")]
    pub data: PathBuf,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
    pub listen: SocketAddr,
}

/// The stores are set aside, not deleted. Stop the service first; agents have `router-agent adopt`.
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// Folder of the service's local stores.
    #[arg(long, default_value = "router-policy-data", value_name = "FOLDER")]
    pub data: PathBuf,
}

/// Keys that are there already are kept, so that it can be run again to add an agent; then reload the server (SIGHUP).
#[derive(Debug, Args)]
pub(crate) struct NatsConfig {
    /// Folder for `nats-server.conf` and the keys: `service.nk`, `agent-NAME.nk`, `operator.nk`.
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// An agent's name, as it is given to `router-agent run --agent-id`. Once per agent.
    #[arg(long = "agent", value_name = "NAME")]
    pub agents: Vec<AgentId>,
    /// Also a login for a person who looks after the stream: everything in the account.
    #[arg(long)]
    pub operator: bool,
    /// Where the server listens.
    #[arg(long, default_value = "127.0.0.1:4222", value_name = "HOST:PORT")]
    pub listen: String,
    /// Where the server keeps the log.
    #[arg(long, default_value = "/var/lib/nats", value_name = "FOLDER")]
    pub store: PathBuf,
    /// Certificate of the server, a PEM file: connections are then tls://.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Name of the JetStream stream.
    #[arg(long, default_value = "ROUTER_POLICY", value_name = "NAME")]
    pub stream: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Client {
    /// List policies, or show one.
    Get(Get),
    /// Set or remove values of a policy: `set router_temperature=0.3 --model M`.
    Set(Set),
    /// Empty a policy: every router returns to its own startup values.
    Reset(Reset),
    /// Put back what a policy was at an earlier revision (as a new revision).
    Revert(Revert),
    /// Every change of one policy.
    History(History),
    /// What differs between two revisions of a policy.
    Diff(Diff),
    /// Every record of the log: who changed what, when and why.
    Audit(Audit),
    /// Follow changes as they happen.
    Watch(Watch),
    /// The fleet: every agent, frontend and router, and how far each is.
    Status,
    /// Wait until every addressed router has the policies.
    Wait(Wait),
}

/// Which policy: its id, or its scope (a part that is not given means: any).
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Selector {
    /// Id of the policy, or fleet-wide id of a router.
    #[arg(long, value_name = "ID",
        conflicts_with_all = ["model", "worker_type", "endpoint", "group", "kind", "any"])]
    pub id: Option<PolicyId>,
    /// Model, exactly as the frontends list it.
    #[arg(long, value_name = "NAME")]
    pub model: Option<Name>,
    /// aggregated, prefill, decode or encode.
    #[arg(long, value_name = "ROLE")]
    pub worker_type: Option<WorkerType>,
    /// Dynamo endpoint.
    #[arg(long, value_name = "NAMESPACE/COMPONENT/ENDPOINT")]
    pub endpoint: Option<Endpoint>,
    /// Label of frontends.
    #[arg(long, value_name = "NAME")]
    pub group: Option<Name>,
    /// Kind of the policy; where one is needed and none is given, the parameters tell.
    #[arg(long, value_name = "KIND")]
    pub kind: Option<Kind>,
    /// The policy of every router of every model.
    #[arg(long)]
    pub any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Kind {
    WorkerSelection,
    BusyThreshold,
}

impl From<Kind> for PolicyKind {
    fn from(kind: Kind) -> PolicyKind {
        match kind {
            Kind::WorkerSelection => PolicyKind::WorkerSelection,
            Kind::BusyThreshold => PolicyKind::BusyThreshold,
        }
    }
}

/// What every write takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Write {
    /// The revision that the change is meant for. Without it the current one is read, shown and used.
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    pub expect: Option<Revision>,
    /// Why, for the audit.
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Wait until every addressed router has it.
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, for example 500ms, 30s or 1m (at most 1m).
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub timeout: Duration,
    /// Repeat an earlier try safely, with the same --expect: the same key is never applied twice.
    #[arg(long, value_name = "UUID")]
    pub idempotency_key: Option<CommandId>,
    /// Lift the ranges of built-in parameters (recorded as such).
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    pub policy: Selector,
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// `name=value` sets, `name=null` removes (each router returns to its own startup value).
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub assignments: Vec<Assignment>,
    #[command(flatten)]
    pub policy: Selector,
    #[command(flatten)]
    pub write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct Reset {
    #[command(flatten)]
    pub policy: Selector,
    #[command(flatten)]
    pub write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct Revert {
    /// The revision to go back to; 0 empties the policy.
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    pub to: Revision,
    #[command(flatten)]
    pub policy: Selector,
    #[command(flatten)]
    pub write: Write,
}

#[derive(Debug, Args)]
pub(crate) struct History {
    #[command(flatten)]
    pub policy: Selector,
    /// At most this many changes, newest first.
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// One revision. Without it: the one before `--to`.
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    pub from: Option<Revision>,
    /// The other. Without it: the current one.
    #[arg(long, value_name = "REVISION", value_parser = revision)]
    pub to: Option<Revision>,
    #[command(flatten)]
    pub policy: Selector,
}

#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    pub policy: Selector,
    /// Only changes by this actor.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<Name>,
    /// Only the change with this command id.
    #[arg(long, value_name = "UUID")]
    pub command: Option<CommandId>,
    /// Only changes at or after this time (RFC 3339).
    #[arg(long, value_name = "TIME")]
    pub since: Option<Timestamp>,
    /// Only changes before this time (RFC 3339).
    #[arg(long, value_name = "TIME")]
    pub until: Option<Timestamp>,
    /// Oldest first.
    #[arg(long)]
    pub oldest: bool,
    /// At most this many records.
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    pub limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Start after this position instead of at the end: 0 replays everything.
    #[arg(long, value_name = "POSITION")]
    pub after: Option<u64>,
    /// End after this many changes.
    #[arg(long, value_name = "NUMBER")]
    pub count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    pub policy: Selector,
    /// Wait for the change at this position instead of the newest one.
    #[arg(long, value_name = "POSITION")]
    pub position: Option<u64>,
    /// How long to wait.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub timeout: Duration,
}

fn revision(text: &str) -> Result<Revision, String> {
    text.parse()
        .map(Revision)
        .map_err(|_| "must be a whole number from 0 on".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: u64 = number
        .parse()
        .map_err(|_| "must be a number with ms, s or m".to_owned())?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number.saturating_mul(60))),
        _ => Err("must be a number with ms, s or m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, ms) in [("500ms", 500), ("30s", 30_000), ("1m", 60_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "10", "s", "1h", "-1s", "1.5s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_arguments_are_consistent() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }
}
