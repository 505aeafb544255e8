//! Multi-head latent attention with the widths of DeepSeek-V3, the only ones that were measured (arXiv 2412.19437, section
//! 4.2): the whole module with its projections where a framework was measured so, else the kernel alone.

use super::kernels::{self, fastest_inside};
use super::products::Product;
use super::{Measured, pairs_axis, through};
use crate::cost::plan::PlanGroup;
use crate::model::{Attention, LayerGroup};
use crate::surface::{Dim, Grid, Key, Shape};

const HIDDEN: u32 = 7168;
const QUERY: u32 = 1536;
const LATENT: u32 = 512;
const ROPE: u32 = 64;
const HEAD: u32 = 128;

/// Heads of the model in all; the tables name kernels by the share of them that a device has.
const HEADS: u64 = 128;

/// Whether a layer attends with these widths; the number of heads is free.
pub(super) fn is_known(group: &LayerGroup, hidden: u32) -> bool {
    let kv = &group.kv;
    let heads = f64::from(kv.query_heads);
    let own = f64::from(HIDDEN * (QUERY + LATENT + ROPE))
        + heads * f64::from(QUERY * (HEAD + ROPE) + LATENT * 2 * HEAD + HEAD * HIDDEN);
    kv.attention == Attention::Mla
        && hidden == HIDDEN
        && kv.key_dim == LATENT + ROPE
        && (group.attention_params / own - 1.0).abs() < 1e-3
}

/// Its projections on one accelerator: those into latents are whole everywhere, those of heads are split.
pub(super) fn products(heads: u32) -> Vec<Product> {
    let product = |n: u32, k: u32| Product { n: u64::from(n), k: u64::from(k), exact: true };
    vec![
        product(QUERY + LATENT + ROPE, HIDDEN),
        product(heads * (HEAD + ROPE), QUERY),
        // Queries into the latent space and outputs back, as one product of as many weights.
        Product { exact: false, ..product(heads * 2 * HEAD, LATENT) },
        product(HIDDEN, heads * HEAD),
    ]
}

/// How its KV is written, where that was measured.
fn format(group: &PlanGroup) -> Option<&'static str> {
    match group.group.token_bytes {
        bytes if bytes == 2 * u64::from(LATENT + ROPE) => Some("bfloat16"),
        bytes if bytes == u64::from(LATENT + ROPE) => Some("fp8"),
        _ => None,
    }
}

/// Decode and prefill of the kernel alone.
pub(super) fn kernels(group: &PlanGroup, measured: &Measured, tensor: u32) -> [Option<Grid>; 2] {
    let heads = u64::from(group.group.kv.query_heads.div_ceil(tensor));
    let shape = Shape::of(&[
        (Dim::Batch, 1),
        (Dim::NewTokens, 1),
        (Dim::QueryHeads, heads),
        (Dim::TensorParallel, (HEADS / heads.max(1)).max(1)),
    ]);
    let Some(format) = format(group) else { return [None, None] };
    let fits = |key: &Key| key.kv_dtype == format;
    let decode = measured.surface("mla_generation").and_then(|surface| {
        let (batches, pasts) = (kernels::axis(surface, Dim::Batch), kernels::axis(surface, Dim::PastTokens));
        let shapes = kernels::table(&shape, (Dim::Batch, &batches), (Dim::PastTokens, &pasts));
        let nodes = fastest_inside(surface, &shapes, measured.peaks.as_ref(), &fits)?;
        through(&batches, pasts.iter().map(|past| *past as f64).collect(), &nodes)
    });
    let prefill = measured.surface("mla_context").and_then(|surface| {
        let (batches, lengths) = axes(surface);
        let shapes = kernels::table(&shape, (Dim::Batch, &batches), (Dim::NewTokens, &lengths));
        let nodes = fastest_inside(surface, &shapes, measured.peaks.as_ref(), &fits)?;
        through(&batches, pairs_axis(&lengths, 0.0), &nodes)
    });
    [decode, prefill]
}

fn axes(surface: &crate::surface::Surface) -> (Vec<u64>, Vec<u64>) {
    (kernels::axis(surface, Dim::Batch), kernels::denser(&kernels::axis(surface, Dim::NewTokens)))
}

/// Decode and prefill of the whole module; `None` unless both were measured.
pub(super) fn modules(group: &PlanGroup, measured: &Measured, tensor: u32, formats: &[&str]) -> Option<[Grid; 2]> {
    let (decode, context) = (measured.surface("mla_generation_module")?, measured.surface("mla_context_module")?);
    let format = format(group)?;
    let shape = Shape::of(&[
        (Dim::Batch, 1),
        (Dim::NewTokens, 1),
        (Dim::QueryHeads, u64::from(group.group.kv.query_heads.div_ceil(tensor))),
        (Dim::TensorParallel, 1),
    ]);
    let of = |weight: &&str| {
        let fits = |key: &Key| key.kv_dtype == format && key.weight_dtype == **weight;
        let (batches, pasts) = (kernels::axis(decode, Dim::Batch), kernels::axis(decode, Dim::PastTokens));
        let shapes = kernels::table(&shape, (Dim::Batch, &batches), (Dim::PastTokens, &pasts));
        let nodes = fastest_inside(decode, &shapes, measured.peaks.as_ref(), &fits)?;
        let decoding = through(&batches, pasts.iter().map(|past| *past as f64).collect(), &nodes)?;
        let (batches, lengths) = axes(context);
        let shapes = kernels::table(&shape, (Dim::Batch, &batches), (Dim::NewTokens, &lengths));
        let nodes = fastest_inside(context, &shapes, measured.peaks.as_ref(), &fits)?;
        Some([decoding, through(&batches, pairs_axis(&lengths, 0.0), &nodes)?])
    };
    formats.iter().find_map(of)
}
