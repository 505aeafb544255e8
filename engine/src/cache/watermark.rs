//! Eviction by watermark: once so much is full, a share of the blocks goes at once, in LRU order.
//!
//! Mooncake Store (`mooncake-store/include/types.h` and its design document; POLICIES 4.4): when use passes 95%, 5% of the
//! objects go, or as much more as use is above the watermark; objects used within the lease (5 s) stay. The store looks
//! from time to time; here, when a request arrives. A block that finds the cache full pushes out the one used longest ago,
//! and is not put in if that is under lease.

use super::lru::Lru;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, Request, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "watermark",
    doc: "once so much is full, a share of the blocks goes at once, in LRU order; what was just used stays",
    params: &[
        Param {
            name: "high",
            form: Form::Percent,
            default: 95,
            range: (1, 100),
            doc: "share of the room beyond which blocks go",
        },
        Param { name: "evict", form: Form::Percent, default: 5, range: (1, 100), doc: "share of the blocks that goes" },
        Param {
            name: "lease",
            form: Form::Time,
            default: 5_000_000_000,
            range: (0, i64::MAX as u64),
            doc: "time for which a block stays after its last use",
        },
    ],
    source: "Mooncake Store design document, eviction policy; POLICIES 4.4",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

fn make(params: &[u64], setting: Setting) -> Watermark {
    let at = |at: usize| params.get(at).copied().unwrap_or(0);
    Watermark {
        capacity: setting.capacity,
        high: at(0),
        evict: at(1),
        lease: at(2).min(i64::MAX as u64) as i64,
        now: 0,
        last: Vec::new(),
        lru: Lru::new(setting.capacity),
    }
}

/// The cache.
struct Watermark {
    capacity: usize,
    high: u64,
    evict: u64,
    lease: i64,
    now: i64,
    last: Vec<i64>,
    lru: Lru,
}

impl Watermark {
    /// The block used longest ago, unless it is under lease.
    fn free(&self) -> Option<u32> {
        self.lru.oldest().filter(|block| self.now.saturating_sub(self.last[*block as usize]) >= self.lease)
    }
}

impl Policy for Watermark {
    fn grow(&mut self, blocks: usize) {
        self.lru.grow(blocks);
        self.last.resize(self.last.len().max(blocks), 0);
    }

    fn begin(&mut self, request: &Request<'_>, dropped: &mut Vec<u32>) {
        self.now = request.time_ns;
        let (used, room) = (self.lru.len() as u128, self.capacity as u128);
        if used * 100 <= room * u128::from(self.high) {
            return;
        }
        // In percent of a percent of the room: what is above the mark, plus the share.
        let above = used * 100 - room * u128::from(self.high);
        let wanted = (used * (above + room * u128::from(self.evict))).div_ceil((room * 100).max(1));
        for _ in 0..wanted {
            let Some(block) = self.free() else { break };
            self.lru.pop_oldest();
            dropped.push(block);
        }
    }

    fn touch(&mut self, block: u32) -> Met {
        let is_full = !self.lru.holds(block) && self.lru.len() >= self.capacity;
        if is_full && self.free().is_none() {
            return Met::Bypass;
        }
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
