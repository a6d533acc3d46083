//! What the agent keeps between its processes beside the copy of the log: memory of routers and thresholds.
//!
//! Losing it is safe for routers (they are restored once more) and costs the startup values of thresholds, which a frontend
//! does not tell again; so it is never part of what `adopt` or a damaged copy throws away.
//! A write that fails is logged and otherwise ignored: enforcing goes on without it.

use std::path::Path;

use schemas::{FrontendId, Name, RouterId, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::memory::{FrontendMemory, RouterMemory, ThresholdMemory};
use crate::startup_file::{Learnt, StartupFile};
use crate::store::{Store, StoreError};

const STARTED_KEY: &[u8] = b"started";

/// The kept memory of one agent.
#[derive(Debug, Clone)]
pub struct Remembered {
    store: Store,
    startup: StartupFile,
}

impl Remembered {
    /// Opens it, or makes it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path, now: Timestamp) -> Result<Remembered, StoreError> {
        let opened = Store::open(path, migrations::store::AGENT_LAYOUT, now)?;
        Ok(Remembered {
            store: opened.store,
            startup: StartupFile::beside(path),
        })
    }

    /// When this process started: now, but always after the one before it, also when the clock went back.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn started(&self, now: Timestamp) -> Result<Timestamp, StoreError> {
        let before: Option<Timestamp> = decode(self.store.get(STARTED_KEY)?.as_deref());
        let started = before.map_or(now, |before| {
            now.max(Timestamp::from_unix_ms(before.unix_ms() + 1))
        });
        let mut batch = sled::Batch::default();
        batch.insert(STARTED_KEY, encode(&started));
        self.store.write(batch)?;
        self.store.sync()?;
        Ok(started)
    }

    /// Forgets refusals: their positions belong to the log that was followed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn forget_refusals(&self) -> Result<(), StoreError> {
        let mut batch = sled::Batch::default();
        for (key, value) in self.store.scan(b"r\0")? {
            if let Some(mut memory) = decode::<RouterMemory>(Some(&value)) {
                memory.refused = None;
                batch.insert([b"r\0", key.as_slice()].concat(), encode(&memory));
            }
        }
        for (key, value) in self.store.scan(b"t\0")? {
            if let Some(mut memory) = decode::<ThresholdMemory>(Some(&value)) {
                memory.refused = None;
                batch.insert([b"t\0", key.as_slice()].concat(), encode(&memory));
            }
        }
        self.store.write(batch)?;
        self.store.sync()
    }

    /// Everything of one frontend. What cannot be read counts as not known.
    pub async fn load(&self, frontend: FrontendId) -> FrontendMemory {
        let startup = self.startup.clone();
        let loaded = self.blocking(move |store| {
            let mut memory = FrontendMemory::default();
            for (id, value) in store.scan(&key(b'r', &frontend, ""))? {
                let id = String::from_utf8(id).ok().and_then(|id| id.parse().ok());
                if let (Some(id), Some(kept)) = (id, decode(Some(&value))) {
                    memory.routers.insert(id, kept);
                }
            }
            for (model, value) in store.scan(&key(b't', &frontend, ""))? {
                let model = String::from_utf8(model)
                    .ok()
                    .and_then(|model| Name::new(model).ok());
                if let (Some(model), Some(kept)) = (model, decode(Some(&value))) {
                    memory.thresholds.insert(model, kept);
                }
            }
            for learnt in startup.read() {
                let kept = memory.thresholds.get(&learnt.model);
                if learnt.frontend == frontend
                    && kept.is_none_or(|kept: &ThresholdMemory| kept.startup != learnt.memory.startup)
                {
                    tracing::warn!(%frontend, model = %learnt.model, "the store has lost what was remembered of thresholds; their startup values are taken from the file beside it");
                    memory.thresholds.insert(learnt.model, learnt.memory);
                }
            }
            Ok(memory)
        });
        loaded.await.unwrap_or_default()
    }

    /// Keeps a router's memory.
    pub async fn keep_router(&self, frontend: &FrontendId, id: RouterId, memory: &RouterMemory) {
        let key = key(b'r', frontend, &id.to_string());
        let value = encode(memory);
        self.put(key, Some(value)).await;
    }

    /// Drops a router's memory.
    pub async fn forget_router(&self, frontend: &FrontendId, id: RouterId) {
        self.put(key(b'r', frontend, &id.to_string()), None).await;
    }

    /// Keeps the memory of a model's thresholds; new startup values also through a power cut: a frontend does not tell
    /// them again.
    pub async fn keep_thresholds(
        &self,
        frontend: &FrontendId,
        model: &Name,
        memory: &ThresholdMemory,
    ) {
        let key = key(b't', frontend, model.as_str());
        let memory = memory.clone();
        let learnt = Learnt {
            frontend: frontend.clone(),
            model: model.clone(),
            memory: memory.clone(),
        };
        let startup = self.startup.clone();
        let kept = self.blocking(move |store| {
            let before = store.get(&key).ok().flatten();
            let before: Option<ThresholdMemory> = decode(before.as_deref());
            let new = before.is_none_or(|before| before.startup != memory.startup);
            // SUBTLE: the file first, because it counts where the two differ.
            if new && let Err(why) = startup.learn(learnt) {
                tracing::error!(error = %why, "startup values of thresholds cannot be kept in their file");
                startup.forget();
            }
            let mut batch = sled::Batch::default();
            batch.insert(key, encode(&memory));
            store.write_through(batch)?;
            if new {
                store.sync()?;
            }
            Ok(())
        });
        kept.await;
    }

    async fn put(&self, key: Vec<u8>, value: Option<Vec<u8>>) {
        let kept = self.blocking(move |store| {
            let mut batch = sled::Batch::default();
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
            // Through to the system: what is about to be sent must be known after a kill.
            store.write_through(batch)
        });
        kept.await;
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let store = self.store.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(Ok(done)) => Some(done),
            Ok(Err(why)) => {
                tracing::error!(error = %why, "the agent's memory cannot be kept");
                None
            }
            Err(why) => {
                tracing::error!(error = %why, "the agent's memory cannot be kept");
                None
            }
        }
    }
}

