//! Belady's MIN, the bound: the block whose next use is furthest goes.
//!
//! L. Belady, "A study of replacement algorithms for a virtual-storage computer" (IBM Systems Journal 5(2), 1966). Among
//! blocks that are never used again the deepest in its prompt goes. The block that is just used stands for election too: if
//! its own next use is furthest, it is not put in. Without that, MIN would bound only policies that put everything in,
//! and a parent might go for a child that nobody asks for again. Every use of a child uses its parent just before, so
//! that with both rules what is there always forms whole prefixes: a parent's next use comes no later than its child's.
//! With `always_insert=yes` a missed block is always put in, as in the original.
//!
//! MIN counts misses. It is no bound on what it costs to compute missed blocks again, which differs from block to block.

use std::cmp::Reverse;

use super::heap::Heap;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, Request, play};

/// The policy.
pub static KIND: Kind = Kind {
    name: "min",
    doc: "Belady's bound: the block whose next use is furthest goes, and of those never used again the deepest",
    params: &[Param {
        name: "always_insert",
        form: Form::Flag,
        default: 0,
        range: (0, 1),
        doc: "whether a missed block is put in even if its own next use is furthest",
    }],
    source: "Belady, IBM Systems Journal 5(2), 1966; deepest-first ties as in POLICIES 4.7",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut Min::new(trace.accesses(), params, setting), trace, each),
    start: None,
};

/// Never.
const NEVER: u32 = u32::MAX;

/// The cache, with the future. Keys are the next use, the depth and the block, largest first.
pub struct Min {
    capacity: usize,
    always_inserts: bool,
    next: Vec<u32>,
    at: usize,
    depth: u32,
    heap: Heap<Reverse<(u32, u32, u32)>>,
}

/// For each access the place of the next one of the same block. A trace has fewer than 2^32 accesses.
fn next_uses(accesses: &[u32]) -> Vec<u32> {
    let mut next = vec![NEVER; accesses.len()];
    let mut coming: Vec<u32> = Vec::new();
    for (at, &block) in accesses.iter().enumerate().rev() {
        if coming.len() <= block as usize {
            coming.resize(block as usize + 1, NEVER);
        }
        next[at] = std::mem::replace(&mut coming[block as usize], at as u32);
    }
    next
}

impl Min {
    /// A cache of so many blocks that will see these accesses.
    pub fn new(accesses: &[u32], params: &[u64], setting: Setting) -> Self {
        Self {
            capacity: setting.capacity,
            always_inserts: params.first() == Some(&1),
            next: next_uses(accesses),
            at: 0,
            depth: 0,
            heap: Heap::new(),
        }
    }
}

impl Policy for Min {
    fn grow(&mut self, blocks: usize) {
        self.heap.grow(blocks);
    }

    fn begin(&mut self, _: &Request<'_>, _: &mut Vec<u32>) {
        self.depth = 0;
    }

    fn touch(&mut self, block: u32) -> Met {
        let key = Reverse((self.next.get(self.at).copied().unwrap_or(NEVER), self.depth, block));
        self.at += 1;
        self.depth += 1;
        if self.holds(block) {
            self.heap.set(block, key);
            return Met::Hit;
        }
        if self.heap.len() < self.capacity {
            self.heap.set(block, key);
            return Met::Miss;
        }
        match self.heap.first() {
            Some((furthest, victim)) if self.always_inserts || furthest < key => {
                self.heap.remove(victim);
                self.heap.set(block, key);
                Met::Eviction(victim)
            }
            _ => Met::Bypass,
        }
    }

    fn holds(&self, block: u32) -> bool {
        self.heap.key(block).is_some()
    }

    fn remove(&mut self, block: u32) -> bool {
        self.heap.remove(block)
    }

    fn len(&self) -> usize {
        self.heap.len()
    }
}
