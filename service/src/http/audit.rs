//! `/v1/audit`: every record with what became of it; filters, pages that never shift, NDJSON and CSV.
//!
//! A cursor is a position and a hash of the filters: records never move, so paging misses none and repeats none, whatever
//! is written meanwhile, and a cursor stays valid over restarts and on every replica.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemas::api::{AuditChange, AuditEntry, AuditOrder, AuditPage};
use schemas::event::{Action, Event};
use schemas::state::{Reading, Verdict};
use schemas::{
    CommandId, Endpoint, Hash, Name, PolicyId, PolicyKind, Position, Timestamp, WorkerType,
};
use serde::{Deserialize, Serialize};

use super::App;
use super::events::accepts;
use super::export::export;
use super::history::{PAGE_BYTES_MAX, begin, limit};
use super::problem::Problem;
use super::query::{StrictQuery, position};
use crate::projection::keys::Index;
use crate::projection::store::{Direction, Portion, Store, StoreError, StoredRecord};

/// Bound: records that one page looks at; a page may then hold fewer than asked for while there are more.
const LOOKED_AT_MAX: usize = 20_000;

/// How the audit is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// One page.
    Json,
    /// Everything, one line of JSON each.
    Ndjson,
    /// Everything, one row per policy and record.
    Csv,
}

/// What became of a record, as a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictFilter {
    /// It counts.
    Accepted,
    /// It lost a race.
    Void,
    /// It cannot be read.
    Unreadable,
}

/// What was done, as a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionFilter {
    /// Values were set or removed.
    Patched,
    /// The overlay was emptied.
    Reset,
    /// Earlier values were put back.
    Reverted,
    /// A custom parameter was registered.
    Registered,
}

impl ActionFilter {
    fn takes(self, action: &Action) -> bool {
        match action {
            Action::Patched(_) => self == ActionFilter::Patched,
            Action::Reset => self == ActionFilter::Reset,
            Action::RevertedTo(_) => self == ActionFilter::Reverted,
        }
    }
}

/// Filters (all must hold), order, and page.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    policy: Option<PolicyId>,
    kind: Option<PolicyKind>,
    model: Option<Name>,
    worker_type: Option<WorkerType>,
    endpoint: Option<Endpoint>,
    group: Option<Name>,
    actor: Option<Name>,
    action: Option<ActionFilter>,
    command_id: Option<CommandId>,
    verdict: Option<VerdictFilter>,
    /// Not before.
    since: Option<Timestamp>,
    /// Not after.
    until: Option<Timestamp>,
    /// Positions beyond this.
    after: Option<String>,
    /// Positions before this.
    before: Option<String>,
    order: Option<AuditOrder>,
    limit: Option<usize>,
    cursor: Option<String>,
    format: Option<Format>,
}

/// `GET /v1/audit`.
///
/// # Errors
/// 400 for bad filters or a cursor of other filters; 503 for too many exports at once.
pub async fn audit(
    State(app): State<App>,
    StrictQuery(query): StrictQuery<AuditQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let format = query.format.unwrap_or_else(|| {
        if accepts(&headers, "application/x-ndjson") {
            Format::Ndjson
        } else if accepts(&headers, "text/csv") {
            Format::Csv
        } else {
            Format::Json
        }
    });
    let walk = Walk::new(&app, &query)?;
    match format {
        Format::Json => {
            let limit = limit(query.limit)?;
            let fingerprint = walk.fingerprint.clone();
            let (entries, next) = app
                .projection
                .read(move |store| {
                    let page = Portion {
                        records: limit,
                        bytes: PAGE_BYTES_MAX,
                    };
                    walk.page(store, page, Portion::CHUNK)
                })
                .await?;
            Ok(Json(AuditPage {
                entries,
                next_cursor: next.map(|next| format!("{next}-{fingerprint}")),
            })
            .into_response())
        }
        Format::Ndjson | Format::Csv => export(&app, walk, format, query.limit),
    }
}

/// A way through the records: where it is, and what it lets through.
#[derive(Debug, Clone)]
pub(super) struct Walk {
    filter: AuditQuery,
    /// The index that leaves the fewest records to look at, and its value.
    source: Option<(Index, String)>,
    pub(super) direction: Direction,
    pub(super) from: Position,
    after: Position,
    pub(super) before: Option<Position>,
    fingerprint: String,
}

impl Walk {
    fn new(app: &App, query: &AuditQuery) -> Result<Walk, Problem> {
        let fingerprint = fingerprint(query);
        let (direction, first) = begin(query.order.unwrap_or_default());
        let after = match &query.after {
            Some(text) => position("after", text)?,
            None => Position::START,
        };
        let before = query
            .before
            .as_ref()
            .map(|text| position("before", text))
            .transpose()?;
        let from = match &query.cursor {
            Some(cursor) => cursor
                .split_once('-')
                .filter(|(_, of)| *of == fingerprint)
                .and_then(|(at, _)| position("cursor", at).ok())
                .ok_or_else(|| {
                    let text = "the cursor is not one of these filters and this order";
                    Problem::bad_query(text).field("cursor")
                })?,
            None => match direction {
                Direction::Up => after,
                Direction::Down => before.unwrap_or(first),
            },
        };
        let known = query
            .policy
            .and_then(|id| app.projection.snapshot().ids.get(&id).cloned());
        let source = if let Some(key) = known {
            Some((Index::Policy, key.subject().to_string()))
        } else if let Some(actor) = &query.actor {
            Some((Index::Actor, actor.to_string()))
        } else {
            query
                .model
                .as_ref()
                .map(|model| (Index::Model, model.to_string()))
        };
        Ok(Walk {
            filter: query.clone(),
            source,
            direction,
            from,
            after,
            before,
            fingerprint,
        })
    }

