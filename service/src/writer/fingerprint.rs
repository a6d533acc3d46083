//! The fingerprint of a command: the same for the same request however it was spelled, another for another one.
//!
//! It covers what is wanted, the reason and `force`; not who asks, when, or under which id. Numbers count as numbers.

use schemas::decide::{Change, Command, Order, PolicyOrder};
use schemas::{Hash, Patch};
use serde_json::{Value, json};

/// Hash of a canonical encoding of what a command wants.
#[must_use]
pub fn fingerprint(command: &Command) -> Hash {
    let order = match &command.order {
        Order::ChangePolicies(orders) => {
            let mut orders: Vec<&PolicyOrder> = orders.iter().collect();
            orders.sort_by(|left, right| left.policy.cmp(&right.policy));
            Value::Array(orders.into_iter().map(encode).collect())
        }
        Order::RegisterParameter {
            name,
            schema,
            expected,
        } => json!({ "parameter": name, "schema": schema, "expected": expected }),
    };
    let whole = json!({ "order": order, "reason": command.reason, "force": command.force });
    Hash::of(&[b"v1", canonical(&whole).to_string().as_bytes()])
}

fn encode(order: &PolicyOrder) -> Value {
    let change = match &order.change {
        Change::Patch(patch) => json!({ "patch": patch_value(patch) }),
        Change::Reset => json!("reset"),
        // The overlay follows from the revision.
        Change::Revert { to, overlay: _ } => json!({ "revert": to }),
    };
    json!({ "policy": order.policy, "expected": order.expected, "change": change })
}

fn patch_value(patch: &Patch) -> Value {
    json!(patch)
}

/// Numbers that are equal become the same text: integers that a float holds exactly are written as floats, -0 as 0.
fn canonical(value: &Value) -> Value {
    match value {
        Value::Number(number) => {
            const EXACT: f64 = 9_007_199_254_740_992.0;
            match number.as_f64() {
                Some(float) if float.abs() < EXACT => json!(float + 0.0),
                Some(_) | None => value.clone(),
            }
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), canonical(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::event::Actor;
    use schemas::{CommandId, PolicyKey, PolicyKind, Revision, Scope, Timestamp};
    use uuid::Uuid;

    fn of(changes: &[(PolicyKind, Value, Option<u64>)], force: bool) -> Hash {
        let orders = changes
            .iter()
            .map(|(kind, patch, expected)| PolicyOrder {
                policy: PolicyKey {
                    kind: *kind,
                    scope: Scope::default(),
                },
                expected: expected.map(Revision),
                change: Change::Patch(serde_json::from_value(patch.clone()).unwrap()),
            })
            .collect();
        fingerprint(&Command {
            command_id: CommandId(Uuid::nil()),
            actor: Actor {
                name: "local".parse().unwrap(),
                via: "loopback".parse().unwrap(),
            },
            at: Timestamp::default(),
            reason: None,
            force,
            fingerprint: Hash::ZERO,
            order: Order::ChangePolicies(orders),
        })
    }

    #[test]
    fn the_same_request_has_the_same_fingerprint_however_it_is_spelled() {
        use PolicyKind::{BusyThreshold, WorkerSelection};
        let first = of(
            &[(WorkerSelection, json!({"a": 2, "b": -0.0}), Some(1))],
            false,
        );
        let same = of(
            &[(WorkerSelection, json!({"b": 0, "a": 2.0}), Some(1))],
            false,
        );
        assert_eq!(first, same);
        for (other, what) in [
            (
                of(
                    &[(WorkerSelection, json!({"a": 2, "b": 0}), Some(2))],
                    false,
                ),
                "revision",
            ),
            (
                of(&[(WorkerSelection, json!({"a": 2, "b": 0}), None)], false),
                "no revision",
            ),
            (
                of(&[(BusyThreshold, json!({"a": 2, "b": 0}), Some(1))], false),
                "kind",
            ),
            (
                of(
                    &[(WorkerSelection, json!({"a": 2, "b": null}), Some(1))],
                    false,
                ),
                "null",
            ),
            (
                of(&[(WorkerSelection, json!({"a": 2, "b": 0}), Some(1))], true),
                "force",
            ),
        ] {
            assert_ne!(first, other, "{what}");
        }
        let forward = of(
            &[
                (WorkerSelection, json!({"a": 1}), None),
                (BusyThreshold, json!({"b": 1}), None),
            ],
            false,
        );
        let backward = of(
            &[
                (BusyThreshold, json!({"b": 1}), None),
                (WorkerSelection, json!({"a": 1}), None),
            ],
            false,
        );
        assert_eq!(forward, backward);
    }
}
