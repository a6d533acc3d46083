//! What a disk and its owner do to an embedded log: crashes, damage, lost folders, full disks, two openers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use event_log::embedded::{EmbeddedLog, OpenError, RECORD_BYTES_MAX};
use event_log::testing::TemporaryFolder;
use event_log::{
    Appended, ConnectError, EventLog, Failure, Foreign, LogReader, LogUrl, Options, connect,
};
use schemas::{LogId, Position, Subject};
use uuid::Uuid;

const LOG: LogId = LogId(Uuid::from_u128(11));

fn subject(name: &str) -> Subject {
    Subject::from_log(&format!("selection.{name}"))
}

fn note(number: u64) -> Bytes {
    Bytes::from(format!("{{\"number\":{number}}}"))
}

async fn put(log: &EmbeddedLog, name: &str, expected: Position, number: u64) -> Position {
    match log
        .append(&subject(name), expected, note(number))
        .await
        .unwrap()
    {
        Appended::Committed(position) => position,
        Appended::Conflict => panic!("a conflict on {name}"),
    }
}

/// A closed log with three records.
async fn closed(dir: &Path) {
    let log = EmbeddedLog::open(dir, Some(LOG)).unwrap();
    let mut tail = Position::START;
    for number in 0..3 {
        tail = put(&log, "m", tail, number).await;
    }
}

#[tokio::test]
async fn a_second_opener_is_refused() {
    let folder = TemporaryFolder::new().unwrap();
    let log = EmbeddedLog::open(folder.path(), Some(LOG)).unwrap();
    let second = EmbeddedLog::open(folder.path(), Some(LOG));
    assert!(matches!(second, Err(OpenError::Locked(_))), "{second:?}");
    drop(log);
    EmbeddedLog::open(folder.path(), None).unwrap();
}

#[tokio::test]
async fn a_log_is_made_only_where_that_is_allowed_and_keeps_its_identity() {
    let folder = TemporaryFolder::new().unwrap();
    let dir = folder.path().join("deep/log");
    assert!(matches!(
        EmbeddedLog::open(&dir, None),
        Err(OpenError::Missing(_))
    ));
    assert!(!dir.exists(), "looking makes nothing");
    closed(&dir).await;
    let other = LogId(Uuid::from_u128(12));
    let log = EmbeddedLog::open(&dir, Some(other)).unwrap();
    assert_eq!(log.log_id(), LOG);
    assert_eq!(log.head().await.unwrap().position, Position(3));
}

#[tokio::test]
async fn a_creation_that_was_cut_short_begins_again() {
    let folder = TemporaryFolder::new().unwrap();
    fs::create_dir_all(folder.path().join("store.new/keyspaces")).unwrap();
    fs::write(folder.path().join("store.new/version"), b"half").unwrap();
    closed(folder.path()).await;
    // And one that was cut short just before its last step is finished.
    fs::remove_file(folder.path().join("identity")).unwrap();
    let log = EmbeddedLog::open(folder.path(), None).unwrap();
    assert_eq!(log.head().await.unwrap().position, Position(3));
    assert_eq!(
        fs::read_to_string(folder.path().join("identity"))
            .unwrap()
            .trim(),
        LOG.to_string()
    );
}

type Damage = fn(&Path);

fn journal(dir: &Path) -> std::path::PathBuf {
    let files = fs::read_dir(dir.join("store"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "jnl"))
        .unwrap()
}

