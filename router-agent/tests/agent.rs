//! Whole agents on a log in memory and frontends in memory: real tasks, real stores, waiting on values.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Log, Reader, applied, name, until, values};
use event_log::memory::MemoryBoard;
use event_log::{ReaderWiring, StatusBoard as _};
use router_agent::target::{Thresholds, Values};
use router_agent::testing::{FakeFrontend, FakeRouter, FakeTarget};
use router_agent::{Config, Frontend, PolicyTarget, Running};
use schemas::status::{ApplyState, LogState};
use schemas::{
    ParameterName, PolicyKey, PolicyKind, Position, RouterId, RouterKey, Scope, WorkerType,
};
use uuid::Uuid;

fn startup() -> Values {
    values(&[("weight", 1.0), ("temperature", 0.0)])
}

/// A frontend with one router, whose id is made of this number.
fn frontend(number: u128) -> Arc<FakeTarget> {
    let key = RouterKey {
        model: name("m"),
        worker_type: WorkerType::Aggregated,
        endpoint: "dynamo/backend/generate".parse().unwrap(),
    };
    let off: Thresholds = [(
        ParameterName::new("active_decode_blocks_threshold").unwrap(),
        None,
    )]
    .into();
    Arc::new(FakeTarget::new(FakeFrontend {
        routers: BTreeMap::from([(
            RouterId(Uuid::from_u128(number)),
            FakeRouter::new(key, startup()),
        )]),
        thresholds: BTreeMap::from([(name("m"), off)]),
        ..FakeFrontend::default()
    }))
}

fn temperature(target: &FakeTarget) -> Option<f64> {
    let frontend = target.frontend();
    let router = frontend.routers.values().next()?;
    router.parameters().get("temperature")?.as_f64()
}

async fn start(
    folder: &Path,
    log: &Arc<Log>,
    board: &Arc<MemoryBoard>,
    agent: &str,
    targets: &[(&str, Arc<FakeTarget>)],
) -> Running {
    let frontends = (targets.iter())
        .map(|(id, target)| Frontend {
            id: id.parse().unwrap(),
            target: target.clone() as Arc<dyn PolicyTarget>,
        })
        .collect();
    let config = Config {
        agent: Some(agent.parse().unwrap()),
        poll_interval: Duration::from_millis(50),
        report_interval: Duration::from_millis(200),
        ..Config::new(folder, frontends)
    };
    let wiring = ReaderWiring {
        log: Arc::new(Reader(log.clone())),
        board: board.clone(),
    };
    router_agent::start(config, wiring).await.unwrap()
}

#[tokio::test]
async fn one_slow_frontend_holds_up_none_of_nine_healthy_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (log, board) = (Log::new(1), Arc::default());
    let ids: Vec<String> = (0..10).map(|number| format!("f{number}")).collect();
    let targets: Vec<(&str, Arc<FakeTarget>)> = (ids.iter().zip(1..))
        .map(|(id, number)| (id.as_str(), frontend(number)))
        .collect();
    let agent = start(folder.path(), &log, &board, "a", &targets).await;
    until(&agent, "the first listing", |status| {
        applied(status, None, Position::START)
    })
    .await;
    targets[0].1.slow_down(Duration::from_secs(2));
    let position = log.set_temperature(0.7).await;
    let nine = until(&agent, "nine", |status| {
        ids[1..]
            .iter()
            .all(|id| applied(status, Some(id), position))
    })
    .await;
    assert!(
        !applied(&nine, Some("f0"), position),
        "the slow one is not there yet"
    );
    until(&agent, "the slow one", |status| {
        applied(status, None, position)
    })
    .await;
    assert!(
        targets
            .iter()
            .all(|(_, target)| temperature(target) == Some(0.7))
    );
    assert!(agent.stop().await);
}

