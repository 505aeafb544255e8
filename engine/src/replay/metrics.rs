//! Named figures and their definitions.

use super::{Found, Scenario, felt, jitter, of_stages, of_users, promise};
use crate::cost::{Batch, FfnStep, Plan, ffn_step, price};
use crate::economics::{
    MEMORY_LIFE_YEARS, cost_usd, energy_j, gross_margin_ratio, markup_ratio, memory_rent_usd, usd_per_mtok,
};
use crate::machine::Sourced;
use crate::model::Certainty;
use crate::serving::quantile::{of_sorted, of_tokens};
use crate::serving::{Fate, Outcome, Served, Stretch};
use crate::workload::{PrefixCounts, Workload};

/// What a named figure means.
#[derive(Debug)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// `higher`, `lower` or `neither`.
    pub better: &'static str,
    /// What is divided; empty where nothing is.
    pub numerator: &'static str,
    /// By what.
    pub denominator: &'static str,
    /// What it means.
    pub definition: &'static str,
}

macro_rules! definitions {
    ($($name:literal, $unit:literal, $better:literal, $numerator:literal / $denominator:literal, $definition:literal;)*) => {
        /// Every named figure, in the order in which it is shown.
        pub static DEFINITIONS: &[Definition] = &[$(Definition {
            name: $name,
            unit: $unit,
            better: $better,
            numerator: $numerator,
            denominator: $denominator,
            definition: $definition,
        }),*];
    };
}

