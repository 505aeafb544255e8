//! The rows of the ledger, of stacking and of specifications: changes against the baseline.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;

use super::stacking::{self, Part, baseline_of, differences, key, with_more, with_parts};
use super::toll::{BOOTHS, Toll};
use super::{Run, Scenario, Source};
use crate::error::Result;
use crate::machine::Resource;
use crate::policy::Floor;
use crate::schema::balance::{LEDGER, SPEC, STACKING, STACKING_SHARES};
use crate::schema::{Cell, Table, batch_of_rows};

/// A change below this share of all time is none: rounding and scheduling move as much.
const UNCHANGED: f64 = 0.001;

/// Replays by what they are.
struct Tolls<'a> {
    known: BTreeMap<u128, &'a Result<Toll>>,
}

impl<'a> Tolls<'a> {
    fn of(&self, scenario: &Scenario) -> std::result::Result<&'a Toll, String> {
        match self.known.get(&key(scenario)) {
            Some(Ok(toll)) => Ok(toll),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("it was not replayed".to_owned()),
        }
    }
}

/// The tables, each in one batch.
///
/// # Errors
/// Only a table that does not fit its schema, which is a bug.
pub(super) fn tables(run: &Run<'_>, own: &[Result<Toll>]) -> Result<Vec<(&'static Table, Vec<RecordBatch>)>> {
    let [scenarios, variations] = [run.scenarios, run.variations].map(|scenarios| as_asked(scenarios, run.sources));
    let pairs = scenarios.iter().zip(own).chain(variations.iter().zip(run.tolls));
    let tolls = Tolls { known: pairs.map(|(scenario, toll)| (key(scenario), toll)).collect() };
    let (mut ledger, mut stacking, mut shares, mut spec) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // Without variations nothing is taken apart.
    if let Some(baseline) = baseline_of(&scenarios).filter(|_| !run.variations.is_empty()) {
        for (at, scenario) in scenarios.iter().enumerate().filter(|(at, _)| *at != baseline) {
            let base = &scenarios[baseline];
            let Some(parts) = differences(base, scenario).filter(|parts| !parts.is_empty()) else { continue };
            let apart = Apart::new(&tolls, base, scenario, parts);
            ledger.extend(ledger_rows(at as u32, &apart));
            stacking.extend(stacking_rows(at as u32, &apart));
            shares.extend(share_rows(at as u32, &apart));
        }
        spec.extend(spec_rows(baseline as u32, &scenarios[baseline], &tolls));
    }
    Ok(vec![
        (&LEDGER, vec![batch_of_rows(&LEDGER, &ledger)?]),
        (&STACKING, vec![batch_of_rows(&STACKING, &stacking)?]),
        (&STACKING_SHARES, vec![batch_of_rows(&STACKING_SHARES, &shares)?]),
        (&SPEC, vec![batch_of_rows(&SPEC, &spec)?]),
    ])
}

/// The scenarios as they were asked for: on the trace's own requests, of which the application's stages made others.
fn as_asked(scenarios: &[Scenario], sources: &[Source]) -> Vec<Scenario> {
    let asked = |scenario: &Scenario| {
        let mut asked = scenario.clone();
        let edited = sources.get(scenario.workload).and_then(|source| source.edited.as_ref());
        asked.workload = edited.map_or(scenario.workload, |(origin, _)| *origin);
        asked
    };
    scenarios.iter().map(asked).collect()
}

/// A scenario taken apart.
struct Apart<'a> {
    baseline: &'a Scenario,
    scenario: &'a Scenario,
    parts: Vec<Part>,
    /// What each subset of the parts came to, by its mask.
    tolls: Vec<std::result::Result<&'a Toll, String>>,
}

impl<'a> Apart<'a> {
    fn new(tolls: &Tolls<'a>, baseline: &'a Scenario, scenario: &'a Scenario, parts: Vec<Part>) -> Self {
        let of = |mask| match with_parts(baseline, scenario, &parts, mask) {
            Ok(mixed) => tolls.of(&mixed),
            Err(error) => Err(error.to_string()),
        };
        let tolls = (0..1_usize << parts.len()).map(of).collect();
        Self { baseline, scenario, parts, tolls }
    }

    fn all(&self) -> usize {
        self.tolls.len() - 1
    }

    fn change(&self, part: Part) -> String {
        stacking::change(part, self.baseline, self.scenario)
    }

    /// Time of an output token under a subset.
    fn time(&self, mask: usize) -> Option<f64> {
        self.tolls[mask].as_ref().ok()?.ns_per_output_token()
    }
}

/// Booths of the ledger beside those of a step.
const IDLE: usize = 8;

/// Names of all booths of the ledger, in order.
fn booth_names() -> impl Iterator<Item = &'static str> {
    BOOTHS.iter().map(|booth| booth.0).chain(["idle", "software_adaptation"])
}

