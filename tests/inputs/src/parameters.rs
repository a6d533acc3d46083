//! Schemas of custom parameters and their values: judging ends, whatever they are, and what passes reads back as it is.

use schemas::parameter::{CustomParameters, check as judge, check_schema};
use schemas::{ParameterName, Patch, PolicyKind};
use serde_json::Value;

/// Parts: a schema, then values.
pub(crate) fn check(input: &[u8]) {
    let parts = crate::parts(input);
    let mut parsed = parts.into_iter().map(serde_json::from_slice::<Value>);
    let Some(Ok(schema)) = parsed.next() else {
        return;
    };
    let name = ParameterName::new("custom").expect("a name");
    let fits = check_schema(&name, &schema).is_ok();
    let custom = CustomParameters::from([(name, schema)]);
    for value in parsed.map_while(Result::ok).take(4) {
        for parameter in [
            "custom",
            "router_temperature",
            "active_prefill_tokens_threshold",
        ] {
            for kind in [PolicyKind::WorkerSelection, PolicyKind::BusyThreshold] {
                let patch = serde_json::json!({ parameter: value });
                let Ok(patch) = serde_json::from_value::<Patch>(patch) else {
                    continue;
                };
                let Ok(checked) = judge(kind, &patch, &custom, false) else {
                    continue;
                };
                assert!(fits || parameter != "custom" || value.is_null());
                let text = serde_json::to_string(&checked).expect("a patch encodes");
                let read: Patch = serde_json::from_str(&text).expect("and decodes");
                assert_eq!(read, checked);
                assert_eq!(serde_json::to_string(&read).ok(), Some(text));
                assert_eq!(judge(kind, &checked, &custom, false).as_ref(), Ok(&checked));
            }
        }
    }
}
