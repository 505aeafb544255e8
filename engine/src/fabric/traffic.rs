//! What one step sends between accelerators, by class.
//!
//! A step decodes one token for each of `batch` requests of each copy, and in a pipeline each stage is at work. Bytes are
//! those of elements in the class's wire format ([`Wire`]): scales of blocks of 128 elements count.
//!
//! | class | group | what each member sends | how often |
//! |---|---|---|---|
//! | tensor all-reduce | the accelerators of a copy and stage | the residual of the batch | twice a layer; once where experts are spread |
//! | expert dispatch, combine | the accelerators among which experts are spread | each token to its experts, the results back | each layer with experts |
//! | pipeline | to the same place of the next stage | its part of the residual | once a stage |
//! | attention to FFN, and back | to all FFN accelerators evenly, from them | its part of the residual | each layer, where the FFN is apart |
//! | tier fetch | from all places of the farther memory evenly | its part of the KV that is fetched | once |
//! | prefill to decode | from half the fabric away | KV of new prompts | as they come |
//! | replication | to the same place of the next copy | KV of the new tokens | once |
//!
//! Tokens pick experts at random. Where the FFN is apart, attention is followed by one all-reduce, and experts get their
//! tokens within the hop. A farther memory is spread evenly over its places, or over the hosts of all accelerators
//! ([`Layout::memory`]); what lies at an accelerator's own host does not cross the fabric. How fast a memory itself or the way
//! to a host is, is not part of a fabric.

use super::collective::Pattern;
use super::place::Layout;
use crate::error::{Error, Result, unknown};
use crate::model::Model;

/// Classes of traffic.
pub const CLASSES: usize = 9;

/// A class of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Sums over the accelerators that share a layer.
    TensorAllReduce,
    /// Tokens to experts.
    ExpertDispatch,
    /// Results of experts back.
    ExpertCombine,
    /// Activations from stage to stage.
    Pipeline,
    /// Activations to FFN accelerators apart.
    AttentionToFfn,
    /// Their results back.
    FfnToAttention,
    /// KV from a farther memory.
    TierFetch,
    /// KV of a finished prefill to where it is decoded.
    PrefillKv,
    /// Copies of new KV elsewhere.
    Replication,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; CLASSES] = [
        Self::TensorAllReduce,
        Self::ExpertDispatch,
        Self::ExpertCombine,
        Self::Pipeline,
        Self::AttentionToFfn,
        Self::FfnToAttention,
        Self::TierFetch,
        Self::PrefillKv,
        Self::Replication,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::TensorAllReduce => "tensor_all_reduce",
            Self::ExpertDispatch => "expert_dispatch",
            Self::ExpertCombine => "expert_combine",
            Self::Pipeline => "pipeline",
            Self::AttentionToFfn => "attention_to_ffn",
            Self::FfnToAttention => "ffn_to_attention",
            Self::TierFetch => "tier_fetch",
            Self::PrefillKv => "prefill_to_decode",
            Self::Replication => "replication",
        }
    }

    /// Whether the step waits for it; the others go on beside it.
    pub fn is_awaited(self) -> bool {
        !matches!(self, Self::PrefillKv | Self::Replication)
    }

    /// The class of this name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| unknown("class of traffic", name, Self::ALL.map(Self::name)))
    }
}

/// How elements go over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// 16 bits.
    Bf16,
    /// 8 bits, and a scale of 4 bytes for 128 elements (as `DeepEP` sends).
    Fp8,
    /// 4 bits, and a scale of a byte for 16 elements.
    Nvfp4,
}

impl Wire {
    /// Bytes of an element, scales included.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Bf16 => 2.0,
            Self::Fp8 => 1.0 + 4.0 / 128.0,
            Self::Nvfp4 => 0.5 + 1.0 / 16.0,
        }
    }

    /// The format of this name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            "nvfp4" => Ok(Self::Nvfp4),
            _ => Err(unknown("wire format", name, ["bf16", "fp8", "nvfp4"])),
        }
    }
}

