//! The cost engine: what a step takes on a machine. It prices demand and never decides.
//!
//! Time of an operation is its roofline time over the achieved efficiency: `max(bytes / (bandwidth * e), flops / (rate *
//! e))`. A step is a sum of operations (attention of each layer group, the linear layers, collectives, the policy's own
//! work, fixed floors), and each operation's time goes to the booth that sets its pace. Everything is per instance: `tensor`
//! accelerators that share one copy of the model.
//!
//! Within one batch only the kept tokens change from step to step, by a constant, and every operation is a maximum of
//! functions that are linear in them. As long as the same branches win (`StepCost::regime`), step times are therefore an
//! arithmetic progression, which lets the serving replay jump from event to event.

mod alone;
mod batch;
mod ffn;
mod measure;
mod measured;
mod plan;

pub(crate) use alone::pairs;
pub use alone::{decode_ns, prefill_ns};
pub use batch::{Demand, Field, price_columns};
pub use ffn::{FfnStep, ffn_step};
pub use measure::{Measured, measure, moved};
pub use measured::{Covered, Line, Lines, Mixed, Part, Ways};
pub use plan::{BLOCK_TOKENS, Linear, Parallel, Plan, PlanGroup, Speculative, Wire, fewest, peak_flops, plan};

use crate::error::{Error, Result};
use crate::machine::FfnPool;

/// Refuses the longest of some steps, nanoseconds, where it is 2^63 or more: times are whole numbers of 63 bits, and beyond
/// them nothing would be said that is true.
///
/// # Errors
/// Such a step.
pub fn within_bits(longest_ns: f64) -> Result<()> {
    if longest_ns >= 9_223_372_036_854_775_808.0 {
        return Err(Error::usage(format!("expected steps of less than 2^63 ns, 292 years, found {longest_ns:.3e} ns"))
            .hint("take a smaller batch or context, or a machine that is less slow"));
    }
    Ok(())
}

/// Times and bytes by booth; times in nanoseconds, bytes summed over the accelerators of the instance.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepCost {
    /// Moving KV.
    pub kv_read: f64,
    /// Streaming weights.
    pub weight_read: f64,
    /// Arithmetic, where it sets the pace.
    pub compute: f64,
    /// Collectives.
    pub collective: f64,
    /// The policy's own work.
    pub policy: f64,
    /// Fetching KV from a lower tier, all of it exposed.
    pub tier: f64,
    /// Exposed hop between attention and FFN accelerators.
    pub link: f64,
    /// Kernel floors and the host.
    pub overhead: f64,
    /// Time the arithmetic alone would take on the accelerators that hold the KV; the FFN pool's is not counted.
    pub busy: f64,
    /// KV read.
    pub kv_read_bytes: f64,
    /// KV written.
    pub kv_written_bytes: f64,
    /// Weights read from main memory.
    pub weight_read_bytes: f64,
    /// Weights read in the FFN pool.
    pub pool_read_bytes: f64,
    /// Bytes of all-reduces between the accelerators that share a layer.
    pub all_reduce_bytes: f64,
    /// Bytes of tokens on the way to their experts.
    pub dispatch_bytes: f64,
    /// Bytes of what experts made, on the way back.
    pub combine_bytes: f64,
    /// Bytes between stages of layers.
    pub pipeline_bytes: f64,
    /// Bytes between attention and FFN accelerators, both ways.
    pub hop_bytes: f64,
    /// Bytes fetched from a lower tier.
    pub tier_bytes: f64,
    /// Arithmetic.
    pub flops: f64,
    /// Of the step's time, that of operations whose shape lies between measured ones; it is in the booths too.
    pub calibrated: f64,
    /// Of the step's time, that of measured operations at shapes beyond the measured ones, or at rates that were varied.
    pub extrapolated: f64,
    /// Which branches won; equal regimes at two ends of a stretch mean linear step times between them.
    pub regime: u64,
}

