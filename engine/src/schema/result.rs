//! What a replay finds.

use super::Type::{Bool, F64, I64, Text, U16, U32, U64};
use super::{Scope, Table, known, maybe};

/// Replayed combinations.
pub static SCENARIOS: Table = Table {
    name: "scenarios",
    doc: "a replayed combination of workload, model, policy and machine; one that failed keeps its error",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "Number of the scenario within the run, from 0."),
        known("run_id", Text, "", "The run: a hash of its inputs and scenarios."),
        known("name", Text, "", "What the user calls it."),
        known("is_baseline", Bool, "", "Whether the others are compared with it."),
        known("workload", Text, "", "The requests that were replayed."),
        known("model", Text, "", "The model."),
        known("policy", Text, "", "The policy stack."),
        known("machine", Text, "", "The machine with its variations."),
        known("mode", Text, "", "captured or open."),
        known("engine", Text, "", "The serving engine's rules by name and version."),
        known("rate_ratio", F64, "ratio", "Arrival rate as a multiple of the trace's own."),
        known("accelerators", U32, "", "Accelerators in all."),
        known("tensor_parallel", U32, "", "Accelerators that share one copy of the model."),
        known("instances", U32, "", "Copies of the model."),
        known("weight_dtype", Text, "", "Number format of the weights."),
        known("prices", Text, "", "The price book."),
        maybe("tariff", Text, "", "The book of token prices; null where nothing is sold."),
        known("status", Text, "", "ok or failed."),
        maybe("error", Text, "", "Why it failed."),
        maybe("offered_load_ratio", F64, "ratio", "Busy time that the requests ask for, divided by the trace's span."),
        known(
            "certainty",
            Text,
            "",
            "The least certain input of the scenario: measured, calibrated, published or assumed.",
        ),
        maybe(
            "may_lose",
            Text,
            "",
            "What its policy takes away, which may change answers: context (a stage of the application takes texts out), \
             tokens (a selection drops some), layers (they are merged), precision (a number format below 16 bits); joined by \
             commas, nothing for a policy that takes nothing away; null in runs of earlier releases.",
        ),
        maybe(
            "context_limit_tokens",
            U32,
            "tokens",
            "The longest context that the model is published for; null where its file does not say.",
        ),
        maybe("longest_request_tokens", U64, "tokens", "Prompt and output of the longest request together, as served."),
        maybe(
            "beyond_context_requests",
            U64,
            "requests",
            "Requests whose prompt and output together are longer than that; they are served all the same.",
        ),
        // What follows is null in runs of earlier releases.
        maybe("data_parallel", U32, "", "Groups of accelerators in a copy that attend to requests of their own."),
        maybe("expert_parallel", U32, "", "Parts that the routed experts are dealt out to in a copy."),
        maybe("pipeline_parallel", U32, "", "Stages that the layers are dealt out to in a copy."),
        maybe("prefill_machine", Text, "", "The machine of the copies that only compute prompts; null without them."),
        maybe("prefill_instances", U32, "", "How many there are; they are among the instances."),
        maybe("prefill_link", Text, "", "The link that they send KV over."),
        maybe("placement", Text, "", "Memories below the accelerators' own; null without them."),
        maybe("drafted_tokens", U32, "tokens", "Tokens drafted for each request and step; null without drafting."),
        maybe(
            "accept_ratio",
            F64,
            "ratio",
            "Chance that a drafted token is accepted, given that those before it were.",
        ),
        maybe("routing", Text, "", "Which instance gets a request."),
        maybe(
            "concurrency",
            U32,
            "requests",
            "Requests at a time, where each that ends lets the next one in; else null.",
        ),
        maybe("step_tokens", U32, "tokens", "Tokens that an engine step computes at most."),
        maybe("running_requests", U32, "requests", "Requests that an instance runs at a time at most."),
        maybe("look_steps", U32, "", "Steps from one look for arrivals to the next while requests only decode."),
        maybe("prefix_cache", Bool, "", "Whether full prompt blocks are shared by their hash."),
        maybe(
            "kv_blocks",
            U32,
            "blocks",
            "KV blocks of 16 tokens per instance, if pinned; else what the memory leaves.",
        ),
        maybe(
            "demand_id",
            U32,
            "",
            "Its rows of `demand`, shared by scenarios of the same requests, model and policy.",
        ),
        maybe("bound_by", Text, "", "The booth with the most step time; null without steps."),
        maybe("bound_ratio", F64, "ratio", "Its share of the step time."),
    ],
};

