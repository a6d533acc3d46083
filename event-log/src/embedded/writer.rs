//! The one thread that writes an embedded log.
//!
//! Owns: positions, compare-and-swap, group commit (everything that is queued goes into one sync), and opening the store
//! again after a failed write, so that a full disk is an error and not the end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use schemas::{Position, Subject};
use tokio::sync::{mpsc, oneshot, watch};

use super::store::{Store, Write};
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

pub(super) struct Writer {
    pub(super) dir: PathBuf,
    pub(super) slot: Slot,
    pub(super) lock: Arc<std::fs::File>,
    pub(super) head: watch::Sender<Position>,
}

impl Writer {
    /// Runs until every sender is gone.
    pub(super) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(first) = requests.blocking_recv() {
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
            store.write(&writes)
        };
        match stored {
            Ok(()) => {
                if let Some(last) = writes.last() {
                    store.note_end(last.position);
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
            match landed {
                // All or nothing: a batch is one entry of the journal.
                Ok(false) => Ok(false),
                Ok(true) => store
                    .settle()
                    .map(|()| {
                        if let Some(last) = writes.last() {
                            store.note_end(last.position);
                        }
                        true
                    })
                    .map_err(|why| why.to_string()),
                Err(why) => Err(why.to_string()),
            }
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
