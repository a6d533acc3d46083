//! A soak: a whole fleet under a steady pace of changes and all faults at random; checked again and again.

pub mod course;
pub mod fleet;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::binaries::target;
use crate::crash::frontend::{MODEL, Values, listed, listed_thresholds, places, wanted_of};
use crate::crash::history::{Found, History, compare_copy, compare_projection};
use crate::crash::ledger::{Ledger, check};
use crate::crash::report::Report;
use crate::crash::writers::{Course as Order, Place, Writers};
use crate::proxy::Link;
use crate::wait::reached;
use course::Course;
use fleet::Fleet;

/// What a soak is.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long, without the final check.
    pub minutes: f64,
    /// Decides everything that is decided at random.
    pub seed: u64,
    /// Three nats-servers and three replicas instead of one.
    pub cluster: bool,
    /// No faults and no pauses: for measuring growth.
    pub calm: bool,
}

const PATIENCE: Duration = Duration::from_secs(120);
/// Between two checks of everything.
const CHECK_EVERY: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(5);

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
    println!("soak: {options:?}");
    let mut report = Report::new("soak");
    let folder = target().join("soak");
    // It may not exist yet.
    let _ = std::fs::remove_dir_all(&folder);
    if let Err(words) = runtime.block_on(soak(options, &folder, &mut report)) {
        report.violation(words);
    }
    report.print();
    if report.violations.none() {
        let _ = std::fs::remove_dir_all(&folder);
        println!("soak: 1 passed, 0 failed");
        true
    } else {
        println!("kept: {}", folder.display());
        println!("soak: 0 passed, 1 failed");
        false
    }
}

struct Soak {
    fleet: Fleet,
    startup: Vec<Values>,
    ledger: Arc<Ledger>,
    dice: fastrand::Rng,
    faults: BTreeMap<String, u64>,
    courses: Vec<Course>,
    begun: Instant,
    converged: Vec<Duration>,
}

async fn soak(options: &Options, folder: &Path, report: &mut Report) -> Result<(), String> {
    let fleet = Fleet::start(folder, options.cluster).await?;
    let mut startup = Vec::new();
    for frontend in &fleet.frontends {
        startup.push(listed(&frontend.http).await?);
    }
    let urls: Vec<String> = fleet.services.iter().map(|one| one.url()).collect();
    let ledger = Arc::new(Ledger::default());
    let mut all = places();
    all.extend((0..10).map(|n| Place::model(&format!("elsewhere-{n}"))));
    let pause = if options.calm { 0 } else { 150 };
    let pause = Duration::from_millis(pause);
    let writers = Writers::start(5, &urls, &all, &ledger, options.seed, pause);
    let mut soak = Soak {
        courses: courses(&fleet),
        fleet,
        startup,
        ledger: Arc::clone(&ledger),
        dice: fastrand::Rng::with_seed(options.seed),
        faults: BTreeMap::new(),
        begun: Instant::now(),
        converged: Vec::new(),
    };
    let end = Duration::from_secs_f64(options.minutes * 60.0);
    let mut outcome = Ok(());
    let mut checked = Instant::now();
    let mut looked = Instant::now();
    while soak.begun.elapsed() < end && outcome.is_ok() {
        if options.calm {
            tokio::time::sleep(Duration::from_millis(500)).await;
        } else {
            outcome = soak.fault().await;
        }
        if looked.elapsed() > LOOK_EVERY {
            looked = Instant::now();
            soak.look();
        }
        if checked.elapsed() > CHECK_EVERY {
            outcome = outcome.and(soak.check(&writers, report).await);
            checked = Instant::now();
            if !report.violations.none() {
                break;
            }
        }
    }
    if outcome.is_ok() {
        outcome = soak.check(&writers, report).await;
    }
    let strange = Arc::clone(&writers.strange);
    if !writers.end().await {
        outcome = outcome.and(Err("the clients did not come to an end".to_owned()));
    }
    report.told(ledger.counts());
    if let Some(words) = strange.lock().expect("no panic while held").pop() {
        outcome = outcome.and(Err(words));
    }
    soak.print(report);
    outcome?;
    soak.last_look(report).await
}

