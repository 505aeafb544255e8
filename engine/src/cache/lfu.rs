//! LFU: the block that was used least often since it was put in goes, among equals the one used longest ago.
//!
//! With `halve`, all counts are halved (rounded down) after so many uses of blocks, so that old fame fades.

use super::heap::Heap;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "lfu",
    doc: "the block used least often since it was put in goes, among equals the one used longest ago",
    params: &[Param {
        name: "halve",
        form: Form::Count,
        default: 0,
        range: (0, u64::MAX),
        doc: "uses of blocks after which all counts are halved; 0 for never",
    }],
    source: "LFU with dynamic aging after Arlitt et al., Performance Evaluation 39, 2000; halving as in POLICIES 4.7",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

fn make(params: &[u64], setting: Setting) -> Lfu {
    Lfu { capacity: setting.capacity, halve: params.first().copied().unwrap_or(0), now: 0, heap: Heap::new() }
}

/// The cache. Keys are the count and the time of the last use.
struct Lfu {
    capacity: usize,
    halve: u64,
    now: u64,
    heap: Heap<(u64, u64)>,
}

impl Lfu {
    fn used(&mut self, block: u32) -> Met {
        if let Some((count, _)) = self.heap.key(block) {
            self.heap.set(block, (count + 1, self.now));
            return Met::Hit;
        }
        if self.capacity == 0 {
            return Met::Bypass;
        }
        let victim = if self.heap.len() >= self.capacity { self.heap.pop() } else { None };
        self.heap.set(block, (1, self.now));
        victim.map_or(Met::Miss, |victim| Met::Eviction(victim.1))
    }
}

impl Policy for Lfu {
    fn grow(&mut self, blocks: usize) {
        self.heap.grow(blocks);
    }

    fn touch(&mut self, block: u32) -> Met {
        self.now += 1;
        let met = self.used(block);
        if self.halve > 0 && self.now.is_multiple_of(self.halve) {
            self.heap.rekey(|(count, last)| (count / 2, last));
        }
        met
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
