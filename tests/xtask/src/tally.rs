//! Running steps one after another, and the closing line.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// What passed and failed so far.
#[derive(Debug, Default)]
pub struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Ran {
        name: String,
        found: Found,
        took: Duration,
    },
    Skipped {
        name: String,
        why: String,
    },
}

/// What one step found.
#[derive(Debug, Clone, Copy, Default)]
pub struct Found {
    /// Things that passed: tests, scenarios, or the step itself.
    pub passed: u64,
    /// Things that did not.
    pub failed: u64,
}

impl Found {
    /// A step that is one thing.
    #[must_use]
    pub fn one(passed: bool) -> Found {
        Found {
            passed: u64::from(passed),
            failed: u64::from(!passed),
        }
    }
}

impl Tally {
    /// Runs a step and notes what it found.
    pub fn step(&mut self, name: &str, run: impl FnOnce() -> Found) {
        println!("\n=== {name}");
        let started = Instant::now();
        let found = run();
        self.passed += found.passed;
        self.failed += found.failed;
        self.steps.push(Step::Ran {
            name: name.to_owned(),
            found,
            took: started.elapsed(),
        });
    }

    /// Notes a step that is not run, and why.
    pub fn skip(&mut self, name: &str, why: &str) {
        println!("\n=== {name}\nskipped: {why}");
        self.skipped += 1;
        self.steps.push(Step::Skipped {
            name: name.to_owned(),
            why: why.to_owned(),
        });
    }

    fn summary(&self) -> String {
        let Tally {
            passed,
            failed,
            skipped,
            steps: _,
        } = self;
        format!("{passed} passed, {failed} failed, {skipped} skipped")
    }

    /// Prints a line for each step and the closing line.
    #[must_use]
    pub fn close(self) -> ExitCode {
        println!();
        for step in &self.steps {
            match step {
                Step::Ran { name, found, took } => {
                    let word = if found.failed == 0 { "pass" } else { "FAIL" };
                    println!("{word}  {name} ({:.1} s)", took.as_secs_f64());
                }
                Step::Skipped { name, why } => println!("skip  {name}: {why}"),
            }
        }
        println!("{}", self.summary());
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// Runs a command that is one thing: it passes or fails.
#[must_use]
pub fn run(command: &mut Command) -> Found {
    println!("$ {}", show(command));
    Found::one(command.status().is_ok_and(|status| status.success()))
}

/// Runs a command that says itself how many things passed and failed (`N passed`, `N failed`), passing its output on.
#[must_use]
pub fn run_counting(command: &mut Command) -> Found {
    println!("$ {}", show(command));
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        return Found::one(false);
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut found = Found::default();
    std::thread::scope(|scope| {
        let errors = scope.spawn(|| forward(stderr));
        let out = forward(stdout);
        let errors = errors.join().unwrap_or_default();
        found.passed = out.passed + errors.passed;
        found.failed = out.failed + errors.failed;
    });
    let success = child.wait().is_ok_and(|status| status.success());
    if found.failed == 0 && (!success || found.passed == 0) {
        // It broke before it could count, or it checked nothing.
        found.failed = 1;
    }
    found
}

/// Passes lines on and adds up the summaries among them.
fn forward(from: Option<impl Read>) -> Found {
    let mut found = Found::default();
    let Some(from) = from else { return found };
    for line in BufReader::new(from).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        // A closed stdout is no reason to stop the step.
        let _ = writeln!(std::io::stdout(), "{line}");
        if is_summary(&line) {
            found.passed += number_before(&line, "passed").unwrap_or(0);
            found.failed += number_before(&line, "failed").unwrap_or(0);
            found.failed += number_before(&line, "timed out").unwrap_or(0);
        }
    }
    found
}

/// nextest's `Summary`, libtest's `test result:`, and our own `NAME: N passed, N failed`.
fn is_summary(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("Summary ")
        || line.starts_with("test result:")
        || line.split_once(": ").is_some_and(|(name, rest)| {
            name.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && rest.contains(" passed, ")
                && rest.contains(" failed")
        })
}

fn number_before(line: &str, word: &str) -> Option<u64> {
    let before = line
        .split(&format!(" {word}"))
        .next()
        .filter(|part| part.len() < line.len())?;
    before.rsplit([' ', '(']).next()?.parse().ok()
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_in_the_closing_line() {
        let mut tally = Tally::default();
        tally.step("one", || Found {
            passed: 3,
            failed: 1,
        });
        tally.skip("two", "its tool is not installed");
        assert_eq!(tally.summary(), "3 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_command_that_checks_nothing_has_failed() {
        for (says, passed, failed) in [
            ("", 0, 1),
            ("x: 0 passed, 0 failed", 0, 1),
            ("x: 2 passed, 0 failed", 2, 0),
            ("x: 2 passed, 1 failed", 2, 1),
        ] {
            let found = run_counting(Command::new("echo").arg(says));
            assert_eq!((found.passed, found.failed), (passed, failed), "{says}");
        }
    }

    #[test]
    fn summaries_are_counted_and_nothing_else() {
        for (line, passed, failed) in [
            (
                "     Summary [  1.2s] 12 tests run: 11 passed (1 slow), 1 failed, 3 skipped",
                Some(11),
                Some(1),
            ),
            (
                "test result: ok. 4 passed; 0 failed; 0 ignored",
                Some(4),
                Some(0),
            ),
            ("dynamo: 14 passed, 0 failed in 90 s", Some(14), Some(0)),
        ] {
            assert!(is_summary(line), "{line}");
            assert_eq!(number_before(line, "passed"), passed, "{line}");
            assert_eq!(number_before(line, "failed"), failed, "{line}");
        }
        for line in [
            "pass    a    1.0 s  a patch",
            "the test passed, 1 failed before",
        ] {
            assert!(!is_summary(line), "{line}");
        }
    }
}
