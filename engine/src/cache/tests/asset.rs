//! The asset view against plain counts, and its laws.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::asset::{Class, Near, copies, desk, of_instance, yields};
use super::super::asset_tables::saved_ns;
use super::super::life::{Interval, gaps, intervals, lives};
use super::*;
use crate::cost::prefill_ns;
use crate::policy::Keep;
use crate::test_kit::toy_plan;

fn lru() -> Rule {
    Rule::parse("lru").unwrap()
}

/// The desk of each instance's stretches, instant by instant: for each second, block and instance what lies there.
fn slow_desk(instances: &[Vec<Interval>], span_s: i64) -> [u128; 5] {
    let mut seconds = [0_u128; 5];
    for second in 0..span_s {
        let now = second * 1_000_000_000;
        let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
        for own in instances {
            for interval in own.iter().filter(|interval| interval.from_ns <= now && now < interval.to_ns) {
                let minutes = (interval.to_ns - interval.from_ns) as f64 / 6e10;
                let class = match interval.read_by {
                    _ if seen.contains_key(&interval.block) => Class::Duplicate,
                    None => Class::Dead,
                    Some(_) if minutes <= 1.0 => Class::Working,
                    Some(_) if minutes <= 10.0 => Class::Reference,
                    Some(_) => Class::Archive,
                };
                seconds[class as usize] += 1_000_000_000;
            }
            for interval in own.iter().filter(|interval| interval.from_ns <= now && now < interval.to_ns) {
                *seen.entry(interval.block).or_default() += 1;
            }
        }
    }
    seconds
}

proptest! {
    /// Classes are all that lies there, and exclude each other.
    #[test]
    fn the_desk_partitions_what_is_there((workload, _) in tree(), capacity in 1_usize..40, instances in 1_usize..4) {
        let parts: Vec<Workload> = (0..instances).map(|at| of_instance(&workload, at, instances)).collect();
        let found: Vec<Vec<Interval>> =
            parts.iter().map(|part| intervals(&lru(), &Trace::new(part), capacity).unwrap()).collect();
        let all: u128 = parts.iter().map(|part| lives(&lru(), &Trace::new(part), capacity).unwrap().block_ns).sum();
        let hits: u64 = parts.iter().map(|part| replay(&lru(), &Trace::new(part), capacity).unwrap().hits).sum();
        let desk = desk(&found);
        prop_assert_eq!(desk.block_ns.iter().sum::<u128>(), all);
        prop_assert_eq!(desk.reads.iter().sum::<u64>(), hits);
        prop_assert_eq!(desk.reads[Class::Dead as usize], 0);
        prop_assert_eq!(desk.block_ns, slow_desk(&found, workload.span_ns() / 1_000_000_000));
        // Yields are the same time and the same reads, by idle time.
        if let [only] = &found[..] {
            let classes = yields(only);
            prop_assert_eq!(classes.iter().map(|class| class.block_ns).sum::<u128>(), all);
            prop_assert_eq!(classes.iter().map(|class| class.reads).sum::<u64>(), hits);
        }
    }

    /// A near size is enough, and one block less is not.
    #[test]
    fn near_sizes_serve_their_share((workload, _) in tree(), percent in 1_u32..101) {
        let trace = Trace::new(&workload);
        let near = Near::of(&gaps(&trace), |_| true);
        let hits = |size: u64| replay(&lru(), &trace, size as usize).unwrap().hits;
        let all = near.distances.len() as u64;
        match near.size(percent) {
            None => prop_assert_eq!(all, 0),
            Some(size) => {
                prop_assert!(hits(size) * 100 >= all * u64::from(percent));
                prop_assert!(hits(size - 1) * 100 < all * u64::from(percent));
                prop_assert_eq!(near.between(2, size + 2), hits(size + 2) - hits(2));
            }
        }
        let odd = Near::of(&gaps(&trace), |request| request % 2 == 1);
        let even = Near::of(&gaps(&trace), |request| request % 2 == 0);
        prop_assert_eq!((odd.distances.len() + even.distances.len()) as u64, all);
    }

    #[test]
    fn copies_are_those_of_plain_sets((workload, sessions) in tree()) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        let of: Vec<u32> = trace.requests().map(|request| request.session).collect();
        let found = copies(&trace, |at| of[at]);
        let mut sets: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (at, request) in trace.requests().enumerate() {
            sets.entry(of[at]).or_default().extend(request.blocks);
        }
        let stored: usize = sets.values().map(BTreeSet::len).sum();
        let distinct: BTreeSet<u32> = workload.units.iter().copied().collect();
        prop_assert_eq!((found.stored, found.copies), (stored as u64, (stored - distinct.len()) as u64));
    }
}

#[test]
fn yields_by_hand() {
    let second = 1_000_000_000;
    let interval = |from: i64, to: i64, read_by| Interval {
        block: 0,
        position: 0,
        from_ns: from * second,
        to_ns: to * second,
        read_by,
    };
    let found = yields(&[interval(0, 5, Some(1)), interval(5, 25, None), interval(25, 25, Some(2))]);
    // Up to a second: one second of each of the first two, and a read at once; then four and nine seconds.
    let shown: Vec<_> = found.iter().map(|class| (class.block_ns / second as u128, class.reads)).collect();
    assert_eq!(shown[..4], [(2, 1), (13, 1), (10, 0), (0, 0)]);
    assert!((found[1].per_block_hour().unwrap() - 3600.0 / 13.0).abs() < 1e-9);
    assert_eq!(found[9].per_block_hour(), None);
}

#[test]
fn a_read_saves_a_block_at_its_depth() {
    let rows = [(0, [1, 2, 3].as_slice()), (1, &[1, 2, 3])];
    let rows: Vec<real::Row> =
        rows.iter().map(|(time, hashes)| real::Row { time_ns: *time, prompt: 48, hashes: hashes.to_vec() }).collect();
    let workload = workload("hand", 16, &rows);
    let plan = toy_plan(&[Keep::ALL], 1 << 20);
    let found = saved_ns(&plan, 16, 8192, &gaps(&Trace::new(&workload))).unwrap();
    let at = |from: u32, to: u32| prefill_ns(&plan, from, to, 8192);
    let wanted = [0, 16, 32].map(|from| at(from, from + 32) - at(from, from + 16)).iter().sum::<f64>() / 3.0;
    assert!((found - wanted).abs() < 1e-6 && found > 0.0, "{found} {wanted}");
    assert_eq!(saved_ns(&plan, 16, 8192, &[]), None);
}
