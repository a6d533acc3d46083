//! `router-agent frontend`: the reference frontend as a process of its own.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use router_agent::frontend::traffic::Traffic;
use router_agent::frontend::{Hardware, ModelPlan, Reference, RolePlan};
use scheduler::busy::Thresholds;
use scheduler::facade;
use schemas::{Endpoint, Name, WorkerType};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::CliError;

/// Bound: workers of one role.
const WORKERS_MAX: u64 = 256;

/// Flags of `frontend`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Host {
    /// Where to listen. Nobody is asked for a token: keep it on loopback.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// A model to host; repeat for several.
    #[arg(long = "model", value_name = "NAME", default_value = "mock-model")]
    pub models: Vec<Name>,
    /// Workers of each model, per role: NUMBER aggregated ones, or `prefill:NUMBER,decode:NUMBER` for a disaggregated model.
    ///
    /// Each role has a router of its own. `aggregated` workers do everything. `prefill` and `decode` go together: a request is
    /// routed to a prefill worker, then to a decode worker. With `conditional-decode` in the place of `decode` the decode
    /// worker is selected first, and prefills itself when little of the prompt is new to it; its router scores caches, which
    /// that of plain decode does not. `encode`, beside any of these, comes before everything.
    #[arg(
        long,
        value_name = "[ROLE:]NUMBER",
        default_value = "4",
        value_delimiter = ','
    )]
    pub workers: Vec<Workers>,
    /// Dynamo endpoint that the workers belong to, of all roles or of one (`prefill:NAMESPACE/COMPONENT/ENDPOINT`).
    ///
    /// Default: dynamo/backend/generate for aggregated and decode workers, dynamo/prefill/generate and dynamo/encode/generate
    /// for the others.
    #[arg(long, value_name = "[ROLE:]NAMESPACE/COMPONENT/ENDPOINT")]
    pub endpoint: Vec<PerRole<Endpoint>>,
    /// Startup value of a policy parameter, of all routers or of one role's (`prefill:router_temperature=0.5`).
    #[arg(long, value_name = "[ROLE:]NAME=NUMBER")]
    pub startup: Vec<PerRole<Given>>,
    /// A role whose router goes by load alone: it starts with all cache weights 0 and refuses others.
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub load_only: Vec<WorkerType>,
    /// Busy threshold to start with: share of a worker's KV blocks in use by decode, 0 to 1.
    #[arg(long, value_name = "SHARE")]
    pub active_decode_blocks_threshold: Option<f64>,
    /// Busy threshold to start with: prefill tokens of one worker.
    #[arg(long, value_name = "NUMBER")]
    pub active_prefill_tokens_threshold: Option<u64>,
    /// Busy threshold to start with: prefill tokens of one worker as a share of a batch.
    #[arg(long, value_name = "SHARE")]
    pub active_prefill_tokens_threshold_frac: Option<f64>,
    /// KV blocks of each worker, of 16 tokens each.
    #[arg(long, value_name = "NUMBER", default_value_t = 320)]
    pub kv_blocks: u32,
    /// Prefill speed of each worker, in tokens per second.
    #[arg(long, value_name = "NUMBER", default_value_t = 40_000.0)]
    pub prefill_rate: f64,
    /// Time for one output token, in milliseconds.
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    pub decode_ms: u64,
    /// Requests per second that it asks itself, per model: prompts with shared beginnings. 0 = none.
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    pub traffic: f64,
}

const EXAMPLES: &str = "Examples:
  router-agent frontend --traffic 40
  router-agent frontend --workers prefill:2,decode:3 --startup prefill:router_temperature=0.2
  router-agent frontend --workers encode:1,prefill:2,conditional-decode:2 --load-only encode";

/// A role as `--workers` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleFlag {
    /// Both phases.
    Aggregated,
    /// Only prefill.
    Prefill,
    /// Only decode.
    Decode,
    /// Decode, and prefill where little is new.
    ConditionalDecode,
    /// Only encode.
    Encode,
}

/// So many workers of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    role: RoleFlag,
    number: u64,
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Workers, String> {
        let (role, number) = match text.split_once(':') {
            Some((role, number)) => (RoleFlag::from_str(role, false)?, number),
            None => (RoleFlag::Aggregated, text),
        };
        let number = number.parse().ok();
        let number = number.filter(|number| (1..=WORKERS_MAX).contains(number));
        let number = number.ok_or_else(|| {
            format!("must be a number from 1 to {WORKERS_MAX}, or ROLE:NUMBER such as prefill:2")
        })?;
        Ok(Workers { role, number })
    }
}

