//! Parameters, KV and arithmetic of a layer, derived from its shape.

use super::description::{
    AttentionShape, ChannelDelta, Compressed, Dense, FfnShape, GatedDelta, GroupedQuery, IndexShape, Latent, Layers,
    Mamba2, Moe, SparseLatent, SparseQuery,
};
use super::{Attention, Ffn, KvShape, LayerGroup, STATE_TOKENS, Sparse};
use crate::error::{Error, Result};

/// Bounds of a shape. They are far above every model known, and keep bytes of all layers and tokens within 64 bits.
const MAX_DIM: u32 = 1 << 20;
const MAX_WINDOW: u32 = 1 << 24;
const MAX_ELEMENTS: u64 = 1 << 24;
/// Most layers of a model.
pub(super) const MAX_LAYERS: u32 = 10_000;

/// Products of a state with a vector that a token of a linear layer costs: the state is read for the old value, changed
/// by an outer product, and read for the output.
const STATE_PRODUCTS: f64 = 3.0;

/// Derives one group of layers.
pub(super) fn layer_group(group: &Layers, hidden: u32) -> Result<LayerGroup> {
    in_range("count", group.count, MAX_LAYERS)?;
    let (kv, attention_params) = attention(&group.attention, hidden)?;
    if kv.elements() > MAX_ELEMENTS {
        let found = kv.elements();
        return Err(Error::data(format!(
            "expected at most {MAX_ELEMENTS} KV elements per token and layer, found {found}"
        )));
    }
    let none = Ffn { dense_params: 0.0, expert_params: 0.0, experts: 0, active_experts: 0 };
    let ffn = group.ffn.as_ref().map_or(Ok(none), |ffn| feed_forward(ffn, hidden))?;
    Ok(LayerGroup { layers: group.count, kv, attention_params, ffn })
}

/// KV and parameters of the part that mixes tokens.
fn attention(shape: &AttentionShape, hidden: u32) -> Result<(KvShape, f64)> {
    match shape {
        AttentionShape::Full(heads) => grouped_query(Attention::Full, hidden, heads),
        AttentionShape::Sliding(local) => {
            in_range("window", local.window, MAX_WINDOW)?;
            let heads = GroupedQuery {
                query_heads: local.query_heads,
                kv_heads: local.kv_heads,
                key_dim: local.key_dim,
                value_dim: local.value_dim,
                output_gate: false,
                shared_projection: false,
            };
            grouped_query(Attention::Sliding { window: local.window }, hidden, &heads)
        }
        AttentionShape::Mla(latent) => multi_head_latent(latent, hidden),
        AttentionShape::Sparse(sparse) => sparse_query(sparse, hidden),
        AttentionShape::SparseMla(sparse) => sparse_latent(sparse, hidden),
        AttentionShape::Compressed(entries) => compressed(entries, hidden),
        AttentionShape::GatedDelta(shape) => gated_delta(shape, hidden),
        AttentionShape::ChannelDelta(shape) => channel_delta(shape, hidden),
        AttentionShape::Mamba2(shape) => mamba2(shape, hidden),
    }
}

/// KV and projections of grouped-query attention.
fn grouped_query(attention: Attention, hidden: u32, heads: &GroupedQuery) -> Result<(KvShape, f64)> {
    let GroupedQuery { query_heads, kv_heads, key_dim, value_dim, output_gate, shared_projection } = *heads;
    all_in_range(&[
        ("query_heads", query_heads),
        ("kv_heads", kv_heads),
        ("key_dim", key_dim),
        ("value_dim", value_dim),
    ])?;
    if !query_heads.is_multiple_of(kv_heads) {
        let found = format!("found {query_heads} and {kv_heads}");
        return Err(Error::data(format!("expected `query_heads` to be a multiple of `kv_heads`, {found}")));
    }
    let (key, value) = (f64::from(key_dim), f64::from(value_dim));
    let macs_per_pair = f64::from(query_heads) * (key + value);
    let gate = if output_gate { value } else { 0.0 };
    let pair = if shared_projection { key } else { key + value };
    // Query, gate and output projections have all query heads, key and value projections the KV heads.
    let widths = f64::from(query_heads) * (key + value + gate) + f64::from(kv_heads) * pair;
    let kv = KvShape {
        attention,
        query_heads,
        kv_heads,
        key_dim,
        value_dim,
        macs_per_pair,
        prefill_macs_per_pair: macs_per_pair,
    };
    Ok((kv, f64::from(hidden) * widths))
}

