//! The startup values of busy thresholds in a file of their own, beside the store that also has them.
//!
//! A frontend does not tell its startup values again, and sled takes some kinds of damage for the end of its file: a store
//! that comes up without its last writes looks whole. This file is written by one rename, synced, only when startup values
//! were learnt, and carries a hash; so it is whole or known not to be.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use schemas::{FrontendId, Hash, Name};
use serde::{Deserialize, Serialize};

use crate::memory::ThresholdMemory;

/// One model's thresholds on one frontend, as they were when its startup values were learnt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Frontend.
    pub frontend: FrontendId,
    /// Model.
    pub model: Name,
    /// What was known then.
    pub memory: ThresholdMemory,
}

/// The file.
#[derive(Debug, Clone)]
pub struct StartupFile(PathBuf);

impl StartupFile {
    /// Beside a store.
    #[must_use]
    pub fn beside(store: &Path) -> StartupFile {
        StartupFile(store.with_file_name("startup-thresholds"))
    }

    /// Everything in it; nothing when it is not there or not whole.
    #[must_use]
    pub fn read(&self) -> Vec<Learnt> {
        let bytes = match fs::read(&self.0) {
            Ok(bytes) => bytes,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(why) => {
                tracing::error!(path = %self.0.display(), error = %why, "startup values of thresholds cannot be read");
                return Vec::new();
            }
        };
        let whole = bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .and_then(|end| {
                let (hash, rest) = bytes.split_at(end);
                let rest = rest.get(1..)?;
                (Hash::of(&[rest]).to_string().as_bytes() == hash).then_some(rest)
            })
            .and_then(|rest| serde_json::from_slice(rest).ok());
        whole.unwrap_or_else(|| {
            tracing::error!(path = %self.0.display(), "the file of startup values of thresholds is damaged; what the store has is used");
            Vec::new()
        })
    }

    /// Adds or replaces one entry, durably.
    ///
    /// # Errors
    /// The file system's.
    pub fn learn(&self, learnt: Learnt) -> io::Result<()> {
        let mut all = self.read();
        all.retain(|one| (&one.frontend, &one.model) != (&learnt.frontend, &learnt.model));
        all.push(learnt);
        // Invariant: string keys and finite numbers only, so encoding cannot fail.
        let text = serde_json::to_vec(&all).unwrap_or_default();
        let aside = self.0.with_extension("new");
        let mut file = File::create(&aside)?;
        writeln!(file, "{}", Hash::of(&[&text]))?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&aside, &self.0)?;
        match self.0.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Removes it: it could not be written and would be believed although it is old.
    pub fn forget(&self) {
        match fs::remove_file(&self.0) {
            Ok(()) => {}
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => {
                tracing::error!(path = %self.0.display(), error = %why, "an old file of startup values cannot be removed");
            }
        }
    }
}
