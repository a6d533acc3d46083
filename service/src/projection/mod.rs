//! The projection: what the log says, kept where it can be asked.
//!
//! Owns: the fold of the log into memory ([`fold`]), its copy in sled ([`store`]), opening and setting aside ([`open`]), and
//! the task that follows the log ([`follow`]). Everything here can be made again from the log.
//! Never does: write to the log, or decide.

pub mod fold;
pub mod follow;
pub mod keys;
pub mod open;
pub mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use schemas::api::LogCondition;
use schemas::state::State;
use schemas::{Hash, LogId, PolicyId, PolicyKey, Position};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use fold::Projected;
use store::{Store, StoreError};

/// Everything that the log says up to one position; never changes.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The policies.
    pub state: Arc<State>,
    /// The log, once one was met.
    pub log_id: Option<LogId>,
    /// The chain over the whole log.
    pub chain: Hash,
    /// Every policy that the log has ever named, by id.
    pub ids: Arc<BTreeMap<PolicyId, PolicyKey>>,
}

/// How the projection stands to the log.
#[derive(Debug, Clone)]
pub struct Condition {
    /// In one word.
    pub log: LogCondition,
    /// What is wrong.
    pub detail: Option<String>,
    /// The log's last record when it was asked last.
    pub head: Option<Position>,
    /// Since when the projection has been behind the log.
    pub behind_since: Option<Instant>,
}

/// Bound: see [`Projection::read`].
const READERS_MAX: usize = 16;

/// The projection, shared by everything that reads.
pub struct Projection {
    /// Empty while the store is opened again after a fault, until it holds all that was published.
    store: Mutex<Option<Arc<Store>>>,
    current: ArcSwap<Snapshot>,
    position: watch::Sender<Position>,
    condition: watch::Sender<Condition>,
    /// Bound: readers of the store at once; each may hold a page of it.
    readers: Arc<Semaphore>,
    /// Why the store was made anew at this start, when it was.
    pub rebuilt: Option<String>,
}

impl std::fmt::Debug for Projection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Projection")
    }
}

impl Projection {
    /// Over an opened store and what was loaded from it.
    #[must_use]
    pub fn new(store: Arc<Store>, projected: &Projected, rebuilt: Option<String>) -> Projection {
        Projection {
            store: Mutex::new(Some(store)),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            position: watch::Sender::new(projected.state.position),
            current: ArcSwap::from_pointee(projected.snapshot()),
            condition: watch::Sender::new(Condition {
                log: LogCondition::Starting,
                detail: None,
                head: None,
                behind_since: None,
            }),
            rebuilt,
        }
    }

    /// The newest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// How it stands to the log.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.condition.borrow().clone()
    }

    /// Tells about each new position. The store holds everything up to the position told.
    #[must_use]
    pub fn positions(&self) -> watch::Receiver<Position> {
        self.position.subscribe()
    }

    /// Tells about each change of the condition.
    #[must_use]
    pub fn conditions(&self) -> watch::Receiver<Condition> {
        self.condition.subscribe()
    }

    /// Waits until everything up to `position` is folded in; false when `deadline` came first.
    pub async fn wait_for(&self, position: Position, deadline: Instant) -> bool {
        let mut positions = self.positions();
        let reached = positions.wait_for(|reached| *reached >= position);
        matches!(tokio::time::timeout_at(deadline, reached).await, Ok(Ok(_)))
    }

    /// Reads from the store, off the async threads.
    ///
    /// # Errors
    /// [`StoreError`] of the store, or of a panic in it.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // Never closed, so the place is always there. Before the store is taken: who waits keeps no store open.
        let place = Arc::clone(&self.readers).acquire_owned().await.ok();
        let Some(store) = self.store().clone() else {
            return Err(StoreError::Reopening);
        };
        let read = move || {
            let found = read(&store);
            drop(place);
            found
        };
        tokio::task::spawn_blocking(read)
            .await
            .unwrap_or_else(|panic| Err(StoreError::Panicked(panic.to_string())))
    }

    /// Hash over everything that is known: equal on every replica at the same position of the same log.
    #[must_use]
    pub fn digest(&self) -> Hash {
        fold::digest(&self.snapshot())
    }

    fn store(&self) -> MutexGuard<'_, Option<Arc<Store>>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody reads from the store any more, until [`Projection::admit`].
    fn withdraw(&self) {
        self.store().take();
    }

    fn admit(&self, store: &Arc<Store>) {
        *self.store() = Some(Arc::clone(store));
    }

    fn publish(&self, projected: &Projected) {
        self.current.store(Arc::new(projected.snapshot()));
        self.position.send_replace(projected.state.position);
    }

    fn tell(&self, change: impl FnOnce(&mut Condition)) {
        self.condition.send_modify(change);
    }
}
