//! A reference frontend behind HTTP, and what is asked of it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, StatusCode};
use router_agent::frontend::{Hardware, ModelPlan, Reference, RolePlan};
use scheduler::busy::Thresholds;
use schemas::WorkerType;
use serde_json::{Value, json};

/// A role of two workers under an endpoint of its own.
pub fn role(worker_type: WorkerType, hardware: Hardware) -> RolePlan {
    let endpoint = format!("dynamo/{worker_type}/generate").parse().unwrap();
    RolePlan {
        workers: 2,
        hardware,
        ..RolePlan::new(worker_type, endpoint)
    }
}

/// A model "m" of these roles.
pub fn plan(roles: Vec<RolePlan>) -> ModelPlan {
    ModelPlan::new(super::name("m"), roles)
}

pub fn quick() -> Hardware {
    Hardware {
        prefill_tokens_per_s: 1e6,
        decode_per_token: Duration::ZERO,
        ..Hardware::default()
    }
}

/// So slow that nothing ends unless it is told to.
pub fn endless() -> Hardware {
    Hardware {
        prefill_tokens_per_s: 1.0,
        decode_per_token: Duration::from_secs(3_600),
        ..Hardware::default()
    }
}

/// A reference frontend behind HTTP.
pub struct Site {
    pub frontend: Arc<Reference>,
    pub url: String,
    pub client: Client,
}

impl Site {
    pub async fn open(startup: Thresholds, plans: &[ModelPlan]) -> Site {
        let frontend = Reference::new(startup);
        for plan in plans {
            frontend.host(plan).unwrap();
        }
        let address = "127.0.0.1:0".parse().unwrap();
        let address = frontend.listen(address, false).await.unwrap();
        Site {
            frontend,
            url: format!("http://{address}"),
            client: Client::new(),
        }
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let url = format!("{}{path}", self.url);
        let answer = self.client.post(url).json(&body).send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(text.into()))
    }

    pub async fn get(&self, path: &str) -> String {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await;
        answer.unwrap().text().await.unwrap()
    }

    pub async fn idle(&self) {
        while self.frontend.serving() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

pub fn words(number: usize) -> String {
    (0..number).map(|at| format!("w{at} ")).collect()
}

/// Says which workers served it.
pub fn chat(content: &str) -> Value {
    json!({
        "model": "m", "max_tokens": 3, "messages": [{ "role": "user", "content": content }],
        "nvext": { "extra_fields": ["worker_id"] },
    })
}
