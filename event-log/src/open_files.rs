//! How many files this process may open.
//!
//! Systems start programs with a low limit (1,024) that each may raise for itself, up to the hard one. Connections count as
//! files, and a log that cannot open its next file cannot be written.

use rustix::process::{Resource, getrlimit, setrlimit};

/// How many it may open now; `None` = as many as it likes.
#[must_use]
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the limit as far as the process may, and tells it; `None` = without a limit.
///
/// # Errors
/// The system's words; the limit is then what it was.
pub fn raise() -> std::io::Result<Option<u64>> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(limit.current)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Rlimit;

    #[test]
    fn the_limit_of_open_files_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let low = Rlimit {
            current: Some(64),
            maximum: hard,
        };
        setrlimit(Resource::Nofile, low).unwrap();
        assert_eq!(raise().unwrap(), hard);
        assert_eq!(getrlimit(Resource::Nofile).current, hard);
    }
}
