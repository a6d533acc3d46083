//! KV blocks of one simulated worker, least recently used out first. Pure.
//!
//! Invariant: of a prefix the deeper block is never newer than the one before it, so eviction takes tails and leaves no holes.

use std::collections::BTreeMap;

/// Blocks that are held, and when each was last used.
#[derive(Debug)]
pub(super) struct Cache {
    capacity: usize,
    clock: u64,
    ages: BTreeMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
}

/// What a prompt changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// Blocks of the prompt from here are new.
    pub(super) first: usize,
    /// Blocks of the prompt from here did not fit.
    pub(super) end: usize,
    /// Blocks that went.
    pub(super) evicted: Vec<u64>,
}

impl Cache {
    pub(super) fn new(capacity: usize) -> Cache {
        Cache {
            capacity,
            clock: 0,
            ages: BTreeMap::new(),
            by_age: BTreeMap::new(),
        }
    }

    /// How many of a prompt's leading blocks are here.
    pub(super) fn held(&self, blocks: &[u64]) -> usize {
        let here = |block: &&u64| self.ages.contains_key(block);
        blocks.iter().take_while(here).count()
    }

    /// Holds a prompt's blocks, at the cost of the oldest others.
    pub(super) fn admit(&mut self, blocks: &[u64]) -> Admitted {
        let end = blocks.len().min(self.capacity);
        let first = self.held(blocks).min(end);
        self.clock += end as u64;
        for (depth, block) in blocks.iter().take(end).enumerate() {
            let age = self.clock - depth as u64;
            if let Some(before) = self.ages.insert(*block, age) {
                self.by_age.remove(&before);
            }
            self.by_age.insert(age, *block);
        }
        let mut evicted = Vec::new();
        while self.ages.len() > self.capacity {
            let Some((_, block)) = self.by_age.pop_first() else {
                break;
            };
            self.ages.remove(&block);
            evicted.push(block);
        }
        Admitted {
            first,
            end,
            evicted,
        }
    }

    pub(super) fn clear(&mut self) {
        self.ages.clear();
        self.by_age.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_tail_goes_first() {
        let mut cache = Cache::new(4);
        let admitted = cache.admit(&[1, 2, 3]);
        assert_eq!((admitted.first, admitted.end), (0, 3));
        assert_eq!(cache.held(&[1, 2, 9]), 2);
        let admitted = cache.admit(&[1, 2, 4]);
        assert_eq!((admitted.first, admitted.evicted), (2, vec![]));
        let admitted = cache.admit(&[7, 8]);
        assert_eq!(admitted.evicted, [3, 4], "the oldest tails");
        assert_eq!(cache.held(&[1, 2, 4]), 2);
        let admitted = cache.admit(&[11, 12, 13, 14, 15, 16]);
        assert_eq!((admitted.end, admitted.evicted.len()), (4, 4));
        cache.clear();
        assert_eq!(cache.held(&[11]), 0);
    }

    #[test]
    fn no_prefix_ever_has_a_hole() {
        let mut cache = Cache::new(20);
        for round in 0..500_u64 {
            let group = round * 7 % 9;
            let tail = 1_000 + round;
            let prompt: Vec<u64> = (0..6)
                .map(|block| group * 10 + block)
                .chain([tail])
                .collect();
            cache.admit(&prompt);
            assert!(cache.ages.len() <= 20 && cache.ages.len() == cache.by_age.len());
            for group in 0..9 {
                let prefix: Vec<u64> = (0..6).map(|block| group * 10 + block).collect();
                let held = prefix.iter().filter(|block| cache.ages.contains_key(block));
                assert_eq!(held.count(), cache.held(&prefix));
            }
        }
    }
}
