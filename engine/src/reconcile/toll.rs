//! What a decode step takes by the cost engine, in the booths of a capture.
//!
//! The cost engine's booths name what sets the pace (KV, weights, arithmetic); a capture's name what a kernel does.
//! Both are sums of the same operations: the attention part is what a step costs beyond a step that attends to nothing,
//! with the floors of its kernels and the KV that is written; what is left of weights and arithmetic are the linear
//! layers, of which the experts' part is told apart by what paces it, bytes or arithmetic; the fixed time of a layer's
//! other kernels is `other`, and the fixed time of a step belongs to the host, who is no kernel.

use super::kernels::{Kernel, Kernels};
use super::rules::Booth;
use crate::cost::{Batch, Plan, StepCost, price};
use crate::error::{Error, Result};

/// Time and bytes of one decode step of one instance; time as its accelerators pass it together, bytes over all of
/// them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Toll {
    /// Time per booth, ns, in the order of [`Booth::ALL`].
    pub ns: [f64; Booth::ALL.len()],
    /// DRAM bytes per booth, both ways; `None` where the cost engine has no figure.
    pub bytes: [Option<f64>; Booth::ALL.len()],
    /// Time of the host that the accelerators wait for, ns.
    pub host_ns: f64,
    /// Duration of the step, ns.
    pub total_ns: f64,
}

/// Prices a decode step of `batch` requests with a context of `context` tokens each.
///
/// # Errors
/// No request, a batch that has more tokens than can be counted, and machines that decode on two pools of accelerators.
pub fn decode_step(plan: &Plan, batch: u64, context: u32) -> Result<Toll> {
    if plan.ffn_pool.is_some() {
        return Err(Error::usage("a capture is of one kind of accelerator, found a machine with a separate FFN pool"));
    }
    if batch == 0 || batch.checked_mul(u64::from(context)).is_none_or(|tokens| tokens > 1 << 53) {
        return Err(Error::usage(format!(
            "expected a batch of 1 to 2^53 tokens in all, found {batch} times {context}"
        )));
    }
    let groups = plan.groups.len();
    let kept: Vec<u64> =
        plan.groups.iter().map(|group| batch * u64::from(group.group.keep.tokens(context, context))).collect();
    let step = |kept: &[u64]| {
        price(
            plan,
            &Batch {
                decode_requests: batch,
                kept_tokens: kept,
                longest_tokens: 0,
                prefill_tokens: 0,
                prefill_requests: 0,
                prefill_rows: 0,
                prefill_pairs: &vec![0.0; groups],
                prefill_context: &vec![0; groups],
                scored_tokens: 0,
            },
        )
    };
    Ok(split(plan, batch as f64, &step(&kept), &step(&vec![0; groups])))
}

/// Splits a step's cost into the booths of a capture; `bare` is the same step attending to nothing.
fn split(plan: &Plan, tokens: f64, whole: &StepCost, bare: &StepCost) -> Toll {
    let attention_floors: f64 = plan.groups.iter().map(|group| group.layers * group.floor_ns).sum();
    let layer_floors: f64 = plan.linear.iter().map(|part| part.layers * plan.layer_floor_ns).sum();
    let weights = bare.weight_read + bare.compute;
    let (expert_ns, expert_bytes) = experts(plan, tokens);
    let mut toll = Toll {
        ns: [0.0; Booth::ALL.len()],
        bytes: [None; Booth::ALL.len()],
        host_ns: plan.step_overhead_ns,
        total_ns: whole.total(),
    };
    // A step that attends to nothing still writes its tokens' KV, which kernels of attention do.
    toll.ns[Booth::Attention.index()] = whole.total() - bare.total() + attention_floors + bare.kv_read + bare.policy;
    toll.ns[Booth::Linear.index()] = (weights - expert_ns).max(0.0);
    toll.ns[Booth::Moe.index()] = expert_ns.min(weights);
    toll.ns[Booth::Collective.index()] = whole.collective;
    toll.ns[Booth::Other.index()] = layer_floors;
    toll.bytes[Booth::Attention.index()] = Some(whole.kv_read_bytes + whole.kv_written_bytes);
    toll.bytes[Booth::Linear.index()] = Some((whole.weight_read_bytes - expert_bytes).max(0.0));
    toll.bytes[Booth::Moe.index()] = Some(expert_bytes);
    toll
}

/// Time and bytes of the routed experts. The products of a layer are paced together, so that each part has its share of
/// what paces them.
fn experts(plan: &Plan, tokens: f64) -> (f64, f64) {
    let (mut time, mut moved) = (0.0, 0.0);
    for part in plan.linear.iter().filter(|part| part.experts > 0.0) {
        let expert_bytes = part.layers * part.expert_bytes * part.touched(tokens);
        let bytes = expert_bytes + part.layers * (part.attention_bytes + part.dense_bytes);
        let expert_flops = part.layers * tokens * 2.0 * part.active_experts * part.expert_params / plan.tensor;
        let flops = part.layers * tokens * (part.attention_flops + part.ffn_flops);
        let (memory, arithmetic) = (bytes / plan.weight_bytes_per_ns, flops / plan.linear_flops_per_ns);
        time += if arithmetic > memory { arithmetic * expert_flops / flops } else { memory * expert_bytes / bytes };
        moved += expert_bytes * plan.tensor;
    }
    (time, moved)
}

/// Time in which devices had nothing to do: from the first start to the last end on each device, less the time in which
/// something ran. `None` where no row has a device, a start and a duration.
pub fn idle_ns(kernels: &Kernels) -> Option<i128> {
    let span = |kernel: &Kernel| {
        let start = kernel.start?;
        let end = start.checked_add(kernel.duration?)?;
        Some(((kernel.source, kernel.device?), start, end))
    };
    let mut spans: Vec<_> = kernels.rows.iter().filter_map(span).collect();
    spans.sort_unstable();
    let mut idle = None;
    for device in spans.chunk_by(|a, b| a.0 == b.0) {
        let mut reached = device[0].1;
        for &(_, start, end) in device {
            if start > reached {
                *idle.get_or_insert(0) += i128::from(start) - i128::from(reached);
            }
            reached = reached.max(end);
        }
        idle.get_or_insert(0);
    }
    idle
}
