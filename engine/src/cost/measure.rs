//! Puts measured times into a plan.
//!
//! Of each operation that the surfaces of the device have, under a kernel and number format that the plan would run, the
//! times of the scenario's own shapes are taken once ([`super::measured`] looks them up in every step). Of several kernels
//! the one that has measured most of the shapes counts, and among those the fastest, as engines choose. What no surface
//! has keeps the closed form.
//!
//! * **Attention** of decoding and of prompts: layers with keys and values of one width, in 16 or 8 bits. A prompt's chunk
//!   takes the time of the whole prompt that has as many query-context pairs.
//!   Where a kernel was measured that decodes beside a chunk, it prices decoding in such steps: it has one tile for each
//!   request and head, and takes up to twice what it takes for decoding alone. Where batches of contexts that differ were
//!   measured ([`crate::surface::uneven`]), the longest context of a batch counts beside the mean.
//! * **Latent attention** of DeepSeek-V3's widths: the whole module with its projections where the framework was measured
//!   so, else its kernel.
//! * **Matrix products**: the projections of attention (queries, keys and values as one product, and the output), the
//!   dense part of the FFN (gate and up as one product, and down), the router, and the output projection. Projections of
//!   other kinds of attention are priced as one product of as many weights, which is an extrapolation. So is a number format
//!   of as many bits that stands in for one that was not measured, or only launched one by one by the host.
//! * **Layers by name** where a whole model was profiled: products, norms, activations and sampling; then no fixed time stays.
//! * **Routed experts**, where tokens fall on them by a power law of exponent 1.01, the mildest skew that was measured.
//! * **All-reduces** of the residual stream.
//!
//! A fixed time per layer ([`Plan::layer_floor_ns`]) stays beside them: norms, rotary embeddings and activations, which are
//! none of these. That of attention kernels is in their measured time.
//!
//! **Other rates.** Where a variation changed a rate of the machine, a kernel's time changes by the difference of the
//! roofline times over the efficiency that the kernel reaches on much work: what does not follow the rate (its start, its
//! last wave) stays. The result is extrapolated. Operations whose efficiency or fixed time was varied must not
//! be among the surfaces; the caller knows which.

mod kernels;
mod latent;
mod named;
mod products;

use std::fmt;
use std::sync::Arc;

use super::measured::{Covered, Line, Lines, Mixed, Part, Ways};
use super::plan::{Linear, Plan, PlanGroup, certainty};
use crate::machine::{Machine, Parameter};
use crate::model::{Attention, Certainty, Model, WeightDtype};
use crate::surface::{Dim, Grid, Ground, Key, Peaks, Shape, Surface, Uneven, across_nodes};
use kernels::{Node, fastest, fastest_inside};
use products::{Product, products};

/// Measured operations of a device under a framework.
#[derive(Clone, Default)]
pub struct Measured {
    /// What they are, with a hash of their points: it tells runs apart.
    pub name: String,
    /// One surface per operation.
    pub surfaces: Vec<Arc<Surface>>,
    /// The rates of the machine, where a variation changed them.
    pub peaks: Option<Peaks>,
}

/// Without the surfaces, which their name stands for.
impl fmt::Debug for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measured").field("name", &self.name).field("peaks", &self.peaks).finish_non_exhaustive()
    }
}

impl Measured {
    /// The surface of an operation.
    fn surface(&self, op: &str) -> Option<&Surface> {
        self.surfaces_of(op).next()
    }

    /// The surfaces of an operation: the framework's own, then those of others that run its kernels.
    fn surfaces_of(&self, op: &str) -> impl Iterator<Item = &Surface> {
        self.surfaces.iter().map(Arc::as_ref).filter(move |surface| surface.op() == op)
    }

    /// The same on a machine of which numbers have become others; what is no rate of its accelerators changes no time.
    #[must_use]
    pub fn on(&self, before: &[Parameter], now: &[Parameter]) -> Self {
        let device = || self.surfaces.first().map(|surface| *surface.peaks());
        let Some(own) = self.peaks.or_else(device) else { return self.clone() };
        let moved = moved(&own, before, now);
        let peaks = if moved == own { self.peaks } else { Some(moved) };
        Self { peaks, ..self.clone() }
    }
}

