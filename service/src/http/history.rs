//! `/v1/policies/{id}/…`: what a policy was, and putting an earlier revision back.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use schemas::api::{
    AuditOrder, Difference, DifferentValue, HistoryEntry, HistoryPage, RevertRequest, WriteAnswer,
};
use schemas::decide::{Change, PolicyOrder};
use schemas::event::Event;
use schemas::state::{Reading, Verdict};
use schemas::{Overlay, PolicyKey, Position, Rejection, Revision, Timestamp, parameter};
use serde::Deserialize;

use super::body::Strict;
use super::policies::{Tagged, agreed, answer, by_id, by_id_for_write};
use super::problem::Problem;
use super::query::{Segment, StrictQuery, WaitQuery, command_key, if_match, position};
use super::writes::Wanted;
use super::{App, fresh, views};
use crate::projection::keys::Index;
use crate::projection::store::{Direction, Portion, Store, StoreError, StoredRecord};

/// Bound: entries of one page.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;
/// Bound: bytes of the records on one page; it may then hold fewer than asked for while there are more.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// `?order=&limit=&cursor=`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    #[serde(default)]
    order: AuditOrder,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// A page's size, from 1 to 1,000.
///
/// # Errors
/// 400.
pub fn limit(asked: Option<usize>) -> Result<usize, Problem> {
    let limit = asked.unwrap_or(PAGE_DEFAULT);
    if (1..=PAGE_MAX).contains(&limit) {
        Ok(limit)
    } else {
        let text = format!("limit must be from 1 to {PAGE_MAX}, got {limit}");
        Err(Problem::bad_query(text).field("limit"))
    }
}

/// Where to begin in an order, and which way to go.
#[must_use]
pub fn begin(order: AuditOrder) -> (Direction, Position) {
    match order {
        AuditOrder::Newest => (Direction::Down, Position(u64::MAX)),
        AuditOrder::Oldest => (Direction::Up, Position::START),
    }
}

/// `GET /v1/policies/{id}/history`.
///
/// # Errors
/// 404, and 400 for a bad limit or cursor.
pub async fn history(
    State(app): State<App>,
    Segment(id): Segment,
    StrictQuery(query): StrictQuery<PageQuery>,
) -> Result<Json<HistoryPage>, Problem> {
    let key = by_id(&app, &id)?;
    let limit = limit(query.limit)?;
    let (direction, first) = begin(query.order);
    let from = match &query.cursor {
        Some(cursor) => position("cursor", cursor)?,
        None => first,
    };
    let page = app
        .projection
        .read(move |store| {
            let mut entries = Vec::new();
            let mut cursor = from;
            let mut bytes = 0;
            loop {
                let records = chunk(store, &key, direction, cursor)?;
                let Some(last) = records.last() else {
                    return Ok(HistoryPage {
                        entries,
                        next_cursor: None,
                    });
                };
                cursor = last.position;
                for record in &records {
                    let Some(entry) = accepted(record, &key) else {
                        continue;
                    };
                    if entries.len() == limit || bytes >= PAGE_BYTES_MAX {
                        let next = entries.last().map(|last: &HistoryEntry| last.position);
                        return Ok(HistoryPage {
                            next_cursor: next.map(|next| next.to_string()),
                            entries,
                        });
                    }
                    bytes += record.bytes.len();
                    entries.push(entry);
                }
            }
        })
        .await?;
    Ok(Json(page))
}

fn chunk(
    store: &Store,
    key: &PolicyKey,
    direction: Direction,
    from: Position,
) -> Result<Vec<StoredRecord>, StoreError> {
    store.indexed(
        Index::Policy,
        key.subject().as_str(),
        direction,
        from,
        Portion::CHUNK,
    )
}

/// The policy's part of an accepted record.
fn accepted(record: &StoredRecord, key: &PolicyKey) -> Option<HistoryEntry> {
    match record.verdict {
        Verdict::Accepted { .. } => {}
        Verdict::Void { .. } | Verdict::Unreadable { .. } => return None,
    }
    let Reading::Known(known) = migrations::read(&record.subject, &record.bytes) else {
        return None;
    };
    let Event::PoliciesChanged { changes } = known.event else {
        return None;
    };
    let change = changes.into_iter().find(|change| change.key() == *key)?;
    Some(HistoryEntry {
        id: key.id(),
        kind: change.kind,
        scope: change.scope,
        revision: change.revision,
        action: change.action,
        parameters: change.overlay,
        position: record.position,
        hash: record.hash,
        command_id: known.command_id,
        actor: known.actor,
        reason: known.reason,
        changed_at: known.at,
        forced: known.forced,
    })
}

