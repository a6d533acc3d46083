//! `serve`: the service on a log, until SIGINT or SIGTERM.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use event_log::{LogUrl, Options, Wiring};

use crate::arguments::Serve;
use crate::client::chain;
use crate::problem::Problem;

pub(crate) async fn run(options: Serve) -> Result<(), Problem> {
    log_to_stderr("info");
    let log = place(&options.log)?;
    let wiring = wire(
        &log,
        &options.data,
        Options {
            stream: options.stream,
            replicas: options.replicas,
            credentials: options.nats_creds,
            nkey: options.nats_nkey,
            root_certificates: options.nats_ca,
            embedded_dir: options.data.join("log"),
            ..Options::default()
        },
    )
    .await?;
    let mut config = service::Config::new(options.listen, &options.data);
    config.insecure = options.insecure;
    config.facade_disabled = facade_disabled();
    let running = start(config, wiring, &options.data).await?;
    tracing::info!(address = %running.address(), %log, "serving");
    let ended = until_stopped(&running).await;
    tracing::info!("stopping");
    running.stop().await;
    ended
}

/// Starts the service; the problem says what to do.
pub(crate) async fn start(
    config: service::Config,
    wiring: Wiring,
    data: &Path,
) -> Result<service::Running, Problem> {
    let listen = config.listen;
    if let Err(why) = event_log::open_files::raise() {
        tracing::warn!(error = %why, "the limit of open files could not be raised");
    }
    service::start(config, wiring).await.map_err(|error| {
        Problem::Failed(format!(
            "the service does not start on {listen} with data in {}: {}",
            data.display(),
            chain(&error)
        ))
    })
}

/// Reads `--log`. The text itself goes into no message: it may hold a password.
pub(crate) fn place(log: &str) -> Result<LogUrl, Problem> {
    log.parse()
        .map_err(|error| Problem::Usage(format!("--log {}", chain(&error))))
}

/// Opens a log for reading and writing. Only a service that has never met one may make it: a log that is gone must never
/// be taken for a log that says nothing.
pub(crate) async fn wire(log: &LogUrl, data: &Path, options: Options) -> Result<Wiring, Problem> {
    let met = service::met_log(data).map_err(|error| Problem::Failed(chain(&error)))?;
    match met {
        Some(log_id) => options.identity.expect(log_id),
        None => options.identity.allow_create(),
    }
    event_log::connect(log, options)
        .await
        .map_err(|error| Problem::Failed(format!("the log {log}: {}", chain(&error))))
}

/// As on a frontend: 1, true and yes turn the admin routes off.
pub(crate) fn facade_disabled() -> bool {
    std::env::var("DYN_DISABLE_FRONTEND_ADMIN_API")
        .is_ok_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes"))
}

/// Logs for people on stderr; `RUST_LOG` changes what is logged.
pub(crate) fn log_to_stderr(default: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| {
            LOGGED.store(true, Ordering::Relaxed);
            std::io::stderr()
        })
        .init();
}

/// Something was logged since it was looked at last: whoever draws in place on the same terminal starts below it.
pub(crate) static LOGGED: AtomicBool = AtomicBool::new(false);

/// Waits for a signal; a service that ends by itself is a failure.
pub(crate) async fn until_stopped(running: &service::Running) -> Result<(), Problem> {
    tokio::select! {
        () = stop_signal() => Ok(()),
        () = running.stopped() => Err(Problem::Failed("the service ended after a fault; see its log".to_owned())),
    }
}

/// Waits for SIGINT (Ctrl-C) or SIGTERM.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = signal(SignalKind::terminate());
    match terminate {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        // Without a handler SIGTERM ends the process anyway.
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
