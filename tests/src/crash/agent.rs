//! An agent beside a frontend, killed while policies and thresholds change. Afterwards the frontend has exactly the effective
//! policy over its own startup values, and what was applied once never went back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_log::ambient::Tasks;
use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions};
use reqwest::Method;
use serde_json::{Value, json};

use super::frontend::{MODEL, Startup, converged, listed, listed_thresholds, places};
use super::history::{Found, History, compare_copy};
use super::ledger::{Ledger, check};
use super::program::{Program, copy};
use super::report::Report;
use super::writers::{Course, Writers};
use crate::binaries::target;
use crate::http::Http;
use crate::wait::reached;

/// The parameter that only ever rises, while everything else goes up and down.
const RISING: &str = "prefill_load_scale";
/// Bound: rounds on one stage.
const ROUNDS_MAX: u64 = 12;
const PATIENCE: Duration = Duration::from_secs(60);
const POINTS: &[&str] = &[
    "agent.remembered",
    "agent.applied",
    "agent.thresholds_remembered",
    "agent.thresholds_set",
    "replica.before_keep",
    "replica.kept",
];
const NAMED: &str = "agent.named#1";
const SET_ASIDE: &str = "agent.set_aside#1";

/// Kills until `rounds` are over.
pub async fn run(rounds: u64, seed: u64) -> Report {
    let mut report = Report::new("agent");
    let (mut stage, mut left) = (0, rounds);
    while left > 0 {
        stage += 1;
        let part = left.min(ROUNDS_MAX);
        left -= part;
        let folder = target().join("crash").join(format!("agent-{stage}"));
        // It may not exist yet.
        let _ = std::fs::remove_dir_all(&folder);
        let dice = fastrand::Rng::with_seed(seed.wrapping_add(stage));
        let found = report.violations.words.len();
        if let Err(words) = on_stage(&folder, part, dice, &mut report).await {
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

struct Stage {
    folder: PathBuf,
    nats: NatsServer,
    agent: Program,
    frontend: Http,
    service: Http,
    startup: Startup,
    ledger: Arc<Ledger>,
    dice: fastrand::Rng,
    armed: Option<String>,
}

async fn on_stage(
    folder: &Path,
    rounds: u64,
    mut dice: fastrand::Rng,
    report: &mut Report,
) -> Result<(), String> {
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
    let mut agent = Program::agent("agent", folder, &nats.url(), &[frontend.url()]);
    let first = dice.bool().then_some(NAMED);
    let (took, crashes) = agent.up(first).await?;
    report.restarts.push(took);
    for _ in 0..crashes {
        report.killed(first);
    }
    let ledger = Arc::new(Ledger::default());
    let seed = dice.u64(..);
    let urls = [service.url()];
    let pause = Duration::from_millis(15);
    let writers = Writers::start(3, &urls, &places(), &ledger, seed, pause);
    let watchers = Tasks::new();
    let fell = Arc::new(std::sync::Mutex::new(None));
    watchers.start("rising", rising(service.http.clone(), watchers.stopping()));
    watchers.start(
        "watch",
        watch(
            frontend.http.clone(),
            Arc::clone(&fell),
            watchers.stopping(),
        ),
    );
    let mut stage = Stage {
        folder: folder.to_owned(),
        nats,
        agent,
        frontend: frontend.http.clone(),
        service: service.http.clone(),
        startup,
        ledger: Arc::clone(&ledger),
        dice,
        armed: None,
    };
    let mut outcome = Ok(());
    let before = report.violations.words.len();
    for _ in 0..rounds {
        outcome = stage.round(&writers, report).await;
        let strange = writers.strange.lock().expect("no panic while held").pop();
        if let Some(words) = strange {
            outcome = outcome.and(Err(words));
        }
        if let Some(words) = fell.lock().expect("no panic while held").take() {
            outcome = outcome.and(Err(words));
        }
        if outcome.is_err() || report.violations.words.len() > before {
            break;
        }
    }
    if !writers.end().await || !watchers.stop(PATIENCE).await {
        outcome = outcome.and(Err("the clients did not come to an end".to_owned()));
    }
    report.told(ledger.counts());
    outcome?;
    stage.last_look(&service.http, report).await
}

impl Stage {
    async fn round(&mut self, writers: &Writers, report: &mut Report) -> Result<(), String> {
        writers.course(Course::Go);
        let base = self.ledger.counts().acknowledged;
        let enough = base
            + match self.armed {
                Some(_) => 150,
                None => self.dice.u64(2..30),
            };
        let (ledger, agent) = (Arc::clone(&self.ledger), &mut self.agent);
        reached("enough changes are acknowledged", PATIENCE, async || {
            if !agent.is_running() {
                return Ok(());
            }
            match ledger.counts().acknowledged {
                now if now >= enough => Ok(()),
                now => Err(format!("{now} of {enough}")),
            }
        })
        .await?;
        let by_itself = !self.agent.is_running();
        let point = self.armed.take().filter(|_| by_itself);
        if by_itself && point.is_none() {
            return Err(format!("the agent died: {}", self.agent.last_words()));
        }
        self.agent.kill();
        report.killed(point.as_deref());
        let to = self.folder.join("copy");
        // It may not exist yet.
        let _ = std::fs::remove_dir_all(&to);
        copy(&self.agent.folder, &to).map_err(|why| why.to_string())?;
        if self.dice.bool() {
            // Changes go on while it is away, or all that it knows is from before.
            writers.course(Course::Settle);
        }
        self.again(report).await?;
        writers.course(Course::Settle);
        reached("the clients are idle", PATIENCE, async || {
            if writers.are_idle() {
                Ok(())
            } else {
                Err("not yet".to_owned())
            }
        })
        .await?;
        self.judge(&to, report).await
    }

    async fn judge(&mut self, copied: &Path, report: &mut Report) -> Result<(), String> {
        let page = self.ledger.page();
        let agent = &mut self.agent;
        let (frontend, startup) = (&self.frontend, &self.startup);
        let url = self.nats.url();
        // The rising parameter goes on; the log and the frontend are looked at together until they agree.
        let mut last = None;
        reached(
            "the frontend has the effective policy",
            PATIENCE,
            async || {
                if !agent.is_running() {
                    // At its crash point, which came late.
                    return Ok(());
                }
                let history = History::read_url(&url).await?;
                let (mut parameters, thresholds) = startup.with(&history, None);
                let mut has = listed(frontend).await?;
                last = Some(history);
                parameters.remove(RISING);
                has.remove(RISING);
                let has_thresholds = listed_thresholds(frontend).await?;
                if has == parameters && has_thresholds == thresholds {
                    Ok(())
                } else {
                    Err(format!(
                        "{has:?} {has_thresholds:?}, not {parameters:?} {thresholds:?}"
                    ))
                }
            },
        )
        .await?;
        self.no_drift().await?;
        let history = match last {
            Some(history) => history,
            None => History::read_url(&url).await?,
        };
        let mut found = check(&page, &history, false);
        // The rising parameter's changes are nobody's in the ledger.
        found
            .words
            .retain(|words| !words.contains("never asked for"));
        report.violated(found);
        match compare_copy(copied, &history) {
            Ok(Found::Same(_)) => report.compared += 1,
            Ok(Found::SetAside(why)) => report.set_aside.push(why),
            Err(words) => report.violation(format!("{}: {words}", copied.display())),
        }
        Ok(())
    }

    /// Nobody touched the frontend but the agent: what it did itself before it was killed is not somebody else's.
    async fn no_drift(&self) -> Result<(), String> {
        let fleet = self.service.get("/v1/convergence").await?;
        for agent in fleet.json["agents"].as_array().into_iter().flatten() {
            for frontend in agent["frontends"].as_array().into_iter().flatten() {
                for list in ["routers", "thresholds"] {
                    for one in frontend[list].as_array().into_iter().flatten() {
                        if one["drifts"] != 0 {
                            return Err(format!("the agent takes its own change for drift: {one}"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn again(&mut self, report: &mut Report) -> Result<(), String> {
        let conf = self.agent.folder.join("replica").join("conf");
        // One that was killed in its first moments has no store to damage.
        let length = std::fs::metadata(&conf).map_or(0, |conf| conf.len());
        if length > 0 && self.dice.u32(..12) == 0 {
            let garbage = vec![b'x'; usize::try_from(length).unwrap_or(0)];
            std::fs::write(conf, garbage).map_err(|why| why.to_string())?;
            self.agent.start(Some(SET_ASIDE));
            let agent = &mut self.agent;
            reached("it ends at its crash point", PATIENCE, async || {
                if agent.is_running() {
                    Err("it runs".to_owned())
                } else {
                    Ok(())
                }
            })
            .await?;
            report.killed(Some(SET_ASIDE));
        }
        let point = self.dice.bool().then(|| {
            let name = POINTS[self.dice.usize(..POINTS.len())];
            format!("{name}#{}", self.dice.u32(1..6))
        });
        let (took, crashes) = self.agent.up(point.as_deref()).await?;
        report.restarts.push(took);
        for _ in 0..crashes {
            report.killed(point.as_deref());
        }
        self.armed = point.filter(|_| crashes == 0);
        Ok(())
    }

    /// Everything is reset: the frontend is what it was before the agent met it.
    async fn last_look(&mut self, service: &Http, report: &mut Report) -> Result<(), String> {
        if self.armed.take().is_some() || !self.agent.is_running() {
            self.agent.kill();
            self.agent.up(None).await?;
        }
        reached("every policy is reset", PATIENCE, async || {
            let all = service.get("/v1/policies").await?;
            let policies = all.json["policies"].as_array().ok_or("no policies")?;
            let changes: Vec<Value> = policies
                .iter()
                .map(|policy| {
                    json!({"kind": policy["kind"], "scope": policy["scope"], "reset": true,
                    "expected_revision": policy["revision"]})
                })
                .collect();
            let body = json!({"changes": changes});
            match service.post("/v1/changes", &body).await? {
                done if done.status == 200 => Ok(()),
                other => Err(other.text),
            }
        })
        .await?;
        let history = History::read_url(&self.nats.url()).await?;
        converged(&self.frontend, &self.startup, &history, None).await?;
        report.compared += 1;
        Ok(())
    }
}

/// Sets the rising parameter, always higher, until told to stop.
async fn rising(service: Http, stop: tokio_util::sync::CancellationToken) {
    // A policy of its own: others are reset.
    let scope = json!({"model": MODEL, "worker_type": "aggregated"});
    let mut value = 1.0;
    while !stop.is_cancelled() {
        value += 0.001;
        let body = json!({"reason": "rising", "changes": [
            {"kind": "worker_selection", "scope": scope, "parameters": { RISING: value }}]});
        let headers = [("content-type", "application/json")];
        let sent = Some(body.to_string().into_bytes());
        // One that fails is followed by a higher one.
        let _ = service
            .send(Method::POST, "/v1/changes", &headers, sent)
            .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Looks whether the rising parameter ever falls.
async fn watch(
    frontend: Http,
    fell: Arc<std::sync::Mutex<Option<String>>>,
    stop: tokio_util::sync::CancellationToken,
) {
    let mut highest = 0.0;
    while !stop.is_cancelled() {
        if let Ok(has) = listed(&frontend).await
            && let Some(now) = has.get(RISING)
        {
            if *now < highest {
                let words = format!("{RISING} went back from {highest} to {now}");
                *fell.lock().expect("no panic while held") = Some(words);
            }
            highest = f64::max(highest, *now);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
