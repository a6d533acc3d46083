//! Faults put into the shells on purpose, to prove that the net can fail: each must be caught within some hundred seeds.
//!
//! They are in the simulated shells and the simulated broker only; the product has no branch for them.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// A conflict (10071) is taken for a refusal; nobody looks who holds the place.
    ConflictIsRefusal,
    /// An append that timed out is taken for one that did not happen.
    TimeoutIsRefusal,
    /// A state is published before it is kept.
    PublishBeforeKeep,
    /// The checks of a bootstrap from tails are left out.
    TailChecksSkipped,
    /// Every log is taken for the one that is known, and every record at a service's cursor for the one that it has read.
    /// (Either alone is not enough: identity, end and the record at the cursor each refuse a log.)
    RecognitionSkipped,
    /// Deliveries are handed on as they come: nobody counts them.
    DeliveriesUncounted,
    /// Nobody compares cursor and head.
    WatchdogsOff,
    /// A listing counts although it was asked for before the last change was answered.
    OldListingsCount,
    /// The agent's memory of routers and thresholds is not kept.
    MemoryNotKept,
    /// A write is told its verdict without waiting for the own projection.
    VerdictUnread,
    /// Nobody notices that the local copy could not be written.
    TornCopyUnnoticed,
    /// Silent agents are forgotten at once.
    SilenceIsAbsence,
    /// A report says of every listing that it is of now.
    ListingsAgeless,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 13] = [
        Mutation::ConflictIsRefusal,
        Mutation::TimeoutIsRefusal,
        Mutation::PublishBeforeKeep,
        Mutation::TailChecksSkipped,
        Mutation::RecognitionSkipped,
        Mutation::DeliveriesUncounted,
        Mutation::WatchdogsOff,
        Mutation::OldListingsCount,
        Mutation::MemoryNotKept,
        Mutation::VerdictUnread,
        Mutation::TornCopyUnnoticed,
        Mutation::SilenceIsAbsence,
        Mutation::ListingsAgeless,
    ];
}
