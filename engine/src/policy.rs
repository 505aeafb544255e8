//! KV policies: what is kept of the cache and in which form.
//!
//! A policy decides; it never measures time. A *stack* is one or more stages joined by `+`, such as
//! `snapkv(budget=25%)+turboquant(bits=4)`. It does two things: it shapes the demand (how many tokens are kept, how many
//! bytes each takes, which arithmetic the policy itself asks for), and, on recorded attention, it says what is lost.
//!
//! Adding a stage is one file under `policy/` with a `pub static KIND`, its `mod` line and its entry in [`ALL`]; the law
//! tests then run on it at once.

mod adakv;
pub mod application;
pub mod args;
mod bf16;
pub mod budget;
mod compensate;
mod copies;
mod duo;
pub mod error;
mod expected_attention;
mod format;
mod fp8;
mod full;
mod grade;
mod h2o;
mod int4;
mod int8;
mod keydiff;
mod kivi;
mod kvquant;
mod kvzip;
mod lethe;
pub mod minicache;
mod mxfp4;
mod nvfp4;
mod oracle;
pub mod organisation;
mod output;
pub mod pyramidkv;
pub mod quantize;
mod quest;
mod random;
mod razor;
mod recall;
pub mod recovery;
mod rescale;
mod retain;
pub mod rng;
pub mod scissorhands;
pub mod select;
pub mod shape;
mod snapkv;
pub mod stack;
mod streaming;
mod tova;
mod turboquant;
pub mod turning;
mod uniform;
pub mod vectors;
mod window;

use crate::error::Result;
use crate::model::{KvShape, Model};
use quantize::Residual;

pub use args::Args;
pub use budget::{ErrorBudget, smallest_retained};
pub use error::{Trial, attention_error, premise, prompt_error};
pub use organisation::organisation;
pub use recovery::{OfSelection, Recall, Recovery};
pub use select::Choice;
pub use shape::shape;
pub use stack::{Measured, Stack};

/// Every stage, in the order in which `list policies` prints them.
pub static ALL: &[&Kind] = &[
    &application::index_memory::KIND,
    &application::retrieve::KIND,
    &application::clear_tool_results::KIND,
    &application::clear_thinking::KIND,
    &application::compact::KIND,
    &application::microcompact::KIND,
    &application::collapse::KIND,
    &application::transcripts::KIND,
    &application::consolidate::KIND,
    &full::KIND,
    &window::KIND,
    &streaming::KIND,
    &h2o::KIND,
    &tova::KIND,
    &scissorhands::KIND,
    &snapkv::KIND,
    &pyramidkv::KIND,
    &adakv::KIND,
    &expected_attention::KIND,
    &keydiff::KIND,
    &kvzip::KIND,
    &quest::KIND,
    &duo::KIND,
    &razor::KIND,
    &lethe::KIND,
    &random::KIND,
    &oracle::KIND,
    &minicache::KIND,
    &bf16::KIND,
    &fp8::KIND,
    &int8::KIND,
    &int4::KIND,
    &kivi::KIND,
    &kvquant::KIND,
    &nvfp4::KIND,
    &mxfp4::KIND,
    &turboquant::KIND,
    &uniform::KIND,
    &grade::KIND,
    &retain::KIND,
    &rescale::KIND,
    &compensate::KIND,
    &copies::KIND,
    &recall::KIND,
];

/// Where in the stack of a serving system a stage acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    /// What enters the context.
    Application,
    /// Which tokens are kept.
    Selection,
    /// Which layers share what they keep.
    Merging,
    /// In which number format they are kept.
    Format,
    /// What is taken back of what the others lose.
    Recovery,
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

/// The attention that each prompt token got from all prompt queries.
pub static COLUMN_SUM: Channel = Channel {
    name: "column_sum",
    how: "record `prefill_scores` rows of channel `column_sum`: the sum over all prompt queries of their softmax mass on \
          each prompt token, mean over the group",
};

/// The attention of the last prompt query.
pub static LAST_ROW: Channel = Channel {
    name: "last_row",
    how: "record `prefill_scores` rows of channel `last_row`: the softmax row of the last prompt query, mean over all heads \
          of the layer, one score per prompt token",
};

