//! How many files the process may open: connections must leave some for the stores.
//!
//! A log that cannot open its next file cannot be written, so a flood of connections would stop every change.

use std::fs;

/// Kept free of connections: stores, the log, sockets to a broker.
const OTHER_FILES: usize = 256;

/// `wanted` connections, or what the process's limit of open files leaves for them; at least one.
pub(crate) fn connections(wanted: usize) -> usize {
    // Where there is no such file nothing is known, and nothing is changed.
    let Some(limit) = fs::read_to_string("/proc/self/limits")
        .ok()
        .as_deref()
        .and_then(soft_limit)
    else {
        return wanted;
    };
    let left = within(limit, wanted);
    if left < wanted {
        tracing::warn!(
            open_files = limit,
            connections = left,
            "the limit of open files leaves room for fewer connections (ulimit -n, LimitNOFILE)"
        );
    }
    left
}

fn within(limit: usize, wanted: usize) -> usize {
    // With very few files half of them must do.
    let left = limit.saturating_sub(OTHER_FILES).max(limit / 2);
    wanted.min(left).max(1)
}

fn soft_limit(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_stores() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax processes  1  2  processes\nMax open files            1024                 524288               files\n";
        assert_eq!(soft_limit(text), Some(1_024));
        assert_eq!(
            soft_limit("Max open files  unlimited  unlimited  files"),
            None
        );
        for (limit, wanted, left) in [
            (1_024, 16_384, 768),
            (524_288, 16_384, 16_384),
            (300, 16_384, 150),
            (1_024, 10, 10),
            (0, 10, 1),
        ] {
            assert_eq!(within(limit, wanted), left, "{limit} {wanted}");
        }
    }
}
