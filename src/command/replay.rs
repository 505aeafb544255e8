//! `kvtoll replay`: stored requests under policies, on machines.

pub(super) mod below;
mod news;
pub(super) mod sources;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use arrow::array::{AsArray, RecordBatch};
use clap::Parser;
use engine::error::{Error, Result};
use engine::model::Model;
use engine::policy::{ErrorBudget, Measured, Stack};
use engine::prices::PriceBook;
use engine::recording::Recording;
use engine::replay::{Found, Run, Scenario, Source, Toll, edit, replay, tables, toll_of, variations};
use engine::schema::canonical::SOURCES;
use engine::schema::hierarchy::{ATTENTION_READS, EQUAL_COST};
use engine::schema::result::MISS_RATIO;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use self::news::tell;
use self::sources::{Load, available, choose, column, load, tell_pauses, with_requests};
use super::cache::curve;
use super::recorded::{self, Way};
use super::{Exit, print, talk};
use crate::output::Format;
use crate::scenario::{Spec, load_api_prices, load_prices, product, read};
use crate::store::Store;
use crate::surfaces::{Library, framework};
use crate::{embedded, scenario, shipped, sql};

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
    /// A model preset, a TOML file or a Hugging Face `config.json`; repeat to compare
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
    /// The baseline and the four routes that ship: LPX, TurboQuant, memory, and all of them; see `kvtoll list routes`
    #[arg(long, conflicts_with_all = ["policy", "machine", "scenarios"])]
    pub routes: bool,
    /// The source to replay: format, file name or number
    #[arg(long, value_name = "SOURCE")]
    pub workload: Option<String>,
    /// `open` (arrivals), `captured` (the trace's own steps), `closed` (so many requests at a time) or `session` (a turn
    /// comes when the one before it has ended, after its recorded pause)
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// What to take in `--mode session` for pauses that are not recorded: `starts` (as long after the start of the turn
    /// before as recorded, or when that has ended) or a time such as `5s`
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub think_time: Option<String>,
    /// Requests at a time in `--mode closed`
    #[arg(long, value_name = "N")]
    pub concurrency: Option<u32>,
    /// Who gets a request: `round-robin`, `least-loaded`, `prefix` (who has most of the prompt cached) or `session` (who
    /// served the turn before)
    #[arg(long, value_name = "RULE")]
    pub routing: Option<String>,
    /// Arrival rate as a multiple of the trace's, such as `x0.5`
    #[arg(long, value_name = "xR")]
    pub rate: Option<String>,
    /// Accelerators per copy of the model
    #[arg(long, value_name = "N")]
    pub tensor_parallel: Option<u32>,
    /// Groups of accelerators per copy that attend to requests of their own; experts are spread over all of them
    #[arg(long, value_name = "N")]
    pub data_parallel: Option<u32>,
    /// Parts that the routed experts are dealt out to
    #[arg(long, value_name = "N")]
    pub expert_parallel: Option<u32>,
    /// Stages that the layers are dealt out to
    #[arg(long, value_name = "N")]
    pub pipeline_parallel: Option<u32>,
    /// Draft tokens and verify them together, such as `speculative(k=3,accept=0.7)`
    #[arg(long, value_name = "DRAFTING")]
    pub speculative: Option<String>,
    /// Copies of the model
    #[arg(long, value_name = "N")]
    pub instances: Option<u32>,
    /// Prefill and decode instances apart, such as `2:6`, instead of `--instances`; repeat to compare ratios
    #[arg(long, value_name = "P:D", conflicts_with = "instances")]
    pub split: Vec<String>,
    /// The machine of the prefill instances; that of the others if not given
    #[arg(long, value_name = "MACHINE")]
    pub prefill_machine: Option<String>,
    /// Accelerators per prefill instance; as many as per decode instance if not given
    #[arg(long, value_name = "N")]
    pub prefill_tensor_parallel: Option<u32>,
    /// The link over which KV goes to the decode instances, by a name or distance of the prefill machine's links
    /// [default: cross-rack]
    #[arg(long, value_name = "LINK")]
    pub kv_link: Option<String>,
    /// Number format of the weights: bf16, fp8, nvfp4, mxfp4 or int4; the published one if not given
    #[arg(long, value_name = "DTYPE")]
    pub weights: Option<String>,
    /// A folder of surfaces, as `kvtoll calibrate` writes it, in place of the shipped ones
    #[arg(long, value_name = "DIR")]
    pub surfaces: Option<PathBuf>,
    /// Price every operation by its closed form, not by what was measured on the machine
    #[arg(long, conflicts_with = "surfaces")]
    pub closed_form: bool,
    /// A price book; see `kvtoll list prices`
    #[arg(long, value_name = "BOOK")]
    pub prices: Option<String>,
    /// A book of token prices by the promise kept; see `kvtoll list tariffs`
    #[arg(long, value_name = "BOOK")]
    pub tariff: Option<String>,
    /// Engineer-days that a change asks of software, by floor, for the ledger: `hardware=30,algorithm=5`
    #[arg(long, value_name = "FLOOR=DAYS")]
    pub adaptation_days: Option<String>,
    /// The serving engine's rules; see `kvtoll list engines`
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// Tokens computed per engine step at most, in place of the engine's own
    #[arg(long, value_name = "N")]
    pub step_tokens: Option<u32>,
    /// Requests running at a time at most, in place of the engine's own
    #[arg(long, value_name = "N")]
    pub running_requests: Option<u32>,
    /// Steps from one look for arrivals to the next while requests only decode, in place of the engine's own: SGLang's
    /// `--scheduler-recv-interval`
    #[arg(long, value_name = "N")]
    pub look_steps: Option<u32>,
    /// KV blocks of 16 tokens per copy of the model, as an engine reports them; what the memory leaves if not given
    #[arg(long, value_name = "N")]
    pub kv_blocks: Option<u32>,
    /// Split the mass of recorded blocks over their tokens by `column_sum`, so that selections choose single tokens
    #[arg(long)]
    pub split_blocks: bool,
    /// Also compare hierarchies and links between accelerators at the cost of the baseline scenario
    #[arg(long)]
    pub equal_cost: bool,
    /// Replay the scenarios and work out nothing beside them, for long traces: no variations (`spec`, `stacking`, `ledger`), no
    /// lives and sizes of blocks (`blocks`, `miss_ratio`, `near_sizes`, ...), no reads of recorded attention
    #[arg(long, conflicts_with = "equal_cost")]
    pub quick: bool,
    /// Fail the scenarios whose policy errs more on the recordings of the store, such as `p99_lost_mass<=0.05`
    #[arg(long, value_name = "FIGURE<=MOST")]
    pub error_budget: Option<String>,
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
        let mut words = Vec::new();
        for (flag, values) in [("model", &self.model), ("policy", &self.policy), ("machine", &self.machine)] {
            words.extend(values.iter().map(|value| format!("--{flag} {}", quoted(value))));
        }
        words.extend(self.split.iter().map(|split| format!("--split {}", quoted(split))));
        words.extend(self.routes.then(|| "--routes".to_owned()));
        words.extend(self.scenarios.iter().map(|path| format!("--scenarios {}", quoted(&path.to_string_lossy()))));
        for (flag, value) in [
            ("workload", &self.workload),
            ("mode", &self.mode),
            ("think-time", &self.think_time),
            ("rate", &self.rate),
            ("weights", &self.weights),
            ("prices", &self.prices),
            ("tariff", &self.tariff),
            ("adaptation-days", &self.adaptation_days),
            ("engine", &self.engine),
            ("speculative", &self.speculative),
            ("routing", &self.routing),
            ("prefill-machine", &self.prefill_machine),
            ("kv-link", &self.kv_link),
            ("error-budget", &self.error_budget),
        ] {
            words.extend(value.iter().map(|value| format!("--{flag} {}", quoted(value))));
        }
        words.extend(self.surfaces.iter().map(|path| format!("--surfaces {}", quoted(&path.to_string_lossy()))));
        words.extend(self.closed_form.then(|| "--closed-form".to_owned()));
        words.extend(self.split_blocks.then(|| "--split-blocks".to_owned()));
        words.extend(self.equal_cost.then(|| "--equal-cost".to_owned()));
        words.extend(self.quick.then(|| "--quick".to_owned()));
        for (flag, value) in [
            ("tensor-parallel", self.tensor_parallel),
            ("data-parallel", self.data_parallel),
            ("expert-parallel", self.expert_parallel),
            ("pipeline-parallel", self.pipeline_parallel),
            ("instances", self.instances),
            ("prefill-tensor-parallel", self.prefill_tensor_parallel),
            ("concurrency", self.concurrency),
            ("step-tokens", self.step_tokens),
            ("running-requests", self.running_requests),
            ("look-steps", self.look_steps),
            ("kv-blocks", self.kv_blocks),
        ] {
            words.extend(value.map(|number| format!("--{flag} {number}")));
        }
        words
    }

    /// Looks at everything that can be wrong without the data.
    pub(crate) fn check(&self) -> Result<()> {
        self.error_budget.as_deref().map(ErrorBudget::parse).transpose()?;
        for spec in specs(self)? {
            spec.resolve(0)?;
        }
        Ok(())
    }

    /// Says what would be replayed, before there is data.
    pub(crate) fn describe(&self) -> Result<Exit> {
        for spec in specs(self)? {
            let scenario = spec.resolve(0)?;
            talk::note(&format!("{}: {}", scenario.name, in_words(&scenario)));
        }
        Ok(Exit::Done)
    }
}

