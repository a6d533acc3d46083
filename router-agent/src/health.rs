//! `/livez` and `/readyz` on a small listener, so that a frontend's readiness can be gated on its policy being in place.
//!
//! Two fixed routes without bodies to read: written out here instead of bringing an HTTP server into the agent.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use schemas::status::{AgentStatus, ApplyState, Capability, FrontendStatus, LogState};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Bound: connections at a time; a further one takes the place of the oldest, so that nobody who only holds connections
/// keeps a readiness check from its answer.
const CONNECTIONS_MAX: usize = 256;
/// Bound: the head of a request.
const HEAD_BYTES_MAX: usize = 8_192;
/// Bound: the time for one request.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why the agent is not ready; empty when it is.
///
/// Ready = every frontend was listed, has at least a router or a model, and each of its routers and models was found
/// as wanted, refused or unsupported with everything known so far folded in. Working from the local copy is ready.
#[must_use]
pub fn unready(status: &AgentStatus) -> Vec<String> {
    let mut why = Vec::new();
    if status.log.state == LogState::Starting {
        why.push(
            "no policy is known yet: neither the log nor a local copy could be read".to_owned(),
        );
    }
    for frontend in &status.frontends {
        if let Some(words) = unready_frontend(frontend, status.log.position) {
            why.push(format!("{}: {words}", frontend.frontend));
        }
    }
    why
}

fn unready_frontend(frontend: &FrontendStatus, position: schemas::Position) -> Option<String> {
    if !frontend.reachable || frontend.capability == Capability::Unknown {
        let why = frontend.error.as_deref().unwrap_or("unreachable");
        return Some(why.to_owned());
    }
    if frontend.capability == Capability::None {
        return None;
    }
    if frontend.routers.is_empty() && frontend.thresholds.is_empty() {
        return Some("lists no router and no model yet".to_owned());
    }
    let settled = |state, at| {
        at >= position
            && match state {
                ApplyState::Applied
                | ApplyState::Refused
                | ApplyState::Stopped
                | ApplyState::Unsupported => true,
                ApplyState::Pending | ApplyState::Drifted => false,
            }
    };
    let router = (frontend.routers.iter()).find(|router| !settled(router.state, router.position));
    if let Some(router) = router {
        return Some(format!("router {} is {:?}", router.router_id, router.state));
    }
    let model = (frontend.thresholds.iter()).find(|model| !settled(model.state, model.position));
    model.map(|model| format!("thresholds of {} are {:?}", model.model, model.state))
}

/// Serves until told to stop.
pub async fn serve(
    listener: TcpListener,
    status: watch::Receiver<AgentStatus>,
    stop: CancellationToken,
) {
    let mut open = FuturesUnordered::new();
    let mut places: VecDeque<oneshot::Sender<()>> = VecDeque::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(()) = open.next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    places.retain(|place| !place.is_closed());
                    if places.len() >= CONNECTIONS_MAX {
                        // Dropped: its connection ends.
                        places.pop_front();
                    }
                    let (place, taken) = oneshot::channel();
                    places.push_back(place);
                    let status = status.clone();
                    open.push(async move {
                        let answered = tokio::select! {
                            answered = tokio::time::timeout(PATIENCE, answer(stream, &status)) => answered,
                            _ = taken => return,
                        };
                        if !matches!(answered, Ok(Ok(()))) {
                            tracing::debug!("a health request was not answered");
                        }
                    });
                }
                Err(why) => {
                    tracing::warn!(error = %why, "health listener");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn answer(
    mut stream: TcpStream,
    status: &watch::Receiver<AgentStatus>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut part = [0; 1_024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_BYTES_MAX {
        let read = stream.read(&mut part).await?;
        if read == 0 {
            break;
        }
        head.extend_from_slice(&part[..read]);
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split(' ');
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let (code, body) = match (method, path) {
        ("GET" | "HEAD", "/livez") => ("200 OK", "alive\n".to_owned()),
        ("GET" | "HEAD", "/readyz") => {
            let why = unready(&status.borrow());
            if why.is_empty() {
                ("200 OK", "ready\n".to_owned())
            } else {
                ("503 Service Unavailable", why.join("\n") + "\n")
            }
        }
        ("GET" | "HEAD", _) => ("404 Not Found", "not found\n".to_owned()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let sent = if method == "HEAD" { "" } else { body.as_str() };
    let answer = format!(
        "HTTP/1.1 {code}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{sent}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_log::ambient::Tasks;

    #[tokio::test]
    async fn regression_clients_that_only_hold_connections_keep_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let text = include_str!("../../tests/inputs/status.json");
        let status = watch::Sender::new(serde_json::from_str(text).unwrap());
        let tasks = Tasks::new();
        tasks.start(
            "health",
            serve(listener, status.subscribe(), tasks.stopping()),
        );
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX + 20 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET /livez HTTP/1.1\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // It had not to wait for the others to be cut off: most of them are still there.
        let open = |stream: &&TcpStream| {
            let would_block = |why: std::io::Error| why.kind() == std::io::ErrorKind::WouldBlock;
            stream.try_read(&mut [0]).is_err_and(would_block)
        };
        assert!(idle.iter().filter(open).count() > CONNECTIONS_MAX / 2);
        assert!(tasks.stop(Duration::from_secs(5)).await);
    }
}
