//! Real crashes: processes of the real binaries, killed at random moments and at named points under a concurrent workload,
//! damaged store files, and full disks. After each, the log is compared with what clients were told, and every store with
//! the log.
//!
//! Never does: touch a process that it did not start.

pub mod agent;
pub mod disk_full;
pub mod files;
pub mod frontend;
pub mod history;
pub mod ledger;
pub mod program;
pub mod report;
pub mod services;
pub mod writers;

use report::Report;
use services::Victim;

/// What is to be crashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Services on NATS.
    Service,
    /// nats-server.
    Broker,
    /// A service with its own log.
    Embedded,
    /// The machine of a service with its own log.
    Power,
    /// An agent beside a frontend.
    Agent,
    /// Damaged files of every store.
    Files,
    /// Full disks.
    DiskFull,
}

/// Every kind, in the order in which they run.
pub const KINDS: [(&str, Kind); 7] = [
    ("service", Kind::Service),
    ("embedded", Kind::Embedded),
    ("broker", Kind::Broker),
    ("power", Kind::Power),
    ("agent", Kind::Agent),
    ("files", Kind::Files),
    ("disk-full", Kind::DiskFull),
];

/// How much, and of what.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds of each kind.
    pub rounds: u64,
    /// Decides everything that is decided at random.
    pub seed: u64,
    /// Only these; empty = all.
    pub only: Vec<Kind>,
}

/// A process that only looks at one damaged store: see [`files`].
///
/// # Panics
/// When there is no runtime to be had.
#[must_use]
pub fn probe(store: &str, folder: &std::path::Path) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(files::probe(store, folder))
}

/// Runs, prints, and says whether nothing was violated.
///
/// # Panics
/// When there is no runtime to be had.
#[must_use]
pub fn run(options: &Options) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    println!(
        "crash: {} rounds each, seed {}",
        options.rounds, options.seed
    );
    let mut reports = Vec::new();
    for (name, kind) in KINDS {
        if !options.only.is_empty() && !options.only.contains(&kind) {
            continue;
        }
        let begun = std::time::Instant::now();
        let mut report: Report = runtime.block_on(async {
            match kind {
                Kind::Service => services::run(Victim::Service, options.rounds, options.seed).await,
                Kind::Broker => services::run(Victim::Broker, options.rounds, options.seed).await,
                Kind::Power => services::run(Victim::Power, options.rounds, options.seed).await,
                Kind::Agent => agent::run(options.rounds, options.seed).await,
                Kind::Files => files::run(options.rounds * 3, options.seed).await,
                Kind::DiskFull => disk_full::run(options.seed).await,
                Kind::Embedded => {
                    services::run(Victim::Embedded, options.rounds, options.seed).await
                }
            }
        });
        report.print();
        println!(
            "          {name} took {:.0} s",
            begun.elapsed().as_secs_f64()
        );
        reports.push(report);
    }
    println!();
    for report in &mut reports {
        report.print();
    }
    let failed = reports.iter().filter(|one| !one.violations.none()).count();
    println!("crash: {} passed, {failed} failed", reports.len() - failed);
    failed == 0
}
