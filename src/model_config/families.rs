//! What each family of models means by its keys.

use engine::error::{Error, Result};
use engine::model::Certainty;
use engine::model::description::{
    AttentionShape, ChannelDelta, Compressed, Dense, FfnShape, GatedDelta, GroupedQuery, IndexShape, Latent, Local,
    Mamba2, Moe, SparseLatent, SparseQuery,
};

use serde_json::Value;

use super::{Config, Layer, READ, unknown_kind};

/// Every `model_type` that is known.
pub(super) const KINDS: &[&str] = &[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_vl_text",
    "mimo",
    "mixtral",
    "qwen3_moe",
    "qwen3_vl_moe_text",
    "minimax_m2",
    "gpt_oss",
    "gemma4_text",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "deepseek_v3",
    "kimi_k2",
    "deepseek_v32",
    "glm_moe_dsa",
    "kimi_linear",
    "minimax_m3",
    "mimo_v2_flash",
    "step3p7",
    "llama4_text",
    "nemotron_h",
    "deepseek_v4",
];

/// The layers in order of depth, and how well they are known: some families leave things out of the file that only their
/// code says.
pub(super) fn layers(config: Config<'_>) -> Result<(Vec<Layer>, Certainty)> {
    let layers = match config.kind() {
        "llama" | "mistral" | "qwen2" | "qwen3" | "qwen3_vl_text" | "mimo" => {
            with_ffn(config, &|config| Ok(dense(config.number("intermediate_size")?)))?
        }
        "mixtral" | "minimax_m2" | "gpt_oss" => {
            let moe =
                |config: Config<'_>| experts(config, "num_local_experts", "num_experts_per_tok", "intermediate_size");
            with_ffn(config, &|config| moe(config).map(FfnShape::Moe))?
        }
        "qwen3_moe" | "qwen3_vl_moe_text" => {
            let moe =
                |config: Config<'_>| experts(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size");
            with_ffn(config, &|config| moe(config).map(FfnShape::Moe))?
        }
        "gemma4_text" => gemma4(config)?,
        "qwen3_5_text" | "qwen3_5_moe_text" => qwen3_5(config)?,
        "deepseek_v3" | "kimi_k2" | "deepseek_v32" | "glm_moe_dsa" => latent_layers(config)?,
        "kimi_linear" => return Ok((kimi_linear(config)?, Certainty::Assumed)),
        "minimax_m3" => return Ok((minimax_m3(config)?, Certainty::Assumed)),
        "mimo_v2_flash" => mimo_v2(config)?,
        "step3p7" => step(config)?,
        "llama4_text" => return Ok((llama4(config)?, Certainty::Assumed)),
        "nemotron_h" => nemotron(config)?,
        "deepseek_v4" => return Ok((deepseek_v4(config)?, Certainty::Assumed)),
        other => return Err(unknown_kind(other)),
    };
    Ok((layers, READ))
}

fn dense(intermediate: u32) -> FfnShape {
    FfnShape::Dense(Dense { intermediate, matrices: 3 })
}

/// Experts whose number, share and width are under these keys.
fn experts(config: Config<'_>, count: &str, active: &str, width: &str) -> Result<Moe> {
    Ok(Moe {
        experts: config.number(count)?,
        active: config.number(active)?,
        shared: 0,
        expert_intermediate: config.number(width)?,
        shared_intermediate: None,
        expert_hidden: None,
        matrices: 3,
    })
}

/// Width of a head: its own key, or the share of the residual stream.
fn head_dim(config: Config<'_>) -> Result<u32> {
    if let Some(width) = config.optional("head_dim")? {
        return Ok(width);
    }
    let (hidden, heads) = (config.number("hidden_size")?, config.number("num_attention_heads")?);
    hidden.checked_div(heads).ok_or_else(|| Error::data("`num_attention_heads`: expected at least 1, found 0"))
}

fn heads(config: Config<'_>) -> Result<GroupedQuery> {
    let (query_heads, width) = (config.number("num_attention_heads")?, head_dim(config)?);
    let kv_heads = config.optional("num_key_value_heads")?.unwrap_or(query_heads);
    Ok(GroupedQuery {
        query_heads,
        kv_heads,
        key_dim: width,
        value_dim: width,
        output_gate: false,
        shared_projection: false,
    })
}