/// A scenario in one line.
fn in_words(scenario: &Scenario) -> String {
    let (model, policy) = (&scenario.model.name, scenario.policy.name());
    format!("{model} under {policy} on {} accelerators of {}", scenario.accelerators(), scenario.machine.name)
}

/// Text as a shell takes it for one word.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Runs `kvtoll replay`.
pub fn run(args: &Args) -> Result<Exit> {
    let mut store = Store::open(&args.store)?;
    let Some(done) = carry_out(&mut store, &args.wanted)? else { return Ok(Exit::Done) };
    let session = sql::session(&store, Some(&done.run))?;
    print(&sql::run_named(&session, "headline", &[])?, Format::Auto, None, None)?;
    Ok(done.exit)
}

/// Carries out the SQL function `replay`: its flags are those of this command.
pub(super) fn by_sql(store: &Path, wish: &sql::Wish) -> Result<String> {
    let mut words = vec!["replay".to_owned()];
    let own = [("policy", &wish.policy), ("model", &wish.model), ("machine", &wish.machine)];
    let own = own.into_iter().map(|(name, value)| (name, Some(value)));
    for (name, value) in own.chain(wish.flags.iter().map(|(name, value)| (name.as_str(), value.as_ref()))) {
        // One word each, so that no value is taken for another flag.
        let value = value.map_or_else(String::new, |value| format!("={value}"));
        words.push(format!("--{}{value}", name.replace('_', "-")));
    }
    let typed = Typed::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let said = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Error::usage(format!("`replay`: {said}"))
            .hint("its flags are those of `kvtoll replay`, as in 'tensor_parallel=8'")
    })?;
    let mut store = Store::open(store)?;
    match carry_out(&mut store, &typed.wanted)? {
        Some(done) => Ok(done.run),
        None => Err(Error::usage("`replay`: a dry run has no rows")),
    }
}

