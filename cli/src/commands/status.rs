//! `status`: the fleet as its agents report it.

use std::collections::BTreeMap;

use schemas::api::FleetView;
use schemas::status::{ApplyState, FrontendStatus};

use crate::client::{Client, read};
use crate::output;
use crate::problem::Problem;

pub(crate) async fn run(client: &Client, json: bool) -> Result<(), Problem> {
    let answer = client.get(&["v1", "convergence"], &[]).await?;
    if json {
        output::print_json(&answer);
        return Ok(());
    }
    let fleet: FleetView = read(&answer)?;
    println!("service at position {}", fleet.position);
    if fleet.agents.is_empty() {
        output::note("no agent was heard of: start one beside each frontend (`router-agent run`)");
        return Ok(());
    }
    let mut rows = Vec::new();
    for agent in &fleet.agents {
        let status = &agent.status;
        let heard = if agent.stale {
            "STALE, silent for"
        } else {
            "heard"
        };
        let log = format!(
            "{} at {}{}",
            output::word(&status.log.state),
            status.log.position,
            status
                .log
                .error
                .as_ref()
                .map_or_else(String::new, |error| format!("\n{error}"))
        );
        let first = [
            format!("{}\n{heard} {}", status.agent, output::age(agent.silent_ms)),
            output::maybe(status.group.as_ref()),
            log,
        ];
        if status.frontends.is_empty() {
            let mut row = first.to_vec();
            row.extend(["-".to_owned(), "-".to_owned()]);
            rows.push(row);
        }
        for frontend in &status.frontends {
            let mut row = first.to_vec();
            row.extend([about(frontend), places(frontend)]);
            rows.push(row);
        }
    }
    output::table(
        &[
            "agent",
            "group",
            "log",
            "frontend",
            "routers and thresholds",
        ],
        rows,
    );
    Ok(())
}

fn about(frontend: &FrontendStatus) -> String {
    let mut lines = vec![
        frontend.frontend.to_string(),
        output::word(&frontend.capability),
    ];
    if !frontend.reachable {
        lines.push("UNREACHABLE".to_owned());
    }
    lines.extend(frontend.error.clone());
    lines.extend(
        frontend
            .rival
            .as_ref()
            .map(|rival| format!("RIVAL: {rival}")),
    );
    lines.join("\n")
}

fn places(frontend: &FrontendStatus) -> String {
    let routers = frontend.routers.iter().map(|router| {
        let name = format!("{} {}", router.router.model, router.router.worker_type);
        (name, router.state, router.error.clone(), router.drifts)
    });
    let thresholds = frontend.thresholds.iter().map(|one| {
        let name = format!("{} thresholds", one.model);
        (name, one.state, one.error.clone(), one.drifts)
    });
    let mut calm: BTreeMap<String, usize> = BTreeMap::new();
    let mut lines = Vec::new();
    for (name, state, error, drifts) in routers.chain(thresholds) {
        if state == ApplyState::Applied && drifts == 0 {
            *calm.entry(output::word(&state)).or_default() += 1;
            continue;
        }
        let mut line = format!("{name}: {}", output::word(&state));
        if drifts > 0 {
            line.push_str(&format!(", changed {drifts} times behind the agent's back"));
        }
        if let Some(error) = error {
            line.push_str(&format!(": {error}"));
        }
        lines.push(line);
    }
    let summary = calm.iter().map(|(state, count)| format!("{count} {state}"));
    summary.chain(lines).collect::<Vec<_>>().join("\n")
}