/// The rates of a device, each times what the machine's parameter for it has become.
pub fn moved(device: &Peaks, before: &[Parameter], now: &[Parameter]) -> Peaks {
    let factor = |name: &str| {
        let of = |list: &[Parameter]| list.iter().find(|parameter| parameter.name == name).map(|known| known.value);
        of(now).zip(of(before)).map_or(1.0, |(now, before)| now / before)
    };
    Peaks {
        memory_bytes_per_s: device.memory_bytes_per_s * factor("memory_bytes_per_s"),
        flops_16bit: device.flops_16bit * factor("bf16_flops"),
        flops_8bit: device.flops_8bit * factor("fp8_flops"),
        flops_4bit: device.flops_4bit * factor("fp4_flops"),
        link_bytes_per_s: device.link_bytes_per_s * factor("scale_up_bytes_per_s"),
        ..*device
    }
}

/// Tokens of a step at which lines have nodes, where the surfaces themselves have none.
const TOKENS: [u64; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// The skew of tokens over experts that is assumed, and what stands in for it.
const DISTRIBUTIONS: [&str; 3] = ["power_law_1.01", "balanced", "power_law_1.2"];

/// In the names of kernels of TensorRT-LLM that other frameworks run.
const TRTLLM: &str = "trtllm";

/// Puts the times of measured operations into a plan, and says how certain the plan is then.
pub fn measure(plan: &mut Plan, model: &Model, machine: &Machine, dtype: WeightDtype, measured: &Measured) {
    if measured.surfaces.is_empty() {
        return;
    }
    let tensor = (plan.tensor as u32).max(1);
    let formats = Formats::of(model, dtype);
    for group in &mut plan.groups {
        group.measured = decode(group, model, measured, tensor);
        group.measured_prefill = prefill(group, model, measured, tensor);
        group.uneven = ways(group, model, measured.surface("attention_generation"), tensor);
        group.measured_mixed = mixed(group, model, measured, tensor);
    }
    latents(plan, model, measured, formats.attention, tensor);
    // On two pools the FFN runs elsewhere, and micro-batches of it are not steps.
    if let Some((lines, is_routed)) = named::lines(plan, model, measured, dtype, tensor) {
        // Norms, rotary embeddings and activations are among what was measured.
        plan.layer_floor_ns = 0.0;
        for part in &mut plan.linear {
            part.covered = Covered { attention: true, dense: true, experts: is_routed };
        }
        let (exchange, all_reduce) = (exchange(plan, model, measured), all_reduce(measured, model, tensor));
        plan.lines = Some(Box::new(Lines { exchange, all_reduce, ..lines }));
    } else if plan.ffn_pool.is_none() {
        let [layers, experts] = layers(plan, model, measured, &formats, tensor);
        let head = Product {
            n: (model.head_params / f64::from(model.hidden) / plan.tensor).ceil() as u64,
            k: u64::from(model.hidden),
            exact: true,
        };
        let head = product_line(measured, formats.products, &head);
        let exchange = exchange(plan, model, measured);
        let lines = Lines { layers, experts, exchange, head, all_reduce: all_reduce(measured, model, tensor) };
        plan.lines = (lines != Lines::default()).then(|| Box::new(lines));
    }
    // Times at other rates than the measured ones are an assumption.
    plan.certainty = if measured.peaks.is_some() { Certainty::Assumed } else { certain(plan, model, machine) };
}

/// The number formats that surfaces name for weights of one kind, the likeliest first.
struct Formats {
    attention: &'static [&'static str],
    products: &'static [&'static str],
    experts: &'static [&'static str],
}

