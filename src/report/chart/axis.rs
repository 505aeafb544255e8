//! Scales and their ticks.

use super::{Anchor, Canvas, Paint, TEXT, fit, text_width};
use crate::report::show;

/// What an axis shows.
#[derive(Debug, Clone)]
pub(in crate::report) struct Axis {
    /// What is measured, with its unit.
    pub(in crate::report) title: String,
    /// The unit by which ticks are written, see [`show`].
    pub(in crate::report) unit: String,
    /// Whether equal factors are equal lengths.
    pub(in crate::report) log: bool,
    /// Whether a vertical axis starts at zero.
    pub(in crate::report) from_zero: bool,
}

/// A range of values on a range of pixels.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Where `low` and `high` lie.
    pixels: (i32, i32),
    /// The values that are named.
    pub(super) ticks: Vec<f64>,
}

impl Scale {
    /// A scale for `values` with about `count` ticks. `values` hold no number that cannot be shown.
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64> + Clone, from_zero: bool, count: usize) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        let ticks = match (axis.log, axis.unit.as_str()) {
            // Sizes and tokens of context are powers of two.
            (true, "bytes" | "tokens") => binary_ticks(low, high, count),
            (true, _) => decimal_ticks(low, high, count),
            (false, unit) => linear_ticks(low, high, from_zero, unit, count),
        };
        let first = ticks.first().copied().unwrap_or(low);
        let last = ticks.last().copied().unwrap_or(high);
        Self { low: first.min(low), high: last.max(high), log: axis.log, pixels: (0, 1), ticks }
    }

    /// A scale for points, of which the differences count. Where all are within a fifth of each other it spans a tenth
    /// below their middle to a tenth above, so that they neither stick to an edge nor are blown up.
    pub(super) fn near(axis: &Axis, values: impl Iterator<Item = f64> + Clone, count: usize) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.clone().fold(f64::NEG_INFINITY, f64::max);
        if axis.log || low <= 0.0 || low > high || high - low > 0.2 * high {
            return Self::new(axis, values, false, count);
        }
        let middle = f64::midpoint(low, high);
        let half = (0.1 * middle).max((high - low) / 2.0);
        Self::new(axis, [middle - half, middle + half].into_iter(), false, count)
    }

    /// The axis of the scale, which says so where it does not start at zero.
    pub(super) fn said(&self, axis: &Axis) -> Axis {
        let mut axis = axis.clone();
        if !axis.log && self.low > 0.0 {
            axis.title = format!("{}, axis from {}", axis.title, show::tick(self.low, &axis.unit));
        }
        axis
    }

    /// The same scale from the first value to the last, with the ticks between them, if at least two are left.
    pub(super) fn tight(mut self, values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let hair = (high - low) * 1e-9;
        let inside: Vec<f64> =
            self.ticks.iter().copied().filter(|tick| *tick >= low - hair && *tick <= high + hair).collect();
        if inside.len() >= 2 && low < high {
            (self.low, self.high, self.ticks) = (low, high, inside);
        }
        self
    }

    /// The same scale on pixels.
    pub(super) fn on(mut self, start: i32, end: i32) -> Self {
        self.pixels = (start, end);
        self
    }

    /// The pixel of a value.
    pub(super) fn at(&self, value: f64) -> i32 {
        let place = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        let (start, end) = self.pixels;
        start + (place.clamp(0.0, 1.0) * f64::from(end - start)).round() as i32
    }
}

/// Ticks at 1, 2 or 5 times a power of ten; the outer ones enclose the data.
fn linear_ticks(low: f64, high: f64, from_zero: bool, unit: &str, count: usize) -> Vec<f64> {
    // Differences of a few percent are not blown up to fill the chart.
    let is_flat = high > low && high - low < 0.1 * high;
    let low = if from_zero || is_flat || low < 0.3 * high { low.min(0.0) } else { low };
    let span = if high > low { high - low } else { high.abs().max(1.0) };
    // Sizes are read in binary units, so that their ticks are round there.
    let base = if unit == "bytes" { 1024f64.powf((high.abs().max(1.0).log2() / 10.0).floor()) } else { 1.0 };
    let rough = span / base / count.max(1) as f64;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|factor| factor * magnitude).find(|step| *step >= rough);
    let step = step.unwrap_or(magnitude * 10.0) * base;
    let first = (low / step + 1e-9).floor() as i64;
    let last = ((low + span) / step - 1e-9).ceil() as i64;
    (first..=last.max(first + 1)).map(|at| at as f64 * step).collect()
}

