//! Runs the suite against every adapter and every supported NATS, prints a table, and fails when a check fails.
//!
//! `cargo run -p event-log --features testing --example conformance [-- NAME...]`

use std::process::ExitCode;

use event_log::conformance::{Factory, Report, run};
use event_log::testing::{
    EmbeddedLogs, JetStreamLogs, MemoryLogs, NATS_NEWEST, NATS_VERSIONS, NatsCluster, NatsServer,
    ServerOptions,
};

async fn checked(reports: &mut Vec<Report>, name: &str, factory: &dyn Factory) {
    eprintln!("{name} ...");
    let report = run(name, factory).await;
    eprintln!("{report}");
    reports.push(report);
}

async fn all(wanted: &[String]) -> Result<Vec<Report>, Box<dyn std::error::Error>> {
    let asked =
        |name: &str| wanted.is_empty() || wanted.iter().any(|text| name.contains(text.as_str()));
    let mut reports = Vec::new();
    if asked("memory") {
        checked(&mut reports, "memory", &MemoryLogs { faulty: false }).await;
    }
    if asked("embedded (fjall)") {
        let logs = EmbeddedLogs::new()?;
        checked(&mut reports, "embedded (fjall)", &logs).await;
    }
    for version in NATS_VERSIONS {
        let name = format!("nats-server {version}, R1");
        if asked(&name) {
            let server = NatsServer::start(version, &ServerOptions::default())?;
            checked(&mut reports, &name, &JetStreamLogs::new(server.url(), 1)).await;
        }
    }
    let name = format!("nats-server {NATS_NEWEST}, 3 nodes, R3");
    if asked(&name) {
        let cluster = NatsCluster::start(NATS_NEWEST, &ServerOptions::default())?;
        checked(&mut reports, &name, &JetStreamLogs::new(cluster.urls(), 3)).await;
    }
    Ok(reports)
}

#[tokio::main]
async fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let reports = match all(&wanted).await {
        Ok(reports) => reports,
        Err(why) => {
            eprintln!("{why}");
            // A log that could not be checked does not conform.
            println!("conformance: 0 passed, 1 failed");
            return ExitCode::FAILURE;
        }
    };
    println!("{:<32} {:>7} {:>9}", "log", "passed", "seconds");
    for report in &reports {
        let took: f64 = report
            .checks
            .iter()
            .map(|check| check.took.as_secs_f64())
            .sum();
        let passed = format!("{}/{}", report.passed(), report.checks.len());
        println!("{:<32} {passed:>7} {took:>9.1}", report.name);
    }
    let checks: usize = reports.iter().map(|report| report.checks.len()).sum();
    let passed: usize = reports.iter().map(Report::passed).sum();
    println!("conformance: {passed} passed, {} failed", checks - passed);
    if passed == checks && checks > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
