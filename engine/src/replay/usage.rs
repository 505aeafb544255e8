//! Memory and link use in buckets of time.

use crate::serving::Stretch;
use crate::serving::lower::Moved;

/// Buckets of a run; a chart has about a pixel column for each pair.
pub(super) const BUCKETS: usize = 240;

/// What one bucket saw, all instances together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    pub held: u64,
    pub resident: u64,
    pub read: f64,
    pub written: f64,
    pub pool_read: f64,
    pub all_reduce: f64,
    pub dispatch: f64,
    pub combine: f64,
    pub pipeline: f64,
    pub hop: f64,
    pub fetched: f64,
}

/// Spreads stretches over `BUCKETS` buckets of `width` nanoseconds each: bytes in proportion to time, memory by its
/// largest value. Between stretches an instance holds what was left after the last one; its cache stays.
pub(super) fn buckets(stretches: &[Stretch], width: i64) -> Vec<Bucket> {
    let mut buckets = vec![Bucket::default(); BUCKETS];
    for instance in stretches.chunk_by(|a, b| a.instance == b.instance) {
        let mut levels = vec![None::<Level>; BUCKETS];
        for stretch in instance {
            spread(&mut buckets, &mut levels, stretch, width);
        }
        let mut between = (0, 0);
        for (bucket, level) in buckets.iter_mut().zip(levels) {
            let (held, resident) = level.map_or(between, |level| (level.held, level.resident));
            bucket.held += held;
            bucket.resident += resident;
            between = level.map_or(between, |level| (level.left, level.last_resident));
        }
    }
    buckets
}

/// What memories below did by bucket, nearest first, all instances together: bytes in proportion to time, and the most that
/// each held. Between stretches it holds what it held after the last one.
pub(super) fn below(stretches: &[Stretch], width: i64, tiers: usize) -> Vec<Vec<Moved>> {
    let mut all = vec![vec![Moved::default(); BUCKETS]; tiers];
    for instance in stretches.chunk_by(|a, b| a.instance == b.instance) {
        for (tier, buckets) in all.iter_mut().enumerate() {
            // The most of each bucket, and what was there at its end.
            let mut levels = vec![None::<(f64, f64)>; BUCKETS];
            for (stretch, moved) in instance.iter().filter_map(|stretch| Some((stretch, stretch.below.get(tier)?))) {
                for (at, share) in parts(stretch, width) {
                    buckets[at].read_bytes += moved.read_bytes * share;
                    buckets[at].written_bytes += moved.written_bytes * share;
                    let most = levels[at].map_or(0.0, |(most, _)| most);
                    levels[at] = Some((most.max(moved.resident_bytes), moved.resident_bytes));
                }
            }
            let mut between = 0.0;
            for (bucket, level) in buckets.iter_mut().zip(levels) {
                let (most, last) = level.unwrap_or((between, between));
                bucket.resident_bytes += most;
                between = last;
            }
        }
    }
    all
}

/// The buckets in which a stretch lies, each with its part of the stretch.
fn parts(stretch: &Stretch, width: i64) -> impl Iterator<Item = (usize, f64)> {
    let (start, end) = (stretch.start_ns, stretch.start_ns + stretch.total_ns.max(1));
    let first = ((start / width) as usize).min(BUCKETS - 1);
    let last = (((end - 1) / width) as usize).min(BUCKETS - 1);
    (first..=last).map(move |at| {
        let (from, to) = (at as i64 * width, (at as i64 + 1) * width);
        let overlap = if first == last { 1.0 } else { (end.min(to) - start.max(from)) as f64 / (end - start) as f64 };
        (at, overlap)
    })
}

/// Memory of one instance in one bucket: the most, and what was there at its end.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    held: u64,
    resident: u64,
    left: u64,
    last_resident: u64,
}

fn spread(buckets: &mut [Bucket], levels: &mut [Option<Level>], stretch: &Stretch, width: i64) {
    for (at, overlap) in parts(stretch, width) {
        let bucket = &mut buckets[at];
        bucket.read += (stretch.cost.kv_read_bytes + stretch.cost.weight_read_bytes) * overlap;
        bucket.written += stretch.cost.kv_written_bytes * overlap;
        bucket.pool_read += stretch.cost.pool_read_bytes * overlap;
        bucket.all_reduce += stretch.cost.all_reduce_bytes * overlap;
        bucket.dispatch += stretch.cost.dispatch_bytes * overlap;
        bucket.combine += stretch.cost.combine_bytes * overlap;
        bucket.pipeline += stretch.cost.pipeline_bytes * overlap;
        bucket.hop += stretch.cost.hop_bytes * overlap;
        bucket.fetched += stretch.cost.tier_bytes * overlap;
        let level = levels[at].get_or_insert_default();
        level.held = level.held.max(stretch.held_bytes);
        level.resident = level.resident.max(stretch.resident_bytes);
        (level.left, level.last_resident) = (stretch.left_bytes, stretch.resident_bytes);
    }
}
