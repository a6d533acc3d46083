//! Clients that ask and do not take what they are given: others are served, and memory is given back.

use std::time::Duration;

use event_log::StatusBoard as _;
use reqwest::Method;
use schemas::Position;
use schemas::status::ApplyState;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{Fixture, PATIENCE, agent, change};

/// A client with a small window, which sends and reads nothing.
async fn deaf(fixture: &Fixture, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(fixture.running().address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Policies that take some 60 x 14 KB to list.
async fn heavy(fixture: &Fixture) {
    let schema = json!({"schema": {"type": "string"}});
    let path = "/v1/parameters/weight";
    assert_eq!(fixture.send(Method::PUT, path, &schema).await.0, 200);
    for n in 0..200 {
        let body = json!({"changes": [{"kind": "worker_selection", "scope": {"model": format!("m{n}")},
            "parameters": {"weight": "w".repeat(14_000)}}]});
        assert_eq!(
            fixture.send(Method::POST, "/v1/changes", &body).await.0,
            200
        );
    }
}

async fn end_of(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // However it ends, it ends.
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    let _ = read.expect("the connection never ended");
    all
}

const LIST: &str = "GET /v1/policies HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_large_answers_that_nobody_takes_are_bounded_and_cut_off() {
    let fixture = Fixture::with(|config| {
        // Two such answers.
        config.answers_kib_max = 7 << 10;
        config.stall_timeout = Duration::from_secs(2);
    })
    .await;
    heavy(&fixture).await;
    let size = fixture
        .request(Method::GET, "/v1/policies")
        .send()
        .await
        .unwrap();
    let size = size.text().await.unwrap().len();
    assert!((2_800_000..3_500_000).contains(&size), "{size}");

    // More than the system's buffers take.
    let first = deaf(&fixture, LIST).await;
    let second = deaf(&fixture, LIST).await;
    // Once both wait for their clients there is no room for a third; small answers are given as ever.
    fixture
        .until("/v1/policies", |answer| {
            answer["code"] == json!("overloaded")
        })
        .await;
    assert_eq!(fixture.get("/v1/policies?model=m1").await.0, 200);
    let body = json!({"changes": [change("m1", 0.5)]});
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &body).await.0,
        200
    );
    // Both are cut off, half way, and then there is room again.
    fixture
        .until("/v1/policies", |answer| answer["policies"].is_array())
        .await;
    for stream in [first, second] {
        let read = end_of(stream).await.len();
        assert!(read < size, "{read} of {size}");
    }
}

#[tokio::test]
async fn regression_a_head_without_end_is_not_collected() {
    let fixture = Fixture::new().await;
    let head = format!(
        "GET /livez HTTP/1.1\r\nhost: x\r\nx-long: {}",
        "a".repeat(64 << 10)
    );
    let mut stream = TcpStream::connect(fixture.running().address())
        .await
        .unwrap();
    // It may be closed before all of it is sent.
    let _ = stream.write_all(head.as_bytes()).await;
    let answer = String::from_utf8_lossy(&end_of(stream).await).into_owned();
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
        "{answer}"
    );
    // What ordinary clients send has room.
    let answer = fixture
        .request(Method::GET, "/livez")
        .header("cookie", "c".repeat(12_000))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn regression_long_reports_are_bounded_by_their_bytes() {
    let fixture = Fixture::new().await;
    let mut long = agent("long", 1, Position::START, ApplyState::Applied);
    let router = long.frontends[0].routers[0].clone();
    long.frontends[0].routers = vec![router; 1_500];
    let mut refused = 0;
    for n in 0..120 {
        long.agent.0 = crate::support::name(&format!("long-{n}"));
        refused += u32::from(fixture.board.report(&long).await.is_err());
    }
    assert!(refused > 0, "120 long reports were kept");
    // An ordinary agent is heard, and a long one that is known already.
    fixture
        .report(agent("short", 1, Position::START, ApplyState::Applied))
        .await;
    long.agent.0 = crate::support::name("long-0");
    long.report = 2;
    fixture.report(long).await;
}
