//! `KVQuant` (arXiv 2401.18079): non-uniform levels per layer, keys scaled per channel, values per token, and outliers kept
//! sparse in FP16.
//!
//! The paper finds the levels by k-means on calibration text, weighted by Fisher information. Gradients are not part of any
//! recording, so the levels here are plain k-means on the vectors at hand, which is both kinder (calibrated on what it is
//! used for) and harsher (unweighted). The paper scales keys before their rotary embedding; here they are scaled as they
//! are given, and the caller may undo the rotation first.

use super::bits::{half, pack, packed_bytes, push_bf16, push_half, take, take_bf16, to_half, unpack};
use crate::error::{Error, Result};

/// Bytes of one outlier: its FP16 value and its 16-bit place in the vector.
pub const OUTLIER_BYTES: u64 = 4;

/// Share of the elements that are outliers in the paper's recommended form.
pub const OUTLIERS: f64 = 0.01;

/// Samples that k-means looks at.
const SAMPLES: usize = 1 << 15;

/// What calibration found: constants of the model, not stored with the cache.
#[derive(Debug, Clone)]
pub struct Nuq {
    bits: u32,
    dim: usize,
    /// All levels, ascending, between -1 and 1.
    levels: Vec<f32>,
    /// Middle and half width of each channel without its outliers; empty where each token brings its own.
    channels: Vec<(f32, f32)>,
}

/// Levels, and for keys the ranges of the channels, from rows of `dim` elements. `bits` from 1 to 8.
pub fn nuq_calibrate(rows: &[f32], dim: usize, bits: u32, is_key: bool) -> Nuq {
    let bits = bits.clamp(1, 8);
    let mut sorted = Vec::new();
    let channels: Vec<(f32, f32)> = if is_key {
        let column = |channel: usize| rows.iter().skip(channel).step_by(dim.max(1)).copied();
        (0..dim).map(|channel| range(column(channel), &mut sorted)).collect()
    } else {
        Vec::new()
    };
    let mut samples = Vec::new();
    // An odd stride over the rows visits all channels alike.
    let stride = (rows.len() / SAMPLES.max(1) / dim.max(1)).max(1);
    for row in rows.chunks_exact(dim.max(1)).step_by(stride) {
        let own = if is_key { (0.0, 0.0) } else { range(row.iter().copied(), &mut sorted) };
        for (at, x) in row.iter().enumerate() {
            let (middle, half) = channels.get(at).copied().unwrap_or(own);
            let scaled = scaled(*x, middle, half);
            if scaled.abs() <= 1.0 {
                samples.push(scaled);
            }
        }
    }
    Nuq { bits, dim, levels: k_means(&mut samples, 1 << bits), channels }
}

/// Middle and half width of the numbers without the outliers at both ends, as FP16 can hold them.
fn range(numbers: impl Iterator<Item = f32>, sorted: &mut Vec<f32>) -> (f32, f32) {
    sorted.clear();
    sorted.extend(numbers);
    if sorted.is_empty() {
        return (0.0, 0.0);
    }
    sorted.sort_by(f32::total_cmp);
    let outside = ((sorted.len() as f64 * OUTLIERS).round() as usize).min(sorted.len() - 1);
    let (low, high) = (sorted[outside / 2], sorted[sorted.len() - 1 - (outside - outside / 2)]);
    let middle = to_half(f32::midpoint(low, high));
    // Rounded up a little, so that the ends stay inside.
    (middle, to_half((high - middle).max(middle - low) * 1.001))
}

fn scaled(x: f32, middle: f32, half: f32) -> f32 {
    let distance = x - middle;
    if half > 0.0 {
        distance / half
    } else if distance == 0.0 {
        0.0
    } else {
        f32::INFINITY
    }
}

/// Lloyd's iteration in one dimension from evenly spaced quantiles.
fn k_means(samples: &mut [f32], count: usize) -> Vec<f32> {
    samples.sort_by(f32::total_cmp);
    let at = |share: f64| samples.get((share * samples.len() as f64) as usize).copied().unwrap_or(0.0);
    let mut levels: Vec<f32> = (0..count).map(|level| at((level as f64 + 0.5) / count as f64)).collect();
    let mut sums = Vec::with_capacity(samples.len() + 1);
    sums.push(0.0_f64);
    for sample in samples.iter() {
        sums.push(sums.last().copied().unwrap_or(0.0) + f64::from(*sample));
    }
    for _ in 0..100 {
        let mut change = 0.0_f32;
        let mut from = 0;
        for level in 0..count {
            let to = match levels.get(level + 1) {
                Some(next) => {
                    let bound = f32::midpoint(levels[level], *next);
                    samples.partition_point(|sample| *sample <= bound).max(from)
                }
                None => samples.len(),
            };
            if to > from {
                let mean = ((sums[to] - sums[from]) / (to - from) as f64) as f32;
                change = change.max((mean - levels[level]).abs());
                levels[level] = mean;
            }
            from = to;
        }
        if change < 1e-6 {
            break;
        }
    }
    levels
}