impl Formats {
    /// Weights that are published in 8 bits have scales for blocks; those that an engine converts have one for a tensor.
    fn of(model: &Model, dtype: WeightDtype) -> Self {
        let published = model.weights == WeightDtype::Fp8;
        let products_of = |dtype: WeightDtype| -> &'static [&'static str] {
            match dtype {
                WeightDtype::Bf16 => &["bfloat16"],
                WeightDtype::Fp8 if published => &["fp8_block", "fp8"],
                WeightDtype::Fp8 => &["fp8", "fp8_block"],
                WeightDtype::Nvfp4 => &["nvfp4"],
                WeightDtype::Mxfp4 => &[],
                WeightDtype::Int4 => &["int4_wo"],
            }
        };
        let products = products_of(dtype);
        let experts = if dtype == WeightDtype::Mxfp4 { &["w4a8_mxfp4_mxfp8", "w4a16_mxfp4"] } else { products };
        Self { attention: products_of(model.attention_dtype(dtype)), products, experts }
    }
}

/// Heads of one accelerator, width and window of a layer whose attention was measured, and how its KV is written; `None`
/// for other kinds.
fn heads(group: &PlanGroup, tensor: u32) -> Option<(Shape, &'static str)> {
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
    let shape = Shape::of(&[
        (Dim::Batch, 1),
        (Dim::NewTokens, 1),
        (Dim::QueryHeads, u64::from(kv.query_heads.div_ceil(tensor))),
        (Dim::KvHeads, u64::from(kv.kv_heads.div_ceil(tensor))),
        (Dim::HeadDim, u64::from(kv.key_dim)),
        (Dim::WindowTokens, window),
    ]);
    (kv.key_dim == kv.value_dim).then_some((shape, format))
}

/// The shape as a surface has it, and which of its keys fit: profiles of one model leave out the width of heads and name
/// the model.
fn as_measured(surface: &Surface, shape: Shape, tensor: u32) -> (Shape, bool) {
    let is_profile = (0..surface.keys().len()).all(|group| surface.lengths(group, Dim::HeadDim) == [0]);
    if is_profile {
        (shape.with(Dim::HeadDim, 0).with(Dim::TensorParallel, u64::from(tensor)), true)
    } else {
        (shape, false)
    }
}

/// Whether a kernel is for KV of this format: profiles have the format of the model, and serve the model that they are of.
fn fits(key: &Key, format: &str, profile: Option<&Model>) -> bool {
    match profile {
        Some(model) => format == "bfloat16" && key.kv_dtype.is_empty() && named::is_model(&key.model, &model.name),
        None => key.kv_dtype == format,
    }
}

fn decode(group: &PlanGroup, model: &Model, measured: &Measured, tensor: u32) -> Option<Grid> {
    let surface = measured.surface("attention_generation")?;
    let (shape, format) = heads(group, tensor)?;
    let (shape, is_profile) = as_measured(surface, shape, tensor);
    let profile = is_profile.then_some(model);
    let (batches, pasts) = (kernels::axis(surface, Dim::Batch), kernels::axis(surface, Dim::PastTokens));
    let shapes = kernels::table(&shape, (Dim::Batch, &batches), (Dim::PastTokens, &pasts));
    let nodes = fastest_inside(surface, &shapes, measured.peaks.as_ref(), &|key: &Key| fits(key, format, profile))?;
    through(&batches, pasts.iter().map(|past| *past as f64).collect(), &nodes)
}

/// How far uneven batches of this very model are from even ones; nothing where it was not measured.
fn ways(group: &PlanGroup, model: &Model, surface: Option<&Surface>, tensor: u32) -> Ways {
    let Some((surface, (_, format))) = surface.zip(heads(group, tensor)) else { return Ways::default() };
    let fits = |one: &&Uneven| one.tensor_parallel == u64::from(tensor) && fits(&one.key, format, Some(model));
    Ways::of(surface.uneven().iter().filter(fits).map(|one| (one.requests as f64, one.share)).collect())
}

