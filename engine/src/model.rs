//! What a model asks of memory and arithmetic, derived from its published shape.
//!
//! A model file holds only the shape, as the published `config.json` has it; bytes of KV, parameters and arithmetic
//! follow from it. What weighs less than 0.1% (norms, biases, attention sinks) is left out.

mod derive;
pub mod description;
mod parse;
#[cfg(test)]
mod tests;

pub use description::Description;
pub use parse::{build, parse};
pub(crate) use parse::{from_toml, located, name_of};

/// How well a number is known; a figure is as certain as the least certain input it depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Nobody has said so; a labelled assumption.
    Assumed,
    /// Cited from a source.
    Published,
    /// A fit to measurements, with its error.
    Calibrated,
    /// In the trace itself.
    Measured,
}

impl Certainty {
    /// How it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Assumed => "assumed",
            Self::Published => "published",
            Self::Calibrated => "calibrated",
            Self::Measured => "measured",
        }
    }
}

/// Number format of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    /// 16 bits.
    #[default]
    Bf16,
    /// 8 bits.
    Fp8,
    /// 4 bits and one E4M3 scale per 16 elements.
    Nvfp4,
    /// 4 bits and one E8M0 scale per 32 elements.
    Mxfp4,
    /// 4-bit integers and one 16-bit scale per 32 of them; they are multiplied in bf16.
    Int4,
}

/// Tokens that the state of a linear layer counts as, so that it fills one block of KV memory: kept tokens of such a layer
/// are sixteenths of its state, and a context of 16 tokens or more has all of it.
pub const STATE_TOKENS: u32 = 16;

/// How a layer attends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attention {
    /// To all of the context.
    Full,
    /// To the last so many tokens.
    Sliding {
        /// Window in tokens.
        window: u32,
    },
    /// Through one latent vector per token, replicated on every accelerator.
    Mla,
    /// To those of all tokens that an index of the model chooses; all are stored.
    Sparse(Sparse),
    /// To a state of fixed size, which each token changes: nothing grows with the context. It counts as a window of
    /// [`STATE_TOKENS`].
    Linear,
}

/// A layer that stores more than it reads, as the model was trained to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sparse {
    /// Tokens that a query reads at most.
    pub top: u32,
    /// Bytes that the index stores per token, and reads for every query.
    pub index_bytes: u32,
    /// Multiply-adds of the index for one query and one token of the context.
    pub index_macs: f64,
    /// Whether what is stored is a latent that serves as K and V at once.
    pub is_latent: bool,
    /// Where stored entries stand for several tokens each: the window that is kept beside them in single entries, and how
    /// many tokens an entry stands for.
    pub window: Option<(u32, u32)>,
}

impl Attention {
    /// Tokens that the model itself keeps at most; `None` where the cache grows with the context.
    pub fn window(&self) -> Option<u32> {
        match self {
            Self::Sliding { window } => Some(*window),
            Self::Linear => Some(STATE_TOKENS),
            Self::Full | Self::Mla | Self::Sparse(_) => None,
        }
    }

    /// Whether one vector serves as K and V of all heads.
    pub fn is_latent(&self) -> bool {
        match self {
            Self::Mla => true,
            Self::Sparse(sparse) => sparse.is_latent,
            Self::Full | Self::Sliding { .. } | Self::Linear => false,
        }
    }

    /// What the model chooses by, if it does.
    pub fn sparse(&self) -> Option<&Sparse> {
        match self {
            Self::Sparse(sparse) => Some(sparse),
            _ => None,
        }
    }

    /// Name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sliding { .. } => "sliding",
            Self::Mla => "mla",
            Self::Sparse(_) => "sparse",
            Self::Linear => "linear",
        }
    }
}

/// The KV that one layer keeps of one token, and the arithmetic of attending to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvShape {
    /// How it attends.
    pub attention: Attention,
    /// Query heads.
    pub query_heads: u32,
    /// KV heads; 1 for MLA.
    pub kv_heads: u32,
    /// Elements of K per token and KV head; for MLA the latent and its rotary part (576).
    pub key_dim: u32,
    /// Elements of V per token and KV head; for MLA 0, since the latent serves as both.
    pub value_dim: u32,
    /// Multiply-adds of one query token with one context token in this layer, all query heads: scores and values.
    /// GQA: `query_heads * (key_dim + value_dim)`. MLA decode (absorbed): `query_heads * (576 + 512)`.
    pub macs_per_pair: f64,
    /// The same in prefill, where MLA is computed unabsorbed: `query_heads * (nope + rope + value widths)`. GQA: as
    /// above.
    pub prefill_macs_per_pair: f64,
}

/// Feed-forward part of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ffn {
    /// Parameters that every token uses (dense FFN, shared experts, router).
    pub dense_params: f64,
    /// Parameters of one routed expert; 0 for dense layers.
    pub expert_params: f64,
    /// Routed experts; 0 for dense layers.
    pub experts: u32,
    /// Routed experts per token.
    pub active_experts: u32,
}

/// Alike layers.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerGroup {
    /// How many layers.
    pub layers: u32,
    /// The KV.
    pub kv: KvShape,
    /// Parameters of the attention projections of one layer.
    pub attention_params: f64,
    /// The feed-forward part of one layer.
    pub ffn: Ffn,
}

