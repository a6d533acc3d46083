//! The broker refuses: no permission, no room. Changes are refused in clear words, nothing is lost, and it goes on by itself
//! once the cause is gone.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::Settings;
use super::cases::{begin, number};
use super::ledger::settle;
use super::load::Load;
use super::stage::{OPERATOR, PATIENCE, STREAM, Setup, Stage};
use crate::http::Answer;
use crate::wait::wait_until;

/// The services' user.
const SERVICE: (&str, &str) = ("service", "service");

fn users(permissions: &str) -> String {
    let (operator, secret) = OPERATOR;
    let (service, own) = SERVICE;
    format!(
        "authorization {{ users: [ {{ user: {operator}, password: {secret} }}, {{ user: {service}, password: {own} {permissions} }} ] }}"
    )
}

/// Every server reads its configuration again.
fn reconfigure(stage: &Stage, cluster: &[String], more: &str) {
    for (server, cluster) in stage.servers.iter().zip(cluster) {
        server
            .reconfigure(&format!("{cluster}\n{more}"))
            .expect("reconfigured");
    }
}

/// The line of each server's configuration that makes it one of the cluster.
fn cluster_lines(stage: &Stage) -> Vec<String> {
    let line = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("nats.conf")).expect("its configuration");
        let line = text.lines().find(|line| line.starts_with("cluster {"));
        line.expect("a cluster").to_owned()
    };
    stage
        .servers
        .iter()
        .map(|server| line(server.folder()))
        .collect()
}

pub(super) async fn permissions(settings: Settings) {
    let name = "permissions-revoked";
    let setup = Setup {
        configuration: users(""),
        login: Some(SERVICE),
        ..Setup::default()
    };
    let (stage, load) = begin(&settings, name, &setup).await;
    let cluster = cluster_lines(&stage);
    for (what, permissions) in [
        (
            "writing",
            "permissions: { publish: { deny: [\"router_policy.>\"] } }",
        ),
        ("everything", "permissions: { publish: { deny: [\">\"] } }"),
    ] {
        reconfigure(&stage, &cluster, &users(&format!(", {permissions}")));
        for service in 0..2 {
            let refused = unavailable(&stage, service).await;
            assert!(
                refused.text.to_lowercase().contains("permission"),
                "without permission for {what} the answer names it: {}",
                refused.text
            );
        }
        reconfigure(&stage, &cluster, &users(""));
        load.goes_on(40, PATIENCE).await;
    }
    settle(&stage, &load, name, true).await;
    stage.strike().await;
}

/// Waits until a change of its own is not accepted, and returns the answer.
async fn unavailable(stage: &Stage, service: usize) -> Answer {
    wait_until("changes are not accepted", PATIENCE, async || {
        let answer = stage.change(service, "unavailable", 0.1).await?;
        if answer.status == 503 {
            Ok(answer)
        } else {
            Err(answer.text)
        }
    })
    .await
}

/// Waits until a service refuses a change for good, in these words.
async fn full(stage: &Stage, words: &[&str]) {
    for service in 0..2 {
        let refused = unavailable(stage, service).await;
        assert_eq!(refused.json["outcome"], "not_applied", "{}", refused.text);
        assert_eq!(refused.code(), "log_unavailable", "{}", refused.text);
        assert!(
            words.iter().any(|words| refused.text.contains(words)),
            "{}",
            refused.text
        );
        let ready = stage
            .service(service)
            .get("/readyz")
            .await
            .expect("an answer");
        assert_eq!(
            ready.status, 200,
            "a log that is full can be read: {}",
            ready.text
        );
    }
}

pub(super) async fn stream_full(settings: Settings) {
    let name = "stream-full";
    let (stage, load) = begin(&settings, name, &Setup::default()).await;
    for (limit, state) in [("max_bytes", "bytes"), ("max_msgs", "messages")] {
        let now = number(&stage.info().await.expect("the stream")["state"][state]);
        let room = if limit == "max_bytes" { 20_000 } else { 20 };
        stage
            .update_stream(|config| config[limit] = json!(now + room))
            .await;
        full(&stage, &["maximum"]).await;
        stage
            .update_stream(|config| config[limit] = json!(-1))
            .await;
        load.goes_on(40, PATIENCE).await;
    }
    settle(&stage, &load, name, false).await;
    stage.strike().await;
}

