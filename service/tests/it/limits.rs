//! Clients that ask and do not take what they are given: others are served, and memory is given back.

use std::time::Duration;

use event_log::StatusBoard as _;
use event_log::memory::MemoryBoard;
use reqwest::Method;
use schemas::Position;
use schemas::status::ApplyState;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{Fixture, PATIENCE, agent, change, name};

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

/// Waits until large answers that nobody has taken yet weigh this much.
async fn waiting(fixture: &Fixture, wanted: impl Fn(usize) -> bool) {
    let name = "router_policy_answers_waiting_kib ";
    let asking = async {
        loop {
            let answer = fixture.request(Method::GET, "/metrics").send().await;
            let text = answer.unwrap().text().await.unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            if wanted(line.unwrap().parse().unwrap()) {
                return;
            }
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asking).await;
    asked.expect("large answers never weighed as wanted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_large_answers_that_nobody_takes_are_bounded_and_cut_off() {
    let fixture = Fixture::with(|config| {
        // Two such answers.
        config.answers_kib_max = 7 << 10;
        config.stall_timeout = Duration::from_secs(4);
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
    waiting(&fixture, |kib| kib == 0).await;

    // Each is far more than the system keeps for a connection: it waits from its first byte until it is cut off.
    let first = deaf(&fixture, LIST).await;
    waiting(&fixture, |kib| kib >= size >> 10).await;
    let second = deaf(&fixture, LIST).await;
    waiting(&fixture, |kib| kib >= (size >> 10) * 2).await;
    // There is no room for a third; small answers are given as ever.
    let (status, answer) = fixture.get("/v1/policies").await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (503, &json!("overloaded"))
    );
    assert_eq!(fixture.get("/v1/policies?model=m1").await.0, 200);
    let body = json!({"changes": [change("m1", 0.5)]});
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &body).await.0,
        200
    );
    // Both are cut off, half way, and then there is room again.
    waiting(&fixture, |kib| kib == 0).await;
    assert_eq!(fixture.get("/v1/policies").await.0, 200);
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
async fn regression_a_path_that_is_no_utf_8_is_refused_as_json() {
    let fixture = Fixture::new().await;
    for path in ["/v1/policies/%FF", "/v1/policies/%C3%28/history"] {
        let (status, answer) = fixture.get(path).await;
        assert_eq!(status, 400, "{path}: {answer}");
        assert_eq!(answer["code"], json!("bad_query"), "{path}: {answer}");
    }
    let body = json!({"schema": {}});
    let (status, answer) = fixture.send(Method::PUT, "/v1/parameters/%FF", &body).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (400, &json!("bad_query"))
    );
}

#[tokio::test]
async fn regression_long_reports_are_bounded_by_their_bytes() {
    let board = MemoryBoard::default();
    let mut long = agent("long", 1, Position::START, ApplyState::Applied);
    let router = long.frontends[0].routers[0].clone();
    long.frontends[0].routers = vec![router; 1_500];
    let mut refused = 0;
    for n in 0..120 {
        long.agent.0 = name(&format!("long-{n}"));
        refused += u32::from(board.report(&long).await.is_err());
    }
    assert!(
        (70..110).contains(&refused),
        "{refused} of 120 long reports"
    );
    // An ordinary agent is heard, and a long one that is known already.
    let short = agent("short", 1, Position::START, ApplyState::Applied);
    board.report(&short).await.unwrap();
    long.agent.0 = name("long-0");
    long.report = 2;
    board.report(&long).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_who_only_holds_connections_makes_room_for_others() {
    let fixture = Fixture::with(|config| {
        config.connections_max = 4;
        // Longer than anybody waits here.
        config.header_read_timeout = PATIENCE * 3;
    })
    .await;
    let body = json!({"changes": [change("m1", 0.5)]});
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &body).await.0,
        200
    );
    let address = fixture.running().address();
    // Two that are being answered, and hear of every change.
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let ask = "GET /v1/events?after=0&format=ndjson HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stream.write_all(ask.as_bytes()).await.unwrap();
        heard(&mut stream, "m1").await;
        streams.push(stream);
    }
    // Many that say nothing, or half of a head.
    let mut silent = Vec::new();
    for n in 0..12 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /livez HT").await.unwrap();
        }
        silent.push(stream);
    }
    // Others are heard, each on a connection of its own.
    for _ in 0..6 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let ask = "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes()).await.unwrap();
        let answer = String::from_utf8_lossy(&end_of(stream).await).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // The oldest of the silent ones are closed; who is being answered goes on.
    assert!(end_of(silent.remove(0)).await.is_empty());
    let body = json!({"changes": [change("m2", 0.5)]});
    assert_eq!(
        fixture.send(Method::POST, "/v1/changes", &body).await.0,
        200
    );
    for stream in &mut streams {
        heard(stream, "m2").await;
    }
}

/// Reads until this word comes.
async fn heard(stream: &mut TcpStream, word: &str) {
    let mut all = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&all).contains(word) {
            assert_ne!(stream.read_buf(&mut all).await.unwrap(), 0, "it ended");
        }
    };
    let read = tokio::time::timeout(PATIENCE, reading).await;
    read.expect("it never came");
}
