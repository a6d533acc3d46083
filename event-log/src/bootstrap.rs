//! A state from a log without reading its whole history, checked so that it equals the fold of the whole history.

use schemas::state::{self, State, Tail};
use schemas::{LogId, Position};

use crate::port::{Failure, LogReader, Seen};

/// A state and the log that it is of.
#[derive(Debug, Clone)]
pub struct Bootstrapped {
    /// The log.
    pub log_id: LogId,
    /// Everything up to its position.
    pub state: State,
    /// True when the whole history had to be read.
    pub replayed: bool,
}

/// Reads the state of the log: from the last record of each subject (O(scopes)), or, where those cannot tell, from all.
///
/// # Errors
/// [`Failure`] of the log.
pub async fn bootstrap(log: &dyn LogReader) -> Result<Bootstrapped, Failure> {
    let tails = log.tails().await?;
    let readings: Vec<Tail> = tails
        .entries
        .into_iter()
        .map(|entry| Tail {
            reading: migrations::read(&entry.subject, &entry.bytes),
            position: entry.position,
            subject: entry.subject,
            bytes: entry.bytes.to_vec(),
        })
        .collect();
    let head = tails.up_to;
    if let Some((state, checks)) = state::bootstrap(&readings, head.position) {
        let mut right = true;
        for check in checks {
            let next = log.next_on(&check.subject, check.after).await?;
            if next.is_some_and(|entry| entry.position < check.not_before) {
                right = false;
                break;
            }
        }
        if right {
            return Ok(Bootstrapped {
                log_id: head.log_id,
                state,
                replayed: false,
            });
        }
    }
    let state = replay(log, head.log_id, head.position).await?;
    Ok(Bootstrapped {
        log_id: head.log_id,
        state,
        replayed: true,
    })
}

/// Folds the whole history up to `up_to`.
///
/// # Errors
/// [`Failure`] of the log.
pub async fn replay(log: &dyn LogReader, log_id: LogId, up_to: Position) -> Result<State, Failure> {
    let mut state = State::default();
    if up_to == Position::START {
        return Ok(state);
    }
    let mut records = log
        .follow(Seen {
            log_id,
            position: Position::START,
        })
        .await?;
    while state.position < up_to {
        let entry = records.next().await?;
        let reading = migrations::read(&entry.subject, &entry.bytes);
        state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
    }
    Ok(state)
}
