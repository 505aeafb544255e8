//! Exact quantiles: over requests from their values, over tokens from the progressions of step times.

use super::Outcome;

/// The quantiles that are kept of every distribution.
pub const GRID: [f64; 17] =
    [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0];

/// The smallest value that at least the share `ratio` of `sorted` does not exceed; `None` of nothing.
pub fn of_sorted(sorted: &[i64], ratio: f64) -> Option<i64> {
    let rank = ((sorted.len() as f64 * ratio).ceil() as usize).clamp(1, sorted.len().max(1));
    sorted.get(rank - 1).copied()
}

/// Step times of a stretch as each of its decoding users felt them.
#[derive(Debug, Clone, Copy)]
struct Progression {
    first: f64,
    slope: f64,
    steps: f64,
    weight: u64,
}

/// Quantiles of the time between tokens, over all tokens of users' requests but each one's first; `None` without such tokens.
///
/// Times are rounded to nanoseconds, as everywhere. `ratios` must rise.
pub fn of_tokens(outcome: &Outcome, ratios: &[f64]) -> Vec<Option<i64>> {
    if let Some(gaps) = &outcome.all_gaps {
        let mut sorted = gaps.clone();
        sorted.sort_unstable();
        return ratios.iter().map(|&ratio| of_sorted(&sorted, ratio)).collect();
    }
    let mut singles: Vec<(i64, u64)> = outcome.long_gaps.iter().map(|gap| (gap.ns, 1)).collect();
    let mut progressions = Vec::new();
    for stretch in outcome.stretches.iter().filter(|stretch| stretch.felt_requests > 0) {
        let spread = stretch.last_ns - stretch.first_ns;
        if stretch.steps == 1 || spread.abs() < 1e-9 {
            // What stalls, or comes back, does so for one step.
            singles.push((stretch.first_ns.round() as i64 + stretch.stall_ns, stretch.felt_requests * stretch.steps));
        } else {
            progressions.push(Progression {
                first: stretch.first_ns,
                slope: spread / (stretch.steps - 1) as f64,
                steps: stretch.steps as f64,
                weight: stretch.felt_requests,
            });
        }
    }
    singles.sort_unstable();
    let mut below = 0;
    let sums: Vec<u64> = singles
        .iter()
        .map(|single| {
            below += single.1;
            below
        })
        .collect();
    let tokens = below + progressions.iter().map(|run| run.weight * run.steps as u64).sum::<u64>();
    if tokens == 0 {
        return vec![None; ratios.len()];
    }
    let longest = progressions.iter().map(|run| run.end(run.steps - 1.0).max(run.end(0.0)).round() as i64);
    let most = longest.chain(singles.last().map(|single| single.0)).max().unwrap_or(0);
    let mut low = -1;
    let find = |&ratio: &f64| {
        let rank = ((tokens as f64 * ratio).ceil() as u64).clamp(1, tokens);
        let mut high = most;
        while high - low > 1 {
            let middle = low.midpoint(high);
            let single = singles.partition_point(|single| single.0 <= middle);
            let mut count = if single == 0 { 0 } else { sums[single - 1] };
            count += progressions.iter().map(|run| run.at_most(middle)).sum::<u64>();
            if count >= rank {
                high = middle;
            } else {
                low = middle;
            }
        }
        // The next ratio is higher, so nothing below this value can serve it.
        Some(high)
    };
    ratios.iter().map(find).collect()
}

impl Progression {
    fn end(&self, step: f64) -> f64 {
        self.first + self.slope * step
    }

    /// Tokens whose time rounds to at most `value`.
    fn at_most(&self, value: i64) -> u64 {
        let reach = value as f64 + 0.5 - self.first;
        let steps = if self.slope > 0.0 {
            (reach / self.slope).ceil().clamp(0.0, self.steps)
        } else {
            // A falling progression: those from some step on are small enough.
            self.steps - ((reach / self.slope).floor() + 1.0).clamp(0.0, self.steps)
        };
        self.weight * steps as u64
    }
}
