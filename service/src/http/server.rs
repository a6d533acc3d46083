//! The listener: accepting, serving and stopping.
//!
//! Owns: how many connections are open, who makes room when that is too many, how long a client may take over its request's
//! head, and the end of all of them.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use event_log::ambient::Tasks;
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::config::Config;
use crate::metrics::Metrics;

use super::files;
use super::places::{Answering, Place, Places};
use super::socket::Patient;

/// Bound: a request's head, and what is read and written ahead on each connection.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Accepting failed for now (no file handles left): pause, do not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// All places are taken, and nobody has made room yet: look again.
const DISPLACE_PAUSE: Duration = Duration::from_millis(50);

/// Bound: what the system keeps of answers that a client has not taken yet, per connection. Left to itself it keeps megabytes
/// for each; the system may round this (Linux doubles it for its own books and ends at `net.core.wmem_max`).
const SEND_BUFFER_BYTES: u32 = 256 << 10;
const BACKLOG: u32 = 1_024;

/// Listens; connections inherit the bound of what they keep.
///
/// # Errors
/// The address is in use, or not of this machine.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until the tasks stop; then waits for open requests, at most `stop_patience`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: Config,
    metrics: Arc<Metrics>,
    tasks: Tasks,
) {
    let stop = tasks.stopping();
    let connections = Arc::new(Semaphore::new(files::connections(config.connections_max)));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.header_read_timeout)
        .max_buf_size(HEAD_BYTES_MAX);
    let graceful = GracefulShutdown::new();
    let broken_off = CancellationToken::new();
    let mut places = Places::default();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(why) => {
                tracing::warn!(error = %why, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let room = room(&connections, &mut places, &metrics);
        let permit = tokio::select! {
            () = stop.cancelled() => break,
            permit = room => permit,
        };
        let Some(permit) = permit else { break };
        nodelay(&stream);
        let place = places.take();
        let connection = http.serve_connection(
            TokioIo::new(Patient::new(stream, config.stall_timeout)),
            answers(router.clone(), place.clone()),
        );
        let connection = graceful.watch(connection);
        let broken_off = broken_off.clone();
        tasks.start("connection", async move {
            let over = place.over.clone().drop_guard();
            tokio::select! {
                ended = connection => {
                    if let Err(why) = ended {
                        tracing::debug!(error = %why, "a connection ended early");
                    }
                }
                () = broken_off.cancelled() => {}
                () = place.over.cancelled() => {}
            }
            drop((permit, over));
        });
    }
    drop(listener);
    if tokio::time::timeout(config.stop_patience, graceful.shutdown())
        .await
        .is_err()
    {
        broken_off.cancel();
        tracing::warn!("some requests were still open when the service stopped");
    }
}

/// Waits for a place; when all are taken, those who do nothing with theirs make room.
async fn room(
    connections: &Arc<Semaphore>,
    places: &mut Places,
    metrics: &Metrics,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = Arc::clone(connections).try_acquire_owned() {
        return Some(permit);
    }
    metrics.limit("connections");
    loop {
        places.displace();
        tokio::select! {
            permit = Arc::clone(connections).acquire_owned() => return permit.ok(),
            // Nobody was idle, or has let go yet.
            () = tokio::time::sleep(DISPLACE_PAUSE) => {}
        }
    }
}

/// The router, which counts a request as in hand until its answer is sent.
fn answers(
    router: Router,
    place: Place,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Body>,
    Error = Infallible,
    Future: Send,
> {
    hyper::service::service_fn(move |request: Request<Incoming>| {
        let in_hand = place.requests.enter();
        let answer = router.clone().oneshot(request);
        async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Answering::body(body, in_hand)))
        }
    })
}

fn nodelay(stream: &TcpStream) {
    if let Err(why) = stream.set_nodelay(true) {
        tracing::debug!(error = %why, "nodelay could not be set");
    }
}
