//! Laws that hold for any trace.

use proptest::prelude::*;

use super::super::min::Min;
use super::super::sample::{estimate, sample};
use super::*;

/// Every policy as it is typed by default, and the variants.
fn rules() -> Vec<Rule> {
    let mut texts: Vec<&str> = ALL.iter().map(|kind| kind.name).collect();
    texts.extend([
        "lru(leaf_first=yes)",
        "lfu(halve=50)",
        "session(ended=yes)",
        "min(always_insert=yes)",
        "ttl(idle=3min)",
    ]);
    texts.into_iter().map(|text| Rule::parse(text).unwrap()).collect()
}

/// Hits of every policy, none above MIN's; sums add up.
fn bounded(trace: &Trace<'_>, capacity: usize) {
    let bound = replay(&Rule::parse("min").unwrap(), trace, capacity).unwrap();
    for rule in rules() {
        let counts = replay(&rule, trace, capacity).unwrap();
        assert!(counts.hits <= bound.hits, "{rule} with {capacity} blocks: {} > {}", counts.hits, bound.hits);
        assert_eq!(counts.hits + counts.misses(), trace.accesses().len() as u64, "{rule}");
        let put_in = counts.misses() - counts.bypasses;
        assert_eq!(counts.resident, put_in - counts.evictions - counts.drops, "{rule} with {capacity} blocks");
        assert!(counts.peak <= capacity as u64, "{rule} with {capacity} blocks");
        assert!(counts.leading_hits <= counts.hits && counts.full_hits <= counts.leading_hits, "{rule}");
        assert!(counts.hit_tokens <= counts.prompt_tokens && counts.full_blocks <= counts.accesses, "{rule}");
    }
}

/// Follows a policy use by use: what it says it holds is what its answers imply, and never more than fits.
fn followed(policy: &mut dyn Policy, trace: &Trace<'_>, capacity: usize, mut check: impl FnMut(&dyn Policy)) {
    policy.grow(trace.distinct());
    let mut held = vec![false; trace.distinct()];
    let mut dropped = Vec::new();
    for request in trace.requests() {
        policy.begin(&request, &mut dropped);
        for block in dropped.drain(..) {
            assert!(std::mem::replace(&mut held[block as usize], false), "block {block} was not there");
        }
        for &block in request.blocks {
            let met = policy.touch(block);
            assert_eq!(met == Met::Hit, held[block as usize], "block {block}");
            if let Met::Eviction(victim) = met {
                assert!(std::mem::replace(&mut held[victim as usize], false), "victim {victim}");
            }
            held[block as usize] = met != Met::Bypass;
            assert!(policy.len() <= capacity);
            assert_eq!(policy.len(), held.iter().filter(|is_held| **is_held).count());
            check(policy);
        }
    }
    assert!((0..trace.distinct()).all(|block| policy.holds(block as u32) == held[block]));
}

/// The block before each one in its prompt.
fn parents(workload: &Workload) -> Vec<(u32, u32)> {
    let pairs = |at| workload.units_of(at).windows(2).map(|pair| (pair[1], pair[0]));
    let mut pairs: Vec<(u32, u32)> = (0..workload.len()).flat_map(pairs).collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

proptest! {
    #[test]
    fn no_policy_beats_min_and_counts_add_up((workload, sessions) in tree(), capacity in 0_usize..30) {
        bounded(&Trace::with_sessions(&workload, Some(&sessions)), capacity);
    }

    #[test]
    fn what_is_held_follows_from_what_was_met((workload, sessions) in tree(), capacity in 0_usize..20) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        let setting = Setting { capacity, unit_tokens: 16 };
        for rule in rules().iter().filter(|rule| rule.kind().start.is_some()) {
            followed(rule.start(setting).unwrap().as_mut(), &trace, capacity, |_| {});
        }
    }

    /// At every step, each block that is there has its parent there.
    #[test]
    fn min_holds_whole_prefixes((workload, _) in tree(), capacity in 0_usize..20) {
        let trace = Trace::new(&workload);
        let parents = parents(&workload);
        let mut min = Min::new(trace.accesses(), &[0], Setting { capacity, unit_tokens: 16 });
        followed(&mut min, &trace, capacity, |min| {
            for (child, parent) in &parents {
                assert!(!min.holds(*child) || min.holds(*parent), "{child} without {parent}");
            }
        });
    }

    #[test]
    fn a_larger_lru_holds_what_a_smaller_one_holds((workload, _) in tree(), small in 0_usize..20, more in 1_usize..9) {
        let trace = Trace::new(&workload);
        let (mut near, mut far) = (lru::Lru::new(small), lru::Lru::new(small + more));
        near.grow(trace.distinct());
        far.grow(trace.distinct());
        for &block in trace.accesses() {
            let (near_met, far_met) = (near.touch(block), far.touch(block));
            prop_assert!(near_met != Met::Hit || far_met == Met::Hit);
            prop_assert!((0..trace.distinct() as u32).all(|block| !near.holds(block) || far.holds(block)));
        }
    }

    #[test]
    fn without_a_limit_only_first_uses_miss((workload, sessions) in tree()) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for mut text in ALL.iter().map(|kind| kind.name) {
            if text == "ttl" {
                text = "ttl(idle=1000h)";
            }
            // Beyond twice the blocks no watermark is passed.
            let counts = replay(&Rule::parse(text).unwrap(), &trace, 2 * trace.distinct() + 1).unwrap();
            prop_assert_eq!(counts.misses(), trace.distinct() as u64, "{}", text);
            prop_assert_eq!((counts.evictions, counts.drops, counts.bypasses), (0, 0, 0), "{}", text);
        }
    }

    /// A block that is taken out is gone, and everything else goes on.
    #[test]
    fn blocks_can_be_taken_out(
        (workload, sessions) in tree(),
        capacity in 1_usize..16,
        taken in prop::collection::vec(0_u32..120, 60),
    ) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for text in TEXTS.iter().filter(|text| Rule::parse(text).unwrap().kind().start.is_some()) {
            let mut fast = Rule::parse(text).unwrap().start(Setting { capacity, unit_tokens: 16 }).unwrap();
            let mut plain = slow(text, capacity, 16, &[]);
            fast.grow(trace.distinct());
            let (mut dropped, mut taken) = (Vec::new(), taken.iter().cycle());
            for request in trace.requests() {
                fast.begin(&request, &mut dropped);
                prop_assert_eq!(&std::mem::take(&mut dropped), &plain.begin(&request), "{}", text);
                for &block in request.blocks {
                    let out = *taken.next().unwrap();
                    let is_there = plain.held().contains(&out);
                    prop_assert_eq!(fast.remove(out), is_there, "{}", text);
                    plain.remove(out);
                    let (met, used) = (fast.touch(block), plain.touch(block));
                    let victim = if let Met::Eviction(victim) = met { Some(victim) } else { None };
                    prop_assert_eq!((met == Met::Hit, victim), (used.is_hit, used.victim), "{}", text);
                    prop_assert_eq!(fast.len(), plain.held().len(), "{}", text);
                }
            }
        }
    }
}

