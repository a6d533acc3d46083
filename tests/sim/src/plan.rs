//! What one seed's world looks like: how many there are of each, which broker it is, which faults it knows.
//!
//! Every fault is on in some worlds and off in others, so that rare ones are not drowned by frequent ones.

use crate::rng::Rng;

/// Second of virtual time, in microseconds.
pub const SECOND: u64 = 1_000_000;
/// Millisecond of virtual time, in microseconds.
pub const MS: u64 = 1_000;

/// How the broker answers where brokers differ.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flavour {
    /// A retry of an own stored record is acknowledged as a duplicate (else it is a conflict).
    pub dedupe_first: bool,
    /// Lost races are answered "unresolved" (10164) for so many of a thousand.
    pub unresolved: u64,
    /// Attempts are answered "in process" (10158), nothing stored, for so many of a thousand.
    pub in_process: u64,
    /// Two appends at one expectation are both let in, for so many of a thousand races.
    pub two_winners: u64,
    /// Appends are refused, nothing stored (a full disk), for so many of a thousand.
    pub refused: u64,
    /// Positions have gaps.
    pub gaps: bool,
}

/// Which faults there are; rates in so many of a thousand messages or calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Requests to the broker that are lost.
    pub lost_requests: u64,
    /// Answers of the broker that are lost.
    pub lost_answers: u64,
    /// Appends that arrive long after their caller gave up.
    pub late_appends: u64,
    /// Deliveries that are lost.
    pub lost_deliveries: u64,
    /// Deliveries that are repeated, or begin again at an older position.
    pub redelivered: u64,
    /// Answers of clients' requests that are lost.
    pub lost_replies: u64,
    /// Calls of frontends that fail, are lost, or land late.
    pub frontend_calls: u64,
    /// Events of the kinds below, per world; 0 = none.
    pub events: u64,
    /// Nodes are cut off, one way or both.
    pub partitions: bool,
    /// Processes are killed.
    pub kills: bool,
    /// Machines lose power.
    pub power: bool,
    /// Disks are wiped.
    pub wipes: bool,
    /// Clocks leap.
    pub clocks: bool,
    /// Consumers stop silently.
    pub frozen: bool,
    /// The broker is away for a while.
    pub broker_away: bool,
    /// Routers come and go, frontends restart.
    pub churn: bool,
    /// Somebody else changes routers and thresholds.
    pub drift: bool,
    /// Records of a future version are appended.
    pub future: bool,
    /// Local stores cannot be written for a while.
    pub full_disks: bool,
    /// A process stands still for a while (its queues fill).
    pub stalls: bool,
}

/// What is done to the log itself, once, in the midst of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destruction {
    /// Nothing.
    None,
    /// Deleted and made anew.
    Recreated,
    /// Put back to an older state; it goes on from there.
    Restored,
    /// Deleted; not made again until an operator does.
    Deleted,
}

/// One seed's world.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Services.
    pub services: usize,
    /// Agents.
    pub agents: usize,
    /// Most frontends of one agent.
    pub frontends_max: usize,
    /// Commands of clients.
    pub commands: usize,
    /// The work lasts this long; then everything heals.
    pub work_us: u64,
    /// Models.
    pub models: usize,
    /// The broker.
    pub flavour: Flavour,
    /// What goes wrong.
    pub faults: Faults,
    /// What is done to the log.
    pub destruction: Destruction,
    /// Agents and services that do not know sets yet, in so many of a thousand.
    pub old: u64,
    /// Writes that one service takes at once.
    pub writes_max: usize,
    /// A write that is not decided by then is answered.
    pub write_timeout_us: u64,
}

impl Plan {
    /// Draws a world.
    pub fn draw(rng: &mut Rng) -> Plan {
        let many = rng.permille(40);
        let agents = if many {
            rng.range(8, 20)
        } else {
            rng.range(1, 4)
        };
        let calm = rng.permille(60);
        let destruction = match rng.range(0, 99) {
            0..=3 => Destruction::Recreated,
            4..=9 => Destruction::Restored,
            10..=11 => Destruction::Deleted,
            _ => Destruction::None,
        };
        Plan {
            services: usize::try_from(rng.range(1, 3)).unwrap_or(1),
            agents: usize::try_from(agents).unwrap_or(1),
            frontends_max: if many { 1 } else { 3 },
            commands: usize::try_from(rng.range(6, 36)).unwrap_or(6),
            work_us: rng.range(8, 40) * SECOND,
            models: usize::try_from(rng.range(1, 3)).unwrap_or(1),
            flavour: flavour(rng),
            faults: if calm { Faults::default() } else { faults(rng) },
            destruction: if calm { Destruction::None } else { destruction },
            old: if rng.permille(200) { 400 } else { 0 },
            writes_max: *rng.pick(&[1, 2, 8, 8]),
            write_timeout_us: rng.range(2, 10) * SECOND,
        }
    }
}

fn rate(rng: &mut Rng, max: u64) -> u64 {
    if rng.permille(500) {
        0
    } else {
        rng.range(1, max)
    }
}

fn flavour(rng: &mut Rng) -> Flavour {
    Flavour {
        dedupe_first: rng.permille(500),
        unresolved: *rng.pick(&[0, 0, 300]),
        in_process: rate(rng, 80),
        two_winners: if rng.permille(300) { 500 } else { 0 },
        refused: if rng.permille(300) { 60 } else { 0 },
        gaps: rng.permille(500),
    }
}

fn faults(rng: &mut Rng) -> Faults {
    let mut on = || rng.permille(450);
    let (partitions, kills, power, wipes, clocks, frozen) = (on(), on(), on(), on(), on(), on());
    let (broker_away, churn, drift, future, full_disks, stalls) =
        (on(), on(), on(), on(), on(), on());
    Faults {
        lost_requests: rate(rng, 60),
        lost_answers: rate(rng, 80),
        late_appends: rate(rng, 150),
        lost_deliveries: rate(rng, 60),
        redelivered: rate(rng, 60),
        lost_replies: rate(rng, 100),
        frontend_calls: rate(rng, 150),
        events: rng.range(3, 24),
        partitions,
        kills,
        power,
        wipes,
        clocks,
        frozen,
        broker_away,
        churn,
        drift,
        future: future && rng.permille(400),
        full_disks,
        stalls,
    }
}
