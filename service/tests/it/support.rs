//! A service to ask, agents to report, and small ways to do both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_log::memory::{MemoryBoard, MemoryLog};
use event_log::{EventLog, StatusBoard, Wiring};
use reqwest::{Method, StatusCode};
use schemas::status::{
    AgentStatus, ApplyState, Capability, FrontendStatus, LogFollowing, LogState, RouterStatus,
    ThresholdStatus,
};
use schemas::{
    AgentId, FrontendId, LogId, Name, PolicyId, Position, Revision, RouterId, RouterKey, Timestamp,
    WorkerType,
};
use serde_json::{Value, json};
use service::{Config, Running};
use uuid::Uuid;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A service and what it stands on.
pub struct Fixture {
    pub running: Option<Running>,
    pub log: Arc<dyn EventLog>,
    pub board: Arc<MemoryBoard>,
    pub config: Config,
    client: reqwest::Client,
    _dir: Option<tempfile::TempDir>,
}

pub fn memory_log(id: u128) -> Arc<dyn EventLog> {
    Arc::new(Arc::new(MemoryLog::new(LogId(Uuid::from_u128(id)))))
}

pub fn config(dir: &Path) -> Config {
    Config {
        fleet_settle: Duration::ZERO,
        stop_patience: Duration::from_secs(2),
        ..Config::new("127.0.0.1:0".parse().unwrap(), dir)
    }
}

impl Fixture {
    pub async fn new() -> Fixture {
        Fixture::over(memory_log(1)).await
    }

    pub async fn over(log: Arc<dyn EventLog>) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut fixture = Fixture::stopped(log, config);
        fixture._dir = Some(dir);
        fixture.start().await;
        fixture.ready().await;
        fixture
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        change(&mut config);
        let mut fixture = Fixture::stopped(memory_log(1), config);
        fixture._dir = Some(dir);
        fixture.start().await;
        fixture.ready().await;
        fixture
    }

    /// Not started yet; `config.data_dir` is the caller's.
    pub fn stopped(log: Arc<dyn EventLog>, config: Config) -> Fixture {
        Fixture {
            running: None,
            log,
            board: Arc::default(),
            config,
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            _dir: None,
        }
    }

    pub async fn start(&mut self) {
        let wiring = Wiring {
            log: Arc::clone(&self.log),
            board: Arc::clone(&self.board) as Arc<dyn StatusBoard>,
        };
        self.running = Some(service::start(self.config.clone(), wiring).await.unwrap());
    }

    pub async fn stop(&mut self) {
        assert!(self.running.take().unwrap().stop().await);
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.config.data_dir.clone()
    }

    pub async fn ready(&self) {
        self.until("/readyz", |answer| answer["ready"] == json!(true))
            .await;
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running().address())
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    /// Asks until the answer is as wanted.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let asking = async {
            loop {
                let (_, answer) = self.get(path).await;
                if wanted(&answer) {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        };
        match tokio::time::timeout(PATIENCE, asking).await {
            Ok(answer) => answer,
            Err(_) => panic!("{path} never became as wanted: {:?}", self.get(path).await),
        }
    }

    pub async fn send(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(method, path).json(body)).await
    }

    /// Sends with a header.
    pub async fn send_with(
        &self,
        method: Method,
        path: &str,
        header: (&str, &str),
        body: &Value,
    ) -> (StatusCode, Value) {
        answer(
            self.request(method, path)
                .header(header.0, header.1)
                .json(body),
        )
        .await
    }

    /// One change of the policy of one model, whatever its revision.
    pub async fn set(&self, model: &str, temperature: f64) -> Value {
        let body = json!({"changes": [change(model, temperature)]});
        let (status, answer) = self.send(Method::POST, "/v1/changes", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Reports, and waits until the service has heard it.
    pub async fn report(&self, status: AgentStatus) {
        let (agent, report) = (status.agent.to_string(), status.report);
        self.board.report(&status).await.unwrap();
        if status.leaving {
            let gone = |fleet: &Value| {
                let agents = fleet["agents"].as_array();
                agents
                    .is_some_and(|agents| agents.iter().all(|known| known["agent"] != json!(agent)))
            };
            self.until("/v1/convergence", gone).await;
            return;
        }
        self.until("/v1/convergence", |fleet| {
            fleet["agents"].as_array().is_some_and(|agents| {
                agents.iter().any(|known| {
                    known["agent"] == json!(agent)
                        && known["report"].as_u64().is_some_and(|at| at >= report)
                })
            })
        })
        .await;
    }
}

pub fn change(model: &str, temperature: f64) -> Value {
    json!({
        "kind": "worker_selection",
        "scope": {"model": model},
        "parameters": {"router_temperature": temperature}
    })
}

pub async fn answer(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, value)
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn router_key(model: &str) -> RouterKey {
    RouterKey {
        model: name(model),
        worker_type: WorkerType::Aggregated,
        endpoint: "dynamo/backend/generate".parse().unwrap(),
    }
}

pub fn fleet_id(model: &str) -> PolicyId {
    router_key(model).fleet_id()
}

/// The eight parameters with Dynamo's defaults.
pub fn defaults() -> Value {
    json!({
        "overlap_score_credit": 1.0, "overlap_score_credit_decay": 0.0, "prefill_load_scale": 1.0,
        "decode_active_request_weight": 0.0, "host_cache_hit_weight": 0.75,
        "disk_cache_hit_weight": 0.25, "shared_cache_multiplier": 0.0, "router_temperature": 0.0
    })
}

/// An agent with one frontend and one router, which stands as told at a position.
pub fn agent(id: &str, report: u64, position: Position, state: ApplyState) -> AgentStatus {
    let error = (state == ApplyState::Refused)
        .then(|| "replacement changes routing requirements".to_owned());
    AgentStatus {
        agent: AgentId(name(id)),
        group: None,
        version: "test".to_owned(),
        started_at: Timestamp::from_unix_ms(1_000),
        reported_at: Timestamp::from_unix_ms(2_000),
        report,
        interval_ms: 1_000,
        leaving: false,
        log: LogFollowing {
            state: LogState::Following,
            log_id: Some(LogId(Uuid::from_u128(1))),
            position,
            error: None,
        },
        frontends: vec![FrontendStatus {
            frontend: FrontendId(name(&format!("http://{id}"))),
            capability: Capability::RouterPolicy,
            reachable: true,
            error: None,
            listed_at: Some(Timestamp::from_unix_ms(2_000)),
            rival: None,
            routers: vec![RouterStatus {
                router_id: RouterId(Uuid::new_v5(&Uuid::NAMESPACE_DNS, id.as_bytes())),
                router: router_key("mock-model"),
                local_revision: Some(Revision(0)),
                parameters: serde_json::from_value(defaults()).unwrap(),
                state,
                position,
                error: error.clone(),
                since: Timestamp::from_unix_ms(1_500),
                drifts: 0,
            }],
            thresholds: vec![ThresholdStatus {
                model: name("mock-model"),
                thresholds: serde_json::from_value(json!({})).unwrap(),
                state: ApplyState::Applied,
                position,
                error: None,
                since: Timestamp::from_unix_ms(1_500),
                drifts: 0,
            }],
        }],
    }
}

/// A service with one live router of `mock-model`.
pub async fn with_router() -> Fixture {
    let fixture = Fixture::new().await;
    fixture
        .report(agent("a", 1, Position::START, ApplyState::Applied))
        .await;
    fixture
}