#[tokio::test]
async fn two_agents_on_one_frontend_find_each_other_and_make_no_storm() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (log, other_log, board) = (Log::new(1), Log::new(2), Arc::default());
    let target = frontend(1);
    let _ = other_log.set_temperature(0.2).await;
    let position = log.set_temperature(0.7).await;
    let first = start(
        one.path(),
        &log,
        &board,
        "agent-a",
        &[("f", target.clone())],
    )
    .await;
    until(&first, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    let second = start(
        two.path(),
        &other_log,
        &board,
        "agent-b",
        &[("g", target.clone())],
    )
    .await;
    until(&first, "the rival's name", |status| {
        status.frontends[0].rival.as_deref() == Some("agent-b")
    })
    .await;
    until(&second, "the rival's name", |status| {
        status.frontends[0].rival.as_deref() == Some("agent-a")
    })
    .await;
    until(&second, "standing back", |status| {
        let router = &status.frontends[0].routers[0];
        router.state == ApplyState::Pending
            && router
                .error
                .as_ref()
                .is_some_and(|words| words.contains("agent-a"))
    })
    .await;
    until(&first, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    assert_eq!(temperature(&target), Some(0.7));
    let asked = target.frontend().asked;
    assert!(asked <= 15, "{asked} changes");
    assert!(second.stop().await);
    until(&first, "being alone again", |status| {
        status.frontends[0].rival.is_none()
    })
    .await;
    assert!(first.stop().await);
}

#[tokio::test]
async fn the_local_copy_serves_while_the_log_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let (log, board) = (Log::new(1), Arc::default());
    let position = log.set_temperature(0.7).await;
    let agent = start(folder.path(), &log, &board, "a", &[("f", frontend(1))]).await;
    until(&agent, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    let position = log.set_temperature(0.8).await;
    until(&agent, "the second policy", |status| {
        applied(status, None, position)
    })
    .await;
    log.away.send_replace(true);
    let status = until(&agent, "saying so", |status| {
        status.log.state == LogState::LocalCopy
    })
    .await;
    assert_eq!(status.log.position, position);
    assert!(status.log.error.is_some());
    assert!(agent.stop().await);

    // The agent and its frontend start again; the log is still away.
    let target = frontend(2);
    let agent = start(folder.path(), &log, &board, "a", &[("f", target.clone())]).await;
    let status = until(&agent, "the copy's policy", |status| {
        applied(status, None, position)
    })
    .await;
    assert_eq!(
        (status.log.state, temperature(&target)),
        (LogState::LocalCopy, Some(0.8))
    );
    let later = log.set_temperature(0.9).await;
    log.away.send_replace(false);
    until(&agent, "catching up", |status| {
        applied(status, None, later) && status.log.state == LogState::Following
    })
    .await;
    assert_eq!(temperature(&target), Some(0.9));
    assert!(agent.stop().await);
}

#[tokio::test]
async fn a_log_made_anew_is_refused_until_it_is_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let (log, board) = (Log::new(1), Arc::default());
    let position = log.set_temperature(0.7).await;
    let target = frontend(1);
    let agent = start(folder.path(), &log, &board, "a", &[("f", target.clone())]).await;
    until(&agent, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    assert!(matches!(
        router_agent::adopt(folder.path()),
        Err(router_agent::AgentError::InUse(_))
    ));
    assert!(agent.stop().await);

    let cut = Log::new(1);
    let other = Log::new(2);
    let rewritten = Log::new(1);
    let _ = other.set_temperature(0.1).await;
    let _ = rewritten.set_temperature(0.2).await;
    for (case, foreign) in [
        ("cut off", cut),
        ("another", other.clone()),
        ("rewritten", rewritten),
    ] {
        let agent = start(
            folder.path(),
            &foreign,
            &board,
            "a",
            &[("f", target.clone())],
        )
        .await;
        let status = until(&agent, "refusing", |status| {
            status.log.state == LogState::Refused
        })
        .await;
        assert!(status.log.error.is_some(), "{case}");
        target.frontend().routers.values_mut().for_each(|router| {
            router.overlay.clear();
            router.revision = router.revision.next();
        });
        until(&agent, "holding the last policy", |status| {
            applied(status, None, position) && status.frontends[0].routers[0].drifts > 0
        })
        .await;
        assert_eq!(temperature(&target), Some(0.7), "{case}");
        assert!(agent.stop().await);
    }
    assert!(
        router_agent::adopt(folder.path())
            .unwrap()
            .is_some_and(|aside| aside.exists())
    );
    let agent = start(folder.path(), &other, &board, "a", &[("f", target.clone())]).await;
    until(&agent, "the adopted log", |status| {
        status.log.state == LogState::Following && applied(status, None, Position(1))
    })
    .await;
    assert_eq!(temperature(&target), Some(0.1));
    assert!(agent.stop().await);
}

#[tokio::test]
async fn a_damaged_copy_is_set_aside_and_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let (log, board) = (Log::new(1), Arc::default());
    let position = log.set_temperature(0.7).await;
    let target = frontend(1);
    for damage in ["none", "db", "conf"] {
        if damage != "none" {
            let path = folder.path().join("replica").join(damage);
            let length = std::fs::metadata(&path).unwrap().len() as usize;
            std::fs::write(&path, vec![0xA5; length.max(64)]).unwrap();
        }
        let agent = start(folder.path(), &log, &board, "a", &[("f", target.clone())]).await;
        until(&agent, "the policy", |status| {
            applied(status, None, position) && status.log.state == LogState::Following
        })
        .await;
        assert!(agent.stop().await);
    }
    let aside = std::fs::read_dir(folder.path()).unwrap().filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("replica.damaged-")
    });
    assert_eq!(aside.count(), 2);
}

