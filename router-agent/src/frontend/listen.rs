//! The listener: one task that accepts and serves, a bounded number of connections at a time.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Bound: connections at a time; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 4_096;
/// Bound: a request's head, and what is read and written ahead on each connection.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Bound: the time that a client may take over its request's head.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// Bound: the time for open requests when the frontend stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Accepting failed for now (no file handles left): pause, do not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until told to stop; `full` is told whenever no more connections are taken.
pub(super) async fn serve(
    listener: TcpListener,
    routes: Router,
    full: impl Fn() + Send + 'static,
    stop: CancellationToken,
) {
    let mut open: FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>> =
        FuturesUnordered::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(()) = open.next() => {}
            accepted = listener.accept(), if open.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    open.push(Box::pin(connection(stream, routes.clone(), stop.clone())));
                    if open.len() == CONNECTIONS_MAX {
                        full();
                    }
                }
                Err(why) => {
                    tracing::warn!(error = %why, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while open.next().await.is_some() {}
}

async fn connection(stream: TcpStream, routes: Router, stop: CancellationToken) {
    if let Err(why) = stream.set_nodelay(true) {
        tracing::debug!(error = %why, "nodelay could not be set");
    }
    let service = TowerToHyperService::new(routes);
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(STOP_PATIENCE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(why) = ended {
        tracing::debug!(error = %why, "a connection ended early");
    }
}
