//! The scheduling rules of serving engines, by name and version.

/// What a waiting request needs before it is admitted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Admit {
    /// Room for the first chunk of its prompt.
    FirstChunk,
    /// Room for its whole prompt; blocks are taken chunk by chunk nevertheless.
    Prompt,
    /// Room for its prompt and all that it and those that run will generate, so that nothing is ever preempted.
    Whole,
    /// Room for its prompt, all that it will generate, and this share of what those that run will still generate.
    Estimate(f64),
}

/// Which requests a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compose {
    /// Each decoding request one token, then prompts with what is left of the budget.
    Mixed,
    /// Prompts alone while there are any that may run; else each decoding request one token.
    PrefillFirst,
}

/// Who gives way when decoding requests need more memory than there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The one that was admitted last.
    Newest,
    /// The decoding one that has generated least; of equals the one with the longest prompt, then the newest.
    LeastGenerated,
}

/// What becomes of the KV of a request that gave way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preempted {
    /// It is dropped and computed again, as far as the prefix cache has lost it.
    Recompute,
    /// It goes to host memory and comes back, both exposed in a step.
    Swap,
}

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
    /// Whether blocks that were filled while decoding stay cached, for the next turn of a session and for a request that
    /// was preempted.
    pub keeps_decoded: bool,
    /// Whether a prompt may be split over steps.
    pub chunked: bool,
    /// Whether a step is put together while the one before it runs: what arrives or ends meanwhile counts a step later.
    pub lookahead: bool,
    /// Steps from one look for arrivals to the next while requests only decode: 1 but for SGLang's
    /// `--scheduler-recv-interval`, and where TensorRT-LLM waits for prompts to compute together
    /// (`batch_wait_timeout_iters`, `attention_dp_config.timeout_iters`). After a prompt and while idle it looks at once.
    pub look_steps: u32,
    /// Blocks of a pinned count that hold no KV.
    pub spare_blocks: u32,
    /// What a waiting request needs.
    pub admit: Admit,
    /// Which requests a step computes.
    pub compose: Compose,
    /// Who gives way.
    pub victim: Victim,
    /// What becomes of its KV.
    pub preempted: Preempted,
    /// Time of the host per step that nothing hides, beside the machine's own, nanoseconds.
    pub step_ns: f64,
    /// The same per request in the step, nanoseconds.
    pub request_ns: f64,
    /// Time before the engine sees a request and after it gives a token, added to every request's times, nanoseconds. That of
    /// SGLang and TensorRT-LLM is calibrated: what the time to the first token has beyond the replay in 342 and 207 runs of
    /// InferenceX on H200 and B200 (`kvtoll validate serving --fit`), of which single models come to 140 to 225 and to 125 to
    /// 140 ms; the client's part is in it. Under vLLM measured runs leave nothing to add.
    pub front_ns: f64,
}

const VLLM: Rules = Rules {
    name: "vllm-0.19",
    doc: "vLLM V1: running requests first in order, then waiting; chunked prefill in a token budget; a prompt must fit whole, blocks are taken chunk by chunk; steps are scheduled one ahead; preempts the last running, recomputes",
    step_tokens: 8192,
    running_requests: 256,
    prefix_cache: true,
    keeps_decoded: true,
    chunked: true,
    lookahead: true,
    look_steps: 1,
    spare_blocks: 1,
    admit: Admit::Prompt,
    compose: Compose::Mixed,
    victim: Victim::Newest,
    preempted: Preempted::Recompute,
    step_ns: 0.0,
    request_ns: 0.0,
    front_ns: 0.0,
};

/// Every engine. Sources: vLLM `v1/core/sched/scheduler.py` (0.19: `async_scheduling`, `scheduler_reserve_full_isl`, a null
/// block), SGLang `managers/schedule_policy.py` and `retract_decode`, TensorRT-LLM `GUARANTEED_NO_EVICT` and
/// `MAX_UTILIZATION`. Blocks are of 16 tokens in all of them here; SGLang pages by 1 and TensorRT-LLM by 32.
pub static RULES: &[Rules] = &[
    VLLM,
    Rules {
        name: "vllm-0.19-no-prefix-cache",
        doc: "as vllm-0.19 with `--no-enable-prefix-caching`",
        prefix_cache: false,
        keeps_decoded: false,
        ..VLLM
    },
    Rules {
        name: "vllm-0.19-sync",
        doc: "as vllm-0.19 with `--no-async-scheduling`: a step sees all that came before it",
        lookahead: false,
        ..VLLM
    },
    Rules {
        name: "vllm-0.10",
        doc: "as vllm-0.19-sync, and a request is admitted when its first chunk fits",
        lookahead: false,
        admit: Admit::FirstChunk,
        ..VLLM
    },
    Rules {
        name: "vllm-swap",
        doc: "as vllm-0.19, but what is preempted goes to host memory and comes back, as vLLM V0 with `--preemption-mode swap`",
        preempted: Preempted::Swap,
        ..VLLM
    },
    Rules {
        name: "sglang-0.5",
        doc: "SGLang: prompts first, in chunks and without decoding; admits by an estimate of what will be generated (a tenth); retracts the request that generated least",
        step_tokens: 8192,
        running_requests: 1024,
        spare_blocks: 0,
        admit: Admit::Estimate(0.1),
        compose: Compose::PrefillFirst,
        victim: Victim::LeastGenerated,
        front_ns: 180e6,
        ..VLLM
    },
    Rules {
        name: "trtllm-1.0",
        doc: "TensorRT-LLM, GUARANTEED_NO_EVICT: admits only what fits to its last token, so that nothing is preempted; prompts are not split",
        running_requests: 2048,
        chunked: false,
        spare_blocks: 0,
        admit: Admit::Whole,
        front_ns: 135e6,
        ..VLLM
    },
    Rules {
        name: "trtllm-1.0-max-utilization",
        doc: "TensorRT-LLM, MAX_UTILIZATION with chunked context: admits while prompts fit, pauses the last running",
        running_requests: 2048,
        spare_blocks: 0,
        front_ns: 135e6,
        ..VLLM
    },
];
