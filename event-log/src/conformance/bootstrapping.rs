//! A state from tails equals the fold of everything.

use std::sync::Arc;

use bytes::Bytes;
use schemas::decide::{Change, Command, Order, PolicyOrder, decide};
use schemas::event::{Actor, Record, record_hash};
use schemas::state::State;
use schemas::{Hash, PolicyKey, Position, Timestamp};

use super::records::{Belief, change, command, name, policy, put};
use super::{Factory, Outcome, said, same};
use crate::bootstrap::{bootstrap, replay};
use crate::port::EventLog;

/// Decides a reset of these policies on a state, as a service would, appends it and folds it in.
async fn reset(
    log: &Arc<dyn EventLog>,
    state: &mut State,
    number: u64,
    policies: &[PolicyKey],
) -> Outcome {
    let order = |policy: &PolicyKey| PolicyOrder {
        policy: policy.clone(),
        expected: None,
        change: Change::Reset,
    };
    let wanted = Command {
        command_id: command(number),
        actor: Actor {
            name: name("conformance")?,
            via: name("loopback")?,
        },
        at: Timestamp::from_unix_ms(number),
        reason: None,
        force: false,
        fingerprint: Hash::ZERO,
        order: Order::ChangePolicies(policies.iter().map(order).collect()),
    };
    let decision = decide(state, &wanted).map_err(|why| why.to_string())?;
    append(log, state, &decision.record, decision.expected_tail)
        .await
        .map(|_| ())
}

async fn append(
    log: &Arc<dyn EventLog>,
    state: &mut State,
    record: &Record,
    expected: Position,
) -> Result<(Position, Hash), String> {
    let subject = record.subject();
    let bytes = Bytes::from(record.to_bytes());
    let position = put(log, &subject, expected, bytes.clone()).await?;
    let reading = migrations::read(&subject, &bytes);
    state.evolve(position, &subject, &bytes, &reading);
    Ok((position, record_hash(&subject, &bytes)))
}

async fn compare(log: &Arc<dyn EventLog>, folded: &State, replayed: bool) -> Outcome {
    let head = super::head(log).await?;
    let short = bootstrap(log.as_ref()).await.map_err(said)?;
    let long = replay(log.as_ref(), head.log_id, head.position)
        .await
        .map_err(said)?;
    same("the identity", &short.log_id, &head.log_id)?;
    same("a replay", &long, folded)?;
    same("a bootstrap", &short.state, folded)?;
    same("that it read everything", &short.replayed, &replayed)
}

pub(super) async fn a_bootstrap_equals_a_replay(factory: &dyn Factory) -> Outcome {
    let log = factory.fresh().await;
    let mut state = State::default();
    compare(&log, &state, false).await?;
    for number in 0..40_u64 {
        let one = policy(&format!("m{}", number % 6))?;
        reset(&log, &mut state, number, &[one]).await?;
    }
    compare(&log, &state, false).await
}

pub(super) async fn a_bootstrap_with_void_records_and_sets_equals_a_replay(
    factory: &dyn Factory,
) -> Outcome {
    let log = factory.fresh().await;
    let mut state = State::default();
    let (a, b, c) = (policy("a")?, policy("b")?, policy("c")?);
    reset(&log, &mut state, 1, std::slice::from_ref(&a)).await?;
    reset(&log, &mut state, 2, &[a.clone(), b.clone()]).await?;
    reset(&log, &mut state, 3, std::slice::from_ref(&c)).await?;
    reset(&log, &mut state, 4, &[b.clone(), c.clone()]).await?;
    // The set came last for b and c: tails alone tell.
    compare(&log, &state, false).await?;
    // A writer that had not seen the set: its own subject lets it in, replay makes it void.
    let late = Belief {
        policy: a.clone(),
        revision: 2,
        decided_on: state.tail(&a.subject()),
        previous_hash: Hash::ZERO,
    };
    let late = change(5, vec![late])?;
    let expected = state.tail(&a.subject());
    append(&log, &mut state, &late, expected).await?;
    same(
        "a's revision",
        &state.policies.get(&a).map(|a| a.revision.0),
        &Some(2),
    )?;
    compare(&log, &state, true).await?;
    // And life goes on after it.
    reset(&log, &mut state, 6, std::slice::from_ref(&a)).await?;
    reset(&log, &mut state, 7, &[a, b, c]).await?;
    let short = bootstrap(log.as_ref()).await.map_err(said)?;
    same("a bootstrap", &short.state, &state)
}
