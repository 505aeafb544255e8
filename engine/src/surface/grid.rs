//! A surface within one scenario: only batch and context vary, so that it becomes a grid.
//!
//! Times are linear between the nodes in both directions. In context they are therefore piecewise linear, which keeps the
//! stretches of a replay arithmetic progressions, and they rise with the context wherever the nodes do.

use super::predict::Scratch;
use super::shape::{Dim, Shape};
use super::{Ground, Surface};

/// Times over two lengths of an operation: the batch, and the past tokens or what else its time grows with.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    batches: Vec<f64>,
    contexts: Vec<f64>,
    /// One row per batch.
    times: Vec<f64>,
    extrapolated: Vec<bool>,
}

impl Grid {
    /// The times of shapes that are `shape` but for batch and past tokens. Both lists must rise strictly; `None` where one
    /// is empty or does not, or where the surface has no estimate.
    pub fn of(surface: &Surface, group: usize, shape: &Shape, batches: &[u64], contexts: &[u64]) -> Option<Self> {
        let mut scratch = Scratch::default();
        let mut found = Vec::with_capacity(batches.len() * contexts.len());
        for batch in batches {
            for context in contexts {
                let shape = shape.with(Dim::Batch, *batch).with(Dim::PastTokens, *context);
                let estimate = surface.evaluate(group, &shape, &mut scratch)?;
                found.push((estimate.time_ns, estimate.ground));
            }
        }
        let real = |list: &[u64]| list.iter().map(|value| *value as f64).collect();
        Self::through(real(batches), real(contexts), &found)
    }

    /// The grid through times at the nodes, a row of them per batch. Both lists must rise strictly, and there must be a
    /// time for each pair; `None` where a list is empty or does not rise, or times are missing.
    ///
    /// Where a time falls although batch or context grow, the larger one before it stays: a step never gets faster by
    /// doing more.
    pub fn through(batches: Vec<f64>, contexts: Vec<f64>, found: &[(f64, Ground)]) -> Option<Self> {
        let rises = |list: &[f64]| !list.is_empty() && list.windows(2).all(|pair| pair[0] < pair[1]);
        let width = contexts.len();
        if !rises(&batches) || !rises(&contexts) || found.len() != batches.len() * width {
            return None;
        }
        let mut times: Vec<f64> = found.iter().map(|(time, _)| *time).collect();
        for at in 0..times.len() {
            let left = if at % width > 0 { times[at - 1] } else { 0.0 };
            let above = if at >= width { times[at - width] } else { 0.0 };
            times[at] = times[at].max(left).max(above);
        }
        let extrapolated = found.iter().map(|(_, ground)| *ground == Ground::Extrapolated).collect();
        Some(Self { batches, contexts, times, extrapolated })
    }

    /// Nanoseconds of one operation, and what they rest on. Beyond the last node the last slope goes on, below the first
    /// the first time stays.
    pub fn time(&self, batch: f64, context: f64) -> (f64, Ground) {
        let (time, ground, _) = self.at(batch, context);
        (time, ground)
    }

    /// The same with the number of the cell between the nodes: times of one batch are linear in the context as long as it
    /// stays the same.
    pub fn at(&self, batch: f64, context: f64) -> (f64, Ground, u64) {
        let ((row, up), (column, right)) = (place(&self.batches, batch), place(&self.contexts, context));
        let width = self.contexts.len();
        let next_row = (row + 1).min(self.batches.len() - 1);
        let next_column = (column + 1).min(width - 1);
        let corners = [(row, column), (row, next_column), (next_row, column), (next_row, next_column)]
            .map(|(row, column)| row * width + column);
        let [a, b, c, d] = corners.map(|at| self.times[at]);
        let time = (a + (b - a) * right) * (1.0 - up) + (c + (d - c) * right) * up;
        let beyond = up > 1.0 || right > 1.0 || corners.iter().any(|at| self.extrapolated[*at]);
        // Below the first node times stand still, which is a cell of its own.
        let cell = (row * width + column) as u64 * 2 + u64::from(context >= self.contexts[0]);
        (time.max(0.0), if beyond { Ground::Extrapolated } else { Ground::Calibrated }, cell)
    }

    /// Whether only batches of one were measured.
    pub fn is_of_one(&self) -> bool {
        self.batches == [1.0]
    }

    /// Whether all of its nodes are measured shapes or lie between them.
    pub fn ground(&self) -> Ground {
        if self.extrapolated.iter().any(|beyond| *beyond) { Ground::Extrapolated } else { Ground::Calibrated }
    }
}

/// The interval of a value, and how far it is along it: below 0 never, above 1 beyond the last node.
fn place(nodes: &[f64], value: f64) -> (usize, f64) {
    let at = nodes.partition_point(|node| *node <= value).saturating_sub(1).min(nodes.len().saturating_sub(2));
    let next = (at + 1).min(nodes.len() - 1);
    let width = nodes[next] - nodes[at];
    (at, if width > 0.0 { ((value - nodes[at]) / width).max(0.0) } else { 0.0 })
}
