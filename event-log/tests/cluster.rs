//! A cluster that loses its leader under writers and a follower. Real servers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use event_log::jetstream::JetStreamLog;
use event_log::testing::{NATS_NEWEST, NatsCluster, ServerOptions};
use event_log::{CommitError, Entry, LogReader, Options, Seen, commit};
use schemas::{CommandId, LogId, Position, Subject};
use uuid::Uuid;

const WRITERS: u64 = 4;
const RECORDS: u64 = 150;

fn log(urls: &str) -> JetStreamLog {
    let options = Options {
        replicas: 3,
        watchdog_interval: Duration::from_secs(1),
        ..Options::default()
    };
    options.identity.allow_create();
    JetStreamLog::new(urls, options)
}

async fn patiently_made(log: &JetStreamLog) -> LogId {
    let mut last = None;
    for _ in 0..15 {
        match log.head().await {
            Ok(head) => return head.log_id,
            Err(why) => last = Some(why),
        }
    }
    panic!("no leader: {last:?}")
}

/// Writes its records one after the other, each until it is in: what a service's clients do together.
async fn write(urls: &str, writer: u64) -> Vec<(Position, CommandId)> {
    let log = log(urls);
    let subject = Subject::from_log(&format!("selection.w{writer}"));
    let mut acknowledged = Vec::new();
    let mut tail = Position::START;
    for number in 0..RECORDS {
        let id = CommandId(Uuid::from_u128(u128::from(writer * 1_000 + number + 1)));
        let bytes = Bytes::from(format!("{{\"id\":\"{id}\"}}"));
        tail = loop {
            let deadline = Duration::from_secs(10);
            match commit(&log, &subject, tail, bytes.clone(), id, deadline).await {
                Ok(committed) => break committed.position,
                // Not now, or not known: the same again is safe.
                Err(CommitError::Determinate(_) | CommitError::Indeterminate(_)) => {}
                Err(why) => panic!("{why:?}"),
            }
        };
        acknowledged.push((tail, id));
    }
    acknowledged
}

async fn kill_leader(cluster: &mut NatsCluster, client: &jetstream::Context) -> usize {
    let info = client
        .get_stream("ROUTER_POLICY")
        .await
        .unwrap()
        .cached_info()
        .clone();
    let leader = info.cluster.unwrap().leader.unwrap();
    let port = leader.trim_start_matches('n');
    let at = cluster
        .servers
        .iter()
        .position(|server| server.url().ends_with(port))
        .unwrap();
    cluster.servers[at].kill();
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_killed_leader_loses_nothing_and_stores_nothing_twice() {
    let mut cluster = NatsCluster::start(NATS_NEWEST, &ServerOptions::default()).unwrap();
    let urls = cluster.urls();
    let reader = log(&urls);
    let log_id = patiently_made(&reader).await;
    let seen = Seen {
        log_id,
        position: Position::START,
        record: None,
    };
    let mut records = reader.follow(seen).await.unwrap();
    let servers: Vec<&str> = urls.split(',').collect();
    let admin = jetstream::new(async_nats::connect(servers).await.unwrap());

    let total = usize::try_from(WRITERS * RECORDS).unwrap();
    let writing = futures::future::join_all((0..WRITERS).map(|writer| write(&urls, writer)));
    let following = async {
        let mut followed: Vec<Entry> = Vec::new();
        let mut killed = None;
        while followed.len() < total {
            followed.push(records.next().await.unwrap());
            if followed.len() == total / 3 {
                killed = Some(kill_leader(&mut cluster, &admin).await);
            }
            if followed.len() == total * 2 / 3 {
                cluster.servers[killed.unwrap()].restart().unwrap();
            }
        }
        followed
    };
    let both = futures::future::join(writing, following);
    let (written, followed) = tokio::time::timeout(Duration::from_secs(100), both)
        .await
        .unwrap();

    let mut acknowledged: Vec<(Position, CommandId)> = written.into_iter().flatten().collect();
    acknowledged.sort_unstable();
    let found: Vec<(Position, CommandId)> = followed
        .iter()
        .map(|entry| {
            (
                entry.position,
                migrations::record::command_id(&entry.bytes).unwrap(),
            )
        })
        .collect();
    assert_eq!(found, acknowledged);
    assert_eq!(reader.head().await.unwrap().position, found[total - 1].0);
}
