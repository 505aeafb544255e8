//! What memories below the accelerator's own would do for the workloads of a run: lives and gaps of blocks, block sizes, and
//! whether fetching from each tier pays.
//!
//! The near cache is LRU, the deepest block of a prompt first, and has the whole KV memory of an instance; what running
//! requests hold for themselves is not taken off, so that it is larger than the serving replay's. Each tier stands alone
//! below it, with every block written through, and without a limit where its size is not published: what it does is then
//! the most that it could do. Requests go to instances in turn, as in the serving replay.

use arrow::array::RecordBatch;

use super::{Found, Mode, Scenario};
use crate::cache::asset::{self, Copies, of_instance};
use crate::cache::asset_tables::{self, Now, Worth, saved_ns};
use crate::cache::coarse::sweep;
use crate::cache::fetch::{self, Decide, Terms, judge};
use crate::cache::life::{Gap, Interval, gaps, intervals, lives};
use crate::cache::tiers::{Frequency, Hierarchy, Inclusion, Tier, Write};
use crate::cache::trace::Sessions;
use crate::cache::way::{Reach, reaches};
use crate::cache::{Rule, Trace, life_tables};
use crate::error::Result;
use crate::schema::Table;
use crate::schema::hierarchy::{BLOCK_SIZES, BLOCKS, COPIES, DESK, FETCH_TOTALS, FETCHES, GAPS, NEAR_SIZES, YIELDS};
use crate::serving::Traffic;
use crate::workload::Workload;

/// The near cache.
const NEAR: &str = "lru(leaf_first=yes)";

/// Largest block of a sweep, in blocks of the trace.
const MOST_TIMES: u32 = 16;

/// Requests with what is known of them, and the scenarios that replayed them.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The requests.
    pub workload: &'a Workload,
    /// Their sessions, where known.
    pub sessions: Option<&'a Sessions>,
    /// What kind of content and whose each request is, by the name of the column, where known.
    pub labels: &'a [(&'a str, Vec<Option<String>>)],
    /// Number, scenario and what it came to; those that failed are left out.
    pub scenarios: &'a [(u32, &'a Scenario, &'a Found)],
}

/// The tables of one workload; none where its requests name no blocks.
///
/// # Errors
/// None that a workload can cause.
pub fn tables(subject: &Subject<'_>) -> Result<Vec<(&'static Table, RecordBatch)>> {
    let Subject { workload, sessions, scenarios, .. } = *subject;
    if workload.units.is_empty() || workload.unit_tokens == 0 {
        return Ok(Vec::new());
    }
    let trace = Trace::with_sessions(workload, sessions);
    let first = scenarios.iter().find(|(_, scenario, _)| scenario.is_baseline).or_else(|| scenarios.first());
    // All instances of the first scenario together: the most that the workload could keep.
    let capacity = first.map_or(trace.distinct(), |(_, scenario, found)| {
        near_blocks(found, workload).saturating_mul(scenario.parallel.instances as usize).min(trace.distinct())
    });
    let rule = Rule::parse(NEAR)?;
    let tokens = (capacity as u64).saturating_mul(u64::from(workload.unit_tokens));
    let (life, all_gaps) = (lives(&rule, &trace, capacity)?, gaps(&trace));
    let sizes = sweep(&rule, workload, &trace, tokens, MOST_TIMES)?;
    let mut all = vec![
        (&BLOCKS, life_tables::blocks(workload, &trace, (&rule, capacity), &life)?),
        (&GAPS, life_tables::gaps(workload, &all_gaps)?),
        (&BLOCK_SIZES, life_tables::block_sizes(&workload.name, &rule, &sizes)?),
    ];
    all.extend(assets(subject, first, (&trace, &all_gaps), capacity)?);
    for (at, scenario, found) in scenarios.iter().filter(|(_, scenario, _)| scenario.mode == Mode::Live(Traffic::Open))
    {
        if found.plan.growing_bytes() == 0 {
            continue;
        }
        for reach in reaches(&scenario.machine, found.plan.tensor) {
            let hierarchy = below(found, workload, &reach)?;
            let terms = Terms {
                plan: &found.plan,
                ways: std::slice::from_ref(&reach.way),
                decide: Decide::BreakEven,
                chunk_tokens: scenario.rules.step_tokens,
            };
            let judged = by_instance(&workload.at_rate(scenario.rate)?, scenario, &hierarchy, terms)?;
            let rows = life_tables::fetch_totals(Some(*at), &trace, &hierarchy, &terms, &judged)?;
            all.push((&FETCH_TOTALS, rows));
            if scenario.is_baseline {
                all.push((&FETCHES, life_tables::fetches(Some(*at), workload, &hierarchy, &judged)?));
            }
        }
    }
    Ok(all)
}

