//! Caches behind caches: what leaves the near one may still be in a farther one.
//!
//! Tier 0 is the nearest. Requests use their blocks in order, as with one cache ([`super`]). A use looks for its block in
//! each tier from the nearest:
//!
//! * It is in tier 0: a hit there.
//! * It is in tier `i`: a hit in tier `i`, which is read; the block is put into tier 0. If the tiers are *exclusive*, it
//!   leaves tier `i`; if they are *inclusive*, the copy stays and counts as used there.
//! * Tier `i` has it, but fetches only longer runs: blocks of one request, in a row, whose nearest copies were in tier `i`
//!   when the request began, are fetched if they are at least `fetch_blocks`. A shorter run is computed again and counts
//!   as *skipped*, a miss.
//! * It is nowhere: a miss. It is computed and put into tier 0.
//!
//! A block reaches a farther tier in one of three ways. *Through*: at each use it is also written to every farther tier
//! that lacks it (which exclusive tiers rule out). *Back*: when it leaves a tier, it is written to the next one, unless a farther tier has a copy. *On evict*: when it
//! leaves a tier, it goes to the next one in any case; if that has it, it counts as used there. A tier takes a block
//! only if its frequency is at least `admit`; what is refused is lost, or stays where other copies are. A frequency is
//! the uses of a block so far, or, with `doubling`, 1 at first and twice as much with each further use, less 1 for each
//! `decay_ns` that passed.
//!
//! This module moves blocks and counts them. What that takes in bytes, links and time is for the cost engine.

use super::{Met, Policy, Request, Rule, Setting, Trace};
use crate::error::{Error, Result};

/// What happens to the copy that a farther tier had, when a block is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inclusion {
    /// It stays.
    Inclusive,
    /// It goes: a block is in one tier only.
    Exclusive,
}

/// How blocks reach farther tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// At each use, where they are not yet.
    Through,
    /// When they leave the nearer tier, unless a farther one has a copy.
    Back,
    /// When they leave the nearer tier.
    OnEvict,
}

/// How a block's frequency is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frequency {
    /// Its uses.
    Uses,
    /// 1 at first, doubled by each further use, less 1 for each such time that passed (Dynamo KVBM).
    Doubling {
        /// The time, ns.
        decay_ns: i64,
    },
}

/// One tier.
#[derive(Debug, Clone)]
pub struct Tier {
    /// What the user calls it.
    pub name: String,
    /// What decides which blocks it holds.
    pub rule: Rule,
    /// Blocks that fit.
    pub capacity: usize,
    /// The frequency from which on it takes a block.
    pub admit: u32,
    /// Blocks in a row from which on it is fetched from.
    pub fetch_blocks: u32,
}

/// Several tiers.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    /// The nearest first.
    pub tiers: Vec<Tier>,
    /// What fetching leaves behind.
    pub inclusion: Inclusion,
    /// How blocks come down.
    pub write: Write,
    /// What admission goes by.
    pub frequency: Frequency,
}

/// What happened in one tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Uses whose nearest copy was here and was used.
    pub hits: u64,
    /// Uses whose nearest copy was here, in runs too short to be fetched.
    pub skipped: u64,
    /// Blocks written here that were not there.
    pub writes: u64,
    /// Blocks that were refused: their frequency was too low.
    pub refused: u64,
    /// Blocks that had to go.
    pub evictions: u64,
    /// Blocks that went without need.
    pub drops: u64,
    /// Blocks there at the end.
    pub resident: u64,
    /// Most blocks there at any time.
    pub peak: u64,
    /// Blocks written here and not used from here before they left, or the trace ended.
    pub never_read: u64,
}

impl TierCounts {
    /// Adds what happened in a tier of the same kind elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.skipped += other.skipped;
        self.writes += other.writes;
        self.refused += other.refused;
        self.evictions += other.evictions;
        self.drops += other.drops;
        self.resident += other.resident;
        self.peak += other.peak;
        self.never_read += other.never_read;
    }
}

/// What a replay of a hierarchy counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HierarchyCounts {
    /// Uses of blocks.
    pub accesses: u64,
    /// Uses that had to be computed, skipped ones included.
    pub misses: u64,
    /// Of the hits, those before the first miss of their request.
    pub leading_hits: u64,
    /// By tier.
    pub tiers: Vec<TierCounts>,
    /// Copies at the end beyond the first of each block.
    pub copies: u64,
}

/// A replay at work.
struct State<'a> {
    rules: &'a Hierarchy,
    caches: Vec<Box<dyn Policy>>,
    counts: HierarchyCounts,
    /// Uses, or the decaying frequency with the period in which it was last counted.
    frequencies: Vec<(u32, i64)>,
    /// By tier and block, whether it was written there and not used from there since.
    unread: Vec<Vec<bool>>,
    now: i64,
}

