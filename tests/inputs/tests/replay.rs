//! Every seed, and every input that once broke something, through the functions that fuzzing feeds.

use std::path::{Path, PathBuf};

use inputs::{TARGETS, check, finish};

fn inputs_of(kind: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(kind)
        .join(target);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Vec::new();
    };
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    all.sort();
    all
}

fn replay(target: &str) {
    let seeds = inputs_of("seeds", target);
    assert!(!seeds.is_empty(), "{target} has no seeds");
    for path in seeds.into_iter().chain(inputs_of("regressions", target)) {
        println!("{}", path.display());
        let input = std::fs::read(&path).expect("an input");
        check(target, &input);
        // And cut off anywhere, as a connection might.
        for end in (0..input.len()).step_by(1 + input.len() / 64) {
            check(target, &input[..end]);
        }
    }
    finish();
}

macro_rules! replayed {
    ($($target:ident)+) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })+

        #[test]
        fn every_target_is_replayed_and_every_folder_is_a_target() {
            let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($target)),+]);
            names.sort_unstable();
            for kind in ["seeds", "regressions"] {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind);
                for entry in std::fs::read_dir(folder).expect("a folder") {
                    let name = entry.expect("a folder").file_name().into_string().expect("UTF-8");
                    assert!(names.contains(&name.as_str()), "{kind}/{name} belongs to no target");
                }
            }
        }
    };
}

replayed!(arguments decisions lines listings parameters queries records requests scopes);
