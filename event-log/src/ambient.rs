//! The one door to clock, randomness and task spawning. Shells ask here; the pure core gets what they were told.

use std::future::Future;
use std::time::Duration;

use schemas::Timestamp;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

/// The wall clock, in milliseconds. 0 for a clock before 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_unix_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A new id that sorts by time (UUIDv7).
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub fn new_id() -> Uuid {
    Uuid::now_v7()
}

/// `base` doubled per attempt (0 = first), at most `max`, then a random part of 50 to 100 % of it.
#[must_use]
pub fn backoff(base: Duration, max: Duration, attempt: u32) -> Duration {
    let full = base
        .saturating_mul(2u32.saturating_pow(attempt.min(20)))
        .min(max);
    full.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// Tasks that belong to one owner: each is named, told to stop together, and awaited.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// None yet.
    #[must_use]
    pub fn new() -> Tasks {
        Tasks::default()
    }

    /// Cancelled when the owner stops; every task must watch it.
    #[must_use]
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task. A panic in it is logged and stops all the others: half a process is worse than none.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub fn start(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tracker.spawn(async move {
            let joined = tokio::spawn(task).await;
            if let Err(panic) = joined {
                tracing::error!(task = name, error = %panic, "task ended by a panic; stopping");
                stop.cancel();
            }
        });
    }

    /// Tells all tasks to stop and waits until they have, at most `patience`. True when all have.
    pub async fn stop(&self, patience: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(patience, self.tracker.wait())
            .await
            .is_ok()
    }
}