/// The flags of a replay by themselves.
#[derive(Debug, Parser)]
struct Typed {
    #[command(flatten)]
    wanted: Wanted,
}

/// A run that was written.
#[derive(Debug)]
pub(crate) struct Done {
    pub run: String,
    pub exit: Exit,
}

/// Replays what is wanted and writes the run; `None` after a dry run.
pub(crate) fn carry_out(store: &mut Store, wanted: &Wanted) -> Result<Option<Done>> {
    let budget = wanted.error_budget.as_deref().map(ErrorBudget::parse).transpose()?;
    let specs = specs(wanted)?;
    let (mut sources, mut scenarios) = resolve(store, &specs)?;
    if wanted.dry_run {
        for scenario in &scenarios {
            let workload = &sources[scenario.workload].workload;
            let requests = workload.len();
            talk::note(&format!("{}: {requests} requests of {}, {}", scenario.name, workload.name, in_words(scenario)));
        }
        return Ok(None);
    }
    look_up(wanted, &specs, &mut scenarios)?;
    let id = run_id(store, &sources, &scenarios, (budget.as_ref(), wanted))?;
    let pool = pool(wanted.threads)?;
    let found = pool.install(|| recorded_errors(store, &mut scenarios, wanted.split_blocks));
    let (errors, organisation) = found.unwrap_or_else(|error| {
        talk::warn(&format!("the recordings of the store cannot be used, so no error is known: {error}"));
        Default::default()
    });
    let variations = if wanted.quick { Vec::new() } else { variations(&scenarios) };
    let most = sources.iter().map(|source| source.workload.len()).max().unwrap_or(0);
    if most > LONG && !wanted.quick {
        talk::note(&format!(
            "{most} requests take minutes with all that is worked out beside a replay; `--quick` leaves it out"
        ));
    }
    let bar = talk::bar(None);
    bar.set_message(format!("replaying {} scenarios and {} variations", scenarios.len(), variations.len()));
    // Equal stages send the same requests, whether a scenario or a variation has them.
    let count = scenarios.len();
    scenarios.extend(variations);
    let refused = edit_all(&mut sources, &mut scenarios);
    let variations = scenarios.split_off(count);
    let mut found = pool.install(|| replay_all(&sources, &scenarios, &refused[..count]));
    let tolls = pool.install(|| toll_all(&sources, &variations, &refused[count..]));
    if let Some(budget) = &budget {
        gate(budget, &errors, &scenarios, &mut found);
    }
    bar.finish_and_clear();
    let recorded = sources.iter().filter(|source| !wanted.quick && source.steps.is_empty() && source.edited.is_none());
    let curves = recorded.map(|source| curve(&source.workload));
    let curves: Vec<RecordBatch> = curves.collect::<Result<_>>()?;
    let run = Run {
        id: &id,
        sources: &sources,
        scenarios: &scenarios,
        found: &found,
        errors: &errors,
        organisation: &organisation,
        api_prices: &load_api_prices()?,
        variations: &variations,
        tolls: &tolls,
        books: &every_book()?,
        validation: &shipped::validation()?,
    };
    let (below, attention) = if wanted.quick { Default::default() } else { beside(store, &run, &pool)? };
    let equal = if wanted.equal_cost { below::equal_cost(&run)? } else { Vec::new() };
    let mut transaction = store.begin();
    transaction.write_run(&id, &MISS_RATIO, &curves)?;
    transaction.write_run(&id, &EQUAL_COST, &equal)?;
    transaction.write_run(&id, &ATTENTION_READS, &attention)?;
    for (table, batches) in below {
        transaction.write_run(&id, table, &batches)?;
    }
    tables(&run, &mut |table, batches| transaction.write_run(&id, table, batches))?;
    transaction.commit()?;
    Ok(Some(Done { exit: tell(&sources, &scenarios, &found), run: id }))
}