/// The newest accepted change that satisfies a condition.
async fn newest(
    app: &App,
    key: PolicyKey,
    fits: impl Fn(&HistoryEntry) -> bool + Send + 'static,
) -> Result<Option<HistoryEntry>, Problem> {
    let found = app
        .projection
        .read(move |store| {
            let mut cursor = Position(u64::MAX);
            loop {
                let records = chunk(store, &key, Direction::Down, cursor)?;
                let Some(last) = records.last() else {
                    return Ok(None);
                };
                cursor = last.position;
                let mut entries = records.iter().filter_map(|record| accepted(record, &key));
                if let Some(entry) = entries.find(&fits) {
                    return Ok(Some(entry));
                }
            }
        })
        .await?;
    Ok(found)
}

async fn at_revision(app: &App, key: &PolicyKey, revision: Revision) -> Result<Overlay, Problem> {
    if revision == Revision::ZERO {
        return Ok(Overlay::new());
    }
    let entry = newest(app, key.clone(), move |entry| entry.revision == revision).await?;
    entry.map(|entry| entry.parameters).ok_or_else(|| {
        Problem::rejected(&Rejection::NoSuchRevision {
            policy: Box::new(key.clone()),
            revision,
        })
    })
}

/// One moment: exactly one of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtQuery {
    time: Option<Timestamp>,
    position: Option<String>,
    revision: Option<Revision>,
}

/// `GET /v1/policies/{id}/at`: the change that held then.
///
/// # Errors
/// 404 when the policy had not been changed yet; 400 unless exactly one of time, position and revision is given; 503 for a
/// position that this replica does not have while the log cannot be asked.
pub async fn at(
    State(app): State<App>,
    Segment(id): Segment,
    StrictQuery(query): StrictQuery<AtQuery>,
) -> Result<Json<HistoryEntry>, Problem> {
    if let Some(text) = &query.position {
        // What this replica has not read yet may have changed the policy before that position.
        fresh::catch_up_with(&app, position("position", text)?).await?;
    }
    let key = by_id(&app, &id)?;
    let found = match (query.time, &query.position, query.revision) {
        (Some(time), None, None) => {
            newest(&app, key, move |entry| entry.changed_at <= time).await?
        }
        (None, Some(text), None) => {
            let position = position("position", text)?;
            newest(&app, key, move |entry| entry.position <= position).await?
        }
        (None, None, Some(revision)) => {
            newest(&app, key, move |entry| entry.revision == revision).await?
        }
        _ => {
            return Err(Problem::bad_query(
                "give one of time, position and revision",
            ));
        }
    };
    found.map(Json).ok_or_else(|| {
        let mut problem = Problem::not_found("the policy had not been changed then");
        if let Some(revision) = query.revision {
            problem = Problem::not_found(format!("the policy has no revision {revision}"));
            problem.body.code = schemas::api::ErrorCode::NoSuchRevision;
        }
        problem
    })
}

/// Two revisions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiffQuery {
    from: Revision,
    to: Revision,
}

/// `GET /v1/policies/{id}/diff`.
///
/// # Errors
/// 404 for a revision that the policy does not have.
pub async fn diff(
    State(app): State<App>,
    Segment(id): Segment,
    StrictQuery(query): StrictQuery<DiffQuery>,
) -> Result<Json<Difference>, Problem> {
    let key = by_id(&app, &id)?;
    let before = at_revision(&app, &key, query.from).await?;
    let after = at_revision(&app, &key, query.to).await?;
    let parameters: BTreeMap<_, _> = parameter::difference(&before, &after)
        .into_keys()
        .map(|name| {
            let values = DifferentValue {
                from: before.get(&name).cloned(),
                to: after.get(&name).cloned(),
            };
            (name, values)
        })
        .collect();
    Ok(Json(Difference {
        id: key.id(),
        kind: key.kind,
        scope: key.scope,
        from: query.from,
        to: query.to,
        parameters,
    }))
}

/// `POST /v1/policies/{id}/revert`.
///
/// # Errors
/// 404 for a revision that the policy does not have; else as any change.
pub async fn revert(
    State(app): State<App>,
    Segment(id): Segment,
    StrictQuery(query): StrictQuery<WaitQuery>,
    headers: HeaderMap,
    Strict(request): Strict<RevertRequest>,
) -> Result<Tagged<WriteAnswer>, Problem> {
    let key = command_key(&headers)?;
    let precondition = if_match(&headers)?;
    let policy = by_id_for_write(&app, &id, key).await?;
    let expected = agreed(precondition, request.expected_revision)?;
    // The revision may have been made through another replica.
    if views::revision(&app.projection.snapshot(), &policy) < request.to_revision {
        fresh::catch_up_for_write(&app, key).await?;
    }
    let overlay = at_revision(&app, &policy, request.to_revision)
        .await
        .map_err(|problem| problem.field("to_revision"))?;
    let order = PolicyOrder {
        policy,
        expected,
        change: Change::Revert {
            to: request.to_revision,
            overlay,
        },
    };
    let wanted = Wanted {
        reason: request.reason,
        force: request.force,
        preconditioned: precondition.is_some(),
        ..Wanted::one(key, order)
    };
    answer(&app, wanted, query).await
}
