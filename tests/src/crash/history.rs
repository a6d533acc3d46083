//! A log read from its beginning, and what stores made from it must hold.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use event_log::embedded::EmbeddedLog;
use event_log::{Entry, LogReader, Seen};
use schemas::state::{Reading, State, Verdict};
use schemas::{CommandId, LogId, Position, Timestamp};
use service::projection::fold::{Projected, Write, digest, project};
use service::projection::keys;

/// Everything that a log says.
#[derive(Debug, Default)]
pub struct History {
    /// Which log; none when it was never made.
    pub log_id: Option<LogId>,
    /// Every record.
    pub entries: Vec<Entry>,
    /// What they fold to.
    pub state: State,
    /// Where each command is accepted.
    pub accepted: BTreeMap<CommandId, Vec<Position>>,
    /// What each accepted command says why.
    pub reasons: BTreeMap<CommandId, String>,
}

impl History {
    /// Reads a log that is open.
    ///
    /// # Errors
    /// What the log said.
    pub async fn read(log: &dyn LogReader) -> Result<History, String> {
        let head = log.head().await.map_err(|why| why.to_string())?;
        let seen = Seen {
            log_id: head.log_id,
            position: Position::START,
            record: None,
        };
        let mut records = log.follow(seen).await.map_err(|why| why.to_string())?;
        let mut history = History {
            log_id: Some(head.log_id),
            ..History::default()
        };
        while history.state.position < head.position {
            let entry = records.next().await.map_err(|why| why.to_string())?;
            history.fold(entry)?;
        }
        Ok(history)
    }

    /// Reads the log at a URL.
    ///
    /// # Errors
    /// As [`History::read`].
    pub async fn read_url(url: &str) -> Result<History, String> {
        let parsed = url.parse().map_err(|why| format!("{url}: {why}"))?;
        let options = event_log::Options {
            call_timeout: std::time::Duration::from_secs(10),
            ..event_log::Options::default()
        };
        let wiring = event_log::connect_reader(&parsed, options).await;
        History::read(&*wiring.map_err(|why| why.to_string())?.log).await
    }

    /// Reads an embedded log that nobody has open.
    ///
    /// # Errors
    /// As [`History::read`], and why it does not open.
    pub async fn read_folder(dir: &Path) -> Result<History, String> {
        let log = EmbeddedLog::open(dir, None).map_err(|why| why.to_string())?;
        History::read(&log).await
    }

    fn fold(&mut self, entry: Entry) -> Result<(), String> {
        let reading = migrations::read(&entry.subject, &entry.bytes);
        let verdict = self
            .state
            .evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        let Reading::Known(record) = reading else {
            return Err(format!("unreadable at {}: {reading:?}", entry.position));
        };
        match verdict {
            Verdict::Accepted { chained: true } => {
                let id = record.command_id;
                self.accepted.entry(id).or_default().push(entry.position);
                let reason = record.reason.map(|reason| reason.to_string());
                self.reasons.insert(id, reason.unwrap_or_default());
            }
            Verdict::Void { .. } => {}
            Verdict::Accepted { chained: false } | Verdict::Unreadable { .. } => {
                return Err(format!("{}: {verdict:?}", entry.position));
            }
        }
        self.entries.push(entry);
        Ok(())
    }

    /// What an agent must know with everything up to here folded in.
    #[must_use]
    pub fn state_at(&self, position: Position) -> State {
        let mut state = State::default();
        for entry in self.up_to(position) {
            let reading = migrations::read(&entry.subject, &entry.bytes);
            let _ = state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        }
        state
    }

    fn up_to(&self, position: Position) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .take_while(move |entry| entry.position <= position)
    }

    /// What a service must know, and what its store must hold, pair for pair.
    #[must_use]
    pub fn projection_at(&self, position: Position) -> (Projected, BTreeMap<Vec<u8>, Vec<u8>>) {
        let mut projected = Projected {
            log_id: self.log_id,
            ..Projected::default()
        };
        let mut pairs = BTreeMap::new();
        for entry in self.up_to(position) {
            let reading = migrations::read(&entry.subject, &entry.bytes);
            for write in project(&mut projected, entry, &reading).writes {
                match write {
                    Write::Put(key, value) => {
                        pairs.insert(key, value);
                    }
                    Write::PutNew(key, value) => {
                        pairs.entry(key).or_insert(value);
                    }
                }
            }
        }
        (projected, pairs)
    }
}

/// What was found in a service's store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// As the log says, up to here.
    Same(Position),
    /// It could not be used, for this reason; it was set aside.
    SetAside(String),
}

