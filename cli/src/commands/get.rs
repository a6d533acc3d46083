//! `get`: list policies, or show one.

use schemas::api::{PolicyList, PolicyView};

use crate::arguments::Get;
use crate::client::{Client, read};
use crate::output;
use crate::problem::Problem;

pub(crate) async fn run(options: Get, client: &Client, json: bool) -> Result<(), Problem> {
    let answer = match options.policy.id {
        Some(id) => {
            client
                .get(&["v1", "policies", &id.to_string()], &[])
                .await?
        }
        None => {
            client
                .get(&["v1", "policies"], &options.policy.query())
                .await?
        }
    };
    if json {
        output::print_json(&answer);
        return Ok(());
    }
    let policies: Vec<PolicyView> = match options.policy.id {
        Some(_) => vec![read(&answer)?],
        None => {
            let list: PolicyList = read(&answer)?;
            let any =
                |view: &PolicyView| !options.policy.any || view.scope == schemas::Scope::default();
            list.policies.into_iter().filter(any).collect()
        }
    };
    show(&policies);
    Ok(())
}

/// A table of policies.
pub(crate) fn show(policies: &[PolicyView]) {
    if policies.is_empty() {
        output::note("no policy: every router has its startup values");
        return;
    }
    let rows = policies
        .iter()
        .map(|policy| {
            let by = policy
                .actor
                .as_ref()
                .map_or_else(String::new, |actor| actor.to_string());
            let stopped = policy.stopped.as_ref().map_or_else(String::new, |stop| {
                format!("\nSTOPPED at position {}: {}", stop.position, stop.why)
            });
            vec![
                format!("{}\n{}", policy.kind, output::scope(&policy.scope)),
                policy.revision.to_string(),
                format!("{}{stopped}", output::overlay(&policy.parameters)),
                policy.routers.to_string(),
                format!("{by}\n{}", output::maybe(policy.changed_at.as_ref())),
                policy.id.to_string(),
            ]
        })
        .collect();
    output::table(
        &["policy", "revision", "values", "routers", "changed", "id"],
        rows,
    );
}