/// Decoding beside the chunk of a prompt, as one kernel for both takes longer than for the chunk alone.
fn mixed(group: &PlanGroup, model: &Model, measured: &Measured, tensor: u32) -> Option<Mixed> {
    let (both, alone) = (measured.surface("attention_mixed")?, measured.surface("attention_context")?);
    let (shape, format) = heads(group, tensor)?;
    let (shape, is_profile) = as_measured(both, shape, tensor);
    let profile = is_profile.then_some(model);
    let fits = |key: &Key| fits(key, format, profile);
    let [batches, pasts] = [Dim::Batch, Dim::PastTokens].map(|dim| kernels::axis(both, dim));
    let mut chunks = kernels::octaves(&kernels::axis(both, Dim::PrefillTokens));
    chunks.retain(|chunk| *chunk > 0);
    let of = |chunk: &u64| {
        let prompt = [shape.with(Dim::NewTokens, *chunk)];
        let own = fastest_inside(alone, &prompt, measured.peaks.as_ref(), &fits)?.first()?.time_ns;
        let shapes = kernels::table(&shape, (Dim::Batch, &batches), (Dim::PastTokens, &pasts));
        let shapes: Vec<Shape> = shapes.iter().map(|shape| shape.with(Dim::PrefillTokens, *chunk)).collect();
        let nodes = fastest_inside(both, &shapes, measured.peaks.as_ref(), &fits)?;
        let beyond: Vec<_> = nodes.iter().map(|node| ((node.time_ns - own).max(0.0), node.ground)).collect();
        let real = |list: &[u64]| list.iter().map(|value| *value as f64).collect();
        Grid::through(real(&batches), real(&pasts), &beyond)
    };
    let grids: Option<Vec<Grid>> = chunks.iter().map(of).collect();
    let ways = ways(group, model, Some(both), tensor);
    Mixed::of(chunks.iter().map(|chunk| *chunk as f64).collect(), grids?, ways)
}

/// The grid through nodes over batches and another axis.
fn through(batches: &[u64], others: Vec<f64>, nodes: &[Node]) -> Option<Grid> {
    let found: Vec<_> = nodes.iter().map(|node| (node.time_ns, node.ground)).collect();
    Grid::through(batches.iter().map(|batch| *batch as f64).collect(), others, &found)
}

/// Prompts from nothing, over their number and the pairs of each.
fn prefill(group: &PlanGroup, model: &Model, measured: &Measured, tensor: u32) -> Option<Grid> {
    let surface = measured.surface("attention_context")?;
    let (shape, format) = heads(group, tensor)?;
    let (shape, is_profile) = as_measured(surface, shape, tensor);
    let profile = is_profile.then_some(model);
    let batches = kernels::axis(surface, Dim::Batch);
    let lengths = kernels::denser(&kernels::axis(surface, Dim::NewTokens));
    let mut chunks: Vec<(u64, u64)> = lengths.iter().map(|new| (*new, 0)).collect();
    // Where chunks behind a context were measured, the longest of them go on from the longest prompt.
    let longest = lengths.last().copied().unwrap_or(0);
    let before = kernels::axis(surface, Dim::PastTokens).into_iter().filter(|past| *past > 0);
    chunks.extend(before.map(|past| (longest, past)));
    let shapes: Vec<Shape> = batches
        .iter()
        .flat_map(|batch| chunks.iter().map(move |(new, past)| (*batch, *new, *past)))
        .map(|(batch, new, past)| shape.with(Dim::Batch, batch).with(Dim::NewTokens, new).with(Dim::PastTokens, past))
        .collect();
    let nodes = fastest_inside(surface, &shapes, measured.peaks.as_ref(), &|key: &Key| fits(key, format, profile))?;
    let window = shape.get(Dim::WindowTokens) as f64;
    let pairs: Vec<f64> = chunks.iter().map(|(new, past)| pairs(*new as f64, window) + (*new * *past) as f64).collect();
    through(&batches, pairs, &nodes)
}

