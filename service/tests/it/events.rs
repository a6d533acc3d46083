//! Event streams: every record once and in order, however often the connection breaks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use reqwest::Method;
use schemas::Position;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, memory_log};

/// Reads a stream until `enough` lines came or it ends; gives position and event of each.
async fn read(response: reqwest::Response, enough: usize) -> Vec<(u64, Value)> {
    let mut bytes = response.bytes_stream();
    let mut text = Vec::new();
    let mut seen = Vec::new();
    while seen.len() < enough {
        let Some(chunk) = bytes.next().await else {
            break;
        };
        text.extend_from_slice(&chunk.unwrap());
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let line = String::from_utf8(line).unwrap();
            let json = line.trim().trim_start_matches("data: ");
            if json.starts_with('{') {
                let value: Value = serde_json::from_str(json).unwrap();
                seen.push((value["position"].as_u64().unwrap(), value));
            }
        }
    }
    // What came in the same packet after the last one wanted is lost, as when a connection breaks.
    seen.truncate(enough);
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_once_over_a_hundred_reconnects_while_events_flow() {
    let fixture = Arc::new(Fixture::new().await);
    const EVENTS: u64 = 500;
    let writer = async {
        for n in 0..EVENTS {
            fixture.set(&format!("m{}", n % 7), n as f64).await;
        }
    };
    let follower = async {
        let mut all: Vec<u64> = Vec::new();
        let mut reconnects = 0;
        while (all.len() as u64) < EVENTS {
            // The client drops the connection after a few lines, in the middle of what comes.
            let missing = usize::try_from(EVENTS).unwrap() - all.len();
            let enough = missing.min(1 + (reconnects * 7) % 8);
            let last = all.last().copied().unwrap_or(0);
            let sse = reconnects % 2 == 0;
            let request = if sse {
                fixture
                    .request(Method::GET, "/v1/events?after=0")
                    .header("last-event-id", last.to_string())
            } else {
                fixture.request(
                    Method::GET,
                    &format!("/v1/events?format=ndjson&after={last}"),
                )
            };
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 200);
            all.extend(
                read(response, enough)
                    .await
                    .iter()
                    .map(|(position, _)| *position),
            );
            reconnects += 1;
        }
        (all, reconnects)
    };
    let both = async { tokio::join!(writer, follower).1 };
    let (all, reconnects) = tokio::time::timeout(3 * PATIENCE, both).await.unwrap();
    assert_eq!(all, (1..=EVENTS).collect::<Vec<u64>>());
    assert!(reconnects >= 100, "{reconnects}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_places_are_refused() {
    let fixture = Fixture::new().await;
    fixture.set("m", 1.0).await;
    for bad in ["-1", "abc", "18446744073709551616", "", "1.0", "+1", " 1"] {
        let (status, answer) = fixture
            .get(&format!(
                "/v1/events?after={}",
                bad.replace('+', "%2B").replace(' ', "%20")
            ))
            .await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (400, &json!("bad_query")),
            "{bad:?}"
        );
        let request = fixture
            .request(Method::GET, "/v1/events")
            .header("last-event-id", bad);
        // A header's value has no spaces at its ends.
        if bad != " 1" {
            assert_eq!(crate::support::answer(request).await.0, 400, "{bad:?}");
        }
    }
    let (status, answer) = fixture.get("/v1/events?after=2").await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (409, &json!("foreign_log"))
    );
    let other = "/v1/events?after=0&log_id=00000000-0000-0000-0000-000000000009";
    let (status, answer) = fixture.get(other).await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (409, &json!("foreign_log"))
    );
    let (status, _) = fixture.get("/v1/events?afer=0").await;
    assert_eq!(status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_come_verbatim_whatever_they_are() {
    let log = memory_log(1);
    let fixture = Fixture::over(Arc::clone(&log)).await;
    let subject = schemas::Subject::from_log("selection.x.=.=.=.=.=");
    let odd: [&[u8]; 4] = [b"{\"a\": 1e2}", b"{\n}", b"\xff", b" {}"];
    let mut last = Position::START;
    for bytes in odd {
        let bytes = bytes::Bytes::from_static(bytes);
        let event_log::Appended::Committed(at) = log.append(&subject, last, bytes).await.unwrap()
        else {
            panic!("refused")
        };
        last = at;
    }
    let response = fixture
        .request(Method::GET, "/v1/events?format=ndjson")
        .send()
        .await
        .unwrap();
    let text = {
        let mut stream = response.bytes_stream();
        let mut text = Vec::new();
        while text.iter().filter(|byte| **byte == b'\n').count() < 5 {
            text.extend_from_slice(&stream.next().await.unwrap().unwrap());
        }
        String::from_utf8(text).unwrap()
    };
    assert!(text.contains(r#""event":{"a": 1e2}}"#), "{text}");
    for (n, base64) in [(2, "ewp9"), (3, "/w=="), (4, "IHt9")] {
        let (_, line) = fixture.get(&format!("/v1/log/at?position={n}")).await;
        assert_eq!(
            (&line["event"], &line["base64"]),
            (&Value::Null, &json!(base64))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_stream_shows_that_it_lives_and_ends_when_the_service_stops() {
    let mut fixture = Fixture::with(|config| {
        config.heartbeat_interval = Duration::from_millis(20);
    })
    .await;
    let response = fixture
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let mut stream = response.bytes_stream();
    for _ in 0..4 {
        let chunk = tokio::time::timeout(PATIENCE, stream.next()).await.unwrap();
        assert_eq!(chunk.unwrap().unwrap(), ": alive\n\n");
    }
    let idle = fixture
        .request(Method::GET, "/v1/convergence")
        .header("accept", "text/event-stream");
    let fleet = idle.send().await.unwrap();
    let ended = async {
        while let Some(Ok(_)) = stream.next().await {}
        let mut fleet = fleet.bytes_stream();
        while let Some(Ok(_)) = fleet.next().await {}
    };
    let (stopped, ()) = tokio::join!(tokio::time::timeout(PATIENCE, fixture.stop()), ended);
    stopped.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_one_that_nobody_reads_holds_up_nothing() {
    let mut fixture = Fixture::with(|config| config.streams_max = 2).await;
    let silent = fixture
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let other = fixture
        .request(Method::GET, "/v1/events")
        .send()
        .await
        .unwrap();
    let (status, answer) = fixture.get("/v1/events").await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (503, &json!("overloaded"))
    );
    for n in 0..50 {
        fixture.set(&format!("{n}-{}", "x".repeat(400)), 1.0).await;
    }
    assert_eq!(read(other, 50).await.len(), 50);
    fixture
        .until("/metrics", |text| {
            text.as_str().unwrap().contains("router_policy_streams 1")
        })
        .await;
    tokio::time::timeout(PATIENCE, fixture.stop())
        .await
        .unwrap();
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_can_be_followed_over_http() {
    let fixture = Fixture::new().await;
    for n in 0..20 {
        fixture.set(&format!("m{}", n % 3), f64::from(n)).await;
    }
    let url = event_log::LogUrl::Http(fixture.url(""));
    let wiring = event_log::connect_reader(&url, event_log::Options::default())
        .await
        .unwrap();
    let head = wiring.log.head().await.unwrap();
    assert_eq!(head.position, Position(20));
    let booted = event_log::bootstrap::bootstrap(&*wiring.log).await.unwrap();
    let replayed = event_log::bootstrap::replay(&*wiring.log, head.log_id, head.position)
        .await
        .unwrap();
    assert!(!booted.replayed);
    assert_eq!(booted.state, replayed);
    let agent = crate::support::agent("h", 1, head.position, schemas::status::ApplyState::Applied);
    wiring.board.report(&agent).await.unwrap();
    fixture
        .until("/v1/convergence", |fleet| {
            fleet["agents"][0]["agent"] == json!("h")
        })
        .await;
    let by_subject: BTreeMap<String, u64> = {
        let (_, tails) = fixture.get("/v1/log/tails").await;
        let entries = tails["entries"].as_array().unwrap();
        entries
            .iter()
            .map(|line| {
                (
                    line["subject"].as_str().unwrap().to_owned(),
                    line["position"].as_u64().unwrap(),
                )
            })
            .collect()
    };
    assert_eq!(
        by_subject.values().copied().collect::<Vec<_>>(),
        [19, 20, 18]
    );
    let (status, answer) = fixture
        .get("/v1/log/next?subject=selection.m0.=.=.=.=.=&after=19")
        .await;
    assert_eq!(
        (status.as_u16(), &answer["code"]),
        (404, &json!("no_record"))
    );
    let (_, line) = fixture
        .get("/v1/log/next?subject=selection.m0.=.=.=.=.=&after=1")
        .await;
    assert_eq!(line["position"], json!(4));
}
