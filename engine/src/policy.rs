//! KV policies: what is kept of the cache and in which form.
//!
//! A policy decides; it never measures time. A *stack* is one or more stages joined by `+`, such as
//! `snapkv(budget=25%)+turboquant(bits=4)`. It does two things: it shapes the demand (how many tokens are kept, how many
//! bytes each takes, which arithmetic the policy itself asks for), and, on recorded attention, it says what is lost.
//!
//! Adding a stage is one file under `policy/` with a `pub static KIND`, its `mod` line and its entry in [`ALL`]; the law
//! tests then run on it at once.

pub mod args;
mod bf16;
pub mod error;
mod format;
mod fp8;
mod full;
mod grade;
mod int4;
mod int8;
mod kivi;
mod kvquant;
pub mod minicache;
mod mxfp4;
mod nvfp4;
mod oracle;
pub mod quantize;
mod random;
pub mod rng;
pub mod select;
pub mod shape;
mod snapkv;
pub mod stack;
mod streaming;
mod turboquant;
pub mod turning;
pub mod vectors;
mod window;

use crate::error::Result;
use crate::model::{KvShape, Model};

pub use args::Args;
pub use error::attention_error;
pub use select::Choice;
pub use shape::shape;
pub use stack::Stack;

/// Every stage, in the order in which `list policies` prints them.
pub static ALL: &[&Kind] = &[
    &full::KIND,
    &window::KIND,
    &streaming::KIND,
    &snapkv::KIND,
    &random::KIND,
    &oracle::KIND,
    &bf16::KIND,
    &fp8::KIND,
    &int8::KIND,
    &int4::KIND,
    &kivi::KIND,
    &kvquant::KIND,
    &nvfp4::KIND,
    &mxfp4::KIND,
    &turboquant::KIND,
    &grade::KIND,
];

/// Where in the stack of a serving system a stage acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// Which tokens are kept.
    Selection,
    /// Which layers share what they keep.
    Merging,
    /// In which number format they are kept.
    Format,
}

/// A parameter of a stage.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    /// What the user types before `=`.
    pub name: &'static str,
    /// Its value where none is given; empty where one must be given.
    pub default: &'static str,
    /// One sentence.
    pub doc: &'static str,
}

/// What a recording must hold for the error of a stage to be computed.
#[derive(Debug)]
pub struct Channel {
    /// Its name in `prefill_scores.channel`.
    pub name: &'static str,
    /// How to record it.
    pub how: &'static str,
}

/// The mean attention of the last prompt queries on each prompt token.
pub static WINDOW_ROWS: Channel = Channel {
    name: "window_rows",
    how: "record `prefill_scores` rows of channel `window_rows`: softmax rows of the last prompt queries, mean over rows \
          and group, one score per prompt token, with the count of queries in `rows`",
};

/// What it takes to run a stage in production.
#[derive(Debug, Clone, Copy)]
pub struct Deployment {
    /// Tokens of calibration text that the method asks for; 0 if none.
    pub calibration_tokens: u32,
    /// Whether constants must be found for each model.
    pub per_model_constants: bool,
    /// Whether the model must be trained for it.
    pub training: bool,
    /// Engines that have it.
    pub engines: &'static str,
    /// Whether a request under this stage leaves no blocks that others can use.
    pub breaks_sharing: bool,
}

/// A kind of stage that the user can name on the command line.
#[derive(Debug)]
pub struct Kind {
    /// What the user types.
    pub name: &'static str,
    /// One sentence for `list policies`.
    pub doc: &'static str,
    /// Where it acts.
    pub floor: Floor,
    /// Its parameters, in the order of its canonical text.
    pub params: &'static [Param],
    /// What a recording must hold for its error; recorded attention itself is always needed.
    pub needs: &'static [&'static Channel],
    /// Paper and section.
    pub source: &'static str,
    /// What it takes to run it.
    pub deployment: Deployment,
    /// Checks the parameters and makes the rule.
    pub make: fn(&Args) -> Result<Rule>,
}

/// What a stage does, its parameters checked.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// Decides which tokens are kept.
    Select(Selection),
    /// Decides which layers share what they keep.
    Merge(minicache::Merge),
    /// Decides the number format.
    Format(Format),
}

/// A rule that decides which tokens are kept.
#[derive(Debug, Clone, Copy)]
pub struct Selection {
    /// How many.
    pub keep: Keep,
    /// Flops of scoring for each prompt token in one layer.
    pub score_flops: fn(&Args, &KvShape) -> f64,
    /// Which ones.
    pub choice: Choice,
}

/// A rule that decides the number format.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// Whether elements have 16 bits.
    pub is_16bit: bool,
    /// First and last layers that stay in bf16.
    pub skip: Skip,
    /// Refuses models that no layout is published for.
    pub admits: fn(&Args, &Model) -> Result<()>,
    /// How keys and values are stored: bytes, arithmetic, residual window and error follow from it.
    pub forms: quantize::Forms,
}

