//! What `/openapi.json` says of query keys, path segments and headers, and which answer leads to which question.

use schemars::{JsonSchema, SchemaGenerator};
use schemas::{
    CommandId, Endpoint, LogId, Name, ParameterName, PolicyId, PolicyKind, Position, Revision,
    Timestamp, WorkerType,
};
use serde_json::{Value, json};

use super::operations::Operation;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

/// A query key; `null` for one that is not known here (a test finds it).
pub(super) fn query(operation: &Operation, name: &str, generator: &mut SchemaGenerator) -> Value {
    let words = |words: &[&str]| json!({ "type": "string", "enum": words });
    match name {
        // As on a frontend: any text, which may match nothing.
        "model" if operation.facade => json!({ "type": "string" }),
        "model" | "group" | "actor" => of::<Name>(generator),
        "kind" => of::<PolicyKind>(generator),
        "worker_type" => of::<WorkerType>(generator),
        "endpoint" => of::<Endpoint>(generator),
        "policy" => of::<PolicyId>(generator),
        "command_id" => of::<CommandId>(generator),
        "log_id" => of::<LogId>(generator),
        "position" | "min_position" | "after" | "before" => of::<Position>(generator),
        "revision" | "from" | "to" => of::<Revision>(generator),
        "time" | "since" | "until" => of::<Timestamp>(generator),
        "wait" => words(&["committed", "converged"]),
        "timeout_ms" => json!({ "type": "integer", "minimum": 0, "maximum": 60_000 }),
        "order" => words(&["newest", "oldest"]),
        "action" => words(&["patched", "reset", "reverted", "registered"]),
        "verdict" => words(&["accepted", "void", "unreadable"]),
        // Exports are not paged.
        "limit" if operation.path == "/v1/audit" => json!({ "type": "integer", "minimum": 1 }),
        "limit" => json!({ "type": "integer", "minimum": 1, "maximum": 1_000 }),
        "format" if operation.path == "/v1/audit" => words(&["json", "ndjson", "csv"]),
        "format" => words(&["sse", "ndjson"]),
        "cursor" if operation.path == "/v1/audit" => {
            json!({ "type": "string", "pattern": "^[0-9]{1,19}-[0-9a-f]+$" })
        }
        "cursor" => of::<Position>(generator),
        "subject" => json!({ "type": "string" }),
        _ => Value::Null,
    }
}

/// A variable segment of a path.
pub(super) fn segment(name: &str, generator: &mut SchemaGenerator) -> Value {
    match name {
        "id" => of::<PolicyId>(generator),
        "name" => of::<ParameterName>(generator),
        _ => Value::Null,
    }
}

/// A header of a write.
pub(super) fn header(name: &str) -> Value {
    match name {
        "Idempotency-Key" => json!({
            "type": "string", "minLength": 1, "maxLength": 256,
            "pattern": "^[!-~](?:[ -~]*[!-~])?$"
        }),
        "If-Match" => json!({
            "anyOf": [{ "const": "*" }, { "type": "string", "pattern": "^\"[0-9]{1,19}\"$" }]
        }),
        _ => Value::Null,
    }
}

/// Name of the link, method and path that it leads to, and where its parameters come from.
type Link = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);

const FIRST: &str = "$response.body#/policies/0/id";
const OWN: &str = "$response.body#/id";

/// Where an answer leads.
const LINKS: &[(&str, &str, &[Link])] = &[
    (
        "post",
        "/v1/changes",
        &[
            ("policy", "get", "/v1/policies/{id}", &[("id", FIRST)]),
            (
                "history",
                "get",
                "/v1/policies/{id}/history",
                &[("id", FIRST)],
            ),
            (
                "change again",
                "patch",
                "/v1/policies/{id}",
                &[("id", FIRST)],
            ),
            (
                "revert",
                "post",
                "/v1/policies/{id}/revert",
                &[("id", FIRST)],
            ),
            (
                "record",
                "get",
                "/v1/log/at",
                &[("position", "$response.body#/position")],
            ),
            (
                "at this place",
                "get",
                "/v1/policies/{id}/at",
                &[("id", FIRST), ("position", "$response.body#/position")],
            ),
            (
                "audit",
                "get",
                "/v1/audit",
                &[("command_id", "$response.body#/command_id")],
            ),
            (
                "arrival",
                "get",
                "/v1/convergence",
                &[("policy", FIRST), ("position", "$response.body#/position")],
            ),
        ],
    ),
    (
        "get",
        "/v1/policies",
        &[("policy", "get", "/v1/policies/{id}", &[("id", FIRST)])],
    ),
    (
        "get",
        "/v1/policies/{id}",
        &[
            (
                "history",
                "get",
                "/v1/policies/{id}/history",
                &[("id", OWN)],
            ),
            (
                "difference",
                "get",
                "/v1/policies/{id}/diff",
                &[
                    ("id", OWN),
                    ("from", "$response.body#/revision"),
                    ("to", "$response.body#/revision"),
                ],
            ),
            ("change", "patch", "/v1/policies/{id}", &[("id", OWN)]),
        ],
    ),
    (
        "patch",
        "/v1/policies/{id}",
        &[
            ("policy", "get", "/v1/policies/{id}", &[("id", FIRST)]),
            (
                "revert",
                "post",
                "/v1/policies/{id}/revert",
                &[("id", FIRST)],
            ),
        ],
    ),
    (
        "get",
        "/v1/log/head",
        &[(
            "record",
            "get",
            "/v1/log/at",
            &[("position", "$response.body#/position")],
        )],
    ),
];

/// The links of an operation's success.
pub(super) fn links(operation: &Operation, id_of: impl Fn(&str, &str) -> String) -> Value {
    let found = LINKS
        .iter()
        .find(|(method, path, _)| (*method, *path) == (operation.method, operation.path));
    let links = found.map_or(&[][..], |(_, _, links)| links);
    let described = links.iter().map(|(name, method, path, parameters)| {
        let parameters = parameters
            .iter()
            .map(|(name, from)| ((*name).to_owned(), json!(from)));
        let link = json!({
            "operationId": id_of(method, path),
            "parameters": parameters.collect::<serde_json::Map<String, Value>>()
        });
        (name.replace(' ', "_"), link)
    });
    Value::Object(described.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::operations::OPERATIONS;

    #[test]
    fn every_query_key_and_segment_is_described_and_every_link_leads_somewhere() {
        let mut generator = SchemaGenerator::default();
        for operation in OPERATIONS {
            for (name, _) in operation.query {
                let schema = query(operation, name.trim_end_matches('*'), &mut generator);
                assert!(!schema.is_null(), "{} {name}", operation.path);
            }
            for part in operation.path.split('/') {
                let name = part
                    .strip_prefix('{')
                    .and_then(|part| part.strip_suffix('}'));
                if let Some(name) = name {
                    assert!(!segment(name, &mut generator).is_null(), "{name}");
                }
            }
        }
        let known = |method: &str, path: &str| {
            OPERATIONS
                .iter()
                .find(|operation| (operation.method, operation.path) == (method, path))
        };
        for (method, path, links) in LINKS {
            assert!(known(method, path).is_some(), "{method} {path}");
            for (_, method, path, parameters) in *links {
                let to = known(method, path).expect(path);
                for (name, _) in *parameters {
                    let there = path.contains(&format!("{{{name}}}"))
                        || to
                            .query
                            .iter()
                            .any(|(key, _)| key.trim_end_matches('*') == *name);
                    assert!(there, "{method} {path} {name}");
                }
            }
        }
    }
}
