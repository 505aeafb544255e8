//! The rows of `blocks`, `gaps`, `block_sizes`, `fetches` and `fetch_totals`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};

use super::coarse::Sized;
use super::fetch::{Decide, Found, Terms, totals};
use super::life::{Gap, Lives, uses};
use super::tiers::Hierarchy;
use super::{Rule, Trace};
use crate::error::Result;
use crate::schema::hierarchy::{BLOCK_SIZES, BLOCKS, FETCH_TOTALS, FETCHES, GAPS};
use crate::schema::{Cell, batch_of_rows};
use crate::workload::Workload;

/// Blocks that fit, where that is less than there are.
fn limit(capacity: usize, distinct: usize) -> Option<u64> {
    (capacity < distinct).then_some(capacity as u64)
}

fn text(value: &str, rows: usize) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows)))
}

/// Rows of [`BLOCKS`].
///
/// # Errors
/// None that lives can cause.
pub fn blocks(
    workload: &Workload,
    trace: &Trace<'_>,
    (rule, capacity): (&Rule, usize),
    lives: &Lives,
) -> Result<RecordBatch> {
    let (rows, count, uses) = (&lives.lives, lives.lives.len(), uses(trace));
    let unit = trace.unit_tokens();
    let u32s = |of: &dyn Fn(usize) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values((0..count).map(of))) };
    let times =
        |of: &dyn Fn(usize) -> Option<i64>| -> ArrayRef { Arc::new((0..count).map(of).collect::<Int64Array>()) };
    let ids = rows.iter().map(|life| workload.request_ids[life.request as usize]);
    let others = |at: usize| trace.has_sessions().then(|| rows[at].other_reads);
    let columns: Vec<ArrayRef> = vec![
        text(&workload.name, count),
        text(&rule.text(), count),
        Arc::new(std::iter::repeat_n(limit(capacity, trace.distinct()), count).collect::<UInt64Array>()),
        u32s(&|at| rows[at].block),
        u32s(&|at| rows[at].position),
        Arc::new(UInt64Array::from_iter_values(ids)),
        u32s(&|at| rows[at].tokens),
        u32s(&|_| unit),
        times(&|at| Some(rows[at].born_ns)),
        times(&|at| Some(rows[at].last_use_ns)),
        times(&|at| rows[at].left_ns),
        times(&|at| rows[at].left_ns.map(|left| left - rows[at].born_ns)),
        times(&|at| rows[at].idle_ns()),
        u32s(&|at| rows[at].reads),
        Arc::new((0..count).map(others).collect::<UInt32Array>()),
        Arc::new(rows.iter().map(|life| Some(uses[life.block as usize] == 1)).collect::<BooleanArray>()),
    ];
    Ok(RecordBatch::try_new(BLOCKS.arrow(), columns)?)
}

/// Rows of [`GAPS`].
///
/// # Errors
/// None that gaps can cause.
pub fn gaps(workload: &Workload, gaps: &[Gap]) -> Result<RecordBatch> {
    let u32s = |of: fn(&Gap) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(gaps.iter().map(of))) };
    let id = |of: fn(&Gap) -> u32| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(gaps.iter().map(|gap| workload.request_ids[of(gap) as usize])))
    };
    let columns: Vec<ArrayRef> = vec![
        text(&workload.name, gaps.len()),
        u32s(|gap| gap.block),
        id(|gap| gap.request),
        u32s(|gap| gap.position),
        id(|gap| gap.earlier),
        Arc::new(Int64Array::from_iter_values(gaps.iter().map(|gap| gap.gap_ns))),
        u32s(|gap| gap.distance),
        Arc::new(gaps.iter().map(|gap| gap.is_same_session).collect::<BooleanArray>()),
    ];
    Ok(RecordBatch::try_new(GAPS.arrow(), columns)?)
}