/// One engine step of an instance.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Requests that decode one token.
    pub decode_requests: u64,
    /// Kept tokens of those requests, one figure per lane of the plan: what each group keeps, then what groups read that
    /// read less than they keep.
    pub kept_tokens: &'a [u64],
    /// Context of the longest of those requests; 0 where all are alike, or nothing asks for it ([`Plan::asks_longest`]).
    pub longest_tokens: u64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Requests that these tokens belong to.
    pub prefill_requests: u64,
    /// Requests whose prompt is completed (each needs one row of logits).
    pub prefill_rows: u64,
    /// Query-context pairs of the prefill, one figure per plan group.
    pub prefill_pairs: &'a [f64],
    /// Context tokens read by the prefill, one figure per plan group.
    pub prefill_context: &'a [u64],
    /// Prompt tokens that a selecting policy scores in this step.
    pub scored_tokens: u64,
}

impl StepCost {
    /// Duration of the step in nanoseconds.
    pub fn total(&self) -> f64 {
        let Self { kv_read, weight_read, compute, collective, policy, tier, link, overhead, .. } = self;
        kv_read + weight_read + compute + collective + policy + link + overhead + tier
    }

    /// Bytes of collectives between accelerators.
    pub fn collective_bytes(&self) -> f64 {
        self.all_reduce_bytes + self.dispatch_bytes + self.combine_bytes
    }

    /// Time in which arithmetic waits for data, in nanoseconds.
    pub fn waiting(&self) -> f64 {
        // Busy time is part of the booths that are left here, up to rounding.
        (self.total() - self.busy - self.overhead - self.policy).max(0.0)
    }

    /// Name and time of each booth, in a fixed order.
    pub fn booths(&self) -> [(&'static str, f64); 8] {
        [
            ("kv_read", self.kv_read),
            ("weight_read", self.weight_read),
            ("compute", self.compute),
            ("collective", self.collective),
            ("policy", self.policy),
            ("tier", self.tier),
            ("link", self.link),
            ("overhead", self.overhead),
        ]
    }

    /// The largest booth; the first of equals.
    pub fn bound_by(&self) -> &'static str {
        let booths = self.booths();
        booths.iter().fold(booths[0], |best, booth| if booth.1 > best.1 { *booth } else { best }).0
    }

    /// The same figures for a whole stretch: `steps` times their mean.
    #[must_use]
    pub fn stretched(first: &Self, last: &Self, steps: f64) -> Self {
        Self { regime: first.regime, ..Self::weighted(first, steps / 2.0, last, steps / 2.0) }
    }

    /// So much of one step and so much of another; their regimes become one.
    fn weighted(first: &Self, much: f64, second: &Self, more: f64) -> Self {
        let sum = |pick: fn(&Self) -> f64| pick(first) * much + pick(second) * more;
        Self {
            kv_read: sum(|cost| cost.kv_read),
            weight_read: sum(|cost| cost.weight_read),
            compute: sum(|cost| cost.compute),
            collective: sum(|cost| cost.collective),
            policy: sum(|cost| cost.policy),
            tier: sum(|cost| cost.tier),
            link: sum(|cost| cost.link),
            overhead: sum(|cost| cost.overhead),
            busy: sum(|cost| cost.busy),
            kv_read_bytes: sum(|cost| cost.kv_read_bytes),
            kv_written_bytes: sum(|cost| cost.kv_written_bytes),
            weight_read_bytes: sum(|cost| cost.weight_read_bytes),
            pool_read_bytes: sum(|cost| cost.pool_read_bytes),
            all_reduce_bytes: sum(|cost| cost.all_reduce_bytes),
            dispatch_bytes: sum(|cost| cost.dispatch_bytes),
            combine_bytes: sum(|cost| cost.combine_bytes),
            pipeline_bytes: sum(|cost| cost.pipeline_bytes),
            hop_bytes: sum(|cost| cost.hop_bytes),
            tier_bytes: sum(|cost| cost.tier_bytes),
            flops: sum(|cost| cost.flops),
            calibrated: sum(|cost| cost.calibrated),
            extrapolated: sum(|cost| cost.extrapolated),
            regime: first.regime.rotate_left(32) ^ second.regime,
        }
    }

    /// Notes which of two times won and returns the larger.
    fn race(&mut self, memory: f64, arithmetic: f64) -> f64 {
        self.regime = self.regime.rotate_left(1) ^ u64::from(arithmetic > memory);
        memory.max(arithmetic)
    }