fn courses(fleet: &Fleet) -> Vec<Course> {
    let mut courses = Vec::new();
    for service in &fleet.services {
        courses.push(Course::new("service", Some(&service.folder)));
    }
    for agent in &fleet.agents {
        courses.push(Course::new("agent", Some(&agent.folder)));
    }
    for _ in &fleet.frontends {
        courses.push(Course::new("frontend", None));
    }
    for (n, _) in fleet.brokers.iter().enumerate() {
        let folder = fleet.folder.join("nats");
        courses.push(Course::new(
            "broker",
            (n == 0 && folder.exists()).then_some(folder.as_path()),
        ));
    }
    courses
}

impl Soak {
    fn look(&mut self) {
        let fleet = &self.fleet;
        let programs = fleet.services.iter().chain(&fleet.agents);
        let ids = programs.chain(&fleet.frontends).map(|one| one.id());
        let brokers = fleet.brokers.iter().map(|one| one.id());
        let ids: Vec<Option<u32>> = ids.chain(brokers).collect();
        let (at, changes) = (self.begun.elapsed(), self.ledger.counts().acknowledged);
        for (course, id) in self.courses.iter_mut().zip(ids) {
            course.look(at, changes, id);
        }
    }

    fn note(&mut self, fault: &str) {
        *self.faults.entry(fault.to_owned()).or_default() += 1;
    }

    /// One fault, and how long it lasts.
    async fn fault(&mut self) -> Result<(), String> {
        let lasts = Duration::from_millis(self.dice.u64(200..4_000));
        match self.dice.u32(..13) {
            0 | 1 => {
                self.note("service killed");
                let n = self.dice.usize(..self.fleet.services.len());
                self.fleet.services[n].kill();
                tokio::time::sleep(lasts / 4).await;
                self.fleet.services[n].start(None);
            }
            2 | 3 => {
                self.note("agent killed");
                let n = self.dice.usize(..self.fleet.agents.len());
                self.fleet.agents[n].kill();
                tokio::time::sleep(lasts / 4).await;
                self.fleet.agents[n].start(None);
            }
            4 => {
                self.note("broker killed");
                let n = self.dice.usize(..self.fleet.brokers.len());
                let broker = &mut self.fleet.brokers[n];
                broker.kill();
                tokio::time::sleep(lasts / 2).await;
                broker.restart().map_err(|why| why.to_string())?;
            }
            5 => {
                self.note("broker paused");
                let n = self.dice.usize(..self.fleet.brokers.len());
                let broker = &self.fleet.brokers[n];
                broker.pause().map_err(|why| why.to_string())?;
                tokio::time::sleep(lasts).await;
                broker.resume().map_err(|why| why.to_string())?;
            }
            6 => {
                self.note("service or agent paused");
                let fleet = &self.fleet;
                let all: Vec<u32> = (fleet.services.iter().chain(&fleet.agents))
                    .filter_map(|one| one.id())
                    .collect();
                if !all.is_empty() {
                    Fleet::pause(all[self.dice.usize(..all.len())], lasts).await;
                }
            }
            7 => {
                self.note("frontend restarted, its router made anew");
                let n = self.dice.usize(..self.fleet.frontends.len());
                self.fleet.frontends[n].kill();
                tokio::time::sleep(lasts / 8).await;
                self.fleet.frontends[n].start(None);
            }
            8 => {
                self.note("frontend changed behind the agent's back");
                let n = self.dice.usize(..self.fleet.frontends.len());
                let http = self.fleet.frontends[n].http.clone();
                if let Ok(list) = http.get("/router_policy").await {
                    let router = &list.json["routers"][0];
                    let body = json!({"router_id": router["router_id"],
                        "expected_revision": router["configuration"]["revision"],
                        "parameters": {"router_temperature": 0.987}});
                    // One that is just restarting cannot be changed.
                    let _ = http.patch("/router_policy", &body).await;
                }
            }
            _ => self.link(lasts).await,
        }
        let rest = Duration::from_millis(self.dice.u64(100..1_500));
        tokio::time::sleep(rest).await;
        Ok(())
    }