definitions! {
    "workload_requests", "requests", "neither", ""/"", "Requests of the workload.";
    "workload_block_references", "blocks", "neither", ""/"", "Block ids of all prompts, repetitions counted.";
    "workload_distinct_blocks", "blocks", "neither", ""/"", "Different block ids.";
    "workload_leading_block_hits", "blocks", "higher", ""/"", "Block references found while all before them in the same prompt were found, in order of arrival, when every block of a request is inserted after its look-up and nothing is ever evicted.";
    "workload_leading_block_hit_ratio", "ratio", "higher", "leading block hits"/"block references", "Leading block hits over block references, partial last blocks counted as whole; no capacity limit.";
    "workload_leading_token_hit_ratio", "ratio", "higher", "prompt tokens in leading block hits"/"prompt tokens", "Leading block hits over block references, weighted by tokens; no capacity limit.";
    "workload_full_block_hit_ratio", "ratio", "higher", "leading hits of full blocks"/"full blocks", "Leading block hits over full blocks only, which are all that an engine can share; no capacity limit.";
    "workload_mean_request_hit_ratio", "ratio", "higher", "sum of each request's token hit ratio"/"requests", "Mean over requests of the share of prompt tokens in leading hits.";
    "requests_finished", "requests", "higher", ""/"", "Requests of users served to the end; what stages of the policy send is in `added_requests`.";
    "requests_rejected", "requests", "lower", ""/"", "Requests of users turned away because they have no prompt, or because their KV, prefilled again with all that they generate as after a preemption, can never fit.";
    "requests_without_output", "requests", "neither", ""/"", "Requests of users served to the end that generate nothing: they have no first token and no gap, and are in no percentile and no promise of these.";
    "ttft_requests", "requests", "neither", ""/"", "Requests of users with a first token: those that the percentiles of the time to first token are of.";
    "added_requests", "requests", "lower", ""/"", "Requests that stages of the policy sent by themselves, to write a summary or to look something up, and that were served to the end. What machines do for them is in every figure of machines and of money; figures of users' requests, tokens and latencies leave them out.";
    "added_requests_rejected", "requests", "lower", ""/"", "Requests that stages of the policy sent by themselves and that were turned away.";
    "added_prompt_tokens", "tokens", "lower", ""/"", "Prompt tokens of `added_requests`.";
    "added_output_tokens", "tokens", "lower", ""/"", "Tokens that `added_requests` generate: they reach no user and nobody pays for them.";
    "stage_wait_s", "s", "lower", ""/"", "Time in which users' requests that had come waited for those that stages send for them, summed over requests; part of their time to first token.";
    "preemptions", "", "lower", ""/"", "Times a running request was put back for want of KV memory; those that stages send too.";
    "duration_s", "s", "lower", ""/"", "First arrival to last token.";
    "prompt_tokens", "tokens", "neither", ""/"", "Prompt tokens of users' finished requests.";
    "output_tokens", "tokens", "neither", ""/"", "Tokens generated for users.";
    "output_tokens_per_s", "tokens/s", "higher", "output tokens"/"duration", "Users' output tokens over the whole duration, idle time included.";
    "total_tokens_per_s", "tokens/s", "higher", "prompt and output tokens"/"duration", "Prompt and output tokens of users over the whole duration.";
    "output_tokens_per_s_per_accelerator", "tokens/s", "higher", "output tokens"/"duration and accelerators", "Users' output tokens per second and accelerator of the attention side.";
    "output_tokens_per_s_per_user", "tokens/s", "higher", "1"/"median time between tokens", "What a user sees in the median: the inverse of p50_itl_ms.";
    "p50_ttft_ms", "ms", "lower", ""/"", "Median over users' requests of the time from arrival to first token, the wait for what stages send first included; of `ttft_requests`, since a request that generates nothing has none.";
    "p90_ttft_ms", "ms", "lower", ""/"", "90th percentile over users' requests of the time from arrival to first token: see `p50_ttft_ms`.";
    "p99_ttft_ms", "ms", "lower", ""/"", "99th percentile over users' requests of the time from arrival to first token: see `p50_ttft_ms`.";
    "p50_itl_ms", "ms", "lower", ""/"", "Median over users' tokens but each request's first of the time since the token before.";
    "p90_itl_ms", "ms", "lower", ""/"", "90th percentile over users' tokens but each request's first of the time since the token before.";
    "p99_itl_ms", "ms", "lower", ""/"", "99th percentile over users' tokens but each request's first of the time since the token before.";
    "p999_itl_ms", "ms", "lower", ""/"", "99.9th percentile over users' tokens but each request's first of the time since the token before.";
    "max_itl_ms", "ms", "lower", ""/"", "Largest time between two tokens of a user's request.";
    "std_itl_ms", "ms", "lower", ""/"", "Standard deviation of the time between tokens, over users' tokens but each request's first.";
    "promise_99_ttft_ms", "ms", "lower", ""/"", "The tightest time to first token that 99% of users' requests keep; those that were turned away keep none, and those that generate nothing are not counted.";
    "promise_99_itl_ms", "ms", "lower", ""/"", "The tightest time between two tokens that 99% of users' requests keep from their first token to their last; those that were turned away keep none.";
    "promise_999_ttft_ms", "ms", "lower", ""/"", "The tightest time to first token that 99.9% of users' requests keep; those that were turned away keep none, and those that generate nothing are not counted.";
    "promise_999_itl_ms", "ms", "lower", ""/"", "The tightest time between two tokens that 99.9% of users' requests keep from their first token to their last; those that were turned away keep none.";
    "p50_ffn_ms", "ms", "lower", ""/"", "Median over decode steps of the time of the FFN of all layers, with its memory to itself.";
    "p99_ffn_ms", "ms", "lower", ""/"", "99th percentile over decode steps of the time of the FFN of all layers, with its memory to itself.";
    "p50_ffn_shared_ms", "ms", "lower", ""/"", "Median over decode steps of the time of the FFN while the step's KV is read at the same time: where FFN and attention share a memory each gets half of it while both stream; where they do not, the same as alone.";
    "p99_ffn_shared_ms", "ms", "lower", ""/"", "99th percentile over decode steps of the time of the FFN while the step's KV is read at the same time: see `p50_ffn_shared_ms`.";
    "ffn_crossover_context_tokens", "tokens", "neither", ""/"", "Context per request at which reading KV takes as long as the FFN, in the batch of the median decode step: beyond it attention itself is the cause of long steps, and FFN accelerators elsewhere do not help.";
    "p50_e2e_ms", "ms", "lower", ""/"", "Median over users' requests of the time from arrival to last token, or to the end of the prompt where nothing is generated.";
    "p99_e2e_ms", "ms", "lower", ""/"", "99th percentile over users' requests of the time from arrival to last token: see `p50_e2e_ms`.";
    "p50_handover_ms", "ms", "lower", ""/"", "Median over users' requests of the time from the end of the prompt to the arrival of its KV where it decodes, waiting for the link included; null where prompts are computed where they decode.";
    "p99_handover_ms", "ms", "lower", ""/"", "99th percentile over users' requests of the time from the end of the prompt to the arrival of its KV where it decodes; null where prompts are computed where they decode.";
    "offered_load_ratio", "ratio", "lower", "busy time the requests ask for"/"time in which they come", "Prefill of the tokens that had to be computed, in full chunks, and decode in the largest batch that fits, for all requests, those that stages send too, over the time from first to last arrival and the instances; above 1 the queue grows without end.";
    "utilisation_ratio", "ratio", "neither", "time in engine steps"/"duration and instances", "Share of the duration in which an instance ran a step.";
    "compute_busy_ratio", "ratio", "higher", "time the arithmetic alone would take"/"step time", "Share of step time in which arithmetic runs at its achievable rate.";
    "compute_waiting_ratio", "ratio", "lower", "step time in which arithmetic waits for data"/"step time", "Share of step time that arithmetic waits for KV, weights, collectives, tiers or links.";
    "overhead_ratio", "ratio", "lower", "kernel floors and host time"/"step time", "Share of step time in kernel floors and on the host.";
    "policy_work_ratio", "ratio", "lower", "time of the policy's own work"/"step time", "Share of step time in scoring, packing and dequantization.";
    "calibrated_time_ratio", "ratio", "higher", "time of operations between measured shapes"/"step time", "Share of step time that operations take whose shape lies between measured ones of the machine; the rest is extrapolated or in closed form.";
    "extrapolated_time_ratio", "ratio", "lower", "time of measured operations beyond the measured shapes"/"step time", "Share of step time that measured operations take at shapes beyond the measured ones, or at rates that were varied.";
    "hit_tokens_ratio", "ratio", "higher", "prompt tokens found in the prefix cache at first admission"/"prompt tokens of users' finished requests", "Token-weighted prefix hit ratio of users' prompts with this memory; recomputation after a preemption is no hit.";
    "usd_total", "USD", "lower", ""/"", "Cost of all accelerators over the duration, whatever they work on: their price per hour times the hours.";
    "usd_per_mtok_total", "USD/Mtok", "lower", "cost over the duration"/"prompt and output tokens", "Dollars per million tokens of users in all.";
    "usd_per_mtok_input", "USD/Mtok", "lower", "cost over the duration"/"prompt tokens", "Cost of all accelerators over the duration, all of it, per million prompt tokens of users; not to be added to the figure for output.";
    "usd_per_mtok_output", "USD/Mtok", "lower", "cost over the duration"/"output tokens", "Cost of all accelerators over the duration, all of it, the requests that stages send included, per million output tokens that users get; not to be added to the figure for input.";
    "usd_per_mtok_total_saturated", "USD/Mtok", "lower", "cost over the time that the requests ask for"/"prompt and output tokens", "What a user's token would cost if requests came just as fast as they can be served: cost over the offered load times the time in which the requests come, with the prefix hits of this replay.";
    "usd_per_mtok_output_saturated", "USD/Mtok", "lower", "cost over the time that the requests ask for"/"output tokens", "What a million output tokens of users would cost if requests came just as fast as they can be served: see `usd_per_mtok_total_saturated`.";
    "usd_per_mtok_cached", "USD/Mtok", "lower", "rent of the memory that cached blocks take"/"prompt tokens found in the cache", "Price of memory of the price book, over 4 years, for the bytes that are cached and held by no request, over time, per million prompt tokens of users found there; it is in the cost of the accelerators and not to be added to it.";
    "usd_prompts", "USD", "lower", ""/"", "Part of usd_total: steps of the engines, shared by the tokens that they compute, for prompt tokens.";
    "usd_outputs", "USD", "lower", ""/"", "Part of usd_total: steps of the engines, shared by the tokens that they compute, for output tokens.";
    "usd_idle", "USD", "lower", ""/"", "Part of usd_total: the time in which an instance had no step. The three parts sum to usd_total.";
    "usd_added", "USD", "lower", ""/"", "Part of usd_prompts and usd_outputs: what the requests that stages of the policy send take of the engines' steps.";
    "revenue_usd", "USD", "higher", ""/"", "What the tokens of users' finished requests are sold for under the dearest promise of the tariff that the replay kept; nobody buys what stages send; unknown without a tariff or a kept promise.";
    "revenue_usd_per_mtok_output", "USD/Mtok", "higher", "revenue, prompts included"/"output tokens", "Revenue per million output tokens of users.";
    "markup_ratio", "ratio", "higher", "revenue less cost"/"cost", "Profit over cost, at the trace's load. Not the gross margin.";
    "gross_margin_ratio", "ratio", "higher", "revenue less cost"/"revenue", "Profit over revenue, at the trace's load. Not the markup.";
    "markup_saturated_ratio", "ratio", "higher", "revenue less cost at full load"/"cost at full load", "Profit over cost if requests came just as fast as they can be served and the promise were still kept.";
    "gross_margin_saturated_ratio", "ratio", "higher", "revenue less cost at full load"/"revenue", "Profit over revenue if requests came just as fast as they can be served and the promise were still kept.";
    "profit_usd_per_accelerator_hour", "USD/h", "higher", "revenue less cost"/"accelerators and duration", "What an accelerator earns in an hour beyond its cost.";
    "goodput_requests_per_s", "requests/s", "higher", "requests served as promised"/"duration", "Requests of users whose own first token and mean gap were within the limits of the promise that the tokens are sold under; all finished ones where that has no limits.";
    "goodput_ratio", "ratio", "higher", "requests served as promised"/"requests", "Share of users' requests whose own first token and mean gap were within the limits of the promise that the tokens are sold under.";
    "energy_j_per_output_token", "J", "lower", "all-in power over the duration"/"output tokens", "All-in provisioned power times duration per output token that users get.";
    "kv_capacity_bytes", "bytes", "higher", ""/"", "KV that fits beside weights and reserve, all instances.";
    "kv_capacity_tokens", "tokens", "higher", "KV capacity"/"growing bytes per token", "Context tokens that fit, all instances, windows not counted.";
    "kv_peak_held_bytes", "bytes", "lower", ""/"", "Most KV that running requests of one instance held at a time.";
    "kv_bytes_per_token", "bytes", "lower", ""/"", "KV bytes that one more token adds to a long context under this policy, without replicas.";
    "kv_read_bytes_per_output_token", "bytes", "lower", "KV read"/"output tokens", "KV bytes read for all requests, prefill included, per output token that users get.";
    "delivered_memory_ratio", "ratio", "higher", "bytes moved in main memory"/"peak bandwidth times step time", "Share of peak memory bandwidth delivered while steps ran, for whatever request.";
    "p50_request_kv_bytes", "bytes", "lower", ""/"", "Median over requests of the most KV held at a time, in whole blocks: a policy that selects holds the whole prompt until it is prefilled. Requests that stages send take room as well and are counted.";
    "p99_request_kv_bytes", "bytes", "lower", ""/"", "99th percentile over requests of the most KV held at a time, in whole blocks.";
    "sessions_p50", "requests", "higher", "KV capacity"/"p50_request_kv_bytes", "Requests of median peak size that fit at a time, all instances.";
    "sessions_p99", "requests", "higher", "KV capacity"/"p99_request_kv_bytes", "Requests of 99th-percentile peak size that fit at a time, all instances.";
    "sessions_steady_p50", "requests", "higher", "KV capacity"/"median KV held at the end", "Requests that fit at a time while all of them decode, by their median size at the end.";
    "sessions_steady_p99", "requests", "higher", "KV capacity"/"99th percentile of KV held at the end", "Requests that fit at a time while all of them decode, by the 99th percentile of their sizes at the end.";
    "lost_mass_ratio", "ratio", "lower", "softmax mass on dropped tokens"/"softmax mass", "Mean over steps, layers and heads of all recordings of the store of the mass that the policy drops.";
    "quantization_error_ratio", "ratio", "lower", "expected error of the attention output"/"its norm", "Mean over steps, layers and heads of all recordings of the error by number formats, from norms and the formats' distortion of random vectors; an order of magnitude.";
}