pub(super) async fn account_full(settings: Settings) {
    let name = "account-full";
    let accounts = |bytes: &str| {
        let (operator, secret) = OPERATOR;
        let (service, own) = SERVICE;
        format!(
            "accounts {{ A: {{ jetstream: {{ max_file: {bytes}, max_mem: 64MB }}, users: [ {{ user: {operator}, password: {secret} }}, {{ user: {service}, password: {own} }} ] }} }}"
        )
    };
    let setup = Setup {
        configuration: accounts("1GB"),
        login: Some(SERVICE),
        ..Setup::default()
    };
    let (stage, load) = begin(&settings, name, &setup).await;
    let cluster = cluster_lines(&stage);
    let used = number(&stage.info().await.expect("the stream")["state"]["bytes"]);
    // Counted with its replicas.
    reconfigure(
        &stage,
        &cluster,
        &accounts(&(used * 3 + 60_000).to_string()),
    );
    full(
        &stage,
        &[
            "resource limits exceeded",
            "storage resources exceeded",
            "maximum",
        ],
    )
    .await;
    reconfigure(&stage, &cluster, &accounts("1GB"));
    load.goes_on(40, PATIENCE).await;
    settle(&stage, &load, name, true).await;
    stage.strike().await;
}

/// A file system in memory, of this size, where root may mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, size: &str) -> Option<SmallDisk> {
        std::fs::create_dir_all(at).ok()?;
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .stderr(std::process::Stdio::null())
            .status();
        status
            .is_ok_and(|status| status.success())
            .then(|| SmallDisk(at.to_path_buf()))
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        use std::io::Write as _;
        let mut file = std::fs::File::create(self.0.join("ballast")).expect("a file");
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn clear(&self) {
        std::fs::remove_file(self.0.join("ballast")).expect("the file");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that was just killed may hold it for a moment.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

pub(super) async fn leader_disk_full(settings: Settings) {
    let name = "leader-disk-full";
    let disk = event_log::testing::TemporaryFolder::new().expect("a folder");
    let Some(small) = SmallDisk::mount(&disk.path().join("small"), "96m") else {
        println!("      skipped: mounting a small file system needs root");
        return;
    };
    let place = |node: usize| disk.path().join(format!("node{node}"));
    let setup = Setup {
        stores: vec![small.0.clone(), place(1), place(2)],
        ..Setup::default()
    };
    let (mut stage, load) = begin(&settings, name, &setup).await;
    for _ in 0..3 {
        lead(&stage, 0).await;
        small.fill();
        let told = load.told().acknowledged.len();
        load.goes_on(60, PATIENCE).await;
        println!("      full: went on after {told} acknowledged writes");
        small.clear();
        stage.servers[0].restart().expect("nats-server");
        stage.whole().await;
    }
    settle(&stage, &load, name, false).await;
    no_harm(&load);
    stage.strike().await;
    drop(small);
}

fn no_harm(load: &Load) {
    let told = load.told();
    assert!(told.unknown.is_empty(), "{:?} stayed unknown", told.unknown);
}

/// Lets this server lead the stream.
async fn lead(stage: &Stage, node: usize) {
    wait_until("the server leads", PATIENCE, async || {
        let info = stage.info().await?;
        let wanted = stage.servers[node].name();
        if info["cluster"]["leader"] == wanted.as_str() {
            return Ok(());
        }
        let what = format!("STREAM.LEADER.STEPDOWN.{STREAM}");
        let asked = stage
            .admin
            .ask(&what, &json!({"placement": {"preferred": wanted}}))
            .await;
        Err(format!("{asked:?} {}", info["cluster"]))
    })
    .await;
}