/// Layers at the ends of the model that a format leaves in bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skip {
    /// So many first layers.
    pub first: u32,
    /// So many last layers.
    pub last: u32,
}

/// What one token costs in one layer, all KV heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCost {
    /// Bytes stored, metadata included.
    pub bytes: u64,
    /// Flops outside the tensor units when it is read.
    pub read_flops: f64,
    /// Flops when it is written.
    pub write_flops: f64,
}

/// The error that a number format puts into K and V.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distortion {
    /// Mean of `|k - k~|^2 / |k|^2`.
    pub key: f64,
    /// Mean of `|v - v~|^2 / |v|^2`.
    pub value: f64,
    /// By how much logits shrink on average: `1 - <k, k~> / |k|^2`. It acts like a higher temperature.
    pub key_shrink: f64,
}

impl Distortion {
    /// No error.
    pub const NONE: Self = Self { key: 0.0, value: 0.0, key_shrink: 0.0 };
}

impl Skip {
    /// Whether this layer, counted from 0, stays in bf16 in a model of so many layers.
    pub fn covers(self, layer: u32, layers: u32) -> bool {
        layer < self.first || layer + self.last >= layers
    }
}

impl Kind {
    /// The parameter of this name.
    pub fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|param| param.name == name)
    }
}

/// The kind of this name.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn kind(name: &str) -> Result<&'static Kind> {
    let found = ALL.iter().find(|kind| kind.name == name);
    found.copied().ok_or_else(|| crate::error::unknown("policy stage", name, ALL.iter().map(|kind| kind.name)))
}

/// How much of a prompt is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// So many tokens.
    Tokens(u32),
    /// This share of the prompt, above 0 and at most 1.
    Ratio(f64),
}

/// How many tokens of a context a layer keeps. Counts only: which ones is the stage's business.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keep {
    /// Of the prompt, once it is prefilled; generated tokens are kept on top of it. `None` keeps all.
    pub prompt: Option<Budget>,
    /// Of everything, at any time; the model's own window is already folded in. `None` keeps all.
    pub total: Option<u32>,
}

/// The demand of alike layers under a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Index of the model's layer group that these layers belong to.
    pub model_group: usize,
    /// How many layers.
    pub layers: u32,
    /// Their KV as the model has it.
    pub kv: KvShape,
    /// What is kept.
    pub keep: Keep,
    /// Number format of the kept KV, for people.
    pub format: String,
    /// Bytes of one kept token in one layer, all KV heads, metadata included.
    pub token_bytes: u64,
    /// Whether elements have 16 bits (else 8 or fewer), which decides the achieved bandwidth.
    pub is_16bit: bool,
    /// Arithmetic outside the tensor units for each kept token that a decode step reads, per layer (dequantization).
    pub read_flops: f64,
    /// Arithmetic for each token that is written, per layer (quantization).
    pub write_flops: f64,
    /// Arithmetic for each prompt token once per prefill, per layer, where the policy drops part of the prompt (scoring).
    pub score_flops: f64,
}

/// What a policy stack asks of a model's KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Layers in groups that behave alike.
    pub groups: Vec<Group>,
    /// Whether a request that drops part of its prompt still leaves blocks that others can use. Selection makes blocks
    /// private; number formats do not.
    pub eviction_is_private: bool,
}

impl Budget {
    /// Tokens kept of a prompt of this length; a share is rounded up.
    pub fn tokens(self, prompt: u32) -> u32 {
        match self {
            Self::Tokens(tokens) => tokens.min(prompt),
            // 7% of 100 tokens is 7.000000000000001 in floating point and must not become 8.
            Self::Ratio(ratio) => ((f64::from(prompt) * ratio - 1e-6).ceil() as u32).min(prompt),
        }
    }
}

impl Keep {
    /// Keeps everything.
    pub const ALL: Self = Self { prompt: None, total: None };

    /// Tokens kept of a context that began with this prompt. During prefill `context <= prompt` and the prompt budget
    /// does not apply yet, since a prompt is pruned when it is complete.
    pub fn tokens(&self, prompt: u32, context: u32) -> u32 {
        let selected = match self.prompt {
            Some(budget) if context >= prompt => budget.tokens(prompt) + (context - prompt),
            _ => context,
        };
        self.total.map_or(selected, |total| selected.min(total))
    }

    /// The context from which on a decoding request grows no more; `None` if it always grows.
    pub fn full_at(&self, prompt: u32) -> Option<u32> {
        let total = self.total?;
        let selected = self.prompt.map_or(prompt, |budget| budget.tokens(prompt));
        Some(prompt + total.saturating_sub(selected))
    }

    /// Whether part of a prompt of this length is dropped by the prompt budget.
    pub fn drops_of(&self, prompt: u32) -> bool {
        self.prompt.is_some_and(|budget| budget.tokens(prompt) < prompt)
    }
}

#[cfg(test)]
mod tests;
