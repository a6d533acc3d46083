//! Bodies of the service's HTTP API: what is asked and what is answered.
//!
//! Owns: every request and response type; OpenAPI is generated from them. Requests refuse unknown fields.
//! Never does: decide anything.

pub mod audit;
pub mod changes;
pub mod errors;
pub mod events;
pub mod facade;
pub mod fleet;
pub mod policies;

pub use audit::{AuditChange, AuditEntry, AuditOrder, AuditPage};
pub use changes::{
    ChangeRequest, ChangesRequest, ParameterRequest, PolicyPatchRequest, RevertRequest,
    ValidateAnswer, ValidatedRouter, WriteAnswer,
};
pub use errors::{ErrorBody, ErrorCode, WriteOutcome};
pub use events::{HeadView, Line, TailsView};
pub use facade::{
    Configuration, PatchAnswer, PatchRequest, Replica, RouterEntry, RouterList, ThresholdAnswer,
    ThresholdEntry, ThresholdList, ThresholdReplica, ThresholdRequest,
};
pub use fleet::{AgentView, FleetView, Health, LogCondition};
pub use policies::{
    BuiltInView, Difference, DifferentValue, EffectiveView, HistoryEntry, HistoryPage,
    ParametersView, PolicyList, PolicyView,
};
