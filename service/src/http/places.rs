//! Who has a place among the connections, and who gives it up for a newcomer.
//!
//! A client that only holds connections (it sends nothing, or half of a request's head, or keeps one open for later) must not
//! keep others from being heard: when all places are taken, the connection that has been open longest without a request in
//! hand is closed. One whose answer is still being sent, an event stream too, keeps its place.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::CancellationToken;

use super::count::{Count, Counted};

/// One connection's place.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    /// Requests in hand.
    pub(super) requests: Count,
    /// The connection is closed, or is to be closed.
    pub(super) over: CancellationToken,
}

/// All places, oldest first.
#[derive(Debug, Default)]
pub(super) struct Places {
    places: VecDeque<Place>,
    /// With so many, those that are over are forgotten: half of them are new since the last time.
    forget_at: usize,
}

impl Places {
    /// A connection takes one.
    pub(super) fn take(&mut self) -> Place {
        if self.places.len() >= self.forget_at {
            self.forget_over();
            self.forget_at = 2 * self.places.len() + 1;
        }
        let place = Place::default();
        self.places.push_back(place.clone());
        place
    }

    /// Closes the oldest one without a request in hand, if there is one.
    pub(super) fn displace(&mut self) {
        self.forget_over();
        if let Some(idle) = self.places.iter().find(|place| place.requests.now() == 0) {
            idle.over.cancel();
        }
    }

    fn forget_over(&mut self) {
        self.places.retain(|place| !place.over.is_cancelled());
    }
}

/// An answer that keeps its request in hand until it is sent.
pub(super) struct Answering {
    body: Body,
    _in_hand: Counted,
}

impl Answering {
    pub(super) fn body(body: Body, in_hand: Counted) -> Body {
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
