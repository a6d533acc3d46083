//! Reading a log through a service: against a small stand-in that speaks the service's routes over a log in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use event_log::ambient::Tasks;
use event_log::http::HttpLog;
use event_log::memory::MemoryLog;
use event_log::{
    Appended, Entry, EventLog, Failure, Foreign, Identity, LogReader, LogUrl, Options, Seen,
    StatusBoard, connect, connect_reader,
};
use schemas::event::record_hash;
use schemas::{LogId, Position, Subject};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

const LOG: LogId = LogId(Uuid::from_u128(21));

struct StandIn {
    log: Arc<MemoryLog>,
    address: SocketAddr,
    /// Event streams are cut in the middle of a line after this many lines; 0 = never.
    cut_after: AtomicUsize,
    /// Records are reformatted on the way.
    reformatting: AtomicBool,
    connections: AtomicUsize,
}

async fn stand_in(tasks: &Tasks) -> Arc<StandIn> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stand_in = Arc::new(StandIn {
        log: Arc::new(MemoryLog::new(LOG)),
        address: listener.local_addr().unwrap(),
        cut_after: AtomicUsize::new(0),
        reformatting: AtomicBool::new(false),
        connections: AtomicUsize::new(0),
    });
    let (served, accepting) = (stand_in.clone(), tasks.clone());
    tasks.start("accept", async move {
        while let Some(Ok((stream, _))) = accepting
            .stopping()
            .run_until_cancelled(listener.accept())
            .await
        {
            let (served, stop) = (served.clone(), accepting.stopping());
            accepting.start("connection", async move {
                // A client that goes away is no matter.
                let _ = stop.run_until_cancelled(served.serve(stream)).await;
            });
        }
    });
    stand_in
}

impl StandIn {
    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut request = String::new();
        stream.read_line(&mut request).await?;
        let mut length = 0;
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await?;
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let target = request.split(' ').nth(1).unwrap();
        let url = reqwest::Url::parse(&format!("http://x{target}")).unwrap();
        let query = |name: &str| {
            url.query_pairs()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
        };
        let number = |name: &str| Position(query(name).unwrap().parse().unwrap());
        let head = self.log.head().await.unwrap();
        let (status, body) = match url.path() {
            "/v1/log/head" => (
                200,
                format!(
                    "{{\"log_id\":\"{}\",\"position\":{}}}",
                    head.log_id, head.position
                ),
            ),
            "/v1/log/tails" => {
                let tails = self.log.tails().await.unwrap();
                let lines: Vec<String> =
                    tails.entries.iter().map(|entry| self.line(entry)).collect();
                (
                    200,
                    format!(
                        "{{\"log_id\":\"{}\",\"position\":{},\"entries\":[{}]}}",
                        head.log_id,
                        head.position,
                        lines.join(",")
                    ),
                )
            }
            "/v1/log/at" => self.found(self.log.at(number("position")).await),
            "/v1/log/next" => {
                let subject = Subject::from_log(&query("subject").unwrap());
                self.found(self.log.next_on(&subject, number("after")).await)
            }
            "/v1/status" => {
                serde_json::from_slice::<schemas::status::AgentStatus>(&body).unwrap();
                (204, String::new())
            }
            "/v1/events" => {
                let log_id = query("log_id").unwrap().parse().unwrap();
                let seen = Seen {
                    log_id,
                    position: number("after"),
                    record: None,
                };
                match self.log.follow(seen).await {
                    Ok(records) => return self.stream(stream, records).await,
                    Err(why) => (
                        409,
                        format!("{{\"error\":\"{why}\",\"code\":\"foreign_log\"}}"),
                    ),
                }
            }
            path => panic!("no route {path}"),
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await
    }

    async fn stream(
        &self,
        mut stream: BufReader<TcpStream>,
        mut records: Box<dyn event_log::Subscription>,
    ) -> std::io::Result<()> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        stream
            .write_all(b"HTTP/1.1 200 X\r\nconnection: close\r\n\r\n\n")
            .await?;
        let cut = self.cut_after.load(Ordering::Relaxed);
        for sent in 1.. {
            let entry = records.next().await.unwrap();
            let line = format!("{}\n", self.line(&entry));
            if sent == cut {
                return stream.write_all(&line.as_bytes()[..20]).await;
            }
            stream.write_all(line.as_bytes()).await?;
            stream.write_all(b"\n").await?;
        }
        Ok(())
    }

    fn found(&self, found: Result<Option<Entry>, Failure>) -> (u16, String) {
        match found.unwrap() {
            Some(entry) => (200, self.line(&entry)),
            None => (
                404,
                "{\"error\":\"no record\",\"code\":\"no_record\"}".to_owned(),
            ),
        }
    }

    fn line(&self, entry: &Entry) -> String {
        let event = std::str::from_utf8(&entry.bytes).ok().filter(|text| {
            serde_json::from_str::<serde_json::Value>(text).is_ok() && !text.contains('\n')
        });
        let event = match event {
            Some(text) if self.reformatting.load(Ordering::Relaxed) => {
                format!("\"event\": {}", text.replace(':', ": "))
            }
            Some(text) => format!("\"event\":{text}"),
            None => format!(
                "\"event\":null,\"base64\":\"{}\"",
                base64::engine::general_purpose::STANDARD.encode(&entry.bytes)
            ),
        };
        let hash = record_hash(&entry.subject, &entry.bytes);
        format!(
            "{{\"position\":{},\"subject\":{:?},\"hash\":\"{hash}\",\"chain\":\"{hash}\",\"verdict\":{{\"verdict\":\"accepted\",\"chained\":true}},{event}}}",
            entry.position,
            entry.subject.to_string()
        )
    }

    fn reader(&self, identity: Identity) -> HttpLog {
        let options = Options {
            identity,
            ..Options::default()
        };
        HttpLog::new(&format!("http://{}", self.address), options).unwrap()
    }

    /// Appends `count` records, each on a subject of its own; some are no JSON text on one line.
    async fn fill(&self, count: u64) -> Vec<Entry> {
        let mut out = Vec::new();
        for number in 0..count {
            let subject = Subject::from_log(&format!("selection.m{number}"));
            let bytes = match number % 3 {
                0 => Bytes::from(format!("{{\"n\":{number},  \"x\":1.0}}")),
                1 => Bytes::from(format!("{{\n\"n\":{number}}}")),
                _ => Bytes::from(vec![0xff, u8::try_from(number % 256).unwrap()]),
            };
            let position = match self
                .log
                .append(&subject, Position::START, bytes.clone())
                .await
                .unwrap()
            {
                Appended::Committed(position) => position,
                Appended::Conflict => panic!("a conflict"),
            };
            out.push(Entry {
                position,
                subject,
                bytes,
            });
        }
        out
    }
}

