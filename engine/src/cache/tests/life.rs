//! Lives, gaps and block sizes against plain references, and their laws.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::coarse::{coarse, sweep};
use super::super::life::{Life, gaps, lives, uses};
use super::*;

/// What holds of the lives under any policy.
fn adds_up(rule: &Rule, trace: &Trace<'_>, capacity: usize) {
    let counts = replay(rule, trace, capacity).unwrap();
    let found = lives(rule, trace, capacity).unwrap();
    let ended = found.lives.iter().filter(|life| life.left_ns.is_some()).count() as u64;
    assert_eq!(found.lives.len() as u64, counts.misses() - counts.bypasses, "{rule}: a life for each block put in");
    assert_eq!(ended, counts.evictions + counts.drops, "{rule}");
    assert_eq!(
        found.lives.iter().map(|life| u64::from(life.reads)).sum::<u64>(),
        counts.hits,
        "{rule}: a hit is a read"
    );
    for life in &found.lives {
        assert!(
            life.born_ns <= life.last_use_ns && life.left_ns.is_none_or(|left| left >= life.last_use_ns),
            "{life:?}"
        );
        assert!(life.tokens <= trace.unit_tokens() && life.other_reads <= life.reads, "{life:?}");
    }
    // The integrals are those of the single lives.
    let of = |life: &Life| u128::from((life.left_ns.unwrap_or(found.span_ns) - life.born_ns).unsigned_abs());
    assert_eq!(found.block_ns, found.lives.iter().map(of).sum::<u128>(), "{rule}");
    assert_eq!(
        found.token_ns,
        found.lives.iter().map(|life| of(life) * u128::from(life.tokens)).sum::<u128>(),
        "{rule}"
    );
}

/// LRU once more: a vector of blocks, oldest first, with the lives that go on.
fn slow_lru(workload: &Workload, capacity: usize) -> Vec<(u32, i64, i64, Option<i64>, u32)> {
    let mut open: Vec<(u32, i64, i64, u32)> = Vec::new();
    let mut ended = Vec::new();
    for at in 0..workload.len() {
        let now = workload.arrival_ns[at];
        for &block in workload.units_of(at) {
            let known = open.iter().position(|life| life.0 == block).map(|place| open.remove(place));
            if known.is_none() && open.len() == capacity {
                let (block, born, last, reads) = open.remove(0);
                ended.push((block, born, last, Some(now), reads));
            }
            open.push(known.map_or((block, now, now, 0), |(block, born, _, reads)| (block, born, now, reads + 1)));
        }
    }
    open.sort_unstable();
    ended.extend(open.into_iter().map(|(block, born, last, reads)| (block, born, last, None, reads)));
    ended
}

