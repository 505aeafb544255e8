//! Miss-ratio curves: what each size of a cache would hit, with the ceiling, the knee and the bound beside it.
//!
//! Under LRU one pass over the trace gives every size exactly: a cache of `n` blocks hits the uses whose stack distance is
//! below `n`, and the hits before a request's first miss are those whose distance, and all before it in the prompt, are.
//! Every other policy is replayed at each size.

use super::distance::{Distances, Stack};
use super::{Counts, Rule, Trace, replay};
use crate::error::Result;

/// The share of all possible hits at which a curve is said to bend, in percent.
pub const KNEE_PERCENT: u64 = 99;

/// LRU at every size.
#[derive(Debug, Clone)]
pub struct LruCurve {
    /// How often each distance occurs; hits at any size follow from it.
    pub distances: Distances,
    /// All counts at the sizes that were asked for, in their order.
    pub points: Vec<Counts>,
}

/// One pass under LRU: every count at each of `sizes`, and the distances for all other sizes.
pub fn lru(trace: &Trace<'_>, sizes: &[u64]) -> LruCurve {
    let (mut stack, mut distances) = (Stack::default(), Distances::default());
    stack.grow(trace.distinct());
    let mut points = vec![Counts::default(); sizes.len()];
    // The largest distance up to each block of a request: it is hit with all before it by caches that are larger.
    let mut needed: Vec<u32> = Vec::new();
    for request in trace.requests() {
        needed.clear();
        let mut most = 0;
        for &block in request.blocks {
            let distance = stack.touch(block);
            distances.add(distance);
            most = most.max(distance.unwrap_or(u32::MAX));
            needed.push(most);
        }
        for (point, &size) in points.iter_mut().zip(sizes) {
            let leading = needed.partition_point(|&distance| distance != u32::MAX && u64::from(distance) < size);
            point.request(&request, leading as u64);
        }
    }
    for (point, &size) in points.iter_mut().zip(sizes) {
        point.accesses = distances.references;
        point.hits = distances.hits(size);
        point.resident = size.min(distances.cold);
        point.peak = point.resident;
        match size {
            0 => point.bypasses = point.accesses,
            _ => point.evictions = point.misses() - point.resident,
        }
    }
    LruCurve { distances, points }
}

/// Every count of a policy at each of `sizes`.
///
/// # Errors
/// A policy that needs what the trace lacks.
pub fn points(rule: &Rule, trace: &Trace<'_>, sizes: &[u64]) -> Result<Vec<Counts>> {
    if rule.is_plain_lru() {
        return Ok(lru(trace, sizes).points);
    }
    sizes.iter().map(|&size| replay(rule, trace, usize::try_from(size).unwrap_or(usize::MAX))).collect()
}

/// The smallest of `sizes` with a share of at least [`KNEE_PERCENT`] of `ceiling` hits; `None` where none has, or where
/// nothing can be hit. `sizes` and `points` go together.
pub fn knee(sizes: &[u64], points: &[Counts], ceiling: u64) -> Option<u64> {
    let enough = |counts: &Counts| u128::from(counts.hits) * 100 >= u128::from(ceiling) * u128::from(KNEE_PERCENT);
    let found = sizes.iter().zip(points).filter(|(_, counts)| ceiling > 0 && enough(counts));
    found.map(|(size, _)| *size).min()
}

/// Sizes from `first` to `last`, `per_decade` for each factor of ten, rounded, without repeats; both ends are in.
pub fn sizes(first: u64, last: u64, per_decade: u32) -> Vec<u64> {
    let (low, high) = (first.min(last).max(1), last.max(first).max(1));
    let steps = ((high as f64 / low as f64).log10() * f64::from(per_decade)).ceil().clamp(0.0, 4096.0) as u32;
    let mut sizes: Vec<u64> = (0..steps)
        .map(|step| (low as f64 * 10_f64.powf(f64::from(step) / f64::from(per_decade.max(1)))).round() as u64)
        .filter(|size| *size < high)
        .collect();
    sizes.push(high);
    sizes.dedup();
    sizes
}
