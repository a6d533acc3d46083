//! Who has a place among the connections, and who gives it up for a newcomer.
//!
//! A client that only holds connections (it sends nothing, or half of a request's head, or keeps one open for later) must not
//! keep others from being heard: when all places are taken, the connection that has been open longest without a request in
//! hand is closed. One whose answer is still being sent, an event stream too, keeps its place.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

/// One connection's place.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    requests: Arc<AtomicUsize>,
    displaced: CancellationToken,
}

impl Place {
    /// A request is in hand until what is returned is dropped.
    pub(super) fn enter(&self) -> InHand {
        self.requests.fetch_add(1, Ordering::AcqRel);
        InHand(Arc::clone(&self.requests))
    }

    /// Completes once the place is given to somebody else.
    pub(super) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }
}

/// A request whose answer is not sent yet.
#[derive(Debug)]
pub(super) struct InHand(Arc<AtomicUsize>);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All places, oldest first.
#[derive(Debug, Default)]
pub(super) struct Places(VecDeque<Place>);

impl Places {
    /// A connection takes one.
    pub(super) fn take(&mut self) -> Place {
        self.forget_closed();
        let place = Place::default();
        self.0.push_back(place.clone());
        place
    }

    /// Closes the oldest one without a request in hand; false when there is none.
    pub(super) fn displace(&mut self) -> bool {
        self.forget_closed();
        let idle = |place: &Place| place.requests.load(Ordering::Acquire) == 0;
        let Some(at) = self.0.iter().position(idle) else {
            return false;
        };
        if let Some(place) = self.0.remove(at) {
            place.displaced.cancel();
        }
        true
    }

    /// Nobody else holds what is closed.
    fn forget_closed(&mut self) {
        self.0
            .retain(|place| Arc::strong_count(&place.requests) > 1);
    }
}

/// An answer that keeps its request in hand until it is sent.
pub(super) struct Answering {
    body: Body,
    _in_hand: InHand,
}

impl Answering {
    pub(super) fn body(body: Body, in_hand: InHand) -> Body {
        Body::new(Answering {
            body,
            _in_hand: in_hand,
        })
    }
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