/// Bytes that a policy asks for.
pub static DEMAND: Table = Table {
    name: "demand",
    doc: "what a request asks of KV memory under a policy in one phase and layer group, on no machine in particular",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("model", Text, "", "The model."),
        known("policy", Text, "", "The policy stack."),
        known("request_id", U64, "", "The request."),
        known("phase", Text, "", "prefill or decode."),
        known("first_step", U32, "", "First step of the range; 0 is the prefill."),
        known("last_step", U32, "", "Last step of the range."),
        known("layer_group", U16, "", "The group of alike layers, see `models`."),
        known("layers", U32, "", "Layers in the group."),
        known("kept_tokens", U32, "tokens", "Tokens kept per layer at the end of the range."),
        known("peak_bytes", U64, "bytes", "Largest number of bytes stored in the range, all layers of the group."),
        known("stored_bytes", U64, "bytes", "Bytes stored at the end of the range."),
        known("read_bytes", U64, "bytes", "Bytes read in the range."),
        known("written_bytes", U64, "bytes", "Bytes written in the range."),
        known(
            "lower_stored_bytes",
            U64,
            "bytes",
            "Bytes that a lower tier stores at the end of the range, of what is dropped.",
        ),
        known("lower_read_bytes", U64, "bytes", "Bytes fetched from it in the range, as if nothing fetched were kept."),
        known("lower_written_bytes", U64, "bytes", "Bytes moved down to it in the range."),
        known("extra_flops", F64, "flops", "Arithmetic that only the policy asks for."),
        maybe("demand_id", U32, "", "Number of workload, model and policy together; null in runs of earlier releases."),
    ],
};

