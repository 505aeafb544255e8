//! `kvtoll reconcile`: what a capture measured, and the model beside it.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{UInt32Type, UInt64Type};
use clap::ValueEnum;
use engine::cost::{Parallel, Plan, plan};
use engine::error::{Error, Result};
use engine::machine::Machine;
use engine::model::WeightDtype;
use engine::policy::{Stack, shape};
use engine::reconcile::ranges::{Annotated, annotated, steps};
use engine::reconcile::rules::{Booth, Rules, parse as parse_rules};
use engine::reconcile::{accesses, address, fit, kernels, residency, tables, toll};
use engine::schema::Table;
use engine::schema::canonical::{REQUESTS, STEPS};
use engine::schema::captured::{ACCESSES, ANNOTATIONS, BLOCK_EVENTS, KERNELS};
use engine::unit::significant;

use super::{Exit, Shown, print, talk, write_file};
use crate::embedded;
use crate::output::{self, Format};
use crate::scenario::{dtype, load_machine, load_model};
use crate::store::Store;

/// Arguments of `kvtoll reconcile`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    pub store: PathBuf,
    /// What to show; all that the store has data for if not given
    #[arg(value_enum)]
    pub part: Option<Part>,
    /// Only this source, by its number
    #[arg(long, value_name = "N")]
    pub source: Option<u32>,
    /// Rules that put kernels into booths, instead of those of kvtoll
    #[arg(long, value_name = "FILE.toml")]
    pub rules: Option<PathBuf>,
    /// The model that was captured: a preset or TOML file
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The machine that was captured: a preset or TOML file, with variations
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<String>,
    /// The KV policy that was captured [default: full]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Number format of the weights: bf16, fp8 or nvfp4 [default: bf16]
    #[arg(long, value_name = "DTYPE")]
    pub weights: Option<String>,
    /// Accelerators per copy of the model [default: 1]
    #[arg(long, value_name = "N")]
    pub tensor_parallel: Option<u32>,
    /// Requests that decode together
    #[arg(long, value_name = "N")]
    pub batch: Option<u64>,
    /// Tokens of context of each
    #[arg(long, value_name = "N")]
    pub context: Option<u32>,
    /// Tokens that were generated in the capture; if not given, its steps times the batch
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// Where KV lies in memory, so that accesses become KV blocks
    #[arg(long, value_name = "FILE.toml")]
    pub address_map: Option<PathBuf>,
    /// Blocks of the replayed caches; if not given, as many as were resident at most
    #[arg(long, value_name = "BLOCKS")]
    pub capacity: Option<u64>,
    /// Stretches of events in which residency is shown [default: 20]
    #[arg(long, value_name = "N")]
    pub buckets: Option<usize>,
    /// Write the fit as a table `[calibrated]`, for `--machine 'h100*calibrated=fit.toml'` or for a machine file
    #[arg(long, value_name = "FILE.toml")]
    pub write_fit: Option<PathBuf>,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
}

/// Stretches of events if nobody says otherwise.
const BUCKETS: usize = 20;

/// What can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// GPU time and DRAM bytes by booth
    Booths,
    /// GPU time by name, with the rule that took it
    Kernels,
    /// GPU time by step, phase and layer
    Ranges,
    /// Measured time and bytes per token beside the model's (needs a model, a machine, batch and context)
    Toll,
    /// Bytes asked for, sectors moved, footprint and reuse distance of each launch
    Accesses,
    /// KV blocks that accesses touch, under LRU by capacity (needs an address map)
    Blocks,
    /// The references to KV blocks themselves (needs an address map)
    BlockUses,
    /// What an engine kept and evicted, and what LRU would have
    Residency,
    /// Host overhead and factors by booth, from captured steps (needs a model and a machine)
    Fit,
}

/// Runs `kvtoll reconcile`.
pub fn run(args: &Args) -> Result<Exit> {
    let format = args.shown.format()?;
    check(args)?;
    let store = Store::open(&args.store)?;
    known_source(&store, args)?;
    if let Some(part) = args.part {
        let table = show(&store, args, part)?;
        return print(&[table], format, args.shown.max_rows, args.shown.output.as_deref());
    }
    if !matches!(format, Format::Auto | Format::Table | Format::Md) {
        return Err(Error::usage(format!("expected one part for the format `{}`, found none", args.shown.format))
            .hint("name what to show, such as `kvtoll reconcile STORE booths`"));
    }
    everything(&store, args, format)
}

