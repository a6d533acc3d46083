//! What a real fleet must do, one function per promise. Each starts from a calm stage and may leave a mess behind.

mod chaos;
mod everyday;
mod latency;
mod models;
mod wirings;

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::stage::Stage;

/// One promise.
pub struct Scenario {
    /// Short name: a letter.
    pub letter: &'static str,
    /// What it shows.
    pub name: &'static str,
    run: for<'a> fn(&'a mut Stage) -> LocalBoxFuture<'a, ()>,
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}. {}", self.letter, self.name)
    }
}

macro_rules! scenario {
    ($letter:literal, $path:path, $name:literal) => {
        Scenario {
            letter: $letter,
            name: $name,
            run: |stage| Box::pin($path(stage)),
        }
    };
}

/// The name of the measurement.
const LATENCY: &str = "latency";

/// Every scenario, in an order that keeps restarts few.
pub const ALL: [Scenario; 14] = [
    scenario!(
        "a",
        everyday::a_change_reaches_all,
        "a patch by fleet router id is listed by all three frontends"
    ),
    scenario!(
        "a20",
        everyday::converged_is_never_stale,
        "after converged no poll is ever stale (3 frontends, 20 polls each)"
    ),
    scenario!(
        "b",
        everyday::startup_values_return,
        "null and reset restore each frontend's own startup value"
    ),
    scenario!(
        "c",
        everyday::a_restarted_frontend_is_brought_up,
        "a killed and restarted frontend's new router is brought up"
    ),
    scenario!(
        "d",
        everyday::drift_is_put_back,
        "a patch behind the agent's back is reported and put back"
    ),
    scenario!(
        "f",
        everyday::thresholds_fleet_wide,
        "busy thresholds are set fleet-wide and restored"
    ),
    scenario!(
        "e",
        everyday::one_replica_refuses,
        "a load-aware frontend refuses a cache weight, the others apply it"
    ),
    scenario!(
        "j",
        models::roles_stay_apart,
        "prefill and decode policies stay apart"
    ),
    scenario!(
        "k",
        models::any_name_works,
        "a model named meta-llama/Llama-3.1-8B Instruct.v2*>é"
    ),
    scenario!(
        "g",
        chaos::kill_9_amid_200_changes,
        "kill -9 of a service amid 200 concurrent changes loses and invents nothing"
    ),
    scenario!(
        "h",
        chaos::the_log_goes_away,
        "NATS stopped and started: writes 503, agents hold, all converge after"
    ),
    scenario!(
        "i",
        chaos::an_agent_works_from_its_copy,
        "agent and frontend restarted while NATS is down: policy from the agent's copy"
    ),
    scenario!(
        "l",
        wirings::an_old_frontend,
        "Dynamo 1.6.1: said so, thresholds applied; never converged beside 1.7"
    ),
    scenario!(
        "m",
        wirings::without_nats,
        "embedded log and agents over HTTP: no NATS anywhere"
    ),
];

/// What became of one scenario.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub scenario: &'static str,
    /// What it shows.
    pub name: &'static str,
    /// The panic's text, if it failed.
    pub failure: Option<String>,
    /// Without the calming before.
    pub took: Duration,
}

/// Runs one scenario on a stage.
pub async fn run(scenario: &Scenario, stage: &mut Stage) -> Outcome {
    let mut took = Duration::ZERO;
    let all = async {
        stage.calm().await;
        let started = Instant::now();
        (scenario.run)(stage).await;
        took = started.elapsed();
    };
    let failure = caught(all).await.err();
    Outcome {
        scenario: scenario.letter,
        name: scenario.name,
        failure,
        took,
    }
}

/// Runs one scenario on a stage of its own.
///
/// # Panics
/// When it fails, or does not exist.
pub fn run_alone(letter: &str) {
    let scenario = ALL
        .iter()
        .find(|one| one.letter == letter)
        .unwrap_or_else(|| panic!("no scenario {letter}"));
    runtime().block_on(async {
        let mut stage = Stage::set(letter).await;
        let outcome = run(scenario, &mut stage).await;
        if let Some(failure) = outcome.failure {
            panic!("{letter}. {}: {failure}", outcome.name);
        }
        stage.strike();
    });
}

/// Every name that can be asked for.
#[must_use]
pub fn known() -> Vec<&'static str> {
    ALL.iter().map(|one| one.letter).chain([LATENCY]).collect()
}

/// Runs these scenarios (all of them, if none is named) and the latency measurement on one stage; prints a line for each.
/// True when all passed.
///
/// # Panics
/// When there is no async runtime.
#[must_use]
pub fn run_all(letters: &[String]) -> bool {
    // Each failure is printed once, below its scenario, without a backtrace through the harness.
    std::panic::set_hook(Box::new(|_| {}));
    runtime().block_on(async {
        let started = Instant::now();
        let mut stage = match caught(Stage::set("all")).await {
            Ok(stage) => stage,
            Err(failure) => {
                println!("FAIL  the stage\n      {failure}");
                println!("dynamo: 0 passed, 1 failed");
                return false;
            }
        };
        println!(
            "stage set in {:.1} s: {}",
            started.elapsed().as_secs_f64(),
            stage.folder.display()
        );
        let (mut passed, mut failed) = (0, 0);
        for scenario in &ALL {
            if !letters.is_empty() && !letters.iter().any(|letter| letter == scenario.letter) {
                continue;
            }
            let outcome = run(scenario, &mut stage).await;
            let verdict = if outcome.failure.is_none() {
                "pass"
            } else {
                "FAIL"
            };
            println!(
                "{verdict}  {:>3}  {:6.1} s  {}",
                outcome.scenario,
                outcome.took.as_secs_f64(),
                outcome.name
            );
            if let Some(failure) = outcome.failure {
                println!("      {failure}");
                failed += 1;
            } else {
                passed += 1;
            }
        }
        if letters.is_empty() || letters.iter().any(|letter| letter == LATENCY) {
            match caught(async {
                stage.calm().await;
                latency::measure(&stage).await
            })
            .await
            {
                Ok(line) => {
                    println!("{line}");
                    passed += 1;
                }
                Err(failure) => {
                    println!("FAIL  latency\n      {failure}");
                    failed += 1;
                }
            }
        }
        println!(
            "dynamo: {passed} passed, {failed} failed in {:.0} s",
            started.elapsed().as_secs_f64()
        );
        if failed == 0 {
            stage.strike();
        }
        failed == 0
    })
}

/// The text of the panic, if there is one. The stage is put in order by the next `calm`, so what a panic leaves behind does
/// no harm.
async fn caught<T>(what: impl Future<Output = T>) -> Result<T, String> {
    AssertUnwindSafe(what)
        .catch_unwind()
        .await
        .map_err(|panic| panic_text(panic.as_ref()))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without text".to_owned())
}
