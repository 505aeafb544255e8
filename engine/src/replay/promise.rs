//! Which promises a replay kept, and what its tokens are sold for.
//!
//! A promise is made to users. It holds for a share of their requests (first token) and of their tokens (gap), both exact;
//! requests that stages of the policy send are promised nothing. Whether a single request
//! was served as promised goes by its first token and its mean gap, as goodput is counted in the industry.

use super::{Found, of_users};
use crate::economics::{Tokens, revenue_usd};
use crate::model::Certainty;
use crate::serving::{Fate, Outcome, Served};
use crate::tariff::{Promise, Tariff};
use crate::workload::Workload;

/// What became of a promise.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "it says whether the promise is kept")]
pub(super) struct Kept<'a> {
    /// The promise.
    pub promise: &'a Promise,
    /// Share of requests whose first token came in time; `None` without requests that have one.
    pub ttft_ratio: Option<f64>,
    /// Share of tokens that came in time; `None` without such tokens.
    pub itl_ratio: Option<f64>,
    /// Whether both shares suffice.
    pub is_kept: bool,
    /// Finished requests that were themselves served in time.
    pub good_requests: u64,
    /// What the tokens of all finished requests come to, US dollars.
    pub revenue_usd: f64,
}

/// Tokens of users' finished requests by what is paid for them. What a stage sends is a cost of whoever serves, and not sold.
pub(super) fn sold_tokens(outcome: &Outcome, workload: &Workload) -> Tokens {
    let mut tokens = Tokens::default();
    for (at, served) in of_users(outcome, workload).filter(|(_, served)| served.fate == Fate::Finished) {
        let cached = served.hit_tokens.min(workload.prompt[at]);
        tokens.cached += u64::from(cached);
        tokens.input += u64::from(workload.prompt[at] - cached);
        tokens.output += u64::from(workload.output[at]);
    }
    tokens
}

/// Mean gap between the tokens of a request; `None` with fewer than two.
pub(super) fn mean_gap_ns(served: &Served, output: u32) -> Option<i64> {
    let gaps = i64::from(output) - 1;
    (gaps > 0).then_some(())?;
    Some((served.e2e_ns? - served.ttft_ns?) / gaps)
}

/// Whether a request was itself served as promised.
pub(super) fn is_good(promise: &Promise, served: &Served, output: u32) -> bool {
    let within = |limit: &Option<crate::machine::Sourced>, felt: Option<i64>| {
        limit.as_ref().is_none_or(|limit| felt.is_some_and(|felt| felt as f64 <= limit.value))
    };
    let gap = mean_gap_ns(served, output);
    // One token has no gap that could be too long, and a prompt alone has no token that could be late.
    served.fate == Fate::Finished
        && (is_silent(served) || within(&promise.ttft_ns, served.ttft_ns))
        && (gap.is_none() || within(&promise.itl_ns, gap))
}

/// Whether a request was served to its end and generates nothing, so that it has no first token.
pub fn is_silent(served: &Served) -> bool {
    served.fate == Fate::Finished && served.ttft_ns.is_none()
}

/// What became of each promise of a tariff, in its order.
pub(super) fn kept<'a>(tariff: &'a Tariff, found: &Found, workload: &Workload) -> Vec<Kept<'a>> {
    let outcome = &found.outcome;
    let tokens = sold_tokens(outcome, workload);
    let each = |promise: &'a Promise| {
        let ttft_ratio = share_of_requests((outcome, workload), promise.ttft_ns.as_ref().map(|limit| limit.value));
        let itl_ratio = share_of_tokens(outcome, promise.itl_ns.as_ref().map(|limit| limit.value));
        // Without a token after the first there is no gap to be late; without a request nothing was promised to anybody.
        let is_kept = ttft_ratio.is_some_and(|share| share >= promise.kept_ratio)
            && itl_ratio.is_none_or(|share| share >= promise.kept_ratio);
        let good = of_users(outcome, workload).filter(|(at, served)| is_good(promise, served, workload.output[*at]));
        let [input, cached, output] =
            [&promise.usd_per_mtok_input, &promise.usd_per_mtok_cached, &promise.usd_per_mtok_output];
        Kept {
            promise,
            ttft_ratio,
            itl_ratio,
            is_kept,
            good_requests: good.count() as u64,
            revenue_usd: revenue_usd(tokens, input.value, cached.value, output.value),
        }
    };
    tariff.promises.iter().map(each).collect()
}