#[tokio::test]
async fn a_record_of_a_later_version_stops_its_policy_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (log, board) = (Log::new(1), Arc::default());
    let _ = log.set_temperature(0.7).await;
    let subject = PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope::default(),
    }
    .subject();
    let target = frontend(1);
    let agent = start(folder.path(), &log, &board, "a", &[("f", target.clone())]).await;
    until(&agent, "the policy", |status| {
        applied(status, None, Position(1))
    })
    .await;
    let position = log
        .append(
            &subject,
            br#"{"specversion":"1.0","type":"router-policy.later.v9"}"#.to_vec(),
        )
        .await;
    let status = until(&agent, "the stop", |status| {
        status.frontends[0].routers[0].state == ApplyState::Stopped
    })
    .await;
    assert!(status.frontends[0].routers[0].position >= position);
    assert_eq!(temperature(&target), Some(0.7));
    let thresholds = log
        .set(
            PolicyKind::BusyThreshold,
            &[("active_decode_blocks_threshold", 0.5)],
        )
        .await;
    until(&agent, "the thresholds", |status| {
        let model = &status.frontends[0].thresholds[0];
        model.state == ApplyState::Applied
            && model.position >= thresholds
            && !model.thresholds.is_empty()
    })
    .await;
    assert!(agent.stop().await);
}

#[tokio::test]
async fn reports_rise_and_readiness_follows_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    let (log, board) = (Log::new(1), Arc::new(MemoryBoard::default()));
    log.away.send_replace(true);
    let target = frontend(1);
    let frontends = vec![Frontend {
        id: "f".parse().unwrap(),
        target: target.clone(),
    }];
    let config = Config {
        poll_interval: Duration::from_millis(50),
        report_interval: Duration::from_millis(100),
        health: Some("127.0.0.1:0".parse().unwrap()),
        ..Config::new(folder.path(), frontends)
    };
    let wiring = ReaderWiring {
        log: Arc::new(Reader(log.clone())),
        board: board.clone(),
    };
    let agent = router_agent::start(config, wiring).await.unwrap();
    let address = agent.health().unwrap();
    let get = |path: &'static str| async move {
        let answer = reqwest::get(format!("http://{address}{path}"))
            .await
            .unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    until(&agent, "the listing", |status| {
        status.frontends[0].reachable
    })
    .await;
    assert_eq!(get("/livez").await.0, 200);
    let (code, why) = get("/readyz").await;
    assert!(
        code == 503 && why.contains("no policy is known yet"),
        "{code} {why}"
    );
    assert_eq!(get("/x").await.0, 404);
    log.away.send_replace(false);
    let position = log.set_temperature(0.7).await;
    until(&agent, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    assert_eq!(get("/readyz").await, (200, "ready\n".to_owned()));

    let mut reports = board.watch().await.unwrap();
    let mut last = reports.next().await.unwrap();
    for _ in 0..5 {
        let next = reports.next().await.unwrap();
        assert!(next.newer_than(&last) && next.reported_at >= next.started_at);
        last = next;
    }
    assert_eq!(last.agent, *agent.agent());
    assert!(agent.stop().await);
}

#[tokio::test]
async fn an_agent_that_is_stopped_says_goodbye_and_one_that_is_dropped_says_nothing() {
    let (log, board, target) = (Log::new(1), Arc::new(MemoryBoard::default()), frontend(1));
    let mut reports = board.watch().await.unwrap();
    for agent in ["dropped", "stopped"] {
        let folder = tempfile::tempdir().unwrap();
        let targets = [("here", target.clone())];
        let running = start(folder.path(), &log, &board, agent, &targets).await;
        until(&running, "the log", |status| {
            status.log.state == LogState::Following
        })
        .await;
        if agent == "stopped" {
            assert!(running.stop().await);
        } else {
            drop(running);
        }
    }
    // Reports are heard in order, so the dropped one has said nothing when the other says goodbye.
    let last = loop {
        let report = reports.next().await.unwrap();
        if report.leaving {
            break report;
        }
    };
    assert_eq!(last.agent, "stopped".parse().unwrap());
    let mut kept = board.watch().await.unwrap();
    let (first, second) = (kept.next().await.unwrap(), kept.next().await.unwrap());
    assert!(!first.leaving && second.leaving, "{first:?} {second:?}");
    assert_eq!(second.report, last.report);
}
