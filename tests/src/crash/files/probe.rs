//! What a program makes of a store: run as a process of its own, because damage may end or hang it.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use event_log::embedded::EmbeddedLog;
use event_log::{Appended, EventLog as _, LogReader as _};
use router_agent::local_copy::LocalCopy;
use router_agent::remembered::Remembered;
use schemas::state::State;
use schemas::{Position, Subject, Timestamp};
use serde::{Deserialize, Serialize};
use service::projection::fold::digest;

use super::super::history::{History, pairs_of, set_aside};

/// What a program says of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It was opened; this is in it.
    Opened {
        /// Up to here.
        position: u64,
        /// Hash of all that a start takes from it.
        state: u64,
        /// Hash of all that can be read from it, or why not all can.
        all: Result<u64, String>,
    },
    /// It was opened and is whole, and the next start finds damage and sets it aside.
    SetAsideNext {
        /// Up to here.
        position: u64,
        /// Hash of all that a start takes from it.
        state: u64,
    },
    /// It was set aside; a new one is in its place.
    SetAside(String),
    /// It was not opened.
    Refused(String),
}

/// A hash for comparing within one run.
#[must_use]
pub fn hash(value: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A state as one number.
#[must_use]
pub fn state_hash(state: &State) -> u64 {
    hash(format!("{state:?}"))
}

/// The store of a service.
#[must_use]
pub fn projection(data_dir: &Path) -> Verdict {
    let opened = match service::projection::open::open(data_dir, 8 << 20) {
        Ok(opened) => opened,
        Err(why) => return Verdict::Refused(chain(&why)),
    };
    if let Some(why) = opened.rebuilt {
        return Verdict::SetAside(why);
    }
    let mut loaded = opened.projected.snapshot();
    // Beside the store, not in it.
    loaded.log_id = None;
    let position = loaded.state.position.0;
    let state = hash(digest(&loaded).0);
    drop(opened.store);
    let all = catch_unwind(AssertUnwindSafe(|| pairs_of(&data_dir.join("projection"))));
    let all = all
        .unwrap_or_else(|_| Err("reading it all panicked".to_owned()))
        .map(|pairs| {
            pairs
                .iter()
                .fold(0_u64, |sum, pair| sum.wrapping_add(hash(pair)))
        });
    // SUBTLE: opening compared every pair with the records already. What cannot be read by now must be found by the next start.
    if all.is_err()
        && let Ok(again) = service::projection::open::open(data_dir, 8 << 20)
        && again.rebuilt.is_some()
    {
        return Verdict::SetAsideNext { position, state };
    }
    Verdict::Opened {
        position,
        state,
        all,
    }
}

/// The copy of an agent.
#[must_use]
pub fn copy(state_dir: &Path) -> Verdict {
    let before = set_aside(state_dir);
    let opened = LocalCopy::open(&state_dir.join("replica"), Timestamp::from_unix_ms(1));
    let (_, kept) = match opened {
        Ok(opened) => opened,
        Err(why) => return Verdict::Refused(chain(&why)),
    };
    if set_aside(state_dir) > before {
        return Verdict::SetAside("damaged".to_owned());
    }
    let (position, state) = kept.map_or((0, state_hash(&State::default())), |kept| {
        (kept.cursor.position.0, state_hash(&kept.state))
    });
    Verdict::Opened {
        position,
        state,
        all: Ok(0),
    }
}

/// What an agent remembers of one frontend.
pub async fn memory(state_dir: &Path) -> Verdict {
    let before = set_aside(state_dir);
    let remembered = match Remembered::open(&state_dir.join("memory"), Timestamp::from_unix_ms(1)) {
        Ok(remembered) => remembered,
        Err(why) => return Verdict::Refused(chain(&why)),
    };
    if set_aside(state_dir) > before {
        return Verdict::SetAside("damaged".to_owned());
    }
    let Ok(frontend) = schemas::Name::new("http://127.0.0.1:1") else {
        return Verdict::Refused("no name".to_owned());
    };
    let memory = remembered.load(schemas::FrontendId(frontend)).await;
    Verdict::Opened {
        position: 1,
        state: hash(format!("{memory:?}")),
        all: Ok(0),
    }
}

/// An embedded log: read, appended to, and read again.
pub async fn log(dir: &Path) -> Verdict {
    let read = match read_log(dir).await {
        Ok(read) => read,
        Err(why) => return Verdict::Refused(why),
    };
    let (position, state, mut all) = read;
    if all.is_ok() {
        all = match append(dir, Position(position)).await {
            // What was in it before must be in it still, under what was added.
            Ok(after) if after == state => Ok(state),
            Ok(_) => Err("after appends and another start it holds something else".to_owned()),
            Err(why) => Err(why),
        };
    }
    Verdict::Opened {
        position,
        state,
        all,
    }
}

type Read = (u64, u64, Result<u64, String>);

async fn read_log(dir: &Path) -> Result<Read, String> {
    let log = EmbeddedLog::open(dir, None).map_err(|why| chain(&why))?;
    let head = log.head().await.map_err(|why| why.to_string())?;
    let history = History::read(&log).await;
    let (state, mut all) = match history {
        Ok(history) => {
            let state = entries_hash(&history, head.position);
            let subjects: std::collections::BTreeSet<&Subject> =
                history.entries.iter().map(|entry| &entry.subject).collect();
            let mut all = Ok(state);
            for subject in subjects {
                let wanted = history.entries.iter().filter(|one| one.subject == *subject);
                let mut after = Position::START;
                for entry in wanted {
                    match log.next_on(subject, after).await {
                        Ok(Some(found)) if found == *entry => after = entry.position,
                        other => all = Err(format!("after {after} on {subject}: {other:?}")),
                    }
                }
            }
            (state, all)
        }
        Err(why) => (0, Err(why)),
    };
    match log.tails().await {
        Ok(tails) if tails.up_to.position == head.position => {}
        other => all = all.and(Err(format!("tails: {other:?}"))),
    }
    Ok((head.position.0, state, all))
}

/// All records up to a position as one number.
#[must_use]
pub fn entries_hash(history: &History, up_to: Position) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in history.entries.iter().filter(|one| one.position <= up_to) {
        (entry.position.0, entry.subject.as_str(), &entry.bytes[..]).hash(&mut hasher);
    }
    hasher.finish()
}

