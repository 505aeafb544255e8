//! The rows of a run, table by table.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt32Array,
    UInt64Array,
};
use arrow::datatypes::{Float64Type, UInt32Type};

use super::jitter::{self, CAUSES};
use super::metrics::{self, DEFINITIONS, Figure};
use super::promise::{self, mean_gap_ns};
use super::toll::toll;
use super::usage::Bucket;
use super::{Found, Scenario, Source, Toll, balance, demand, described, felt, links, sessions, usage};
use crate::api::ApiPrices;
use crate::economics::{Tokens, revenue_usd};
use crate::error::Result;
use crate::machine::{Sourced, parameters};
use crate::model::Certainty;
use crate::policy::Budget;
use crate::prices::PriceBook;
use crate::schema::balance::{PROMISES, VALIDATION};
use crate::schema::result::{
    ATTENTION_ERROR, DEMAND, JITTER, KEPT_OVERLAP, KEPT_PAGES, LINK_USAGE, MACHINES, METRIC_DEFS, METRICS, MODELS,
    PRICES, QUANTILES, REQUEST_COSTS, SCENARIOS, STEP_COSTS, TIER_USAGE, TIERS,
};
use crate::schema::{Cell, Table, batch_of_rows};
use crate::serving::quantile::{GRID, of_sorted, of_tokens};
use crate::serving::{Fate, Served, Stretch};
use crate::workload::{Workload, prefix_counts};

/// Everything that a run found.
#[derive(Debug)]
pub struct Run<'a> {
    /// The run's id.
    pub id: &'a str,
    /// What was replayed.
    pub sources: &'a [Source],
    /// The scenarios.
    pub scenarios: &'a [Scenario],
    /// What each came to, in the same order.
    pub found: &'a [Result<Found>],
    /// Rows of `attention_error`, one batch per policy and recording.
    pub errors: &'a [RecordBatch],
    /// Rows of `kept_pages` and of `kept_overlap`, a pair of batches per policy and recording.
    pub organisation: &'a [[RecordBatch; 2]],
    /// What providers charge for tokens.
    pub api_prices: &'a [ApiPrices],
    /// What [`super::variations`] wants replayed beside the scenarios.
    pub variations: &'a [Scenario],
    /// What each came to, in the same order.
    pub tolls: &'a [Result<Toll>],
    /// Every price book, to compare owning with renting.
    pub books: &'a [PriceBook],
    /// How far what is shipped is from measurements.
    pub validation: &'a [Shipped],
}

/// A part of what ships, held against measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Shipped {
    /// `kernels` or `serving`.
    pub kind: String,
    /// The surface or the model.
    pub subject: String,
    /// Measurements that it was held against.
    pub rows: u64,
    /// Half of the estimates are off by less.
    pub median_error_ratio: f64,
    /// Nine of ten are off by less.
    pub p90_error_ratio: Option<f64>,
    /// Whose measurements they are.
    pub source: String,
}

/// What takes rows of a table; none make a table that is there and empty.
pub type Put<'a> = dyn FnMut(&'static Table, &[RecordBatch]) -> Result<()> + 'a;

/// Rows of a batch of the long tables.
const ROWS: usize = 1 << 16;