    /// An operation that streams data while it computes: the slower of the two sets its pace and gets all of its time.
    fn pace(&mut self, stream: Stream, memory: f64, arithmetic: f64) {
        let time = self.race(memory, arithmetic);
        match stream {
            _ if arithmetic > memory => self.compute += time,
            Stream::Kv => self.kv_read += time,
            Stream::Weights => self.weight_read += time,
        }
        self.busy += arithmetic;
    }
}

/// What an operation streams from memory.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Kv,
    Weights,
}

/// How much of a step's batch falls on one accelerator at a time.
///
/// Groups of accelerators with requests of their own have an even share of the requests, but never less than one of them.
/// Stages of layers work on as many parts of the batch at the same time; a token passes all of them, so that a step takes
/// what one part takes through all layers.
#[derive(Debug, Clone, Copy)]
struct Shares {
    /// Share of the decoding requests that one accelerator attends to.
    decode: f64,
    /// The same of the prompts.
    prefill: f64,
    /// Share of the decoding requests whose tokens meet at the experts at a time.
    decode_pool: f64,
    /// The same of the prompts.
    prefill_pool: f64,
    /// Parts that the batch is in.
    parts: f64,
}

impl Shares {
    /// Of a batch of which no part is priced apart.
    const WHOLE: Self = Self { decode: 1.0, prefill: 1.0, decode_pool: 1.0, prefill_pool: 1.0, parts: 1.0 };

    fn of(plan: &Plan, batch: &Batch<'_>) -> Self {
        let share = |ways: f64, requests: u64| (1.0 / ways).max(1.0 / requests.max(1) as f64);
        let requests = batch.decode_requests + batch.prefill_requests;
        Self {
            decode: share(plan.data * plan.pipeline, batch.decode_requests),
            prefill: share(plan.data * plan.pipeline, batch.prefill_requests),
            decode_pool: share(plan.pipeline, batch.decode_requests),
            prefill_pool: share(plan.pipeline, batch.prefill_requests),
            parts: plan.pipeline.min(requests.max(1) as f64),
        }
    }
}

/// Prices one step. With drafting it is the step of one token: of what a step costs, the share of one of the tokens that
/// it yields.
pub fn price(plan: &Plan, batch: &Batch<'_>) -> StepCost {
    match &plan.speculative {
        Some(drafting) if batch.decode_requests > 0 => speculate(plan, *drafting, batch),
        _ => price_step(plan, batch, 1.0),
    }
}

/// A step that verifies what was drafted, and the drafting: each drafted token passes one layer and the output projection.
/// While prompts are computed too, requests get one token in a step.
fn speculate(plan: &Plan, drafting: Speculative, batch: &Batch<'_>) -> StepCost {
    let plain = price_step(plan, &Batch { prefill_tokens: 0, prefill_requests: 0, prefill_rows: 0, ..*batch }, 1.0);
    let verified = price_step(plan, batch, 1.0 + f64::from(drafting.drafted));
    let share = f64::from(drafting.drafted) / plan.layers.max(1.0);
    let yielded = if batch.prefill_tokens == 0 { drafting.yielded() } else { 1.0 };
    let drafted = StepCost { overhead: (plain.overhead - plan.step_overhead_ns).max(0.0), ..plain };
    StepCost::weighted(&verified, 1.0 / yielded, &drafted, share / yielded)
}

/// A step in which each decoding request has `width` tokens.
fn price_step(plan: &Plan, batch: &Batch<'_>, width: f64) -> StepCost {
    let shares = Shares::of(plan, batch);
    let mut cost = match &plan.ffn_pool {
        Some(pool) if batch.decode_requests > 0 => on_two_pools(plan, pool, batch, &shares, width),
        _ => {
            let mut cost = by_tokens(plan, batch, &shares, width);
            attend_all(plan, batch, &shares, width, &mut cost);
            cost
        }
    };
    if batch.prefill_tokens > 0 {
        prefill_attention(plan, batch, shares.prefill, &mut cost);
    }
    policy_work(plan, batch, &shares, &mut cost);
    cost
}