/// What a policy loses.
pub static ATTENTION_ERROR: Table = Table {
    name: "attention_error",
    doc: "what a policy loses on recorded attention in one range of decode steps, layer and KV head",
    scope: Scope::Run,
    columns: &[
        known("policy", Text, "", "The policy stack."),
        known("recording", Text, "", "The recorded model and grade."),
        known("source_id", U32, "", "The source of the recording."),
        known("request_id", U64, "", "The recorded request."),
        known("first_step", U32, "", "First decode step of the range."),
        known("last_step", U32, "", "Last decode step of the range."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known("unit_tokens", U16, "tokens", "What is kept or dropped as one: 1 token or a block of so many."),
        known(
            "mass_from",
            Text,
            "",
            "Where the masses of these units come from: recorded, or column_sum where the recorded mass of blocks was split \
             over their tokens by it.",
        ),
        known(
            "kept_ratio",
            F64,
            "ratio",
            "Share of the context that a step reads (for a selection that stores all, such as quest, not what it stores), \
             mean over the range.",
        ),
        known("lost_mass_ratio", F64, "ratio", "Softmax mass on what was dropped, mean over the range."),
        known("max_lost_mass_ratio", F64, "ratio", "Largest such mass of one step in the range."),
        maybe(
            "oracle_lost_mass_ratio",
            F64,
            "ratio",
            "What the best choice of the same size would have lost in each step.",
        ),
        maybe("regret_ratio", F64, "ratio", "Lost mass beyond the oracle's."),
        maybe(
            "logit_noise",
            F64,
            "",
            "Standard deviation of the logits by quantized K (POLICIES 0.3); null without norms.",
        ),
        maybe(
            "quantization_error_ratio",
            F64,
            "ratio",
            "Expected error of the output over its norm, by quantization; null without norms.",
        ),
        maybe(
            "output_error",
            F64,
            "",
            "By how much the layer's output turns: 1 - cos of the exact output of all its heads and what the policy leaves, \
             mean over the range, the same for all its KV heads; null without vectors and norms.",
        ),
        maybe(
            "output_error_from",
            Text,
            "",
            "vectors (exact, with queries, K and V) or norms (estimated from masses and norms).",
        ),
        known(
            "recovered_mass_ratio",
            F64,
            "ratio",
            "Softmax mass on what the selection alone would have dropped and recovery stages bring back: tokens retained, \
             copied or recalled; mean over the range.",
        ),
        maybe(
            "recalled_tokens",
            F64,
            "tokens",
            "Tokens fetched from a lower tier per step, mean; null without recall.",
        ),
        maybe(
            "recall_reuse_ratio",
            F64,
            "ratio",
            "Share of them that the step before had fetched as well, so that a buffer of the same size need not fetch them.",
        ),
        known("recoverable_ratio", F64, "ratio", "Share of the lost mass whose data still exists somewhere."),
        known("limiter", Text, "", "What the error comes from most: selection, key_format, value_format or none."),
        maybe(
            "premise",
            Text,
            "",
            "Whether what the policy rests on holds on this recording; null where it rests on nothing that was measured.",
        ),
    ],
};

/// Pages that kept tokens touch.
pub static KEPT_PAGES: Table = Table {
    name: "kept_pages",
    doc: "pages of KV that a policy's kept tokens touch on recorded attention, in one layer and KV head, mean over the \
          recorded decode steps",
    scope: Scope::Run,
    columns: &[
        known("policy", Text, "", "The policy stack."),
        known("recording", Text, "", "The recorded model and grade."),
        known("source_id", U32, "", "The source of the recording."),
        known("request_id", U64, "", "The recorded request."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known("unit_tokens", U16, "tokens", "What is kept or dropped as one: 1 token or a block of so many."),
        known("page_tokens", U16, "tokens", "Tokens of a page: 16, or a unit where that is larger."),
        known("steps", U32, "", "Recorded decode steps."),
        known("kept_tokens", F64, "tokens", "Tokens that a step reads, without copies in another number format."),
        known("context_pages", F64, "pages", "Pages of the whole context."),
        known("touched_pages", F64, "pages", "Pages that hold a kept token of this head."),
        known(
            "layer_touched_pages",
            F64,
            "pages",
            "Pages that hold a kept token of any head of the layer: what a paged layout for all heads cannot free.",
        ),
    ],
};

/// What requests with a common beginning keep of it.
pub static KEPT_OVERLAP: Table = Table {
    name: "kept_overlap",
    doc: "how much two recorded requests with a common prefix keep in common of it under a policy, in one layer and KV head, \
          at the first recorded decode step",
    scope: Scope::Run,
    columns: &[
        known("policy", Text, "", "The policy stack."),
        known("recording", Text, "", "The recorded model and grade."),
        known("source_id", U32, "", "The source of the recording."),
        known("request_id", U64, "", "A recorded request."),
        known("other_request_id", U64, "", "Another one with the same beginning."),
        known("layer", U16, "", "The layer, from 0."),
        known("kv_head", U16, "", "The KV head, from 0."),
        known("unit_tokens", U16, "tokens", "What is kept or dropped as one: 1 token or a block of so many."),
        known("prefix_tokens", U32, "tokens", "Tokens in common at the beginning, in whole units."),
        known("kept_tokens", U32, "tokens", "Tokens of the prefix that the request keeps."),
        known("other_kept_tokens", U32, "tokens", "Tokens of it that the other request keeps."),
        known("common_tokens", U32, "tokens", "Tokens of it that both keep."),
        maybe(
            "jaccard_ratio",
            F64,
            "ratio",
            "Tokens that both keep over those that one of them keeps; null if none does.",
        ),
        known(
            "touched_pages",
            U32,
            "pages",
            "Pages of 16 tokens of the prefix that hold a token that one of them keeps.",
        ),
        known(
            "same_pages",
            U32,
            "pages",
            "Of these, pages of which both keep the same tokens: what could still be shared.",
        ),
        known(
            "stays_shareable",
            Bool,
            "",
            "Whether blocks of the prefix stay shareable as they are: nothing is dropped for good.",
        ),
    ],
};

/// Priced stretches of engine steps.
pub static STEP_COSTS: Table = Table {
    name: "step_costs",
    doc: "a stretch of engine steps with one batch; step durations within it are an arithmetic progression",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("instance", U32, "", "The copy of the model."),
        known("stretch", U64, "", "Number of the stretch within its instance."),
        known("start_ns", I64, "ns", "When its first step began."),
        known("steps", U32, "", "Steps in the stretch."),
        known("decode_requests", U32, "requests", "Requests that decoded one token in each step."),
        known("prefill_requests", U32, "requests", "Requests that prefilled."),
        known("prefill_tokens", U32, "tokens", "Prompt tokens computed, all steps."),
        known("context_tokens", U64, "tokens", "Context of all decoding requests in the first step."),
        known("first_ns", I64, "ns", "Duration of the first step."),
        known("last_ns", I64, "ns", "Duration of the last step."),
        known("total_ns", I64, "ns", "Duration of the stretch."),
        known("kv_read_ns", I64, "ns", "Exposed time of reading KV."),
        known("weight_read_ns", I64, "ns", "Exposed time of reading weights."),
        known("compute_ns", I64, "ns", "Time in which arithmetic sets the pace."),
        known("collective_ns", I64, "ns", "Time of collectives between accelerators."),
        known("policy_ns", I64, "ns", "Time of the policy's own work: scoring, packing, dequantization."),
        known("tier_ns", I64, "ns", "Exposed time of fetching KV from farther tiers."),
        known("link_ns", I64, "ns", "Exposed time of the hop between attention and FFN accelerators."),
        known("overhead_ns", I64, "ns", "Kernel floors and host overhead."),
        known("busy_ns", I64, "ns", "Time the arithmetic alone would take at its achievable rate."),
        known("waiting_ns", I64, "ns", "Time in which arithmetic waits for data: reads, collectives, tiers and links."),
        known("kv_read_bytes", U64, "bytes", "KV read on all accelerators of the instance."),
        known("weight_read_bytes", U64, "bytes", "Weights read from main memory on all accelerators of the instance."),
        known("kv_written_bytes", U64, "bytes", "KV written."),
        known(
            "link_bytes",
            U64,
            "bytes",
            "Bytes on the links between accelerators, to the FFN pool and from a lower tier.",
        ),
        known("flops", F64, "flops", "Arithmetic done."),
        known("bound_by", Text, "", "The largest booth."),
        known("resident_bytes", U64, "bytes", "KV resident at the end: held by requests or cached."),
        known("held_bytes", U64, "bytes", "KV held by running requests at the end."),
        known("capacity_bytes", U64, "bytes", "KV that fits."),
        known("waiting_requests", U32, "requests", "Requests that waited for admission."),
    ],
};

/// What each request felt.
pub static REQUEST_COSTS: Table = Table {
    name: "request_costs",
    doc: "what a request felt and cost in a scenario",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("request_id", U64, "", "The request."),
        known("instance", U32, "", "The copy of the model that served it."),
        known("status", Text, "", "finished or rejected."),
        maybe("reason", Text, "", "Why it was rejected."),
        known(
            "is_added",
            Bool,
            "",
            "Whether a stage of the policy sent it by itself, so that its tokens reach no user: figures per user leave it out.",
        ),
        known("arrival_ns", I64, "ns", "When it came; a request that waits for what stages send for it has come."),
        known("prompt_tokens", U32, "tokens", "Tokens of the prompt."),
        known("output_tokens", U32, "tokens", "Tokens generated; 0 if rejected."),
        known(
            "hit_tokens",
            U32,
            "tokens",
            "Prompt tokens found in the prefix cache at first admission, fetched ones too.",
        ),
        known("far_hit_tokens", U32, "tokens", "Of these, tokens fetched from memories below the accelerators' own."),
        known("computed_tokens", U32, "tokens", "Tokens computed in prefills, recomputation included."),
        known("recomputed_tokens", U32, "tokens", "Tokens computed in prefills after a preemption."),
        known("preemptions", U32, "", "Times it was preempted."),
        known(
            "stage_wait_ns",
            I64,
            "ns",
            "From arrival to the end of the requests that stages send for it; 0 if none.",
        ),
        maybe("queue_ns", I64, "ns", "From arrival to first admission; the wait for what stages send is in it."),
        maybe("ttft_ns", I64, "ns", "From arrival to the first token; null if it generates nothing."),
        maybe("mean_itl_ns", I64, "ns", "Mean gap between its tokens; null with fewer than two."),
        maybe("max_itl_ns", I64, "ns", "Largest gap between its tokens."),
        maybe(
            "e2e_ns",
            I64,
            "ns",
            "From arrival to the last token, or to the end of the prompt if it generates nothing.",
        ),
        maybe(
            "machine_ns",
            I64,
            "ns",
            "Its share of the instance's step time: each step is shared by computed tokens.",
        ),
        maybe("energy_j", F64, "J", "All-in power times its share of machine time."),
        maybe("cost_usd", F64, "USD", "Cost of the instance's accelerators over its share of machine time."),
        maybe(
            "revenue_usd",
            F64,
            "USD",
            "What its tokens are sold for under the promise that the scenario keeps; null without a tariff or a kept promise, \
             and for what a stage sent.",
        ),
        maybe(
            "promise",
            Text,
            "",
            "The dearest promise of the tariff that its own first token and mean gap were within; null if none, and for what a \
             stage sent.",
        ),
    ],
};

