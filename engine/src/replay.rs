//! Where policies, costs and serving meet: a scenario goes in, the rows of a run come out.
//!
//! A failed scenario keeps its error and never hides the rest. Everything here is a function of its inputs; the tool crate
//! may replay scenarios on many threads and puts the results together in the scenarios' order.

mod balance;
mod demand;
mod described;
pub mod equal_cost;
pub mod hierarchy;
mod jitter;
mod links;
mod metrics;
mod promise;
mod sessions;
mod stacking;
mod tables;
mod toll;
mod usage;

pub use metrics::{DEFINITIONS, Definition};
pub use promise::is_silent;
pub use stacking::variations;
pub use tables::{Put, Run, Shipped, tables};
pub use toll::Toll;

use crate::cost::{Measured, Parallel, Plan, Speculative, measure, plan};
use crate::error::{Error, Result, unknown};
use crate::machine::{Link, Machine, Sourced};
use crate::model::{Certainty, Model, WeightDtype};
use crate::policy::application::{Effect, apply};
use crate::policy::{Shape, Stack, shape};
use crate::prices::{Price, PriceBook, price_of};
use crate::serving::lower::{self, Tiers};
use crate::serving::{
    CapturedStep, Handover, Outcome, Pool, Preempted, Role, Routing, Rules, Served, Setup, Traffic, captured, serve,
};
use crate::session::Trace;
use crate::tariff::Tariff;
use crate::workload::Workload;

/// Where batches come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The trace's own steps.
    Captured,
    /// The trace's requests, coming as the traffic says.
    Live(Traffic),
}

impl Mode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Captured => "captured",
            Self::Live(Traffic::Open) => "open",
            Self::Live(Traffic::Closed { .. }) => "closed",
            Self::Live(Traffic::Session) => "session",
        }
    }
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
    /// Who gets a request.
    pub routing: Routing,
    /// Instances that compute prompts for those above, if apart.
    pub prefill: Option<Prefill>,
    /// KV blocks of 16 tokens per instance, as the engine reports them; what the memory leaves if `None`.
    pub kv_blocks: Option<u32>,
    /// Arrival rate as a multiple of the trace's.
    pub rate: f64,
    /// Accelerators per instance, and instances.
    pub parallel: Parallel,
    /// Drafting, if any.
    pub speculative: Option<Speculative>,
    /// Memories below the accelerators' own, such as `tier(hbm,dram)`; none if `None`.
    pub placement: Option<String>,
    /// Number format of the weights.
    pub dtype: WeightDtype,
    /// The price book.
    pub prices: PriceBook,
    /// What tokens are sold for; nothing is sold if `None`.
    pub tariff: Option<Tariff>,
    /// Engineer-days that the change on a floor asks of software, as far as anybody has said so; they change no replay.
    pub adaptation_days: Vec<(String, f64)>,
    /// Measured operations of the machine; without any, every operation has its closed form.
    pub measured: Measured,
}

/// Instances that compute prompts and send the KV to those that decode.
#[derive(Debug, Clone)]
pub struct Prefill {
    /// Their machine.
    pub machine: Machine,
    /// Accelerators per instance, and instances.
    pub parallel: Parallel,
    /// Name or distance of the link that each accelerator of theirs sends over.
    pub link: String,
    /// Measured operations of their machine.
    pub measured: Measured,
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
    /// The instances that compute prompts, if apart; they come first among the instances.
    pub prefill: Option<Plan>,
    /// Memories below the accelerators' own, and the ways from them.
    pub below: Option<Tiers>,
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
    /// Instances in all.
    pub fn instances(&self) -> u32 {
        self.parallel.instances.saturating_add(self.prefill.as_ref().map_or(0, |prefill| prefill.parallel.instances))
    }

    /// Accelerators in all.
    pub fn accelerators(&self) -> u32 {
        let prompts = self.prefill.as_ref().map_or(0, |prefill| accelerators(prefill.parallel));
        accelerators(self.parallel).saturating_add(prompts)
    }
}

