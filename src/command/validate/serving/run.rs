//! One measured run, request by request: the folder that LLMServingSim's benchmark writes.
//!
//! Requests come when the client sent them; times count from when the engine had them, as the benchmark's own summary
//! counts. The prompts are those of the dataset that the run names, looked for in the folder and beside it: without it
//! nothing is known of shared prefixes, and the replay shares none.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt32Array};
use engine::error::{Error, Result};
use engine::replay::{Found, Scenario, Source, replay};
use engine::schema::canonical::REQUESTS;
use engine::workload::{Times, Turns, Workload, from_requests_by};
use serde::Deserialize;

use super::{Args, Line, mean, median, model_preset};
use crate::command::talk;
use crate::ingest::{Options, ingest};
use crate::scenario::Spec;
use crate::store::Store;
use crate::{surfaces, wording};

/// What of `meta.json` matters.
#[derive(Debug, Deserialize)]
struct Meta {
    model: String,
    vllm_version: String,
    /// Start of the run, such as `2026-08-20T23:19:39.992496Z`.
    started_at: String,
    dataset_path: Option<String>,
    engine_kwargs: Limits,
    kv_cache: Option<Cache>,
    hardware: Option<Hardware>,
}

#[derive(Debug, Deserialize)]
struct Limits {
    tensor_parallel_size: Option<u32>,
    data_parallel_size: Option<u32>,
    enable_expert_parallel: Option<bool>,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Cache {
    num_gpu_blocks: Option<u32>,
    enable_prefix_caching: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Hardware {
    device_name: Option<String>,
}

/// A line of `requests.jsonl`; seconds.
#[derive(Debug, Deserialize)]
struct Request {
    input_toks: u32,
    output_toks: u32,
    arrival_time: f64,
    queued_ts: f64,
    first_token_ts: f64,
    last_token_ts: f64,
}

/// What was measured of a request, seconds.
#[derive(Debug, Clone, Copy)]
struct Felt {
    ttft: f64,
    e2e: f64,
    tpot: Option<f64>,
}

pub(super) fn validate(args: &Args, folder: &Path) -> Result<(Vec<Line>, Vec<RecordBatch>)> {
    let meta: Meta = wording::json(&text(&folder.join("meta.json"))?, "meta.json", 1).map_err(of_a_run)?;
    let requests = requests(folder)?;
    let scenario = scenario(args, folder, &meta)?;
    let source =
        Source { workload: workload(args, folder, &meta, &requests)?, steps: Vec::new(), trace: None, edited: None };
    let found = replay(&scenario, &source)?;
    let name = folder.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into());
    let measured: Vec<Felt> = requests.iter().map(felt).collect();
    let replayed = replayed(&found, &source.workload);
    let mut lines = latencies(&name, &measured, &replayed);
    lines.extend(occupancy(&name, folder, &meta.started_at, &requests, &found)?);
    lines.extend(blocks(&name, &scenario, &source, &meta)?);
    Ok((lines, vec![details(&name, &source.workload, &measured, &replayed)?]))
}

/// What a folder of a run holds.
const A_RUN: &str = "a run is a folder as LLMServingSim's benchmark writes it, with `meta.json`, `requests.jsonl` and `timeseries.csv`, or a \
     CSV file of runs";

fn of_a_run(error: Error) -> Error {
    error.hint(A_RUN)
}

fn text(path: &Path) -> Result<String> {
    let unread = |why: &str| Error::usage(format!("cannot read `{}`: {why}", path.display())).hint(A_RUN);
    let bytes = std::fs::read(path).map_err(|error| unread(&error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| unread("expected text in UTF-8, found other bytes"))
}

fn requests(folder: &Path) -> Result<Vec<Request>> {
    let lines = text(&folder.join("requests.jsonl"))?;
    let parse = |(number, line): (usize, &str)| wording::json(line, "requests.jsonl", number + 1).map_err(of_a_run);
    let requests: Vec<Request> =
        lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect::<Result<_>>()?;
    if requests.is_empty() {
        return Err(Error::data("expected requests in requests.jsonl, found none"));
    }
    Ok(requests)
}

fn scenario(args: &Args, folder: &Path, meta: &Meta) -> Result<Scenario> {
    // The device's name, or that of the folder, which has it by convention.
    let named = meta.hardware.as_ref().and_then(|hardware| hardware.device_name.clone());
    let named = named.unwrap_or_else(|| folder.display().to_string());
    let device = surfaces::device(&named, None)?.name.replace('_', "-");
    let cache = meta.kv_cache.as_ref();
    let plain = cache.and_then(|cache| cache.enable_prefix_caching) == Some(false);
    let engine = if plain { "vllm-0.19-no-prefix-cache" } else { "vllm-0.19" };
    if !meta.vllm_version.starts_with("0.19") && args.engine.is_none() {
        talk::warn(&format!("the run is of vLLM {}, and the rules are those of 0.19", meta.vllm_version));
    }
    let limits = &meta.engine_kwargs;
    // Ranks that share experts step together: one copy whose groups attend to requests of their own.
    let ranks = limits.data_parallel_size.unwrap_or(1).max(1);
    let together = limits.enable_expert_parallel == Some(true) && ranks > 1;
    let groups = if together { ranks } else { 1 };
    let of_all = |limit: Option<u32>| limit.map(|limit| limit.saturating_mul(groups));
    let spec = Spec {
        model: Some(args.model.clone().unwrap_or_else(|| model_preset(&meta.model))),
        machine: Some(args.machine.clone().unwrap_or(device)),
        engine: Some(args.engine.clone().unwrap_or_else(|| engine.to_owned())),
        tensor_parallel: limits.tensor_parallel_size,
        instances: Some(ranks / groups),
        data_parallel: Some(groups),
        expert_parallel: together.then(|| groups.saturating_mul(limits.tensor_parallel_size.unwrap_or(1))),
        routing: Some("least-loaded".to_owned()),
        step_tokens: of_all(limits.max_num_batched_tokens),
        running_requests: of_all(limits.max_num_seqs),
        kv_blocks: cache.and_then(|cache| cache.num_gpu_blocks),
        weights: Some("bf16".to_owned()),
        ..Spec::default()
    };
    let mut scenario = spec.resolve(0)?;
    let engine = surfaces::framework(scenario.rules.name);
    let mut library = surfaces::Library::of(args.surfaces.as_deref());
    scenario.measured = library.measured(&scenario.machine, engine, &scenario.model, scenario.parallel)?;
    Ok(scenario)
}

/// The requests that were measured, with the block ids of the dataset where it is found.
fn workload(args: &Args, folder: &Path, meta: &Meta, requests: &[Request]) -> Result<Workload> {
    let first = requests.iter().map(|request| request.arrival_time).fold(f64::INFINITY, f64::min);
    let arrival_ns = requests.iter().map(|request| ((request.arrival_time - first) * 1e9).round() as i64).collect();
    let mut workload = if let Some(path) = args.dataset.clone().or_else(|| dataset(folder, meta)) {
        stored(&path)?
    } else {
        talk::warn(
            "the run's dataset is not in the folder or beside it, so that no prefixes are shared; see `--dataset`",
        );
        Workload {
            name: "measured".to_owned(),
            request_ids: (0..requests.len() as u64).collect(),
            arrival_ns: Vec::new(),
            prompt: requests.iter().map(|request| request.input_toks).collect(),
            output: requests.iter().map(|request| request.output_toks).collect(),
            unit_tokens: 0,
            offsets: vec![0; requests.len() + 1],
            units: Vec::new(),
            distinct_units: 0,
            turns: Turns::default(),
        }
    };
    let same = |(at, request): (usize, &Request)| {
        workload.prompt.get(at) == Some(&request.input_toks) && workload.output.get(at) == Some(&request.output_toks)
    };
    if workload.len() != requests.len() || !requests.iter().enumerate().all(same) {
        return Err(Error::data("the requests of the dataset are not those of the run")
            .hint("both must hold the same requests in the same order"));
    }
    workload.arrival_ns = arrival_ns;
    Ok(workload)
}

fn dataset(folder: &Path, meta: &Meta) -> Option<PathBuf> {
    let name = Path::new(meta.dataset_path.as_ref()?).file_name()?;
    let beside = [Some(folder), folder.parent()].into_iter().flatten().map(|place| place.join(name));
    beside.into_iter().find(|path| path.is_file())
}

fn stored(path: &Path) -> Result<Workload> {
    let place = tempfile::tempdir().map_err(|error| Error::run(format!("cannot make a folder: {error}")))?;
    let mut store = Store::open_or_create(&place.path().join("store"))?;
    ingest(&mut store, &[path.to_string_lossy().into_owned()], &Options::standard(), &|_| {})?;
    from_requests_by("measured", &store.read(&REQUESTS)?, Times::Arrivals)
}

fn felt(request: &Request) -> Felt {
    let (ttft, e2e) = (request.first_token_ts - request.queued_ts, request.last_token_ts - request.queued_ts);
    let later = request.output_toks.saturating_sub(1);
    Felt { ttft, e2e, tpot: (later > 0).then(|| (e2e - ttft) / f64::from(later)) }
}

fn replayed(found: &Found, workload: &Workload) -> Vec<Option<Felt>> {
    let seconds = |ns: Option<i64>| ns.map(|ns| ns as f64 / 1e9);
    let of = |(at, served): (usize, &engine::serving::Served)| {
        let (ttft, e2e) = (seconds(served.ttft_ns)?, seconds(served.e2e_ns)?);
        let later = workload.output[at].saturating_sub(1);
        Some(Felt { ttft, e2e, tpot: (later > 0).then(|| (e2e - ttft) / f64::from(later)) })
    };
    found.outcome.served.iter().enumerate().map(of).collect()
}

/// Means, quantiles, and the median and 90th percentile over requests of the absolute relative error.
fn latencies(name: &str, measured: &[Felt], replayed: &[Option<Felt>]) -> Vec<Line> {
    let pairs: Vec<(Felt, Felt)> = measured.iter().zip(replayed).filter_map(|(a, b)| Some((*a, (*b)?))).collect();
    let mut lines = Vec::new();
    let figures: [(&str, fn(&Felt) -> Option<f64>); 3] =
        [("ttft", |felt| Some(felt.ttft)), ("tpot", |felt| felt.tpot), ("e2e", |felt| Some(felt.e2e))];
    for (figure, of) in figures {
        let known: Vec<(f64, f64)> = pairs.iter().filter_map(|(a, b)| Some((of(a)?, of(b)?))).collect();
        let (mut real, mut ours): (Vec<f64>, Vec<f64>) = known.iter().copied().unzip();
        let mut put = |what: &str, a: Option<f64>, b: Option<f64>| {
            lines.push(Line {
                of: name.to_owned(),
                figure: format!("{figure}_{what}"),
                unit: "s",
                count: known.len() as u64,
                measured: a,
                replayed: b,
                error: a.zip(b).map(|(a, b)| b / a - 1.0),
            });
        };
        put("mean", mean(&real), mean(&ours));
        real.sort_unstable_by(f64::total_cmp);
        ours.sort_unstable_by(f64::total_cmp);
        for (what, ratio) in [("p50", 0.5), ("p99", 0.99)] {
            put(what, quantile(&real, ratio), quantile(&ours, ratio));
        }
        let mut errors: Vec<f64> = known.iter().map(|(a, b)| (b / a - 1.0).abs()).collect();
        errors.sort_unstable_by(f64::total_cmp);
        for (what, error) in [("median", median(&mut errors)), ("p90", quantile(&errors, 0.9))] {
            lines.push(Line::of_error(name, format!("{figure}_{what}_error_by_request"), errors.len(), error));
        }
    }
    lines
}

/// Linear between ranks, as NumPy has it, which the benchmark uses.
fn quantile(sorted: &[f64], ratio: f64) -> Option<f64> {
    let at = ratio * (sorted.len().checked_sub(1)?) as f64;
    let (low, high) = (sorted.get(at.floor() as usize)?, sorted.get(at.ceil() as usize)?);
    Some(low + (high - low) * at.fract())
}

/// Root of the mean squared difference of the share of KV in use, second by second, in points.
fn occupancy(name: &str, folder: &Path, started: &str, requests: &[Request], found: &Found) -> Result<Option<Line>> {
    let series = text(&folder.join("timeseries.csv"))?;
    let first = requests.iter().map(|request| request.arrival_time).fold(f64::INFINITY, f64::min);
    let mut samples = Vec::new();
    for (number, line) in series.lines().enumerate().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let wrong = || Error::data(format!("timeseries.csv:{}: expected six numbers, found `{line}`", number + 1));
        let number = |at: usize| cells.get(at).and_then(|cell| cell.parse::<f64>().ok()).ok_or_else(wrong);
        samples.push((number(0)?, number(5)?));
    }
    if samples.iter().all(|&(_, percent)| percent == 0.0) {
        talk::note(&format!("{name}: the run did not record how much KV was in use"));
        return Ok(None);
    }
    // The series counts from the start of the run, the replay from the first request.
    let shift = since_midnight(started).map_or(0.0, |started| (first - started).rem_euclid(DAY_S));
    let of = |&(at, percent): &(f64, f64)| (100.0 * share_at(found, (at - shift) * 1e9) - percent).powi(2);
    let points = (samples.iter().map(of).sum::<f64>() / samples.len() as f64).sqrt();
    Ok(Some(Line {
        of: name.to_owned(),
        figure: "kv_in_use_rms".to_owned(),
        unit: "points",
        count: samples.len() as u64,
        measured: None,
        replayed: None,
        error: Some(points),
    }))
}

const DAY_S: f64 = 86_400.0;

/// Seconds since midnight of a time in UTC.
fn since_midnight(time: &str) -> Option<f64> {
    let clock = time.split_once('T')?.1.trim_end_matches('Z');
    let mut seconds = 0.0;
    for part in clock.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    Some(seconds)
}

/// Share of the KV memory that running requests hold at a time, one instance.
fn share_at(found: &Found, at_ns: f64) -> f64 {
    let stretches = &found.outcome.stretches;
    let next = stretches.partition_point(|stretch| (stretch.start_ns as f64) <= at_ns);
    let Some(at) = next.checked_sub(1) else { return 0.0 };
    let (stretch, before) = (&stretches[at], at.checked_sub(1).map_or(0, |at| stretches[at].left_bytes));
    let done = (at_ns - stretch.start_ns as f64) / (stretch.total_ns.max(1)) as f64;
    let held = if done > 1.0 {
        stretch.left_bytes as f64
    } else {
        before as f64 + (stretch.held_bytes as f64 - before as f64) * done
    };
    held / found.plan.capacity_bytes as f64
}

/// Blocks that the memory would leave, beside those that the engine found.
fn blocks(name: &str, scenario: &Scenario, source: &Source, meta: &Meta) -> Result<Option<Line>> {
    let Some(blocks) = meta.kv_cache.as_ref().and_then(|cache| cache.num_gpu_blocks) else { return Ok(None) };
    let free = Scenario { kv_blocks: None, ..scenario.clone() };
    let empty = Source { workload: few(&source.workload), steps: Vec::new(), trace: None, edited: None };
    let found = replay(&free, &empty)?;
    let block: u64 = (0..found.plan.groups.len()).map(|group| found.plan.block_bytes(group)).sum();
    let computed = (found.plan.capacity_bytes / block.max(1)) as f64;
    Ok(Some(Line {
        of: name.to_owned(),
        figure: "kv_blocks_computed".to_owned(),
        unit: "blocks",
        count: 1,
        measured: Some(f64::from(blocks)),
        replayed: Some(computed),
        error: Some(computed / f64::from(blocks) - 1.0),
    }))
}

/// The first request alone.
fn few(workload: &Workload) -> Workload {
    Workload {
        request_ids: workload.request_ids[..1].to_vec(),
        arrival_ns: vec![0],
        prompt: workload.prompt[..1].to_vec(),
        output: workload.output[..1].to_vec(),
        offsets: vec![0, 0],
        units: Vec::new(),
        turns: Turns::default(),
        ..workload.clone()
    }
}

fn details(name: &str, workload: &Workload, measured: &[Felt], replayed: &[Option<Felt>]) -> Result<RecordBatch> {
    let real =
        |of: fn(&Felt) -> Option<f64>| -> ArrayRef { Arc::new(measured.iter().map(of).collect::<Float64Array>()) };
    let ours = |of: fn(&Felt) -> Option<f64>| -> ArrayRef {
        Arc::new(replayed.iter().map(|felt| felt.as_ref().and_then(of)).collect::<Float64Array>())
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("run", Arc::new(StringArray::from(vec![name; workload.len()])) as ArrayRef, false),
        ("arrival_ns", Arc::new(Int64Array::from(workload.arrival_ns.clone())) as ArrayRef, false),
        ("prompt_tokens", Arc::new(UInt32Array::from(workload.prompt.clone())) as ArrayRef, false),
        ("output_tokens", Arc::new(UInt32Array::from(workload.output.clone())) as ArrayRef, false),
        ("measured_ttft_s", real(|felt| Some(felt.ttft)), true),
        ("replayed_ttft_s", ours(|felt| Some(felt.ttft)), true),
        ("measured_e2e_s", real(|felt| Some(felt.e2e)), true),
        ("replayed_e2e_s", ours(|felt| Some(felt.e2e)), true),
    ])?)
}