/// A figure of a scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Figure {
    pub name: &'static str,
    pub value: Option<f64>,
    pub certainty: Certainty,
}

/// Sums over a replay's stretches.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    steps_ns: i64,
    busy: f64,
    waiting: f64,
    overhead: f64,
    policy: f64,
    calibrated: f64,
    extrapolated: f64,
    memory_bytes: f64,
    kv_read: f64,
    peak_held: u64,
}

fn sums(outcome: &Outcome) -> Sums {
    let mut sums = Sums::default();
    for stretch in &outcome.stretches {
        let cost = &stretch.cost;
        sums.steps_ns += stretch.total_ns;
        sums.busy += cost.busy;
        sums.waiting += cost.waiting();
        sums.overhead += cost.overhead;
        sums.policy += cost.policy;
        sums.calibrated += cost.calibrated;
        sums.extrapolated += cost.extrapolated;
        sums.memory_bytes += cost.kv_read_bytes + cost.kv_written_bytes + cost.weight_read_bytes;
        sums.kv_read += cost.kv_read_bytes;
        sums.peak_held = sums.peak_held.max(stretch.held_bytes);
    }
    sums
}

/// Figures of one scenario, in the order of [`DEFINITIONS`].
pub(super) fn of_scenario(scenario: &Scenario, found: &Found, workload: &Workload) -> Vec<Figure> {
    let time = found.plan.certainty;
    let mut figures = Vec::new();
    let mut put = |name: &'static str, value: Option<f64>, certainty: Certainty| {
        figures.push(Figure { name, value, certainty });
    };
    let (prompts, outputs) = tokens(found, workload);
    let seconds = found.duration_ns as f64 / 1e9;
    let rate = |tokens: u64| (seconds > 0.0).then(|| tokens as f64 / seconds);
    requests(found, workload, &mut put);
    put("preemptions", Some(found.outcome.served.iter().map(|served| f64::from(served.preemptions)).sum()), time);
    put("duration_s", Some(seconds), time);
    put("prompt_tokens", Some(prompts as f64), Certainty::Measured);
    put("output_tokens", Some(outputs as f64), Certainty::Measured);
    put("output_tokens_per_s", rate(outputs), time);
    put("total_tokens_per_s", rate(prompts + outputs), time);
    let accelerators = f64::from(scenario.accelerators());
    put("output_tokens_per_s_per_accelerator", rate(outputs).map(|rate| rate / accelerators), time);
    latencies(found, workload, &mut put);
    shares(scenario, (found, workload), (prompts, outputs), &mut put);
    money(scenario, (found, workload), (prompts, outputs), &mut put);
    sales(scenario, found, workload, &mut put);
    capacity(scenario, found, workload, &mut put);
    figures
}

