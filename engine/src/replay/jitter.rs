//! Why tokens come later than in the median: each cause's share of the time beyond p50. Tokens are those that users get.
//!
//! The gap of a token beyond the median gap is split over causes. What a step takes longer than the latest step of its
//! instance without prompts is prefill interference, and so is the time in which prompts ran without decoding. Exposed
//! fetches, swaps and hops are known by their booths. KV reads of more tokens per request than in the median step are context
//! growth, and what is left is the change of the batch. Gaps across a preemption or a hand-over are known one by one.

use crate::serving::quantile::of_tokens;
use crate::serving::{GapCause, Outcome, Stretch};

/// Causes, in the order in which they are shown.
pub(super) const CAUSES: [&str; 7] =
    ["prefill", "batch_change", "context_growth", "preemption", "handover", "tier_stall", "link"];

/// What a cause adds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Part {
    /// Tokens that came later because of it, among others.
    pub tokens: u64,
    /// Time beyond the median, summed over tokens, nanoseconds.
    pub excess_ns: f64,
}

/// Time between tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Jitter {
    pub p50_ns: i64,
    pub std_ns: f64,
    pub parts: [Part; CAUSES.len()],
}

const PREFILL: usize = 0;
const BATCH: usize = 1;
const GROWTH: usize = 2;
const PREEMPTION: usize = 3;
const HANDOVER: usize = 4;
const TIER: usize = 5;
const LINK: usize = 6;

/// The causes of a replay's gaps; `None` without gaps, or where steps are captured and gaps are not the steps' times.
pub(super) fn of_outcome(outcome: &Outcome) -> Option<Jitter> {
    if outcome.all_gaps.is_some() {
        return None;
    }
    let p50_ns = of_tokens(outcome, &[0.5])[0]?;
    let p50 = p50_ns as f64;
    let usual = usual_context(outcome, p50);
    let mut jitter = Jitter { p50_ns, std_ns: deviation(outcome, p50), parts: [Part::default(); CAUSES.len()] };
    for gap in &outcome.long_gaps {
        let cause = match gap.cause {
            GapCause::Preemption => PREEMPTION,
            GapCause::Handover => HANDOVER,
            GapCause::Prefill => PREFILL,
        };
        let beyond = gap.ns as f64 - p50;
        if beyond > 0.0 {
            jitter.parts[cause].tokens += 1;
            jitter.parts[cause].excess_ns += beyond;
        }
    }
    for instance in outcome.stretches.chunk_by(|a, b| a.instance == b.instance) {
        // What a step without prompts took last.
        let mut plain = p50;
        for stretch in instance.iter().filter(|stretch| stretch.decode_requests > 0) {
            split(stretch, p50, plain, usual, &mut jitter.parts);
            if stretch.prefill_tokens == 0 {
                plain = stretch.last_ns;
            }
        }
    }
    Some(jitter)
}

/// Steps of a stretch that take longer than `p50`, and by how much together.
fn beyond(stretch: &Stretch, p50: f64) -> (f64, f64) {
    let steps = stretch.steps as f64;
    let (first, last) = (stretch.first_ns + stretch.stall_ns as f64 - p50, stretch.last_ns - p50);
    if stretch.steps == 1 {
        return if first > 0.0 { (1.0, first) } else { (0.0, 0.0) };
    }
    let slope = (last - first) / (steps - 1.0);
    let (from, to) = match (first > 0.0, last > 0.0) {
        (true, true) => (0.0, steps),
        (false, false) => return (0.0, 0.0),
        (false, true) => (((-first / slope).floor() + 1.0).min(steps), steps),
        (true, false) => (0.0, (-first / slope).ceil().max(0.0)),
    };
    let count = to - from;
    (count, count * first + slope * (to + from - 1.0) * count / 2.0)
}

/// Adds what a stretch's steps take beyond the median to its causes.
fn split(stretch: &Stretch, p50: f64, plain: f64, usual: f64, parts: &mut [Part; CAUSES.len()]) {
    let felt = stretch.felt_requests;
    let (count, sum) = beyond(stretch, p50);
    if count == 0.0 || felt == 0 {
        return;
    }
    let (steps, each) = (stretch.steps as f64, sum / count);
    let mut ns = [0.0; CAUSES.len()];
    ns[PREFILL] = stretch.stall_ns as f64;
    if stretch.prefill_tokens > 0 {
        ns[PREFILL] += (stretch.first_ns - plain).max(0.0);
    } else {
        let context = stretch.context_tokens as f64 / stretch.decode_requests as f64 + (steps - 1.0) / 2.0;
        ns[GROWTH] = stretch.cost.kv_read / steps * (1.0 - usual / context).max(0.0);
    }
    ns[TIER] = stretch.cost.tier / steps;
    ns[LINK] = stretch.cost.link / steps;
    let known: f64 = ns.iter().sum();
    if known > each {
        ns.iter_mut().for_each(|ns| *ns *= each / known);
    } else {
        ns[BATCH] = each - known;
    }
    for (part, ns) in parts.iter_mut().zip(ns) {
        if ns > 0.0 {
            part.tokens += count as u64 * felt;
            part.excess_ns += ns * count * felt as f64;
        }
    }
}