/// The dearest promise that was kept; the first of equals.
pub(super) fn sold<'a, 'b>(kept: &'b [Kept<'a>]) -> Option<&'b Kept<'a>> {
    let usd = |kept: &Kept<'_>| kept.promise.usd_per_mtok_output.value;
    kept.iter().filter(|kept| kept.is_kept).fold(None, |best: Option<&Kept<'_>>, kept| {
        if best.is_none_or(|best| usd(kept) > usd(best)) { Some(kept) } else { best }
    })
}

/// The least certain number of a promise.
pub(super) fn certainty(promise: &Promise) -> Certainty {
    let limits = [&promise.ttft_ns, &promise.itl_ns].into_iter().flatten();
    let prices = [&promise.usd_per_mtok_input, &promise.usd_per_mtok_cached, &promise.usd_per_mtok_output];
    limits.chain(prices).map(|known| known.certainty).min().unwrap_or(Certainty::Assumed)
}

/// Share of users' requests with a prompt whose first token came within the limit; those that generate nothing are not counted.
fn share_of_requests((outcome, workload): (&Outcome, &Workload), limit_ns: Option<f64>) -> Option<f64> {
    let mut counts = [0_u64; 2];
    let is_counted = |served: &Served| matches!(served.fate, Fate::Finished | Fate::TooLarge | Fate::TooLong);
    for (_, served) in of_users(outcome, workload).filter(|(_, served)| is_counted(served) && !is_silent(served)) {
        let in_time = served.ttft_ns.is_some_and(|felt| limit_ns.is_none_or(|limit| felt as f64 <= limit));
        counts[usize::from(in_time && served.fate == Fate::Finished)] += 1;
    }
    let [late, good] = counts;
    (late + good > 0).then(|| good as f64 / (late + good) as f64)
}

/// Share of users' tokens, but each request's first, that came within the limit of the one before. Step times of a stretch are
/// an arithmetic progression, rounded to nanoseconds as everywhere.
fn share_of_tokens(outcome: &Outcome, limit_ns: Option<f64>) -> Option<f64> {
    let limit = limit_ns.unwrap_or(f64::INFINITY);
    let (mut good, mut all) = (0_u64, 0_u64);
    let mut count = |gap: i64| {
        all += 1;
        good += u64::from(gap as f64 <= limit);
    };
    if let Some(gaps) = &outcome.all_gaps {
        gaps.iter().copied().for_each(&mut count);
        return (all > 0).then(|| good as f64 / all as f64);
    }
    outcome.long_gaps.iter().map(|gap| gap.ns).for_each(&mut count);
    for stretch in outcome.stretches.iter().filter(|stretch| stretch.felt_requests > 0) {
        let slope =
            if stretch.steps > 1 { (stretch.last_ns - stretch.first_ns) / (stretch.steps - 1) as f64 } else { 0.0 };
        // What stalls, or comes back, does so for one step.
        let (first, felt) = (stretch.first_ns + stretch.stall_ns as f64, stretch.felt_requests);
        let is_good = |step: u64| (first + slope * step as f64).round() <= limit;
        // Good steps stand together at one end.
        let steps = if is_good(0) == is_good(stretch.steps - 1) {
            if is_good(0) { stretch.steps } else { 0 }
        } else {
            let (mut low, mut high) = (0, stretch.steps - 1);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if is_good(middle) == is_good(0) { low = middle } else { high = middle }
            }
            if is_good(0) { high } else { stretch.steps - high }
        };
        good += steps * felt;
        all += stretch.steps * felt;
    }
    (all > 0).then(|| good as f64 / all as f64)
}

#[cfg(test)]
mod tests;