type Put<'a> = dyn FnMut(&'static str, Option<f64>, Certainty) + 'a;

/// Prompt and output tokens of users' finished requests.
fn tokens(found: &Found, workload: &Workload) -> (u64, u64) {
    sum_tokens(workload, of_users(&found.outcome, workload))
}

/// Prompt and output tokens of those that are finished.
fn sum_tokens<'a>(workload: &Workload, requests: impl Iterator<Item = (usize, &'a Served)>) -> (u64, u64) {
    let finished = requests.filter(|(_, served)| served.fate == Fate::Finished);
    finished.fold((0, 0), |(prompts, outputs), (at, _)| {
        (prompts + u64::from(workload.prompt[at]), outputs + u64::from(workload.output[at]))
    })
}

/// How many requests there were: those of users, and those that stages of the policy sent.
fn requests(found: &Found, workload: &Workload, put: &mut Put<'_>) {
    let (time, outcome) = (found.plan.certainty, &found.outcome);
    let users =
        |is: &dyn Fn(&Served) -> bool| of_users(outcome, workload).filter(|(_, served)| is(served)).count() as f64;
    let added = || of_stages(outcome, workload);
    let finished = added().filter(|(_, served)| served.fate == Fate::Finished).count();
    let (prompts, outputs) = sum_tokens(workload, added());
    let waited: i64 = of_users(outcome, workload).map(|(_, served)| served.stage_wait_ns).sum();
    for (name, value) in [
        ("requests_finished", users(&|served| served.fate == Fate::Finished)),
        ("requests_rejected", users(&|served| served.fate != Fate::Finished)),
        ("requests_without_output", users(&promise::is_silent)),
        ("ttft_requests", users(&|served| served.ttft_ns.is_some())),
        ("added_requests", finished as f64),
        ("added_requests_rejected", (added().count() - finished) as f64),
        ("added_prompt_tokens", prompts as f64),
        ("added_output_tokens", outputs as f64),
        ("stage_wait_s", waited as f64 / 1e9),
    ] {
        put(name, Some(value), time);
    }
}

fn latencies(found: &Found, workload: &Workload, put: &mut Put<'_>) {
    let time = found.plan.certainty;
    let sorted = |of: fn(&Served) -> Option<i64>| felt(&found.outcome, workload, of);
    let ms = |ns: Option<i64>| ns.map(|ns| ns as f64 / 1e6);
    let itl = of_tokens(&found.outcome, &[0.5, 0.9, 0.99, 0.999, 1.0]);
    put("output_tokens_per_s_per_user", itl[0].filter(|&ns| ns > 0).map(|ns| 1e9 / ns as f64), time);
    let ttft = sorted(|served| served.ttft_ns);
    for (name, ratio) in [("p50_ttft_ms", 0.5), ("p90_ttft_ms", 0.9), ("p99_ttft_ms", 0.99)] {
        put(name, ms(of_sorted(&ttft, ratio)), time);
    }
    let names = ["p50_itl_ms", "p90_itl_ms", "p99_itl_ms", "p999_itl_ms", "max_itl_ms"];
    for (name, value) in names.into_iter().zip(itl) {
        put(name, ms(value), time);
    }
    let deviation = jitter::of_outcome(&found.outcome).map(|jitter| jitter.std_ns / 1e6);
    put("std_itl_ms", deviation, time);
    let users: Vec<Served> = of_users(&found.outcome, workload).map(|(_, served)| *served).collect();
    let heard: Vec<Served> = users.iter().filter(|served| !promise::is_silent(served)).copied().collect();
    for (ratio, names) in
        [(0.99, ["promise_99_ttft_ms", "promise_99_itl_ms"]), (0.999, ["promise_999_ttft_ms", "promise_999_itl_ms"])]
    {
        put(names[0], ms(kept_by(&heard, ratio, |served| served.ttft_ns)), time);
        // Who has one token waits for no second.
        put(names[1], ms(kept_by(&users, ratio, |served| Some(served.max_itl_ns.unwrap_or(0)))), time);
    }
    ffn(&found.plan, &found.outcome.stretches, put);
    let e2e = sorted(|served| served.e2e_ns);
    put("p50_e2e_ms", ms(of_sorted(&e2e, 0.5)), time);
    put("p99_e2e_ms", ms(of_sorted(&e2e, 0.99)), time);
    let moved = if found.prefill.is_some() {
        sorted(|served| (served.link_ns > 0).then_some(served.link_ns))
    } else {
        Vec::new()
    };
    put("p50_handover_ms", ms(of_sorted(&moved, 0.5)), time);
    put("p99_handover_ms", ms(of_sorted(&moved, 0.99)), time);
}

