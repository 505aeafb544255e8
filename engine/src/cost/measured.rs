//! Measured times in place of the closed form: how a step looks them up. [`super::measure`] puts them into a plan.
//!
//! Within a scenario shapes vary in few lengths. Attention is a grid over requests and what each of them reads; matrix
//! products, experts and collectives are lines over the tokens of the step, which do not change while a batch stays the
//! same. So a look-up is a search among some dozens of nodes and an interpolation, and step times stay piecewise linear.

use super::plan::{Plan, PlanGroup};
use super::{Batch, StepCost};
use crate::policy::Keep;
use crate::surface::{Grid, Ground};

/// Which of a layer's weights are in the measured times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Covered {
    /// The projections of attention.
    pub attention: bool,
    /// The dense part of the FFN: shared experts and the router among it.
    pub dense: bool,
    /// The routed experts.
    pub experts: bool,
}

/// Measured times of the parts of a step that depend on its tokens alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lines {
    /// All linear layers of the model but the routed experts and the output projection, over tokens of one accelerator.
    pub layers: Option<Line>,
    /// The routed experts of all layers, over tokens that meet at them.
    pub experts: Option<Line>,
    /// Tokens to their experts and back in one layer, over tokens of one accelerator.
    pub exchange: Option<Line>,
    /// The output projection, over rows of logits.
    pub head: Option<Line>,
    /// One all-reduce of the residual stream, over tokens.
    pub all_reduce: Option<Line>,
}

/// Nanoseconds by booth, and what they rest on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Part {
    /// Streaming weights.
    pub weight_read: f64,
    /// Arithmetic, where it sets the pace.
    pub compute: f64,
    /// Collectives.
    pub collective: f64,
    /// Kernels that are neither: norms, activations, sampling.
    pub overhead: f64,
    /// What arithmetic alone would take; part of the others.
    pub busy: f64,
    /// Of the booths' sum, what lies between measured shapes.
    pub calibrated: f64,
    /// Of the booths' sum, what lies beyond them.
    pub extrapolated: f64,
}

impl Part {
    /// Combines two, figure by figure.
    fn with(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            weight_read: of(self.weight_read, other.weight_read),
            compute: of(self.compute, other.compute),
            collective: of(self.collective, other.collective),
            overhead: of(self.overhead, other.overhead),
            busy: of(self.busy, other.busy),
            calibrated: of(self.calibrated, other.calibrated),
            extrapolated: of(self.extrapolated, other.extrapolated),
        }
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.with(other, |a, b| a + b)
    }

    /// So many of it.
    #[must_use]
    pub fn times(self, count: f64) -> Self {
        self.with(self, |a, _| a * count)
    }

    /// Time in all.
    pub fn total(&self) -> f64 {
        self.weight_read + self.compute + self.collective + self.overhead
    }

    /// Puts it into the booths of a step.
    fn charge(&self, cost: &mut StepCost) {
        cost.weight_read += self.weight_read;
        cost.compute += self.compute;
        cost.collective += self.collective;
        cost.overhead += self.overhead;
        cost.busy += self.busy;
        cost.calibrated += self.calibrated;
        cost.extrapolated += self.extrapolated;
    }
}

/// Times over a count, linear between the nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    nodes: Vec<f64>,
    parts: Vec<Part>,
}

impl Line {
    /// A line through parts at nodes, which must rise strictly; `None` where there are none or not as many of both.
    pub fn of(nodes: Vec<f64>, parts: Vec<Part>) -> Option<Self> {
        let rises = !nodes.is_empty() && nodes.windows(2).all(|pair| pair[0] < pair[1]);
        (rises && nodes.len() == parts.len()).then_some(Self { nodes, parts })
    }

    /// The nodes.
    pub fn nodes(&self) -> &[f64] {
        &self.nodes
    }

    /// The times at a count. Below the first node its times stay; beyond the last they go on in proportion to the count
    /// and are extrapolated.
    pub fn at(&self, count: f64) -> Part {
        let last = self.nodes.len() - 1;
        if count >= self.nodes[last] {
            let part = self.parts[last];
            let far = part.times(count / self.nodes[last]);
            let is_beyond = count > self.nodes[last];
            let (calibrated, extrapolated) =
                if is_beyond { (0.0, far.total()) } else { (far.calibrated, far.extrapolated) };
            return Part { calibrated, extrapolated, ..far };
        }
        let next = self.nodes.partition_point(|node| *node <= count);
        if next == 0 {
            return self.parts[0];
        }
        let (low, high) = (self.nodes[next - 1], self.nodes[next]);
        let share = (count - low) / (high - low);
        self.parts[next - 1].with(self.parts[next], |a, b| a + (b - a) * share)
    }
}

