//! What a run comes to: promises and prices, and what each change saved, moved or cost.

use super::Type::{Bool, F64, I64, Text, U16, U32, U64};
use super::{Scope, Table, known, maybe};

/// What each promise of a tariff would have earned.
pub static PROMISES: Table = Table {
    name: "promises",
    doc: "a promise of the scenario's tariff: whether the replay kept it, and what its tokens would have earned under it",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("tariff", Text, "", "The book of token prices."),
        known("position", U16, "", "Order of the promise in the book, from 0."),
        known("promise", Text, "", "The promise."),
        maybe("limit_ttft_ns", I64, "ns", "Longest time to the first token; null without a limit."),
        maybe("limit_itl_ns", I64, "ns", "Longest time between two tokens; null without a limit."),
        known("required_ratio", F64, "ratio", "Share of requests and of tokens that must be within the limits."),
        maybe(
            "ttft_kept_ratio",
            F64,
            "ratio",
            "Share of the requests with a prompt that got their first token in time; rejected ones did not.",
        ),
        maybe("itl_kept_ratio", F64, "ratio", "Share of the tokens, but each request's first, that came in time."),
        known("is_kept", Bool, "", "Whether both shares are as large as required."),
        known("is_sold", Bool, "", "Whether it is the dearest promise that is kept, which the tokens are sold for."),
        known(
            "good_requests",
            U64,
            "requests",
            "Finished requests whose first token and mean gap between tokens were both within the limits.",
        ),
        known("usd_per_mtok_input", F64, "USD/Mtok", "Price of a million computed prompt tokens."),
        known("usd_per_mtok_cached", F64, "USD/Mtok", "Price of a million prompt tokens from the cache."),
        known("usd_per_mtok_output", F64, "USD/Mtok", "Price of a million output tokens."),
        known("revenue_usd", F64, "USD", "What the tokens of all finished requests come to at these prices."),
        known("certainty", Text, "", "The least certain of the prices and limits."),
        known("source", Text, "", "Where the price of output comes from."),
    ],
};

/// What each change did to each booth.
pub static LEDGER: Table = Table {
    name: "ledger",
    doc: "what the change on one floor did to one booth: the sums over the replay before and after it, floors added in the \
          order application, algorithm, hardware",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known(
            "floor",
            Text,
            "",
            "application, algorithm or hardware; only floors on which it differs from the baseline.",
        ),
        known("floor_position", U16, "", "Order of the floor, from 0."),
        known("change", Text, "", "What is different on the floor."),
        known(
            "booth",
            Text,
            "",
            "What is paid for; software_adaptation is what an engine, a model or a user must take on.",
        ),
        known("booth_position", U16, "", "Order of the booth, from 0."),
        maybe(
            "before_ns",
            I64,
            "ns",
            "Time of the booth before the change, all instances; null where it is unknown, as for a floor that cannot be replayed.",
        ),
        maybe("change_ns", I64, "ns", "By how much the change makes it longer."),
        maybe("before_bytes", I64, "bytes", "Bytes moved before the change; null for booths that move none."),
        maybe("change_bytes", I64, "bytes", "By how much the change makes them more."),
        maybe("before_j", F64, "J", "All-in power times that time; null where the power is unknown."),
        maybe("change_j", F64, "J", "By how much the change makes it more."),
        maybe("before_usd", F64, "USD", "Cost of the accelerators over that time; null where it is unknown."),
        maybe("change_usd", F64, "USD", "By how much the change makes it more."),
        maybe(
            "verdict",
            Text,
            "",
            "removed, moved (as much came back elsewhere, to `moved_ratio`), received (what others got rid of), added or \
             unchanged (less than 0.1% of all time).",
        ),
        maybe(
            "moved_ratio",
            F64,
            "ratio",
            "Of the time that the floor's change saves in some booths, the share that came back in others; above 1 it costs \
             more than it saves.",
        ),
        maybe("note", Text, "", "What the change asks of software and people, or why it is unknown."),
        maybe(
            "adaptation_days",
            F64,
            "days",
            "Engineer-days of the booth software_adaptation, as the user gave them; null where nobody has said so.",
        ),
        known("certainty", Text, "", "The least certain input."),
    ],
};

