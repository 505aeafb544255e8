//! Batches whose contexts differ: how far they are from even ones.
//!
//! A kernel that gives each request of a batch to processors of its own is done when the longest request is. Even batches
//! bound it from both sides: that of the mean context from below, that of the longest from above. What was measured of
//! uneven batches says which share of the way between the two they take, by the number of requests; only differences within
//! one table of measurements enter, so that what its times have in common does not.

use std::collections::BTreeMap;

use super::shape::Key;

/// A measured batch of contexts that differ, beside even batches of as many requests.
#[derive(Debug, Clone, PartialEq)]
pub struct UnevenRow {
    /// The kernel, its number formats and the model that was profiled.
    pub key: Key,
    /// Accelerators that shared it.
    pub tensor_parallel: u64,
    /// Requests that decode.
    pub requests: u64,
    /// Time with all contexts at their mean.
    pub mean_ns: f64,
    /// Time with all contexts as long as the longest.
    pub longest_ns: f64,
    /// Time of the batch.
    pub uneven_ns: f64,
}

impl UnevenRow {
    /// Whether it says anything: longer contexts take longer, and all three times are known.
    pub fn is_usable(&self) -> bool {
        let (way, taken) = (self.longest_ns - self.mean_ns, self.uneven_ns - self.mean_ns);
        way > 0.0 && way.is_finite() && taken.is_finite()
    }
}

/// What batches of so many requests of a model take.
#[derive(Debug, Clone, PartialEq)]
pub struct Uneven {
    /// The kernel, its number formats and the model that was profiled.
    pub key: Key,
    /// Accelerators that shared it.
    pub tensor_parallel: u64,
    /// Requests that decode.
    pub requests: u64,
    /// Share of the way from even batches at the mean to even batches at the longest context, 0 to 1.
    pub share: f64,
}

/// The shares that leave the least squared error in time, by key, tensor parallelism and requests, in that order.
pub fn uneven(rows: &[UnevenRow]) -> Vec<Uneven> {
    let mut sums: BTreeMap<(&Key, u64, u64), (f64, f64)> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_usable()) {
        let (way, taken) = (row.longest_ns - row.mean_ns, row.uneven_ns - row.mean_ns);
        let sum = sums.entry((&row.key, row.tensor_parallel, row.requests)).or_default();
        *sum = (sum.0 + taken * way, sum.1 + way * way);
    }
    sums.into_iter()
        .map(|((key, tensor_parallel, requests), (taken, way))| Uneven {
            key: key.clone(),
            tensor_parallel,
            requests,
            share: (taken / way).clamp(0.0, 1.0),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two batches of one size: the share with the least squared error is the mean weighted by the square of the way.
    #[test]
    fn shares_are_those_of_least_squares() {
        let row = |requests: u64, times: [f64; 3]| UnevenRow {
            key: Key { model: "m".to_owned(), ..Key::default() },
            tensor_parallel: 1,
            requests,
            mean_ns: times[0],
            longest_ns: times[1],
            uneven_ns: times[2],
        };
        let rows = [
            row(64, [100.0, 200.0, 110.0]),
            row(64, [100.0, 400.0, 160.0]),
            row(8, [100.0, 150.0, 90.0]),
            row(8, [50.0, 50.0, 70.0]),
        ];
        let found = uneven(&rows);
        let shares: Vec<(u64, f64)> = found.iter().map(|one| (one.requests, one.share)).collect();
        // (0.1 * 100^2 + 0.2 * 300^2) / (100^2 + 300^2); a batch that is faster than an even one counts as even.
        assert_eq!(shares.len(), 2);
        assert_eq!(shares[0], (8, 0.0));
        assert!(shares[1].0 == 64 && (shares[1].1 - 0.19).abs() < 1e-12, "{shares:?}");
    }
}