/// A model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// What the user types.
    pub name: String,
    /// Its published name.
    pub title: String,
    /// Where its shape comes from.
    pub source: String,
    /// How well the shape is known.
    pub certainty: Certainty,
    /// Number format that most of its weights are published in.
    pub weights: WeightDtype,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Parameters of the output projection to the vocabulary.
    pub head_params: f64,
    /// Parameters of the input embedding; 0 where it is tied to the output projection.
    pub embedding_params: f64,
    /// The longest context that it is published for, tokens of prompt and output together; unknown where its file does not
    /// say.
    pub context_tokens: Option<u32>,
    /// Layers in groups, in order of depth as far as their kinds allow.
    pub groups: Vec<LayerGroup>,
}

impl KvShape {
    /// Elements of KV per token in one layer.
    pub fn elements(&self) -> u64 {
        u64::from(self.kv_heads) * u64::from(self.key_dim + self.value_dim)
    }

    /// Bytes of KV per token in one layer in bf16.
    pub fn bf16_bytes(&self) -> u64 {
        2 * self.elements()
    }

    /// The window that is kept beside compressed entries: its tokens, and its KV.
    pub fn entry_window(&self) -> Option<(u32, Self)> {
        let (window, ratio) = self.attention.sparse()?.window?;
        let whole = f64::from(ratio);
        let kv = Self {
            attention: Attention::Sliding { window },
            key_dim: self.key_dim.saturating_mul(ratio),
            value_dim: self.value_dim.saturating_mul(ratio),
            macs_per_pair: self.macs_per_pair * whole,
            prefill_macs_per_pair: self.prefill_macs_per_pair * whole,
            ..*self
        };
        Some((window, kv))
    }
}

impl Model {
    /// Bytes of KV in bf16 that one more token adds when the context is long, indices included: layers with a window or a
    /// state add nothing.
    pub fn growing_bytes_per_token(&self) -> u64 {
        let growing = self.groups.iter().filter(|group| group.kv.attention.window().is_none());
        growing
            .map(|group| {
                let index = group.kv.attention.sparse().map_or(0, |sparse| u64::from(sparse.index_bytes));
                u64::from(group.layers) * (group.kv.bf16_bytes() + index)
            })
            .sum()
    }

    /// Bytes of KV in bf16 that a sequence holds in its windows once they are full, and in its states.
    pub fn constant_bytes(&self) -> u64 {
        let windows = self.groups.iter().map(|group| {
            let own = group.kv.attention.window().map(|tokens| (tokens, group.kv.bf16_bytes()));
            let beside = group.kv.entry_window().map(|(tokens, kv)| (tokens, kv.bf16_bytes()));
            own.or(beside).map_or(0, |(tokens, bytes)| u64::from(group.layers) * u64::from(tokens) * bytes)
        });
        windows.sum()
    }

    /// Parameters in all.
    pub fn params(&self) -> f64 {
        let layers =
            self.groups.iter().map(|group| f64::from(group.layers) * (group.attention_params + group.ffn.params()));
        self.head_params + self.embedding_params + layers.sum::<f64>()
    }

    /// How the projections of attention are stored where the weights are in `dtype`: published models with routed experts
    /// leave them in 16 bits when those are in 4 (`self_attn*` and `linear_attn*` under `ignore` in the
    /// `quantization_config` of nvidia/Kimi-K2.5-NVFP4, GLM-5.1-NVFP4 and Qwen3.5-122B-A10B-NVFP4, under
    /// `modules_to_not_convert` in that of openai/gpt-oss-120b). Dense models have all in 4 bits.
    pub fn attention_dtype(&self, dtype: WeightDtype) -> WeightDtype {
        let is_routed = self.groups.iter().any(|group| group.ffn.experts > 0);
        match dtype {
            WeightDtype::Nvfp4 | WeightDtype::Mxfp4 | WeightDtype::Int4 if is_routed => WeightDtype::Bf16,
            _ => dtype,
        }
    }

    /// Parameters that the generation of one token multiplies with: all but the experts that are not chosen and the
    /// input embedding, which is only looked up.
    pub fn active_params(&self) -> f64 {
        let active = |group: &LayerGroup| group.attention_params + group.ffn.active_params();
        let layers = self.groups.iter().map(|group| f64::from(group.layers) * active(group));
        self.head_params + layers.sum::<f64>()
    }
}

impl Ffn {
    /// Parameters in all.
    pub fn params(&self) -> f64 {
        self.dense_params + f64::from(self.experts) * self.expert_params
    }

    /// Parameters that one token uses.
    pub fn active_params(&self) -> f64 {
        self.dense_params + f64::from(self.active_experts) * self.expert_params
    }
}

impl WeightDtype {
    /// Bytes per parameter, scales included.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Bf16 => 2.0,
            Self::Fp8 => 1.0,
            Self::Nvfp4 | Self::Int4 => 0.5625,
            Self::Mxfp4 => 0.53125,
        }
    }

    /// Every format by its name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("bf16", Self::Bf16),
        ("fp8", Self::Fp8),
        ("nvfp4", Self::Nvfp4),
        ("mxfp4", Self::Mxfp4),
        ("int4", Self::Int4),
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, dtype)| *dtype == self).map_or("", |(name, _)| name)
    }
}
