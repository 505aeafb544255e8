//! `kvtoll cost`: what a decode step takes on machines, by batch and context, without any trace.

pub(super) mod range;
mod spec;

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use engine::cost::{
    Demand, Field, Parallel, Plan, Speculative, StepCost, fewest, measure, peak_flops, plan, price_columns, within_bits,
};
use engine::error::{Error, Result};
use engine::machine::Machine;
use engine::model::{Model, WeightDtype};
use engine::policy::{Shape, Stack, shape};
use engine::serving::{RULES, Rules};

use self::range::numbers;
use super::{Exit, Shown, print, talk};
use crate::scenario::{dtype, load_machine, load_model, placed, rules, speculative};
use crate::surfaces::{Library, framework};

/// Arguments of `kvtoll cost`. Repeated flags multiply.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model preset, a TOML file or a Hugging Face `config.json`; repeat to compare
    #[arg(long, value_name = "MODEL", required = true)]
    pub model: Vec<String>,
    /// A machine preset or TOML file with variations, such as `gb300*hbm_bw=2`; repeat to compare
    #[arg(long, value_name = "MACHINE", required = true)]
    pub machine: Vec<String>,
    /// A policy stack such as `snapkv(budget=25%)+fp8`; repeat to compare
    #[arg(long, value_name = "POLICY", default_value = "full")]
    pub policy: Vec<String>,
    /// Requests that decode together: `1..256` doubles, `1..256*4` multiplies, `8..64+8` counts, `1,8,32` lists
    #[arg(long, value_name = "RANGE", default_value = "1..256")]
    pub batch: String,
    /// Tokens of context of each request, written alike; k is 1000 and Ki 1024
    #[arg(long, value_name = "RANGE", default_value = "1k..128k")]
    pub context: String,
    /// Accelerators per copy of the model; the fewest that hold the weights if not given
    #[arg(long, value_name = "N")]
    pub tensor_parallel: Option<u32>,
    /// Groups of accelerators per copy that attend to requests of their own; experts are spread over all of them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub data_parallel: u32,
    /// Parts that the routed experts are dealt out to
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub expert_parallel: u32,
    /// Stages that the layers are dealt out to
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub pipeline_parallel: u32,
    /// Draft tokens and verify them together, such as `speculative(k=3,accept=0.7)`; a row is then a token's step
    #[arg(long, value_name = "DRAFTING")]
    pub speculative: Option<String>,
    /// Number format of the weights: bf16, fp8, nvfp4, mxfp4 or int4; the published one if not given
    #[arg(long, value_name = "DTYPE")]
    pub weights: Option<String>,
    /// The serving engine, whose kernels were measured; see `kvtoll list engines`
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// A folder of surfaces, as `kvtoll calibrate` writes it, in place of the shipped ones
    #[arg(long, value_name = "DIR")]
    pub surfaces: Option<PathBuf>,
    /// Price every operation by its closed form, not by what was measured on the machine
    #[arg(long, conflicts_with = "surfaces")]
    pub closed_form: bool,
    /// What more bandwidth, link, compute and capacity deliver, instead of the table of steps
    #[arg(long)]
    pub spec: bool,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
}

/// A model under a policy: what all machines have in common.
struct Subject {
    model: Model,
    policy: String,
    shape: Shape,
    dtype: WeightDtype,
}

/// The subject on one machine.
struct Placed {
    machine: Machine,
    parallel: Parallel,
    plan: Plan,
}

/// Where measured times come from; none in closed form.
struct Source {
    library: Option<Library>,
    engine: Rules,
    speculative: Option<Speculative>,
}

impl Source {
    fn of(args: &Args) -> Result<Self> {
        let library = (!args.closed_form).then(|| Library::of(args.surfaces.as_deref()));
        let engine = rules(args.engine.as_deref().unwrap_or(RULES[0].name))?;
        Ok(Self { library, engine, speculative: args.speculative.as_deref().map(speculative).transpose()? })
    }