/// Pairs of prompts of these lengths.
fn pairs_axis(lengths: &[u64], window: f64) -> Vec<f64> {
    lengths.iter().map(|new| pairs(*new as f64, window)).collect()
}

/// Latent attention: whole modules where they were measured and the plan has one group of each kind of layer, else kernels.
fn latents(plan: &mut Plan, model: &Model, measured: &Measured, formats: &[&str], tensor: u32) {
    let weights = (plan.weight_bytes_per_ns, plan.ffn_pool.is_none());
    for at in 0..plan.groups.len() {
        let of = plan.groups[at].group.model_group;
        let Some(layers) = model.groups.get(of).filter(|layers| latent::is_known(layers, model.hidden)) else {
            continue;
        };
        let is_alone = plan.groups.iter().filter(|group| group.group.model_group == of).count() == 1;
        let group = &mut plan.groups[at];
        let module = latent::modules(group, measured, tensor, formats).filter(|_| is_alone && weights.1);
        if let (Some([decode, prefill]), Some(part)) = (module, plan.linear.get(of)) {
            (group.measured, group.measured_prefill) = (Some(decode), Some(prefill));
            group.module_ns = f64::from(layers.layers) * part.attention_bytes / weights.0;
        } else {
            [group.measured, group.measured_prefill] = latent::kernels(group, measured, tensor);
        }
    }
}

/// Query-context pairs of a prompt of so many tokens; a window of 0 is none.
fn pairs(tokens: f64, window: f64) -> f64 {
    let seen = if window > 0.0 { window.min(tokens) } else { tokens };
    seen * (seen + 1.0) / 2.0 + (tokens - seen) * seen
}

/// All linear layers but the output projection, and the routed experts, over tokens; marks in the plan what they cover.
fn layers(plan: &mut Plan, model: &Model, measured: &Measured, formats: &Formats, tensor: u32) -> [Option<Line>; 2] {
    let mut tokens = measured.surface("gemm").map_or_else(|| TOKENS.to_vec(), |gemm| kernels::axis(gemm, Dim::M));
    tokens.retain(|count| *count > 0);
    let modules: Vec<usize> =
        plan.groups.iter().filter(|group| group.module_ns > 0.0).map(|group| group.group.model_group).collect();
    let spread = (tensor * plan.data as u32, plan.expert as u32);
    let mut sums = [Vec::new(), Vec::new()];
    for (at, (part, group)) in plan.linear.iter_mut().zip(&model.groups).enumerate() {
        let mut all = products(group, model.hidden, tensor);
        if modules.contains(&at) {
            // The times of attention have its projections.
            all.attention.clear();
        }
        let lists = [(&all.attention, formats.attention), (&all.dense, formats.products)].map(|(list, formats)| {
            list.iter().try_fold(vec![Part::default(); tokens.len()], |sum, product| {
                Some(added(sum, &product_parts(measured, formats, product, &tokens)?))
            })
        });
        let [attention, dense] = lists;
        let dense = dense.filter(|_| part.dense_bytes > 0.0);
        let experts = experts(measured, formats, model, part, spread, &tokens);
        part.covered = Covered { attention: attention.is_some(), dense: dense.is_some(), experts: experts.is_some() };
        for (sum, found) in [(0, attention), (0, dense), (1, experts)] {
            let Some(found) = found else { continue };
            let sum = &mut sums[sum];
            sum.resize(tokens.len(), Part::default());
            sum.iter_mut().zip(found).for_each(|(sum, one)| *sum = sum.plus(one.times(part.layers)));
        }
    }
    let nodes: Vec<f64> = tokens.iter().map(|count| *count as f64).collect();
    sums.map(|sum| Line::of(nodes.clone(), sum))
}

fn added(mut sum: Vec<Part>, parts: &[Part]) -> Vec<Part> {
    sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum = sum.plus(*part));
    sum
}

