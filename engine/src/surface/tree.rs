//! A k-d tree over weighted points (Bentley, "Multidimensional binary search trees used for associative searching", 1975).

/// Points of a leaf, which are looked at one by one.
const LEAF: usize = 12;

/// Points in a few dimensions, for the nearest of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    axes: usize,
    /// Rows of coordinates, in the order of the leaves.
    rows: Vec<f64>,
    /// Which point each row is.
    order: Vec<usize>,
    nodes: Vec<Node>,
}

/// Rows `from..to`, cut in two where there are many.
#[derive(Debug, Clone)]
struct Node {
    from: usize,
    to: usize,
    /// The axis and value of the cut, and the nodes below and above it.
    cut: Option<(usize, f64, usize, usize)>,
}

impl Tree {
    /// A tree of points, given as rows of `axes` coordinates.
    pub(super) fn new(points: &[f64], axes: usize, count: usize) -> Self {
        let mut tree = Self { axes, rows: Vec::new(), order: (0..count).collect(), nodes: Vec::new() };
        if axes > 0 {
            let mut order = std::mem::take(&mut tree.order);
            tree.split(points, &mut order, 0);
            tree.rows = order.iter().flat_map(|at| points[at * axes..(at + 1) * axes].iter().copied()).collect();
            tree.order = order;
        }
        tree
    }

    /// Coordinates of a row.
    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.rows[row * self.axes..(row + 1) * self.axes]
    }

    /// The point that a row is.
    pub(super) fn point(&self, row: usize) -> usize {
        self.order[row]
    }

    /// Adds a node over these points, which are rows from `from` on, and what is below it; returns its number.
    fn split(&mut self, points: &[f64], order: &mut [usize], from: usize) -> usize {
        let number = self.nodes.len();
        self.nodes.push(Node { from, to: from + order.len(), cut: None });
        if order.len() <= LEAF {
            return number;
        }
        let at = |point: usize, axis: usize| points[point * self.axes + axis];
        let spread = |axis: usize| {
            let (least, most) = order.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), point| {
                (least.min(at(*point, axis)), most.max(at(*point, axis)))
            });
            most - least
        };
        let widest = (0..self.axes)
            .map(|axis| (axis, spread(axis)))
            .fold((0, 0.0), |best, one| if one.1 > best.1 { one } else { best });
        if widest.1 <= 0.0 {
            return number;
        }
        let (axis, middle) = (widest.0, order.len() / 2);
        order.select_nth_unstable_by(middle, |a, b| at(*a, axis).total_cmp(&at(*b, axis)).then(a.cmp(b)));
        let value = at(order[middle], axis);
        let (low, high) = order.split_at_mut(middle);
        let below = self.split(points, low, from);
        let above = self.split(points, high, from + middle);
        self.nodes[number].cut = Some((axis, value, below, above));
        number
    }

    /// The rows nearest to a place with their squared distances, nearest first: up to `count` of them, without the point
    /// `skip`.
    pub(super) fn nearest(&self, place: &[f64], count: usize, skip: Option<usize>, near: &mut Vec<(f64, usize)>) {
        near.clear();
        if self.axes == 0 {
            near.extend((0..self.order.len()).filter(|row| Some(*row) != skip).take(count).map(|row| (0.0, row)));
        } else if !self.nodes.is_empty() && count > 0 {
            self.visit(0, place, count, skip, near);
        }
    }

    fn visit(&self, number: usize, place: &[f64], count: usize, skip: Option<usize>, near: &mut Vec<(f64, usize)>) {
        let node = &self.nodes[number];
        if let Some((axis, value, below, above)) = node.cut {
            let gap = place[axis] - value;
            let (first, second) = if gap < 0.0 { (below, above) } else { (above, below) };
            self.visit(first, place, count, skip, near);
            let full = near.len() >= count;
            if !full || near.last().is_some_and(|worst| gap * gap < worst.0) {
                self.visit(second, place, count, skip, near);
            }
            return;
        }
        for row in node.from..node.to {
            if Some(self.order[row]) == skip {
                continue;
            }
            let distance: f64 = self.row(row).iter().zip(place).map(|(a, b)| (a - b) * (a - b)).sum();
            let worst = if near.len() < count { f64::INFINITY } else { near.last().map_or(0.0, |last| last.0) };
            if distance < worst {
                let at = near.partition_point(|(known, _)| *known <= distance);
                near.insert(at, (distance, row));
                near.truncate(count);
            }
        }
    }
}
