//! The one thread that writes an embedded log.
//!
//! Owns: positions, compare-and-swap, group commit (everything that is queued goes into one sync), and opening the store
//! again after a failed write, so that a full disk is an error and not the end. A store that does not open then is tried
//! again by itself: reads must not wait for somebody to write.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use schemas::{Position, Subject};
use tokio::sync::{mpsc, oneshot, watch};

use super::store::{Store, Write};
use crate::ambient;
use crate::crash;
use crate::port::{Appended, Failure};

/// One append on its way.
pub(super) struct Request {
    pub(super) subject: Subject,
    pub(super) expected: Position,
    pub(super) bytes: Bytes,
    pub(super) answer: oneshot::Sender<Result<Appended, Failure>>,
}

/// The open store, or `None` while it is being opened again.
pub(super) type Slot = Arc<Mutex<Option<Arc<Store>>>>;

/// Bound: appends in one sync. More wait for the next one.
const BATCH_MAX: usize = 256;
/// Bound: bytes in one sync, so that one batch fits the store's journal many times.
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Pauses between two tries to open the store again.
const REOPEN_MIN: Duration = Duration::from_millis(100);
const REOPEN_MAX: Duration = Duration::from_secs(5);
/// A pause is slept in pieces of this, so that an append or the end of the log need not wait for all of it.
const SLICE: Duration = Duration::from_millis(20);

pub(super) struct Writer {
    pub(super) dir: PathBuf,
    pub(super) slot: Slot,
    pub(super) lock: Arc<std::fs::File>,
    pub(super) head: watch::Sender<Position>,
}

