//! The demo fleet of `dev`: three reference frontends in this process, an agent for each, gentle traffic, and a view of it.
//!
//! Owns: them, and their end. Never does: change a policy.

mod view;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use event_log::{ReaderWiring, Wiring};
use router_agent::frontend::traffic::Traffic;
use router_agent::frontend::{Counts, ModelPlan, Reference, RolePlan};
use scheduler::busy::Thresholds;
use scheduler::dynamo::WorkerId;
use scheduler::facade;
use schemas::{AgentId, Endpoint, FrontendId, Name, WorkerType};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior};

use crate::client::chain;
use crate::problem::Problem;
use view::{Live, Row, Seen, View};

/// How many frontends.
pub(crate) const FRONTENDS: usize = 3;
/// What they all host.
pub(crate) const MODEL: &str = "demo-model";
/// How often the view is drawn.
const PERIOD: Duration = Duration::from_secs(1);

struct Member {
    name: String,
    frontend: Arc<Reference>,
    address: SocketAddr,
    agent: router_agent::Running,
}

/// What runs.
pub(crate) struct Demo {
    members: Vec<Member>,
}

fn failed(what: &str, why: &dyn std::error::Error) -> Problem {
    Problem::Failed(format!("{what}: {}", chain(why)))
}

impl Demo {
    /// Starts everything. The agents' folders are under `data`, so that a restart begins with the policy in place.
    pub(crate) async fn start(
        data: &Path,
        group: Option<&Name>,
        wiring: &Wiring,
    ) -> Result<Demo, Problem> {
        let mut members = Vec::new();
        for number in 1..=FRONTENDS {
            members.push(member(number, data, group, wiring).await?);
        }
        Ok(Demo { members })
    }

    /// Where each frontend listens.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let line = |one: &Member| format!("{} http://{}", one.name, one.address);
        self.members.iter().map(line).collect()
    }

    /// Draws once a second, for as long as it is polled and somebody reads.
    pub(crate) async fn show(&self) {
        let mut view = View::new(std::io::stdout().is_terminal());
        let mut resized = signal(SignalKind::window_change()).ok();
        let mut tick = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut before: Vec<Seen> = self.members.iter().map(seen).collect();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = change(&mut resized) => {
                    view.disturb();
                    continue;
                }
            }
            let now: Vec<Seen> = self.members.iter().map(seen).collect();
            let mut rows = Vec::new();
            for (member, (now, before)) in self.members.iter().zip(now.iter().zip(&before)) {
                rows.push(Row {
                    name: &member.name,
                    counts: since(now, before),
                    router: router(&member.frontend).await,
                });
            }
            before = now;
            if crate::serve::LOGGED.swap(false, Ordering::Relaxed) {
                view.disturb();
            }
            if !write(&view.draw(&rows)) {
                // Nobody reads any more; the demo itself goes on.
                return std::future::pending().await;
            }
        }
    }

    /// Ends agents first, so that no frontend is missed.
    pub(crate) async fn stop(self) {
        for member in self.members {
            let stopped = (member.agent.stop().await, member.frontend.stop().await);
            if stopped != (true, true) {
                tracing::warn!(frontend = member.name, "some tasks did not stop in time");
            }
        }
    }
}

async fn member(
    number: usize,
    data: &Path,
    group: Option<&Name>,
    wiring: &Wiring,
) -> Result<Member, Problem> {
    let name = format!("demo-{number}");
    let bad = |why: &dyn std::error::Error| failed("the demo does not start", why);
    let model = Name::new(MODEL).map_err(|why| bad(&why))?;
    let endpoint: Endpoint = "dynamo/backend/generate".parse().map_err(|why| bad(&why))?;
    let frontend = Reference::new(Thresholds::default());
    let workers = RolePlan::new(WorkerType::Aggregated, endpoint);
    let hosted = frontend.host(&ModelPlan::new(model.clone(), vec![workers]));
    hosted.map_err(|why| bad(&why))?;
    let switch = std::env::var(facade::ADMIN_SWITCH).ok();
    let disabled = facade::is_disabled(switch.as_deref());
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let listening = frontend.listen(anywhere, disabled).await;
    let address = listening.map_err(|why| bad(&why))?;
    let id: FrontendId = name.parse().map_err(|why| bad(&why))?;
    let agent: AgentId = format!("agent-{name}").parse().map_err(|why| bad(&why))?;
    let looked_after = router_agent::Frontend {
        id,
        target: Arc::new(frontend.target()),
    };
    let folder = data.join("demo").join(&name);
    let config = router_agent::Config {
        agent: Some(agent),
        group: group.cloned(),
        ..router_agent::Config::new(folder, vec![looked_after])
    };
    let reading = ReaderWiring {
        log: wiring.log.clone(),
        board: wiring.board.clone(),
    };
    let agent = router_agent::start(config, reading).await;
    let agent = agent.map_err(|why| failed("an agent of the demo does not start", &why))?;
    Traffic::gentle(model).start(&frontend);
    Ok(Member {
        name,
        frontend,
        address,
        agent,
    })
}

/// The terminal has another size; never, when that cannot be told.
async fn change(resized: &mut Option<Signal>) {
    match resized {
        Some(resized) => drop(resized.recv().await),
        None => std::future::pending().await,
    }
}

fn seen(member: &Member) -> Seen {
    let all = member.frontend.counts().into_iter();
    all.map(|one| (one.worker, one.counts)).collect()
}

/// What each worker did between two looks.
fn since(now: &Seen, before: &Seen) -> Seen {
    let one = |(id, now): (&WorkerId, &Counts)| {
        let before = before.get(id).copied().unwrap_or_default();
        let counts = Counts {
            requests: now.requests.saturating_sub(before.requests),
            prompt_blocks: now.prompt_blocks.saturating_sub(before.prompt_blocks),
            hit_blocks: now.hit_blocks.saturating_sub(before.hit_blocks),
        };
        (*id, counts)
    };
    now.iter().map(one).collect()
}

/// What the router selects with, as the scheduler itself reports it.
async fn router(frontend: &Reference) -> Result<Live, &'static str> {
    let found = frontend.target().routers.list(None).into_iter().next();
    let router = found.ok_or("no router")?;
    match router.control.read(facade::PATIENCE).await {
        Ok(Some(live)) => Ok(Live {
            temperature: live.parameters.number("router_temperature"),
            credit: live.parameters.number("overlap_score_credit"),
            revision: live.revision.0,
        }),
        Ok(None) | Err(_) => Err("the scheduler does not answer"),
    }
}

/// False when nobody reads.
fn write(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_since_the_last_look_is_shown() {
        let counts = |requests, prompt_blocks, hit_blocks| Counts {
            requests,
            prompt_blocks,
            hit_blocks,
        };
        let before = Seen::from([(0, counts(10, 100, 50))]);
        let now = Seen::from([(0, counts(13, 130, 80)), (1, counts(2, 20, 5))]);
        let wanted = Seen::from([(0, counts(3, 30, 30)), (1, counts(2, 20, 5))]);
        assert_eq!(since(&now, &before), wanted);
    }
}