/// Opens the store of a service that is not running, as the service would, and compares all of it with the log.
///
/// # Errors
/// How it differs.
pub fn compare_projection(data_dir: &Path, history: &History) -> Result<Found, String> {
    let opened = catch_unwind(|| service::projection::open::open(data_dir, 8 << 20));
    let opened = opened
        .map_err(|_| "opening the projection panicked".to_owned())?
        .map_err(|why| format!("the projection does not open: {why}"))?;
    if let Some(why) = opened.rebuilt {
        return Ok(Found::SetAside(why));
    }
    let position = opened.projected.state.position;
    let (wanted, pairs) = history.projection_at(position);
    let mut loaded = opened.projected.snapshot();
    loaded.log_id = loaded.log_id.or(history.log_id);
    drop(opened.store);
    if position > history.state.position {
        return Err(format!(
            "the store is at {position}, the log ends at {}",
            history.state.position
        ));
    }
    if digest(&loaded) != digest(&wanted.snapshot()) {
        return Err(format!(
            "the store's state at {position} is not the log's: {}",
            first_difference(&loaded.state, &wanted.state)
        ));
    }
    same_pairs(&data_dir.join("projection"), position, &pairs)?;
    Ok(Found::Same(position))
}

fn first_difference(left: &State, right: &State) -> String {
    for (key, document) in &right.policies {
        if left.policies.get(key) != Some(document) {
            return format!("{key}: {:?}, not {document:?}", left.policies.get(key));
        }
    }
    format!(
        "{} policies against {}, tails equal: {}",
        left.policies.len(),
        right.policies.len(),
        left.tails == right.tails
    )
}

/// Every pair of the store: records, indexes and commands too, which loading does not look at.
fn same_pairs(
    path: &Path,
    position: Position,
    wanted: &BTreeMap<Vec<u8>, Vec<u8>>,
) -> Result<(), String> {
    let read = AssertUnwindSafe(|| pairs_of(path));
    let mut pairs = catch_unwind(read).map_err(|_| "reading it all panicked".to_owned())??;
    let name = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    for (key, value) in wanted {
        match pairs.remove(key) {
            Some(there) if there == *value => {}
            Some(there) => {
                return Err(format!(
                    "at {position} the store holds {} under {}, not {}",
                    name(&there),
                    name(key),
                    name(value)
                ));
            }
            None => return Err(format!("at {position} the store lacks {}", name(key))),
        }
    }
    match pairs.keys().next() {
        Some(more) => Err(format!(
            "at {position} the store has {} too many, such as {}",
            pairs.len(),
            name(more)
        )),
        None => Ok(()),
    }
}

/// Every pair of a service's store but those that say what the store is.
///
/// # Errors
/// What sled said.
pub fn pairs_of(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let db = open_raw(path)?;
    let all = db.iter().map(|pair| {
        let (key, value) = pair.map_err(|why| format!("reading it all: {why}"))?;
        Ok((key.to_vec(), value.to_vec()))
    });
    let mut pairs: BTreeMap<Vec<u8>, Vec<u8>> = all.collect::<Result<_, String>>()?;
    for meta in [keys::LAYOUT, keys::VOCABULARY, keys::LOG_ID] {
        pairs.remove(meta);
    }
    Ok(pairs)
}

/// sled lets go of a store's files a moment after its owner does.
fn open_raw(path: &Path) -> Result<sled::Db, String> {
    let mut why = String::new();
    for _ in 0..200 {
        match sled::Config::new()
            .path(path)
            .cache_capacity(8 << 20)
            .open()
        {
            Ok(db) => return Ok(db),
            Err(error) => why = error.to_string(),
        }
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Err(format!("opening it again: {why}"))
}

/// Opens the copy of an agent that is not running, as the agent would, and compares it with the log.
///
/// # Errors
/// How it differs.
pub fn compare_copy(state_dir: &Path, history: &History) -> Result<Found, String> {
    let path = state_dir.join("replica");
    let before = set_aside(state_dir);
    let opened = catch_unwind(|| {
        router_agent::local_copy::LocalCopy::open(&path, Timestamp::from_unix_ms(1))
    });
    let (_, kept) = opened
        .map_err(|_| "opening the copy panicked".to_owned())?
        .map_err(|why| format!("the copy does not open: {why}"))?;
    if set_aside(state_dir) > before {
        return Ok(Found::SetAside("the copy".to_owned()));
    }
    let Some(kept) = kept else {
        return Ok(Found::Same(Position::START));
    };
    let position = kept.cursor.position;
    if position > history.state.position {
        return Err(format!(
            "the copy is at {position}, the log ends at {}",
            history.state.position
        ));
    }
    let wanted = history.state_at(position);
    if kept.state == wanted {
        Ok(Found::Same(position))
    } else {
        Err(format!(
            "the copy at {position} is not the log's: {}",
            first_difference(&kept.state, &wanted)
        ))
    }
}

/// How many folders lie aside.
#[must_use]
pub fn set_aside(folder: &Path) -> usize {
    let Ok(children) = std::fs::read_dir(folder) else {
        return 0;
    };
    children
        .filter_map(Result::ok)
        .filter(|child| {
            let name = child.file_name().to_string_lossy().into_owned();
            name.contains(".damaged-") || name.contains(".set-aside-")
        })
        .count()
}