/// What a share of these requests keeps, if so many were served.
fn kept_by(served: &[Served], ratio: f64, of: fn(&Served) -> Option<i64>) -> Option<i64> {
    let finished = served.iter().filter(|served| served.fate == Fate::Finished);
    let mut kept: Vec<i64> = finished.filter_map(of).collect();
    kept.sort_unstable();
    let rank = (served.len() as f64 * ratio).ceil() as usize;
    kept.get(rank.checked_sub(1)?).copied()
}

/// The FFN booth over decode steps, and where attention takes as long.
fn ffn(plan: &Plan, stretches: &[Stretch], put: &mut Put<'_>) {
    let time = plan.certainty;
    let decoding = stretches.iter().filter(|stretch| stretch.decode_requests > 0);
    let steps: Vec<(FfnStep, u64, &Stretch)> = decoding
        .map(|stretch| {
            let kv_ns = stretch.cost.kv_read / stretch.steps as f64;
            (ffn_step(plan, stretch.decode_requests as f64, kv_ns), stretch.steps, stretch)
        })
        .collect();
    let quantile = |of: fn(&FfnStep) -> f64, ratio: f64| {
        let mut sorted: Vec<(f64, u64)> = steps.iter().map(|(step, count, _)| (of(step), *count)).collect();
        sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        weighted(&sorted, ratio)
    };
    for (name, of, ratio) in [
        ("p50_ffn_ms", (|step| step.alone_ns) as fn(&FfnStep) -> f64, 0.5),
        ("p99_ffn_ms", |step| step.alone_ns, 0.99),
        ("p50_ffn_shared_ms", |step| step.shared_ns, 0.5),
        ("p99_ffn_shared_ms", |step| step.shared_ns, 0.99),
    ] {
        put(name, quantile(of, ratio).map(|ns| ns / 1e6), time);
    }
    let median = quantile(|step| step.alone_ns, 0.5);
    let usual = steps.iter().find(|(step, ..)| Some(step.alone_ns) == median).map(|(_, _, stretch)| *stretch);
    let crossover = usual.zip(median).and_then(|(stretch, ffn_ns)| {
        // KV time grows with the context; prompts in the same step read KV too, so the step must have none.
        let context = stretch.context_tokens as f64 / stretch.decode_requests as f64;
        let kv_ns = stretch.cost.kv_read / stretch.steps as f64;
        (stretch.prefill_tokens == 0 && kv_ns > 0.0).then(|| context * ffn_ns / kv_ns)
    });
    put("ffn_crossover_context_tokens", crossover, time);
}

/// The smallest value that at least the share `ratio` of weighted values does not exceed.
fn weighted(sorted: &[(f64, u64)], ratio: f64) -> Option<f64> {
    let rank = (sorted.iter().map(|value| value.1).sum::<u64>() as f64 * ratio).ceil().max(1.0) as u64;
    let mut below = 0;
    sorted
        .iter()
        .find(|value| {
            below += value.1;
            below >= rank
        })
        .map(|value| value.0)
}

fn shares(
    scenario: &Scenario,
    (found, workload): (&Found, &Workload),
    (prompts, outputs): (u64, u64),
    put: &mut Put<'_>,
) {
    let (time, sums) = (found.plan.certainty, sums(&found.outcome));
    let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
    let steps = sums.steps_ns as f64;
    let instances = f64::from(scenario.instances());
    put("offered_load_ratio", found.offered_load, time);
    put("utilisation_ratio", ratio(steps, found.duration_ns as f64 * instances), time);
    put("compute_busy_ratio", ratio(sums.busy, steps), time);
    put("compute_waiting_ratio", ratio(sums.waiting, steps), time);
    put("overhead_ratio", ratio(sums.overhead, steps), time);
    put("policy_work_ratio", ratio(sums.policy, steps), time);
    put("calibrated_time_ratio", ratio(sums.calibrated, steps), time);
    put("extrapolated_time_ratio", ratio(sums.extrapolated, steps), time);
    let hits: f64 = of_users(&found.outcome, workload).map(|(_, served)| f64::from(served.hit_tokens)).sum();
    put("hit_tokens_ratio", ratio(hits, prompts as f64), time);
    put("kv_read_bytes_per_output_token", ratio(sums.kv_read, outputs as f64), time);
    let peak = scenario.machine.accelerator.memory_bytes_per_s.value / 1e9 * found.plan.accelerators;
    put("delivered_memory_ratio", ratio(sums.memory_bytes, peak * steps), time);
    put("kv_peak_held_bytes", Some(sums.peak_held as f64), time);
}

