//! Prices columns of decode steps, on many machines in one pass over the demand.
//!
//! Between the points where other branches win ([`StepCost::regime`]) a step's cost is linear in the kept tokens. For each
//! number of requests that occurs, the corners of what is kept are priced by [`price`]; where they are in one regime, all
//! rows with that number are the sum of a constant and of a slope per lane, and where they are not (disaggregated decoding,
//! measured surfaces across cells) each row is priced by itself. So every operation comes from the same functions as in a
//! replay, and no row allocates.

use super::{Batch, Plan, StepCost, price};
use crate::error::{Error, Result};

/// Decode steps as columns: one row is one step of an instance.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    /// Requests that decode one token.
    pub decode_requests: &'a [u32],
    /// Kept tokens of those requests, one column per lane of the plans (see [`Batch::kept_tokens`]).
    pub kept_tokens: &'a [&'a [u64]],
}

/// A figure of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// [`StepCost::total`].
    Total,
    /// [`StepCost::kv_read`].
    KvRead,
    /// [`StepCost::weight_read`].
    WeightRead,
    /// [`StepCost::compute`].
    Compute,
    /// [`StepCost::collective`].
    Collective,
    /// [`StepCost::policy`].
    Policy,
    /// [`StepCost::tier`].
    Tier,
    /// [`StepCost::link`].
    Link,
    /// [`StepCost::overhead`].
    Overhead,
    /// [`StepCost::busy`].
    Busy,
    /// [`StepCost::kv_read_bytes`].
    KvReadBytes,
    /// [`StepCost::kv_written_bytes`].
    KvWrittenBytes,
    /// [`StepCost::weight_read_bytes`].
    WeightReadBytes,
    /// [`StepCost::pool_read_bytes`].
    PoolReadBytes,
    /// [`StepCost::link_bytes`].
    LinkBytes,
    /// [`StepCost::hop_bytes`].
    HopBytes,
    /// [`StepCost::flops`].
    Flops,
    /// [`StepCost::calibrated`].
    Calibrated,
    /// [`StepCost::extrapolated`].
    Extrapolated,
}

impl Field {
    /// Every figure.
    pub const ALL: [Self; 19] = [
        Self::Total,
        Self::KvRead,
        Self::WeightRead,
        Self::Compute,
        Self::Collective,
        Self::Policy,
        Self::Tier,
        Self::Link,
        Self::Overhead,
        Self::Busy,
        Self::KvReadBytes,
        Self::KvWrittenBytes,
        Self::WeightReadBytes,
        Self::PoolReadBytes,
        Self::LinkBytes,
        Self::HopBytes,
        Self::Flops,
        Self::Calibrated,
        Self::Extrapolated,
    ];

    /// The booths, in the order of [`StepCost::booths`].
    pub const BOOTHS: [Self; 8] = [
        Self::KvRead,
        Self::WeightRead,
        Self::Compute,
        Self::Collective,
        Self::Policy,
        Self::Tier,
        Self::Link,
        Self::Overhead,
    ];

    /// This figure of a step.
    pub fn of(self, cost: &StepCost) -> f64 {
        match self {
            Self::Total => cost.total(),
            Self::KvRead => cost.kv_read,
            Self::WeightRead => cost.weight_read,
            Self::Compute => cost.compute,
            Self::Collective => cost.collective,
            Self::Policy => cost.policy,
            Self::Tier => cost.tier,
            Self::Link => cost.link,
            Self::Overhead => cost.overhead,
            Self::Busy => cost.busy,
            Self::KvReadBytes => cost.kv_read_bytes,
            Self::KvWrittenBytes => cost.kv_written_bytes,
            Self::WeightReadBytes => cost.weight_read_bytes,
            Self::PoolReadBytes => cost.pool_read_bytes,
            Self::LinkBytes => cost.link_bytes,
            Self::HopBytes => cost.hop_bytes,
            Self::Flops => cost.flops,
            Self::Calibrated => cost.calibrated,
            Self::Extrapolated => cost.extrapolated,
        }
    }
}

/// Rows that are priced on all machines before the next ones are looked at; their demand stays in the first-level cache.
const BLOCK_ROWS: usize = 1024;

/// Numbers of requests up to which constants are kept; steps with more are priced one by one.
const MOST_REQUESTS: usize = 1 << 16;

