//! The tasks and their help.

use clap::{Parser, Subcommand, ValueEnum};

use crate::cluster::Cluster;

/// What a developer or CI runs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
pub struct Arguments {
    /// The task.
    #[command(subcommand)]
    pub task: Task,
}

/// One task.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Everything: format, lints, tests, proofs, bad input, conformance, real Dynamo.
    Test {
        /// As CI runs it: the nextest profile `ci`.
        #[arg(long)]
        ci: bool,
        /// Leave out what needs a download or minutes: conformance with nats-server, and real Dynamo.
        #[arg(long)]
        quick: bool,
    },
    /// Check the format.
    Fmt,
    /// Clippy on everything, warnings are errors.
    Clippy,
    /// All tests of the workspace that need no Dynamo.
    Unit {
        /// With the nextest profile `ci`.
        #[arg(long)]
        ci: bool,
    },
    /// Prove with cargo tree what must not depend on what.
    Tree,
    /// Licences, sources and bans (cargo-deny, if it is installed).
    Deny,
    /// Send the table of bad requests to a real service.
    BadInput,
    /// The log's suite against every adapter: memory, embedded, nats-server 2.10, 2.12 and 2.15, and a cluster of three.
    Conformance,
    /// The scenarios with real Dynamo frontends, and the latency measurement.
    Dynamo {
        /// Only these (letters, or `latency`).
        scenarios: Vec<String>,
    },
    /// A cluster of three under faults and load: leaders killed, links cut, stores lost, limits reached, power cut.
    Cluster(Cluster),
    /// Compare the built-in policy selection by selection with Dynamo's own (a workspace of its own; minutes to build once).
    Parity {
        /// Random cases.
        #[arg(default_value_t = 12_000)]
        cases: u64,
        /// Seed of the first case.
        seed: Option<u64>,
    },
    /// Kill real processes at random moments and at named points, damage store files, fill disks; compare log, clients and
    /// stores after each.
    Crash {
        /// Rounds of each kind: one kill or more each.
        #[arg(long, default_value_t = 200)]
        rounds: u64,
        /// Repeats what was drawn; every run prints its own.
        #[arg(long)]
        seed: Option<u64>,
        /// Only these: service, embedded, broker, power, agent, files or disk-full.
        #[arg(long)]
        only: Vec<String>,
    },
    /// A whole fleet under a steady pace of changes and all faults at random, checked every minute.
    Soak {
        /// How long.
        #[arg(long, default_value_t = 10.0)]
        minutes: f64,
        /// Repeats what was drawn.
        #[arg(long)]
        seed: Option<u64>,
        /// Three nats-servers and three replicas.
        #[arg(long)]
        cluster: bool,
        /// No faults, at full pace: to measure growth.
        #[arg(long)]
        calm: bool,
    },
    /// Replay the recorded answers of Dynamo 1.7 against the frontend façade.
    Transcripts,
    /// Measure something.
    Bench {
        /// What.
        what: Bench,
    },
    /// The deterministic simulation: `--seeds N [--from S]`, `--seed S [--trace]`, `--mutations`.
    Sim {
        /// Handed on to the simulation.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Feed every reader of bytes from outside with libFuzzer (a workspace of its own; minutes to build once).
    Fuzz {
        /// Executions of each target.
        #[arg(long, default_value_t = 1_000_000)]
        runs: u64,
        /// Seconds of each target, at most.
        #[arg(long, default_value_t = 3_600)]
        seconds: u64,
        /// Only these.
        #[arg(long = "target")]
        targets: Vec<String>,
    },
    /// schemathesis against the OpenAPI document of a real service with a live router.
    Schemathesis {
        /// Examples per operation and phase.
        #[arg(long, default_value_t = 100)]
        examples: u32,
    },
    /// Clients that attack real processes: memory, other clients' answers, recovery.
    Hostile {
        /// Fewer clients, under a minute.
        #[arg(long)]
        quick: bool,
        /// Only these, such as "deaf streams".
        attacks: Vec<String>,
    },
    /// Write all golden files anew.
    Bless,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Bench {
    /// A live selector against Dynamo's fixed policy, per number of workers.
    Selection,
}
