//! What goes over links between and around accelerators, by class of traffic and bucket of time.
//!
//! Classes have the names of [`Class`], and one more: what is written to memories below (`tier_write`) goes the other way on
//! the links to the host.

use arrow::array::RecordBatch;

use super::usage::{self, Bucket};
use super::{Found, Prefill, Scenario, handover_bytes_per_ns, link_named};
use crate::cost::{Plan, Wire};
use crate::error::Result;
use crate::fabric::traffic::Class;
use crate::machine::{Distance, Link, Machine};
use crate::schema::result::LINK_USAGE;
use crate::schema::{Cell, batch_of_rows};
use crate::serving::Fate;
use crate::serving::lower::Tiers;
use crate::workload::Workload;

/// A class of traffic on its links.
#[derive(Debug, Clone, PartialEq)]
struct Carried {
    link: &'static str,
    class: &'static str,
    distance: Option<&'static str>,
    /// What the links of all instances carry, bytes per nanosecond.
    peak: f64,
    /// Bytes by bucket.
    bytes: Vec<f64>,
}

/// The rows of [`LINK_USAGE`]: those of all-reduces always, of others where something goes or could go.
///
/// # Errors
/// None that a scenario can cause.
pub(super) fn link_usage(
    at: u32,
    (scenario, found, workload): (&Scenario, &Found, &Workload),
    buckets: &[Bucket],
    width: i64,
) -> Result<RecordBatch> {
    let mut all = between(scenario, found, buckets);
    all.extend(around(scenario, found, buckets, width));
    let prompts = scenario.prefill.as_ref().zip(found.prefill.as_ref());
    if let Some((link, peak)) = prompts.and_then(|(prefill, plan)| handover_link(prefill, plan)) {
        let class = Class::PrefillKv.name();
        let bytes = handed_over(found, workload, width);
        all.push(Carried { link: class, class, distance: Some(link.distance.name()), peak, bytes });
    }
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for Carried { link, class, distance, peak, bytes } in all {
        for (number, bytes) in bytes.into_iter().enumerate() {
            rows.push(vec![
                at.into(),
                link.into(),
                class.into(),
                distance.into(),
                (number as u32).into(),
                (number as i64 * width).into(),
                width.into(),
                (bytes.round() as u64).into(),
                (bytes / (peak * width as f64)).into(),
            ]);
        }
    }
    batch_of_rows(&LINK_USAGE, &rows)
}

/// What accelerators send to each other: within a scale-up domain, or beyond it where an instance is larger than one.
fn between(scenario: &Scenario, found: &Found, buckets: &[Bucket]) -> Vec<Carried> {
    let (machine, plan) = (&scenario.machine, &found.plan);
    let accelerators = f64::from(scenario.accelerators());
    let domain = f64::from(machine.accelerator.scale_up_domain);
    let own = machine.accelerator.scale_up_bytes_per_s.value / 1e9 * accelerators;
    let carried = |class: Class, (reach, wire): (f64, Option<Wire>), of: fn(&Bucket) -> f64| {
        let bytes: Vec<f64> = buckets.iter().map(of).collect();
        let (link, distance, peak) = match wire.filter(|_| reach > domain) {
            Some(wire) => ("scale_out", Some(Distance::CrossRack.name()), wire.bytes_per_ns * accelerators),
            None => ("scale_up", scale_up_distance(machine), own),
        };
        Carried { link, class: class.name(), distance, peak, bytes }
    };
    let experts = (plan.tensor * plan.data, plan.exchange);
    let others = [
        carried(Class::ExpertDispatch, experts, |bucket| bucket.dispatch),
        carried(Class::ExpertCombine, experts, |bucket| bucket.combine),
        carried(Class::Pipeline, (plan.accelerators, plan.hop), |bucket| bucket.pipeline),
    ];
    let mut all = vec![carried(Class::TensorAllReduce, (plan.tensor, None), |bucket| bucket.all_reduce)];
    all.extend(others.into_iter().filter(|other| other.bytes.iter().any(|bytes| *bytes > 0.0)));
    if let Some(pool) = &plan.ffn_pool {
        // The hop goes both ways at once, as much there as back.
        let peak = 2.0 * pool.link_bytes_per_ns * accelerators;
        for class in [Class::AttentionToFfn, Class::FfnToAttention] {
            let bytes = buckets.iter().map(|bucket| bucket.hop / 2.0).collect();
            all.push(Carried { link: "attention_ffn", class: class.name(), distance: None, peak, bytes });
        }
    }
    all
}