/// A matrix product over rows; `None` where no kernel of its number format was measured.
fn product_parts(measured: &Measured, formats: &[&str], product: &Product, rows: &[u64]) -> Option<Vec<Part>> {
    let surface = measured.surface("gemm")?;
    let shape = Shape::of(&[(Dim::N, product.n), (Dim::K, product.k)]);
    let shapes: Vec<Shape> = rows.iter().map(|rows| shape.with(Dim::M, *rows)).collect();
    let of = |(at, format): (usize, &&str)| {
        let nodes = fastest(surface, &shapes, measured.peaks.as_ref(), &|key: &Key| key.dtype == *format)?;
        // Another format of as many bits stands in where that of the weights was not measured.
        Some((nodes, product.exact && at == 0))
    };
    let (nodes, exact) = formats.iter().enumerate().find_map(of)?;
    Some(nodes.iter().map(|node| node.streaming(exact)).collect())
}

fn product_line(measured: &Measured, formats: &[&str], product: &Product) -> Option<Line> {
    let mut rows = kernels::axis(measured.surface("gemm")?, Dim::M);
    rows.retain(|count| *count > 0);
    let parts = product_parts(measured, formats, product, &rows)?;
    Line::of(rows.iter().map(|count| *count as f64).collect(), parts)
}

/// The routed experts of one layer, over tokens that meet at them: `width` accelerators have `expert` parts of whole experts,
/// and slices of those.
fn experts(
    measured: &Measured,
    formats: &Formats,
    model: &Model,
    part: &Linear,
    (width, expert): (u32, u32),
    tokens: &[u64],
) -> Option<Vec<Part>> {
    if part.experts <= 0.0 {
        return None;
    }
    let shape = Shape::of(&[
        (Dim::Hidden, u64::from(model.hidden)),
        (Dim::Intermediate, (part.expert_params / (3.0 * f64::from(model.hidden))).round() as u64),
        (Dim::Experts, part.experts as u64),
        (Dim::ActiveExperts, part.active_experts as u64),
        (Dim::TensorParallel, u64::from(width / expert.max(1))),
        (Dim::ExpertParallel, u64::from(expert)),
    ]);
    let shapes: Vec<Shape> = tokens.iter().map(|tokens| shape.with(Dim::NewTokens, *tokens)).collect();
    let of = |format: &&str, distribution: &&str| {
        let fits = |key: &Key| {
            // Experts of two matrices are another operation.
            key.dtype == **format && key.distribution == **distribution && !key.kernel_source.contains("nongated")
        };
        // Behind the framework's own surface are those of others with kernels of it; engines take the faster ones.
        kernels::faster(measured.surfaces_of("moe").enumerate().filter_map(|(at, surface)| {
            let fits = |key: &Key| fits(key) && (at == 0 || key.kernel_source.contains(TRTLLM));
            fastest(surface, &shapes, measured.peaks.as_ref(), &fits)
        }))
    };
    let nodes = formats.experts.iter().find_map(|format| DISTRIBUTIONS.iter().find_map(|skew| of(format, skew)))?;
    Some(nodes.iter().map(|node| node.streaming(true)).collect())
}

/// An all-reduce of the residual stream over tokens.
fn all_reduce(measured: &Measured, model: &Model, tensor: u32) -> Option<Line> {
    let surface = measured.surface("all_reduce").filter(|_| tensor > 1)?;
    let bytes = 2 * u64::from(model.hidden);
    let shape = Shape::of(&[(Dim::Devices, u64::from(tensor)), (Dim::ElementBytes, 2)]);
    let shapes: Vec<Shape> = TOKENS.iter().map(|tokens| shape.with(Dim::MessageBytes, tokens * bytes)).collect();
    let nodes = fastest(surface, &shapes, measured.peaks.as_ref(), &|_: &Key| true)?;
    let parts = nodes.iter().map(Node::exchanging).collect();
    Line::of(TOKENS.iter().map(|count| *count as f64).collect(), parts)
}