proptest! {
    #[test]
    fn lives_add_up_to_the_counts((workload, sessions) in tree(), capacity in 1_usize..40) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        for kind in ALL {
            adds_up(&Rule::parse(kind.name).unwrap(), &trace, capacity);
        }
    }

    #[test]
    fn lives_under_lru_are_those_of_a_plain_list((workload, _) in tree(), capacity in 1_usize..40) {
        let found = lives(&Rule::parse("lru").unwrap(), &Trace::new(&workload), capacity).unwrap();
        let shown: Vec<_> =
            found.lives.iter().map(|life| (life.block, life.born_ns, life.last_use_ns, life.left_ns, life.reads)).collect();
        prop_assert_eq!(shown, slow_lru(&workload, capacity));
    }

    #[test]
    fn gaps_are_those_of_a_plain_search((workload, sessions) in tree()) {
        let trace = Trace::with_sessions(&workload, Some(&sessions));
        let found = gaps(&trace);
        let requests: Vec<_> = trace.requests().collect();
        let uses: Vec<(usize, u32)> =
            requests.iter().enumerate().flat_map(|(at, request)| request.blocks.iter().map(move |b| (at, *b))).collect();
        let mut plain = Vec::new();
        for (now, (request, block)) in uses.iter().enumerate() {
            let Some(before) = uses[..now].iter().rposition(|(_, other)| other == block) else { continue };
            let mut between: Vec<u32> = uses[before + 1..now].iter().map(|(_, block)| *block).collect();
            between.sort_unstable();
            between.dedup();
            let earlier = uses[before].0;
            let gap = requests[*request].time_ns - requests[earlier].time_ns;
            let same = requests[*request].session == requests[earlier].session;
            plain.push((*block, *request as u32, earlier as u32, gap, between.len() as u32, Some(same)));
        }
        let shown: Vec<_> = found
            .iter()
            .map(|gap| (gap.block, gap.request, gap.earlier, gap.gap_ns, gap.distance, gap.is_same_session))
            .collect();
        prop_assert_eq!(shown, plain);
    }

    /// Two larger blocks are the same where, and only where, all their parts are.
    #[test]
    fn larger_blocks_are_their_parts((workload, _) in tree(), times in 1_u32..5) {
        let larger = coarse(&workload, times).unwrap();
        let mut known: HashMap<&[u32], u32> = HashMap::new();
        for at in 0..workload.len() {
            let parts: Vec<&[u32]> = workload.units_of(at).chunks(times as usize).collect();
            prop_assert_eq!(parts.len(), larger.units_of(at).len());
            for (part, number) in parts.into_iter().zip(larger.units_of(at)) {
                prop_assert_eq!(*known.entry(part).or_insert(*number), *number);
            }
        }
        prop_assert_eq!(known.len() as u32, larger.distinct_units);
        let mut numbers: Vec<u32> = known.into_values().collect();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len() as u32, larger.distinct_units);
    }
}

/// A prompt of 24 tokens in blocks of 16, twice; the second comes 10 s later and another 20 s after that nothing is there.
#[test]
fn a_life_by_hand() {
    let row = |time, prompt, hashes: &[u64]| real::Row { time_ns: time, prompt, hashes: hashes.to_vec() };
    let rows = [row(0, 24, &[1, 2]), row(10, 24, &[1, 2]), row(30, 32, &[3, 4])];
    let workload = workload("hand", 16, &rows);
    let trace = Trace::new(&workload);
    let found = lives(&Rule::parse("lru").unwrap(), &trace, 2).unwrap();
    let shown: Vec<_> =
        found.lives.iter().map(|life| (life.tokens, life.reads, life.left_ns, life.idle_ns())).collect();
    assert_eq!(
        shown,
        [(16, 1, Some(30), Some(20)), (8, 1, Some(30), Some(20)), (16, 0, None, None), (16, 0, None, None)]
    );
    // 24 tokens in two blocks of 16 for 30 ns.
    assert_eq!(found.token_occupancy(), Some(0.75));
    assert_eq!(uses(&trace), [2, 2, 1, 1]);
    // In blocks of 32 the two prompts are one block of 24 tokens.
    let sizes = sweep(&Rule::parse("lru").unwrap(), &workload, &trace, 32, 2).unwrap();
    assert_eq!(
        sizes.iter().map(|size| (size.block_tokens, size.capacity, size.counts.hits)).collect::<Vec<_>>(),
        [(16, 2, 2), (32, 1, 1)]
    );
    assert_eq!(sizes[1].token_occupancy, Some(0.75));
    let error = coarse(&Workload { unit_tokens: 0, ..workload }, 1).unwrap_err().to_string();
    assert!(error.contains("multiple of the trace's blocks"), "{error}");
}

#[test]
fn the_conversation_trace_has_as_many_gaps_as_reuses() {
    let workload = workload("mooncake", 512, &real::mooncake());
    let trace = Trace::new(&workload);
    let gaps = gaps(&trace);
    assert_eq!(gaps.len(), 105_710);
    // A gap is a hit of the caches with more blocks than lie between.
    for (size, hits) in [(1_000, 12_831), (10_000, 60_921), (100_000, 104_924)] {
        assert_eq!(gaps.iter().filter(|gap| gap.distance < size).count(), hits);
        adds_up(&Rule::parse("lru").unwrap(), &trace, size as usize);
    }
}
