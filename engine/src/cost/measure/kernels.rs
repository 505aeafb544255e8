//! The times of one kernel at given shapes.

use crate::cost::measured::Part;
use crate::surface::{Dim, Ground, Key, Peaks, Scratch, Shape, Surface, work};

/// A matrix product that takes longer than this even at its smallest was launched by the host one by one: what was measured
/// is the host's pace, which engines avoid by replaying graphs.
const LAUNCHED_NS: f64 = 20_000.0;

/// The most nodes of an axis.
const MOST_NODES: usize = 80;

/// A kernel at one shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub time_ns: f64,
    pub ground: Ground,
    /// Its bytes and its operations alone, at peak rates.
    memory_ns: f64,
    arithmetic_ns: f64,
}

impl Node {
    pub(super) fn is_calibrated(&self) -> bool {
        self.ground == Ground::Calibrated
    }

    /// A part with what it rests on; `exact` if the shape is the one that will run.
    pub(super) fn rests(&self, part: Part, exact: bool) -> Part {
        let is_calibrated = exact && self.is_calibrated();
        let (calibrated, extrapolated) = if is_calibrated { (self.time_ns, 0.0) } else { (0.0, self.time_ns) };
        Part { calibrated, extrapolated, busy: self.arithmetic_ns.min(self.time_ns), ..part }
    }

    /// Its time as that of weights or arithmetic, whichever is slower at peak rates; `exact` if the shape is the one that
    /// will run.
    pub(super) fn streaming(&self, exact: bool) -> Part {
        let part = if self.arithmetic_ns > self.memory_ns {
            Part { compute: self.time_ns, ..Part::default() }
        } else {
            Part { weight_read: self.time_ns, ..Part::default() }
        };
        self.rests(part, exact)
    }

    /// Its time as that of a collective.
    pub(super) fn exchanging(&self) -> Part {
        self.rests(Part { collective: self.time_ns, ..Part::default() }, true)
    }
}

/// The values that a length has among all measured shapes of a surface, in rising order and thinned to what interpolation
/// needs.
pub(super) fn axis(surface: &Surface, dim: Dim) -> Vec<u64> {
    let mut all: Vec<u64> = (0..surface.keys().len()).flat_map(|group| surface.lengths(group, dim)).collect();
    all.sort_unstable();
    all.dedup();
    if all.len() <= MOST_NODES {
        return all;
    }
    let last = all.last().copied();
    let mut kept: Vec<u64> = Vec::new();
    for value in all {
        // Steps of a quarter.
        if kept.last().is_none_or(|before| value >= before + before.div_ceil(4)) || Some(value) == last {
            kept.push(value);
        }
    }
    kept
}

/// Values of which each is at least twice the one before, and the last.
pub(super) fn octaves(axis: &[u64]) -> Vec<u64> {
    let mut kept: Vec<u64> = Vec::new();
    for value in axis {
        if kept.last().is_none_or(|before| *value >= before.saturating_mul(2)) {
            kept.push(*value);
        }
    }
    kept.extend(axis.last().filter(|last| kept.last() != Some(last)));
    kept
}

/// The same with a value between each two: what grows with the square of a length is not linear over an octave.
pub(super) fn denser(axis: &[u64]) -> Vec<u64> {
    let mut all: Vec<u64> = axis.iter().copied().filter(|value| *value > 0).collect();
    let between = all.windows(2).map(|pair| ((pair[0] as f64) * (pair[1] as f64)).sqrt().round() as u64);
    let between: Vec<u64> = between.collect();
    all.extend(between);
    all.sort_unstable();
    all.dedup();
    all
}

/// A shape for each pair of values of two lengths, rows of the second.
pub(super) fn table(shape: &Shape, (row, rows): (Dim, &[u64]), (column, columns): (Dim, &[u64])) -> Vec<Shape> {
    let of = |at: &u64| {
        let shape = shape.with(row, *at);
        columns.iter().map(move |value| shape.with(column, *value))
    };
    rows.iter().flat_map(of).collect()
}

/// The times of the kernel that serves the shapes best among those whose key `fits`: the one with the most shapes between
/// measured ones, then the fastest in the geometric mean. With `peaks`, at other rates than the measured device has.
/// `None` without such a kernel, or where other rates are asked for and the work is not known.
pub(super) fn fastest(
    surface: &Surface,
    shapes: &[Shape],
    peaks: Option<&Peaks>,
    fits: &dyn Fn(&Key) -> bool,
) -> Option<Vec<Node>> {
    fastest_of(surface, shapes, peaks, fits, shapes.len())
}

/// The same of those kernels that have at least one of the shapes between measured ones: a kernel that has none says
/// nothing about attention of such heads.
pub(super) fn fastest_inside(
    surface: &Surface,
    shapes: &[Shape],
    peaks: Option<&Peaks>,
    fits: &dyn Fn(&Key) -> bool,
) -> Option<Vec<Node>> {
    fastest_of(surface, shapes, peaks, fits, shapes.len().checked_sub(1)?)
}

