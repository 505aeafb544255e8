//! Block caches: which blocks of past prompts are still there when a request needs them.
//!
//! # The order of accesses, and what a hit is
//!
//! Requests come in order of arrival; those of one instant keep the order of the trace. A request uses each of its blocks
//! once, from the first of the prompt to the last, the partial last one included. A use of a block that is there is a
//! *hit*. A use of one that is not is a *miss*, and puts it in; if the cache is full, the policy names another that goes:
//! an *eviction*. A block counts as a hit even where one before it in the prompt missed. Such hits save nothing in an
//! engine that needs a prefix without gaps, so that [`Counts`] also has the hits before the first miss of each request,
//! in blocks, tokens, full blocks and as the mean over requests. Nothing is pinned: within one request a block may push
//! out an earlier one.
//!
//! This is the rule under which LRU makes 12,831, 60,921 and 104,924 hits of 288,500 on the Mooncake conversation trace with
//! 1,000, 10,000 and 100,000 blocks (from the last block of a prompt to the first it would make 60,914 with 10,000).
//!
//! # Laws
//!
//! Hits and misses add up to accesses. Blocks that are there are misses without bypasses, evictions and drops. No more are
//! there than fit, at any time. LRU is a stack algorithm: what a cache holds, a larger one holds too (Mattson et al., IBM
//! Systems Journal 9(2), 1970). No policy makes more hits than [`min`], whose blocks form whole prefixes at any time.
//!
//! Adding a policy is one file under `cache/` with a `pub static KIND`, its `mod` line and its entry in [`ALL`].

mod arc;
pub mod asset;
pub mod asset_tables;
pub mod coarse;
pub mod curve;
pub mod distance;
pub mod fetch;
mod fifo;
mod gdsf;
mod heap;
mod lfu;
pub mod life;
pub mod life_tables;
pub(crate) mod list;
pub mod lru;
pub mod min;
pub mod pages;
pub mod recycle;
mod rule;
pub mod s3_fifo;
pub mod sample;
mod session;
pub mod sieve;
pub mod tables;
pub mod tiers;
pub mod trace;
mod ttl;
mod two_q;
mod watermark;
pub mod way;

pub use rule::{Each, Form, Kind, Param, Params, Rule, Setting, Start, count};
pub use trace::{Request, Trace};

use crate::error::Result;

/// Every policy, in the order in which they are listed.
pub static ALL: &[&Kind] = &[
    &lru::KIND,
    &fifo::KIND,
    &lfu::KIND,
    &two_q::KIND,
    &arc::KIND,
    &arc::REENTER,
    &sieve::KIND,
    &s3_fifo::KIND,
    &gdsf::KIND,
    &ttl::KIND,
    &session::KIND,
    &watermark::KIND,
    &min::KIND,
];

/// What a use of a block met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// The block was there.
    Hit,
    /// It was not, and there was room.
    Miss,
    /// It was not, and this one had to go.
    Eviction(u32),
    /// It was not, and was not put in.
    Bypass,
}

/// What decides which blocks a cache holds. Blocks are dense numbers, see [`crate::number`].
pub trait Policy {
    /// Makes room for block numbers below `blocks`; later uses stay below it.
    fn grow(&mut self, blocks: usize);

    /// A request begins. Blocks that leave without need for their room are appended to `dropped`.
    fn begin(&mut self, request: &Request<'_>, dropped: &mut Vec<u32>) {
        let _ = (request, dropped);
    }

    /// Uses a block; one that is not there is put in.
    fn touch(&mut self, block: u32) -> Met;

    /// Whether the block is there.
    fn holds(&self, block: u32) -> bool;

    /// Whether the policy still knows of the block: it is there, or a ghost of it is.
    fn remembers(&self, block: u32) -> bool {
        self.holds(block)
    }

    /// A block other than the evicted one that the last use made the policy forget: a ghost that had to go.
    fn forgotten(&mut self) -> Option<u32> {
        None
    }

    /// Takes a block out, without a trace in what the policy remembers of the past; whether it was there.
    fn remove(&mut self, block: u32) -> bool;

    /// Blocks that are there.
    fn len(&self) -> usize;

