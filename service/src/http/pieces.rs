//! Pieces of event streams, shared: thousands of streams that wait for one record read and write it out once.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use schemas::Position;
use tokio::sync::Semaphore;

use super::App;
use super::events::Format;
use super::log::line;
use crate::projection::store::{Direction, Portion, StoreError, StoredRecord};

/// Bound: pieces kept: those of the newest records, for streams that are a little late.
const KEPT_MAX: usize = 8;
/// Bound: streams that read the store at once, so that whoever asks something else need not wait for all of them.
const READERS_MAX: usize = 4;

/// Some records as they are sent.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    /// Empty when there are none.
    pub(super) bytes: Bytes,
    /// The last of them.
    pub(super) end: Position,
}

/// The newest pieces.
pub struct Pieces {
    kept: Mutex<VecDeque<(Position, Format, Piece)>>,
    readers: Semaphore,
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces {
            kept: Mutex::default(),
            readers: Semaphore::new(READERS_MAX),
        }
    }
}

impl Pieces {
    /// The records after a position.
    pub(super) async fn after(
        &self,
        app: &App,
        after: Position,
        format: Format,
    ) -> Result<Piece, StoreError> {
        if let Some(piece) = self.known(after, format) {
            return Ok(piece);
        }
        // Never closed, so the place is always there.
        let _place = self.readers.acquire().await.ok();
        // Another stream may have read it meanwhile.
        if let Some(piece) = self.known(after, format) {
            return Ok(piece);
        }
        let read = move |store: &crate::projection::store::Store| {
            let records = store.records(Direction::Up, after, Portion::PIECE)?;
            Ok(written(records, after, format))
        };
        let piece = app.projection.read(read).await?;
        // What lies further back is read by few.
        if piece.end > after && piece.end == app.projection.snapshot().state.position {
            let mut kept = self.lock();
            if kept.len() >= KEPT_MAX {
                kept.pop_front();
            }
            kept.push_back((after, format, piece.clone()));
        }
        Ok(piece)
    }

    fn known(&self, after: Position, format: Format) -> Option<Piece> {
        let kept = self.lock();
        let mut newest_first = kept.iter().rev();
        newest_first
            .find(|(from, of, _)| *from == after && *of == format)
            .map(|(_, _, piece)| piece.clone())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Position, Format, Piece)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn written(records: Vec<StoredRecord>, after: Position, format: Format) -> Piece {
    let mut out = Vec::new();
    let mut end = after;
    for record in records {
        end = record.position;
        if format == Format::Sse {
            out.extend_from_slice(format!("id: {end}\ndata: ").as_bytes());
        }
        // Invariant: a line holds only strings, numbers and checked JSON, so encoding cannot fail.
        out.extend(serde_json::to_vec(&line(record)).unwrap_or_default());
        out.extend_from_slice(match format {
            Format::Sse => b"\n\n",
            Format::Ndjson => b"\n",
        });
    }
    Piece {
        bytes: out.into(),
        end,
    }
}