/// The measured linear layers for tokens of one accelerator, and for those that meet at the experts.
pub(super) fn layers(plan: &Plan, here: f64, pooled: f64, cost: &mut StepCost) {
    let Some(lines) = &plan.lines else { return };
    for (line, tokens) in [(&lines.layers, here), (&lines.experts, pooled)] {
        if let Some(line) = line {
            line.at(tokens).charge(cost);
        }
    }
}

/// The measured output projection for so many rows; `false` where it is not measured.
pub(super) fn head(plan: &Plan, rows: f64, cost: &mut StepCost) -> bool {
    let Some(line) = plan.lines.as_ref().and_then(|lines| lines.head.as_ref()) else { return false };
    line.at(rows).charge(cost);
    true
}

/// The measured way of so many tokens to their experts and back, `count` times; `false` where it is not measured.
pub(super) fn exchange(plan: &Plan, count: f64, tokens: f64, cost: &mut StepCost) -> bool {
    let Some(line) = plan.lines.as_ref().and_then(|lines| lines.exchange.as_ref()) else { return false };
    line.at(tokens).times(count).charge(cost);
    true
}

/// `count` measured all-reduces of so many tokens; `false` where none is measured.
pub(super) fn all_reduce(plan: &Plan, count: f64, tokens: f64, cost: &mut StepCost) -> bool {
    let Some(line) = plan.lines.as_ref().and_then(|lines| lines.all_reduce.as_ref()) else { return false };
    line.at(tokens).times(count).charge(cost);
    true
}

/// Which share of the way from even batches at the mean context to even batches at the longest an uneven one takes, over
/// requests; linear between the measured numbers of requests. Without any, all batches count as even.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ways(Vec<(f64, f64)>);

impl Ways {
    /// Shares by requests; where several were measured at one number of requests, their mean.
    pub fn of(mut shares: Vec<(f64, f64)>) -> Self {
        shares.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let same = shares.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq());
        Self(same.map(|alike| (alike[0].0, alike.iter().map(|one| one.1).sum::<f64>() / alike.len() as f64)).collect())
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn at(&self, requests: f64) -> f64 {
        let next = self.0.partition_point(|(count, _)| *count <= requests);
        match (next.checked_sub(1).and_then(|at| self.0.get(at)), self.0.get(next)) {
            (Some(low), Some(high)) => low.1 + (high.1 - low.1) * (requests - low.0) / (high.0 - low.0),
            (Some(only), None) | (None, Some(only)) => only.1,
            (None, None) => 0.0,
        }
    }
}

/// Decode attention beside a prompt's chunk: what one kernel for both takes beyond the chunk alone, over requests and past
/// tokens of each, for chunks of several lengths.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixed {
    /// Tokens of the chunk, rising.
    chunks: Vec<f64>,
    /// One for each length.
    grids: Vec<Grid>,
    /// Where contexts of a batch differ.
    pub(super) ways: Ways,
}

impl Mixed {
    /// Grids for chunks of so many tokens, which must rise strictly; `None` without any.
    pub fn of(chunks: Vec<f64>, grids: Vec<Grid>, ways: Ways) -> Option<Self> {
        let rises = !chunks.is_empty() && chunks.windows(2).all(|pair| pair[0] < pair[1]);
        (rises && chunks.len() == grids.len()).then_some(Self { chunks, grids, ways })
    }

    /// Linear between chunks; beyond the shortest and the longest their times stay.
    fn time(&self, chunk: f64, requests: f64, past: f64) -> (f64, Ground) {
        let next = self.chunks.partition_point(|tokens| *tokens <= chunk);
        let last = self.chunks.len() - 1;
        let (low, high) = (next.saturating_sub(1), next.min(last));
        let (near, far) = (self.grids[low].time(requests, past), self.grids[high].time(requests, past));
        let width = self.chunks[high] - self.chunks[low];
        let share = if width > 0.0 { (chunk - self.chunks[low]) / width } else { 0.0 };
        let is_beyond = chunk > self.chunks[last];
        let ground = if is_beyond { Ground::Extrapolated } else { near.1.and(far.1) };
        (near.0 + (far.0 - near.0) * share.clamp(0.0, 1.0), ground)
    }
}