/// All result tables of a run. The long ones are handed on piece by piece: a million requests make millions of rows.
///
/// # Errors
/// Those of `put`; a request that asks for 2^64 bytes or more; a table that does not fit its schema, which is a bug.
pub fn tables(run: &Run<'_>, put: &mut Put<'_>) -> Result<()> {
    let done: Vec<(u32, &Scenario, &Found)> = run
        .scenarios
        .iter()
        .zip(run.found)
        .enumerate()
        .filter_map(|(at, (scenario, found))| Some((at as u32, scenario, found.as_ref().ok()?)))
        .collect();
    let own: Vec<Result<Toll>> = (run.scenarios.iter().zip(run.found))
        .map(|(scenario, found)| {
            Ok(toll(scenario, found.as_ref().map_err(Clone::clone)?, &run.sources[scenario.workload].workload))
        })
        .collect();
    let demand_ids = demand::ids(&done);
    put(&SCENARIOS, &[described::scenarios(run, &demand_ids, &own)?])?;
    put(&ATTENTION_ERROR, run.errors)?;
    for [pages, overlaps] in run.organisation {
        put(&KEPT_PAGES, std::slice::from_ref(pages))?;
        put(&KEPT_OVERLAP, std::slice::from_ref(overlaps))?;
    }
    for table in [&KEPT_PAGES, &KEPT_OVERLAP, &DEMAND, &STEP_COSTS, &REQUEST_COSTS, &QUANTILES, &JITTER] {
        put(table, &[])?;
    }
    for table in [&TIER_USAGE, &LINK_USAGE, &PROMISES] {
        put(table, &[])?;
    }
    demands(run, &done, &demand_ids, put)?;
    for (at, scenario, found) in &done {
        of_scenario(*at, scenario, found, &run.sources[scenario.workload], put)?;
    }
    put(&METRICS, &[figures(run, &done)?])?;
    put(&METRIC_DEFS, &[definitions()?])?;
    put(&MODELS, &[models(&done)?])?;
    put(&MACHINES, &[machines(&done)?])?;
    put(&TIERS, &[tiers(&done)?])?;
    put(&PRICES, &[prices(run, &done)?])?;
    put(&VALIDATION, &[validation(run)?])?;
    for (table, batches) in balance::tables(run, &own)?.into_iter().chain(sessions::tables(run, &done)?) {
        put(table, &batches)?;
    }
    Ok(())
}

/// The tables that hold rows of every scenario.
fn of_scenario(at: u32, scenario: &Scenario, found: &Found, source: &Source, put: &mut Put<'_>) -> Result<()> {
    for instance in found.outcome.stretches.chunk_by(|a, b| a.instance == b.instance) {
        for (piece, rows) in instance.chunks(ROWS).enumerate() {
            put(&STEP_COSTS, &[step_costs(at, scenario, found, rows, (piece * ROWS) as u64)?])?;
        }
    }
    let sold = [revenues(scenario, found, &source.workload), own_promises(scenario, found, &source.workload)];
    for from in (0..found.outcome.served.len()).step_by(ROWS) {
        put(&REQUEST_COSTS, &[request_costs(at, scenario, found, &source.workload, (from, &sold))?])?;
    }
    put(&QUANTILES, &[quantiles(at, found, &source.workload)?])?;
    put(&JITTER, &[causes(at, found)?])?;
    let buckets = usage::buckets(&found.outcome.stretches, width(found));
    put(&TIER_USAGE, &[tier_usage(at, scenario, found, &buckets)?])?;
    put(&LINK_USAGE, &[links::link_usage(at, (scenario, found, &source.workload), &buckets, width(found))?])?;
    put(&PROMISES, &[promises(at, scenario, found, source)?])
}

fn demands(run: &Run<'_>, done: &[(u32, &Scenario, &Found)], ids: &[u32], put: &mut Put<'_>) -> Result<()> {
    let mut next = 0;
    for ((_, scenario, found), id) in done.iter().zip(ids) {
        if *id == next {
            next += 1;
            let workload = &run.sources[scenario.workload].workload;
            for from in (0..workload.len()).step_by(ROWS) {
                let requests = from..workload.len().min(from + ROWS);
                let rows = demand::rows(workload, &found.shape, &found.outcome.served, requests)?;
                put(&DEMAND, &[demand::batch(*id, workload, scenario, &found.shape, &rows)?])?;
            }
        }
    }
    Ok(())
}

