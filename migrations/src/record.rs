//! Reading records. Each version that was ever written stays readable.

use schemas::event::{
    Envelope, Event, PARAMETER_REGISTERED, POLICIES_CHANGED, ParameterRegistered, PoliciesChanged,
    PolicyChange, Record,
};
use schemas::scope::Address;
use schemas::state::Reading;
use schemas::{CommandId, PolicyKey, Subject};
use serde_json::Value;

/// One step from a version to the next: takes a whole CloudEvent of type `from` and makes one of type `to`.
///
/// Steps are pure and total over what was ever written in their version, and they never change meaning.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// CloudEvents `type` that it takes.
    pub from: &'static str,
    /// CloudEvents `type` that it makes.
    pub to: &'static str,
    /// The change; an error says what an event of that version should not look like.
    pub upcast: fn(Value) -> Result<Value, String>,
}

/// Every step, oldest first. Empty while version 1 is the only one.
pub const STEPS: &[Step] = &[];

/// Bound: the longest chain of steps; a loop in the table ends here instead of never.
const STEPS_MAX: usize = 64;

/// Understands a record. Never fails: what cannot be understood is [`Reading::Unknown`] with everything that is known.
#[must_use]
pub fn read(subject: &Subject, bytes: &[u8]) -> Reading {
    read_with(STEPS, subject, bytes)
}

/// The same with a given table of steps.
#[must_use]
pub fn read_with(steps: &[Step], subject: &Subject, bytes: &[u8]) -> Reading {
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(why) => return unknown(subject, &Value::Null, format!("not JSON: {why}")),
    };
    match upcast(steps, value.clone()).and_then(today) {
        Ok(record) => Reading::Known(record),
        Err(why) => unknown(subject, &value, why),
    }
}

/// The command of a record, from its envelope alone: readable for every version that was or will be.
#[must_use]
pub fn command_id(bytes: &[u8]) -> Option<CommandId> {
    #[derive(serde::Deserialize)]
    struct Id {
        id: CommandId,
    }
    serde_json::from_slice::<Id>(bytes)
        .ok()
        .map(|envelope| envelope.id)
}

fn kind(value: &Value) -> Option<&str> {
    value.get("type").and_then(Value::as_str)
}

fn upcast(steps: &[Step], mut value: Value) -> Result<Value, String> {
    for _ in 0..STEPS_MAX {
        let Some(step) = steps.iter().find(|step| kind(&value) == Some(step.from)) else {
            return Ok(value);
        };
        value = (step.upcast)(value)?;
    }
    Err("its version has no end to its chain of migrations".to_owned())
}

fn today(value: Value) -> Result<Record, String> {
    let name = kind(&value).ok_or("it has no CloudEvents type")?.to_owned();
    if value.get("specversion").and_then(Value::as_str) != Some("1.0") {
        return Err("it is not a CloudEvent of specversion 1.0".to_owned());
    }
    let bad = |why: serde_json::Error| format!("{name}: {why}");
    match name.as_str() {
        POLICIES_CHANGED => {
            let event: Envelope<PoliciesChanged> = serde_json::from_value(value).map_err(bad)?;
            let mut keys: Vec<PolicyKey> =
                event.data.changes.iter().map(PolicyChange::key).collect();
            keys.dedup();
            if keys.is_empty() || keys.len() != event.data.changes.len() || !keys.is_sorted() {
                return Err(format!(
                    "{name}: changes must name each policy once, in order, and at least one"
                ));
            }
            let PoliciesChanged {
                actor,
                reason,
                forced,
                fingerprint,
                changes,
            } = event.data;
            Ok(Record {
                command_id: event.id,
                actor,
                at: event.time,
                reason,
                forced,
                fingerprint,
                event: Event::PoliciesChanged { changes },
            })
        }
        PARAMETER_REGISTERED => {
            let event: Envelope<ParameterRegistered> =
                serde_json::from_value(value).map_err(bad)?;
            let data = event.data;
            Ok(Record {
                command_id: event.id,
                actor: data.actor,
                at: event.time,
                reason: data.reason,
                forced: false,
                fingerprint: data.fingerprint,
                event: Event::ParameterRegistered {
                    name: data.name,
                    revision: data.revision,
                    decided_on: data.decided_on,
                    previous_hash: data.previous_hash,
                    registry: data.registry,
                },
            })
        }
        _ => Err(format!("type {name} is not known to this version")),
    }
}