/// Requests above which a full replay is slow enough to speak of the quick one.
const LONG: usize = 250_000;

/// The tables of blocks and the memories below, and rows of `attention_reads`.
fn beside(store: &Store, run: &Run<'_>, pool: &rayon::ThreadPool) -> Result<(below::Tables, Vec<RecordBatch>)> {
    let below = below::tables(store, run)?;
    let attention = pool.install(|| super::cache::below::attention(store)).unwrap_or_else(|error| {
        talk::warn(&format!("where attention's mass is cannot be told: {error}"));
        Vec::new()
    });
    Ok((below, attention))
}

/// Every price book that ships, to compare owning with renting.
fn every_book() -> Result<Vec<PriceBook>> {
    embedded::PRICES.iter().map(|(name, _)| load_prices(name)).collect()
}

fn specs(wanted: &Wanted) -> Result<Vec<Spec>> {
    let common = Spec {
        workload: wanted.workload.clone(),
        mode: wanted.mode.clone(),
        think_time: wanted.think_time.clone(),
        engine: wanted.engine.clone(),
        concurrency: wanted.concurrency,
        routing: wanted.routing.clone(),
        step_tokens: wanted.step_tokens,
        running_requests: wanted.running_requests,
        look_steps: wanted.look_steps,
        kv_blocks: wanted.kv_blocks,
        rate: wanted.rate.clone(),
        tensor_parallel: wanted.tensor_parallel,
        data_parallel: wanted.data_parallel,
        expert_parallel: wanted.expert_parallel,
        pipeline_parallel: wanted.pipeline_parallel,
        speculative: wanted.speculative.clone(),
        instances: wanted.instances,
        prefill_machine: wanted.prefill_machine.clone(),
        prefill_tensor_parallel: wanted.prefill_tensor_parallel,
        kv_link: wanted.kv_link.clone(),
        weights: wanted.weights.clone(),
        prices: wanted.prices.clone(),
        tariff: wanted.tariff.clone(),
        adaptation_days: wanted.adaptation_days.clone(),
        closed_form: wanted.closed_form.then_some(true),
        ..Spec::default()
    };
    let splits: Vec<Spec> = if wanted.split.is_empty() {
        vec![common]
    } else {
        wanted.split.iter().map(|split| Spec { split: Some(split.clone()), ..common.clone() }).collect()
    };
    match &wanted.scenarios {
        Some(_) if splits.len() > 1 => {
            Err(Error::usage("expected one `--split` beside a scenario file, found several")
                .hint("write each `split` into the file as a scenario"))
        }
        // What is typed beside a file holds for all of its scenarios.
        Some(path) => {
            let read = read(path)?;
            let over = |spec: Spec| splits.first().map_or(spec.clone(), |common| common.clone().over(&spec));
            Ok(read.into_iter().map(over).collect())
        }
        None if wanted.routes && splits.len() > 1 => {
            Err(Error::usage("expected one `--split` with `--routes`, found several"))
        }
        None if wanted.routes => {
            let model = match &wanted.model[..] {
                [] => None,
                [model] => Some(model.clone()),
                _ => return Err(Error::usage("expected one `--model` with `--routes`, found several")),
            };
            let common = Spec { model, ..splits.into_iter().next().unwrap_or_default() };
            Ok(scenario::routes()?.into_iter().map(|spec| common.clone().over(&spec)).collect())
        }
        None => {
            let each = |common: &Spec| product(common, &wanted.model, &wanted.policy, &wanted.machine);
            Ok(splits.iter().flat_map(each).collect())
        }
    }
}

