//! The Gaussian process over the nearest measured points.
//!
//! For a query, the covariance of two points is `large + slope * <x, y> + c(|x - y| / length)`, plus the nugget where they
//! are one point: a constant and a linear trend of hardly any prior, and what is left. Points are taken relative to the
//! query, so that the trend says nothing about the query itself. Solving for the weights of some 30 neighbours is a
//! Cholesky factorization of that size.

use super::Tuning;
use super::features::Features;
use super::shape::Shape;
use super::tree::Tree;

/// Prior variance of the constant: any level is as good as another.
const LEVEL: f64 = 100.0;

/// Two logarithms of efficiency that a surface cannot tell apart.
const SAME: f64 = 0.01;

/// Square of the distance below which two places are one.
const CLOSEST: f64 = 1e-18;

/// Buffers of an evaluation, so that many of them allocate nothing.
#[derive(Debug, Clone, Default)]
pub struct Scratch {
    place: Vec<f64>,
    near: Vec<(f64, usize)>,
    around: Vec<f64>,
    matrix: Vec<f64>,
    weights: Vec<f64>,
}

/// The points of one key.
#[derive(Debug, Clone)]
pub(super) struct Cloud {
    /// Distinct shapes, sorted.
    shapes: Vec<Shape>,
    /// Logarithms of efficiency.
    values: Vec<f64>,
    /// The box of the points: the least and the most on each axis.
    hull: Vec<(f64, f64)>,
    /// Weights of the axes that have one, with the axis.
    live: Vec<(usize, f64)>,
    /// The points by weighted coordinates on those axes.
    tree: Tree,
}

impl Cloud {
    /// Points of these shapes and values; equal shapes become one.
    pub(super) fn new(features: &Features, scales: &[f64], shapes: &[Shape], values: &[f64]) -> Self {
        let mut sorted: Vec<usize> = (0..shapes.len()).collect();
        sorted.sort_by_key(|at| shapes[*at]);
        let (mut distinct, mut means, mut count) = (Vec::<Shape>::new(), Vec::<f64>::new(), 0.0);
        for at in sorted {
            if distinct.last() == Some(&shapes[at]) {
                count += 1.0;
                if let Some(mean) = means.last_mut() {
                    *mean += (values[at] - *mean) / count;
                }
            } else {
                distinct.push(shapes[at]);
                means.push(values[at]);
                count = 1.0;
            }
        }
        let mut cloud = Self {
            shapes: distinct,
            values: means,
            hull: vec![(f64::INFINITY, f64::NEG_INFINITY); features.len()],
            live: Vec::new(),
            tree: Tree::default(),
        };
        let mut place = Vec::new();
        // What bounds nothing is never outside.
        for (range, bounds) in cloud.hull.iter_mut().zip(features.bounds()) {
            if !bounds {
                *range = (f64::NEG_INFINITY, f64::INFINITY);
            }
        }
        for shape in &cloud.shapes {
            features.place(shape, &mut place);
            for ((least, most), at) in cloud.hull.iter_mut().zip(&place) {
                (*least, *most) = (least.min(*at), most.max(*at));
            }
        }
        cloud.weigh(features, scales);
        cloud
    }

    /// Gives the axes other weights.
    pub(super) fn weigh(&mut self, features: &Features, scales: &[f64]) {
        self.live = (0..scales.len()).filter(|axis| scales[*axis] > 0.0).map(|axis| (axis, scales[axis])).collect();
        let (mut place, mut rows) = (Vec::new(), Vec::with_capacity(self.shapes.len() * self.live.len()));
        for shape in &self.shapes {
            features.place(shape, &mut place);
            rows.extend(self.live.iter().map(|(axis, scale)| place[*axis] * scale));
        }
        self.tree = Tree::new(&rows, self.live.len(), self.shapes.len());
    }

