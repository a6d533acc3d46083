//! Waiting on values: the only place in the harness that knows a polling interval.

use std::time::{Duration, Instant};

const POLL_EVERY: Duration = Duration::from_millis(25);

/// Asks `look` until it has an answer, and returns that. `Err` says what was seen instead.
///
/// # Panics
/// When there is none within `patience`; the message names `what` and the last thing seen.
pub async fn wait_until<T>(
    what: &str,
    patience: Duration,
    look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    match reached(what, patience, look).await {
        Ok(value) => value,
        Err(waited) => panic!("{waited}"),
    }
}

/// The same, for those who go on when there is none.
///
/// # Errors
/// What was waited for, and the last thing seen.
pub async fn reached<T>(
    what: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, String> {
    let started = Instant::now();
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(seen) if started.elapsed() > patience => {
                return Err(format!(
                    "waited {patience:?} until {what}; last seen: {seen}"
                ));
            }
            Err(_) => tokio::time::sleep(POLL_EVERY).await,
        }
    }
}
