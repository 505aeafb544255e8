//! `kvtoll fabric`: what a step's traffic takes on links between accelerators, by class, distance and placement.

use engine::error::{Error, Result};
use engine::fabric::place::Layout;
use engine::fabric::share::Schedule;
use engine::fabric::tables::{Frame, classes, steps};
use engine::fabric::topology::network;
use engine::fabric::traffic::{CLASSES, Class, Step, Terms, Traffic, Wire, traffic};
use engine::fabric::{self, Fabric};
use engine::model::Model;

use super::cost::range::numbers;
use super::{Exit, Shown, print};
use crate::scenario::{load_fabric, load_model};

/// Arguments of `kvtoll fabric`. Repeated fabrics are compared.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model preset, a TOML file or a Hugging Face `config.json`
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// A fabric preset or TOML file; repeat to compare (see `kvtoll list fabrics`)
    #[arg(long, value_name = "FABRIC", required = true)]
    pub fabric: Vec<String>,
    /// Requests that decode together in each copy: `1..256` doubles, `1,8,32` lists
    #[arg(long, value_name = "RANGE", default_value = "1..256*4")]
    pub batch: String,
    /// Accelerators that share a layer
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub tensor_parallel: u32,
    /// Parts of the layers, one after another
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub pipeline_parallel: u32,
    /// Accelerators among which experts are spread; all of a stage for a model with experts if not given
    #[arg(long, value_name = "N")]
    pub expert_parallel: Option<u32>,
    /// Prompt tokens whose KV comes from a prefill elsewhere, for each copy and step
    #[arg(long, value_name = "TOKENS", default_value_t = 0.0)]
    pub prefill_tokens: f64,
    /// Tokens of contexts whose KV comes from a farther memory, for each copy and step
    #[arg(long, value_name = "TOKENS", default_value_t = 0.0)]
    pub fetched_tokens: f64,
    /// Places of the fabric that hold the farther memory; without them it lies evenly at the hosts of all accelerators
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub memory_places: u32,
    /// Accelerators of the fabric that compute the FFN apart from attention
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ffn_accelerators: u32,
    /// Further copies that new KV is written to
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub replicas: u32,
    /// Format on the wire: `fp8` for all, or `expert_dispatch=fp8` for a class; repeat for others
    #[arg(long, value_name = "[CLASS=]FORMAT")]
    pub wire: Vec<String>,
    /// Messages that go as one: `64` for all, or `expert_dispatch=64` for a class; repeat for others
    #[arg(long, value_name = "[CLASS=]N")]
    pub coalesce: Vec<String>,
    /// How classes share a link in `--show classes`
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Sharing::Sharing)]
    pub schedule: Sharing,
    /// Whole steps, or classes by distance
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Show::Steps)]
    pub show: Show,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
}

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Show {
    /// Whole steps with their placements
    Steps,
    /// Classes of traffic by distance
    Classes,
}

/// How classes share a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sharing {
    /// Evenly
    Sharing,
    /// What the step waits for first
    Priority,
    /// Three quarters for what the step waits for
    Reservation,
}

/// Runs `kvtoll fabric`.
pub fn run(args: &Args) -> Result<Exit> {
    let format = args.shown.format()?;
    let model = load_model(&args.model)?;
    let batches = numbers("batch", &args.batch)?;
    let terms = terms(args)?;
    for (flag, tokens) in [("prefill", args.prefill_tokens), ("fetched", args.fetched_tokens)] {
        if !(tokens >= 0.0 && tokens.is_finite()) {
            return Err(Error::usage(format!("expected `--{flag}-tokens` of at least 0, found {tokens}")));
        }
    }
    let schedule = match args.schedule {
        Sharing::Sharing => Schedule::Processor,
        Sharing::Priority => Schedule::Priority,
        Sharing::Reservation => Schedule::Reservation,
    };
    let mut tables = Vec::new();
    for name in &args.fabric {
        let fabric = load_fabric(name)?;
        let layout = layout(args, &model, &fabric)?;
        let net = network(&fabric)?;
        let sent: Result<Vec<(f64, Vec<Traffic>)>> =
            batches.iter().map(|&batch| Ok((f64::from(batch), sent(args, &model, &layout, batch, terms)?))).collect();
        let frame = Frame { model: &model.name, fabric: &fabric, network: &net, layout: &layout };
        tables.push(match args.show {
            Show::Steps => steps(&frame, &sent?)?,
            Show::Classes => classes(&frame, schedule, &sent?)?,
        });
    }
    print(&tables, format, args.shown.max_rows, args.shown.output.as_deref())
}

