//! The FFN booth of a decode step by itself: alone, and while KV is read from the same memory.
//!
//! Where attention of one half of the batch runs while the FFN of the other half does, both stream from one memory. A fair
//! memory gives each half of its bandwidth while both stream, so that the FFN's weights take longer by the shorter of the
//! two streams. FFN accelerators with a memory of their own do not notice.

use super::Plan;

/// Time of the FFN of all layers in one step, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FfnStep {
    /// With the memory to itself.
    pub alone_ns: f64,
    /// While the step's KV is read at the same time.
    pub shared_ns: f64,
}

/// The FFN of a step of `tokens` tokens, beside KV reads that take `kv_ns` on their own.
pub fn ffn_step(plan: &Plan, tokens: f64, kv_ns: f64) -> FfnStep {
    let mut step = FfnStep { alone_ns: 0.0, shared_ns: 0.0 };
    for part in &plan.linear {
        let touched = part.touched(tokens);
        if let Some(pool) = &plan.ffn_pool {
            let bytes = (part.dense_params + part.expert_params * touched) * pool.weight_bytes;
            let arithmetic = tokens * part.ffn_flops_unsharded / pool.flops_per_ns;
            let time = part.layers * (pool.floor_ns + (bytes / pool.memory_bytes_per_ns).max(arithmetic));
            step.alone_ns += time;
            step.shared_ns += time;
            continue;
        }
        let bytes = part.dense_bytes + part.expert_bytes * touched;
        let weights = part.layers * bytes / plan.weight_bytes_per_ns;
        let arithmetic = part.layers * tokens * part.ffn_flops / plan.linear_flops_per_ns;
        let beside = kv_ns * part.layers / plan.layers.max(1.0);
        step.alone_ns += weights.max(arithmetic);
        step.shared_ns += (weights + weights.min(beside)).max(arithmetic);
    }
    step
}
