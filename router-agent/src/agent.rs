//! One agent in this process: opens its state folder, starts its tasks, stops them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_log::ambient::{self, Tasks};
use event_log::{Identity, LogReader, ReaderWiring};
use schemas::status::{AgentStatus, Capability, FrontendStatus};
use schemas::{AgentId, FrontendId, Name};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dynamo_http::{BadAddress, DynamoHttp, Timeouts};
use crate::health;
use crate::local_copy::LocalCopy;
use crate::reconcile::shell::{Rivals, Shell};
use crate::reconcile::standing::Standing;
use crate::reconcile::{Mode, Settings};
use crate::remembered::Remembered;
use crate::replica::{Followed, Replica};
use crate::report::{Reporter, RivalWatch};
use crate::store::{self, StoreError};
use crate::target::PolicyTarget;

/// Default of [`Config::poll_interval`].
pub const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Default of [`Config::report_interval`].
pub const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// How long [`Running::stop`] waits for tasks.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// What an agent is set to.
#[derive(Clone)]
pub struct Config {
    /// Its name; `None` = the one kept in the state folder, made at the first start.
    pub agent: Option<AgentId>,
    /// Label of its frontends.
    pub group: Option<Name>,
    /// Put the policy in place, or only say where it is not.
    pub mode: Mode,
    /// Folder of its own, made when it is not there.
    pub state_dir: PathBuf,
    /// How often each frontend is listed.
    pub poll_interval: Duration,
    /// How often it reports at least.
    pub report_interval: Duration,
    /// Frontends; each id once.
    pub frontends: Vec<Frontend>,
    /// Address of `/livez` and `/readyz`; `None` = none.
    pub health: Option<SocketAddr>,
    /// What the log's adapter knows of the log's identity (`Options::identity`, a clone): told which log the local copy
    /// is of, so that a log that is gone is told apart from one that was never made.
    pub identity: Identity,
}

impl Config {
    /// Defaults for these frontends.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>, frontends: Vec<Frontend>) -> Config {
        Config {
            agent: None,
            group: None,
            mode: Mode::Enforce,
            state_dir: state_dir.into(),
            poll_interval: POLL_INTERVAL,
            report_interval: REPORT_INTERVAL,
            frontends,
            health: None,
            identity: Identity::unknown(),
        }
    }
}

/// One frontend to look after.
#[derive(Clone)]
pub struct Frontend {
    /// Its name in reports.
    pub id: FrontendId,
    /// How to reach it.
    pub target: Arc<dyn PolicyTarget>,
}

impl Frontend {
    /// A Dynamo frontend at a base URL, which is also its name.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn dynamo(url: &str, timeouts: Timeouts) -> Result<Frontend, BadAddress> {
        let target = DynamoHttp::new(url, timeouts)?;
        let id =
            FrontendId(Name::new(target.url()).map_err(|_| BadAddress::Malformed(url.to_owned()))?);
        Ok(Frontend {
            id,
            target: Arc::new(target),
        })
    }
}

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another process works on the state folder.
    #[error("the state folder {0} is in use by another agent")]
    InUse(PathBuf),
    /// The state folder.
    #[error("the state folder: {path}")]
    Folder {
        /// What of it.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A store in the state folder.
    #[error("a store in the state folder")]
    Store(#[from] StoreError),
    /// The same frontend twice.
    #[error("frontend {0} is given twice")]
    FrontendTwice(FrontendId),
    /// The health listener.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A background thread failed.
    #[error("opening the stores failed")]
    Opening,
}

/// A running agent. Dropping it stops it without waiting, and without a word to the fleet.
pub struct Running {
    agent: AgentId,
    status: watch::Receiver<AgentStatus>,
    health: Option<SocketAddr>,
    leaving: CancellationToken,
    tasks: Tasks,
    _lock: File,
}

impl Running {
    /// Its name.
    #[must_use]
    pub fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// Its latest report, as it changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<AgentStatus> {
        self.status.clone()
    }

    /// Where `/livez` and `/readyz` are.
    #[must_use]
    pub fn health(&self) -> Option<SocketAddr> {
        self.health
    }

    /// Completes when the agent has ended by itself (a task broke).
    pub async fn ended(&self) {
        self.tasks.stopping().cancelled().await;
    }

    /// Stops it; its last report says that it leaves the fleet. True when every task ended in time.
    pub async fn stop(self) -> bool {
        if !self.tasks.stopping().is_cancelled() {
            self.leaving.cancel();
        }
        self.tasks.stop(STOP_PATIENCE).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.stopping().cancel();
    }
}

