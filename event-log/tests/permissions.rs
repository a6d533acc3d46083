//! What each key may do at a real broker: its part works, everything else is tried and refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use event_log::jetstream::JetStreamLog;
use event_log::nats_config::{Login, Names, Part, UserKey, accounts, grant, inbox};
use event_log::testing::{NATS_NEWEST, NATS_VERSIONS, NatsServer, ServerOptions};
use event_log::{Appended, EventLog, LogReader, Options, Seen};
use futures::StreamExt as _;
use schemas::status::{AgentStatus, LogFollowing, LogState};
use schemas::{AgentId, Position, Subject, Timestamp};

const PATIENCE: Duration = Duration::from_secs(20);

fn agent(name: &str) -> AgentId {
    AgentId(name.parse().unwrap())
}

fn key_file(folder: &Path, part: &Part) -> std::path::PathBuf {
    folder.join(format!("{}.nk", part.file_name()))
}

fn parts() -> Vec<Part> {
    vec![
        Part::Service,
        Part::Agent(agent("one")),
        Part::Agent(agent("two")),
        Part::Operator,
    ]
}

/// A server that knows all parts.
fn server(version: &str, folder: &Path) -> NatsServer {
    let logins: Vec<Login> = parts()
        .into_iter()
        .map(|part| {
            let key = UserKey::read_or_make(&key_file(folder, &part)).unwrap();
            Login {
                part,
                public_key: key.public_key,
            }
        })
        .collect();
    let options = ServerOptions {
        configuration: accounts(&Names::default(), &logins),
        ..ServerOptions::default()
    };
    NatsServer::start(version, &options).unwrap()
}

fn log(server: &NatsServer, folder: &Path, part: &Part) -> JetStreamLog {
    let options = Options {
        nkey: Some(key_file(folder, part)),
        ..Options::default()
    };
    if *part == Part::Service {
        options.identity.allow_create();
    }
    JetStreamLog::new(server.url(), options)
}

fn status(name: &str) -> AgentStatus {
    AgentStatus {
        agent: agent(name),
        group: None,
        version: "1".to_owned(),
        started_at: Timestamp::from_unix_ms(1),
        reported_at: Timestamp::from_unix_ms(2),
        report: 1,
        interval_ms: 1_000,
        leaving: false,
        log: LogFollowing {
            state: LogState::Following,
            log_id: None,
            position: Position::START,
            error: None,
        },
        frontends: Vec::new(),
    }
}

/// The bare client with a part's key, as somebody who stole it would use it.
async fn client(server: &NatsServer, folder: &Path, part: &Part) -> async_nats::Client {
    let path = key_file(folder, part);
    let seed = std::fs::read_to_string(&path).unwrap().trim().to_owned();
    let key = UserKey::read(&path).unwrap();
    async_nats::ConnectOptions::with_nkey(seed)
        .custom_inbox_prefix(inbox(&key.public_key))
        .request_timeout(Some(Duration::from_millis(400)))
        .connect(server.url())
        .await
        .unwrap()
}

#[tokio::test]
async fn every_part_works_under_its_own_key_on_every_version() {
    for version in NATS_VERSIONS {
        let folder = tempfile::tempdir().unwrap();
        let server = server(version, folder.path());
        let service = log(&server, folder.path(), &Part::Service);
        let subject = Subject::from_log("selection.a");
        let first = service
            .append(&subject, Position::START, Bytes::from_static(b"{}"))
            .await
            .unwrap();
        let Appended::Committed(first) = first else {
            panic!("a conflict in an empty log");
        };
        let reader = log(&server, folder.path(), &Part::Agent(agent("one")));
        let head = reader.head().await.unwrap();
        assert_eq!(head.position, first, "{version}");
        assert_eq!(reader.tails().await.unwrap().entries.len(), 1, "{version}");
        assert!(reader.at(first).await.unwrap().is_some(), "{version}");
        let seen = Seen {
            log_id: head.log_id,
            position: Position::START,
            record: None,
        };
        let mut records = reader.follow(seen).await.unwrap();
        let record = tokio::time::timeout(PATIENCE, records.next()).await;
        assert_eq!(record.unwrap().unwrap().position, first, "{version}");

        // The service makes the bucket; only then can an agent report.
        let mut reports = service.board().watch().await.unwrap();
        reader.board().report(&status("one")).await.unwrap();
        let heard = tokio::time::timeout(PATIENCE, reports.next()).await;
        assert_eq!(heard.unwrap().unwrap().agent, agent("one"), "{version}");
    }
}

