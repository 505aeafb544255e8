//! `kvtoll replay`: stored requests under policies, on machines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{UInt32Type, UInt64Type};
use engine::error::{Error, Result, unknown};
use engine::policy::error::attention_error;
use engine::recording::{Recording, recordings};
use engine::replay::{Found, Mode, Run, Scenario, Source, replay, tables};
use engine::schema::canonical::{ATTENTION, KV_STATS, PREFILL_SCORES, RECORDINGS, REQUESTS, SOURCES, STEPS};
use engine::serving::CapturedStep;
use engine::workload::from_requests;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{Exit, print, talk};
use crate::output::Format;
use crate::scenario::{Spec, product, read};
use crate::sql;
use crate::store::Store;

/// Decode steps per row of `attention_error`.
const ERROR_STEPS: u32 = 32;

/// Arguments of `kvtoll replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    pub store: PathBuf,
    /// What to replay
    #[command(flatten)]
    pub wanted: Wanted,
}

/// What to replay; shared with `kvtoll run`. Repeated flags multiply.
#[derive(Debug, Clone, clap::Args)]
pub struct Wanted {
    /// A model preset or TOML file; repeat to compare
    #[arg(long, value_name = "MODEL")]
    pub model: Vec<String>,
    /// A policy stack such as `snapkv(budget=25%)+fp8`; repeat to compare
    #[arg(long, value_name = "POLICY")]
    pub policy: Vec<String>,
    /// A machine preset or TOML file with variations, such as `gb300*memory_bytes_per_s=2`; repeat to compare
    #[arg(long, value_name = "MACHINE")]
    pub machine: Vec<String>,
    /// A TOML file of scenarios, instead of the flags above
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["model", "policy", "machine"])]
    pub scenarios: Option<PathBuf>,
    /// The source to replay: format, file name or number
    #[arg(long, value_name = "SOURCE")]
    pub workload: Option<String>,
    /// `open` (arrivals) or `captured` (the trace's own steps)
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Arrival rate as a multiple of the trace's, such as `x0.5`
    #[arg(long, value_name = "xR")]
    pub rate: Option<String>,
    /// Accelerators per copy of the model
    #[arg(long, value_name = "N")]
    pub tensor_parallel: Option<u32>,
    /// Copies of the model
    #[arg(long, value_name = "N")]
    pub instances: Option<u32>,
    /// Number format of the weights: bf16, fp8 or nvfp4
    #[arg(long, value_name = "DTYPE")]
    pub weights: Option<String>,
    /// A price book; see `kvtoll list prices`
    #[arg(long, value_name = "BOOK")]
    pub prices: Option<String>,
    /// The serving engine's rules; see `kvtoll list engines`
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// Seed of everything random
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Threads to replay on; results do not depend on it
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Only say what would be replayed
    #[arg(long)]
    pub dry_run: bool,
}

impl Wanted {
    /// The flags as they were typed, each as one word group; threads are left out, since results do not depend on them.
    pub(crate) fn words(&self) -> Vec<String> {
        let quoted =
            |text: &str| if text.contains(['(', '*', ' ', '+']) { format!("'{text}'") } else { text.to_owned() };
        let mut words = Vec::new();
        for (flag, values) in [("model", &self.model), ("policy", &self.policy), ("machine", &self.machine)] {
            words.extend(values.iter().map(|value| format!("--{flag} {}", quoted(value))));
        }
        words.extend(self.scenarios.iter().map(|path| format!("--scenarios {}", quoted(&path.to_string_lossy()))));
        for (flag, value) in [
            ("workload", &self.workload),
            ("mode", &self.mode),
            ("rate", &self.rate),
            ("weights", &self.weights),
            ("prices", &self.prices),
            ("engine", &self.engine),
        ] {
            words.extend(value.iter().map(|value| format!("--{flag} {}", quoted(value))));
        }
        words.extend(self.tensor_parallel.map(|number| format!("--tensor-parallel {number}")));
        words.extend(self.instances.map(|number| format!("--instances {number}")));
        words.extend(self.seed.map(|number| format!("--seed {number}")));
        words
    }
}

