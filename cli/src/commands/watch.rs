//! `watch`: changes as they happen, each exactly once, through restarts of the service.

use std::time::Duration;

use futures::StreamExt as _;
use schemas::api::{ErrorCode, HeadView, Line};
use schemas::state::Verdict;
use serde_json::Value;

use crate::arguments::Watch;
use crate::client::{Client, chain, read};
use crate::output;
use crate::problem::Problem;

const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Bound: the pause before the next try, which doubles while nothing comes.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(8);
/// Bound: one line of the stream. Records are at most some 100 KiB.
const LINE_BYTES_MAX: usize = 4 << 20;

pub(crate) async fn run(options: Watch, client: &Client, json: bool) -> Result<(), Problem> {
    let head: HeadView = read(&client.get(&["v1", "log", "head"], &[]).await?)?;
    let mut after = options.after.unwrap_or(head.position.0);
    let mut left = options.count;
    let mut pause = AGAIN_AFTER / 2;
    loop {
        let before = after;
        let query = [
            ("after", Some(after.to_string())),
            ("format", Some("ndjson".to_owned())),
            ("log_id", Some(head.log_id.to_string())),
        ];
        let why = match client.lines(&["v1", "events"], &query).await {
            Ok(response) => {
                let mut show = |line: &[u8]| show(line, json, &mut after, &mut left);
                match follow(response, &mut show).await? {
                    Some(why) => why,
                    None => return Ok(()),
                }
            }
            Err(problem) => passing(problem)?,
        };
        // A stream that brought something starts the pauses anew.
        pause = if after > before {
            AGAIN_AFTER
        } else {
            (pause * 2).min(AGAIN_AFTER_MAX)
        };
        output::note(&format!(
            "the stream broke off ({why}); going on after position {after}"
        ));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

/// Why there is no stream just now, if that passes by itself.
fn passing(problem: Problem) -> Result<String, Problem> {
    if let Problem::Unreachable { why, .. } = problem {
        return Ok(why);
    }
    if let Problem::Answered(body) = &problem
        && matches!(
            body.code,
            ErrorCode::LogUnavailable | ErrorCode::Overloaded | ErrorCode::Timeout
        )
    {
        return Ok(body.error.clone());
    }
    Err(problem)
}

/// Hands over every line until the stream breaks off (and why), enough were shown, or Ctrl-C (`None`).
async fn follow(
    response: reqwest::Response,
    show: &mut impl FnMut(&[u8]) -> Result<bool, Problem>,
) -> Result<Option<String>, Problem> {
    let mut chunks = response.bytes_stream();
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let chunk = tokio::select! {
            chunk = chunks.next() => chunk,
            _ = tokio::signal::ctrl_c() => return Ok(None),
        };
        match chunk {
            None => return Ok(Some("it ended".to_owned())),
            Some(Err(error)) => return Ok(Some(chain(&error))),
            Some(Ok(bytes)) => buffer.extend_from_slice(&bytes),
        }
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            // Empty lines are heartbeats.
            if line.len() > 1 && !show(&line)? {
                return Ok(None);
            }
        }
        if buffer.len() > LINE_BYTES_MAX {
            return Err(Problem::Failed(
                "a line of the stream is too long".to_owned(),
            ));
        }
    }
}

/// Shows one record; false when enough were shown.
fn show(line: &[u8], json: bool, after: &mut u64, left: &mut Option<u64>) -> Result<bool, Problem> {
    let text = String::from_utf8_lossy(line);
    let record: Line = serde_json::from_str(&text)
        .map_err(|error| Problem::Failed(format!("a line that is no record: {error}")))?;
    if json {
        println!("{}", text.trim_end());
    } else {
        println!("{}", words(&record));
    }
    *after = record.position.0;
    if let Some(left) = left {
        *left = left.saturating_sub(1);
        return Ok(*left > 0);
    }
    Ok(true)
}

fn words(record: &Line) -> String {
    let event: Value = record
        .event
        .as_ref()
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let data = &event["data"];
    let changes: Vec<String> = data["changes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|change| {
            format!(
                "{} {} -> revision {} {}",
                text(&change["kind"]),
                change["scope"],
                change["revision"],
                change["overlay"]
            )
        })
        .collect();
    let what = if changes.is_empty() {
        text(&event["type"])
    } else {
        changes.join("; ")
    };
    let verdict = match &record.verdict {
        Verdict::Accepted { .. } => String::new(),
        Verdict::Void { why } => format!(" VOID: {why}"),
        Verdict::Unreadable { why } => format!(" UNREADABLE: {why}"),
    };
    let reason = data["reason"]
        .as_str()
        .map_or_else(String::new, |why| format!(" ({why})"));
    format!(
        "{} {} {} {what}{reason}{verdict}",
        record.position,
        text(&event["time"]),
        text(&data["actor"]["name"])
    )
}
