//! Curves from a sample of the blocks, with the error to expect.
//!
//! C. Waldspurger et al., "Efficient MRC construction with SHARDS" (FAST 2015): keep the blocks whose hash falls below a
//! threshold, a share `R` of them, with all of their uses, and shrink the cache by the same share; "Cache modeling and
//! optimization using miniature simulations" (ATC 2017) extends it from LRU to any policy. As in SHARDS with adjustment,
//! misses are divided by `R` times all uses, which are known, and not by the uses in the sample: whether the sample holds
//! one block that everybody uses then hardly matters, since such a block seldom misses.
//!
//! # The error
//!
//! Each block is in the sample with probability `R`, apart from the others, so that the misses are estimated by a
//! Horvitz-Thompson sum, whose variance is estimated by `(1 - R) / R^2` times the sum of the squared misses of each sampled
//! block (Horvitz and Thompson, Journal of the American Statistical Association 47, 1952). Beside it, the sample's cache
//! stands for one whose size is uncertain: among `C` blocks, the share that was sampled has the relative deviation
//! `sqrt((1 - R) / (R C))`. The bound is 1.96 deviations of the first, plus the largest change of the misses when the size
//! changes by 1.96 deviations of the second. It covers about 95% of the hashes for which the sample itself shows its
//! spread; it says nothing about blocks of a kind that the sample never met.

use super::{Counts, Met, Rule, Trace};
use crate::error::{Error, Result};
use crate::workload::Workload;

/// Deviations of a normal distribution that 95% do not exceed.
const DEVIATIONS: f64 = 1.96;

/// An estimate at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The size, in blocks of the whole trace.
    pub capacity: u64,
    /// Estimated misses over accesses; no fewer than the first uses, which always miss.
    pub miss_ratio: f64,
    /// Whether the sample alone says fewer than that.
    pub is_at_ceiling: bool,
    /// The error that the estimate does not exceed with about 95%, as a difference of ratios.
    pub error: f64,
    /// Accesses that were replayed.
    pub sampled_accesses: u64,
}

/// A hash of a block's number (S. Vigna's splitmix64).
fn mix(block: u32, seed: u64) -> u64 {
    let mut z = (u64::from(block) ^ seed.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The workload with a share `rate` of its blocks, each with all of its uses.
///
/// # Errors
/// A rate that is not above 0 and at most 1.
pub fn sample(workload: &Workload, rate: f64, seed: u64) -> Result<Workload> {
    if !(rate > 0.0 && rate <= 1.0) {
        return Err(Error::usage(format!("expected a sampling rate above 0 and at most 1, found {rate}")));
    }
    let threshold = (rate * 2_f64.powi(64)) as u64;
    let mut next = 0;
    let numbers: Vec<Option<u32>> = (0..workload.distinct_units)
        .map(|block| {
            let is_in = rate >= 1.0 || mix(block, seed) < threshold;
            next += u32::from(is_in);
            is_in.then(|| next - 1)
        })
        .collect();
    let (mut units, mut offsets) = (Vec::new(), vec![0]);
    for request in 0..workload.len() {
        units.extend(workload.units_of(request).iter().filter_map(|&block| numbers[block as usize]));
        offsets.push(units.len() as u32);
    }
    Ok(Workload { units, offsets, distinct_units: next, ..workload.clone() })
}

/// Misses of a policy on the sample, and the sum of the squares of each block's.
fn misses(rule: &Rule, trace: &Trace<'_>, capacity: f64) -> Result<(Counts, f64)> {
    let mut of_block = vec![0_u32; trace.distinct()];
    let capacity = (capacity.round() as usize).max(1);
    let counts = rule.replay(trace, capacity, &mut |block, met| {
        of_block[block as usize] += u32::from(met != Met::Hit);
    })?;
    Ok((counts, of_block.iter().map(|&misses| f64::from(misses).powi(2)).sum()))
}

/// Estimates a policy's misses at each of `sizes` from a sample of the workload at `rate`, which [`sample`] has drawn;
/// `accesses` are those of the whole workload, and `distinct` its blocks.
///
/// # Errors
/// A policy that needs what the trace lacks.
pub fn estimate(
    rule: &Rule,
    sampled: &Trace<'_>,
    rate: f64,
    (accesses, distinct): (u64, u64),
    sizes: &[u64],
) -> Result<Vec<Estimate>> {
    let least = distinct as f64 / accesses.max(1) as f64;
    let whole = accesses.max(1) as f64 * rate;
    let mut found = Vec::with_capacity(sizes.len());
    for &capacity in sizes {
        let room = capacity as f64 * rate;
        let (counts, squares) = misses(rule, sampled, room)?;
        let deviation = ((1.0 - rate).max(0.0) * squares).sqrt() / whole;
        let spread = DEVIATIONS * ((1.0 - rate).max(0.0) / room.max(f64::MIN_POSITIVE)).sqrt();
        let mut change = 0_u64;
        for factor in [1.0 - spread, 1.0 + spread].into_iter().filter(|_| spread > 0.0) {
            let other = misses(rule, sampled, (room * factor).max(0.0))?.0;
            change = change.max(other.misses().abs_diff(counts.misses()));
        }
        let miss_ratio = counts.misses() as f64 / whole;
        found.push(Estimate {
            capacity,
            miss_ratio: miss_ratio.max(least).min(1.0),
            is_at_ceiling: miss_ratio < least,
            error: DEVIATIONS * deviation + change as f64 / whole,
            sampled_accesses: counts.accesses,
        });
    }
    Ok(found)
}
