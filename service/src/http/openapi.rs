//! `/openapi.json`: OpenAPI 3.1, made from the types and one table of routes.
//!
//! The table is checked against the router by tests in both directions, and the document is a golden file.

use axum::Json;
use axum::extract::State;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use schemas::api::{ErrorBody, Line};
use serde_json::{Map, Value, json};

use super::App;
use super::described;
use super::operations::{Answer, OPERATIONS, Operation, Shape};

/// `GET /openapi.json`.
pub async fn serve(State(app): State<App>) -> Json<Value> {
    Json(document(!app.config.facade_disabled))
}

/// The whole document, with or without the façade.
#[must_use]
pub fn document(with_facade: bool) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    // Streams carry these, so they are described although no JSON answer has them.
    generator.subschema_for::<Line>();
    generator.subschema_for::<schemas::convergence::Convergence>();
    let error = generator.subschema_for::<ErrorBody>();
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        if operation.facade && !with_facade {
            continue;
        }
        let described = describe(operation, &mut generator, &error);
        paths
            .entry(operation.path)
            .or_insert_with(|| json!({}))
            .as_object_mut()
            .map(|path| path.insert(operation.method.to_owned(), described));
    }
    let schemas = generator.take_definitions(true);
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Router Policy Service",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            "description": "A durable, ordered, audited log of router policy changes for a whole fleet. Unknown fields, unknown query keys, repeated keys and trailing bytes are refused."
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": { "schemas": schemas },
    });
    bound(&mut document);
    document
}

/// What 64 bits hold: JSON numbers have no end.
fn bound(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields
                .get("format")
                .is_some_and(|format| format == "uint64")
            {
                fields.entry("maximum").or_insert(json!(u64::MAX));
            }
            fields.values_mut().for_each(bound);
        }
        Value::Array(items) => items.iter_mut().for_each(bound),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn describe(operation: &Operation, generator: &mut SchemaGenerator, error: &Schema) -> Value {
    let mut described = json!({
        "summary": operation.summary,
        "operationId": operation_id(operation.method, operation.path),
        "parameters": parameters(operation, generator),
        "responses": responses(operation, generator, error),
    });
    if let Some(request) = operation.request {
        described["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": request(generator) } }
        });
    }
    described
}

fn parameters(operation: &Operation, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut parameters: Vec<Value> = operation
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            let schema = described::segment(name, generator);
            json!({ "name": name, "in": "path", "required": true, "schema": schema })
        })
        .collect();
    parameters.extend(operation.query.iter().map(|(name, meaning)| {
        let plain = name.trim_end_matches('*');
        json!({
            "name": plain, "in": "query", "required": plain != *name,
            "description": meaning, "schema": described::query(operation, plain, generator)
        })
    }));
    let writes = operation.method != "get" && operation.path != "/v1/status";
    if writes && operation.path != "/v1/policies:validate" {
        parameters.push(header(
            "Idempotency-Key",
            "The same key with the same request has one outcome: UUID, or up to 256 characters",
        ));
    }
    if operation.errors.contains(&412) {
        parameters.push(header(
            "If-Match",
            "The revision (ETag) that the change was written against",
        ));
    }
    parameters
}

fn responses(
    operation: &Operation,
    generator: &mut SchemaGenerator,
    error: &Schema,
) -> Map<String, Value> {
    let (shape, others): (Option<Shape>, &[&str]) = match operation.answer {
        Answer::Json(shape) => (Some(shape), &[]),
        Answer::Either(shape, others) => (Some(shape), others),
        Answer::Only(kinds) => (None, kinds),
        Answer::Nothing => (None, &[]),
    };
    let text = |kind: &&str| {
        (
            (*kind).to_owned(),
            json!({ "schema": { "type": "string" } }),
        )
    };
    let mut content: Map<String, Value> = others.iter().map(text).collect();
    if let Some(shape) = shape {
        let schema = json!({ "schema": shape(generator) });
        content.insert("application/json".to_owned(), schema);
    }
    let mut responses = Map::new();
    if content.is_empty() {
        responses.insert("204".into(), json!({ "description": "Taken" }));
    } else {
        let mut success = json!({ "description": "OK", "content": content });
        let links = described::links(operation, operation_id);
        if links.as_object().is_some_and(|links| !links.is_empty()) {
            success["links"] = links;
        }
        responses.insert("200".into(), success);
    }
    for status in operation.errors {
        responses.insert(
            status.to_string(),
            json!({
                "description": "Refused or failed; see `code`",
                "content": { "application/json": { "schema": error } }
            }),
        );
    }
    responses
}

fn header(name: &str, meaning: &str) -> Value {
    json!({
        "name": name, "in": "header", "required": false,
        "description": meaning, "schema": described::header(name)
    })
}

fn operation_id(method: &str, path: &str) -> String {
    let path: String = path
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    format!("{method}_{}", path.trim_matches('_'))
        .trim_end_matches('_')
        .to_owned()
}
