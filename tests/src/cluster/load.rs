//! Writers and readers over HTTP, and everything that they were told.
//!
//! Half of the writes bring a key and are repeated with it until their fate is known; the other half bring none, so that the
//! service itself has to say whether a change was made: what it calls not applied must never show up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event_log::ambient::Tasks;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use schemas::CommandId;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use crate::history::recorder::Recorder;
use crate::history::{Operation, What};
use crate::http::{Answer, Http};

/// Policies that the writers fight over.
pub const POLICIES: usize = 8;
/// Readers with a position, and readers that ask the log's head first.
pub(super) const READERS: usize = 2;
/// How long a write of unknown fate is repeated.
pub(super) const INSIST: Duration = Duration::from_secs(60);

/// What everybody was told.
#[derive(Debug, Default)]
pub struct Told {
    /// Acknowledged changes and their positions.
    pub acknowledged: BTreeMap<CommandId, u64>,
    /// Refused because of another change, with the answer.
    pub refused: BTreeMap<CommandId, String>,
    /// Said to be not applied.
    pub not_applied: BTreeSet<CommandId>,
    /// Never found out.
    pub unknown: BTreeSet<CommandId>,
    /// Writes that were unknown at first and then found out.
    pub resolved: u64,
    /// Answers by status and code, of all tries and reads.
    pub answers: BTreeMap<String, u64>,
    /// Answers that should not have been given.
    pub wrong: Vec<String>,
    /// Places of unconditional changes, whose revision only the log tells.
    pub(super) unconditional: BTreeMap<u64, Operation>,
}

/// The newest acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Acknowledged {
    /// When the write was sent.
    pub sent: Instant,
    /// When the answer came.
    pub came: Instant,
    /// How many there were.
    pub count: u64,
}

/// Shared by all clients.
#[derive(Debug)]
pub struct Load {
    pub(super) services: Vec<Http>,
    /// Names the policies, so that two loads on one log do not share any.
    pub(super) seed: u64,
    /// What is told of the log's end is not judged, see [`Load::forgive_old_ends`].
    forgiving: AtomicBool,
    pub(super) recorder: Recorder,
    told: Mutex<Told>,
    /// The last revision of each policy that anybody saw, and the last acknowledged position.
    seen: Mutex<(Vec<u64>, Vec<u64>)>,
    pub(super) acknowledged: watch::Sender<Acknowledged>,
    stop: CancellationToken,
    tasks: Tasks,
}

impl Load {
    /// Starts writers and readers.
    #[must_use]
    pub fn start(services: Vec<Http>, writers: usize, seed: u64) -> Arc<Load> {
        let now = Instant::now();
        let load = Arc::new(Load {
            services,
            seed,
            forgiving: AtomicBool::new(false),
            recorder: Recorder::default(),
            told: Mutex::default(),
            seen: Mutex::new((vec![0; POLICIES], vec![0; POLICIES])),
            acknowledged: watch::Sender::new(Acknowledged {
                sent: now,
                came: now,
                count: 0,
            }),
            stop: CancellationToken::new(),
            tasks: Tasks::new(),
        });
        for client in 0..writers + 2 * READERS {
            let rng = SmallRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(client as u64));
            let mut client = Client {
                load: Arc::clone(&load),
                number: client,
                rng,
                positions: vec![0; load.services.len()],
            };
            load.tasks.start("client", async move {
                while !client.load.stop.is_cancelled() {
                    client.act().await;
                }
            });
        }
        load
    }

    /// Leaves out of the history what rests on the log's end as its leader tells it: fresh reads, and refusals by a replica that is
    /// behind. A leader that was cut off and comes back tells an old end for a moment, and JetStream has no read that a majority
    /// confirms.
    pub fn forgive_old_ends(&self) {
        self.forgiving.store(true, Ordering::Release);
    }

    /// Tells of each acknowledgement.
    pub fn acknowledgements(&self) -> watch::Receiver<Acknowledged> {
        self.acknowledged.subscribe()
    }

    /// Waits until so many more writes are acknowledged that were sent after now; returns when the first of them was.
    ///
    /// # Panics
    /// When that takes longer than `patience`.
    pub async fn goes_on(&self, more: u64, patience: Duration) -> Instant {
        let from = Instant::now();
        let mut acknowledged = self.acknowledgements();
        let wait = async {
            let first = *acknowledged
                .wait_for(|one| one.sent > from)
                .await
                .expect("the load holds the sender");
            acknowledged
                .wait_for(|one| one.count >= first.count + more)
                .await
                .expect("the load holds the sender");
            first.came
        };
        match tokio::time::timeout(patience, wait).await {
            Ok(came) => came,
            Err(_) => panic!(
                "no writes were accepted for {patience:?}: {}",
                self.summary()
            ),
        }
    }

    /// Lets every client finish what it has begun.
    ///
    /// # Panics
    /// When one does not.
    pub async fn end(&self) {
        self.stop.cancel();
        assert!(
            self.tasks.stop(INSIST + Duration::from_secs(80)).await,
            "a client does not end"
        );
    }

    /// What everybody was told.
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The history, once the log has told the revisions (by position) of the changes that named none.
    #[must_use]
    pub fn history(&self, revisions: &BTreeMap<u64, u64>) -> Vec<Operation> {
        let mut history = self.recorder.history();
        for (position, operation) in &self.told().unconditional {
            let mut operation = operation.clone();
            if let (What::Written { revision, .. }, Some(found)) =
                (&mut operation.what, revisions.get(position))
            {
                *revision = *found;
            }
            history.push(operation);
        }
        if self.forgiving.load(Ordering::Acquire) {
            history.retain(|one| !matches!(one.what, What::Read { .. } | What::Refused { .. }));
        }
        history.sort_by_key(|operation| operation.began_us);
        history
    }

    /// In one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let told = self.told();
        format!(
            "writes: {} acknowledged, {} refused, {} not applied, {} unknown at first and found out, {} unknown for good; answers {:?}",
            told.acknowledged.len(),
            told.refused.len(),
            told.not_applied.len(),
            told.resolved,
            told.unknown.len(),
            told.answers
        )
    }

    pub(super) fn see(&self, policy: usize, revision: u64, position: Option<u64>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0[policy] = seen.0[policy].max(revision);
        if let Some(position) = position {
            seen.1[policy] = seen.1[policy].max(position);
        }
    }

    pub(super) fn seen(&self, policy: usize) -> (u64, u64) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (seen.0[policy], seen.1[policy])
    }

    pub(super) fn wrong(&self, what: &str, answer: &Answer) {
        let text = format!("{what}: {} {}", answer.status, answer.text);
        self.told().wrong.push(text);
    }
}
