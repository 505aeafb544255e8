//! Efficiency surfaces: what measured operations say about operations of any shape.
//!
//! A table of measured operations holds, for each kernel and number format, times on a grid of shapes with holes. A surface
//! turns it into a function: the efficiency (roofline time over measured time) of any shape, interpolated over the
//! logarithms of the shape. `time = roofline / efficiency`.
//!
//! * The roofline of an operation ([`work`]) says how many bytes and operations its shape needs at least. Where
//!   that fits better, a start stands beside it ([`level`]): half of the least time of a kernel. What is interpolated is
//!   then roofline plus start over measured time, which hardly varies where times do not: along small shapes.
//! * Between measured shapes the logarithm of the efficiency is a Gaussian process over the nearest measured ones
//!   ([`predict`]; Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, chapter 2 and section 2.7 for
//!   the linear mean): smooth along an axis that matters little, free along one that matters much. How much each axis
//!   matters is found from the data itself, by leaving rows out ([`fit`]).
//! * Beside the axes of a shape, products of them are axes too ([`features`]): the time of a kernel follows its bytes and
//!   its number of blocks more than any single length.
//! * Outside the box of the measured shapes the nearest efficiency holds, and the estimate is [`Ground::Extrapolated`].
//! * No estimate is below the physical bound: what exceeds the last-level cache crosses memory. Measured rows below it are
//!   dropped before the fit, and counted.
//!
//! Rows come as slices and nothing here knows a file format.

mod exchange;
mod features;
mod fit;
mod grid;
mod level;
mod plain;
mod predict;
mod shape;
mod tree;
mod uneven;
mod work;

pub use exchange::across_nodes;
pub use fit::{Errors, Fitted, STEP, errors, fit, left_out};
pub use grid::Grid;
pub use plain::Plain;
pub use predict::Scratch;
pub use shape::{Dim, Key, Rows, Shape, pool};
pub use uneven::{Uneven, UnevenRow, uneven};
pub use work::{Peaks, Work, work};

use features::Features;
use level::Level;
use predict::Cloud;

/// What an estimate rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ground {
    /// Inside the measured shapes: a fit, with its error.
    Calibrated,
    /// Outside: the nearest measured efficiency.
    Extrapolated,
}

impl Ground {
    /// What two estimates rest on together: the less certain of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self == Self::Calibrated { other } else { self }
    }

    /// The word for it in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Extrapolated => "extrapolated",
        }
    }
}

/// The time of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Nanoseconds.
    pub time_ns: f64,
    /// Roofline time over that time.
    pub efficiency: f64,
    /// What it rests on.
    pub ground: Ground,
}

/// How a surface interpolates. Found by [`fit`] and kept with the points.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Weight of each axis in distances, by the name of the axis; an axis that is not named has none.
    pub scales: Vec<(String, f64)>,
    /// Nearest points that are asked.
    pub neighbours: usize,
    /// Distance over which efficiencies stay alike.
    pub length: f64,
    /// Variance of what no axis explains, over the variance of the surface.
    pub nugget: f64,
    /// Prior variance of the slope per squared unit of distance.
    pub slope: f64,
    /// The covariance: 0 is exponential, 1 Matern 3/2, 2 Matern 5/2.
    pub smoothness: u8,
    /// Taken from the logarithm of the efficiency: the median error of rows that were left out.
    pub offset: f64,
    /// The share of a key's least time that stands beside the roofline; 0 for none.
    pub start: f64,
}

/// Measured points of one operation of one device under one framework, and how to interpolate between them.
#[derive(Debug, Clone)]
pub struct Surface {
    op: String,
    peaks: Peaks,
    tuning: Tuning,
    features: Features,
    groups: Vec<Group>,
    uneven: Vec<Uneven>,
}

/// The points of one key. Their values are on its level.
#[derive(Debug, Clone)]
struct Group {
    key: Key,
    level: Level,
    cloud: Cloud,
}