fn money(
    scenario: &Scenario,
    (found, workload): (&Found, &Workload),
    (prompts, outputs): (u64, u64),
    put: &mut Put<'_>,
) {
    let certainty = |sourced: &Option<Sourced>| {
        sourced.as_ref().map_or(Certainty::Assumed, |sourced| sourced.certainty.min(found.plan.certainty))
    };
    let duration = found.duration_ns as f64;
    let price = &found.price.usd_per_accelerator_hour;
    let usd = price.as_ref().map(|price| cost_usd(price.value, scenario.accelerators(), duration));
    put("usd_total", usd, certainty(price));
    for (name, tokens) in
        [("usd_per_mtok_total", prompts + outputs), ("usd_per_mtok_input", prompts), ("usd_per_mtok_output", outputs)]
    {
        put(name, usd.and_then(|usd| usd_per_mtok(usd, tokens)), certainty(price));
    }
    // The time that the requests ask for: their load times the time in which they come.
    let asked = found.offered_load.map(|load| load * found.span_ns as f64);
    let usd_asked = price.as_ref().and_then(|price| Some(cost_usd(price.value, scenario.accelerators(), asked?)));
    let saturated = |tokens: u64| usd_per_mtok(usd_asked?, tokens);
    put("usd_per_mtok_total_saturated", saturated(prompts + outputs), certainty(price));
    put("usd_per_mtok_output_saturated", saturated(outputs), certainty(price));
    split(scenario, (found, workload), (usd, certainty(price)), put);
    let power = &found.price.w_per_accelerator;
    let joules = power.as_ref().map(|power| energy_j(power.value, scenario.accelerators(), duration));
    let per_token = joules.filter(|_| outputs > 0).map(|joules| joules / outputs as f64);
    put("energy_j_per_output_token", per_token, certainty(power));
}

/// The dollars of the duration, split: steps are shared by the tokens that they compute, and the rest is idle.
fn split(
    scenario: &Scenario,
    (found, workload): (&Found, &Workload),
    (usd, certainty): (Option<f64>, Certainty),
    put: &mut Put<'_>,
) {
    let (mut prompts, mut outputs) = (0.0, 0.0);
    for stretch in &found.outcome.stretches {
        let (computed, decoded) = (stretch.prefill_tokens as f64, (stretch.decode_requests * stretch.steps) as f64);
        let share = if computed + decoded > 0.0 { computed / (computed + decoded) } else { 0.0 };
        prompts += stretch.total_ns as f64 * share;
        outputs += stretch.total_ns as f64 * (1.0 - share);
    }
    let all = found.duration_ns as f64 * f64::from(scenario.instances());
    let part = |ns: f64| usd.filter(|_| all > 0.0).map(|usd| usd * ns / all);
    put("usd_prompts", part(prompts), certainty);
    put("usd_outputs", part(outputs), certainty);
    put("usd_idle", usd.map(|usd| usd - part(prompts).unwrap_or(0.0) - part(outputs).unwrap_or(0.0)), certainty);
    let added = of_stages(&found.outcome, workload);
    // A sum of nothing would be -0, which no database takes for 0.
    put("usd_added", part(added.fold(0.0, |sum, (_, served)| sum + served.machine_ns)), certainty);
    // Blocks that wait in memory for the next request with the same beginning.
    let waiting = |stretch: &Stretch| stretch.resident_bytes.saturating_sub(stretch.held_bytes) as f64;
    let byte_ns: f64 = found.outcome.stretches.iter().map(|stretch| waiting(stretch) * stretch.total_ns as f64).sum();
    let hits: u64 = of_users(&found.outcome, workload).map(|(_, served)| u64::from(served.hit_tokens)).sum();
    let rent = scenario.prices.hbm_usd_per_gb.as_ref();
    let rent = rent.map(|price| memory_rent_usd(price.value, MEMORY_LIFE_YEARS, byte_ns));
    put("usd_per_mtok_cached", rent.and_then(|usd| usd_per_mtok(usd, hits)), Certainty::Assumed);
}

/// What the tokens are sold for, and what is left of it.
fn sales(scenario: &Scenario, found: &Found, workload: &Workload, put: &mut Put<'_>) {
    let kept = scenario.tariff.as_ref().map_or(Vec::new(), |tariff| promise::kept(tariff, found, workload));
    let sold = promise::sold(&kept);
    let mut certainty =
        found.plan.certainty.min(sold.map_or(Certainty::Assumed, |sold| promise::certainty(sold.promise)));
    let revenue = sold.map(|sold| sold.revenue_usd);
    let outputs = promise::sold_tokens(&found.outcome, workload).output;
    put("revenue_usd", revenue, certainty);
    put("revenue_usd_per_mtok_output", revenue.and_then(|usd| usd_per_mtok(usd, outputs)), certainty);
    let good = sold.map(|sold| sold.good_requests as f64);
    let seconds = found.duration_ns as f64 / 1e9;
    put("goodput_requests_per_s", good.filter(|_| seconds > 0.0).map(|good| good / seconds), certainty);
    let users = of_users(&found.outcome, workload).count();
    put("goodput_ratio", good.filter(|_| users > 0).map(|good| good / users as f64), certainty);
    let price = found.price.usd_per_accelerator_hour.as_ref();
    certainty = certainty.min(price.map_or(Certainty::Assumed, |price| price.certainty));
    let cost_of = |ns: f64| price.map(|price| cost_usd(price.value, scenario.accelerators(), ns));
    let cost = cost_of(found.duration_ns as f64);
    let asked = found.offered_load.and_then(|load| cost_of(load * found.span_ns as f64));
    for (markup, margin, cost) in [
        ("markup_ratio", "gross_margin_ratio", cost),
        ("markup_saturated_ratio", "gross_margin_saturated_ratio", asked),
    ] {
        let both = revenue.zip(cost);
        put(markup, both.filter(|(_, cost)| *cost > 0.0).map(|(revenue, cost)| markup_ratio(revenue, cost)), certainty);
        let sold = both.filter(|(revenue, _)| *revenue > 0.0);
        put(margin, sold.map(|(revenue, cost)| gross_margin_ratio(revenue, cost)), certainty);
    }
    let hours = f64::from(scenario.accelerators()) * seconds / 3600.0;
    let profit = revenue.zip(cost).filter(|_| hours > 0.0).map(|(revenue, cost)| (revenue - cost) / hours);
    put("profit_usd_per_accelerator_hour", profit, certainty);
}