/// Rows of [`BLOCK_SIZES`].
///
/// # Errors
/// None that counts can cause.
pub fn block_sizes(workload: &str, rule: &Rule, sizes: &[Sized]) -> Result<RecordBatch> {
    let row = |sized: &Sized| -> Vec<Cell> {
        vec![
            workload.into(),
            rule.text().into(),
            sized.block_tokens.into(),
            (sized.capacity < u64::from(sized.distinct)).then_some(sized.capacity).into(),
            sized.distinct.into(),
            sized.counts.accesses.into(),
            sized.counts.hits.into(),
            sized.counts.block_ratio().into(),
            sized.counts.token_ratio().into(),
            sized.token_occupancy.into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = sizes.iter().map(row).collect();
    batch_of_rows(&BLOCK_SIZES, &rows)
}

/// Rows of [`FETCHES`].
///
/// # Errors
/// None that runs can cause.
pub fn fetches(
    scenario: Option<u32>,
    workload: &Workload,
    hierarchy: &Hierarchy,
    found: &Found,
) -> Result<RecordBatch> {
    let (runs, count) = (&found.runs, found.runs.len());
    let u32s = |of: &dyn Fn(usize) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values((0..count).map(of))) };
    let ns = |of: &dyn Fn(usize) -> f64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..count).map(|at| of(at).round() as i64)))
    };
    let asked = |at: usize| (runs[at].compute_ns > 0.0).then_some(runs[at].compute_ns);
    let maybe_ns = |of: &dyn Fn(usize) -> Option<f64>| -> ArrayRef {
        Arc::new((0..count).map(|at| of(at).map(|ns| ns.round() as i64)).collect::<Int64Array>())
    };
    let names = runs.iter().map(|run| hierarchy.tiers[run.tier as usize].name.as_str());
    let columns: Vec<ArrayRef> = vec![
        Arc::new(std::iter::repeat_n(scenario, count).collect::<UInt32Array>()),
        text(&workload.name, count),
        Arc::new(UInt64Array::from_iter_values(runs.iter().map(|run| workload.request_ids[run.request as usize]))),
        Arc::new(StringArray::from_iter_values(names)),
        u32s(&|at| runs[at].first_block),
        u32s(&|at| runs[at].blocks),
        u32s(&|at| runs[at].depth_tokens),
        u32s(&|at| runs[at].tokens),
        Arc::new(UInt64Array::from_iter_values(runs.iter().map(|run| run.bytes))),
        ns(&|at| runs[at].queue_ns),
        ns(&|at| runs[at].latency_ns),
        ns(&|at| runs[at].transfer_ns),
        maybe_ns(&asked),
        maybe_ns(&|at| asked(at).map(|compute| compute - runs[at].fetch_ns())),
        Arc::new(runs.iter().map(|run| Some(run.is_fetched)).collect::<BooleanArray>()),
        Arc::new(StringArray::from_iter_values(runs.iter().map(|run| run.verdict.text()))),
    ];
    Ok(RecordBatch::try_new(FETCHES.arrow(), columns)?)
}

/// Rows of [`FETCH_TOTALS`].
///
/// # Errors
/// None that runs can cause.
pub fn fetch_totals(
    scenario: Option<u32>,
    trace: &Trace<'_>,
    hierarchy: &Hierarchy,
    terms: &Terms<'_>,
    found: &Found,
) -> Result<RecordBatch> {
    let decision = match terms.decide {
        Decide::Always => "always",
        Decide::BreakEven => "break_even",
    };
    let whole = |ns: f64| Cell::from(ns.round() as i64);
    let farther = hierarchy.tiers.iter().skip(1).zip(terms.ways).zip(totals(found));
    let row = |((tier, way), total): ((&super::tiers::Tier, &super::fetch::Way), super::fetch::Total)| {
        let mut row: Vec<Cell> = vec![
            scenario.into(),
            trace.name().into(),
            tier.name.as_str().into(),
            limit(tier.capacity, trace.distinct()).into(),
            (way.bytes_per_ns * 1e9).into(),
            whole(way.latency_ns),
            decision.into(),
            total.runs.iter().sum::<u64>().into(),
        ];
        row.extend(total.runs.iter().map(|runs| Cell::from(*runs)));
        let time = found.span_ns as f64 * f64::from(found.instances);
        let busy = (time > 0.0).then(|| total.transfer_ns / time);
        row.extend([
            Cell::from(total.fetched_runs),
            total.fetched_tokens.into(),
            total.fetched_bytes.into(),
            whole(total.queue_ns),
            whole(total.transfer_ns),
            whole(total.compute_ns),
            whole(total.saved_ns()),
            busy.into(),
            total.written_bytes.into(),
            total.never_read_bytes.into(),
            total.text().into(),
            terms.plan.certainty.name().into(),
        ]);
        row
    };
    let rows: Vec<Vec<Cell>> = farther.map(row).collect();
    batch_of_rows(&FETCH_TOTALS, &rows)
}
