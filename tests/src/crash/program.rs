//! Our programs as processes that are killed again and again and keep folder and port.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use event_log::crash::CRASH_AT;

use crate::binaries::binary;
use crate::http::Http;
use crate::process::{Process, free_port};
use crate::wait::reached;

/// One of our programs. It is down until it is started.
#[derive(Debug)]
pub struct Program {
    name: String,
    binary: &'static str,
    arguments: Vec<OsString>,
    logs: PathBuf,
    /// Where it keeps its state.
    pub folder: PathBuf,
    /// Where it answers `GET /readyz` (or, a frontend, `/health`).
    pub http: Http,
    ready: &'static str,
    process: Option<Process>,
}

/// How long a program may take to be ready. Generous: two cores, debug builds.
pub const READY_MAX: Duration = Duration::from_secs(60);

impl Program {
    fn new(
        name: &str,
        stage: &Path,
        binary: &'static str,
        ready: &'static str,
        arguments: impl FnOnce(&str, &Path) -> Vec<OsString>,
    ) -> Program {
        let address = format!("127.0.0.1:{}", free_port());
        let folder = stage.join(name);
        Program {
            name: name.to_owned(),
            binary,
            arguments: arguments(&address, &folder),
            logs: stage.to_owned(),
            folder,
            http: Http::new(format!("http://{address}"), Duration::from_secs(5)),
            ready,
            process: None,
        }
    }

    /// A service on this log.
    #[must_use]
    pub fn service(name: &str, stage: &Path, log: &str) -> Program {
        Program::new(
            name,
            stage,
            "router-policy",
            "/readyz",
            |address, folder| {
                let words = ["serve", "--listen", address, "--log", log, "--data"];
                let mut words = words.map(OsString::from).to_vec();
                words.push(folder.into());
                words
            },
        )
    }

    /// An agent for these frontends, which is asked for its health.
    #[must_use]
    pub fn agent(name: &str, stage: &Path, log: &str, frontends: &[String]) -> Program {
        Program::new(name, stage, "router-agent", "/readyz", |address, folder| {
            let words = ["run", "--log", log, "--health", address];
            let mut words = words.map(OsString::from).to_vec();
            words.extend(
                ["--poll-interval", "100ms", "--report-interval", "1s"].map(OsString::from),
            );
            for frontend in frontends {
                words.extend(["--frontend", frontend].map(OsString::from));
            }
            words.extend([OsString::from("--state"), folder.into()]);
            words
        })
    }

    /// A frontend of one model with two simulated workers.
    #[must_use]
    pub fn frontend(name: &str, stage: &Path, model: &str) -> Program {
        Program::new(name, stage, "router-agent", "/health", |address, _| {
            [
                "frontend",
                "--listen",
                address,
                "--model",
                model,
                "--workers",
                "2",
            ]
            .map(OsString::from)
            .to_vec()
        })
    }

    /// Its address as others are told it.
    #[must_use]
    pub fn url(&self) -> String {
        self.http.base().to_owned()
    }

    /// One more argument.
    pub fn argument(&mut self, word: &str) {
        self.arguments.push(word.into());
    }

    /// Starts it, without waiting for anything; armed with a crash point it ends there by itself.
    pub fn start(&mut self, crash_at: Option<&str>) {
        let mut command = Command::new(binary(self.binary));
        command.args(&self.arguments);
        if let Some(at) = crash_at {
            command.env(CRASH_AT, at);
        }
        self.process = Some(Process::start(&self.name, &self.logs, &mut command));
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// [`NotReady`].
    pub async fn ready(&mut self) -> Result<(), NotReady> {
        let what = format!("{} is ready", self.name);
        let (http, path) = (self.http.clone(), self.ready);
        let Some(process) = self.process.as_mut() else {
            return Err(NotReady::Ended("it was not started".to_owned()));
        };
        let mut ended = false;
        let waited = reached(&what, READY_MAX, async || {
            if !process.is_running() {
                ended = true;
                return Ok(());
            }
            match http.get(path).await? {
                answer if answer.status == 200 => Ok(()),
                other => Err(other.text),
            }
        })
        .await;
        match waited {
            Ok(()) if ended => Err(NotReady::Ended(self.last_words())),
            Ok(()) => Ok(()),
            Err(seen) => Err(NotReady::InTime(format!("{seen}\n{}", self.last_words()))),
        }
    }

    /// Starts it and waits until it is ready, again without arms if it ended at its crash point. Returns how long that
    /// took from the last start, and how often it ended.
    ///
    /// # Errors
    /// Why it does not come up.
    pub async fn up(&mut self, crash_at: Option<&str>) -> Result<(Duration, u64), String> {
        let mut armed = crash_at;
        let mut crashes = 0;
        loop {
            let begun = Instant::now();
            self.start(armed);
            match self.ready().await {
                Ok(()) => return Ok((begun.elapsed(), crashes)),
                Err(NotReady::Ended(_)) if armed.take().is_some() => crashes += 1,
                Err(NotReady::Ended(words) | NotReady::InTime(words)) => {
                    return Err(format!("{} does not come up: {words}", self.name));
                }
            }
        }
    }

    /// True while it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// SIGKILL. Its state stays.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// SIGTERM, and waits.
    pub async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate().await;
        }
    }

    /// The end of what it has said.
    #[must_use]
    pub fn last_words(&self) -> String {
        self.process
            .as_ref()
            .map(Process::last_words)
            .unwrap_or_default()
    }

    /// Everything that all its processes have said.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.logs.join(format!("{}.log", self.name))).unwrap_or_default()
    }
}

/// Why a program is not ready.
#[derive(Debug)]
pub enum NotReady {
    /// It ended; its last words.
    Ended(String),
    /// It runs, but was not ready in time.
    InTime(String),
}

/// Copies a folder; what vanishes meanwhile is left out.
///
/// # Errors
/// The system's.
pub fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for child in std::fs::read_dir(from)? {
        let child = child?;
        let name = child.file_name();
        let aside = name.to_string_lossy().contains(".set-aside-")
            || name.to_string_lossy().contains(".damaged-");
        let kind = child.file_type()?;
        if kind.is_dir() {
            if !aside {
                copy(&child.path(), &to.join(name))?;
            }
        } else if kind.is_file() {
            std::fs::copy(child.path(), to.join(name))?;
        }
    }
    Ok(())
}