/// What of a step its tokens alone settle, whatever is kept of their contexts: the linear layers, what goes between
/// accelerators, the KV that is written.
fn by_tokens(plan: &Plan, batch: &Batch<'_>, shares: &Shares, width: f64) -> StepCost {
    let mut cost = StepCost { overhead: plan.step_overhead_ns, ..StepCost::default() };
    let decoded = batch.decode_requests as f64 * width;
    let (prefill, rows) = (batch.prefill_tokens as f64, batch.prefill_rows as f64);
    linear(plan, (decoded, prefill), (decoded, rows), shares, &mut cost);
    collectives(plan, decoded * shares.decode + prefill * shares.prefill, &mut cost);
    hops(plan, decoded * shares.decode + prefill * shares.prefill, &mut cost);
    written(plan, batch, shares, width, &mut cost);
    cost
}

/// Decode attention of all layer groups.
fn attend_all(plan: &Plan, batch: &Batch<'_>, shares: &Shares, width: f64, cost: &mut StepCost) {
    if batch.decode_requests > 0 {
        for (group, &kept) in plan.groups.iter().zip(batch.kept_tokens) {
            decode_attention(plan, group, batch, kept, (1.0, shares.decode, width), cost);
        }
    }
}

/// Decoding with the FFN on another pool; prompts that are computed beside it stay here whole.
fn on_two_pools(plan: &Plan, pool: &Pool, batch: &Batch<'_>, shares: &Shares, width: f64) -> StepCost {
    let mut cost = StepCost { overhead: plan.step_overhead_ns, ..StepCost::default() };
    disaggregated_decode(plan, pool, batch, &mut cost);
    if batch.prefill_tokens > 0 {
        let (tokens, rows) = (batch.prefill_tokens as f64, batch.prefill_rows as f64);
        linear(plan, (0.0, tokens), (0.0, rows), &Shares::WHOLE, &mut cost);
        collectives(plan, tokens, &mut cost);
    }
    written(plan, batch, shares, width, &mut cost);
    cost
}

/// A step of decoding alone, of which the part that its number of requests settles is known: the rest of it.
fn by_kept(plan: &Plan, batch: &Batch<'_>, settled: &StepCost) -> StepCost {
    let shares = Shares::of(plan, batch);
    let mut cost = *settled;
    attend_all(plan, batch, &shares, 1.0, &mut cost);
    policy_work(plan, batch, &shares, &mut cost);
    cost
}

/// What the number of requests settles of a step of decoding alone; `None` where what is kept changes that part too.
fn settled(plan: &Plan, batch: &Batch<'_>) -> Option<StepCost> {
    let is_plain = plan.ffn_pool.is_none() && plan.speculative.is_none();
    is_plain.then(|| by_tokens(plan, batch, &Shares::of(plan, batch), 1.0))
}

/// Decode attention of one layer group that keeps `kept` tokens, in `passes` launches per layer, with `width` new tokens of
/// each request; an accelerator has `share` of the requests at a time.
fn decode_attention(
    plan: &Plan,
    group: &PlanGroup,
    batch: &Batch<'_>,
    kept: u64,
    (passes, share, width): (f64, f64, f64),
    cost: &mut StepCost,
) {
    let read = attended(group, batch, kept) as f64;
    let flops = read * group.pair_flops * width;
    match &group.measured {
        Some(grid) => {
            let requests = batch.decode_requests as f64;
            measured::attend(plan, group, grid, batch, (requests, read, flops), (passes, share), cost);
        }
        None => attend(plan, group, (read, flops), (passes, share), cost),
    }
    if group.index_bytes_per_accelerator > 0.0 {
        let bytes = kept as f64 * group.index_bytes_per_accelerator;
        let flops = kept as f64 * group.index_flops * width;
        cost.pace(Stream::Kv, share * bytes / group.kv_bytes_per_ns, share * flops / plan.attention_flops_per_ns);
        cost.flops += flops * plan.tensor;
        cost.kv_read_bytes += bytes * plan.tensor;
    }
    residual(group, batch, (plan.tensor, share), cost);
    beside(plan, group, batch, kept, share, cost);
    fetched(plan, group, batch, kept, share, cost);
}

/// What is held of the tokens that a group does not keep: copies, which are attended to, or digests, which are not.
fn beside(plan: &Plan, group: &PlanGroup, batch: &Batch<'_>, kept: u64, share: f64, cost: &mut StepCost) {
    if group.whole_lane.is_none() {
        return;
    }
    let others = not_kept(group, batch, kept) as f64;
    let is_attended = group.group.beside.is_some_and(|beside| beside.is_attended);
    let flops = if is_attended { others * group.pair_flops } else { 0.0 };
    let bytes = others * group.beside_bytes_per_accelerator;
    cost.pace(Stream::Kv, share * bytes / group.kv_bytes_per_ns, share * flops / plan.attention_flops_per_ns);
    cost.kv_read_bytes += bytes * plan.tensor;
    cost.flops += flops * plan.tensor;
}