/// Bound: characters of what is said about an unreadable record. Its own words may be in there, and every policy that it
/// names keeps them.
const WHY_CHARS_MAX: usize = 300;

fn unknown(subject: &Subject, value: &Value, why: String) -> Reading {
    let why = match why.char_indices().nth(WHY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &why[..end]),
        None => why,
    };
    let named = value
        .get("policies")
        .and_then(Value::as_str)
        .and_then(|subjects| {
            subjects
                .split_ascii_whitespace()
                .map(|text| match Subject::from_log(text).address() {
                    Some(Address::Policy(key)) => Some(key),
                    Some(Address::Set(_) | Address::Parameters) | None => None,
                })
                .collect::<Option<Vec<PolicyKey>>>()
        });
    // An empty list on the subject of a set says nothing about what the set was.
    let named =
        named.filter(|keys| !keys.is_empty() || subject.address() == Some(Address::Parameters));
    Reading::Unknown {
        command_id: value
            .get("id")
            .and_then(Value::as_str)
            .and_then(|id| id.parse().ok()),
        why,
        policies: named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::state::{State, Verdict};
    use schemas::{PolicyKind, Position, Scope};
    use serde_json::json;

    /// Version 1 as it was first written. Never edit: a change here means that recorded events became unreadable.
    const V1: &[(&str, &[u8])] = &[
        (
            "policies.changed.v1.json",
            include_bytes!("../golden/v1/policies.changed.json"),
        ),
        (
            "policies.changed.v1 (set)",
            include_bytes!("../golden/v1/policies.changed.set.json"),
        ),
        (
            "policies.changed.v1 (reset)",
            include_bytes!("../golden/v1/policies.changed.reset.json"),
        ),
        (
            "policies.changed.v1 (reverted)",
            include_bytes!("../golden/v1/policies.changed.reverted.json"),
        ),
        (
            "parameter.registered.v1",
            include_bytes!("../golden/v1/parameter.registered.json"),
        ),
    ];

    fn subject_of(bytes: &[u8]) -> Subject {
        let value: Value = serde_json::from_slice(bytes).unwrap();
        Subject::from_log(value["subject"].as_str().unwrap())
    }

    #[test]
    fn version_1_stays_readable_and_is_what_is_written_today() {
        for (name, bytes) in V1 {
            let Reading::Known(record) = read(&subject_of(bytes), bytes) else {
                panic!("{name} is unreadable")
            };
            assert_eq!(
                String::from_utf8(record.to_bytes()).unwrap(),
                String::from_utf8(bytes.to_vec()).unwrap(),
                "{name}"
            );
        }
    }

    /// A made-up version 0 that called the overlay `values` and had no fingerprint: proves that the chain runs.
    const V0: &str = "router-policy.policies.changed.v0";

    fn from_v0(mut event: Value) -> Result<Value, String> {
        event["type"] = json!(POLICIES_CHANGED);
        let data = event["data"].as_object_mut().ok_or("no data")?;
        data.insert("fingerprint".to_owned(), json!("00".repeat(32)));
        for change in data
            .get_mut("changes")
            .and_then(Value::as_array_mut)
            .ok_or("no changes")?
        {
            let values = change["values"].take();
            let change = change.as_object_mut().ok_or("a change is no object")?;
            change.remove("values");
            change.insert("overlay".to_owned(), values);
        }
        Ok(event)
    }

    #[test]
    fn an_older_version_is_understood_through_its_step() {
        let mut old: Value = serde_json::from_slice(V1[0].1).unwrap();
        old["type"] = json!(V0);
        let subject = subject_of(V1[0].1);
        old["data"].as_object_mut().unwrap().remove("fingerprint");
        let change = old["data"]["changes"][0].as_object_mut().unwrap();
        let overlay = change.remove("overlay").unwrap();
        change.insert("values".to_owned(), overlay);
        let bytes = serde_json::to_vec(&old).unwrap();

        let steps = [Step {
            from: V0,
            to: POLICIES_CHANGED,
            upcast: from_v0,
        }];
        let Reading::Known(record) = read_with(&steps, &subject, &bytes) else {
            panic!("unreadable")
        };
        let Reading::Known(today) = read(&subject, V1[0].1) else {
            panic!("unreadable")
        };
        assert_eq!(record.event, today.event);
        assert!(
            matches!(read(&subject, &bytes), Reading::Unknown { .. }),
            "without its step it must not be guessed"
        );
    }

    #[test]
    fn steps_that_never_end_are_refused() {
        let steps = [Step {
            from: POLICIES_CHANGED,
            to: POLICIES_CHANGED,
            upcast: Ok,
        }];
        assert!(matches!(
            read_with(&steps, &subject_of(V1[0].1), V1[0].1),
            Reading::Unknown { .. }
        ));
    }

    #[test]
    fn what_cannot_be_read_stops_its_scope_and_nothing_else() {
        let subject = subject_of(V1[0].1);
        let Reading::Known(first) = read(&subject, V1[0].1) else {
            panic!("unreadable")
        };
        let edit = |change: fn(&mut Value)| {
            let mut value: Value = serde_json::from_slice(V1[0].1).unwrap();
            change(&mut value);
            serde_json::to_vec(&value).unwrap()
        };
        let hostile = [
            b"".to_vec(),
            b"{}".to_vec(),
            b"null".to_vec(),
            b"[1,2]".to_vec(),
            b"\xff\xfe".to_vec(),
            edit(|v| v["type"] = json!("router-policy.policies.changed.v2")),
            edit(|v| v["type"] = json!("router-policy.policies.vanished.v1")),
            edit(|v| v["type"] = json!("")),
            edit(|v| v["specversion"] = json!("")),
            edit(|v| v["id"] = json!("")),
            edit(|v| v["subject"] = json!(null)),
            edit(|v| v["time"] = json!("")),
            edit(|v| v["data"] = json!({})),
            edit(|v| v["data"]["actor"]["name"] = json!("")),
            edit(|v| v["data"]["surprise"] = json!(1)),
            edit(|v| v["data"]["changes"] = json!([])),
            edit(|v| v["data"]["changes"][0]["overlay"] = json!(null)),
            edit(|v| v["data"]["changes"][0]["scope"]["model"] = json!("")),
            edit(|v| {
                v["data"]["changes"][0]
                    .as_object_mut()
                    .unwrap()
                    .remove("overlay");
            }),
        ];
        let Event::PoliciesChanged { changes } = &first.event else {
            panic!("not a change")
        };
        let key = changes[0].key();
        let other = PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope: Scope::default(),
        };
        for bytes in hostile {
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            let mut state = State::default();
            state.evolve(
                Position(1),
                &subject,
                V1[0].1,
                &Reading::Known(first.clone()),
            );
            let before = state.policies.clone();
            let verdict = state.evolve(Position(2), &subject, &bytes, &read(&subject, &bytes));
            assert!(
                matches!(verdict, Verdict::Unreadable { .. }),
                "{shown}: {verdict:?}"
            );
            assert!(state.stop_of(&key).is_some(), "{shown}");
            assert!(state.stop_of(&other).is_none(), "{shown}");
            assert_eq!(state.policies, before, "{shown}");
        }
    }
}
