//! A scenario as the cost engine sees it: everything that does not change from step to step, per accelerator.

use super::Pool;
use super::measured::{Covered, Lines, Mixed, Ways};
use crate::error::{Error, Result};
use crate::machine::{Accelerator, Distance, Efficiency, Machine, Sourced};
use crate::model::{Attention, Certainty, Model, STATE_TOKENS, WeightDtype};
use crate::policy::{Group, Keep, Shape};
use crate::surface::Grid;

/// Tokens of one KV block of the engine (vLLM's default).
pub const BLOCK_TOKENS: u32 = 16;

/// Share of the peak rate outside the tensor units that dequantization reaches. Assumed: unpacking, table look-ups and
/// scaling are several instructions per element. At 0.1 a 4-bit TurboQuant decode kernel on an H200 comes out about as
/// fast as a bf16 one, the upper end of what an independent study of vLLM found (66 to 80% of bf16 throughput, POLICIES
/// 3.6).
const VECTOR_EFFICIENCY: f64 = 0.1;

/// The most KV memory of an instance; sums over many instances then stay far from 2^64.
const MOST_BYTES: f64 = 1e15;

/// How a model is spread over accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parallel {
    /// Accelerators that share heads and matrices (tensor parallelism).
    pub tensor: u32,
    /// Groups of so many accelerators that attend to requests of their own (data-parallel attention): each has all weights
    /// but the routed experts, which are spread over all of them.
    pub data: u32,
    /// Parts that the routed experts are dealt out to, each of whole experts (expert parallelism); what is left of `tensor *
    /// data` splits each expert.
    pub expert: u32,
    /// Stages that the layers are dealt out to (pipeline parallelism).
    pub pipeline: u32,
    /// Copies.
    pub instances: u32,
}

impl Default for Parallel {
    fn default() -> Self {
        Self { tensor: 1, data: 1, expert: 1, pipeline: 1, instances: 1 }
    }
}

impl Parallel {
    /// One copy under tensor parallelism alone.
    pub fn tensor(tensor: u32) -> Self {
        Self { tensor, ..Self::default() }
    }

    /// Accelerators of one copy.
    pub fn accelerators(&self) -> u32 {
        self.tensor.saturating_mul(self.data).saturating_mul(self.pipeline)
    }
}

/// Drafting several tokens ahead and verifying them in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speculative {
    /// Tokens drafted for each request and step.
    pub drafted: u32,
    /// Chance that a drafted token is accepted, given that those before it were.
    pub accept: f64,
}

impl Speculative {
    /// Tokens that a step yields in the mean: the accepted ones and the one that the model adds (Leviathan et al., "Fast
    /// Inference from Transformers via Speculative Decoding", 2023, equation 1).
    pub fn yielded(&self) -> f64 {
        (0..=self.drafted).map(|at| self.accept.powi(at as i32)).sum()
    }
}

