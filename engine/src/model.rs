//! What a model asks of memory and arithmetic, derived from its published shape.
//!
//! A model file holds only the shape, as the published `config.json` has it; bytes of KV, parameters and arithmetic
//! follow from it. What weighs less than 0.1% (norms, biases, attention sinks) is left out.

mod parse;
#[cfg(test)]
mod tests;

pub use parse::parse;
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

/// Number format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDtype {
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Fp8,
    /// 4 bits and one E4M3 scale per 16 elements.
    Nvfp4,
}

/// How a layer attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Width of the residual stream.
    pub hidden: u32,
    /// Parameters of the output projection to the vocabulary.
    pub head_params: f64,
    /// Parameters of the input embedding; 0 where it is tied to the output projection.
    pub embedding_params: f64,
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
}

impl Model {
    /// Bytes of KV in bf16 that one more token adds when the context is long: layers with a window add nothing.
    pub fn growing_bytes_per_token(&self) -> u64 {
        let growing = self.groups.iter().filter(|group| !matches!(group.kv.attention, Attention::Sliding { .. }));
        growing.map(|group| u64::from(group.layers) * group.kv.bf16_bytes()).sum()
    }

    /// Bytes of KV in bf16 that a sequence holds in its windows once they are full.
    pub fn constant_bytes(&self) -> u64 {
        let windows = self.groups.iter().filter_map(|group| match group.kv.attention {
            Attention::Sliding { window } => Some(u64::from(group.layers) * u64::from(window) * group.kv.bf16_bytes()),
            _ => None,
        });
        windows.sum()
    }

    /// Parameters in all.
    pub fn params(&self) -> f64 {
        let layers =
            self.groups.iter().map(|group| f64::from(group.layers) * (group.attention_params + group.ffn.params()));
        self.head_params + self.embedding_params + layers.sum::<f64>()
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
            Self::Nvfp4 => 0.5625,
        }
    }
}
