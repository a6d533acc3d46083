//! The faults, one by one: what is done to the cluster, and what must hold during it and afterwards.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::ledger::settle;
use super::load::Load;
use super::net::Lane;
use super::stage::{PATIENCE, Setup, Stage};
use super::{Settings, kills, lost, power, refusals};
use crate::wait::wait_until;

/// One fault.
pub struct Case {
    /// Its name, for `--only`.
    pub name: &'static str,
    /// What it shows.
    pub what: &'static str,
    /// True for those that CI runs.
    pub quick: bool,
    /// Runs it; panics when it does not hold.
    pub run: fn(Settings) -> LocalBoxFuture<'static, ()>,
}

macro_rules! case {
    ($name:literal, $what:literal, $quick:literal, $run:expr) => {
        Case {
            name: $name,
            what: $what,
            quick: $quick,
            run: |settings| $run(settings).boxed_local(),
        }
    };
}

/// All of them.
pub const ALL: &[Case] = &[
    case!(
        "leader-kills",
        "the stream's leader is killed again and again under load",
        true,
        kills::leader_kills
    ),
    case!(
        "leader-cut-off",
        "the leader hears nobody and is heard by nobody",
        true,
        |s| cut(s, "leader-cut-off", true, true)
    ),
    case!(
        "leader-split",
        "the leader is cut off from the other servers, and the services reach all of them",
        false,
        split
    ),
    case!(
        "leader-unheard",
        "the leader hears everybody and is heard by nobody",
        false,
        |s| cut(s, "leader-unheard", true, false)
    ),
    case!(
        "leader-deaf",
        "the leader is heard by everybody and hears nobody",
        false,
        |s| cut(s, "leader-deaf", false, true)
    ),
    case!(
        "follower-cut-off",
        "a server that does not lead is cut off",
        false,
        follower_cut_off
    ),
    case!(
        "services-cut-off",
        "both services lose all servers and find them again",
        false,
        services_cut_off
    ),
    case!(
        "slow-links",
        "every link is late by 40 ms and carries 200 kB/s",
        false,
        slow
    ),
    case!(
        "leader-paused",
        "the leader stops without a word and goes on later",
        true,
        paused
    ),
    case!(
        "rolling-restart",
        "each server is restarted, one after the other",
        false,
        rolling
    ),
    case!(
        "all-restarted",
        "all servers are killed at once and started again",
        false,
        all_at_once
    ),
    case!(
        "one-store-emptied",
        "a server comes back without its store",
        true,
        emptied
    ),
    case!(
        "one-store-older",
        "a server comes back with an older copy of its store",
        false,
        older
    ),
    case!(
        "all-stores-older",
        "the whole cluster is put back to an older copy",
        false,
        lost::all_older
    ),
    case!(
        "stream-made-anew",
        "the stream is deleted and made again",
        true,
        lost::made_anew
    ),
    case!(
        "permissions-revoked",
        "the services' user loses its permissions and gets them back",
        true,
        refusals::permissions
    ),
    case!(
        "stream-full",
        "the stream reaches max_bytes, then max_msgs",
        true,
        refusals::stream_full
    ),
    case!(
        "account-full",
        "the account's storage is used up",
        false,
        refusals::account_full
    ),
    case!(
        "leader-disk-full",
        "the leader's disk is full, the others' are not",
        false,
        refusals::leader_disk_full
    ),
    case!(
        "power-cut-always",
        "all machines lose power, sync_interval: always",
        false,
        |s| power::cut(s, true)
    ),
    case!(
        "power-cut-default",
        "all machines lose power, sync_interval by default",
        false,
        |s| power::cut(s, false)
    ),
];

/// Writers of the cases that are not about many.
pub(super) const WRITERS: usize = 8;

pub(super) async fn begin(settings: &Settings, name: &str, setup: &Setup) -> (Stage, Arc<Load>) {
    let stage = Stage::set(name, setup).await;
    let load = load(&stage, settings.seed);
    load.goes_on(60, PATIENCE).await;
    (stage, load)
}

pub(super) fn load(stage: &Stage, seed: u64) -> Arc<Load> {
    let services = stage.services.iter().map(|one| one.http.clone()).collect();
    Load::start(services, WRITERS, seed)
}

async fn end(stage: Stage, load: &Load, name: &str) {
    settle(&stage, load, name, false).await;
    stage.strike().await;
}

/// Waits until writes go on under a fault and says how long that took.
async fn pause_of(load: &Load, what: &str, since: Instant) {
    let first = load.goes_on(40, PATIENCE).await;
    let pause = first.duration_since(since).as_secs_f64();
    println!("      {what}: {pause:.2} s to the first acknowledged write sent after it");
}

async fn cut(settings: Settings, name: &'static str, outgoing: bool, incoming: bool) {
    let (stage, load) = begin(&settings, name, &Setup::default()).await;
    for _ in 0..if settings.quick { 1 } else { 3 } {
        let leader = stage.leader().await;
        let since = Instant::now();
        stage.cut(leader, outgoing, incoming);
        pause_of(&load, "cut", since).await;
        let since = Instant::now();
        stage.net.heal();
        pause_of(&load, "healed", since).await;
        stage.whole().await;
    }
    end(stage, &load, name).await;
}

/// The old leader goes on answering until it notices; what it says of the log's end is old by then.
async fn split(settings: Settings) {
    let (stage, load) = begin(&settings, "leader-split", &Setup::default()).await;
    load.forgive_old_ends();
    for _ in 0..3 {
        let leader = stage.leader().await;
        let since = Instant::now();
        for other in (0..3).filter(|other| *other != leader) {
            stage.net.set(leader, other, Lane::Cut);
            stage.net.set(other, leader, Lane::Cut);
        }
        pause_of(&load, "cut", since).await;
        load.goes_on(200, PATIENCE).await;
        stage.net.heal();
        stage.whole().await;
    }
    end(stage, &load, "leader-split").await;
}

