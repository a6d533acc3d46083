//! Named places where a crash test ends the process, as suddenly as SIGKILL would.
//!
//! Only in debug builds with the feature `crash-points`, which nothing but the crash tests asks for: elsewhere [`point`] is
//! empty, and no name of a place is in the program.

/// Says which place ends the process, and at which visit: `NAME#VISIT`, counted from 1.
pub const CRASH_AT: &str = "ROUTER_POLICY_CRASH_AT";

/// A place where a crash is interesting. Ends the process there if [`CRASH_AT`] says so.
#[cfg(all(feature = "crash-points", debug_assertions))]
pub fn point(name: &'static str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WANTED: OnceLock<Option<(String, u64)>> = OnceLock::new();
    static VISITS: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var(CRASH_AT).ok()?;
        let (name, visit) = text.split_once('#')?;
        Some((name.to_owned(), visit.parse().ok()?))
    });
    if let Some((at, visit)) = wanted
        && at == name
        && VISITS.fetch_add(1, Ordering::Relaxed) + 1 == *visit
    {
        eprintln!("crash point {name}");
        std::process::abort();
    }
}

/// A place where a crash is interesting: nothing in this build.
#[cfg(not(all(feature = "crash-points", debug_assertions)))]
#[inline(always)]
pub fn point(_: &'static str) {}