/// Stretches of one instance; `first` is the number of the first one within the instance.
fn step_costs(at: u32, scenario: &Scenario, found: &Found, rows: &[Stretch], first: u64) -> Result<RecordBatch> {
    let i64s =
        |of: &dyn Fn(&Stretch) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(of))) };
    let u64s =
        |of: &dyn Fn(&Stretch) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(rows.iter().map(of))) };
    let u32s = |of: &dyn Fn(&Stretch) -> u64| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| of(row) as u32)))
    };
    let time = |of: fn(&Stretch) -> f64| i64s(&|row| of(row).round() as i64);
    let bytes = |of: fn(&Stretch) -> f64| u64s(&|row| of(row).round() as u64);
    let columns: Vec<ArrayRef> = vec![
        u32s(&|_| u64::from(at)),
        u32s(&|row| u64::from(row.instance)),
        Arc::new(UInt64Array::from_iter_values(first..first + rows.len() as u64)),
        i64s(&|row| row.start_ns),
        u32s(&|row| row.steps),
        u32s(&|row| row.decode_requests),
        u32s(&|row| u64::from(row.prefill_requests)),
        u32s(&|row| row.prefill_tokens),
        u64s(&|row| row.context_tokens),
        time(|row| row.first_ns),
        time(|row| row.last_ns),
        i64s(&|row| row.total_ns),
        time(|row| row.cost.kv_read),
        time(|row| row.cost.weight_read),
        time(|row| row.cost.compute),
        time(|row| row.cost.collective),
        time(|row| row.cost.policy),
        time(|row| row.cost.tier),
        time(|row| row.cost.link),
        time(|row| row.cost.overhead),
        time(|row| row.cost.busy),
        time(|row| row.cost.waiting()),
        bytes(|row| row.cost.kv_read_bytes),
        bytes(|row| row.cost.weight_read_bytes),
        bytes(|row| row.cost.kv_written_bytes),
        bytes(|row| row.cost.collective_bytes() + row.cost.pipeline_bytes + row.cost.hop_bytes + row.cost.tier_bytes),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.cost.flops))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.cost.bound_by()))),
        u64s(&|row| row.resident_bytes),
        u64s(&|row| row.held_bytes),
        u64s(&|row| found.capacity_of(scenario, row.instance)),
        u32s(&|row| u64::from(row.waiting_requests)),
    ];
    Ok(RecordBatch::try_new(STEP_COSTS.arrow(), columns)?)
}

/// Requests from the one at place `from` on; `sold` has the last columns of all of them.
fn request_costs(
    at: u32,
    scenario: &Scenario,
    found: &Found,
    workload: &Workload,
    (from, sold): (usize, &[ArrayRef; 2]),
) -> Result<RecordBatch> {
    let rows: Vec<(usize, &Served)> = found.outcome.served.iter().enumerate().skip(from).take(ROWS).collect();
    let ids = &workload.request_ids[from..from + rows.len()];
    let finished = |row: &Served| row.fate == Fate::Finished;
    let u32s = |of: &dyn Fn(usize, &Served) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|(at, row)| of(*at, row))))
    };
    let times = |of: &dyn Fn(usize, &Served) -> Option<i64>| -> ArrayRef {
        Arc::new(rows.iter().map(|(at, row)| of(*at, row)).collect::<Int64Array>())
    };
    let mean = |at: usize, row: &Served| mean_gap_ns(row, workload.output[at]);
    // A request's share of an instance's time costs what all accelerators of the instance cost in that time; unknown where
    // its prompt and its answer were computed on instances of different sizes.
    let of_instance = scenario.parallel.accelerators();
    let same_size = scenario.prefill.as_ref().is_none_or(|prefill| prefill.parallel.accelerators() == of_instance);
    let size = f64::from(of_instance);
    let per_ns = |rate: Option<f64>, ns: f64| -> ArrayRef {
        let share =
            |row: &Served| rate.filter(|_| finished(row) && same_size).map(|rate| rate * size * row.machine_ns / ns);
        Arc::new(rows.iter().map(|(_, row)| share(row)).collect::<Float64Array>())
    };
    let power = found.price.w_per_accelerator.as_ref().map(|power| power.value);
    let price = found.price.usd_per_accelerator_hour.as_ref().map(|price| price.value);
    let status = |row: &Served| if finished(row) { "finished" } else { "rejected" };
    let [revenue, promise] = sold.each_ref().map(|column| column.slice(from, rows.len()));
    let columns: Vec<ArrayRef> = vec![
        u32s(&|_, _| at),
        Arc::new(UInt64Array::from_iter_values(ids.iter().copied())),
        u32s(&|_, row| row.instance),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, row)| status(row)))),
        Arc::new(rows.iter().map(|(_, row)| row.fate.reason()).collect::<StringArray>()),
        Arc::new(rows.iter().map(|(at, _)| Some(workload.is_added(*at))).collect::<BooleanArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, row)| row.arrival_ns))),
        u32s(&|at, _| workload.prompt[at]),
        u32s(&|at, row| if finished(row) { workload.output[at] } else { 0 }),
        u32s(&|_, row| row.hit_tokens),
        u32s(&|_, row| row.far_hit_tokens),
        u32s(&|_, row| row.computed_tokens),
        u32s(&|_, row| row.recomputed_tokens),
        u32s(&|_, row| row.preemptions),
        times(&|_, row| Some(row.stage_wait_ns)),
        times(&|_, row| row.queue_ns),
        times(&|_, row| row.ttft_ns),
        times(&mean),
        times(&|_, row| row.max_itl_ns),
        times(&|_, row| row.e2e_ns),
        times(&|_, row| finished(row).then_some(row.machine_ns.round() as i64)),
        per_ns(power, 1e9),
        per_ns(price, 3.6e12),
        revenue,
        promise,
    ];
    Ok(RecordBatch::try_new(REQUEST_COSTS.arrow(), columns)?)
}

