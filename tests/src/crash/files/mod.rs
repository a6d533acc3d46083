//! Damaged store files: bits, sectors, torn ends, missing and outdated files, in every store that we keep.
//!
//! What can be made again (projections, copies) may be set aside, or come back as it was at some earlier moment. The
//! embedded log, a source of truth, may be refused, or come back whole. Anything else is a violation.

mod damage;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use router_agent::local_copy::{Cursor, LocalCopy};
use router_agent::memory::ThresholdMemory;
use router_agent::remembered::Remembered;
use schemas::event::{Event, record_hash};
use schemas::state::{Reading, State};
use schemas::{FrontendId, Name, Position, Timestamp};
use serde_json::json;
use service::projection::fold::digest;

use super::history::History;
use super::ledger::Ledger;
use super::program::{Program, copy};
use super::report::Report;
use super::writers::{Place, Writers};
use crate::binaries::target;
use crate::wait::reached;
use probe::{Verdict, entries_hash, hash, state_hash};

/// The stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Store {
    Log,
    Projection,
    Copy,
    Memory,
}

const STORES: [Store; 4] = [Store::Log, Store::Projection, Store::Copy, Store::Memory];
/// A probe that takes longer hangs.
const PROBE_MAX: Duration = Duration::from_secs(60);
/// Bound: what a probe may allocate, in KiB; damage must not make a program ask for all memory.
const PROBE_KIB: u64 = 4 << 20;

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Log => "log",
            Store::Projection => "projection",
            Store::Copy => "copy",
            Store::Memory => "memory",
        }
    }

    /// Where its files are, in the folder that a program is given.
    fn files(self) -> &'static str {
        match self {
            Store::Log => ".",
            Store::Projection => "projection",
            Store::Copy => "replica",
            Store::Memory => "memory",
        }
    }
}

/// Hashes of a store's state, and of all that can be read from it.
type Hashes = (u64, u64);

/// What a whole store holds at each position, worked out when it is asked for.
struct Wanted {
    positions: BTreeSet<u64>,
    end: u64,
    known: BTreeMap<u64, Hashes>,
    at: Box<dyn Fn(Position) -> Hashes>,
}

impl Wanted {
    fn new(history: &Arc<History>, at: impl Fn(&History, Position) -> Hashes + 'static) -> Wanted {
        let positions = history.entries.iter().map(|entry| entry.position.0);
        let own = Arc::clone(history);
        Wanted {
            positions: std::iter::once(0).chain(positions).collect(),
            end: history.state.position.0,
            known: BTreeMap::new(),
            at: Box::new(move |position| at(&own, position)),
        }
    }

    fn get(&mut self, position: u64) -> Option<Hashes> {
        if !self.positions.contains(&position) {
            return None;
        }
        let at = &self.at;
        let known = self.known.entry(position);
        Some(*known.or_insert_with(|| at(Position(position))))
    }
}

/// The entry point of a probe's process: prints one line.
pub async fn probe(store: &str, folder: &Path) -> bool {
    let verdict = match store {
        "log" => probe::log(folder).await,
        "projection" => probe::projection(folder),
        "copy" => probe::copy(folder),
        "memory" => probe::memory(folder).await,
        _ => return false,
    };
    println!("{}", serde_json::to_string(&verdict).unwrap_or_default());
    true
}

/// Damages `rounds` times each store, and says what became of it.
pub async fn run(rounds: u64, seed: u64) -> Report {
    let mut report = Report::new("files");
    let folder = target().join("crash").join("files");
    // It may not exist yet.
    let _ = std::fs::remove_dir_all(&folder);
    let mut templates = match make(&folder, seed).await {
        Ok(templates) => templates,
        Err(words) => {
            report.violation(words);
            return report;
        }
    };
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut dice = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        for store in STORES {
            let Some((template, older, wanted)) = templates.get_mut(&store) else {
                continue;
            };
            let scratch = folder.join("scratch");
            let _ = std::fs::remove_dir_all(&scratch);
            let way = damage::draw(&mut dice);
            let damaged = copy(template, &scratch).and_then(|()| {
                damage::apply(
                    way,
                    &scratch.join(store.files()),
                    &older.join(store.files()),
                    &mut dice,
                )
            });
            let what = match damaged {
                Ok(what) => what,
                Err(why) => {
                    report.violation(format!("no damage done: {why}"));
                    continue;
                }
            };
            report.killed(None);
            let verdict = ask(store, &scratch);
            let outcome = judge(store, wanted, &verdict);
            let (outcome, wrong) = match outcome {
                Ok(outcome) => (outcome.to_owned(), false),
                Err(words) => (words, true),
            };
            if wrong {
                let kept = folder.join(format!("violation-{round}-{}", store.name()));
                let _ = std::fs::rename(&scratch, &kept);
                report.violation(format!(
                    "{} {way:?} {what}: {outcome} ({})",
                    store.name(),
                    kept.display()
                ));
            } else {
                let line = format!("{:<10} {way:?}: {outcome}", store.name());
                *outcomes.entry(line).or_default() += 1;
            }
        }
    }
    for (outcome, count) in outcomes {
        println!("files     {count:>5} x {outcome}");
    }
    if report.violations.none() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    report
}