/// Rows of a number of requests that has not been seen, and of one that is priced row by row.
const UNSEEN: u32 = u32::MAX;
const ROW_BY_ROW: u32 = u32::MAX - 1;

/// Prices every step on every plan: `out` gets, for each plan, one column per field with a row for each step.
///
/// # Errors
/// Columns of different lengths, plans with another number of lanes than the demand, and an `out` for another number of
/// plans.
pub fn price_columns<const C: usize>(
    plans: &[Plan],
    demand: &Demand<'_>,
    fields: [Field; C],
    out: &mut [[Vec<f64>; C]],
) -> Result<()> {
    let rows = demand.decode_requests.len();
    check(plans, demand, out.len())?;
    for column in out.iter_mut().flatten() {
        column.clear();
        column.resize(rows, 0.0);
    }
    let corners = Corners::of(demand);
    let tables: Vec<Table<C>> = plans.iter().map(|plan| Table::of(plan, &corners, fields)).collect();
    let mut scratch = Scratch::of(plans, demand.kept_tokens.len());
    for start in (0..rows).step_by(BLOCK_ROWS) {
        let range = start..(start + BLOCK_ROWS).min(rows);
        for ((plan, table), out) in plans.iter().zip(&tables).zip(out.iter_mut()) {
            let columns = out.each_mut().map(|column| &mut column[range.clone()]);
            block(table, demand, range.start, columns, |row| scratch.price(plan, demand, row), fields);
        }
    }
    Ok(())
}

fn check(plans: &[Plan], demand: &Demand<'_>, outputs: usize) -> Result<()> {
    let (rows, lanes) = (demand.decode_requests.len(), demand.kept_tokens.len());
    if let Some(column) = demand.kept_tokens.iter().find(|column| column.len() != rows) {
        return Err(Error::run(format!("expected {rows} rows in each column, found {}", column.len())));
    }
    if let Some(plan) = plans.iter().find(|plan| plan.lanes() != lanes) {
        return Err(Error::run(format!("expected {} columns of kept tokens, found {lanes}", plan.lanes())));
    }
    if plans.len() != outputs {
        return Err(Error::run(format!("expected outputs for {} plans, found {outputs}", plans.len())));
    }
    Ok(())
}

/// The rows of one block on one plan. `by_itself` prices a row that no table has.
fn block<const C: usize>(
    table: &Table<C>,
    demand: &Demand<'_>,
    start: usize,
    mut columns: [&mut [f64]; C],
    mut by_itself: impl FnMut(usize) -> StepCost,
    fields: [Field; C],
) {
    let rows = columns.first().map_or(0, |column| column.len());
    let requests = &demand.decode_requests[start..start + rows];
    for (at, &requests) in requests.iter().enumerate() {
        let first = table.first.get(requests as usize).copied().unwrap_or(ROW_BY_ROW);
        let values = if first >= ROW_BY_ROW {
            let cost = by_itself(start + at);
            fields.map(|field| field.of(&cost))
        } else {
            let mut values = table.constants[first as usize];
            let slopes = &table.constants[first as usize + 1..];
            for (column, slope) in demand.kept_tokens.iter().zip(slopes) {
                let kept = column[start + at] as f64;
                for (value, slope) in values.iter_mut().zip(slope) {
                    *value += kept * slope;
                }
            }
            values
        };
        for (column, value) in columns.iter_mut().zip(values) {
            column[at] = value;
        }
    }
}

/// The least and the most that is kept in each lane, for each number of requests that occurs.
struct Corners {
    lanes: usize,
    /// `lanes` pairs for each number of requests; the least is above the most where the number does not occur.
    ranges: Vec<(u64, u64)>,
}

impl Corners {
    fn of(demand: &Demand<'_>) -> Self {
        let lanes = demand.kept_tokens.len();
        let most =
            demand.decode_requests.iter().map(|&requests| requests as usize).filter(|&r| r < MOST_REQUESTS).max();
        let mut ranges = vec![(u64::MAX, 0); most.map_or(0, |most| most + 1) * lanes];
        for (lane, column) in demand.kept_tokens.iter().enumerate() {
            for (&requests, &kept) in demand.decode_requests.iter().zip(*column) {
                if let Some(range) = ranges.get_mut(requests as usize * lanes + lane) {
                    *range = (range.0.min(kept), range.1.max(kept));
                }
            }
        }
        Self { lanes, ranges }
    }

