//! `watch` goes on where it was when the service cannot answer for a while, and ends when going on is of no use.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

const LOG: &str = "0190a0b0-0000-7000-8000-000000000001";
const AWAY: &str = r#"{"error":"log away","code":"log_unavailable"}"#;
const FULL: &str = r#"{"error":"too many","code":"overloaded"}"#;
const SLOW: &str = r#"{"error":"too slow","code":"timeout"}"#;
const FOREIGN: &str = r#"{"error":"another log","code":"foreign_log"}"#;

fn record(position: u64) -> String {
    let hash = "0".repeat(64);
    format!(
        r#"{{"position":{position},"subject":"selection.x","hash":"{hash}","chain":"{hash}","verdict":{{"verdict":"accepted","chained":true}},"event":{{"id":"{position}"}}}}"#
    ) + "\n"
}

/// Answers requests for the stream one after the other as scripted, and notes their targets.
fn server(script: Vec<(u16, String)>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    std::thread::spawn(move || {
        let mut script = script.into_iter();
        for stream in listener.incoming().flatten() {
            let target = target(&stream);
            let (status, body) = if target.starts_with("/v1/log/head") {
                (200, format!(r#"{{"log_id":"{LOG}","position":4}}"#))
            } else {
                noted.lock().expect("no panic while held").push(target);
                script.next().expect("no more is asked for")
            };
            answer(stream, status, &body);
        }
    });
    (url, asked)
}

fn target(stream: &TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).expect("a request");
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        line.clear();
    }
    first.split(' ').nth(1).expect("a target").to_owned()
}

fn answer(mut stream: TcpStream, status: u16, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let all = head + body;
    stream.write_all(all.as_bytes()).expect("sent");
}

fn watch(url: &str, count: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_router-policy"))
        .args(["watch", "--json", "--count", count, "--service", url])
        .env_remove("http_proxy")
        .output()
        .expect("it runs")
}

#[test]
fn regression_a_service_that_cannot_answer_just_now_is_asked_again() {
    let (url, asked) = server(vec![
        (503, AWAY.to_owned()),
        (200, record(5)),
        (503, FULL.to_owned()),
        (504, SLOW.to_owned()),
        (200, record(6)),
    ]);
    let out = watch(&url, "2");
    let notes = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{notes}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), record(5) + &record(6));
    for why in ["log away", "too many", "too slow"] {
        assert!(notes.contains(why), "{notes}");
    }
    let from: Vec<bool> = [4, 4, 5, 5, 5]
        .iter()
        .zip(asked.lock().expect("no panic while held").iter())
        .map(|(after, target)| target.contains(&format!("after={after}&")))
        .collect();
    assert_eq!(from, [true; 5], "{asked:?}");
}

#[test]
fn another_log_is_never_waited_out() {
    let (url, _) = server(vec![(409, FOREIGN.to_owned())]);
    let out = watch(&url, "1");
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("another log"), "{said}");
}
