//! Installing Dynamo: a Python environment per version under the tools folder, made once.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::{tools, workspace};

/// The version with `/router_policy`.
pub const V1_7: &str = "1.7.0.dev20261026";
/// The version that has only `/busy_threshold`.
pub const V1_6: &str = "1.6.1";

/// What CPU frontends and mockers import. The wheels themselves are installed without their dependencies: nightlies pin
/// versions (of GPU engines among others) that a registry may lack.
const IMPORTS: [&str; 6] = [
    "uvloop>=0.21",
    "packaging",
    "typing-extensions>=4.10",
    "pyyaml",
    "msgspec>=0.19",
    "pydantic>=2.10.6,<=2.13.5",
];

/// One installed version.
#[derive(Debug, Clone)]
pub struct Dynamo {
    /// Its interpreter.
    pub python: PathBuf,
    /// The tiny model.
    pub model: PathBuf,
}

impl Dynamo {
    /// Finds this version, or installs it (about half a minute, 320 MB).
    ///
    /// # Panics
    /// When it cannot be installed.
    #[must_use]
    pub fn installed(version: &str) -> Dynamo {
        let root = tools().join("dynamo");
        std::fs::create_dir_all(&root).expect("folder");
        // SUBTLE: several test processes may start at once; the first one installs.
        let lock = File::create(root.join("lock")).expect("lock file");
        lock.lock().expect("lock");
        let venv = root.join(format!("venv-{version}"));
        let python = venv.join("bin/python");
        if !imports(&python) {
            // A half-made environment is worse than none.
            let _ = std::fs::remove_dir_all(&venv);
            run("python3", &["-m".as_ref(), "venv".as_ref(), venv.as_ref()]);
            let packages = [
                format!("ai-dynamo=={version}"),
                format!("ai-dynamo-runtime=={version}"),
            ];
            pip(&python, &["--no-deps", &packages[0], &packages[1]]);
            pip(&python, &IMPORTS);
            assert!(imports(&python), "Dynamo {version} does not import");
        }
        let model = root.join("model");
        if !model.join("tokenizer_config.json").exists() {
            let script = workspace().join("tests/dynamo/make_model.py");
            run(&python, &[script.as_ref(), model.as_ref()]);
        }
        Dynamo { python, model }
    }
}

fn imports(python: &Path) -> bool {
    Command::new(python)
        .args(["-c", "import dynamo.frontend, dynamo.mocker"])
        .output()
        .is_ok_and(|done| done.status.success())
}

fn pip(python: &Path, packages: &[&str]) {
    let mut all: Vec<&std::ffi::OsStr> = ["-m", "pip", "install", "-q"].map(AsRef::as_ref).into();
    all.extend(
        packages
            .iter()
            .map(|package| -> &std::ffi::OsStr { package.as_ref() }),
    );
    run(python, &all);
}

fn run(program: impl AsRef<Path>, arguments: &[&std::ffi::OsStr]) {
    let program = program.as_ref();
    let done = Command::new(program).args(arguments).output();
    // Output is for failures only: pip complains at length about the dependencies that were left out on purpose.
    assert!(
        done.as_ref().is_ok_and(|done| done.status.success()),
        "{} {arguments:?} failed: {done:?}",
        program.display()
    );
}
