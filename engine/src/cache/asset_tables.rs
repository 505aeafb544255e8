//! The rows of `near_sizes`, `desk`, `yields` and `stored_copies`.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;

use super::asset::{Class, Copies, Desk, IDLE_ENDS_S, Near, PERCENTS, Yield};
use super::life::Gap;
use crate::cost::{Plan, prefill_ns};
use crate::error::{Error, Result};
use crate::schema::hierarchy::{COPIES, DESK, NEAR_SIZES, YIELDS};
use crate::schema::{Cell, batch_of_rows};
use crate::workload::Workload;

const GIB: f64 = 1_073_741_824.0;

/// What a block and a read of it are worth, where that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Worth {
    /// KV bytes of a block.
    pub block_bytes: Option<u64>,
    /// Price of a GiB of the cache for an hour.
    pub usd_per_gib_hour: Option<f64>,
    /// Prefill of an instance that a read saves, mean over reads, ns.
    pub saved_ns: Option<f64>,
    /// Price of an instance for a nanosecond.
    pub usd_per_ns: Option<f64>,
}

/// Prefill that a read of the block at each place of a prompt saves, mean over reads, ns: what one block more costs at its
/// depth. `None` without reads.
pub fn saved_ns(plan: &Plan, unit_tokens: u32, chunk_tokens: u32, gaps: &[Gap]) -> Option<f64> {
    let mut of_place: BTreeMap<u32, u64> = BTreeMap::new();
    gaps.iter().for_each(|gap| *of_place.entry(gap.position).or_default() += 1);
    let one_more = |place: u32| {
        let from = place.saturating_mul(unit_tokens);
        let to = |blocks: u32| from.saturating_add(unit_tokens.saturating_mul(blocks));
        prefill_ns(plan, from, to(2), chunk_tokens) - prefill_ns(plan, from, to(1), chunk_tokens)
    };
    let sum: f64 = of_place.iter().map(|(place, reads)| one_more(*place).max(0.0) * *reads as f64).sum();
    (!gaps.is_empty()).then(|| sum / gaps.len() as f64)
}

/// A text column of the requests of a workload, in their order; `None` where it is not told.
///
/// # Errors
/// A missing column or a column of another type.
pub fn labels(workload: &Workload, batches: &[RecordBatch], column: &str) -> Result<Vec<Option<String>>> {
    let wrong = |name: &str| Error::data(format!("the requests have no column `{name}` of the right type"));
    let mut of_request: BTreeMap<u64, String> = BTreeMap::new();
    for batch in batches {
        let ids = batch.column_by_name("request_id").and_then(|ids| ids.as_primitive_opt::<UInt64Type>());
        let texts = batch.column_by_name(column).and_then(|texts| texts.as_string_opt::<i32>());
        let (ids, texts) = (ids.ok_or_else(|| wrong("request_id"))?, texts.ok_or_else(|| wrong(column))?);
        for row in (0..batch.num_rows()).filter(|row| texts.is_valid(*row)) {
            of_request.insert(ids.value(row), texts.value(row).to_owned());
        }
    }
    Ok(workload.request_ids.iter().map(|id| of_request.get(id).cloned()).collect())
}

/// What all near sizes of a workload share.
#[derive(Debug, Clone, Copy)]
pub struct Now<'a> {
    /// The requests.
    pub workload: &'a Workload,
    /// All gaps.
    pub gaps: &'a [Gap],
    /// Blocks that fit now; `None` where all do.
    pub blocks: Option<u64>,
    /// What a block is worth.
    pub worth: Worth,
}

/// Rows of [`NEAR_SIZES`]: all requests, then each value of each set of labels that has more than one.
///
/// # Errors
/// None that gaps can cause.
pub fn near_sizes(now: &Now<'_>, sets: &[(&str, Vec<Option<String>>)]) -> Result<RecordBatch> {
    let all = Near::of(now.gaps, |_| true);
    let mut rows = vec![near_row(now, ("all", "all"), now.workload.len(), &all)];
    for (name, labels) in sets {
        let mut values: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for (at, label) in labels.iter().enumerate() {
            let label = label.as_deref().unwrap_or("unknown");
            values.entry(label).or_insert_with(|| vec![false; labels.len()])[at] = true;
            // A set with as many values as requests tells nothing that a request does not.
            if values.len() > MOST_VALUES {
                break;
            }
        }
        if !(2..=MOST_VALUES).contains(&values.len()) {
            continue;
        }
        for (value, is_in) in values {
            let near = Near::of(now.gaps, |request| is_in.get(request as usize).copied().unwrap_or(false));
            let requests = is_in.iter().filter(|is_in| **is_in).count();
            rows.push(near_row(now, (name, value), requests, &near));
        }
    }
    batch_of_rows(&NEAR_SIZES, &rows)
}

/// Most kinds or tenants that are told apart.
const MOST_VALUES: usize = 50;