/// KV and projections of multi-head latent attention, decoding in its absorbed form.
fn multi_head_latent(latent: &Latent, hidden: u32) -> Result<(KvShape, f64)> {
    let Latent { query_heads, q_lora_rank, kv_lora_rank, nope_dim, rope_dim, value_dim, output_gate } = *latent;
    let required = [query_heads, kv_lora_rank, nope_dim, rope_dim, value_dim];
    for (key, value) in ["query_heads", "kv_lora_rank", "nope_dim", "rope_dim", "value_dim"].into_iter().zip(required) {
        in_range(key, value, MAX_DIM)?;
    }
    let [heads, kv_rank, nope, rope, value] = required.map(f64::from);
    let hidden = f64::from(hidden);
    let query_out = heads * (nope + rope);
    let query = match q_lora_rank {
        Some(rank) => {
            in_range("q_lora_rank", rank, MAX_DIM)?;
            f64::from(rank) * (hidden + query_out)
        }
        None => hidden * query_out,
    };
    let down = hidden * (kv_rank + rope);
    let up = kv_rank * heads * (nope + value);
    let output = heads * value * hidden;
    let gate = if output_gate { output } else { 0.0 };
    let kv = KvShape {
        attention: Attention::Mla,
        query_heads,
        kv_heads: 1,
        key_dim: kv_lora_rank + rope_dim,
        value_dim: 0,
        macs_per_pair: heads * (kv_rank + rope + kv_rank),
        prefill_macs_per_pair: heads * (nope + rope + value),
    };
    Ok((kv, query + down + up + output + gate))
}

/// What an index stores and computes, and what it weighs when its queries come from vectors of width `query_width`.
fn index(shape: &IndexShape, hidden: u32, query_width: u32) -> Result<(Sparse, f64)> {
    let IndexShape { heads, dim, bytes, top } = *shape;
    all_in_range(&[("index.heads", heads), ("index.dim", dim), ("index.bytes", bytes)])?;
    in_range("index.top", top, MAX_WINDOW)?;
    let (heads, dim, hidden) = (f64::from(heads), f64::from(dim), f64::from(hidden));
    let params = f64::from(query_width) * heads * dim + hidden * dim + hidden * heads;
    Ok((Sparse { top, index_bytes: bytes, index_macs: heads * dim, is_latent: false, window: None }, params))
}

fn sparse_query(sparse: &SparseQuery, hidden: u32) -> Result<(KvShape, f64)> {
    let SparseQuery { query_heads, kv_heads, key_dim, value_dim, .. } = *sparse;
    let heads =
        GroupedQuery { query_heads, kv_heads, key_dim, value_dim, output_gate: false, shared_projection: false };
    let (kv, params) = grouped_query(Attention::Full, hidden, &heads)?;
    let (chosen, weight) = index(&sparse.index, hidden, hidden)?;
    Ok((KvShape { attention: Attention::Sparse(chosen), ..kv }, params + weight))
}

/// Prefill attends in the absorbed form too, since each query has its own choice of tokens.
fn sparse_latent(sparse: &SparseLatent, hidden: u32) -> Result<(KvShape, f64)> {
    let (kv, params) = multi_head_latent(&sparse.latent, hidden)?;
    in_range("top", sparse.top, MAX_WINDOW)?;
    let borrowed = Sparse { top: sparse.top, index_bytes: 0, index_macs: 0.0, is_latent: true, window: None };
    let (chosen, weight) = match &sparse.index {
        None => (borrowed, 0.0),
        Some(shape) => {
            let (own, weight) = index(shape, hidden, sparse.latent.q_lora_rank.unwrap_or(hidden))?;
            (Sparse { top: sparse.top, is_latent: true, ..own }, weight)
        }
    };
    let attention = Attention::Sparse(chosen);
    Ok((KvShape { attention, prefill_macs_per_pair: kv.macs_per_pair, ..kv }, params + weight))
}