/// The asset view under the first scenario, or without a model where all failed.
fn assets(
    subject: &Subject<'_>,
    first: Option<&(u32, &Scenario, &Found)>,
    (trace, gaps): (&Trace<'_>, &[Gap]),
    capacity: usize,
) -> Result<Vec<(&'static Table, RecordBatch)>> {
    let Subject { workload, sessions, labels, .. } = *subject;
    let worth = first.map_or_else(Worth::default, |(_, scenario, found)| worth(scenario, found, workload, gaps));
    let instances = first.map_or(1, |(_, scenario, _)| scenario.parallel.instances as usize).min(workload.len().max(1));
    let each = first.map_or(capacity, |(_, _, found)| near_blocks(found, workload).min(trace.distinct()));
    let rule = Rule::parse(NEAR)?;
    let parts: Result<Vec<Vec<Interval>>> =
        (0..instances).map(|at| intervals(&rule, &Trace::new(&of_instance(workload, at, instances)), each)).collect();
    let parts = parts?;
    let desk = asset::desk(&parts);
    let yields = asset::yields(&parts.concat());
    let limit = |blocks: usize| (blocks < trace.distinct()).then_some(blocks as u64);
    let now = Now { workload, gaps, blocks: limit(capacity), worth };
    let mut copies: Vec<(&str, u32, Copies)> = Vec::new();
    if let Some(sessions) = sessions {
        copies.push(("sessions", sessions.count(), asset::copies(trace, |at| sessions.of(at))));
    }
    if instances > 1 {
        copies.push(("instances", instances as u32, asset::copies(trace, |at| (at % instances) as u32)));
    }
    Ok(vec![
        (&NEAR_SIZES, asset_tables::near_sizes(&now, labels)?),
        (&DESK, asset_tables::desk(&now, (limit(each), instances as u32), &desk)?),
        (&YIELDS, asset_tables::yields(&now, &yields)?),
        (&COPIES, asset_tables::copies(&now, &copies)?),
    ])
}

/// What a block and a read of it are worth in a scenario. The room of a block has its part of the price of the accelerators
/// whose memory it is in.
fn worth(scenario: &Scenario, found: &Found, workload: &Workload, gaps: &[Gap]) -> Worth {
    let bytes = found.plan.growing_bytes().saturating_mul(u64::from(workload.unit_tokens));
    let price = found.price.usd_per_accelerator_hour.as_ref().map(|price| price.value);
    let gib = scenario.machine.accelerator.memory_bytes.value / 1_073_741_824.0;
    Worth {
        block_bytes: Some(bytes).filter(|bytes| *bytes > 0),
        usd_per_gib_hour: price.map(|price| price / gib),
        saved_ns: saved_ns(&found.plan, workload.unit_tokens, scenario.rules.step_tokens, gaps),
        usd_per_ns: price.map(|price| price * found.plan.tensor / 3.6e12),
    }
}

/// Blocks that the KV memory of an instance holds.
pub(super) fn near_blocks(found: &Found, workload: &Workload) -> usize {
    let block = found.plan.growing_bytes().saturating_mul(u64::from(workload.unit_tokens));
    found
        .plan
        .capacity_bytes
        .checked_div(block)
        .map_or(usize::MAX, |blocks| usize::try_from(blocks).unwrap_or(usize::MAX))
}

/// The near cache with so many blocks.
pub(super) fn near(capacity: usize) -> Result<Tier> {
    Ok(Tier { name: "hbm".to_owned(), rule: Rule::parse(NEAR)?, capacity, admit: 0, fetch_blocks: 0 })
}

/// The near cache with one tier below it.
pub(super) fn below(found: &Found, workload: &Workload, reach: &Reach) -> Result<Hierarchy> {
    let block = found.plan.growing_bytes() as f64 * f64::from(workload.unit_tokens);
    let distinct = workload.distinct_units as usize;
    let far = reach.capacity_bytes.map_or(distinct, |bytes| ((bytes / block) as usize).min(distinct));
    let (name, rule) = (reach.way.name.clone(), Rule::parse("lru")?);
    let far = Tier { name, rule, capacity: far, admit: 0, fetch_blocks: 0 };
    Ok(Hierarchy {
        tiers: vec![near(near_blocks(found, workload).min(distinct))?, far],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
    })
}

/// Judges the requests of each instance on tiers of its own.
pub(super) fn by_instance(
    workload: &Workload,
    scenario: &Scenario,
    hierarchy: &Hierarchy,
    terms: Terms<'_>,
) -> Result<fetch::Found> {
    let instances = scenario.parallel.instances as usize;
    let mut all = fetch::Found::default();
    for instance in 0..instances.min(workload.len()) {
        let part = of_instance(workload, instance, instances);
        let found = judge(hierarchy, &Trace::new(&part), terms)?;
        all.add(found, |request| (request as usize * instances + instance) as u32);
    }
    Ok(all)
}
