//! A cluster of three under faults: leaders killed, links cut, stores lost, limits reached, power cut.

use clap::Args;

use crate::steps::program;
use crate::tally::Tally;

/// How it is run.
#[derive(Debug, Args)]
pub struct Cluster {
    /// Leader kills under load.
    #[arg(long, default_value_t = 50)]
    pub kills: u32,
    /// Writers during them.
    #[arg(long, default_value_t = 32)]
    pub writers: u32,
    /// Of every random choice of the clients.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only faults whose name contains this; repeat for several.
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
}

/// As asked for.
pub fn run(tally: &mut Tally, options: &Cluster) {
    let mut arguments = vec![
        format!("--kills={}", options.kills),
        format!("--writers={}", options.writers),
        format!("--seed={}", options.seed),
    ];
    arguments.extend(options.only.iter().map(|name| format!("--only={name}")));
    tally.step("cluster", || program("cluster", &arguments));
}

/// In CI: three kills. The single faults that are quick are tests (`tests/tests/cluster.rs`).
pub fn quick(tally: &mut Tally) {
    let options = Cluster {
        kills: 3,
        writers: 16,
        seed: 1,
        only: vec!["leader-kills".to_owned()],
    };
    run(tally, &options);
}