/// Changes alone, together and left out.
pub static STACKING: Table = Table {
    name: "stacking",
    doc: "the scenario with only some of its differences from the baseline: each alone, each left out, and all that are needed \
          between",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("parts", Text, "", "The differences that are there, joined by ` + `; `none` for the baseline."),
        known("part_count", U16, "", "How many they are."),
        known("role", Text, "", "baseline, alone, without (all but one), between or together."),
        known("is_step", Bool, "", "Whether it is one of the steps in which parts are added in order."),
        maybe("left_out", Text, "", "The one that is missing, where one is."),
        maybe("ns_per_output_token", F64, "ns", "Time of all steps over users' output tokens; null where it failed."),
        maybe("p50_itl_ns", I64, "ns", "Median time between two tokens."),
        maybe("p99_itl_ns", I64, "ns", "99th percentile of the time between two tokens."),
        maybe("p99_ttft_ns", I64, "ns", "99th percentile of the time to the first token."),
        maybe("usd_per_mtok_output", F64, "USD/Mtok", "Cost of a million output tokens of users."),
        maybe("kv_capacity_tokens", F64, "tokens", "Context tokens that fit, all instances."),
        maybe("bound_by", Text, "", "The booth with the most time."),
        maybe("bound_ratio", F64, "ratio", "Its share of the step time."),
        maybe("error", Text, "", "Why it could not be replayed."),
    ],
};

/// How much of a saving is due to which difference.
pub static STACKING_SHARES: Table = Table {
    name: "stacking_shares",
    doc: "one difference of a scenario from the baseline, and its share in the change of time",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario."),
        known("part", Text, "", "application, selection, format or hardware."),
        known("part_position", U16, "", "Order of the part, from 0."),
        known("floor", Text, "", "application, algorithm or hardware."),
        known("change", Text, "", "What is different."),
        maybe("alone_ns_per_output_token", F64, "ns", "By how much it alone changes the time of an output token."),
        maybe(
            "left_out_ns_per_output_token",
            F64,
            "ns",
            "By how much the whole changes if it is left out, with the sign turned.",
        ),
        maybe(
            "share_ns_per_output_token",
            F64,
            "ns",
            "Its share in the change of all together: the mean of what it adds over all orders of adding (Shapley value); the \
             shares of a scenario sum to the whole change.",
        ),
        maybe("share_ratio", F64, "ratio", "That over the whole change; null where nothing changes by 0.1% or more."),
    ],
};

/// What more and less of a resource does.
pub static SPEC: Table = Table {
    name: "spec",
    doc: "the scenario on a machine with more or less of one resource: what of it arrives, and what hangs on it",
    scope: Scope::Run,
    columns: &[
        known("scenario_id", U32, "", "The scenario that is varied."),
        known("resource", Text, "", "memory_bandwidth, link, compute, memory_capacity or host."),
        known("resource_position", U16, "", "Order of the resource, from 0."),
        known("factor", F64, "", "Times as much of it; of the host, times as fast."),
        maybe("ns_per_output_token", F64, "ns", "Time of all steps over users' output tokens; null where it failed."),
        maybe("delivered", F64, "", "How many times faster that is than with factor 1."),
        maybe(
            "asked_ns_per_output_token",
            F64,
            "ns",
            "Time that the requests ask for in full batches, all instances together, over the output tokens: see \
             `offered_load_ratio`; null where requests do not come by themselves, or to two pools.",
        ),
        maybe("p50_itl_ns", I64, "ns", "Median time between two tokens."),
        maybe("p99_itl_ns", I64, "ns", "99th percentile of the time between two tokens."),
        maybe("p99_ttft_ns", I64, "ns", "99th percentile of the time to the first token."),
        maybe("bound_by", Text, "", "The booth with the most time."),
        maybe("bound_ratio", F64, "ratio", "Its share of the step time."),
        maybe("error", Text, "", "Why it could not be replayed."),
    ],
};

/// How far what is shipped is from measurements.
pub static VALIDATION: Table = Table {
    name: "validation",
    doc: "a part of what ships, held against measurements",
    scope: Scope::Run,
    columns: &[
        known(
            "kind",
            Text,
            "",
            "kernels (a surface, each measured point without itself) or serving (a replay of a measured run).",
        ),
        known("subject", Text, "", "The surface or the model."),
        known("rows", U64, "", "Measurements that it was held against."),
        known("median_error_ratio", F64, "ratio", "Half of the estimates are off by less."),
        maybe("p90_error_ratio", F64, "ratio", "Nine of ten are off by less."),
        known("source", Text, "", "Whose measurements they are."),
    ],
};