/// What is asked before each request's blocks are used: the request, for each of its blocks the nearest tier that holds
/// it, and whether it may be fetched from there, which may be changed.
pub type Ask<'a> = &'a mut dyn FnMut(&Request<'_>, &[Option<usize>], &mut [bool]);

/// Replays a trace on a hierarchy.
///
/// # Errors
/// No tier, a policy that knows the future, or one that needs sessions on a trace that names none.
pub fn replay(hierarchy: &Hierarchy, trace: &Trace<'_>) -> Result<HierarchyCounts> {
    replay_asking(hierarchy, trace, &mut |_, _, _| {})
}

/// As [`replay`]; `ask` sees where each request's blocks are, and may refuse to fetch them. What is refused counts as
/// skipped.
///
/// # Errors
/// Those of [`replay`].
pub fn replay_asking(hierarchy: &Hierarchy, trace: &Trace<'_>, ask: Ask<'_>) -> Result<HierarchyCounts> {
    let mut state = State::new(hierarchy, trace)?;
    let (mut nearest, mut found, mut dropped) = (Vec::new(), Vec::new(), Vec::new());
    for request in trace.requests() {
        state.now = request.time_ns;
        for tier in 0..state.caches.len() {
            state.caches[tier].begin(&request, &mut dropped);
            state.counts.tiers[tier].drops += dropped.len() as u64;
            for block in dropped.drain(..) {
                state.left(tier, block);
            }
        }
        state.look_up(&request, &mut nearest, &mut found);
        ask(&request, &nearest, &mut found);
        let mut is_leading = true;
        for (&block, &is_fetched) in request.blocks.iter().zip(&found) {
            is_leading &= state.touch(block, is_fetched);
            state.counts.leading_hits += u64::from(is_leading);
        }
    }
    let ends = state.caches.iter().zip(&state.unread);
    for (counts, (cache, unread)) in state.counts.tiers.iter_mut().zip(ends) {
        counts.resident = cache.len() as u64;
        counts.never_read += unread.iter().filter(|is_unread| **is_unread).count() as u64;
    }
    let resident: u64 = state.counts.tiers.iter().map(|tier| tier.resident).sum();
    let held = (0..trace.distinct() as u32).filter(|&block| state.nearest(block).is_some()).count() as u64;
    state.counts.copies = resident - held;
    Ok(state.counts)
}

impl<'a> State<'a> {
    fn new(rules: &'a Hierarchy, trace: &Trace<'_>) -> Result<Self> {
        if rules.tiers.is_empty() {
            return Err(Error::usage("expected at least one tier, found none"));
        }
        if rules.inclusion == Inclusion::Exclusive && rules.write == Write::Through {
            return Err(Error::usage("expected one copy of each block in exclusive tiers, found writing through")
                .hint("write back or on evict, or make the tiers inclusive"));
        }
        let start = |tier: &Tier| {
            if tier.rule.kind().needs_sessions && !trace.has_sessions() {
                return Err(Error::run(format!("`{}` needs to know the session of each request", tier.rule)));
            }
            let mut cache = tier.rule.start(Setting { capacity: tier.capacity, unit_tokens: trace.unit_tokens() })?;
            cache.grow(trace.distinct());
            Ok(cache)
        };
        Ok(Self {
            rules,
            caches: rules.tiers.iter().map(start).collect::<Result<_>>()?,
            counts: HierarchyCounts {
                tiers: vec![TierCounts::default(); rules.tiers.len()],
                ..HierarchyCounts::default()
            },
            frequencies: vec![(0, 0); trace.distinct()],
            unread: vec![vec![false; trace.distinct()]; rules.tiers.len()],
            now: 0,
        })
    }

    fn nearest(&self, block: u32) -> Option<usize> {
        self.caches.iter().position(|cache| cache.holds(block))
    }

    /// For each block of a request, the nearest tier that holds it, and whether the run that it is in is long enough to be
    /// fetched.
    fn look_up(&self, request: &Request<'_>, nearest: &mut Vec<Option<usize>>, found: &mut Vec<bool>) {
        nearest.clear();
        nearest.extend(request.blocks.iter().map(|&block| self.nearest(block)));
        found.clear();
        for run in nearest.chunk_by(|a, b| a == b) {
            let least = run.first().copied().flatten().map_or(0, |tier| self.rules.tiers[tier].fetch_blocks);
            found.extend(run.iter().map(|_| run.len() as u64 >= u64::from(least)));
        }
    }

    /// Counts a use, and gives the frequency.
    fn used(&mut self, block: u32) {
        let known = self.frequencies[block as usize];
        self.frequencies[block as usize] = match self.rules.frequency {
            Frequency::Uses => (known.0.saturating_add(1), 0),
            Frequency::Doubling { decay_ns } => {
                let period = self.now / decay_ns.max(1);
                let left = decayed(known, period);
                (if left == 0 { 1 } else { left.saturating_mul(2) }, period)
            }
        };
    }

    fn frequency(&self, block: u32) -> u32 {
        let known = self.frequencies[block as usize];
        match self.rules.frequency {
            Frequency::Uses => known.0,
            Frequency::Doubling { decay_ns } => decayed(known, self.now / decay_ns.max(1)),
        }
    }

    /// Uses a block; whether it was a hit. `is_fetched`: its run is long enough.
    fn touch(&mut self, block: u32, is_fetched: bool) -> bool {
        self.counts.accesses += 1;
        self.used(block);
        let nearest = self.nearest(block);
        let is_hit = match nearest {
            Some(tier) if tier == 0 || is_fetched => {
                self.counts.tiers[tier].hits += 1;
                self.unread[tier][block as usize] = false;
                true
            }
            Some(tier) => {
                self.counts.tiers[tier].skipped += 1;
                false
            }
            None => false,
        };
        self.counts.misses += u64::from(!is_hit);
        match nearest {
            Some(0) => {
                self.caches[0].touch(block);
            }
            Some(tier) => {
                match self.rules.inclusion {
                    Inclusion::Exclusive => {
                        self.caches[tier].remove(block);
                        let is_unread = std::mem::take(&mut self.unread[tier][block as usize]);
                        self.counts.tiers[tier].never_read += u64::from(is_unread);
                    }
                    Inclusion::Inclusive if is_hit => {
                        self.caches[tier].touch(block);
                    }
                    Inclusion::Inclusive => {}
                }
                self.put(0, block);
            }
            None => self.put(0, block),
        }
        if self.rules.write == Write::Through {
            for farther in 1..self.caches.len() {
                self.offer(farther, block);
            }
        }
        is_hit
    }

    /// Puts a block into a tier that does not hold it.
    fn put(&mut self, tier: usize, block: u32) {
        let met = self.caches[tier].touch(block);
        let counts = &mut self.counts.tiers[tier];
        let is_written = matches!(met, Met::Miss | Met::Eviction(_));
        counts.writes += u64::from(is_written);
        self.unread[tier][block as usize] |= is_written;
        counts.peak = counts.peak.max(self.caches[tier].len() as u64);
        match met {
            Met::Eviction(victim) => {
                counts.evictions += 1;
                self.left(tier, victim);
            }
            // What a tier does not take goes on as if it had left.
            Met::Bypass => self.left(tier, block),
            Met::Hit | Met::Miss => {}
        }
    }

    /// Writes a block to a tier, if it may come in.
    fn offer(&mut self, tier: usize, block: u32) {
        if self.caches[tier].holds(block) {
            return;
        }
        if self.frequency(block) < self.rules.tiers[tier].admit {
            self.counts.tiers[tier].refused += 1;
        } else {
            self.put(tier, block);
        }
    }

    /// A block has left a tier.
    fn left(&mut self, tier: usize, block: u32) {
        let is_unread = std::mem::take(&mut self.unread[tier][block as usize]);
        self.counts.tiers[tier].never_read += u64::from(is_unread);
        let next = tier + 1;
        if next >= self.caches.len() || self.rules.write == Write::Through {
            return;
        }
        let has_copy = self.caches[next..].iter().any(|cache| cache.holds(block));
        match self.rules.write {
            Write::Back if has_copy => {}
            Write::OnEvict if self.caches[next].holds(block) => {
                self.caches[next].touch(block);
            }
            _ => self.offer(next, block),
        }
    }
}

/// A frequency after the periods that passed.
fn decayed((frequency, counted): (u32, i64), period: i64) -> u32 {
    let passed = u32::try_from(period.saturating_sub(counted)).unwrap_or(u32::MAX);
    frequency.saturating_sub(passed)
}

/// A hierarchy that ships, by name.
#[derive(Debug)]
pub struct Preset {
    /// What the user types.
    pub name: &'static str,
    /// One sentence.
    pub doc: &'static str,
    /// Names of its tiers, and their policies.
    pub tiers: &'static [PresetTier],
    /// What fetching leaves behind.
    pub inclusion: Inclusion,
    /// How blocks come down.
    pub write: Write,
    /// What admission goes by.
    pub frequency: Frequency,
    /// Where this is from, and what is assumed.
    pub source: &'static str,
}

/// A tier of a preset.
#[derive(Debug)]
pub struct PresetTier {
    /// Its name.
    pub name: &'static str,
    /// Its policy.
    pub rule: &'static str,
    /// Frequency from which on it takes a block.
    pub admit: u32,
    /// Tokens in a row from which on it is fetched from.
    pub fetch_tokens: u32,
}

const fn tier(name: &'static str, rule: &'static str) -> PresetTier {
    PresetTier { name, rule, admit: 0, fetch_tokens: 0 }
}

const LEAF_FIRST: &str = "lru(leaf_first=yes)";

/// Every preset, in the order in which they are listed.
pub static PRESETS: &[Preset] = &[
    Preset {
        name: "vllm",
        doc: "vLLM's prefix cache: LRU in HBM, the deepest block of a request first",
        tiers: &[tier("hbm", LEAF_FIRST)],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
        source: "vLLM docs/design/prefix_caching.md (POLICIES 4.1); blocks of running requests are not pinned here",
    },
    Preset {
        name: "vllm-offload",
        doc: "vLLM with its CPU offload: each computed block is also stored in host memory, under ARC as vLLM has it",
        tiers: &[tier("hbm", LEAF_FIRST), tier("dram", "arc-reenter")],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
        source: "vLLM vllm/v1/kv_offload/cpu (POLICIES 4.1): policies `lru`, its default, and `arc`, taken here",
    },
    Preset {
        name: "hicache",
        doc: "SGLang's HiCache: radix LRU in HBM and host memory, shared storage read in runs of 256 tokens or more",
        tiers: &[
            tier("hbm", LEAF_FIRST),
            tier("dram", LEAF_FIRST),
            PresetTier { fetch_tokens: 256, ..tier("storage", "lru") },
        ],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
        source: "SGLang docs/advanced_features/hicache_design.md (POLICIES 4.2), write_through; LRU of the storage is assumed",
    },
    Preset {
        name: "hicache-selective",
        doc: "the same with write_through_selective: only blocks used twice go to farther tiers",
        tiers: &[
            tier("hbm", LEAF_FIRST),
            PresetTier { admit: 2, ..tier("dram", LEAF_FIRST) },
            PresetTier { admit: 2, fetch_tokens: 256, ..tier("storage", "lru") },
        ],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
        source: "POLICIES 4.2; the threshold of 2 is assumed",
    },
    Preset {
        name: "lmcache",
        doc: "LMCache: each computed chunk is also stored in host memory and on disk, both under LRU",
        tiers: &[tier("hbm", LEAF_FIRST), tier("dram", "lru"), tier("disk", "lru")],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
        source: "LMCache docs, configurations.rst (POLICIES 4.3): LRU, min_retrieve_tokens 0; its chunks are 256 tokens, here \
                 they are the trace's blocks",
    },
    Preset {
        name: "mooncake",
        doc: "Mooncake Store: RAM that is freed 5% at a time above 95%, spared for 5 s after a use, then SSD",
        tiers: &[tier("hbm", LEAF_FIRST), tier("dram", "watermark"), tier("ssd", "lru")],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
        source: "Mooncake Store design document (POLICIES 4.4); pins are left out, LRU of the SSD is assumed",
    },
    Preset {
        name: "kvbm",
        doc: "Dynamo's KVBM: device, pinned host memory, disk; the disk takes only blocks of frequency 2 or more",
        tiers: &[tier("device", LEAF_FIRST), tier("host", "lru"), PresetTier { admit: 2, ..tier("disk", "lru") }],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Doubling { decay_ns: 600_000_000_000 },
        source: "ai-dynamo/dynamo, filter of disk offload: frequency 2, decay every 600 s (POLICIES 4.5); LRU of host and \
                 disk is assumed",
    },
];

impl Preset {
    /// The preset of this name.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn find(name: &str) -> Result<&'static Self> {
        let found = PRESETS.iter().find(|preset| preset.name == name);
        found.ok_or_else(|| crate::error::unknown("cache preset", name, PRESETS.iter().map(|preset| preset.name)))
    }

    /// The hierarchy with these sizes, in blocks of so many tokens.
    ///
    /// # Errors
    /// Another number of sizes than tiers.
    pub fn hierarchy(&self, blocks: &[u64], unit_tokens: u32) -> Result<Hierarchy> {
        if blocks.len() != self.tiers.len() {
            let names: Vec<&str> = self.tiers.iter().map(|tier| tier.name).collect();
            return Err(Error::usage(format!(
                "expected {} sizes for `{}`, found {}",
                names.len(),
                self.name,
                blocks.len()
            ))
            .hint(format!("its tiers are {}", names.join(", "))));
        }
        let tier = |(tier, &blocks): (&PresetTier, &u64)| {
            Ok(Tier {
                name: tier.name.to_owned(),
                rule: Rule::parse(tier.rule)?,
                capacity: usize::try_from(blocks).unwrap_or(usize::MAX),
                admit: tier.admit,
                fetch_blocks: tier.fetch_tokens.div_ceil(unit_tokens.max(1)),
            })
        };
        Ok(Hierarchy {
            tiers: self.tiers.iter().zip(blocks).map(tier).collect::<Result<_>>()?,
            inclusion: self.inclusion,
            write: self.write,
            frequency: self.frequency,
        })
    }
}