async fn follower_cut_off(settings: Settings) {
    let (stage, load) = begin(&settings, "follower-cut-off", &Setup::default()).await;
    let follower = (stage.leader().await + 1) % 3;
    let since = Instant::now();
    stage.cut(follower, true, true);
    pause_of(&load, "cut", since).await;
    load.goes_on(300, PATIENCE).await;
    stage.net.heal();
    stage.whole().await;
    end(stage, &load, "follower-cut-off").await;
}

async fn services_cut_off(settings: Settings) {
    let (stage, load) = begin(&settings, "services-cut-off", &Setup::default()).await;
    for service in [3, 4] {
        stage.net.set_all(service, true, true, Lane::Cut);
    }
    for number in 0..2 {
        wait_until(
            "a service says that the log is away",
            PATIENCE,
            async || {
                let ready = stage.service(number).get("/readyz").await?;
                match ready.json["log"].as_str() {
                    Some("away") => Ok(()),
                    _ => Err(ready.text),
                }
            },
        )
        .await;
    }
    let since = Instant::now();
    stage.net.heal();
    pause_of(&load, "healed", since).await;
    end(stage, &load, "services-cut-off").await;
}

async fn slow(settings: Settings) {
    let (stage, load) = begin(&settings, "slow-links", &Setup::default()).await;
    let lane = Lane::Slow {
        delay: Duration::from_millis(40),
        bytes_per_second: 200_000,
    };
    for party in 0..5 {
        stage.net.set_all(party, true, true, lane);
    }
    let since = Instant::now();
    load.goes_on(300, PATIENCE).await;
    let took = since.elapsed().as_secs_f64();
    println!("      300 writes in {took:.1} s");
    stage.net.heal();
    end(stage, &load, "slow-links").await;
}

async fn paused(settings: Settings) {
    let (stage, load) = begin(&settings, "leader-paused", &Setup::default()).await;
    for _ in 0..if settings.quick { 1 } else { 3 } {
        let leader = stage.leader().await;
        let since = Instant::now();
        stage.servers[leader].pause().expect("paused");
        pause_of(&load, "paused", since).await;
        let since = Instant::now();
        stage.servers[leader].resume().expect("resumed");
        pause_of(&load, "resumed", since).await;
        stage.whole().await;
    }
    end(stage, &load, "leader-paused").await;
}

async fn rolling(settings: Settings) {
    let (mut stage, load) = begin(&settings, "rolling-restart", &Setup::default()).await;
    for node in 0..3 {
        let since = Instant::now();
        stage.servers[node].kill();
        pause_of(&load, "one down", since).await;
        stage.servers[node].restart().expect("nats-server");
        stage.whole().await;
    }
    end(stage, &load, "rolling-restart").await;
}

async fn all_at_once(settings: Settings) {
    let (mut stage, load) = begin(&settings, "all-restarted", &Setup::default()).await;
    for _ in 0..3 {
        kill_all(&mut stage);
        let since = Instant::now();
        start_all(&mut stage);
        pause_of(&load, "started", since).await;
        stage.whole().await;
    }
    end(stage, &load, "all-restarted").await;
}

pub(super) fn kill_all(stage: &mut Stage) {
    for server in &mut stage.servers {
        server.kill();
    }
}

pub(super) fn start_all(stage: &mut Stage) {
    for server in &mut stage.servers {
        server.restart().expect("nats-server");
    }
}

async fn emptied(settings: Settings) {
    let (mut stage, load) = begin(&settings, "one-store-emptied", &Setup::default()).await;
    let node = (stage.leader().await + 1) % 3;
    stage.servers[node].kill();
    std::fs::remove_dir_all(stage.servers[node].folder().join("data")).expect("its store");
    stage.servers[node].restart().expect("nats-server");
    load.goes_on(40, PATIENCE).await;
    stage.whole().await;
    rely_on(&mut stage, &load, node).await;
    end(stage, &load, "one-store-emptied").await;
}

async fn older(settings: Settings) {
    let (mut stage, load) = begin(&settings, "one-store-older", &Setup::default()).await;
    let node = (stage.leader().await + 1) % 3;
    let data = stage.servers[node].folder().join("data");
    let copy = stage.servers[node].folder().join("older");
    stage.servers[node].kill();
    copy_folder(&data, &copy);
    stage.servers[node].restart().expect("nats-server");
    load.goes_on(300, PATIENCE).await;
    stage.whole().await;
    stage.servers[node].kill();
    put_back(&copy, &data);
    stage.servers[node].restart().expect("nats-server");
    load.goes_on(40, PATIENCE).await;
    stage.whole().await;
    rely_on(&mut stage, &load, node).await;
    end(stage, &load, "one-store-older").await;
}

/// Without the other server that does not lead, this one's copy is half of the majority; then it must lead.
async fn rely_on(stage: &mut Stage, load: &Load, node: usize) {
    let other = (0..3)
        .find(|other| *other != node && *other != 0)
        .unwrap_or(0);
    stage.servers[other].kill();
    load.goes_on(40, PATIENCE).await;
    stage.servers[other].restart().expect("nats-server");
    stage.whole().await;
}

pub(super) fn copy_folder(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cp {from:?} {to:?}"
    );
}

pub(super) fn put_back(copy: &Path, data: &Path) {
    std::fs::remove_dir_all(data).expect("its store");
    copy_folder(copy, data);
}

/// A number in an answer of the API.
pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}
