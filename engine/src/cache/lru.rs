//! LRU: the block that was used longest ago goes.
//!
//! With `leaf_first`, blocks of one request count as used at one time, and of these the deepest goes first: what vLLM does
//! by freeing a request's blocks in reverse (`docs/design/prefix_caching.md`), and SGLang by evicting leaves of its tree.

use super::list::Lists;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, Request, play};

/// The policy.
pub static KIND: Kind = Kind {
    name: "lru",
    doc: "the block used longest ago goes",
    params: &[Param {
        name: "leaf_first",
        form: Form::Flag,
        default: 0,
        range: (0, 1),
        doc: "of the blocks of one request, the deepest goes first, as in vLLM and SGLang",
    }],
    source: "Mattson et al., IBM Systems Journal 9(2), 1970; vLLM docs/design/prefix_caching.md",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

fn make(params: &[u64], setting: Setting) -> Lru {
    Lru { is_leaf_first: params.first() == Some(&1), ..Lru::new(setting.capacity) }
}

/// The cache.
#[derive(Debug, Clone)]
pub struct Lru {
    capacity: usize,
    list: Lists<1>,
    is_leaf_first: bool,
    /// The block of the current request that was used last, if deeper ones go before it.
    above: Option<u32>,
}

impl Lru {
    /// A cache of so many blocks; without any, every use misses.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, list: Lists::new(), is_leaf_first: false, above: None }
    }

    /// Forgets every block; gives how many there were.
    pub fn clear(&mut self) -> usize {
        let count = self.list.len(0);
        while self.list.pop_oldest(0).is_some() {}
        self.above = None;
        count
    }

    /// Takes the block that was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<u32> {
        let block = self.list.oldest(0)?;
        self.remove(block);
        Some(block)
    }

    /// The block that was used longest ago.
    pub fn oldest(&self) -> Option<u32> {
        self.list.oldest(0)
    }

    fn link(&mut self, block: u32) {
        match self.above.filter(|_| self.is_leaf_first) {
            Some(above) => self.list.push_before(0, block, above),
            None => self.list.push_newest(0, block),
        }
        self.above = Some(block);
    }
}

impl Policy for Lru {
    fn grow(&mut self, blocks: usize) {
        self.list.grow(blocks);
    }

    fn begin(&mut self, _: &Request<'_>, _: &mut Vec<u32>) {
        self.above = None;
    }

    #[inline]
    fn touch(&mut self, block: u32) -> Met {
        if self.list.holds(block) {
            if self.is_leaf_first {
                self.remove(block);
                self.link(block);
            } else {
                self.list.renew(0, block);
            }
            return Met::Hit;
        }
        if self.capacity == 0 {
            return Met::Bypass;
        }
        let victim = if self.list.len(0) >= self.capacity { self.pop_oldest() } else { None };
        self.link(block);
        victim.map_or(Met::Miss, Met::Eviction)
    }

    fn holds(&self, block: u32) -> bool {
        self.list.holds(block)
    }

    fn remove(&mut self, block: u32) -> bool {
        let is_there = self.list.holds(block);
        if is_there {
            if self.above == Some(block) {
                self.above = self.list.newer(block);
            }
            self.list.unlink(0, block);
        }
        is_there
    }

    fn len(&self) -> usize {
        self.list.len(0)
    }
}
