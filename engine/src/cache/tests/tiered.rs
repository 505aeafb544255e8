//! Hierarchies against a plain reference, against single caches, and against their laws.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::tiers::{self, Frequency, Hierarchy, HierarchyCounts, Inclusion, PRESETS, Preset, Tier, Write};
use super::reference::Slow;
use super::*;

fn tier(rule: &str, capacity: usize, admit: u32, fetch_blocks: u32) -> Tier {
    Tier { name: rule.to_owned(), rule: Rule::parse(rule).unwrap(), capacity, admit, fetch_blocks }
}

fn hierarchy(tiers: Vec<Tier>, inclusion: Inclusion, write: Write) -> Hierarchy {
    Hierarchy { tiers, inclusion, write, frequency: Frequency::Uses }
}

/// The rules once more, over the plain caches: hits and writes of each tier, and misses.
struct Plain<'a> {
    rules: &'a Hierarchy,
    caches: Vec<Box<dyn Slow>>,
    frequency: HashMap<u32, (u32, i64)>,
    now: i64,
    hits: Vec<u64>,
    skipped: Vec<u64>,
    writes: Vec<u64>,
    refused: Vec<u64>,
    misses: u64,
}

impl Plain<'_> {
    fn has(&self, tier: usize, block: u32) -> bool {
        self.caches[tier].held().contains(&block)
    }

    fn frequency(&self, block: u32) -> u32 {
        let (count, since) = self.frequency.get(&block).copied().unwrap_or((0, 0));
        match self.rules.frequency {
            Frequency::Uses => count,
            Frequency::Doubling { decay_ns } => {
                (0..self.now / decay_ns - since).fold(count, |c, _| c.saturating_sub(1))
            }
        }
    }

    fn insert(&mut self, tier: usize, block: u32) {
        let used = self.caches[tier].touch(block);
        self.writes[tier] += u64::from(used.is_in);
        if let Some(gone) = used.victim.or((!used.is_in).then_some(block)) {
            self.fall(tier, gone);
        }
    }

    fn fall(&mut self, tier: usize, block: u32) {
        let below = tier + 1;
        if below == self.caches.len() || self.rules.write == Write::Through {
            return;
        }
        if self.rules.write == Write::Back && (below..self.caches.len()).any(|at| self.has(at, block)) {
            return;
        }
        self.bring(below, block);
    }

    fn bring(&mut self, tier: usize, block: u32) {
        if self.has(tier, block) {
            if self.rules.write == Write::OnEvict {
                self.caches[tier].touch(block);
            }
        } else if self.frequency(block) >= self.rules.tiers[tier].admit {
            self.insert(tier, block);
        } else {
            self.refused[tier] += 1;
        }
    }

    fn request(&mut self, request: &Request<'_>) {
        self.now = request.time_ns;
        for tier in 0..self.caches.len() {
            for block in self.caches[tier].begin(request) {
                self.fall(tier, block);
            }
        }
        let nearest: Vec<usize> = request
            .blocks
            .iter()
            .map(|&block| (0..self.caches.len()).find(|&tier| self.has(tier, block)).unwrap_or(99))
            .collect();
        for (at, &block) in request.blocks.iter().enumerate() {
            // The run around this block, by walking left and right.
            let same = |other: &usize| *other == nearest[at];
            let left = nearest[..at].iter().rev().take_while(|other| same(other)).count();
            let right = nearest[at..].iter().take_while(|other| same(other)).count();
            let is_long = nearest[at] == 99 || left + right >= self.rules.tiers[nearest[at]].fetch_blocks as usize;
            self.used(block, is_long);
        }
    }

    fn used(&mut self, block: u32, is_long: bool) {
        let now = self.frequency(block);
        let (next, since) = match self.rules.frequency {
            Frequency::Uses => (now + 1, 0),
            Frequency::Doubling { decay_ns } => (if now == 0 { 1 } else { now.saturating_mul(2) }, self.now / decay_ns),
        };
        self.frequency.insert(block, (next, since));
        match (0..self.caches.len()).find(|&tier| self.has(tier, block)) {
            Some(0) => {
                self.hits[0] += 1;
                self.caches[0].touch(block);
            }
            Some(tier) => {
                if is_long {
                    self.hits[tier] += 1;
                } else {
                    self.skipped[tier] += 1;
                    self.misses += 1;
                }
                if self.rules.inclusion == Inclusion::Exclusive {
                    self.caches[tier].remove(block);
                } else if is_long {
                    self.caches[tier].touch(block);
                }
                self.insert(0, block);
            }
            None => {
                self.misses += 1;
                self.insert(0, block);
            }
        }
        if self.rules.write == Write::Through {
            for tier in 1..self.caches.len() {
                self.bring(tier, block);
            }
        }
    }
}

fn plain(rules: &Hierarchy, trace: &Trace<'_>) -> (Vec<[u64; 4]>, u64) {
    let count = rules.tiers.len();
    let cache = |tier: &Tier| slow(&tier.rule.text(), tier.capacity, trace.unit_tokens(), &[]);
    let mut plain = Plain {
        rules,
        caches: rules.tiers.iter().map(cache).collect(),
        frequency: HashMap::new(),
        now: 0,
        hits: vec![0; count],
        skipped: vec![0; count],
        writes: vec![0; count],
        refused: vec![0; count],
        misses: 0,
    };
    trace.requests().for_each(|request| plain.request(&request));
    let of = |at: usize| [plain.hits[at], plain.skipped[at], plain.writes[at], plain.refused[at]];
    ((0..count).map(of).collect(), plain.misses)
}

