//! From a URL to a log and a board: the one place that knows every adapter.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use schemas::LogId;

use crate::embedded::{EmbeddedLog, OpenError};
use crate::http::HttpLog;
use crate::jetstream::JetStreamLog;
use crate::memory::MemoryBoard;
use crate::options::Options;
use crate::port::{Foreign, ReaderWiring, Wiring};

/// Where a log is.
#[derive(Clone, PartialEq, Eq)]
pub enum LogUrl {
    /// `embedded` or `embedded:DIR`: in a folder of this machine; without one, in [`Options::embedded_dir`].
    Embedded(Option<PathBuf>),
    /// `nats://host:port` or `tls://host:port`, several separated by commas: in JetStream.
    Nats(String),
    /// `http://host:port`: read through a service.
    Http(String),
}

/// A text that is no place of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadLogUrl {
    /// Nothing in it.
    #[error(
        "must be embedded, embedded:DIR, nats://HOST:PORT, tls://HOST:PORT or http://HOST:PORT, not empty"
    )]
    Empty,
    /// A scheme that no adapter has.
    #[error(
        "must be embedded, embedded:DIR, nats://HOST:PORT, tls://HOST:PORT or http://HOST:PORT, not {0:?}"
    )]
    Scheme(String),
    /// A URL without a host, or with spaces.
    #[error("has no host in {0:?}")]
    Host(String),
    /// Several servers with different schemes.
    #[error("names several servers with different schemes; all must be nats:// or all tls://")]
    Mixed,
    /// `embedded:` without a folder.
    #[error("names no folder after \"embedded:\"")]
    Folder,
}

impl FromStr for LogUrl {
    type Err = BadLogUrl;

    fn from_str(text: &str) -> Result<LogUrl, BadLogUrl> {
        let text = text.trim();
        if text.is_empty() {
            return Err(BadLogUrl::Empty);
        }
        if text == "embedded" {
            return Ok(LogUrl::Embedded(None));
        }
        if let Some(dir) = text.strip_prefix("embedded:") {
            return if dir.is_empty() {
                Err(BadLogUrl::Folder)
            } else {
                Ok(LogUrl::Embedded(Some(PathBuf::from(dir))))
            };
        }
        let servers: Vec<&str> = text.split(',').map(str::trim).collect();
        let mut schemes = Vec::new();
        for server in &servers {
            // The whole text in messages: a part of it may be a part of a password.
            let (scheme, rest) = server
                .split_once("://")
                .ok_or_else(|| BadLogUrl::Scheme(redact(text)))?;
            let host = rest.rsplit('@').next().unwrap_or_default();
            if host.is_empty()
                || host.starts_with([':', '/'])
                || server.contains(char::is_whitespace)
            {
                return Err(BadLogUrl::Host(redact(text)));
            }
            schemes.push(scheme);
        }
        schemes.dedup();
        match schemes.as_slice() {
            ["nats" | "tls"] => Ok(LogUrl::Nats(servers.join(","))),
            ["http" | "https"] if servers.len() == 1 => {
                Ok(LogUrl::Http(text.trim_end_matches('/').to_owned()))
            }
            [_] => Err(BadLogUrl::Scheme(redact(text))),
            _ => Err(BadLogUrl::Mixed),
        }
    }
}

/// Without the part that may hold a password. A password may hold a comma, so what follows one is another server only when
/// it begins with a scheme.
pub(crate) fn redact(url: &str) -> String {
    let mut servers: Vec<String> = Vec::new();
    for part in url.split(',') {
        match servers.last_mut() {
            Some(server) if !part.contains("://") => {
                server.push(',');
                server.push_str(part);
            }
            Some(_) | None => servers.push(part.to_owned()),
        }
    }
    let redact_one = |server: &String| match server.rsplit_once('@') {
        Some((before, host)) => match before.split_once("://") {
            Some((scheme, _)) => format!("{scheme}://***@{host}"),
            None => format!("***@{host}"),
        },
        None => server.clone(),
    };
    servers.iter().map(redact_one).collect::<Vec<_>>().join(",")
}

impl fmt::Display for LogUrl {
    /// Without passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogUrl::Embedded(None) => f.write_str("embedded"),
            LogUrl::Embedded(Some(dir)) => write!(f, "embedded:{}", dir.display()),
            LogUrl::Nats(urls) => f.write_str(&redact(urls)),
            LogUrl::Http(url) => f.write_str(&redact(url)),
        }
    }
}

