//! Fetch or recompute: by hand, and its laws.

#![expect(clippy::float_cmp, reason = "sums and products of a few whole numbers are exact")]

use proptest::prelude::*;

use super::super::fetch::{Decide, Found, Terms, Verdict, Way, judge, totals};
use super::super::tiers::{Frequency, Hierarchy, Inclusion, Tier, Write};
use super::*;
use crate::cost::{Plan, prefill_ns};
use crate::policy::Keep;
use crate::test_kit::toy_plan;

const CHUNK: u32 = 64;

fn two_tiers(near: usize, far: usize, fetch_blocks: u32) -> Hierarchy {
    let tier = |name: &str, capacity, fetch_blocks| Tier {
        name: name.to_owned(),
        rule: Rule::parse("lru").unwrap(),
        capacity,
        admit: 0,
        fetch_blocks,
    };
    Hierarchy {
        tiers: vec![tier("hbm", near, 0), tier("dram", far, fetch_blocks)],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
    }
}

fn way(bytes_per_ns: f64, latency_ns: f64) -> [Way; 1] {
    [Way { name: "dram".to_owned(), bytes_per_ns, latency_ns }]
}

fn judged(workload: &Workload, hierarchy: &Hierarchy, plan: &Plan, ways: &[Way], decide: Decide) -> Found {
    judge(hierarchy, &Trace::new(workload), Terms { plan, ways, decide, chunk_tokens: CHUNK }).unwrap()
}

fn row(time_ns: i64, prompt: u32, hashes: &[u64]) -> real::Row {
    real::Row { time_ns, prompt, hashes: hashes.to_vec() }
}

/// Blocks 1 to 4 are pushed out of a near cache of 4 by blocks 5 to 8 and asked for twice at one instant.
#[test]
fn the_second_of_two_fetches_waits_for_the_first() {
    let rows = [
        row(0, 64, &[1, 2, 3, 4]),
        row(10, 64, &[5, 6, 7, 8]),
        row(1_000, 64, &[1, 2, 3, 4]),
        row(1_000, 80, &[5, 6, 7, 8, 9]),
    ];
    let workload = workload("hand", 16, &rows);
    let plan = toy_plan(&[Keep::ALL], 1 << 20);
    let found = judged(&workload, &two_tiers(4, 100, 0), &plan, &way(0.5, 7.0), Decide::Always);
    let shown: Vec<_> =
        found.runs.iter().map(|run| (run.request, run.blocks, run.depth_tokens, run.bytes, run.queue_ns)).collect();
    // A token takes one byte: 64 tokens take 128 ns, and 7 ns of latency.
    assert_eq!(shown, [(2, 4, 0, 64, 0.0), (3, 4, 0, 64, 135.0)]);
    assert!(found.runs.iter().all(|run| run.fetch_ns() == run.queue_ns + 135.0 && run.is_fetched));
    // The first run is the whole prompt, of which the last token is computed in any case.
    let from = |token, end| prefill_ns(&plan, token, end, CHUNK);
    assert_eq!(found.runs[0].compute_ns, from(0, 64) - from(63, 64));
    assert_eq!(found.runs[1].compute_ns, from(0, 80) - from(64, 80));
    let total = totals(&found)[0];
    assert_eq!((total.fetched_runs, total.fetched_bytes, total.queue_ns, total.transfer_ns), (2, 128, 135.0, 270.0));
    // All nine blocks were written once, and one of them was never asked for again.
    assert_eq!((total.written_bytes, total.never_read_bytes), (9 * 16, 16));
}