/// What the tokens of each user's finished request are sold for under the promise that the scenario keeps.
fn revenues(scenario: &Scenario, found: &Found, workload: &Workload) -> ArrayRef {
    let kept = scenario.tariff.as_ref().map_or(Vec::new(), |tariff| promise::kept(tariff, found, workload));
    let sold = promise::sold(&kept).map(|kept| kept.promise);
    let revenue = |(at, row): (usize, &Served)| {
        let promise = sold.filter(|_| row.fate == Fate::Finished && !workload.is_added(at))?;
        let cached = row.hit_tokens.min(workload.prompt[at]);
        let tokens = Tokens {
            input: u64::from(workload.prompt[at] - cached),
            cached: u64::from(cached),
            output: u64::from(workload.output[at]),
        };
        let [input, cached, output] =
            [&promise.usd_per_mtok_input, &promise.usd_per_mtok_cached, &promise.usd_per_mtok_output];
        Some(revenue_usd(tokens, input.value, cached.value, output.value))
    };
    Arc::new(found.outcome.served.iter().enumerate().map(revenue).collect::<Float64Array>())
}

/// The dearest promise that each user's request was itself served by.
fn own_promises(scenario: &Scenario, found: &Found, workload: &Workload) -> ArrayRef {
    let mut promises: Vec<_> = scenario.tariff.iter().flat_map(|tariff| &tariff.promises).collect();
    promises.sort_by(|a, b| b.usd_per_mtok_output.value.total_cmp(&a.usd_per_mtok_output.value));
    let own = |(at, row): (usize, &Served)| {
        let kept = promises.iter().find(|promise| promise::is_good(promise, row, workload.output[at]))?;
        (!workload.is_added(at)).then_some(kept.name.as_str())
    };
    Arc::new(found.outcome.served.iter().enumerate().map(own).collect::<StringArray>())
}

fn promises(at: u32, scenario: &Scenario, found: &Found, source: &Source) -> Result<RecordBatch> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    if let Some(tariff) = &scenario.tariff {
        let kept = promise::kept(tariff, found, &source.workload);
        let sold = promise::sold(&kept).map(|sold| sold.promise.name.as_str());
        for (position, kept) in kept.iter().enumerate() {
            let promise = kept.promise;
            let limit = |limit: &Option<Sourced>| limit.as_ref().map(|limit| limit.value.round() as i64);
            rows.push(vec![
                at.into(),
                tariff.name.clone().into(),
                (position as u16).into(),
                promise.name.clone().into(),
                limit(&promise.ttft_ns).into(),
                limit(&promise.itl_ns).into(),
                promise.kept_ratio.into(),
                kept.ttft_ratio.into(),
                kept.itl_ratio.into(),
                kept.is_kept.into(),
                (sold == Some(promise.name.as_str())).into(),
                kept.good_requests.into(),
                promise.usd_per_mtok_input.value.into(),
                promise.usd_per_mtok_cached.value.into(),
                promise.usd_per_mtok_output.value.into(),
                kept.revenue_usd.into(),
                promise::certainty(promise).min(found.plan.certainty).name().into(),
                promise.usd_per_mtok_output.source.clone().into(),
            ]);
        }
    }
    batch_of_rows(&PROMISES, &rows)
}

fn validation(run: &Run<'_>) -> Result<RecordBatch> {
    let row = |shipped: &Shipped| {
        vec![
            shipped.kind.clone().into(),
            shipped.subject.clone().into(),
            shipped.rows.into(),
            shipped.median_error_ratio.into(),
            shipped.p90_error_ratio.into(),
            shipped.source.clone().into(),
        ]
    };
    batch_of_rows(&VALIDATION, &run.validation.iter().map(row).collect::<Vec<_>>())
}