/// Starts an agent. Needs neither the log nor any frontend to be there; with a local copy it enforces that at once.
///
/// # Errors
/// [`AgentError`].
pub async fn start(config: Config, wiring: ReaderWiring) -> Result<Running, AgentError> {
    let mut ids = BTreeSet::new();
    if let Some(twice) = (config.frontends.iter()).find(|frontend| !ids.insert(&frontend.id)) {
        return Err(AgentError::FrontendTwice(twice.id.clone()));
    }
    let listener = match config.health {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let (folder, given) = (config.state_dir.clone(), config.agent.clone());
    let opened = tokio::task::spawn_blocking(move || open(&folder, given)).await;
    let opened = opened.map_err(|_| AgentError::Opening)??;
    let agent = opened.agent.clone();
    if let Some(kept) = &opened.kept {
        config.identity.expect(kept.cursor.log_id);
    }
    let tasks = Tasks::new();
    let stop = tasks.stopping();
    let started = Instant::now();
    let changed = Arc::new(Notify::new());
    let (followed, follows) = watch::channel(Followed::at_start(opened.kept.as_ref()));
    let (rivals, rivalry) = watch::channel(Rivals::new());
    let mut frontends = Vec::new();
    for frontend in config.frontends {
        let (status, statuses) = watch::channel(unmet(frontend.id.clone()));
        frontends.push(statuses);
        let shell = Shell {
            settings: Settings {
                agent: agent.clone(),
                frontend: frontend.id,
                group: config.group.clone(),
                mode: config.mode,
                poll_interval: config.poll_interval,
            },
            target: frontend.target,
            remembered: opened.remembered.clone(),
            followed: follows.clone(),
            rivals: rivalry.clone(),
            status,
            changed: changed.clone(),
            started,
        };
        tasks.start("frontend", shell.run(stop.clone()));
    }
    let log: Arc<dyn LogReader> = wiring.log;
    let replica = Replica::new(log, opened.copy, opened.kept, followed);
    tasks.start("replica", replica.run(stop.clone()));
    let leaving = CancellationToken::new();
    let reporter = Reporter {
        agent: agent.clone(),
        group: config.group,
        started_at: opened.started_at,
        interval: config.report_interval,
        followed: follows,
        frontends,
        started,
        changed,
        board: wiring.board.clone(),
        leaving: leaving.clone(),
    };
    let (latest, status) = watch::channel(reporter.build(0, ambient::now()));
    tasks.start("report", reporter.run(latest, stop.clone()));
    let watching = RivalWatch::new(agent.clone());
    let watched = watching.run(wiring.board, status.clone(), rivals, stop.clone());
    tasks.start("rivals", watched);
    let health = match listener {
        Some((listener, address)) => {
            tasks.start("health", health::serve(listener, status.clone(), stop));
            Some(address)
        }
        None => None,
    };
    Ok(Running {
        agent,
        status,
        health,
        leaving,
        tasks,
        _lock: opened.lock,
    })
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), AgentError> {
    let failed = |source| AgentError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

struct Opened {
    lock: File,
    agent: AgentId,
    started_at: schemas::Timestamp,
    remembered: Remembered,
    copy: LocalCopy,
    kept: Option<crate::local_copy::Kept>,
}

fn open(folder: &Path, given: Option<AgentId>) -> Result<Opened, AgentError> {
    let lock = lock(folder)?;
    let agent = match given {
        Some(agent) => agent,
        None => kept_id(folder)?,
    };
    let now = ambient::now();
    let remembered = Remembered::open(&folder.join("memory"), now)?;
    let started_at = remembered.started(now)?;
    let (copy, kept) = LocalCopy::open(&folder.join("replica"), now)?;
    Ok(Opened {
        lock,
        agent,
        started_at,
        remembered,
        copy,
        kept,
    })
}

/// One process per state folder; the lock goes with the process, however it ends.
fn lock(folder: &Path) -> Result<File, AgentError> {
    let path = folder.join("lock");
    let failed = |source| AgentError::Folder {
        path: path.clone(),
        source,
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(AgentError::InUse(folder.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// The name in `agent-id`, made and kept at the first start.
fn kept_id(folder: &Path) -> Result<AgentId, AgentError> {
    let path = folder.join("agent-id");
    let failed = |source| AgentError::Folder {
        path: path.clone(),
        source,
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            if let Ok(agent) = text.trim().parse() {
                return Ok(agent);
            }
            tracing::warn!(path = %path.display(), "holds no agent id; a new one is made");
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(failed(source)),
    }
    let text = format!("agent-{}", ambient::new_id());
    let written = folder.join("agent-id.new");
    let mut file = File::create(&written).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    event_log::crash::point("agent.named");
    std::fs::rename(&written, &path).map_err(failed)?;
    // Invariant: letters, digits and hyphens are a name.
    text.parse().map_err(|_| AgentError::Opening)
}

/// Takes a log that was made anew, or put back, for the right one: sets the local copy aside, so that the next start
/// begins from whatever log is there. Startup values of thresholds and the agent's name are kept. Returns where the copy
/// is now; `None` when there was none.
///
/// # Errors
/// [`AgentError::InUse`] while the agent runs.
pub fn adopt(state_dir: &Path) -> Result<Option<PathBuf>, AgentError> {
    let _lock = lock(state_dir)?;
    let now = ambient::now();
    Remembered::open(&state_dir.join("memory"), now)?.forget_refusals()?;
    Ok(store::set_aside(
        &state_dir.join("replica"),
        "adopted",
        now,
    )?)
}

fn unmet(frontend: FrontendId) -> Standing {
    let status = FrontendStatus {
        frontend,
        capability: Capability::Unknown,
        reachable: false,
        error: Some("not listed yet".to_owned()),
        listed_at: None,
        rival: None,
        routers: Vec::new(),
        thresholds: Vec::new(),
    };
    Standing {
        status,
        listed: None,
    }
}