/// What may be said of a damaged store.
fn judge(
    store: Store,
    wanted: &mut Wanted,
    said: &Result<Verdict, String>,
) -> Result<&'static str, String> {
    let verdict = said.as_ref().map_err(Clone::clone)?;
    match (store, verdict) {
        (Store::Log, Verdict::SetAside(why)) => Err(format!("the log was set aside: {why}")),
        (Store::Log, Verdict::Refused(_)) => Ok("refused"),
        (Store::Projection | Store::Copy | Store::Memory, Verdict::SetAside(_)) => Ok("set aside"),
        (Store::Projection | Store::Copy | Store::Memory, Verdict::Refused(why)) => {
            Err(format!("refused: {why}"))
        }
        (_, Verdict::SetAsideNext { position, state }) => match wanted.get(*position) {
            Some((state_then, _)) if *state == state_then => Ok("set aside at the next start"),
            Some(_) | None => Err(format!("silently wrong at {position} of {}", wanted.end)),
        },
        (
            _,
            Verdict::Opened {
                position,
                state,
                all,
            },
        ) => {
            let Some((state_then, all_then)) = wanted.get(*position) else {
                return Err(format!("it is at {position}, where the log has nothing"));
            };
            if *state != state_then {
                return Err(format!("silently wrong at {position} of {}", wanted.end));
            }
            match (store, all) {
                (Store::Log, Err(why)) => Err(format!("opened, then: {why}")),
                (Store::Log, Ok(_)) if *position < wanted.end => Err(format!(
                    "lost: it ends at {position}, not at {}",
                    wanted.end
                )),
                (Store::Projection, Err(why)) => Err(format!("opened, then: {why}")),
                (Store::Projection, Ok(all)) if *all != all_then => {
                    Err(format!("silently wrong at {position}, beside the state"))
                }
                (Store::Log | Store::Projection | Store::Copy | Store::Memory, Ok(_))
                    if *position < wanted.end =>
                {
                    Ok("as it was earlier")
                }
                (Store::Log | Store::Projection | Store::Copy | Store::Memory, _) => Ok("whole"),
            }
        }
    }
}

/// Runs a probe in a process of its own.
fn ask(store: Store, folder: &Path) -> Result<Verdict, String> {
    let me = std::env::current_exe().map_err(|why| why.to_string())?;
    let words = folder.with_extension("words");
    let open = || std::fs::File::create(&words).map_err(|why| why.to_string());
    let out = folder.with_extension("out");
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -v {PROBE_KIB}; exec \"$0\" probe \"$1\" \"$2\""
        ))
        .arg(me)
        .arg(store.name())
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).map_err(|why| why.to_string())?)
        .stderr(open()?)
        .spawn()
        .map_err(|why| why.to_string())?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() > PROBE_MAX => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it hangs".to_owned());
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(why) => return Err(why.to_string()),
        }
    };
    let text = std::fs::read_to_string(&out).unwrap_or_default();
    let line = text.lines().last().unwrap_or_default();
    serde_json::from_str(line).map_err(|_| {
        let words = std::fs::read_to_string(&words).unwrap_or_default();
        let words: Vec<&str> = words.lines().rev().take(4).collect();
        format!("it ended with {status}: {}", words.join(" | "))
    })
}

type Templates = BTreeMap<Store, (PathBuf, PathBuf, Wanted)>;

