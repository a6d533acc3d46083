//! OpenAPI and JSON Schemas as golden files. Blessed with `BLESS=1 cargo nextest run -p service documents`.

use std::path::{Path, PathBuf};

use reqwest::Method;
use schemars::JsonSchema;
use schemas::event::{Envelope, ParameterRegistered, PoliciesChanged};
use schemas::state::PolicyDocument;
use schemas::status::AgentStatus;
use serde_json::{Value, json};
use service::http::operations::OPERATIONS;

use crate::support::Fixture;

fn golden(path: &Path, value: &Value) {
    let text = format!("{}\n", serde_json::to_string_pretty(value).unwrap());
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        kept == text,
        "{} differs from what the types say; look at the difference after BLESS=1",
        path.display()
    );
}

#[test]
fn documents_openapi_is_as_kept() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/openapi.json");
    golden(&path, &service::http::openapi::document(true));
}

#[test]
fn documents_schemas_are_as_kept() {
    fn check<T: JsonSchema>(name: &str) {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../schemas/golden");
        let schema = schemars::schema_for!(T).to_value();
        golden(&dir.join(format!("{name}.json")), &schema);
    }
    check::<Envelope<PoliciesChanged>>("event.policies.changed.v1");
    check::<Envelope<ParameterRegistered>>("event.parameter.registered.v1");
    check::<PolicyDocument>("document.policy");
    check::<AgentStatus>("status.agent");
}

#[test]
fn documents_refer_only_to_what_they_hold() {
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match (key.as_str(), value) {
                        ("$ref", Value::String(reference)) => found.push(reference.clone()),
                        (_, value) => references(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = service::http::openapi::document(true);
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 50);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_name_every_route_and_every_method_of_it() {
    let fixture = Fixture::new().await;
    let methods = ["get", "post", "put", "patch", "delete"];
    let mut paths: Vec<&str> = OPERATIONS.iter().map(|operation| operation.path).collect();
    paths.dedup();
    for path in paths {
        let documented: Vec<&str> = OPERATIONS
            .iter()
            .filter(|operation| operation.path == path)
            .map(|operation| operation.method)
            .collect();
        for method in methods {
            let path = path.replace("{id}", "x").replace("{name}", "x");
            let sent = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let response = fixture.request(sent, &path).send().await.unwrap();
            let served = response.status() != 405;
            assert_eq!(served, documented.contains(&method), "{method} {path}");
            if served && response.status() == 404 {
                let body: Value = response.json().await.unwrap();
                assert_ne!(body["code"], json!("route_not_found"), "{method} {path}");
            }
        }
    }
    assert_eq!(service::http::route_count(), {
        let mut paths: Vec<&str> = OPERATIONS.iter().map(|operation| operation.path).collect();
        paths.sort_unstable();
        paths.dedup();
        paths.len()
    });
}
