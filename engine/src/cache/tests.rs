//! Policies against their references and their laws, on random prefix trees and on real traces.

mod asset;
mod fetch;
mod laws;
mod life;
mod pages;
mod real;
mod reference;
mod tiered;

use proptest::prelude::*;

use super::curve;
use super::distance::distances;
use super::trace::Sessions;
use super::*;
use crate::number::Numbers;
use crate::workload::{Turns, Workload, prefix_counts};
use reference::{TEXTS, slow};

/// A workload from rows of time, prompt and hashes.
pub(crate) fn workload(name: &str, unit: u32, rows: &[real::Row]) -> Workload {
    let (mut numbers, mut units, mut offsets) = (Numbers::default(), Vec::new(), vec![0]);
    for row in rows {
        numbers.number(&row.hashes, &mut units).unwrap();
        offsets.push(units.len() as u32);
    }
    Workload {
        name: name.to_owned(),
        request_ids: (0..rows.len() as u64).collect(),
        arrival_ns: rows.iter().map(|row| row.time_ns).collect(),
        prompt: rows.iter().map(|row| row.prompt).collect(),
        output: vec![1; rows.len()],
        unit_tokens: unit,
        offsets,
        units,
        distinct_units: numbers.len() as u32,
        turns: Turns::default(),
    }
}

/// Sessions that real rows lack: a request whose first block another had follows the last of those.
pub(crate) fn sessions_by_root(workload: &Workload) -> Sessions {
    let roots: Vec<u64> =
        (0..workload.len()).map(|at| workload.units_of(at).first().map_or(0, |&b| b.into())).collect();
    let mut numbers = Vec::new();
    Numbers::default().number(&roots, &mut numbers).unwrap();
    Sessions::new(numbers)
}

/// Requests that each take some first blocks of an earlier one and go on with new blocks, so that they form a prefix tree;
/// with gaps in seconds and sessions.
pub(crate) fn tree() -> impl Strategy<Value = (Workload, Sessions)> {
    let request = (0_usize..1000, 0_usize..8, 0_usize..6, 0_i64..90, 0_u32..5, 0_u32..16);
    prop::collection::vec(request, 1..40).prop_map(|requests| {
        let (mut rows, mut next): (Vec<real::Row>, u64) = (Vec::new(), 0);
        let (mut now, mut sessions) = (0, Vec::new());
        for (from, keep, new, gap, session, short) in requests {
            let mut hashes: Vec<u64> = match rows.len() {
                0 => Vec::new(),
                known => rows[from % known].hashes.iter().take(keep).copied().collect(),
            };
            hashes.extend(next..next + new as u64);
            next += new as u64;
            now += gap * 1_000_000_000;
            let prompt = (hashes.len() as u32 * 16).saturating_sub(short);
            rows.push(real::Row { time_ns: now, prompt, hashes });
            sessions.push(session);
        }
        (workload("tree", 16, &rows), Sessions::new(sessions))
    })
}

/// Hits of each use, as a policy and as its reference have them.
fn both(text: &str, trace: &Trace<'_>, capacity: usize) -> (Vec<bool>, Vec<bool>) {
    let mut fast = Vec::new();
    let rule = Rule::parse(text).unwrap();
    let counts = rule.replay(trace, capacity, &mut |_, met| fast.push(met == Met::Hit)).unwrap();
    let mut plain = slow(text, capacity, trace.unit_tokens(), trace.accesses());
    let (mut hits, mut drops, mut evictions, mut bypasses) = (Vec::new(), 0, 0, 0);
    for request in trace.requests() {
        drops += plain.begin(&request).len() as u64;
        for &block in request.blocks {
            let used = plain.touch(block);
            hits.push(used.is_hit);
            evictions += u64::from(used.victim.is_some());
            bypasses += u64::from(!used.is_in);
        }
    }
    assert_eq!((counts.drops, counts.evictions, counts.bypasses), (drops, evictions, bypasses), "{text} {capacity}");
    assert_eq!(counts.resident, plain.held().len() as u64, "{text} {capacity}");
    (fast, hits)
}