    fn chunk(&self, store: &Store, chunk: Portion) -> Result<Vec<StoredRecord>, StoreError> {
        if let Some(id) = self.filter.command_id {
            // The record that the command is answered by.
            let found = store.command(id, None)?.map(|command| command.position);
            let beyond = found.filter(|at| match self.direction {
                Direction::Up => *at > self.from,
                Direction::Down => *at < self.from,
            });
            return match beyond {
                Some(at) => Ok(store.record(at)?.into_iter().collect()),
                None => Ok(Vec::new()),
            };
        }
        match &self.source {
            Some((index, value)) => store.indexed(*index, value, self.direction, self.from, chunk),
            None => store.records(self.direction, self.from, chunk),
        }
    }

    /// Beyond the last position that can fit.
    fn over(&self, at: Position) -> bool {
        match self.direction {
            Direction::Up => self.before.is_some_and(|before| at >= before),
            Direction::Down => at <= self.after,
        }
    }

    /// One page, read in chunks, and where the next begins.
    pub(super) fn page(
        mut self,
        store: &Store,
        page: Portion,
        chunk: Portion,
    ) -> Result<(Vec<AuditEntry>, Option<Position>), StoreError> {
        let mut entries = Vec::new();
        let mut looked_at = 0;
        let mut bytes = 0;
        loop {
            let records = self.chunk(store, chunk)?;
            if records.is_empty() {
                return Ok((entries, None));
            }
            for record in records {
                if self.over(record.position) {
                    return Ok((entries, None));
                }
                if page.reached(entries.len(), bytes) {
                    return Ok((entries, Some(self.from)));
                }
                self.from = record.position;
                looked_at += 1;
                let size = record.bytes.len();
                let entry = entry(record);
                if self.admits(&entry) {
                    bytes += size;
                    entries.push(entry);
                }
            }
            if looked_at >= LOOKED_AT_MAX {
                return Ok((entries, Some(self.from)));
            }
        }
    }

    fn admits(&self, entry: &AuditEntry) -> bool {
        let query = &self.filter;
        fn same<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
            wanted.is_none() || wanted == found
        }
        let verdict = query.verdict.is_none_or(|wanted| {
            wanted
                == match entry.verdict {
                    Verdict::Accepted { .. } => VerdictFilter::Accepted,
                    Verdict::Void { .. } => VerdictFilter::Void,
                    Verdict::Unreadable { .. } => VerdictFilter::Unreadable,
                }
        });
        let by_scope = query.policy.is_some()
            || query.kind.is_some()
            || query.model.is_some()
            || query.worker_type.is_some()
            || query.endpoint.is_some()
            || query.group.is_some();
        // One and the same change must satisfy all filters on policies.
        let change = |change: &AuditChange| {
            query.policy.is_none_or(|id| id == change.id)
                && query.kind.is_none_or(|kind| kind == change.kind)
                && same(query.model.as_ref(), change.scope.model.as_ref())
                && same(
                    query.worker_type.as_ref(),
                    change.scope.worker_type.as_ref(),
                )
                && same(query.endpoint.as_ref(), change.scope.endpoint.as_ref())
                && same(query.group.as_ref(), change.scope.group.as_ref())
                && query
                    .action
                    .is_none_or(|action| action.takes(&change.action))
        };
        let registered = query.action == Some(ActionFilter::Registered);
        let what = if by_scope || (query.action.is_some() && !registered) {
            entry.changes.iter().any(change)
        } else {
            !registered || entry.parameter.is_some()
        };
        verdict
            && what
            && same(
                query.actor.as_ref(),
                entry.actor.as_ref().map(|actor| &actor.name),
            )
            && same(query.command_id.as_ref(), entry.command_id.as_ref())
            && query
                .since
                .is_none_or(|since| entry.at.is_some_and(|at| at >= since))
            && query
                .until
                .is_none_or(|until| entry.at.is_some_and(|at| at <= until))
    }
}

/// Hash of what a cursor must not be moved between.
fn fingerprint(query: &AuditQuery) -> String {
    let filters = AuditQuery {
        order: Some(query.order.unwrap_or_default()),
        limit: None,
        cursor: None,
        format: None,
        ..query.clone()
    };
    // Encoding plain fields cannot fail.
    let text = serde_json::to_vec(&filters).unwrap_or_default();
    Hash::of(&[&text]).to_string()[..16].to_owned()
}

/// A record as the audit shows it.
#[must_use]
pub fn entry(record: StoredRecord) -> AuditEntry {
    let reading = migrations::read(&record.subject, &record.bytes);
    let mut entry = AuditEntry {
        position: record.position,
        subject: record.subject,
        verdict: record.verdict,
        hash: record.hash,
        chain: record.chain,
        command_id: None,
        actor: None,
        at: None,
        reason: None,
        forced: false,
        changes: Vec::new(),
        parameter: None,
    };
    match reading {
        Reading::Known(known) => {
            entry.command_id = Some(known.command_id);
            entry.actor = Some(known.actor);
            entry.at = Some(known.at);
            entry.reason = known.reason;
            entry.forced = known.forced;
            match known.event {
                Event::PoliciesChanged { changes } => {
                    entry.changes = changes
                        .into_iter()
                        .map(|change| AuditChange {
                            id: change.key().id(),
                            kind: change.kind,
                            scope: change.scope,
                            action: change.action,
                            revision: change.revision,
                            parameters: change.overlay,
                        })
                        .collect();
                }
                Event::ParameterRegistered { name, .. } => entry.parameter = Some(name),
            }
        }
        Reading::Unknown { command_id, .. } => entry.command_id = command_id,
    }
    entry
}