/// A layer group of the policy's shape, priced per accelerator and summed over its layers.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanGroup {
    /// As the policy shapes it.
    pub group: Group,
    /// Number of layers.
    pub layers: f64,
    /// KV bytes of one kept token that one accelerator reads, all layers.
    pub token_bytes_per_accelerator: f64,
    /// Bytes beside them that the selection stores for each kept token on one accelerator and reads in each decode step,
    /// all layers.
    pub index_bytes_per_accelerator: f64,
    /// Bytes that the newest tokens of a request take more in 16 bits on one accelerator, all layers, on average over
    /// lengths; each decode step reads them.
    pub residual_bytes_per_accelerator: f64,
    /// Arithmetic of the model's own index for one query and one token of the context, per accelerator, all layers.
    pub index_flops: f64,
    /// Most tokens of the context that a prompt's query attends to, where the model itself chooses; infinite elsewhere.
    pub prefill_top: f64,
    /// Bytes of state that each request writes in a step on one accelerator, all layers: those of linear layers.
    pub state_bytes_per_accelerator: f64,
    /// Bytes that one new token is stored in on one accelerator, all layers.
    pub written_bytes_per_accelerator: f64,
    /// Bytes stored for one kept token on all accelerators of the instance, replicas included, all layers.
    pub token_bytes: u64,
    /// Bytes that the newest tokens of a request can take more in 16 bits on all accelerators of the instance, all layers: the
    /// room that each request holds for them.
    pub residual_room_bytes: u64,
    /// Bytes that one accelerator reads of what is held of each token that is not kept, all layers.
    pub beside_bytes_per_accelerator: f64,
    /// Bytes that this takes on all accelerators of the instance, replicas included.
    pub beside_bytes: u64,
    /// Arithmetic outside the tensor units for it, per accelerator.
    pub beside_flops: f64,
    /// Bytes that one accelerator fetches of one token from the lower tier, all layers.
    pub lower_bytes_per_accelerator: f64,
    /// Where among the lanes the tokens are that a decode step reads, if not all that are kept.
    pub read_lane: Option<usize>,
    /// Where all tokens of the context are, if something is held of those that are not kept.
    pub whole_lane: Option<usize>,
    /// Where the tokens are that are kept without those that a step fetches from the lower tier.
    pub near_lane: Option<usize>,
    /// Arithmetic of one query with one kept token per accelerator, all layers, decode.
    pub pair_flops: f64,
    /// The same in prefill.
    pub prefill_pair_flops: f64,
    /// Achieved KV bandwidth of one accelerator.
    pub kv_bytes_per_ns: f64,
    /// Fixed time of one layer's attention kernel.
    pub floor_ns: f64,
    /// Time that a token of a prompt takes in one layer beyond arithmetic and bytes.
    pub prefill_token_ns: f64,
    /// Measured times of one layer's decode attention on one accelerator over requests and past tokens of each, where
    /// [`super::measure`] found them; they stand in for the bandwidth and the fixed time.
    pub measured: Option<Grid>,
    /// How far a batch of contexts that differ is from one at their mean.
    pub uneven: Ways,
    /// The same kernel where prompts are computed in the same step.
    pub measured_mixed: Option<Mixed>,
    /// The same of prefill, over requests and query-context pairs of each.
    pub measured_prefill: Option<Grid>,
    /// Time of the projections' weights, all layers, where the measured times are those of whole attention modules; 0 where
    /// they are those of attention kernels.
    pub module_ns: f64,
    /// Dequantization per kept token per accelerator, all layers.
    pub read_flops: f64,
    /// Quantization per written token per accelerator, all layers.
    pub write_flops: f64,
    /// Scoring per prompt token per accelerator, all layers.
    pub score_flops: f64,
}

/// The linear layers of one model group, per accelerator and layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// Number of layers.
    pub layers: f64,
    /// Bytes of the attention projections.
    pub attention_bytes: f64,
    /// Bytes of the dense part of the FFN.
    pub dense_bytes: f64,
    /// Bytes of one routed expert on one accelerator, if all of them are spread evenly.
    pub expert_bytes: f64,
    /// Parameters of the dense part of the FFN, unsharded.
    pub dense_params: f64,
    /// Parameters of one routed expert, unsharded.
    pub expert_params: f64,
    /// Routed experts.
    pub experts: f64,
    /// Routed experts per token.
    pub active_experts: f64,
    /// Arithmetic of the projections per token.
    pub attention_flops: f64,
    /// Arithmetic of the FFN per token.
    pub ffn_flops: f64,
    /// Of it, that of the routed experts; of a token of any group of accelerators that attend to their own.
    pub routed_flops: f64,
    /// The same, unsharded.
    pub ffn_flops_unsharded: f64,
    /// What of it the measured times of the plan ([`Plan::lines`]) include.
    pub covered: Covered,
}

/// Everything about a scenario that does not change from step to step; times in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Attention by layer group.
    pub groups: Vec<PlanGroup>,
    /// Linear layers by model group.
    pub linear: Vec<Linear>,
    /// Accelerators that share heads and matrices.
    pub tensor: f64,
    /// Groups of those that attend to requests of their own.
    pub data: f64,
    /// Parts that routed experts are dealt out to.
    pub expert: f64,
    /// Stages of layers.
    pub pipeline: f64,
    /// Accelerators of the instance.
    pub accelerators: f64,
    /// What tokens cross on the way to their experts and back, where attention is data-parallel.
    pub exchange: Option<Wire>,
    /// What the residual stream crosses between stages.
    pub hop: Option<Wire>,
    /// Drafting, if any.
    pub speculative: Option<Speculative>,
    /// Layers of the model.
    pub layers: f64,
    /// Bytes of the output projection per accelerator.
    pub head_bytes: f64,
    /// Its arithmetic per row and accelerator.
    pub head_flops: f64,
    /// Bytes of one token's residual stream.
    pub residual_bytes: f64,
    /// Achieved weight bandwidth of one accelerator.
    pub weight_bytes_per_ns: f64,
    /// Achieved arithmetic of the linear layers.
    pub linear_flops_per_ns: f64,
    /// Achieved arithmetic of attention.
    pub attention_flops_per_ns: f64,
    /// Achieved arithmetic outside the tensor units.
    pub vector_flops_per_ns: f64,
    /// Achieved bandwidth of collectives.
    pub collective_bytes_per_ns: f64,
    /// Bandwidth of the link to the lower tier, one way; 0 where nothing is fetched.
    pub host_bytes_per_ns: f64,
    /// Fixed time of a collective.
    pub collective_latency_ns: f64,
    /// Fixed time of a layer's other kernels.
    pub layer_floor_ns: f64,
    /// Fixed time of a step.
    pub step_overhead_ns: f64,
    /// FFN accelerators, if apart.
    pub ffn_pool: Option<Pool>,
    /// Measured times of what depends on the tokens of a step alone, where [`super::measure`] found any.
    pub lines: Option<Box<Lines>>,
    /// Bytes of weights of the instance, all accelerators.
    pub weight_bytes: f64,
    /// KV bytes that fit in the instance, all accelerators.
    pub capacity_bytes: u64,
    /// Whether a request that drops part of its prompt leaves blocks that others can use.
    pub eviction_is_private: bool,
    /// The least certain input.
    pub certainty: Certainty,
}