    /// The plan with the measured times of its machine.
    fn plan(&mut self, subject: &Subject, machine: &Machine, parallel: Parallel) -> Result<Plan> {
        let mut found = plan(&subject.model, &subject.shape, machine, subject.dtype, parallel)?;
        found.draft(self.speculative)?;
        if let Some(library) = &mut self.library {
            let engine = framework(self.engine.name);
            let measured = library.measured(machine, engine, &subject.model, parallel)?;
            measure(&mut found, &subject.model, machine, subject.dtype, &measured);
        }
        Ok(found)
    }
}

/// The steps that are priced: every batch with every context.
#[derive(Clone)]
struct Steps {
    batch: Vec<u32>,
    context: Vec<u32>,
}

/// More rows than a table has use for.
const MOST_ROWS: usize = 10_000_000;

/// Runs `kvtoll cost`.
pub fn run(args: &Args) -> Result<Exit> {
    let format = args.shown.format()?;
    let (batches, contexts) = (numbers("batch", &args.batch)?, numbers("context", &args.context)?);
    let counts = [batches.len(), contexts.len(), args.model.len(), args.policy.len(), args.machine.len()];
    let rows = counts.into_iter().fold(1, usize::saturating_mul);
    if rows > MOST_ROWS {
        return Err(Error::usage(format!("expected at most {MOST_ROWS} steps, found {rows}"))
            .hint("take fewer batches or contexts"));
    }
    let steps = Steps::of(&batches, &contexts);
    let (mut batches, mut failed) = (Vec::new(), None);
    let mut source = Source::of(args)?;
    for subject in subjects(args)? {
        let placed = place(args, &mut source, &subject, &mut failed)?;
        if args.spec {
            batches.extend(spec::table(&mut source, &subject, &placed, &steps)?);
        } else {
            batches.extend(table(&subject, &placed, &steps)?);
        }
    }
    match failed {
        Some(error) if batches.is_empty() => Err(error),
        failed => {
            print(&batches, format, args.shown.max_rows, args.shown.output.as_deref())?;
            Ok(if failed.is_some() { Exit::Failed } else { Exit::Done })
        }
    }
}

/// Says what is repeated word for word, which would only give its rows twice.
fn once(flag: &str, values: &[String]) -> Result<()> {
    let twice = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value));
    match twice {
        Some((_, value)) => Err(Error::usage(format!("`--{flag} {value}` is given twice"))),
        None => Ok(()),
    }
}

fn subjects(args: &Args) -> Result<Vec<Subject>> {
    for (flag, values) in [("model", &args.model), ("policy", &args.policy), ("machine", &args.machine)] {
        once(flag, values)?;
    }
    let mut subjects = Vec::new();
    for model in &args.model {
        let model = load_model(model)?;
        let dtype = args.weights.as_deref().map_or(Ok(model.weights), dtype)?;
        for policy in &args.policy {
            let (stages, placement) = placed(policy)?;
            if let Some(rule) = placement {
                talk::warn(&format!(
                    "`{rule}` is carried out by serving and changes no single step: `kvtoll replay` shows what it does"
                ));
            }
            let stack = Stack::parse(&stages)?;
            let shape = shape(&stack, &model)?;
            subjects.push(Subject { model: model.clone(), policy: stack.name(), shape, dtype });
        }
    }
    Ok(subjects)
}

/// Plans the subject on each machine. A machine that cannot take it is told, and does not hide the others.
fn place(args: &Args, source: &mut Source, subject: &Subject, failed: &mut Option<Error>) -> Result<Vec<Placed>> {
    let mut placed = Vec::new();
    for name in &args.machine {
        let machine = load_machine(name)?;
        match planned(source, subject, &machine, args) {
            Ok((parallel, plan)) => placed.push(Placed { machine, parallel, plan }),
            Err(error) => {
                talk::warn(&format!("{} under {} on {name}: {error}", subject.model.name, subject.policy));
                failed.get_or_insert(error);
            }
        }
    }
    Ok(placed)
}

/// The plan on so many accelerators, or on the fewest (a power of two) that hold the weights.
fn planned(source: &mut Source, subject: &Subject, machine: &Machine, args: &Args) -> Result<(Parallel, Plan)> {
    let mut on = |tensor: u32| {
        let parallel = Parallel {
            tensor,
            data: args.data_parallel,
            expert: args.expert_parallel,
            pipeline: args.pipeline_parallel,
            instances: 1,
        };
        Ok((parallel, source.plan(subject, machine, parallel)?))
    };
    match args.tensor_parallel {
        Some(tensor) => on(tensor),
        None => fewest(machine, on),
    }
}