/// Context per request of the step without prompts whose time is nearest to the median; the first of equals.
fn usual_context(outcome: &Outcome, p50: f64) -> f64 {
    let plain = outcome.stretches.iter().filter(|stretch| stretch.decode_requests > 0 && stretch.prefill_tokens == 0);
    let off = |stretch: &&Stretch| {
        let (low, high) = (stretch.first_ns.min(stretch.last_ns), stretch.first_ns.max(stretch.last_ns));
        (low - p50).max(p50 - high).max(0.0)
    };
    let nearest = plain.min_by(|a, b| off(a).total_cmp(&off(b)));
    nearest.map_or(f64::INFINITY, |stretch| {
        let spread = stretch.last_ns - stretch.first_ns;
        let at = if spread.abs() < 1e-9 { 0.5 } else { ((p50 - stretch.first_ns) / spread).clamp(0.0, 1.0) };
        stretch.context_tokens as f64 / stretch.decode_requests as f64 + at * (stretch.steps - 1) as f64
    })
}

/// Standard deviation over all gaps.
fn deviation(outcome: &Outcome, p50: f64) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for gap in &outcome.long_gaps {
        let off = gap.ns as f64 - p50;
        (count, sum, squares) = (count + 1.0, sum + off, squares + off * off);
    }
    for stretch in outcome.stretches.iter().filter(|stretch| stretch.felt_requests > 0) {
        let (steps, felt) = (stretch.steps as f64, stretch.felt_requests as f64);
        let first = stretch.first_ns + stretch.stall_ns as f64 - p50;
        let slope = if stretch.steps > 1 { (stretch.last_ns - p50 - first) / (steps - 1.0) } else { 0.0 };
        let (ones, twos) = (steps * (steps - 1.0) / 2.0, (steps - 1.0) * steps * (2.0 * steps - 1.0) / 6.0);
        count += felt * steps;
        sum += felt * (steps * first + slope * ones);
        squares += felt * (steps * first * first + 2.0 * first * slope * ones + slope * slope * twos);
    }
    let mean = sum / f64::max(count, 1.0);
    (squares / f64::max(count, 1.0) - mean * mean).max(0.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Keep;
    use crate::serving::{Pool, RULES, Role, Routing, Rules, Setup, Traffic, serve};
    use crate::test_kit::{toy_plan, toy_workload};

    fn served(rules: &Rules, capacity: u64) -> Outcome {
        let plan = toy_plan(&[Keep::ALL], capacity);
        let requests: Vec<(u32, u32, u32, u8)> =
            (0..40).map(|at| (at % 7 * 40, 20 + at * 37 % 150, 1 + at * 13 % 60, (at % 3) as u8)).collect();
        let workload = toy_workload(&requests);
        let pools = [Pool { plan: &plan, instances: 2, role: Role::Both }];
        let (traffic, routing) = (Traffic::Open, Routing::LeastLoaded);
        serve(&Setup { pools: &pools, traffic, routing, rules, handover: None, below: None }, &workload)
    }

    /// The causes add up to what is beyond the median, token by token, and the deviation is that of all gaps.
    #[test]
    fn causes_add_up_to_the_excess() {
        for rules in RULES.iter().filter(|rules| rules.name != "vllm-swap") {
            let rules = Rules { step_tokens: 128, ..*rules };
            let outcome = served(&rules, 900);
            let jitter = of_outcome(&outcome).unwrap();
            let mut gaps: Vec<f64> = outcome.long_gaps.iter().map(|gap| gap.ns as f64).collect();
            for stretch in &outcome.stretches {
                for step in 0..stretch.steps {
                    let share = if stretch.steps > 1 { step as f64 / (stretch.steps - 1) as f64 } else { 0.0 };
                    let stall = if step == 0 { stretch.stall_ns as f64 } else { 0.0 };
                    let gap = stretch.first_ns + (stretch.last_ns - stretch.first_ns) * share + stall;
                    gaps.extend((0..stretch.felt_requests).map(|_| gap));
                }
            }
            let p50 = jitter.p50_ns as f64;
            let excess: f64 = gaps.iter().map(|gap| (gap - p50).max(0.0)).sum();
            let found: f64 = jitter.parts.iter().map(|part| part.excess_ns).sum();
            assert!((found / excess - 1.0).abs() < 1e-6, "{}: {found} of {excess}", rules.name);
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((jitter.std_ns / square.sqrt() - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn preemptions_are_named_where_memory_is_short() {
        let share = |capacity: u64| of_outcome(&served(&RULES[0], capacity)).unwrap().parts[PREEMPTION].excess_ns;
        assert!(share(420) > 0.0);
        assert!(share(100_000) < 1.0);
    }
}
