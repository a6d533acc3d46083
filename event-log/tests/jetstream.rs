//! What JetStream does to a log in the field: silence, deletion, crashes, races, misconfiguration. Real servers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use event_log::jetstream::JetStreamLog;
use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions};
use event_log::{
    Appended, CommitError, EventLog, Failure, Foreign, Identity, LogReader, Options, Seen,
    Subscription, commit,
};
use futures::StreamExt as _;
use schemas::{CommandId, LogId, Position, Subject};
use uuid::Uuid;

const STREAM: &str = "ROUTER_POLICY";
const PATIENCE: Duration = Duration::from_secs(20);

fn server() -> NatsServer {
    NatsServer::start(NATS_NEWEST, &ServerOptions::default()).unwrap()
}

fn options(create: bool) -> Options {
    let options = Options {
        watchdog_interval: Duration::from_millis(200),
        ..Options::default()
    };
    if create {
        options.identity.allow_create();
    }
    options
}

fn log(server: &NatsServer) -> JetStreamLog {
    JetStreamLog::new(server.url(), options(true))
}

async fn admin(server: &NatsServer) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.unwrap())
}

fn subject(name: &str) -> Subject {
    Subject::from_log(&format!("selection.{name}"))
}

fn command(number: u64) -> CommandId {
    CommandId(Uuid::from_u128(u128::from(number) + 1))
}

fn note(number: u64) -> Bytes {
    Bytes::from(format!("{{\"id\":\"{}\"}}", command(number)))
}

async fn put(log: &dyn EventLog, name: &str, expected: Position, number: u64) -> Position {
    match log
        .append(&subject(name), expected, note(number))
        .await
        .unwrap()
    {
        Appended::Committed(position) => position,
        Appended::Conflict => panic!("a conflict on {name}"),
    }
}

async fn follow_all(log: &dyn LogReader) -> Box<dyn Subscription> {
    let log_id = log.head().await.unwrap().log_id;
    let seen = Seen {
        log_id,
        position: Position::START,
        record: None,
    };
    log.follow(seen).await.unwrap()
}

async fn next(records: &mut Box<dyn Subscription>) -> Result<Position, Failure> {
    let next = tokio::time::timeout(PATIENCE, records.next()).await;
    next.expect("nothing came").map(|entry| entry.position)
}

async fn consumers(stream: &jetstream::stream::Stream) -> Vec<String> {
    stream.consumer_names().map(Result::unwrap).collect().await
}

enum Freeze {
    /// Heartbeats go on, deliveries do not.
    Pause,
    /// Nothing comes any more.
    Delete,
}

async fn check_freeze(freeze: Freeze) {
    let server = server();
    let log = log(&server);
    let first = put(&log, "m", Position::START, 1).await;
    let mut records = follow_all(&log).await;
    assert_eq!(next(&mut records).await.unwrap(), first);

    let context = admin(&server).await;
    let stream = context.get_stream(STREAM).await.unwrap();
    for name in consumers(&stream).await {
        match freeze {
            Freeze::Pause => {
                let until = serde_json::json!({ "pause_until": "2999-01-01T00:00:00Z" });
                let what = format!("CONSUMER.PAUSE.{STREAM}.{name}");
                let paused: serde_json::Value = context.request(what, &until).await.unwrap();
                assert_eq!(paused["paused"], true, "{paused}");
            }
            Freeze::Delete => assert!(stream.delete_consumer(&name).await.unwrap().success),
        }
    }
    let second = put(&log, "m", first, 2).await;
    let third = put(&log, "m", second, 3).await;
    assert_eq!(next(&mut records).await.unwrap(), second);
    assert_eq!(next(&mut records).await.unwrap(), third);
}

#[tokio::test]
async fn regression_deliveries_that_stop_while_heartbeats_go_on_are_noticed() {
    check_freeze(Freeze::Pause).await;
}

#[tokio::test]
async fn regression_a_consumer_that_vanishes_silently_is_noticed() {
    check_freeze(Freeze::Delete).await;
}

