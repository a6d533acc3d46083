//! Where one router, or one model's thresholds, stands, and when it may be asked again.
//!
//! Owns: the reported state, backoff, the bound on putting back, and noticing an acknowledged change that never shows.

use std::collections::VecDeque;
use std::time::Duration;

use schemas::status::ApplyState;
use schemas::{Position, Timestamp};

/// Time and chance as the shell found them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Now {
    /// Wall clock, for reports. May leap.
    pub wall: Timestamp,
    /// Since the agent started. Never goes back; every wait is counted by it.
    pub elapsed: Duration,
    /// A draw from [0, 1), for jitter.
    pub draw: f64,
}

/// First wait after a failure.
pub const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait after failures.
pub const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Bound: how often a policy is put back within [`WINDOW`] after somebody else's changes. Two agents with different
/// policies on one frontend, or a script, cannot make a storm of revisions.
pub const PUT_BACK_MAX: usize = 5;
/// Bound: changes sent to one router within [`WINDOW`], whatever their cause.
pub const SENT_MAX: usize = 600;
/// See [`PUT_BACK_MAX`].
pub const WINDOW: Duration = Duration::from_secs(60);
/// An acknowledged change that is not listed for this long is named as such.
pub const UNSEEN_AFTER: Duration = Duration::from_secs(10);
/// Bound: conflicts that are answered at once; further ones wait.
pub const CONFLICTS_AT_ONCE: u32 = 5;

/// Doubles per attempt (0 = first) up to `max`, then a random part of 50 to 100 % of it.
#[must_use]
pub fn backoff(max: Duration, attempt: u32, draw: f64) -> Duration {
    BACKOFF_MIN
        .saturating_mul(2u32.saturating_pow(attempt.min(20)))
        .min(max)
        .mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0)
}

/// The course of one router or model.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// Where it stands.
    pub state: ApplyState,
    /// `state` was found with everything up to here folded in.
    pub position: Position,
    /// What is wrong, in words.
    pub error: Option<String>,
    /// When it came into `state`.
    pub since: Timestamp,
    /// Changes by others since it was met.
    pub drifts: u64,
    /// A change is on its way.
    pub busy: bool,
    /// Nothing that a listing says counts until one that was asked for as number `listing_from` or later.
    pub listing_from: u64,
    /// Not before this may it be asked again.
    pub not_before: Duration,
    /// Somebody else changed it since it was last as wanted.
    pub drifting: bool,
    attempt: u32,
    conflicts: u32,
    acknowledged: u32,
    unsettled_since: Option<Duration>,
    put_back: VecDeque<Duration>,
    sent: VecDeque<Duration>,
}

impl Course {
    /// Just met.
    #[must_use]
    pub fn new(now: Now) -> Course {
        Course {
            state: ApplyState::Pending,
            position: Position::START,
            error: None,
            since: now.wall,
            drifts: 0,
            busy: false,
            listing_from: 0,
            not_before: Duration::ZERO,
            drifting: false,
            attempt: 0,
            conflicts: 0,
            acknowledged: 0,
            unsettled_since: None,
            put_back: VecDeque::new(),
            sent: VecDeque::new(),
        }
    }

    /// Comes into a state, or stays in it with other words.
    pub fn enter(
        &mut self,
        now: Now,
        state: ApplyState,
        position: Position,
        error: Option<String>,
    ) {
        if self.state != state {
            self.since = now.wall;
        }
        self.state = state;
        self.error = error;
        self.position = position;
        match state {
            ApplyState::Pending => {
                self.unsettled_since.get_or_insert(now.elapsed);
            }
            ApplyState::Applied
            | ApplyState::Refused
            | ApplyState::Drifted
            | ApplyState::Stopped
            | ApplyState::Unsupported => {
                self.unsettled_since = None;
                self.acknowledged = 0;
                self.conflicts = 0;
                self.attempt = 0;
            }
        }
    }

    /// A listing shows everything that is wanted.
    pub fn settle(&mut self, now: Now, position: Position, stopped: Option<&str>) {
        self.drifting = false;
        self.not_before = now.elapsed;
        match stopped {
            Some(why) => self.enter(now, ApplyState::Stopped, position, Some(why.to_owned())),
            None => self.enter(now, ApplyState::Applied, position, None),
        }
    }

    /// Somebody else changed it.
    pub fn drifted(&mut self) {
        self.drifts += 1;
        self.drifting = true;
    }

    /// Not as wanted, but on its way: pending at this position, with whatever words fit.
    pub fn pend(&mut self, now: Now, position: Position) {
        let unseen = self
            .unsettled_since
            .is_some_and(|since| now.elapsed.saturating_sub(since) >= UNSEEN_AFTER);
        let words = if self.acknowledged > 0 && unseen {
            Some(format!(
                "acknowledged {} times, but the listing still shows other values",
                self.acknowledged
            ))
        } else {
            self.error.take()
        };
        self.enter(now, ApplyState::Pending, position, words);
    }

    /// A listing after an acknowledged change does not show it, and nobody else has changed it.
    pub fn unseen(&mut self, now: Now) {
        self.fail(now, BACKOFF_MAX);
    }

    /// The change was acknowledged; only a listing will tell.
    pub fn acknowledge(&mut self) {
        self.acknowledged += 1;
        self.error = None;
    }

    /// A failure that may pass: wait, longer each time.
    pub fn fail(&mut self, now: Now, max: Duration) {
        self.not_before = now.elapsed + backoff(max, self.attempt, now.draw);
        self.attempt = self.attempt.saturating_add(1);
    }

    /// A lost race: at once again for a few times, then as a failure.
    pub fn conflict(&mut self, now: Now) {
        self.conflicts += 1;
        if self.conflicts > CONFLICTS_AT_ONCE {
            self.fail(now, BACKOFF_MAX);
        }
    }

    /// Until when nothing may be sent because too much was sent already.
    pub fn held_until(&mut self, now: Now) -> Option<Duration> {
        for times in [&mut self.put_back, &mut self.sent] {
            while times
                .front()
                .is_some_and(|time| now.elapsed.saturating_sub(*time) >= WINDOW)
            {
                times.pop_front();
            }
        }
        let full = |times: &VecDeque<Duration>, max: usize| {
            times
                .front()
                .filter(|_| times.len() >= max)
                .map(|first| *first + WINDOW)
        };
        let put_back = self
            .drifting
            .then(|| full(&self.put_back, PUT_BACK_MAX))
            .flatten();
        put_back.max(full(&self.sent, SENT_MAX))
    }

    /// True while it is left alone because somebody else changes it again and again.
    #[must_use]
    pub fn contested(&self) -> bool {
        self.drifting && self.put_back.len() >= PUT_BACK_MAX
    }

    /// A change goes out.
    pub fn send(&mut self, now: Now) {
        self.busy = true;
        self.sent.push_back(now.elapsed);
        if self.drifting {
            self.put_back.push_back(now.elapsed);
        }
    }
}
