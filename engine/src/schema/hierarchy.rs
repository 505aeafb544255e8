//! What memories and links around the accelerator do for a workload.

use super::Type::{Bool, F64, I64, Text, U32, U64};
use super::{Scope, Table, known, maybe};

/// Lives of blocks.
pub static BLOCKS: Table = Table {
    name: "blocks",
    doc: "the life of a block in a cache, from when it was put in until it left; a block that comes back has another",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("policy", Text, "", "The policy of the cache."),
        maybe("capacity_blocks", U64, "blocks", "Blocks that fit; null where all of the workload's do."),
        known("block", U32, "", "Number of the block by first use in the workload."),
        known("position", U32, "", "Its place in the prompt that put it in, from 0."),
        known("request_id", U64, "", "That request."),
        known("filled_tokens", U32, "tokens", "Tokens of that prompt in it."),
        known("block_tokens", U32, "tokens", "Tokens that it can hold."),
        known("born_ns", I64, "ns", "When it was put in, after the first arrival."),
        known("last_use_ns", I64, "ns", "When it was used last in this life."),
        maybe("left_ns", I64, "ns", "When it left; null if it was there at the end."),
        maybe("life_ns", I64, "ns", "From when it was put in until it left."),
        maybe("idle_ns", I64, "ns", "From its last use until it left."),
        known("reads", U32, "", "Uses after the first in this life."),
        maybe("other_session_reads", U32, "", "Of these, by other sessions; null where sessions are unknown."),
        known("is_one_hit", Bool, "", "Whether the whole workload uses the block once only."),
    ],
};

/// Gaps between uses.
pub static GAPS: Table = Table {
    name: "gaps",
    doc: "a reuse gap: two uses of a block that follow each other, whatever became of the block meanwhile",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("block", U32, "", "Number of the block by first use in the workload."),
        known("request_id", U64, "", "The later request."),
        known("position", U32, "", "The place of the block in its prompt, from 0."),
        known("earlier_request_id", U64, "", "The earlier request."),
        known("gap_ns", I64, "ns", "From the earlier arrival to the later one."),
        known(
            "distance_blocks",
            U32,
            "blocks",
            "Distinct other blocks used between: an LRU cache of more blocks hits.",
        ),
        maybe(
            "is_same_session",
            Bool,
            "",
            "Whether both requests are of one session; null where sessions are unknown.",
        ),
    ],
};

/// Other block sizes.
pub static BLOCK_SIZES: Table = Table {
    name: "block_sizes",
    doc: "what a cache of one size in tokens hits with blocks of another size, never finer than the trace's own",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("policy", Text, "", "The policy of the cache."),
        known("block_tokens", U32, "tokens", "Tokens of a block."),
        maybe("capacity_blocks", U64, "blocks", "Blocks that fit; null where all of the workload's do."),
        known("distinct_blocks", U32, "blocks", "Distinct blocks of the workload."),
        known("accesses", U64, "", "Uses of blocks."),
        known("hits", U64, "", "Uses of blocks that were there."),
        maybe("block_hit_ratio", F64, "ratio", "Hits over accesses."),
        maybe(
            "token_hit_ratio",
            F64,
            "ratio",
            "Prompt tokens in hits before a request's first miss over prompt tokens.",
        ),
        maybe(
            "token_occupancy_ratio",
            F64,
            "ratio",
            "Tokens in resident blocks over what these blocks can hold, mean over time; block occupancy counts them as full.",
        ),
    ],
};

/// Runs of blocks in farther tiers.
pub static FETCHES: Table = Table {
    name: "fetches",
    doc: "a run of blocks of one request in a farther tier: fetching it against computing its tokens again",
    scope: Scope::Run,
    columns: &[
        maybe("scenario_id", U32, "", "The scenario; null outside of a run."),
        known("workload", Text, "", "The requests."),
        known("request_id", U64, "", "The request."),
        known("tier", Text, "", "The tier of the nearest copies."),
        known("first_block", U32, "", "Place of the run's first block in the prompt, from 0."),
        known("blocks", U32, "blocks", "Blocks of the run."),
        known("depth_tokens", U32, "tokens", "Tokens of the prompt before it."),
        known("tokens", U32, "tokens", "Its tokens."),
        known("bytes", U64, "bytes", "Its KV on all accelerators of an instance."),
        known("queue_ns", I64, "ns", "Wait for the link of the tier while it serves other requests."),
        known("latency_ns", I64, "ns", "Latency of the tier."),
        known("transfer_ns", I64, "ns", "Bytes over the bandwidth of the slowest part of the way."),
        maybe(
            "compute_ns",
            I64,
            "ns",
            "Prefill of the rest of the prompt from the run's beginning less from its end; null where it is not asked for.",
        ),
        maybe("saved_ns", I64, "ns", "compute_ns less the other three."),
        known("is_fetched", Bool, "", "Whether it was fetched."),
        known("verdict", Text, "", "pays, or does not pay because of what."),
    ],
};