/// Loads the sources that the scenarios name, each once, and puts presets in place of names.
fn resolve(store: &Store, specs: &[Spec]) -> Result<(Vec<Source>, Vec<Scenario>)> {
    let available = with_requests(store, available(store)?)?;
    let mut numbers: BTreeMap<(u32, Load), usize> = BTreeMap::new();
    let (mut sources, mut scenarios) = (Vec::new(), Vec::new());
    for spec in specs {
        let way = Load::of(spec.mode.as_deref(), spec.think_time()?);
        let source = choose(&available, spec.workload.as_deref(), way == Load::Captured)?;
        let index = if let Some(&index) = numbers.get(&(source.id, way)) {
            index
        } else {
            let loaded = load(store, source, way)?;
            tell_pauses(&loaded.workload);
            sources.push(loaded);
            numbers.insert((source.id, way), sources.len() - 1);
            sources.len() - 1
        };
        let mut scenario = spec.resolve(index).map_err(|error| match &spec.name {
            Some(name) => error.context(format!("scenario `{name}`")),
            None => error,
        })?;
        // Flags name no scenario, and several models may share policies and machines.
        if spec.name.is_none() && specs.iter().any(|other| other.model != spec.model) {
            scenario.name = format!("{}: {}", scenario.model.name, scenario.name);
        }
        scenarios.push(scenario);
    }
    let baselines = scenarios.iter().filter(|scenario: &&Scenario| scenario.is_baseline).count();
    match (baselines, scenarios.first_mut()) {
        (0, Some(first)) => first.is_baseline = true,
        (0 | 1, _) => {}
        _ => return Err(Error::usage(format!("expected one scenario with `baseline = true`, found {baselines}"))),
    }
    for (at, scenario) in scenarios.iter().enumerate() {
        let same_name = |other: &&Scenario| other.model.name == scenario.model.name && other.model != scenario.model;
        if scenarios[..at].iter().any(|other| same_name(&other)) {
            return Err(Error::usage(format!("two models are called `{}`", scenario.model.name))
                .hint("a model file is named by its file name: rename one"));
        }
        if scenarios[..at].iter().any(|other| other.name == scenario.name) {
            return Err(
                Error::usage(format!("two scenarios are called `{}`", scenario.name)).hint("give each its own `name`")
            );
        }
    }
    Ok((sources, scenarios))
}

