//! How much memory answers may take that clients have not taken yet.
//!
//! A client that asks and does not read costs its answer until it is cut off, and thousands may do so at once. Small answers
//! and pieces are bounded by the number of connections; larger ones are counted here, byte by byte until they are sent.

use axum::body::{Body, HttpBody as _};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::App;
use super::problem::Problem;

/// Up to this nothing is counted.
const LIGHT_BYTES: usize = 64 << 10;

/// Bytes that give their place back when the last of them is sent, or their client is gone.
struct Counted {
    bytes: Bytes,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Counted {
    fn bytes(bytes: Bytes, place: OwnedSemaphorePermit) -> Bytes {
        Bytes::from_owner(Counted {
            bytes,
            _place: place,
        })
    }
}

/// What a size takes of the whole; never more than there is, so that the largest answer can be given too.
fn places(app: &App, bytes: usize) -> u32 {
    u32::try_from(bytes >> 10)
        .unwrap_or(u32::MAX)
        .min(app.config.answers_kib_max)
}

/// What large answers take now.
pub(super) fn waiting_kib(app: &App) -> u64 {
    let free = u64::try_from(app.weight.available_permits()).unwrap_or(u64::MAX);
    u64::from(app.config.answers_kib_max).saturating_sub(free)
}

/// An answer, or 503 when too many large ones wait for their clients.
pub(super) async fn bounded(app: &App, response: Response) -> Response {
    let size = response.body().size_hint().exact();
    let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else {
        return response;
    };
    if size <= LIGHT_BYTES {
        return response;
    }
    let weight = std::sync::Arc::clone(&app.weight);
    let Ok(place) = weight.try_acquire_many_owned(places(app, size)) else {
        app.metrics.limit("answers");
        return Problem::overloaded("too many large answers wait for their clients")
            .into_response();
    };
    let (head, body) = response.into_parts();
    // All of it is there already: its size is known.
    match axum::body::to_bytes(body, size).await {
        Ok(bytes) => Response::from_parts(head, Body::from(Counted::bytes(bytes, place))),
        Err(why) => {
            tracing::error!(error = %why, "an answer could not be read");
            Problem::overloaded("the answer could not be made").into_response()
        }
    }
}

/// A stream's next piece, once there is room for it; `None` when the service stops.
pub(super) async fn wait(app: &App, bytes: Bytes) -> Option<Bytes> {
    if bytes.len() <= LIGHT_BYTES {
        return Some(bytes);
    }
    let weight = std::sync::Arc::clone(&app.weight);
    tokio::select! {
        () = app.stop.cancelled() => None,
        place = weight.acquire_many_owned(places(app, bytes.len())) => {
            place.ok().map(|place| Counted::bytes(bytes, place))
        }
    }
}
