//! From measured rows to a surface: dropping what is impossible, weighing the axes, and the error that is left.
//!
//! The weights of the axes and the few other numbers of [`Tuning`] minimize the error of rows that are predicted from all
//! others, by changing one number at a time. What is minimized is `ln median + ln p90` of the absolute relative error, so
//! that neither the bulk nor the tail is forgotten. Everything is deterministic: the rows that are left out are chosen by
//! a hash of their position.

use std::cell::RefCell;

use super::features::Features;
use super::level::{Level, STARTS};
use super::predict::{self, Cloud, Scratch};
use super::shape::{Rows, Shape};
use super::work::{Peaks, work};
use super::{Surface, Tuning};
use crate::error::{Error, Result};

/// Logarithms of efficiency are kept in whole steps of this size: 0.2% at most from what was measured.
pub const STEP: f64 = 0.004;

/// Rows that are left out, one at a time, to weigh the axes.
const SAMPLE: usize = 700;

/// Rows around each of these that may become its neighbours.
const CANDIDATES: usize = 140;

/// Rows that are left out to state the error.
const STATED: usize = 6000;

/// How much less the loss must be with a start.
const WORTH: f64 = 0.02;

/// Most passes over all numbers of a tuning.
const PASSES: usize = 3;

/// How far predictions are from measurements.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Errors {
    /// Rows that were predicted.
    pub rows: usize,
    /// Median of `|predicted / measured - 1|`.
    pub median: f64,
    /// Its 90th percentile.
    pub p90: f64,
    /// Its 99th percentile.
    pub p99: f64,
    /// Median of `predicted / measured - 1`.
    pub bias: f64,
    /// Standard error of that median, were the errors normal.
    pub bias_error: f64,
}

/// The errors of predictions, given as logarithms of predicted over measured time; what is not finite is left out.
pub fn errors(logarithms: &[f64]) -> Errors {
    let mut signed: Vec<f64> = logarithms.iter().map(|log| log.exp_m1()).filter(|error| error.is_finite()).collect();
    signed.sort_by(f64::total_cmp);
    let mut size: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
    size.sort_by(f64::total_cmp);
    let (low, high) = (quantile(&signed, 0.25), quantile(&signed, 0.75));
    Errors {
        rows: signed.len(),
        median: quantile(&size, 0.5),
        p90: quantile(&size, 0.9),
        p99: quantile(&size, 0.99),
        bias: quantile(&signed, 0.5),
        // The quartiles of a normal law are 1.349 deviations apart, and its median varies 1.253 times as its mean.
        bias_error: (high - low) / 1.349 * 1.253 / (signed.len().max(1) as f64).sqrt(),
    }
}

/// The quantile of sorted values, linear between them; 0 without any.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * sorted.len().saturating_sub(1) as f64;
    let low = at.floor() as usize;
    match (sorted.get(low), sorted.get(low + 1)) {
        (Some(a), Some(b)) => a + (b - a) * (at - low as f64),
        (Some(a), None) => *a,
        _ => 0.0,
    }
}

/// A surface and what it was made of.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The surface.
    pub surface: Surface,
    /// Rows that were given.
    pub rows: usize,
    /// Rows below the physical bound, which are not in it.
    pub impossible: usize,
    /// Errors of points that are predicted from all others, of a sample of them.
    pub errors: Errors,
}