/// Exact quantiles of the latency distributions.
pub static QUANTILES: Table = Table {
    name: "quantiles",
    doc: "an exact quantile of a latency distribution",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("metric", Text, "", "itl (over users' tokens), ttft or e2e (over users' requests)."),
        known("quantile_ratio", F64, "ratio", "Share of the population at or below the value."),
        known("value_ns", I64, "ns", "The value; the smallest that at least this share does not exceed."),
    ],
};

/// Causes of jitter.
pub static JITTER: Table = Table {
    name: "jitter",
    doc: "a cause of gaps between tokens that are longer than the median gap",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known(
            "cause",
            Text,
            "",
            "prefill (prompts in the same step, or in steps of their own), batch_change, context_growth (more KV per request \
             than in the median step), preemption, handover (KV on its way between pools, its queue included), tier_stall \
             (KV fetched or swapped) or link (hop between attention and FFN).",
        ),
        known("tokens", U64, "tokens", "Tokens that came later for this cause, among others."),
        known("excess_ns", I64, "ns", "Time beyond the median gap, summed over tokens."),
        known("share_ratio", F64, "ratio", "Of the excess of all causes."),
        known("p50_itl_ns", I64, "ns", "The median gap, over all tokens but each request's first."),
    ],
};

/// Memory use over time.
pub static TIER_USAGE: Table = Table {
    name: "tier_usage",
    doc: "use of one memory in one bucket of time, all instances together",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("tier", Text, "", "The memory: hbm, ffn_pool, or one below HBM by its name in the machine."),
        known("bucket", U32, "", "Number of the bucket, from 0."),
        known("start_ns", I64, "ns", "When the bucket begins."),
        known("duration_ns", I64, "ns", "How long it is."),
        maybe(
            "held_bytes",
            U64,
            "bytes",
            "KV held by running requests, largest in the bucket; null where no KV lives.",
        ),
        maybe("resident_bytes", U64, "bytes", "KV held or cached, largest in the bucket."),
        maybe("capacity_bytes", U64, "bytes", "KV that fits."),
        known("read_bytes", U64, "bytes", "Bytes read: KV and weights."),
        known("written_bytes", U64, "bytes", "KV written; to a memory below HBM, what came down to it."),
        maybe(
            "busy_ratio",
            F64,
            "ratio",
            "Bytes moved over what peak bandwidth would have moved in the bucket; null where that is unknown.",
        ),
    ],
};

