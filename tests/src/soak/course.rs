//! How memory and files grow while changes are made.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// One look at one process.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Duration,
    changes: u64,
    process: Option<u32>,
    memory_kib: u64,
    files_kib: u64,
}

/// The course of one process (which may be another one after it was killed) and its folder.
#[derive(Debug)]
pub struct Course {
    name: String,
    folder: Option<PathBuf>,
    samples: Vec<Sample>,
}

impl Course {
    /// Of this process, which keeps its files here.
    #[must_use]
    pub fn new(name: &str, folder: Option<&Path>) -> Course {
        Course {
            name: name.to_owned(),
            folder: folder.map(Path::to_owned),
            samples: Vec::new(),
        }
    }

    /// Looks at it now.
    pub fn look(&mut self, at: Duration, changes: u64, process: Option<u32>) {
        self.samples.push(Sample {
            at,
            changes,
            process,
            memory_kib: process.map_or(0, memory_kib),
            files_kib: self.folder.as_deref().map_or(0, size) / 1024,
        });
    }

    /// One line: first, middle, last and highest values, and the slope per million changes.
    pub fn print(&self) {
        let living: Vec<Sample> = (self.samples.iter().copied())
            .filter(|sample| sample.memory_kib > 0)
            .collect();
        let (Some(first), Some(last)) = (living.first(), living.last()) else {
            return;
        };
        let middle = living[living.len() / 2];
        let highest = living.iter().map(|one| one.memory_kib).max().unwrap_or(0);
        let mib = |kib: u64| kib as f64 / 1024.0;
        // Memory is compared within the process that lives at the end; files go on through restarts.
        let same: Vec<Sample> = living
            .iter()
            .copied()
            .filter(|one| one.process == last.process)
            .collect();
        // The first looks are of a process that is still filling its caches.
        let settled = &same[same.len() / 4..];
        println!(
            "  {:<10} memory MiB {:>6.1} {:>6.1} {:>6.1} highest {:>6.1}; {} per million changes (from {} changes of one process); files MiB {:.2} {:.2} {:.2}; {} per million changes",
            self.name,
            mib(first.memory_kib),
            mib(middle.memory_kib),
            mib(last.memory_kib),
            mib(highest),
            slope(settled, |one| one.memory_kib),
            settled.last().map_or(0, |one| one.changes)
                - settled.first().map_or(0, |one| one.changes),
            mib(first.files_kib),
            mib(middle.files_kib),
            mib(last.files_kib),
            slope(&living, |one| one.files_kib),
        );
    }

    /// The course in time: minutes and values.
    pub fn print_course(&self) {
        let step = (self.samples.len() / 12).max(1);
        let course: Vec<String> = (self.samples.iter().step_by(step))
            .map(|one| {
                format!(
                    "{:.1}min {}/{}",
                    one.at.as_secs_f64() / 60.0,
                    one.memory_kib / 1024,
                    one.files_kib
                )
            })
            .collect();
        println!("  {:<10} {}", self.name, course.join("  "));
    }
}

/// Least squares, extrapolated to a million changes.
fn slope(samples: &[Sample], value: impl Fn(&Sample) -> u64) -> String {
    let count = samples.len() as f64;
    let mean = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x, y) = (
        mean(&|one| one.changes as f64),
        mean(&|one| value(one) as f64),
    );
    let over = mean(&|one| (one.changes as f64 - x) * (value(one) as f64 - y));
    let under = mean(&|one| (one.changes as f64 - x).powi(2));
    if samples.len() < 4 || under <= 0.0 {
        return "too few looks for a slope".to_owned();
    }
    format!("{:+.0} MiB", over / under * 1_000_000.0 / 1024.0)
}

fn memory_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// Bytes on disk of everything below a folder.
fn size(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(children) = std::fs::read_dir(folder) else {
        return 0;
    };
    children
        .filter_map(Result::ok)
        .map(|child| match child.metadata() {
            Ok(found) if found.is_dir() => size(&child.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