/// A link between accelerators, one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wire {
    /// Achieved bandwidth.
    pub bytes_per_ns: f64,
    /// Fixed time of a message.
    pub latency_ns: f64,
}

impl Linear {
    /// Experts that `tokens` tokens touch when each picks its experts at random: `E * (1 - (1 - k/E)^tokens)`.
    pub fn touched(&self, tokens: f64) -> f64 {
        if self.experts == 0.0 {
            return 0.0;
        }
        self.experts * (1.0 - (1.0 - self.active_experts / self.experts).powf(tokens))
    }
}

impl Plan {
    /// Drafts tokens ahead, or not.
    ///
    /// # Errors
    /// A plan whose FFN is apart: its micro-batches are those of one token each.
    pub fn draft(&mut self, speculative: Option<Speculative>) -> Result<()> {
        if speculative.is_some() && self.ffn_pool.is_some() {
            return Err(Error::usage("drafting is not known to work with the FFN on other accelerators")
                .hint("leave out `speculative`, or take a machine without separate FFN accelerators"));
        }
        self.speculative = speculative;
        Ok(())
    }

    /// Whether times follow the longest context of a batch beside the mean.
    pub fn asks_longest(&self) -> bool {
        let asks = |group: &PlanGroup| {
            !group.uneven.is_empty() || group.measured_mixed.as_ref().is_some_and(|mixed| !mixed.ways.is_empty())
        };
        self.groups.iter().any(asks)
    }

    /// Bytes of a block of the tokens that a lane counts. What is held of tokens that are not kept is counted once for
    /// every token of the context, so that a kept token counts for the rest. Lanes that only say what is read have none.
    pub fn block_bytes(&self, lane: usize) -> u64 {
        let beside = || self.groups.iter().find(|group| group.whole_lane == Some(lane)).map(|group| group.beside_bytes);
        let kept = self.groups.get(lane).map(|group| group.token_bytes.saturating_sub(group.beside_bytes));
        u64::from(BLOCK_TOKENS) * kept.or_else(beside).unwrap_or(0)
    }

    /// How many counts of kept tokens a batch has: one for each group, then one for each that reads less than it keeps, one
    /// for each that holds something of what it does not keep, and one for each that fetches some of it.
    pub fn lanes(&self) -> usize {
        let extra =
            |group: &PlanGroup| [group.read_lane, group.whole_lane, group.near_lane].into_iter().flatten().count();
        self.groups.len() + self.groups.iter().map(extra).sum::<usize>()
    }

    /// The group of each lane and how many tokens it counts.
    pub fn lane_keeps(&self) -> impl Iterator<Item = (usize, Keep)> {
        let of = |keep: fn(&PlanGroup) -> Option<Keep>| {
            self.groups.iter().enumerate().filter_map(move |(at, group)| Some((at, keep(group)?)))
        };
        let read =
            of(|group| group.read_lane.map(|_| group.group.keep.capped(group.group.read_tokens.unwrap_or(u32::MAX))));
        let whole = of(|group| group.whole_lane.map(|_| Keep::ALL));
        let near = of(|group| {
            let lower = group.near_lane.and(group.group.lower)?;
            Some(group.group.keep.without_extra(lower.fetched_tokens))
        });
        of(|group| Some(group.group.keep)).chain(read).chain(whole).chain(near)
    }

    /// The keep of one lane; see [`Plan::lane_keeps`].
    pub fn lane_keep(&self, lane: usize) -> Keep {
        self.lane_keeps().nth(lane).map_or(Keep::ALL, |(_, keep)| keep)
    }

