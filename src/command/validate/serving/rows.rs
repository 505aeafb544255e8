//! Measured runs, a row each: closed loops of so many requests at a time.
//!
//! The rows list one length of prompts and one of outputs. The benchmark that measured them draws each request's lengths
//! evenly from 80% of those up to all of it, sends ten times as many requests as run at a time, and counts all of them
//! (`RANDOM_RANGE_RATIO` and `--num-prompts` of InferenceX; its issue 356). So does the replay, with a seed of its own: of
//! lengths that are all alike, requests that began together would end together for ever. `--lengths-from 100%` has them so.
//!
//! Rows name no flags of the engines; those that the benchmark's scripts launch them with are public, and the replay takes what
//! of them decides when prompts are computed: tokens per step, and how often an engine looks for arrivals.
//!
//! A row is replayed only if it gives every field; rows that lack some are counted by field and never guessed. What the
//! cost engine cannot price yet is counted by reason. The engines' memory settings are not given, so the KV of all requests
//! of a loop is taken to fit, as the benchmark kept so many running. Devices of which no surface was measured, and
//! disaggregated rows, which do not say over which link KV goes, stand apart as `extrapolated`. The concurrency of a
//! disaggregated row is its decode batch in each group of each decode instance, which is what the rows' own names say.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray};
use engine::cost::{BLOCK_TOKENS, Parallel};
use engine::error::{Error, Result};
use engine::policy::rng::Rng;
use engine::replay::{Scenario, Source, replay};
use engine::serving::Fate;
use engine::workload::{Turns, Workload};
use rayon::prelude::*;

use super::{Args, Line, mean, median, model_preset};
use crate::command::talk;
use crate::scenario::{Spec, rules};
use crate::surfaces::{Library, framework};

/// Fields that every row must give.
const FIELDS: [&str; 9] = [
    "backend",
    "backend_version",
    "model_path",
    "system",
    "precision",
    "isl",
    "osl",
    "gemm_quant_mode",
    "moe_quant_mode",
];

/// Fields of a pool of instances; with `prefill_` and `decode_` before them where prompts are computed apart.
const POOL: [&str; 6] = ["batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"];

/// How many instances a pool of its own has.
const WORKERS: &str = "num_workers";

/// What was measured.
const MEASURED: [&str; 2] = ["silicon_ttft_ms", "silicon_tpot_ms"];

/// Accelerators of a node of the machines that aggregated rows are of.
const NODE: u64 = 8;

/// Requests of a run, as a multiple of the concurrency.
const WAVES: u32 = 10;

/// A row by the names of its columns.
type Cells<'a> = BTreeMap<&'a str, &'a str>;

/// A row that gives everything.
#[derive(Debug, Clone)]
struct Row {
    id: String,
    model: String,
    system: String,
    engine: String,
    is_extrapolated: bool,
    /// How the instances that compute prompts are spread, if they are apart, and how many they are.
    prefill: Option<Parallel>,
    concurrency: u32,
    /// Which share of the lengths the shortest requests have.
    from: f64,
    isl: u32,
    osl: u32,
    ttft_ms: f64,
    tpot_ms: f64,
    spec: Spec,
}

/// What a replay of a row came to, milliseconds: means, and medians.
#[derive(Debug, Clone, Copy)]
struct Came {
    ttft_ms: f64,
    tpot_ms: f64,
    p50_ttft: f64,
    p50_tpot: f64,
}

