//! GDSF with the cost of computing a block again: what is deep, and used often, stays longer.
//!
//! L. Cherkasova, "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy" (HP Labs HPL-98-69R1,
//! 1998): priority = age + uses * cost / size, where age is the priority of the last block that went. All blocks have one
//! size. The cost of a block is that of its prefill: a part that is the same for each, and attention over what is before
//! it. `attention` is the context at which both are equal; a block `d` blocks into its prompt costs `1 + d * block /
//! attention` (POLICIES 4.7). For Llama-3.1-8B that is 2 * 8.03e9 flops of weights over 4 * 32 layers * 4,096 flops per
//! token of context = 30,600 tokens.

use super::heap::Heap;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, Request, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "gdsf",
    doc: "greedy dual with the cost of computing a block again, which rises with its depth",
    params: &[Param {
        name: "attention",
        form: Form::Count,
        default: 32_768,
        range: (1, 1 << 40),
        doc: "context in tokens at which attention costs as much as the rest of a block's prefill",
    }],
    source: "Cherkasova, HPL-98-69R1, 1998; cost by depth as in POLICIES 4.7",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

fn make(params: &[u64], setting: Setting) -> Gdsf {
    let unit = u64::from(setting.unit_tokens.max(1));
    Gdsf {
        capacity: setting.capacity,
        even: (params.first().copied().unwrap_or(1) / unit).max(1),
        age: 0,
        now: 0,
        depth: 0,
        uses: Vec::new(),
        heap: Heap::new(),
    }
}

/// The cache. Keys are the priority and the time of the last use. A cost of 1 counts as `even`, so that all are whole.
struct Gdsf {
    capacity: usize,
    /// Blocks of context at which attention costs as much as the rest.
    even: u64,
    age: u64,
    now: u64,
    /// Blocks of the current request so far.
    depth: u64,
    uses: Vec<u64>,
    heap: Heap<(u64, u64)>,
}

impl Policy for Gdsf {
    fn grow(&mut self, blocks: usize) {
        self.heap.grow(blocks);
        self.uses.resize(self.uses.len().max(blocks), 0);
    }

    fn begin(&mut self, _: &Request<'_>, _: &mut Vec<u32>) {
        self.depth = 0;
    }

    fn touch(&mut self, block: u32) -> Met {
        self.now += 1;
        let cost = self.even.saturating_add(self.depth);
        self.depth += 1;
        let is_there = self.holds(block);
        if !is_there && self.capacity == 0 {
            return Met::Bypass;
        }
        let victim = if !is_there && self.heap.len() >= self.capacity { self.heap.pop() } else { None };
        if let Some(((priority, _), _)) = victim {
            self.age = priority;
        }
        let uses = &mut self.uses[block as usize];
        *uses = if is_there { *uses + 1 } else { 1 };
        let priority = self.age.saturating_add(uses.saturating_mul(cost));
        self.heap.set(block, (priority, self.now));
        match (is_there, victim) {
            (true, _) => Met::Hit,
            (false, None) => Met::Miss,
            (false, Some((_, victim))) => Met::Eviction(victim),
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