/// Link use over time.
pub static LINK_USAGE: Table = Table {
    name: "link_usage",
    doc: "use of links by one class of traffic in one bucket of time, all instances together",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known(
            "link",
            Text,
            "",
            "scale_up (between the accelerators of a scale-up domain), scale_out (between domains), attention_ffn (to FFN \
             accelerators and back), host (from memories below, and for what is swapped), to_host (the other way, to memories \
             below) or prefill_to_decode.",
        ),
        known(
            "class",
            Text,
            "",
            "What goes over it: tensor_all_reduce, expert_dispatch, expert_combine, pipeline, attention_to_ffn, \
             ffn_to_attention, tier_fetch (KV fetched, recalled or swapped), tier_write or prefill_to_decode (KV of computed \
             prompts).",
        ),
        maybe(
            "distance",
            Text,
            "",
            "How far it reaches: package, board, rack or cross-rack; null where the machine does not say, or several are used.",
        ),
        known("bucket", U32, "", "Number of the bucket, from 0."),
        known("start_ns", I64, "ns", "When the bucket begins."),
        known("duration_ns", I64, "ns", "How long it is."),
        known("bytes", U64, "bytes", "Bytes carried."),
        known(
            "busy_ratio",
            F64,
            "ratio",
            "Bytes of the class over what the links would have carried in the bucket, at their published rate (scale_up), at \
             the rate that the hop is said to have (attention_ffn, both ways), or at the rate that is reached, as far as anybody \
             says (scale_out, host, to_host, prefill_to_decode). Classes of a link add up.",
        ),
    ],
};

/// Miss-ratio curves.
pub static MISS_RATIO: Table = Table {
    name: "miss_ratio",
    doc: "what a cache of KV blocks of one size hits under one policy, on a workload's prompts in order of arrival",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("policy", Text, "", "The policy of the cache; min is Belady's bound."),
        known("capacity_blocks", U64, "blocks", "Blocks that fit."),
        maybe("capacity_bytes", U64, "bytes", "What they take; null without a model."),
        maybe("usd_per_hour", F64, "USD/h", "What that costs; null without a price."),
        known(
            "accesses",
            U64,
            "",
            "Uses of blocks: each request uses each block of its prompt once, partial ones too.",
        ),
        known(
            "method",
            Text,
            "",
            "exact, or sampled from a share of the blocks; at the ceiling where the sample alone would exceed it.",
        ),
        known("hits", U64, "", "Uses of blocks that were there, whatever came before them in the prompt."),
        known("misses", U64, "", "Uses of blocks that were not there."),
        maybe("evictions", U64, "blocks", "Blocks that had to go for others."),
        maybe("drops", U64, "blocks", "Blocks that went without need for their room: expired, or above a watermark."),
        maybe("bypasses", U64, "", "Misses that did not put their block in."),
        maybe("block_hit_ratio", F64, "ratio", "Hits over accesses."),
        maybe(
            "error_ratio",
            F64,
            "ratio",
            "By how much a sampled block_hit_ratio is off at most, in about 95% of samples; null if exact.",
        ),
        maybe("leading_hit_ratio", F64, "ratio", "Hits before the first miss of their request, over accesses."),
        maybe("token_hit_ratio", F64, "ratio", "Prompt tokens in leading hits over all prompt tokens."),
        maybe("full_block_hit_ratio", F64, "ratio", "Full blocks among leading hits over full blocks."),
        maybe(
            "mean_request_hit_ratio",
            F64,
            "ratio",
            "Mean over requests of the share of their prompt tokens in leading hits.",
        ),
        maybe("ceiling_ratio", F64, "ratio", "The block hit ratio of a cache that never loses a block."),
        maybe("bound_ratio", F64, "ratio", "The block hit ratio of Belady's MIN at this size; null if not replayed."),
        known("is_knee", Bool, "", "The smallest size listed with 99% of the hits of the ceiling."),
        maybe("is_current", Bool, "", "Whether it is the size in use now; null if none was named."),
    ],
};

/// Named figures.
pub static METRICS: Table = Table {
    name: "metrics",
    doc: "a named figure of a scenario, or of the workload where the scenario is null",
    scope: Scope::Run,
    columns: &[
        maybe("scenario_id", U32, "", "The scenario; null for the workload itself."),
        known("metric", Text, "", "Its name, see `metric_defs`."),
        maybe("value", F64, "", "The figure; null where it is unknown."),
        known("certainty", Text, "", "The least certain input it depends on."),
    ],
};

/// Definitions of the named figures.
pub static METRIC_DEFS: Table = Table {
    name: "metric_defs",
    doc: "what a named figure means",
    scope: Scope::Run,
    columns: &[
        known("metric", Text, "", "Its name."),
        known("unit", Text, "", "Its unit."),
        known("better", Text, "", "higher, lower or neither."),
        maybe("numerator", Text, "", "What is divided."),
        maybe("denominator", Text, "", "By what."),
        known("definition", Text, "", "What it means."),
    ],
};

