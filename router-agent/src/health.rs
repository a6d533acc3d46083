//! `/livez` and `/readyz` on a small listener, so that a frontend's readiness can be gated on its policy being in place.
//!
//! Two fixed routes without bodies to read: written out here instead of bringing an HTTP server into the agent.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use schemas::status::{AgentStatus, ApplyState, Capability, FrontendStatus, LogState};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Bound: connections at a time; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 32;
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
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(()) = open.next() => {}
            accepted = listener.accept(), if open.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    let status = status.clone();
                    open.push(async move {
                        let answered = tokio::time::timeout(PATIENCE, answer(stream, &status)).await;
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
