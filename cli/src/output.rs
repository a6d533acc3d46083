//! What people and machines see. Results go to stdout, everything about them to stderr.

use comfy_table::{ContentArrangement, Table, presets};
use schemas::convergence::{Convergence, Outcome};
use schemas::{Overlay, Scope};
use serde_json::Value;

use crate::problem::Problem;

/// A result: JSON for machines, else what `people` makes of it.
pub(crate) fn result(json: bool, answer: &Value, people: impl FnOnce()) {
    if json {
        print_json(answer);
    } else {
        people();
    }
}

/// One JSON document on stdout.
pub(crate) fn print_json(answer: &Value) {
    println!("{answer:#}");
}

/// A remark beside the result.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// Why it did not work: for people on stderr; for machines as the service's own JSON, or as the same shape.
pub(crate) fn problem(problem: &Problem, json: bool) {
    if !json {
        eprintln!("router-policy: {problem}");
        return;
    }
    let body = match problem {
        Problem::Answered(body) | Problem::Stale(_, body) => {
            serde_json::to_value(body.as_ref()).ok()
        }
        Problem::Unknown { attempt, .. } => Some(serde_json::json!({
            "error": problem.to_string(), "code": "outcome_unknown", "outcome": "unknown",
            "command_id": attempt.key, "expected_revision": attempt.expected})),
        Problem::Unreachable { .. } => {
            Some(serde_json::json!({"error": problem.to_string(), "code": "unreachable"}))
        }
        // The result with the convergence was printed before.
        Problem::NotConverged(_) => None,
        Problem::Usage(_) | Problem::Failed(_) => {
            Some(serde_json::json!({"error": problem.to_string(), "code": "failed"}))
        }
    };
    if let Some(body) = body {
        print_json(&body);
    } else {
        eprintln!("router-policy: {problem}");
    }
}

/// A table with this head and these rows.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(head.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    println!("{table}");
}

/// A scope in words.
pub(crate) fn scope(scope: &Scope) -> String {
    scope.to_string().replace(',', "\n")
}

/// An overlay in words.
pub(crate) fn overlay(overlay: &Overlay) -> String {
    if overlay.is_empty() {
        return "(startup values)".to_owned();
    }
    let lines: Vec<String> = overlay
        .iter()
        .map(|(name, value)| format!("{name} = {}", value.as_json()))
        .collect();
    lines.join("\n")
}

/// A value that may be absent.
pub(crate) fn maybe<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// An age or a delay.
pub(crate) fn age(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} min", ms / 60_000),
    }
}

/// In one word, and whether it is what was hoped for.
pub(crate) fn outcome(convergence: &Convergence) -> Result<String, String> {
    let (applied, refused, pending, missing) = (
        convergence.applied.len(),
        convergence.refused.len(),
        convergence.pending.len(),
        convergence.missing.len(),
    );
    match convergence.outcome {
        Outcome::Converged => Ok(format!("converged: {applied} applied")),
        Outcome::Refused => Err(format!("refused by {refused}, applied by {applied}")),
        Outcome::Pending => Err(format!(
            "not converged yet: {applied} applied, {refused} refused, {pending} pending, {missing} not heard of"
        )),
        Outcome::NoRouter => {
            Err("no live router matches: it is kept, and applies to 0 routers".to_owned())
        }
    }
}

/// Every place that does not have it, and why.
pub(crate) fn laggards(convergence: &Convergence) {
    let places = convergence
        .refused
        .iter()
        .chain(&convergence.pending)
        .map(|place| {
            vec![
                place.frontend.to_string(),
                place.model.to_string(),
                maybe(place.worker_type.as_ref()),
                word(&place.state),
                place.error.clone().unwrap_or_default(),
            ]
        });
    let missing = convergence.missing.iter().map(|one| {
        vec![
            one.frontend
                .as_ref()
                .map_or_else(|| one.agent.to_string(), ToString::to_string),
            "-".to_owned(),
            "-".to_owned(),
            "missing".to_owned(),
            one.why.clone(),
        ]
    });
    let rows: Vec<Vec<String>> = places.chain(missing).collect();
    if !rows.is_empty() {
        table(&["frontend", "model", "role", "state", "why"], rows);
    }
}

/// A closed enum as it is called on the wire.
pub(crate) fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => text,
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_readable() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_250, "1.2 s"),
            (120_000, "2 min"),
        ] {
            assert_eq!(age(ms), text);
        }
    }
}
