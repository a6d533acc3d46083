//! What is said of a command before it is worked on, and of one that was in doubt: pure.

use std::collections::VecDeque;

use schemas::{CommandId, Hash, Rejection};

use super::{Outcome, WriteError};

/// Bound: commands of unknown outcome that are remembered.
const DOUBTFUL_MAX: usize = 10_000;

/// What to do with a command that comes in.
#[derive(Debug, Clone, PartialEq)]
pub enum Admission {
    /// Work on it.
    Begin,
    /// It is worked on already: its outcome is that one's.
    Join,
    /// Say this.
    Refuse(WriteError),
}

/// Commands whose outcome could not be found out, newest last.
#[derive(Debug, Default)]
pub struct Doubtful {
    ids: VecDeque<CommandId>,
}

impl Doubtful {
    /// `in_flight` is the fingerprint of the same command that is worked on now; `room` = one more may be begun.
    #[must_use]
    pub fn admit(
        &self,
        id: CommandId,
        fingerprint: Hash,
        in_flight: Option<Hash>,
        room: bool,
    ) -> Admission {
        match in_flight {
            Some(known) if known == fingerprint => Admission::Join,
            Some(_) => Admission::Refuse(WriteError::KeyReused { position: None }),
            None if room => Admission::Begin,
            // Only the first try of a command can say that nothing of it was begun.
            None => Admission::Refuse(if self.ids.contains(&id) {
                WriteError::Unknown("too many writes in progress to find out".to_owned())
            } else {
                WriteError::Overloaded
            }),
        }
    }

    /// "It is not in the log" is only said of a command that was never in doubt: what is sent again may have got there the
    /// first time.
    pub fn judge(&mut self, id: CommandId, outcome: Outcome) -> Outcome {
        match outcome {
            Err(WriteError::Unknown(why)) => {
                if !self.ids.contains(&id) {
                    self.ids.push_back(id);
                }
                if self.ids.len() > DOUBTFUL_MAX {
                    self.ids.pop_front();
                }
                Err(WriteError::Unknown(why))
            }
            Err(
                WriteError::Unavailable(why) | WriteError::Store(why) | WriteError::Foreign(why),
            ) if self.ids.contains(&id) => Err(WriteError::Unknown(why)),
            // A schema that was replaced meanwhile keeps nothing out of the log: readers do not judge values again. (What
            // makes a revision stale does: it holds the place in the log, or makes the earlier try void.)
            Err(WriteError::Refused { rejection, .. })
                if matches!(*rejection, Rejection::InvalidValue { .. })
                    && self.ids.contains(&id) =>
            {
                Err(WriteError::Unknown(format!(
                    "{rejection}; an earlier try may still be stored"
                )))
            }
            known => known,
        }
    }
}
