//! `kvtoll cache --show`: lives of blocks, gaps, block sizes, and whether fetching from a farther tier pays.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use engine::cache::asset;
use engine::cache::asset_tables::{self, Now, Worth, saved_ns};
use engine::cache::coarse::sweep;
use engine::cache::fetch::{Decide, Terms, Way, judge};
use engine::cache::life::{Gap, Interval, gaps, intervals, lives, uses};
use engine::cache::pages::{self, Demand, HeadReads};
use engine::cache::tiers::{Hierarchy, Preset};
use engine::cache::way::reaches;
use engine::cache::{Rule, Trace, life_tables};
use engine::cost::{Parallel, Plan, fewest, plan};
use engine::error::{Error, Result};
use engine::machine::Machine;
use engine::policy::{Stack, shape};
use engine::prices::price_of;
use engine::schema::canonical::REQUESTS;
use engine::serving::RULES;
use engine::unit;
use engine::workload::Workload;

use super::super::recorded;
use super::super::replay::below::labels;
use super::{Args, Scale, sizes, talk};
use crate::scenario::{load_machine, load_model, load_prices};
use crate::store::Store;

/// Largest block of a sweep, in blocks of the trace.
const MOST_TIMES: u32 = 16;

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Show {
    /// Hits by policy and size, or by tier
    Hits,
    /// The life of each block in a cache
    Blocks,
    /// The time and the blocks between two uses of a block
    Gaps,
    /// Hits with larger blocks in the same room
    BlockSizes,
    /// Whether fetching from each tier pays
    Tiers,
    /// Each run of blocks that a tier could serve
    Fetches,
    /// The near memory that serves 50, 90 and 99% of the reads, by kind and tenant
    Near,
    /// What lies in the cache: working, reference, duplicate, archive, dead
    Desk,
    /// What idle blocks yield, by idle time
    Yields,
    /// What is kept more than once across sessions, instances and tiers
    Copies,
    /// How few blocks hold most of recorded attention
    Attention,
}

/// Which runs are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// As far as it pays for each request
    BreakEven,
    /// All that can be
    Always,
}

