//! `history` and `diff`: what one policy was.

use schemas::api::{Difference, HistoryPage};
use schemas::event::Action;
use schemas::{PolicyKind, Revision};
use serde_json::{Value, json};

use crate::arguments::{Diff, History};
use crate::client::{Client, read};
use crate::output;
use crate::problem::Problem;
use crate::select::current;

pub(crate) async fn history(
    options: History,
    client: &Client,
    as_json: bool,
) -> Result<(), Problem> {
    let id = options
        .policy
        .one(PolicyKind::WorkerSelection)?
        .id()
        .to_string();
    let path = ["v1", "policies", id.as_str(), "history"];
    let mut entries: Vec<Value> = Vec::new();
    let mut cursor = None;
    while entries.len() < options.limit {
        let limit = (options.limit - entries.len()).min(100).to_string();
        let query = [
            ("order", Some("newest".to_owned())),
            ("limit", Some(limit)),
            ("cursor", cursor),
        ];
        let page = client.get(&path, &query).await?;
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
    let page: HistoryPage = read(&all)?;
    let rows = page
        .entries
        .iter()
        .map(|entry| {
            vec![
                entry.revision.to_string(),
                action(&entry.action),
                output::overlay(&entry.parameters),
                format!("{}\n{}", entry.actor, entry.changed_at),
                entry
                    .reason
                    .as_ref()
                    .map_or_else(String::new, ToString::to_string),
                entry.position.to_string(),
            ]
        })
        .collect();
    output::table(
        &[
            "revision",
            "action",
            "values after",
            "by",
            "reason",
            "position",
        ],
        rows,
    );
    Ok(())
}

/// What was done, in one or a few words.
pub(crate) fn action(action: &Action) -> String {
    let forced = |patch: &schemas::Patch| {
        let parts: Vec<String> = patch
            .iter()
            .map(|(name, value)| match value {
                Some(value) => format!("{name} = {}", value.as_json()),
                None => format!("{name} removed"),
            })
            .collect();
        parts.join("\n")
    };
    match action {
        Action::Patched(patch) => forced(patch),
        Action::Reset => "reset".to_owned(),
        Action::RevertedTo(revision) => format!("reverted to {revision}"),
    }
}

pub(crate) async fn diff(options: Diff, client: &Client, json: bool) -> Result<(), Problem> {
    let policy = options.policy.one(PolicyKind::WorkerSelection)?;
    let to = match options.to {
        Some(to) => to,
        None => current(client, &policy)
            .await?
            .map_or(Revision(0), |(_, view)| view.revision),
    };
    let from = options.from.unwrap_or(Revision(to.0.saturating_sub(1)));
    let id = policy.id().to_string();
    let query = [
        ("from", Some(from.to_string())),
        ("to", Some(to.to_string())),
    ];
    let answer = client.get(&["v1", "policies", &id, "diff"], &query).await?;
    if json {
        output::print_json(&answer);
        return Ok(());
    }
    let difference: Difference = read(&answer)?;
    if difference.parameters.is_empty() {
        output::note(&format!("revisions {from} and {to} have the same values"));
        return Ok(());
    }
    let value = |value: &Option<schemas::ParameterValue>| {
        value.as_ref().map_or_else(
            || "(startup value)".to_owned(),
            |value| value.as_json().to_string(),
        )
    };
    let rows = difference
        .parameters
        .iter()
        .map(|(name, values)| vec![name.to_string(), value(&values.from), value(&values.to)])
        .collect();
    let (from, to) = (format!("revision {from}"), format!("revision {to}"));
    output::table(&["parameter", &from, &to], rows);
    Ok(())
}
