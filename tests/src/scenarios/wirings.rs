//! Other wirings: an old frontend, and no NATS at all.

use serde_json::json;

use super::everyday::converged;
use crate::dynamo::{Domain, Dynamo, Frontend, Role, V1_6};
use crate::stage::{Agent, MODEL, PATIENCE, Service, Stage, applied};
use crate::wait::wait_until;

pub(super) async fn an_old_frontend(stage: &mut Stage) {
    const OLD: &str = "old-model";
    let folder = stage.folder.join("dynamo-1.6");
    let domain = Domain::new(Dynamo::installed(V1_6), &folder);
    let _worker = domain.worker("worker-old", OLD, "dynamo", Role::Aggregated);
    let mut frontend = domain.frontend("frontend-old");
    domain.bring_up(&mut frontend, &["--active-decode-blocks-threshold", "0.9"]);
    frontend.serves(OLD).await;
    assert_eq!(
        frontend
            .http
            .get("/router_policy")
            .await
            .map(|answer| answer.status),
        Ok(404)
    );
    let mut agent = Agent::new(
        "agent-old",
        &stage.folder,
        &stage.nats.url(),
        frontend.url(),
    );
    agent.start();

    let service = stage.service(0);
    wait_until(
        "the fleet view says what the frontend lacks",
        PATIENCE,
        async || {
            let fleet = service.get("/v1/convergence").await?;
            if fleet.text.contains("busy_threshold_only") {
                Ok(())
            } else {
                Err(fleet.text)
            }
        },
    )
    .await;
    let threshold = "active_decode_blocks_threshold";
    let body = json!({"changes": [{"kind": "busy_threshold", "scope": {"model": OLD},
        "expected_revision": 0, "parameters": {threshold: 0.5}}]});
    let path = "/v1/changes?wait=converged&timeout_ms=30000";
    let set = service
        .post(path, &body)
        .await
        .expect("an answer")
        .expect(200);
    converged(&set.json, 1);
    assert_eq!(
        frontend.thresholds(OLD).await.expect("thresholds")[threshold],
        0.5
    );

    // A router policy cannot arrive there: nobody says that it has.
    let body = json!({"changes": [{"kind": "worker_selection", "scope": {"model": OLD},
        "expected_revision": 0, "parameters": {"router_temperature": 0.5}}]});
    let path = "/v1/changes?wait=converged&timeout_ms=3000";
    let set = service
        .post(path, &body)
        .await
        .expect("an answer")
        .expect(200);
    assert_ne!(
        set.json["convergence"]["outcome"], "converged",
        "{}",
        set.text
    );
    mixed_fleet(stage, &domain, &mut frontend).await;
}

/// Three frontends take the policy, the old one that serves the model too cannot: said so, by its name.
async fn mixed_fleet(stage: &Stage, domain: &Domain, old: &mut Frontend) {
    let _worker = domain.worker("worker-mixed", MODEL, "mixed", Role::Aggregated);
    old.serves(MODEL).await;
    let service = stage.service(0);
    let what = "the fleet view has the model's thresholds at the old frontend";
    wait_until(what, PATIENCE, async || {
        let fleet = service.get("/v1/convergence").await?;
        let agents = fleet.json["agents"].as_array().into_iter().flatten();
        let there = agents
            .map(ToString::to_string)
            .any(|agent| agent.contains(old.url()) && agent.contains(MODEL));
        if there { Ok(()) } else { Err(fleet.text) }
    })
    .await;
    let answer = stage
        .change(0, MODEL, json!({"router_temperature": 0.3}))
        .await;
    let convergence = &answer["convergence"];
    assert_eq!(convergence["outcome"], "refused", "{answer}");
    assert_eq!(stage.listed(MODEL, "router_temperature").await, [0.3; 3]);
    let refused = convergence["refused"].as_array().expect("a list");
    assert_eq!(refused.len(), 1, "{answer}");
    assert_eq!(
        refused[0]["frontend"].as_str().map(bare),
        Some(bare(old.url())),
        "{answer}"
    );
    assert!(
        refused[0]["error"]
            .as_str()
            .is_some_and(|why| why.contains("/router_policy")),
        "{answer}"
    );
}

fn bare(url: &str) -> &str {
    url.trim_end_matches('/')
}

pub(super) async fn without_nats(stage: &mut Stage) {
    for agent in &mut stage.agents {
        agent.kill();
    }
    stage.stop_log();
    let folder = stage.folder.join("embedded");
    let mut service = Service::new("service-embedded", &folder, "embedded");
    service.start().await;
    let mut agents: Vec<Agent> = stage
        .frontends
        .iter()
        .enumerate()
        .map(|(n, frontend)| {
            Agent::new(
                &format!("agent{n}"),
                &folder,
                service.http.base(),
                frontend.url(),
            )
        })
        .collect();
    for agent in &mut agents {
        agent.start();
    }
    let change = async |service: &Service, value: f64| {
        let path = format!("/router_policy?model={MODEL}");
        let entry = wait_until("three replicas are applied", PATIENCE, async || {
            let listed = service.http.get(&path).await?;
            match listed.json["routers"].as_array().map(Vec::as_slice) {
                Some([one]) if applied(one) == 3 => Ok(one.clone()),
                _ => Err(listed.text),
            }
        })
        .await;
        let body = json!({"router_id": entry["router_id"],
            "expected_revision": entry["configuration"]["revision"], "parameters": {"router_temperature": value}});
        let done = service
            .http
            .patch("/router_policy?wait=converged&timeout_ms=30000", &body)
            .await;
        converged(&done.expect("an answer").expect(200).json, 3);
    };
    change(&service, 0.3).await;
    assert_eq!(stage.listed(MODEL, "router_temperature").await, [0.3; 3]);
    // The log is on disk: what was acknowledged is there after a kill -9.
    service.kill();
    service.start().await;
    change(&service, 0.4).await;
    assert_eq!(stage.listed(MODEL, "router_temperature").await, [0.4; 3]);
    let path = "/v1/policies?kind=worker_selection";
    let policies = service.http.get(path).await.expect("an answer").expect(200);
    assert_eq!(
        policies.json["policies"][0]["revision"], 2,
        "{}",
        policies.text
    );
}