/// Tokens of one accelerator to their experts and back, where attention is data-parallel and each accelerator has whole
/// experts. One node was measured; what crosses to others does so at the pace of the link, and is extrapolated.
fn exchange(plan: &Plan, model: &Model, measured: &Measured) -> Option<Line> {
    let part = plan.linear.iter().find(|part| part.experts > 0.0)?;
    let (wire, devices) = (plan.exchange?, NODE);
    let all = plan.expert as u64;
    if all != (plan.tensor * plan.data) as u64 || !all.is_multiple_of(NODE) {
        return None;
    }
    let nodes = |op: &str| {
        let surface = measured.surface(op)?;
        let has = |dim: Dim| (0..surface.keys().len()).any(|group| surface.lengths(group, dim) != [0]);
        let of = |dim: Dim, value: u64| (dim, if has(dim) { value } else { 0 });
        let shape = Shape::of(&[
            (Dim::Hidden, u64::from(model.hidden)),
            (Dim::Experts, part.experts as u64),
            (Dim::ActiveExperts, part.active_experts as u64),
            of(Dim::ExpertParallel, devices),
            of(Dim::Devices, devices),
            of(Dim::Nodes, 1),
        ]);
        let shapes: Vec<Shape> = TOKENS.iter().map(|tokens| shape.with(Dim::NewTokens, *tokens)).collect();
        fastest(surface, &shapes, measured.peaks.as_ref(), &|_: &Key| true)
    };
    let (there, back) = (nodes("moe_dispatch")?, nodes("moe_combine")?);
    let part = |((there, back), tokens): ((&Node, &Node), &u64)| {
        let one = there.exchanging().plus(back.exchanging());
        let crossing = *tokens as f64 * part.active_experts * plan.residual_bytes * 1.5 / wire.bytes_per_ns;
        let two = f64::midpoint(one.total(), crossing.max(one.total()) + 2.0 * wire.latency_ns);
        let (time, ground) = across_nodes(one.total(), 2, two, (all / NODE) as u32)?;
        // The crossing itself was not measured.
        let is_measured = all == NODE && ground == Ground::Calibrated;
        let (calibrated, extrapolated) = if is_measured { (one.calibrated, one.extrapolated) } else { (0.0, time) };
        Some(Part { collective: time, calibrated, extrapolated, ..Part::default() })
    };
    let parts = there.iter().zip(&back).zip(&TOKENS).map(part).collect::<Option<_>>()?;
    Line::of(TOKENS.iter().map(|count| *count as f64).collect(), parts)
}

/// Devices of the node on which exchanges among experts were measured.
const NODE: u64 = 8;

/// Parameters that decode attention, matrix products and collectives would take their times from.
const ATTENTION: [&str; 4] = ["kv_read_16bit", "kv_read_8bit", "attention_floor_ns", "attention_floor_8bit_ns"];
const PRODUCTS: [&str; 5] = ["weight_read", "weight_read_8bit", "matmul_bf16", "matmul_fp8", "matmul_fp4"];
const COLLECTIVES: [&str; 2] = ["all_reduce", "scale_up_latency_ns"];

/// The certainty of a measured plan: of the model and of those parameters that nothing measured stands in for. What was
/// extrapolated is assumed.
fn certain(plan: &Plan, model: &Model, machine: &Machine) -> Certainty {
    let attention = plan.groups.iter().all(|group| group.measured.is_some() && group.measured_prefill.is_some());
    let lines = plan.lines.as_deref();
    let covers = |part: &Linear| {
        let Covered { attention, dense, experts } = part.covered;
        attention && (dense || part.dense_bytes <= 0.0) && (experts || part.experts <= 0.0)
    };
    let products = lines.is_some_and(|lines| lines.head.is_some()) && plan.linear.iter().all(covers);
    let collectives = plan.tensor <= 1.0 || lines.is_some_and(|lines| lines.all_reduce.is_some());
    let counts = |name: &str| {
        !(attention && ATTENTION.contains(&name)
            || attention && products && PRODUCTS.contains(&name)
            || collectives && COLLECTIVES.contains(&name))
    };
    certainty(model, machine, counts)
}

#[cfg(test)]
mod tests;
