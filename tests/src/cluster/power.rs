//! All machines lose power at once: what was never synced to disk is gone.
//!
//! Each server has a disk of its own ([`Disk`]); after SIGKILL to all servers they start on what their disks held.

use event_log::testing::TemporaryFolder;

use super::Settings;
use super::cases::{begin, kill_all, number, start_all};
use super::ledger;
use super::load::Load;
use super::stage::{PATIENCE, Setup, Stage};
use crate::disk::Disk;

/// How long a cluster that lost its disks may take to say so.
const SETTLED_MAX: std::time::Duration = std::time::Duration::from_secs(30);
/// Rounds of each setting.
const ROUNDS: u32 = 3;

pub(super) async fn cut(settings: Settings, sync_always: bool) {
    let name = if sync_always {
        "power-cut-always"
    } else {
        "power-cut-default"
    };
    for round in 1..=ROUNDS {
        // Declared before the stage's stores are used: unmounted after the servers were killed.
        let folder = TemporaryFolder::new().expect("a folder");
        let disks: Vec<Disk> = (0..3)
            .map_while(|number| Disk::make(folder.path(), &format!("node{number}")))
            .collect();
        if disks.len() < 3 {
            println!("      skipped: loop devices and root are needed");
            return;
        }
        let setup = Setup {
            sync_always,
            stores: disks.iter().map(|disk| disk.at().to_owned()).collect(),
            ..Setup::default()
        };
        let settings = Settings {
            seed: settings.seed + u64::from(round),
            ..settings.clone()
        };
        let (mut stage, load) = begin(&settings, name, &setup).await;
        load.goes_on(150, PATIENCE).await;
        // The configuration lies on the same disk, and is not what this is about.
        let configurations: Vec<String> = disks
            .iter()
            .map(|disk| std::fs::read_to_string(disk.at().join("nats.conf")).expect("it is there"))
            .collect();
        kill_all(&mut stage);
        for disk in &disks {
            disk.freeze().expect("a copy");
        }
        for (disk, configuration) in disks.iter().zip(configurations) {
            disk.thaw().expect("mounted again");
            std::fs::write(disk.at().join("nats.conf"), configuration).expect("written");
        }
        start_all(&mut stage);
        if sync_always {
            load.goes_on(40, PATIENCE).await;
            ledger::settle(&stage, &load, name, false).await;
            println!("      round {round}: nothing acknowledged was lost");
        } else {
            told_of_loss(&stage, &load, round).await;
        }
        stage.strike().await;
        drop(disks);
    }
}

/// Nobody takes what is left for the log: until something acknowledged is missing, or all of it is there.
async fn told_of_loss(stage: &Stage, load: &Load, round: u32) {
    load.end().await;
    for service in 0..2 {
        let mut last = String::new();
        let settled = async {
            loop {
                match stage.change(service, "after-the-cut", 0.1).await {
                    Ok(answer) if answer.status == 200 => return "accepts changes",
                    Ok(answer) if answer.code() == "foreign_log" => return "refuses the log",
                    Ok(answer) => last = answer.text,
                    Err(why) => last = why,
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        };
        let stands = tokio::time::timeout(SETTLED_MAX, settled).await;
        let stands = stands.unwrap_or("finds no leader");
        println!("      round {round}: service {service} {stands}; last words: {last}");
        if stands == "accepts changes" {
            let ledger = ledger::read(&stage.urls, false).await;
            ledger.agrees(load);
            println!("      round {round}: nothing acknowledged was lost");
        }
    }
    let left = stage.info().await;
    println!(
        "      round {round}: {}",
        left.map_or_else(
            |why| format!("the stream is gone: {why}"),
            |info| format!("the stream ends at {}", number(&info["state"]["last_seq"]))
        )
    );
}