/// Makes whole stores: a real service with its own log that was killed, and an agent's stores made from that log.
async fn make(folder: &Path, seed: u64) -> Result<Templates, String> {
    let mut service = Program::service("service", folder, "embedded");
    service.up(None).await?;
    let ledger = Arc::new(Ledger::default());
    let places: Vec<Place> = (0..7).map(|n| Place::model(&format!("m{n}"))).collect();
    let urls = [service.url()];
    let writers = Writers::start(4, &urls, &places, &ledger, seed, Duration::ZERO);
    let enough = async |count: u64| {
        reached(
            "enough changes",
            Duration::from_secs(60),
            async || match ledger.counts().acknowledged {
                now if now >= count => Ok(()),
                now => Err(now.to_string()),
            },
        )
        .await
    };
    let io = |why: std::io::Error| why.to_string();
    enough(150).await?;
    service.kill();
    let older = folder.join("older");
    copy(&service.folder, &older).map_err(io)?;
    service.up(None).await?;
    enough(450).await?;
    let ended = writers.end().await;
    service.stop().await;
    if !ended {
        return Err("the clients did not come to an end".to_owned());
    }
    let whole = folder.join("whole");
    copy(&service.folder, &whole).map_err(io)?;
    let history = History::read_folder(&whole.join("log")).await?;
    let (agent, agent_older) = (folder.join("agent"), folder.join("agent-older"));
    let memory = fill_agent(&agent, &agent_older, &history).await?;
    let mut templates = Templates::new();
    let history = Arc::new(history);
    let log = Wanted::new(&history, |history, position| {
        let all = entries_hash(history, position);
        (all, all)
    });
    templates.insert(Store::Log, (whole.join("log"), older.join("log"), log));
    let projections = Wanted::new(&history, projection_hashes);
    templates.insert(Store::Projection, (whole, older, projections));
    let copies = Wanted::new(&history, |history, position| {
        (state_hash(&history.state_at(position)), 0)
    });
    let place = (agent.clone(), agent_older.clone());
    templates.insert(Store::Copy, (place.0, place.1, copies));
    let memories = Wanted {
        positions: [1].into(),
        end: 1,
        known: [(1, (memory, 0))].into(),
        at: Box::new(|_| (0, 0)),
    };
    templates.insert(Store::Memory, (agent, agent_older, memories));
    Ok(templates)
}

fn projection_hashes(history: &History, position: Position) -> Hashes {
    let (projected, pairs) = history.projection_at(position);
    let mut snapshot = projected.snapshot();
    snapshot.log_id = None;
    let all = pairs
        .iter()
        .fold(0_u64, |sum, pair| sum.wrapping_add(hash(pair)));
    (hash(digest(&snapshot).0), all)
}

/// An agent's copy, written record by record, and what it remembers of one frontend. Returns the memory's hash.
async fn fill_agent(folder: &Path, older: &Path, history: &History) -> Result<u64, String> {
    let failed = |why: &dyn std::fmt::Display| why.to_string();
    let now = Timestamp::from_unix_ms(1);
    let path = folder.join("replica");
    let (copied, _) = LocalCopy::open(&path, now).map_err(|why| failed(&why))?;
    let frontend = FrontendId(Name::new("http://127.0.0.1:1").map_err(|why| failed(&why))?);
    let remembered = Remembered::open(&folder.join("memory"), now).map_err(|why| failed(&why))?;
    remembered.started(now).map_err(|why| failed(&why))?;
    let model = Name::new("mock-model").map_err(|why| failed(&why))?;
    let startup = json!({"startup": {"active_decode_blocks_threshold": 0.77}, "set": {}, "seen": {},
        "routers": [], "doubt": null, "refused": null});
    let memory: ThresholdMemory = serde_json::from_value(startup).map_err(|why| failed(&why))?;
    remembered.keep_thresholds(&frontend, &model, &memory).await;
    let mut state = State::default();
    let half = history.entries.len() / 2;
    let log_id = history.log_id.ok_or("the log has no identity")?;
    for (n, entry) in history.entries.iter().enumerate() {
        let reading = migrations::read(&entry.subject, &entry.bytes);
        let _ = state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        let changed = match &reading {
            Reading::Known(record) => match &record.event {
                Event::PoliciesChanged { changes } => {
                    changes.iter().map(|change| change.key()).collect()
                }
                Event::ParameterRegistered { .. } => Vec::new(),
            },
            Reading::Unknown { .. } => Vec::new(),
        };
        let cursor = Cursor {
            log_id,
            position: entry.position,
            hash: record_hash(&entry.subject, &entry.bytes),
        };
        copied
            .advance(&state, cursor, &entry.subject, &changed)
            .map_err(|why| failed(&why))?;
        if n == half {
            copied.sync().map_err(|why| failed(&why))?;
            copy(folder, older).map_err(|why| failed(&why))?;
        }
    }
    copied.sync().map_err(|why| failed(&why))?;
    let loaded = remembered.load(frontend).await;
    Ok(hash(format!("{loaded:?}")))
}
