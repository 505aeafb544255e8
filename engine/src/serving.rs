//! The serving replay: turns arrivals into batches, and batches into what each user felt.
//!
//! The rules are those of a real engine, by name and version. Requests go to instances round-robin; each instance runs on
//! its own. Nothing is simulated token by token: while a batch stays the same, step times are an arithmetic progression,
//! so the replay jumps from event to event (an arrival, a finish, a layer group that stops growing, memory that runs out)
//! and still knows every token's latency exactly.

mod captured;
mod instance;
mod lockstep;
mod memory;
pub mod quantile;

pub use captured::{CapturedStep, captured};

use crate::cost::{Plan, StepCost};
use crate::workload::Workload;

/// The scheduling rules of a serving engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Name and version.
    pub name: &'static str,
    /// One sentence.
    pub doc: &'static str,
    /// Tokens computed per engine step at most.
    pub step_tokens: u32,
    /// Requests running at a time at most.
    pub running_requests: u32,
    /// Whether full prompt blocks are shared by their hash.
    pub prefix_cache: bool,
}

/// Every engine.
pub static RULES: &[Rules] = &[
    Rules {
        name: "vllm-0.19",
        doc: "vLLM V1: running requests first in order, then waiting; chunked prefill in a token budget; preempts the last running, recomputes",
        step_tokens: 8192,
        running_requests: 256,
        prefix_cache: true,
    },
    Rules {
        name: "vllm-0.19-no-prefix-cache",
        doc: "as vllm-0.19 with `--no-enable-prefix-caching`",
        step_tokens: 8192,
        running_requests: 256,
        prefix_cache: false,
    },
];

/// A stretch of engine steps with one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// The copy of the model.
    pub instance: u32,
    /// Beginning of its first step.
    pub start_ns: i64,
    /// Steps.
    pub steps: u64,
    /// Requests that decoded in each step.
    pub decode_requests: u64,
    /// Requests that prefilled.
    pub prefill_requests: u32,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Context of the decoding requests in the first step.
    pub context_tokens: u64,
    /// Duration of the first step.
    pub first_ns: f64,
    /// Duration of the last step.
    pub last_ns: f64,
    /// Duration of all steps.
    pub total_ns: i64,
    /// Booths and bytes of all steps together.
    pub cost: StepCost,
    /// KV held by running requests at the end, before those that finished leave.
    pub held_bytes: u64,
    /// KV held or cached at the end.
    pub resident_bytes: u64,
    /// KV held once those that finished have left.
    pub left_bytes: u64,
    /// Requests waiting for admission.
    pub waiting_requests: u32,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Not yet known; never in an outcome.
    Pending,
    /// Served to the end.
    Finished,
    /// It can never fit in the KV memory.
    TooLarge,
    /// It has no prompt.
    NoPrompt,
    /// The capture has no step of it.
    NotCaptured,
}

/// What a request felt. Times in nanoseconds after its arrival; `None` where there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// The copy of the model.
    pub instance: u32,
    /// What became of it.
    pub fate: Fate,
    /// Until first admission.
    pub queue_ns: Option<i64>,
    /// Until the first token.
    pub ttft_ns: Option<i64>,
    /// Until the last token.
    pub e2e_ns: Option<i64>,
    /// Largest gap between two of its tokens.
    pub max_itl_ns: Option<i64>,
    /// Prompt tokens found in the prefix cache at first admission.
    pub hit_tokens: u32,
    /// Tokens computed in prefills.
    pub computed_tokens: u32,
    /// Of these, again after a preemption.
    pub recomputed_tokens: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// Share of the instance's step time: each step is shared by the tokens it computed.
    pub machine_ns: f64,
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// All stretches, instance by instance, each in order of time.
    pub stretches: Vec<Stretch>,
    /// One entry per request of the workload.
    pub served: Vec<Served>,
    /// Gaps between tokens that no single step explains: across a preemption.
    pub long_gaps: Vec<i64>,
    /// All gaps between tokens, where a request does not decode in every step (captured steps); else `None`, and the gaps
    /// are the step times of the decoding requests and `long_gaps`.
    pub all_gaps: Option<Vec<i64>>,
    /// Whether the clock ran beyond [`crate::workload::LONGEST_NS`]; the rest was then not served.
    pub overran: bool,
}

/// Serves a workload in open mode: requests come when the trace says, whether or not the machine keeps up.
pub fn serve(plan: &Plan, workload: &Workload, instances: u32, rules: &Rules) -> Outcome {
    let pending = Served {
        instance: 0,
        fate: Fate::Pending,
        queue_ns: None,
        ttft_ns: None,
        e2e_ns: None,
        max_itl_ns: None,
        hit_tokens: 0,
        computed_tokens: 0,
        recomputed_tokens: 0,
        preemptions: 0,
        machine_ns: 0.0,
    };
    let mut outcome = Outcome { served: vec![pending; workload.len()], ..Outcome::default() };
    for instance in 0..instances {
        let mine: Vec<u32> = (instance..workload.len() as u32).step_by(instances as usize).collect();
        for &request in &mine {
            outcome.served[request as usize].instance = instance;
        }
        instance::run(plan, workload, rules, instance, &mine, &mut outcome);
    }
    outcome
}

#[cfg(test)]
mod tests;