/// Tokens of the batch's contexts that a group does not keep but holds something of.
fn not_kept(group: &PlanGroup, batch: &Batch<'_>, kept: u64) -> u64 {
    group.whole_lane.and_then(|lane| batch.kept_tokens.get(lane)).map_or(0, |whole| whole.saturating_sub(kept))
}

/// Pages from the lower tier. A layer knows which only once it has its queries, so that nothing hides the time.
fn fetched(plan: &Plan, group: &PlanGroup, batch: &Batch<'_>, kept: u64, share: f64, cost: &mut StepCost) {
    let Some(near) = group.near_lane.and_then(|lane| batch.kept_tokens.get(lane)) else { return };
    let bytes = kept.saturating_sub(*near) as f64 * group.lower_bytes_per_accelerator;
    cost.tier += share * bytes / plan.host_bytes_per_ns;
    cost.tier_bytes += bytes * plan.tensor;
}

/// The newest tokens of each decoding request in 16 bits.
fn residual(group: &PlanGroup, batch: &Batch<'_>, (tensor, share): (f64, f64), cost: &mut StepCost) {
    let bytes = batch.decode_requests as f64 * group.residual_bytes_per_accelerator;
    if bytes > 0.0 {
        cost.kv_read += share * bytes / group.kv_bytes_per_ns;
        cost.kv_read_bytes += bytes * tensor;
    }
}

/// Of the tokens that a group keeps, those that the step reads.
fn attended(group: &PlanGroup, batch: &Batch<'_>, kept: u64) -> u64 {
    group.read_lane.and_then(|lane| batch.kept_tokens.get(lane)).map_or(kept, |read| *read)
}

/// Attention that reads `tokens` tokens of KV and computes `flops` on accelerators that have `share` of them at a time.
fn attend(
    plan: &Plan,
    group: &PlanGroup,
    (tokens, flops): (f64, f64),
    (passes, share): (f64, f64),
    cost: &mut StepCost,
) {
    let bytes = tokens * group.token_bytes_per_accelerator;
    cost.pace(Stream::Kv, share * bytes / group.kv_bytes_per_ns, share * flops / plan.attention_flops_per_ns);
    cost.overhead += passes * group.layers * group.floor_ns;
    cost.kv_read_bytes += bytes * plan.tensor;
    cost.flops += flops * plan.tensor;
}

/// The linear layers and the output projection for decoded and prefilled tokens, of which some need logits.
fn linear(
    plan: &Plan,
    (decoded, prefilled): (f64, f64),
    (decode_rows, prefill_rows): (f64, f64),
    shares: &Shares,
    cost: &mut StepCost,
) {
    let here = decoded * shares.decode + prefilled * shares.prefill;
    let pooled = decoded * shares.decode_pool + prefilled * shares.prefill_pool;
    let (all, copies) = (decoded + prefilled, plan.tensor * plan.data * shares.parts);
    for part in &plan.linear {
        let mut closed = (0.0, 0.0);
        // Bytes and operations of one accelerator at a time, operations of all.
        let mut add = |is_covered: bool, bytes: f64, tokens: f64, (flops, ways): (f64, f64)| {
            cost.weight_read_bytes += part.layers * bytes * copies;
            cost.flops += part.layers * all * flops * ways;
            if !is_covered {
                closed = (closed.0 + part.layers * bytes, closed.1 + part.layers * tokens * flops);
            }
        };
        let (own, spread) = (plan.tensor, plan.tensor * plan.data);
        add(part.covered.attention, part.attention_bytes, here, (part.attention_flops, own));
        add(part.covered.dense, part.dense_bytes, here, (part.ffn_flops - part.routed_flops, own));
        add(part.covered.experts, part.expert_bytes * part.touched(pooled), pooled, (part.routed_flops, spread));
        if closed.0 > 0.0 {
            let (memory, arithmetic) = (closed.0 / plan.weight_bytes_per_ns, closed.1 / plan.linear_flops_per_ns);
            cost.pace(Stream::Weights, memory, arithmetic);
        }
        cost.overhead += part.layers * plan.layer_floor_ns;
    }
    measured::layers(plan, here, pooled, cost);
    let rows = decode_rows * shares.decode + prefill_rows * shares.prefill;
    if rows > 0.0 {
        cost.weight_read_bytes += plan.head_bytes * copies;
        cost.flops += plan.head_flops * (decode_rows + prefill_rows) * plan.tensor;
        if !measured::head(plan, rows, cost) {
            let (memory, arithmetic) =
                (plan.head_bytes / plan.weight_bytes_per_ns, plan.head_flops * rows / plan.linear_flops_per_ns);
            cost.pace(Stream::Weights, memory, arithmetic);
        }
    }
}

