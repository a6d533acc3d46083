//! Configuration of a service.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemas::convergence::Patience;

/// How a service runs. [`Config::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen. Anything but loopback is refused unless [`Config::insecure`]. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Folder of the local store; created when absent. One service per folder.
    pub data_dir: PathBuf,
    /// Said out loud: serve without tokens and TLS to whoever reaches the address.
    pub insecure: bool,
    /// Turn the façade off (`/router_policy`, `/router_policy/busy_threshold`, `/busy_threshold` answer 404), as
    /// `DYN_DISABLE_FRONTEND_ADMIN_API` does on a frontend.
    pub facade_disabled: bool,
    /// A write that is not decided by then is answered 503.
    pub write_timeout: Duration,
    /// Writes in progress at once; more are answered 503.
    pub writes_max: usize,
    /// When a silent agent is stale, and when it has left the fleet.
    pub patience: Patience,
    /// A service that has watched agents for less than this does not say yet that no router matches.
    pub fleet_settle: Duration,
    /// Agents remembered at once; reports of more are refused.
    pub agents_max: usize,
    /// Event and convergence streams at once; more are answered 503.
    pub streams_max: usize,
    /// Connections at once; more wait to be accepted. Fewer when the process may not open as many files.
    pub connections_max: usize,
    /// Memory for large answers that clients have not taken yet, in KiB; more are answered 503, and streams wait.
    pub answers_kib_max: u32,
    /// A client that takes nothing of what is sent to it for this long is cut off.
    pub stall_timeout: Duration,
    /// An empty line or comment at least this often on streams.
    pub heartbeat_interval: Duration,
    /// Requests other than streams are answered by then; must be longer than the longest `timeout_ms` (60 s).
    pub request_timeout: Duration,
    /// A client must have sent its request's head by then.
    pub header_read_timeout: Duration,
    /// A client must have sent its request's body by then, counted from its head.
    pub body_read_timeout: Duration,
    /// How long open requests may take when the service stops.
    pub stop_patience: Duration,
    /// Memory that the local store may use for its cache, in bytes.
    pub cache_bytes: u64,
}

impl Config {
    /// With default limits.
    #[must_use]
    pub fn new(listen: SocketAddr, data_dir: impl Into<PathBuf>) -> Config {
        Config {
            listen,
            data_dir: data_dir.into(),
            insecure: false,
            facade_disabled: false,
            write_timeout: Duration::from_secs(10),
            writes_max: 256,
            patience: Patience {
                stale_after_ms: 15_000,
                gone_after_ms: 60_000,
            },
            fleet_settle: Duration::from_secs(10),
            agents_max: 10_000,
            // Below `connections_max`: requests must find a connection when all streams are open.
            streams_max: 12_288,
            connections_max: 16_384,
            answers_kib_max: 256 << 10,
            stall_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(5),
            request_timeout: Duration::from_secs(75),
            header_read_timeout: Duration::from_secs(10),
            // The largest body (1 MiB) at 50 KB/s.
            body_read_timeout: Duration::from_secs(20),
            stop_patience: Duration::from_secs(10),
            cache_bytes: 64 << 20,
        }
    }
}