fn capacity(scenario: &Scenario, found: &Found, workload: &Workload, put: &mut Put<'_>) {
    let (accelerator, efficiency) = (&scenario.machine.accelerator, &scenario.machine.efficiency);
    let model = scenario.model.certainty;
    let memory = accelerator.memory_bytes.certainty.min(efficiency.reserve_bytes.certainty).min(model);
    let bytes = found.capacity_bytes(scenario) as f64;
    put("kv_capacity_bytes", Some(bytes), memory);
    let growing = found.plan.growing_bytes();
    put("kv_capacity_tokens", (growing > 0).then(|| (bytes / growing as f64).floor()), memory);
    let grows = |group: &&crate::policy::Group| group.keep.total.is_none();
    let per_token = found.shape.groups.iter().filter(grows).map(|group| u64::from(group.layers) * group.stored_bytes());
    put("kv_bytes_per_token", Some(per_token.sum::<u64>() as f64), model);
    let steady = |at: usize| {
        let context = workload.prompt[at].saturating_add(workload.output[at].saturating_sub(1));
        found.plan.footprint(workload.prompt[at], context, true) as i64
    };
    let peak = |at: usize| steady(at).max(found.plan.footprint(workload.prompt[at], workload.prompt[at], false) as i64);
    let sorted = |of: &dyn Fn(usize) -> i64| {
        let mut sizes: Vec<i64> = (0..workload.len()).map(of).collect();
        sizes.sort_unstable();
        sizes
    };
    let (peaks, ends) = (sorted(&peak), sorted(&steady));
    for (name, sessions, ratio) in
        [("p50_request_kv_bytes", "sessions_p50", 0.5), ("p99_request_kv_bytes", "sessions_p99", 0.99)]
    {
        let size = of_sorted(&peaks, ratio).map(|bytes| bytes as f64);
        put(name, size, model);
        put(sessions, size.filter(|&size| size > 0.0).map(|size| (bytes / size).floor()), memory);
    }
    for (name, ratio) in [("sessions_steady_p50", 0.5), ("sessions_steady_p99", 0.99)] {
        let size = of_sorted(&ends, ratio).filter(|&size| size > 0);
        put(name, size.map(|size| (bytes / size as f64).floor()), memory);
    }
}

/// Figures of a workload.
pub(super) fn of_workload(workload: &Workload, counts: &PrefixCounts) -> Vec<Figure> {
    let blocks = workload.unit_tokens > 0;
    let ratio = (counts.references > 0).then(|| counts.leading_hits as f64 / counts.references as f64);
    [
        ("workload_requests", Some(workload.len() as f64)),
        ("workload_block_references", blocks.then_some(counts.references as f64)),
        ("workload_distinct_blocks", blocks.then_some(counts.distinct as f64)),
        ("workload_leading_block_hits", blocks.then_some(counts.leading_hits as f64)),
        ("workload_leading_block_hit_ratio", ratio),
        ("workload_leading_token_hit_ratio", blocks.then_some(counts.token_ratio)),
        ("workload_full_block_hit_ratio", blocks.then_some(counts.full_block_ratio)),
        ("workload_mean_request_hit_ratio", blocks.then_some(counts.mean_request_ratio)),
    ]
    .map(|(name, value)| Figure { name, value, certainty: Certainty::Measured })
    .to_vec()
}

/// See the definition of `offered_load_ratio`.
pub(super) fn offered_load(plan: &Plan, scenario: &Scenario, workload: &Workload, outcome: &Outcome) -> Option<f64> {
    let span = workload.span_ns() as f64 * f64::from(scenario.parallel.instances);
    (span > 0.0)
        .then(|| (prefill_ns(plan, scenario, workload, outcome) + decode_ns(plan, scenario, workload, outcome)) / span)
}

/// Requests that were served, with their lengths.
fn served<'a>(workload: &'a Workload, outcome: &'a Outcome) -> impl Iterator<Item = (u32, u32, u32)> + 'a {
    let finished = outcome.served.iter().enumerate().filter(|(_, served)| served.fate == Fate::Finished);
    finished.map(|(at, served)| (workload.prompt[at], workload.output[at], served.hit_tokens))
}

/// All prefills in full chunks: their pairs, reads and scores spread evenly over the steps that they fill.
fn prefill_ns(plan: &Plan, scenario: &Scenario, workload: &Workload, outcome: &Outcome) -> f64 {
    let (groups, chunk) = (plan.groups.len(), scenario.rules.step_tokens);
    let (mut pairs, mut read) = (vec![0.0; groups], vec![0.0; groups]);
    let (mut tokens, mut rows, mut scored) = (0.0, 0.0, 0.0);
    for (prompt, _, hit) in served(workload, outcome) {
        let found = hit.min(prompt);
        tokens += f64::from(prompt - found);
        rows += 1.0;
        scored += if plan.drops_of(prompt) { f64::from(prompt) } else { 0.0 };
        for (group, planned) in plan.groups.iter().enumerate() {
            let cap = planned.group.keep.total;
            pairs[group] += crate::cost::pairs(found, prompt, cap);
            let mut done = found;
            while done < prompt {
                let next = done.saturating_add(chunk).min(prompt);
                let reach = cap.map_or(next, |cap| next.min(cap.saturating_add(next - done)));
                read[group] += f64::from(reach);
                done = next;
            }
        }
    }
    let steps = (tokens / f64::from(chunk)).ceil();
    if steps == 0.0 {
        return 0.0;
    }
    let none = vec![0; plan.lanes()];
    let even: Vec<f64> = pairs.iter().map(|sum| sum / steps).collect();
    let context: Vec<u64> = read.iter().map(|sum| (sum / steps).round() as u64).collect();
    let batch = Batch {
        decode_requests: 0,
        kept_tokens: &none,
        longest_tokens: 0,
        prefill_tokens: (tokens / steps).round() as u64,
        prefill_requests: (rows / steps).round().max(1.0) as u64,
        prefill_rows: (rows / steps).round() as u64,
        prefill_pairs: &even,
        prefill_context: &context,
        scored_tokens: (scored / steps).round() as u64,
    };
    price(plan, &batch).total() * steps
}