/// How unlike the mean key each key is.
pub static KEY_DIFF: Channel = Channel {
    name: "key_diff",
    how: "record `prefill_scores` rows of channel `key_diff`: minus the cosine between a key and the mean of the \
          normalised keys, one score per prompt token",
};

/// The attention that a token is expected to get from queries to come.
pub static EXPECTED_ATTENTION: Channel = Channel {
    name: "expected_attention",
    how: "record `prefill_scores` rows of channel `expected_attention`: softmax over tokens of `k.mu/sqrt(d) + k'Sk/(2d)` \
          with mean `mu` and covariance `S` of the queries, rotated to the next positions, mean over the group, before it \
          is multiplied by the norm of V",
};

/// The attention that a token gets when the model repeats the prompt.
pub static REPEAT_CONTEXT: Channel = Channel {
    name: "repeat_context",
    how: "record `prefill_scores` rows of channel `repeat_context`: in a second pass the model is asked to repeat the \
          prompt; the score is the largest softmax mass on a prompt token over the group and the repeating queries",
};

/// How much a head retrieves from far back.
pub static HEAD_RETRIEVAL: Channel = Channel {
    name: "head_retrieval",
    how: "record one `prefill_scores` row of channel `head_retrieval` per layer and KV head, its list a single number from \
          0 to 1: the share of its attention that copies from far back (the learned gate of `DuoAttention`, or the echo and \
          induction score of `RazorAttention`)",
};

/// Upper bounds of the logits of each page.
pub static PAGE_BOUND: Channel = Channel {
    name: "page_bound",
    how: "record the column `page_bound` of `attention`: per block and step the sum over channels of the larger of `q` \
          times the block's smallest and largest key, over `sqrt(d)`, the largest of the group, in blocks of one page",
};

/// The norms of V.
pub static V_NORM: Channel = Channel {
    name: "v_norm",
    how: "record the table `kv_stats` with the list `v_norm`: the norm of V per token, for every layer and KV head",
};

/// Cosines between adjacent layers.
pub static NEXT_COSINES: Channel = Channel {
    name: "k_cos_next_layer",
    how: "record the table `kv_stats` with the lists `k_cos_next_layer` and `v_cos_next_layer`: the cosine of K and of V of \
          each token with that of the next layer, or the vectors themselves in `queries` and `kv_vectors`",
};

/// Recorded attention in the decode steps.
pub static MASS: Channel = Channel {
    name: "mass",
    how: "record the table `attention`: the softmax mass per token or block in every decode step, for every layer and KV \
          head",
};

/// Vectors themselves.
pub static VECTORS: Channel = Channel {
    name: "kv_vectors",
    how: "record the tables `queries` (query vectors after rotation of every decode step and query head) and `kv_vectors` (K \
          after rotation and V of every token)",
};

/// The mean attention of the last prompt queries on each prompt token.
pub static WINDOW_ROWS: Channel = Channel {
    name: "window_rows",
    how: "record `prefill_scores` rows of channel `window_rows`: softmax rows of the last prompt queries, mean over rows \
          and group, one score per prompt token, with the count of queries in `rows`",
};

/// What it takes to run a stage in production.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each answers a question of its own, and each stage names those that are true"
)]
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
    /// Whether it changes what stood in earlier prompts, so that the prefix that was computed breaks there.
    pub rewrites_prefix: bool,
}

impl Deployment {
    /// Needs nothing, is in no engine, and leaves a request's blocks to itself.
    pub const NONE: Self = Self {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "none",
        breaks_sharing: true,
        rewrites_prefix: false,
    };
}

impl Selection {
    /// Keeps what the choice says and all of it in terms of bytes; no arithmetic of its own.
    pub const fn plain(choice: Choice) -> Self {
        Self { kept: Kept::All, is_recoverable: false, score_flops: |_, _| 0.0, choice }
    }