    /// Points.
    pub(super) fn points(&self) -> impl Iterator<Item = (Shape, f64)> + '_ {
        self.shapes.iter().copied().zip(self.values.iter().copied())
    }

    /// The logarithm of the efficiency of a shape, and whether it lies in the box of the points.
    pub(super) fn predict(
        &self,
        features: &Features,
        tuning: &Tuning,
        shape: &Shape,
        but: Option<f64>,
        scratch: &mut Scratch,
    ) -> Option<(f64, bool)> {
        let first = self.shapes.first()?;
        let skip = but.and_then(|value| {
            let at = self.shapes.binary_search(shape).ok()?;
            ((self.values[at] - value).abs() < SAME).then_some(at)
        });
        let inside = self.enter(features, shape, scratch) && features.alike(shape, first);
        self.tree.nearest(&scratch.place, tuning.neighbours, skip, &mut scratch.near);
        self.weights(tuning, scratch)?;
        Some((self.blend(scratch), inside))
    }

    /// The logarithm of the efficiency of a shape as the mean of the nearest `count`, each weighted by one over its squared
    /// distance; `None` without any.
    pub(super) fn inverse_distance(
        &self,
        features: &Features,
        count: usize,
        shape: &Shape,
        scratch: &mut Scratch,
    ) -> Option<f64> {
        self.enter(features, shape, scratch);
        self.tree.nearest(&scratch.place, count, None, &mut scratch.near);
        let weighted = scratch.near.iter().map(|(square, row)| (1.0 / square.max(CLOSEST), *row));
        let (weights, sum) = weighted.fold((0.0, 0.0), |(weights, sum), (weight, row)| {
            (weights + weight, sum + weight * self.values[self.tree.point(row)])
        });
        (weights > 0.0).then(|| sum / weights)
    }

    /// The points nearest to a point, without itself.
    pub(super) fn around(&self, features: &Features, point: usize, count: usize, scratch: &mut Scratch) -> Vec<usize> {
        self.enter(features, &self.shapes[point], scratch);
        self.tree.nearest(&scratch.place, count, Some(point), &mut scratch.near);
        scratch.near.iter().map(|(_, row)| self.tree.point(*row)).collect()
    }

    /// The shape and value of a point.
    pub(super) fn point(&self, point: usize) -> (&Shape, f64) {
        (&self.shapes[point], self.values[point])
    }

    /// Points.
    pub(super) fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Puts the query's weighted place on the live axes into `scratch`, moved into the box; says whether it was there.
    fn enter(&self, features: &Features, shape: &Shape, scratch: &mut Scratch) -> bool {
        let mut place = std::mem::take(&mut scratch.around);
        features.place(shape, &mut place);
        let mut inside = true;
        for ((least, most), at) in self.hull.iter().zip(place.iter_mut()) {
            let moved = at.max(*least).min(*most);
            inside &= (moved - *at).abs() < 1e-9;
            *at = moved;
        }
        scratch.place.clear();
        scratch.place.extend(self.live.iter().map(|(axis, scale)| place[*axis] * scale));
        scratch.around = place;
        inside
    }

    /// Weights of the nearest rows; `None` without any.
    fn weights(&self, tuning: &Tuning, scratch: &mut Scratch) -> Option<()> {
        let (axes, count) = (self.live.len(), scratch.near.len());
        if count == 0 {
            return None;
        }
        let Scratch { place, near, around, matrix, weights } = scratch;
        around.clear();
        for (_, row) in near.iter() {
            around.extend(self.tree.row(*row).iter().zip(place.iter()).map(|(a, b)| a - b));
        }
        weigh(tuning, axes, count, around, (matrix, weights));
        Some(())
    }

    /// The weighted mean of the nearest values.
    fn blend(&self, scratch: &Scratch) -> f64 {
        let value = |row: usize| self.values[self.tree.point(row)];
        let mean = scratch.near.iter().map(|(_, row)| value(*row)).sum::<f64>() / scratch.near.len() as f64;
        let moved = scratch.near.iter().zip(&scratch.weights).map(|((_, row), weight)| weight * (value(*row) - mean));
        mean + moved.sum::<f64>()
    }
}

/// Weights of `count` points around a query, whose places relative to it are rows of `axes` coordinates.
pub(super) fn weigh(
    tuning: &Tuning,
    axes: usize,
    count: usize,
    around: &[f64],
    (matrix, weights): (&mut Vec<f64>, &mut Vec<f64>),
) {
    let inverse = 1.0 / tuning.length;
    matrix.clear();
    matrix.resize(count * count, 0.0);
    weights.clear();
    for i in 0..count {
        let a = &around[i * axes..(i + 1) * axes];
        let own = dot(a, a);
        for j in 0..i {
            let b = &around[j * axes..(j + 1) * axes];
            // The diagonal holds the square of each distance to the query, until its row is done.
            let product = dot(a, b);
            let square = (own + matrix[j * count + j] - 2.0 * product).max(0.0);
            let alike = covariance(tuning.smoothness, square.sqrt() * inverse);
            matrix[i * count + j] = LEVEL + tuning.slope * product + alike;
        }
        matrix[i * count + i] = own;
        weights.push(LEVEL + covariance(tuning.smoothness, own.sqrt() * inverse));
    }
    for i in 0..count {
        let square = matrix[i * count + i];
        matrix[i * count + i] = LEVEL + tuning.slope * square + 1.0 + tuning.nugget;
    }
    solve(matrix, weights);
}

/// The inner product, in four sums that do not wait for each other.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (fours, rest) = a.as_chunks::<4>();
    let (others, other) = b.as_chunks::<4>();
    for (a, b) in fours.iter().zip(others) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let tail: f64 = rest.iter().zip(other).map(|(a, b)| a * b).sum();
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + tail
}

/// Covariance at a distance.
fn covariance(smoothness: u8, distance: f64) -> f64 {
    match smoothness {
        0 => (-distance).exp(),
        1 => {
            let scaled = 3.0_f64.sqrt() * distance;
            (1.0 + scaled) * (-scaled).exp()
        }
        _ => {
            let scaled = 5.0_f64.sqrt() * distance;
            (1.0 + scaled + scaled * scaled / 3.0) * (-scaled).exp()
        }
    }
}

/// Solves `matrix * x = right` in place by Cholesky; of the matrix only the lower half is read.
fn solve(matrix: &mut [f64], right: &mut [f64]) {
    let n = right.len();
    for i in 0..n {
        for j in 0..=i {
            let (before, row) = matrix.split_at(i * n);
            let other = if j < i { &before[j * n..j * n + j] } else { &row[..j] };
            let left = row[j] - dot(&row[..j], other);
            matrix[i * n + j] = if i == j { left.max(1e-12).sqrt() } else { left / matrix[j * n + j] };
        }
    }
    for i in 0..n {
        let known = dot(&matrix[i * n..i * n + i], &right[..i]);
        right[i] = (right[i] - known) / matrix[i * n + i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|t| matrix[t * n + i] * right[t]).sum();
        right[i] = (right[i] - known) / matrix[i * n + i];
    }
}
