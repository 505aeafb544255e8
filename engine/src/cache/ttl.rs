//! TTL: a block that nobody used for so long is gone; LRU where room is short before.
//!
//! A use renews the time, as in the prompt caches that providers sell (POLICIES 5.1: five minutes, renewed by each use).
//! Blocks go when the first request after their time arrives.

use super::lru::Lru;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, Request, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "ttl",
    doc: "a block that nobody used for so long is gone; LRU where room is short before",
    params: &[Param {
        name: "idle",
        form: Form::Time,
        default: 300_000_000_000,
        range: (0, i64::MAX as u64),
        doc: "time without a use after which a block is gone",
    }],
    source: "prompt caching with a time to live renewed by use, POLICIES 5.1",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

fn make(params: &[u64], setting: Setting) -> Ttl {
    let idle = params.first().copied().unwrap_or(0).min(i64::MAX as u64) as i64;
    Ttl { idle, now: 0, last: Vec::new(), lru: Lru::new(setting.capacity) }
}

/// The cache. Uses come in order of time, so that the block to expire next is the one used longest ago.
struct Ttl {
    idle: i64,
    now: i64,
    last: Vec<i64>,
    lru: Lru,
}

impl Policy for Ttl {
    fn grow(&mut self, blocks: usize) {
        self.lru.grow(blocks);
        self.last.resize(self.last.len().max(blocks), 0);
    }

    fn begin(&mut self, request: &Request<'_>, dropped: &mut Vec<u32>) {
        self.now = request.time_ns;
        while let Some(block) = self.lru.oldest() {
            if self.now.saturating_sub(self.last[block as usize]) <= self.idle {
                break;
            }
            self.lru.pop_oldest();
            dropped.push(block);
        }
    }

    fn touch(&mut self, block: u32) -> Met {
        self.last[block as usize] = self.now;
        self.lru.touch(block)
    }

    fn holds(&self, block: u32) -> bool {
        self.lru.holds(block)
    }

    fn remove(&mut self, block: u32) -> bool {
        self.lru.remove(block)
    }

    fn len(&self) -> usize {
        self.lru.len()
    }
}
