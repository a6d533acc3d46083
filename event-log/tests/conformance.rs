//! Every adapter passes the suite. The older servers and the cluster are `cargo xtask conformance`'s.

use event_log::conformance::{Factory, run};
use event_log::testing::{
    EmbeddedLogs, JetStreamLogs, MemoryLogs, NATS_NEWEST, NatsServer, ServerOptions,
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

#[tokio::test(flavor = "multi_thread")]
async fn jetstream_conforms() {
    let server = NatsServer::start(NATS_NEWEST, &ServerOptions::default()).unwrap();
    check(NATS_NEWEST, &JetStreamLogs::new(server.url(), 1)).await;
}
