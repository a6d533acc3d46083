//! Processes that a test owns: output in a file, killed when the test lets go.
//!
//! Invariant: children stay in the test's process group, so a test runner that kills the group leaves nothing behind.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::wait::wait_until;

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output appended to `FOLDER/NAME.log`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> Process {
        std::fs::create_dir_all(folder).expect("log folder");
        let log = folder.join(format!("{name}.log"));
        let open = || {
            File::options()
                .create(true)
                .append(true)
                .open(&log)
                .expect("log file")
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error} ({command:?})"));
        Process {
            name: name.to_owned(),
            child,
            log,
        }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// True until it has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Everything that it has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The last lines that it has said, for failure messages.
    #[must_use]
    pub fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits until it has ended.
    ///
    /// # Panics
    /// When it has not ended within 20 seconds.
    pub async fn terminate(&mut self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "kill -TERM {pid}"
        );
        let what = format!("{} ends after SIGTERM", self.name);
        wait_until(&what, Duration::from_secs(20), async || {
            if self.is_running() {
                Err(self.last_words())
            } else {
                Ok(())
            }
        })
        .await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A loopback port that was free a moment ago and that this process has not handed out before.
///
/// # Panics
/// When the system has none left.
#[must_use]
pub fn free_port() -> u16 {
    static HANDED_OUT: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut handed_out = HANDED_OUT.lock().expect("no panic while held");
    loop {
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        if !handed_out.contains(&port) {
            handed_out.push(port);
            return port;
        }
    }
}