#[tokio::test]
async fn an_agents_key_opens_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(NATS_NEWEST, folder.path());
    let service = log(&server, folder.path(), &Part::Service);
    let subject = Subject::from_log("selection.a");
    service
        .append(&subject, Position::START, Bytes::from_static(b"{}"))
        .await
        .unwrap();
    let log_id = service.head().await.unwrap().log_id;
    let mut reports = service.board().watch().await.unwrap();
    let two = log(&server, folder.path(), &Part::Agent(agent("two")));
    two.board().report(&status("two")).await.unwrap();
    reports.next().await.unwrap();

    let operator = client(&server, folder.path(), &Part::Operator).await;
    let context = jetstream::new(operator.clone());
    let before = snapshot(&context).await;

    let thief = client(&server, folder.path(), &Part::Agent(agent("one"))).await;
    let record = migrations::stream::wire_subject(log_id, &subject);
    let stream = "ROUTER_POLICY";
    let bucket = "KV_ROUTER_POLICY_STATUS";
    let update =
        format!(r#"{{"name":"{stream}","subjects":["router_policy.>"],"max_age":1000000000}}"#);
    let attacks: Vec<(&str, String, String)> = vec![
        ("append a record", record.clone(), "{}".into()),
        (
            "append elsewhere in the log",
            format!("{record}.x"),
            "{}".into(),
        ),
        (
            "write another agent's report",
            "$KV.ROUTER_POLICY_STATUS.two".into(),
            "{}".into(),
        ),
        (
            "delete a record",
            format!("$JS.API.STREAM.MSG.DELETE.{stream}"),
            r#"{"seq":1}"#.into(),
        ),
        (
            "purge the log",
            format!("$JS.API.STREAM.PURGE.{stream}"),
            String::new(),
        ),
        (
            "purge the reports",
            format!("$JS.API.STREAM.PURGE.{bucket}"),
            String::new(),
        ),
        (
            "delete the log",
            format!("$JS.API.STREAM.DELETE.{stream}"),
            String::new(),
        ),
        (
            "delete the reports",
            format!("$JS.API.STREAM.DELETE.{bucket}"),
            String::new(),
        ),
        (
            "let records expire",
            format!("$JS.API.STREAM.UPDATE.{stream}"),
            update.clone(),
        ),
        (
            "make the log anew",
            format!("$JS.API.STREAM.CREATE.{stream}"),
            update,
        ),
        (
            "make another stream",
            "$JS.API.STREAM.CREATE.OTHER".into(),
            r#"{"name":"OTHER"}"#.into(),
        ),
        (
            "list consumers",
            format!("$JS.API.CONSUMER.LIST.{stream}"),
            String::new(),
        ),
        (
            "read others' reports",
            format!("$JS.API.STREAM.MSG.GET.{bucket}"),
            r#"{"last_by_subj":"$KV.ROUTER_POLICY_STATUS.two"}"#.into(),
        ),
        (
            "read others' reports directly",
            format!("$JS.API.DIRECT.GET.{bucket}.$KV.ROUTER_POLICY_STATUS.two"),
            String::new(),
        ),
        (
            "watch others' reports",
            format!("$JS.API.CONSUMER.CREATE.{bucket}"),
            format!(r#"{{"stream_name":"{bucket}","config":{{"deliver_subject":"x"}}}}"#),
        ),
        (
            "restore an older log",
            format!("$JS.API.STREAM.RESTORE.{stream}"),
            "{}".into(),
        ),
        (
            "copy the log away",
            format!("$JS.API.STREAM.SNAPSHOT.{stream}"),
            r#"{"deliver_subject":"x"}"#.into(),
        ),
        (
            "make the leader step down",
            format!("$JS.API.STREAM.LEADER.STEPDOWN.{stream}"),
            String::new(),
        ),
        ("ask for the account", "$JS.API.INFO".into(), String::new()),
    ];
    for (what, subject, payload) in attacks {
        let answer = thief.request(subject, payload.into()).await;
        assert!(answer.is_err(), "{what}: {answer:?}");
    }
    // Listening to others: the server drops the subscription, so nothing ever comes.
    for what in [">", "_INBOX.>", "$KV.>", "router_policy.>", "$JS.EVENT.>"] {
        let mut heard = thief.subscribe(what.to_owned()).await.unwrap();
        thief.flush().await.unwrap();
        service
            .append(
                &Subject::from_log("selection.b"),
                position(&service, "selection.b").await,
                Bytes::from_static(b"{}"),
            )
            .await
            .unwrap();
        two.board().report(&status("two")).await.unwrap();
        // What was sent before this round trip would have been here before its answer.
        thief.flush().await.unwrap();
        let got = tokio::time::timeout(Duration::from_millis(100), heard.next()).await;
        assert!(!matches!(got, Ok(Some(_))), "{what}: {got:?}");
    }
    // A consumer that delivers into the log: refused as a cycle.
    let cycle = format!(
        r#"{{"stream_name":"{stream}","config":{{"deliver_subject":"{record}","ack_policy":"none","deliver_policy":"all"}}}}"#
    );
    let answer = thief
        .request(format!("$JS.API.CONSUMER.CREATE.{stream}"), cycle.into())
        .await
        .unwrap();
    let answer = String::from_utf8_lossy(&answer.payload).into_owned();
    assert!(answer.contains("cycle"), "{answer}");

    let after = snapshot(&context).await;
    assert_eq!(before.0, after.0, "the log's records");
    assert_eq!(before.1, after.1, "its configuration");
}

async fn position(log: &JetStreamLog, subject: &str) -> Position {
    let subject = Subject::from_log(subject);
    let tails = log.tails().await.unwrap().entries;
    let last = tails.iter().find(|entry| entry.subject == subject);
    last.map_or(Position::START, |entry| entry.position)
}

/// The record on `selection.a`, and the stream's configuration.
async fn snapshot(context: &jetstream::Context) -> (Vec<u8>, serde_json::Value) {
    let mut stream = context.get_stream("ROUTER_POLICY").await.unwrap();
    let record = stream.get_raw_message(1).await.unwrap();
    let info = stream.info().await.unwrap();
    let config = serde_json::to_value(&info.config).unwrap();
    (record.payload.to_vec(), config)
}

#[tokio::test]
async fn a_service_cannot_change_or_empty_the_log_either() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(NATS_NEWEST, folder.path());
    let service = log(&server, folder.path(), &Part::Service);
    service.head().await.unwrap();
    let thief = client(&server, folder.path(), &Part::Service).await;
    for api in ["UPDATE", "DELETE", "PURGE", "MSG.DELETE", "RESTORE"] {
        let subject = format!("$JS.API.STREAM.{api}.ROUTER_POLICY");
        let answer = thief.request(subject, "{}".into()).await;
        assert!(answer.is_err(), "{api}: {answer:?}");
    }
    // It may make the log where there is none; an existing one is not changed by that.
    let other = r#"{"name":"ROUTER_POLICY","subjects":["router_policy.>"],"max_age":1000000000}"#;
    let answer = thief
        .request("$JS.API.STREAM.CREATE.ROUTER_POLICY", other.into())
        .await
        .unwrap();
    let answer = String::from_utf8_lossy(&answer.payload).into_owned();
    assert!(answer.contains("10058"), "{answer}");
}