    /// Bytes that one more token adds to a long context.
    pub fn growing_bytes(&self) -> u64 {
        let grows = |group: &PlanGroup| group.group.keep.total.is_none();
        self.groups.iter().map(|group| if grows(group) { group.token_bytes } else { group.beside_bytes }).sum()
    }

    /// KV bytes of a request with this prompt and context, in whole blocks; `selected` once the prompt is pruned.
    pub fn footprint(&self, prompt: u32, context: u32, selected: bool) -> u64 {
        let held = self.groups.iter().enumerate().map(|(at, group)| {
            let keep = group.group.keep;
            let tokens = if selected { keep.tokens(prompt, context) } else { keep.in_prefill(context) };
            let blocks = |tokens: u32| u64::from(tokens.div_ceil(BLOCK_TOKENS));
            let beside = u64::from(BLOCK_TOKENS) * group.beside_bytes;
            blocks(tokens) * self.block_bytes(at) + blocks(context) * beside + group.residual_room_bytes
        });
        held.sum()
    }

    /// Whether a prompt of this length loses tokens to the policy's prompt budget.
    pub fn drops_of(&self, prompt: u32) -> bool {
        self.groups.iter().any(|group| group.group.keep.drops_of(prompt))
    }

    /// Whether blocks of a request with this prompt can be shared with others.
    pub fn shares(&self, prompt: u32) -> bool {
        let windowed =
            |group: &PlanGroup| group.group.keep.total.is_some() && group.group.kv.attention.window().is_none();
        !self.eviction_is_private || !(self.drops_of(prompt) || self.groups.iter().any(windowed))
    }
}

/// What `on` gives for the fewest accelerators, a power of two within the scale-up domain, on which it succeeds: as a rule
/// the first that hold a model's weights.
///
/// # Errors
/// As `on` for the most accelerators that were tried.
pub fn fewest<T>(machine: &Machine, mut on: impl FnMut(u32) -> Result<T>) -> Result<T> {
    let mut found = on(1);
    let mut tensor = 2;
    while found.is_err() && tensor <= machine.accelerator.scale_up_domain.min(1024) {
        found = on(tensor);
        tensor *= 2;
    }
    found
}

/// Plans a scenario.
///
/// # Errors
/// Weights that do not fit, more accelerators than the scale-up domain has, heads that do not divide among them, an FFN
/// pool without its link. A number format that the part lacks is computed in the next wider one, as engines do.
pub fn plan(model: &Model, shape: &Shape, machine: &Machine, dtype: WeightDtype, parallel: Parallel) -> Result<Plan> {
    let (accelerator, efficiency) = (&machine.accelerator, &machine.efficiency);
    check_parallel(model, machine, parallel)?;
    if parallel.tensor > accelerator.scale_up_domain {
        return Err(Error::run(format!(
            "`{}` joins {} accelerators in one scale-up domain, found tensor parallelism over {}",
            machine.name, accelerator.scale_up_domain, parallel.tensor
        ))
        .hint(format!("use `tensor_parallel = {}` or fewer, with more instances", accelerator.scale_up_domain)));
    }
    divide(model, parallel.tensor)?;
    let (tensor, data) = (f64::from(parallel.tensor), f64::from(parallel.data));
    let per_ns = |rate: f64| rate / 1e9;
    let (peak, matmul) = linear_rate(accelerator, efficiency, dtype);
    let bf16 = accelerator.bf16_flops.value * efficiency.matmul_bf16.value;
    let bandwidth = accelerator.memory_bytes_per_s.value;
    let mut groups: Vec<PlanGroup> =
        shape.groups.iter().map(|group| plan_group(group, machine, parallel.tensor)).collect();
    number_lanes(&mut groups);
    let accelerators = f64::from(parallel.accelerators());
    let attention: f64 = model.groups.iter().map(|group| f64::from(group.layers) * group.attention_params).sum();
    let of_attention = model.attention_dtype(dtype).bytes();
    let weight_bytes = (model.params() + (data - 1.0) * unrouted(model)) * dtype.bytes()
        + data * attention * (of_attention - dtype.bytes());
    let weight_read = if dtype == WeightDtype::Bf16 { &efficiency.weight_read } else { &efficiency.weight_read_8bit };
    Ok(Plan {
        groups,
        linear: model
            .groups
            .iter()
            .map(|group| plan_linear(group, (dtype.bytes(), of_attention), (tensor, data)))
            .collect(),
        tensor,
        data,
        expert: f64::from(parallel.expert),
        pipeline: f64::from(parallel.pipeline),
        accelerators,
        exchange: wire(machine, parallel.tensor.saturating_mul(parallel.data), data > 1.0)?,
        hop: wire(machine, parallel.accelerators(), parallel.pipeline > 1)?,
        speculative: None,
        layers: model.groups.iter().map(|group| f64::from(group.layers)).sum(),
        head_bytes: model.head_params * dtype.bytes() / tensor,
        head_flops: 2.0 * model.head_params / tensor,
        residual_bytes: 2.0 * f64::from(model.hidden),
        weight_bytes_per_ns: per_ns(bandwidth * weight_read.value),
        linear_flops_per_ns: per_ns(peak * matmul),
        attention_flops_per_ns: per_ns(bf16),
        vector_flops_per_ns: per_ns(vector_rate(machine, shape)?),
        collective_bytes_per_ns: per_ns(accelerator.scale_up_bytes_per_s.value * efficiency.all_reduce.value),
        host_bytes_per_ns: host_link(shape, machine)?,
        collective_latency_ns: accelerator.scale_up_latency_ns.value,
        layer_floor_ns: efficiency.layer_floor_ns.value,
        step_overhead_ns: efficiency.step_overhead_ns.value,
        ffn_pool: plan_pool(model, machine, tensor)?,
        lines: None,
        weight_bytes,
        capacity_bytes: capacity(machine, weight_bytes, accelerators)?,
        eviction_is_private: shape.eviction_is_private,
        certainty: certainty(model, machine, |_| true),
    })
}