fn ledger_rows(at: u32, apart: &Apart<'_>) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    let mut mask = 0;
    for floor in ["application", "algorithm", "hardware"] {
        let of_floor: Vec<usize> =
            (0..apart.parts.len()).filter(|part| apart.parts[*part].floor().1 == floor).collect();
        if of_floor.is_empty() {
            continue;
        }
        let next = of_floor.iter().fold(mask, |mask, part| mask | 1 << part);
        let changes: Vec<String> = of_floor.iter().map(|part| apart.change(apart.parts[*part])).collect();
        let position = apart.parts[of_floor[0]].floor().0;
        let (before, after) = (&apart.tolls[mask], &apart.tolls[next]);
        let error = [before, after].into_iter().find_map(|toll| toll.as_ref().err());
        let known = before.as_ref().ok().copied().zip(after.as_ref().ok().copied());
        let verdicts = known.map(|(before, after)| verdicts(before, after));
        for (booth, name) in booth_names().enumerate() {
            let mut row: Vec<Cell> = vec![
                at.into(),
                floor.into(),
                position.into(),
                changes.join(", ").into(),
                name.into(),
                (booth as u16).into(),
            ];
            row.extend(amounts(known.filter(|_| booth <= IDLE), booth));
            let verdict = verdicts.as_ref().and_then(|(words, _)| words.get(booth).copied());
            row.push(verdict.into());
            row.push(verdicts.as_ref().and_then(|(_, ratio)| *ratio).filter(|_| booth <= IDLE).into());
            let note = if booth > IDLE { adaptation(apart, floor, known) } else { error.cloned() };
            row.push(note.into());
            let days = apart.scenario.adaptation_days.iter().find(|(of, _)| *of == floor);
            row.push(days.filter(|_| booth > IDLE).map(|(_, days)| *days).into());
            let certainty = known.map(|(before, after)| before.certainty.min(after.certainty));
            row.push(certainty.unwrap_or(crate::model::Certainty::Assumed).name().into());
            rows.push(row);
        }
        mask = next;
    }
    rows
}

/// Time, bytes, energy and money of a booth before a change, and their changes.
fn amounts(known: Option<(&Toll, &Toll)>, booth: usize) -> Vec<Cell> {
    let Some((before, after)) = known else { return vec![Cell::Null; 8] };
    let whole = |of: fn(&Toll, usize) -> Option<i64>| -> [Cell; 2] {
        let pair = of(before, booth).zip(of(after, booth));
        [pair.map(|pair| pair.0).into(), pair.map(|(before, after)| after - before).into()]
    };
    let real = |of: fn(&Toll, usize) -> Option<f64>| -> [Cell; 2] {
        let (before, after) = (of(before, booth), of(after, booth));
        [before.into(), before.zip(after).map(|(before, after)| after - before).into()]
    };
    let mut cells = Vec::with_capacity(8);
    cells.extend(whole(|toll, booth| Some(toll.booths_ns[booth])));
    cells.extend(whole(|toll, booth| toll.booths_bytes.get(booth).copied().flatten()));
    cells.extend(real(|toll, booth| toll.part_of(toll.joules, booth)));
    cells.extend(real(|toll, booth| toll.part_of(toll.usd, booth)));
    cells
}

/// What became of each booth's time, idle time last, and the share of all savings that came back elsewhere. Idle time is not
/// paid for by steps: it fills what they leave, and says nothing about where their time went.
fn verdicts(before: &Toll, after: &Toll) -> (Vec<&'static str>, Option<f64>) {
    let least = UNCHANGED * before.steps_ns() as f64;
    let changes: Vec<f64> =
        before.booths_ns.iter().zip(&after.booths_ns).map(|(before, after)| (after - before) as f64).collect();
    let sum = |keep: &dyn Fn(f64) -> bool| -> f64 {
        changes[..IDLE].iter().filter(|change| keep(**change)).map(|change| change.abs()).sum()
    };
    let (saved, added) = (sum(&|change| change < -least), sum(&|change| change > least));
    let moved = (saved > 0.0).then(|| added / saved);
    let word = |change: f64| {
        if change.abs() <= least {
            "unchanged"
        } else if change < 0.0 {
            if moved.is_some_and(|moved| moved >= 0.01) { "moved" } else { "removed" }
        } else if saved > 0.0 {
            "received"
        } else {
            "added"
        }
    };
    let mut words: Vec<&str> = changes[..IDLE].iter().map(|change| word(*change)).collect();
    words.push(match changes[IDLE] {
        change if change.abs() <= least => "unchanged",
        change if change < 0.0 => "removed",
        _ => "added",
    });
    (words, moved)
}