fn local(heads: GroupedQuery, window: u32) -> AttentionShape {
    let GroupedQuery { query_heads, kv_heads, key_dim, value_dim, .. } = heads;
    AttentionShape::Sliding(Local { window, query_heads, kv_heads, key_dim, value_dim })
}

/// Layers of grouped-query attention, some with a window, and the same feed-forward part in all.
fn with_ffn(config: Config<'_>, ffn: &dyn Fn(Config<'_>) -> Result<FfnShape>) -> Result<Vec<Layer>> {
    let (count, heads, ffn) = (config.layers()?, heads(config)?, ffn(config)?);
    let kinds = if config.value("layer_types").is_some() { Some(config.words("layer_types", count)?) } else { None };
    let all_local = ["mistral", "mixtral"].contains(&config.kind()) && config.value("sliding_window").is_some();
    (0..count as usize)
        .map(|layer| {
            let kind = kinds.as_ref().and_then(|kinds| kinds.get(layer)).copied();
            let attention = match kind {
                Some("sliding_attention") => local(heads, config.number("sliding_window")?),
                None if all_local => local(heads, config.number("sliding_window")?),
                None | Some("full_attention") => AttentionShape::Full(heads),
                Some(other) => return Err(strange_layer(other)),
            };
            Ok((attention, Some(ffn)))
        })
        .collect()
}

fn strange_layer(kind: &str) -> Error {
    engine::error::unknown("kind of layer", kind, ["full_attention", "sliding_attention", "linear_attention"])
}

/// Full layers have heads of their own width, and make K and V by one projection (`attention_k_eq_v`); both are stored.
fn gemma4(config: Config<'_>) -> Result<Vec<Layer>> {
    let (count, near) = (config.layers()?, heads(config)?);
    let width = config.number("global_head_dim")?;
    let far = GroupedQuery {
        kv_heads: config.any(&["num_global_key_value_heads", "num_key_value_heads"])?,
        key_dim: width,
        value_dim: width,
        shared_projection: config.flag("attention_k_eq_v"),
        ..near
    };
    let inner = config.number("intermediate_size")?;
    let ffn = if config.flag("enable_moe_block") {
        let moe = experts(config, "num_experts", "top_k_experts", "moe_intermediate_size")?;
        FfnShape::Moe(Moe { shared: 1, shared_intermediate: Some(inner), ..moe })
    } else {
        dense(inner)
    };
    let window = config.number("sliding_window")?;
    let layer = |kind: &&str| match *kind {
        "sliding_attention" => Ok((local(near, window), Some(ffn))),
        "full_attention" => Ok((AttentionShape::Full(far), Some(ffn))),
        other => Err(strange_layer(other)),
    };
    config.words("layer_types", count)?.iter().take(count as usize).map(layer).collect()
}