    /// Keeps as many tokens in every layer and head.
    pub const fn same(keep: Keep, choice: Choice) -> Self {
        Self { kept: Kept::Same(keep), ..Self::plain(choice) }
    }
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
    /// Rewrites contexts before they are served.
    Edit(application::Edit),
    /// Decides which tokens are kept.
    Select(Selection),
    /// Decides which layers share what they keep.
    Merge(minicache::Merge),
    /// Decides the number format.
    Format(Format),
    /// Takes back part of what the stage before it loses.
    Recover(Recovery),
}

/// A rule that decides which tokens are kept.
#[derive(Debug, Clone, Copy)]
pub struct Selection {
    /// How many.
    pub kept: Kept,
    /// Whether what a step does not read is still held, so that its loss can be undone.
    pub is_recoverable: bool,
    /// Flops of scoring for each prompt token in one layer.
    pub score_flops: fn(&Args, &KvShape) -> f64,
    /// Which ones.
    pub choice: Choice,
}

/// How many tokens a selection keeps in each layer.
#[derive(Debug, Clone, Copy)]
pub enum Kept {
    /// All.
    All,
    /// As many in every layer and head.
    Same(Keep),
    /// What differs from layer to layer or from head to head.
    Parts(fn(&Args, &Place) -> Result<Vec<Part>>),
    /// It depends on attention, which a recording must hold in these channels.
    Measured(&'static [&'static Channel]),
    /// How many of the tokens a step reads depends on attention; the parts say everything else.
    MeasuredReads(&'static [&'static Channel], fn(&Args, &Place) -> Result<Vec<Part>>),
}

/// A layer that a selection acts on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Its number among the layers that a selection can act on, from 0.
    pub layer: u32,
    /// How many such layers the model has.
    pub layers: u32,
    /// Its KV.
    pub kv: KvShape,
}

/// KV heads of one layer that are kept alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// How many heads.
    pub kv_heads: u32,
    /// How many tokens of each.
    pub keep: Keep,
    /// Most tokens that a decode step reads of them; all that are kept if `None`.
    pub read_tokens: Option<u32>,
    /// Bytes of metadata per kept token, these heads together, stored and read in each decode step.
    pub index_bytes: u64,
}

impl Part {
    /// All heads of a layer alike, read in full and without metadata.
    pub fn all_heads(place: &Place, keep: Keep) -> Self {
        Self { kv_heads: place.kv.kv_heads, keep, read_tokens: None, index_bytes: 0 }
    }
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

    /// Two errors that have nothing to do with each other.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            key: self.key + other.key,
            value: self.value + other.value,
            key_shrink: 1.0 - (1.0 - self.key_shrink) * (1.0 - other.key_shrink),
        }
    }
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
    /// `extra` tokens, and beside them this share of the prompt or `least` tokens, whichever is more.
    Larger {
        /// Tokens in any case.
        extra: u32,
        /// Tokens at least.
        least: u32,
        /// Share of the prompt.
        ratio: f64,
    },
    /// One layer's step of a pyramid.
    Pyramid(pyramidkv::Step),
}

/// What becomes of generated tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decode {
    /// They are kept beside what is kept of the prompt.
    #[default]
    Grows,
    /// The budget of the prompt holds for everything: once it is full, a step's own token takes the place of another
    /// after that step, which therefore attends to one token more than the budget.
    Fixed,
}

/// How many tokens of a context a layer keeps. Counts only: which ones is the stage's business.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keep {
    /// Of the prompt, once it is prefilled. `None` keeps all.
    pub prompt: Option<Budget>,
    /// Of generated tokens, where the prompt has a budget.
    pub decode: Decode,
    /// Of everything, at any time; the model's own window is already folded in. `None` keeps all.
    pub total: Option<u32>,
    /// Share of the prompt tokens that would be dropped when the prompt is complete, rounded up, that is kept after all.
    pub retained: f64,
    /// Room for so many more of the tokens that would be dropped.
    pub extra: u32,
}