    /// Whether none is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a replay counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    /// Uses of blocks.
    pub accesses: u64,
    /// Uses of blocks that were there.
    pub hits: u64,
    /// Misses that did not put their block in.
    pub bypasses: u64,
    /// Blocks that had to go for another.
    pub evictions: u64,
    /// Blocks that went without need for their room: they had expired, or a watermark was passed.
    pub drops: u64,
    /// Blocks there at the end.
    pub resident: u64,
    /// Most blocks there at any time.
    pub peak: u64,
    /// Requests.
    pub requests: u64,
    /// Hits before the first miss of their request.
    pub leading_hits: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Prompt tokens in leading hits; those of a partial last block count as far as the prompt goes.
    pub hit_tokens: u64,
    /// Full blocks of all prompts.
    pub full_blocks: u64,
    /// Full blocks among the leading hits.
    pub full_hits: u64,
    /// Sum over requests of the share of their prompt tokens in leading hits.
    pub request_ratios: f64,
}

impl Counts {
    /// Uses of blocks that were not there.
    pub fn misses(&self) -> u64 {
        self.accesses - self.hits
    }

    /// Hits over accesses; `None` without accesses.
    pub fn block_ratio(&self) -> Option<f64> {
        share(self.hits, self.accesses)
    }

    /// Leading hits over accesses.
    pub fn leading_ratio(&self) -> Option<f64> {
        share(self.leading_hits, self.accesses)
    }

    /// Prompt tokens in leading hits over prompt tokens.
    pub fn token_ratio(&self) -> Option<f64> {
        share(self.hit_tokens, self.prompt_tokens)
    }

    /// Full blocks among leading hits over full blocks.
    pub fn full_block_ratio(&self) -> Option<f64> {
        share(self.full_hits, self.full_blocks)
    }

    /// Mean over requests of the share of their prompt tokens in leading hits; a request without a prompt counts as 0.
    pub fn mean_request_ratio(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.request_ratios / self.requests as f64)
    }

    /// Adds one use of a block.
    fn count(&mut self, met: Met) {
        self.accesses += 1;
        match met {
            Met::Hit => self.hits += 1,
            Met::Miss => self.resident += 1,
            Met::Eviction(_) => self.evictions += 1,
            Met::Bypass => self.bypasses += 1,
        }
    }

    /// Adds a request of which so many blocks hit before the first miss.
    fn request(&mut self, request: &Request<'_>, leading: u64) {
        let (unit, prompt) = (u64::from(request.unit_tokens), u64::from(request.prompt_tokens));
        let tokens = leading.saturating_mul(unit).min(prompt);
        let full = prompt.checked_div(unit).unwrap_or(0).min(request.blocks.len() as u64);
        self.requests += 1;
        self.leading_hits += leading;
        self.prompt_tokens += prompt;
        self.hit_tokens += tokens;
        self.full_blocks += full;
        self.full_hits += leading.min(full);
        self.request_ratios += if prompt == 0 { 0.0 } else { tokens as f64 / prompt as f64 };
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Uses blocks in order, as one request of unknown length; adds to the counts. The fast path for bare sequences.
pub fn touch_all<P: Policy + ?Sized>(policy: &mut P, blocks: &[u32], counts: &mut Counts) {
    let (mut hits, mut misses, mut evictions) = (0, 0, 0);
    for &block in blocks {
        match policy.touch(block) {
            Met::Hit => hits += 1,
            Met::Miss => misses += 1,
            Met::Eviction(_) => evictions += 1,
            Met::Bypass => {}
        }
    }
    let uses = blocks.len() as u64;
    counts.accesses += uses;
    counts.hits += hits;
    counts.evictions += evictions;
    counts.bypasses += uses - hits - misses - evictions;
    counts.resident = policy.len() as u64;
    counts.peak = counts.peak.max(counts.resident);
}

/// Replays a trace. `each` sees every use of a block and what it met.
pub fn play<P: Policy + ?Sized>(policy: &mut P, trace: &Trace<'_>, mut each: impl FnMut(u32, Met)) -> Counts {
    let mut counts = Counts::default();
    let mut dropped = Vec::new();
    policy.grow(trace.distinct());
    for request in trace.requests() {
        policy.begin(&request, &mut dropped);
        counts.drops += dropped.len() as u64;
        counts.resident -= dropped.len() as u64;
        dropped.clear();
        let mut leading = None;
        for (at, &block) in request.blocks.iter().enumerate() {
            let met = policy.touch(block);
            if leading.is_none() && met != Met::Hit {
                leading = Some(at);
            }
            counts.count(met);
            counts.peak = counts.peak.max(counts.resident);
            each(block, met);
        }
        counts.request(&request, leading.unwrap_or(request.blocks.len()) as u64);
    }
    counts
}

/// Replays a trace under a rule with so many blocks.
///
/// # Errors
/// A rule that needs what the trace lacks.
pub fn replay(rule: &Rule, trace: &Trace<'_>, capacity: usize) -> Result<Counts> {
    rule.replay(trace, capacity, &mut |_, _| {})
}

#[cfg(test)]
mod tests;
