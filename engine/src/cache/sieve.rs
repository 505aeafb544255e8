//! SIEVE: one queue and a hand that spares, once, what was used since it last passed.
//!
//! Y. Zhang et al., "SIEVE is simpler than LRU" (NSDI 2024), algorithm 1: a hit only marks its block. To evict, the hand walks
//! from the old end to the new one, takes marks away and takes the first block without one; it stays where it was, and
//! starts again at the old end after the new one.

use super::list::Lists;
use super::rule::{Kind, Setting};
use super::{Met, Policy, play};

/// The policy.
pub static KIND: Kind = Kind {
    name: "sieve",
    doc: "one queue and a hand that spares, once, what was used since it last passed",
    params: &[],
    source: "Zhang et al., NSDI 2024, algorithm 1",
    needs_sessions: false,
    replay: |_, trace, setting, each| play(&mut Sieve::new(setting), trace, each),
    start: Some(|_, setting| Box::new(Sieve::new(setting))),
};

/// Not in the cache; in it; in it and used since the hand passed.
const ABSENT: u8 = 0;
const UNUSED: u8 = 1;
const USED: u8 = 2;

/// The cache.
pub struct Sieve {
    capacity: usize,
    list: Lists<1>,
    state: Vec<u8>,
    /// Where the hand goes on; the old end if nowhere.
    hand: Option<u32>,
}

impl Sieve {
    /// A cache of so many blocks.
    pub fn new(setting: Setting) -> Self {
        Self { capacity: setting.capacity, list: Lists::new(), state: Vec::new(), hand: None }
    }

    fn evict(&mut self) -> Option<u32> {
        let mut at = self.hand.or_else(|| self.list.oldest(0))?;
        while self.state[at as usize] == USED {
            self.state[at as usize] = UNUSED;
            at = self.list.newer(at).or_else(|| self.list.oldest(0))?;
        }
        self.hand = self.list.newer(at);
        self.list.unlink(0, at);
        self.state[at as usize] = ABSENT;
        Some(at)
    }
}

impl Policy for Sieve {
    fn grow(&mut self, blocks: usize) {
        self.list.grow(blocks);
        self.state.resize(self.state.len().max(blocks), ABSENT);
    }

    #[inline]
    fn touch(&mut self, block: u32) -> Met {
        let state = &mut self.state[block as usize];
        if *state != ABSENT {
            *state = USED;
            return Met::Hit;
        }
        if self.capacity == 0 {
            return Met::Bypass;
        }
        let victim = if self.list.len(0) >= self.capacity { self.evict() } else { None };
        self.list.push_newest(0, block);
        self.state[block as usize] = UNUSED;
        victim.map_or(Met::Miss, Met::Eviction)
    }

    fn holds(&self, block: u32) -> bool {
        self.state.get(block as usize).is_some_and(|state| *state != ABSENT)
    }

    fn remove(&mut self, block: u32) -> bool {
        let is_there = self.holds(block);
        if is_there {
            if self.hand == Some(block) {
                self.hand = self.list.newer(block);
            }
            self.list.unlink(0, block);
            self.state[block as usize] = ABSENT;
        }
        is_there
    }

    fn len(&self) -> usize {
        self.list.len(0)
    }
}
