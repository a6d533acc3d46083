//! What every write shares: actor, command, waiting for convergence.

use std::time::Duration;

use event_log::ambient;
use schemas::convergence::{Convergence, Outcome};
use schemas::decide::{Change, Command, Order, PolicyOrder};
use schemas::event::{Actor, Reason};
use schemas::{Hash, Patch, PolicyKey, Position};
use schemas::{Name, Rejection};
use tokio::time::Instant;

use super::App;
use super::problem::Problem;
use super::query::Key;
use crate::writer::Written;

/// A write as a handler has understood it.
#[derive(Debug)]
pub struct Wanted {
    /// Its command.
    pub key: Key,
    /// Why.
    pub reason: Option<Reason>,
    /// Lift the ranges.
    pub force: bool,
    /// What.
    pub order: Order,
    /// True when the expected revision came as `If-Match`.
    pub preconditioned: bool,
}

impl Wanted {
    /// One change of one policy.
    #[must_use]
    pub fn one(key: Key, order: PolicyOrder) -> Wanted {
        Wanted {
            key,
            reason: None,
            force: false,
            order: Order::ChangePolicies(vec![order]),
            preconditioned: false,
        }
    }
}

/// Makes a change.
///
/// # Errors
/// A [`Problem`] for every refusal and failure.
pub async fn write(app: &App, wanted: Wanted) -> Result<Written, Problem> {
    let Wanted {
        key,
        reason,
        force,
        order,
        preconditioned,
    } = wanted;
    let command = Command {
        command_id: key.command_id,
        actor: actor()?,
        at: ambient::now(),
        reason,
        force,
        fingerprint: Hash::ZERO,
        order,
    };
    app.writer
        .write(command)
        .await
        .map_err(|why| Problem::of_write(why, key, preconditioned))
}

/// Who asks: on a loopback address without tokens always the same.
///
/// # Errors
/// None now; a name that cannot be one would be a 400.
pub fn actor() -> Result<Actor, Problem> {
    let name =
        |text: &str| Name::new(text).map_err(|why| Problem::bad_query(format!("actor {why}")));
    Ok(Actor {
        name: name("local")?,
        via: name("loopback")?,
    })
}

/// What a body with `parameters` and `reset` asks for: exactly one of them.
///
/// # Errors
/// [`Rejection::EmptyChange`] as a 400.
pub fn change(parameters: Option<Patch>, reset: bool) -> Result<Change, Problem> {
    match (parameters, reset) {
        (None, true) => Ok(Change::Reset),
        (Some(patch), false) if !patch.is_empty() => Ok(Change::Patch(patch)),
        (None | Some(_), _) => Err(Problem::rejected(&Rejection::EmptyChange)),
    }
}

/// Bound: how often a waiting writer looks at the fleet, at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// Bound: how often all of them together do: thousands that look whenever an agent reports would leave no time for the
/// reports, and for the writes themselves.
const LOOKS_PER_SECOND: u32 = 2_000;

/// The pause between two looks of each, when so many wait.
fn look_interval(waiting: usize) -> Duration {
    let all = u32::try_from(waiting).unwrap_or(u32::MAX);
    LOOK_INTERVAL.max(Duration::from_secs(1) * all / LOOKS_PER_SECOND)
}

/// Waits until the changes have arrived everywhere, were refused somewhere and answered everywhere else, or address no
/// router; at most `patience`, when it says how far they are. `None` patience: does not wait and says nothing.
pub async fn wait(
    app: &App,
    policies: &[PolicyKey],
    position: Position,
    patience: Option<Duration>,
) -> Option<Convergence> {
    let deadline = Instant::now() + patience?;
    let _counted = app.waiting.enter();
    let mut changes = app.fleet.changes();
    let mut stop = std::pin::pin!(app.stop.cancelled());
    loop {
        changes.borrow_and_update();
        // Before the question: a fleet that settles in between is asked again at once.
        let settled = app.fleet.settled();
        let now = app.fleet.convergence(policies, position);
        let done = match now.outcome {
            Outcome::Converged | Outcome::Refused | Outcome::NoRouter => true,
            Outcome::Pending => false,
        };
        if done || Instant::now() >= deadline {
            return Some(now);
        }
        // Also wakes when nobody reports: agents become stale and leave by silence.
        let silence = Instant::now() + Duration::from_millis(500);
        let wake = if settled {
            silence.min(deadline)
        } else {
            silence.min(deadline).min(app.fleet.settles_at())
        };
        tokio::select! {
            () = &mut stop => return Some(now),
            _ = changes.changed() => {
                tokio::time::sleep_until(deadline.min(Instant::now() + look_interval(app.waiting.now()))).await;
            }
            () = tokio::time::sleep_until(wake) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::count::Count;

    #[test]
    fn many_that_wait_look_less_often() {
        let waiting = Count::default();
        let places: Vec<_> = (0..10).map(|_| waiting.enter()).collect();
        assert_eq!(look_interval(waiting.now()), LOOK_INTERVAL);
        let more: Vec<_> = (0..1_990).map(|_| waiting.enter()).collect();
        assert_eq!(look_interval(waiting.now()), Duration::from_secs(1));
        drop((places, more));
        assert_eq!(look_interval(waiting.now()), LOOK_INTERVAL);
    }
}