/// The table that is asked for.
pub(super) fn table(
    args: &Args,
    rules: &[Rule],
    preset: Option<&Preset>,
    (workload, trace): (&Workload, &Trace<'_>),
    scale: Scale,
) -> Result<RecordBatch> {
    if args.sample.is_some() {
        return Err(Error::usage("`--sample` estimates hits by size only").hint("leave out `--sample` or `--show`"));
    }
    match args.show {
        Show::Gaps => life_tables::gaps(workload, &gaps(trace)),
        Show::Hits | Show::Blocks | Show::BlockSizes => {
            let Some(rule) = rules.first() else { return Err(Error::usage("expected a cache policy, found none")) };
            let capacity = one_size(args, trace, scale)?;
            if args.show == Show::BlockSizes {
                let tokens = (capacity as u64).saturating_mul(u64::from(workload.unit_tokens));
                return life_tables::block_sizes(
                    &workload.name,
                    rule,
                    &sweep(rule, workload, trace, tokens, MOST_TIMES)?,
                );
            }
            let found = lives(rule, trace, capacity)?;
            tell_lives(trace, &found);
            life_tables::blocks(workload, trace, (rule, capacity), &found)
        }
        Show::Attention => Err(Error::usage("`--show attention` looks at recordings and not at requests")),
        Show::Near | Show::Desk | Show::Yields | Show::Copies => assets(args, rules, (workload, trace), scale),
        Show::Tiers | Show::Fetches => fetching(args, preset, (workload, trace), scale),
    }
}

/// The one size of `--blocks`; all blocks if none is given.
fn one_size(args: &Args, trace: &Trace<'_>, scale: Scale) -> Result<usize> {
    let Some(text) = &args.blocks else { return Ok(trace.distinct()) };
    match sizes(text, scale)?[..] {
        [size] => Ok(usize::try_from(size).unwrap_or(usize::MAX).min(trace.distinct())),
        _ => Err(Error::usage(format!("expected one size in `--blocks` for lives of blocks, found `{text}`"))),
    }
}

/// Figures of all lives together.
fn tell_lives(trace: &Trace<'_>, found: &engine::cache::life::Lives) {
    let lives = found.lives.len();
    let silent = found.lives.iter().filter(|life| life.reads == 0).count();
    let once = uses(trace).iter().filter(|uses| **uses == 1).count();
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    talk::note(&format!(
        "{lives} lives, {silent} of them ({:.4}) stored and never read; {once} of {} distinct blocks ({:.4}) are used once",
        share(silent, lives),
        trace.distinct(),
        share(once, trace.distinct())
    ));
    if let Some(occupancy) = found.token_occupancy() {
        talk::note(&format!("tokens fill {occupancy:.4} of the blocks that are there, mean over time"));
    }
}

/// The verdicts.
fn fetching(
    args: &Args,
    preset: Option<&Preset>,
    (workload, trace): (&Workload, &Trace<'_>),
    scale: Scale,
) -> Result<RecordBatch> {
    let preset = preset.ok_or_else(|| {
        Error::usage("expected `--tiers` with a hierarchy, found none").hint("such as `--tiers lmcache`")
    })?;
    let text = args.blocks.as_deref().ok_or_else(|| {
        let names: Vec<&str> = preset.tiers.iter().map(|tier| tier.name).collect();
        Error::usage(format!("expected `--blocks` with a size for each of {}, found none", names.join(", ")))
    })?;
    let mut hierarchy = preset.hierarchy(&sizes(text, scale)?, trace.unit_tokens())?;
    for tier in &mut hierarchy.tiers {
        tier.capacity = tier.capacity.min(trace.distinct());
    }
    let (Some(model), Some(machine)) = (&args.model, &args.machine) else {
        return Err(Error::usage(
            "expected `--model` and `--machine`, which set what computing costs, found neither or one",
        ));
    };
    let machine = load_machine(machine)?;
    let plan = placed(&load_model(model)?, &machine, args.tensor_parallel)?;
    let ways = ways(args, &hierarchy, &machine, &plan)?;
    let decide = match args.fetch {
        When::BreakEven => Decide::BreakEven,
        When::Always => Decide::Always,
    };
    let terms = Terms { plan: &plan, ways: &ways, decide, chunk_tokens: RULES[0].step_tokens };
    let found = judge(&hierarchy, trace, terms)?;
    talk::note(&format!(
        "one instance of {} accelerators of {}; {}",
        plan.tensor, machine.name, "waiting for the accelerator is not counted, and nothing of a fetch is hidden"
    ));
    if args.show == Show::Fetches {
        life_tables::fetches(None, workload, &hierarchy, &found)
    } else {
        life_tables::fetch_totals(None, trace, &hierarchy, &terms, &found)
    }
}

/// The asset view.
fn assets(
    args: &Args,
    rules: &[Rule],
    (workload, trace): (&Workload, &Trace<'_>),
    scale: Scale,
) -> Result<RecordBatch> {
    let Some(rule) = rules.first() else { return Err(Error::usage("expected a cache policy, found none")) };
    if args.instances == 0 {
        return Err(Error::usage("expected `--instances` of at least 1, found 0"));
    }
    let instances = (args.instances as usize).min(workload.len().max(1));
    let (all_gaps, capacity) = (gaps(trace), one_size(args, trace, scale)?);
    let limit = (capacity < trace.distinct()).then_some(capacity as u64);
    let now = Now { workload, gaps: &all_gaps, blocks: limit, worth: worth(args, workload, &all_gaps, scale)? };
    if args.show == Show::Near {
        let requests = Store::open(&args.store)?.read(&REQUESTS)?;
        return asset_tables::near_sizes(&now, &labels(workload, &requests)?);
    }
    if args.show == Show::Copies {
        let mut found = Vec::new();
        if trace.has_sessions() {
            let of: Vec<u32> = trace.requests().map(|request| request.session).collect();
            let count = of.iter().max().map_or(0, |most| most + 1);
            found.push(("sessions", count, asset::copies(trace, |at| of[at])));
        }
        found.push(("instances", instances as u32, asset::copies(trace, |at| (at % instances) as u32)));
        return asset_tables::copies(&now, &found);
    }
    let parts: Result<Vec<Vec<Interval>>> = (0..instances)
        .map(|at| intervals(rule, &trace.of(&asset::of_instance(workload, at, instances)), capacity))
        .collect();
    let parts = parts?;
    match args.show {
        Show::Desk => asset_tables::desk(&now, (limit, instances as u32), &asset::desk(&parts)),
        _ => asset_tables::yields(&now, &asset::yields(&parts.concat())),
    }
}

/// What a block and a read of it are worth, as far as the flags tell.
fn worth(args: &Args, workload: &Workload, gaps: &[Gap], scale: Scale) -> Result<Worth> {
    let mut worth =
        Worth { block_bytes: scale.block_bytes, usd_per_gib_hour: scale.usd_per_gib_hour, ..Worth::default() };
    let (Some(model), Some(machine)) = (&args.model, &args.machine) else { return Ok(worth) };
    let machine = load_machine(machine)?;
    let plan = placed(&load_model(model)?, &machine, args.tensor_parallel)?;
    worth.saved_ns = saved_ns(&plan, workload.unit_tokens, RULES[0].step_tokens, gaps);
    let Some(book) = &args.prices else { return Ok(worth) };
    let price = price_of(&load_prices(book)?, &machine.preset).usd_per_accelerator_hour.map(|price| price.value);
    worth.usd_per_ns = price.map(|price| price * plan.tensor / 3.6e12);
    let gib = machine.accelerator.memory_bytes.value / 1_073_741_824.0;
    worth.usd_per_gib_hour = worth.usd_per_gib_hour.or_else(|| price.map(|price| price / gib));
    Ok(worth)
}

/// How few blocks hold most of the attention of each recording of a store.
pub(in crate::command) fn attention(store: &Store) -> Result<Vec<RecordBatch>> {
    let Some(recorded) = recorded::open(store, recorded::needs([]))? else { return Ok(Vec::new()) };
    let mut all: Vec<(String, BTreeMap<(u64, u16), HeadReads>)> = Vec::new();
    recorded::each_head(&recorded, pages::reads, |recording, head, found| {
        let label = recording.label();
        let at = all.iter().position(|(known, _)| *known == label).unwrap_or_else(|| {
            all.push((label, BTreeMap::new()));
            all.len() - 1
        });
        all[at].1.entry((head.request.request_id, head.layer)).or_default().add(&found);
        Ok(())
    })?;
    all.iter().map(|(label, heads)| pages::table(label, heads)).collect()
}

/// The pages that recorded attention asks for, as requests for a cache.
pub(super) fn pages(args: &Args, share: f64) -> Result<Workload> {
    let store = Store::open(&args.store)?;
    let recorded = recorded::open(&store, recorded::needs([]))?.ok_or_else(|| {
        Error::run("the store has no recordings")
            .hint("`--pages` replays recorded attention; see `traces/recording-block`")
    })?;
    let mut demand = Demand::new(share)?;
    recorded::each_head(
        &recorded,
        |_| (),
        |_, head, ()| {
            let key = head.request.source_key.as_deref();
            if args.request.as_deref().is_none_or(|wanted| key == Some(wanted)) { demand.add(head) } else { Ok(()) }
        },
    )?;
    let name = args.request.clone().unwrap_or_else(|| "all recorded requests".to_owned());
    talk::note(&format!(
        "each decode step uses the blocks that hold {share} of the mass of each layer and KV head; a block is one of one head"
    ));
    demand.workload(&name)
}

/// The model on so many accelerators, or on the fewest (a power of two) that hold its weights.
fn placed(model: &engine::model::Model, machine: &Machine, tensor: Option<u32>) -> Result<Plan> {
    let shape = shape(&Stack::parse("full")?, model)?;
    let on = |tensor: u32| plan(model, &shape, machine, model.weights, Parallel::tensor(tensor));
    tensor.map_or_else(|| fewest(machine, on), on)
}

/// The way from each farther tier: as it is typed, or as the machine's memories lie, nearest first.
fn ways(args: &Args, hierarchy: &Hierarchy, machine: &Machine, plan: &Plan) -> Result<Vec<Way>> {
    let mut typed = Vec::new();
    for text in &args.way {
        let way = way(text)?;
        if !hierarchy.tiers.iter().skip(1).any(|tier| tier.name == way.name) {
            let names = hierarchy.tiers.iter().skip(1).map(|tier| tier.name.as_str());
            return Err(engine::error::unknown("farther tier", &way.name, names));
        }
        typed.push(way);
    }
    let reaches = reaches(machine, plan.tensor);
    let of = |(at, tier): (usize, &engine::cache::tiers::Tier)| {
        if let Some(way) = typed.iter().find(|way| way.name == tier.name) {
            return Ok(way.clone());
        }
        let reach = reaches.get(at).ok_or_else(|| {
            Error::run(format!(
                "`{}` has no memory with a published bandwidth for the tier `{}`",
                machine.name, tier.name
            ))
            .hint(format!("give it: `--way {}=50GB/s,10us`", tier.name))
        })?;
        talk::note(&format!("{} is {} of {}", tier.name, reach.way.name, machine.name));
        if !reach.left_out.is_empty() {
            talk::note(&format!("{}: {}", tier.name, reach.left_out));
        }
        Ok(reach.way.clone())
    };
    hierarchy.tiers.iter().skip(1).enumerate().map(of).collect()
}

/// `dram=200GB/s,2us`.
fn way(text: &str) -> Result<Way> {
    let wrong = || Error::usage(format!("expected a way such as `dram=200GB/s,2us`, found `{text}`"));
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (rate, latency) = rest.split_once(',').ok_or_else(wrong)?;
    let rate = unit::parse(&unit::BANDWIDTH, rate.trim())?;
    let latency = unit::parse(&unit::TIME, latency.trim())?;
    if !(rate > 0.0 && rate.is_finite() && latency >= 0.0) {
        return Err(wrong());
    }
    Ok(Way { name: name.trim().to_owned(), bytes_per_ns: rate / 1e9, latency_ns: latency })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_a_rate_and_a_latency() {
        let found = way("dram=200GB/s,2us").unwrap();
        assert_eq!((found.name.as_str(), found.bytes_per_ns, found.latency_ns), ("dram", 200.0, 2000.0));
        for text in ["dram", "dram=200GB/s", "dram=0GB/s,1us", "dram=fast,1us"] {
            assert!(way(text).is_err(), "{text}");
        }
    }
}