/// How the model is spread over all of a fabric.
fn layout(args: &Args, model: &Model, fabric: &Fabric) -> Result<Layout> {
    let (tensor, pipeline) = (args.tensor_parallel, args.pipeline_parallel);
    let (ffn, memory) = (args.ffn_accelerators, args.memory_places);
    let others = ffn.checked_add(memory).filter(|others| *others < fabric.accelerators);
    let Some(attending) = others.map(|others| fabric.accelerators - others) else {
        return Err(Error::usage(format!(
            "expected accelerators that attend among the {} places of `{}`, found {ffn} for the FFN and {memory} for memory",
            fabric.accelerators, fabric.name
        )));
    };
    let each = tensor.checked_mul(pipeline).filter(|each| *each > 0 && attending.is_multiple_of(*each));
    let Some(each) = each else {
        return Err(Error::usage(format!(
            "expected tensor x pipeline parallelism that divides the {attending} accelerators of `{}`, found {tensor} x \
             {pipeline}",
            fabric.name
        )));
    };
    let data = attending / each;
    let has_experts = ffn == 0 && model.groups.iter().any(|group| group.ffn.experts > 0);
    let expert = args.expert_parallel.unwrap_or(if has_experts { tensor * data } else { 1 });
    let layout = Layout { tensor, data, pipeline, expert, ffn, memory };
    layout.check(fabric.accelerators)?;
    Ok(layout)
}

fn sent(args: &Args, model: &Model, layout: &Layout, batch: u32, terms: [Terms; CLASSES]) -> Result<Vec<Traffic>> {
    let kv_bytes_per_token = model.growing_bytes_per_token() as f64 / f64::from(layout.pipeline);
    let step = Step {
        batch: f64::from(batch),
        prefill_tokens: args.prefill_tokens,
        kv_bytes_per_token,
        replicas: f64::from(args.replicas),
        fetched_bytes: args.fetched_tokens * kv_bytes_per_token,
        terms,
    };
    traffic(model, layout, &step)
}

/// Wire formats and coalescing by class; what is typed later holds.
fn terms(args: &Args) -> Result<[Terms; CLASSES]> {
    let mut terms = [Terms { wire: Wire::Bf16, coalesce: 1.0 }; CLASSES];
    let mut each = |text: &str, set: &dyn Fn(&mut Terms, &str) -> Result<()>| match text.split_once('=') {
        Some((class, value)) => set(&mut terms[Class::parse(class.trim())? as usize], value.trim()),
        None => terms.iter_mut().try_for_each(|term| set(term, text.trim())),
    };
    for text in &args.wire {
        each(text, &|term, value| {
            term.wire = Wire::parse(value)?;
            Ok(())
        })?;
    }
    for text in &args.coalesce {
        each(text, &|term, value| {
            let number = value.parse::<u32>().ok().filter(|number| *number > 0);
            term.coalesce = f64::from(
                number.ok_or_else(|| Error::usage(format!("expected `--coalesce` of at least 1, found `{value}`")))?,
            );
            Ok(())
        })?;
    }
    Ok(terms)
}

/// The fabrics, as `kvtoll list fabrics` shows them.
pub(super) fn listed() -> Result<Vec<(String, String)>> {
    let of = |(name, text): &(&str, &str)| {
        let found = fabric::parse(text, &format!("presets/fabric/{name}.toml"))?;
        Ok(((*name).to_owned(), found.title))
    };
    crate::embedded::FABRICS.iter().map(of).collect()
}
