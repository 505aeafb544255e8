//! ARC: an LRU for blocks used once and one for blocks used again, whose shares follow the hits in their ghosts.
//!
//! `arc` is figure 4 of N. Megiddo and D. Modha, "ARC: a self-tuning, low overhead replacement cache" (FAST 2003), with a
//! real-valued target. `arc-reenter` is what vLLM's CPU offload does (`vllm/v1/kv_offload/cpu/policies/arc.py`, POLICIES 4.1):
//! a ghost hit moves the target, but the block enters `T1` as any new one does; `T1` gives up a block while it holds at least
//! the target rounded down; each ghost list names as many blocks as fit.

use super::list::Lists;
use super::rule::{Kind, Setting};
use super::{Met, Policy, play};

/// The textbook's.
pub(super) static KIND: Kind = Kind {
    name: "arc",
    doc: "an LRU for blocks used once and one for blocks used again; their shares follow the hits in their ghosts",
    params: &[],
    source: "Megiddo and Modha, FAST 2003, figure 4",
    needs_sessions: false,
    replay: |_, trace, setting, each| play(&mut Arc::new(setting, false), trace, each),
    start: Some(|_, setting| Box::new(Arc::new(setting, false))),
};

/// The engine's.
pub(super) static REENTER: Kind = Kind {
    name: "arc-reenter",
    doc: "ARC as vLLM's CPU offload has it: a block that returns from the ghosts enters as a new one does",
    params: &[],
    source: "vLLM vllm/v1/kv_offload/cpu/policies/arc.py; POLICIES 4.1",
    needs_sessions: false,
    replay: |_, trace, setting, each| play(&mut Arc::new(setting, true), trace, each),
    start: Some(|_, setting| Box::new(Arc::new(setting, true))),
};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;

/// The cache.
struct Arc {
    capacity: usize,
    reenters: bool,
    /// Blocks that `T1` should hold.
    target: f64,
    lists: Lists<4>,
    place: Vec<u8>,
}

impl Arc {
    fn new(setting: Setting, reenters: bool) -> Self {
        Self { capacity: setting.capacity, reenters, target: 0.0, lists: Lists::new(), place: Vec::new() }
    }

    fn queue(&self, block: u32) -> Option<usize> {
        self.lists.holds(block).then(|| usize::from(self.place[block as usize]))
    }

    fn push(&mut self, queue: usize, block: u32) {
        self.lists.push_newest(queue, block);
        self.place[block as usize] = queue as u8;
    }

    /// Moves the target after a hit in a ghost list.
    fn adapt(&mut self, ghosts: usize) {
        let (ones, twos) = (self.lists.len(B1) as f64, self.lists.len(B2) as f64);
        self.target = if ghosts == B1 {
            (self.target + (twos / ones).max(1.0)).min(self.capacity as f64)
        } else {
            (self.target - (ones / twos).max(1.0)).max(0.0)
        };
    }

    /// Makes a block of the cache a ghost, if the cache is full.
    fn replace(&mut self, gives_one: bool) -> Option<u32> {
        if self.len() < self.capacity {
            return None;
        }
        let from_one = (gives_one && self.lists.len(T1) > 0) || self.lists.len(T2) == 0;
        let (from, to) = if from_one { (T1, B1) } else { (T2, B2) };
        let victim = self.lists.pop_oldest(from)?;
        self.push(to, victim);
        Some(victim)
    }

    /// The textbook's miss.
    fn miss(&mut self, block: u32, ghosts: Option<usize>) -> Option<u32> {
        if let Some(ghosts) = ghosts {
            self.adapt(ghosts);
            let ones = self.lists.len(T1) as f64;
            let victim = self.replace(ones > self.target || (ghosts == B2 && ones >= self.target));
            self.lists.unlink(ghosts, block);
            self.push(T2, block);
            return victim;
        }
        let first = self.lists.len(T1) + self.lists.len(B1);
        let victim = if first >= self.capacity && self.lists.len(B1) == 0 {
            // T1 alone fills the cache: its oldest leaves without a ghost.
            self.lists.pop_oldest(T1)
        } else {
            if first >= self.capacity {
                self.lists.pop_oldest(B1);
            } else if first + self.lists.len(T2) + self.lists.len(B2) >= 2 * self.capacity {
                self.lists.pop_oldest(B2);
            }
            let ones = self.lists.len(T1) as f64;
            self.replace(ones > self.target)
        };
        self.push(T1, block);
        victim
    }

    /// The engine's miss.
    fn reenter(&mut self, block: u32, ghosts: Option<usize>) -> Option<u32> {
        if let Some(ghosts) = ghosts {
            self.adapt(ghosts);
            // Kept fresh, so that the eviction below does not trim it first; it leaves when the block is in.
            self.lists.renew(ghosts, block);
        }
        let victim = self.replace(self.lists.len(T1) >= self.target as usize);
        for list in [B1, B2] {
            while self.lists.len(list) > self.capacity {
                self.lists.pop_oldest(list);
            }
        }
        if let Some(list) = self.queue(block) {
            self.lists.unlink(list, block);
        }
        self.push(T1, block);
        victim
    }
}

impl Policy for Arc {
    fn grow(&mut self, blocks: usize) {
        self.lists.grow(blocks);
        self.place.resize(self.place.len().max(blocks), 0);
    }

    fn touch(&mut self, block: u32) -> Met {
        let queue = self.queue(block);
        match queue {
            Some(T1) => {
                self.lists.unlink(T1, block);
                self.push(T2, block);
                Met::Hit
            }
            Some(T2) => {
                self.lists.renew(T2, block);
                Met::Hit
            }
            _ if self.capacity == 0 => Met::Bypass,
            ghosts => {
                let victim = if self.reenters { self.reenter(block, ghosts) } else { self.miss(block, ghosts) };
                victim.map_or(Met::Miss, Met::Eviction)
            }
        }
    }

    fn holds(&self, block: u32) -> bool {
        self.queue(block).is_some_and(|queue| queue < B1)
    }

    fn remove(&mut self, block: u32) -> bool {
        let queue = self.queue(block).filter(|queue| *queue < B1);
        if let Some(queue) = queue {
            self.lists.unlink(queue, block);
        }
        queue.is_some()
    }

    fn len(&self) -> usize {
        self.lists.len(T1) + self.lists.len(T2)
    }
}
