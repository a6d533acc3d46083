//! What concurrent clients are told is judged on each kind of log, without faults: one service on its own disk, and two on one
//! nats-server.

use std::time::Duration;

use event_log::testing::{NATS_NEWEST, NatsServer, ServerOptions, TemporaryFolder};
use router_policy_tests::cluster::ledger::{fold, judge};
use router_policy_tests::cluster::load::Load;
use router_policy_tests::stage::Service;

const PATIENCE: Duration = Duration::from_secs(90);

/// `read_from`: where the log is read for the comparison; `None` = through the first service.
async fn check(
    name: &str,
    folder: &TemporaryFolder,
    log: &str,
    services: usize,
    read_from: Option<&str>,
) {
    let mut all = Vec::new();
    for number in 0..services {
        let mut service = Service::new(&format!("service{number}"), folder.path(), log);
        service.start().await;
        all.push(service);
    }
    let load = Load::start(all.iter().map(|one| one.http.clone()).collect(), 8, 3);
    load.goes_on(300, PATIENCE).await;
    load.end().await;
    let url = read_from
        .unwrap_or(all[0].http.base())
        .parse()
        .expect("a log URL");
    let log = event_log::connect_reader(&url, event_log::Options::default()).await;
    let log = log.expect("a reader").log;
    let head = log.head().await.expect("its head");
    let ledger = fold(&*log, head).await;
    judge(&load, &ledger, &folder.path().join("history"), name);
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_on_an_embedded_log_are_linearizable() {
    let folder = TemporaryFolder::new().expect("a folder");
    check("embedded", &folder, "embedded", 1, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_through_two_services_on_one_nats_server_are_linearizable() {
    let folder = TemporaryFolder::new().expect("a folder");
    let options = ServerOptions {
        sync_always: true,
        ..ServerOptions::default()
    };
    let server = NatsServer::start(NATS_NEWEST, &options).expect("nats-server");
    let url = server.url();
    check("one nats-server", &folder, &url, 2, Some(&url)).await;
}