/// The demand of alike layers under a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Index of the model's layer group that these layers belong to.
    pub model_group: usize,
    /// How many layers.
    pub layers: u32,
    /// Their KV as the model has it; where a policy treats the heads of a layer in two ways, the heads of this group only.
    /// Such layers stand in two groups.
    pub kv: KvShape,
    /// What is kept.
    pub keep: Keep,
    /// Number format of the kept KV, for people.
    pub format: String,
    /// Bytes that a decode step reads of one kept token in one layer, all KV heads, metadata of the number format included.
    pub token_bytes: u64,
    /// Bytes that one kept token takes in one layer; another number where two layers share what they store.
    pub held_bytes: u64,
    /// Newest tokens that the number format holds in 16 bits, and what each of them takes more: stored bytes of `T` kept
    /// tokens in one layer are `held_bytes * T + residual.bytes(T)`.
    pub residual: Residual,
    /// Most tokens that a decode step reads; all that are kept if `None`.
    pub read_tokens: Option<u32>,
    /// Bytes that a selection stores beside each kept token in one layer, and reads in each decode step (page bounds,
    /// accumulators), all KV heads.
    pub index_bytes: u64,
    /// Whether elements have 16 bits (else 8 or fewer), which decides the achieved bandwidth.
    pub is_16bit: bool,
    /// Arithmetic outside the tensor units for each kept token that a decode step reads, per layer (dequantization).
    pub read_flops: f64,
    /// Arithmetic for each token that is written, per layer (quantization).
    pub write_flops: f64,
    /// Arithmetic for each prompt token once per prefill, per layer, where the policy drops part of the prompt (scoring, and
    /// making copies or means of what is dropped).
    pub score_flops: f64,
    /// What is held here of each token that is not kept.
    pub beside: Option<Beside>,
    /// What is held of it in a lower tier.
    pub lower: Option<Lower>,
}

/// What is held of a token that a layer does not keep: its copy in a number format, or its share of a page's digest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beside {
    /// Bytes in one layer, all KV heads, stored and read in each decode step.
    pub token_bytes: u64,
    /// Whether steps attend to it; to a digest they do not.
    pub is_attended: bool,
    /// Arithmetic outside the tensor units when it is read, per layer.
    pub read_flops: f64,
}

/// Tokens that are not kept but moved to a lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lower {
    /// Bytes of one of them in one layer, all KV heads.
    pub token_bytes: u64,
    /// Tokens that a decode step fetches of them in one layer at most. The room for them is part of the group's keep.
    pub fetched_tokens: u32,
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

impl Shape {
    /// Bytes that a request holds whose prompt of so many tokens has been prefilled: all layers, and copies of what is not
    /// kept.
    pub fn stored_bytes(&self, prompt: u32) -> u64 {
        let of_group = |group: &Group| {
            let kept = group.keep.tokens(prompt, prompt);
            let dropped = u64::from(prompt.saturating_sub(kept));
            let beside = dropped * group.beside.map_or(0, |beside| beside.token_bytes);
            u64::from(group.layers) * (group.bytes_of(kept) + beside)
        };
        self.groups.iter().map(of_group).sum()
    }
}

impl Budget {
    /// Tokens kept of a prompt of this length; a share is rounded up.
    pub fn tokens(self, prompt: u32) -> u32 {
        self.room(prompt).min(prompt)
    }

    /// The same where the prompt may be shorter than the budget.
    pub fn room(self, prompt: u32) -> u32 {
        // 7% of 100 tokens is 7.000000000000001 in floating point and must not become 8.
        let share = |ratio: f64| (f64::from(prompt) * ratio - 1e-6).ceil() as u32;
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Ratio(ratio) => share(ratio),
            Self::Larger { extra, least, ratio } => extra.saturating_add(share(ratio).max(least)),
            Self::Pyramid(step) => step.tokens(prompt),
        }
    }
}

impl Keep {
    /// Keeps everything.
    pub const ALL: Self = Self { prompt: None, decode: Decode::Grows, total: None, retained: 0.0, extra: 0 };

    /// Keeps so much of the prompt, and all generated tokens.
    pub fn of_prompt(budget: Budget) -> Self {
        Self { prompt: Some(budget), ..Self::ALL }
    }

    /// Keeps so much of everything: a share is one of the prompt.
    pub fn fixed(budget: Budget) -> Self {
        Self { prompt: Some(budget), decode: Decode::Fixed, ..Self::ALL }
    }