/// Parameters that every group of accelerators with requests of its own has whole: all but the routed experts.
fn unrouted(model: &Model) -> f64 {
    let routed = |group: &crate::model::LayerGroup| {
        f64::from(group.layers) * f64::from(group.ffn.experts) * group.ffn.expert_params
    };
    model.params() - model.groups.iter().map(routed).sum::<f64>()
}

/// Refuses degrees of parallelism that the model or the machine cannot take.
fn check_parallel(model: &Model, machine: &Machine, parallel: Parallel) -> Result<()> {
    let Parallel { tensor, data, expert, pipeline, instances } = parallel;
    if [tensor, data, expert, pipeline, instances].contains(&0) {
        return Err(Error::usage("expected at least one accelerator and one instance, found 0"));
    }
    let experts = model.groups.iter().map(|group| group.ffn.experts).max().unwrap_or(0);
    if expert > 1 && experts == 0 {
        return Err(
            Error::usage(format!("`{}` has no experts to deal out", model.name)).hint("use `expert_parallel = 1`")
        );
    }
    let width = tensor.saturating_mul(data);
    if !width.is_multiple_of(expert) {
        return Err(Error::usage(format!(
            "expected an `expert_parallel` that divides the {width} accelerators of tensor and data parallelism, found {expert}"
        )));
    }
    if model.groups.iter().any(|group| group.ffn.experts > 0 && !group.ffn.experts.is_multiple_of(expert)) {
        return Err(Error::run(format!("the experts of `{}` do not divide among {expert} parts", model.name))
            .hint("use an `expert_parallel` that divides them"));
    }
    let layers: u32 = model.groups.iter().map(|group| group.layers).sum();
    if pipeline > layers {
        return Err(Error::run(format!("the {layers} layers of `{}` make no {pipeline} stages", model.name)));
    }
    if machine.ffn_pool.is_some() && (width != tensor || expert > 1 || pipeline > 1) {
        return Err(Error::usage(format!(
            "`{}` has its experts apart, so it takes tensor parallelism only",
            machine.name
        )));
    }
    Ok(())
}

/// What so many accelerators send to each other over: the fabric of one scale-up domain, or the link between domains.
///
/// # Errors
/// More accelerators than one domain has, and no known link between domains.
fn wire(machine: &Machine, accelerators: u32, is_needed: bool) -> Result<Option<Wire>> {
    let (part, efficiency) = (&machine.accelerator, &machine.efficiency);
    if !is_needed {
        return Ok(None);
    }
    if accelerators <= part.scale_up_domain {
        let bytes_per_ns = part.scale_up_bytes_per_s.value * efficiency.all_reduce.value / 1e9;
        return Ok(Some(Wire { bytes_per_ns, latency_ns: part.scale_up_latency_ns.value }));
    }
    let link = machine.links.iter().find(|link| link.distance == Distance::CrossRack);
    let known = link.and_then(|link| Some((link.way_bytes_per_s.as_ref()?.value, link)));
    let (rate, link) = known.ok_or_else(|| {
        Error::run(format!(
            "`{}` joins {} accelerators in one scale-up domain, found {accelerators}, and its link between domains is not known",
            machine.name, part.scale_up_domain
        ))
        .hint("use fewer accelerators in an instance")
    })?;
    let latency = link.latency_ns.as_ref().map_or(0.0, |latency| latency.value);
    let achieved = link.achieved.as_ref().map_or(1.0, |achieved| achieved.value);
    Ok(Some(Wire { bytes_per_ns: rate * achieved / 1e9, latency_ns: latency.max(part.scale_up_latency_ns.value) }))
}