    async fn link(&mut self, lasts: Duration) {
        if self.fleet.links.is_empty() {
            return;
        }
        let (link, name) = match self.dice.u32(..4) {
            0 => (Link::Cut, "link cut"),
            1 => (Link::Deaf, "link cut one way (to the target)"),
            2 => (Link::Mute, "link cut one way (from the target)"),
            _ => (Link::Slow(Duration::from_millis(120)), "link slow"),
        };
        self.note(name);
        let n = self.dice.usize(..self.fleet.links.len());
        self.fleet.links[n].1.set(link);
        // Another fault may come while this one lasts; long ones are healed by the next check.
        if self.dice.u32(..4) > 0 {
            tokio::time::sleep(lasts).await;
            self.fleet.links[n].1.set(Link::Open);
        }
    }

    /// Heals, lets the clients find out about everything, and compares log, ledger and every frontend.
    async fn check(&mut self, writers: &Writers, report: &mut Report) -> Result<(), String> {
        let healed = Instant::now();
        self.fleet.heal().await?;
        writers.course(Order::Settle);
        reached("the clients are idle", PATIENCE, async || {
            let open = self.ledger.counts().open;
            writers
                .are_idle()
                .then_some(())
                .ok_or(format!("{open} open"))
        })
        .await?;
        let page = self.ledger.page();
        let history = reached("the log can be read", PATIENCE, async || {
            History::read_url(&self.fleet.log).await
        })
        .await?;
        report.violated(check(&page, &history, true));
        for (frontend, startup) in self.fleet.frontends.iter().zip(&self.startup) {
            let (parameters, thresholds) = wanted_of(startup, &history);
            let what = format!("{} has the effective policy", frontend.url());
            reached(&what, PATIENCE, async || {
                let has = listed(&frontend.http).await?;
                if has != parameters {
                    return Err(format!("{has:?}, not {parameters:?}"));
                }
                // What no policy names is off, or switched off by a value: the same in effect.
                let has = listed_thresholds(&frontend.http).await.unwrap_or_default();
                match thresholds
                    .iter()
                    .find(|(name, value)| has.get(*name) != Some(value))
                {
                    None => Ok(()),
                    Some(missing) => Err(format!("{has:?}, without {missing:?}")),
                }
            })
            .await?;
            report.compared += 1;
        }
        self.converged.push(healed.elapsed());
        writers.course(Order::Go);
        Ok(())
    }

    /// Everything is stopped; every store holds what the log says.
    async fn last_look(&mut self, report: &mut Report) -> Result<(), String> {
        let history = History::read_url(&self.fleet.log).await?;
        let fleet = &mut self.fleet;
        for program in fleet.services.iter_mut().chain(&mut fleet.agents) {
            program.stop().await;
        }
        let services = fleet
            .services
            .iter()
            .map(|one| compare_projection(&one.folder, &history));
        let agents = fleet
            .agents
            .iter()
            .map(|one| compare_copy(&one.folder, &history));
        for compared in services.chain(agents).collect::<Vec<_>>() {
            match compared {
                Ok(Found::Same(position)) if position == history.state.position => {
                    report.compared += 1;
                }
                Ok(Found::Same(position)) => report.violation(format!(
                    "a store ended at {position}, the log at {}",
                    history.state.position
                )),
                Ok(Found::SetAside(why)) => report.set_aside.push(why),
                Err(words) => report.violation(words),
            }
        }
        Ok(())
    }

    fn print(&mut self, report: &Report) {
        let counts = report.counts;
        println!(
            "soak: {:.1} minutes on {MODEL}; operations: {} acknowledged, {} refused, {} open",
            self.begun.elapsed().as_secs_f64() / 60.0,
            counts.acknowledged,
            counts.refused,
            counts.open
        );
        println!("faults:");
        for (fault, count) in &self.faults {
            println!("  {count:>4} x {fault}");
        }
        self.converged.sort_unstable();
        let ms = |time: Option<&Duration>| time.map_or(0, Duration::as_millis);
        println!(
            "converged after healing: {} times, median {} ms, worst {} ms (finding out about open changes included)",
            self.converged.len(),
            ms(self.converged.get(self.converged.len() / 2)),
            ms(self.converged.last())
        );
        println!(
            "first, middle, last; slopes are least squares over this run, extrapolated to a million changes:"
        );
        for course in &self.courses {
            course.print();
        }
        println!("course (minute, memory MiB / files KiB):");
        for course in &self.courses {
            course.print_course();
        }
    }
}
