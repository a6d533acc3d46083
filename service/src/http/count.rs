//! How many there are of something, counted while they last.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A count that all its clones share.
#[derive(Debug, Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// One more, until what is returned is dropped.
    pub(super) fn enter(&self) -> Counted {
        self.0.fetch_add(1, Ordering::AcqRel);
        Counted(self.clone())
    }

    /// How many there are.
    pub(super) fn now(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct Counted(Count);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}