fn shown(counts: &HierarchyCounts) -> (Vec<[u64; 4]>, u64) {
    let of = |tier: &tiers::TierCounts| [tier.hits, tier.skipped, tier.writes, tier.refused];
    (counts.tiers.iter().map(of).collect(), counts.misses)
}

/// Sums that hold for every hierarchy.
fn adds_up(rules: &Hierarchy, counts: &HierarchyCounts, accesses: usize) {
    assert_eq!(counts.accesses, accesses as u64);
    assert_eq!(counts.tiers.iter().map(|tier| tier.hits).sum::<u64>() + counts.misses, counts.accesses);
    for (tier, found) in rules.tiers.iter().zip(&counts.tiers) {
        assert!(found.peak <= tier.capacity as u64 && found.resident <= found.peak, "{tier:?} {found:?}");
        assert!(found.evictions + found.drops + found.resident <= found.writes, "{tier:?} {found:?}");
    }
}

proptest! {
    #[test]
    fn hierarchies_do_what_the_reference_does(
        (workload, sessions) in tree(),
        capacities in prop::collection::vec(0_usize..14, 1..4),
        picks in prop::collection::vec((0_usize..5, 0_u32..3, 0_u32..4), 3),
        (is_exclusive, write, is_doubling) in (any::<bool>(), 0_usize..3, any::<bool>()),
    ) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        let rules = ["lru", "lru(leaf_first=yes)", "arc-reenter", "watermark", "sieve"];
        let tiers: Vec<Tier> = capacities
            .iter()
            .zip(&picks)
            .map(|(capacity, (rule, admit, fetch))| tier(rules[*rule], *capacity, *admit, *fetch))
            .collect();
        let mut rules = hierarchy(tiers, Inclusion::Inclusive, [Write::Through, Write::Back, Write::OnEvict][write]);
        if is_exclusive && rules.write != Write::Through {
            rules.inclusion = Inclusion::Exclusive;
        }
        if is_doubling {
            rules.frequency = Frequency::Doubling { decay_ns: 100_000_000_000 };
        }
        let found = tiers::replay(&rules, &trace).unwrap();
        prop_assert_eq!(shown(&found), plain(&rules, &trace));
        adds_up(&rules, &found, trace.accesses().len());
    }

    #[test]
    fn one_tier_is_one_cache((workload, sessions) in tree(), capacity in 0_usize..20) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for text in TEXTS.iter().filter(|text| Rule::parse(text).unwrap().kind().start.is_some()) {
            let rules = hierarchy(vec![tier(text, capacity, 0, 0)], Inclusion::Inclusive, Write::Back);
            let (tiered, single) =
                (tiers::replay(&rules, &trace).unwrap(), replay(&Rule::parse(text).unwrap(), &trace, capacity).unwrap());
            prop_assert_eq!(
                (tiered.tiers[0].hits, tiered.misses, tiered.leading_hits, tiered.tiers[0].evictions),
                (single.hits, single.misses(), single.leading_hits, single.evictions),
                "{}", text
            );
        }
    }

    /// Exclusive LRU tiers that hand down what leaves are one LRU list, cut into pieces.
    #[test]
    fn exclusive_lru_tiers_are_one_lru((workload, _) in tree(), near in 1_usize..10, mid in 1_usize..10, far in 1_usize..10) {
        let trace = Trace::new(&workload);
        let tiers = [near, mid, far].map(|capacity| tier("lru", capacity, 0, 0)).to_vec();
        let found = tiers::replay(&hierarchy(tiers, Inclusion::Exclusive, Write::OnEvict), &trace).unwrap();
        let sizes = [near, near + mid, near + mid + far].map(|size| size as u64);
        let single = curve::lru(&trace, &sizes).points;
        let mut hits = 0;
        for (tier, single) in found.tiers.iter().zip(single) {
            hits += tier.hits;
            prop_assert_eq!(hits, single.hits);
        }
    }
}

#[test]
fn presets_run_on_a_real_trace() {
    let workload = workload("mooncake", 512, &real::mooncake());
    let trace = Trace::new(&workload);
    let sizes = [2_000, 10_000, 40_000];
    let mut misses = Vec::new();
    for preset in PRESETS {
        let rules = preset.hierarchy(&sizes[..preset.tiers.len()], 512).unwrap();
        let found = tiers::replay(&rules, &trace).unwrap();
        adds_up(&rules, &found, 288_500);
        misses.push((preset.name, found.misses, found.tiers));
    }
    let of = |name: &str| misses.iter().find(|known| known.0 == name).unwrap();
    // A tier more never hurts here; the first is the same cache in each.
    assert!(of("vllm").1 > of("vllm-offload").1 && of("vllm-offload").1 > of("lmcache").1);
    assert!(misses.iter().all(|known| known.2[0].hits == of("vllm").2[0].hits));
    // The filter of the disk spares it most writes.
    assert!(of("kvbm").2[2].writes * 2 < of("lmcache").2[2].writes, "{:?} {:?}", of("kvbm"), of("lmcache"));
    assert!(Preset::find("vlm").unwrap_err().advice().unwrap().contains("`vllm`"));
    assert!(Preset::find("vllm").unwrap().hierarchy(&[1, 2], 16).is_err());
    let mixed = hierarchy(vec![tier("lru", 1, 0, 0)], Inclusion::Exclusive, Write::Through);
    assert!(tiers::replay(&mixed, &trace).is_err());
    let blind = hierarchy(vec![tier("session", 1, 0, 0)], Inclusion::Exclusive, Write::Back);
    assert!(tiers::replay(&blind, &trace).unwrap_err().to_string().contains("session"));
    let knowing = hierarchy(vec![tier("min", 1, 0, 0)], Inclusion::Exclusive, Write::Back);
    assert!(tiers::replay(&knowing, &trace).unwrap_err().to_string().contains("knows the future"));
}
