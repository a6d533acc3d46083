//! An ordinary day: changes, resets, restarts, drift, refusals, thresholds.

use serde_json::{Value, json};

use crate::stage::{FLAGS, MODEL, PATIENCE, Stage, applied};
use crate::wait::wait_until;

const TEMPERATURE: &str = "router_temperature";

/// Asserts that an answer says: converged, with this many applied.
pub(super) fn converged(answer: &Value, count: usize) {
    let convergence = &answer["convergence"];
    let applied = convergence["applied"].as_array().map_or(0, Vec::len);
    assert_eq!(convergence["outcome"], "converged", "{answer}");
    assert_eq!(applied, count, "{answer}");
}

pub(super) async fn a_change_reaches_all(stage: &mut Stage) {
    let before = stage.entry(0, MODEL).await;
    let answer = stage.change(0, MODEL, json!({TEMPERATURE: 0.3})).await;
    converged(&answer, 3);
    assert_eq!(stage.listed(MODEL, TEMPERATURE).await, [0.3; 3]);
    assert_eq!(answer["router_id"], before["router_id"], "{answer}");
    let revision = before["configuration"]["revision"]
        .as_u64()
        .expect("a revision")
        + 1;
    assert_eq!(answer["configuration"]["revision"], revision, "{answer}");
    assert_eq!(
        answer["configuration"]["parameters"][TEMPERATURE], 0.3,
        "{answer}"
    );
    wait_until("the other replica lists it too", PATIENCE, async || {
        let entry = stage.entry(1, MODEL).await;
        if entry["configuration"]["revision"] == revision && applied(&entry) == 3 {
            Ok(())
        } else {
            Err(entry.to_string())
        }
    })
    .await;
}

pub(super) async fn converged_is_never_stale(stage: &mut Stage) {
    for (change, value) in [0.25, 0.5, 0.75].into_iter().enumerate() {
        let answer = stage
            .change(change % 2, MODEL, json!({TEMPERATURE: value}))
            .await;
        converged(&answer, 3);
        for poll in 0..20 {
            assert_eq!(
                stage.listed(MODEL, TEMPERATURE).await,
                [value; 3],
                "change {change}, poll {poll}"
            );
        }
    }
}

pub(super) async fn startup_values_return(stage: &mut Stage) {
    let startup = [0.0, 0.0, 0.5];
    assert_eq!(stage.listed(MODEL, TEMPERATURE).await, startup);
    for round in ["null", "reset"] {
        converged(&stage.change(0, MODEL, json!({TEMPERATURE: 0.3})).await, 3);
        assert_eq!(stage.listed(MODEL, TEMPERATURE).await, [0.3; 3], "{round}");
        let answer = match round {
            "null" => stage.change(1, MODEL, json!({TEMPERATURE: null})).await,
            _ => stage.reset(1, MODEL).await,
        };
        converged(&answer, 3);
        assert_eq!(stage.listed(MODEL, TEMPERATURE).await, startup, "{round}");
    }
}

pub(super) async fn a_restarted_frontend_is_brought_up(stage: &mut Stage) {
    converged(&stage.change(0, MODEL, json!({TEMPERATURE: 0.3})).await, 3);
    let old = stage.frontends[0].router(MODEL).await.expect("one router");
    stage.frontends[0].kill();
    stage.domain.bring_up(&mut stage.frontends[0], FLAGS[0]);
    stage.frontends[0].serves(MODEL).await;
    let frontend = &stage.frontends[0];
    let new = wait_until("the new router has the policy", PATIENCE, async || {
        let router = frontend.router(MODEL).await?;
        match router["configuration"]["parameters"][TEMPERATURE].as_f64() {
            Some(0.3) => Ok(router),
            _ => Err(router.to_string()),
        }
    })
    .await;
    assert_ne!(new["router_id"], old["router_id"]);
    let what = "the fleet view has the new id as applied";
    wait_until(what, PATIENCE, async || {
        let entry = stage.entry(1, MODEL).await;
        let there = entry["replicas"].as_array().is_some_and(|all| {
            all.iter()
                .any(|one| one["router_id"] == new["router_id"] && one["state"] == "applied")
        });
        if there && applied(&entry) == 3 {
            Ok(())
        } else {
            Err(entry.to_string())
        }
    })
    .await;
}