/// Fits a surface to measured rows of one operation.
///
/// # Errors
/// No row is left.
pub fn fit(op: &str, rows: &Rows, peaks: Peaks) -> Result<Fitted> {
    let (kept, values) = possible(op, rows, &peaks);
    if kept.is_empty() {
        return Err(Error::data(format!(
            "expected measured rows of `{op}` that are physically possible, found none among {}",
            rows.len()
        ))
        .hint("check the unit of the times, and the rates of the machine"));
    }
    let features = Features::of(op, &kept.shapes, peaks.processors);
    // A start must be worth it.
    let [(plain, tuning), (raised, other)] = STARTS.map(|start| tune(start, (op, &kept, &peaks), &values, &features));
    let tuning = if raised < plain - WORTH { other } else { tuning };
    let values: Vec<f64> = values.iter().map(|value| (value / STEP).round() * STEP).collect();
    let mut surface = Surface::new(op, &kept, &values, peaks, tuning);
    let logarithms: Vec<f64> = left_out(&surface, STATED).into_iter().map(|(_, log)| log).collect();
    let mut sorted: Vec<f64> = logarithms.iter().copied().filter(|log| log.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let bias = quantile(&sorted, 0.5);
    surface.tuning.offset -= bias;
    let centred: Vec<f64> = logarithms.iter().map(|log| log - bias).collect();
    Ok(Fitted { surface, rows: rows.len(), impossible: rows.len() - kept.len(), errors: errors(&centred) })
}

/// The rows that are physically possible, and the natural logarithm of roofline over measured time of each.
pub(super) fn possible(op: &str, rows: &Rows, peaks: &Peaks) -> (Rows, Vec<f64>) {
    let mut kept = Rows::default();
    let mut values = Vec::with_capacity(rows.len());
    for ((key, shape), latency) in rows.key.iter().zip(&rows.shapes).zip(&rows.latency_ns) {
        let key = &rows.keys[*key];
        let work = work(op, key, shape);
        if *latency > 0.0 && latency.is_finite() && *latency >= work.bound_ns(peaks) {
            kept.push(key, *shape, *latency);
            values.push((work.roofline_ns(peaks) / latency).ln());
        }
    }
    (kept, values)
}

/// Logarithms of predicted over measured time for up to `most` points of a surface, each predicted from all others, with
/// the group of each; not a number where nothing is left to predict from.
pub fn left_out(surface: &Surface, most: usize) -> Vec<(usize, f64)> {
    let mut scratch = Scratch::default();
    let sizes = surface.groups.iter().map(|group| group.cloud.len());
    let predicted = sample(sizes, most).into_iter().map(|(group, point)| {
        let of = &surface.groups[group];
        let (shape, value) = of.cloud.point(point);
        let roofline = surface.roofline_ns(of, shape);
        let value = value - of.level.above(roofline);
        let measured = roofline / value.exp();
        let found = surface.evaluate_without(group, shape, value, &mut scratch);
        (group, found.map_or(f64::NAN, |found| (found.time_ns / measured).ln()))
    });
    predicted.collect()
}

/// Up to `most` points of groups of such sizes, as (group, point), chosen by a hash of their position.
fn sample(sizes: impl Iterator<Item = usize>, most: usize) -> Vec<(usize, usize)> {
    let all = sizes.enumerate().flat_map(|(group, size)| (0..size).map(move |point| (group, point)));
    let mut hashed: Vec<(u64, usize, usize)> =
        all.enumerate().map(|(at, (group, point))| (mix(at as u64), group, point)).collect();
    hashed.sort_unstable();
    hashed.truncate(most);
    hashed.into_iter().map(|(_, group, point)| (group, point)).collect()
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(at: u64) -> u64 {
    let mut z = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A point that is left out, and those that may predict it: their places relative to it on all axes, unweighted.
struct Case {
    value: f64,
    around: Vec<f64>,
    values: Vec<f64>,
}

fn cases(features: &Features, clouds: &[Cloud]) -> Vec<Case> {
    let (mut scratch, mut here, mut there) = (Scratch::default(), Vec::new(), Vec::new());
    let chosen = sample(clouds.iter().map(Cloud::len), SAMPLE);
    chosen
        .into_iter()
        .map(|(group, point)| {
            let cloud = &clouds[group];
            let (shape, value) = cloud.point(point);
            features.place(shape, &mut here);
            let (mut around, mut values) = (Vec::new(), Vec::new());
            for other in cloud.around(features, point, CANDIDATES, &mut scratch) {
                let (shape, value) = cloud.point(other);
                features.place(shape, &mut there);
                around.extend(there.iter().zip(&here).map(|(there, here)| there - here));
                values.push(value);
            }
            Case { value, around, values }
        })
        .collect()
}

/// The numbers of a tuning while they are sought.
#[derive(Debug, Clone)]
struct Trial {
    scales: Vec<f64>,
    rest: Tuning,
}

#[derive(Default)]
struct Buffers {
    near: Vec<(f64, usize)>,
    weighted: Vec<f64>,
    matrix: Vec<f64>,
    weights: Vec<f64>,
}

impl Trial {
    /// What is minimized.
    fn loss(&self, cases: &[Case], buffers: &mut Buffers) -> f64 {
        let live: Vec<(usize, f64)> =
            self.scales.iter().copied().enumerate().filter(|(_, scale)| *scale > 0.0).collect();
        if live.is_empty() {
            return f64::INFINITY;
        }
        let mut logs: Vec<f64> =
            cases.iter().map(|case| self.miss(case, &live, buffers)).filter(|log| log.is_finite()).collect();
        logs.sort_by(f64::total_cmp);
        let bias = quantile(&logs, 0.5);
        let mut size: Vec<f64> = logs.iter().map(|log| (log - bias).exp_m1().abs()).collect();
        size.sort_by(f64::total_cmp);
        quantile(&size, 0.5).max(1e-4).ln() + quantile(&size, 0.9).max(1e-4).ln()
    }

    /// Logarithm of predicted over measured time of one case.
    fn miss(&self, case: &Case, live: &[(usize, f64)], buffers: &mut Buffers) -> f64 {
        let Buffers { near, weighted, matrix, weights } = buffers;
        let axes = self.scales.len();
        near.clear();
        for (at, place) in case.around.chunks_exact(axes).enumerate() {
            let distance = live.iter().map(|(axis, scale)| (place[*axis] * scale) * (place[*axis] * scale)).sum();
            near.push((distance, at));
        }
        let count = self.rest.neighbours.min(near.len());
        if count == 0 {
            return f64::NAN;
        }
        if count < near.len() {
            near.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            near.truncate(count);
        }
        weighted.clear();
        for (_, at) in near.iter() {
            weighted.extend(live.iter().map(|(axis, scale)| case.around[at * axes + axis] * scale));
        }
        predict::weigh(&self.rest, live.len(), count, weighted, (matrix, weights));
        let mean = near.iter().map(|(_, at)| case.values[*at]).sum::<f64>() / count as f64;
        let moved: f64 =
            near.iter().zip(weights.iter()).map(|((_, at), weight)| weight * (case.values[*at] - mean)).sum();
        // The time goes down as the efficiency goes up.
        case.value - (mean + moved)
    }
}

/// Seeks the tuning with a start of such a share, one number at a time; neighbours are looked up again after each pass.
/// Returns what is left of the loss with it.
fn tune(start: f64, (op, rows, peaks): (&str, &Rows, &Peaks), values: &[f64], features: &Features) -> (f64, Tuning) {
    let lengths = features.lengths();
    let scales: Vec<f64> = (0..features.len()).map(|axis| f64::from(u8::from(axis < lengths))).collect();
    let rest = Tuning {
        scales: Vec::new(),
        neighbours: 24,
        length: 4.0,
        nugget: 1e-3,
        slope: 0.3,
        smoothness: 1,
        offset: 0.0,
        start,
    };
    let mut trial = Trial { scales, rest };
    let mut clouds: Vec<Cloud> = rows
        .by_key()
        .into_iter()
        .map(|(key, members)| {
            let shapes: Vec<Shape> = members.iter().map(|row| rows.shapes[*row]).collect();
            let mut values: Vec<f64> = members.iter().map(|row| values[*row]).collect();
            Level::raise(start, (op, &rows.keys[key], peaks), &shapes, &mut values);
            Cloud::new(features, &trial.scales, &shapes, &values)
        })
        .collect();
    let buffers = RefCell::new(Buffers::default());
    let mut found = cases(features, &clouds);
    let mut best = (trial.loss(&found, &mut buffers.borrow_mut()), trial.clone());
    for _ in 0..PASSES {
        // Few rows tell little apart, and what they seem to say is chance.
        let least_gain = 1.0 / found.len().max(1) as f64;
        pass(&mut trial, least_gain, &|trial, some| {
            // Cases come in the order of a hash: the first third is a sample.
            let tried = if some { found.len().div_ceil(3) } else { found.len() };
            trial.loss(&found[..tried], &mut buffers.borrow_mut())
        });
        for cloud in &mut clouds {
            cloud.weigh(features, &trial.scales);
        }
        found = cases(features, &clouds);
        let loss = trial.loss(&found, &mut buffers.borrow_mut());
        let better = best.0 - loss;
        if better > 0.0 {
            best = (loss, trial.clone());
        }
        if better < 0.02 {
            break;
        }
    }
    let (loss, Trial { scales, rest }) = best;
    let named = features.names().map(str::to_owned).zip(scales).filter(|(_, scale)| *scale > 0.0).collect();
    (loss, Tuning { scales: named, ..rest })
}

/// How much worse a change may look on a sample of the cases and still be tried on all of them.
const DOUBT: f64 = 0.03;

/// Changes each number in turn to what has the least loss, where that is worth it. `loss` is that of all cases, or of a
/// sample of them.
fn pass(trial: &mut Trial, least_gain: f64, loss: &dyn Fn(&Trial, bool) -> f64) {
    let mut least = (loss(trial, true), loss(trial, false));
    let mut attempt = |trial: &mut Trial, change: &dyn Fn(&mut Trial)| {
        let mut changed = trial.clone();
        change(&mut changed);
        let some = loss(&changed, true);
        if some > least.0 + DOUBT {
            return;
        }
        let all = loss(&changed, false);
        if all < least.1 - least_gain {
            least = (some, all);
            *trial = changed;
        }
    };
    for axis in 0..trial.scales.len() {
        let now = trial.scales[axis];
        let others =
            if now == 0.0 { vec![0.3, 1.0, 2.0] } else { [2.0, 0.5, 4.0, 0.0, 1.4, 0.7].map(|f| f * now).to_vec() };
        for scale in others {
            attempt(trial, &|trial| trial.scales[axis] = scale);
        }
    }
    for length in [1.0, 2.0, 8.0, 16.0] {
        attempt(trial, &|trial| trial.rest.length = length);
    }
    for nugget in [1e-5, 1e-4, 1e-2, 3e-2, 0.1] {
        attempt(trial, &|trial| trial.rest.nugget = nugget);
    }
    for slope in [0.0, 0.03, 0.1, 1.0, 10.0] {
        attempt(trial, &|trial| trial.rest.slope = slope);
    }
    for smoothness in [0, 1, 2] {
        attempt(trial, &|trial| trial.rest.smoothness = smoothness);
    }
    for neighbours in [12, 16, 32, 48] {
        attempt(trial, &|trial| trial.rest.neighbours = neighbours);
    }
}