/// Models as resolved.
pub static MODELS: Table = Table {
    name: "models",
    doc: "a group of alike layers of a model that was used, under one policy",
    scope: Scope::Run,
    columns: &[
        known("model", Text, "", "The model."),
        known("policy", Text, "", "The policy stack."),
        known("layer_group", U16, "", "Number of the group, from 0."),
        known("layers", U32, "", "Layers in it."),
        known("attention", Text, "", "full, sliding, mla, sparse or linear."),
        known("kv_heads", U32, "", "KV heads per layer."),
        maybe(
            "window_tokens",
            U32,
            "tokens",
            "Most tokens kept at any time: the model's sliding window or the policy's.",
        ),
        maybe("budget_tokens", U32, "tokens", "Prompt tokens that the policy keeps."),
        maybe("budget_ratio", F64, "ratio", "Share of the prompt that the policy keeps, where it is given as one."),
        known("token_bytes", U64, "bytes", "KV bytes per kept token and layer."),
        known("model_token_bytes", U64, "bytes", "The same in bf16 without a policy."),
        known("format", Text, "", "Number format of the KV."),
        known("weight_bytes", U64, "bytes", "Weights of all layers of the group in the scenario's number format."),
        known("source", Text, "", "Where the shape comes from."),
        known("certainty", Text, "", "How well it is known."),
    ],
};

/// Machines as resolved.
pub static MACHINES: Table = Table {
    name: "machines",
    doc: "one parameter of a machine that was used",
    scope: Scope::Run,
    columns: &[
        known("machine", Text, "", "The machine with its variations."),
        known("parameter", Text, "", "The parameter."),
        known("value", F64, "", "Its value in the unit."),
        known("unit", Text, "", "The unit."),
        known("source", Text, "", "Where it comes from."),
        known("certainty", Text, "", "How well it is known."),
    ],
};

/// Memories as resolved.
pub static TIERS: Table = Table {
    name: "tiers",
    doc: "a memory of a machine that was used, per accelerator",
    scope: Scope::Run,
    columns: &[
        known("machine", Text, "", "The machine with its variations."),
        known("tier", Text, "", "The memory."),
        known("capacity_bytes", U64, "bytes", "Capacity."),
        known("read_bytes_per_s", F64, "bytes/s", "Peak read bandwidth."),
        known("source", Text, "", "Where it comes from."),
        known("certainty", Text, "", "How well it is known."),
    ],
};

/// Prices as resolved.
pub static PRICES: Table = Table {
    name: "prices",
    doc: "what an accelerator of a scenario costs under a price book: its own, or another one to compare with",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "Number of the scenario within the run."),
        known("prices", Text, "", "The price book."),
        known("title", Text, "", "What kind of price it holds."),
        known("price_date", Text, "", "Day on which it was read."),
        known("machine", Text, "", "The machine; where prompts are computed apart, that which decodes."),
        maybe(
            "usd_per_accelerator_hour",
            F64,
            "USD/h",
            "Price of one accelerator for one hour, mean over those of the scenario.",
        ),
        maybe(
            "w_per_accelerator",
            F64,
            "W",
            "All-in provisioned power of one accelerator, mean over those of the scenario.",
        ),
        maybe("capex_usd", F64, "USD", "Capital for one accelerator, where the price follows from owning it."),
        maybe("life_years", F64, "years", "Years over which it is written off."),
        maybe("pue", F64, "", "Power of the facility over that of what stands in it."),
        maybe("usd_per_kwh", F64, "USD/kWh", "Price of electricity."),
        known("source", Text, "", "Where it comes from."),
        known("certainty", Text, "", "How well it is known."),
    ],
};