pub(super) fn validate(args: &Args, path: &Path) -> Result<(Vec<Line>, Vec<RecordBatch>)> {
    let a_csv = "a CSV of runs has a header and a row per closed-loop run; see `kvtoll validate serving --help`";
    let bytes = std::fs::read(path).map_err(|error| Error::usage(format!("cannot read it: {error}")).hint(a_csv))?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::data("expected a CSV file in UTF-8, found other bytes").hint(a_csv))?;
    if text.lines().all(|line| line.trim().is_empty()) {
        return Err(Error::data("expected a header and rows, found an empty file").hint(a_csv));
    }
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let columns = FIELDS.iter().chain(&POOL).chain(&MEASURED).chain(&["id", "mode"]);
    if let Some(missing) = columns.into_iter().find(|name| !header.contains(name)) {
        return Err(Error::data(format!("expected a column `{missing}`, found none")).hint(a_csv));
    }
    let (mut rows, mut counts) = (Vec::new(), BTreeMap::new());
    for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != header.len() {
            return Err(Error::data(format!(
                "line {}: expected {} cells, found {}",
                number + 2,
                header.len(),
                cells.len()
            )));
        }
        let cells: Cells<'_> = header.iter().copied().zip(cells).collect();
        match row(args, &cells) {
            Ok(row) => rows.push(row),
            Err(reason) => *counts.entry(reason).or_insert(0_u64) += 1,
        }
    }
    let mut library = Library::of(args.surfaces.as_deref());
    let scenarios: Vec<Result<Scenario>> = rows.iter().map(|row| scenario(&mut library, row)).collect();
    let came: Vec<Result<Came>> =
        rows.par_iter().zip(&scenarios).map(|(row, scenario)| again(row, scenario.as_ref())).collect();
    for error in came.iter().filter_map(|came| came.as_ref().err()) {
        *counts.entry(format!("cannot be replayed: {error}")).or_insert(0) += 1;
    }
    let mut table = errors("plain", &rows, &came);
    let mut shown = came.clone();
    if args.fit {
        let fitted = fitted(&rows, &came);
        table.extend(errors("fitted", &rows, &fitted));
        shown = fitted;
    }
    table.extend(contradicted(&rows));
    table.extend(counts.into_iter().map(|(reason, count)| Line {
        of: "rows left out".to_owned(),
        figure: reason,
        unit: "rows",
        count,
        measured: None,
        replayed: None,
        error: None,
    }));
    Ok((table, vec![details(&rows, &came, &shown)?]))
}

/// The number format of the weights.
fn weights_of(mode: &str) -> std::result::Result<&'static str, String> {
    match mode {
        "fp8" | "fp8_block" => Ok("fp8"),
        "nvfp4" => Ok("nvfp4"),
        "int4_wo" => Ok("int4"),
        "bfloat16" | "bf16" | "float16" => Ok("bf16"),
        other => Err(format!("weights in `{other}`")),
    }
}

/// The rules of the serving engine.
fn engine_of(backend: &str) -> std::result::Result<&'static str, String> {
    match backend {
        "vllm" => Ok("vllm-0.19"),
        "sglang" => Ok("sglang-0.5"),
        "trtllm" => Ok("trtllm-1.0-max-utilization"),
        other => Err(format!("the engine `{other}`")),
    }
}

/// A row's cells by the names of their columns.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Cells<'a>);

impl<'a> Fields<'a> {
    fn text(self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }

    fn number(self, name: &str) -> std::result::Result<f64, String> {
        self.text(name).parse::<f64>().map_err(|_| format!("`{name}` is no number"))
    }

    fn whole(self, name: &str) -> std::result::Result<u32, String> {
        let value = self.number(name)?;
        let is_whole = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value);
        is_whole.then_some(value as u32).ok_or_else(|| format!("`{name}` is no whole number"))
    }

    /// The prefixes of the columns of its pools of instances; the pool that decodes comes last. Every column that a row of
    /// its mode needs is filled.
    fn pools(self) -> std::result::Result<&'static [&'static str], String> {
        let pools: &[&str] = match self.text("mode") {
            "agg" => &[""],
            "disagg" => &["prefill_", "decode_"],
            other => return Err(format!("the mode `{other}`")),
        };
        let is_apart = pools.len() > 1;
        let of_pools = pools.iter().flat_map(|pool| POOL.iter().map(move |name| format!("{pool}{name}")));
        let workers = pools.iter().filter(|_| is_apart).map(|pool| format!("{pool}{WORKERS}"));
        let mut needed = FIELDS.iter().chain(&MEASURED).map(|name| (*name).to_owned()).chain(of_pools).chain(workers);
        match needed.find(|name| self.text(name).is_empty()) {
            Some(missing) => Err(format!("{}missing `{missing}`", if is_apart { "disaggregated, " } else { "" })),
            None => Ok(pools),
        }
    }

    /// How an instance of a pool is spread, and the groups that the row lists for it.
    fn spread(self, pool: &str, is_apart: bool) -> std::result::Result<(Parallel, u32), String> {
        let of = |name: &str| self.whole(&format!("{pool}{name}"));
        let (listed, expert) = ([of("tp_size")?, of("attention_dp_size")?], of("moe_ep_size")?.max(1));
        let [tensor, data] = once(self.text("id"), listed, [of("moe_tp_size")?, expert], is_apart);
        let instances = if is_apart { of(WORKERS)? } else { 1 };
        Ok((Parallel { tensor, data, expert, pipeline: of("pp_size")?, instances }, listed[1]))
    }
}

