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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::tests::{a_model, machine_at, planned};

    fn on(preset: &str) -> Plan {
        let machine = (0..100).map(machine_at).find(|machine| machine.preset == preset).unwrap();
        planned(&a_model(1), "full", &machine, 8)
    }

    /// Steps whose KV reads have the same mean: the FFN's tail follows their spread where both share a memory, and only there.
    #[test]
    fn uneven_kv_reads_slow_the_ffn_where_it_shares_their_memory() {
        let tail = |plan: &Plan, reads: [f64; 4]| {
            let steps = reads.map(|kv_ns| ffn_step(plan, 32.0, kv_ns));
            assert!(steps.iter().all(|step| step.alone_ns.to_bits() == steps[0].alone_ns.to_bits()));
            steps.iter().map(|step| step.shared_ns).fold(0.0, f64::max)
        };
        let (shared, apart) = (on("vera-rubin"), on("vera-rubin-lpx"));
        let mean = ffn_step(&shared, 32.0, 0.0).alone_ns / 2.0;
        let (even, uneven) = ([mean; 4], [0.5 * mean, 0.5 * mean, 0.5 * mean, 2.5 * mean]);
        assert!(tail(&shared, uneven) > 1.2 * tail(&shared, even));
        assert_eq!(tail(&apart, uneven).to_bits(), tail(&apart, even).to_bits());
    }
}
