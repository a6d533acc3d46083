//! Versions of local stores. They hold only what can be made again from the log, so another version means: set the folder
//! aside and rebuild.

/// Layout of the service's sled projection. 2: accepted records of a command by its request, too.
pub const PROJECTION_LAYOUT: u32 = 2;
/// Layout of the agent's sled copy.
pub const AGENT_LAYOUT: u32 = 1;
/// Layout of the embedded log. Not rebuildable: a change here needs a migration, never a fresh start.
pub const EMBEDDED_LAYOUT: u32 = 1;

/// What the readers of this version understand. A store that was made with another set is made again, so that a record
/// that could not be read then is read now.
#[must_use]
pub fn vocabulary() -> String {
    [
        schemas::event::POLICIES_CHANGED,
        schemas::event::PARAMETER_REGISTERED,
    ]
    .join(" ")
}