/// Gives lanes to groups that need more than one; in the order of [`Plan::lane_keeps`].
fn number_lanes(groups: &mut [PlanGroup]) {
    let mut next = groups.len()..;
    let paged = groups.iter_mut().filter(|group| group.group.read_tokens.is_some());
    paged.zip(&mut next).for_each(|(group, lane)| group.read_lane = Some(lane));
    let beside = groups.iter_mut().filter(|group| group.group.beside.is_some());
    beside.zip(&mut next).for_each(|(group, lane)| group.whole_lane = Some(lane));
    let lower = groups.iter_mut().filter(|group| group.group.lower.is_some());
    lower.zip(&mut next).for_each(|(group, lane)| group.near_lane = Some(lane));
}

/// The link to the lower tier, where one is needed.
fn host_link(shape: &Shape, machine: &Machine) -> Result<f64> {
    if shape.groups.iter().all(|group| group.lower.is_none()) {
        return Ok(0.0);
    }
    let link = machine.accelerator.host_link_bytes_per_s.as_ref().ok_or_else(|| {
        Error::usage(format!("`recall` needs the link between `{}` and its host, which is not known", machine.name))
            .hint(format!("assume one: `{}*host_link_bytes_per_s=64GB/s`", machine.preset))
    })?;
    Ok(link.value / 1e9)
}

/// Engines split query heads evenly, and KV heads evenly or into even replicas.
fn divide(model: &Model, tensor: u32) -> Result<()> {
    for group in &model.groups {
        let kv = &group.kv;
        let kv_fits = kv.kv_heads.is_multiple_of(tensor) || tensor.is_multiple_of(kv.kv_heads.max(1));
        if !kv.query_heads.is_multiple_of(tensor) || !kv_fits {
            return Err(Error::run(format!(
                "the {} query heads and {} KV heads of `{}` do not divide among {tensor} accelerators",
                kv.query_heads, kv.kv_heads, model.name
            ))
            .hint("use a `tensor_parallel` that divides both"));
        }
    }
    Ok(())
}

/// Achieved arithmetic outside the tensor units; a policy that asks for none needs none.
fn vector_rate(machine: &Machine, shape: &Shape) -> Result<f64> {
    let is_needed = shape.groups.iter().any(|group| group.read_flops > 0.0 || group.write_flops > 0.0);
    match &machine.accelerator.vector_flops {
        Some(rate) => Ok(rate.value * VECTOR_EFFICIENCY),
        None if !is_needed => Ok(f64::INFINITY),
        None => Err(Error::run(format!(
            "the policy computes outside the tensor units, and `vector_flops` of `{}` is not published",
            machine.name
        ))
        .hint(format!("assume it, such as `{}*vector_flops=50TFLOPS`", machine.name))),
    }
}

/// Peak arithmetic of one accelerator of the machine with weights of this format, flops per second.
pub fn peak_flops(machine: &Machine, dtype: WeightDtype) -> f64 {
    linear_rate(&machine.accelerator, &machine.efficiency, dtype).0
}

fn linear_rate(accelerator: &Accelerator, efficiency: &Efficiency, dtype: WeightDtype) -> (f64, f64) {
    let bf16 = (accelerator.bf16_flops.value, efficiency.matmul_bf16.value);
    let eight = accelerator.fp8_flops.as_ref().map(|rate| (rate.value, efficiency.matmul_fp8.value));
    let four = accelerator.fp4_flops.as_ref().map(|rate| (rate.value, efficiency.matmul_fp4.value));
    match dtype {
        WeightDtype::Bf16 | WeightDtype::Int4 => bf16,
        // A part without the format computes in the next wider one; the weights are still read in theirs.
        WeightDtype::Fp8 => eight.unwrap_or(bf16),
        WeightDtype::Mxfp4 => four.unwrap_or(bf16),
        WeightDtype::Nvfp4 => four.or(eight).unwrap_or(bf16),
    }
}