/// Runs `kvtoll replay`.
pub fn run(args: &Args) -> Result<Exit> {
    let mut store = Store::open(&args.store)?;
    let Some(done) = carry_out(&mut store, &args.wanted)? else { return Ok(Exit::Done) };
    let session = sql::session(&store, Some(&done.run))?;
    print(&sql::run_named(&session, "summary", &[])?, Format::Auto, None, None)?;
    Ok(done.exit)
}

/// A run that was written.
#[derive(Debug)]
pub(crate) struct Done {
    pub run: String,
    pub exit: Exit,
}

/// Replays what is wanted and writes the run; `None` after a dry run.
pub(crate) fn carry_out(store: &mut Store, wanted: &Wanted) -> Result<Option<Done>> {
    let specs = specs(wanted)?;
    let (sources, scenarios) = resolve(store, &specs)?;
    if wanted.dry_run {
        for scenario in &scenarios {
            let workload = &sources[scenario.workload].workload;
            talk::note(&format!(
                "{}: {} requests of {}, {} under {} on {} accelerators of {}",
                scenario.name,
                workload.len(),
                workload.name,
                scenario.model.name,
                scenario.policy.name(),
                scenario.accelerators(),
                scenario.machine.name
            ));
        }
        return Ok(None);
    }
    let id = run_id(store, &scenarios)?;
    let errors = recorded_errors(store, &scenarios)?;
    let bar = talk::bar(None);
    bar.set_message(format!("replaying {} scenarios", scenarios.len()));
    let found = replay_all(&sources, &scenarios, wanted.threads)?;
    bar.finish_and_clear();
    let run = Run { id: &id, sources: &sources, scenarios: &scenarios, found: &found, errors: &errors };
    let mut transaction = store.begin();
    for (table, batches) in tables(&run)? {
        transaction.write_run(&id, table, &batches)?;
    }
    transaction.commit()?;
    Ok(Some(Done { exit: tell(&scenarios, &found), run: id }))
}

fn specs(wanted: &Wanted) -> Result<Vec<Spec>> {
    let common = Spec {
        workload: wanted.workload.clone(),
        mode: wanted.mode.clone(),
        engine: wanted.engine.clone(),
        rate: wanted.rate.clone(),
        tensor_parallel: wanted.tensor_parallel,
        instances: wanted.instances,
        weights: wanted.weights.clone(),
        prices: wanted.prices.clone(),
        seed: wanted.seed,
        ..Spec::default()
    };
    match &wanted.scenarios {
        // What is typed beside a file holds for all of its scenarios.
        Some(path) => Ok(read(path)?.into_iter().map(|spec| common.clone().over(&spec)).collect()),
        None => Ok(product(&common, &wanted.model, &wanted.policy, &wanted.machine)),
    }
}

/// Loads the sources that the scenarios name, each once, and puts presets in place of names.
fn resolve(store: &Store, specs: &[Spec]) -> Result<(Vec<Source>, Vec<Scenario>)> {
    let available = available(store)?;
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    let (mut sources, mut scenarios) = (Vec::new(), Vec::new());
    for spec in specs {
        let captured = spec.mode.as_deref() == Some("captured");
        let source = choose(&available, spec.workload.as_deref(), captured)?;
        let index = if let Some(&index) = numbers.get(&source.id) {
            index
        } else {
            sources.push(load(store, source)?);
            numbers.insert(source.id, sources.len() - 1);
            sources.len() - 1
        };
        scenarios.push(spec.resolve(index)?);
    }
    let baselines = scenarios.iter().filter(|scenario: &&Scenario| scenario.is_baseline).count();
    match (baselines, scenarios.first_mut()) {
        (0, Some(first)) => first.is_baseline = true,
        (0 | 1, _) => {}
        _ => return Err(Error::usage(format!("expected one scenario with `baseline = true`, found {baselines}"))),
    }
    for (at, scenario) in scenarios.iter().enumerate() {
        if scenarios[..at].iter().any(|other| other.name == scenario.name) {
            return Err(
                Error::usage(format!("two scenarios are called `{}`", scenario.name)).hint("give each its own `name`")
            );
        }
    }
    Ok((sources, scenarios))
}

/// A source of the store.
struct Available {
    id: u32,
    path: String,
    format: String,
}