#[tokio::test]
async fn regression_a_stream_made_anew_under_a_follower_and_a_writer_is_refused() {
    let server = server();
    let old = log(&server);
    let first = put(&old, "m", Position::START, 1).await;
    let mut records = follow_all(&old).await;
    next(&mut records).await.unwrap();
    let known = old.head().await.unwrap().log_id;

    admin(&server).await.delete_stream(STREAM).await.unwrap();
    let new = log(&server);
    let actual = new.head().await.unwrap().log_id;
    assert_ne!(known, actual);
    // As many records as the old log had, and one more: a position alone would not tell them apart.
    let tail = put(&new, "m", Position::START, 7).await;
    put(&new, "m", tail, 8).await;

    let other = Foreign::OtherIdentity { known, actual };
    let why = old.append(&subject("m"), first, note(2)).await.unwrap_err();
    assert!(
        matches!(&why, Failure::Foreign(how) if *how == other),
        "{why:?}"
    );
    let why = commit(&old, &subject("m"), first, note(2), command(2), PATIENCE).await;
    assert_eq!(why, Err(CommitError::Foreign(other.clone())));
    let why = next(&mut records).await.unwrap_err();
    assert!(
        matches!(&why, Failure::Foreign(how) if *how == other),
        "{why:?}"
    );
    for why in [
        old.head().await.unwrap_err(),
        old.tails().await.unwrap_err(),
        old.at(first).await.unwrap_err(),
        old.next_on(&subject("m"), Position::START)
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(&why, Failure::Foreign(how) if *how == other),
            "{why:?}"
        );
    }
    let tails = new.tails().await.unwrap();
    assert_eq!(tails.entries.len(), 1);
    assert_eq!(
        tails.entries[0].bytes,
        note(8),
        "nothing of the old log landed in the new one"
    );
}

