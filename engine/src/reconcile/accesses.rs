//! What warps asked for and what memory moved for it.
//!
//! A GPU moves whole sectors of 32 bytes. What a warp asks for may fill them or not (`bytes used per sector`), and a
//! sector that is touched again after few others is found in a cache (`reuse distance`). Accesses to shared memory move
//! no sectors and are only counted.

use std::collections::BTreeMap;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{UInt32Type, UInt64Type};

use super::columns::{flags, lists, number, numbers, texts};
use crate::cache::distance::{Distances, Stack};
use crate::error::{Error, Result};
use crate::number::Numbers;

/// The most distinct sectors that are followed at once, those of each launch and those of all launches of a source: about
/// forty bytes each.
pub const MOST_SECTORS: usize = 1 << 24;

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 32;

/// Sums over the accesses of one launch, or of all launches of a source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessSum {
    /// The source.
    pub source: u32,
    /// Number of the launch; `None` for all of the source.
    pub launch: Option<u32>,
    /// Name of the kernel; empty for all.
    pub kernel: String,
    /// Accesses to device memory.
    pub accesses: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Accesses to shared memory, which are in no other figure.
    pub shared: u64,
    /// Accesses of which it is unknown how many bytes they asked for.
    pub unknown: u64,
    /// Bytes that the others asked for; a byte counts once per lane that asks for it.
    pub bytes: u128,
    /// Bytes of the others that can be in their sectors: at most 32 per sector and access.
    pub used: u128,
    /// Sectors of the others.
    pub known_sectors: u64,
    /// Reuse distances over sectors, in the order of the table. Its references are the sectors moved, its first touches
    /// the footprint.
    pub distances: Distances,
}

impl AccessSum {
    /// Distinct bytes of memory that were touched, in whole sectors.
    pub fn footprint_bytes(&self) -> u64 {
        self.distances.cold.saturating_mul(SECTOR_BYTES)
    }

    /// Bytes used of each sector that was moved, up to 32; `None` where no access tells its bytes.
    pub fn used_per_sector(&self) -> Option<f64> {
        (self.known_sectors > 0).then(|| self.used as f64 / self.known_sectors as f64)
    }
}

/// One access to device memory.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// The source.
    pub source: u32,
    /// Number within the source.
    pub id: u64,
    /// Number of the launch.
    pub launch: u32,
    /// Name of the kernel.
    pub kernel: &'a str,
    /// Whether memory is written.
    pub is_write: bool,
    /// Whether it is shared memory.
    pub is_shared: bool,
    /// Bytes that the lanes asked for, together.
    pub bytes: Option<u64>,
    /// Numbers of the sectors.
    pub sectors: &'a [u64],
}

/// Calls `take` for each row of the canonical `accesses` table.
///
/// # Errors
/// A missing column, a column of another type, and what `take` returns.
pub fn each_access(batches: &[RecordBatch], mut take: impl FnMut(&Access<'_>) -> Result<()>) -> Result<()> {
    for batch in batches {
        let (sources, ids) = (numbers::<UInt32Type>(batch, "source_id")?, numbers::<UInt64Type>(batch, "access_id")?);
        let (launches, kernels) = (numbers::<UInt32Type>(batch, "launch")?, texts(batch, "kernel")?);
        let (spaces, writes) = (texts(batch, "space")?, flags(batch, "is_write")?);
        let (bytes, sectors) = (numbers::<UInt64Type>(batch, "bytes")?, lists(batch, "sector_ids")?);
        let values = sectors.values().as_primitive_opt::<UInt64Type>();
        let values = values.ok_or_else(|| Error::data("the column `sector_ids` has the wrong type"))?.values();
        for row in 0..batch.num_rows() {
            let (from, to) = (sectors.value_offsets()[row] as usize, sectors.value_offsets()[row + 1] as usize);
            take(&Access {
                source: sources.value(row),
                id: ids.value(row),
                launch: launches.value(row),
                kernel: kernels.value(row),
                is_write: writes.value(row),
                is_shared: spaces.value(row) == "shared",
                bytes: number(bytes, row),
                sectors: values.get(from..to).unwrap_or_default(),
            })?;
        }
    }
    Ok(())
}

/// Follows sectors through their numbers in the order of first touch.
#[derive(Debug, Default)]
struct Tracker {
    numbers: Numbers,
    stack: Stack,
    found: Distances,
    /// The numbers of one access.
    touched: Vec<u32>,
}

impl Tracker {
    /// Takes the sectors of an access; how many are new.
    fn touch(&mut self, sectors: &[u64]) -> Result<usize> {
        let before = self.numbers.len();
        self.touched.clear();
        self.numbers.number(sectors, &mut self.touched)?;
        self.stack.grow(self.numbers.len());
        for &number in &self.touched {
            self.found.add(self.stack.touch(number));
        }
        Ok(self.numbers.len() - before)
    }
}

/// Sums by source and launch, as batches come.
#[derive(Debug, Default)]
pub struct Sums {
    /// The sum of a source stands after its launches.
    sums: BTreeMap<(u32, bool, u32), (AccessSum, Tracker)>,
    /// Distinct sectors of all of them.
    sectors: usize,
}

impl Sums {
    /// Adds rows of the canonical `accesses` table.
    ///
    /// # Errors
    /// As [`each_access`], and more distinct sectors than can be followed.
    pub fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        self.take_within(batch, MOST_SECTORS)
    }

    /// As [`Sums::take`], with another limit.
    pub(super) fn take_within(&mut self, batch: &RecordBatch, most: usize) -> Result<()> {
        each_access(std::slice::from_ref(batch), |access| {
            for all in [false, true] {
                let launch = if all { 0 } else { access.launch };
                let (sum, tracker) = self.sums.entry((access.source, all, launch)).or_default();
                if !all && sum.kernel.is_empty() {
                    sum.launch = Some(launch);
                    access.kernel.clone_into(&mut sum.kernel);
                }
                sum.source = access.source;
                self.sectors += add(sum, tracker, access)?;
            }
            if self.sectors > most {
                return Err(Error::data(format!(
                    "expected at most {most} distinct sectors in launches and sources together, found more: reuse \
                     distances need them in memory"
                ))
                .hint("look at one capture with `--source`, or trace fewer launches"));
            }
            Ok(())
        })
    }

    /// Sums by source and launch, in this order, each source followed by the sum of its launches.
    pub fn finish(self) -> Vec<AccessSum> {
        let finish = |(mut sum, tracker): (AccessSum, Tracker)| {
            sum.distances = tracker.found;
            sum
        };
        self.sums.into_values().map(finish).collect()
    }
}

/// As [`Sums`], for all rows at once.
///
/// # Errors
/// As [`Sums::take`].
pub fn by_launch(batches: &[RecordBatch]) -> Result<Vec<AccessSum>> {
    let mut sums = Sums::default();
    batches.iter().try_for_each(|batch| sums.take(batch))?;
    Ok(sums.finish())
}

/// Adds an access; how many of its sectors are new.
fn add(sum: &mut AccessSum, tracker: &mut Tracker, access: &Access<'_>) -> Result<usize> {
    if access.is_shared {
        sum.shared += 1;
        return Ok(0);
    }
    sum.accesses += 1;
    sum.writes += u64::from(access.is_write);
    let sectors = access.sectors.len() as u64;
    match access.bytes {
        None => sum.unknown += 1,
        Some(bytes) => {
            sum.bytes += u128::from(bytes);
            sum.used += u128::from(bytes.min(sectors * SECTOR_BYTES));
            sum.known_sectors += sectors;
        }
    }
    tracker.touch(access.sectors)
}