fn available(store: &Store) -> Result<Vec<Available>> {
    let mut found = Vec::new();
    for batch in store.read(&SOURCES)? {
        let ids = column(&batch, "source_id")?.as_primitive::<UInt32Type>().clone();
        let (paths, formats) =
            (column(&batch, "path")?.as_string::<i32>(), column(&batch, "format")?.as_string::<i32>());
        found.extend((0..batch.num_rows()).map(|row| Available {
            id: ids.value(row),
            path: paths.value(row).to_owned(),
            format: formats.value(row).to_owned(),
        }));
    }
    Ok(found)
}

/// The source of this name; without a name the only one that suits the mode.
fn choose<'a>(available: &'a [Available], name: Option<&str>, captured: bool) -> Result<&'a Available> {
    let file = |source: &Available| Path::new(&source.path).file_name().map(|name| name.to_string_lossy().into_owned());
    let suits = |source: &&Available| match name {
        Some(name) => {
            source.format == name
                || source.path == name
                || file(source).as_deref() == Some(name)
                || source.id.to_string() == name
        }
        None => (source.format == "recording") == captured,
    };
    let fitting: Vec<&Available> = available.iter().filter(suits).collect();
    let listed: Vec<String> = fitting.iter().map(|source| format!("{} ({})", source.id, source.path)).collect();
    match (fitting.as_slice(), name) {
        ([one], _) => Ok(one),
        ([], Some(name)) => Err(unknown("workload", name, available.iter().map(|source| source.format.as_str()))),
        ([], None) => Err(Error::run("the store has no requests to replay")
            .hint("ingest a trace first: `kvtoll ingest FILE --into STORE`")),
        (_, _) => {
            Err(Error::usage(format!("expected one source to replay, found {}: {}", listed.len(), listed.join(", ")))
                .hint(format!("choose one: `--workload {}`", fitting[0].id)))
        }
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let found = batch.column_by_name(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::data(format!("the store's table has no column `{name}`")))
}

/// The rows of a batch whose `u64` column `name` satisfies the test.
fn rows_where(
    batches: Vec<RecordBatch>,
    keep: &dyn Fn(&RecordBatch) -> Result<BooleanArray>,
) -> Result<Vec<RecordBatch>> {
    batches.into_iter().map(|batch| Ok(filter_record_batch(&batch, &keep(&batch)?)?)).collect()
}

fn load(store: &Store, source: &Available) -> Result<Source> {
    let requests = rows_where(store.read(&REQUESTS)?, &|batch| {
        let ids = column(batch, "source_id")?.as_primitive::<UInt32Type>();
        Ok(ids.iter().map(|id| id.map(|id| id == source.id)).collect())
    })?;
    let name = format!(
        "{} ({})",
        source.format,
        Path::new(&source.path)
            .file_name()
            .map_or_else(|| source.path.clone(), |name| name.to_string_lossy().into_owned())
    );
    let is_recording = source.format == "recording";
    let requests = if is_recording { timeless(requests)? } else { requests };
    let workload = from_requests(&name, &requests)?;
    let steps = if is_recording { captured_steps(store, &workload)? } else { Vec::new() };
    Ok(Source { workload, steps })
}

