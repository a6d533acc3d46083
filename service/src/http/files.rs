//! How many files the process may open: connections must leave some for the stores.
//!
//! A log that cannot open its next file cannot be written, so a flood of connections would stop every change.

use event_log::open_files;

/// Kept free of connections: stores, the log, sockets to a broker.
const OTHER_FILES: usize = 256;

/// `wanted` connections, or what the process's limit of open files leaves for them; at least one.
pub(crate) fn connections(wanted: usize) -> usize {
    let Some(limit) = open_files::limit() else {
        return wanted;
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_the_stores() {
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