#[tokio::test]
async fn damage_is_an_error_and_never_an_empty_log() {
    let damages: &[(&str, Damage)] = &[
        ("the store is gone", |dir| {
            fs::remove_dir_all(dir.join("store")).unwrap()
        }),
        ("the store is empty", |dir| {
            fs::remove_dir_all(dir.join("store")).unwrap();
            fs::create_dir(dir.join("store")).unwrap();
        }),
        ("the version file is gone", |dir| {
            fs::remove_file(dir.join("store/version")).unwrap()
        }),
        ("the version file is garbage", |dir| {
            fs::write(dir.join("store/version"), b"????????").unwrap()
        }),
        ("the journal is gone", |dir| {
            fs::remove_file(journal(dir)).unwrap()
        }),
        ("the journal is empty", |dir| {
            fs::write(journal(dir), b"").unwrap()
        }),
        ("the journal is cut off", |dir| {
            let file = fs::File::options().write(true).open(journal(dir)).unwrap();
            file.set_len(150).unwrap();
        }),
        ("the journal is garbled", |dir| {
            let mut bytes = fs::read(journal(dir)).unwrap();
            bytes[200..400].fill(0x5a);
            fs::write(journal(dir), bytes).unwrap();
        }),
        ("the mark of the end is gone", |dir| {
            fs::remove_file(dir.join("end")).unwrap()
        }),
        ("the mark of the end is garbled", |dir| {
            fs::write(dir.join("end"), [7; 16]).unwrap()
        }),
        ("the tables are gone", |dir| {
            fs::remove_dir_all(dir.join("store/keyspaces")).unwrap();
        }),
        ("the identity is another", |dir| {
            fs::write(dir.join("identity"), LogId(Uuid::from_u128(1)).to_string()).unwrap();
        }),
        ("the identity is garbage", |dir| {
            fs::write(dir.join("identity"), "?").unwrap()
        }),
    ];
    for (name, damage) in damages {
        let folder = TemporaryFolder::new().unwrap();
        closed(folder.path()).await;
        damage(folder.path());
        let opened = EmbeddedLog::open(folder.path(), Some(LOG));
        match opened {
            Err(OpenError::Damaged { .. } | OpenError::Folder { .. }) => {}
            Err(why) => panic!("{name}: {why:?}"),
            Ok(log) => panic!("{name}: opened at {}", log.head().await.unwrap().position),
        }
    }
}

#[tokio::test]
async fn another_layout_is_refused() {
    let folder = TemporaryFolder::new().unwrap();
    closed(folder.path()).await;
    {
        let database = fjall::Database::builder(folder.path().join("store"))
            .open()
            .unwrap();
        let meta = database
            .keyspace("meta", fjall::KeyspaceCreateOptions::default)
            .unwrap();
        meta.insert("layout", "99").unwrap();
        database.persist(fjall::PersistMode::SyncAll).unwrap();
    }
    let opened = EmbeddedLog::open(folder.path(), None);
    assert!(
        matches!(opened, Err(OpenError::Layout { found: 99, .. })),
        "{opened:?}"
    );
}

#[tokio::test]
async fn a_store_without_its_identity_is_refused() {
    let folder = TemporaryFolder::new().unwrap();
    closed(folder.path()).await;
    {
        let database = fjall::Database::builder(folder.path().join("store"))
            .open()
            .unwrap();
        let meta = database
            .keyspace("meta", fjall::KeyspaceCreateOptions::default)
            .unwrap();
        meta.remove("log_id").unwrap();
        database.persist(fjall::PersistMode::SyncAll).unwrap();
    }
    let opened = EmbeddedLog::open(folder.path(), Some(LOG));
    assert!(
        matches!(opened, Err(OpenError::Damaged { .. })),
        "{opened:?}"
    );
}

#[tokio::test]
async fn records_that_are_too_large_are_refused() {
    let folder = TemporaryFolder::new().unwrap();
    let log = EmbeddedLog::open(folder.path(), Some(LOG)).unwrap();
    let huge = Bytes::from(vec![b'x'; RECORD_BYTES_MAX + 1]);
    let why = log
        .append(&subject("m"), Position::START, huge)
        .await
        .unwrap_err();
    assert!(matches!(why, Failure::Determinate(_)), "{why:?}");
    put(&log, "m", Position::START, 1).await;
}

#[tokio::test]
async fn connect_knows_the_log_again() {
    let folder = TemporaryFolder::new().unwrap();
    let url: LogUrl = format!("embedded:{}", folder.path().join("log").display())
        .parse()
        .unwrap();
    let expecting = |id: Option<LogId>| {
        let options = Options::default();
        match id {
            Some(id) => options.identity.expect(id),
            None => options.identity.allow_create(),
        }
        options
    };
    let known = LogId(Uuid::from_u128(5));
    let why = connect(&url, expecting(Some(known))).await.unwrap_err();
    assert!(matches!(why, ConnectError::Foreign(Foreign::Gone { known: id }) if id == known));
    let wiring = connect(&url, expecting(None)).await.unwrap();
    let actual = wiring.log.head().await.unwrap().log_id;
    drop(wiring);
    let why = connect(&url, expecting(Some(known))).await.unwrap_err();
    assert!(
        matches!(why, ConnectError::Foreign(Foreign::OtherIdentity { actual: id, .. }) if id == actual)
    );
    connect(&url, expecting(Some(actual))).await.unwrap();
}