pub(super) async fn drift_is_put_back(stage: &mut Stage) {
    converged(&stage.change(0, MODEL, json!({TEMPERATURE: 0.3})).await, 3);
    let frontend = &stage.frontends[1];
    let router = frontend.router(MODEL).await.expect("one router");
    let behind = json!({"router_id": router["router_id"],
        "expected_revision": router["configuration"]["revision"], "parameters": {TEMPERATURE: 0.9}});
    let done = frontend.http.patch("/router_policy", &behind).await;
    assert_eq!(done.expect("an answer").status, 200);
    wait_until("it is put back", PATIENCE, async || {
        match frontend.parameter(MODEL, TEMPERATURE).await? {
            0.3 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let service = stage.service(0);
    wait_until("the drift is reported", PATIENCE, async || {
        let fleet = service.get("/v1/convergence").await?;
        let reported = fleet.json["agents"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|agent| {
                let frontends = agent["frontends"].as_array().into_iter().flatten();
                let mut routers =
                    frontends.flat_map(|one| one["routers"].as_array().into_iter().flatten());
                routers.any(|one| {
                    one["router_id"] == router["router_id"]
                        && one["state"] == "applied"
                        && one["drifts"].as_u64().is_some_and(|count| count >= 1)
                })
            });
        if reported { Ok(()) } else { Err(fleet.text) }
    })
    .await;
    assert_eq!(applied(&stage.replicas(MODEL, 3).await), 3);
    assert_eq!(stage.listed(MODEL, TEMPERATURE).await, [0.3; 3]);
}

pub(super) async fn one_replica_refuses(stage: &mut Stage) {
    let flags = ["--load-aware"];
    stage.frontends[2].kill();
    stage.domain.bring_up(&mut stage.frontends[2], &flags);
    stage.frontends[2].serves(MODEL).await;
    let router = wait_until("it lists its router", PATIENCE, async || {
        stage.frontends[2].router(MODEL).await
    })
    .await;
    let id = router["router_id"].clone();
    wait_until("the fleet view has its new router", PATIENCE, async || {
        let entry = stage.entry(0, MODEL).await;
        let there = entry["replicas"]
            .as_array()
            .is_some_and(|all| all.len() == 3 && all.iter().any(|one| one["router_id"] == id));
        if there {
            Ok(())
        } else {
            Err(entry.to_string())
        }
    })
    .await;
    let words = "replacement changes routing requirements";
    let answer = stage
        .change(0, MODEL, json!({"host_cache_hit_weight": 0.5}))
        .await;
    let convergence = &answer["convergence"];
    assert_eq!(convergence["outcome"], "refused", "{answer}");
    assert_eq!(
        convergence["applied"].as_array().map(Vec::len),
        Some(2),
        "{answer}"
    );
    assert_eq!(
        convergence["refused"].as_array().map(Vec::len),
        Some(1),
        "{answer}"
    );
    assert_eq!(convergence["refused"][0]["router_id"], id, "{answer}");
    let said = convergence["refused"][0]["error"]
        .as_str()
        .unwrap_or_default();
    assert!(said.contains(words), "{answer}");
    assert_eq!(
        stage.listed(MODEL, "host_cache_hit_weight").await,
        [0.5, 0.5, 0.0]
    );
    let entry = stage.entry(1, MODEL).await;
    let refused = entry["replicas"].as_array().is_some_and(|all| {
        all.iter().any(|one| {
            one["router_id"] == id
                && one["state"] == "refused"
                && one["error"]
                    .as_str()
                    .is_some_and(|text| text.contains(words))
        })
    });
    assert!(refused && applied(&entry) == 2, "{entry}");
    // Refused once, not over and over: the router's own revision stands still.
    let after = stage.frontends[2].router(MODEL).await.expect("one router");
    assert_eq!(
        after["configuration"]["revision"],
        router["configuration"]["revision"]
    );
    converged(&stage.reset(0, MODEL).await, 3);
    stage.frontends[2].kill();
}

pub(super) async fn thresholds_fleet_wide(stage: &mut Stage) {
    const DECODE: &str = "active_decode_blocks_threshold";
    const TOKENS: &str = "active_prefill_tokens_threshold";
    const FRACTION: &str = "active_prefill_tokens_threshold_frac";
    let listed = async |wanted: [f64; 3]| {
        wait_until("every frontend has the thresholds", PATIENCE, async || {
            let mut seen = Vec::new();
            for frontend in &stage.frontends {
                seen.push(frontend.thresholds(MODEL).await?[DECODE].as_f64());
            }
            if seen == wanted.map(Some) {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
        .await;
    };
    let startup = [0.85, 0.85, 0.6];
    listed(startup).await;
    let before = stage.frontends[0].thresholds(MODEL).await.expect("listed");
    let body = json!({"model": MODEL, DECODE: 0.7, TOKENS: 1_000, FRACTION: 1.5});
    let path = "/busy_threshold";
    let set = stage
        .service(0)
        .post(path, &body)
        .await
        .expect("an answer")
        .expect(200);
    assert_eq!(set.json[DECODE], 0.7, "{}", set.text);
    listed([0.7; 3]).await;
    for frontend in &stage.frontends {
        let now = frontend.thresholds(MODEL).await.expect("listed");
        assert_eq!((&now[TOKENS], &now[FRACTION]), (&json!(1_000), &json!(1.5)));
    }
    // A frontend has no way to unset; the agent puts back what each had at first.
    let body = json!({"reason": "back", "changes": [
        {"kind": "busy_threshold", "scope": {"model": MODEL}, "reset": true}]});
    let reset = stage
        .service(1)
        .post("/v1/changes?wait=converged&timeout_ms=30000", &body)
        .await;
    converged(&reset.expect("an answer").expect(200).json, 3);
    listed(startup).await;
    // What was not set at startup cannot be unset; it is set to what never limits.
    let after = stage.frontends[0].thresholds(MODEL).await.expect("listed");
    for (name, off) in [(TOKENS, json!(u64::MAX)), (FRACTION, json!(1e308))] {
        let back = if before[name].is_null() {
            &off
        } else {
            &before[name]
        };
        assert_eq!(&after[name], back, "{name}: {after}");
    }
}
