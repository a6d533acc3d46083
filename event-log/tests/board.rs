//! The status boards: newest report per agent, for those who watch from the start and those who come later.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use event_log::jetstream::JetStreamLog;
use event_log::memory::MemoryBoard;
use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions};
use event_log::{Options, StatusBoard};
use schemas::status::{AgentStatus, LogFollowing, LogState};
use schemas::{AgentId, Name, Position, Timestamp};

fn status(agent: &str, report: u64) -> AgentStatus {
    AgentStatus {
        agent: AgentId(Name::new(agent).unwrap()),
        group: None,
        version: "0".to_owned(),
        started_at: Timestamp::from_unix_ms(1),
        reported_at: Timestamp::from_unix_ms(report),
        report,
        interval_ms: 1_000,
        leaving: false,
        log: LogFollowing {
            state: LogState::Following,
            log_id: None,
            position: Position(report),
            error: None,
        },
        frontends: Vec::new(),
    }
}

async fn check(board: Arc<dyn StatusBoard>) {
    let long = "\u{1F600}".repeat(128);
    let agents = [
        "a",
        "a.b",
        "*",
        ">",
        "_x",
        "-",
        "=",
        "with space",
        long.as_str(),
    ];
    let mut early = board.watch().await.unwrap();
    for report in 1..=2 {
        for agent in agents {
            board.report(&status(agent, report)).await.unwrap();
        }
    }
    for report in 1..=2 {
        for agent in agents {
            assert_eq!(early.next().await.unwrap(), status(agent, report));
        }
    }
    let mut late = board.watch().await.unwrap();
    let mut newest = Vec::new();
    for _ in agents {
        newest.push(late.next().await.unwrap());
    }
    newest.sort_by(|a, b| a.agent.cmp(&b.agent));
    let mut expected: Vec<AgentStatus> = agents.iter().map(|agent| status(agent, 2)).collect();
    expected.sort_by(|a, b| a.agent.cmp(&b.agent));
    assert_eq!(newest, expected);
    board.report(&status("new", 1)).await.unwrap();
    assert_eq!(late.next().await.unwrap(), status("new", 1));
}

#[tokio::test]
async fn the_board_in_memory_shows_the_newest_reports() {
    check(Arc::new(MemoryBoard::default())).await;
}

#[tokio::test]
async fn the_board_in_nats_shows_the_newest_reports() {
    let server = NatsServer::start(NATS_NEWEST, &ServerOptions::default()).unwrap();
    check(JetStreamLog::new(server.url(), Options::default()).board()).await;
}

#[tokio::test]
async fn a_board_that_went_with_the_broker_is_made_again() {
    let mut server = NatsServer::start(NATS_NEWEST, &ServerOptions::default()).unwrap();
    let board = JetStreamLog::new(server.url(), Options::default()).board();
    board.report(&status("a", 1)).await.unwrap();
    server.kill();
    assert!(board.report(&status("a", 2)).await.is_err());
    server.restart().unwrap();
    board.report(&status("a", 3)).await.unwrap();
    let mut reports = board.watch().await.unwrap();
    assert_eq!(reports.next().await.unwrap(), status("a", 3));
}

#[tokio::test]
async fn regression_reports_go_on_after_a_restart() {
    let mut server = NatsServer::start(NATS_NEWEST, &ServerOptions::default()).unwrap();
    let watched = JetStreamLog::new(server.url(), Options::default()).board();
    let reporting = JetStreamLog::new(server.url(), Options::default()).board();
    let mut reports = watched.watch().await.unwrap();
    // Many, so that the new bucket's first sequence numbers are long past for the old watch.
    for number in 1..=20 {
        reporting.report(&status("a", number)).await.unwrap();
        assert_eq!(reports.next().await.unwrap(), status("a", number));
    }
    server.kill();
    server.restart().unwrap();
    // The bucket is made anew; a watch that went on waiting for the old one would never hear of this report.
    reporting.report(&status("a", 21)).await.unwrap();
    let ended = async {
        loop {
            // As a service does: the future is dropped and made again long before any time limit of it runs out.
            let waiting = tokio::time::timeout(Duration::from_millis(100), reports.next());
            match waiting.await {
                Err(_) => {}
                Ok(Err(_)) => return,
                Ok(Ok(report)) if report == status("a", 21) => return,
                Ok(Ok(report)) => panic!("not reported: {report:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(8), ended)
        .await
        .expect("the watch ends or goes on, soon after the link was lost");
    let mut reports = watched.watch().await.unwrap();
    assert_eq!(reports.next().await.unwrap(), status("a", 21));
}

#[tokio::test]
async fn the_board_in_memory_keeps_a_bounded_number_of_agents() {
    let board = MemoryBoard::default();
    for n in 0..10_005 {
        board.report(&status(&format!("a{n}"), n)).await.unwrap();
    }
    let mut reports = board.watch().await.unwrap();
    let mut kept = 0;
    while let Ok(report) = tokio::time::timeout(Duration::from_millis(50), reports.next()).await {
        assert!(report.unwrap().report >= 5);
        kept += 1;
    }
    assert_eq!(kept, 10_000);
}