const CRASHING: &str = "EMBEDDED_LOG_CRASH_DIR";

/// The process that is killed: appends for ever, and prints each position once it is acknowledged.
async fn write_until_killed(dir: &Path) {
    let log = std::sync::Arc::new(EmbeddedLog::open(dir, Some(LOG)).unwrap());
    let writers = (0..8).map(|writer| {
        let log = log.clone();
        async move {
            let mut tail = Position::START;
            for number in 0.. {
                tail = put(&log, &format!("w{writer}"), tail, number).await;
                println!("acknowledged {tail}");
            }
        }
    });
    futures::future::join_all(writers).await;
}

#[tokio::test]
async fn a_killed_process_loses_nothing_acknowledged() {
    if let Some(dir) = std::env::var_os(CRASHING) {
        return write_until_killed(Path::new(&dir)).await;
    }
    let folder = TemporaryFolder::new().unwrap();
    let dir = folder.path().join("log");
    let mut acknowledged = 0;
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_killed_process_loses_nothing_acknowledged",
                "--nocapture",
            ])
            .env(CRASHING, &dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut seen = 0;
        for line in std::io::BufRead::lines(output) {
            let line = line.unwrap();
            // The harness may print on the same line before the first one.
            if let Some((_, position)) = line.split_once("acknowledged ") {
                acknowledged = acknowledged.max(position.parse::<u64>().unwrap());
                seen += 1;
            }
            if seen == 200 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let log = EmbeddedLog::open(&dir, None).unwrap();
        let end = log.head().await.unwrap().position;
        assert!(
            end.0 >= acknowledged,
            "{acknowledged} was acknowledged, the log ends at {end}"
        );
        for position in 1..=end.0 {
            assert!(
                log.at(Position(position)).await.unwrap().is_some(),
                "{position} is missing"
            );
        }
        fs::remove_dir_all(&dir).unwrap();
        acknowledged = 0;
    }
}

const FILLING: &str = "EMBEDDED_LOG_FULL_DISK_DIR";

/// From now on no byte of this process gets beyond this offset of a file: the disk is full, for any user and without a mount.
fn limit_files(soft: &str) {
    let id = std::process::id().to_string();
    let limit = format!("--fsize={soft}:");
    let limited = Command::new("prlimit")
        .args(["--pid", &id, &limit])
        .status();
    assert!(limited.unwrap().success());
}

#[test]
fn a_full_disk_refuses_definitely_and_works_again_with_room() {
    const NAME: &str = "a_full_disk_refuses_definitely_and_works_again_with_room";
    if let Some(dir) = std::env::var_os(FILLING) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(fill_and_make_room(Path::new(&dir)));
    }
    let folder = TemporaryFolder::new().unwrap();
    // A write beyond the limit also raises a signal, which ends a process that does not ignore it.
    let out = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(FILLING, folder.path().join("log"))
        .output()
        .unwrap();
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(out.status.success() && said.contains("1 passed"), "{said}");
}

/// The process whose disk is full.
async fn fill_and_make_room(dir: &Path) {
    let log = EmbeddedLog::open(dir, Some(LOG)).unwrap();
    limit_files("4194304");
    // What the store cannot compress.
    let mut noise = 1_u64;
    let mut block = || -> Bytes {
        let words = (0..16 * 1024).map(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise.to_le_bytes()
        });
        words.flatten().collect()
    };
    let mut tail = Position::START;
    let mut refused = 0;
    for _ in 0..80 {
        match log.append(&subject("m"), tail, block()).await {
            Ok(Appended::Committed(position)) => tail = position,
            Err(Failure::Determinate(_)) => refused += 1,
            other => panic!("{other:?}"),
        }
        if refused == 3 {
            break;
        }
    }
    assert_eq!(refused, 3, "the disk was never full");
    let twice = log.next_on(&subject("m"), tail).await.unwrap();
    assert_eq!(twice, None, "what was refused is not stored");
    limit_files("unlimited");
    let mut next = Err(Failure::Determinate(String::new()));
    for _ in 0..20 {
        next = log.append(&subject("m"), tail, note(1)).await;
        if next.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(matches!(next, Ok(Appended::Committed(_))), "{next:?}");
    drop(log);
    let log = EmbeddedLog::open(dir, None).unwrap();
    assert_eq!(log.head().await.unwrap().position, Position(tail.0 + 1));
}
