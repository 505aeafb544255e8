//! Memory and link use in buckets of time.

use crate::serving::Stretch;

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
    pub fabric: f64,
    pub hop: f64,
}

/// Spreads stretches over `BUCKETS` buckets of `width` nanoseconds each: bytes in proportion to time, memory by its
/// largest value. Between stretches an instance keeps what it held at the end of the last one.
pub(super) fn buckets(stretches: &[Stretch], width: i64) -> Vec<Bucket> {
    let mut buckets = vec![Bucket::default(); BUCKETS];
    for instance in stretches.chunk_by(|a, b| a.instance == b.instance) {
        let mut peaks = vec![None::<(u64, u64)>; BUCKETS];
        for stretch in instance {
            spread(&mut buckets, &mut peaks, stretch, width);
        }
        let mut last = (0, 0);
        for (bucket, peak) in buckets.iter_mut().zip(peaks) {
            last = peak.unwrap_or(last);
            bucket.held += last.0;
            bucket.resident += last.1;
        }
    }
    buckets
}

fn spread(buckets: &mut [Bucket], peaks: &mut [Option<(u64, u64)>], stretch: &Stretch, width: i64) {
    let (start, end) = (stretch.start_ns, stretch.start_ns + stretch.total_ns.max(1));
    let first = ((start / width) as usize).min(BUCKETS - 1);
    let last = (((end - 1) / width) as usize).min(BUCKETS - 1);
    for at in first..=last {
        let (from, to) = (at as i64 * width, (at as i64 + 1) * width);
        let overlap = if first == last { 1.0 } else { (end.min(to) - start.max(from)) as f64 / (end - start) as f64 };
        let bucket = &mut buckets[at];
        bucket.read += (stretch.cost.kv_read_bytes + stretch.cost.weight_read_bytes) * overlap;
        bucket.written += stretch.cost.kv_written_bytes * overlap;
        bucket.pool_read += stretch.cost.pool_read_bytes * overlap;
        bucket.fabric += stretch.cost.link_bytes * overlap;
        bucket.hop += stretch.cost.hop_bytes * overlap;
        let peak = peaks[at].get_or_insert((0, 0));
        *peak = (peak.0.max(stretch.held_bytes), peak.1.max(stretch.resident_bytes));
    }
}
