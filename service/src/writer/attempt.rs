//! One write, from its first decision to its verdict.
//!
//! Owns: when a decision is made again. It is after a definite conflict (nothing of the command can get into the log any
//! more) and after catching up with the log; never after an unknown outcome.

use bytes::Bytes;
use event_log::CommitError;
use schemas::api::LogCondition;
use schemas::decide::{Command, decide};
use schemas::state::{Reading, Verdict};
use schemas::{PolicyKey, Position, Rejection};
use tokio::time::Instant;

use super::{Newer, Outcome, WriteError, Writer, Written, policies_of};
use crate::projection::Snapshot;
use crate::projection::store::StoredCommand;

/// Bound: decisions that one write makes; each one after the first means that somebody else's change won in between.
const DECISIONS_MAX: u32 = 64;

impl Writer {
    pub(super) async fn decide_and_commit(&self, command: &Command, deadline: Instant) -> Outcome {
        if let Some(why) = self.foreign() {
            return Err(WriteError::Foreign(why));
        }
        let mut caught_up = false;
        for _ in 0..DECISIONS_MAX {
            // SUBTLE: the snapshot before the store. The command may have got into the log through another replica; were it
            // folded in between the two, it would look stale against its own record
            // (`one_key_has_one_outcome_on_two_replicas`). The store always holds what a snapshot shows.
            let snapshot = self.projection.snapshot();
            if let Some(first) = self.first_outcome(command).await? {
                return self.outcome_of(command, &first, true);
            }
            let decision = match decide(&snapshot.state, command) {
                Ok(decision) => decision,
                // This replica may be behind the one that the client has read from.
                Err(rejection) if !caught_up && may_be_behind(&rejection) => {
                    self.catch_up(deadline).await?;
                    caught_up = true;
                    continue;
                }
                Err(rejection) => {
                    let newer = newer(&snapshot, &rejection).map(Box::new);
                    let rejection = Box::new(rejection);
                    return Err(WriteError::Refused { rejection, newer });
                }
            };
            let committed = event_log::commit(
                &*self.log,
                &decision.subject,
                decision.expected_tail,
                Bytes::from(decision.record.to_bytes()),
                command.command_id,
                deadline.saturating_duration_since(Instant::now()),
            )
            .await;
            match committed {
                Ok(committed) => return self.verdict(command, committed.position, deadline).await,
                Err(CommitError::Conflict { .. }) => {
                    self.catch_up(deadline).await?;
                    caught_up = true;
                }
                Err(CommitError::Determinate(why)) => return Err(WriteError::Unavailable(why)),
                Err(CommitError::Indeterminate(why)) => return Err(WriteError::Unknown(why)),
                Err(CommitError::Foreign(foreign)) => {
                    return Err(WriteError::Foreign(foreign.to_string()));
                }
            }
        }
        Err(WriteError::Lost {
            why: "too many writers change the same policy".to_owned(),
            newer: self.newest(command),
            position: None,
        })
    }

    /// What became of the command, which has a record at `position`. From here on it is never "not applied".
    async fn verdict(&self, command: &Command, position: Position, deadline: Instant) -> Outcome {
        if !self.projection.wait_for(position, deadline).await {
            let why =
                format!("it is in the log at position {position}, but this service is behind");
            return Err(WriteError::Unknown(why));
        }
        // SUBTLE: the record that was committed, not the command's first one. Two replicas that are given one key with two
        // bodies at once cannot know of each other; both records count, and neither may be answered as refused
        // (`one_key_with_two_bodies_on_two_replicas_is_never_refused_and_applied`).
        let own = self
            .projection
            .read(move |store| store.record(position))
            .await
            .map_err(|why| WriteError::Unknown(why.to_string()))?;
        // Cannot happen: the store holds what the projection has reached.
        let own = own.ok_or_else(|| {
            WriteError::Unknown("its record was not found in the local store".to_owned())
        })?;
        let fingerprint = match migrations::read(&own.subject, &own.bytes) {
            Reading::Known(record) => Some(record.fingerprint),
            Reading::Unknown { .. } => None,
        };
        let own = StoredCommand {
            position,
            fingerprint,
            verdict: own.verdict,
        };
        self.outcome_of(command, &own, false)
    }

    fn foreign(&self) -> Option<String> {
        let condition = self.projection.condition();
        (condition.log == LogCondition::Foreign).then(|| condition.detail.unwrap_or_default())
    }