/// Appends three records, opens again, and returns the hash of what was there before.
async fn append(dir: &Path, end: Position) -> Result<u64, String> {
    let log = EmbeddedLog::open(dir, None).map_err(|why| format!("opening again: {why}"))?;
    let subject = Subject::from_log("appended");
    let mut tail = Position::START;
    for n in 0..3 {
        let bytes = Bytes::from(format!("{{\"n\":{n}}}"));
        match log.append(&subject, tail, bytes).await {
            Ok(Appended::Committed(position)) => tail = position,
            Ok(Appended::Conflict) => return Err("a fresh subject has a tail".to_owned()),
            Err(why) => return Err(format!("appending: {why}")),
        }
    }
    drop(log);
    let log =
        EmbeddedLog::open(dir, None).map_err(|why| format!("opening after appends: {why}"))?;
    let mut at = Position::START;
    for _ in 0..3 {
        match log.next_on(&subject, at).await {
            Ok(Some(entry)) => at = entry.position,
            other => return Err(format!("an appended record is gone: {other:?}")),
        }
    }
    if at != tail {
        return Err(format!("the appended records end at {at}, not at {tail}"));
    }
    let mut hasher = DefaultHasher::new();
    let mut position = Position::START;
    while position < end {
        position = Position(position.0 + 1);
        if let Some(entry) = log.at(position).await.map_err(|why| why.to_string())? {
            (entry.position.0, entry.subject.as_str(), &entry.bytes[..]).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        words = format!("{words}: {inner}");
        cause = inner.source();
    }
    words
}