fn seen(position: u64) -> Seen {
    Seen {
        log_id: LOG,
        position: Position(position),
        record: None,
    }
}

#[tokio::test]
async fn reads_are_those_of_the_log_byte_for_byte() {
    let tasks = Tasks::new();
    let stand_in = stand_in(&tasks).await;
    let log = stand_in.reader(Identity::unknown());
    let entries = stand_in.fill(7).await;
    assert_eq!(
        log.head().await.unwrap(),
        stand_in.log.head().await.unwrap()
    );
    let mut tails = log.tails().await.unwrap().entries;
    tails.sort_by_key(|entry| entry.position);
    assert_eq!(tails, entries);
    for entry in &entries {
        assert_eq!(log.at(entry.position).await.unwrap().as_ref(), Some(entry));
        assert_eq!(
            log.next_on(&entry.subject, Position::START)
                .await
                .unwrap()
                .as_ref(),
            Some(entry)
        );
        assert_eq!(
            log.next_on(&entry.subject, entry.position).await.unwrap(),
            None
        );
    }
    assert_eq!(log.at(Position(99)).await.unwrap(), None);
    assert!(tasks.stop(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn a_stream_that_is_cut_again_and_again_gives_every_record_once() {
    let tasks = Tasks::new();
    let stand_in = stand_in(&tasks).await;
    stand_in.cut_after.store(4, Ordering::Relaxed);
    let entries = stand_in.fill(60).await;
    let mut records = stand_in
        .reader(Identity::unknown())
        .follow(seen(0))
        .await
        .unwrap();
    for entry in &entries {
        let next = tokio::time::timeout(Duration::from_secs(20), records.next()).await;
        assert_eq!(next.unwrap().unwrap(), *entry);
    }
    assert!(stand_in.connections.load(Ordering::Relaxed) >= 20);
    drop(records);
    assert!(tasks.stop(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn a_record_that_was_changed_on_the_way_is_refused() {
    let tasks = Tasks::new();
    let stand_in = stand_in(&tasks).await;
    let entries = stand_in.fill(1).await;
    stand_in.reformatting.store(true, Ordering::Relaxed);
    let log = stand_in.reader(Identity::unknown());
    let why = log.at(entries[0].position).await.unwrap_err();
    assert!(
        matches!(&why, Failure::Determinate(text) if text.contains("changed on the way")),
        "{why:?}"
    );
    assert!(tasks.stop(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn another_log_and_one_that_is_behind_are_refused() {
    let tasks = Tasks::new();
    let stand_in = stand_in(&tasks).await;
    stand_in.fill(2).await;
    let known = LogId(Uuid::from_u128(1));
    let identity = Identity::unknown();
    identity.expect(known);
    let other = Foreign::OtherIdentity { known, actual: LOG };
    let log = stand_in.reader(identity);
    for why in [
        log.head().await.map(|_| ()).unwrap_err(),
        log.tails().await.map(|_| ()).unwrap_err(),
    ] {
        assert!(
            matches!(&why, Failure::Foreign(how) if *how == other),
            "{why:?}"
        );
    }
    let why = stand_in
        .reader(Identity::unknown())
        .follow(seen(3))
        .await
        .err()
        .unwrap();
    let behind = Foreign::Behind {
        known: Position(3),
        actual: Position(2),
    };
    assert!(
        matches!(&why, Failure::Foreign(how) if *how == behind),
        "{why:?}"
    );
    assert!(tasks.stop(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn reports_are_posted_and_reports_of_others_are_not_to_be_had() {
    let tasks = Tasks::new();
    let stand_in = stand_in(&tasks).await;
    let log = stand_in.reader(Identity::unknown());
    let status = serde_json::json!({
        "agent": "a", "version": "0", "started_at": "2026-01-01T00:00:00.000Z", "reported_at": "2026-01-01T00:00:00.000Z",
        "report": 1, "interval_ms": 1000, "log": { "state": "following", "position": 0 }, "frontends": []
    });
    log.report(&serde_json::from_value(status).unwrap())
        .await
        .unwrap();
    assert!(matches!(log.watch().await, Err(Failure::Determinate(_))));
    assert!(tasks.stop(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn a_service_that_is_away_is_a_definite_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: LogUrl = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(listener);
    let wiring = connect_reader(&url, Options::default()).await.unwrap();
    assert!(matches!(
        wiring.log.head().await,
        Err(Failure::Determinate(_))
    ));
    assert!(
        connect(&url, Options::default()).await.is_err(),
        "a service's log cannot be written"
    );
}