impl Workers {
    fn worker_type(self) -> WorkerType {
        match self.role {
            RoleFlag::Aggregated => WorkerType::Aggregated,
            RoleFlag::Prefill => WorkerType::Prefill,
            RoleFlag::Decode | RoleFlag::ConditionalDecode => WorkerType::Decode,
            RoleFlag::Encode => WorkerType::Encode,
        }
    }
}

/// A value of one role, or of all.
#[derive(Debug, Clone, PartialEq)]
pub struct PerRole<T> {
    role: Option<WorkerType>,
    value: T,
}

impl<T: FromStr<Err: std::fmt::Display>> FromStr for PerRole<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<PerRole<T>, String> {
        let of_role = text
            .split_once(':')
            .and_then(|(role, value)| Some((role.parse().ok()?, value)));
        let (role, value) = match of_role {
            Some((role, value)) => (Some(role), value),
            None => (None, text),
        };
        let value = value.parse().map_err(|why: T::Err| why.to_string())?;
        Ok(PerRole { role, value })
    }
}

impl<T> PerRole<T> {
    fn is_of(&self, role: WorkerType) -> bool {
        self.role.is_none_or(|one| one == role)
    }
}

/// A startup value.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    name: String,
    value: f64,
}

impl FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Given, String> {
        let given = text.split_once('=').and_then(|(name, value)| {
            let value = value.parse().ok()?;
            let name = name.to_owned();
            Some(Given { name, value })
        });
        given.ok_or_else(|| {
            "must be NAME=NUMBER or ROLE:NAME=NUMBER, such as prefill:router_temperature=0.5"
                .to_owned()
        })
    }
}

/// Where a role's workers are, unless it is said.
fn endpoint_of(role: WorkerType) -> &'static str {
    match role {
        WorkerType::Aggregated | WorkerType::Decode => "dynamo/backend/generate",
        WorkerType::Prefill => "dynamo/prefill/generate",
        WorkerType::Encode => "dynamo/encode/generate",
    }
}

impl Host {
    /// The roles of every model.
    ///
    /// # Errors
    /// [`CliError::Role`]: a flag is about a role that has no workers.
    pub fn roles(&self) -> Result<Vec<RolePlan>, CliError> {
        let hosted = |role: WorkerType| self.workers.iter().any(|one| one.worker_type() == role);
        let named = (self.endpoint.iter().map(|one| ("--endpoint", one.role)))
            .chain(self.startup.iter().map(|one| ("--startup", one.role)))
            .chain(self.load_only.iter().map(|one| ("--load-only", Some(*one))));
        for (flag, role) in named {
            if let Some(role) = role.filter(|role| !hosted(*role)) {
                return Err(CliError::Role { flag, role });
            }
        }
        self.workers.iter().map(|one| self.role(*one)).collect()
    }

    fn role(&self, workers: Workers) -> Result<RolePlan, CliError> {
        let role = workers.worker_type();
        // One that is said of the role itself counts more than one that is said of all; of two alike the later one.
        let endpoints = self.endpoint.iter().filter(|one| one.is_of(role));
        let endpoint = match endpoints.max_by_key(|one| one.role) {
            Some(given) => given.value.clone(),
            None => endpoint_of(role).parse()?,
        };
        let mut plan = RolePlan::new(role, endpoint);
        plan.startup.conditional_decode = workers.role == RoleFlag::ConditionalDecode;
        plan.startup.load_only = self.load_only.contains(&role);
        let mut given: Vec<&PerRole<Given>> =
            self.startup.iter().filter(|one| one.is_of(role)).collect();
        given.sort_by_key(|one| one.role);
        let values = given.into_iter().map(|one| &one.value);
        plan.startup.given = values
            .map(|one| (one.name.clone(), one.value.into()))
            .collect();
        Ok(RolePlan {
            workers: workers.number,
            hardware: Hardware {
                kv_blocks: self.kv_blocks,
                prefill_tokens_per_s: self.prefill_rate,
                decode_per_token: Duration::from_millis(self.decode_ms),
                ..Hardware::default()
            },
            ..plan
        })
    }

    fn thresholds(&self) -> Result<Thresholds, CliError> {
        let thresholds = Thresholds {
            active_decode_blocks_threshold: self.active_decode_blocks_threshold,
            active_prefill_tokens_threshold: self.active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac: self.active_prefill_tokens_threshold_frac,
        };
        thresholds.check()?;
        Ok(thresholds)
    }