    /// Waits until everything that the log holds now is folded in. Called only when nothing of the command is in doubt.
    async fn catch_up(&self, deadline: Instant) -> Result<(), WriteError> {
        let head = tokio::time::timeout_at(deadline, self.log.head()).await;
        let head = match head {
            Ok(Ok(head)) => head,
            Ok(Err(event_log::Failure::Foreign(foreign))) => {
                return Err(WriteError::Foreign(foreign.to_string()));
            }
            Ok(Err(why)) => return Err(WriteError::Unavailable(why.to_string())),
            Err(_) => return Err(WriteError::Unavailable("it does not answer".to_owned())),
        };
        // A foreign log's head may never be reached; the condition says so before the deadline does.
        let mut conditions = self.projection.conditions();
        tokio::select! {
            reached = self.projection.wait_for(head.position, deadline) => {
                if reached {
                    Ok(())
                } else {
                    let why = format!("this service is behind its position {}", head.position);
                    Err(WriteError::Unavailable(why))
                }
            }
            _ = conditions.wait_for(|condition| condition.log == LogCondition::Foreign) => {
                Err(WriteError::Foreign(self.foreign().unwrap_or_default()))
            }
        }
    }

    async fn first_outcome(&self, command: &Command) -> Result<Option<StoredCommand>, WriteError> {
        let id = command.command_id;
        self.projection
            .read(move |store| store.command(id))
            .await
            .map_err(|why| WriteError::Store(why.to_string()))
    }

    fn outcome_of(&self, command: &Command, first: &StoredCommand, repeated: bool) -> Outcome {
        let same = first
            .fingerprint
            .is_none_or(|fingerprint| fingerprint == command.fingerprint);
        if !same {
            return Err(WriteError::KeyReused {
                position: Some(first.position),
            });
        }
        match &first.verdict {
            Verdict::Accepted { .. } => Ok(Written {
                command_id: command.command_id,
                position: first.position,
                repeated,
            }),
            Verdict::Void { why } => Err(WriteError::Lost {
                why: why.clone(),
                newer: self.newest(command),
                position: Some(first.position),
            }),
            Verdict::Unreadable { why } => Err(WriteError::Unreadable(why.clone())),
        }
    }

    /// The newest change of the policies that the command names.
    fn newest(&self, command: &Command) -> Option<Box<Newer>> {
        let snapshot = self.projection.snapshot();
        policies_of(&command.order)
            .iter()
            .filter_map(|policy| newer_of(&snapshot, policy))
            .max_by_key(|newer| newer.position)
            .map(Box::new)
    }
}

/// A refusal that more of the log could turn into something else.
fn may_be_behind(rejection: &Rejection) -> bool {
    match rejection {
        Rejection::StaleRevision {
            expected, current, ..
        }
        | Rejection::StaleRegistry { expected, current } => expected > current,
        Rejection::UnknownParameter { .. }
        | Rejection::TooManyParameters { .. }
        | Rejection::TooLarge { .. }
        | Rejection::NoSuchRevision { .. } => true,
        Rejection::EmptyChange
        | Rejection::InvalidValue { .. }
        | Rejection::InvalidScope { .. }
        | Rejection::InvalidSchema { .. }
        | Rejection::InvalidSet { .. }
        | Rejection::Stopped { .. }
        | Rejection::RegistryStopped { .. } => false,
    }
}

fn newer(snapshot: &Snapshot, rejection: &Rejection) -> Option<Newer> {
    match rejection {
        Rejection::StaleRevision {
            policy, current, ..
        } => newer_of(snapshot, policy).or(Some(Newer {
            revision: *current,
            actor: None,
            at: None,
            position: Position::START,
        })),
        Rejection::StaleRegistry { current, .. } => Some(Newer {
            revision: *current,
            actor: None,
            at: None,
            position: snapshot.state.registry.position,
        }),
        Rejection::EmptyChange
        | Rejection::UnknownParameter { .. }
        | Rejection::InvalidValue { .. }
        | Rejection::TooManyParameters { .. }
        | Rejection::TooLarge { .. }
        | Rejection::InvalidScope { .. }
        | Rejection::InvalidSchema { .. }
        | Rejection::InvalidSet { .. }
        | Rejection::Stopped { .. }
        | Rejection::RegistryStopped { .. }
        | Rejection::NoSuchRevision { .. } => None,
    }
}

fn newer_of(snapshot: &Snapshot, policy: &PolicyKey) -> Option<Newer> {
    snapshot.state.policies.get(policy).map(|document| Newer {
        revision: document.revision,
        actor: Some(document.actor.clone()),
        at: Some(document.changed_at),
        position: document.position,
    })
}
