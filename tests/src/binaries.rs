//! Our own binaries as cargo built them, and the folder for tools that are fetched once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Set by whoever has just built all binaries, so that each test process need not ask cargo again.
pub const BUILT: &str = "ROUTER_POLICY_BINARIES_BUILT";

/// The workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// Cargo's target folder: the one that this very program was built into.
///
/// # Panics
/// When this program was moved out of it.
#[must_use]
pub fn target() -> PathBuf {
    let me = std::env::current_exe().expect("own path");
    // TARGET/PROFILE/bin or TARGET/PROFILE/deps/test
    let profile = profile_folder(&me);
    profile
        .parent()
        .expect("target folder above the profile")
        .to_path_buf()
}

/// Where downloaded tools live. `ROUTER_POLICY_TOOLS` moves it, for example into a cache that outlives checkouts.
#[must_use]
pub fn tools() -> PathBuf {
    std::env::var_os("ROUTER_POLICY_TOOLS").map_or_else(target, PathBuf::from)
}

/// One of our binaries, built if need be.
///
/// # Panics
/// When it does not build.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    static ONCE: OnceLock<()> = OnceLock::new();
    let me = std::env::current_exe().expect("own path");
    let profile = profile_folder(&me);
    ONCE.get_or_init(|| {
        if std::env::var_os(BUILT).is_some() {
            return;
        }
        let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
        cargo
            .args(["build", "--quiet", "--workspace", "--all-targets"])
            .arg("--target-dir")
            .arg(target())
            .current_dir(workspace());
        if profile.file_name().is_some_and(|name| name == "release") {
            cargo.arg("--release");
        }
        let status = cargo.status().expect("cargo runs");
        assert!(status.success(), "own binaries do not build");
    });
    profile.join(name)
}

fn profile_folder(exe: &Path) -> PathBuf {
    let folder = exe.parent().expect("folder of an executable");
    if folder.file_name().is_some_and(|name| name == "deps") {
        folder.parent().unwrap_or(folder).to_path_buf()
    } else {
        folder.to_path_buf()
    }
}