fn qwen3_5(config: Config<'_>) -> Result<Vec<Layer>> {
    let count = config.layers()?;
    let full = GroupedQuery { output_gate: config.flag("attn_output_gate"), ..heads(config)? };
    let linear = GatedDelta {
        key_heads: config.number("linear_num_key_heads")?,
        value_heads: config.number("linear_num_value_heads")?,
        key_dim: config.number("linear_key_head_dim")?,
        value_dim: config.number("linear_value_head_dim")?,
        conv: config.number("linear_conv_kernel_dim")?,
    };
    let ffn = if config.value("num_experts").is_some() {
        let moe = experts(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size")?;
        let shared = config.optional("shared_expert_intermediate_size")?;
        FfnShape::Moe(Moe { shared: u32::from(shared.is_some()), shared_intermediate: shared, ..moe })
    } else {
        dense(config.number("intermediate_size")?)
    };
    let layer = |kind: &&str| match *kind {
        "linear_attention" => Ok((AttentionShape::GatedDelta(linear), Some(ffn))),
        "full_attention" => Ok((AttentionShape::Full(full), Some(ffn))),
        other => Err(strange_layer(other)),
    };
    config.words("layer_types", count)?.iter().take(count as usize).map(layer).collect()
}

fn latent(config: Config<'_>) -> Result<Latent> {
    Ok(Latent {
        query_heads: config.number("num_attention_heads")?,
        q_lora_rank: config.optional("q_lora_rank")?,
        kv_lora_rank: config.number("kv_lora_rank")?,
        nope_dim: config.number("qk_nope_head_dim")?,
        rope_dim: config.number("qk_rope_head_dim")?,
        value_dim: config.number("v_head_dim")?,
        output_gate: config.flag("mla_use_output_gate"),
    })
}

/// The feed-forward part of each layer, the first ones dense.
fn first_dense(config: Config<'_>, moe: Moe) -> Result<impl Fn(u32) -> FfnShape> {
    let (first, inner) = (config.optional("first_k_dense_replace")?.unwrap_or(0), config.number("intermediate_size")?);
    Ok(move |layer| if layer < first { dense(inner) } else { FfnShape::Moe(moe) })
}

/// DeepSeek-V3 and its kin: latent attention, from V3.2 on with an index of FP8 keys with one scale each; in GLM-5.2 most
/// layers use the choice of another one.
fn latent_layers(config: Config<'_>) -> Result<Vec<Layer>> {
    let (count, latent) = (config.layers()?, latent(config)?);
    let moe = experts(config, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")?;
    let ffn = first_dense(config, Moe { shared: config.optional("n_shared_experts")?.unwrap_or(0), ..moe })?;
    let Some(top) = config.optional("index_topk")? else {
        return Ok((0..count).map(|layer| (AttentionShape::Mla(latent), Some(ffn(layer)))).collect());
    };
    let dim = config.number("index_head_dim")?;
    let index = IndexShape { heads: config.number("index_n_heads")?, dim, bytes: dim.saturating_add(4), top };
    let kinds =
        if config.value("indexer_types").is_some() { config.words("indexer_types", count)? } else { Vec::new() };
    let layer = |layer: u32| {
        let index = match kinds.get(layer as usize).copied() {
            None | Some("full") => Some(index),
            Some("shared") => None,
            Some(other) => return Err(engine::error::unknown("kind of index", other, ["full", "shared"])),
        };
        Ok((AttentionShape::SparseMla(SparseLatent { latent, top, index }), Some(ffn(layer))))
    };
    (0..count).map(layer).collect()
}

fn kimi_linear(config: Config<'_>) -> Result<Vec<Layer>> {
    let (count, latent, linear) = (config.layers()?, latent(config)?, config.table("linear_attn_config")?);
    let delta = ChannelDelta {
        heads: linear.number("num_heads")?,
        head_dim: linear.number("head_dim")?,
        conv: linear.number("short_conv_kernel_size")?,
    };
    // Layers are counted from 1 here.
    let full: Vec<u32> = linear.per_layer("full_attn_layers", 0)?;
    let active =
        if config.value("num_experts_per_token").is_some() { "num_experts_per_token" } else { "num_experts_per_tok" };
    let moe = experts(config, "num_experts", active, "moe_intermediate_size")?;
    let shared = config.optional("num_shared_experts")?.unwrap_or(0);
    let ffn = first_dense(config, Moe { shared, expert_hidden: config.optional("routed_expert_hidden_size")?, ..moe })?;
    let layer = |layer: u32| {
        let is_full = full.contains(&(layer + 1));
        (if is_full { AttentionShape::Mla(latent) } else { AttentionShape::ChannelDelta(delta) }, Some(ffn(layer)))
    };
    Ok((0..count).map(layer).collect())
}

/// An index of one bf16 key per token chooses blocks, beside the local ones.
fn minimax_m3(config: Config<'_>) -> Result<Vec<Layer>> {
    let (count, heads, sparse) = (config.layers()?, heads(config)?, config.table("sparse_attention_config")?);
    let (dim, block) = (sparse.number("sparse_index_dim")?, sparse.number("sparse_block_size")?);
    let blocks = sparse.number("sparse_topk_blocks")?.saturating_add(sparse.number("sparse_local_block")?);
    let index = IndexShape {
        heads: sparse.number("sparse_num_index_heads")?,
        dim,
        bytes: dim.saturating_mul(2),
        top: blocks.saturating_mul(block),
    };
    let GroupedQuery { query_heads, kv_heads, key_dim, value_dim, .. } = heads;
    let chosen = AttentionShape::Sparse(SparseQuery { query_heads, kv_heads, key_dim, value_dim, index });
    let moe = experts(config, "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")?;
    let shared_intermediate = config.optional("shared_intermediate_size")?;
    let moe = Moe { shared: config.optional("n_shared_experts")?.unwrap_or(0), shared_intermediate, ..moe };
    let inner = config.number("dense_intermediate_size")?;
    let (is_sparse, is_moe) =
        (sparse.per_layer("sparse_attention_freq", count)?, config.per_layer("moe_layer_freq", count)?);
    let layer = |(&is_sparse, &is_moe): (&u32, &u32)| {
        let attention = if is_sparse > 0 { chosen.clone() } else { AttentionShape::Full(heads) };
        (attention, Some(if is_moe > 0 { FfnShape::Moe(moe) } else { dense(inner) }))
    };
    Ok(is_sparse.iter().zip(&is_moe).take(count as usize).map(layer).collect())
}

fn mimo_v2(config: Config<'_>) -> Result<Vec<Layer>> {
    let count = config.layers()?;
    let full = GroupedQuery { value_dim: config.number("v_head_dim")?, ..heads(config)? };
    let near = GroupedQuery {
        query_heads: config.number("swa_num_attention_heads")?,
        kv_heads: config.number("swa_num_key_value_heads")?,
        key_dim: config.number("swa_head_dim")?,
        value_dim: config.number("swa_v_head_dim")?,
        ..full
    };
    let moe = experts(config, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")?;
    let moe = Moe { shared: config.optional("n_shared_experts")?.unwrap_or(0), ..moe };
    let (window, inner) = (config.number("sliding_window")?, config.number("intermediate_size")?);
    let (is_near, is_moe) =
        (config.per_layer("hybrid_layer_pattern", count)?, config.per_layer("moe_layer_freq", count)?);
    let layer = |(&is_near, &is_moe): (&u32, &u32)| {
        let attention = if is_near > 0 { local(near, window) } else { AttentionShape::Full(full) };
        (attention, Some(if is_moe > 0 { FfnShape::Moe(moe) } else { dense(inner) }))
    };
    Ok(is_near.iter().zip(&is_moe).take(count as usize).map(layer).collect())
}

fn step(config: Config<'_>) -> Result<Vec<Layer>> {
    let (count, heads, window) = (config.layers()?, heads(config)?, config.number("sliding_window")?);
    let moe = experts(config, "num_experts", "num_experts_per_tok", "moe_intermediate_size")?;
    let shared_intermediate = config.optional("share_expert_dim")?;
    let shared = config.optional("n_shared_experts")?.unwrap_or(0);
    let ffn = first_dense(config, Moe { shared, shared_intermediate, ..moe })?;
    let kinds = config.words("layer_types", count)?;
    let layer = |(layer, kind): (u32, &&str)| match *kind {
        "sliding_attention" => Ok((local(heads, window), Some(ffn(layer)))),
        "full_attention" => Ok((AttentionShape::Full(heads), Some(ffn(layer)))),
        other => Err(strange_layer(other)),
    };
    (0..count).zip(&kinds).map(layer).collect()
}

/// Every fourth layer attends to everything, which only the code says; the others attend within chunks, counted as a
/// window of one chunk.
fn llama4(config: Config<'_>) -> Result<Vec<Layer>> {
    let (count, heads, chunk) = (config.layers()?, heads(config)?, config.number("attention_chunk_size")?);
    let moe = experts(config, "num_local_experts", "num_experts_per_tok", "intermediate_size")?;
    let (moe, inner) = (Moe { shared: 1, ..moe }, config.number("intermediate_size_mlp")?);
    let every = config.optional("interleave_moe_layer_step")?.unwrap_or(1).max(1);
    let layer = |layer: u32| {
        let attention = if (layer + 1).is_multiple_of(4) { AttentionShape::Full(heads) } else { local(heads, chunk) };
        let is_moe = (layer + 1).is_multiple_of(every);
        (attention, Some(if is_moe { FfnShape::Moe(moe) } else { dense(inner) }))
    };
    Ok((0..count).map(layer).collect())
}

/// A pattern of mixers (`M` Mamba-2, `*` attention) and networks (`E` experts, `-` dense). A mixer and the network after it
/// make one layer here; a mixer that another one follows has no network.
fn nemotron(config: Config<'_>) -> Result<Vec<Layer>> {
    let pattern = config.value("hybrid_override_pattern").and_then(Value::as_str);
    let pattern = pattern.ok_or_else(|| super::missing("hybrid_override_pattern", config.kind()))?;
    let width = config.any(&["head_dim", "attention_head_dim"])?;
    let attention = AttentionShape::Full(GroupedQuery { key_dim: width, value_dim: width, ..heads(config)? });
    let mamba = AttentionShape::Mamba2(Mamba2 {
        heads: config.number("mamba_num_heads")?,
        head_dim: config.number("mamba_head_dim")?,
        state: config.number("ssm_state_size")?,
        groups: config.number("n_groups")?,
        conv: config.number("conv_kernel")?,
    });
    let mut layers: Vec<Layer> = Vec::new();
    for mark in pattern.chars().take(super::MAX_LAYERS as usize) {
        let mixer = match mark {
            'M' => Some(mamba.clone()),
            '*' => Some(attention.clone()),
            'E' | '-' => None,
            other => {
                return Err(Error::data(format!(
                    "`hybrid_override_pattern`: expected `M`, `*`, `E` or `-`, found `{other}`"
                )));
            }
        };
        if let Some(mixer) = mixer {
            layers.push((mixer, None));
            continue;
        }
        let ffn = network(config, mark == 'E')?;
        match layers.last_mut() {
            Some((_, free @ None)) => *free = Some(ffn),
            _ => {
                return Err(Error::data("`hybrid_override_pattern`: expected a mixer before each network, found none"));
            }
        }
    }
    Ok(layers)
}

/// A network without a gate (squared `ReLU`); experts may work in a narrower space.
fn network(config: Config<'_>, is_moe: bool) -> Result<FfnShape> {
    if !is_moe {
        return Ok(FfnShape::Dense(Dense { intermediate: config.number("intermediate_size")?, matrices: 2 }));
    }
    let moe = experts(config, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")?;
    Ok(FfnShape::Moe(Moe {
        shared: config.optional("n_shared_experts")?.unwrap_or(0),
        shared_intermediate: config.optional("moe_shared_expert_intermediate_size")?,
        expert_hidden: config.optional("moe_latent_size")?,
        matrices: 2,
        ..moe
    }))
}

/// Layers with a ratio of 4 have an index of FP4 keys, as the code of the family has it.
fn deepseek_v4(config: Config<'_>) -> Result<Vec<Layer>> {
    const INDEXED_RATIO: u32 = 4;
    let count = config.layers()?;
    let dim = config.number("index_head_dim")?;
    let index = IndexShape {
        heads: config.number("index_n_heads")?,
        dim,
        bytes: dim.div_ceil(2),
        top: config.number("index_topk")?,
    };
    let entries = Compressed {
        query_heads: config.number("num_attention_heads")?,
        entry_dim: config.number("head_dim")?,
        window: config.number("sliding_window")?,
        ratio: None,
        q_lora_rank: config.number("q_lora_rank")?,
        output_groups: config.number("o_groups")?,
        output_lora_rank: config.number("o_lora_rank")?,
        index: None,
    };
    let moe = experts(config, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")?;
    let ffn = FfnShape::Moe(Moe { shared: config.optional("n_shared_experts")?.unwrap_or(0), ..moe });
    let layer = |&ratio: &u32| {
        let index = Some(index).filter(|_| ratio == INDEXED_RATIO);
        let shape = Compressed { ratio: Some(ratio).filter(|ratio| *ratio > 0), index, ..entries };
        (AttentionShape::Compressed(shape), Some(ffn))
    };
    Ok(config.per_layer("compress_ratios", count)?.iter().take(count as usize).map(layer).collect())
}
