//! `audit`: every record of the log, with what became of it.

use schemas::api::{AuditEntry, AuditPage};
use schemas::state::Verdict;
use serde_json::{Value, json};

use super::history::action;
use crate::arguments::Audit;
use crate::client::{Client, read};
use crate::output;
use crate::problem::Problem;

pub(crate) async fn run(options: Audit, client: &Client, as_json: bool) -> Result<(), Problem> {
    let order = if options.oldest { "oldest" } else { "newest" };
    let mut query = options.policy.query();
    query.extend([
        ("policy", options.policy.id.map(|id| id.to_string())),
        ("actor", options.actor.as_ref().map(ToString::to_string)),
        ("command_id", options.command.map(|id| id.to_string())),
        ("since", options.since.map(|at| at.to_string())),
        ("until", options.until.map(|at| at.to_string())),
        ("order", Some(order.to_owned())),
    ]);
    let mut entries: Vec<Value> = Vec::new();
    let mut cursor: Option<String> = None;
    while entries.len() < options.limit {
        let mut page_query = query.clone();
        let limit = (options.limit - entries.len()).min(100);
        page_query.push(("limit", Some(limit.to_string())));
        page_query.push(("cursor", cursor));
        let page = client.get(&["v1", "audit"], &page_query).await?;
        entries.extend(page["entries"].as_array().into_iter().flatten().cloned());
        cursor = page["next_cursor"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    let all = json!({"entries": entries, "next_cursor": cursor});
    if as_json {
        output::print_json(&all);
        return Ok(());
    }
    let page: AuditPage = read(&all)?;
    output::table(
        &["position", "when", "who", "what", "reason"],
        page.entries.iter().map(row).collect(),
    );
    Ok(())
}

/// One record as a row.
pub(crate) fn row(entry: &AuditEntry) -> Vec<String> {
    let mut what: Vec<String> = entry
        .changes
        .iter()
        .map(|change| {
            let forced = if entry.forced { " (forced)" } else { "" };
            let scope = change.scope.to_string();
            format!(
                "{} {scope} -> revision {}{forced}\n{}",
                change.kind,
                change.revision,
                action(&change.action)
            )
        })
        .collect();
    if let Some(name) = &entry.parameter {
        what.push(format!("parameter {name} registered"));
    }
    match &entry.verdict {
        Verdict::Accepted { chained: true } => {}
        Verdict::Accepted { chained: false } => {
            what.push("ACCEPTED, BUT NOT CHAINED to the record before it".to_owned());
        }
        Verdict::Void { why } => what.push(format!("VOID: {why}")),
        Verdict::Unreadable { why } => what.push(format!("UNREADABLE: {why}")),
    }
    vec![
        entry.position.to_string(),
        output::maybe(entry.at.as_ref()),
        output::maybe(entry.actor.as_ref()),
        what.join("\n"),
        entry
            .reason
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
    ]
}
