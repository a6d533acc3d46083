//! The wanted configuration of the JetStream stream that keeps the log, as data, and its comparison with what a broker has.
//!
//! Owns: every setting that the product relies on, with the consequence of each deviation.
//! Never does: I/O, or repair. A stream that deviates is reported; whether it may be used is [`Difference::fatal`].

use std::fmt;

use schemas::{LogId, Subject};

/// First token of every subject of every log.
pub const SUBJECT_ROOT: &str = "router_policy";
/// Key of the stream's metadata that holds the identity of the log.
pub const LOG_ID_KEY: &str = "log_id";
/// The stream's name, when none is given.
pub const STREAM_DEFAULT: &str = "ROUTER_POLICY";
/// How many consumers the stream must allow: one per follower. Bound: nats-server 2.15 allows 1,000 per stream unless a
/// number is set, and -1 does not lift that; older versions take any number.
pub const CONSUMERS_MAX: i64 = 10_000;
/// Seconds in which the broker remembers `Nats-Msg-Id`s. The product sets none (compare-and-swap is its only guard), so
/// this is the broker's own default, written down so that a deviation shows.
pub const DUPLICATE_WINDOW_SECS: u64 = 120;

/// Where a broker keeps a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// On disk.
    File,
    /// In memory: gone with the process.
    Memory,
}

/// When a broker lets go of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Only at limits.
    Limits,
    /// When every consumer has acknowledged.
    Interest,
    /// When one consumer has acknowledged.
    WorkQueue,
}

/// What a broker does at a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// Refuses new records.
    New,
    /// Removes old records.
    Old,
}

/// What is relied on of a stream's configuration. Limits that are not set are `None`, however the broker writes that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfiguration {
    /// Subjects that the stream takes.
    pub subjects: Vec<String>,
    /// Where it is kept.
    pub storage: Storage,
    /// When records go.
    pub retention: Retention,
    /// What happens at a limit.
    pub discard: Discard,
    /// Most records.
    pub max_messages: Option<u64>,
    /// Most records per subject.
    pub max_messages_per_subject: Option<u64>,
    /// Most bytes.
    pub max_bytes: Option<u64>,
    /// Oldest record, in milliseconds.
    pub max_age_ms: Option<u64>,
    /// Largest record, in bytes.
    pub max_message_bytes: Option<u64>,
    /// Most consumers; `None` = the broker's own limit.
    pub max_consumers: Option<u64>,
    /// Copies.
    pub replicas: usize,
    /// How long message ids are remembered, in seconds.
    pub duplicate_window_secs: u64,
    /// Single records cannot be removed.
    pub deny_delete: bool,
    /// The stream cannot be emptied.
    pub deny_purge: bool,
    /// A publisher may remove older records by a header.
    pub allow_rollup: bool,
    /// Replicas answer reads.
    pub allow_direct: bool,
    /// A publisher may give a record an end of life.
    pub allow_message_ttl: bool,
    /// Markers are written where the last record of a subject went.
    pub subject_delete_markers: bool,
    /// Publishes are not acknowledged.
    pub no_ack: bool,
    /// Nothing may be written any more.
    pub sealed: bool,
    /// It is a mirror, has sources or rewrites subjects: others write to it.
    pub derived: bool,
    /// Identity of the log, from the metadata.
    pub log_id: Option<String>,
}

/// One deviation of a found configuration from the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the setting, as NATS calls it.
    pub field: &'static str,
    /// What it should be.
    pub wanted: String,
    /// What it is.
    pub found: String,
    /// True when the log must not be used like this: acknowledged records could vanish, or it is not a log at all.
    pub fatal: bool,
    /// What it leads to.
    pub consequence: &'static str,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = if self.fatal { "refused" } else { "tolerated" };
        write!(
            f,
            "{}: wanted {}, found {} ({weight}: {})",
            self.field, self.wanted, self.found, self.consequence
        )
    }
}

/// What every subject of one log starts with, without the dot. It names the log, so that a publish meant for one log can
/// never land in one that was made anew under the same stream name.
#[must_use]
pub fn subject_prefix(log_id: LogId) -> String {
    format!("{SUBJECT_ROOT}.{}", log_id.0.simple())
}

/// The subject on the wire.
#[must_use]
pub fn wire_subject(log_id: LogId, subject: &Subject) -> String {
    format!("{}.{subject}", subject_prefix(log_id))
}

/// The inverse of [`wire_subject`]; `None` for a subject of another log.
#[must_use]
pub fn log_subject(log_id: LogId, wire: &str) -> Option<Subject> {
    wire.strip_prefix(&subject_prefix(log_id))
        .and_then(|rest| rest.strip_prefix('.'))
        .map(Subject::from_log)
}