/// All decode steps in the largest batch of average requests that fits.
fn decode_ns(plan: &Plan, scenario: &Scenario, workload: &Workload, outcome: &Outcome) -> f64 {
    let groups = plan.groups.len();
    let (mut steps, mut footprints, mut kept) = (0.0, 0.0, vec![0.0; plan.lanes()]);
    for (prompt, output, _) in served(workload, outcome) {
        let own = f64::from(output.saturating_sub(1));
        steps += own;
        footprints += own * plan.footprint(prompt, prompt.saturating_add(output), true) as f64;
        for (sum, (_, keep)) in kept.iter_mut().zip(plan.lane_keeps()) {
            *sum += own * f64::from(keep.tokens(prompt, prompt.saturating_add(output / 2)));
        }
    }
    if steps == 0.0 {
        return 0.0;
    }
    let fitting = (plan.capacity_bytes as f64 / (footprints / steps).max(1.0)).floor();
    let size = fitting.clamp(1.0, f64::from(scenario.rules.running_requests));
    let kept: Vec<u64> = kept.iter().map(|sum| (sum / steps * size) as u64).collect();
    let (none, zeros) = (vec![0; groups], vec![0.0; groups]);
    let batch = Batch {
        decode_requests: size as u64,
        kept_tokens: &kept,
        longest_tokens: 0,
        prefill_tokens: 0,
        prefill_requests: 0,
        prefill_rows: 0,
        prefill_pairs: &zeros,
        prefill_context: &none,
        scored_tokens: 0,
    };
    price(plan, &batch).total() * steps / size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Parallel, plan};
    use crate::model::WeightDtype;
    use crate::policy::{Stack, shape};
    use crate::serving::RULES;
    use crate::test_kit::{open, toy_workload};

    /// gpt-oss-120b on 8 accelerators of a machine.
    fn on(expression: &str) -> Plan {
        let preset = |kind: &str, name: &str| {
            let path = format!("{}/../presets/{kind}/{name}.toml", env!("CARGO_MANIFEST_DIR"));
            Some((std::fs::read_to_string(&path).ok()?, path))
        };
        let machine = crate::machine::resolve(expression, &|name: &str| preset("machine", name)).unwrap();
        let (text, path) = preset("model", "gpt-oss-120b").unwrap();
        let model = crate::model::parse(&text, &path).unwrap();
        let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
        plan(&model, &shape, &machine, WeightDtype::Fp8, Parallel::tensor(8)).unwrap()
    }

    /// Requests served one after the other, as long as each other or not, with as much KV to read in the mean: the FFN's tail
    /// follows their spread where it shares the memory that KV is read from, and not where it has one of its own.
    #[test]
    fn uneven_contexts_slow_the_ffn_where_it_shares_a_memory() {
        let served = |plan: &Plan, prompts: [u32; 4]| {
            let mut workload = toy_workload(&prompts.map(|_| (60_000_000, 1, 40, 0)));
            // Each prompt is part of a unit of its own.
            (workload.prompt, workload.unit_tokens) = (prompts.to_vec(), 1 << 18);
            let outcome = open(plan, &workload, 1, &RULES[0]);
            let decoding = outcome.stretches.iter().filter(|stretch| stretch.prefill_tokens == 0);
            let read: f64 = decoding.map(|stretch| stretch.cost.kv_read).sum();
            let mut found = std::collections::BTreeMap::new();
            ffn(plan, &outcome.stretches, &mut |name, value, _| {
                found.insert(name, value);
            });
            (read, found["p99_ffn_ms"].unwrap(), found["p99_ffn_shared_ms"].unwrap())
        };
        let (even, uneven) = ([20_000; 4], [4_000, 4_000, 36_000, 36_000]);
        let shared = on("vera-rubin");
        let apart = on("vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us");
        let [(read, alone, beside), (same, still, more)] = [even, uneven].map(|prompts| served(&shared, prompts));
        assert!(
            (same / read - 1.0).abs() < 1e-3 && alone.to_bits() == still.to_bits(),
            "{read} {same} {alone} {still}"
        );
        assert!(beside > 1.01 * alone && more > 1.3 * (beside - alone) + alone, "{alone} {beside} {more}");
        for prompts in [even, uneven] {
            let (_, alone, beside) = served(&apart, prompts);
            assert_eq!(alone.to_bits(), beside.to_bits());
        }
    }

    /// What can be promised follows the tail, not the mean, and who was turned away was kept no promise.
    #[test]
    fn equal_means_and_different_tails_are_different_promises() {
        let of = |ttft: fn(i64) -> i64| -> Vec<Served> {
            let one = |at| Served { fate: Fate::Finished, ttft_ns: Some(ttft(at)), ..Served::pending() };
            (0..1000).map(one).collect()
        };
        let (steady, uneven) = (of(|_| 100), of(|at| if at < 980 { 80 } else { 1080 }));
        let mean = |served: &[Served]| served.iter().filter_map(|served| served.ttft_ns).sum::<i64>() / 1000;
        assert_eq!(mean(&steady), mean(&uneven));
        let promise = |served: &[Served], ratio| kept_by(served, ratio, |served| served.ttft_ns);
        assert_eq!((promise(&steady, 0.99), promise(&uneven, 0.99)), (Some(100), Some(1080)));
        assert_eq!(promise(&uneven, 0.98), Some(80));
        let mut rejected = steady.clone();
        rejected[..5].fill(Served { fate: Fate::TooLarge, ..Served::pending() });
        assert_eq!((promise(&rejected, 0.99), promise(&rejected, 0.999)), (Some(100), None));
    }
}
