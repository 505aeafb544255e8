//! Where policies, costs and serving meet: a scenario goes in, the rows of a run come out.
//!
//! A failed scenario keeps its error and never hides the rest. Everything here is a function of its inputs; the tool crate
//! may replay scenarios on many threads and puts the results together in the scenarios' order.

mod balance;
mod demand;
pub mod equal_cost;
pub mod hierarchy;
mod metrics;
mod promise;
mod stacking;
mod tables;
mod toll;
mod usage;

pub use metrics::{DEFINITIONS, Definition};
pub use stacking::variations;
pub use tables::{Run, Shipped, tables};
pub use toll::Toll;

use crate::cost::{Parallel, Plan, plan};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::{Certainty, Model, WeightDtype};
use crate::policy::application::{Effect, apply};
use crate::policy::{Shape, Stack, shape};
use crate::prices::{Price, PriceBook, price_of};
use crate::serving::{CapturedStep, Outcome, Rules, captured, serve};
use crate::session::Trace;
use crate::tariff::Tariff;
use crate::workload::Workload;

/// Where batches come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The trace's own steps.
    Captured,
    /// Arrivals.
    Open,
}

/// A combination to replay, with every name resolved.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What the user calls it.
    pub name: String,
    /// Whether the others are compared with it.
    pub is_baseline: bool,
    /// Index into the run's workloads.
    pub workload: usize,
    /// The model.
    pub model: Model,
    /// The policy stack.
    pub policy: Stack,
    /// The machine.
    pub machine: Machine,
    /// Where batches come from.
    pub mode: Mode,
    /// The engine's rules.
    pub rules: Rules,
    /// Arrival rate as a multiple of the trace's.
    pub rate: f64,
    /// Accelerators per instance, and instances.
    pub parallel: Parallel,
    /// Number format of the weights.
    pub dtype: WeightDtype,
    /// The price book.
    pub prices: PriceBook,
    /// What tokens are sold for; nothing is sold if `None`.
    pub tariff: Option<Tariff>,
}

/// Requests to replay, and the steps that were captured with them.
#[derive(Debug, Clone)]
pub struct Source {
    /// The requests.
    pub workload: Workload,
    /// Captured steps in their order; empty where there are none.
    pub steps: Vec<CapturedStep>,
    /// The requests as turns of sessions; `None` where they were not read.
    pub trace: Option<Trace>,
    /// Where the application's stages of a policy made these requests of others: those, as an index into the run's
    /// workloads, and what the stages did.
    pub edited: Option<(usize, Vec<Effect>)>,
}

/// What a scenario came to.
#[derive(Debug, Clone)]
pub struct Found {
    /// The policy's demand.
    pub shape: Shape,
    /// The scenario as priced.
    pub plan: Plan,
    /// What happened.
    pub outcome: Outcome,
    /// What the accelerators cost.
    pub price: Price,
    /// First arrival to last token, nanoseconds.
    pub duration_ns: i64,
    /// First to last arrival, nanoseconds; 0 in captured mode.
    pub span_ns: i64,
    /// Busy time that the requests ask for over the time in which they come; `None` in captured mode.
    pub offered_load: Option<f64>,
}

impl Scenario {
    /// Accelerators in all.
    pub fn accelerators(&self) -> u32 {
        self.parallel.tensor.saturating_mul(self.parallel.instances)
    }
}

/// The requests of a source as the application's stages of a policy send them; `origin` is the source's own number.
///
/// # Errors
/// Captured steps, which are as they were recorded; a source whose contexts were not read.
pub fn edit(policy: &Stack, source: &Source, origin: usize) -> Result<Source> {
    let name = policy.name();
    let Some(trace) = source.trace.as_ref().filter(|_| source.steps.is_empty()) else {
        return Err(Error::usage(format!(
            "`{name}` changes what is sent, but captured steps run as they were recorded"
        ))
        .hint("leave out the stages that act on the context, or use `mode = \"open\"`"));
    };
    let edited = apply(policy, trace, &source.workload)?;
    Ok(Source {
        workload: edited.workload,
        steps: Vec::new(),
        trace: Some(edited.trace),
        edited: Some((origin, edited.effects)),
    })
}

/// Replays one scenario, whose source is one that [`edit`] made if its policy has stages of the application.
///
/// # Errors
/// Whatever makes the scenario impossible: a policy that the model cannot take, weights that do not fit, a link that is
/// not published.
pub fn replay(scenario: &Scenario, source: &Source) -> Result<Found> {
    if scenario.policy.edits() != source.edited.is_some() {
        return Err(Error::run("the requests are not those of the policy's stages that act on the context"));
    }
    let shape = shape(&scenario.policy, &scenario.model)?;
    let plan = plan(&scenario.model, &shape, &scenario.machine, scenario.dtype, scenario.parallel)?;
    let (outcome, span_ns, offered_load) = match scenario.mode {
        Mode::Captured => {
            if source.steps.is_empty() {
                return Err(Error::run(format!("`{}` has no captured steps", source.workload.name))
                    .hint("use `mode = \"open\"`, or ingest a recording"));
            }
            if (scenario.rate - 1.0).abs() > f64::EPSILON || scenario.parallel.instances != 1 {
                return Err(Error::usage(
                    "captured steps run as they were recorded, on one instance at their own rate",
                )
                .hint("leave out `rate` and `instances`, or use `mode = \"open\"`"));
            }
            (captured(&plan, &source.steps, source.workload.len())?, 0, None)
        }
        Mode::Open => {
            let workload = source.workload.at_rate(scenario.rate)?;
            let outcome = serve(&plan, &workload, scenario.parallel.instances, &scenario.rules);
            let load = metrics::offered_load(&plan, scenario, &workload, &outcome);
            (outcome, workload.span_ns(), load)
        }
    };
    if outcome.overran {
        return Err(Error::run("the replay takes more than 146 years of machine time")
            .hint("check the machine's rates and fixed times, and the trace's time unit"));
    }
    let ends = outcome.stretches.iter().map(|stretch| stretch.start_ns + stretch.total_ns);
    Ok(Found {
        price: price(scenario, &scenario.prices),
        span_ns,
        duration_ns: ends.max().unwrap_or(0),
        shape,
        plan,
        outcome,
        offered_load,
    })
}

/// Replays one scenario for its sums alone.
///
/// # Errors
/// As [`replay`].
pub fn toll_of(scenario: &Scenario, source: &Source) -> Result<Toll> {
    Ok(toll::toll(scenario, &replay(scenario, source)?, &source.workload))
}

/// The price of the scenario's machine in a book. A variation is priced as its preset, which is an assumption.
fn price(scenario: &Scenario, book: &PriceBook) -> Price {
    let (machine, mut price) = (&scenario.machine, price_of(book, &scenario.machine.preset));
    if machine.name != machine.preset {
        for known in [&mut price.usd_per_accelerator_hour, &mut price.w_per_accelerator].into_iter().flatten() {
            known.certainty = Certainty::Assumed;
            known.source = format!("that of `{}`, for want of one for the variation: {}", machine.preset, known.source);
        }
    }
    price
}
