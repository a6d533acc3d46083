//! Records as lines of JSON, and streams of them.

use async_trait::async_trait;
use base64::Engine as _;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use schemas::event::record_hash;
use schemas::{Hash, Position, Subject};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{LINE_BYTES_MAX, SILENCE_MAX};
use crate::follow::{Arrival, Feed};
use crate::port::{Entry, Failure};

/// One record as the service writes it.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    position: Position,
    subject: Subject,
    hash: Hash,
    #[serde(borrow, default)]
    event: Option<&'a RawValue>,
    #[serde(default)]
    base64: Option<String>,
}

/// The record of a line, byte for byte as it was written.
pub(super) fn entry(line: &Line<'_>) -> Result<Entry, String> {
    let bytes = match (line.event, &line.base64) {
        (Some(event), None) => Bytes::copy_from_slice(event.get().as_bytes()),
        (None, Some(text)) => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map(Bytes::from)
            .map_err(|why| format!("record {}: {why}", line.position))?,
        (None, None) | (Some(_), Some(_)) => {
            return Err(format!(
                "record {} has not exactly one of event and base64",
                line.position
            ));
        }
    };
    if record_hash(&line.subject, &bytes) != line.hash {
        return Err(format!("record {} was changed on the way", line.position));
    }
    Ok(Entry {
        position: line.position,
        subject: line.subject.clone(),
        bytes,
    })
}

/// Lines of an event stream.
pub(super) struct Lines {
    url: String,
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    read: BytesMut,
    /// Up to here `read` has no end of line.
    searched: usize,
    number: u64,
}

impl Lines {
    /// Lines as they arrive in `chunks`; `url` is for messages.
    pub(super) fn new(url: String, chunks: BoxStream<'static, reqwest::Result<Bytes>>) -> Lines {
        Lines {
            url,
            chunks,
            read: BytesMut::new(),
            searched: 0,
            number: 0,
        }
    }

    /// A whole line that is there already, without its end.
    fn line(&mut self) -> Option<BytesMut> {
        let end = self.read[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        let Some(end) = end else {
            self.searched = self.read.len();
            return None;
        };
        let mut line = self.read.split_to(self.searched + end + 1);
        line.truncate(line.len() - 1);
        self.searched = 0;
        Some(line)
    }

    fn failed(&self, why: &str) -> Option<Result<Arrival, Failure>> {
        Some(Err(Failure::Determinate(format!(
            "the event stream of {}: {why}",
            self.url
        ))))
    }
}

#[async_trait]
impl Feed for Lines {
    async fn arrival(&mut self) -> Option<Result<Arrival, Failure>> {
        loop {
            if let Some(line) = self.line() {
                if line.trim_ascii().is_empty() {
                    return Some(Ok(Arrival::Heartbeat {
                        delivered: self.number,
                    }));
                }
                let parsed =
                    serde_json::from_slice::<Line<'_>>(&line).map_err(|why| why.to_string());
                return match parsed.and_then(|line| entry(&line)) {
                    Ok(entry) => {
                        self.number += 1;
                        Some(Ok(Arrival::Record {
                            number: self.number,
                            entry,
                        }))
                    }
                    Err(why) => self.failed(&why),
                };
            }
            if self.read.len() > LINE_BYTES_MAX {
                return self.failed("a line is too long");
            }
            match tokio::time::timeout(SILENCE_MAX, self.chunks.next()).await {
                Ok(Some(Ok(chunk))) => self.read.extend_from_slice(&chunk),
                Ok(Some(Err(why))) => return self.failed(&why.to_string()),
                Ok(None) => return None,
                Err(_) => return self.failed("no heartbeat"),
            }
        }
    }
}
