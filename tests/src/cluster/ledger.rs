//! What everybody was told, against the log itself (not what a service says of it).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use event_log::{LogReader, Options, Seen};
use schemas::event::Event;
use schemas::state::{Reading, State, Verdict};
use schemas::{CommandId, Position};

use super::load::Load;
use super::stage::{OPERATOR, PATIENCE, Stage};
use crate::history::{What, checker, recorder};
use crate::wait::wait_until;

/// What the log holds.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Accepted records of each command.
    pub accepted: BTreeMap<CommandId, Vec<u64>>,
    /// Records that do not count.
    pub void: u64,
    /// The revision that each accepted record made.
    pub revisions: BTreeMap<u64, u64>,
    /// Where it ends.
    pub head: u64,
}

/// Reads the whole log at these servers.
///
/// # Panics
/// When it cannot be read, does not chain, or skips a revision.
pub async fn read(urls: &str, login: bool) -> Ledger {
    let urls = if login {
        let (user, password) = OPERATOR;
        urls.replace("nats://", &format!("nats://{user}:{password}@"))
    } else {
        urls.to_owned()
    };
    let options = Options {
        call_timeout: Duration::from_secs(5),
        ..Options::default()
    };
    let url = urls.parse().expect("a log URL");
    let log = event_log::connect_reader(&url, options)
        .await
        .expect("a reader")
        .log;
    let head = wait_until("the log can be read", PATIENCE, async || {
        log.head().await.map_err(|why| why.to_string())
    })
    .await;
    fold(&*log, head).await
}

/// Folds a log up to a head.
///
/// # Panics
/// As [`read`].
pub async fn fold(log: &dyn LogReader, head: event_log::Head) -> Ledger {
    let seen = Seen {
        log_id: head.log_id,
        position: Position::START,
        record: None,
    };
    let mut records = log.follow(seen).await.expect("records");
    let mut ledger = Ledger {
        head: head.position.0,
        ..Ledger::default()
    };
    let mut state = State::default();
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    while state.position < head.position {
        let entry = tokio::time::timeout(PATIENCE, records.next()).await;
        let entry = entry.expect("records come").expect("a record");
        let reading = migrations::read(&entry.subject, &entry.bytes);
        let verdict = state.evolve(entry.position, &entry.subject, &entry.bytes, &reading);
        let Reading::Known(record) = reading else {
            panic!("unreadable: {reading:?}");
        };
        if matches!(verdict, Verdict::Void { .. }) {
            ledger.void += 1;
            continue;
        }
        assert_eq!(verdict, Verdict::Accepted { chained: true }, "{entry:?}");
        let position = entry.position.0;
        ledger
            .accepted
            .entry(record.command_id)
            .or_default()
            .push(position);
        let Event::PoliciesChanged { changes } = record.event else {
            panic!("no change: {entry:?}");
        };
        let revision = changes[0].revision.0;
        let before = last
            .insert(changes[0].scope.to_string(), revision)
            .unwrap_or(0);
        assert_eq!(revision, before + 1, "revisions are dense: {entry:?}");
        ledger.revisions.insert(position, revision);
    }
    ledger
}

impl Ledger {
    /// Everything that was told against what is there.
    ///
    /// # Panics
    /// With the first contradiction.
    pub fn agrees(&self, load: &Load) {
        let told = load.told();
        assert!(told.wrong.is_empty(), "{:#?}", told.wrong);
        assert!(!told.acknowledged.is_empty(), "nothing was acknowledged");
        for (command, position) in &told.acknowledged {
            let there = self.accepted.get(command);
            assert_eq!(
                there,
                Some(&vec![*position]),
                "{command} was acknowledged: once, and there"
            );
        }
        let refused = told.refused.keys().copied().collect();
        for (what, commands) in [("refused", &refused), ("not applied", &told.not_applied)] {
            for command in commands {
                let there = self.accepted.get(command);
                assert_eq!(there, None, "{command} was told to be {what}");
            }
        }
        for (command, positions) in &self.accepted {
            assert_eq!(positions.len(), 1, "{command} is there more than once");
        }
    }
}

/// Ends a load and holds everything that must hold after it: log, both services, history.
///
/// # Panics
/// When something does not.
pub async fn settle(stage: &Stage, load: &Load, name: &str, login: bool) {
    load.end().await;
    stage.works().await;
    let ledger = read(&stage.urls, login).await;
    stage.same_view(ledger.head).await;
    judge(load, &ledger, &stage.folder.with_extension("history"), name);
}

/// Compares a load with the log and judges its history; keeps the history when it cannot be.
///
/// # Panics
/// When something does not hold.
pub fn judge(load: &Load, ledger: &Ledger, kept: &Path, name: &str) {
    println!("      {}", load.summary());
    let history = load.history(&ledger.revisions);
    let judged = checker::check(&history);
    if let Err(why) = judged.as_ref() {
        let kept = recorder::keep(&history, kept);
        if let checker::Violation::NotLinearizable { stuck, .. } = why {
            let told = load.told();
            for operation in stuck {
                if let What::Refused { command, .. } = operation.what {
                    println!(
                        "      {command} was answered {:?}",
                        told.refused.get(&command)
                    );
                }
            }
        }
        panic!("{name}: the history is impossible: {why}; kept in {kept:?}");
    }
    ledger.agrees(load);
    println!(
        "      log: {} records, {} void; history possible: {:?}",
        ledger.revisions.len() as u64 + ledger.void,
        ledger.void,
        judged.unwrap_or_default()
    );
}