/// What accelerators fetch from memories below or from the host, and what is written to those.
fn around(scenario: &Scenario, found: &Found, buckets: &[Bucket], width: i64) -> Vec<Carried> {
    let (plan, below) = (&found.plan, found.below.as_ref());
    // The ways from memories below, or else the link to the host.
    let rate = below.map(|below| below.tiers.iter().map(|tier| tier.way.bytes_per_ns).sum::<f64>());
    let rate = rate.map(|rate| rate * f64::from(fetching(scenario)));
    let has_host = plan.host_bytes_per_ns > 0.0;
    let host = rate.or(has_host.then_some(plan.host_bytes_per_ns * f64::from(scenario.accelerators())));
    let Some(peak) = host else { return Vec::new() };
    let distance = host_distance(&scenario.machine, below);
    let bytes = buckets.iter().map(|bucket| bucket.fetched).collect();
    let mut all = vec![Carried { link: "host", class: Class::TierFetch.name(), distance, peak, bytes }];
    if let Some(below) = below {
        let moved = usage::below(&found.outcome.stretches, width, below.tiers.len());
        let mut bytes = vec![0.0; buckets.len()];
        for tier in moved {
            bytes.iter_mut().zip(tier).for_each(|(sum, moved)| *sum += moved.written_bytes);
        }
        all.push(Carried { link: "to_host", class: "tier_write", distance, peak, bytes });
    }
    all
}

/// Instances that fetch from memories below and write to them: those that compute prompts.
pub(super) fn fetching(scenario: &Scenario) -> u32 {
    scenario.prefill.as_ref().map_or(scenario.parallel.instances, |prefill| prefill.parallel.instances)
}

/// How far the links of a scale-up domain reach; `None` where the machine does not say.
fn scale_up_distance(machine: &Machine) -> Option<&'static str> {
    let own = machine.accelerator.scale_up_bytes_per_s.value;
    let is_own = |link: &&Link| link.way_bytes_per_s.as_ref().is_some_and(|rate| rate.value.to_bits() == own.to_bits());
    machine.links.iter().find(is_own).map(|link| link.distance.name())
}

/// KV bytes that went from instances that compute prompts to those that decode, by bucket of time: those of each prompt when
/// its first token was there. Empty where there are no such instances.
fn handed_over(found: &Found, workload: &Workload, width: i64) -> Vec<f64> {
    let Some(plan) = &found.prefill else { return Vec::new() };
    let mut sent = vec![0.0; usage::BUCKETS];
    for (served, &prompt) in found.outcome.served.iter().zip(&workload.prompt) {
        if let Some(ttft) = served.ttft_ns.filter(|_| served.fate == Fate::Finished) {
            let bucket = (served.arrival_ns.saturating_add(ttft) / width).max(0) as usize;
            sent[bucket.min(usage::BUCKETS - 1)] += plan.footprint(prompt, prompt, true) as f64;
        }
    }
    sent
}

/// How far it is to where fetched bytes come from; `None` if one of the memories is farther than the host's, which is the
/// nearest, since nobody says how far.
fn host_distance(machine: &Machine, below: Option<&Tiers>) -> Option<&'static str> {
    let own = machine.tiers.first().map(|tier| &tier.name);
    let is_near = below.is_none_or(|below| below.tiers.iter().all(|tier| Some(&tier.way.name) == own));
    is_near.then(|| Distance::Board.name())
}

/// The link over which the KV of computed prompts goes, and what all instances send over it in the replay, bytes per
/// nanosecond.
fn handover_link<'a>(prefill: &'a Prefill, plan: &Plan) -> Option<(&'a Link, f64)> {
    let link = link_named(prefill)?;
    Some((link, handover_bytes_per_ns(link, plan)? * f64::from(prefill.parallel.instances)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Measured, Parallel};
    use crate::policy::Keep;
    use crate::serving::lower;
    use crate::test_kit::toy_plan;

    fn h100() -> Machine {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../presets/machine/h100.toml")).unwrap();
        crate::machine::parse(&text, "h100.toml").unwrap()
    }

    /// `PCIe` Gen5 x16, of which 86% are reached, for each of two tensor shards of three instances.
    #[test]
    fn a_link_is_full_where_the_replay_sends_all_that_it_can() {
        let parallel = Parallel { data: 4, instances: 3, ..Parallel::tensor(2) };
        let prefill = Prefill { machine: h100(), parallel, link: "board".to_owned(), measured: Measured::default() };
        let plan = Plan { tensor: 2.0, ..toy_plan(&[Keep::ALL], 64) };
        let (link, peak) = handover_link(&prefill, &plan).unwrap();
        assert_eq!(link.distance, Distance::Board);
        assert!((peak - 3.0 * 2.0 * 64.0 * 0.86).abs() < 1e-9, "{peak}");
    }

    #[test]
    fn the_host_is_near_and_nobody_says_how_far_the_rest_is() {
        let machine = h100();
        let distance = |text: &str| host_distance(&machine, Some(&lower::parse(text, &machine, 1.0).unwrap()));
        assert_eq!((distance("tier(hbm,dram)"), distance("tier(hbm,dram,nvme)")), (Some("board"), None));
        assert_eq!(host_distance(&machine, None), Some("board"));
    }
}
