//! Services and their log, killed under a concurrent workload: two replicas on NATS (a replica or the broker is killed),
//! or one service with its embedded log, alone or with the power of its machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions, TemporaryFolder};

use super::history::{Found, History, compare_projection};
use super::ledger::{Ledger, check};
use super::program::{Program, copy};
use super::report::Report;
use super::writers::{Course, Place, Writers};
use crate::binaries::target;
use crate::disk::Disk;
use crate::wait::reached;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// One of two services on NATS, sometimes both.
    Service,
    /// nats-server.
    Broker,
    /// The service that keeps its own log.
    Embedded,
    /// That service and its disk: what was not synced is gone.
    Power,
}

/// Bound: rounds on one stage, so that its log stays small and first starts are crashed too.
const ROUNDS_MAX: u64 = 12;
const WRITERS: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(60);

const POINTS: &[&str] = &[
    "commit.before_append",
    "commit.after_append",
    "projection.before_store",
    "projection.stored",
];
const EMBEDDED_POINTS: &[&str] = &[
    "commit.before_append",
    "commit.after_append",
    "projection.before_store",
    "projection.stored",
    "embedded.before_write",
    "embedded.after_write",
    "embedded.marked",
];
/// Met once in a folder's life.
const FIRST_POINTS: &[&str] = &["projection.log_id#1"];
const EMBEDDED_FIRST_POINTS: &[&str] = &[
    "embedded.made_aside#1",
    "embedded.in_place#1",
    "projection.log_id#1",
];
const SET_ASIDE: &str = "projection.set_aside#1";

struct Stage {
    victim: Victim,
    folder: PathBuf,
    services: Vec<Program>,
    nats: Option<NatsServer>,
    /// Unmounted after the services that use it have ended.
    disk: Option<Disk>,
    ledger: Arc<Ledger>,
    dice: fastrand::Rng,
    /// With which point each service was started.
    armed: Vec<Option<String>>,
}

/// Kills until `rounds` are over; violations end a stage early and keep its folder.
pub async fn run(victim: Victim, rounds: u64, seed: u64) -> Report {
    let mut report = Report::new(match victim {
        Victim::Service => "service",
        Victim::Broker => "broker",
        Victim::Embedded => "embedded",
        Victim::Power => "power",
    });
    if victim == Victim::Power && !cuts_are_possible() {
        println!("power skipped: no loop device can be mounted here");
        return report;
    }
    let mut stage = 0;
    let mut left = rounds;
    while left > 0 {
        stage += 1;
        let part = left.min(ROUNDS_MAX);
        left -= part;
        let name = format!("{}-{stage}", report.kind);
        let folder = target().join("crash").join(name);
        // It may not exist yet.
        let _ = std::fs::remove_dir_all(&folder);
        let dice = fastrand::Rng::with_seed(seed.wrapping_add(stage));
        let found = report.violations.words.len();
        if let Err(words) = on_stage(victim, &folder, part, dice, &mut report).await {
            report.violation(words);
        }
        if report.violations.words.len() == found {
            let _ = std::fs::remove_dir_all(&folder);
        } else {
            println!("kept: {} (seed {seed}, stage {stage})", folder.display());
        }
    }
    report
}