/// The row, or why it is left out.
fn row(args: &Args, cells: &Cells<'_>) -> std::result::Result<Row, String> {
    let fields = Fields(cells);
    let text = |name: &str| fields.text(name);
    let pools = fields.pools()?;
    let is_apart = pools.len() > 1;
    let pool = pools[pools.len() - 1];
    let (parallel, groups) = fields.spread(pool, is_apart)?;
    let prefill = is_apart.then(|| fields.spread(pools[0], is_apart)).transpose()?.map(|(parallel, _)| parallel);
    let system = text("system").trim_end_matches("_sxm").to_owned();
    let weights = weights_of(text("gemm_quant_mode"))?;
    let engine = engine_of(text("backend"))?;
    // A batch is that of a group of those that the row lists.
    let batch = fields.whole(&format!("{pool}batch_size"))?;
    let concurrency = batch.checked_mul(groups).and_then(|all| all.checked_mul(parallel.instances));
    let concurrency = concurrency.filter(|all| *all <= u32::MAX / WAVES).ok_or("more requests at a time than fit")?;
    let (isl, osl) = (fields.whole("isl")?, fields.whole("osl")?);
    let launch = Launch {
        backend: text("backend"),
        model: text("model_path"),
        system: &system,
        weights,
        parallel,
        lengths: (isl, osl),
        concurrency,
    };
    let (step_tokens, look_steps) = if is_apart { (None, None) } else { launch.flags() };
    let split = prefill.map(|prefill| format!("{}:{}", prefill.instances, parallel.instances));
    Ok(Row {
        id: text("id").to_owned(),
        model: model_preset(text("model_path")),
        is_extrapolated: is_apart || !["h100", "h200", "b200"].contains(&system.as_str()),
        prefill,
        engine: engine.to_owned(),
        concurrency,
        from: args.lengths_from,
        isl,
        osl,
        ttft_ms: fields.number("silicon_ttft_ms")?,
        tpot_ms: fields.number("silicon_tpot_ms")?,
        spec: Spec {
            model: Some(model_preset(text("model_path"))),
            machine: Some(system.clone()),
            weights: Some(weights.to_owned()),
            engine: Some(args.engine.clone().unwrap_or_else(|| engine.to_owned())),
            tensor_parallel: Some(parallel.tensor),
            data_parallel: Some(parallel.data),
            expert_parallel: Some(parallel.expert),
            pipeline_parallel: Some(parallel.pipeline),
            split,
            mode: Some("closed".to_owned()),
            concurrency: Some(concurrency),
            running_requests: Some(concurrency.max(1)),
            step_tokens,
            look_steps,
            ..Spec::default()
        },
        system,
    })
}

/// What decides how the benchmark launches an engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launch<'a> {
    pub(super) backend: &'a str,
    pub(super) model: &'a str,
    pub(super) system: &'a str,
    pub(super) weights: &'a str,
    pub(super) parallel: Parallel,
    /// Of prompts and outputs.
    pub(super) lengths: (u32, u32),
    pub(super) concurrency: u32,
}