impl Steps {
    fn of(batches: &[u32], contexts: &[u32]) -> Self {
        let pairs = batches.iter().flat_map(|&batch| contexts.iter().map(move |&context| (batch, context)));
        let (batch, context) = pairs.unzip();
        Self { batch, context }
    }

    /// Kept tokens of all requests of each step, a column per lane of the plan.
    fn kept(&self, plan: &Plan) -> Vec<Vec<u64>> {
        let keeps = plan.lane_keeps();
        let of = |keep: engine::policy::Keep| {
            let steps = self.batch.iter().zip(&self.context);
            steps.map(|(&batch, &context)| u64::from(batch) * u64::from(keep.tokens(context, context))).collect()
        };
        keeps.map(|(_, keep)| of(keep)).collect()
    }

    /// Whether the KV of each step fits, and how many bytes it takes, in whole blocks.
    fn bytes(&self, plan: &Plan) -> Vec<u64> {
        let steps = self.batch.iter().zip(&self.context);
        steps
            .map(|(&batch, &context)| plan.footprint(context, context, true).saturating_mul(u64::from(batch)))
            .collect()
    }
}

/// Figures of each step, in this order.
const FIELDS: [Field; 17] = [
    Field::Total,
    Field::KvRead,
    Field::WeightRead,
    Field::Compute,
    Field::Collective,
    Field::Policy,
    Field::Tier,
    Field::Link,
    Field::Overhead,
    Field::Busy,
    Field::KvReadBytes,
    Field::KvWrittenBytes,
    Field::WeightReadBytes,
    Field::LinkBytes,
    Field::Flops,
    Field::Calibrated,
    Field::Extrapolated,
];

/// Columns of figures, one for each of [`FIELDS`].
type Figures = [Vec<f64>; 17];

/// One figure of all steps.
fn figure(figures: &Figures, field: Field) -> &[f64] {
    let at = FIELDS.iter().position(|known| *known == field);
    at.and_then(|at| figures.get(at)).map_or(&[], Vec::as_slice)
}

/// Prices the steps on all plans in one pass.
fn priced(plans: &[Plan], steps: &Steps) -> Result<Vec<Figures>> {
    let Some(first) = plans.first() else { return Ok(Vec::new()) };
    let kept = steps.kept(first);
    let columns: Vec<&[u64]> = kept.iter().map(Vec::as_slice).collect();
    let mut out: Vec<Figures> = plans.iter().map(|_| std::array::from_fn(|_| Vec::new())).collect();
    let demand = Demand { decode_requests: &steps.batch, kept_tokens: &columns };
    price_columns(plans, &demand, FIELDS, &mut out)?;
    let longest = out.iter().flat_map(|figures| figure(figures, Field::Total)).copied().fold(0.0, f64::max);
    within_bits(longest)?;
    Ok(out)
}

/// The largest booth of one step, and its time; the first of equals.
fn bound_by(figures: &Figures, row: usize) -> (&'static str, f64) {
    let times = Field::BOOTHS.map(|field| figure(figures, field).get(row).copied().unwrap_or(0.0));
    let booths = StepCost::default().booths().into_iter().map(|(name, _)| name).zip(times);
    booths.fold(("kv_read", f64::NEG_INFINITY), |best, booth| if booth.1 > best.1 { booth } else { best })
}

/// The table of steps, one batch of rows per machine.
fn table(subject: &Subject, placed: &[Placed], steps: &Steps) -> Result<Vec<RecordBatch>> {
    let plans: Vec<Plan> = placed.iter().map(|placed| placed.plan.clone()).collect();
    let figures = priced(&plans, steps)?;
    placed.iter().zip(&figures).map(|(placed, figures)| rows(subject, placed, steps, figures)).collect()
}

/// Whole nanoseconds.
fn ns(values: &[f64]) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values.iter().map(|value| value.round() as i64)))
}

