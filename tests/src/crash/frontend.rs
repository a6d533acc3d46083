//! What a frontend lists, and what it must list: the effective policy over its own startup values.

use std::collections::BTreeMap;
use std::time::Duration;

use schemas::effective::{effective, effective_thresholds};
use schemas::{Name, RouterKey, WorkerType};
use serde_json::{Value, json};

use super::history::History;
use super::writers::Place;
use crate::http::Http;
use crate::wait::reached;

/// The model that the frontend serves.
pub const MODEL: &str = "mock-model";
/// Its router's endpoint.
pub const ENDPOINT: &str = "dynamo/backend/generate";
const PATIENCE: Duration = Duration::from_secs(60);

/// Values by name, as a frontend lists them.
pub type Values = BTreeMap<String, f64>;

/// What a frontend had before an agent met it.
#[derive(Debug, Clone)]
pub struct Startup {
    parameters: Values,
    thresholds: Values,
}

impl Startup {
    /// Gives a fresh frontend thresholds of its own, and reads everything.
    ///
    /// # Errors
    /// What the frontend said instead.
    pub async fn of(frontend: &Http) -> Result<Startup, String> {
        let body = json!({"model": MODEL, "active_decode_blocks_threshold": 0.77, "active_prefill_tokens_threshold": 7_700});
        let set = frontend.post("/busy_threshold", &body).await?;
        if set.status != 200 {
            return Err(format!("startup thresholds: {}", set.text));
        }
        Ok(Startup {
            parameters: listed(frontend).await?,
            thresholds: listed_thresholds(frontend).await?,
        })
    }

    /// What it must list with everything in this history.
    #[must_use]
    pub fn with(&self, history: &History, group: Option<&Name>) -> (Values, Values) {
        let state = &history.state;
        let over = |base: &Values, overlay: schemas::Overlay| {
            let mut all = base.clone();
            for (name, value) in overlay {
                let value = json!(value).as_f64().unwrap_or(f64::NAN);
                all.insert(name.to_string(), value);
            }
            all
        };
        let Ok((router, model)) = place() else {
            return (Values::new(), Values::new());
        };
        let wanted = effective(state, &router, group).overlay();
        let thresholds = effective_thresholds(state, &model, group).overlay();
        (
            over(&self.parameters, wanted),
            over(&self.thresholds, thresholds),
        )
    }
}

/// What a frontend must list: parameters over its startup values, and those thresholds that a policy names.
#[must_use]
pub fn wanted_of(startup: &Values, history: &History) -> (Values, Values) {
    let startup = Startup {
        parameters: startup.clone(),
        thresholds: Values::new(),
    };
    startup.with(history, None)
}

fn place() -> Result<(RouterKey, Name), String> {
    let model = Name::new(MODEL).map_err(|why| why.to_string())?;
    let router = RouterKey {
        model: model.clone(),
        worker_type: WorkerType::Aggregated,
        endpoint: ENDPOINT.parse().map_err(|_| "endpoint".to_owned())?,
    };
    Ok((router, model))
}

/// The only router's parameters.
///
/// # Errors
/// What was listed instead.
pub async fn listed(frontend: &Http) -> Result<Values, String> {
    let answer = frontend.get("/router_policy").await?;
    match answer.json["routers"].as_array().map(Vec::as_slice) {
        Some([one]) => Ok(values(&one["configuration"]["parameters"])),
        _ => Err(answer.text),
    }
}

/// The only model's thresholds; those that are off are left out.
///
/// # Errors
/// What was listed instead.
pub async fn listed_thresholds(frontend: &Http) -> Result<Values, String> {
    let answer = frontend.get("/busy_threshold").await?;
    match answer.json["thresholds"].as_array().map(Vec::as_slice) {
        Some([one]) => Ok(values(one)),
        _ => Err(answer.text),
    }
}

fn values(object: &Value) -> Values {
    let fields = object.as_object().into_iter().flatten();
    fields
        .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
        .collect()
}

/// Waits until a frontend lists exactly what it must.
///
/// # Errors
/// What it lists instead.
pub async fn converged(
    frontend: &Http,
    startup: &Startup,
    history: &History,
    group: Option<&Name>,
) -> Result<(), String> {
    let (parameters, thresholds) = startup.with(history, group);
    reached(
        "the frontend has the effective policy",
        PATIENCE,
        async || {
            let has = listed(frontend).await?;
            if has != parameters {
                return Err(format!("{has:?}, not {parameters:?}"));
            }
            let has = listed_thresholds(frontend).await?;
            if has == thresholds {
                Ok(())
            } else {
                Err(format!("{has:?}, not {thresholds:?}"))
            }
        },
    )
    .await
}

/// Policies that concern the router, from the least specific to the most.
#[must_use]
pub fn places() -> Vec<Place> {
    let exact = json!({"model": MODEL, "worker_type": "aggregated", "endpoint": ENDPOINT});
    let of = |kind, scope: Value, parameter| Place {
        kind,
        scope,
        parameter,
    };
    vec![
        of("worker_selection", json!({}), "router_temperature"),
        of(
            "worker_selection",
            json!({"model": MODEL}),
            "router_temperature",
        ),
        of("worker_selection", exact, "decode_active_request_weight"),
        of(
            "busy_threshold",
            json!({}),
            "active_decode_blocks_threshold",
        ),
        of(
            "busy_threshold",
            json!({"model": MODEL}),
            "active_decode_blocks_threshold",
        ),
    ]
}