fn plan_group(group: &Group, machine: &Machine, tensor: u32) -> PlanGroup {
    let (kv, layers) = (&group.kv, f64::from(group.layers));
    // With fewer KV heads than accelerators each head is replicated; MLA has one latent for all.
    let heads = kv.kv_heads.div_ceil(tensor);
    let head_bytes = group.token_bytes / u64::from(kv.kv_heads.max(1));
    let per_accelerator = u64::from(group.layers) * head_bytes * u64::from(heads);
    let held = u64::from(group.layers) * (group.held_bytes / u64::from(kv.kv_heads.max(1))) * u64::from(heads);
    let index_bytes = group.index_bytes.div_ceil(u64::from(kv.kv_heads.max(1)));
    let index_per_accelerator = u64::from(group.layers) * index_bytes * u64::from(heads);
    let query_share = f64::from(kv.query_heads.div_ceil(tensor)) / f64::from(kv.query_heads.max(1));
    let (efficiency, floor) = if group.is_16bit {
        (&machine.efficiency.kv_read_16bit, &machine.efficiency.attention_floor_ns)
    } else {
        (&machine.efficiency.kv_read_8bit, &machine.efficiency.attention_floor_8bit_ns)
    };
    let (floor_ns, prefill_token_ns) = fixed(kv.attention, &machine.efficiency, floor.value);
    let head_share = f64::from(heads) / f64::from(kv.kv_heads.max(1));
    let (sparse, is_state) = (kv.attention.sparse(), kv.attention == Attention::Linear);
    // Bytes of one token of all KV heads on one accelerator, all layers.
    let here = |bytes: u64| u64::from(group.layers) * bytes.div_ceil(u64::from(kv.kv_heads.max(1))) * u64::from(heads);
    let beside = group.beside.map_or(0, |beside| here(beside.token_bytes));
    PlanGroup {
        residual_room_bytes: here(group.residual.most_bytes(u32::MAX)) * u64::from(tensor),
        beside_bytes_per_accelerator: beside as f64,
        beside_bytes: beside * u64::from(tensor),
        beside_flops: group.beside.map_or(0.0, |beside| beside.read_flops) * layers * head_share,
        lower_bytes_per_accelerator: group.lower.map_or(0.0, |lower| here(lower.token_bytes) as f64),
        whole_lane: None,
        near_lane: None,
        layers,
        token_bytes_per_accelerator: per_accelerator as f64,
        index_bytes_per_accelerator: index_per_accelerator as f64,
        residual_bytes_per_accelerator: group.residual.mean_bytes() * layers * head_share,
        index_flops: 2.0 * sparse.map_or(0.0, |sparse| sparse.index_macs) * layers,
        prefill_top: sparse.map_or(f64::INFINITY, |sparse| f64::from(sparse.top)),
        state_bytes_per_accelerator: if is_state { held as f64 * f64::from(STATE_TOKENS) } else { 0.0 },
        written_bytes_per_accelerator: if is_state { 0.0 } else { (held + index_per_accelerator) as f64 },
        token_bytes: (held + index_per_accelerator) * u64::from(tensor),
        read_lane: None,
        pair_flops: 2.0 * kv.macs_per_pair * layers * query_share,
        prefill_pair_flops: 2.0 * kv.prefill_macs_per_pair * layers * query_share,
        kv_bytes_per_ns: machine.accelerator.memory_bytes_per_s.value * efficiency.value / 1e9,
        floor_ns,
        prefill_token_ns,
        measured: None,
        uneven: Ways::default(),
        measured_mixed: None,
        measured_prefill: None,
        module_ns: 0.0,
        read_flops: group.read_flops * layers * head_share,
        write_flops: group.write_flops * layers * head_share,
        score_flops: group.score_flops * layers * query_share,
        group: group.clone(),
    }
}

/// What one layer's attention takes beside arithmetic and bytes: in each pass, and for each token of a prompt, ns. `floor` is
/// that of kernels that read keys and values.
fn fixed(attention: Attention, efficiency: &Efficiency, floor: f64) -> (f64, f64) {
    let known = |number: &Option<Sourced>, else_ns: f64| number.as_ref().map_or(else_ns, |number| number.value);
    match attention {
        Attention::Linear => (
            known(&efficiency.linear_floor_ns, efficiency.layer_floor_ns.value),
            known(&efficiency.linear_prefill_ns, 0.0),
        ),
        Attention::Sparse(_) => (known(&efficiency.sparse_floor_ns, floor), known(&efficiency.sparse_prefill_ns, 0.0)),
        Attention::Full | Attention::Sliding { .. } | Attention::Mla => (floor, 0.0),
    }
}