/// Ticks at powers of two, with equal distances.
fn binary_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let first = low.log2().floor() as i32;
    let last = (high.log2().ceil() as i32).max(first + 1);
    let stride = (last - first).unsigned_abs().div_ceil(count.max(1) as u32).max(1) as i32;
    let steps = (last - first).unsigned_abs().div_ceil(stride.unsigned_abs()) as i32;
    (0..=steps).map(|step| 2f64.powi(first + step * stride)).collect()
}

/// Ticks at 1, 2 and 5 times powers of ten, or at powers of ten alone where those would be too many.
fn decimal_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    // A hair of tolerance, so that 1 - 0.9999 does not ask for one more decade.
    let (first, last) = ((low.log10() + 1e-9).floor() as i32, (high.log10() + 1e-9).floor() as i32);
    let all: Vec<f64> =
        (first..=last + 1).flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(power))).collect();
    let start = all.iter().rposition(|tick| *tick <= low * (1.0 + 1e-9)).unwrap_or(0);
    let end = all.iter().position(|tick| *tick >= high * (1.0 - 1e-9)).unwrap_or(all.len() - 1).max(start + 1);
    if end - start <= count {
        return all[start..=end.min(all.len() - 1)].to_vec();
    }
    let top = (high.log10() - 1e-9).ceil() as i32;
    let stride = (top - first).unsigned_abs().div_ceil(count.max(1) as u32).max(1);
    let steps = (top - first).unsigned_abs().div_ceil(stride);
    (0..=steps).map(|step| 10f64.powi(first + (step * stride) as i32)).collect()
}

/// The ground of a chart with two axes: scales on their pixels.
pub(super) struct Plane {
    pub(super) x: Scale,
    pub(super) y: Scale,
    /// The first and the last pixel of the data from left to right.
    pub(super) left: i32,
    pub(super) right: i32,
    pub(super) top: i32,
    pub(super) bottom: i32,
}

/// Draws grid, ticks and titles, and returns the plane; `margin` pixels on the right are left free for names.
pub(super) fn plane(
    canvas: &mut Canvas<'_>,
    (width, height): (i32, i32),
    (x_axis, x): (&Axis, Scale),
    (y_axis, y): (&Axis, Scale),
    margin: i32,
) -> Plane {
    let names: Vec<String> = y.ticks.iter().map(|tick| show::tick(*tick, &y_axis.unit)).collect();
    let left = names.iter().map(|name| text_width(name)).max().unwrap_or(0) + 28;
    let (top, bottom, right) = (64, height - 104, width - margin);
    let (x, y) = (x.on(left, right), y.on(bottom, top));
    canvas.text((2, 18), &fit(&y_axis.title, width), Anchor::Start, Paint::Muted);
    for (tick, name) in y.ticks.iter().zip(&names) {
        let at = y.at(*tick);
        canvas.path(vec![(left, at), (right, at)], Paint::Grid, 2);
        canvas.text((left - 14, at), name, Anchor::End, Paint::Muted);
    }
    let mut free = i32::MIN;
    for tick in &x.ticks {
        let at = x.at(*tick);
        let name = show::tick(*tick, &x_axis.unit);
        let half = text_width(&name) / 2;
        canvas.path(vec![(at, bottom), (at, bottom + 8)], Paint::Muted, 2);
        if at - half > free {
            canvas.text((at.min(width - half - 2), bottom + 32), &name, Anchor::Middle, Paint::Muted);
            free = at + half + 14;
        }
    }
    canvas.path(vec![(left, bottom), (right, bottom)], Paint::Muted, 2);
    let title = fit(&x_axis.title, width);
    let half = text_width(&title) / 2;
    let center = i32::midpoint(left, right).clamp(half.min(width / 2), (width - half).max(width / 2));
    canvas.text((center, height - TEXT as i32), &title, Anchor::Middle, Paint::Muted);
    Plane { x, y, left, right, top, bottom }
}
