//! How long an acknowledged change takes until every frontend lists it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::dynamo::Frontend;
use crate::stage::{MODEL, PATIENCE, Stage};

/// Changes that are measured.
const CHANGES: usize = 50;

/// Measures and describes: from the acknowledgement until the last of the three frontends lists the new value.
pub async fn measure(stage: &Stage) -> String {
    let mut took: Vec<Duration> = Vec::with_capacity(CHANGES);
    let entry = stage.entry(0, MODEL).await;
    let mut revision = entry["configuration"]["revision"]
        .as_u64()
        .expect("a revision");
    // One more than is counted: agents that were just restarted catch up with the log during the first.
    for n in 0..=CHANGES {
        // Eighths are exact in binary, so equality is safe.
        let wanted = f64::from(u32::try_from(n + 1).expect("small")) / 8.0;
        let body = json!({"router_id": entry["router_id"], "expected_revision": revision,
            "parameters": {"router_temperature": wanted}});
        let done = stage.service(n % 2).patch("/router_policy", &body).await;
        let acknowledged = Instant::now();
        let done = done.expect("an answer").expect(200);
        revision = done.json["configuration"]["revision"]
            .as_u64()
            .expect("a revision");
        futures::future::join_all(stage.frontends.iter().map(|one| until(one, wanted))).await;
        if n > 0 {
            took.push(acknowledged.elapsed());
        }
    }
    took.sort();
    let ms = |at: Duration| at.as_secs_f64() * 1_000.0;
    format!(
        "latency: acknowledged change -> listed on all {} frontends, {CHANGES} changes: median {:.1} ms, nine of ten within {:.1} ms, worst {:.1} ms",
        stage.frontends.len(),
        ms(took[CHANGES / 2]),
        ms(took[CHANGES * 9 / 10]),
        ms(took[CHANGES - 1])
    )
}

async fn until(frontend: &Frontend, wanted: f64) {
    let started = Instant::now();
    // Back to back on purpose: a pause between two listings would be part of the measurement.
    loop {
        let listed = frontend.parameter(MODEL, "router_temperature").await;
        if listed == Ok(wanted) {
            return;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{} lists {listed:?}",
            frontend.url()
        );
    }
}