/// What names the rows of a machine: model, policy, machine, weights and accelerators.
fn names(subject: &Subject, placed: &Placed, rows: usize) -> Vec<(&'static str, ArrayRef)> {
    let text = |value: &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows))) };
    let accelerators: ArrayRef =
        Arc::new(UInt32Array::from_iter_values(std::iter::repeat_n(placed.parallel.accelerators(), rows)));
    vec![
        ("model", text(&subject.model.name)),
        ("policy", text(&subject.policy)),
        ("machine", text(&placed.machine.name)),
        ("weights", text(subject.dtype.name())),
        ("accelerators", accelerators),
    ]
}

fn rows(subject: &Subject, placed: &Placed, steps: &Steps, figures: &Figures) -> Result<RecordBatch> {
    let Placed { machine, plan, .. } = placed;
    let total = figure(figures, Field::Total);
    let count = total.len();
    let accelerators = plan.accelerators;
    let bandwidth = machine.accelerator.memory_bytes_per_s.value / 1e9 * accelerators;
    let peak = peak_flops(machine, subject.dtype) / 1e9 * accelerators + pool_flops(machine);
    let each = |of: &dyn Fn(usize) -> f64| -> ArrayRef { Arc::new(Float64Array::from_iter_values((0..count).map(of))) };
    let at = |field: Field, row: usize| figure(figures, field)[row];
    let moved = |row| at(Field::KvReadBytes, row) + at(Field::KvWrittenBytes, row) + at(Field::WeightReadBytes, row);
    let waiting =
        |row| (total[row] - at(Field::Busy, row) - at(Field::Overhead, row) - at(Field::Policy, row)).max(0.0);
    let rate = |row: usize| f64::from(steps.batch[row]) / total[row] * 1e9;
    let bytes = steps.bytes(plan);
    let fits = bytes.iter().map(|&bytes| Some(bytes <= plan.capacity_bytes)).collect::<BooleanArray>();
    let mut columns = names(subject, placed, count);
    let own: [(&'static str, ArrayRef); 22] = [
        ("batch", Arc::new(UInt32Array::from(steps.batch.clone()))),
        ("context_tokens", Arc::new(UInt32Array::from(steps.context.clone()))),
        ("step_ns", ns(total)),
        ("kv_read_ns", ns(figure(figures, Field::KvRead))),
        ("weight_read_ns", ns(figure(figures, Field::WeightRead))),
        ("compute_ns", ns(figure(figures, Field::Compute))),
        ("collective_ns", ns(figure(figures, Field::Collective))),
        ("policy_ns", ns(figure(figures, Field::Policy))),
        ("tier_ns", ns(figure(figures, Field::Tier))),
        ("link_ns", ns(figure(figures, Field::Link))),
        ("overhead_ns", ns(figure(figures, Field::Overhead))),
        ("bound_by", Arc::new(StringArray::from_iter_values((0..count).map(|row| bound_by(figures, row).0)))),
        ("memory_bandwidth_ratio", each(&|row| moved(row) / (bandwidth * total[row]))),
        ("compute_ratio", each(&|row| at(Field::Flops, row) / (peak * total[row]))),
        ("waiting_ratio", each(&|row| waiting(row) / total[row])),
        ("tokens_per_s", each(&rate)),
        ("tokens_per_s_per_accelerator", each(&|row| rate(row) / accelerators)),
        ("kv_bytes", Arc::new(UInt64Array::from(bytes))),
        ("fits", Arc::new(fits)),
        ("calibrated_ratio", each(&|row| at(Field::Calibrated, row) / total[row])),
        ("extrapolated_ratio", each(&|row| at(Field::Extrapolated, row) / total[row])),
        ("certainty", word_column(plan, count)),
    ];
    columns.extend(own);
    Ok(RecordBatch::try_from_iter(columns)?)
}

fn word_column(plan: &Plan, rows: usize) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(plan.certainty.name(), rows)))
}

/// Peak arithmetic of separate FFN accelerators, flops per nanosecond.
fn pool_flops(machine: &Machine) -> f64 {
    machine.ffn_pool.as_ref().map_or(0.0, |pool| pool.chips.value * pool.fp8_flops.value / 1e9)
}

#[cfg(test)]
mod tests;
