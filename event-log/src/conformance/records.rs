//! Subjects and records for the checks.

use std::sync::Arc;

use bytes::Bytes;
use schemas::event::{Action, Actor, Event, PolicyChange, Record};
use schemas::{
    CommandId, Endpoint, Hash, Name, Overlay, PolicyKey, PolicyKind, Position, Revision, Scope,
    Subject, Timestamp, WorkerType,
};
use uuid::Uuid;

use super::said;
use crate::port::{Appended, EventLog};

/// The policy of one model in any place.
pub(super) fn policy(model: &str) -> Result<PolicyKey, String> {
    Ok(PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope {
            model: Some(name(model)?),
            ..Scope::default()
        },
    })
}

pub(super) fn subject(model: &str) -> Result<Subject, String> {
    policy(model).map(|policy| policy.subject())
}

pub(super) fn name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|why| why.to_string())
}

/// Names that broke others' logs, and the longest scope there is.
pub(super) fn odd_policies() -> Result<Vec<PolicyKey>, String> {
    let long = "x".repeat(512);
    let wide = "\u{1F600}".repeat(128);
    let mut out = Vec::new();
    for model in [
        "a b",
        "a.b",
        "a",
        "b",
        "*",
        ">",
        "$SYS.x",
        "a/b c",
        "=",
        "==",
        "=41",
        "A",
        "e\u{301}",
        "\u{e9}",
        "meta-llama/Llama-3.1-8B Instruct.v2*>\u{e9}",
        "\u{1F600}",
        &long,
        &wide,
        "%2F",
        "_INBOX.x",
        "\\",
        "\"",
        "..",
        ".",
    ] {
        out.push(policy(model)?);
    }
    let longest = || name(&wide);
    out.push(PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope {
            model: Some(longest()?),
            worker_type: Some(WorkerType::Aggregated),
            endpoint: Some(Endpoint {
                namespace: longest()?,
                component: longest()?,
                endpoint: longest()?,
            }),
            group: Some(longest()?),
        },
    });
    Ok(out)
}

/// A command's id, made from a number.
pub(super) fn command(number: u64) -> CommandId {
    CommandId(Uuid::from_u128(u128::from(number) + 1))
}

/// A record of the command that stands for itself: its bytes are no change of any policy.
pub(super) fn note(number: u64) -> Bytes {
    Bytes::from(format!(
        "{{\"id\":\"{}\",\"note\":{number}}}",
        command(number)
    ))
}

/// Appends, expecting that it works.
pub(super) async fn put(
    log: &Arc<dyn EventLog>,
    subject: &Subject,
    expected: Position,
    bytes: Bytes,
) -> Result<Position, String> {
    match log.append(subject, expected, bytes).await.map_err(said)? {
        Appended::Committed(position) => Ok(position),
        Appended::Conflict => Err(format!("a conflict on {subject} behind {expected}")),
    }
}

/// What a writer believed of one policy when it wrote.
pub(super) struct Belief {
    pub(super) policy: PolicyKey,
    pub(super) revision: u64,
    pub(super) decided_on: Position,
    pub(super) previous_hash: Hash,
}

/// A record that follows these beliefs, right or wrong.
pub(super) fn change(number: u64, beliefs: Vec<Belief>) -> Result<Record, String> {
    let mut changes: Vec<PolicyChange> = beliefs
        .into_iter()
        .map(|belief| PolicyChange {
            kind: belief.policy.kind,
            scope: belief.policy.scope,
            action: Action::Reset,
            revision: Revision(belief.revision),
            decided_on: belief.decided_on,
            previous_hash: belief.previous_hash,
            overlay: Overlay::new(),
        })
        .collect();
    changes.sort_by_key(PolicyChange::key);
    Ok(Record {
        command_id: command(number),
        actor: Actor {
            name: name("conformance")?,
            via: name("loopback")?,
        },
        at: Timestamp::from_unix_ms(number),
        reason: None,
        forced: false,
        fingerprint: Hash::ZERO,
        event: Event::PoliciesChanged { changes },
    })
}