#[tokio::test]
async fn regression_a_deleted_stream_is_gone_and_never_made_anew() {
    let server = server();
    let log = log(&server);
    let first = put(&log, "m", Position::START, 1).await;
    let mut records = follow_all(&log).await;
    next(&mut records).await.unwrap();
    let known = log.head().await.unwrap().log_id;
    let context = admin(&server).await;
    context.delete_stream(STREAM).await.unwrap();

    let gone = Foreign::Gone { known };
    for why in [
        log.append(&subject("m"), first, note(2)).await.unwrap_err(),
        log.head().await.unwrap_err(),
        next(&mut records).await.unwrap_err(),
    ] {
        assert!(
            matches!(&why, Failure::Foreign(how) if *how == gone),
            "{why:?}"
        );
    }
    assert!(context.get_stream(STREAM).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_killed_broker_loses_nothing_acknowledged_and_followers_go_on() {
    let mut server = server();
    let log = log(&server);
    let mut acknowledged = Vec::new();
    let mut tail = Position::START;
    for number in 0..50 {
        tail = put(&log, "m", tail, number).await;
        acknowledged.push(tail);
    }
    let mut records = follow_all(&log).await;
    for position in &acknowledged[..20] {
        assert_eq!(next(&mut records).await.unwrap(), *position);
    }
    server.kill();
    for _ in 0..2 {
        match log.append(&subject("m"), tail, note(50)).await {
            Err(Failure::Determinate(_) | Failure::Indeterminate(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    server.restart().unwrap();
    for number in 50..80 {
        let subject = subject("m");
        let committed = commit(
            &log,
            &subject,
            tail,
            note(number),
            command(number),
            PATIENCE,
        );
        tail = match committed.await {
            Ok(committed) => committed.position,
            Err(why) => panic!("{number}: {why:?}"),
        };
        acknowledged.push(tail);
    }
    for position in &acknowledged[20..] {
        assert_eq!(next(&mut records).await.unwrap(), *position);
    }
    assert_eq!(log.head().await.unwrap().position, tail);
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_publish_that_timed_out_may_land_later() {
    let server = server();
    let log = JetStreamLog::new(
        server.url(),
        Options {
            call_timeout: Duration::from_millis(500),
            ..options(true)
        },
    );
    let first = put(&log, "m", Position::START, 1).await;
    server.pause().unwrap();
    let why = log.append(&subject("m"), first, note(2)).await.unwrap_err();
    assert!(matches!(why, Failure::Indeterminate(_)), "{why:?}");
    server.resume().unwrap();
    let committed = commit(&log, &subject("m"), first, note(2), command(2), PATIENCE)
        .await
        .unwrap();
    let all = log.next_on(&subject("m"), first).await.unwrap().unwrap();
    assert_eq!(all.position, committed.position);
    let twice = log
        .next_on(&subject("m"), committed.position)
        .await
        .unwrap();
    assert_eq!(twice, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_creators_make_one_log() {
    let server = server();
    let logs: Vec<JetStreamLog> = (0..12).map(|_| log(&server)).collect();
    let heads = futures::future::join_all(logs.iter().map(LogReader::head)).await;
    let ids: std::collections::BTreeSet<LogId> =
        heads.into_iter().map(|head| head.unwrap().log_id).collect();
    assert_eq!(ids.len(), 1);
}

#[tokio::test]
async fn a_missing_stream_is_made_only_where_that_is_allowed() {
    let server = server();
    let reader = JetStreamLog::new(server.url(), options(false));
    assert!(matches!(reader.head().await, Err(Failure::Determinate(_))));
    let known = LogId(Uuid::from_u128(9));
    let identity = Identity::unknown();
    identity.allow_create();
    identity.expect(known);
    let met_before = JetStreamLog::new(
        server.url(),
        Options {
            identity,
            ..options(false)
        },
    );
    let why = met_before.head().await.unwrap_err();
    assert!(matches!(why, Failure::Foreign(Foreign::Gone { known: id }) if id == known));
    assert!(admin(&server).await.get_stream(STREAM).await.is_err());
    // Allowed later, the same reader finds or makes it.
    let late = options(false);
    let identity = late.identity.clone();
    let late = JetStreamLog::new(server.url(), late);
    assert!(late.head().await.is_err());
    identity.allow_create();
    let made = late.head().await.unwrap().log_id;
    assert_eq!(reader.head().await.unwrap().log_id, made);
}

#[tokio::test]
async fn a_stream_that_could_lose_records_is_refused_with_every_reason() {
    let server = server();
    let context = admin(&server).await;
    let id = LogId(Uuid::from_u128(4));
    let config = jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![format!("router_policy.{}.>", id.0.simple())],
        metadata: [("log_id".to_owned(), id.to_string())].into(),
        max_age: Duration::from_secs(3_600),
        ..jetstream::stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    let Err(Failure::Determinate(why)) = log(&server).head().await else {
        panic!("it was taken")
    };
    for field in ["max_age", "deny_delete", "deny_purge", "discard"] {
        assert!(why.contains(field), "{field} is not in: {why}");
    }
}

#[tokio::test]
async fn the_stored_configuration_is_the_wanted_one() {
    let server = server();
    log(&server).head().await.unwrap();
    let mut stream = admin(&server).await.get_stream(STREAM).await.unwrap();
    let config = &stream.info().await.unwrap().config;
    assert!(config.deny_delete && config.deny_purge && config.allow_direct);
    assert_eq!(config.max_consumers, 10_000);
    assert_eq!(config.max_age, Duration::ZERO);
    assert!(!config.allow_message_ttl);
    assert!(
        admin(&server)
            .await
            .get_stream(STREAM)
            .await
            .unwrap()
            .purge()
            .await
            .is_err()
    );
}

#[tokio::test]
async fn without_a_broker_every_call_fails_definitely_and_soon() {
    let mut server = server();
    server.kill();
    let log = log(&server);
    let begun = std::time::Instant::now();
    for why in [
        log.head().await.map(|_| ()).unwrap_err(),
        log.append(&subject("m"), Position::START, note(1))
            .await
            .map(|_| ())
            .unwrap_err(),
        log.board().watch().await.map(|_| ()).unwrap_err(),
    ] {
        assert!(
            matches!(&why, Failure::Determinate(text) if text.contains("not reachable")),
            "{why:?}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(8));
    // The same object works once there is one.
    server.restart().unwrap();
    put(&log, "m", Position::START, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tails_of_20000_subjects_are_complete() {
    let server = server();
    let log = Arc::new(log(&server));
    let put_one = |number: u64| {
        let log = log.clone();
        async move { put(log.as_ref(), &format!("m{number}"), Position::START, number).await }
    };
    let last = futures::stream::iter(0..20_000_u64)
        .map(put_one)
        .buffer_unordered(256)
        .fold(Position::START, async |last, position| last.max(position))
        .await;
    let tails = log.tails().await.unwrap();
    assert_eq!(tails.entries.len(), 20_000);
    assert_eq!(tails.up_to.position, last);
}

/// The permissions that the adapter's documentation names, for an agent: read the log, write only its own status.
const USERS: &str = r#"
authorization { users: [
  { user: admin, password: secret }
  { user: agent, password: secret, permissions: {
      publish: [ "$JS.API.STREAM.INFO.ROUTER_POLICY", "$JS.API.STREAM.MSG.GET.ROUTER_POLICY",
        "$JS.API.CONSUMER.CREATE.ROUTER_POLICY", "$JS.FC.>", "$JS.API.STREAM.INFO.KV_ROUTER_POLICY_STATUS",
        "$KV.ROUTER_POLICY_STATUS.agent" ]
      subscribe: [ "_INBOX.>" ] } } ] }
"#;

#[tokio::test]
async fn an_agent_needs_no_more_than_the_documented_permissions() {
    let options_of_server = ServerOptions {
        configuration: USERS.to_owned(),
        ..ServerOptions::default()
    };
    let server = NatsServer::start(NATS_NEWEST, &options_of_server).unwrap();
    let at = |user: &str| {
        server
            .url()
            .replace("nats://", &format!("nats://{user}:secret@"))
    };
    let admin = JetStreamLog::new(at("admin"), options(true));
    let first = put(&admin, "m", Position::START, 1).await;
    // The bucket is made by the first who may.
    admin.board().watch().await.unwrap();

    let short = Options {
        call_timeout: Duration::from_millis(500),
        ..options(false)
    };
    let agent = JetStreamLog::new(at("agent"), short);
    assert_eq!(agent.head().await.unwrap().position, first);
    assert_eq!(agent.tails().await.unwrap().entries.len(), 1);
    assert_eq!(agent.at(first).await.unwrap().unwrap().bytes, note(1));
    let mut records = follow_all(&agent).await;
    assert_eq!(next(&mut records).await.unwrap(), first);
    let status = |agent: &str| {
        serde_json::from_value(serde_json::json!({
            "agent": agent, "version": "0", "started_at": "2026-01-01T00:00:00.000Z",
            "reported_at": "2026-01-01T00:00:00.000Z", "report": 1, "interval_ms": 1000,
            "log": { "state": "following", "position": 0 }, "frontends": []
        }))
        .unwrap()
    };
    agent.board().report(&status("agent")).await.unwrap();
    assert!(
        agent.board().report(&status("other")).await.is_err(),
        "another agent's status"
    );
    let written = agent.append(&subject("m"), first, note(2)).await;
    assert!(written.is_err(), "an agent may not write: {written:?}");
    assert_eq!(admin.head().await.unwrap().position, first);
}

#[tokio::test]
async fn passwords_never_show() {
    let mut server = server();
    server.kill();
    let urls = server.url().replace("nats://", "nats://user:hunter2@");
    let log = JetStreamLog::new(urls, options(false));
    let Err(Failure::Determinate(why)) = log.head().await else {
        panic!("it was reached")
    };
    assert!(
        why.contains("***@127.0.0.1") && !why.contains("hunter2"),
        "{why}"
    );
}