/// What became of the requests of users, with their places: those that stages of the policy send are not among them. Their
/// machine time is paid for like any other, but nobody waits for their tokens, and nobody buys them.
pub fn of_users<'a>(outcome: &'a Outcome, workload: &'a Workload) -> impl Iterator<Item = (usize, &'a Served)> {
    outcome.served.iter().enumerate().filter(|(at, _)| !workload.is_added(*at))
}

/// The others: what stages of the policy send.
fn of_stages<'a>(outcome: &'a Outcome, workload: &'a Workload) -> impl Iterator<Item = (usize, &'a Served)> {
    outcome.served.iter().enumerate().filter(|(at, _)| workload.is_added(*at))
}

/// What a figure of users' requests is, sorted.
fn felt(outcome: &Outcome, workload: &Workload, of: fn(&Served) -> Option<i64>) -> Vec<i64> {
    let mut values: Vec<i64> = of_users(outcome, workload).filter_map(|(_, served)| of(served)).collect();
    values.sort_unstable();
    values
}

fn accelerators(parallel: Parallel) -> u32 {
    parallel.accelerators().saturating_mul(parallel.instances)
}

impl Found {
    /// KV bytes that fit in all instances.
    pub fn capacity_bytes(&self, scenario: &Scenario) -> u64 {
        let prompts = self.prefill.as_ref().zip(scenario.prefill.as_ref());
        let prompts = prompts.map_or(0, |(plan, prefill)| plan.capacity_bytes * u64::from(prefill.parallel.instances));
        self.plan.capacity_bytes * u64::from(scenario.parallel.instances) + prompts
    }

