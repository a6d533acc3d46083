//! The service: takes changes over HTTP, writes them to the log, and shows what the log says.
//!
//! Data flows one way: HTTP → [`writer`] (decide, commit) → log → [`projection`] (fold, store) → HTTP. The two halves meet
//! only in the log, so any number of services may work on one log.
//!
//! Owns: the command loop, the local store, the HTTP API, metrics. Never does: touch a router (agents do), or keep anything
//! that cannot be made again from the log.

pub mod config;
pub mod fleet;
pub mod http;
pub mod metrics;
pub mod projection;
pub mod writer;

use std::net::SocketAddr;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use event_log::Wiring;
use event_log::ambient::Tasks;
use schemas::{Hash, LogId, Position};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use config::Config;
pub use projection::open::OpenError;

use fleet::Fleet;
use http::{App, Parts};
use metrics::Metrics;
use projection::Projection;
use projection::fold::Projected;
use projection::follow::{Disk, Follower};
use projection::open::Opened;
use projection::store::Store;
use writer::Writer;

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Anybody who reaches the address could change policies.
    #[error(
        "{0} is not a loopback address, and this version has neither tokens nor TLS: listen on 127.0.0.1 or [::1], or say --insecure to let everybody who reaches it change policies"
    )]
    Exposed(SocketAddr),
    /// The address cannot be used.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// The data folder cannot be used.
    #[error("cannot use the data folder")]
    Store(#[from] OpenError),
    /// Opening the store ended by a panic.
    #[error("opening the local store was broken off: {0}")]
    Broken(String),
}

/// A service that runs.
pub struct Running {
    address: SocketAddr,
    projection: Arc<Projection>,
    tasks: Tasks,
    stop_patience: Duration,
    routes: axum::Router,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The whole API, for a host that has a listener of its own, and for tests without a socket.
    pub fn routes(&self) -> axum::Router {
        self.routes.clone()
    }

    /// Everything up to here is folded in.
    #[must_use]
    pub fn position(&self) -> Position {
        self.projection.snapshot().state.position
    }

    /// Hash over everything that it knows: equal on every replica at the same position of the same log.
    #[must_use]
    pub fn digest(&self) -> Hash {
        self.projection.digest()
    }

    /// Waits until everything up to `position` is folded in; false when `patience` ran out first.
    pub async fn wait_for(&self, position: Position, patience: Duration) -> bool {
        self.projection
            .wait_for(position, Instant::now() + patience)
            .await
    }

    /// True once it stops by itself, after a fault.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.tasks.stopping().is_cancelled()
    }

    /// Ends when the service stops by itself, after a fault.
    pub async fn stopped(&self) {
        self.tasks.stopping().cancelled().await;
    }

    /// Takes no more requests, finishes those that are open, and closes the store. True when everything ended in time.
    pub async fn stop(self) -> bool {
        let ended = self.tasks.stop(self.stop_patience + STOP_MARGIN).await;
        let flushed = self.projection.read(projection::store::Store::flush).await;
        if let Err(why) = flushed {
            tracing::warn!(error = %why, "the local store was not flushed; its end is read again from the log");
        }
        ended
    }
}

/// Bound: what stopping takes besides waiting for open requests.
const STOP_MARGIN: Duration = Duration::from_secs(2);

/// Starts a service.
///
/// # Errors
/// [`StartError`]. The log need not be reachable.
pub async fn start(config: Config, wiring: Wiring) -> Result<Running, StartError> {
    if !config.listen.ip().is_loopback() && !config.insecure {
        return Err(StartError::Exposed(config.listen));
    }
    let listen = |source| StartError::Listen {
        address: config.listen,
        source,
    };
    let listener = http::server::bind(config.listen).map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;

    let (data_dir, cache_bytes) = (config.data_dir.clone(), config.cache_bytes);
    let opened =
        tokio::task::spawn_blocking(move || projection::open::open(&data_dir, cache_bytes))
            .await
            .map_err(|panic| StartError::Broken(panic.to_string()))??;
    let Opened {
        store,
        projected,
        rebuilt,
    } = opened;
    let stop_patience = config.stop_patience;
    let opened = (store, projected, rebuilt);
    let (projection, tasks, routes) = run(config, wiring, listener, opened);
    tracing::info!(%address, "listening");
    Ok(Running {
        address,
        projection,
        tasks,
        stop_patience,
        routes,
    })
}

/// Wires the parts and starts their tasks.
fn run(
    config: Config,
    wiring: Wiring,
    listener: TcpListener,
    (store, projected, rebuilt): (Arc<Store>, Projected, Option<String>),
) -> (Arc<Projection>, Tasks, axum::Router) {
    let metrics = Arc::new(Metrics::default());
    if let Some(why) = &rebuilt {
        metrics.store_rebuilds.inc();
        tracing::error!(
            why,
            "the local store could not be used; it is made anew from the log"
        );
    }
    metrics.projected(&projected.state);
    let projection = Arc::new(Projection::new(Arc::clone(&store), &projected, rebuilt));
    let tasks = Tasks::new();
    let fleet = Arc::new(Fleet::new(
        config.patience,
        config.agents_max,
        config.fleet_settle,
    ));
    let writer = Arc::new(Writer::new(
        Arc::clone(&wiring.log),
        Arc::clone(&projection),
        Arc::clone(&metrics),
        tasks.clone(),
        config.writes_max,
        config.write_timeout,
    ));
    let follower = Follower::new(
        Arc::clone(&projection),
        projected,
        Arc::clone(&wiring.log),
        Arc::clone(&metrics),
        Disk {
            data_dir: config.data_dir.clone(),
            lock: store.lock(),
            store: Some(store),
            cache_bytes: config.cache_bytes,
        },
    );
    tasks.start("follow", follower.run(tasks.stopping()));
    let watch = Arc::clone(&fleet).watch(
        Arc::clone(&wiring.board),
        Arc::clone(&metrics),
        tasks.stopping(),
    );
    tasks.start("fleet", watch);
    let app = App::new(Parts {
        projection: Arc::clone(&projection),
        fleet,
        writer,
        board: wiring.board,
        log: wiring.log,
        metrics: Arc::clone(&metrics),
        streams: Arc::new(Semaphore::new(config.streams_max)),
        pieces: http::pieces::Pieces::default(),
        waiting: http::count::Count::default(),
        weight: Arc::new(Semaphore::new(config.answers_kib_max as usize)),
        stop: tasks.stopping(),
        config: config.clone(),
    });
    let routes = http::router(&app);
    let serve = http::server::serve(listener, routes.clone(), config, metrics, tasks.clone());
    tasks.start("http", serve);
    (projection, tasks, routes)
}

/// Makes a data folder forget the log that it knows, so that the next start follows the one that it finds. The local store
/// is set aside; returns where to. The service must not be running.
///
/// # Errors
/// [`OpenError`].
pub fn adopt(data_dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    projection::open::adopt(data_dir)
}

/// The log that a data folder knows; `None` when no service with it has ever met one. Only then may a log be made.
///
/// # Errors
/// [`OpenError`] when the folder does not tell; then nothing may be made or followed.
pub fn met_log(data_dir: &Path) -> Result<Option<LogId>, OpenError> {
    projection::open::met_log(data_dir)
}
