//! `set`, `reset` and `revert`: one change, written against a revision that was seen.

use reqwest::Method;
use schemas::api::{
    ChangeRequest, ChangesRequest, ErrorBody, ErrorCode, PolicyPatchRequest, RevertRequest,
    WriteAnswer,
};
use schemas::event::Reason;
use schemas::{CommandId, Patch, PolicyKind, Revision};
use serde_json::Value;

use super::get::show;
use crate::arguments::{Reset, Revert, Set, Write};
use crate::assignment::kind_of;
use crate::client::{Client, read};
use crate::output;
use crate::problem::{Attempt, Problem};
use crate::select::{Policy, current};

/// What is asked for, without the circumstances.
enum Wish {
    Patch(Patch),
    Reset,
    Revert(Revision),
}

pub(crate) async fn set(options: Set, client: &Client, json: bool) -> Result<(), Problem> {
    let policy = options.policy.one(kind_of(&options.assignments))?;
    let mut patch = Patch::new();
    for assignment in options.assignments {
        if patch
            .insert(assignment.name.clone(), assignment.value)
            .is_some()
        {
            return Err(Problem::Usage(format!(
                "{} is given twice",
                assignment.name
            )));
        }
    }
    write(&policy, Wish::Patch(patch), options.write, client, json).await
}

pub(crate) async fn reset(options: Reset, client: &Client, json: bool) -> Result<(), Problem> {
    let policy = options.policy.one(PolicyKind::WorkerSelection)?;
    write(&policy, Wish::Reset, options.write, client, json).await
}

pub(crate) async fn revert(options: Revert, client: &Client, json: bool) -> Result<(), Problem> {
    let policy = options.policy.one(PolicyKind::WorkerSelection)?;
    write(
        &policy,
        Wish::Revert(options.to),
        options.write,
        client,
        json,
    )
    .await
}

async fn write(
    policy: &Policy,
    wish: Wish,
    options: Write,
    client: &Client,
    json: bool,
) -> Result<(), Problem> {
    let reason = options
        .reason
        .clone()
        .map(Reason::new)
        .transpose()
        .map_err(|error| Problem::Usage(format!("--reason {error}")))?;
    let expected = match options.expect {
        Some(revision) => revision,
        None => seen(policy, client, json).await?,
    };
    let attempt = Attempt {
        key: options
            .idempotency_key
            .unwrap_or_else(|| CommandId(event_log::ambient::new_id())),
        expected,
        fresh: options.idempotency_key.is_none(),
    };
    let sent = send(policy, wish, attempt, reason, &options, client).await;
    let answer = match sent {
        Ok(answer) => answer,
        Err(Problem::Answered(body)) if body.code == ErrorCode::StaleRevision => {
            return Err(stale(policy, body, client).await);
        }
        Err(problem) => return Err(problem),
    };
    let written: WriteAnswer = read(&answer)?;
    output::result(json, &answer, || show(&written.policies));
    let Some(convergence) = written.convergence else {
        return Ok(());
    };
    match output::outcome(&convergence) {
        Ok(words) => {
            output::note(&words);
            Ok(())
        }
        Err(words) => {
            if !json {
                output::laggards(&convergence);
            }
            Err(Problem::NotConverged(format!(
                "the change is kept; {words}"
            )))
        }
    }
}

/// Reads the current revision and shows it.
async fn seen(policy: &Policy, client: &Client, json: bool) -> Result<Revision, Problem> {
    let view = current(client, policy).await?.map(|(_, view)| view);
    let (revision, words) = match view {
        Some(view) if view.revision > Revision(0) => {
            let by = view
                .actor
                .as_ref()
                .map_or_else(String::new, |actor| format!(" by {actor}"));
            let at = view
                .changed_at
                .map_or_else(String::new, |at| format!(" at {at}"));
            let why = view
                .reason
                .map_or_else(String::new, |why| format!(": {why}"));
            (
                view.revision,
                format!("changing revision {}{by}{at}{why}", view.revision),
            )
        }
        Some(_) | None => (
            Revision(0),
            "changing a policy that was never set".to_owned(),
        ),
    };
    if !json {
        output::note(&words);
    }
    Ok(revision)
}

async fn send(
    policy: &Policy,
    wish: Wish,
    attempt: Attempt,
    reason: Option<Reason>,
    options: &Write,
    client: &Client,
) -> Result<Value, Problem> {
    let expected_revision = Some(attempt.expected);
    let force = options.force;
    let wait = [
        ("wait", options.wait.then(|| "converged".to_owned())),
        (
            "timeout_ms",
            options
                .wait
                .then(|| options.timeout.as_millis().to_string()),
        ),
    ];
    let (parameters, reset) = match wish {
        Wish::Patch(patch) => (Some(patch), false),
        Wish::Reset => (None, true),
        Wish::Revert(to_revision) => {
            let body = RevertRequest {
                to_revision,
                expected_revision,
                reason,
                force,
            };
            let id = policy.id().to_string();
            let path = ["v1", "policies", &id, "revert"];
            return client
                .write(Method::POST, &path, &wait, attempt, &body)
                .await;
        }
    };
    match policy {
        Policy::Named(named) => {
            let change = ChangeRequest {
                kind: named.kind,
                scope: named.scope.clone(),
                expected_revision,
                parameters,
                reset,
            };
            let body = ChangesRequest {
                reason,
                force,
                changes: vec![change],
            };
            client
                .write(Method::POST, &["v1", "changes"], &wait, attempt, &body)
                .await
        }
        Policy::Id(id) => {
            let body = PolicyPatchRequest {
                parameters,
                reset,
                expected_revision,
                reason,
                force,
            };
            let id = id.to_string();
            client
                .write(
                    Method::PATCH,
                    &["v1", "policies", &id],
                    &wait,
                    attempt,
                    &body,
                )
                .await
        }
    }
}

/// Says whose change came first, and what to do.
async fn stale(policy: &Policy, body: Box<ErrorBody>, client: &Client) -> Problem {
    // Best effort: the refusal stands whether or not the newer change can be shown.
    let newer = current(client, policy)
        .await
        .ok()
        .flatten()
        .map(|(_, view)| view);
    let revision = output::maybe(body.current_revision.as_ref());
    let by = output::maybe(body.changed_by.as_ref());
    let at = output::maybe(body.changed_at.as_ref());
    let why = newer
        .as_ref()
        .and_then(|view| view.reason.as_ref())
        .map_or_else(
            || "without a reason".to_owned(),
            |why| format!("because: {why}"),
        );
    let now = newer.map_or_else(String::new, |view| {
        format!(
            "\nit is now:\n  {}",
            output::overlay(&view.parameters).replace('\n', "\n  ")
        )
    });
    let text = format!(
        "{}; nothing was changed\nrevision {revision} was made by {by} at {at}, {why}{now}\nlook at it (`router-policy history`), then send your change again with --expect {revision}",
        body.error
    );
    Problem::Stale(text, body)
}
