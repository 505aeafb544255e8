//! Prices columns of decode steps, on many machines in one pass over the demand.
//!
//! Between the points where other branches win ([`StepCost::regime`]) a step's cost is linear in the kept tokens. For each
//! number of requests that occurs, the corners of what is kept are priced by [`price`]; where they are in one regime, all
//! rows with that number are the sum of a constant and of a slope per lane, and where they are not (disaggregated decoding,
//! measured surfaces across cells) each row is priced by itself; what its number of requests settles of it (weights,
//! collectives) is then priced once for all of them. So every operation comes from the same functions as in a replay, and no
//! row allocates.

use super::{Batch, Plan, StepCost, by_kept, price, settled};
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
    /// [`StepCost::collective_bytes`].
    LinkBytes,
    /// [`StepCost::hop_bytes`] and [`StepCost::pipeline_bytes`].
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
            Self::LinkBytes => cost.collective_bytes(),
            Self::HopBytes => cost.hop_bytes + cost.pipeline_bytes,
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

/// A number of requests that does not occur, and one of which each row is priced by itself.
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
        column.reserve(rows);
    }
    let corners = Corners::of(demand);
    let tables: Vec<Table> = plans.iter().map(|plan| Table::of(plan, &corners, fields)).collect();
    let mut scratch = Scratch::of(plans, demand.kept_tokens.len());
    let mut rows_of = Block::default();
    for start in (0..rows).step_by(BLOCK_ROWS) {
        let range = start..(start + BLOCK_ROWS).min(rows);
        rows_of.keep(demand, range.clone());
        for ((plan, table), out) in plans.iter().zip(&tables).zip(out.iter_mut()) {
            rows_of.find(table, &demand.decode_requests[range.clone()]);
            let has_tabled = rows_of.by_themselves.len() < range.len();
            for (column, table) in out.iter_mut().zip(&table.columns) {
                if has_tabled {
                    rows_of.price(table, column);
                } else {
                    column.resize(range.end, 0.0);
                }
            }
            for &at in &rows_of.by_themselves {
                let cost = scratch.price(plan, table, demand, start + at);
                for (column, field) in out.iter_mut().zip(fields) {
                    column[start + at] = field.of(&cost);
                }
            }
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

/// The rows of one block, which are read once for each column. Each column is written by itself from front to back, since
/// as many streams as there are columns, all a multiple of a page apart, would drive each other out of the cache.
#[derive(Default)]
struct Block {
    /// Kept tokens of each lane.
    kept: Vec<Vec<f64>>,
    /// Where in a column's table the numbers of each row stand.
    places: Vec<u32>,
    /// Rows that no table has.
    by_themselves: Vec<usize>,
}

impl Block {
    /// Takes over what the rows keep.
    fn keep(&mut self, demand: &Demand<'_>, range: std::ops::Range<usize>) {
        self.kept.resize_with(demand.kept_tokens.len(), Vec::new);
        for (kept, column) in self.kept.iter_mut().zip(demand.kept_tokens) {
            kept.clear();
            kept.extend(column[range.clone()].iter().map(|kept| *kept as f64));
        }
    }

    /// Finds the rows in a table.
    fn find(&mut self, table: &Table, requests: &[u32]) {
        let Self { places, by_themselves, .. } = self;
        let place = |requests: &u32| table.first.get(*requests as usize).copied().unwrap_or(ROW_BY_ROW);
        places.clear();
        places.extend(requests.iter().map(place));
        by_themselves.clear();
        if table.has_others() || places.contains(&ROW_BY_ROW) {
            for (at, place) in places.iter_mut().enumerate().filter(|(_, place)| **place >= ROW_BY_ROW) {
                by_themselves.push(at);
                *place = 0;
            }
        }
    }

    /// Appends one figure of all rows; that of rows that no table has is set later.
    fn price(&self, table: &[f64], out: &mut Vec<f64>) {
        match &self.kept[..] {
            [one] => {
                let (numbers, _) = table.as_chunks::<2>();
                out.extend(self.places.iter().zip(one).map(|(place, kept)| {
                    let [constant, slope] = numbers.get(*place as usize).copied().unwrap_or_default();
                    constant + kept * slope
                }));
            }
            [one, two] => {
                let (numbers, _) = table.as_chunks::<3>();
                out.extend(self.places.iter().zip(one.iter().zip(two)).map(|(place, (one, two))| {
                    let [constant, first, second] = numbers.get(*place as usize).copied().unwrap_or_default();
                    constant + one * first + two * second
                }));
            }
            lanes => {
                let width = lanes.len() + 1;
                out.extend(self.places.iter().enumerate().map(|(at, place)| {
                    let from = *place as usize * width;
                    let numbers = table.get(from..from + width).unwrap_or_default();
                    let Some((constant, slopes)) = numbers.split_first() else { return 0.0 };
                    lanes.iter().zip(slopes).fold(*constant, |sum, (kept, slope)| sum + kept[at] * slope)
                }));
            }
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
struct Table {
    /// Which of the numbers of requests that were found each one is, or how else its rows are priced.
    first: Vec<u32>,
    /// Of rows that are priced by themselves, by their number of requests, what it settles; empty where there are none.
    settled: Vec<Option<StepCost>>,
    /// For each field, and each number of requests: what the step costs with nothing kept, then what each kept token of each
    /// lane adds.
    columns: Vec<Vec<f64>>,
}

impl Table {
    fn of<const C: usize>(plan: &Plan, corners: &Corners, fields: [Field; C]) -> Self {
        let mut table =
            Self { first: vec![UNSEEN; corners.numbers()], settled: Vec::new(), columns: vec![Vec::new(); C] };
        let nothing = vec![0_u64; plan.groups.len()];
        let none = vec![0.0; plan.groups.len()];
        let mut kept = vec![0_u64; corners.lanes];
        let mut found = 0;
        for (requests, ranges) in corners.ranges.chunks(corners.lanes.max(1)).enumerate() {
            if ranges.iter().any(|range| range.0 > range.1) {
                continue;
            }
            let mut at = |kept: &[u64]| decode(plan, requests as u64, kept, (&none, &nothing));
            // Of a pool of its own for the FFN, the number of micro-batches changes with what is kept, back and forth.
            let is_linear = plan.ffn_pool.is_none();
            match is_linear.then(|| linear(ranges, &mut kept, &mut at, fields)).flatten() {
                None => {
                    table.first[requests] = ROW_BY_ROW;
                    table.settled.resize(requests + 1, None);
                    table.settled[requests] = settled(plan, &decoding(requests as u64, &nothing, (&none, &nothing)));
                }
                Some(rows) => {
                    table.first[requests] = found;
                    found += 1;
                    for (at, column) in table.columns.iter_mut().enumerate() {
                        column.extend(rows.iter().map(|row| row[at]));
                    }
                }
            }
        }
        table
    }

    /// Whether some rows are priced by themselves.
    fn has_others(&self) -> bool {
        !self.settled.is_empty()
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

fn decode(plan: &Plan, requests: u64, kept: &[u64], prefill: (&[f64], &[u64])) -> StepCost {
    price(plan, &decoding(requests, kept, prefill))
}

/// A step of decoding alone; the slices of the prefill have a zero for each group.
fn decoding<'a>(requests: u64, kept: &'a [u64], (pairs, context): (&'a [f64], &'a [u64])) -> Batch<'a> {
    Batch {
        decode_requests: requests,
        kept_tokens: kept,
        longest_tokens: 0,
        prefill_tokens: 0,
        prefill_requests: 0,
        prefill_rows: 0,
        prefill_pairs: pairs,
        prefill_context: context,
        scored_tokens: 0,
    }
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

    fn price(&mut self, plan: &Plan, table: &Table, demand: &Demand<'_>, row: usize) -> StepCost {
        for (kept, column) in self.kept.iter_mut().zip(demand.kept_tokens) {
            *kept = column[row];
        }
        let requests = demand.decode_requests[row];
        let batch = decoding(u64::from(requests), &self.kept, (&self.pairs, &self.context));
        match table.settled.get(requests as usize).and_then(Option::as_ref) {
            Some(settled) => by_kept(plan, &batch, settled),
            None => price(plan, &batch),
        }
    }
}

#[cfg(test)]
mod tests;