async fn on_stage(
    victim: Victim,
    folder: &Path,
    rounds: u64,
    mut dice: fastrand::Rng,
    report: &mut Report,
) -> Result<(), String> {
    let nats = match victim {
        Victim::Embedded | Victim::Power => None,
        Victim::Service | Victim::Broker => {
            let options = ServerOptions {
                sync_always: true,
                store: Some(folder.join("nats")),
                ..ServerOptions::default()
            };
            Some(NatsServer::start(NATS_NEWEST, &options).map_err(|why| why.to_string())?)
        }
    };
    let log = nats.as_ref().map_or("embedded".to_owned(), NatsServer::url);
    let names: &[&str] = match victim {
        Victim::Embedded | Victim::Power => &["service0"],
        Victim::Service | Victim::Broker => &["service0", "service1"],
    };
    let disk = match victim {
        Victim::Power => Some(Disk::make(folder, "disk").ok_or("no disk can be made")?),
        Victim::Service | Victim::Broker | Victim::Embedded => None,
    };
    let home = disk.as_ref().map_or(folder, Disk::at);
    let services: Vec<Program> = names
        .iter()
        .map(|name| Program::service(name, home, &log))
        .collect();
    let urls: Vec<String> = services.iter().map(Program::url).collect();
    let ledger = Arc::new(Ledger::default());
    let seed = dice.u64(..);
    let mut stage = Stage {
        victim,
        folder: folder.to_owned(),
        armed: vec![None; services.len()],
        services,
        nats,
        disk,
        ledger: Arc::clone(&ledger),
        dice,
    };
    stage.first_start(report).await?;
    let places: Vec<Place> = (0..12).map(|n| Place::model(&format!("m{n}"))).collect();
    let writers = Writers::start(WRITERS, &urls, &places, &ledger, seed, Duration::ZERO);
    let mut outcome = Ok(());
    let before = report.violations.words.len();
    for _ in 0..rounds {
        outcome = stage.round(&writers, report).await;
        let strange = writers.strange.lock().expect("no panic while held").pop();
        if let Some(words) = strange {
            outcome = outcome.and(Err(words));
        }
        if outcome.is_err() || report.violations.words.len() > before {
            break;
        }
    }
    stage.disarm().await?;
    if !writers.end().await {
        outcome = outcome.and(Err("the clients did not come to an end".to_owned()));
    }
    report.told(ledger.counts());
    outcome?;
    stage.final_check(report).await
}

impl Stage {
    /// The very first start of each folder, crashed sometimes.
    async fn first_start(&mut self, report: &mut Report) -> Result<(), String> {
        let points = match self.victim {
            Victim::Service => FIRST_POINTS,
            Victim::Embedded | Victim::Power => EMBEDDED_FIRST_POINTS,
            Victim::Broker => &[],
        };
        for n in 0..self.services.len() {
            let point = points
                .get(self.dice.usize(..=points.len()))
                .copied()
                .filter(|_| n == 0);
            let (took, crashes) = self.services[n].up(point).await?;
            report.restarts.push(took);
            for _ in 0..crashes {
                report.killed(point);
            }
        }
        Ok(())
    }

    async fn round(&mut self, writers: &Writers, report: &mut Report) -> Result<(), String> {
        writers.course(Course::Go);
        let victims = self.choose();
        let base = self.ledger.counts().acknowledged;
        let armed = victims.iter().any(|n| self.armed[*n].is_some());
        let enough = base + if armed { 150 } else { self.dice.u64(3..50) };
        let ledger = Arc::clone(&self.ledger);
        let services = &mut self.services;
        let died = reached("enough changes are acknowledged", PATIENCE, async || {
            if victims.iter().any(|n| !services[*n].is_running()) {
                return Ok(true);
            }
            match ledger.counts().acknowledged {
                now if now >= enough => Ok(false),
                now => Err(format!("{now} of {enough}; {}", services[0].last_words())),
            }
        })
        .await?;
        if self.victim == Victim::Broker {
            return self.broker_round(writers, report).await;
        }
        for n in &victims {
            let by_itself = died && !self.services[*n].is_running();
            let point = self.armed[*n].clone().filter(|_| by_itself);
            if by_itself && point.is_none() {
                return Err(format!(
                    "service{n} died: {}",
                    self.services[*n].last_words()
                ));
            }
            self.services[*n].kill();
            report.killed(point.as_deref());
        }
        if let Some(disk) = &self.disk {
            disk.freeze()?;
            disk.thaw()?;
        }
        writers.course(Course::Settle);
        let page = self.ledger.page();
        let mut copies = Vec::new();
        for n in &victims {
            let to = self.folder.join(format!("copy{n}"));
            let _ = std::fs::remove_dir_all(&to);
            copy(&self.services[*n].folder, &to).map_err(|why| why.to_string())?;
            copies.push(to);
        }
        for n in &victims {
            self.again(*n, report).await?;
        }
        let history = match &self.nats {
            Some(nats) => History::read_url(&nats.url()).await?,
            None => History::read_folder(&copies[0].join("log")).await?,
        };
        report.violated(check(&page, &history, false));
        for copy in copies {
            compare(&copy, &history, report);
        }
        Ok(())
    }

    /// Whoever may still end by itself is started again without arms: the clients must come to an end.
    async fn disarm(&mut self) -> Result<(), String> {
        for (service, armed) in self.services.iter_mut().zip(&mut self.armed) {
            if armed.take().is_some() {
                service.kill();
                service.up(None).await?;
            }
        }
        Ok(())
    }