proptest! {
    #[test]
    fn every_policy_does_what_its_reference_does((workload, sessions) in tree(), capacity in 0_usize..24) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for text in TEXTS {
            let (fast, plain) = both(text, &trace, capacity);
            prop_assert_eq!(&fast, &plain, "{} with {} blocks", text, capacity);
        }
    }

    /// Uses in any order, and again and again within one request.
    #[test]
    fn references_agree_on_sequences_without_a_tree(
        blocks in prop::collection::vec(prop::collection::vec(0_u64..30, 0..30), 0..12),
        capacity in 0_usize..32,
    ) {
        let row = |(at, hashes): (usize, &Vec<u64>)| {
            real::Row { time_ns: at as i64 * 40_000_000_000, prompt: hashes.len() as u32, hashes: hashes.clone() }
        };
        let workload = workload("sequence", 1, &blocks.iter().enumerate().map(row).collect::<Vec<_>>());
        let sessions = Sessions::new((0..blocks.len() as u32).map(|at| at % 3).collect());
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for text in TEXTS {
            let (fast, plain) = both(text, &trace, capacity);
            prop_assert_eq!(&fast, &plain, "{} with {} blocks", text, capacity);
        }
    }

    #[test]
    fn one_pass_gives_what_replays_give((workload, _) in tree(), mut sizes in prop::collection::vec(0_u64..60, 1..8)) {
        sizes.push(u64::from(u32::MAX) + 7);
        let trace = Trace::new(&workload);
        let found = curve::lru(&trace, &sizes);
        for (point, size) in found.points.iter().zip(&sizes) {
            let replayed = replay(&Rule::parse("lru").unwrap(), &trace, *size as usize).unwrap();
            prop_assert_eq!(*point, replayed, "{} blocks", size);
        }
    }

    #[test]
    fn distances_are_depths_in_the_stack(uses in prop::collection::vec(0_u32..30, 0..300)) {
        let plain = slow_distances(&uses);
        let found = distances(&uses);
        prop_assert_eq!(found.cold, plain.iter().filter(|depth| depth.is_none()).count() as u64);
        let mut sorted: Vec<u64> = plain.into_iter().flatten().collect();
        sorted.sort_unstable();
        let listed: Vec<u64> = (0..found.counts.len())
            .flat_map(|distance| std::iter::repeat_n(distance as u64, found.counts[distance] as usize))
            .collect();
        prop_assert_eq!(&listed, &sorted);
        for percent in [1, 50, 99, 100] {
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            prop_assert_eq!(found.percentile(percent as u64), sorted.get(rank - 1).copied());
        }
    }
}

/// Numbers that are given back change nothing but the memory that they take.
#[test]
fn recycled_numbers_count_the_same() {
    let hashes: Vec<u64> = real::mooncake().into_iter().flat_map(|row| row.hashes).collect();
    let scattered: Vec<u64> = hashes.iter().map(|hash| hash.wrapping_mul(0xbf58_476d_1ce4_e5b9)).collect();
    let mut numbers = Vec::new();
    Numbers::default().number(&hashes, &mut numbers).unwrap();
    for text in ["lru", "fifo", "sieve", "s3-fifo"] {
        for capacity in [0, 1, 2, 15, 3_000] {
            let start = || Rule::parse(text).unwrap().start(Setting { capacity, unit_tokens: 512 }).unwrap();
            let (mut wanted, mut policy) = (Counts::default(), start());
            policy.grow(182_790);
            touch_all(policy.as_mut(), &numbers, &mut wanted);
            for hashes in [&hashes, &scattered] {
                let (mut found, mut policy, mut table) = (Counts::default(), start(), recycle::Recycled::default());
                for part in hashes.chunks(9_999) {
                    recycle::touch_hashes(policy.as_mut(), &mut table, part, &mut found);
                }
                assert_eq!(found, wanted, "{text} with {capacity} blocks");
                assert!(table.len() <= 2 * capacity + 1, "{text} with {capacity} blocks: {}", table.len());
            }
        }
    }
}

/// The stack itself, searched from its top.
fn slow_distances(uses: &[u32]) -> Vec<Option<u64>> {
    let (mut stack, mut found): (Vec<u32>, Vec<Option<u64>>) = (Vec::new(), Vec::new());
    for block in uses {
        let depth = stack.iter().position(|known| known == block);
        if let Some(depth) = depth {
            stack.remove(depth);
        }
        found.push(depth.map(|depth| depth as u64));
        stack.insert(0, *block);
    }
    found
}

/// Long enough that instants are squeezed many times, few and many blocks in turn.
#[test]
fn distances_survive_squeezing() {
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let uses: Vec<u32> =
        (0..200_000).map(|at| if at / 30_000 % 2 == 0 { random(40) } else { random(700) } as u32).collect();
    let mut stack = distance::Stack::default();
    stack.grow(700);
    let plain = slow_distances(&uses);
    for (at, (block, plain)) in uses.iter().zip(plain).enumerate() {
        assert_eq!(stack.touch(*block).map(u64::from), plain, "use {at}");
    }
}