    /// KV bytes that fit in this instance.
    pub fn capacity_of(&self, scenario: &Scenario, instance: u32) -> u64 {
        match (&self.prefill, &scenario.prefill) {
            (Some(plan), Some(prefill)) if instance < prefill.parallel.instances => plan.capacity_bytes,
            _ => self.plan.capacity_bytes,
        }
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
    let stages = policy.edits_name().unwrap_or_default();
    Ok(Source {
        // Tables about workloads have rows for both.
        workload: Workload { name: format!("{} under {stages}", source.workload.name), ..edited.workload },
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
    let mut plan = plan(&scenario.model, &shape, &scenario.machine, scenario.dtype, scenario.parallel)?;
    plan.draft(scenario.speculative)?;
    measure(&mut plan, &scenario.model, &scenario.machine, scenario.dtype, &scenario.measured);
    if let Some(blocks) = scenario.kv_blocks {
        plan.capacity_bytes = pinned_bytes(&plan, blocks, &scenario.rules)?;
    }
    if scenario.rules.preempted == Preempted::Swap {
        plan.host_bytes_per_ns = host_bytes_per_ns(scenario)?;
    }
    let prefill = scenario.prefill.as_ref().map(|prefill| prompts(scenario, prefill, &shape)).transpose()?;
    let tensor = plan.tensor;
    let placement = scenario.placement.as_deref();
    let below = placement.map(|text| lower::parse(text, &scenario.machine, tensor)).transpose()?;
    let (outcome, span_ns, offered_load) = match scenario.mode {
        Mode::Captured => {
            as_captured(scenario, source, below.is_some())?;
            (captured(&plan, &source.steps, source.workload.len())?, 0, None)
        }
        Mode::Live(traffic) => {
            let workload = source.workload.at_rate(scenario.rate)?;
            let role = if prefill.is_some() { Role::Decode } else { Role::Both };
            let mut pools = vec![Pool { plan: &plan, instances: scenario.parallel.instances, role }];
            if let (Some((plan, _)), Some(prefill)) = (&prefill, &scenario.prefill) {
                pools.insert(0, Pool { plan, instances: prefill.parallel.instances, role: Role::Prefill });
            }
            let setup = Setup {
                pools: &pools,
                traffic,
                routing: scenario.routing,
                rules: &scenario.rules,
                handover: prefill.as_ref().map(|(_, handover)| *handover),
                below: below.as_ref(),
            };
            let outcome = serve(&setup, &workload);
            // Who waits for others offers no load of its own, and two pools have two loads.
            let has_load = traffic == Traffic::Open && prefill.is_none();
            let load = has_load.then(|| metrics::offered_load(&plan, scenario, &workload, &outcome));
            let span = if traffic == Traffic::Open { workload.span_ns() } else { 0 };
            (outcome, span, load.flatten())
        }
    };
    if outcome.overran {
        return Err(Error::run("the replay takes more than 146 years of machine time")
            .hint("check the machine's rates and fixed times, and the trace's time unit"));
    }
    some_served(&outcome)?;
    let ends = outcome.stretches.iter().map(|stretch| stretch.start_ns + stretch.total_ns);
    Ok(Found {
        price: price(scenario, &scenario.prices),
        span_ns,
        duration_ns: ends.max().unwrap_or(0),
        shape,
        prefill: prefill.map(|(plan, _)| plan),
        below,
        plan,
        outcome,
        offered_load,
    })
}

/// Refuses a replay in which every request was turned away: its figures would be those of an idle machine.
fn some_served(outcome: &Outcome) -> Result<()> {
    let reasons: Option<Vec<&str>> = outcome.served.iter().map(|served| served.fate.reason()).collect();
    match reasons.as_deref() {
        None | Some([]) => Ok(()),
        Some(all @ [first, ..]) => {
            let more = if all.iter().all(|reason| reason == first) { "" } else { ", others for other reasons" };
            Err(Error::run(format!("all {} requests are turned away, the first since {first}{more}", all.len()))
                .hint("use more or larger accelerators, smaller KV, or requests that fit"))
        }
    }
}

/// Replays one scenario for its sums alone.
///
/// # Errors
/// As [`replay`].
pub fn toll_of(scenario: &Scenario, source: &Source) -> Result<Toll> {
    Ok(toll::toll(scenario, &replay(scenario, source)?, &source.workload))
}

/// Refuses what captured steps cannot have.
fn as_captured(scenario: &Scenario, source: &Source, has_below: bool) -> Result<()> {
    if source.steps.is_empty() {
        return Err(Error::run(format!("`{}` has no captured steps", source.workload.name))
            .hint("use `mode = \"open\"`, or ingest a recording"));
    }
    if (scenario.rate - 1.0).abs() > f64::EPSILON || scenario.parallel.instances != 1 {
        return Err(Error::usage("captured steps run as they were recorded, on one instance at their own rate")
            .hint("leave out `rate` and `instances`, or use `mode = \"open\"`"));
    }
    if scenario.prefill.is_some() {
        return Err(Error::usage("captured steps run on one instance, without pools of their own for prompts"));
    }
    if has_below {
        return Err(Error::usage("captured steps fetch nothing from memories below")
            .hint("leave out `tier(...)`, or use `mode = \"open\"`"));
    }
    Ok(())
}

/// Bytes of so many blocks of 16 tokens, without those that the engine keeps for itself.
fn pinned_bytes(plan: &Plan, blocks: u32, rules: &Rules) -> Result<u64> {
    let block: u64 = (0..plan.groups.len()).map(|group| plan.block_bytes(group)).sum();
    match blocks.checked_sub(rules.spare_blocks).filter(|&blocks| blocks > 0) {
        Some(usable) => Ok(u64::from(usable) * block),
        None => Err(Error::usage(format!(
            "expected more KV blocks than the {} that `{}` keeps for itself, found {blocks}",
            rules.spare_blocks, rules.name
        ))),
    }
}

/// The link over which instances that compute prompts send, by its name or distance.
fn link_named(prefill: &Prefill) -> Option<&Link> {
    let named = |link: &&Link| link.name == prefill.link || link.distance.name() == prefill.link;
    prefill.machine.links.iter().find(named)
}

/// The instances that compute prompts, and their way to those that decode.
fn prompts(scenario: &Scenario, prefill: &Prefill, shape: &Shape) -> Result<(Plan, Handover)> {
    let machine = &prefill.machine;
    let mut plan = plan(&scenario.model, shape, machine, scenario.dtype, prefill.parallel)?;
    measure(&mut plan, &scenario.model, machine, scenario.dtype, &prefill.measured);
    let link = link_named(prefill).ok_or_else(|| {
        let known = machine.links.iter().flat_map(|link| [link.name.as_str(), link.distance.name()]);
        unknown("link", &prefill.link, known)
    })?;
    let bytes_per_ns = handover_bytes_per_ns(link, &plan).ok_or_else(|| {
        Error::usage(format!("the bandwidth of `{}` of `{}` is not published", link.name, machine.name))
            .hint("name another link, or a machine file that gives it")
    })?;
    let latency_ns = link.latency_ns.as_ref().map_or(0.0, |latency| latency.value);
    Ok((plan, Handover { bytes_per_ns, latency_ns }))
}

/// What an instance that computes prompts sends over its links, bytes per nanosecond; `None` where it is not published.
fn handover_bytes_per_ns(link: &Link, plan: &Plan) -> Option<f64> {
    let achieved = link.achieved.as_ref().map_or(1.0, |achieved| achieved.value);
    link.way_bytes_per_s.as_ref().map(|way| way.value * achieved * plan.tensor / 1e9)
}

/// The link to the host, over which preempted requests go.
fn host_bytes_per_ns(scenario: &Scenario) -> Result<f64> {
    let link = scenario.machine.accelerator.host_link_bytes_per_s.as_ref().ok_or_else(|| {
        let (rules, machine) = (scenario.rules.name, &scenario.machine);
        Error::usage(format!(
            "`{rules}` swaps over the link between `{}` and its host, which is not known",
            machine.name
        ))
        .hint(format!("assume one: `{}*host_link_bytes_per_s=64GB/s`", machine.preset))
    })?;
    Ok(link.value / 1e9)
}

/// The price of an accelerator of the scenario in a book: that of its machine, or the mean over both of its machines.
fn price(scenario: &Scenario, book: &PriceBook) -> Price {
    let own = price_of_machine(book, &scenario.machine);
    let Some(prefill) = &scenario.prefill else { return own };
    let other = price_of_machine(book, &prefill.machine);
    let counts = (f64::from(accelerators(scenario.parallel)), f64::from(accelerators(prefill.parallel)));
    let mean = |a: Option<Sourced>, b: Option<Sourced>| {
        let (a, b) = (a?, b?);
        let value = (a.value * counts.0 + b.value * counts.1) / (counts.0 + counts.1);
        let source = if a.source == b.source { a.source } else { format!("{}; {}", a.source, b.source) };
        Some(Sourced { value, source, certainty: a.certainty.min(b.certainty) })
    };
    Price {
        usd_per_accelerator_hour: mean(own.usd_per_accelerator_hour, other.usd_per_accelerator_hour),
        w_per_accelerator: mean(own.w_per_accelerator, other.w_per_accelerator),
        machine: own.machine,
        // What owning consists of is that of one machine.
        owning: None,
    }
}

/// A variation is priced as its preset, which is an assumption.
fn price_of_machine(book: &PriceBook, machine: &Machine) -> Price {
    let mut price = price_of(book, &machine.preset);
    if machine.name != machine.preset {
        for known in [&mut price.usd_per_accelerator_hour, &mut price.w_per_accelerator].into_iter().flatten() {
            known.certainty = Certainty::Assumed;
            known.source = format!("that of `{}`, for want of one for the variation: {}", machine.preset, known.source);
        }
    }
    price
}