/// Gives the scenarios what was measured on their machines.
fn look_up(wanted: &Wanted, specs: &[Spec], scenarios: &mut [Scenario]) -> Result<()> {
    let mut library = Library::of(wanted.surfaces.as_deref());
    for (scenario, spec) in scenarios.iter_mut().zip(specs) {
        if spec.closed_form != Some(true) {
            let (machine, engine) = (&scenario.machine, framework(scenario.rules.name));
            scenario.measured = library.measured(machine, engine, &scenario.model, scenario.parallel)?;
            if let Some(prefill) = &mut scenario.prefill {
                prefill.measured = library.measured(&prefill.machine, engine, &scenario.model, prefill.parallel)?;
            }
        }
    }
    Ok(())
}

/// The run's id: a hash of what goes in, so that the same inputs give the same run.
fn run_id(
    store: &Store,
    sources: &[Source],
    scenarios: &[Scenario],
    (budget, wanted): (Option<&ErrorBudget>, &Wanted),
) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(concat!("kvtoll ", env!("CARGO_PKG_VERSION"), "\n"));
    for batch in store.read(&SOURCES)? {
        for sha256 in column(&batch, "sha256")?.as_string::<i32>().iter().flatten() {
            hash.update(sha256);
        }
    }
    for turns in sources.iter().map(|source| &source.workload.turns) {
        for (pause, basis) in turns.pause_ns.iter().zip(&turns.basis) {
            hash.update(pause.to_le_bytes());
            hash.update(basis.name().unwrap_or_default());
        }
    }
    for scenario in scenarios {
        let Scenario {
            name,
            is_baseline,
            model,
            machine,
            mode,
            rules,
            rate,
            parallel,
            dtype,
            prices,
            tariff,
            measured,
            ..
        } = scenario;
        let speculative = scenario.speculative;
        let (routing, kv_blocks, prefill) = (scenario.routing, scenario.kv_blocks, &scenario.prefill);
        let (placement, days) = (&scenario.placement, &scenario.adaptation_days);
        let (workload, policy) = (&sources[scenario.workload].workload.name, scenario.policy.name());
        // The stack goes in by its canonical name: its stages hold addresses of functions.
        hash.update(format!("{name:?} {is_baseline} {workload:?} {model:?} {policy} {machine:?} {mode:?} "));
        hash.update(format!(
            "{rules:?} {routing:?} {kv_blocks:?} {prefill:?} {placement:?} {rate:?} {parallel:?} {dtype:?} {prices:?} \
             {tariff:?} {measured:?} {speculative:?} {days:?}\n"
        ));
    }
    if let Some(budget) = budget {
        hash.update(format!("{budget}\n"));
    }
    if wanted.quick {
        hash.update("quick\n");
    }
    if wanted.equal_cost {
        hash.update("equal cost\n");
    }
    if wanted.split_blocks {
        hash.update("blocks split by column_sum\n");
    }
    let mut id = String::new();
    for byte in hash.finalize().iter().take(6) {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}

