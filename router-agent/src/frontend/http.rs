//! The HTTP routes: OpenAI-style completions from simulated workers, selection alone, models, metrics, and the façade.
//!
//! Owns: bodies and statuses. Never does: serve.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use event_log::ambient;
use futures::StreamExt as _;
use scheduler::facade;
use serde::Deserialize;
use serde_json::{Value, json};
use tower_http::timeout::TimeoutLayer;

use super::{Completion, Placed, Reference, ServeError, metrics};

/// Bound: a request's body.
const BODY_MAX: usize = 1024 * 1024;
/// Bound: from a request's head to the head of its answer.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// Output tokens of a request that does not say how many.
const OUTPUT_TOKENS: u32 = 16;

type Shared = State<Arc<Reference>>;

pub(super) fn routes(frontend: Arc<Reference>, facade_disabled: bool) -> Router {
    let facade_of = facade::Frontend {
        routers: frontend.routers.clone(),
        models: frontend.busy.clone(),
        patience: facade::PATIENCE,
    };
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/select", post(select))
        .route("/v1/models", get(models))
        .route("/metrics", get(text_metrics))
        .route("/health", get(health))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            REQUEST_MAX,
        ))
        .with_state(frontend)
        .merge(facade::routes(facade_of, facade_disabled))
        .fallback(facade::not_found)
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

/// Dynamo's extension.
#[derive(Deserialize, Default)]
struct Nvext {
    /// `worker_id` asks which worker served it.
    #[serde(default)]
    extra_fields: Vec<String>,
}

#[derive(Deserialize)]
struct Chat {
    model: String,
    messages: Vec<Message>,
    max_completion_tokens: Option<u32>,
    max_tokens: Option<u32>,
    #[serde(default)]
    stream: bool,
    nvext: Option<Nvext>,
}

/// One of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Select {
    model: String,
    messages: Option<Vec<Message>>,
    prompt: Option<String>,
    token_ids: Option<Vec<u32>>,
}

/// Not a model's tokens: one per word, equal for equal words. Enough for equal prefixes to be equal.
fn tokens_of(text: &str) -> impl Iterator<Item = u32> {
    text.split_whitespace().map(|word| {
        let mut hasher = DefaultHasher::new();
        word.hash(&mut hasher);
        hasher.finish() as u32
    })
}

fn tokens_of_messages(messages: &[Message]) -> Vec<u32> {
    let of = |message: &Message| -> Vec<u32> {
        tokens_of(&message.role)
            .chain(tokens_of(&message.content))
            .collect()
    };
    messages.iter().flat_map(of).collect()
}

async fn chat(
    State(frontend): Shared,
    body: Result<Json<Chat>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(body) = body?;
    let tokens = tokens_of_messages(&body.messages);
    let max_tokens = body.max_completion_tokens.or(body.max_tokens);
    let max_tokens = max_tokens.unwrap_or(OUTPUT_TOKENS);
    let completion = frontend.complete(&body.model, &tokens, max_tokens).await?;
    let asked = body.nvext.unwrap_or_default().extra_fields;
    let worker_asked = asked.iter().any(|field| field == "worker_id");
    let id = format!("chatcmpl-{}", ambient::new_id());
    let created = ambient::now().unix_ms() / 1_000;
    let answer = Answer {
        id,
        created,
        model: body.model,
        worker_asked,
    };
    if body.stream {
        Ok(answer.stream(completion))
    } else {
        answer.whole(completion).await
    }
}

/// As Dynamo names them; the encode worker only of a model that has some.
fn workers(placed: &Placed) -> Value {
    let mut ids = json!({
        "prefill_worker_id": placed.prefill_worker, "decode_worker_id": placed.decode_worker,
    });
    if let Some(worker) = placed.encode_worker {
        ids["encode_worker_id"] = worker.into();
    }
    ids
}

/// What every part of an answer repeats.
struct Answer {
    id: String,
    created: u64,
    model: String,
    worker_asked: bool,
}