#[test]
fn lru_on_mooncake_has_the_published_counts() {
    let workload = workload("mooncake", 512, &real::mooncake());
    let trace = Trace::new(&workload);
    let sizes = [1_000, 10_000, 100_000, 1_000_000];
    let expected = [(12_831, 274_669), (60_921, 217_579), (104_924, 83_576), (105_710, 0)];
    let found = curve::lru(&trace, &sizes);
    assert_eq!(
        (found.distances.references, found.distances.cold, found.distances.reuses()),
        (288_500, 182_790, 105_710)
    );
    let lru = Rule::parse("lru").unwrap();
    for ((point, size), expected) in found.points.iter().zip(sizes).zip(expected) {
        assert_eq!((point.hits, point.evictions), expected, "{size} blocks");
        assert_eq!(*point, replay(&lru, &trace, size as usize).unwrap(), "{size} blocks");
    }
    // The smallest cache with 99% of what can be hit, and one block less.
    let knee = found.distances.knee(curve::KNEE_PERCENT).unwrap();
    let enough = |size| found.distances.hits(size) * 100 >= 105_710 * 99;
    assert!(enough(knee) && !enough(knee - 1), "{knee}");
    // Without a limit the ratios are those of the workload.
    let (all, free) = (found.points[3], prefix_counts(&workload));
    assert_eq!((all.accesses, all.leading_hits), (free.references, free.leading_hits));
    for (found, wanted) in [
        (all.token_ratio(), free.token_ratio),
        (all.full_block_ratio(), free.full_block_ratio),
        (all.mean_request_ratio(), free.mean_request_ratio),
    ] {
        assert!((found.unwrap() - wanted).abs() < 1e-12, "{found:?} {wanted}");
    }
}

/// On the whole conversation trace, with as few blocks as the plain lists bear, and on a coding agent's session.
#[test]
fn references_agree_on_real_traces() {
    let conversation = workload("mooncake", 512, &real::mooncake());
    let agent = workload("weka", 64, &real::weka());
    assert!(agent.units.len() > 1000, "{}", agent.units.len());
    for (workload, sizes) in [(&conversation, [60, 200]), (&agent, [150, 600])] {
        let sessions = sessions_by_root(workload);
        let trace = Trace::with_sessions(workload, Some(&sessions));
        for text in TEXTS {
            for size in sizes {
                let (fast, plain) = both(text, &trace, size);
                assert!(fast == plain, "{text} on {} with {size} blocks", workload.name);
            }
        }
    }
}

#[test]
fn rules_are_typed_and_shown() {
    for (typed, shown) in [
        ("lru", "lru"),
        (" 2q ( in = 30% ) ", "2q(in=30%)"),
        ("ttl(5min)", "ttl"),
        ("ttl(idle=90s)", "ttl(idle=90s)"),
        ("lfu(halve=10k)", "lfu(halve=10000)"),
        ("session(yes)", "session(ended=yes)"),
        ("gdsf()", "gdsf"),
    ] {
        assert_eq!(Rule::parse(typed).unwrap().text(), shown, "{typed}");
    }
    for (typed, message) in [
        ("lur", "unknown cache policy `lur`"),
        ("lru(", "expected `)`"),
        ("lru(often=yes)", "unknown parameter of `lru` `often`"),
        ("lru(leaf_first=1)", "expected `leaf_first` of `lru` from no to yes, found `1`"),
        ("ttl(idle=5)", "expected a time with a unit"),
        ("2q(in=25)", "expected `in` of `2q` from 0% to 99%, found `25`"),
        ("2q(25%,in=30%)", "given twice"),
        ("fifo(3)", "at most 0 parameters"),
    ] {
        let error = Rule::parse(typed).unwrap_err().to_string();
        assert!(error.contains(message), "{typed}: {error}");
    }
    let workload = workload("none", 16, &[]);
    let error = replay(&Rule::parse("session").unwrap(), &Trace::new(&workload), 3).unwrap_err();
    assert!(error.to_string().contains("needs to know the session"), "{error}");
}

#[test]
fn sizes_are_spread_over_decades() {
    assert_eq!(curve::sizes(1_000, 10_000, 3), [1_000, 2_154, 4_642, 10_000]);
    assert_eq!(curve::sizes(1, 1, 3), [1]);
    assert_eq!(curve::sizes(100, 10, 1), [10, 100]);
    assert_eq!(curve::sizes(0, 4, 10), [1, 2, 3, 4]);
}
