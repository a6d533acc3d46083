//! A log in a folder of this machine, for a service without NATS.
//!
//! Durable: an acknowledged record was synced (`fsync`) and survives a power cut. One process at a time. A damaged or
//! missing log is an error and is never made anew: it is a source of truth.

mod folder;
mod store;
mod writer;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use schemas::{LogId, Position, Subject};
use tokio::sync::{mpsc, oneshot, watch};

pub use store::OpenError;

use crate::identity::recognise;
use crate::port::{Appended, Entry, EventLog, Failure, Head, LogReader, Seen, Subscription, Tails};
use store::Store;
use writer::{Request, Slot, Writer};

/// The largest record, in bytes: what a NATS server takes by default, so that a log can move there.
pub const RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Bound: appends that wait for the writer; more wait in their callers.
const QUEUE_MAX: usize = 1_024;
/// Bound: what a follower reads at once.
const CHUNK_RECORDS: usize = 256;
const CHUNK_BYTES: usize = 1024 * 1024;

/// A log in a folder. Closed when dropped (which waits for the write under way, at most one sync).
pub struct EmbeddedLog {
    log_id: LogId,
    reading: Reading,
    requests: Option<mpsc::Sender<Request>>,
    writer: Option<std::thread::JoinHandle<()>>,
}

#[derive(Clone)]
struct Reading {
    dir: PathBuf,
    slot: Slot,
    head: watch::Receiver<Position>,
}

impl EmbeddedLog {
    /// Opens the log in `dir`. With `create` one with that identity is made where there never was one. Blocks on disk.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, create: Option<LogId>) -> Result<EmbeddedLog, OpenError> {
        let failed = |why: String| OpenError::Damaged {
            dir: dir.to_owned(),
            why,
        };
        let store = Store::open(dir, create)?;
        let log_id = store.log_id;
        let end = store.end().map_err(|why| failed(why.to_string()))?;
        let lock = store.lock();
        let slot: Slot = Arc::new(Mutex::new(Some(Arc::new(store))));
        let (head, watched) = watch::channel(end);
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let writer = Writer {
            dir: dir.to_owned(),
            slot: slot.clone(),
            lock,
            head,
        };
        let writer = std::thread::Builder::new()
            .name("embedded-log".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|source| OpenError::Folder {
                dir: dir.to_owned(),
                source,
            })?;
        Ok(EmbeddedLog {
            log_id,
            reading: Reading {
                dir: dir.to_owned(),
                slot,
                head: watched,
            },
            requests: Some(requests),
            writer: Some(writer),
        })
    }

    /// Identity of the log.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    fn now(&self) -> Head {
        Head {
            log_id: self.log_id,
            position: *self.reading.head.borrow(),
        }
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(dir = %self.reading.dir.display(), "the writer of the embedded log panicked");
        }
    }
}

impl std::fmt::Debug for EmbeddedLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedLog")
            .field("log_id", &self.log_id)
            .field("dir", &self.reading.dir)
            .finish_non_exhaustive()
    }
}

impl Reading {
    /// Reads off the async threads.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> fjall::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let slot = self.slot.clone();
        let run = move || {
            let store = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let store = store.ok_or_else(|| "it is being opened again".to_owned())?;
            read(&store).map_err(|why| why.to_string())
        };
        tokio::task::spawn_blocking(run)
            .await
            .unwrap_or_else(|why| Err(why.to_string()))
            .map_err(|why| {
                let dir = self.dir.display();
                Failure::Determinate(format!("the log in {dir} cannot be read: {why}"))
            })
    }
}

#[async_trait]
impl LogReader for EmbeddedLog {
    async fn head(&self) -> Result<Head, Failure> {
        Ok(self.now())
    }

    async fn tails(&self) -> Result<Tails, Failure> {
        let (entries, position) = self.reading.read(Store::tails).await?;
        Ok(Tails {
            entries,
            up_to: Head {
                log_id: self.log_id,
                position,
            },
        })
    }

    async fn next_on(&self, subject: &Subject, after: Position) -> Result<Option<Entry>, Failure> {
        let subject = subject.clone();
        self.reading
            .read(move |store| store.next_on(&subject, after))
            .await
    }

    async fn at(&self, position: Position) -> Result<Option<Entry>, Failure> {
        self.reading.read(move |store| store.at(position)).await
    }

    async fn follow(&self, seen: Seen) -> Result<Box<dyn Subscription>, Failure> {
        recognise(seen, self.now())?;
        Ok(Box::new(Cursor {
            reading: self.reading.clone(),
            after: seen.position,
            read: VecDeque::new(),
        }))
    }
}

#[async_trait]
impl EventLog for EmbeddedLog {
    async fn append(
        &self,
        subject: &Subject,
        expected: Position,
        bytes: Bytes,
    ) -> Result<Appended, Failure> {
        let refuse = |why: String| Err(Failure::Determinate(why));
        if bytes.len() > RECORD_BYTES_MAX {
            return refuse(format!(
                "the record has {} bytes, at most {RECORD_BYTES_MAX} are allowed",
                bytes.len()
            ));
        }
        if subject.as_str().contains('\0') {
            return refuse("the subject has a NUL in it".to_owned());
        }
        let Some(requests) = &self.requests else {
            return refuse("the log is closed".to_owned());
        };
        let (answer, answered) = oneshot::channel();
        let request = Request {
            subject: subject.clone(),
            expected,
            bytes,
            answer,
        };
        if requests.send(request).await.is_err() {
            return refuse("the writer of the log has stopped".to_owned());
        }
        answered.await.unwrap_or_else(|_| {
            Err(Failure::Indeterminate(
                "the writer of the log stopped before it answered".to_owned(),
            ))
        })
    }
}

struct Cursor {
    reading: Reading,
    after: Position,
    read: VecDeque<Entry>,
}

#[async_trait]
impl Subscription for Cursor {
    async fn next(&mut self) -> Result<Entry, Failure> {
        loop {
            if let Some(entry) = self.read.pop_front() {
                self.after = entry.position;
                return Ok(entry);
            }
            // Marked as seen before reading, so that a write in between wakes the wait below.
            let head = *self.reading.head.borrow_and_update();
            if head > self.after {
                let after = self.after;
                let chunk = self
                    .reading
                    .read(move |store| store.after(after, CHUNK_RECORDS, CHUNK_BYTES))
                    .await?;
                self.read = chunk.into();
                if !self.read.is_empty() {
                    continue;
                }
            }
            if self.reading.head.changed().await.is_err() {
                return Err(Failure::Determinate("the log is closed".to_owned()));
            }
        }
    }
}
