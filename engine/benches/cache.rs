//! The block caches on the Mooncake conversation trace, looped until it has 30 million uses of blocks.
//!
//! Timed from the stored hashes, with everything that a replay does to them. The cache holds 18,279 blocks, a tenth of the distinct
//! blocks of one loop. Two readings of the loop are measured. `same`: every loop has the ids of the first, so that there are
//! 182,790 distinct blocks, and most uses are reuses. `own`: each loop has ids of its own, so that there are 19 million.
//! Hashes are used as the store has them (Mooncake: small counters), and scattered over 64 bits, as real hashes are.
//!
//! `lru`, `sieve` and `s3_fifo` replay one size, for which numbers are recycled; `dense` numbers every distinct block once, as
//! replays of many policies and sizes do. The allocator counts: `max alloc` is the peak beyond the input.

use std::hint::black_box;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};
use engine::cache::distance::{Distances, Stack};
use engine::cache::lru::Lru;
use engine::cache::recycle::{Recycled, touch_hashes};
use engine::cache::s3_fifo::S3Fifo;
use engine::cache::sieve::Sieve;
use engine::cache::{Counts, Policy, Rule, Setting, touch_all};
use engine::number::Numbers;

#[path = "../src/cache/tests/real.rs"]
#[expect(dead_code, reason = "the tests read more of the traces")]
mod real;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

const USES: usize = 30_000_000;
const CAPACITY: usize = 18_279;
const CHUNK: usize = 8_192;

/// The inputs: name, whether each loop has its own ids, whether they are scattered.
const INPUTS: [(&str, bool, bool); 4] =
    [("same", false, false), ("same_scattered", false, true), ("own", true, false), ("own_scattered", true, true)];

fn main() {
    divan::main();
}

/// The looped trace.
fn hashes(input: &str) -> Vec<u64> {
    let (_, is_own, is_scattered) = INPUTS.into_iter().find(|known| known.0 == input).expect("an input");
    let rows = real::mooncake();
    let once: Vec<u64> = rows.iter().flat_map(|row| row.hashes.iter().copied()).collect();
    let scatter = |hash: u64| {
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    };
    (0..USES)
        .map(|at| {
            let pass = if is_own { (at / once.len()) as u64 } else { 0 };
            let hash = once[at % once.len()] + (pass << 32);
            if is_scattered { scatter(hash) } else { hash }
        })
        .collect()
}

/// Numbers the hashes and gives them to `take` in chunks, with how many distinct ones there are so far.
fn numbered(hashes: &[u64], mut take: impl FnMut(&[u32], usize)) {
    let (mut numbers, mut chunk) = (Numbers::default(), Vec::with_capacity(CHUNK));
    for part in hashes.chunks(CHUNK) {
        chunk.clear();
        numbers.number(part, &mut chunk).expect("fewer than 2^32 blocks");
        take(&chunk, numbers.len());
    }
}

/// One size, with recycled numbers.
fn replay<P: Policy>(mut policy: P, hashes: &[u64]) -> u64 {
    let (mut counts, mut numbers) = (Counts::default(), Recycled::default());
    touch_hashes(&mut policy, &mut numbers, hashes, &mut counts);
    counts.hits
}

/// The same with dense numbers.
fn replay_dense(policy: &mut dyn Policy, hashes: &[u64]) -> u64 {
    let mut counts = Counts::default();
    numbered(hashes, |blocks, distinct| {
        policy.grow(distinct);
        touch_all(policy, blocks, &mut counts);
    });
    counts.hits
}

fn start(policy: &str) -> Box<dyn Policy> {
    let setting = Setting { capacity: CAPACITY, unit_tokens: 512 };
    Rule::parse(policy).and_then(|rule| rule.start(setting)).expect("a policy")
}

fn run(bencher: Bencher<'_, '_>, input: &str, each: impl Fn(&[u64]) -> u64 + Sync) {
    let hashes = hashes(input);
    bencher.counter(ItemsCount::new(USES)).bench(|| each(black_box(&hashes)));
}

#[divan::bench(args = INPUTS.map(|input| input.0), sample_count = 5, sample_size = 1)]
fn numbering(bencher: Bencher<'_, '_>, input: &str) {
    run(bencher, input, |hashes| {
        let mut sum = 0;
        numbered(hashes, |blocks, _| sum += u64::from(blocks.iter().fold(0_u32, |a, b| a ^ b)));
        sum
    });
}

#[divan::bench(args = INPUTS.map(|input| input.0), sample_count = 5, sample_size = 1)]
fn lru(bencher: Bencher<'_, '_>, input: &str) {
    run(bencher, input, |hashes| replay(Lru::new(CAPACITY), hashes));
}

#[divan::bench(args = INPUTS.map(|input| input.0), sample_count = 5, sample_size = 1)]
fn sieve(bencher: Bencher<'_, '_>, input: &str) {
    let setting = Setting { capacity: CAPACITY, unit_tokens: 512 };
    run(bencher, input, |hashes| replay(Sieve::new(setting), hashes));
}

#[divan::bench(args = INPUTS.map(|input| input.0), sample_count = 5, sample_size = 1)]
fn s3_fifo(bencher: Bencher<'_, '_>, input: &str) {
    let setting = Setting { capacity: CAPACITY, unit_tokens: 512 };
    run(bencher, input, |hashes| replay(S3Fifo::new(&[10], setting), hashes));
}

/// All sizes of LRU in one pass.
#[divan::bench(args = INPUTS.map(|input| input.0), sample_count = 3, sample_size = 1)]
fn lru_curve(bencher: Bencher<'_, '_>, input: &str) {
    run(bencher, input, |hashes| {
        let (mut stack, mut found) = (Stack::default(), Distances::default());
        numbered(hashes, |blocks, distinct| {
            stack.grow(distinct);
            for &block in blocks {
                found.add(stack.touch(block));
            }
        });
        found.hits(CAPACITY as u64)
    });
}

/// Every policy with dense numbers, one loop's ids.
#[divan::bench(args = POLICIES, sample_count = 2, sample_size = 1)]
fn dense(bencher: Bencher<'_, '_>, policy: &str) {
    run(bencher, "same", |hashes| replay_dense(start(policy).as_mut(), hashes));
}

const POLICIES: [&str; 12] =
    ["lru", "sieve", "s3-fifo", "fifo", "lfu", "2q", "arc", "arc-reenter", "gdsf", "ttl", "session", "watermark"];
