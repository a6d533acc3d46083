//! Deterministic simulation of a whole fleet over the product's own machines: one thread, one seed, virtual time.
//!
//! What runs is the code of production: the writer's `WriteMachine` and `Doubtful`, `CommitMachine`, `FollowMachine`,
//! `BootstrapMachine`, the service's `FollowerMachine` with its fold, the fleet's `Roster`, the agent's `ReplicaMachine`
//! and `FrontendLoop` with plans and memory. What is simulated is what surrounds them: network, broker, disks, clocks,
//! frontends, clients.
//!
//! Owns: worlds ([`plan`]), the faults ([`nemesis`], [`net`]), the judge apart from the workload ([`oracle`], [`heal`]),
//! and proofs that the net can fail ([`mutation`]) and reaches what it should ([`marks`]).
//! Never does: sleep, read a clock, or draw from any chance but the seed's.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an answer that fits no question is dropped, whatever it is"
)]

pub mod agent;
pub mod boot;
pub mod broker;
pub mod build;
pub mod claims;
pub mod client;
pub mod event;
pub mod feed;
pub mod frontends;
pub mod heal;
pub mod marks;
pub mod mutation;
pub mod nemesis;
pub mod net;
pub mod oracle;
pub mod plan;
pub mod remembered;
pub mod rng;
pub mod serve;
pub mod service;
pub mod world;
pub mod write;

use marks::Marks;
use mutation::Mutation;
use world::World;

/// Version of the worlds: a seed means the same world only within one version.
pub const WORLDS: u32 = 3;

/// What became of one seed.
#[derive(Debug, Clone)]
pub struct Report {
    /// Which.
    pub seed: u64,
    /// Hash over everything that happened.
    pub hash: u64,
    /// What was reached.
    pub marks: Marks,
    /// Events handled.
    pub steps: u64,
    /// Virtual time, in microseconds.
    pub time_us: u64,
    /// What was found wrong.
    pub violations: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>, tracing: bool) -> Report {
    let mut world = World::new(seed, mutation, tracing);
    world.run();
    let sent = world.sent;
    world.mix(sent);
    Report {
        seed,
        hash: world.hash(),
        steps: world.steps,
        time_us: world.now,
        violations: world.oracle.violations.clone(),
        marks: world.marks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_has_the_same_history() {
        for seed in 0..4 {
            let (one, other) = (run(seed, None, false), run(seed, None, false));
            assert_eq!(
                (one.hash, one.steps, one.violations),
                (other.hash, other.steps, Vec::new()),
                "{seed}"
            );
        }
    }
}
