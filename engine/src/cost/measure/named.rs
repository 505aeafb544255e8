//! Layers that were measured by their names within one model (profiles of `LLMServingSim`): the whole step but attention.
//!
//! Their work is not known, only their time over tokens, so that they serve the same model, in the same number format and
//! tensor parallelism, at the rates of the device alone. Experts were measured whole, by how many of one device are hit.

use super::kernels::{self, Node, fastest};
use super::{Line, Lines, Measured, Part};
use crate::cost::plan::Plan;
use crate::model::{Model, WeightDtype};
use crate::surface::{Dim, Key, Shape};

/// Matrix products of a layer.
const ATTENTION: [&str; 2] = ["qkv_proj", "o_proj"];
const DENSE: [&str; 2] = ["gate_up_proj", "down_proj"];

/// Other kernels of a layer, and how often they run: a norm before attention and one before the FFN.
const OTHERS: [(&str, f64); 3] = [("layernorm", 2.0), ("rotary_emb", 1.0), ("act_fn", 1.0)];

/// Other kernels of some models' layers.
const SOME: [&str; 1] = ["qk_norm"];

/// Whether a measured model, as it is published (`meta-llama/Llama-3.1-8B`), is the one of this name.
pub(super) fn is_model(published: &str, name: &str) -> bool {
    let own = published.rsplit('/').next().unwrap_or_default().to_lowercase();
    own.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("-instruct"))
}

/// Times of one kernel over a count; `None` where it was not measured in this model.
fn times(measured: &Measured, op: &str, model: &Model, (dim, tensor): (Dim, u32), counts: &[u64]) -> Option<Vec<Node>> {
    let shape = Shape::of(&[(Dim::TensorParallel, u64::from(tensor))]);
    let shapes: Vec<Shape> = counts.iter().map(|count| shape.with(dim, *count)).collect();
    let surface = measured.surface(op)?;
    // Of another tensor parallelism the nearest one would be taken.
    let group = surface.keys().position(|key| is_model(&key.model, &model.name))?;
    if !surface.lengths(group, Dim::TensorParallel).contains(&u64::from(tensor)) {
        return None;
    }
    fastest(surface, &shapes, measured.peaks.as_ref(), &|key: &Key| is_model(&key.model, &model.name))
}

/// Lines of all named layers over tokens and rows, and whether the routed experts are among them; `None` unless the products,
/// norms and head of this very model were measured.
pub(super) fn lines(
    plan: &Plan,
    model: &Model,
    measured: &Measured,
    dtype: WeightDtype,
    tensor: u32,
) -> Option<(Lines, bool)> {
    let [part] = &plan.linear[..] else { return None };
    if dtype != WeightDtype::Bf16 || plan.pipeline > 1.0 {
        return None;
    }
    let tokens = kernels::axis(measured.surface("qkv_proj")?, Dim::NewTokens);
    let rows = kernels::axis(measured.surface("lm_head")?, Dim::Batch);
    let of = |op: &str| times(measured, op, model, (Dim::NewTokens, tensor), &tokens);
    let mut layer = vec![Part::default(); tokens.len()];
    let mut add = |nodes: &[Node], times: f64, is_product: bool| {
        for ((sum, node), count) in layer.iter_mut().zip(nodes).zip(&tokens) {
            let count = *count as f64;
            let flops = count * (part.attention_flops + part.ffn_flops - part.routed_flops);
            let bytes = part.attention_bytes + part.dense_bytes;
            let paced = flops / plan.linear_flops_per_ns > bytes / plan.weight_bytes_per_ns;
            let booth = match (is_product, paced) {
                (true, true) => Part { compute: node.time_ns, ..Part::default() },
                (true, false) => Part { weight_read: node.time_ns, ..Part::default() },
                (false, _) => Part { overhead: node.time_ns, ..Part::default() },
            };
            *sum = sum.plus(node.rests(booth, true).times(times));
        }
    };
    let dense: &[&str] = if part.dense_bytes > 0.0 && part.experts == 0.0 { &DENSE } else { &[] };
    for op in ATTENTION.iter().chain(dense) {
        add(&of(op)?, part.layers, true);
    }
    for (op, times) in OTHERS {
        // Experts have their activation within.
        match of(op) {
            Some(nodes) => add(&nodes, part.layers * times, false),
            None if op == "act_fn" && part.experts > 0.0 => {}
            None => return None,
        }
    }
    for op in SOME {
        if let Some(nodes) = of(op) {
            add(&nodes, part.layers, false);
        }
    }
    for op in ["embedding", "final_layernorm"] {
        add(&of(op)?, 1.0, false);
    }
    let real = |counts: &[u64]| counts.iter().map(|count| *count as f64).collect::<Vec<_>>();
    let head = head(measured, model, tensor, &rows)?;
    let experts = experts(plan, model, measured);
    let is_routed = experts.is_some();
    let lines = Lines {
        layers: Line::of(real(&tokens), layer),
        experts: experts.and_then(|(tokens, parts)| Line::of(real(&tokens), parts)),
        head: Line::of(real(&rows), head),
        ..Lines::default()
    };
    Some((lines, is_routed))
}

/// The output projection and sampling, over rows.
fn head(measured: &Measured, model: &Model, tensor: u32, rows: &[u64]) -> Option<Vec<Part>> {
    let [head, sampler] = ["lm_head", "sampler"].map(|op| times(measured, op, model, (Dim::Batch, tensor), rows));
    let both = head?.into_iter().zip(sampler?);
    let part = |(head, sampler): (Node, Node)| {
        let product = head.rests(Part { weight_read: head.time_ns, ..Part::default() }, true);
        product.plus(sampler.rests(Part { overhead: sampler.time_ns, ..Part::default() }, true))
    };
    Some(both.map(part).collect())
}

/// Routed experts of all layers on one accelerator, over the tokens that meet at them. Each accelerator must have whole
/// experts; it sorts and adds up all tokens, and of even choices it hits its share.
fn experts(plan: &Plan, model: &Model, measured: &Measured) -> Option<(Vec<u64>, Vec<Part>)> {
    let is_whole = plan.expert >= plan.tensor * plan.data;
    let part = plan.linear.first().filter(|part| part.experts > 0.0 && is_whole)?;
    let surface = measured.surface("moe")?;
    let tokens = kernels::axis(surface, Dim::NewTokens);
    let shape = Shape::of(&[(Dim::TensorParallel, 1)]);
    let shapes: Vec<Shape> = tokens
        .iter()
        .map(|count| {
            let hit = (part.touched(*count as f64) / plan.expert).round().max(1.0) as u64;
            shape.with(Dim::NewTokens, *count).with(Dim::ActiveExperts, hit)
        })
        .collect();
    let fits = |key: &Key| key.distribution == "experts_hit" && is_model(&key.model, &model.name);
    let nodes = fastest(surface, &shapes, measured.peaks.as_ref(), &fits)?;
    let booth =
        |node: &Node| node.rests(Part { weight_read: node.time_ns, ..Part::default() }, true).times(part.layers);
    let parts = nodes.iter().map(booth).collect();
    Some((tokens, parts))
}