/// Turns of sessions.
pub static SESSION_TURNS: Table = Table {
    name: "session_turns",
    doc: "a request of a session as it was served: what of its context was there before, what is new, what the \
          application's stages of the policy took out and put in",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("request_id", U64, "", "The request; one that a stage added has the highest bit set."),
        known("session", U32, "", "Number of the session within the workload."),
        maybe("session_id", Text, "", "Its name in the store."),
        known("turn", U32, "", "Place in the session, from 0; one that a stage added has that of the turn it serves."),
        known("role", Text, "", "recorded, summary, recall or consolidation."),
        known(
            "arrival_ns",
            I64,
            "ns",
            "When it came, after the first of the workload; a sub-agent's on its parent's clock.",
        ),
        maybe("idle_ns", I64, "ns", "Pause before it, as recorded."),
        maybe(
            "pause_ns",
            I64,
            "ns",
            "Pause before it in the replay; null for the first turn and where turns do not wait for each other.",
        ),
        maybe(
            "pause_from",
            Text,
            "",
            "Where that comes from: recorded; measured (its start and the end of the turn before are recorded); from_start (of \
             the turn before, or when that has ended); chosen by the user; at_once (a stage sent a request for it); overlap (it \
             came before the turn before had ended, and waits for nobody).",
        ),
        known("basis", Text, "", "How it is known what it shares: blocks, names, measured or nothing."),
        maybe("recorded_tokens", U32, "tokens", "Its prompt as recorded; null for one that a stage added."),
        known("prompt_tokens", U32, "tokens", "Its prompt as served."),
        known("output_tokens", U32, "tokens", "Tokens it generates."),
        maybe(
            "kept_tokens",
            U32,
            "tokens",
            "Recorded tokens in common with the turn before, at the beginning; null for one that a stage added.",
        ),
        maybe(
            "broke_at_tokens",
            U32,
            "tokens",
            "Where the recorded prefix of the turn before broke; null if it stands whole, and for one that a stage added.",
        ),
        known("removed_tokens", U32, "tokens", "Tokens that stages took out, all stages together."),
        known("added_tokens", U32, "tokens", "Tokens that stages put in."),
        known(
            "lost_prefix_tokens",
            U32,
            "tokens",
            "Tokens still in the prompt that fell out of the prefix in common with the turn before.",
        ),
        maybe(
            "recorded_found_tokens",
            U32,
            "tokens",
            "Prompt tokens that a prefix cache without limits has, as recorded.",
        ),
        known("found_tokens", U32, "tokens", "The same as served."),
        maybe(
            "recorded_kv_bytes",
            U64,
            "bytes",
            "KV of the recorded context at its end, under the scenario's policy for KV.",
        ),
        known("kv_bytes", U64, "bytes", "KV of its context at its end."),
    ],
};

/// What the application's stages did.
pub static CONTEXT_EDITS: Table = Table {
    name: "context_edits",
    doc: "what one stage of the application did to one request: nothing is taken out or put in that is not here",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("stage", Text, "", "The stage with its parameters."),
        known("session", U32, "", "Number of the session."),
        known("turn", U32, "", "The turn."),
        known("request_id", U64, "", "The request."),
        maybe(
            "action",
            Text,
            "",
            "What the stage decided in this turn; null where only an earlier decision still acts.",
        ),
        known("removed_tokens", U32, "tokens", "Tokens taken out of the prompt."),
        known(
            "removed_prefix_tokens",
            U32,
            "tokens",
            "Of these, tokens of the prefix that this session or another one had computed, which would only have been read.",
        ),
        known("added_tokens", U32, "tokens", "Tokens put in."),
        known(
            "added_prefix_tokens",
            U32,
            "tokens",
            "Of these, tokens of the prefix that is there: the session's request before had been given them too, at the same place.",
        ),
        known("broke_at_tokens", U32, "tokens", "The first token that is not as it was before the stage."),
        known(
            "lost_prefix_tokens",
            U32,
            "tokens",
            "Tokens still in the prompt that have to be computed and written again: of the prefix that this session or another \
             one had computed.",
        ),
        known("extra_requests", U32, "requests", "Requests sent for it."),
        known("extra_prompt_tokens", U64, "tokens", "Their prompts together."),
        known("extra_output_tokens", U64, "tokens", "Their outputs together."),
        known("certainty", Text, "", "How well the stage's behaviour is known."),
    ],
};

/// What sessions pay.
pub static SESSION_COSTS: Table = Table {
    name: "session_costs",
    doc: "what a session pays as recorded and as served, to one payee and with one state of the prompt cache",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("session", U32, "", "Number of the session."),
        maybe("session_id", Text, "", "Its name in the store."),
        known("payee", Text, "", "own for the machine's time; else the tariff of a provider."),
        known(
            "cache",
            Text,
            "",
            "warm: found whenever it was computed before; life: as long as the provider keeps it; cold: never; own time of these \
             is that of each request served alone. replay: shares of the steps in the scenario's own replay, beside the \
             same replay without the stages.",
        ),
        known("turns", U32, "", "Recorded turns."),
        maybe("recorded_usd", F64, "USD", "As recorded; null without a price."),
        maybe("cost_usd", F64, "USD", "As served."),
        maybe("saved_usd", F64, "USD", "The difference; below 0 if the stages make the session dearer."),
        maybe("recorded_ns", I64, "ns", "Machine time as recorded; null for a tariff."),
        maybe("cost_ns", I64, "ns", "Machine time as served."),
        maybe("saved_ns", I64, "ns", "The difference."),
        maybe("first_turn", U32, "", "The turn in which a stage first acted; null if none did."),
        known("extra_requests", U32, "requests", "Requests that stages added."),
        maybe(
            "break_even_turns",
            F64,
            "turns",
            "After how many turns the stages have paid for themselves, the first one included; null if not within the session.",
        ),
        maybe(
            "formula_turns",
            F64,
            "turns",
            "The same by the formula of break-even, turn by turn from what stages did; beyond the session's end as in its \
             last turn; of own time with each chunk of a prompt and the middle step of a turn priced as the replay prices steps. \
             Null if nothing is saved, or where it is not computed: life, replay, policies that keep a part.",
        ),
        maybe("is_dearer", Bool, "", "Whether the session costs more than recorded; null if unknown."),
        known("why", Text, "", "In words."),
        known("certainty", Text, "", "The least certain input."),
    ],
};

