//! A model as its file describes it: shapes as published, nothing derived.
//!
//! Model files (TOML) and configurations of other tools are read into these; [`super::build`] derives parameters, KV and
//! arithmetic.

use serde::Deserialize;

use super::{Certainty, WeightDtype};

/// A model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Its published name.
    pub title: String,
    /// Where the shape comes from.
    pub source: String,
    /// How well it is known.
    pub certainty: Certainty,
    /// Number format that most of the weights are published in.
    #[serde(default)]
    pub weights: WeightDtype,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// Whether the input embedding is the output projection.
    pub tied_embeddings: bool,
    /// The longest context that it is published for, prompt and output together (`max_position_embeddings`).
    pub context: Option<u32>,
    /// Groups of alike layers.
    pub layers: Vec<toml::Spanned<Layers>>,
}

/// Alike layers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layers {
    /// How many.
    pub count: u32,
    /// How they mix tokens.
    pub attention: AttentionShape,
    /// What they do with each token; absent where the model has a mixer alone.
    pub ffn: Option<FfnShape>,
}

/// How a layer mixes tokens.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AttentionShape {
    /// Grouped-query attention to all of the context.
    Full(GroupedQuery),
    /// Grouped-query attention to the last tokens.
    Sliding(Local),
    /// Multi-head latent attention (DeepSeek-V2, section 2.1).
    Mla(Latent),
    /// Grouped-query attention to the tokens that an index chooses.
    Sparse(SparseQuery),
    /// Multi-head latent attention to the tokens that an index chooses (DeepSeek-V3.2).
    SparseMla(SparseLatent),
    /// A window beside entries that each stand for several tokens (DeepSeek-V4).
    Compressed(Compressed),
    /// Gated delta rule: a state per value head (Qwen3-Next).
    GatedDelta(GatedDelta),
    /// The same with a gate for each channel of the key (Kimi Delta Attention).
    ChannelDelta(ChannelDelta),
    /// A selective state space (Mamba-2).
    Mamba2(Mamba2),
}

/// Grouped-query attention.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedQuery {
    /// Query heads.
    pub query_heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Width of a key.
    pub key_dim: u32,
    /// Width of a value.
    pub value_dim: u32,
    /// Whether the output is gated by a projection as wide as itself.
    #[serde(default)]
    pub output_gate: bool,
    /// Whether one projection makes K and V, which are stored apart all the same.
    #[serde(default)]
    pub shared_projection: bool,
}

/// The same within a window.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    /// Tokens of the window.
    pub window: u32,
    /// Query heads.
    pub query_heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Width of a key.
    pub key_dim: u32,
    /// Width of a value.
    pub value_dim: u32,
}

/// Multi-head latent attention; without `q_lora_rank` the query is projected in one step.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Query heads.
    pub query_heads: u32,
    /// Rank of the query's projection.
    pub q_lora_rank: Option<u32>,
    /// Width of the latent.
    pub kv_lora_rank: u32,
    /// Width of a key without its rotary part.
    pub nope_dim: u32,
    /// Width of the rotary part, stored beside the latent.
    pub rope_dim: u32,
    /// Width of a value.
    pub value_dim: u32,
    /// Whether the output is gated by a projection as wide as itself.
    #[serde(default)]
    pub output_gate: bool,
}

/// Grouped-query attention to what an index of its own chooses.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseQuery {
    /// Query heads.
    pub query_heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Width of a key.
    pub key_dim: u32,
    /// Width of a value.
    pub value_dim: u32,
    /// The index.
    pub index: IndexShape,
}

/// Latent attention to what an index of its own chooses; without `index` another layer's choice is used.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseLatent {
    /// The latent.
    pub latent: Latent,
    /// Tokens that are read.
    pub top: u32,
    /// The index, where the layer has its own.
    pub index: Option<IndexShape>,
}

/// What chooses the tokens of a sparse layer.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexShape {
    /// Heads that score.
    pub heads: u32,
    /// Width of a key of the index, of which there is one per entry.
    pub dim: u32,
    /// Bytes of that key as it is stored.
    pub bytes: u32,
    /// Tokens that are read; of a layer with a `top` of its own the same.
    pub top: u32,
}

/// A window of single entries, and one entry for every `ratio` tokens before it. Keys and values are the same vectors.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compressed {
    /// Query heads.
    pub query_heads: u32,
    /// Width of an entry.
    pub entry_dim: u32,
    /// Tokens of the window.
    pub window: u32,
    /// Tokens per compressed entry; absent where the layer has the window alone.
    pub ratio: Option<u32>,
    /// Rank of the query's projection.
    pub q_lora_rank: u32,
    /// Groups that the output is projected in.
    pub output_groups: u32,
    /// Rank of the output's projection, in each group.
    pub output_lora_rank: u32,
    /// What chooses among the entries, if anything does; its `top` counts entries.
    pub index: Option<IndexShape>,
}

/// Gated delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDelta {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values, each with a state.
    pub value_heads: u32,
    /// Width of a key.
    pub key_dim: u32,
    /// Width of a value.
    pub value_dim: u32,
    /// Tokens that the convolution before it sees.
    pub conv: u32,
}

/// Gated delta rule with a gate per channel.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelDelta {
    /// Heads.
    pub heads: u32,
    /// Width of a key and of a value.
    pub head_dim: u32,
    /// Tokens that the convolution before it sees.
    pub conv: u32,
}

/// Mamba-2.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mamba2 {
    /// Heads.
    pub heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of the state of each channel.
    pub state: u32,
    /// Groups that share what enters and leaves the state.
    pub groups: u32,
    /// Tokens that the convolution before it sees.
    pub conv: u32,
}

/// The feed-forward part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FfnShape {
    /// One network for all tokens.
    Dense(Dense),
    /// Experts, of which each token takes some.
    Moe(Moe),
}

/// Matrices of a gated feed-forward network: gate, up and down.
fn gated() -> u32 {
    3
}

/// A dense feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Its inner width.
    pub intermediate: u32,
    /// Its matrices: 3 with a gate, 2 without.
    #[serde(default = "gated")]
    pub matrices: u32,
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts.
    pub experts: u32,
    /// Routed experts per token.
    pub active: u32,
    /// Experts that every token takes beside them.
    #[serde(default)]
    pub shared: u32,
    /// Inner width of a routed expert.
    pub expert_intermediate: u32,
    /// Inner width of all shared experts together; `shared` times the routed ones' if not given.
    pub shared_intermediate: Option<u32>,
    /// Width that tokens are projected to before the routed experts and back from after them, if not that of the model.
    pub expert_hidden: Option<u32>,
    /// Matrices of an expert: 3 with a gate, 2 without.
    #[serde(default = "gated")]
    pub matrices: u32,
}