/// Per token of context a layer stores `entry_dim / ratio` elements; the window is a second part of the same layer.
///
/// Parameters: a low-rank query, one key-value projection, a grouped low-rank output, and for each compressor a vector and
/// a gate of `entry_dim` (twice as many where entries overlap, which is where an index chooses among them).
fn compressed(entries: &Compressed, hidden: u32) -> Result<(KvShape, f64)> {
    let Compressed { query_heads, entry_dim, window, ratio, q_lora_rank, output_groups, output_lora_rank, .. } =
        *entries;
    all_in_range(&[
        ("query_heads", query_heads),
        ("entry_dim", entry_dim),
        ("q_lora_rank", q_lora_rank),
        ("output_groups", output_groups),
        ("output_lora_rank", output_lora_rank),
    ])?;
    in_range("window", window, MAX_WINDOW)?;
    let [heads, entry, query_rank, groups, output_rank] =
        [query_heads, entry_dim, q_lora_rank, output_groups, output_lora_rank].map(f64::from);
    let width = f64::from(hidden);
    let query = query_rank * (width + heads * entry);
    let output = heads * entry * output_rank + groups * output_rank * width;
    let mut params = query + width * entry + output;
    let Some(ratio) = ratio else {
        if entries.index.is_some() {
            return Err(Error::data(
                "expected a `ratio` where an `index` chooses among compressed entries, found none",
            ));
        }
        return Ok((entry_shape(entries, Attention::Sliding { window }, 1), params));
    };
    in_range("ratio", ratio, MAX_DIM)?;
    if !entry_dim.is_multiple_of(ratio) {
        return Err(Error::data(format!(
            "expected `entry_dim` to be a multiple of `ratio`, found {entry_dim}, {ratio}"
        )));
    }
    let overlap = if entries.index.is_some() { 2.0 } else { 1.0 };
    params += 2.0 * overlap * width * entry;
    let all = Sparse { top: u32::MAX, index_bytes: 0, index_macs: 0.0, is_latent: true, window: None };
    let mut chosen = all;
    if let Some(shape) = &entries.index {
        let (own, weight) = index(shape, hidden, q_lora_rank)?;
        // The index has a compressor of its own in place of one key per token.
        params += weight + (2.0 * overlap - 1.0) * width * f64::from(shape.dim);
        chosen = Sparse {
            top: own.top.saturating_mul(ratio),
            index_bytes: own.index_bytes.div_ceil(ratio),
            index_macs: own.index_macs / f64::from(ratio),
            ..all
        };
    }
    let chosen = Sparse { window: Some((window, ratio)), ..chosen };
    Ok((entry_shape(entries, Attention::Sparse(chosen), ratio), params))
}

/// One vector per entry, of which there is one for every `ratio` tokens, serves as K and V of all heads.
fn entry_shape(entries: &Compressed, attention: Attention, ratio: u32) -> KvShape {
    let macs = 2.0 * f64::from(entries.query_heads) * f64::from(entries.entry_dim) / f64::from(ratio);
    KvShape {
        attention,
        query_heads: entries.query_heads,
        kv_heads: 1,
        key_dim: entries.entry_dim / ratio,
        value_dim: 0,
        macs_per_pair: macs,
        prefill_macs_per_pair: macs,
    }
}

/// A layer with a state of `heads` matrices in fp32, and the last `conv - 1` inputs of its convolution in 16 bits.
fn linear(heads: u32, state_elements: f64, conv_channels: f64, conv: u32) -> KvShape {
    let bytes = 4.0 * state_elements + 2.0 * conv_channels * f64::from(conv.saturating_sub(1));
    let slots = f64::from(STATE_TOKENS) * 2.0 * f64::from(heads);
    let macs = STATE_PRODUCTS * state_elements / f64::from(STATE_TOKENS);
    KvShape {
        attention: Attention::Linear,
        query_heads: heads,
        kv_heads: heads,
        key_dim: (bytes / slots).ceil() as u32,
        value_dim: 0,
        macs_per_pair: macs,
        prefill_macs_per_pair: macs,
    }
}

