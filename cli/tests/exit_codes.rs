//! What the client makes of every kind of answer, from a server that says exactly that.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

/// What a write is answered with: status and body, or nothing at all.
type Script = Option<(u16, &'static str)>;

/// Answers reads with "not found" and writes as scripted, until the test's process ends.
fn server(script: Script) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, script);
        }
    });
    url
}

fn answer(mut stream: TcpStream, script: Script) {
    let mut reader = BufReader::new(stream.try_clone().expect("a clone"));
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) <= 2 {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let scripted = if head.starts_with("GET") {
        Some((404, r#"{"error":"no such policy","code":"not_found"}"#))
    } else {
        script
    };
    // Without an answer the connection just ends, after the request was read.
    if let Some((status, body)) = scripted {
        let text = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(text.as_bytes()).expect("sent");
    }
}

fn check(what: &str, script: Script, code: i32, says: &str) {
    let url = server(script);
    for json in [false, true] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_router-policy"));
        command.args([
            "set",
            "router_temperature=0.3",
            "--model",
            "m",
            "--service",
            &url,
        ]);
        if json {
            command.arg("--json");
        }
        let out = command.env_remove("http_proxy").output().expect("it runs");
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(out.status.code(), Some(code), "{what}, json {json}: {said}");
        assert!(said.contains(says), "{what}, json {json}: {said}");
    }
}

#[test]
fn every_answer_has_its_exit_code() {
    check("no answer to a write", None, 6, "idempotency-key");
    let unknown = r#"{"error":"nobody knows","code":"outcome_unknown","outcome":"unknown"}"#;
    check(
        "an open outcome",
        Some((503, unknown)),
        6,
        "idempotency-key",
    );
    let open = r#"{"error":"broke","code":"internal","outcome":"unknown"}"#;
    check(
        "an open outcome under another code",
        Some((500, open)),
        6,
        "idempotency-key",
    );
    let away = r#"{"error":"log away","code":"log_unavailable","outcome":"not_applied"}"#;
    check("a log that is away", Some((503, away)), 1, "log away");
    let stale = r#"{"error":"conflict","code":"stale_revision","current_revision":7,"changed_at":"2026-11-30T10:00:00.000Z"}"#;
    check("a stale revision", Some((409, stale)), 4, "7");
    let race = r#"{"error":"lost a race","code":"conflict"}"#;
    check("a lost race", Some((409, race)), 4, "lost a race");
    let refused =
        r#"{"error":"must be positive","code":"invalid_value","field":"router_temperature"}"#;
    check(
        "a refused value",
        Some((422, refused)),
        3,
        "must be positive",
    );
    let slow = r#"{"error":"the answer took too long","code":"timeout"}"#;
    check(
        "too slow",
        Some((504, slow)),
        6,
        "--expect 0 --idempotency-key",
    );
    let broke = r#"{"error":"broke","code":"internal"}"#;
    check(
        "a fault",
        Some((500, broke)),
        6,
        "--expect 0 --idempotency-key",
    );
    let full = r#"{"error":"too many","code":"overloaded","outcome":"not_applied"}"#;
    check("too many", Some((503, full)), 1, "too many");
    check(
        "an answer that is no JSON, from something between",
        Some((502, "bad gateway")),
        6,
        "502",
    );
    check("no JSON and no fault", Some((404, "what?")), 1, "404");
}
