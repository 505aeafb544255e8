//! FIFO: the block that was put in first goes; uses do not matter.

use super::list::Lists;
use super::rule::Kind;
use super::{Met, Policy, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "fifo",
    doc: "the block put in first goes",
    params: &[],
    source: "Mattson et al., IBM Systems Journal 9(2), 1970",
    needs_sessions: false,
    replay: |_, trace, setting, each| play(&mut Fifo::new(setting.capacity), trace, each),
    start: Some(|_, setting| Box::new(Fifo::new(setting.capacity))),
};

/// The cache.
struct Fifo {
    capacity: usize,
    list: Lists<1>,
}

impl Fifo {
    fn new(capacity: usize) -> Self {
        Self { capacity, list: Lists::new() }
    }
}

impl Policy for Fifo {
    fn grow(&mut self, blocks: usize) {
        self.list.grow(blocks);
    }

    fn touch(&mut self, block: u32) -> Met {
        if self.list.holds(block) {
            return Met::Hit;
        }
        if self.capacity == 0 {
            return Met::Bypass;
        }
        let victim = if self.list.len(0) >= self.capacity { self.list.pop_oldest(0) } else { None };
        self.list.push_newest(0, block);
        victim.map_or(Met::Miss, Met::Eviction)
    }

    fn holds(&self, block: u32) -> bool {
        self.list.holds(block)
    }

    fn remove(&mut self, block: u32) -> bool {
        let is_there = self.list.holds(block);
        if is_there {
            self.list.unlink(0, block);
        }
        is_there
    }

    fn len(&self) -> usize {
        self.list.len(0)
    }
}
