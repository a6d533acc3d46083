//! Histories: what concurrent clients asked and were told, and whether that can have come from one policy per scope.
//!
//! Owns: the words of a history, recording it, and writing one down that failed. [`checker`] judges.
//! Never does: look into the log; the ledger of the cluster run does that.

pub mod checker;
pub mod recorder;

use schemas::CommandId;
use serde::{Deserialize, Serialize};

/// What a policy looks like to a client: its revision, and the command that made it (none at revision 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Register {
    /// Revision.
    pub revision: u64,
    /// Command of the last change.
    pub command: Option<CommandId>,
}

impl Register {
    /// Never changed.
    pub const EMPTY: Register = Register {
        revision: 0,
        command: None,
    };
}

/// What a client did and what it was told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// A change was acknowledged with this revision.
    Written {
        /// Its command.
        command: CommandId,
        /// The revision that it was conditional on.
        expected: Option<u64>,
        /// The revision that it made.
        revision: u64,
        /// Its place in the log.
        position: u64,
    },
    /// A change was refused because the policy was not at the expected revision.
    Refused {
        /// Its command.
        command: CommandId,
        /// That revision.
        expected: u64,
    },
    /// What became of a change is not known: it took effect at any moment after it was sent, or never.
    Unknown {
        /// Its command.
        command: CommandId,
        /// The revision that it was conditional on.
        expected: Option<u64>,
    },
    /// A read that was to see everything that was acknowledged before it began.
    Read {
        /// What it saw.
        seen: Register,
    },
    /// A read through one replica with a position that it had to have reached.
    ReadAfter {
        /// Asked for.
        at_least: u64,
        /// What it saw.
        seen: Register,
        /// How far the replica was.
        position: u64,
    },
}

/// One operation of one client on one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Who.
    pub client: usize,
    /// On which policy.
    pub policy: usize,
    /// Through which replica (the last one, where several were tried).
    pub replica: usize,
    /// When it began, in microseconds since the history began.
    pub began_us: u64,
    /// When its last answer came. Of no meaning for [`What::Unknown`].
    pub ended_us: u64,
    /// What.
    pub what: What,
}
