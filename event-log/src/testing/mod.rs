//! What tests need around logs: real NATS servers, and fresh logs of every kind for the conformance suite.
//!
//! Only with the feature `testing`.

mod admin;
mod nats;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use schemas::LogId;

pub use admin::Admin;
pub use nats::{
    NATS_NEWEST, NATS_VERSIONS, NatsCluster, NatsServer, NoServer, ServerOptions, nats_binary,
};

use crate::conformance::Factory;
use crate::embedded::EmbeddedLog;
use crate::faulty::Faulty;
use crate::identity::Identity;
use crate::jetstream::JetStreamLog;
use crate::memory::MemoryLog;
use crate::options::Options;
use crate::port::{EventLog, LogReader as _};

/// A folder that is removed with its owner.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// A new one.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> std::io::Result<TemporaryFolder> {
        let name = format!("router-policy-{}", crate::ambient::new_id().simple());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(TemporaryFolder(path))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Logs in memory; with `faulty` each inside a [`Faulty`] that does nothing.
#[derive(Debug, Clone, Copy)]
pub struct MemoryLogs {
    /// Whether to wrap them.
    pub faulty: bool,
}

#[async_trait]
impl Factory for MemoryLogs {
    async fn fresh(&self) -> Arc<dyn EventLog> {
        let log: Arc<dyn EventLog> =
            Arc::new(Arc::new(MemoryLog::new(LogId(crate::ambient::new_id()))));
        if self.faulty {
            Arc::new(Faulty::new(log))
        } else {
            log
        }
    }

    async fn reopen(&self, _: Arc<dyn EventLog>) -> Option<Arc<dyn EventLog>> {
        None
    }
}

/// Embedded logs in folders below one.
#[derive(Debug)]
pub struct EmbeddedLogs(TemporaryFolder);

impl EmbeddedLogs {
    /// None yet.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> std::io::Result<EmbeddedLogs> {
        TemporaryFolder::new().map(EmbeddedLogs)
    }

    fn open(&self, log_id: LogId) -> Arc<dyn EventLog> {
        let dir = self.0.path().join(log_id.to_string());
        match EmbeddedLog::open(&dir, Some(log_id)) {
            Ok(log) => Arc::new(log),
            Err(why) => panic!("{why}"),
        }
    }
}

#[async_trait]
impl Factory for EmbeddedLogs {
    async fn fresh(&self) -> Arc<dyn EventLog> {
        self.open(LogId(crate::ambient::new_id()))
    }

    async fn reopen(&self, log: Arc<dyn EventLog>) -> Option<Arc<dyn EventLog>> {
        let head = log.head().await.ok()?;
        drop(log);
        Some(self.open(head.log_id))
    }
}

/// Logs in streams of their own at one NATS.
#[derive(Debug)]
pub struct JetStreamLogs {
    urls: String,
    replicas: usize,
    streams: Mutex<BTreeMap<LogId, String>>,
}

impl JetStreamLogs {
    /// At these servers, with this many copies.
    #[must_use]
    pub fn new(urls: impl Into<String>, replicas: usize) -> JetStreamLogs {
        JetStreamLogs {
            urls: urls.into(),
            replicas,
            streams: Mutex::default(),
        }
    }

    fn options(&self, stream: String) -> Options {
        Options {
            stream,
            replicas: self.replicas,
            call_timeout: Duration::from_secs(5),
            ..Options::default()
        }
    }
}

#[async_trait]
impl Factory for JetStreamLogs {
    async fn fresh(&self) -> Arc<dyn EventLog> {
        let stream = format!("T{}", crate::ambient::new_id().simple());
        let options = self.options(stream.clone());
        options.identity.allow_create();
        let log = JetStreamLog::new(self.urls.clone(), options);
        // A cluster that has just been started first elects a leader.
        let mut why = None;
        for _ in 0..10 {
            match log.head().await {
                Ok(head) => {
                    let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
                    streams.insert(head.log_id, stream);
                    return Arc::new(log.clone());
                }
                Err(failure) => why = Some(failure),
            }
        }
        panic!("no log at {}: {why:?}", self.urls)
    }

    async fn reopen(&self, log: Arc<dyn EventLog>) -> Option<Arc<dyn EventLog>> {
        let log_id = log.head().await.ok()?.log_id;
        let stream = {
            let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.get(&log_id).cloned()
        }?;
        let identity = Identity::unknown();
        identity.expect(log_id);
        Some(Arc::new(JetStreamLog::new(
            self.urls.clone(),
            Options {
                identity,
                ..self.options(stream)
            },
        )))
    }
}
