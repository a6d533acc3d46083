//! Where a frontend stands, and when that was found out.

use std::time::Duration;

use schemas::Timestamp;
use schemas::status::FrontendStatus;

use super::course::Now;

/// A time by both clocks of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moment {
    /// By the wall clock, which may leap.
    pub wall: Timestamp,
    /// Since the agent started; never leaps.
    pub elapsed: Duration,
}

impl Moment {
    /// This one.
    #[must_use]
    pub fn of(now: Now) -> Moment {
        Moment {
            wall: now.wall,
            elapsed: now.elapsed,
        }
    }
}

/// A frontend's status with the time that it rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// The status.
    pub status: FrontendStatus,
    /// When the last successful listing was asked for.
    pub listed: Option<Moment>,
}

impl Standing {
    /// The status as of a report that says `reported_at`: `listed_at` lies as far before that as the listing is old.
    ///
    /// SUBTLE: the steady clock counts, so that a wall clock that went back makes no listing young, nor one that was
    /// always said to be later than the start makes it old; the wall clock counts where it says more, because the steady
    /// one stands still with a machine that sleeps (`the_age_of_a_listing_survives_a_clock_that_leaps`).
    #[must_use]
    pub fn as_of(&self, reported_at: Timestamp, now: Moment) -> FrontendStatus {
        let listed_at = self.listed.map(|listed| {
            let steady = now.elapsed.saturating_sub(listed.elapsed).as_millis();
            let steady_ms = u64::try_from(steady).unwrap_or(u64::MAX);
            let age_ms = steady_ms.max(now.wall.since_ms(listed.wall));
            Timestamp::from_unix_ms(reported_at.unix_ms().saturating_sub(age_ms))
        });
        FrontendStatus {
            listed_at,
            ..self.status.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::status::Capability;

    fn moment(wall_ms: u64, elapsed_ms: u64) -> Moment {
        Moment {
            wall: Timestamp::from_unix_ms(wall_ms),
            elapsed: Duration::from_millis(elapsed_ms),
        }
    }

    #[test]
    fn the_age_of_a_listing_survives_a_clock_that_leaps() {
        // (what, wall at the report, what the report says, age); listed at 1,000,000, reported 700 ms after that.
        let cases = [
            ("no leap", 1_000_700, 1_000_700, 700),
            ("back", 400_000, 400_000, 700),
            ("back before the start", 400_000, 990_000, 700),
            (
                "forward, or the machine slept",
                1_090_000,
                1_090_000,
                90_000,
            ),
        ];
        for (what, wall, reported_at, age) in cases {
            let standing = Standing {
                status: FrontendStatus {
                    frontend: "http://f".parse().unwrap(),
                    capability: Capability::RouterPolicy,
                    reachable: true,
                    error: None,
                    listed_at: None,
                    rival: None,
                    routers: Vec::new(),
                    thresholds: Vec::new(),
                },
                listed: Some(moment(1_000_000, 5_000)),
            };
            let reported_at = Timestamp::from_unix_ms(reported_at);
            let status = standing.as_of(reported_at, moment(wall, 5_700));
            assert_eq!(
                reported_at.since_ms(status.listed_at.unwrap()),
                age,
                "{what}"
            );
        }
    }
}