/// Names hold no control characters, so a NUL separates.
fn key(kind: u8, frontend: &FrontendId, rest: &str) -> Vec<u8> {
    let frontend = frontend.0.as_str().as_bytes();
    [&[kind, 0], frontend, &[0], rest.as_bytes()].concat()
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // Invariant: string keys and finite numbers only, so encoding cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(bytes: Option<&[u8]>) -> Option<T> {
    serde_json::from_slice(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::target::{Thresholds, Values};
    use schemas::{ParameterName, ParameterValue};

    fn now() -> Timestamp {
        Timestamp::from_unix_ms(1)
    }

    fn frontend() -> FrontendId {
        FrontendId(Name::new("http://127.0.0.1:1").unwrap())
    }

    fn parameter() -> ParameterName {
        ParameterName::new("active_decode_blocks_threshold").unwrap()
    }

    fn startup() -> ThresholdMemory {
        let mut memory = ThresholdMemory::default();
        let listed: Thresholds = [(parameter(), Some(ParameterValue::number(0.85)))].into();
        memory.see(&listed, &Default::default());
        memory
    }

    /// The files as they are now: what a process that is killed now leaves behind.
    fn killed(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for child in fs::read_dir(from).unwrap() {
            let child = child.unwrap();
            let target = to.join(child.file_name());
            if child.file_type().unwrap().is_dir() {
                killed(&child.path(), &target);
            } else {
                fs::copy(child.path(), target).unwrap();
            }
        }
    }

    #[tokio::test]
    async fn regression_startup_values_survive_a_store_that_comes_up_without_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let model = Name::new("m").unwrap();
        let memory = startup();
        let remembered = Remembered::open(&path, now()).unwrap();
        remembered
            .keep_thresholds(&frontend(), &model, &memory)
            .await;
        drop(remembered);
        fs::remove_dir_all(&path).unwrap();
        let again = Remembered::open(&path, now()).unwrap();
        let known = again.load(frontend()).await;
        assert_eq!(known.thresholds[&model].startup, memory.startup);
        drop(again);
        // A file that is not whole is not believed.
        let file = folder.path().join("startup-thresholds");
        let mut bytes = fs::read(&file).unwrap();
        let last = bytes.len() - 9;
        bytes[last] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert_eq!(StartupFile::beside(&path).read(), []);
    }

    #[tokio::test]
    async fn regression_what_is_about_to_be_sent_survives_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent").join("memory");
        let remembered = Remembered::open(&path, now()).unwrap();
        let model = Name::new("m").unwrap();
        let mut memory = startup();
        remembered
            .keep_thresholds(&frontend(), &model, &memory)
            .await;
        let values: Values = [(parameter(), ParameterValue::number(0.5))].into();
        memory.sending(&values);
        remembered
            .keep_thresholds(&frontend(), &model, &memory)
            .await;
        let id = RouterId(uuid::Uuid::from_u128(7));
        let mut router = RouterMemory::default();
        let patch = [(parameter(), Some(ParameterValue::number(0.5)))].into();
        router.sending(schemas::Revision(3), &patch);
        remembered.keep_router(&frontend(), id, &router).await;
        let after = folder.path().join("after");
        killed(&folder.path().join("agent"), &after);
        let again = Remembered::open(&after.join("memory"), now()).unwrap();
        let known = again.load(frontend()).await;
        assert_eq!(known.thresholds[&model].doubt, Some(values));
        assert_eq!(known.routers[&id], router);
    }
}