fn quantiles(at: u32, found: &Found, workload: &Workload) -> Result<RecordBatch> {
    let sorted = |of: fn(&Served) -> Option<i64>| {
        let values = felt(&found.outcome, workload, of);
        GRID.map(|ratio| of_sorted(&values, ratio)).to_vec()
    };
    let distributions = [
        ("itl", of_tokens(&found.outcome, &GRID)),
        ("ttft", sorted(|served| served.ttft_ns)),
        ("e2e", sorted(|served| served.e2e_ns)),
    ];
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (name, values) in distributions {
        for (ratio, value) in GRID.into_iter().zip(values) {
            let Some(value) = value else { continue };
            rows.push(vec![at.into(), name.into(), ratio.into(), value.into()]);
        }
    }
    batch_of_rows(&QUANTILES, &rows)
}

fn causes(at: u32, found: &Found) -> Result<RecordBatch> {
    let Some(jitter) = jitter::of_outcome(&found.outcome) else { return batch_of_rows(&JITTER, &[]) };
    let all: f64 = jitter.parts.iter().map(|part| part.excess_ns).sum();
    let known = CAUSES.into_iter().zip(jitter.parts).filter(|(_, part)| part.tokens > 0);
    let row = |(cause, part): (&str, jitter::Part)| -> Vec<Cell> {
        vec![
            at.into(),
            cause.into(),
            part.tokens.into(),
            (part.excess_ns.round() as i64).into(),
            (part.excess_ns / all).into(),
            jitter.p50_ns.into(),
        ]
    };
    batch_of_rows(&JITTER, &known.map(row).collect::<Vec<_>>())
}

/// Width of the buckets of a run.
fn width(found: &Found) -> i64 {
    (found.duration_ns as u64).div_ceil(usage::BUCKETS as u64).max(1) as i64
}

fn tier_usage(at: u32, scenario: &Scenario, found: &Found, buckets: &[Bucket]) -> Result<RecordBatch> {
    let width = width(found);
    let peak = scenario.machine.accelerator.memory_bytes_per_s.value / 1e9 * f64::from(scenario.accelerators());
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut put = |tier: &str, number: usize, held: [Option<u64>; 3], moved: (f64, f64), peak: Option<f64>| {
        rows.push(vec![
            at.into(),
            tier.into(),
            (number as u32).into(),
            (number as i64 * width).into(),
            width.into(),
            held[0].into(),
            held[1].into(),
            held[2].into(),
            (moved.0.round() as u64).into(),
            (moved.1.round() as u64).into(),
            peak.map(|peak| (moved.0 + moved.1) / (peak * width as f64)).into(),
        ]);
    };
    for (number, bucket) in buckets.iter().enumerate() {
        let held = [bucket.held, bucket.resident, found.capacity_bytes(scenario)].map(Some);
        put("hbm", number, held, (bucket.read, bucket.written), Some(peak));
    }
    if let Some(pool) = &found.plan.ffn_pool {
        let chips = pool.chips.chips.value * f64::from(scenario.parallel.instances);
        let peak = chips * pool.chips.memory_bytes_per_s.value / 1e9;
        for (number, bucket) in buckets.iter().enumerate() {
            put("ffn_pool", number, [None; 3], (bucket.pool_read, 0.0), Some(peak));
        }
    }
    let tiers = found.below.as_ref().map_or(&[][..], |below| &below.tiers);
    let instances = f64::from(links::fetching(scenario));
    for (tier, moved) in tiers.iter().zip(usage::below(&found.outcome.stretches, width, tiers.len())) {
        let own = scenario.machine.tiers.iter().find(|own| own.name == tier.way.name);
        let read = own.and_then(|own| own.read_bytes_per_s.as_ref());
        let peak = read.map(|rate| rate.value / 1e9 * found.plan.tensor * instances);
        let capacity = tier.capacity_bytes.map(|bytes| (bytes * instances).round() as u64);
        for (number, moved) in moved.iter().enumerate() {
            let held = [None, Some(moved.resident_bytes.round() as u64), capacity];
            put(&tier.way.name, number, held, (moved.read_bytes, moved.written_bytes), peak);
        }
    }
    batch_of_rows(&TIER_USAGE, &rows)
}

