//! `adopt`: the documented way on after a log was lost, or put back to an older state, on purpose.

use serde_json::json;

use crate::arguments::Adopt;
use crate::client::chain;
use crate::output;
use crate::problem::Problem;

pub(crate) fn run(options: &Adopt, as_json: bool) -> Result<(), Problem> {
    let failed = |error: &dyn std::error::Error| {
        Problem::Failed(format!("{}: {}", options.data.display(), chain(error)))
    };
    let service = service::adopt(&options.data).map_err(|error| failed(&error))?;
    // `dev` keeps its agent's folder beside the service's.
    let agent_dir = options.data.join("agent");
    let agent = if agent_dir.is_dir() {
        router_agent::adopt(&agent_dir).map_err(|error| failed(&error))?
    } else {
        None
    };
    let moved: Vec<String> = [service, agent]
        .iter()
        .flatten()
        .map(|path| path.display().to_string())
        .collect();
    output::result(as_json, &json!({"set_aside": moved}), || {
        if moved.is_empty() {
            println!("there was nothing to set aside");
        }
        for path in &moved {
            println!("set aside: {path}");
        }
        println!("the next start takes whatever log is there");
    });
    Ok(())
}