/// Bytes of a weight, and of one of attention.
fn plan_linear(
    group: &crate::model::LayerGroup,
    (bytes, of_attention): (f64, f64),
    (tensor, data): (f64, f64),
) -> Linear {
    let share = bytes / tensor;
    let routed = 2.0 * f64::from(group.ffn.active_experts) * group.ffn.expert_params / (tensor * data);
    Linear {
        layers: f64::from(group.layers),
        attention_bytes: group.attention_params * of_attention / tensor,
        dense_bytes: group.ffn.dense_params * share,
        expert_bytes: group.ffn.expert_params * share / data,
        dense_params: group.ffn.dense_params,
        expert_params: group.ffn.expert_params,
        experts: f64::from(group.ffn.experts),
        active_experts: f64::from(group.ffn.active_experts),
        attention_flops: 2.0 * group.attention_params / tensor,
        ffn_flops: 2.0 * group.ffn.dense_params / tensor + routed,
        routed_flops: routed,
        ffn_flops_unsharded: 2.0 * group.ffn.active_params(),
        covered: Covered::default(),
    }
}

/// The FFN pool holds the FFN weights in FP8, its only published format.
fn plan_pool(model: &Model, machine: &Machine, tensor: f64) -> Result<Option<Pool>> {
    let Some(pool) = &machine.ffn_pool else { return Ok(None) };
    let (Some(bandwidth), Some(latency)) = (&pool.link_bytes_per_s, &pool.link_latency_ns) else {
        return Err(Error::usage(format!(
            "`{}` needs the link between its attention and FFN accelerators, which is not published",
            machine.name
        ))
        .hint(format!("assume one: `{}*link_bytes_per_s=200GB/s*link_latency_ns=2us`", machine.preset)));
    };
    let params: f64 = model.groups.iter().map(|group| f64::from(group.layers) * group.ffn.params()).sum();
    let weight_bytes = WeightDtype::Fp8.bytes();
    let (needed, room) = (params * weight_bytes, pool.chips.value * pool.memory_bytes.value);
    if needed > room {
        let chips = (needed / pool.memory_bytes.value).ceil();
        return Err(Error::run(format!(
            "the FFN weights of `{}` take {} in FP8, found {} on {} chips",
            model.name,
            crate::unit::show_bytes(needed),
            crate::unit::show_bytes(room),
            pool.chips.value
        ))
        .hint(format!("use at least {chips} chips, or a smaller model")));
    }
    Ok(Some(Pool {
        memory_bytes_per_ns: pool.chips.value * pool.memory_bytes_per_s.value * pool.efficiency.value / 1e9,
        flops_per_ns: pool.chips.value * pool.fp8_flops.value * pool.efficiency.value / 1e9,
        weight_bytes,
        link_bytes_per_ns: bandwidth.value / 1e9,
        link_latency_ns: latency.value,
        floor_ns: pool.floor_ns.value,
        hop_bytes: 2.0 * f64::from(model.hidden) / tensor,
        chips: pool.clone(),
    }))
}

/// KV memory = usable - weights - reserve, over all accelerators of the instance.
fn capacity(machine: &Machine, weight_bytes: f64, accelerators: f64) -> Result<u64> {
    let (accelerator, efficiency) = (&machine.accelerator, &machine.efficiency);
    let usable = accelerator.memory_bytes.value * efficiency.usable_memory_ratio.value - efficiency.reserve_bytes.value;
    let left = usable * accelerators - weight_bytes;
    if left <= 0.0 {
        return Err(Error::run(format!(
            "the weights take {} and {} accelerators of `{}` offer {}",
            crate::unit::show_bytes(weight_bytes),
            accelerators,
            machine.name,
            crate::unit::show_bytes(usable.max(0.0) * accelerators)
        ))
        .hint("use more accelerators per instance or a smaller weight format"));
    }
    if left > MOST_BYTES {
        return Err(Error::usage(format!("expected KV memory of up to 1 PB an instance, found {left:.3e} bytes"))
            .hint("check `memory_bytes`"));
    }
    Ok(left as u64)
}

/// The least certain of the model and those parameters of the machine that `counts` takes.
///
/// The vector efficiency and the host overhead are assumptions, so nothing priced here is better than assumed unless
/// measurements stand in for them.
pub(super) fn certainty(model: &Model, machine: &Machine, counts: impl Fn(&str) -> bool) -> Certainty {
    let parameters = crate::machine::parameters(machine);
    let counted = parameters.iter().filter(|parameter| counts(parameter.name));
    counted.map(|parameter| parameter.certainty).fold(model.certainty, Certainty::min)
}
