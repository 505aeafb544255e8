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
//! | prefill to decode | from half the fabric away | KV of new prompts | as they come |
//! | replication | to the same place of the next copy | KV of the new tokens | once |
//!
//! Tokens pick experts at random. The hop between attention and FFN accelerators and fetches from farther memories have links
//! of their own (see the machine) and stand in the step's cost.

use super::collective::Pattern;
use super::place::Layout;
use crate::error::{Error, Result, unknown};
use crate::model::Model;

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
    /// KV of a finished prefill to where it is decoded.
    PrefillKv,
    /// Copies of new KV elsewhere.
    Replication,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 6] = [
        Self::TensorAllReduce,
        Self::ExpertDispatch,
        Self::ExpertCombine,
        Self::Pipeline,
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
    /// By class, in the order of [`Class::ALL`].
    pub terms: [Terms; 6],
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
    let mut put = |class: Class, pattern: Pattern, groups: Vec<Vec<u32>>, times: f64, messages: f64| {
        let is_something = times > 0.0 && groups.iter().any(|group| group.len() > 1);
        if is_something {
            let messages = (messages / term(step, class).coalesce.max(1.0)).max(1.0);
            found.push(Traffic { class, pattern, groups, times, messages });
        }
    };
    let wire = |class: Class| term(step, class).wire.bytes();
    let bytes = residual * wire(Class::TensorAllReduce);
    put(
        Class::TensorAllReduce,
        Pattern::AllReduce { bytes },
        tensor_groups(layout),
        (2.0 * layers - spread) * stage,
        1.0,
    );
    if spread > 0.0 {
        let picks = routed.map(|group| f64::from(group.layers * group.ffn.active_experts)).sum::<f64>() / expert_layers;
        // The accelerators of a copy share its tokens out.
        let tokens = step.batch / f64::from(layout.tensor);
        let each = tokens * picks * f64::from(model.hidden) / f64::from(layout.expert);
        let messages = (tokens * picks / f64::from(layout.expert)).max(1.0);
        for class in [Class::ExpertDispatch, Class::ExpertCombine] {
            let pattern = Pattern::AllToAll { bytes: each * wire(class), picks };
            put(class, pattern, expert_groups(layout), spread * stage, messages);
        }
    }
    let shared = residual / f64::from(layout.tensor);
    let pattern = Pattern::Shift { bytes: shared * wire(Class::Pipeline) };
    put(Class::Pipeline, pattern, vec![next_stage(layout)], 1.0, 1.0);
    // Elements of KV are stored in a format of their own; a narrower wire sends fewer bytes of them.
    let kv = |class: Class, tokens: f64| {
        tokens * step.kv_bytes_per_token / f64::from(layout.tensor) * wire(class) / Wire::Bf16.bytes()
    };
    if step.prefill_tokens > 0.0 {
        let pattern = Pattern::Shift { bytes: kv(Class::PrefillKv, step.prefill_tokens) };
        put(Class::PrefillKv, pattern, vec![half_away(layout)], 1.0, layers * stage);
    }
    if step.replicas > 0.0 {
        let pattern = Pattern::Shift { bytes: kv(Class::Replication, step.batch) };
        put(Class::Replication, pattern, vec![next_copy(layout)], step.replicas, layers * stage);
    }
    Ok(found)
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
