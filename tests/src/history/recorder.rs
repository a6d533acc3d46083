//! Recording a history while clients run, and keeping one that failed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::Operation;

/// A history in the making; shared by all clients.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            begun: Instant::now(),
            operations: Mutex::default(),
        }
    }
}

impl Recorder {
    /// Microseconds since the history began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Notes an operation that is over.
    pub fn note(&self, operation: Operation) {
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(operation);
    }

    /// Everything so far, by beginning.
    #[must_use]
    pub fn history(&self) -> Vec<Operation> {
        let mut all = self
            .operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        all.sort_by_key(|operation| operation.began_us);
        all
    }
}

/// Writes a history as one JSON object per line.
///
/// # Errors
/// The system's.
pub fn keep(history: &[Operation], path: &Path) -> std::io::Result<PathBuf> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut text = String::new();
    for operation in history {
        text.push_str(&serde_json::to_string(operation)?);
        text.push('\n');
    }
    std::fs::write(path, text)?;
    Ok(path.to_path_buf())
}

/// Reads one back, to judge it again.
///
/// # Errors
/// The system's, and of what is no history.
pub fn read(path: &Path) -> std::io::Result<Vec<Operation>> {
    std::fs::read_to_string(path)?
        .lines()
        .map(|line| serde_json::from_str(line).map_err(std::io::Error::from))
        .collect()
}