impl Answer {
    fn value(&self, object: &str, choice: &Value, placed: Option<&Placed>) -> Value {
        let mut value = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": [choice],
        });
        if let (Some(placed), true, Some(fields)) =
            (placed, self.worker_asked, value.as_object_mut())
        {
            fields.insert("nvext".to_owned(), json!({ "worker_id": workers(placed) }));
        }
        value
    }

    async fn whole(self, mut completion: Completion) -> Result<Response, Problem> {
        let (mut text, mut tokens) = (String::new(), 0_u32);
        while let Some(piece) = completion.pieces.recv().await {
            text.push_str(&piece?);
            tokens += 1;
        }
        let placed = completion.placed;
        let message = json!({ "role": "assistant", "content": text.trim_end() });
        let choice = json!({ "index": 0, "message": message, "finish_reason": "length" });
        let mut value = self.value("chat.completion", &choice, Some(&placed));
        let prompt = placed.prompt_tokens;
        value["usage"] = json!({
            "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens as usize,
            "prompt_tokens_details": { "cached_tokens": placed.cached_tokens },
        });
        Ok(Json(value).into_response())
    }

    fn stream(self, completion: Completion) -> Response {
        let object = "chat.completion.chunk";
        let delta = json!({ "role": "assistant", "content": "" });
        let first = json!({ "index": 0, "delta": delta, "finish_reason": null });
        let first = self.value(object, &first, Some(&completion.placed));
        let last = json!({ "index": 0, "delta": {}, "finish_reason": "length" });
        let last = self.value(object, &last, None);
        let pieces = futures::stream::unfold(
            (self, completion, Some(last)),
            move |(answer, mut completion, mut last)| async move {
                let data = match completion.pieces.recv().await {
                    Some(Ok(text)) => {
                        let delta = json!({ "content": text });
                        let choice = json!({ "index": 0, "delta": delta, "finish_reason": null });
                        answer.value(object, &choice, None)
                    }
                    Some(Err(why)) => {
                        last = None;
                        json!({ "error": { "message": why.to_string() } })
                    }
                    None => last.take()?,
                };
                Some((data.to_string(), (answer, completion, last)))
            },
        );
        let first = futures::stream::iter([first.to_string()]);
        let done = futures::stream::iter(["[DONE]".to_owned()]);
        let all = first.chain(pieces).chain(done);
        let events =
            all.map(|data| Ok::<Event, std::convert::Infallible>(Event::default().data(data)));
        Sse::new(events).into_response()
    }
}

async fn select(
    State(frontend): Shared,
    body: Result<Json<Select>, JsonRejection>,
) -> Result<Response, Problem> {
    let Json(body) = body?;
    let tokens = match (body.messages, body.prompt, body.token_ids) {
        (Some(messages), None, None) => tokens_of_messages(&messages),
        (None, Some(prompt), None) => tokens_of(&prompt).collect(),
        (None, None, Some(tokens)) => tokens,
        (_, _, _) => {
            let text = "give one of messages, prompt and token_ids".to_owned();
            return Err(Problem(StatusCode::BAD_REQUEST, text));
        }
    };
    let placed = frontend.select(&body.model, &tokens).await?;
    // `worker_id` is the one that is selected for its cache.
    let value = json!({
        "model": body.model, "worker_id": placed.prefill_worker, "dp_rank": 0, "workers": workers(&placed),
        "prompt_tokens": placed.prompt_tokens, "cached_tokens": placed.cached_tokens,
    });
    Ok(Json(value).into_response())
}

async fn models(State(frontend): Shared) -> Response {
    let models = frontend.models();
    let data: Vec<Value> = models
        .iter()
        .map(|name| json!({ "id": name, "object": "model", "owned_by": "router-agent" }))
        .collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

async fn text_metrics(State(frontend): Shared) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, metrics::text(&frontend)).into_response()
}

async fn health(State(frontend): Shared) -> Response {
    Json(json!({ "status": "healthy", "models": frontend.models() })).into_response()
}

/// A refusal as Dynamo words it.
struct Problem(StatusCode, String);

impl From<JsonRejection> for Problem {
    fn from(why: JsonRejection) -> Problem {
        Problem(why.status(), why.body_text())
    }
}

impl From<ServeError> for Problem {
    fn from(why: ServeError) -> Problem {
        let status = match &why {
            ServeError::UnknownModel(_) => StatusCode::NOT_FOUND,
            // 529, "overloaded": no name in HTTP's registry.
            ServeError::Overloaded(_) => {
                StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
            }
            ServeError::TooLong { .. } => StatusCode::BAD_REQUEST,
            ServeError::Crowded(_) | ServeError::NoWorker(_) => StatusCode::SERVICE_UNAVAILABLE,
            ServeError::Scheduler(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem(status, why.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem(status, message) = self;
        let kind = match status.as_u16() {
            529 => "Overloaded",
            _ => status.canonical_reason().unwrap_or("Error"),
        };
        let body = json!({ "message": message, "type": kind, "code": status.as_u16() });
        (status, Json(body)).into_response()
    }
}
