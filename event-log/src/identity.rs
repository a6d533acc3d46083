//! What a process knows of the log's identity, shared between the process and its adapter.

use std::sync::{Arc, Mutex, PoisonError};

use schemas::LogId;

use crate::port::{Failure, Foreign, Head};

/// Which log is expected, and whether one may be made. A cheap handle: clones share one memory.
///
/// Invariant: once a log was met, no other is taken and none is made, whatever was allowed before.
#[derive(Debug, Clone, Default)]
pub struct Identity(Arc<Mutex<Knowledge>>);

#[derive(Debug, Default)]
struct Knowledge {
    known: Option<LogId>,
    creation_allowed: bool,
}

impl Identity {
    /// Nothing is known; an existing log is taken, a missing one is an error.
    #[must_use]
    pub fn unknown() -> Identity {
        Identity::default()
    }

    /// The process has met this log before: a missing one is [`Foreign::Gone`], another one [`Foreign::OtherIdentity`].
    pub fn expect(&self, log_id: LogId) {
        self.lock().known = Some(log_id);
    }

    /// A missing log may be made. Only for a process whose own store has never met one.
    pub fn allow_create(&self) {
        self.lock().creation_allowed = true;
    }

    /// The log that is expected or was met.
    #[must_use]
    pub fn known(&self) -> Option<LogId> {
        self.lock().known
    }

    /// True when a missing log may be made.
    #[must_use]
    pub fn may_create(&self) -> bool {
        let knowledge = self.lock();
        knowledge.creation_allowed && knowledge.known.is_none()
    }

    /// Takes a log as the one, if none was met yet.
    ///
    /// # Errors
    /// [`Foreign::OtherIdentity`] when another one was.
    pub fn meet(&self, actual: LogId) -> Result<(), Foreign> {
        let known = *self.lock().known.get_or_insert(actual);
        if known == actual {
            Ok(())
        } else {
            Err(Foreign::OtherIdentity { known, actual })
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Knowledge> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a log that is not the one that was seen. Shared by the adapters.
pub(crate) fn recognise(seen: crate::port::Seen, head: Head) -> Result<(), Failure> {
    if seen.log_id != head.log_id {
        return Err(Failure::Foreign(Foreign::OtherIdentity {
            known: seen.log_id,
            actual: head.log_id,
        }));
    }
    if seen.position > head.position {
        return Err(Failure::Foreign(Foreign::Behind {
            known: seen.position,
            actual: head.position,
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn once_met_no_other_log_is_taken_and_none_is_made() {
        let (one, other) = (LogId(Uuid::from_u128(1)), LogId(Uuid::from_u128(2)));
        let identity = Identity::unknown();
        assert!(!identity.may_create());
        identity.allow_create();
        assert!(identity.may_create());
        assert_eq!(identity.meet(one), Ok(()));
        assert_eq!(identity.meet(one), Ok(()));
        assert_eq!(
            identity.meet(other),
            Err(Foreign::OtherIdentity {
                known: one,
                actual: other
            })
        );
        assert!(!identity.may_create());
        assert_eq!(identity.known(), Some(one));
    }
}