    /// Keeps so many tokens at any time.
    pub fn at_most(tokens: u32) -> Self {
        Self { total: Some(tokens), ..Self::ALL }
    }

    /// Tokens kept of a context that began with this prompt. During prefill `context <= prompt` and the prompt budget
    /// does not apply yet, since a prompt is pruned when it is complete.
    pub fn tokens(&self, prompt: u32, context: u32) -> u32 {
        let chosen = self.chosen(prompt, context);
        chosen.saturating_add(self.recovered(prompt.min(context))).min(context)
    }

    /// The same without what is recovered of what would be dropped.
    fn chosen(&self, prompt: u32, context: u32) -> u32 {
        let selected = match (self.prompt, self.decode) {
            (Some(budget), Decode::Grows) if context >= prompt => budget.tokens(prompt) + (context - prompt),
            (Some(budget), Decode::Fixed) if context > prompt => context.min(budget.room(prompt).saturating_add(1)),
            (Some(budget), Decode::Fixed) if context == prompt => budget.tokens(prompt),
            _ => context,
        };
        self.total.map_or(selected, |total| selected.min(total))
    }

    /// What is kept beside what is chosen, once a prompt of this length is complete.
    fn recovered(&self, prompt: u32) -> u32 {
        if self.retained == 0.0 {
            return self.extra;
        }
        let dropped = prompt.saturating_sub(self.chosen(prompt, prompt));
        // A share of 7% of 100 tokens is not 8; see [`Budget::room`].
        ((f64::from(dropped) * self.retained - 1e-6).ceil().max(0.0) as u32).saturating_add(self.extra)
    }

    /// Tokens held of a prompt that is being prefilled, of which so many are computed. What is retained of it at the end
    /// is not known before.
    pub fn in_prefill(&self, computed: u32) -> u32 {
        self.total.map_or(computed, |total| total.saturating_add(self.recovered(computed)).min(computed))
    }

    /// The same keep without room for `tokens` of the tokens that are dropped.
    #[must_use]
    pub fn without_extra(self, tokens: u32) -> Self {
        Self { extra: self.extra.saturating_sub(tokens), ..self }
    }

    /// The context from which on a decoding request grows no more; `None` if it always grows.
    pub fn full_at(&self, prompt: u32) -> Option<u32> {
        let chosen = self.chosen_full_at(prompt)?;
        // From there on the choice is constant, and what is kept beside it may still find room.
        let most = self.chosen(prompt, chosen).saturating_add(self.recovered(prompt));
        Some(chosen.max(most))
    }

    fn chosen_full_at(&self, prompt: u32) -> Option<u32> {
        let room = match (self.prompt, self.decode) {
            (Some(budget), Decode::Fixed) => Some(budget.room(prompt)),
            _ => None,
        };
        let fixed = room.map(|room| room.max(prompt).saturating_add(1));
        let capped = self.total.map(|total| {
            let selected = self.prompt.map_or(prompt, |budget| budget.tokens(prompt));
            prompt + total.saturating_sub(selected)
        });
        fixed.into_iter().chain(capped).min()
    }

    /// Whether part of a prompt of this length is dropped by the prompt budget.
    pub fn drops_of(&self, prompt: u32) -> bool {
        let kept = |budget: Budget| budget.tokens(prompt).saturating_add(self.recovered(prompt));
        self.prompt.is_some_and(|budget| kept(budget) < prompt)
    }

    /// The same, and never more than `most` tokens.
    #[must_use]
    pub fn capped(self, most: u32) -> Self {
        Self { total: Some(self.total.map_or(most, |total| total.min(most))), ..self }
    }
}

impl Group {
    /// Bytes that one kept token takes in one layer, the selection's own included, and without what the newest tokens take
    /// more in 16 bits.
    pub fn stored_bytes(&self) -> u64 {
        self.held_bytes + self.index_bytes
    }

    /// Bytes that so many kept tokens take in one layer, exactly.
    pub fn bytes_of(&self, tokens: u32) -> u64 {
        u64::from(tokens) * self.stored_bytes() + self.residual.bytes(tokens)
    }
}

#[cfg(test)]
mod tests;
