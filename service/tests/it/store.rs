//! The local store: kept over restarts, set aside when it cannot be used, and never mistaken for another log's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use event_log::{Appended, EventLog};
use reqwest::Method;
use schemas::{Hash, Position, Subject};
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, change, config, memory_log};

async fn filled(log: &Arc<dyn EventLog>, dir: &Path) -> (Fixture, Hash) {
    let mut fixture = Fixture::stopped(Arc::clone(log), config(dir));
    fixture.start().await;
    fixture.ready().await;
    for n in 0..200 {
        fixture.set(&format!("m{}", n % 11), f64::from(n)).await;
    }
    let schema = json!({"schema": {"type": "integer"}});
    assert_eq!(
        fixture
            .send(Method::PUT, "/v1/parameters/blocks", &schema)
            .await
            .0,
        200
    );
    let digest = fixture.running().digest();
    fixture.stop().await;
    (fixture, digest)
}

fn set_aside(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains("projection.set-aside-"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_everything() {
    let (log, dir) = (memory_log(1), tempfile::tempdir().unwrap());
    let (mut fixture, digest) = filled(&log, dir.path()).await;
    let faulty = event_log::faulty::Faulty::new(Arc::clone(&log));
    // Without the log: everything comes from the store.
    faulty.set_reachable(false);
    fixture.log = Arc::new(faulty.clone());
    fixture.start().await;
    assert_eq!(fixture.running().digest(), digest);
    let (_, page) = fixture.get("/v1/audit?limit=1000").await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 201);
    let (status, health) = fixture.get("/readyz").await;
    assert_eq!(
        (status.as_u16(), &health["log"]),
        (503, &json!("starting")),
        "{health}"
    );
    let body = json!({"changes": [change("m0", 1.0)]});
    let (status, answer) = fixture.send(Method::POST, "/v1/changes", &body).await;
    assert_eq!(
        (status.as_u16(), &answer["outcome"]),
        (503, &json!("not_applied")),
        "{answer}"
    );
    faulty.set_reachable(true);
    fixture.ready().await;
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &body).await.0,
        200
    );
    assert!(set_aside(dir.path()).is_empty());
    fixture.stop().await;
}

const TORN: &str = "the end is torn off";

/// Damages the store; the next start must have it again, equal, and say so.
async fn check(what: &str, damage: impl FnOnce(&Path)) {
    let (log, dir) = (memory_log(1), tempfile::tempdir().unwrap());
    let (mut fixture, digest) = filled(&log, dir.path()).await;
    damage(&dir.path().join("projection"));
    fixture.start().await;
    assert!(
        fixture.running().wait_for(Position(201), PATIENCE).await,
        "{what}"
    );
    fixture.ready().await;
    assert_eq!(fixture.running().digest(), digest, "{what}");
    let (_, page) = fixture.get("/v1/audit?limit=1000").await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 201, "{what}");
    // A torn end may leave an older store that is whole; it goes on from there.
    if what == TORN {
        fixture.stop().await;
        return;
    }
    let (_, health) = fixture.get("/readyz").await;
    assert!(health["rebuilt"].is_string(), "{what}: {health}");
    let (_, metrics) = fixture.get("/metrics").await;
    let metrics = metrics.as_str().unwrap();
    assert!(
        metrics.contains("router_policy_store_rebuilds_total 1"),
        "{what}"
    );
    fixture.stop().await;
}

fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_set_aside_and_made_again() {
    check("conf is garbage", |store| {
        edit(&store.join("conf"), |bytes| bytes.fill(b'x'))
    })
    .await;
    check(TORN, |store| {
        edit(&store.join("db"), |bytes| bytes.truncate(bytes.len() / 3));
    })
    .await;
    check("everything is noise", |store| {
        edit(&store.join("db"), |bytes| {
            for (n, byte) in bytes.iter_mut().enumerate() {
                *byte = u8::try_from(n * 7 % 251).unwrap();
            }
        });
    })
    .await;
    check("the store is gone", |store| {
        std::fs::remove_dir_all(store).unwrap()
    })
    .await;
    check("the store is empty", |store| {
        std::fs::remove_dir_all(store).unwrap();
        drop(sled::open(store).unwrap());
    })
    .await;
    for (key, value) in [
        (&b"mlayout"[..], &b"\"0\""[..]),
        (b"mvocabulary", b"\"something else\""),
        (b"mlog_id", b"\"00000000-0000-0000-0000-000000000007\""),
        (b"mcursor", b"{}"),
    ] {
        let what = String::from_utf8_lossy(key).into_owned();
        check(&what, |store| {
            let db = sled::open(store).unwrap();
            db.insert(key, value).unwrap();
            db.flush().unwrap();
        })
        .await;
    }
    check("a document was changed", |store| {
        let db = sled::open(store).unwrap();
        let (key, value) = db.scan_prefix("p").next().unwrap().unwrap();
        let mut document: Value = serde_json::from_slice(&value).unwrap();
        document["hash"] = json!(Hash::ZERO);
        db.insert(key, serde_json::to_vec(&document).unwrap())
            .unwrap();
        db.flush().unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_log_is_refused_until_it_is_adopted() {
    let (log, dir) = (memory_log(1), tempfile::tempdir().unwrap());
    let (mut fixture, digest) = filled(&log, dir.path()).await;
    let shorter = memory_log(1);
    let rewritten = memory_log(1);
    for n in 0..201u64 {
        let subject = Subject::from_log(&format!("selection.x{n}.=.=.=.=.="));
        rewritten
            .append(&subject, Position::START, "{}".into())
            .await
            .unwrap();
    }
    for (what, other) in [
        ("made anew", memory_log(2)),
        ("cut off", shorter),
        ("rewritten", rewritten),
    ] {
        fixture.log = other;
        fixture.start().await;
        let health = fixture
            .until("/readyz", |health| health["log"] == json!("foreign"))
            .await;
        assert_eq!(fixture.get("/readyz").await.0, 503);
        let detail = health["detail"].as_str().unwrap();
        assert!(
            detail.contains("router-policy adopt --data"),
            "{what}: {detail}"
        );
        let body = json!({"changes": [change("m0", 1.0)]});
        let (status, answer) = fixture.send(Method::POST, "/v1/changes", &body).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (503, &json!("foreign_log")),
            "{what}"
        );
        assert_eq!(fixture.running().digest(), digest, "{what}: reads go on");
        assert_eq!(
            fixture.get("/v1/policies").await.1["policies"]
                .as_array()
                .unwrap()
                .len(),
            11
        );
        assert!(matches!(
            service::adopt(dir.path()),
            Err(service::OpenError::InUse(_))
        ));
        fixture.stop().await;
    }
    // The right log again: all is well.
    fixture.log = Arc::clone(&log);
    fixture.start().await;
    fixture.ready().await;
    fixture.stop().await;
    // A lost store does not make another log welcome.
    std::fs::remove_dir_all(dir.path().join("projection")).unwrap();
    assert!(service::met_log(dir.path()).unwrap().is_some());
    fixture.log = memory_log(2);
    fixture.start().await;
    fixture
        .until("/readyz", |health| health["log"] == json!("foreign"))
        .await;
    fixture.stop().await;
    assert!(service::adopt(dir.path()).unwrap().is_some());
    assert_eq!(service::met_log(dir.path()).unwrap(), None);
    fixture.start().await;
    fixture.ready().await;
    fixture.set("new", 1.0).await;
    assert_eq!(fixture.running().position(), Position(1));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_record_stops_its_policy_and_nothing_else() {
    let log = memory_log(1);
    let fixture = Fixture::over(Arc::clone(&log)).await;
    fixture.set("m", 0.1).await;
    let known = log.at(Position(1)).await.unwrap().unwrap();
    let mut event: Value = serde_json::from_slice(&known.bytes).unwrap();
    event["type"] = json!("router-policy.policies.vanished.v9");
    event["id"] = json!("0e0c5e1e-27a4-4bd8-a0f7-5d0d5e8a1b33");
    let bytes = serde_json::to_vec(&event).unwrap();
    let appended = log
        .append(&known.subject, known.position, bytes.into())
        .await
        .unwrap();
    assert_eq!(appended, Appended::Committed(Position(2)));
    fixture
        .until("/v1/policies?model=m", |list| {
            list["policies"][0]["stopped"]["position"] == json!(2)
        })
        .await;
    let body = json!({"changes": [change("m", 0.2)]});
    let (status, answer) = fixture.send(Method::POST, "/v1/changes", &body).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (409, &json!("policy_stopped")),
        "{answer}"
    );
    fixture.set("other", 0.3).await;
    let (_, page) = fixture.get("/v1/audit?verdict=unreadable").await;
    assert_eq!(page["entries"][0]["command_id"], event["id"]);
    let (_, metrics) = fixture.get("/metrics").await;
    assert!(
        metrics
            .as_str()
            .unwrap()
            .contains("router_policy_policies_stopped 1")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_folder_serves_one_service() {
    let fixture = Fixture::new().await;
    let second = Fixture::stopped(memory_log(1), config(&fixture.data_dir()));
    let wiring = event_log::Wiring {
        log: Arc::clone(&second.log),
        board: Arc::clone(&second.board) as Arc<dyn event_log::StatusBoard>,
    };
    let refused = service::start(second.config.clone(), wiring).await;
    assert!(matches!(
        refused,
        Err(service::StartError::Store(service::OpenError::InUse(_)))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_rebuilds_its_store_is_no_log_that_was_cut_off() {
    let (log, dir) = (memory_log(1), tempfile::tempdir().unwrap());
    let (mut fixture, _) = filled(&log, dir.path()).await;
    std::fs::remove_dir_all(dir.path().join("projection")).unwrap();
    let faulty = event_log::faulty::Faulty::new(Arc::clone(&log));
    faulty.set_reachable(false);
    fixture.log = Arc::new(faulty.clone());
    fixture.start().await;
    for path in [
        "/v1/log/head",
        "/v1/log/tails",
        "/v1/log/at?position=201",
        "/v1/log/next?subject=parameters&after=0",
    ] {
        let (status, answer) = fixture.get(path).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (503, &json!("log_unavailable")),
            "{path}: {answer}"
        );
    }
    faulty.set_reachable(true);
    fixture.ready().await;
    let (_, head) = fixture.get("/v1/log/head").await;
    assert_eq!(head["position"], json!(201));
    assert_eq!(fixture.get("/v1/log/at?position=201").await.0, 200);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_log_id_that_cannot_be_read_is_an_error_and_never_no_log() {
    let (log, dir) = (memory_log(1), tempfile::tempdir().unwrap());
    let (fixture, _) = filled(&log, dir.path()).await;
    let file = dir.path().join("log-id");
    let known = std::fs::read(&file).unwrap();
    let refused = async |what: &str| {
        let error = service::met_log(dir.path()).unwrap_err().to_string();
        assert!(error.contains("log-id"), "{what}: {error}");
        let wiring = event_log::Wiring {
            log: Arc::clone(&fixture.log),
            board: Arc::clone(&fixture.board) as Arc<dyn event_log::StatusBoard>,
        };
        let started = service::start(fixture.config.clone(), wiring).await;
        assert!(
            matches!(started, Err(service::StartError::Store(_))),
            "{what}"
        );
    };
    for garbage in [&b""[..], b"not an id", &[0xff, 0xfe, 0x00]] {
        std::fs::write(&file, garbage).unwrap();
        refused(&String::from_utf8_lossy(garbage)).await;
    }
    // Not readable, whoever asks (tests may run as root).
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    refused("a folder").await;
    std::fs::remove_dir(&file).unwrap();
    std::fs::write(&file, known).unwrap();
    assert!(service::met_log(dir.path()).unwrap().is_some());
}