impl Launch<'_> {
    /// Tokens per step, and steps from one look for arrivals to the next, as the benchmark's own scripts set them; `None`
    /// where they leave the engine's default.
    ///
    /// SGLang: `--chunked-prefill-size`, and on B200 `--scheduler-recv-interval` of 30 from 16 requests at a time on and of 10
    /// below. TensorRT-LLM: `--max_num_tokens` of 8192 or as many as a prompt, the requests and 64 take; a prompt waits up to
    /// 60 steps for one on every rank where attention is split by requests (`attention_dp_config.timeout_iters`), and up to
    /// 40 for a step's worth of tokens in FP8 with 64 requests and more of 1024 tokens in and out
    /// (`batch_wait_timeout_iters`). Source: InferenceX, `benchmarks/single_node/*.sh`, as of 2025-10 to 2026-04.
    pub(super) fn flags(&self) -> (Option<u32>, Option<u32>) {
        let Self { concurrency, lengths: (isl, osl), parallel, .. } = *self;
        let (is_b200, is_glm) = (["b200", "b300"].contains(&self.system), self.model.contains("GLM"));
        match self.backend {
            "sglang" => {
                let is_small = self.weights != "nvfp4" && parallel.tensor == 4 && self.model.contains("DeepSeek");
                let chunk = match (is_b200, is_glm, self.weights) {
                    (true, ..) if is_small => 8192,
                    (true, false, "nvfp4") => 16384,
                    (false, true, _) => 8192,
                    (false, ..) if self.model.contains("Qwen") => 16384,
                    _ => 32768,
                };
                let look = match concurrency {
                    _ if !is_b200 || is_glm => None,
                    16.. if !is_small => Some(30),
                    _ => Some(10),
                };
                (Some(chunk), look)
            }
            "trtllm" => {
                let most = concurrency.saturating_add(isl).saturating_add(127) / 64 * 64;
                let gathers = self.weights == "fp8" && is_b200 && (isl, osl) == (1024, 1024) && concurrency >= 64;
                let look = match (parallel.data > 1, gathers) {
                    (true, _) => Some(60),
                    (false, true) => Some(40),
                    _ => None,
                };
                (Some(most.max(8192)), look)
            }
            _ => (None, None),
        }
    }
}

/// Tensor and data parallelism of attention, each accelerator once. Rows of engines that were started with as many expert
/// parts as accelerators have the square of their number: `..._tp8_ep8_920` says 64 in `tp_size`, 8 in `moe_tp_size` and 8 in
/// `moe_ep_size`. They are told by their id, or by an instance of its own that is larger than a node of eight: four by two
/// parts are four accelerators.
pub(super) fn once(id: &str, listed: [u32; 2], [moe_tensor, expert]: [u32; 2], is_apart: bool) -> [u32; 2] {
    let [tensor, data] = listed;
    let count = u64::from(tensor) * u64::from(data);
    if expert < 2 || moe_tensor != expert || count != u64::from(expert).pow(2) {
        return listed;
    }
    let is_told = [format!("_tp{expert}_ep{expert}_"), format!("_tp{expert}_0_ep{expert}_0_")];
    let is_squared = is_told.iter().any(|told| format!("{id}_").contains(told)) || (!is_apart && count > NODE);
    match is_squared {
        true if data == 1 => [expert, 1],
        true if tensor == 1 => [1, expert],
        _ => listed,
    }
}

/// How many rows have a twin that gives the same in every field and took more than 1.2 times as long a token, or less than
/// that: something decides that no field tells, such as drafting by heads that predict several tokens. No replay can be
/// right about both, and the mean over such rows of half of what lies between the two is the least error that can be had.
fn contradicted(rows: &[Row]) -> Option<Line> {
    let mut alike: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_extrapolated) {
        let given = format!("{:?} {} {} {:?}", row.spec, row.isl, row.osl, row.prefill);
        alike.entry(given).or_default().push(row.tpot_ms);
    }
    let (mut count, mut errors) = (0, Vec::new());
    for times in alike.values() {
        let (least, most) = times.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &t| (low.min(t), high.max(t)));
        if most > 1.2 * least {
            count += times.len();
            errors.extend(times.iter().map(|_| (most - least) / (most + least)));
        }
    }
    let name = "rows that a row of the same fields contradicts";
    (count > 0).then(|| Line::of_error(name, "tpot_least_error".to_owned(), count, mean(&errors)))
}

fn scenario(library: &mut Library, row: &Row) -> Result<Scenario> {
    let mut scenario = row.spec.resolve(0)?;
    let engine = framework(scenario.rules.name);
    scenario.measured = library.measured(&scenario.machine, engine, &scenario.model, scenario.parallel)?;
    if let (Some(parallel), Some(prefill)) = (row.prefill, &mut scenario.prefill) {
        prefill.parallel = parallel;
        prefill.measured = library.measured(&prefill.machine, engine, &scenario.model, parallel)?;
        // Rows do not name the link: the farthest whose bandwidth is known.
        let known = prefill.machine.links.iter().rev().find(|link| link.way_bytes_per_s.is_some());
        prefill.link = known.map_or_else(|| prefill.link.clone(), |link| link.name.clone());
    }
    Ok(scenario)
}