/// Decode attention of one group: so many requests that read so many tokens and compute so much in all, in `passes`
/// launches per layer, on accelerators that have `share` of it at a time.
pub(super) fn attend(
    plan: &Plan,
    group: &PlanGroup,
    grid: &Grid,
    batch: &Batch<'_>,
    (requests, tokens, flops): (f64, f64, f64),
    (passes, share): (f64, f64),
    cost: &mut StepCost,
) {
    // The token that is computed is among those that are read.
    let past = (tokens / requests.max(1.0) - 1.0).max(0.0);
    let here = requests * share / passes;
    // Where the group reads all of a context, its longest is that of the batch.
    let is_whole = group.group.keep == Keep::ALL && group.read_lane.is_none();
    let longest = if is_whole { (batch.longest_tokens as f64 - 1.0).max(past) } else { past };
    let (time, ground, cell) = match &group.measured_mixed {
        Some(mixed) if batch.prefill_tokens > 0 => {
            let chunk = batch.prefill_tokens as f64 * share;
            let (even, ground) = mixed.time(chunk, here, past);
            let way = mixed.ways.at(here);
            let far = if way > 0.0 { mixed.time(chunk, here, longest) } else { (even, ground) };
            (even + way * (far.0 - even), ground.and(far.1), 0)
        }
        _ => {
            let (even, ground, cell) = grid.at(here, past);
            let way = group.uneven.at(here);
            let far = if way > 0.0 { grid.at(here, longest) } else { (even, ground, cell) };
            (even + way * (far.0 - even), ground.and(far.1), cell ^ far.2.rotate_left(24))
        }
    };
    let bytes = tokens * group.token_bytes_per_accelerator;
    let is_capped = kernel(plan, group, (time * passes, ground), (bytes, flops, share), cost);
    // A cell is a branch: within it times are linear in the context.
    cost.regime = cost.regime.rotate_left(11) ^ (cell * 2 + u64::from(is_capped));
}

/// Prefill attention of one group: the chunks of the batch with so many pairs, tokens that are read and operations in all.
pub(super) fn attend_prompts(
    plan: &Plan,
    group: &PlanGroup,
    grid: &Grid,
    batch: &Batch<'_>,
    (pairs, read, flops): (f64, f64, f64),
    share: f64,
    cost: &mut StepCost,
) {
    let count = (batch.prefill_requests as f64).max(1.0);
    // A module's time follows its tokens; the pairs with what is before them come on top.
    let own = if group.module_ns > 0.0 {
        let new = batch.prefill_tokens as f64 / count;
        (new * (new + 1.0) / 2.0 * count).min(pairs)
    } else {
        pairs
    };
    // Where one prompt at a time was measured, several count as one of as many pairs.
    let (time, ground) =
        if grid.is_of_one() { grid.time(1.0, own * share) } else { grid.time(count * share, own / count) };
    kernel(plan, group, (time, ground), (read * group.token_bytes_per_accelerator, flops, share), cost);
    let before = share * (pairs - own) * group.prefill_pair_flops / plan.attention_flops_per_ns;
    cost.compute += before;
    cost.busy += before;
}

/// Books the attention kernels of all layers of a group: time and ground of one, bytes and operations of all, of which an
/// accelerator has a share. The slower
/// of the two resources sets the pace and gets the time. Says whether arithmetic at its usual rate would have taken longer
/// than was measured.
fn kernel(
    plan: &Plan,
    group: &PlanGroup,
    (time, ground): (f64, Ground),
    (bytes, flops, share): (f64, f64, f64),
    cost: &mut StepCost,
) -> bool {
    let total = time * group.layers;
    let (memory, arithmetic) = (share * bytes / group.kv_bytes_per_ns, share * flops / plan.attention_flops_per_ns);
    let weights = group.module_ns.min(total);
    cost.weight_read += weights;
    if arithmetic > memory {
        cost.compute += total - weights;
    } else {
        cost.kv_read += total - weights;
    }
    match ground {
        Ground::Calibrated => cost.calibrated += total,
        Ground::Extrapolated => cost.extrapolated += total,
    }
    cost.busy += arithmetic.min(total);
    cost.kv_read_bytes += bytes * plan.tensor;
    cost.flops += flops * plan.tensor;
    arithmetic > total || group.module_ns > total
}