    /// Which services are killed in this round.
    fn choose(&mut self) -> Vec<usize> {
        match self.victim {
            Victim::Embedded | Victim::Power => vec![0],
            Victim::Broker => Vec::new(),
            Victim::Service => match self.dice.u32(..5) {
                0 => vec![0, 1],
                one => vec![one as usize % 2],
            },
        }
    }

    /// Starts a killed service again: plainly, armed for the next round, or with a store that it cannot use.
    async fn again(&mut self, n: usize, report: &mut Report) -> Result<(), String> {
        let conf = self.services[n].folder.join("projection").join("conf");
        // One that was killed in its first moments has no store to damage.
        let length = std::fs::metadata(&conf).map_or(0, |conf| conf.len());
        if length > 0 && self.dice.u32(..12) == 0 {
            // Set aside, and killed before it is made anew.
            let garbage = vec![b'x'; usize::try_from(length).unwrap_or(0)];
            std::fs::write(conf, garbage).map_err(|why| why.to_string())?;
            self.services[n].start(Some(SET_ASIDE));
            let services = &mut self.services;
            reached("it ends at its crash point", PATIENCE, async || {
                if services[n].is_running() {
                    Err("it runs".to_owned())
                } else {
                    Ok(())
                }
            })
            .await?;
            report.killed(Some(SET_ASIDE));
        }
        let points = match self.victim {
            Victim::Service => POINTS,
            Victim::Embedded | Victim::Power => EMBEDDED_POINTS,
            Victim::Broker => &[],
        };
        let point = if points.is_empty() || self.dice.bool() {
            None
        } else {
            let name = points[self.dice.usize(..points.len())];
            Some(format!("{name}#{}", self.dice.u32(1..25)))
        };
        let (took, crashes) = self.services[n].up(point.as_deref()).await?;
        report.restarts.push(took);
        for _ in 0..crashes {
            report.killed(point.as_deref());
        }
        // One that crashed while it started runs without arms now.
        self.armed[n] = point.filter(|_| crashes == 0);
        Ok(())
    }

    async fn broker_round(&mut self, writers: &Writers, report: &mut Report) -> Result<(), String> {
        let nats = self.nats.as_mut().ok_or("no broker")?;
        nats.kill();
        report.killed(None);
        let page = self.ledger.page();
        let before = self.ledger.counts().acknowledged;
        let begun = std::time::Instant::now();
        nats.restart().map_err(|why| why.to_string())?;
        let ledger = Arc::clone(&self.ledger);
        reached(
            "a change is acknowledged again",
            PATIENCE,
            async || match ledger.counts().acknowledged {
                now if now > before => Ok(()),
                now => Err(format!("{now}")),
            },
        )
        .await?;
        report.restarts.push(begun.elapsed());
        writers.course(Course::Settle);
        let history = History::read_url(&nats.url()).await?;
        report.violated(check(&page, &history, false));
        Ok(())
    }

    /// Nobody writes any more: the log holds exactly what was acknowledged, and every store what the log says.
    async fn final_check(&mut self, report: &mut Report) -> Result<(), String> {
        let page = self.ledger.page();
        for service in &mut self.services {
            if service.is_running() {
                service.stop().await;
            }
        }
        let history = match &self.nats {
            Some(nats) => History::read_url(&nats.url()).await?,
            None => History::read_folder(&self.services[0].folder.join("log")).await?,
        };
        report.violated(check(&page, &history, true));
        let folders: Vec<PathBuf> = self.services.iter().map(|one| one.folder.clone()).collect();
        for folder in folders {
            compare(&folder, &history, report);
        }
        Ok(())
    }
}

fn cuts_are_possible() -> bool {
    let folder = TemporaryFolder::new();
    folder.is_ok_and(|folder| Disk::make(folder.path(), "try").is_some())
}

fn compare(folder: &Path, history: &History, report: &mut Report) {
    match compare_projection(folder, history) {
        Ok(Found::Same(_)) => report.compared += 1,
        Ok(Found::SetAside(why)) => report.set_aside.push(why),
        Err(words) => report.violation(format!("{}: {words}", folder.display())),
    }
}
