//! Full disks: small tmpfs mounts that a file fills up under load, and then leaves again.
//!
//! While it is full: changes are refused in words or go on, reads go on, nothing that was acknowledged is lost. With room
//! again everything works.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions};
use reqwest::Method;
use serde_json::json;

use super::frontend::{MODEL, Startup, converged, places as agent_places};
use super::history::{Found, History, compare_copy, compare_projection};
use super::ledger::{Ledger, check};
use super::program::Program;
use super::report::Report;
use super::writers::{Course, Place, Writers};
use crate::binaries::target;
use crate::http::Http;
use crate::wait::reached;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a disk stays full once that was noticed.
const FULL_FOR: Duration = Duration::from_secs(3);

/// A small file system of its own.
struct Disk(PathBuf);

impl Disk {
    /// Mounts one; the error says why that is impossible here.
    fn mount(at: &Path, size: &str) -> Result<Disk, String> {
        std::fs::create_dir_all(at).map_err(|why| why.to_string())?;
        let out = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(at)
            .output()
            .map_err(|why| why.to_string())?;
        if out.status.success() {
            Ok(Disk(at.to_owned()))
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }

    /// Takes all the room that there is.
    fn fill(&self) -> Result<(), String> {
        use std::io::Write as _;
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.0.join("filler"))
            .map_err(|why| why.to_string())?;
        for block in [vec![0_u8; 64 * 1024], vec![0; 4 * 1024]] {
            while file.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    /// Gives it back.
    fn free(&self) -> Result<(), String> {
        std::fs::remove_file(self.0.join("filler")).map_err(|why| why.to_string())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What is still open inside goes with its process.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The four disks that can be full. A machine where nothing can be mounted skips them, and says so.
pub async fn run(seed: u64) -> Report {
    let mut report = Report::new("disk-full");
    let folder = target().join("crash").join("disk-full");
    // It may not exist yet.
    let _ = std::fs::remove_dir_all(&folder);
    match Disk::mount(&folder.join("try"), "1m") {
        Ok(disk) => drop(disk),
        Err(why) => {
            println!(
                "disk-full skipped: no tmpfs can be mounted here: {}",
                why.trim()
            );
            return report;
        }
    }
    for (name, outcome) in [
        (
            "embedded log",
            embedded(&folder.join("embedded"), seed, &mut report).await,
        ),
        (
            "projection",
            projection(&folder.join("projection"), seed, &mut report).await,
        ),
        (
            "nats-server",
            broker(&folder.join("broker"), seed, &mut report).await,
        ),
        (
            "agent",
            agent(&folder.join("agent"), seed, &mut report).await,
        ),
    ] {
        report.kills += 1;
        match outcome {
            Ok(words) => println!("disk-full {name}: {words}"),
            Err(words) => report.violation(format!("{name}: {words}")),
        }
    }
    if report.violations.none() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    report
}

struct Load {
    ledger: Arc<Ledger>,
    writers: Writers,
}

impl Load {
    fn start(services: &[String], places: &[Place], seed: u64) -> Load {
        let ledger = Arc::new(Ledger::default());
        let pause = Duration::from_millis(5);
        let writers = Writers::start(4, services, places, &ledger, seed, pause);
        Load { ledger, writers }
    }

    async fn more(&self, what: &str, count: u64) -> Result<(), String> {
        self.more_within(what, count, PATIENCE).await
    }

    async fn more_within(&self, what: &str, count: u64, patience: Duration) -> Result<(), String> {
        let enough = self.ledger.counts().acknowledged + count;
        reached(what, patience, async || {
            match self.ledger.counts().acknowledged {
                now if now >= enough => Ok(()),
                now => Err(format!("{now} of {enough}")),
            }
        })
        .await
    }

    /// Ends the clients and compares the log with what they were told.
    async fn judge(
        self,
        history: impl AsyncFnOnce() -> Result<History, String>,
        report: &mut Report,
    ) -> Result<History, String> {
        let strange = Arc::clone(&self.writers.strange);
        let in_time = self.writers.end().await;
        report.told(self.ledger.counts());
        if let Some(words) = strange.lock().expect("no panic while held").pop() {
            return Err(words);
        }
        if !in_time {
            return Err("the clients did not come to an end".to_owned());
        }
        let history = history().await?;
        // The change of nobody is in no ledger.
        report.violated(check(&self.ledger.page(), &history, false));
        Ok(history)
    }
}

fn models() -> Vec<Place> {
    (0..8).map(|n| Place::model(&format!("m{n}"))).collect()
}

/// One change that nobody else makes; its answer while the disk is full.
async fn refusal(service: &Http) -> Result<String, String> {
    reached("a change is refused", PATIENCE, async || {
        let body = json!({"changes": [{"kind": "worker_selection", "scope": {"model": "nobody"},
            "parameters": {"router_temperature": 0.5}}]});
        let headers = [("content-type", "application/json")];
        let sent = Some(body.to_string().into_bytes());
        let patient = Http::new(service.base(), Duration::from_secs(30));
        let answer = patient
            .send(Method::POST, "/v1/changes", &headers, sent)
            .await?;
        if answer.status == 503 {
            Ok(answer.text)
        } else {
            Err(format!("{}: {}", answer.status, answer.text))
        }
    })
    .await
}

/// Reads from memory go on; those from the store may not.
async fn policies(service: &Http) -> Result<(), String> {
    match service.get("/v1/policies").await? {
        answer if answer.status == 200 => Ok(()),
        other => Err(format!("policies while the disk is full: {}", other.text)),
    }
}

/// The disk stays full for a while.
async fn stay_full() {
    tokio::time::sleep(FULL_FOR).await;
}

async fn recovered(load: &Load, begun: Instant, service: &mut Program) -> Result<String, String> {
    match load.more("changes are acknowledged again", 10).await {
        Ok(()) => Ok(format!(
            "works again {} ms after there was room, without a restart",
            begun.elapsed().as_millis()
        )),
        Err(why) => {
            let words = service.last_words();
            service.kill();
            service.up(None).await?;
            load.more("changes are acknowledged after a restart", 10)
                .await?;
            Err(format!("works again only after a restart ({why}): {words}"))
        }
    }
}

async fn embedded(folder: &Path, seed: u64, report: &mut Report) -> Result<String, String> {
    let disk = Disk::mount(&folder.join("service"), "12m")?;
    let mut service = Program::service("service", folder, "embedded");
    service.up(None).await?;
    let load = Load::start(&[service.url()], &models(), seed);
    load.more("changes are acknowledged", 30).await?;
    disk.fill()?;
    let words = refusal(&service.http).await?;
    policies(&service.http).await?;
    stay_full().await;
    disk.free()?;
    let again = recovered(&load, Instant::now(), &mut service).await;
    let data = service.folder.clone();
    let service = &mut service;
    let history = load
        .judge(
            async || {
                service.stop().await;
                History::read_folder(&data.join("log")).await
            },
            report,
        )
        .await?;
    same(compare_projection(&data, &history), report)?;
    Ok(format!("refused with {words}; {}", again?))
}

async fn projection(folder: &Path, seed: u64, report: &mut Report) -> Result<String, String> {
    let options = ServerOptions {
        sync_always: true,
        store: Some(folder.join("nats")),
        ..ServerOptions::default()
    };
    let nats = NatsServer::start(NATS_NEWEST, &options).map_err(|why| why.to_string())?;
    let disk = Disk::mount(&folder.join("service"), "6m")?;
    let mut service = Program::service("service", folder, &nats.url());
    service.up(None).await?;
    let load = Load::start(&[service.url()], &models(), seed);
    load.more("changes are acknowledged", 30).await?;
    disk.fill()?;
    // The store may have room of its own left; then changes go on for a while.
    let words = refusal(&service.http).await?;
    policies(&service.http).await?;
    stay_full().await;
    // A start on a full disk fails in words, and does not throw a whole store away.
    service.kill();
    service.start(None);
    stay_full().await;
    let aside = super::history::set_aside(&service.folder);
    if aside > 0 {
        return Err(format!(
            "{aside} whole stores were set aside because the disk was full"
        ));
    }
    let started = service.is_running();
    disk.free()?;
    if !started {
        service.up(None).await?;
    }
    let again = recovered(&load, Instant::now(), &mut service).await;
    let data = service.folder.clone();
    let service = &mut service;
    let history = load
        .judge(
            async || {
                service.stop().await;
                History::read_url(&nats.url()).await
            },
            report,
        )
        .await?;
    same(compare_projection(&data, &history), report)?;
    Ok(format!("refused with {words}; {}", again?))
}

async fn broker(folder: &Path, seed: u64, report: &mut Report) -> Result<String, String> {
    let disk = Disk::mount(&folder.join("nats"), "8m")?;
    let options = ServerOptions {
        sync_always: true,
        store: Some(folder.join("nats")),
        ..ServerOptions::default()
    };
    let mut nats = NatsServer::start(NATS_NEWEST, &options).map_err(|why| why.to_string())?;
    let mut service = Program::service("service", folder, &nats.url());
    service.up(None).await?;
    let load = Load::start(&[service.url()], &models(), seed);
    load.more("changes are acknowledged", 30).await?;
    disk.fill()?;
    let words = refusal(&service.http).await?;
    policies(&service.http).await?;
    stay_full().await;
    disk.free()?;
    let begun = Instant::now();
    let soon = Duration::from_secs(12);
    let again = match load
        .more_within("changes are acknowledged again", 10, soon)
        .await
    {
        Ok(()) => format!(
            "works again {} ms after there was room",
            begun.elapsed().as_millis()
        ),
        Err(_) => {
            // The server has switched JetStream off; only its restart switches it on.
            nats.restart().map_err(|why| why.to_string())?;
            load.more("changes are acknowledged again", 10).await?;
            "works again once nats-server, which had switched JetStream off, was restarted"
                .to_owned()
        }
    };
    let data = service.folder.clone();
    let service = &mut service;
    let history = load
        .judge(
            async || {
                service.stop().await;
                History::read_url(&nats.url()).await
            },
            report,
        )
        .await?;
    same(compare_projection(&data, &history), report)?;
    Ok(format!("refused with {words}; {again}"))
}

async fn agent(folder: &Path, seed: u64, report: &mut Report) -> Result<String, String> {
    let options = ServerOptions {
        sync_always: true,
        store: Some(folder.join("nats")),
        ..ServerOptions::default()
    };
    let nats = NatsServer::start(NATS_NEWEST, &options).map_err(|why| why.to_string())?;
    let mut service = Program::service("service", folder, &nats.url());
    service.up(None).await?;
    let mut frontend = Program::frontend("frontend", folder, MODEL);
    frontend.up(None).await?;
    let startup = Startup::of(&frontend.http).await?;
    let disk = Disk::mount(&folder.join("agent"), "4m")?;
    let mut agent = Program::agent("agent", folder, &nats.url(), &[frontend.url()]);
    agent.up(None).await?;
    let load = Load::start(&[service.url()], &agent_places(), seed);
    load.more("changes are acknowledged", 20).await?;
    disk.fill()?;
    let agent_log = "cannot be";
    reached(
        "the agent says that it cannot write",
        PATIENCE,
        async || {
            if agent.log().contains(agent_log) {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        },
    )
    .await?;
    load.more("changes are acknowledged meanwhile", 20).await?;
    load.writers.course(Course::Settle);
    reached("the clients are idle", PATIENCE, async || {
        load.writers
            .are_idle()
            .then_some(())
            .ok_or_else(String::new)
    })
    .await?;
    let history = History::read_url(&nats.url()).await?;
    converged(&frontend.http, &startup, &history, None).await?;
    disk.free()?;
    load.writers.course(Course::Go);
    load.more("changes are acknowledged with room again", 20)
        .await?;
    let history = load
        .judge(async || History::read_url(&nats.url()).await, report)
        .await?;
    converged(&frontend.http, &startup, &history, None).await?;
    let copied = folder.join("copy");
    let end = history.state.position;
    // With room again the copy goes on by itself: an agent that restarts without the log must not go back.
    let agent_folder = agent.folder.clone();
    let caught_up = reached(
        "the copy is at the end of the log",
        Duration::from_secs(20),
        async || {
            let _ = std::fs::remove_dir_all(&copied);
            super::program::copy(&agent_folder, &copied).map_err(|why| why.to_string())?;
            match compare_copy(&copied, &history)? {
                Found::Same(position) if position == end => Ok(()),
                other @ (Found::Same(_) | Found::SetAside(_)) => {
                    Err(format!("{other:?}, not {end}"))
                }
            }
        },
    )
    .await;
    agent.kill();
    agent.up(None).await?;
    converged(&frontend.http, &startup, &history, None).await?;
    caught_up?;
    Ok("policies went on; its copy caught up once there was room".to_owned())
}

fn same(compared: Result<Found, String>, report: &mut Report) -> Result<(), String> {
    match compared? {
        Found::Same(_) => report.compared += 1,
        Found::SetAside(why) => report.set_aside.push(why),
    }
    Ok(())
}