/// Recorded requests have no arrivals; captured mode needs none, so they all count from zero.
fn timeless(batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let zeros = |batch: RecordBatch| {
        let (schema, mut columns, rows) = (batch.schema(), batch.columns().to_vec(), batch.num_rows());
        if let Some((index, _)) = schema.column_with_name("arrival_ns") {
            columns[index] = std::sync::Arc::new(arrow::array::Int64Array::from(vec![0; rows]));
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    };
    batches.into_iter().map(zeros).collect()
}

fn captured_steps(store: &Store, workload: &engine::workload::Workload) -> Result<Vec<CapturedStep>> {
    let index: BTreeMap<u64, u32> = workload.request_ids.iter().copied().zip(0..).collect();
    let mut steps = Vec::new();
    for batch in store.read(&STEPS)? {
        let requests = column(&batch, "request_id")?.as_primitive::<UInt64Type>();
        let engine_steps = column(&batch, "engine_step")?.as_primitive::<UInt64Type>();
        let phases = column(&batch, "phase")?.as_string::<i32>();
        let contexts = column(&batch, "context_tokens")?.as_primitive::<UInt32Type>();
        let new = column(&batch, "new_tokens")?.as_primitive::<UInt32Type>();
        for row in 0..batch.num_rows() {
            let Some(&request) = index.get(&requests.value(row)) else { continue };
            steps.push(CapturedStep {
                request,
                engine_step: engine_steps.is_valid(row).then(|| engine_steps.value(row)),
                is_prefill: phases.value(row) == "prefill",
                prompt: workload.prompt[request as usize],
                context: contexts.value(row),
                new_tokens: new.value(row),
            });
        }
    }
    Ok(steps)
}

/// The run's id: a hash of what goes in, so that the same inputs give the same run.
fn run_id(store: &Store, scenarios: &[Scenario]) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(concat!("kvtoll ", env!("CARGO_PKG_VERSION"), "\n"));
    for batch in store.read(&SOURCES)? {
        for sha256 in column(&batch, "sha256")?.as_string::<i32>().iter().flatten() {
            hash.update(sha256);
        }
    }
    for scenario in scenarios {
        let Scenario {
            name,
            is_baseline,
            workload,
            model,
            policy,
            machine,
            mode,
            rules,
            rate,
            parallel,
            dtype,
            prices,
            seed,
        } = scenario;
        // The stack goes in by its canonical name: its stages hold addresses of functions.
        hash.update(format!("{name:?} {is_baseline} {workload} {model:?} {} {machine:?} {mode:?} ", policy.name()));
        hash.update(format!("{rules:?} {rate:?} {parallel:?} {dtype:?} {prices:?} {seed}\n"));
    }
    let mut id = String::new();
    for byte in hash.finalize().iter().take(6) {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

/// What each policy loses on each recording of the store.
fn recorded_errors(store: &Store, scenarios: &[Scenario]) -> Result<Vec<RecordBatch>> {
    let recorded = load_recordings(store)?;
    let mut names = Vec::new();
    let mut batches = Vec::new();
    for scenario in scenarios {
        let name = scenario.policy.name();
        if names.contains(&name) {
            continue;
        }
        for recording in &recorded {
            match attention_error(&scenario.policy, recording, ERROR_STEPS) {
                Ok(batch) => batches.push(batch),
                Err(error) => {
                    talk::warn(&format!("no error of `{name}` on the recording of {}: {error}", recording.model));
                }
            }
        }
        names.push(name);
    }
    Ok(batches)
}

fn load_recordings(store: &Store) -> Result<Vec<Recording>> {
    let found = store.read(&RECORDINGS)?;
    let Some(first) = found.first() else { return Ok(Vec::new()) };
    let all = arrow::compute::concat_batches(&first.schema(), &found)?;
    if all.num_rows() == 0 {
        return Ok(Vec::new());
    }
    recordings(
        &all,
        &store.read(&REQUESTS)?,
        &store.read(&ATTENTION)?,
        &store.read(&PREFILL_SCORES)?,
        &store.read(&KV_STATS)?,
    )
}

fn replay_all(sources: &[Source], scenarios: &[Scenario], threads: Option<usize>) -> Result<Vec<Result<Found>>> {
    if threads == Some(0) {
        return Err(Error::usage("expected at least one thread, found 0"));
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.unwrap_or(0))
        .build()
        .map_err(|error| Error::run(format!("cannot start threads: {error}")))?;
    Ok(pool.install(|| scenarios.par_iter().map(|scenario| replay(scenario, &sources[scenario.workload])).collect()))
}

/// Says what failed and what is overloaded.
fn tell(scenarios: &[Scenario], found: &[Result<Found>]) -> Exit {
    let mut exit = Exit::Done;
    for (scenario, found) in scenarios.iter().zip(found) {
        match found {
            Ok(found) => {
                if let Some(load) = found.offered_load.filter(|&load| load > 1.0 && scenario.mode == Mode::Open) {
                    talk::warn(&format!(
                        "`{}` is offered {load:.2} times what it can serve, so its queue grows to the end; lower `--rate`",
                        scenario.name
                    ));
                }
            }
            Err(error) => {
                exit = Exit::Failed;
                talk::warn(&format!("`{}` failed: {error}", scenario.name));
                if let Some(advice) = error.advice() {
                    talk::note(&format!("  hint: {advice}"));
                }
            }
        }
    }
    exit
}
