//! A configuration of nats-server under which each process may do its part and nothing else, with the keys for it.
//!
//! Owns: what a service, an agent and an operator need at the broker ([`grant`]), and how that is written down.
//! Never does: talk to a broker.
//!
//! Each process signs in with an nkey (ed25519; the server knows only public keys) and gets answers on an inbox of its own,
//! `_INBOX.<public key>`, so that nobody hears what another one asked for. A connection with a key does that by itself.
//!
//! Bounds of what permissions can say: whoever may follow the log may make consumers of the stream, any number up to the
//! stream's limit, and chooses where they deliver to. Such a delivery can put copies of records on a subject of the account
//! (never into the log itself: the broker refuses a cycle), so readers of status must not, and do not, trust its shape.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use migrations::stream::SUBJECT_ROOT;
use nkeys::{KeyPair, KeyPairType};
use schemas::AgentId;

/// Who signs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A service: appends and reads records, hears every agent, and passes on the reports of agents without NATS.
    Service,
    /// An agent: reads records, writes its own report.
    Agent(AgentId),
    /// A person who looks after the stream: everything in the account.
    Operator,
}

impl Part {
    /// The key's file name, without `.nk`.
    #[must_use]
    pub fn file_name(&self) -> String {
        match self {
            Part::Service => "service".to_owned(),
            Part::Agent(agent) => format!("agent-{}", agent.0.to_token()),
            Part::Operator => "operator".to_owned(),
        }
    }
}

/// Names that permissions mention.
#[derive(Debug, Clone)]
pub struct Names {
    /// The stream.
    pub stream: String,
    /// The bucket of status reports.
    pub status_bucket: String,
}

impl Default for Names {
    fn default() -> Names {
        let options = crate::Options::default();
        Names {
            stream: options.stream,
            status_bucket: options.status_bucket,
        }
    }
}

/// Subjects that a part may publish to and subscribe to. Nothing else is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// May publish.
    pub publish: Vec<String>,
    /// May subscribe.
    pub subscribe: Vec<String>,
}

/// Where a connection with this public key gets its answers.
#[must_use]
pub fn inbox(public_key: &str) -> String {
    format!("_INBOX.{public_key}")
}

/// What a part needs.
#[must_use]
pub fn grant(part: &Part, names: &Names, public_key: &str) -> Grant {
    let stream = &names.stream;
    let bucket = &names.status_bucket;
    let read = [
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.STREAM.MSG.GET.{stream}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}"),
        format!("$JS.FC.{stream}.>"),
        // The bucket is known by its stream before a report is written.
        format!("$JS.API.STREAM.INFO.KV_{bucket}"),
    ];
    let publish = match part {
        Part::Service => {
            let own = [
                format!("{SUBJECT_ROOT}.>"),
                // Only makes what is not there: an existing stream is never changed by it.
                format!("$JS.API.STREAM.CREATE.{stream}"),
                "$JS.API.INFO".to_owned(),
                format!("$JS.API.STREAM.CREATE.KV_{bucket}"),
                format!("$JS.API.CONSUMER.CREATE.KV_{bucket}"),
                format!("$JS.API.CONSUMER.CREATE.KV_{bucket}.>"),
                format!("$JS.API.CONSUMER.INFO.KV_{bucket}.>"),
                format!("$JS.API.CONSUMER.DELETE.KV_{bucket}.>"),
                format!("$JS.FC.KV_{bucket}.>"),
                format!("$KV.{bucket}.>"),
            ];
            read.into_iter().chain(own).collect()
        }
        Part::Agent(agent) => {
            let own = format!("$KV.{bucket}.{}", agent.0.to_token());
            read.into_iter().chain([own]).collect()
        }
        Part::Operator => vec![">".to_owned()],
    };
    let subscribe = match part {
        Part::Operator => vec![">".to_owned()],
        Part::Service | Part::Agent(_) => vec![format!("{}.>", inbox(public_key))],
    };
    Grant { publish, subscribe }
}