fn near_row(now: &Now<'_>, (by, value): (&str, &str), requests: usize, near: &Near) -> Vec<Cell> {
    let Worth { block_bytes, saved_ns, usd_per_ns, .. } = now.worth;
    let sizes = PERCENTS.map(|percent| near.size(percent));
    let hours = now.workload.span_ns() as f64 / 3.6e12;
    let here = now.blocks.unwrap_or(u64::MAX);
    let per_hour = block_bytes.filter(|_| hours > 0.0).map(|bytes| {
        let more = (GIB / bytes as f64).round().max(1.0) as u64;
        // A block larger than a GiB makes a GiB worth a part of it.
        let part = (GIB / bytes as f64).min(1.0);
        near.between(here, here.saturating_add(more)) as f64 * part / hours
    });
    let saved = per_hour.zip(saved_ns).map(|(reads, ns)| reads * ns / 3.6e12);
    let usd = per_hour.zip(saved_ns).zip(usd_per_ns).map(|((reads, ns), usd)| reads * ns * usd);
    let mut row: Vec<Cell> = vec![
        now.workload.name.as_str().into(),
        by.into(),
        value.into(),
        (requests as u64).into(),
        (near.distances.len() as u64).into(),
    ];
    row.extend(sizes.map(Cell::from));
    row.extend(sizes.map(|size| Cell::from(size.zip(block_bytes).map(|(size, bytes)| size.saturating_mul(bytes)))));
    row.extend([Cell::from(now.blocks), per_hour.into(), saved.into(), usd.into()]);
    row
}

/// Rows of [`DESK`]. `blocks` fit in each of so many instances.
///
/// # Errors
/// None that a desk can cause.
pub fn desk(now: &Now<'_>, (blocks, instances): (Option<u64>, u32), desk: &Desk) -> Result<RecordBatch> {
    let all: u128 = desk.block_ns.iter().sum();
    let span = now.workload.span_ns() as f64;
    let row = |class: &Class| -> Vec<Cell> {
        let time = desk.block_ns[*class as usize] as f64;
        let mean = now.worth.block_bytes.filter(|_| span > 0.0).map(|bytes| time / span * bytes as f64);
        let usd = mean.zip(now.worth.usd_per_gib_hour).map(|(bytes, usd)| bytes / GIB * usd);
        vec![
            now.workload.name.as_str().into(),
            blocks.into(),
            instances.into(),
            class.name().into(),
            (time / 3.6e12).into(),
            (all > 0).then(|| time / all as f64).into(),
            mean.into(),
            desk.reads[*class as usize].into(),
            usd.into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = Class::ALL.iter().map(row).collect();
    batch_of_rows(&DESK, &rows)
}

/// Rows of [`YIELDS`].
///
/// # Errors
/// None that yields can cause.
pub fn yields(now: &Now<'_>, yields: &[Yield]) -> Result<RecordBatch> {
    let Worth { block_bytes, usd_per_gib_hour, saved_ns, usd_per_ns } = now.worth;
    let room = block_bytes.zip(usd_per_gib_hour).map(|(bytes, usd)| bytes as f64 / GIB * usd);
    let read = saved_ns.zip(usd_per_ns).map(|(ns, usd)| ns * usd);
    let seconds = |at: Option<&i64>| at.map(|seconds| *seconds as f64);
    let row = |(at, class): (usize, &Yield)| -> Vec<Cell> {
        let yields = class.per_block_hour();
        let usd = yields.zip(read).map(|(yields, read)| yields * read);
        vec![
            now.workload.name.as_str().into(),
            seconds(at.checked_sub(1).and_then(|before| IDLE_ENDS_S.get(before))).unwrap_or(0.0).into(),
            seconds(IDLE_ENDS_S.get(at)).into(),
            (class.block_ns as f64 / 3.6e12).into(),
            class.reads.into(),
            yields.into(),
            usd.into(),
            room.into(),
            usd.zip(room).map(|(usd, room)| usd > room).into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = yields.iter().enumerate().map(row).collect();
    batch_of_rows(&YIELDS, &rows)
}

/// Rows of [`COPIES`]: across what, how many parties, and what was found.
///
/// # Errors
/// None that copies can cause.
pub fn copies(now: &Now<'_>, found: &[(&str, u32, Copies)]) -> Result<RecordBatch> {
    let row = |(across, parties, copies): &(&str, u32, Copies)| -> Vec<Cell> {
        vec![
            now.workload.name.as_str().into(),
            (*across).into(),
            (*parties).into(),
            copies.stored.into(),
            copies.copies.into(),
            (copies.stored > 0).then(|| copies.copies as f64 / copies.stored as f64).into(),
            now.worth.block_bytes.map(|bytes| bytes.saturating_mul(copies.copies)).into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = found.iter().map(row).collect();
    batch_of_rows(&COPIES, &rows)
}