fn figures(run: &Run<'_>, done: &[(u32, &Scenario, &Found)]) -> Result<RecordBatch> {
    let mut rows = Vec::new();
    let mut put = |scenario: Option<u32>, figures: &[Figure]| {
        for definition in DEFINITIONS {
            let found = figures.iter().find(|figure| figure.name == definition.name);
            rows.extend(found.map(|figure| {
                vec![scenario.into(), figure.name.into(), figure.value.into(), figure.certainty.name().into()]
            }));
        }
    };
    // One workload is the rule; where a run has several, the workload's own figures are those of the baseline's.
    let baseline = run.scenarios.iter().find(|scenario| scenario.is_baseline).or(run.scenarios.first());
    if let Some(scenario) = baseline {
        let workload = &run.sources[scenario.workload].workload;
        put(None, &metrics::of_workload(workload, &prefix_counts(workload)));
    }
    for (at, scenario, found) in done {
        let mut figures = metrics::of_scenario(scenario, found, &run.sources[scenario.workload].workload);
        figures.extend(lost(run, scenario));
        put(Some(*at), &figures);
    }
    batch_of_rows(&METRICS, &rows)
}

/// What the scenario's policy loses on the recordings. Only a recording of the scenario's own model measures it; from
/// another model it is borrowed, which makes it an assumption.
fn lost(run: &Run<'_>, scenario: &Scenario) -> [Figure; 2] {
    let name = scenario.policy.name();
    let (mut own, mut seen) = (true, false);
    let mut sums = [(0.0, 0.0); 2];
    for batch in run.errors {
        let text = |column: &str| {
            let column = batch.column_by_name(column)?.as_string_opt::<i32>()?;
            (!column.is_empty()).then(|| column.value(0).to_owned())
        };
        if text("policy").as_deref() != Some(name.as_str()) {
            continue;
        }
        seen = true;
        let ends = ["first_step", "last_step"].map(|name| {
            let column = batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<UInt32Type>());
            column.map(|column| column.values().to_vec()).unwrap_or_default()
        });
        // A range of steps counts by its length.
        let steps: Vec<f64> = ends[0].iter().zip(&ends[1]).map(|(first, last)| f64::from(last - first) + 1.0).collect();
        own &= text("recording").is_some_and(|recording| recording.to_lowercase().starts_with(&scenario.model.name));
        for (sum, column) in sums.iter_mut().zip(["lost_mass_ratio", "quantization_error_ratio"]) {
            let Some(values) = batch.column_by_name(column).and_then(|c| c.as_primitive_opt::<Float64Type>()) else {
                continue;
            };
            for (value, steps) in values.iter().zip(&steps).filter_map(|(value, steps)| Some((value?, steps))) {
                sum.0 += value * steps;
                sum.1 += steps;
            }
        }
    }
    let measured = if own && seen { Certainty::Measured } else { Certainty::Assumed };
    let mean = |(sum, count): (f64, f64)| (count > 0.0).then(|| sum / count);
    [
        Figure { name: "lost_mass_ratio", value: mean(sums[0]), certainty: measured },
        // A proxy from norms and distortions of random vectors.
        Figure { name: "quantization_error_ratio", value: mean(sums[1]), certainty: Certainty::Assumed },
    ]
}

fn definitions() -> Result<RecordBatch> {
    let known = |text: &'static str| (!text.is_empty()).then_some(text);
    let row = |definition: &super::Definition| {
        vec![
            definition.name.into(),
            definition.unit.into(),
            definition.better.into(),
            known(definition.numerator).into(),
            known(definition.denominator).into(),
            definition.definition.into(),
        ]
    };
    batch_of_rows(&METRIC_DEFS, &DEFINITIONS.iter().map(row).collect::<Vec<_>>())
}

/// Keeps the first of rows that begin with the same cells.
fn distinct(rows: &mut Vec<Vec<Cell>>, width: usize) {
    let mut seen: Vec<String> = Vec::new();
    rows.retain(|row| {
        let key = format!("{:?}", &row[..width]);
        let new = !seen.contains(&key);
        if new {
            seen.push(key);
        }
        new
    });
}

