//! Blocks as assets: what must stay near, what is kept twice, what lies on the desk, and what keeping a block yields.
//!
//! Definitions:
//! * The *near size* for a share of the reads is the smallest LRU cache that serves it: reads are uses after a block's
//!   first, and a cache of more blocks than a read's distance serves it.
//! * What the *next GiB* is worth: reads whose distance lies between the present size and one GiB more, and the prefill that
//!   they save.
//! * The *desk*: all time for which blocks are there, each stretch between two uses by what ends it. `working`: read again
//!   within a minute. `reference`: within ten minutes. `archive`: later. `dead`: not again before it leaves or the trace
//!   ends. `duplicate`: what lies on an instance while a lower-numbered one has the same block, whatever ends it. The five
//!   are all of it, and exclude each other.
//! * The *yield* of idle blocks: reads per hour for which a block has lain idle so long. It falls with idle time
//!   (*depreciation*); reads after ten minutes or more are *reawakenings*. Keeping a block pays while its yield times what a
//!   read saves is more than its room costs.
//! * *Copies across sessions*: blocks that more than one session uses would be stored once for each if nothing were shared.
//!   *Across instances*: the same for requests that go to instances in turn. *Across tiers*: blocks that several tiers
//!   hold at the end.

use super::Trace;
use super::life::{Gap, Interval};
use crate::workload::{Turns, Workload};

/// Shares of the reads for which the near size is told, percent.
pub const PERCENTS: [u32; 3] = [50, 90, 99];

const MINUTE_NS: i64 = 60_000_000_000;

/// Reads of one kind of content or tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Near {
    /// Distances of all reads, rising.
    pub distances: Vec<u32>,
}

impl Near {
    /// The reads among gaps whose later request `is_in` names.
    pub fn of(gaps: &[Gap], is_in: impl Fn(u32) -> bool) -> Self {
        let mut distances: Vec<u32> = gaps.iter().filter(|gap| is_in(gap.request)).map(|gap| gap.distance).collect();
        distances.sort_unstable();
        Self { distances }
    }

    /// The smallest cache that serves so many percent of the reads, in blocks; `None` without reads.
    pub fn size(&self, percent: u32) -> Option<u64> {
        let rank = (self.distances.len() as u64 * u64::from(percent.min(100))).div_ceil(100).max(1) as usize;
        self.distances.get(rank - 1).map(|distance| u64::from(*distance) + 1)
    }

    /// Reads that a cache of `to` blocks serves and one of `from` does not.
    pub fn between(&self, from: u64, to: u64) -> u64 {
        let below = |size: u64| self.distances.partition_point(|distance| u64::from(*distance) < size);
        (below(to).saturating_sub(below(from))) as u64
    }
}

/// A class of the desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Read again within a minute.
    Working,
    /// Read again within ten minutes.
    Reference,
    /// Another instance has it.
    Duplicate,
    /// Read again later.
    Archive,
    /// Not read again.
    Dead,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 5] = [Self::Working, Self::Reference, Self::Duplicate, Self::Archive, Self::Dead];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Reference => "reference",
            Self::Duplicate => "duplicate",
            Self::Archive => "archive",
            Self::Dead => "dead",
        }
    }

    fn of(interval: &Interval) -> Self {
        match interval.to_ns - interval.from_ns {
            _ if interval.read_by.is_none() => Self::Dead,
            gap if gap <= MINUTE_NS => Self::Working,
            gap if gap <= 10 * MINUTE_NS => Self::Reference,
            _ => Self::Archive,
        }
    }
}

/// What lay on the desk, by class in the order of [`Class::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Desk {
    /// Block nanoseconds.
    pub block_ns: [u128; 5],
    /// Reads that ended a stretch of the class; of a duplicate, reads while it was one.
    pub reads: [u64; 5],
}

fn length(interval: &Interval) -> u128 {
    u128::from((interval.to_ns - interval.from_ns).max(0).unsigned_abs())
}