/// What the server is told beside permissions.
#[derive(Debug, Clone)]
pub struct Server {
    /// `HOST:PORT`.
    pub listen: String,
    /// Where the broker keeps the stream.
    pub store: PathBuf,
    /// Certificate and key, PEM; without them the connection is in the clear.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// A part, and the public key that it signs in with.
#[derive(Debug, Clone)]
pub struct Login {
    /// Who.
    pub part: Part,
    /// `U…`.
    pub public_key: String,
}

/// The configuration, as nats-server reads it.
#[must_use]
pub fn render(server: &Server, names: &Names, logins: &[Login]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = render_into(&mut text, server, names, logins);
    text
}

fn render_into(
    text: &mut String,
    server: &Server,
    names: &Names,
    logins: &[Login],
) -> std::fmt::Result {
    writeln!(
        text,
        "# Made by `router-policy nats-config`; run it again to add an agent. Check it: nats-server -t -c FILE"
    )?;
    writeln!(text, "listen: {}", quoted(&server.listen))?;
    writeln!(text, "jetstream {{")?;
    writeln!(
        text,
        "  store_dir: {}",
        quoted(&server.store.display().to_string())
    )?;
    writeln!(
        text,
        "  # Without it a power cut takes the whole stream away, acknowledged records included."
    )?;
    writeln!(text, "  sync_interval: always\n}}")?;
    if let Some((certificate, key)) = &server.tls {
        writeln!(text, "tls {{")?;
        let path = |path: &Path| quoted(&path.display().to_string());
        writeln!(text, "  cert_file: {}", path(certificate))?;
        writeln!(text, "  key_file: {}\n}}", path(key))?;
    }
    accounts_into(text, names, logins)
}

/// The part of it that says who may do what, for a configuration of your own.
#[must_use]
pub fn accounts(names: &Names, logins: &[Login]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = accounts_into(&mut text, names, logins);
    text
}

fn accounts_into(text: &mut String, names: &Names, logins: &[Login]) -> std::fmt::Result {
    writeln!(text, "accounts {{\n  ROUTER_POLICY {{")?;
    writeln!(text, "    jetstream: enabled\n    users: [")?;
    for login in logins {
        let grant = grant(&login.part, names, &login.public_key);
        writeln!(text, "      # {}", login.part.file_name())?;
        writeln!(text, "      {{ nkey: {}, permissions: {{", login.public_key)?;
        for (what, subjects) in [("publish", &grant.publish), ("subscribe", &grant.subscribe)] {
            let subjects: Vec<String> = subjects.iter().map(|subject| quoted(subject)).collect();
            writeln!(
                text,
                "          {what}: {{ allow: [{}] }}",
                subjects.join(", ")
            )?;
        }
        writeln!(text, "      }} }}")?;
    }
    writeln!(text, "    ]\n  }}\n}}")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file.
    #[error("the key {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is in it.
    #[error("{path} holds no user's nkey (a line that starts with SU)")]
    Content {
        /// Which.
        path: PathBuf,
    },
    /// Others may read it.
    #[error("{path} may be read by others; chmod 600 it")]
    Exposed {
        /// Which.
        path: PathBuf,
    },
    /// No randomness.
    #[error("no key could be made: {0}")]
    Make(String),
}

/// A user's key, from a file with its seed.
#[derive(Debug, Clone)]
pub struct UserKey {
    /// The secret part. Never shown.
    pub(crate) seed: Seed,
    /// `U…`.
    pub public_key: String,
}

/// A secret that does not show itself.
#[derive(Clone)]
pub(crate) struct Seed(pub(crate) String);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl UserKey {
    /// Reads one. The file is one seed, with comment lines (`#` or `-----`) around it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read(path: &Path) -> Result<UserKey, KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let text = fs::read_to_string(path).map_err(failed)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(KeyError::Exposed {
                    path: path.to_owned(),
                });
            }
        }
        let content = || KeyError::Content {
            path: path.to_owned(),
        };
        let seed = (text.lines().map(str::trim))
            .find(|line| line.starts_with("SU"))
            .ok_or_else(content)?;
        let pair = KeyPair::from_seed(seed).map_err(|_| content())?;
        Ok(UserKey {
            seed: Seed(seed.to_owned()),
            public_key: pair.public_key(),
        })
    }

    /// Reads it, or makes it where there is none.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn read_or_make(path: &Path) -> Result<UserKey, KeyError> {
        let failed = |source| KeyError::File {
            path: path.to_owned(),
            source,
        };
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        match options.open(path) {
            Ok(mut file) => {
                let pair = KeyPair::new(KeyPairType::User);
                let seed = pair.seed().map_err(|why| KeyError::Make(why.to_string()))?;
                file.write_all(format!("{seed}\n").as_bytes())
                    .and_then(|()| file.sync_all())
                    .map_err(failed)?;
                Ok(UserKey {
                    seed: Seed(seed),
                    public_key: pair.public_key(),
                })
            }
            Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => UserKey::read(path),
            Err(why) => Err(failed(why)),
        }
    }
}