/// Farther tiers in total.
pub static FETCH_TOTALS: Table = Table {
    name: "fetch_totals",
    doc: "what a farther tier is worth to a workload: what it fetched against computing it, and what it stored for nothing",
    scope: Scope::Run,
    columns: &[
        maybe("scenario_id", U32, "", "The scenario; null outside of a run."),
        known("workload", Text, "", "The requests."),
        known("tier", Text, "", "The tier."),
        maybe("capacity_blocks", U64, "blocks", "Blocks that fit; null where all of the workload's do."),
        known("way_bytes_per_s", F64, "bytes/s", "Bandwidth of the slowest part of the way to one instance."),
        known("latency_ns", I64, "ns", "Time to the first byte."),
        known("decision", Text, "", "always, or break_even: up to the place that is best for each request."),
        known("runs", U64, "", "Runs of blocks that lay in the tier when a request asked for them."),
        known("paying_runs", U64, "", "Of these, runs whose fetch takes less than computing them."),
        known("gap_runs", U64, "", "Runs behind a block that must be computed."),
        known("short_runs", U64, "", "Runs too short to be fetched from the tier."),
        known("slow_runs", U64, "", "Runs whose bytes alone take longer than computing them."),
        known("latency_runs", U64, "", "Runs that the latency makes too slow."),
        known("queued_runs", U64, "", "Runs that the wait for the link makes too slow."),
        known("fetched_runs", U64, "", "Runs that were fetched."),
        known("fetched_tokens", U64, "tokens", "Their tokens."),
        known("fetched_bytes", U64, "bytes", "Their bytes."),
        known("queue_ns", I64, "ns", "Their waits for the link."),
        known("transfer_ns", I64, "ns", "Their latencies and transfers."),
        known("compute_ns", I64, "ns", "What computing them would have taken."),
        known("saved_ns", I64, "ns", "compute_ns less queue_ns and transfer_ns."),
        maybe(
            "busy_ratio",
            F64,
            "ratio",
            "transfer_ns over the time from the first to the last arrival, mean over instances.",
        ),
        known("written_bytes", U64, "bytes", "Bytes written to the tier."),
        known("never_read_bytes", U64, "bytes", "Bytes written and never read from there."),
        known("verdict", Text, "", "pays, or does not pay because of what."),
        known("certainty", Text, "", "The least certain input it depends on."),
    ],
};

/// Where attention's mass is.
pub static ATTENTION_READS: Table = Table {
    name: "attention_reads",
    doc: "how few blocks hold most of a recorded request's attention, and how much mass comes back to cold ones",
    scope: Scope::Run,
    columns: &[
        known("recording", Text, "", "The recorded model and grade."),
        known("request_id", U64, "", "The recorded request."),
        maybe("layer", super::Type::U16, "", "The layer, from 0; null for all layers together."),
        known("steps", U64, "", "Decode steps of all its KV heads."),
        maybe(
            "near_50_ratio",
            F64,
            "ratio",
            "Fewest blocks with 50% of a step's mass over all blocks it reads, mean over steps.",
        ),
        maybe("near_90_ratio", F64, "ratio", "The same for 90%."),
        maybe("near_99_ratio", F64, "ratio", "The same for 99%."),
        maybe(
            "reawakened_mass_ratio",
            F64,
            "ratio",
            "Mass on blocks that are among the heaviest tenth and were not in any of the 32 steps before, mean over steps.",
        ),
        maybe("p99_reawakened_mass_ratio", F64, "ratio", "The same that 99 of 100 steps do not exceed."),
    ],
};

/// Near sizes.
pub static NEAR_SIZES: Table = Table {
    name: "near_sizes",
    doc: "the smallest LRU cache that serves a share of the reads of some requests, and what a GiB more than now is worth to them",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("by", Text, "", "all, kind (of request) or tenant."),
        known("value", Text, "", "Which of these; all where by is all, and unknown where it is not told."),
        known("requests", U64, "requests", "Requests of it."),
        known("reads", U64, "", "Uses of blocks after a block's first by any request."),
        maybe(
            "near_50_blocks",
            U64,
            "blocks",
            "Smallest cache that serves 50% of these reads, shared with all requests.",
        ),
        maybe("near_90_blocks", U64, "blocks", "The same for 90%."),
        maybe("near_99_blocks", U64, "blocks", "The same for 99%."),
        maybe("near_50_bytes", U64, "bytes", "What these take; null without a model."),
        maybe("near_90_bytes", U64, "bytes", "The same for 90%."),
        maybe("near_99_bytes", U64, "bytes", "The same for 99%."),
        maybe("now_blocks", U64, "blocks", "The present size; null where all blocks fit."),
        maybe("next_gib_reads_per_hour", F64, "1/h", "Reads that a GiB more would serve; null without a model."),
        maybe("next_gib_saved_ratio", F64, "ratio", "Hours of prefill of an instance that this saves in an hour."),
        maybe("next_gib_usd_per_hour", F64, "USD/h", "What these hours cost; null without a price."),
    ],
};