/// The desk of several instances, each with its own stretches. Stretches of one block on one instance do not overlap.
pub fn desk(instances: &[Vec<Interval>]) -> Desk {
    let mut found = Desk::default();
    if let [only] = instances {
        for interval in only {
            let class = Class::of(interval) as usize;
            found.block_ns[class] += length(interval);
            found.reads[class] += u64::from(interval.read_by.is_some());
        }
        return found;
    }
    let mut all: Vec<(u32, usize, Interval)> = instances
        .iter()
        .enumerate()
        .flat_map(|(instance, own)| own.iter().map(move |interval| (interval.block, instance, *interval)))
        .collect();
    all.sort_by_key(|(block, instance, interval)| (*block, *instance, interval.from_ns, interval.to_ns));
    for block in all.chunk_by(|a, b| a.0 == b.0) {
        // Times that lower-numbered instances cover, in order and apart.
        let mut covered: Vec<(i64, i64)> = Vec::new();
        for instance in block.chunk_by(|a, b| a.1 == b.1) {
            for (_, _, interval) in instance {
                let twice = overlap(&covered, interval.from_ns, interval.to_ns);
                let class = Class::of(interval) as usize;
                found.block_ns[Class::Duplicate as usize] += twice;
                found.block_ns[class] += length(interval) - twice;
                let is_copy = covered.iter().any(|&(from, to)| from <= interval.to_ns && interval.to_ns < to);
                let read = if is_copy { Class::Duplicate as usize } else { class };
                found.reads[read] += u64::from(interval.read_by.is_some());
            }
            covered.extend(instance.iter().map(|(_, _, interval)| (interval.from_ns, interval.to_ns)));
            covered = joined(covered);
        }
    }
    found
}

/// Times in order, those that touch put together.
fn joined(mut times: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    times.sort_unstable();
    let mut found: Vec<(i64, i64)> = Vec::with_capacity(times.len());
    for (from, to) in times {
        match found.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => found.push((from, to)),
        }
    }
    found
}

fn overlap(covered: &[(i64, i64)], from: i64, to: i64) -> u128 {
    let of = |&(start, end): &(i64, i64)| u128::from((end.min(to) - start.max(from)).max(0).unsigned_abs());
    covered.iter().map(of).sum()
}

/// Idle times at which classes of yield end, seconds; the last has no end.
pub const IDLE_ENDS_S: [i64; 9] = [1, 10, 30, 60, 120, 300, 600, 1_800, 3_600];

/// What blocks yielded that had lain idle for a class of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Yield {
    /// Time for which blocks lay there at this idle time, block nanoseconds.
    pub block_ns: u128,
    /// Reads that came at this idle time.
    pub reads: u64,
}

impl Yield {
    /// Reads per block and hour; `None` without time.
    pub fn per_block_hour(&self) -> Option<f64> {
        (self.block_ns > 0).then(|| self.reads as f64 / (self.block_ns as f64 / 3.6e12))
    }
}

/// Yield by idle time, one class more than [`IDLE_ENDS_S`].
pub fn yields(intervals: &[Interval]) -> [Yield; 10] {
    let mut found = [Yield::default(); 10];
    for interval in intervals {
        let idle = (interval.to_ns - interval.from_ns).max(0);
        let mut begin = 0;
        for (at, class) in found.iter_mut().enumerate() {
            let end = IDLE_ENDS_S.get(at).map_or(i64::MAX, |seconds| seconds.saturating_mul(1_000_000_000));
            class.block_ns += u128::from((idle.min(end) - begin).max(0).unsigned_abs());
            if idle < end {
                class.reads += u64::from(interval.read_by.is_some());
                break;
            }
            begin = end;
        }
    }
    found
}

/// Blocks that are there more than once if each of several parties stores what it uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copies {
    /// Blocks, each party counted.
    pub stored: u64,
    /// Of these, copies beyond the first.
    pub copies: u64,
}

/// Copies across parties; `party` names that of each request by index.
pub fn copies(trace: &Trace<'_>, party: impl Fn(usize) -> u32) -> Copies {
    let mut pairs: Vec<(u32, u32)> = trace
        .requests()
        .enumerate()
        .flat_map(|(at, request)| {
            let own = party(at);
            request.blocks.iter().map(move |&block| (block, own))
        })
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    let stored = pairs.len() as u64;
    let distinct = pairs.chunk_by(|a, b| a.0 == b.0).count() as u64;
    Copies { stored, copies: stored - distinct }
}

/// Every so-many-th request of a workload: those of one instance of several.
#[must_use]
pub fn of_instance(workload: &Workload, instance: usize, instances: usize) -> Workload {
    let mine = || (instance..workload.len()).step_by(instances.max(1));
    let mut part = Workload {
        request_ids: mine().map(|at| workload.request_ids[at]).collect(),
        arrival_ns: mine().map(|at| workload.arrival_ns[at]).collect(),
        prompt: mine().map(|at| workload.prompt[at]).collect(),
        output: mine().map(|at| workload.output[at]).collect(),
        offsets: vec![0],
        units: Vec::new(),
        turns: Turns::default(),
        ..workload.clone()
    };
    for at in mine() {
        part.units.extend_from_slice(workload.units_of(at));
        part.offsets.push(part.units.len() as u32);
    }
    part
}
