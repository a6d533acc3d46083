//! The audit as a stream: NDJSON and CSV, read as fast as the client takes it.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use schemas::Position;
use schemas::api::AuditEntry;
use schemas::state::Verdict;

use super::App;
use super::audit::{Format, Walk};
use super::events::{Open, permit};
use super::problem::Problem;
use super::weight;
use crate::projection::store::{Direction, Portion};

struct Export {
    app: App,
    walk: Walk,
    format: Format,
    left: usize,
    ready: VecDeque<Bytes>,
    over: bool,
    _open: Open,
}

/// Everything that fits, as a stream that reads as fast as its client.
pub(super) fn export(
    app: &App,
    mut walk: Walk,
    format: Format,
    limit: Option<usize>,
) -> Result<Response, Problem> {
    let open = permit(app)?;
    if walk.direction == Direction::Up && walk.before.is_none() {
        // An export ends where the log ended when it began, or it might never.
        let end = app.projection.snapshot().state.position;
        walk.before = end.0.checked_add(1).map(Position);
    }
    let mut ready = VecDeque::new();
    if format == Format::Csv {
        ready.push_back(Bytes::from_static(CSV_HEAD));
    }
    let export = Export {
        app: app.clone(),
        walk,
        format,
        left: limit.unwrap_or(usize::MAX),
        ready,
        over: false,
        _open: open,
    };
    let stream = futures::stream::unfold(export, |mut export| async move {
        let chunk = export.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), export))
    });
    let kind = match format {
        Format::Csv => "text/csv; charset=utf-8",
        Format::Json | Format::Ndjson => "application/x-ndjson",
    };
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(stream)).into_response())
}

impl Export {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            if self.over || self.left == 0 || self.app.stop.is_cancelled() {
                return None;
            }
            let walk = self.walk.clone();
            let piece = Portion {
                records: self.left.min(Portion::PIECE.records),
                ..Portion::PIECE
            };
            let page = self
                .app
                .projection
                .read(move |store| walk.page(store, piece, Portion::PIECE))
                .await;
            let (entries, next) = match page {
                Ok(page) => page,
                Err(why) => {
                    tracing::error!(error = ?why, "the local store failed under an export");
                    return None;
                }
            };
            self.left -= entries.len().min(self.left);
            match next {
                Some(next) => self.walk.from = next,
                None => self.over = true,
            }
            let mut out = Vec::new();
            for entry in &entries {
                match self.format {
                    Format::Csv => csv(entry, &mut out),
                    Format::Json | Format::Ndjson => {
                        out.extend(serde_json::to_vec(entry).unwrap_or_default());
                        out.push(b'\n');
                    }
                }
            }
            if !out.is_empty() {
                self.ready
                    .push_back(weight::wait(&self.app, out.into()).await?);
            }
        }
    }
}

const CSV_HEAD: &[u8] = b"position,at,actor,via,command_id,verdict,kind,model,worker_type,endpoint,group,action,revision,parameters,reason,forced\r\n";

/// One row per policy of a record (one, mostly empty, for a record of none).
fn csv(entry: &AuditEntry, out: &mut Vec<u8>) {
    let text = |value: Option<String>| cell(&value.unwrap_or_default());
    let verdict = match entry.verdict {
        Verdict::Accepted { .. } => "accepted",
        Verdict::Void { .. } => "void",
        Verdict::Unreadable { .. } => "unreadable",
    };
    let left = [
        entry.position.to_string(),
        text(entry.at.map(|at| at.to_string())),
        text(entry.actor.as_ref().map(|actor| actor.name.to_string())),
        text(entry.actor.as_ref().map(|actor| actor.via.to_string())),
        text(entry.command_id.map(|id| id.to_string())),
        verdict.to_owned(),
    ]
    .join(",");
    let right = [
        text(entry.reason.as_ref().map(ToString::to_string)),
        entry.forced.to_string(),
    ]
    .join(",");
    let mut row = |middle: [String; 8]| {
        out.extend_from_slice(format!("{left},{},{right}\r\n", middle.join(",")).as_bytes());
    };
    for change in &entry.changes {
        let scope = &change.scope;
        row([
            change.kind.to_string(),
            text(scope.model.as_ref().map(ToString::to_string)),
            text(scope.worker_type.as_ref().map(ToString::to_string)),
            text(scope.endpoint.as_ref().map(ToString::to_string)),
            text(scope.group.as_ref().map(ToString::to_string)),
            change.action.as_str().to_owned(),
            change.revision.to_string(),
            text(serde_json::to_string(&change.parameters).ok()),
        ]);
    }
    if entry.changes.is_empty() {
        let mut middle = [const { String::new() }; 8];
        if let Some(name) = &entry.parameter {
            middle[5] = "registered".to_owned();
            middle[7] = cell(name.as_str());
        }
        row(middle);
    }
}

/// A text as a cell: quoted, and with an apostrophe before what a spreadsheet would take for a formula.
fn cell(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let formula = text.trim_start().starts_with([
        '=', '+', '-', '@', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}',
    ]) || text.starts_with(['\t', '\r', '\n']);
    let guard = if formula { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_become_formulas_or_break_rows() {
        for (text, wanted) in [
            ("", ""),
            ("plain", "\"plain\""),
            ("a,\"b\"\nc", "\"a,\"\"b\"\"\nc\""),
            ("=1+1", "\"'=1+1\""),
            ("+x", "\"'+x\""),
            ("-x", "\"'-x\""),
            ("@x", "\"'@x\""),
            ("  =x", "\"'  =x\""),
            ("\tx", "\"'\tx\""),
            ("{\"a\":1}", "\"{\"\"a\"\":1}\""),
        ] {
            assert_eq!(cell(text), wanted, "{text:?}");
        }
    }
}