/// The desk.
pub static DESK: Table = Table {
    name: "desk",
    doc: "what lies in the cache by what becomes of it: working, reference, duplicate, archive, dead",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        maybe(
            "capacity_blocks",
            U64,
            "blocks",
            "Blocks that fit in each instance; null where all of the workload's do.",
        ),
        known("instances", U32, "", "Instances, each with a cache of its own."),
        known(
            "class",
            Text,
            "",
            "working: read again within a minute; reference: within ten; archive: later; dead: not again; duplicate: on a \
             lower-numbered instance too.",
        ),
        known("block_hours", F64, "h", "Blocks times the time for which they lay there."),
        maybe("time_ratio", F64, "ratio", "These over those of all classes."),
        maybe("mean_bytes", F64, "bytes", "Bytes of the class, mean over the trace; null without a model."),
        known("reads", U64, "", "Reads that ended a stretch of the class; of a duplicate, while it was one."),
        maybe(
            "usd_per_hour",
            F64,
            "USD/h",
            "Cost of the room that it takes, mean over the trace; null without a price.",
        ),
    ],
};

/// Yield by idle time.
pub static YIELDS: Table = Table {
    name: "yields",
    doc: "what idle blocks yield: reads per hour for which a block has lain unused so long, against the cost of its room",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("from_s", F64, "s", "Idle time from which on the class counts."),
        maybe("to_s", F64, "s", "Idle time at which it ends; null for the last."),
        known("block_hours", F64, "h", "Time for which blocks lay there at this idle time."),
        known("reads", U64, "", "Reads that came at this idle time; from ten minutes on they are reawakenings."),
        maybe("reads_per_block_hour", F64, "1/h", "The yield."),
        maybe("usd_per_block_hour", F64, "USD/h", "Yield times the cost of the prefill that a read saves."),
        maybe("room_usd_per_block_hour", F64, "USD/h", "Cost of the room of a block."),
        maybe("pays", Bool, "", "Whether the yield is worth more than the room; null where either is unknown."),
    ],
};

/// Copies.
pub static COPIES: Table = Table {
    name: "stored_copies",
    doc: "blocks that are stored more than once if each session or instance stores what it uses, or that several tiers hold",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("across", Text, "", "sessions, instances or tiers."),
        known("parties", U32, "", "How many there are."),
        known("stored_blocks", U64, "blocks", "Blocks, counted for each that has them."),
        known("copies", U64, "blocks", "Of these, those beyond the first of each block."),
        maybe("copies_ratio", F64, "ratio", "Copies over stored blocks."),
        maybe("copies_bytes", U64, "bytes", "What they take; null without a model."),
    ],
};

/// Equal cost.
pub static EQUAL_COST: Table = Table {
    name: "equal_cost",
    doc: "a hierarchy or a fabric that costs the same dollars per hour as others: what it serves for them, and why",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario whose model, machine, requests and price are taken."),
        known("kind", Text, "", "hierarchy (memories below the accelerators' own) or fabric (links between them)."),
        known("traffic", Text, "", "The traffic: arrivals as a multiple of the scenario's, or requests in flight."),
        known("traffic_level", F64, "", "The same as a number."),
        known("option", Text, "", "What the money is spent on."),
        known("sizes", Text, "", "The best sizes of those that were tried."),
        known("usd_per_hour", F64, "USD/h", "The money: the cost of the scenario's accelerators."),
        known(
            "unit_usd_per_hour",
            F64,
            "USD/h",
            "Cost of an instance with its memories, or of an accelerator with its links.",
        ),
        known("units", F64, "", "How many the money buys, parts counted."),
        known(
            "served_per_hour",
            F64,
            "1/h",
            "Requests of users (hierarchy) or output tokens (fabric) that they serve in an hour, fully loaded.",
        ),
        maybe("of_best_ratio", F64, "ratio", "This over that of the best option for the traffic."),
        known("latency_ns", I64, "ns", "Mean fetch and prefill of a request, or the time of a step."),
        known("is_best", Bool, "", "Whether no option serves more for the money."),
        known("why", Text, "", "What decides."),
        known("certainty", Text, "", "The least certain input: prices of memory and links are assumed."),
    ],
};