/// What a change asks of software and people; `None` if nothing is known to be asked.
fn adaptation(apart: &Apart<'_>, floor: &str, known: Option<(&Toll, &Toll)>) -> Option<String> {
    let mut notes = Vec::new();
    if floor != "hardware" {
        for stage in apart.scenario.policy.stages() {
            let kind = stage.args.kind();
            let is_new = apart.baseline.policy.stages().iter().all(|known| known.args.text() != stage.args.text());
            if !is_new || matches!(kind.name, "full" | "bf16") || (floor == "application") != is_application(kind) {
                continue;
            }
            let deployment = &kind.deployment;
            let mut asks = vec![format!("engines that have it: {}", deployment.engines)];
            if deployment.calibration_tokens > 0 {
                asks.push(format!("{} tokens of calibration", deployment.calibration_tokens));
            }
            asks.extend(deployment.per_model_constants.then(|| "constants for each model".to_owned()));
            asks.extend(deployment.training.then(|| "training of the model".to_owned()));
            asks.extend(deployment.breaks_sharing.then(|| "its blocks cannot be shared".to_owned()));
            asks.extend(deployment.rewrites_prefix.then(|| "the prefix breaks where it rewrites".to_owned()));
            notes.push(format!("`{}`: {}", kind.name, asks.join(", ")));
        }
    }
    if let Some((before, after)) = known {
        let ratio =
            |toll: &Toll| (toll.hit_tokens[1] > 0).then(|| toll.hit_tokens[0] as f64 / toll.hit_tokens[1] as f64);
        if let Some((before, after)) = ratio(before).zip(ratio(after)).filter(|(before, after)| before - after > 0.005)
        {
            notes.push(format!(
                "prefix hits fall from {:.1}% to {:.1}% of the prompt tokens",
                100.0 * before,
                100.0 * after
            ));
        }
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Whether a stage acts on what enters the context.
fn is_application(kind: &crate::policy::Kind) -> bool {
    kind.floor == Floor::Application
}

fn stacking_rows(at: u32, apart: &Apart<'_>) -> Vec<Vec<Cell>> {
    let count = apart.parts.len();
    let mut masks: Vec<usize> = (0..=apart.all()).collect();
    masks.sort_by_key(|mask| (mask.count_ones(), *mask));
    let mut rows = Vec::with_capacity(masks.len());
    for mask in masks {
        let names: Vec<&str> =
            (0..count).filter(|part| mask >> part & 1 == 1).map(|part| apart.parts[part].name()).collect();
        let size = names.len();
        let missing = (0..count).find(|part| mask >> part & 1 == 0).filter(|_| size + 1 == count && count > 1);
        let role = match size {
            0 => "baseline",
            _ if size == count => "together",
            1 => "alone",
            _ if size + 1 == count => "without",
            _ => "between",
        };
        let toll = &apart.tolls[mask];
        let ok = toll.as_ref().ok();
        let bound = ok.and_then(|toll| toll.bound_by());
        let [p50, p99, ttft] = ok.map_or([None; 3], |toll| toll.latencies_ns);
        rows.push(vec![
            at.into(),
            if names.is_empty() { "none".into() } else { names.join(" + ").into() },
            (size as u16).into(),
            role.into(),
            // The parts that are there come before all that are not.
            (mask & (mask + 1) == 0).into(),
            missing.map(|part| apart.parts[part].name()).into(),
            apart.time(mask).into(),
            p50.into(),
            p99.into(),
            ttft.into(),
            ok.and_then(|toll| toll.usd_per_mtok_output()).into(),
            ok.and_then(|toll| toll.kv_capacity_tokens).into(),
            bound.map(|bound| bound.0).into(),
            bound.map(|bound| bound.1).into(),
            toll.as_ref().err().cloned().into(),
        ]);
    }
    rows
}

fn share_rows(at: u32, apart: &Apart<'_>) -> Vec<Vec<Cell>> {
    let all = apart.all();
    let times: Vec<Option<f64>> = (0..=all).map(|mask| apart.time(mask)).collect();
    let difference = |from: usize, to: usize| Some(times[to]? - times[from]?);
    let shares = shapley(&times, apart.parts.len());
    let whole = difference(0, all);
    let is_change = whole.zip(times[0]).is_some_and(|(whole, base)| whole.abs() > UNCHANGED * base);
    let row = |(index, part): (usize, &Part)| {
        let share = shares.as_ref().map(|shares| shares[index]);
        vec![
            at.into(),
            part.name().into(),
            (index as u16).into(),
            part.floor().1.into(),
            apart.change(*part).into(),
            difference(0, 1 << index).into(),
            difference(all & !(1 << index), all).into(),
            share.into(),
            share.zip(whole).filter(|_| is_change).map(|(share, whole)| share / whole).into(),
        ]
    };
    apart.parts.iter().enumerate().map(row).collect()
}

/// Shapley values: for each part the mean over all orders of what it adds to the parts before it. `values` are by mask.
fn shapley(values: &[Option<f64>], parts: usize) -> Option<Vec<f64>> {
    let values: Vec<f64> = values.iter().copied().collect::<Option<_>>()?;
    let factorial = |n: usize| (1..=n).map(|k| k as f64).product::<f64>();
    let share = |part: usize| {
        let without = (0..values.len()).filter(|mask| mask >> part & 1 == 0);
        let terms = without.map(|mask| {
            let before = mask.count_ones() as usize;
            let weight = factorial(before) * factorial(parts - 1 - before) / factorial(parts);
            weight * (values[mask | 1 << part] - values[mask])
        });
        terms.sum()
    };
    Some((0..parts).map(share).collect())
}

fn spec_rows(at: u32, baseline: &Scenario, tolls: &Tolls<'_>) -> Vec<Vec<Cell>> {
    let base = tolls.of(baseline).ok().and_then(Toll::ns_per_output_token);
    let row = |(resource, factor): (Resource, f64)| {
        let position = Resource::ALL.iter().position(|known| *known == resource).unwrap_or(Resource::ALL.len());
        let toll = tolls.of(&with_more(baseline, resource, factor));
        let ok = toll.as_ref().ok();
        let time = ok.and_then(|toll| toll.ns_per_output_token());
        let [p50, p99, ttft] = ok.map_or([None; 3], |toll| toll.latencies_ns);
        let bound = ok.and_then(|toll| toll.bound_by());
        vec![
            at.into(),
            resource.name().into(),
            (position as u16).into(),
            factor.into(),
            time.into(),
            base.zip(time).map(|(base, time)| base / time).into(),
            ok.and_then(|toll| toll.asked_ns_per_output_token()).into(),
            p50.into(),
            p99.into(),
            ttft.into(),
            bound.map(|bound| bound.0).into(),
            bound.map(|bound| bound.1).into(),
            toll.err().into(),
        ]
    };
    Resource::replayed().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares of three parts over all six orders, written out.
    #[test]
    fn shares_are_means_over_orders_and_sum_to_the_whole() {
        let values = [10.0, 7.0, 8.0, 4.0, 9.5, 6.0, 8.0, 3.0];
        let shares = shapley(&values.map(Some), 3).unwrap();
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let mut sums = [0.0; 3];
        for order in orders {
            let mut mask = 0;
            for part in order {
                sums[part] += values[mask | 1 << part] - values[mask];
                mask |= 1 << part;
            }
        }
        for (share, sum) in shares.iter().zip(sums) {
            assert!((share - sum / 6.0).abs() < 1e-12);
        }
        assert!((shares.iter().sum::<f64>() - (3.0 - 10.0)).abs() < 1e-12);
        let mut unknown = values.map(Some);
        unknown[5] = None;
        assert_eq!(shapley(&unknown, 3), None);
    }

    fn paid(booths_ns: [i64; 9]) -> Toll {
        Toll {
            booths_ns,
            booths_bytes: [None; 8],
            asked_ns: None,
            output_tokens: 10,
            usd: Some(9.0),
            joules: None,
            latencies_ns: [None; 3],
            kv_capacity_tokens: None,
            hit_tokens: [0, 0],
            certainty: crate::model::Certainty::Assumed,
        }
    }

    #[test]
    fn what_comes_back_elsewhere_was_moved() {
        let before = paid([1000, 1000, 0, 0, 0, 500, 0, 100, 400]);
        let (words, moved) = verdicts(&before, &paid([400, 1000, 0, 0, 0, 500, 300, 100, 700]));
        assert_eq!((words[0], words[1], words[6], words[8]), ("moved", "unchanged", "received", "added"));
        assert!((moved.unwrap() - 0.5).abs() < 1e-12);
        let (words, moved) = verdicts(&before, &paid([400, 1000, 0, 0, 0, 500, 0, 100, 1000]));
        assert_eq!((words[0], moved), ("removed", Some(0.0)));
        let (words, moved) = verdicts(&before, &paid([1000, 1000, 0, 0, 0, 900, 0, 100, 0]));
        assert_eq!((words[5], words[8], moved), ("added", "removed", None));
    }

    #[test]
    fn booths_share_money_by_time_and_sum_to_all_of_it() {
        let toll = paid([1000, 1000, 0, 0, 0, 500, 0, 100, 400]);
        let sum: f64 = (0..9).map(|booth| toll.part_of(toll.usd, booth).unwrap()).sum();
        assert!((sum - 9.0).abs() < 1e-12);
        assert_eq!(toll.part_of(toll.joules, 0), None);
        assert_eq!(toll.bound_by(), Some(("kv_read", 1000.0 / 2600.0)));
    }
}