/// What each policy loses on each recording of the store. Batches and warnings come in the order of the scenarios.
///
/// Policies whose bytes depend on attention are told what they kept of the first recording that has the layers and KV heads
/// of their model. Without one their scenarios fail, and say why.
fn recorded_errors(
    store: &Store,
    scenarios: &mut [Scenario],
    is_split: bool,
) -> Result<(Vec<RecordBatch>, Vec<[RecordBatch; 2]>)> {
    let mut stacks: Vec<Stack> = Vec::new();
    for scenario in scenarios.iter() {
        if stacks.iter().all(|stack| stack.name() != scenario.policy.name()) {
            stacks.push(scenario.policy.clone());
        }
    }
    let Some(recorded) = recorded::open(store, recorded::needs(&stacks))? else { return Ok(Default::default()) };
    let recorded = recorded.split(is_split)?;
    let pairs: Vec<(&Stack, usize)> =
        stacks.iter().flat_map(|stack| (0..recorded.heads.len()).map(move |at| (stack, at))).collect();
    let all = recorded::try_all(&recorded, &pairs, Way::BySteps(ERROR_STEPS))?;
    let (mut batches, mut organisation) = (Vec::new(), Vec::new());
    for ((stack, at), found) in pairs.iter().zip(all) {
        let Some(recording) = recorded.heads.get(*at) else { continue };
        if let Some(premise) = found.premise.filter(|premise| !premise.holds()) {
            talk::warn(&format!("{}: {}", recording.label(), premise.text()));
        }
        let (name, model) = (stack.name(), &recording.model);
        match &found.measured {
            Ok(Some(measured)) => measure(stack, recording, *at, &recorded.heads, measured, scenarios),
            Ok(None) => {}
            Err(error) => talk::warn(&format!("what `{name}` keeps on the recording of {model} is not known: {error}")),
        }
        // What keeps one from being known often keeps the next: said once.
        let is_new = |error: &Error| found.measured.as_ref().err() != Some(error);
        match &found.rows {
            Ok(batch) => batches.push(batch.clone()),
            Err(error) if is_new(error) => {
                talk::warn(&format!("no error of `{name}` on the recording of {model}: {error}"));
            }
            Err(_) => {}
        }
        match found.organisation {
            Ok(found) => organisation.extend(found),
            Err(error) if is_new(&error) && found.rows.as_ref().err() != Some(&error) => {
                talk::warn(&format!("no pages of `{name}` on the recording of {model}: {error}"));
            }
            Err(_) => {}
        }
    }
    Ok((batches, organisation))
}