#[test]
fn laws_hold_on_real_traces() {
    for (name, unit, rows, sizes) in
        [("mooncake", 512, real::mooncake(), [1_000, 18_279]), ("weka", 64, real::weka(), [200, 1_000])]
    {
        let workload = workload(name, unit, &rows);
        let sessions = sessions_by_root(&workload);
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for size in sizes {
            bounded(&trace, size);
        }
        // Prefix closure after every request would take a walk over all blocks; every 500th use does.
        let parents = parents(&workload);
        let mut min = Min::new(trace.accesses(), &[0], Setting { capacity: sizes[0], unit_tokens: unit });
        min.grow(trace.distinct());
        let (mut dropped, mut uses) = (Vec::new(), 0_u64);
        for request in trace.requests() {
            min.begin(&request, &mut dropped);
            for &block in request.blocks {
                min.touch(block);
                uses += 1;
                if uses.is_multiple_of(5_000) {
                    assert!(parents.iter().all(|(child, parent)| !min.holds(*child) || min.holds(*parent)));
                }
            }
        }
    }
}

/// Samples of one in ten blocks, eight hashes: the exact ratio lies within the bound for nearly all of them, and the bound
/// says something.
#[test]
fn samples_keep_their_error_bound() {
    let workload = workload("mooncake", 512, &real::mooncake());
    let trace = Trace::new(&workload);
    let all_uses = (trace.accesses().len() as u64, trace.distinct() as u64);
    let least = all_uses.1 as f64 / all_uses.0 as f64;
    let sizes = [1_000, 3_000, 10_000, 30_000, 100_000, 200_000];
    let (mut inside, mut all, mut cut, mut widest) = (0, 0, 0, 0.0_f64);
    for text in ["lru", "sieve", "s3-fifo"] {
        let rule = Rule::parse(text).unwrap();
        let exact = curve::points(&rule, &trace, &sizes).unwrap();
        for seed in 0..8 {
            let part = sample(&workload, 0.1, seed).unwrap();
            let found = estimate(&rule, &Trace::new(&part), 0.1, all_uses, &sizes).unwrap();
            for (estimate, exact) in found.iter().zip(&exact) {
                let wanted = exact.misses() as f64 / exact.accesses as f64;
                inside += u32::from((estimate.miss_ratio - wanted).abs() <= estimate.error);
                all += 1;
                // No estimate exceeds what a cache without limits hits, and one that would says so.
                assert!(estimate.miss_ratio >= least);
                cut += u32::from(estimate.is_at_ceiling);
                widest = widest.max(estimate.error);
            }
        }
    }
    assert!(inside * 100 >= all * 93, "{inside} of {all}");
    assert!(widest < 0.08, "{widest}");
    assert!(cut > 0 && cut < all, "{cut}");
    // All blocks are no sample: exact, and without error.
    let whole = sample(&workload, 1.0, 0).unwrap();
    assert_eq!(whole, workload);
    let lru = Rule::parse("lru").unwrap();
    let found = estimate(&lru, &Trace::new(&whole), 1.0, (288_500, 182_790), &[10_000]).unwrap();
    assert!((found[0].miss_ratio - (288_500.0 - 60_921.0) / 288_500.0).abs() < 1e-12 && found[0].error.abs() < 1e-12);
    assert!(sample(&workload, 0.0, 0).is_err() && sample(&workload, f64::NAN, 0).is_err());
}