/// How far sessions get.
pub static SESSION_SPAN: Table = Table {
    name: "session_span",
    doc: "how the context of a session grows, when it would fill the memory, and how far back it still reaches at its end",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("session", U32, "", "Number of the session."),
        maybe("session_id", Text, "", "Its name in the store."),
        known("turns", U32, "", "Recorded turns."),
        known("recorded_peak_tokens", U32, "tokens", "Longest prompt as recorded."),
        known("peak_tokens", U32, "tokens", "Longest prompt of these turns as served."),
        maybe(
            "recorded_tokens_per_turn",
            F64,
            "tokens/turn",
            "Growth of the prompt per turn as recorded, by least squares.",
        ),
        maybe("tokens_per_turn", F64, "tokens/turn", "The same as served."),
        maybe(
            "recorded_bytes_per_turn",
            F64,
            "bytes/turn",
            "Growth of KV per turn as recorded, under the baseline's policy for KV.",
        ),
        maybe("bytes_per_turn", F64, "bytes/turn", "The same as served."),
        maybe("baseline_capacity_bytes", U64, "bytes", "KV that fits in an instance of the baseline."),
        known("capacity_bytes", U64, "bytes", "KV that fits in an instance."),
        maybe(
            "turns_before",
            F64,
            "turns",
            "Turns until the session alone fills the baseline's memory (under data-parallel attention that of one group): as they were, or as growth goes on; null if it never does.",
        ),
        maybe("turns_hardware", F64, "turns", "The same with this scenario's memory only."),
        maybe("turns_policy", F64, "turns", "The same with this scenario's policy only, on the baseline's memory."),
        maybe("turns_both", F64, "turns", "The same with both."),
        maybe(
            "recorded_sessions_per_accelerator",
            F64,
            "sessions",
            "Sessions like this that fit at its mean context, for each accelerator of an instance, as recorded, on the baseline.",
        ),
        maybe("sessions_per_accelerator", F64, "sessions", "The same as served, in this scenario."),
        maybe(
            "verbatim_turns",
            U32,
            "turns",
            "Age, at the end, of the oldest turn of which something is there as it was; null if none.",
        ),
        maybe("summarised_turns", U32, "turns", "Age of the oldest that a summary tells of."),
        maybe("recallable_turns", U32, "turns", "Age of the oldest that can be asked for."),
        maybe("lost_turns", U32, "turns", "Age of the oldest of which something is lost."),
    ],
};

/// Whether sessions remember what they need.
pub static SESSION_MEMORY: Table = Table {
    name: "session_memory",
    doc: "whether a session has in its contexts what it needs",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("session", U32, "", "Number of the session."),
        maybe("session_id", Text, "", "Its name in the store."),
        known(
            "evidence",
            Text,
            "",
            "What shows the need: read_again, a named text that is read again; recorded_context, all that the recorded run had, an upper bound.",
        ),
        known("needed_tokens", U64, "tokens", "Tokens needed, all turns together."),
        known("present_tokens", U64, "tokens", "Of these, in the context as they were."),
        maybe("recall_ratio", F64, "ratio", "Present over needed; 1 if everything is kept."),
        maybe("precision_ratio", F64, "ratio", "Loaded and used over loaded tokens; null without evidence of use."),
        maybe(
            "density_ratio",
            F64,
            "ratio",
            "Recall over the share of the recorded context that is left: above 1 if the better part was kept.",
        ),
        maybe(
            "reread_ratio",
            F64,
            "ratio",
            "Of the named texts taken out, the share that a later turn reads again; null where nothing is named or taken out.",
        ),
        maybe(
            "duplicate_tokens_per_turn",
            F64,
            "tokens",
            "Tokens of texts that stand in a context more than once; null where nothing is named.",
        ),
        known("loaded_tokens", U64, "tokens", "Tokens in contexts without tools, system and memory."),
    ],
};

/// Keeping the KV of idle sessions.
pub static SESSION_KEEPING: Table = Table {
    name: "session_keeping",
    doc: "what a rule for the KV of idle sessions finds again, in the memory of one instance, on the requests as served",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("keeping", Text, "", "The rule: by last use, by time to live, or by session."),
        known("capacity_blocks", U64, "blocks", "Blocks of the trace that fit in the KV memory of an instance."),
        known("accesses", U64, "", "Uses of blocks."),
        known("hits", U64, "", "Uses that found theirs."),
        maybe("token_hit_ratio", F64, "ratio", "Prompt tokens in leading hits over all prompt tokens."),
        known("evictions", U64, "blocks", "Blocks that had to go for others."),
        known("drops", U64, "blocks", "Blocks that went without need for their room."),
    ],
};