    /// Serves until stopped.
    ///
    /// # Errors
    /// [`CliError`].
    pub async fn run(&self) -> Result<(), CliError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let frontend = Reference::new(self.thresholds()?);
        let roles = self.roles()?;
        for model in &self.models {
            frontend.host(&ModelPlan::new(model.clone(), roles.clone()))?;
            if self.traffic > 0.0 {
                let traffic = Traffic {
                    requests_per_s: self.traffic,
                    ..Traffic::gentle(model.clone())
                };
                traffic.start(&frontend);
            }
        }
        let switch = std::env::var(facade::ADMIN_SWITCH).ok();
        let disabled = facade::is_disabled(switch.as_deref());
        let listening = frontend.listen(self.listen, disabled).await;
        let address = listening.map_err(|source| CliError::Listen {
            address: self.listen,
            source,
        })?;
        tracing::info!(%address, models = self.models.len(), roles = roles.len(), facade = !disabled, "serving");
        let stopped = tokio::select! {
            _ = terminate.recv() => true,
            _ = interrupt.recv() => true,
            () = frontend.ended() => false,
        };
        if !frontend.stop().await {
            tracing::warn!("some tasks did not stop in time");
        }
        if stopped {
            Ok(())
        } else {
            Err(CliError::Ended)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn host(flags: &str) -> Result<Host, String> {
        let line = format!("router-agent frontend {flags}");
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|why| why.to_string())?;
        match cli.command {
            Command::Frontend(host) => Ok(*host),
            Command::Run(_) | Command::Adopt { .. } => panic!("another command"),
        }
    }

    #[test]
    fn flags_become_roles() {
        let roles = host("").unwrap().roles().unwrap();
        assert_eq!((roles.len(), roles[0].workers), (1, 4));
        assert_eq!(roles[0].startup.worker_type, WorkerType::Aggregated);
        assert_eq!(roles[0].endpoint.to_string(), "dynamo/backend/generate");
        let flags = "--workers prefill:2,conditional-decode:3 --workers encode:1 --endpoint decode:a/b/c --endpoint x/y/z \
             --startup prefill:router_temperature=0.5 --startup router_temperature=0.1 --load-only encode";
        let host = host(flags).unwrap();
        let roles = host.roles().unwrap();
        let shown: Vec<String> = roles
            .iter()
            .map(|role| {
                let startup = &role.startup;
                format!(
                    "{} {} {} {} {} {}",
                    startup.worker_type,
                    role.workers,
                    role.endpoint,
                    startup.conditional_decode,
                    startup.load_only,
                    startup.given["router_temperature"],
                )
            })
            .collect();
        let wanted = [
            "prefill 2 x/y/z false false 0.5",
            "decode 3 a/b/c true false 0.1",
            "encode 1 x/y/z false true 0.1",
        ];
        assert_eq!(shown, wanted);
        let plan = ModelPlan::new(Name::new("m").unwrap(), roles);
        assert_eq!(plan.check(), Ok(()));
    }

    #[test]
    fn what_cannot_be_hosted_is_said() {
        for (flags, word) in [
            ("--workers 0", "1 to 256"),
            ("--workers 257", "1 to 256"),
            ("--workers prefil:2", "prefil"),
            ("--workers prefill:many", "prefill:2"),
            ("--endpoint a/b", "a/b"),
            ("--startup router_temperature", "NAME=NUMBER"),
            ("--load-only cached", "cached"),
        ] {
            let refused = host(flags).unwrap_err();
            assert!(refused.contains(word), "{flags}: {refused}");
        }
        for (flags, word) in [
            ("--endpoint prefill:a/b/c", "--endpoint prefill:"),
            ("--startup decode:x=1", "--startup decode:"),
            ("--load-only encode", "--load-only encode"),
        ] {
            let refused = host(flags).unwrap().roles().unwrap_err().to_string();
            assert!(refused.contains("--workers"), "{flags}: {refused}");
            assert!(
                refused.contains(word.trim_end_matches(':')),
                "{flags}: {refused}"
            );
        }
        let high = host("--active-decode-blocks-threshold 2").unwrap();
        assert!(matches!(high.thresholds(), Err(CliError::Threshold(_))));
        let frontend = Reference::new(Thresholds::default());
        for (flags, word) in [
            ("--workers prefill:2", "need decode"),
            ("--workers decode:2", "need prefill"),
            ("--workers 2,prefill:1,decode:1", "in the place of"),
            ("--workers prefill:1,decode:1,conditional-decode:1", "twice"),
            ("--workers encode:1", "are needed"),
            ("--startup x=1", "unknown"),
            ("--startup host_cache_hit_weight=2", "host_cache_hit_weight"),
        ] {
            let roles = host(flags).unwrap().roles().unwrap();
            let plan = ModelPlan::new(Name::new("m").unwrap(), roles);
            let refused = frontend.host(&plan).unwrap_err();
            let source = std::error::Error::source(&refused).unwrap().to_string();
            assert!(source.contains(word), "{flags}: {source}");
        }
    }
}