#[tokio::test]
async fn a_key_that_the_broker_does_not_know_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(NATS_NEWEST, folder.path());
    let stranger = Part::Agent(agent("stranger"));
    UserKey::read_or_make(&key_file(folder.path(), &stranger)).unwrap();
    let log = log(&server, folder.path(), &stranger);
    let why = log.head().await.unwrap_err().to_string();
    assert!(why.to_lowercase().contains("authorization"), "{why}");
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.nk");
    let made = UserKey::read_or_make(&path).unwrap();
    assert_eq!(
        UserKey::read_or_make(&path).unwrap().public_key,
        made.public_key
    );
    assert!(!format!("{made:?}").contains("SU"), "{made:?}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let why = UserKey::read(&path).unwrap_err().to_string();
    assert!(why.contains("chmod 600"), "{why}");
}

#[test]
fn an_agent_with_a_strange_name_gets_its_own_key_of_the_board_only() {
    for name in ["a.b", "*", ">", "a b", "メ"] {
        let grant = grant(&Part::Agent(agent(name)), &Names::default(), "U");
        let own: Vec<&String> = (grant.publish.iter())
            .filter(|subject| subject.starts_with("$KV."))
            .collect();
        let [own] = own.as_slice() else {
            panic!("{own:?}")
        };
        let token = own.rsplit('.').next().unwrap();
        assert!(!token.contains(['*', '>', ' ']), "{own}");
        assert_eq!(own.split('.').count(), 3, "{own}");
    }
}