impl fmt::Debug for LogUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogUrl({self})")
    }
}

/// Why there is no log to work with.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The embedded log cannot be opened.
    #[error(transparent)]
    Embedded(#[from] OpenError),
    /// The embedded log is another one than the process has met.
    #[error("{0}")]
    Foreign(Foreign),
    /// A service's log can only be read.
    #[error("a log behind a service ({0}) can be read but not written; use embedded or nats://")]
    ReadOnly(LogUrl),
    /// An embedded log belongs to one process.
    #[error(
        "an embedded log belongs to the service's process; follow it through the service: http://HOST:PORT"
    )]
    OneProcess,
    /// Options that cannot be.
    #[error("{0}")]
    Options(String),
}

/// A log to write and read, with its board. For `nats://` nothing is connected yet; an embedded log is opened here.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(url: &LogUrl, options: Options) -> Result<Wiring, ConnectError> {
    match url {
        LogUrl::Embedded(dir) => {
            let dir = dir.clone().unwrap_or_else(|| options.embedded_dir.clone());
            let log = open_embedded(dir, options).await?;
            Ok(Wiring {
                log: Arc::new(log),
                board: Arc::new(MemoryBoard::default()),
            })
        }
        LogUrl::Nats(urls) => {
            let log = JetStreamLog::new(urls.clone(), options);
            Ok(Wiring {
                board: log.board(),
                log: Arc::new(log),
            })
        }
        LogUrl::Http(_) => Err(ConnectError::ReadOnly(url.clone())),
    }
}

/// A log to read, with the board to report to. Nothing is connected yet.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect_reader(url: &LogUrl, options: Options) -> Result<ReaderWiring, ConnectError> {
    match url {
        LogUrl::Embedded(_) => Err(ConnectError::OneProcess),
        LogUrl::Nats(urls) => {
            let log = JetStreamLog::new(urls.clone(), options);
            Ok(ReaderWiring {
                board: log.board(),
                log: Arc::new(log),
            })
        }
        LogUrl::Http(url) => {
            let log = HttpLog::new(url, options).map_err(ConnectError::Options)?;
            Ok(ReaderWiring {
                board: Arc::new(log.clone()),
                log: Arc::new(log),
            })
        }
    }
}

async fn open_embedded(dir: PathBuf, options: Options) -> Result<EmbeddedLog, ConnectError> {
    let identity = options.identity;
    let create = identity
        .may_create()
        .then(|| LogId(crate::ambient::new_id()));
    let known = identity.known();
    let opened = tokio::task::spawn_blocking(move || EmbeddedLog::open(&dir, create))
        .await
        .map_err(|why| ConnectError::Options(why.to_string()))?;
    let log = match (opened, known) {
        (Err(OpenError::Missing(_)), Some(known)) => {
            return Err(ConnectError::Foreign(Foreign::Gone { known }));
        }
        (opened, _) => opened?,
    };
    identity.meet(log.log_id()).map_err(ConnectError::Foreign)?;
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_logs_are_read_and_shown() {
        for (text, shown) in [
            ("embedded", "embedded"),
            ("embedded:/var/lib/x y", "embedded:/var/lib/x y"),
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://a:1, nats://b:2", "nats://a:1,nats://b:2"),
            ("tls://u:secret@host:4222", "tls://***@host:4222"),
            ("http://service:8090/", "http://service:8090"),
        ] {
            let url: LogUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("secret"));
        }
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_reason() {
        for (text, expected) in [
            ("", BadLogUrl::Empty),
            ("embedded:", BadLogUrl::Folder),
            ("redis://x", BadLogUrl::Scheme("redis://x".to_owned())),
            (
                "127.0.0.1:4222",
                BadLogUrl::Scheme("127.0.0.1:4222".to_owned()),
            ),
            ("nats://", BadLogUrl::Host("nats://".to_owned())),
            ("nats://:4222", BadLogUrl::Host("nats://:4222".to_owned())),
            ("nats://a,tls://b", BadLogUrl::Mixed),
            (
                "nats://u:pass,word@host",
                BadLogUrl::Scheme("nats://***@host".to_owned()),
            ),
            ("u:password@host", BadLogUrl::Scheme("***@host".to_owned())),
            (
                "http://a,http://b",
                BadLogUrl::Scheme("http://a,http://b".to_owned()),
            ),
        ] {
            assert_eq!(text.parse::<LogUrl>(), Err(expected), "{text:?}");
        }
    }
}
