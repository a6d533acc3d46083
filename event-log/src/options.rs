//! How an adapter is told what to do.

use std::path::PathBuf;
use std::time::Duration;

use crate::identity::Identity;

/// Options of [`crate::connect`]. Each has a default that suits production.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which log is expected, and whether a missing one may be made. Keep a clone to change it later.
    pub identity: Identity,
    /// Folder of the embedded log when the URL names none.
    pub embedded_dir: PathBuf,
    /// Name of the JetStream stream.
    pub stream: String,
    /// Name of the KV bucket of status reports.
    pub status_bucket: String,
    /// Copies of a stream that is made: 1, 3 or 5.
    pub replicas: usize,
    /// NATS credentials file (operator mode: a JWT and its key).
    pub credentials: Option<PathBuf>,
    /// File with a user's nkey, as `router-policy nats-config` makes it.
    pub nkey: Option<PathBuf>,
    /// Certificate authorities for `tls://`, as a PEM file, in addition to the system's.
    pub root_certificates: Option<PathBuf>,
    /// Bearer token for `http://`.
    pub token: Option<String>,
    /// Name under which the connection shows at the broker.
    pub client_name: String,
    /// The longest that one call waits for the log before it fails.
    pub call_timeout: Duration,
    /// How often a follower compares its cursor with the head of the log.
    pub watchdog_interval: Duration,
    /// How long a follower tries to reach the log before it ends with an error.
    pub away_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            identity: Identity::unknown(),
            embedded_dir: PathBuf::from("router-policy-data/log"),
            stream: migrations::stream::STREAM_DEFAULT.to_owned(),
            status_bucket: "ROUTER_POLICY_STATUS".to_owned(),
            replicas: 1,
            credentials: None,
            nkey: None,
            root_certificates: None,
            token: None,
            client_name: "router-policy".to_owned(),
            call_timeout: Duration::from_secs(2),
            watchdog_interval: Duration::from_secs(5),
            away_max: Duration::from_secs(30),
        }
    }
}