/// The configuration that a log needs.
#[must_use]
pub fn wanted(log_id: LogId, replicas: usize) -> StreamConfiguration {
    StreamConfiguration {
        subjects: vec![format!("{}.>", subject_prefix(log_id))],
        storage: Storage::File,
        retention: Retention::Limits,
        discard: Discard::New,
        max_messages: None,
        max_messages_per_subject: None,
        max_bytes: None,
        max_age_ms: None,
        max_message_bytes: None,
        max_consumers: u64::try_from(CONSUMERS_MAX).ok(),
        replicas,
        duplicate_window_secs: DUPLICATE_WINDOW_SECS,
        deny_delete: true,
        deny_purge: true,
        allow_rollup: false,
        allow_direct: true,
        allow_message_ttl: false,
        subject_delete_markers: false,
        no_ack: false,
        sealed: false,
        derived: false,
        log_id: Some(log_id.to_string()),
    }
}

/// Every difference, fatal ones first. Empty when a broker has what is wanted.
#[must_use]
pub fn diff(wanted: &StreamConfiguration, found: &StreamConfiguration) -> Vec<Difference> {
    let mut out = Vec::new();
    durability(&mut out, wanted, found);
    identity(&mut out, wanted, found);
    capacity(&mut out, wanted, found);
    out.sort_by_key(|difference| !difference.fatal);
    out
}

fn compare<T: PartialEq + Shown>(
    out: &mut Vec<Difference>,
    field: &'static str,
    (wanted, found): (&T, &T),
    fatal: bool,
    consequence: &'static str,
) {
    if wanted != found {
        out.push(Difference {
            field,
            wanted: wanted.shown(),
            found: found.shown(),
            fatal,
            consequence,
        });
    }
}

#[rustfmt::skip]
fn durability(out: &mut Vec<Difference>, w: &StreamConfiguration, f: &StreamConfiguration) {
    compare(out, "storage", (&w.storage, &f.storage), true, "acknowledged records vanish with the broker's process");
    compare(out, "retention", (&w.retention, &f.retention), true, "records vanish once they were consumed");
    compare(out, "discard", (&w.discard, &f.discard), true, "old records vanish when any limit is reached");
    compare(out, "max_msgs", (&w.max_messages, &f.max_messages), false, "changes are refused when the limit is reached");
    compare(out, "max_msgs_per_subject", (&w.max_messages_per_subject, &f.max_messages_per_subject), true, "records vanish when the limit is reached");
    compare(out, "max_bytes", (&w.max_bytes, &f.max_bytes), false, "changes are refused when the limit is reached");
    compare(out, "max_age", (&w.max_age_ms, &f.max_age_ms), true, "records vanish by age");
    compare(out, "deny_delete", (&w.deny_delete, &f.deny_delete), true, "single records can be removed");
    compare(out, "deny_purge", (&w.deny_purge, &f.deny_purge), true, "the whole log can be emptied");
    compare(out, "allow_rollup_hdrs", (&w.allow_rollup, &f.allow_rollup), true, "a publisher can remove older records by a header");
    compare(out, "allow_msg_ttl", (&w.allow_message_ttl, &f.allow_message_ttl), true, "a publisher can let records expire, whatever deny_delete says");
    compare(out, "subject_delete_marker_ttl", (&w.subject_delete_markers, &f.subject_delete_markers), true, "the broker writes records of its own, and purging is allowed");
    compare(out, "no_ack", (&w.no_ack, &f.no_ack), true, "no change can ever be acknowledged");
}

#[rustfmt::skip]
fn identity(out: &mut Vec<Difference>, w: &StreamConfiguration, f: &StreamConfiguration) {
    compare(out, "metadata.log_id", (&w.log_id, &f.log_id), true, "this is not the log that its subjects name");
    compare(out, "subjects", (&w.subjects, &f.subjects), true, "changes would land elsewhere, or foreign messages in the log");
    compare(out, "mirror, sources or subject_transform", (&w.derived, &f.derived), true, "records come from elsewhere, past compare-and-swap");
    compare(out, "sealed", (&w.sealed, &f.sealed), false, "every change is refused; reading works");
}

#[rustfmt::skip]
fn capacity(out: &mut Vec<Difference>, w: &StreamConfiguration, f: &StreamConfiguration) {
    compare(out, "num_replicas", (&w.replicas, &f.replicas), false, "the log survives another number of lost servers than wanted");
    compare(out, "max_msg_size", (&w.max_message_bytes, &f.max_message_bytes), false, "larger changes are refused");
    compare(out, "max_consumers", (&w.max_consumers, &f.max_consumers), false, "another number of followers is possible; beyond it agents cannot follow");
    compare(out, "allow_direct", (&w.allow_direct, &f.allow_direct), false, "all reads go to the leader");
    compare(out, "duplicate_window", (&w.duplicate_window_secs, &f.duplicate_window_secs), false, "none for this product, which sets no message ids");
}

