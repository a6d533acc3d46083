//! Resident memory of a process, as Linux tells it.

use std::time::Duration;

/// Of one process, from the beginning of an attack.
pub(super) struct Memory {
    process: u32,
    before: u64,
    peak: u64,
    after: u64,
}

impl Memory {
    /// Begins anew: the peak is what it is now.
    pub(super) fn watch(process: u32) -> Memory {
        // Where this is not allowed the peak is that of the process's whole life: too strict, never too lax.
        let _ = std::fs::write(format!("/proc/{process}/clear_refs"), "5");
        Memory {
            process,
            before: field(process, "VmRSS:"),
            peak: 0,
            after: 0,
        }
    }

    /// Notes the peak, and waits (a while) until memory is given back; allocators keep some.
    pub(super) async fn settle(&mut self, bound_mib: u64) {
        self.peak = field(self.process, "VmHWM:");
        for _ in 0..20 {
            self.after = field(self.process, "VmRSS:");
            if self.after <= self.before + bound_mib * 1_024 / 2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    pub(super) fn before_mib(&self) -> u64 {
        self.before / 1_024
    }

    pub(super) fn peak_mib(&self) -> u64 {
        self.peak / 1_024
    }

    pub(super) fn after_mib(&self) -> u64 {
        self.after / 1_024
    }
}

/// In KiB; 0 when the process is gone.
fn field(process: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}
