//! What a whole replay paid, booth by booth: the figures by which changes are compared. All that machines did is paid for, the
//! requests that stages of the policy send included; tokens and latencies are those of users.

use super::{Found, Scenario, felt, of_users};
use crate::cost::StepCost;
use crate::economics::{cost_usd, energy_j, usd_per_mtok};
use crate::model::Certainty;
use crate::serving::Fate;
use crate::serving::quantile::{of_sorted, of_tokens};
use crate::workload::Workload;

/// The booths of a step in the order of the bill, with the name that tables print and the bytes that it moves.
type Booth = (&'static str, fn(&StepCost) -> f64, Option<fn(&StepCost) -> f64>);

pub(super) const BOOTHS: [Booth; 8] = [
    ("kv_read", |cost| cost.kv_read, Some(|cost| cost.kv_read_bytes)),
    ("weight_read", |cost| cost.weight_read, Some(|cost| cost.weight_read_bytes + cost.pool_read_bytes)),
    ("tier_fetch", |cost| cost.tier, Some(|cost| cost.tier_bytes)),
    ("collectives", |cost| cost.collective, Some(StepCost::collective_bytes)),
    ("link", |cost| cost.link, Some(|cost| cost.hop_bytes + cost.pipeline_bytes)),
    ("compute", |cost| cost.compute, None),
    ("policy_work", |cost| cost.policy, None),
    ("overhead", |cost| cost.overhead, None),
];

/// Whole sums over a replay, all instances together.
#[derive(Debug, Clone, PartialEq)]
pub struct Toll {
    /// Time of each of [`BOOTHS`], then the time in which instances had no step; nanoseconds.
    pub booths_ns: [i64; 9],
    /// Bytes of each of [`BOOTHS`] that moves some.
    pub booths_bytes: [Option<i64>; 8],
    /// Time that the requests ask for in full batches, all instances together; `None` where nothing comes by itself.
    pub asked_ns: Option<f64>,
    /// Output tokens of users' finished requests.
    pub output_tokens: u64,
    /// US dollars of all accelerators over the duration; `None` where the price is unknown.
    pub usd: Option<f64>,
    /// All-in energy over the duration, joules.
    pub joules: Option<f64>,
    /// Median and 99th percentile of the time between tokens, and 99th percentile of that to the first one.
    pub latencies_ns: [Option<i64>; 3],
    /// Context tokens that fit, all instances.
    pub kv_capacity_tokens: Option<f64>,
    /// Prompt tokens that the prefix cache held, and all prompt tokens, of users' finished requests.
    pub hit_tokens: [u64; 2],
    /// The least certain input.
    pub certainty: Certainty,
}

/// The toll of a replay.
pub(super) fn toll(scenario: &Scenario, found: &Found, workload: &Workload) -> Toll {
    let mut sums = [0.0; 8];
    let mut bytes = [0.0; 8];
    let mut steps_ns = 0_i64;
    for stretch in &found.outcome.stretches {
        steps_ns += stretch.total_ns;
        for (at, (_, time, moved)) in BOOTHS.iter().enumerate() {
            sums[at] += time(&stretch.cost);
            bytes[at] += moved.map_or(0.0, |moved| moved(&stretch.cost));
        }
    }
    let instances = i64::from(scenario.instances());
    let mut booths_ns = [0; 9];
    for (whole, sum) in booths_ns.iter_mut().zip(sums) {
        *whole = sum.round() as i64;
    }
    booths_ns[8] = (found.duration_ns.saturating_mul(instances) - steps_ns).max(0);
    let mut booths_bytes = [None; 8];
    for (at, (whole, sum)) in booths_bytes.iter_mut().zip(bytes).enumerate() {
        *whole = BOOTHS[at].2.map(|_| sum.round() as i64);
    }
    let finished = || of_users(&found.outcome, workload).filter(|(_, served)| served.fate == Fate::Finished);
    let ttft = felt(&found.outcome, workload, |served| served.ttft_ns);
    let gaps = of_tokens(&found.outcome, &[0.5, 0.99]);
    let (duration, accelerators) = (found.duration_ns as f64, scenario.accelerators());
    let growing = found.plan.growing_bytes();
    let capacity = found.capacity_bytes(scenario) as f64;
    let known = |of: &Option<crate::machine::Sourced>| of.as_ref().map(|known| known.value);
    Toll {
        booths_ns,
        booths_bytes,
        asked_ns: found.offered_load.map(|load| load * found.span_ns as f64 * instances as f64),
        output_tokens: finished().map(|(at, _)| u64::from(workload.output[at])).sum(),
        usd: known(&found.price.usd_per_accelerator_hour).map(|usd| cost_usd(usd, accelerators, duration)),
        joules: known(&found.price.w_per_accelerator).map(|watts| energy_j(watts, accelerators, duration)),
        latencies_ns: [gaps[0], gaps[1], of_sorted(&ttft, 0.99)],
        kv_capacity_tokens: (growing > 0).then(|| (capacity / growing as f64).floor()),
        hit_tokens: finished().fold([0; 2], |[hit, all], (at, served)| {
            [hit + u64::from(served.hit_tokens), all + u64::from(workload.prompt[at])]
        }),
        certainty: found.plan.certainty,
    }
}

impl Toll {
    /// Time of all steps, nanoseconds; idle time is not in it.
    pub fn steps_ns(&self) -> i64 {
        self.booths_ns[..8].iter().sum()
    }

    /// Time of all instances, idle or not, nanoseconds.
    pub fn all_ns(&self) -> i64 {
        self.booths_ns.iter().sum()
    }

    /// Time of all steps over the output tokens; `None` without tokens.
    pub fn ns_per_output_token(&self) -> Option<f64> {
        (self.output_tokens > 0).then(|| self.steps_ns() as f64 / self.output_tokens as f64)
    }

    /// Time that the requests ask for over the output tokens.
    pub fn asked_ns_per_output_token(&self) -> Option<f64> {
        self.asked_ns.filter(|_| self.output_tokens > 0).map(|asked| asked / self.output_tokens as f64)
    }

    /// Cost of a million output tokens; `None` where the price is unknown or there are none.
    pub fn usd_per_mtok_output(&self) -> Option<f64> {
        usd_per_mtok(self.usd?, self.output_tokens)
    }

    /// The booth with the most step time and its share; `None` without steps.
    pub fn bound_by(&self) -> Option<(&'static str, f64)> {
        let steps = self.steps_ns();
        let most = (0..8).fold(0, |best, at| if self.booths_ns[at] > self.booths_ns[best] { at } else { best });
        (steps > 0).then(|| (BOOTHS[most].0, self.booths_ns[most] as f64 / steps as f64))
    }

    /// The share of a sum over the whole duration that falls on a booth, by its time.
    pub fn part_of(&self, whole: Option<f64>, booth: usize) -> Option<f64> {
        let all = self.all_ns();
        if all == 0 {
            return whole;
        }
        whole.map(|whole| whole * self.booths_ns[booth] as f64 / all as f64)
    }
}