#[test]
fn verdicts_name_the_first_reason() {
    let rows = [row(0, 64, &[1, 2, 3, 4]), row(10, 64, &[5, 6, 7, 8]), row(1_000, 64, &[1, 2, 3, 4])];
    let plan = toy_plan(&[Keep::ALL], 1 << 20);
    let verdict = |rows: &[real::Row], hierarchy: &Hierarchy, way: &[Way]| {
        let found = judged(&workload("hand", 16, rows), hierarchy, &plan, way, Decide::Always);
        (found.runs.last().unwrap().verdict, totals(&found)[0].text())
    };
    let near = two_tiers(4, 100, 0);
    assert_eq!(verdict(&rows, &near, &way(1e6, 0.0)), (Verdict::Pays, "pays"));
    assert_eq!(verdict(&rows, &near, &way(1e-9, 0.0)).0, Verdict::Slow);
    assert_eq!(verdict(&rows, &near, &way(1e6, 1e9)).0, Verdict::Latency);
    assert_eq!(verdict(&rows, &two_tiers(4, 100, 5), &way(1e6, 0.0)).0, Verdict::Short);
    // Block 0 is new: what follows it must be computed as well.
    let gap = [row(0, 64, &[1, 2, 3, 4]), row(10, 64, &[5, 6, 7, 8]), row(20, 64, &[0, 2, 3, 4])];
    let (found, text) = verdict(&gap, &near, &way(1e6, 0.0));
    assert_eq!(
        (found, text),
        (Verdict::Gap, "does not pay because most runs lie behind a block that must be computed")
    );
    let once = judged(&workload("hand", 16, &rows[..1]), &near, &plan, &way(1.0, 0.0), Decide::Always);
    assert_eq!(totals(&once)[0].text(), "does not pay because no prompt asks for what is in it");
    let none = judge(
        &near,
        &Trace::new(&workload("hand", 16, &rows)),
        Terms { plan: &plan, ways: &[], decide: Decide::Always, chunk_tokens: CHUNK },
    );
    assert!(none.unwrap_err().to_string().contains("expected a way from each of 1 farther tiers, found 0"));
}

/// The link carries one run at a time: the busy time of any link is the sum of what it carried, and no fetch ends before
/// that much time has passed.
fn conserved(found: &Found, workload: &Workload) {
    let mut free = 0.0_f64;
    let mut runs: Vec<_> = found.runs.iter().filter(|run| run.is_fetched).collect();
    runs.sort_by_key(|run| run.request);
    for same in runs.chunk_by(|a, b| a.request == b.request) {
        let now = workload.arrival_ns[same[0].request as usize] as f64;
        let waits: f64 = same.iter().map(|run| run.queue_ns).sum();
        let carried: f64 = same.iter().map(|run| run.latency_ns + run.transfer_ns).sum();
        assert!((waits - (free - now).max(0.0)).abs() < 1e-3, "{waits} {free} {now}");
        free = free.max(now) + carried;
    }
}

proptest! {
    #[test]
    fn break_even_never_loses_time(
        (workload, _) in tree(), near in 1_usize..12, rate in 1e-4_f64..10.0, latency in 0.0_f64..1e4,
    ) {
        // Seconds between requests would leave every link idle.
        let workload = Workload { arrival_ns: workload.arrival_ns.iter().map(|at| at / 10_000_000).collect(), ..workload };
        let plan = toy_plan(&[Keep::ALL], 1 << 20);
        let hierarchy = two_tiers(near, 1000, 0);
        let ways = way(rate, latency);
        let found = judged(&workload, &hierarchy, &plan, &ways, Decide::BreakEven);
        conserved(&found, &workload);
        let total = totals(&found)[0];
        prop_assert!(total.saved_ns() >= -1e-6 * total.compute_ns, "{total:?}");
        let always = judged(&workload, &hierarchy, &plan, &ways, Decide::Always);
        conserved(&always, &workload);
        // What is fetched is what hit; the rest of it was computed.
        for found in [&found, &always] {
            let fetched: u64 = found.runs.iter().filter(|run| run.is_fetched).map(|run| u64::from(run.blocks)).sum();
            prop_assert_eq!(found.counts.tiers[1].hits >= fetched, true);
            prop_assert_eq!(found.counts.tiers.iter().map(|tier| tier.hits).sum::<u64>() + found.counts.misses, found.counts.accesses);
        }
        // A way without latency or limit pays wherever no gap is in front.
        let free = judged(&workload, &hierarchy, &plan, &way(f64::MAX, 0.0), Decide::Always);
        prop_assert!(free.runs.iter().all(|run| run.verdict == Verdict::Gap || run.verdict == Verdict::Pays || run.compute_ns == 0.0));
        prop_assert_eq!(free.runs.len(), always.runs.len());
    }
}
