//! A cache of equal blocks that evicts the one that was used longest ago.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// What a reference met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// The block was there.
    Hit,
    /// It was not, and there was room.
    Miss,
    /// It was not, and another had to go.
    Eviction,
}

/// The cache.
#[derive(Debug, Clone)]
pub struct Lru<K> {
    capacity: usize,
    now: u64,
    used: HashMap<K, u64>,
    by_use: BTreeMap<u64, K>,
}

impl<K: Copy + Eq + Hash> Lru<K> {
    /// A cache of so many blocks; without any, every reference misses.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, now: 0, used: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// Blocks that are there.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// Uses a block; one that is not there is put in.
    pub fn touch(&mut self, block: K) -> Met {
        if self.capacity == 0 {
            return Met::Miss;
        }
        self.now += 1;
        if let Some(used) = self.used.insert(block, self.now) {
            self.by_use.remove(&used);
            self.by_use.insert(self.now, block);
            return Met::Hit;
        }
        self.by_use.insert(self.now, block);
        if self.used.len() <= self.capacity {
            return Met::Miss;
        }
        if let Some((_, oldest)) = self.by_use.pop_first() {
            self.used.remove(&oldest);
        }
        Met::Eviction
    }

    /// Forgets every block; gives how many there were.
    pub fn clear(&mut self) -> usize {
        let count = self.used.len();
        self.used.clear();
        self.by_use.clear();
        count
    }
}

/// What a replay of block references found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// References.
    pub references: u64,
    /// References to blocks that were there.
    pub hits: u64,
    /// Blocks that had to go.
    pub evictions: u64,
}

/// Replays block references under LRU with so many blocks.
pub fn replay<K: Copy + Eq + Hash>(references: &[K], capacity: usize) -> Replayed {
    let mut cache = Lru::new(capacity);
    let mut found = Replayed { references: references.len() as u64, ..Replayed::default() };
    for &block in references {
        match cache.touch(block) {
            Met::Hit => found.hits += 1,
            Met::Miss => {}
            Met::Eviction => found.evictions += 1,
        }
    }
    found
}