fn models(done: &[(u32, &Scenario, &Found)]) -> Result<RecordBatch> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (_, scenario, found) in done {
        let model = &scenario.model;
        for (at, group) in found.shape.groups.iter().enumerate() {
            let attention = group.kv.attention.name();
            let (tokens, ratio) = match group.keep.prompt {
                None => (None, None),
                Some(Budget::Tokens(tokens)) => (Some(tokens), None),
                Some(Budget::Ratio(ratio)) => (None, Some(ratio)),
                Some(Budget::Larger { extra, least, ratio }) => (Some(extra.saturating_add(least)), Some(ratio)),
                Some(Budget::Pyramid(step)) => step.budget(),
            };
            let layer = &model.groups[group.model_group];
            // Where a policy splits the heads of a layer, each part counts its share of the layer.
            let share = f64::from(group.kv.kv_heads) / f64::from(layer.kv.kv_heads.max(1));
            // A window beside compressed entries is a second part of layers that are counted with the entries.
            let is_beside = layer.kv.entry_window().is_some() && group.kv.attention.window().is_some();
            let layers = if is_beside { 0.0 } else { f64::from(group.layers) * share };
            let weights = layers * (layer.attention_params + layer.ffn.params()) * scenario.dtype.bytes();
            rows.push(vec![
                model.name.clone().into(),
                scenario.policy.name().into(),
                (at as u16).into(),
                group.layers.into(),
                attention.into(),
                group.kv.kv_heads.into(),
                group.keep.total.into(),
                tokens.into(),
                ratio.into(),
                group.stored_bytes().into(),
                group.kv.bf16_bytes().into(),
                group.format.clone().into(),
                (weights.round() as u64).into(),
                model.source.clone().into(),
                model.certainty.name().into(),
            ]);
        }
    }
    distinct(&mut rows, 3);
    batch_of_rows(&MODELS, &rows)
}

fn machines(done: &[(u32, &Scenario, &Found)]) -> Result<RecordBatch> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (_, scenario, _) in done {
        for parameter in parameters(&scenario.machine) {
            rows.push(vec![
                scenario.machine.name.clone().into(),
                parameter.name.into(),
                parameter.value.into(),
                parameter.unit.into(),
                parameter.source.into(),
                parameter.certainty.name().into(),
            ]);
        }
    }
    distinct(&mut rows, 2);
    batch_of_rows(&MACHINES, &rows)
}

fn tiers(done: &[(u32, &Scenario, &Found)]) -> Result<RecordBatch> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (_, scenario, _) in done {
        let machine = &scenario.machine;
        let mut put = |tier: &str, bytes: &Sourced, rate: &Sourced| {
            rows.push(vec![
                machine.name.clone().into(),
                tier.into(),
                (bytes.value as u64).into(),
                rate.value.into(),
                bytes.source.clone().into(),
                bytes.certainty.min(rate.certainty).name().into(),
            ]);
        };
        put("hbm", &machine.accelerator.memory_bytes, &machine.accelerator.memory_bytes_per_s);
        if let Some(pool) = &machine.ffn_pool {
            put("ffn_pool", &pool.memory_bytes, &pool.memory_bytes_per_s);
        }
    }
    distinct(&mut rows, 2);
    batch_of_rows(&TIERS, &rows)
}

fn prices(run: &Run<'_>, done: &[(u32, &Scenario, &Found)]) -> Result<RecordBatch> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut put = |number: u32, scenario: &Scenario, book: &PriceBook| {
        let price = super::price(scenario, book);
        let (usd, watts) = (&price.usd_per_accelerator_hour, &price.w_per_accelerator);
        let known: Vec<_> = [usd, watts].into_iter().flatten().collect();
        let source = known.first().map_or("not disclosed", |sourced| sourced.source.as_str());
        let certainty = known.iter().map(|sourced| sourced.certainty).min().unwrap_or(Certainty::Assumed);
        let owning = price.owning.as_ref();
        rows.push(vec![
            number.into(),
            book.name.clone().into(),
            book.title.clone().into(),
            book.date.clone().into(),
            scenario.machine.name.clone().into(),
            usd.as_ref().map(|sourced| sourced.value).into(),
            watts.as_ref().map(|sourced| sourced.value).into(),
            owning.map(|owning| owning.capex_usd.value).into(),
            owning.map(|owning| owning.life_years.value).into(),
            owning.map(|owning| owning.pue.value).into(),
            owning.map(|owning| owning.usd_per_kwh.value).into(),
            source.into(),
            certainty.name().into(),
        ]);
    };
    for (number, scenario, _) in done {
        put(*number, scenario, &scenario.prices);
        run.books.iter().filter(|book| book.name != scenario.prices.name).for_each(|book| put(*number, scenario, book));
    }
    batch_of_rows(&PRICES, &rows)
}
