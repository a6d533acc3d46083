//! Schemas of custom parameters that would hold a service up, or make it fetch something: refused when they are registered,
//! and not run when an earlier version took them.
//!
//! Not one of these may take noticeable time; a hang shows as a test that does not end.

use schemas::parameter::{CustomParameters, check, check_schema};
use schemas::{ParameterName, PolicyKind, Rejection};
use serde_json::{Map, Value, json};

fn name() -> ParameterName {
    ParameterName::new("x").expect("a name")
}

fn run(schema: Value, value: &Value) -> Result<(), Rejection> {
    let patch = serde_json::from_value(json!({ "x": value })).expect("a patch");
    let custom = CustomParameters::from([(name(), schema)]);
    check(PolicyKind::WorkerSelection, &patch, &custom, false).map(|_| ())
}

fn refused(schema: Value, value: Value, word: &str) {
    let why = check_schema(&name(), &schema)
        .expect_err("refused")
        .to_string();
    assert!(why.contains(word), "{schema}: {why}");
    // As it would be found in a log.
    let why = run(schema.clone(), &value)
        .expect_err("refused")
        .to_string();
    assert!(why.contains(word), "{schema}: {why}");
}

/// `levels` definitions, each of which refers to the next one twice.
fn doubling(levels: usize) -> Value {
    let mut definitions = Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/a{}", level + 1)});
        definitions.insert(format!("a{level}"), json!({ "allOf": [next, next] }));
    }
    definitions.insert(format!("a{levels}"), json!({"type": "integer"}));
    json!({"$ref": "#/$defs/a0", "$defs": definitions})
}

#[test]
fn regression_references_that_multiply_are_refused() {
    refused(doubling(40), json!(1), "written out");
    refused(doubling(10), json!(1), "written out");
    // A few are what people write.
    assert_eq!(check_schema(&name(), &doubling(3)), Ok(()));
    assert_eq!(run(doubling(3), &json!(1)), Ok(()));
    assert!(run(doubling(3), &json!("1")).is_err());
}

#[test]
fn regression_patterns_that_backtrack_are_refused() {
    for pattern in ["(?=(a+)+b)x", r"^(a|a)*\1?b$", "(?<!a)b"] {
        refused(
            json!({ "pattern": pattern }),
            json!("a".repeat(15_000)),
            "pattern",
        );
        refused(
            json!({"patternProperties": { pattern: {} }}),
            json!({"a": 1}),
            "pattern",
        );
    }
    // Exponential for an engine that backtracks, linear for the one that is used.
    assert!(
        run(
            json!({"pattern": "^(a+)+$"}),
            &json!(format!("{}b", "a".repeat(15_000)))
        )
        .is_err()
    );
    assert_eq!(
        run(json!({"pattern": "^[a-z]{1,64}$"}), &json!("warm")),
        Ok(())
    );
}

#[test]
fn regression_patterns_that_grow_are_refused() {
    refused(
        json!({"pattern": "((a{1000}){1000}){10}"}),
        json!("a"),
        "pattern",
    );
    let many: Vec<Value> = (0..60)
        .map(|n| json!({"pattern": format!("\\p{{L}}{{{}}}", 300 + n)}))
        .collect();
    refused(json!({ "anyOf": many }), json!("a"), "pattern");
    let many: Vec<Value> = (0..17).map(|n| json!({"pattern": n.to_string()})).collect();
    refused(json!({ "anyOf": many }), json!("a"), "patterns");
}

#[test]
fn nothing_outside_of_a_schema_is_asked_for() {
    for to in [
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "x.json",
        "//127.0.0.1/x",
        "#/$defs/none",
        "#anchor",
        "#/%24defs/a",
    ] {
        refused(
            json!({"$ref": to, "$defs": {"a": {}}}),
            json!(1),
            "refers to",
        );
    }
    for (schema, word) in [
        (json!({"$schema": "http://127.0.0.1:1/x"}), "dialect"),
        (
            json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
            "dialect",
        ),
        (
            json!({"items": {"$schema": "http://127.0.0.1:1/x"}}),
            "$schema",
        ),
        (json!({"$id": "http://127.0.0.1:1/x", "$ref": "y"}), "$id"),
        (
            json!({"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}}),
            "$dynamicAnchor",
        ),
    ] {
        refused(schema, json!(1), word);
    }
    let plain =
        json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"});
    assert_eq!(check_schema(&name(), &plain), Ok(()));
}

#[test]
fn circles_and_deep_nests_are_refused() {
    refused(json!({"$ref": "#"}), json!(1), "itself");
    refused(json!({"items": {"$ref": "#"}}), json!([[[]]]), "itself");
    let circle = json!({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"$ref": "#/$defs/a"}}});
    refused(circle, json!(1), "itself");
    let mut deep = json!({"type": "integer"});
    for _ in 0..30 {
        deep = json!({"unevaluatedProperties": false, "allOf": [deep]});
    }
    refused(deep, json!(1), "deeper");
}

#[test]
fn what_nests_as_far_as_it_may_is_still_quick() {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let mut deep = json!({"properties": {"a": {"type": "integer"}}});
        for _ in 0..10 {
            deep = json!({"unevaluatedProperties": false, keyword: [deep]});
        }
        assert_eq!(check_schema(&name(), &deep), Ok(()), "{keyword}");
        // Whatever it says, it says it.
        let _ = run(deep, &json!({"a": 1, "b": 2}));
    }
    let mut deep = json!({"type": "integer"});
    for _ in 0..23 {
        deep = json!({"if": deep.clone(), "else": false});
        if check_schema(&name(), &deep).is_err() {
            break;
        }
    }
    let _ = run(
        json!({"not": {"not": {"if": {"if": {}}, "then": {"type": "string"}}}}),
        &json!(1),
    );
}
