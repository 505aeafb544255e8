//! The `scenarios` table: what was asked of each replay, and in a few words what came of it.

use arrow::array::RecordBatch;

use super::tables::Run;
use super::{Found, Mode, Scenario, Toll};
use crate::error::Result;
use crate::model::Certainty;
use crate::schema::result::SCENARIOS;
use crate::schema::{Cell, batch_of_rows};
use crate::serving::Traffic;

/// Rows of all scenarios; `demand_ids` has a number for each that succeeded.
pub(super) fn scenarios(run: &Run<'_>, demand_ids: &[u32], tolls: &[Result<Toll>]) -> Result<RecordBatch> {
    let mut demands = demand_ids.iter();
    let mut rows = Vec::with_capacity(run.scenarios.len());
    for (at, (scenario, found)) in run.scenarios.iter().zip(run.found).enumerate() {
        let mut row = vec![(at as u32).into(), run.id.into()];
        row.extend(asked(run, scenario));
        row.extend(outcome(run, scenario, found));
        row.extend(settings(scenario));
        row.push(found.as_ref().ok().and_then(|_| demands.next().copied()).into());
        let bound = tolls[at].as_ref().ok().and_then(Toll::bound_by);
        row.extend([bound.map(|(booth, _)| booth).into(), bound.map(|(_, ratio)| ratio).into()]);
        rows.push(row);
    }
    batch_of_rows(&SCENARIOS, &rows)
}

/// What is replayed on what.
fn asked(run: &Run<'_>, scenario: &Scenario) -> Vec<Cell> {
    vec![
        scenario.name.clone().into(),
        scenario.is_baseline.into(),
        run.sources[scenario.workload].workload.name.clone().into(),
        scenario.model.name.clone().into(),
        scenario.policy.name().into(),
        scenario.machine.name.clone().into(),
        scenario.mode.name().into(),
        scenario.rules.name.into(),
        scenario.rate.into(),
        scenario.accelerators().into(),
        scenario.parallel.tensor.into(),
        scenario.instances().into(),
        scenario.dtype.name().into(),
        scenario.prices.name.clone().into(),
        scenario.tariff.as_ref().map(|tariff| tariff.name.clone()).into(),
    ]
}

/// What came of it, as far as a word or a number tells.
fn outcome(run: &Run<'_>, scenario: &Scenario, found: &Result<Found>) -> Vec<Cell> {
    let ok = found.as_ref().ok();
    let workload = &run.sources[scenario.workload].workload;
    let longest = workload.contexts().max();
    let beyond = scenario.model.context_tokens.map(|limit| workload.beyond(limit));
    vec![
        (if ok.is_some() { "ok" } else { "failed" }).into(),
        found.as_ref().err().map(ToString::to_string).into(),
        ok.and_then(|found| found.offered_load).into(),
        ok.map_or(Certainty::Assumed, |found| found.plan.certainty).name().into(),
        some_or_nothing(&scenario.policy.may_lose()).into(),
        scenario.model.context_tokens.into(),
        longest.into(),
        beyond.map(|count| count as u64).into(),
    ]
}

/// How the engine is set up.
fn settings(scenario: &Scenario) -> Vec<Cell> {
    let (rules, parallel, prefill) = (&scenario.rules, scenario.parallel, scenario.prefill.as_ref());
    let concurrency = match scenario.mode {
        Mode::Live(Traffic::Closed { concurrency }) => Some(concurrency),
        Mode::Captured | Mode::Live(Traffic::Open | Traffic::Session) => None,
    };
    vec![
        parallel.data.into(),
        parallel.expert.into(),
        parallel.pipeline.into(),
        prefill.map(|prefill| prefill.machine.name.clone()).into(),
        prefill.map(|prefill| prefill.parallel.instances).into(),
        prefill.map(|prefill| prefill.link.clone()).into(),
        scenario.placement.clone().into(),
        scenario.speculative.map(|ahead| ahead.drafted).into(),
        scenario.speculative.map(|ahead| ahead.accept).into(),
        scenario.routing.name().into(),
        concurrency.into(),
        rules.step_tokens.into(),
        rules.running_requests.into(),
        rules.look_steps.into(),
        rules.prefix_cache.into(),
        scenario.kv_blocks.into(),
    ]
}

/// Words joined by commas, or `nothing`.
fn some_or_nothing(words: &[&str]) -> String {
    if words.is_empty() { "nothing".to_owned() } else { words.join(",") }
}
