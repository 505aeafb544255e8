//! The level that efficiencies of one key relate to: the roofline plus a start.
//!
//! The efficiency of a small shape falls with its work, since a kernel takes its start whatever it does. Between such shapes
//! that fall is steep, and beyond them the nearest efficiency would give a fraction of a start. Roofline plus start over
//! measured time hardly varies there, and on large shapes it is the efficiency itself. Where times of small shapes vary for
//! other reasons a start is in the way; [`super::fit`] tries both.

use super::shape::{Key, Shape};
use super::work::{Peaks, work};

/// Starts that a fit tries, as shares of the least time that was measured. Even the smallest shapes do something.
pub(super) const STARTS: [f64; 2] = [0.0, 0.5];

/// What is added to rooflines of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    start_ns: f64,
}

impl Level {
    /// The level of measured shapes whose start is this share of their least time; raises their logarithms of efficiency to
    /// it.
    pub(super) fn raise(
        start: f64,
        (op, key, peaks): (&str, &Key, &Peaks),
        shapes: &[Shape],
        values: &mut [f64],
    ) -> Self {
        let rooflines: Vec<f64> = shapes.iter().map(|shape| work(op, key, shape).roofline_ns(peaks)).collect();
        let least = rooflines.iter().zip(values.iter()).map(|(roofline, value)| roofline / value.exp());
        let level = Self { start_ns: start * least.fold(f64::INFINITY, f64::min) };
        values.iter_mut().zip(&rooflines).for_each(|(value, roofline)| *value += level.above(*roofline));
        level
    }

    /// How far it is above a roofline, as a natural logarithm.
    pub(super) fn above(self, roofline_ns: f64) -> f64 {
        (self.start_ns / roofline_ns).ln_1p()
    }
}
