//! The demo fleet of `dev`: three reference frontends in this process, an agent for each, gentle traffic, and a view of it.
//!
//! Owns: them, and their end. Never does: change a policy.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use event_log::{ReaderWiring, Wiring};
use router_agent::frontend::traffic::Traffic;
use router_agent::frontend::{Counts, ModelPlan, Reference};
use scheduler::busy::Thresholds;
use scheduler::dynamo::WorkerId;
use scheduler::facade;
use schemas::{AgentId, Endpoint, FrontendId, Name};
use tokio::time::{Instant, MissedTickBehavior};

use crate::client::chain;
use crate::problem::Problem;

/// How many frontends.
pub(crate) const FRONTENDS: usize = 3;
/// What they all host.
pub(crate) const MODEL: &str = "demo-model";
/// How often the view is drawn.
const PERIOD: Duration = Duration::from_secs(1);
/// A few values that a newcomer may change are shown with the numbers that they move.
const SHOWN: [(&str, &str); 2] = [
    ("router_temperature", "temperature"),
    ("overlap_score_credit", "credit"),
];

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
        let redraws = std::io::stdout().is_terminal();
        let mut tick = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut before: Vec<Seen> = self.members.iter().map(seen).collect();
        let mut drawn = 0;
        loop {
            tick.tick().await;
            let now: Vec<Seen> = self.members.iter().map(seen).collect();
            let mut lines = Vec::new();
            for (member, (now, before)) in self.members.iter().zip(now.iter().zip(&before)) {
                let values = values(&member.frontend).await;
                lines.push(line(&member.name, &since(now, before), &values));
            }
            before = now;
            if !draw(&lines, if redraws { drawn } else { 0 }) {
                // Nobody reads any more; the demo itself goes on.
                return std::future::pending().await;
            }
            drawn = lines.len();
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
    let hosted = frontend.host(&ModelPlan::new(model.clone(), endpoint));
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

type Seen = BTreeMap<WorkerId, Counts>;

fn seen(member: &Member) -> Seen {
    let all = member.frontend.counts().into_values();
    all.flatten().collect()
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

/// The router's revision and the shown values, as the scheduler itself reports them.
async fn values(frontend: &Reference) -> String {
    let Some(router) = frontend.target().routers.list(None).into_iter().next() else {
        return "no router".to_owned();
    };
    match router.control.read(facade::PATIENCE).await {
        Ok(Some(live)) => {
            let value =
                |(name, label): (&str, &str)| format!("{label} {}", live.parameters.number(name));
            let values = SHOWN.map(value).join("  ");
            format!("{values}  revision {}", live.revision.0)
        }
        Ok(None) | Err(_) => "the scheduler does not answer".to_owned(),
    }
}

fn percent(part: u64, whole: u64) -> String {
    match (part * 100 + whole / 2).checked_div(whole) {
        Some(percent) => format!("{percent:3} %"),
        None => "  - %".to_owned(),
    }
}

fn line(name: &str, counts: &Seen, values: &str) -> String {
    let sum = |value: fn(&Counts) -> u64| counts.values().map(value).sum::<u64>();
    let requests = sum(|one| one.requests);
    let shares: Vec<String> = counts
        .iter()
        .map(|(id, one)| format!("w{id} {}", percent(one.requests, requests)))
        .collect();
    let hits = percent(sum(|one| one.hit_blocks), sum(|one| one.prompt_blocks));
    format!(
        "{name}  {}   KV hits {hits}   {requests:3}/s   {values}",
        shares.join("  ")
    )
}

/// Over the last `drawn` lines. False when nobody reads.
fn draw(lines: &[String], drawn: usize) -> bool {
    let mut out = std::io::stdout().lock();
    let up = if drawn > 0 {
        format!("\x1b[{drawn}A\x1b[J")
    } else {
        String::new()
    };
    let text = format!("{up}{}\n", lines.join("\n"));
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_shares_of_the_last_second() {
        let counts = |requests, prompt_blocks, hit_blocks| Counts {
            requests,
            prompt_blocks,
            hit_blocks,
        };
        let before = Seen::from([(0, counts(10, 100, 50)), (1, counts(1, 10, 0))]);
        let now = Seen::from([(0, counts(13, 130, 80)), (1, counts(2, 20, 5))]);
        let shown = line("demo-1", &since(&now, &before), "revision 0");
        let wanted = "demo-1  w0  75 %  w1  25 %   KV hits  88 %     4/s   revision 0";
        assert_eq!(shown, wanted);
        let idle = line("demo-1", &since(&now, &now), "");
        assert!(
            idle.contains("w0   - %") && idle.contains("hits   - %"),
            "{idle}"
        );
    }
}
