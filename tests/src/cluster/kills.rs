//! The stream's leader killed again and again under load.

use std::time::Duration;

use tokio::time::Instant;

use super::Settings;
use super::ledger::settle;
use super::load::Load;
use super::stage::{PATIENCE, Setup, Stage};

/// Kills leaders under load, and tells how long nothing was acknowledged after each.
pub(super) async fn leader_kills(settings: Settings) {
    let mut stage = Stage::set("leader-kills", &Setup::default()).await;
    let services = stage.services.iter().map(|one| one.http.clone()).collect();
    let load = Load::start(services, settings.writers, settings.seed);
    load.goes_on(200, PATIENCE).await;
    let mut pauses = Vec::new();
    for kill in 1..=settings.kills {
        let leader = stage.leader().await;
        let killed = Instant::now();
        stage.servers[leader].kill();
        let first = load.goes_on(20, PATIENCE).await;
        pauses.push(first.duration_since(killed));
        if kill % 10 == 0 || kill == settings.kills {
            println!("      {kill} kills; {}", spread(&pauses));
        }
        stage.servers[leader].restart().expect("nats-server");
        stage.whole().await;
        load.goes_on(20, PATIENCE).await;
    }
    settle(&stage, &load, "leader-kills", false).await;
    println!(
        "      kills {}, writers {}, seed {}: {}",
        settings.kills,
        settings.writers,
        settings.seed,
        spread(&pauses)
    );
    stage.strike().await;
}

fn spread(pauses: &[Duration]) -> String {
    let mut sorted = pauses.to_vec();
    sorted.sort_unstable();
    let at = |percent: usize| {
        let index = (sorted.len().saturating_sub(1)) * percent / 100;
        sorted.get(index).copied().unwrap_or_default()
    };
    format!(
        "from a kill to the first acknowledged write sent after it: median {:.2} s, nine of ten within {:.2} s, worst {:.2} s",
        at(50).as_secs_f64(),
        at(90).as_secs_f64(),
        at(100).as_secs_f64()
    )
}