/// How a class goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Its wire format.
    pub wire: Wire,
    /// How many of its messages go as one.
    pub coalesce: f64,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Requests that decode together in each copy.
    pub batch: f64,
    /// Prompt tokens whose KV comes from a prefill elsewhere, for each copy and step.
    pub prefill_tokens: f64,
    /// KV bytes of a token on all accelerators of a copy and stage.
    pub kv_bytes_per_token: f64,
    /// Further copies that new KV is written to.
    pub replicas: f64,
    /// KV that comes from a farther memory in a step, in the format in which it is stored, bytes on all accelerators of a copy
    /// and stage.
    pub fetched_bytes: f64,
    /// By class, in the order of [`Class::ALL`].
    pub terms: [Terms; CLASSES],
}

/// One kind of collective of a step, as all its groups run it.
#[derive(Debug, Clone, PartialEq)]
pub struct Traffic {
    /// The class.
    pub class: Class,
    /// What each group does.
    pub pattern: Pattern,
    /// Members of each group, as ranks.
    pub groups: Vec<Vec<u32>>,
    /// How often in a step.
    pub times: f64,
    /// Messages of each transfer.
    pub messages: f64,
}

/// The traffic of a step; classes that send nothing are left out.
///
/// # Errors
/// A layout that spreads experts of a model that has none.
pub fn traffic(model: &Model, layout: &Layout, step: &Step) -> Result<Vec<Traffic>> {
    let layers: f64 = model.groups.iter().map(|group| f64::from(group.layers)).sum();
    let routed = model.groups.iter().filter(|group| group.ffn.experts > 0);
    let expert_layers: f64 = routed.clone().map(|group| f64::from(group.layers)).sum();
    if layout.expert > 1 && expert_layers == 0.0 {
        return Err(Error::usage(format!("`{}` has no experts to spread over {}", model.name, layout.expert))
            .hint("leave out `--expert-parallel`"));
    }
    let stage = 1.0 / f64::from(layout.pipeline);
    let residual = step.batch * f64::from(model.hidden);
    let spread = if layout.expert > 1 { expert_layers } else { 0.0 };
    let mut found = Vec::new();
    let bytes = residual * wire(step, Class::TensorAllReduce);
    let reduces = if layout.ffn > 0 { layers } else { 2.0 * layers - spread };
    let pattern = Pattern::AllReduce { bytes };
    put(&mut found, step, (Class::TensorAllReduce, pattern), tensor_groups(layout), (reduces * stage, 1.0));
    if spread > 0.0 {
        let picks = routed.map(|group| f64::from(group.layers * group.ffn.active_experts)).sum::<f64>() / expert_layers;
        // The accelerators of a copy share its tokens out.
        let tokens = step.batch / f64::from(layout.tensor);
        let each = tokens * picks * f64::from(model.hidden) / f64::from(layout.expert);
        let messages = (tokens * picks / f64::from(layout.expert)).max(1.0);
        for class in [Class::ExpertDispatch, Class::ExpertCombine] {
            let pattern = Pattern::AllToAll { bytes: each * wire(step, class), picks };
            put(&mut found, step, (class, pattern), expert_groups(layout), (spread * stage, messages));
        }
    }
    let shared = residual / f64::from(layout.tensor);
    let pattern = Pattern::Pairs { bytes: shared * wire(step, Class::Pipeline) };
    put(&mut found, step, (Class::Pipeline, pattern), vec![next_stage(layout)], (1.0, 1.0));
    for class in [Class::AttentionToFfn, Class::FfnToAttention] {
        let pattern = Pattern::Pairs { bytes: shared * wire(step, class) / f64::from(layout.ffn.max(1)) };
        let pairs = with_ffn(layout, class == Class::AttentionToFfn);
        put(&mut found, step, (class, pattern), vec![pairs], (layers * stage, 1.0));
    }
    kv_traffic(layout, step, layers * stage, &mut found);
    Ok(found)
}

