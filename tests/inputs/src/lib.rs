//! What every reader of bytes from outside must keep, whatever the bytes: one function per reader, which panics when it does
//! not.
//!
//! `cargo xtask fuzz` feeds them with libFuzzer (`tests/fuzz`); `cargo nextest run -p inputs` replays the committed seeds and
//! every input that once broke something (`seeds/TARGET`, `regressions/TARGET`) through the same functions.

mod arguments;
#[path = "../../../cli/src/assignment.rs"]
mod assignment;
#[path = "../../../cli/src/arguments.rs"]
mod cli;
mod decisions;
mod lines;
mod listings;
mod parameters;
mod queries;
mod records;
mod requests;
mod scopes;
mod serving;

/// A reader and its name, which is the name of its folder of inputs and of its fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 9] = [
    ("arguments", arguments::check),
    ("decisions", decisions::check),
    ("lines", lines::check),
    ("listings", listings::check),
    ("parameters", parameters::check),
    ("queries", queries::check),
    ("records", records::check),
    ("requests", requests::check),
    ("scopes", scopes::check),
];

/// Feeds one input to a reader.
///
/// # Panics
/// When the reader does not keep what it must, or there is no such reader.
pub fn check(target: &str, input: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, check) = found.unwrap_or_else(|| panic!("no target {target}"));
    check(input);
}

/// Lets go of what this thread's inputs needed.
pub fn finish() {
    serving::finish();
}

/// Parts of an input, separated by an empty line.
fn parts(input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = input;
    while let Some(at) = rest.windows(2).position(|two| two == b"\n\n") {
        parts.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    parts.push(rest);
    parts
}