/// A setting as a person reads it.
trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_by_display {
    ($($kind:ty),*) => { $(impl Shown for $kind { fn shown(&self) -> String { self.to_string() } })* };
}
shown_by_display!(bool, usize, u64);

impl Shown for Option<u64> {
    fn shown(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
    }
}

impl Shown for Option<String> {
    fn shown(&self) -> String {
        self.clone().unwrap_or_else(|| "none".to_owned())
    }
}

impl Shown for Vec<String> {
    fn shown(&self) -> String {
        self.join(" ")
    }
}

macro_rules! shown_by_word {
    ($kind:ty, $($variant:pat => $word:literal),*) => {
        impl Shown for $kind {
            fn shown(&self) -> String {
                match self { $($variant => $word.to_owned()),* }
            }
        }
    };
}
shown_by_word!(Storage, Storage::File => "file", Storage::Memory => "memory");
shown_by_word!(Retention, Retention::Limits => "limits", Retention::Interest => "interest", Retention::WorkQueue => "workqueue");
shown_by_word!(Discard, Discard::New => "new", Discard::Old => "old");

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const LOG: LogId = LogId(Uuid::from_u128(7));

    #[test]
    fn the_wanted_configuration_has_no_difference_from_itself() {
        assert_eq!(diff(&wanted(LOG, 3), &wanted(LOG, 3)), []);
    }

    /// Every field, the deviation, whether it is fatal.
    type Deviation = (&'static str, fn(&mut StreamConfiguration), bool);

    #[test]
    fn every_deviation_is_named_with_its_weight() {
        let deviations: &[Deviation] = &[
            ("storage", |c| c.storage = Storage::Memory, true),
            ("retention", |c| c.retention = Retention::WorkQueue, true),
            ("retention", |c| c.retention = Retention::Interest, true),
            ("discard", |c| c.discard = Discard::Old, true),
            ("max_msgs", |c| c.max_messages = Some(9), false),
            (
                "max_msgs_per_subject",
                |c| c.max_messages_per_subject = Some(1),
                true,
            ),
            ("max_bytes", |c| c.max_bytes = Some(1 << 30), false),
            ("max_age", |c| c.max_age_ms = Some(1_000), true),
            ("deny_delete", |c| c.deny_delete = false, true),
            ("deny_purge", |c| c.deny_purge = false, true),
            ("allow_rollup_hdrs", |c| c.allow_rollup = true, true),
            ("allow_msg_ttl", |c| c.allow_message_ttl = true, true),
            (
                "subject_delete_marker_ttl",
                |c| c.subject_delete_markers = true,
                true,
            ),
            ("no_ack", |c| c.no_ack = true, true),
            ("metadata.log_id", |c| c.log_id = None, true),
            ("subjects", |c| c.subjects.push("more.>".to_owned()), true),
            (
                "mirror, sources or subject_transform",
                |c| c.derived = true,
                true,
            ),
            ("sealed", |c| c.sealed = true, false),
            ("num_replicas", |c| c.replicas = 1, false),
            ("max_msg_size", |c| c.max_message_bytes = Some(100), false),
            ("max_consumers", |c| c.max_consumers = None, false),
            ("allow_direct", |c| c.allow_direct = false, false),
            ("duplicate_window", |c| c.duplicate_window_secs = 5, false),
        ];
        for (field, deviate, fatal) in deviations {
            let mut found = wanted(LOG, 3);
            deviate(&mut found);
            let differences = diff(&wanted(LOG, 3), &found);
            assert_eq!(differences.len(), 1, "{field}: {differences:?}");
            assert_eq!(differences[0].field, *field);
            assert_eq!(differences[0].fatal, *fatal, "{field}");
            assert_ne!(differences[0].wanted, differences[0].found, "{field}");
        }
    }

    #[test]
    fn differences_read_as_sentences_and_fatal_ones_come_first() {
        let mut found = wanted(LOG, 1);
        found.max_consumers = None;
        found.deny_purge = false;
        let lines: Vec<String> = diff(&wanted(LOG, 1), &found)
            .iter()
            .map(Difference::to_string)
            .collect();
        assert_eq!(
            lines,
            [
                "deny_purge: wanted true, found false (refused: the whole log can be emptied)",
                "max_consumers: wanted 10000, found none (tolerated: another number of followers is possible; beyond it agents cannot follow)",
            ]
        );
    }

    #[test]
    fn subjects_name_their_log() {
        let subject = Subject::parameters();
        let wire = wire_subject(LOG, &subject);
        assert_eq!(
            wire,
            "router_policy.00000000000000000000000000000007.parameters"
        );
        assert_eq!(log_subject(LOG, &wire), Some(subject));
        assert_eq!(log_subject(LogId(Uuid::from_u128(8)), &wire), None);
    }
}
