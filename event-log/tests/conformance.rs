//! Every adapter passes the suite. `CONFORMANCE=all` adds the older servers and the cluster.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use event_log::conformance::{Factory, run};
use event_log::testing::{
    EmbeddedLogs, JetStreamLogs, MemoryLogs, NATS_NEWEST, NATS_VERSIONS, NatsCluster, NatsServer,
    ServerOptions,
};

async fn check(name: &str, factory: &dyn Factory) {
    let report = run(name, factory).await;
    assert!(report.conforms(), "{report}");
}

#[tokio::test]
async fn memory_conforms() {
    check("memory", &MemoryLogs { faulty: false }).await;
}

#[tokio::test]
async fn faulty_without_faults_conforms() {
    check("faulty", &MemoryLogs { faulty: true }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_conforms() {
    check("embedded", &EmbeddedLogs::new().unwrap()).await;
}

async fn check_server(version: &str) {
    let server = NatsServer::start(version, &ServerOptions::default()).unwrap();
    check(version, &JetStreamLogs::new(server.url(), 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jetstream_conforms() {
    check_server(NATS_NEWEST).await;
}

fn all() -> bool {
    std::env::var("CONFORMANCE").is_ok_and(|which| which == "all")
}

#[tokio::test(flavor = "multi_thread")]
async fn older_jetstreams_conform_when_all_are_asked_for() {
    for version in NATS_VERSIONS
        .iter()
        .filter(|version| all() && **version != NATS_NEWEST)
    {
        check_server(version).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_conforms_when_all_are_asked_for() {
    if all() {
        let cluster = NatsCluster::start(NATS_NEWEST, &ServerOptions::default()).unwrap();
        check("cluster", &JetStreamLogs::new(cluster.urls(), 3)).await;
    }
}
