//! A log in NATS JetStream, and the status board beside it. The only code that names async-nats.
//!
//! Durable: an acknowledged record is stored by a majority of the stream's replicas; with one replica (and after the loss
//! of power of a majority) as durable as `sync_interval` of the server says: only `always` survives a power cut.
//!
//! Permissions that a connection needs are data: [`crate::nats_config::grant`].
//! A refused permission shows as a missing answer whose words name it, and as an error in the log of this process.
//!
//! Lazy: making it needs no broker. Every call connects as needed and fails quickly, and definitely, while there is none.

mod append;
mod board;
mod codes;
mod connection;
mod delivery;
mod ensure;
mod login;
mod read;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use schemas::{LogId, Position, Subject};

pub use board::REPORT_MAX_AGE;

use crate::follow::{self, Facts, OpenFeed, Source};
use crate::identity::Identity;
use crate::options::Options;
use crate::port::{
    Appended, Entry, EventLog, Failure, Head, LogReader, Seen, StatusBoard, Subscription, Tails,
};
use connection::Link;
use delivery::{Delivery, Start};

/// A log in JetStream. Cheap to clone.
#[derive(Clone)]
pub struct JetStreamLog {
    inner: Arc<Inner>,
}

struct Inner {
    link: Arc<Link>,
    stream: String,
    /// The differences of the configuration that were logged last.
    told: Mutex<Vec<String>>,
    /// The last position that this process saw in the log, by an answer or a delivery of any server.
    seen: Arc<AtomicU64>,
    /// The stream was found fit for use, by this process.
    looked: AtomicBool,
}

impl Inner {
    fn saw(&self, position: Position) {
        self.seen.fetch_max(position.0, Ordering::AcqRel);
    }

    fn seen(&self) -> Position {
        Position(self.seen.load(Ordering::Acquire))
    }

    fn identity(&self) -> &Identity {
        &self.link.options().identity
    }

    /// The log's identity: known, or asked for (and the stream made, where that is allowed).
    async fn log_id(&self) -> Result<LogId, Failure> {
        // Before the first look nothing is known of how the stream is configured, so a known identity is not enough.
        let looked = self.looked.load(Ordering::Acquire);
        match self.identity().known() {
            Some(known) if looked => Ok(known),
            Some(_) | None => self.facts().await.map(|facts| facts.log_id),
        }
    }
}

#[async_trait]
impl Source for Inner {
    async fn open(&self, log_id: LogId, after: Position) -> Result<OpenFeed, Failure> {
        self.saw(after);
        let facts = self.facts().await?;
        let delivery = Delivery::open(self, log_id, Start::After(after)).await?;
        Ok(OpenFeed {
            left: delivery.left_at_start(),
            feed: Box::new(delivery),
            facts,
        })
    }

    async fn record(&self, position: Position) -> Result<Option<Entry>, Failure> {
        self.at(position).await
    }

    async fn look(&self) -> Result<Facts, Failure> {
        self.facts().await
    }

    fn link(&self) -> tokio::sync::watch::Receiver<bool> {
        self.link.watch()
    }

    fn options(&self) -> &Options {
        self.link.options()
    }
}

impl JetStreamLog {
    /// For the servers in `urls` (separated by commas). Does not connect.
    #[must_use]
    pub fn new(urls: impl Into<String>, options: Options) -> JetStreamLog {
        let stream = options.stream.clone();
        JetStreamLog {
            inner: Arc::new(Inner {
                link: Arc::new(Link::new(urls.into(), options)),
                stream,
                told: Mutex::default(),
                seen: Arc::default(),
                looked: AtomicBool::new(false),
            }),
        }
    }

    /// The status board at the same servers, over the same connection.
    #[must_use]
    pub fn board(&self) -> Arc<dyn StatusBoard> {
        Arc::new(board::KvBoard {
            link: self.inner.link.clone(),
        })
    }
}

impl std::fmt::Debug for JetStreamLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JetStreamLog")
            .field("stream", &self.inner.stream)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl LogReader for JetStreamLog {
    async fn head(&self) -> Result<Head, Failure> {
        self.inner.head().await
    }

    async fn tails(&self) -> Result<Tails, Failure> {
        self.inner.tails().await
    }

    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure> {
        self.inner.next_on(subject, after).await
    }

    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        self.inner.at(position).await
    }

    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure> {
        self.inner.saw(seen.position);
        follow::follow(self.inner.clone(), seen).await
    }
}

#[async_trait]
impl EventLog for JetStreamLog {
    async fn append(
        &self,
        subject: &Subject,
        expected: Position,
        bytes: Bytes,
    ) -> Result<Appended, Failure> {
        self.inner.append(subject, expected, bytes).await
    }
}