/// One matrix product: bytes of weights per accelerator against arithmetic per accelerator.
fn weigh(plan: &Plan, bytes: f64, flops: f64, cost: &mut StepCost) {
    cost.pace(Stream::Weights, bytes / plan.weight_bytes_per_ns, flops / plan.linear_flops_per_ns);
    cost.weight_read_bytes += bytes * plan.tensor;
    cost.flops += flops * plan.tensor;
}

/// Two all-reduces of the residual stream per layer (after attention and after the FFN), as a ring moves them. Where
/// attention is data-parallel, tokens go to their experts and back instead of the second.
fn collectives(plan: &Plan, tokens: f64, cost: &mut StepCost) {
    let Some(wire) = plan.exchange else {
        if plan.tensor > 1.0 {
            all_reduce(plan, 2.0 * plan.layers, tokens, cost);
        }
        return;
    };
    let routed: f64 = plan.linear.iter().filter(|part| part.experts > 0.0).map(|part| part.layers).sum();
    if plan.tensor > 1.0 {
        all_reduce(plan, 2.0 * plan.layers - routed, tokens, cost);
    }
    for part in plan.linear.iter().filter(|part| part.experts > 0.0) {
        exchange(plan, wire, part, tokens, cost);
    }
}

fn all_reduce(plan: &Plan, count: f64, tokens: f64, cost: &mut StepCost) {
    let bytes = count * tokens * plan.residual_bytes * 2.0 * (plan.tensor - 1.0) / plan.tensor;
    cost.all_reduce_bytes += bytes * plan.tensor * plan.data;
    if !measured::all_reduce(plan, count, tokens, cost) {
        cost.collective += count * plan.collective_latency_ns + bytes / plan.collective_bytes_per_ns;
    }
}

/// Tokens to their experts and back. Whole experts are on other accelerators: each sends its share of the tokens to at most as
/// many of those as a token has experts, in 8 bits, and what they made comes back in 16, as `DeepEP` does. Experts that are
/// split over all accelerators need every token everywhere: each gathers those of the other groups, and sums are scattered back,
/// both in 16 bits, as vLLM does by default (`allgather_reducescatter`).
fn exchange(plan: &Plan, wire: Wire, part: &Linear, tokens: f64, cost: &mut StepCost) {
    // Copies of a token's residual that an accelerator sends there, and that come back.
    let (there, back) = if plan.expert > 1.0 {
        let others = (plan.expert - 1.0) / plan.expert * part.active_experts.min(plan.expert) / plan.tensor;
        // Half of the residual's 16 bits there, all of them back.
        (0.5 * others, others)
    } else {
        (plan.data - 1.0, plan.data - 1.0)
    };
    let bytes = tokens * (there + back) * plan.residual_bytes;
    let all = part.layers * tokens * plan.residual_bytes * plan.tensor * plan.data;
    cost.dispatch_bytes += all * there;
    cost.combine_bytes += all * back;
    if !measured::exchange(plan, part.layers, tokens / plan.tensor, cost) {
        cost.collective += part.layers * (2.0 * wire.latency_ns + bytes / wire.bytes_per_ns);
    }
}

/// The residual stream between stages.
fn hops(plan: &Plan, tokens: f64, cost: &mut StepCost) {
    if let Some(wire) = plan.hop {
        let (count, bytes) = (plan.pipeline - 1.0, tokens * plan.residual_bytes / plan.tensor);
        cost.link += count * (wire.latency_ns + bytes / wire.bytes_per_ns);
        cost.pipeline_bytes += count * bytes * plan.tensor * plan.data * plan.pipeline;
    }
}