/// What goes between accelerators and memories: KV of `layers` layers of a stage.
fn kv_traffic(layout: &Layout, step: &Step, layers: f64, found: &mut Vec<Traffic>) {
    // Elements of KV are stored in a format of their own; a narrower wire sends fewer bytes of them.
    let part = |class: Class, bytes: f64| bytes / f64::from(layout.tensor) * wire(step, class) / Wire::Bf16.bytes();
    let kv = |class: Class, tokens: f64| part(class, tokens * step.kv_bytes_per_token);
    if step.fetched_bytes > 0.0 {
        let places = f64::from(if layout.memory > 0 { layout.memory } else { layout.ranks() });
        let bytes = part(Class::TierFetch, step.fetched_bytes) / places;
        let (pattern, group) = if layout.memory > 0 {
            (Pattern::Pairs { bytes }, from_memory(layout))
        } else {
            (Pattern::AllToAll { bytes, picks: 1.0 }, (0..layout.ranks()).collect())
        };
        put(found, step, (Class::TierFetch, pattern), vec![group], (1.0, layers / places));
    }
    if step.prefill_tokens > 0.0 {
        let pattern = Pattern::Pairs { bytes: kv(Class::PrefillKv, step.prefill_tokens) };
        put(found, step, (Class::PrefillKv, pattern), vec![half_away(layout)], (1.0, layers));
    }
    if step.replicas > 0.0 {
        let pattern = Pattern::Pairs { bytes: kv(Class::Replication, step.batch) };
        put(found, step, (Class::Replication, pattern), vec![next_copy(layout)], (step.replicas, layers));
    }
}

/// Adds what a class does so many times with so many messages a transfer, if that is anything.
fn put(
    found: &mut Vec<Traffic>,
    step: &Step,
    (class, pattern): (Class, Pattern),
    groups: Vec<Vec<u32>>,
    (times, messages): (f64, f64),
) {
    if times > 0.0 && groups.iter().any(|group| group.len() > 1) {
        let messages = (messages / term(step, class).coalesce.max(1.0)).max(1.0);
        found.push(Traffic { class, pattern, groups, times, messages });
    }
}

/// Bytes of an element of a class on the wire.
fn wire(step: &Step, class: Class) -> f64 {
    term(step, class).wire.bytes()
}

/// How a class goes.
fn term(step: &Step, class: Class) -> Terms {
    step.terms[class as usize]
}

fn tensor_groups(layout: &Layout) -> Vec<Vec<u32>> {
    let group = |(data, stage): (u32, u32)| (0..layout.tensor).map(|t| layout.rank(t, data, stage)).collect();
    (0..layout.pipeline).flat_map(|stage| (0..layout.data).map(move |data| (data, stage))).map(group).collect()
}

fn expert_groups(layout: &Layout) -> Vec<Vec<u32>> {
    let ranks: Vec<u32> = (0..layout.ranks()).collect();
    let stages = ranks.chunks((layout.tensor * layout.data) as usize);
    stages.flat_map(|stage| stage.chunks(layout.expert as usize)).map(<[u32]>::to_vec).collect()
}

/// Pairs of ranks: from, to.
fn next_stage(layout: &Layout) -> Vec<u32> {
    let per_stage = layout.tensor * layout.data;
    (0..layout.ranks() - per_stage).flat_map(|rank| [rank, rank + per_stage]).collect()
}

fn with_ffn(layout: &Layout, is_there: bool) -> Vec<u32> {
    let pair = |rank: u32, ffn: u32| if is_there { [rank, ffn] } else { [ffn, rank] };
    (0..layout.ranks()).flat_map(|rank| layout.ffn_ranks().flat_map(move |ffn| pair(rank, ffn))).collect()
}

fn from_memory(layout: &Layout) -> Vec<u32> {
    (0..layout.ranks()).flat_map(|rank| layout.memory_ranks().flat_map(move |memory| [memory, rank])).collect()
}

fn half_away(layout: &Layout) -> Vec<u32> {
    let ranks = layout.ranks();
    if ranks < 2 { Vec::new() } else { (0..ranks).flat_map(|rank| [(rank + ranks / 2) % ranks, rank]).collect() }
}

fn next_copy(layout: &Layout) -> Vec<u32> {
    let next = |rank: u32| {
        let (tensor, data) = (rank % layout.tensor, rank / layout.tensor % layout.data);
        layout.rank(tensor, (data + 1) % layout.data, rank / (layout.tensor * layout.data))
    };
    if layout.data < 2 { Vec::new() } else { (0..layout.ranks()).flat_map(|rank| [rank, next(rank)]).collect() }
}