fn gated_delta(shape: &GatedDelta, hidden: u32) -> Result<(KvShape, f64)> {
    let GatedDelta { key_heads, value_heads, key_dim, value_dim, conv } = *shape;
    all_in_range(&[
        ("key_heads", key_heads),
        ("value_heads", value_heads),
        ("key_dim", key_dim),
        ("value_dim", value_dim),
        ("conv", conv),
    ])?;
    let [key_heads, values, key, value] = [key_heads, value_heads, key_dim, value_dim].map(f64::from);
    let channels = 2.0 * key_heads * key + values * value;
    // Queries, keys and values; the output's gate; two numbers per value head; the output.
    let params = f64::from(hidden) * (channels + values * value + 2.0 * values + values * value);
    Ok((linear(value_heads, values * key * value, channels, conv), params))
}

fn channel_delta(shape: &ChannelDelta, hidden: u32) -> Result<(KvShape, f64)> {
    let ChannelDelta { heads, head_dim, conv } = *shape;
    all_in_range(&[("heads", heads), ("head_dim", head_dim), ("conv", conv)])?;
    let (count, dim, width) = (f64::from(heads), f64::from(head_dim), f64::from(hidden));
    // Queries, keys, values, the output's gate and the output; the low-rank gate of the keys; one number per head.
    let params = 5.0 * width * count * dim + dim * (width + count * dim) + width * count;
    Ok((linear(heads, count * dim * dim, 3.0 * count * dim, conv), params))
}

fn mamba2(shape: &Mamba2, hidden: u32) -> Result<(KvShape, f64)> {
    let Mamba2 { heads, head_dim, state, groups, conv } = *shape;
    all_in_range(&[("heads", heads), ("head_dim", head_dim), ("state", state), ("groups", groups), ("conv", conv)])?;
    let [count, dim, width, shared] = [heads, head_dim, state, groups].map(f64::from);
    let inner = count * dim;
    let channels = inner + 2.0 * shared * width;
    // What enters (the gate, the convolved channels, a step per head) and what leaves.
    let params = f64::from(hidden) * (inner + channels + count + inner);
    Ok((linear(heads, inner * width, channels, conv), params))
}

/// Parameters of the feed-forward part; the router counts as dense.
fn feed_forward(shape: &FfnShape, hidden: u32) -> Result<Ffn> {
    let width = f64::from(hidden);
    match *shape {
        FfnShape::Dense(Dense { intermediate, matrices }) => {
            all_in_range(&[("intermediate", intermediate), ("matrices", matrices)])?;
            let dense_params = f64::from(matrices) * width * f64::from(intermediate);
            Ok(Ffn { dense_params, expert_params: 0.0, experts: 0, active_experts: 0 })
        }
        FfnShape::Moe(Moe {
            experts,
            active,
            shared,
            expert_intermediate,
            shared_intermediate,
            expert_hidden,
            matrices,
        }) => {
            all_in_range(&[
                ("experts", experts),
                ("active", active),
                ("expert_intermediate", expert_intermediate),
                ("matrices", matrices),
                ("shared_intermediate", shared_intermediate.unwrap_or(1)),
                ("expert_hidden", expert_hidden.unwrap_or(1)),
            ])?;
            if active > experts {
                return Err(Error::data(format!(
                    "expected at most `experts` = {experts} `active` experts, found {active}"
                )));
            }
            let matrices = f64::from(matrices);
            let inner = f64::from(expert_intermediate);
            let expert_params = matrices * f64::from(expert_hidden.unwrap_or(hidden)) * inner;
            let shared_inner = shared_intermediate.map_or(f64::from(shared) * inner, f64::from);
            let projections = expert_hidden.map_or(0.0, |narrow| 2.0 * width * f64::from(narrow));
            let dense_params = width * f64::from(experts) + matrices * width * shared_inner + projections;
            Ok(Ffn { dense_params, expert_params, experts, active_experts: active })
        }
    }
}

fn all_in_range(shape: &[(&str, u32)]) -> Result<()> {
    shape.iter().try_for_each(|(key, value)| in_range(key, *value, MAX_DIM))
}

/// Refuses numbers that no model has.
pub(super) fn in_range(key: &str, value: u32, max: u32) -> Result<()> {
    if value == 0 || value > max {
        return Err(Error::data(format!("expected `{key}` from 1 to {max}, found {value}")));
    }
    Ok(())
}
