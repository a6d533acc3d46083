//! Bodies of changes, decided one after another: what is decided reads back as what was meant and counts; what is refused
//! changes nothing; revisions are dense.

use schemas::api::{ChangesRequest, ParameterRequest};
use schemas::decide::{Change, Command, Order, PolicyOrder, decide};
use schemas::event::Actor;
use schemas::state::{Reading, State, Verdict};
use schemas::{CommandId, Hash, Name, ParameterName, Position, Timestamp};
use service::http::body::parse;
use uuid::Uuid;

/// Parts: bodies of `POST /v1/changes`, or of `PUT /v1/parameters/custom`.
pub(crate) fn check(input: &[u8]) {
    let mut state = State::default();
    for (index, body) in crate::parts(input).into_iter().enumerate().take(16) {
        let Some((order, force)) = order(body) else {
            continue;
        };
        let position = Position(state.position.0 + 1);
        let command = command(index, order, force);
        let Ok(decision) = decide(&state, &command) else {
            continue;
        };
        let bytes = decision.record.to_bytes();
        assert!(bytes.len() <= schemas::decide::RECORD_BYTES_MAX);
        assert_eq!(decision.subject, decision.record.subject());
        let reading = migrations::read(&decision.subject, &bytes);
        assert_eq!(reading, Reading::Known(decision.record.clone()));
        let before = revisions(&state);
        let verdict = state.evolve(position, &decision.subject, &bytes, &reading);
        assert_eq!(verdict, Verdict::Accepted { chained: true });
        let changed = schemas::decide::SET_POLICIES_MAX;
        let rose = revisions(&state) - before;
        assert!((1..=changed as u64).contains(&rose), "{rose}");
    }
}

fn revisions(state: &State) -> u64 {
    let policies = state.policies.values().map(|document| document.revision.0);
    policies.sum::<u64>() + state.registry.revision.0
}

fn order(body: &[u8]) -> Option<(Order, bool)> {
    if let Ok(request) = parse::<ParameterRequest>(body) {
        let order = Order::RegisterParameter {
            name: ParameterName::new("custom").ok()?,
            schema: request.schema,
            expected: request.expected_revision,
        };
        return Some((order, false));
    }
    let request = parse::<ChangesRequest>(body).ok()?;
    let orders = request.changes.into_iter().map(|change| {
        Some(PolicyOrder {
            policy: schemas::PolicyKey {
                kind: change.kind,
                scope: change.scope,
            },
            expected: change.expected_revision,
            change: match (change.parameters, change.reset) {
                (Some(patch), false) => Change::Patch(patch),
                (None, true) => Change::Reset,
                (None | Some(_), _) => return None,
            },
        })
    });
    let orders: Option<Vec<PolicyOrder>> = orders.collect();
    Some((Order::ChangePolicies(orders?), request.force))
}

fn command(index: usize, order: Order, force: bool) -> Command {
    let name = |text: &str| Name::new(text).expect("a name");
    Command {
        command_id: CommandId(Uuid::from_u128(index as u128 + 1)),
        actor: Actor {
            name: name("somebody"),
            via: name("token"),
        },
        at: Timestamp::from_unix_ms(1_700_000_000_000),
        reason: None,
        force,
        fingerprint: Hash::ZERO,
        order,
    }
}