/// A flag, whether it is given, and the parts that use it.
type Use = (&'static str, bool, &'static [Part]);

fn uses(args: &Args) -> [Use; 12] {
    const BOOTHS: &[Part] = &[Part::Booths, Part::Kernels, Part::Ranges, Part::Toll];
    const MODEL: &[Part] = &[Part::Toll, Part::Fit];
    const TOLL: &[Part] = &[Part::Toll];
    [
        ("--rules", args.rules.is_some(), BOOTHS),
        ("--model", args.model.is_some(), MODEL),
        ("--machine", args.machine.is_some(), MODEL),
        ("--policy", args.policy.is_some(), MODEL),
        ("--weights", args.weights.is_some(), MODEL),
        ("--tensor-parallel", args.tensor_parallel.is_some(), MODEL),
        ("--batch", args.batch.is_some(), TOLL),
        ("--context", args.context.is_some(), TOLL),
        ("--tokens", args.tokens.is_some(), TOLL),
        ("--address-map", args.address_map.is_some(), &[Part::Blocks, Part::BlockUses]),
        ("--capacity", args.capacity.is_some(), &[Part::Blocks, Part::Residency]),
        ("--buckets", args.buckets.is_some(), &[Part::Residency]),
    ]
}

/// Refuses flags that would change nothing.
fn check_uses(args: &Args) -> Result<()> {
    let modelled = args.model.is_some() && args.machine.is_some();
    for (flag, _, parts) in uses(args).into_iter().filter(|(_, is_given, _)| *is_given) {
        let names: Vec<String> = parts.iter().map(|part| format!("`{}`", name(*part))).collect();
        let names = names.join(", ");
        match args.part {
            Some(part) if !parts.contains(&part) => {
                return Err(Error::usage(format!("the part `{}` does not use `{flag}`", name(part)))
                    .hint(format!("leave it out; used by {names}")));
            }
            None if parts.contains(&Part::Toll) && !parts.contains(&Part::Booths) && !modelled => {
                return Err(Error::usage(format!("expected `--model` and `--machine` with `{flag}`, found not both"))
                    .hint(format!("what was captured is put beside a model by {names}")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Looks at what can be wrong without the data.
fn check(args: &Args) -> Result<()> {
    if args.write_fit.is_some() && args.part.is_some_and(|part| part != Part::Fit) {
        return Err(
            Error::usage("`--write-fit` writes what the part `fit` finds").hint("leave the part out, or name `fit`")
        );
    }
    check_uses(args)?;
    if args.tokens == Some(0) || args.tensor_parallel == Some(0) || args.buckets == Some(0) {
        return Err(Error::usage("expected `--tokens`, `--tensor-parallel` and `--buckets` above 0, found 0"));
    }
    rules(args).map(|_| ())
}

/// Refuses a source that the store does not have.
fn known_source(store: &Store, args: &Args) -> Result<()> {
    let sources = &store.manifest().sources;
    match args.source {
        Some(wanted) if !sources.iter().any(|source| source.id == wanted) => {
            let last = sources.len().saturating_sub(1);
            Err(Error::usage(format!("expected a source from 0 to {last}, found {wanted}"))
                .hint(format!("`kvtoll query {} sources` lists them", args.store.display())))
        }
        _ => Ok(()),
    }
}

/// All parts for which there is data and, where they need it, a model: one table after another, each under its name.
fn everything(store: &Store, args: &Args, format: Format) -> Result<Exit> {
    let has = |table: &'static Table| -> Result<bool> {
        match args.source {
            Some(_) if table.column("source_id").is_some() => {
                let mut found = false;
                each(store, args, table, &mut |batch| {
                    found |= batch.num_rows() > 0;
                    Ok(())
                })?;
                Ok(found)
            }
            _ => Ok(!store.files(table.name).is_empty()),
        }
    };
    let modelled = args.model.is_some() && args.machine.is_some();
    let has_map = args.address_map.is_some();
    let (has_kernels, has_accesses, has_steps) = (has(&KERNELS)?, has(&ACCESSES)?, has(&STEPS)?);
    if args.write_fit.is_some() && !(has_steps && modelled) {
        return Err(Error::usage(
            "expected captured steps, a model and a machine for `--write-fit`, found not all of them",
        )
        .hint("give `--model` and `--machine`, and ingest a recording whose steps have durations"));
    }
    let parts = [
        (Part::Booths, has_kernels),
        (Part::Ranges, has_kernels && has(&ANNOTATIONS)?),
        (Part::Toll, has_kernels && modelled && args.batch.is_some() && args.context.is_some()),
        (Part::Accesses, has_accesses),
        (Part::Blocks, has_accesses && has_map),
        (Part::Residency, has(&BLOCK_EVENTS)?),
        (Part::Fit, has_steps && modelled),
    ];
    let mut text = Vec::new();
    let is_terminal = args.shown.output.is_none() && std::io::stdout().lock().is_terminal();
    let options = output::Options::on_stdout(format, args.shown.max_rows, is_terminal);
    for (part, _) in parts.iter().filter(|(_, wanted)| *wanted) {
        let table = show(store, args, *part)?;
        let title = if format == Format::Md { format!("## {}\n\n", name(*part)) } else { format!("{}\n", name(*part)) };
        if !text.is_empty() {
            text.push(b'\n');
        }
        text.extend_from_slice(title.as_bytes());
        output::write(&[table], options, &mut text)?;
    }
    if text.is_empty() {
        return Err(Error::run(
            "the store has no captured kernels, accesses, KV events or steps that could be reconciled",
        )
        .hint("ingest a capture first: `kvtoll list formats`"));
    }
    match args.shown.output.as_deref().filter(|path| path.as_os_str() != "-") {
        Some(path) => write_file(path, &text)?,
        None => {
            output::text(&String::from_utf8_lossy(&text), &mut std::io::stdout().lock())?;
        }
    }
    Ok(Exit::Done)
}

/// The name of a part as it is typed.
fn name(part: Part) -> String {
    part.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn show(store: &Store, args: &Args, part: Part) -> Result<RecordBatch> {
    match part {
        Part::Booths => {
            let found = Found::read(store, args)?;
            found.tell();
            tables::booths(&found.kernels, &found.booths)
        }
        Part::Kernels => {
            let found = Found::read(store, args)?;
            tables::names(&found.kernels, &found.booths, &found.rules)
        }
        Part::Ranges => {
            let found = Found::read(store, args)?;
            let annotated = annotations(store, args)?;
            if annotated.ranges.is_empty() {
                talk::note("no annotation is named as a step, a phase or a layer, so kernels have none");
            }
            tables::ranges(&found.kernels, &found.booths, &annotated)
        }
        Part::Toll => beside(store, args),
        Part::Accesses => {
            let mut sums = accesses::Sums::default();
            each(store, args, &ACCESSES, &mut |batch| sums.take(&batch))?;
            tables::accesses(&sums.finish())
        }
        Part::Blocks => tables::blocks(&stream(store, args)?, args.capacity),
        Part::BlockUses => tables::block_uses(&stream(store, args)?),
        Part::Residency => {
            let events = residency::events(&rows(store, args, &BLOCK_EVENTS)?)?;
            if events.ignored > 0 {
                let count = events.ignored;
                talk::note(&format!("{count} events neither store, remove nor clear a block of known hash: left out"));
            }
            tables::residency(&residency::residency(&events, args.buckets.unwrap_or(BUCKETS), args.capacity))
        }
        Part::Fit => fitted(store, args),
    }
}

/// The rows of a table, of the source that is asked for.
fn rows(store: &Store, args: &Args, table: &'static Table) -> Result<Vec<RecordBatch>> {
    let mut found = Vec::new();
    each(store, args, table, &mut |batch| {
        found.push(batch);
        Ok(())
    })?;
    Ok(found)
}

/// As [`rows`], batch by batch.
fn each(
    store: &Store,
    args: &Args,
    table: &'static Table,
    take: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    store.each(table, &mut |batch| {
        let Some(source) = args.source else { return take(batch) };
        let ids = batch.column_by_name("source_id").and_then(|column| column.as_primitive_opt::<UInt32Type>());
        let ids = ids.ok_or_else(|| Error::data(format!("table `{}` has no `source_id`", table.name)))?;
        let keep = ids.iter().map(|id| id.map(|id| id == source)).collect();
        take(filter_record_batch(&batch, &keep)?)
    })
}

fn read_text(what: &str, path: &Path) -> Result<String> {
    let shown = path.display();
    std::fs::read_to_string(path).map_err(|error| Error::usage(format!("cannot read the {what} `{shown}`: {error}")))
}

fn rules(args: &Args) -> Result<Rules> {
    match &args.rules {
        Some(path) => parse_rules(&read_text("rules", path)?, &path.to_string_lossy()),
        None => parse_rules(embedded::KERNEL_RULES, "presets/kernels.toml"),
    }
}

fn annotations(store: &Store, args: &Args) -> Result<Annotated> {
    annotated(&rows(store, args, &ANNOTATIONS)?)
}

/// The kernels and their booths.
struct Found {
    rules: Rules,
    kernels: kernels::Kernels,
    booths: Vec<Booth>,
}

impl Found {
    fn read(store: &Store, args: &Args) -> Result<Self> {
        let rules = rules(args)?;
        let kernels = kernels::kernels(&rows(store, args, &KERNELS)?)?;
        if kernels.rows.is_empty() {
            let of = args.source.map_or_else(|| "the store".to_owned(), |source| format!("source {source}"));
            return Err(Error::run(format!("{of} has no captured kernels"))
                .hint("ingest a capture first: `kvtoll list formats`"));
        }
        let booths = kernels::booths(&kernels, &rules);
        Ok(Self { rules, kernels, booths })
    }

    /// The captures that they are from.
    fn sources(&self) -> BTreeSet<u32> {
        self.kernels.rows.iter().map(|kernel| kernel.source).collect()
    }

    /// What the sums leave open: time that no rule knows, and counters that the capture lacks.
    fn tell(&self) {
        let (mut rows, mut time, mut unknown) = (0, 0, 0);
        for ((booth, category), sum) in kernels::by_booth(&self.kernels, &self.booths) {
            if matches!(category, kernels::Category::Kernel | kernels::Category::Collective) {
                (rows, time) = (rows + sum.rows, time + sum.time);
                unknown += if booth == Booth::Unclassified { sum.time } else { 0 };
            }
        }
        let captures = self.sources().len();
        if captures > 1 {
            talk::note(&format!("kernels of {captures} captures are added up; `--source` shows one"));
        }
        let devices = self.kernels.devices();
        talk::note(&format!("{rows} kernels on {devices} devices took {time} ns, of which no rule knows {unknown} ns"));
        for counter in kernels::missing_counters(&self.kernels) {
            talk::note(&format!("the capture lacks a counter: {counter}"));
        }
    }
}

/// What was captured, as the cost engine sees it.
struct Modelled {
    machine: Machine,
    plan: Plan,
    dtype: WeightDtype,
    name: String,
}

fn modelled(args: &Args) -> Result<Modelled> {
    let needed = |what: &str, value: &Option<String>| {
        value.clone().ok_or_else(|| {
            Error::usage(format!("expected the {what} that was captured, found none"))
                .hint(format!("give `--{what}`; `kvtoll list {what}s` shows the presets"))
        })
    };
    let (model, machine) =
        (load_model(&needed("model", &args.model)?)?, load_machine(&needed("machine", &args.machine)?)?);
    let stack = Stack::parse(args.policy.as_deref().unwrap_or("full"))?;
    let dtype = dtype(args.weights.as_deref().unwrap_or("bf16"))?;
    let parallel = Parallel::tensor(tensor_parallel(args));
    let plan = plan(&model, &shape(&stack, &model)?, &machine, dtype, parallel)?;
    let name = format!("{} under {} on {} of {}", model.name, stack.name(), parallel.tensor, machine.name);
    Ok(Modelled { machine, plan, dtype, name })
}

fn tensor_parallel(args: &Args) -> u32 {
    args.tensor_parallel.unwrap_or(1)
}

/// Measured beside modelled.
fn beside(store: &Store, args: &Args) -> Result<RecordBatch> {
    let model = modelled(args)?;
    let (Some(batch), Some(context)) = (args.batch, args.context) else {
        return Err(Error::usage("expected the batch and the context that were captured, found none")
            .hint("give `--batch` (requests that decode together) and `--context` (tokens of each)"));
    };
    let step = toll::decode_step(&model.plan, batch, context)?;
    let found = Found::read(store, args)?;
    let sources = found.sources();
    if sources.len() > 1 {
        let sources: Vec<String> = sources.iter().map(u32::to_string).collect();
        return Err(Error::usage(format!(
            "expected one capture to compare with the model, found kernels of the sources {}",
            sources.join(", ")
        ))
        .hint("choose one with `--source`"));
    }
    found.tell();
    let tokens = match args.tokens {
        Some(tokens) => tokens,
        None => tokens_of_steps(store, args, batch)?,
    };
    talk::note(&format!(
        "per token of {tokens}, beside a decode step of {batch} requests with {context} tokens each: {}",
        model.name
    ));
    tables::toll(&found.kernels, &found.booths, &step, (tokens, batch, tensor_parallel(args)))
}

/// Each step of the capture gives every request a token.
fn tokens_of_steps(store: &Store, args: &Args, batch: u64) -> Result<u64> {
    let steps = steps(&annotations(store, args)?);
    talk::note(&format!("the capture has {steps} steps, each of which gives {batch} requests a token"));
    steps.checked_mul(batch).filter(|tokens| *tokens > 0).ok_or_else(|| {
        Error::usage("expected the number of tokens that were generated, found none, and the capture names no steps")
            .hint("give `--tokens`")
    })
}

fn stream(store: &Store, args: &Args) -> Result<address::BlockStream> {
    let Some(path) = &args.address_map else {
        return Err(Error::usage("expected an address map, found none")
            .hint("give `--address-map FILE.toml`: regions with `base`, `block_tokens` and `layout`"));
    };
    let map = address::parse(&read_text("address map", path)?, &path.to_string_lossy())?;
    let mut stream = address::BlockStream::default();
    each(store, args, &ACCESSES, &mut |batch| stream.take(&map, &batch))?;
    talk::note(&format!("{} sectors lie in the address map, {} do not", stream.mapped, stream.unmapped));
    Ok(stream)
}

fn fitted(store: &Store, args: &Args) -> Result<RecordBatch> {
    let model = modelled(args)?;
    let requests = rows(store, args, &REQUESTS)?;
    let timed = fit::timed(&steps_of(store, args, &requests)?, &requests)?;
    for (count, why) in [(timed.untimed, "their duration is unknown"), (timed.incomplete, "their batch is not whole")] {
        if count > 0 {
            talk::note(&format!("{count} captured steps are left out: {why}"));
        }
    }
    let found = fit::fit(&model.plan, &timed)?;
    let percent = |ratio: f64| significant(ratio * 100.0);
    talk::note(&format!(
        "fitted to {} steps: host {} ns per step; absolute error on the same steps {}% at the median and {}% at p90, \
         before {}% and {}%",
        found.steps,
        found.host_ns.round(),
        percent(found.after.median),
        percent(found.after.p90),
        percent(found.before.median),
        percent(found.before.p90)
    ));
    if let Some(path) = &args.write_fit {
        let (text, notes) = fit::calibrated(&found, &model.plan, &model.machine, model.dtype, &model.name);
        for note in &notes {
            talk::warn(note);
        }
        write_file(path, text.as_bytes())?;
    }
    tables::fit(&found)
}

/// The steps of these requests.
fn steps_of(store: &Store, args: &Args, requests: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
    let steps = store.read(&STEPS)?;
    if args.source.is_none() {
        return Ok(steps);
    }
    let ids = |batch: &RecordBatch| {
        let column = batch.column_by_name("request_id").and_then(|column| column.as_primitive_opt::<UInt64Type>());
        column.cloned().ok_or_else(|| Error::data("a table of steps or requests has no `request_id`"))
    };
    let mut known: Vec<u64> = Vec::new();
    for batch in requests {
        known.extend_from_slice(ids(batch)?.values());
    }
    known.sort_unstable();
    let mut kept = Vec::new();
    for batch in steps {
        let keep = ids(&batch)?.iter().map(|id| id.map(|id| known.binary_search(&id).is_ok())).collect();
        kept.push(filter_record_batch(&batch, &keep)?);
    }
    Ok(kept)
}

#[cfg(test)]
mod tests;