/// The same of those kernels that have at most so many of the shapes beyond the measured ones.
fn fastest_of(
    surface: &Surface,
    shapes: &[Shape],
    peaks: Option<&Peaks>,
    fits: &dyn Fn(&Key) -> bool,
    most_outside: usize,
) -> Option<Vec<Node>> {
    let mut scratch = Scratch::default();
    let mut best: Option<((usize, f64), Vec<Node>)> = None;
    for (group, key) in surface.keys().enumerate().filter(|(_, key)| fits(key)) {
        if surface.op() == "gemm" && least_ns(surface, group, key) > LAUNCHED_NS {
            continue;
        }
        let Some(nodes) = times(surface, (group, key), shapes, &mut scratch) else { continue };
        let rank = rank(&nodes);
        if rank.0 > most_outside {
            continue;
        }
        if best.as_ref().is_none_or(|(before, _)| is_better(rank, *before)) {
            let nodes = match peaks {
                Some(peaks) => moved(surface, key, shapes, nodes, peaks)?,
                None => nodes,
            };
            best = Some((rank, nodes));
        }
    }
    best.map(|(_, nodes)| nodes)
}

/// How many of a kernel's shapes lie beyond the measured ones, and the sum of the logarithms of its times.
fn rank(nodes: &[Node]) -> (usize, f64) {
    let outside = nodes.iter().filter(|node| !node.is_calibrated()).count();
    (outside, nodes.iter().map(|node| node.time_ns.ln()).sum())
}

fn is_better((outside, mean): (usize, f64), (least, fastest): (usize, f64)) -> bool {
    outside < least || outside == least && mean < fastest
}

/// The fastest of several kernels at the same shapes; of equals the first.
pub(super) fn faster(kernels: impl Iterator<Item = Vec<Node>>) -> Option<Vec<Node>> {
    kernels.reduce(|best, other| if rank(&other).1 < rank(&best).1 { other } else { best })
}

/// The least time that a kernel was measured with.
fn least_ns(surface: &Surface, group: usize, key: &Key) -> f64 {
    let time =
        |(shape, value): (Shape, f64)| work(surface.op(), key, &shape).roofline_ns(surface.peaks()) / value.exp();
    surface.points(group).map(time).fold(f64::INFINITY, f64::min)
}

fn times(surface: &Surface, (group, key): (usize, &Key), shapes: &[Shape], scratch: &mut Scratch) -> Option<Vec<Node>> {
    let peaks = surface.peaks();
    let node = |shape: &Shape| {
        let found = surface.evaluate(group, shape, scratch)?;
        let work = work(surface.op(), key, shape);
        let (memory_ns, arithmetic_ns) = (work.memory_ns(peaks), work.arithmetic_ns(peaks));
        Some(Node { time_ns: found.time_ns, ground: found.ground, memory_ns, arithmetic_ns })
    };
    shapes.iter().map(node).collect()
}

/// The efficiency of a kernel on much work: the median over the quarter of the shapes with the longest roofline times. The
/// best of all would be that of a shape whose data the cache holds.
fn saturated(mut nodes: Vec<(f64, f64)>) -> f64 {
    nodes.sort_by(|a, b| b.0.total_cmp(&a.0));
    nodes.truncate(nodes.len().div_ceil(4));
    let mut shares: Vec<f64> = nodes.iter().map(|(roofline, time)| roofline / time).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied().unwrap_or(0.0).min(1.0)
}

/// The same kernel at other rates: each time changes by the difference of the rooflines over the efficiency that the kernel
/// reaches on much work, so that what does not follow the rates stays.
fn moved(surface: &Surface, key: &Key, shapes: &[Shape], nodes: Vec<Node>, peaks: &Peaks) -> Option<Vec<Node>> {
    let before = surface.peaks();
    let roofline = |node: &Node| node.memory_ns.max(node.arithmetic_ns);
    let best = saturated(nodes.iter().map(|node| (roofline(node), node.time_ns)).collect());
    let node = |(node, shape): (Node, &Shape)| {
        let work = work(surface.op(), key, shape);
        if !work.is_known() || best <= 0.0 {
            return None;
        }
        // Out of the cache a kernel can be faster than its roofline; then its own efficiency carries over.
        let efficiency = best.max(roofline(&node) / node.time_ns);
        let change = (work.roofline_ns(peaks) - work.roofline_ns(before)) / efficiency;
        Some(Node {
            time_ns: (node.time_ns + change).max(work.bound_ns(peaks)),
            ground: Ground::Extrapolated,
            memory_ns: work.memory_ns(peaks),
            arithmetic_ns: work.arithmetic_ns(peaks),
        })
    };
    nodes.into_iter().zip(shapes).map(node).collect()
}
