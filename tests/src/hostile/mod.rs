//! Clients that attack a process: what it costs in memory, whether others are served meanwhile, whether it recovers.
//!
//! Every attack runs against real processes. While it lasts a probe asks like an ordinary client, over a connection of its
//! own each time; afterwards the process must answer at once again and give its connections back. Bounds are on memory and
//! on answers that never came, not on speed.

mod attacks;
mod bound;
mod herd;
mod memory;
mod probe;
mod stage;

use std::time::Duration;

use attacks::{Attack, all};
use memory::Memory;
use probe::{Met, Probe};
use stage::Stage;

/// How long a probe may wait for an answer. Generous: what is looked for are answers that never come.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an attack did.
struct Outcome {
    memory: Memory,
    bound_mib: u64,
    met: Met,
    violations: Vec<String>,
}

/// Runs all attacks, or those named, and prints the table. True when each stayed within its bounds.
///
/// # Panics
/// When the processes do not start.
#[must_use]
pub fn run(quick: bool, only: &[String]) -> bool {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(run_all(quick, only))
}

async fn run_all(quick: bool, only: &[String]) -> bool {
    let mut stage = Stage::set().await;
    println!(
        "{:<5} {:<29} {:>7} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>6}",
        "",
        "attack",
        "clients",
        "RSS before",
        "peak",
        "bound +",
        "after",
        "slowest",
        "answers",
        "sent away",
        "failed"
    );
    let (mut passed, mut failed) = (0, 0);
    for attack in all() {
        if !only.is_empty() && !only.iter().any(|name| name == attack.name) {
            continue;
        }
        let clients = if quick { attack.quick } else { attack.clients };
        if clients == 0 {
            continue;
        }
        let outcome = one(&mut stage, &attack, clients).await;
        if row(&attack, clients, &outcome) {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    println!("hostile: {passed} passed, {failed} failed");
    if failed == 0 {
        stage.strike();
    }
    failed == 0 && passed > 0
}

async fn one(stage: &mut Stage, attack: &Attack, clients: usize) -> Outcome {
    let place = stage.place(attack.against);
    let bound_mib = bound::of(attack.against, clients, attack.held);
    let mut memory = Memory::watch(place.process);
    let probe = Probe::start(place.probes.clone());
    let mut violations = (attack.run)(&place, clients).await;
    let met = probe.stop().await;
    // Afterwards: it answers, and has let go of what it held.
    if let Err(why) = probe::once(&place.probes[0]).await {
        violations.push(format!("no answer afterwards: {why:?}"));
    }
    memory.settle(bound_mib).await;
    if memory.peak_mib() > memory.before_mib() + bound_mib {
        violations.push(format!("more than {bound_mib} MiB"));
    }
    if met.answered == 0 {
        violations.push("the other client was never answered".to_owned());
    }
    if let Some(words) = stage.fallen() {
        violations.push(format!("a process ended: {words}"));
    }
    Outcome {
        memory,
        bound_mib,
        met,
        violations,
    }
}

fn row(attack: &Attack, clients: usize, outcome: &Outcome) -> bool {
    let (memory, met) = (&outcome.memory, &outcome.met);
    let fine = met.failed.is_empty() && outcome.violations.is_empty();
    let name = format!("{} ({})", attack.name, attack.against.name());
    println!(
        "{:<5} {name:<29} {clients:>7} {:>6} MiB {:>5} MiB {:>5} MiB {:>5} MiB {:>6} ms {:>8} {:>9} {:>6}",
        if fine { "ok" } else { "FAIL" },
        memory.before_mib(),
        memory.peak_mib(),
        outcome.bound_mib,
        memory.after_mib(),
        met.slowest.as_millis(),
        met.answered,
        met.sent_away,
        met.failed.len()
    );
    for words in met.failed.iter().take(3).chain(&outcome.violations) {
        println!("      {words}");
    }
    fine
}