/// Prefill attention: the pairs set the arithmetic, the context is read once per chunk.
fn prefill_attention(plan: &Plan, batch: &Batch<'_>, share: f64, cost: &mut StepCost) {
    let figures = batch.prefill_pairs.iter().zip(batch.prefill_context);
    for (group, (&pairs, &context)) in plan.groups.iter().zip(figures) {
        // Where the model chooses, its index sees every pair and the attention no more than it may.
        let attended = pairs.min(batch.prefill_tokens as f64 * group.prefill_top);
        let flops = attended * group.prefill_pair_flops + pairs * group.index_flops;
        match &group.measured_prefill {
            Some(grid) if pairs > 0.0 => {
                measured::attend_prompts(plan, group, grid, batch, (pairs, context as f64, flops), share, cost);
            }
            _ => {
                attend(plan, group, (context as f64, flops), (1.0, share), cost);
                cost.compute += batch.prefill_tokens as f64 * share * group.layers * group.prefill_token_ns;
            }
        }
    }
}

/// Dequantization of what is read, quantization of what is written, scoring of what is selected.
fn policy_work(plan: &Plan, batch: &Batch<'_>, shares: &Shares, cost: &mut StepCost) {
    let (decoded, prefilled) = (batch.decode_requests as f64, batch.prefill_tokens as f64);
    let figures = batch.kept_tokens.iter().zip(batch.prefill_context);
    for (group, (&kept, &context)) in plan.groups.iter().zip(figures) {
        let read = attended(group, batch, kept) as f64;
        let others = not_kept(group, batch, kept) as f64 * group.beside_flops;
        let decode = read * group.read_flops + decoded * group.write_flops + others;
        let context = if batch.prefill_tokens > 0 { context as f64 } else { 0.0 };
        let prefill = context * group.read_flops + prefilled * group.write_flops;
        let scoring = batch.scored_tokens as f64 * group.score_flops;
        cost.policy += (decode * shares.decode + prefill * shares.prefill) / plan.vector_flops_per_ns
            + scoring * shares.prefill / plan.attention_flops_per_ns;
        cost.flops += (decode + prefill + scoring) * plan.tensor;
    }
}

/// KV of the new tokens, written at the bandwidth of streaming.
fn written(plan: &Plan, batch: &Batch<'_>, shares: &Shares, width: f64, cost: &mut StepCost) {
    // A state is written once a step by each request that goes on with it.
    let of = |group: &PlanGroup, tokens: f64, states: f64| {
        tokens * group.written_bytes_per_accelerator + states * group.state_bytes_per_accelerator
    };
    let sum = |tokens: f64, states: f64| plan.groups.iter().map(|group| of(group, tokens, states)).sum::<f64>();
    let decoded = sum(batch.decode_requests as f64 * width, batch.decode_requests as f64);
    let prefilled = sum(batch.prefill_tokens as f64, batch.prefill_rows as f64);
    cost.kv_read += (decoded * shares.decode + prefilled * shares.prefill) / plan.weight_bytes_per_ns;
    cost.kv_written_bytes += (decoded + prefilled) * plan.tensor;
}

/// Micro-batches that are tried; more only add launches and weight reads.
const MICRO_BATCHES: [f64; 4] = [1.0, 2.0, 3.0, 4.0];

/// Decoding with attention here and the FFN on another pool: per layer and micro-batch `a` (attention side), `f` (FFN,
/// weights read again for each micro-batch) and `c` (the hop, one way, full duplex), and layer time `max(m * max(a, f, c),
/// a + f + 2c)`. The engine takes the number of micro-batches that is fastest.
fn disaggregated_decode(plan: &Plan, pool: &Pool, batch: &Batch<'_>, cost: &mut StepCost) {
    let mut best: Option<(StepCost, f64)> = None;
    for (index, &micro) in MICRO_BATCHES.iter().enumerate() {
        if micro > batch.decode_requests as f64 {
            break;
        }
        let mut tried = StepCost { regime: index as u64, ..StepCost::default() };
        micro_batched(plan, pool, batch, micro, &mut tried);
        let total = tried.total();
        if best.is_none_or(|(_, shortest)| total < shortest) {
            best = Some((tried, total));
        }
    }
    if let Some((tried, _)) = best {
        *cost = StepCost { overhead: cost.overhead + tried.overhead, ..tried };
    }
    weigh(plan, plan.head_bytes, plan.head_flops * batch.decode_requests as f64, cost);
}