    fn numbers(&self) -> usize {
        self.ranges.len().checked_div(self.lanes).unwrap_or(0)
    }
}

/// Constants and slopes of one plan.
struct Table<const C: usize> {
    /// Where the constants of a number of requests begin, or how else its rows are priced.
    first: Vec<u32>,
    /// For each number: what the step costs with nothing kept, then what each kept token of each lane adds.
    constants: Vec<[f64; C]>,
}

impl<const C: usize> Table<C> {
    fn of(plan: &Plan, corners: &Corners, fields: [Field; C]) -> Self {
        let mut table = Self { first: vec![UNSEEN; corners.numbers()], constants: Vec::new() };
        let nothing = vec![0_u64; plan.groups.len()];
        let none = vec![0.0; plan.groups.len()];
        let mut kept = vec![0_u64; corners.lanes];
        for (requests, ranges) in corners.ranges.chunks(corners.lanes.max(1)).enumerate() {
            if ranges.iter().any(|range| range.0 > range.1) {
                continue;
            }
            if plan.ffn_pool.is_some() {
                // The number of micro-batches changes with what is kept, back and forth.
                table.first[requests] = ROW_BY_ROW;
                continue;
            }
            let mut at = |kept: &[u64]| decode(plan, requests as u64, kept, (&none, &nothing));
            let rows = linear(ranges, &mut kept, &mut at, fields);
            table.first[requests] = match rows {
                None => ROW_BY_ROW,
                Some(rows) => {
                    let first = table.constants.len() as u32;
                    table.constants.extend(rows);
                    first
                }
            };
        }
        table
    }
}

/// The constant and the slopes between the corners of what is kept, if one regime holds at all of them.
fn linear<const C: usize>(
    ranges: &[(u64, u64)],
    kept: &mut [u64],
    at: &mut dyn FnMut(&[u64]) -> StepCost,
    fields: [Field; C],
) -> Option<Vec<[f64; C]>> {
    kept.iter_mut().zip(ranges).for_each(|(kept, range)| *kept = range.1);
    let most = at(kept);
    kept.iter_mut().zip(ranges).for_each(|(kept, range)| *kept = range.0);
    let least = at(kept);
    if least.regime != most.regime {
        return None;
    }
    let base = fields.map(|field| field.of(&least));
    let mut rows = vec![base];
    for (lane, &(low, high)) in ranges.iter().enumerate() {
        let mut slope = [0.0; C];
        if high > low {
            kept[lane] = high;
            let moved = at(kept);
            kept[lane] = low;
            if moved.regime != least.regime {
                return None;
            }
            let width = (high - low) as f64;
            slope = std::array::from_fn(|at| (fields[at].of(&moved) - base[at]) / width);
        }
        for (constant, slope) in rows[0].iter_mut().zip(slope) {
            *constant -= slope * low as f64;
        }
        rows.push(slope);
    }
    Some(rows)
}

fn decode(plan: &Plan, requests: u64, kept: &[u64], (pairs, context): (&[f64], &[u64])) -> StepCost {
    let batch = Batch {
        decode_requests: requests,
        kept_tokens: kept,
        longest_tokens: 0,
        prefill_tokens: 0,
        prefill_requests: 0,
        prefill_rows: 0,
        prefill_pairs: pairs,
        prefill_context: context,
        scored_tokens: 0,
    };
    price(plan, &batch)
}

/// Room for one row that is priced by itself.
struct Scratch {
    kept: Vec<u64>,
    pairs: Vec<f64>,
    context: Vec<u64>,
}

impl Scratch {
    fn of(plans: &[Plan], lanes: usize) -> Self {
        let groups = plans.iter().map(|plan| plan.groups.len()).max().unwrap_or(0);
        Self { kept: vec![0; lanes], pairs: vec![0.0; groups], context: vec![0; groups] }
    }

    fn price(&mut self, plan: &Plan, demand: &Demand<'_>, row: usize) -> StepCost {
        for (kept, column) in self.kept.iter_mut().zip(demand.kept_tokens) {
            *kept = column[row];
        }
        let requests = u64::from(demand.decode_requests[row]);
        decode(plan, requests, &self.kept, (&self.pairs, &self.context))
    }
}

#[cfg(test)]
mod tests;
