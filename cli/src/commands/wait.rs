//! `wait`: until every addressed router has what is wanted.

use std::time::{Duration, Instant};

use schemas::api::PolicyList;
use schemas::convergence::Convergence;
use schemas::{PolicyId, PolicyKind};
use serde_json::Value;

use crate::arguments::Wait;
use crate::client::{Client, read};
use crate::output;
use crate::problem::Problem;

/// How often the service is asked. It answers from memory.
const ASK_EVERY: Duration = Duration::from_millis(250);

pub(crate) async fn run(options: Wait, client: &Client, json: bool) -> Result<(), Problem> {
    let started = Instant::now();
    let ids: Vec<PolicyId> = match options.policy.one_or_none(PolicyKind::WorkerSelection)? {
        Some(policy) => vec![policy.id()],
        None => {
            let all = client.get(&["v1", "policies"], &[]).await?;
            let list: PolicyList = read(&all)?;
            list.policies.iter().map(|policy| policy.id).collect()
        }
    };
    let mut answers: Vec<Value> = Vec::new();
    let mut open = Vec::new();
    for id in ids {
        let (answer, convergence) = one(id, &options, started, client).await?;
        answers.push(answer);
        if let Err(words) = output::outcome(&convergence) {
            if !json {
                output::laggards(&convergence);
            }
            open.push(format!("{id}: {words}"));
        }
    }
    if json {
        output::print_json(&Value::Array(answers.clone()));
    }
    if open.is_empty() {
        output::note(&format!("converged: {} policies", answers.len()));
        Ok(())
    } else {
        Err(Problem::NotConverged(open.join("\n")))
    }
}

/// Asks until the verdict is final, or time is up.
async fn one(
    id: PolicyId,
    options: &Wait,
    started: Instant,
    client: &Client,
) -> Result<(Value, Convergence), Problem> {
    let query = [
        ("policy", Some(id.to_string())),
        (
            "position",
            options.position.map(|position| position.to_string()),
        ),
    ];
    loop {
        let answer = client.get(&["v1", "convergence"], &query).await?;
        let convergence: Convergence = read(&answer)?;
        let time_is_up = started.elapsed() >= options.timeout;
        if convergence.outcome == schemas::convergence::Outcome::Converged || time_is_up {
            return Ok((answer, convergence));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
