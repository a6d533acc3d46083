//! Models beside the everyday one: disaggregated ones, and names that are nobody's business.

use serde_json::{Value, json};

use super::everyday::converged;
use crate::dynamo::Role;
use crate::http::query_value;
use crate::stage::{PATIENCE, Stage, applied};
use crate::wait::wait_until;

pub(super) async fn roles_stay_apart(stage: &mut Stage) {
    const MODEL: &str = "disaggregated";
    let _workers = [
        stage
            .domain
            .worker("prefill1", MODEL, "disagg", Role::Prefill),
        stage
            .domain
            .worker("decode1", MODEL, "disagg", Role::Decode),
    ];
    let path = format!("/router_policy?model={MODEL}");
    let service = stage.service(0).clone();
    let of_role = async |role: &str| -> Result<Value, String> {
        let listed = service.get(&path).await?;
        let all = listed.json["routers"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.into_iter()
            .find(|one| one["worker_type"] == role && applied(one) == 3)
            .ok_or(listed.text)
    };
    let prefill = wait_until("prefill has three replicas", PATIENCE, async || {
        of_role("prefill").await
    })
    .await;
    let decode = wait_until("decode has three replicas", PATIENCE, async || {
        of_role("decode").await
    })
    .await;
    assert_ne!(prefill["router_id"], decode["router_id"]);

    for (entry, parameter, value) in [
        (&prefill, "prefill_load_scale", 2.0),
        (&decode, "decode_active_request_weight", 0.5),
    ] {
        let body = json!({"router_id": entry["router_id"],
            "expected_revision": entry["configuration"]["revision"], "parameters": {parameter: value}});
        let done = service
            .patch("/router_policy?wait=converged&timeout_ms=30000", &body)
            .await;
        converged(&done.expect("an answer").expect(200).json, 3);
    }
    for frontend in &stage.frontends {
        let routers = frontend.routers(MODEL).await.expect("routers");
        let has = |role: &str, name: &str| {
            routers
                .iter()
                .find(|one| one["worker_type"] == role)
                .and_then(|one| one["configuration"]["parameters"][name].as_f64())
        };
        let seen = [
            has("prefill", "prefill_load_scale"),
            has("decode", "prefill_load_scale"),
            has("prefill", "decode_active_request_weight"),
            has("decode", "decode_active_request_weight"),
        ];
        assert_eq!(
            seen,
            [Some(2.0), Some(1.0), Some(0.0), Some(0.5)],
            "{routers:?}"
        );
    }
}

pub(super) async fn any_name_works(stage: &mut Stage) {
    const MODEL: &str = "meta-llama/Llama-3.1-8B Instruct.v2*>é";
    let _worker = stage
        .domain
        .worker("worker-odd", MODEL, "odd", Role::Aggregated);
    stage.replicas(MODEL, 3).await;
    converged(
        &stage
            .change(0, MODEL, json!({"router_temperature": 0.4}))
            .await,
        3,
    );
    assert_eq!(stage.listed(MODEL, "router_temperature").await, [0.4; 3]);
    // The everyday model is another policy and keeps its values.
    assert_eq!(
        stage
            .listed(crate::stage::MODEL, "router_temperature")
            .await,
        [0.0, 0.0, 0.5]
    );
    let path = format!(
        "/v1/policies?model={}&kind=worker_selection",
        query_value(MODEL)
    );
    let listed = stage
        .service(1)
        .get(&path)
        .await
        .expect("an answer")
        .expect(200);
    let policies = listed.json["policies"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert_eq!(policies.len(), 1, "{}", listed.text);
    assert_eq!(policies[0]["scope"]["model"], MODEL, "{}", listed.text);
    converged(&stage.reset(1, MODEL).await, 3);
}
