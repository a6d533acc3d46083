//! A whole service in this process, asked without a socket: what is common to requests and queries.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use event_log::memory::{MemoryBoard, MemoryLog};
use event_log::testing::TemporaryFolder;
use event_log::{StatusBoard as _, Wiring};
use http_body_util::BodyExt as _;
use schemas::LogId;
use schemas::status::AgentStatus;
use service::{Config, Running};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;
use uuid::Uuid;

/// Bound: changes that one service takes before it is replaced, so that memory does not grow with the number of inputs.
const WRITES_MAX: u32 = 2_000;

/// A policy that is there, with two revisions.
pub(crate) const POLICY: &str = r#"{"changes":[{"kind":"worker_selection","scope":{"model":"m","worker_type":"aggregated","endpoint":"n/c/e"},"parameters":{"router_temperature":0.5}},{"kind":"busy_threshold","scope":{"model":"m"},"parameters":{"active_decode_blocks_threshold":0.5}}]}"#;

/// The id of the first policy in [`POLICY`].
pub(crate) fn policy_id() -> String {
    let scope = r#"{"kind":"worker_selection","scope":{"model":"m","worker_type":"aggregated","endpoint":"n/c/e"}}"#;
    let key: schemas::PolicyKey = serde_json::from_str(scope).expect("a key");
    key.id().to_string()
}

struct Serving {
    runtime: Runtime,
    running: Option<Running>,
    routes: Router,
    writes: u32,
    _folder: TemporaryFolder,
}

thread_local! {
    // SUBTLE: not dropped with its thread: a runtime cannot be, once the thread's own variables are gone.
    static SERVING: RefCell<ManuallyDrop<Option<Serving>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// What came back, as far as it was read: a stream's first piece.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) json: serde_json::Value,
}

/// Asks. Every answer must be one of a service in good health.
pub(crate) fn ask(request: Request<Body>) -> Answer {
    SERVING.with_borrow_mut(|serving| {
        if serving
            .as_ref()
            .is_none_or(|serving| serving.writes > WRITES_MAX)
        {
            drop(serving.take());
            **serving = Some(Serving::start());
        }
        let serving = serving.as_mut().expect("just started");
        let shown = format!("{} {}", request.method(), request.uri());
        let write = !request.method().is_safe();
        let answer = serving
            .runtime
            .block_on(read(serving.routes.clone(), request));
        if write && answer.status.is_success() {
            serving.writes += 1;
        }
        assert!(
            answer.status.as_u16() < 500,
            "{shown}: {} {}",
            answer.status,
            answer.json
        );
        if answer.status.as_u16() >= 400 {
            let words = |field: &str| {
                answer.json[field]
                    .as_str()
                    .is_some_and(|text| !text.is_empty())
            };
            assert!(words("error") && words("code"), "{shown}: {}", answer.json);
        }
        let stopping = serving.running.as_ref().is_none_or(Running::is_stopping);
        assert!(!stopping, "{shown}: a task of the service panicked");
        answer
    })
}

/// Stops this thread's service, if there is one, and removes its folder.
pub(crate) fn finish() {
    drop(SERVING.with_borrow_mut(|serving| serving.take()));
}

async fn read(routes: Router, request: Request<Body>) -> Answer {
    let response: Response<Body> = routes.oneshot(request).await.expect("routes do not fail");
    let (head, mut body) = response.into_parts();
    let kind = head.headers.get("content-type");
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let stream = ["text/event-stream", "application/x-ndjson"].contains(&kind);
    let bytes = if stream {
        let frame = body.frame().await;
        frame
            .and_then(Result::ok)
            .and_then(|frame| frame.into_data().ok())
            .unwrap_or_default()
    } else {
        body.collect().await.expect("a whole answer").to_bytes()
    };
    let json = if kind.starts_with("application/json") {
        serde_json::from_slice(&bytes).expect("JSON as said")
    } else {
        serde_json::Value::Null
    };
    Answer {
        status: head.status,
        json,
    }
}

impl Serving {
    fn start() -> Serving {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = TemporaryFolder::new().expect("a folder");
        let (running, routes) = runtime.block_on(begin(folder.path().to_owned()));
        Serving {
            runtime,
            running: Some(running),
            routes,
            writes: 0,
            _folder: folder,
        }
    }
}

async fn begin(folder: PathBuf) -> (Running, Router) {
    let board = Arc::new(MemoryBoard::default());
    let status = include_str!("../status.json");
    let status: AgentStatus = serde_json::from_str(status).expect("golden");
    board.report(&status).await.expect("a board in memory");
    let wiring = Wiring {
        log: Arc::new(Arc::new(MemoryLog::new(LogId(Uuid::from_u128(1))))),
        board,
    };
    let config = Config::new("127.0.0.1:0".parse().expect("an address"), folder);
    let running = service::start(config, wiring).await.expect("a service");
    let routes = running.routes();
    for _ in 0..2 {
        let request = Request::post("/v1/changes").header("content-type", "application/json");
        let request = request.body(Body::from(POLICY)).expect("a request");
        let answer = read(routes.clone(), request).await;
        assert_eq!(answer.status, 200, "{}", answer.json);
    }
    (running, routes)
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running.stop());
        }
    }
}