fn micro_batched(plan: &Plan, pool: &Pool, batch: &Batch<'_>, micro: f64, cost: &mut StepCost) {
    let tokens = batch.decode_requests as f64;
    let hop = pool.link_latency_ns + tokens / micro * pool.hop_bytes / pool.link_bytes_per_ns;
    for (index, part) in plan.linear.iter().enumerate() {
        let before = cost.total();
        attention_side(plan, batch, micro, index, cost);
        let attention = (cost.total() - before) / (part.layers * micro);
        ffn_side(pool, part, (tokens, micro), (attention, hop), cost);
        cost.flops += part.layers * tokens * part.ffn_flops * plan.tensor;
        cost.hop_bytes += part.layers * tokens * 2.0 * pool.hop_bytes * plan.tensor;
    }
}

/// Projections, attention and all-reduce of the layers of one model group, all micro-batches together.
fn attention_side(plan: &Plan, batch: &Batch<'_>, micro: f64, model_group: usize, cost: &mut StepCost) {
    let (part, tokens) = (&plan.linear[model_group], batch.decode_requests as f64);
    weigh(plan, micro * part.layers * part.attention_bytes, part.layers * tokens * part.attention_flops, cost);
    cost.overhead += micro * part.layers * plan.layer_floor_ns;
    for (group, &kept) in plan.groups.iter().zip(batch.kept_tokens) {
        if group.group.model_group == model_group {
            decode_attention(plan, group, batch, kept, (micro, 1.0, 1.0), cost);
        }
    }
    if plan.tensor > 1.0 {
        all_reduce(plan, micro * part.layers, tokens / micro, cost);
    }
}

/// What the FFN and the hops add to the attention side of one model group's layers: nothing where attention sets the pace.
fn ffn_side(
    pool: &Pool,
    part: &Linear,
    (tokens, micro): (f64, f64),
    (attention, hop): (f64, f64),
    cost: &mut StepCost,
) {
    let per_micro = tokens / micro;
    let bytes = (part.dense_params + part.expert_params * part.touched(per_micro)) * pool.weight_bytes;
    let memory = bytes / pool.memory_bytes_per_ns;
    let arithmetic = per_micro * part.ffn_flops_unsharded / pool.flops_per_ns;
    let ffn = pool.floor_ns + cost.race(memory, arithmetic);
    let chained = attention + ffn + 2.0 * hop;
    let slowest = cost.race(attention.max(hop), ffn);
    cost.race(attention, hop);
    let layer = cost.race(micro * slowest, chained);
    let rest = part.layers * (layer - micro * attention).max(0.0);
    // The exposed rest belongs to what paces it; in a chain the FFN and its two hops share it by their times.
    let linked = if layer > micro * slowest {
        2.0 * hop / (ffn + 2.0 * hop)
    } else if hop >= ffn {
        1.0
    } else {
        0.0
    };
    cost.link += rest * linked;
    if arithmetic > memory {
        cost.compute += rest * (1.0 - linked);
    } else {
        cost.weight_read += rest * (1.0 - linked);
    }
    cost.pool_read_bytes += micro * part.layers * bytes;
}

/// A pool of FFN accelerators as planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// Achieved bandwidth of all chips together, bytes per nanosecond.
    pub memory_bytes_per_ns: f64,
    /// Achieved arithmetic of all chips together, flops per nanosecond.
    pub flops_per_ns: f64,
    /// Bytes per weight.
    pub weight_bytes: f64,
    /// Link of one attention accelerator, one way, bytes per nanosecond.
    pub link_bytes_per_ns: f64,
    /// Latency of the hop, one way.
    pub link_latency_ns: f64,
    /// Fixed time of one layer's FFN.
    pub floor_ns: f64,
    /// Bytes of one token's residual that one attention accelerator sends, one way.
    pub hop_bytes: f64,
    /// The chips as described.
    pub chips: FfnPool,
}

#[cfg(test)]
mod tests;