/// Replays a row.
fn again(row: &Row, scenario: std::result::Result<&Scenario, &Error>) -> Result<Came> {
    let mut scenario = scenario.map_err(Clone::clone)?.clone();
    let requests = row.concurrency * WAVES;
    let each = row.isl.saturating_add(row.osl).div_ceil(BLOCK_TOKENS).saturating_add(1);
    scenario.kv_blocks = Some(row.concurrency.saturating_mul(each).saturating_add(scenario.rules.spare_blocks));
    let source = Source { workload: drawn(requests, row), steps: Vec::new(), trace: None, edited: None };
    let found = replay(&scenario, &source)?;
    let (mut ttft, mut tpot) = (Vec::new(), Vec::new());
    for (served, output) in found.outcome.served.iter().zip(&source.workload.output) {
        if served.fate != Fate::Finished {
            return Err(Error::run("its requests do not fit in memory"));
        }
        let (Some(first), Some(last)) = (served.ttft_ns, served.e2e_ns) else { continue };
        ttft.push(first as f64 / 1e6);
        if *output > 1 {
            tpot.push((last - first) as f64 / 1e6 / f64::from(output - 1));
        }
    }
    let unknown = || Error::run("it has no request of several tokens");
    Ok(Came {
        ttft_ms: mean(&ttft).ok_or_else(unknown)?,
        tpot_ms: mean(&tpot).ok_or_else(unknown)?,
        p50_ttft: median(&mut ttft).ok_or_else(unknown)?,
        p50_tpot: median(&mut tpot).ok_or_else(unknown)?,
    })
}

/// Lengths drawn evenly from a share of `most` up to all of it; at least a token, as the benchmark asks for.
pub(super) fn lengths(rng: &mut Rng, count: usize, most: u32, from: f64) -> Vec<u32> {
    let least = (f64::from(most) * from) as u32;
    let width = f64::from(most - least) + 1.0;
    (0..count).map(|_| least.saturating_add((rng.uniform() * width) as u32).clamp(1, most.max(1))).collect()
}

/// The requests of a run.
fn drawn(requests: u32, row: &Row) -> Workload {
    let (count, mut rng) = (requests as usize, Rng::new(0));
    let prompt = lengths(&mut rng, count, row.isl, row.from);
    let output = lengths(&mut rng, count, row.osl, row.from);
    Workload {
        name: format!("{} tokens in, {} out", row.isl, row.osl),
        request_ids: (0..u64::from(requests)).collect(),
        arrival_ns: vec![0; count],
        prompt,
        output,
        unit_tokens: 0,
        offsets: vec![0; count + 1],
        units: Vec::new(),
        distinct_units: 0,
        turns: Turns::default(),
    }
}

/// Median and mean absolute relative errors, by device, by model and in all.
fn errors(how: &str, rows: &[Row], came: &[Result<Came>]) -> Vec<Line> {
    let mut groups: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for (row, came) in rows.iter().zip(came) {
        let Ok(came) = came else { continue };
        let pair = (came.ttft_ms / row.ttft_ms - 1.0, came.tpot_ms / row.tpot_ms - 1.0);
        let names = if row.is_extrapolated {
            let mode = if row.prefill.is_some() { "disaggregated " } else { "" };
            vec![format!("{how}: extrapolated {mode}{}", row.system), format!("{how}: extrapolated {mode}all")]
        } else {
            vec![
                format!("{how}: all"),
                format!("{how}: {}", row.system),
                format!("{how}: {}", row.engine),
                format!("{how}: {}", row.model),
            ]
        };
        for name in names {
            groups.entry(name).or_default().push(pair);
        }
    }
    let mut lines = Vec::new();
    for (name, pairs) in groups {
        for (figure, of) in [("ttft", (|pair| pair.0) as fn(&(f64, f64)) -> f64), ("tpot", |pair| pair.1)] {
            let signed: Vec<f64> = pairs.iter().map(of).collect();
            let mut absolute: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
            for (what, error) in
                [("mean_error", mean(&absolute)), ("median_error", median(&mut absolute)), ("bias", mean(&signed))]
            {
                lines.push(Line::of_error(&name, format!("{figure}_{what}"), pairs.len(), error));
            }
        }
    }
    lines
}