/// Fails the scenarios whose policy is not within the error budget on the recordings of the store, all of them together.
fn gate(budget: &ErrorBudget, errors: &[RecordBatch], scenarios: &[Scenario], found: &mut [Result<Found>]) {
    for (scenario, found) in scenarios.iter().zip(found).filter(|(_, found)| found.is_ok()) {
        let policy = scenario.policy.name();
        let is_of = |rows: &&RecordBatch| {
            let names = rows.column_by_name("policy").and_then(|column| column.as_string_opt::<i32>());
            names.is_some_and(|names| names.iter().flatten().next() == Some(policy.as_str()))
        };
        match budget.figure(errors.iter().filter(is_of)) {
            Some(figure) if figure <= budget.most => {}
            Some(figure) => {
                let text = format!("`{policy}` is not within the error budget `{budget}`: it comes to {figure:.4}");
                *found = Err(Error::run(text).hint(
                    "a larger budget of tokens, more bits or a recovery stage such as `retain(5%)` lower it; \
                     `kvtoll explain STACK --recording R --error-budget B` finds the smallest share",
                ));
            }
            None => {
                talk::warn(&format!(
                    "`{}`: the error budget `{budget}` of `{policy}` is not known here",
                    scenario.name
                ));
            }
        }
    }
}

/// Tells the scenarios of a stack what it kept of a recording, where that is the first one of their model.
fn measure(
    stack: &Stack,
    recording: &Recording,
    at: usize,
    all: &[Recording],
    measured: &Measured,
    scenarios: &mut [Scenario],
) {
    for scenario in scenarios.iter_mut().filter(|scenario| scenario.policy.name() == stack.name()) {
        let is_first = !all.iter().take(at).any(|earlier| is_of(earlier, &scenario.model));
        if is_first && is_of(recording, &scenario.model) {
            scenario.policy = scenario.policy.clone().with_measured(measured.clone());
        }
    }
}

/// Whether a recording has the layers and KV heads of a model.
fn is_of(recording: &Recording, model: &Model) -> bool {
    let layers: u32 = model.groups.iter().map(|group| group.layers).sum();
    layers == recording.layers && model.groups.iter().all(|group| group.kv.kv_heads == recording.kv_heads)
}

/// The threads that everything runs on.
fn pool(threads: Option<usize>) -> Result<rayon::ThreadPool> {
    if let Some(count) = threads.filter(|count| !(1..=1024).contains(count)) {
        return Err(Error::usage(format!("`--threads`: expected 1 to 1024, found {count}")));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
    pool.map_err(|error| Error::run(format!("cannot start threads: {error}")))
}

/// Puts the requests that the application's stages of a policy send in place of those of the trace, once for all scenarios
/// with the same stages. Why a scenario's stages cannot act, where they cannot.
fn edit_all(sources: &mut Vec<Source>, scenarios: &mut [Scenario]) -> Vec<Option<Error>> {
    let mut made: BTreeMap<(usize, String), usize> = BTreeMap::new();
    let mut refused = vec![None; scenarios.len()];
    for (scenario, refused) in scenarios.iter_mut().zip(&mut refused) {
        let Some(stages) = scenario.policy.edits_name() else { continue };
        let key = (scenario.workload, stages);
        if let Some(&known) = made.get(&key) {
            scenario.workload = known;
            continue;
        }
        match edit(&scenario.policy, &sources[scenario.workload], scenario.workload) {
            Ok(source) => {
                sources.push(source);
                scenario.workload = sources.len() - 1;
                made.insert(key, scenario.workload);
            }
            Err(error) => *refused = Some(error),
        }
    }
    refused
}

fn replay_all(sources: &[Source], scenarios: &[Scenario], refused: &[Option<Error>]) -> Vec<Result<Found>> {
    let each = scenarios.par_iter().zip(refused);
    each.map(|(scenario, refused)| match refused {
        Some(error) => Err(error.clone()),
        None => replay(scenario, &sources[scenario.workload]),
    })
    .collect()
}

/// Replays variations for their sums alone.
fn toll_all(sources: &[Source], variations: &[Scenario], refused: &[Option<Error>]) -> Vec<Result<Toll>> {
    let each = variations.par_iter().zip(refused);
    each.map(|(scenario, refused)| match refused {
        Some(error) => Err(error.clone()),
        None => toll_of(scenario, &sources[scenario.workload]),
    })
    .collect()
}