impl Writer {
    /// Runs until every sender is gone.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(first) = self.next(&mut requests) {
            let mut bytes = first.bytes.len();
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
                let Ok(next) = requests.try_recv() else { break };
                bytes += next.bytes.len();
                batch.push(next);
            }
            self.write(batch);
        }
    }

    /// The next append; `None` when every sender is gone. Meanwhile a store that did not open is tried again.
    fn next(&mut self, requests: &mut mpsc::Receiver<Request>) -> Option<Request> {
        let mut attempt = 0;
        let mut pause = ambient::backoff(REOPEN_MIN, REOPEN_MAX, attempt);
        loop {
            if self.slot().is_some() {
                return requests.blocking_recv();
            }
            match requests.try_recv() {
                Ok(request) => return Some(request),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => {}
            }
            if pause > Duration::ZERO {
                std::thread::sleep(SLICE);
                pause = pause.saturating_sub(SLICE);
                continue;
            }
            attempt += 1;
            pause = ambient::backoff(REOPEN_MIN, REOPEN_MAX, attempt);
            let dir = self.dir.display().to_string();
            match self.reopen() {
                Ok(_) => tracing::info!(dir, "the embedded log is open again"),
                Err(why) => {
                    tracing::warn!(error = %why, dir, attempt, "the embedded log does not open again");
                }
            }
        }
    }

    fn write(&mut self, batch: Vec<Request>) {
        let store = match self.store() {
            Ok(store) => store,
            Err(why) => return refuse(batch, &why),
        };
        let (judged, writes) = match judge(&store, batch) {
            Ok(judged) => judged,
            Err((batch, why)) => {
                return refuse(batch, &format!("the log's store cannot be read: {why}"));
            }
        };
        let stored = if writes.is_empty() {
            Ok(())
        } else {
            crash::point("embedded.before_write");
            let stored = store.write(&writes);
            crash::point("embedded.after_write");
            stored
        };
        match stored {
            Ok(()) => {
                if let Some(last) = writes.last() {
                    store.note_end(last.position);
                    crash::point("embedded.marked");
                    self.head.send_replace(last.position);
                }
                for (request, appended) in judged {
                    // The caller may be gone; the record stays.
                    let _ = request.answer.send(Ok(appended));
                }
            }
            Err(why) => {
                tracing::error!(error = %why, dir = %self.dir.display(), "a write to the embedded log failed; opening its store again");
                drop(store);
                self.find_out(judged, &writes, &why.to_string());
            }
        }
    }

    /// After a failed write the database takes no more. Opened again, it shows what is stored.
    fn find_out(&mut self, judged: Vec<(Request, Appended)>, writes: &[Write], why: &str) {
        let settled = self.reopen().and_then(|store| {
            let landed = writes.first().map_or(Ok(false), |first| {
                store.at(first.position).map(|entry| entry.is_some())
            });
            // All or nothing: a batch is one entry of the journal. What landed is settled by now.
            landed.map_err(|why| why.to_string())
        });
        for (request, appended) in judged {
            let answer = match (&settled, appended) {
                (Ok(true), appended) => Ok(appended),
                (Ok(false), Appended::Committed(_) | Appended::Conflict) => Err(
                    Failure::Determinate(format!("the log could not be written: {why}")),
                ),
                (Err(again), Appended::Committed(_) | Appended::Conflict) => {
                    Err(Failure::Indeterminate(format!(
                        "the log could not be written ({why}) and not be read back ({again})"
                    )))
                }
            };
            let _ = request.answer.send(answer);
        }
    }

    fn store(&mut self) -> Result<Arc<Store>, String> {
        let open = self.slot().clone();
        match open {
            Some(store) => Ok(store),
            None => self.reopen(),
        }
    }

    fn reopen(&mut self) -> Result<Arc<Store>, String> {
        // Readers hold the old store only for one read each; the database can be opened again once they are done.
        drop(self.slot().take());
        let store = Store::reopen(&self.dir, self.lock.clone()).map_err(|why| why.to_string())?;
        let end = store.end().map_err(|why| why.to_string())?;
        // Invariant: nobody reads what a power cut could still take away.
        if end > *self.head.borrow() {
            store.settle().map_err(|why| why.to_string())?;
            store.note_end(end);
        }
        let store = Arc::new(store);
        *self.slot() = Some(store.clone());
        self.head.send_replace(end);
        Ok(store)
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Store>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse(batch: Vec<Request>, why: &str) {
    for request in batch {
        let _ = request
            .answer
            .send(Err(Failure::Determinate(why.to_owned())));
    }
}

type Judged = (Vec<(Request, Appended)>, Vec<Write>);

/// Compare-and-swap of each request, as if those before it in the batch were stored.
fn judge(store: &Store, batch: Vec<Request>) -> Result<Judged, (Vec<Request>, fjall::Error)> {
    let mut tails: BTreeMap<Subject, Position> = BTreeMap::new();
    let look = || -> fjall::Result<Position> {
        for request in &batch {
            if !tails.contains_key(&request.subject) {
                tails.insert(request.subject.clone(), store.tail(&request.subject)?);
            }
        }
        store.end()
    };
    let mut end = match { look }() {
        Ok(end) => end,
        Err(why) => return Err((batch, why)),
    };
    let mut judged = Vec::with_capacity(batch.len());
    let mut writes = Vec::new();
    for request in batch {
        let tail = tails.entry(request.subject.clone()).or_default();
        if *tail != request.expected {
            judged.push((request, Appended::Conflict));
            continue;
        }
        end = Position(end.0 + 1);
        *tail = end;
        writes.push(Write {
            position: end,
            subject: request.subject.clone(),
            bytes: request.bytes.clone(),
        });
        judged.push((request, Appended::Committed(end)));
    }
    Ok((judged, writes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::LogId;

    #[test]
    fn regression_a_store_that_did_not_open_again_comes_back_without_an_append() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("log");
        let store = Store::open(&dir, Some(LogId(uuid::Uuid::from_u128(7)))).unwrap();
        let lock = store.lock();
        drop(store);
        let (in_place, away) = (dir.join("store"), dir.join("away"));
        std::fs::rename(&in_place, &away).unwrap();
        let slot = Slot::default();
        let (head, _watched) = watch::channel(Position::START);
        let writer = Writer {
            dir,
            slot: slot.clone(),
            lock,
            head,
        };
        let (requests, queue) = mpsc::channel(1);
        let running = std::thread::spawn(move || writer.run(queue));
        let (answer, answered) = oneshot::channel();
        let request = Request {
            subject: Subject::from_log("m"),
            expected: Position::START,
            bytes: Bytes::from_static(b"{}"),
            answer,
        };
        requests.blocking_send(request).unwrap();
        let refused = answered.blocking_recv().unwrap();
        assert!(
            matches!(refused, Err(Failure::Determinate(_))),
            "{refused:?}"
        );
        std::fs::rename(&away, &in_place).unwrap();
        let begun = std::time::Instant::now();
        while slot.lock().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(30), "never came back");
            std::thread::yield_now();
        }
        drop(requests);
        running.join().unwrap();
    }
}