/// Each row with what the rows of other models under the same engine say of the time before the first token, in place of the
/// engine's own figure.
fn fitted(rows: &[Row], came: &[Result<Came>]) -> Vec<Result<Came>> {
    let mut keys: Vec<(String, String)> = rows.iter().map(|row| (row.engine.clone(), row.model.clone())).collect();
    keys.sort_unstable();
    keys.dedup();
    let own = |row: &Row| {
        let name = row.spec.engine.as_deref().unwrap_or(&row.engine);
        rules(name).map_or(0.0, |rules| rules.front_ns / 1e6)
    };
    let of = |key: (String, String)| {
        let is_other = |row: &Row| row.engine == key.0 && row.model != key.1 && row.prefill.is_none();
        let others = rows.iter().zip(came).filter(|(row, _)| is_other(row));
        let known: Vec<[f64; 2]> =
            others.filter_map(|(row, came)| Some([row.ttft_ms, came.as_ref().ok()?.ttft_ms - own(row)])).collect();
        let found = (front_ms(&known), known.len());
        (key, found)
    };
    let fronts: BTreeMap<(String, String), (f64, usize)> = keys.into_iter().map(of).collect();
    for ((engine, model), (ms, count)) in &fronts {
        talk::note(&format!(
            "{engine} without {model}: the first token comes {ms} ms later (calibrated on {count} rows)"
        ));
    }
    let later = |(row, came): (&Row, &Result<Came>)| {
        let more = fronts[&(row.engine.clone(), row.model.clone())].0 - own(row);
        came.clone().map(|came| Came { ttft_ms: came.ttft_ms + more, p50_ttft: came.p50_ttft + more, ..came })
    };
    rows.iter().zip(came).map(later).collect()
}

/// What passes before an engine sees a request and after its first token, ms: in steps of 5 the one with the least mean absolute
/// relative error of the time to the first token, measured and replayed; 0 without any.
pub(super) fn front_ms(known: &[[f64; 2]]) -> f64 {
    let error = |ms: f64| -> f64 { known.iter().map(|[measured, came]| ((came + ms) / measured - 1.0).abs()).sum() };
    let grid = (0..=80).map(|at| f64::from(at) * 5.0);
    let least = grid.map(|ms| (error(ms), ms)).min_by(|a, b| a.0.total_cmp(&b.0));
    least.map_or(0.0, |(_, ms)| ms)
}

fn details(rows: &[Row], plain: &[Result<Came>], shown: &[Result<Came>]) -> Result<RecordBatch> {
    let texts = |of: fn(&Row) -> String| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(of))) };
    let real = |of: fn(&Row) -> f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values(rows.iter().map(of))) };
    let ours = |came: &[Result<Came>], of: fn(&Came) -> f64| -> ArrayRef {
        Arc::new(came.iter().map(|came| came.as_ref().ok().map(of)).collect::<Float64Array>())
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("id", texts(|row| row.id.clone()), false),
        ("model", texts(|row| row.model.clone()), false),
        ("system", texts(|row| row.system.clone()), false),
        ("engine", texts(|row| row.engine.clone()), false),
        ("weights", texts(|row| row.spec.weights.clone().unwrap_or_default()), false),
        ("concurrency", real(|row| f64::from(row.concurrency)), false),
        ("mode", texts(|row| if row.prefill.is_some() { "disaggregated" } else { "aggregated" }.to_owned()), false),
        ("tensor_parallel", real(|row| f64::from(row.spec.tensor_parallel.unwrap_or(1))), false),
        ("prompt_tokens", real(|row| f64::from(row.isl)), false),
        ("output_tokens", real(|row| f64::from(row.osl)), false),
        ("measured_ttft_ms", real(|row| row.ttft_ms), false),
        ("plain_ttft_ms", ours(plain, |came| came.ttft_ms), true),
        ("replayed_ttft_ms", ours(shown, |came| came.ttft_ms), true),
        ("replayed_p50_ttft_ms", ours(shown, |came| came.p50_ttft), true),
        ("measured_tpot_ms", real(|row| row.tpot_ms), false),
        ("plain_tpot_ms", ours(plain, |came| came.tpot_ms), true),
        ("replayed_tpot_ms", ours(shown, |came| came.tpot_ms), true),
        ("replayed_p50_tpot_ms", ours(shown, |came| came.p50_tpot), true),
    ])?)
}
