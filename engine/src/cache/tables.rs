//! What `kvtoll cache` prints: the rows of the tables `miss_ratio` and `cache_tiers`.

use arrow::array::RecordBatch;

use super::sample::Estimate;
use super::tiers::{Hierarchy, HierarchyCounts};
use super::{Counts, curve};
use crate::error::Result;
use crate::schema::Type::{F64, Text, U32, U64};
use crate::schema::result::MISS_RATIO;
use crate::schema::{Cell, Scope, Table, batch_of_rows, known, maybe};

/// What happened in each tier of a hierarchy.
pub static CACHE_TIERS: Table = Table {
    name: "cache_tiers",
    doc: "a tier of a hierarchy of block caches, and what a workload met in it",
    scope: Scope::Run,
    columns: &[
        known("workload", Text, "", "The requests."),
        known("hierarchy", Text, "", "The preset."),
        known("tier", U32, "", "Number of the tier, the nearest is 0."),
        known("name", Text, "", "Its name."),
        known("policy", Text, "", "Its policy."),
        known("capacity_blocks", U64, "blocks", "Blocks that fit."),
        known("hits", U64, "", "Uses of blocks whose nearest copy was here."),
        maybe("hit_ratio", F64, "ratio", "These hits over all uses of blocks."),
        known("skipped", U64, "", "Uses whose nearest copy was here, in runs too short to be fetched; misses."),
        known("written_blocks", U64, "blocks", "Blocks written here that were not there."),
        known("refused_blocks", U64, "blocks", "Blocks refused because their frequency was too low."),
        known("evictions", U64, "blocks", "Blocks that had to go for others."),
        known("drops", U64, "blocks", "Blocks that went without need for their room."),
        known("resident_blocks", U64, "blocks", "Blocks there at the end."),
        known("peak_blocks", U64, "blocks", "Most blocks there at any time."),
        known(
            "never_read_blocks",
            U64,
            "blocks",
            "Blocks written here and not used from here before they left, or the trace ended.",
        ),
        known("misses", U64, "", "Uses of blocks that no tier served, the same in each row."),
    ],
};

/// What a block weighs, where that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Scale {
    /// KV bytes of one block.
    pub block_bytes: Option<u64>,
    /// Price of a GiB of the cache for an hour.
    pub usd_per_gib_hour: Option<f64>,
}

/// How a point was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Point {
    /// Every use was replayed.
    Exact(Counts),
    /// A sample of the blocks was.
    Sampled(Estimate),
}

/// A policy at several sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The policy.
    pub policy: String,
    /// Sizes and what was found.
    pub points: Vec<(u64, Point)>,
}

/// What all curves of a workload share.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The requests.
    pub workload: String,
    /// Uses of blocks.
    pub accesses: u64,
    /// Distinct blocks.
    pub distinct: u64,
    /// Hits of [`super::min`] at each size, where it was replayed.
    pub bound: Vec<(u64, u64)>,
    /// The size that is in use now.
    pub current: Option<u64>,
    /// What a block weighs.
    pub scale: Scale,
}

const GIB: f64 = 1_073_741_824.0;

/// Rows of `miss_ratio`.
///
/// # Errors
/// None that counts can cause.
pub fn miss_ratio(frame: &Frame, curves: &[Curve]) -> Result<RecordBatch> {
    let ceiling = frame.accesses - frame.distinct.min(frame.accesses);
    let mut rows = Vec::new();
    for curve in curves {
        let exact: Vec<(u64, Counts)> = curve
            .points
            .iter()
            .filter_map(|(size, point)| match point {
                Point::Exact(counts) => Some((*size, *counts)),
                Point::Sampled(_) => None,
            })
            .collect();
        let (sizes, counts): (Vec<u64>, Vec<Counts>) = exact.into_iter().unzip();
        let knee = curve::knee(&sizes, &counts, ceiling);
        for (size, point) in &curve.points {
            let bytes = frame.scale.block_bytes.map(|bytes| bytes.saturating_mul(*size));
            let usd = bytes.zip(frame.scale.usd_per_gib_hour).map(|(bytes, usd)| bytes as f64 / GIB * usd);
            let mut row: Vec<Cell> = vec![
                frame.workload.as_str().into(),
                curve.policy.as_str().into(),
                (*size).into(),
                bytes.into(),
                usd.into(),
                frame.accesses.into(),
            ];
            row.extend(found(point, frame.accesses));
            let share = |part: u64| (frame.accesses > 0).then(|| part as f64 / frame.accesses as f64);
            let bound = frame.bound.iter().find(|(at, _)| at == size).map(|(_, hits)| *hits);
            row.extend([
                Cell::from(share(ceiling)),
                Cell::from(bound.and_then(share)),
                Cell::from(knee == Some(*size)),
                Cell::from(frame.current.map(|current| current == *size)),
            ]);
            rows.push(row);
        }
    }
    batch_of_rows(&MISS_RATIO, &rows)
}

/// The cells that differ between replayed and sampled points.
fn found(point: &Point, accesses: u64) -> Vec<Cell> {
    match point {
        Point::Exact(counts) => vec![
            "exact".into(),
            counts.hits.into(),
            counts.misses().into(),
            counts.evictions.into(),
            counts.drops.into(),
            counts.bypasses.into(),
            counts.block_ratio().into(),
            Cell::Null,
            counts.leading_ratio().into(),
            counts.token_ratio().into(),
            counts.full_block_ratio().into(),
            counts.mean_request_ratio().into(),
        ],
        Point::Sampled(estimate) => {
            let misses = (estimate.miss_ratio * accesses as f64).round() as u64;
            let method = if estimate.is_at_ceiling { "sampled, at the ceiling" } else { "sampled" };
            let mut cells: Vec<Cell> = vec![method.into(), (accesses - misses.min(accesses)).into(), misses.into()];
            cells.extend([Cell::Null, Cell::Null, Cell::Null]);
            cells.extend([Cell::from(1.0 - estimate.miss_ratio), Cell::from(estimate.error)]);
            cells.extend([Cell::Null, Cell::Null, Cell::Null, Cell::Null]);
            cells
        }
    }
}

/// Rows of [`CACHE_TIERS`].
///
/// # Errors
/// None that counts can cause.
pub fn cache_tiers(workload: &str, name: &str, hierarchy: &Hierarchy, counts: &HierarchyCounts) -> Result<RecordBatch> {
    let row = |(at, (tier, found)): (usize, (&super::tiers::Tier, &super::tiers::TierCounts))| -> Vec<Cell> {
        vec![
            workload.into(),
            name.into(),
            (at as u32).into(),
            tier.name.as_str().into(),
            tier.rule.text().into(),
            (tier.capacity as u64).into(),
            found.hits.into(),
            (counts.accesses > 0).then(|| found.hits as f64 / counts.accesses as f64).into(),
            found.skipped.into(),
            found.writes.into(),
            found.refused.into(),
            found.evictions.into(),
            found.drops.into(),
            found.resident.into(),
            found.peak.into(),
            found.never_read.into(),
            counts.misses.into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = hierarchy.tiers.iter().zip(&counts.tiers).enumerate().map(row).collect();
    batch_of_rows(&CACHE_TIERS, &rows)
}
