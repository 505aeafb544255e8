//! Measured decode attention in place of the closed form.
//!
//! A kernel of one layer takes what its surface says for the batch and its mean context. The rest of the step keeps the
//! closed form. Batches of uneven contexts are priced at their mean.

use super::StepCost;
use super::plan::{Plan, PlanGroup};
use crate::model::Attention;
use crate::surface::{Dim, Grid, Ground, Key, Shape, Surface};

/// Puts the times of a surface of `attention_generation` into the groups of a plan whose shape it has measured, and says
/// how many these are.
///
/// A group is measured where the surface has its head width and heads per accelerator between measured ones, under a kernel
/// for KV of its number format; of several kernels the fastest counts, as engines choose. Formats other than 16 and 8 bits,
/// latent attention and heads whose keys and values differ in width stay with the closed form.
pub fn measure(plan: &mut Plan, surface: &Surface) -> usize {
    let tensor = plan.tensor as u32;
    let mut found = 0;
    for group in &mut plan.groups {
        group.measured = grid(group, surface, tensor.max(1));
        found += usize::from(group.measured.is_some());
    }
    found
}

fn grid(group: &PlanGroup, surface: &Surface, tensor: u32) -> Option<Grid> {
    let kv = &group.group.kv;
    let window = match kv.attention {
        Attention::Full => 0,
        Attention::Sliding { window } => u64::from(window),
        Attention::Mla | Attention::Sparse(_) | Attention::Linear => return None,
    };
    let plain = 2 * u64::from(kv.key_dim) * u64::from(kv.kv_heads);
    let format = match group.group.token_bytes {
        bytes if bytes == 2 * plain => "bfloat16",
        bytes if bytes == plain => "fp8",
        _ => return None,
    };
    if kv.key_dim != kv.value_dim {
        return None;
    }
    let shape = Shape::of(&[
        (Dim::Batch, 1),
        (Dim::NewTokens, 1),
        (Dim::QueryHeads, u64::from(kv.query_heads.div_ceil(tensor))),
        (Dim::KvHeads, u64::from(kv.kv_heads.div_ceil(tensor))),
        (Dim::HeadDim, u64::from(kv.key_dim)),
        (Dim::WindowTokens, window),
    ]);
    let of_format = |key: &Key| key.kv_dtype == format;
    let groups = surface.keys().enumerate().filter(|(_, key)| of_format(key)).map(|(at, _)| at);
    let mut best: Option<(f64, Grid)> = None;
    for at in groups {
        let (batches, contexts) = (surface.lengths(at, Dim::Batch), surface.lengths(at, Dim::PastTokens));
        let Some(grid) = Grid::of(surface, at, &shape, &batches, &contexts) else { continue };
        // In the middle of what serving asks; corners of large batch and long context do not fit any memory.
        let (time, ground) = grid.time(16.0, 2048.0);
        if ground == Ground::Calibrated && best.as_ref().is_none_or(|(least, _)| time < *least) {
            best = Some((time, grid));
        }
    }
    best.map(|(_, grid)| grid)
}

/// Decode attention of one group: so many requests that read so many tokens in all, in `passes` launches per layer.
pub(super) fn attend(
    plan: &Plan,
    group: &PlanGroup,
    grid: &Grid,
    (requests, tokens): (f64, f64),
    passes: f64,
    cost: &mut StepCost,
) {
    // The token that is computed is among those that are read.
    let past = (tokens / requests.max(1.0) - 1.0).max(0.0);
    let (time, _, cell) = grid.at(requests / passes, past);
    let flops = tokens * group.pair_flops;
    let total = time * group.layers * passes;
    cost.kv_read += total;
    cost.busy += (flops / plan.attention_flops_per_ns).min(total);
    cost.kv_read_bytes += tokens * group.token_bytes_per_accelerator * plan.tensor;
    cost.flops += flops * plan.tensor;
    // A cell is a branch: within it times are linear in the context.
    cost.regime = cost.regime.rotate_left(11) ^ cell;
}
