//! What surfaces are held against: plain inverse-distance interpolation.
//!
//! The logarithm of the efficiency of a shape is the mean of the eight nearest measured ones of its key, each weighted by
//! one over the square of its distance (Shepard, "A two-dimensional interpolation function for irregularly-spaced data",
//! 1968). Distances are those between the binary logarithms of lengths; no axis is weighed and nothing is fitted.

use super::features::Features;
use super::fit::possible;
use super::predict::{Cloud, Scratch};
use super::shape::{Key, Rows, Shape};
use super::work::{Peaks, work};

/// Measured shapes that are asked.
const NEIGHBOURS: usize = 8;

/// Measured points of one operation, and the plainest way between them.
#[derive(Debug, Clone)]
pub struct Plain {
    op: String,
    peaks: Peaks,
    features: Features,
    groups: Vec<(Key, Cloud)>,
}

impl Plain {
    /// Of measured rows, without those that are physically impossible.
    pub fn of(op: &str, rows: &Rows, peaks: Peaks) -> Self {
        let (kept, values) = possible(op, rows, &peaks);
        let features = Features::of(op, &kept.shapes, peaks.processors);
        let scales: Vec<f64> = (0..features.len()).map(|axis| f64::from(u8::from(axis < features.lengths()))).collect();
        let groups = kept
            .by_key()
            .into_iter()
            .map(|(key, members)| {
                let shapes: Vec<Shape> = members.iter().map(|row| kept.shapes[*row]).collect();
                let values: Vec<f64> = members.iter().map(|row| values[*row]).collect();
                (kept.keys[key].clone(), Cloud::new(&features, &scales, &shapes, &values))
            })
            .collect();
        Self { op: op.to_owned(), peaks, features, groups }
    }

    /// Nanoseconds of an operation under a key; `None` where nothing of that key was measured.
    pub fn time_ns(&self, key: &Key, shape: &Shape, scratch: &mut Scratch) -> Option<f64> {
        let (_, cloud) = self.groups.iter().find(|(known, _)| known == key)?;
        let efficiency = cloud.inverse_distance(&self.features, NEIGHBOURS, shape, scratch)?.exp();
        Some(work(&self.op, key, shape).roofline_ns(&self.peaks) / efficiency)
    }
}