impl Surface {
    /// A surface of measured points: `log_efficiency` is the natural logarithm of roofline over measured time of each row
    /// of `rows`, whose `latency_ns` are not read. Rows of equal key and shape become one, their mean.
    pub fn new(op: &str, rows: &Rows, log_efficiency: &[f64], peaks: Peaks, tuning: Tuning) -> Self {
        let features = Features::of(op, &rows.shapes, peaks.processors);
        let scales = features.scales(&tuning);
        let groups = rows
            .by_key()
            .into_iter()
            .map(|(key, members)| {
                let key = rows.keys[key].clone();
                let shapes: Vec<Shape> = members.iter().map(|row| rows.shapes[*row]).collect();
                let mut values: Vec<f64> = members.iter().map(|row| log_efficiency[*row]).collect();
                let level = Level::raise(tuning.start, (op, &key, &peaks), &shapes, &mut values);
                let cloud = Cloud::new(&features, &scales, &shapes, &values);
                Group { key, level, cloud }
            })
            .collect();
        Self { op: op.to_owned(), peaks, tuning, features, groups, uneven: Vec::new() }
    }

    /// The same, with what is known of batches whose contexts differ.
    #[must_use]
    pub fn with_uneven(self, uneven: Vec<Uneven>) -> Self {
        Self { uneven, ..self }
    }

    /// What is known of batches whose contexts differ, by model, tensor parallelism and requests.
    pub fn uneven(&self) -> &[Uneven] {
        &self.uneven
    }

    /// The operation.
    pub fn op(&self) -> &str {
        &self.op
    }

    /// How it interpolates.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The rates that its efficiencies relate to.
    pub fn peaks(&self) -> &Peaks {
        &self.peaks
    }

    /// What was measured: kernels, number formats and so on, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.groups.iter().map(|group| &group.key)
    }

    /// Position of a key among [`Self::keys`].
    pub fn group(&self, key: &Key) -> Option<usize> {
        self.groups.binary_search_by(|group| group.key.cmp(key)).ok()
    }

    /// The measured shapes of a group with their logarithms of efficiency, sorted by shape.
    pub fn points(&self, group: usize) -> impl Iterator<Item = (Shape, f64)> + '_ {
        self.groups.get(group).into_iter().flat_map(|group| {
            group
                .cloud
                .points()
                .map(|(shape, value)| (shape, value - group.level.above(self.roofline_ns(group, &shape))))
        })
    }

    /// The roofline time of a shape of a group.
    fn roofline_ns(&self, group: &Group, shape: &Shape) -> f64 {
        work(&self.op, &group.key, shape).roofline_ns(&self.peaks)
    }

    /// The values that a length has among the measured shapes of a group, in rising order.
    pub fn lengths(&self, group: usize, dim: Dim) -> Vec<u64> {
        let mut values: Vec<u64> = self.points(group).map(|(shape, _)| shape.get(dim)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// The time of an operation of this shape; `None` without a group of this number or without a roofline.
    pub fn evaluate(&self, group: usize, shape: &Shape, scratch: &mut Scratch) -> Option<Estimate> {
        self.estimate(group, shape, None, scratch)
    }

    /// The same without the measured point of that very shape, whose value is `but` (within the resolution of a surface);
    /// a point of another value stays.
    pub fn evaluate_without(&self, group: usize, shape: &Shape, but: f64, scratch: &mut Scratch) -> Option<Estimate> {
        self.estimate(group, shape, Some(but), scratch)
    }

    fn estimate(&self, group: usize, shape: &Shape, but: Option<f64>, scratch: &mut Scratch) -> Option<Estimate> {
        let group = self.groups.get(group)?;
        let work = work(&self.op, &group.key, shape);
        let roofline = work.roofline_ns(&self.peaks);
        let above = group.level.above(roofline);
        let but = but.map(|but| but + above);
        let (found, inside) = group.cloud.predict(&self.features, &self.tuning, shape, but, scratch)?;
        let time = roofline / (found - above - self.tuning.offset).exp();
        if !time.is_finite() || time <= 0.0 {
            return None;
        }
        let time_ns = time.max(work.bound_ns(&self.peaks));
        let ground = if inside { Ground::Calibrated } else { Ground::Extrapolated };
        Some(Estimate { time_ns, efficiency: roofline / time_ns, ground })
    }
}

#[cfg(test)]
mod tests;