/// Appends rows: the first token in bf16, since it is a sink; then per token the codes, for values an FP16 middle and half
/// width, a 4-byte count of outliers and 4 bytes for each of them.
///
/// # Errors
/// Rows that do not end with a whole vector.
pub fn nuq_encode(nuq: &Nuq, rows: &[f32], out: &mut Vec<u8>) -> Result<()> {
    if nuq.dim == 0 || !rows.len().is_multiple_of(nuq.dim) {
        return Err(Error::data(format!("expected vectors of {} elements, found {} in all", nuq.dim, rows.len())));
    }
    let (first, rest) = rows.split_at(nuq.dim.min(rows.len()));
    push_bf16(first, out);
    let (mut codes, mut outliers, mut sorted) = (Vec::new(), Vec::new(), Vec::new());
    for row in rest.chunks_exact(nuq.dim) {
        let own = nuq.channels.is_empty().then(|| range(row.iter().copied(), &mut sorted));
        codes.clear();
        outliers.clear();
        for (at, x) in row.iter().enumerate() {
            let (middle, half) = own.or_else(|| nuq.channels.get(at).copied()).unwrap_or_default();
            let scaled = scaled(*x, middle, half);
            if scaled.abs() > 1.0 {
                outliers.extend_from_slice(&(at as u16).to_le_bytes());
                push_half(*x, &mut outliers);
            }
            codes.push(nearest(&nuq.levels, scaled.clamp(-1.0, 1.0)));
        }
        if let Some((middle, half)) = own {
            push_half(middle, out);
            push_half(half, out);
        }
        out.extend_from_slice(&((outliers.len() as u64 / OUTLIER_BYTES) as u32).to_le_bytes());
        out.extend_from_slice(&outliers);
        pack(&codes, nuq.bits, out);
    }
    Ok(())
}

/// The code of the nearest level.
fn nearest(levels: &[f32], x: f32) -> u8 {
    let above = levels.partition_point(|level| *level < x);
    let distance = |at: usize| levels.get(at).map_or(f32::INFINITY, |level| (level - x).abs());
    match above.checked_sub(1) {
        Some(below) if distance(below) <= distance(above) => below as u8,
        _ => above as u8,
    }
}

/// The rows that [`nuq_encode`] wrote, which move out of `bytes`.
///
/// # Errors
/// Fewer bytes than the rows take, or an outlier beyond the vector.
pub fn nuq_decode(nuq: &Nuq, bytes: &mut &[u8], rows: &mut [f32]) -> Result<()> {
    let (first, rest) = rows.split_at_mut(nuq.dim.min(rows.len()));
    take_bf16(bytes, first)?;
    let mut codes = vec![0; nuq.dim];
    for row in rest.chunks_exact_mut(nuq.dim.max(1)) {
        let mut own = None;
        if nuq.channels.is_empty() {
            let head = take(bytes, 4)?;
            own = Some((half(head), half(&head[2..])));
        }
        let count = take(bytes, 4)?.first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
        let outliers = take(bytes, (count as usize).saturating_mul(OUTLIER_BYTES as usize))?;
        unpack(take(bytes, packed_bytes(nuq.dim, nuq.bits))?, nuq.bits, &mut codes)?;
        for (at, (x, code)) in row.iter_mut().zip(&codes).enumerate() {
            let (middle, half) = own.or_else(|| nuq.channels.get(at).copied()).unwrap_or_default();
            *x = middle + half * nuq.levels.get(usize::from(*code)).copied().unwrap_or(0.0);
        }
        for [low, high, value @ ..] in outliers.as_chunks::<4>().0 {
            let at = usize::from(u16::from_le_bytes([*low, *high]));
            let x = row
                .get_mut(at)
                .ok_or_else(|| Error::data(format!("expected an outlier below {}, found {at}", nuq.dim)))?;
            *x = half(value);
        }
    }
    Ok(())
}
