//! What memories below the accelerator's own would do for the workloads of a run.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use engine::cache::asset_tables;
use engine::cache::trace::Sessions;
use engine::error::Result;
use engine::fabric::Fabric;
use engine::replay::equal_cost;
use engine::replay::hierarchy::{self, Subject};
use engine::replay::{Found, Run, Scenario};
use engine::schema::Table;
use engine::schema::canonical::REQUESTS;
use engine::workload::Workload;
use rayon::prelude::*;

use crate::scenario::load_fabric;
use crate::store::Store;

/// The fabrics that are compared at equal cost: a plane against layers. Of the others no price is known, or it is the same.
const FABRICS: [&str; 2] = ["flat", "layered"];

/// What the baseline's money would do on other hierarchies and fabrics.
/// Without rows where the baseline failed.
pub(super) fn equal_cost(run: &Run<'_>) -> Result<Vec<RecordBatch>> {
    let fabrics: Vec<Fabric> = FABRICS.into_iter().map(load_fabric).collect::<Result<_>>()?;
    let mut rows = Vec::new();
    for (number, (scenario, found)) in run.scenarios.iter().zip(run.found).enumerate() {
        if let (true, Ok(found)) = (scenario.is_baseline, found) {
            let workload = &run.sources[scenario.workload].workload;
            let subject = equal_cost::Subject { number: number as u32, scenario, found, workload, fabrics: &fabrics };
            rows.push(equal_cost::table(&subject)?);
        }
    }
    Ok(rows)
}

/// Kinds and tenants of the requests.
pub(in crate::command) fn labels(
    workload: &Workload,
    requests: &[RecordBatch],
) -> Result<Vec<(&'static str, Vec<Option<String>>)>> {
    ["kind", "tenant"].into_iter().map(|name| Ok((name, asset_tables::labels(workload, requests, name)?))).collect()
}

/// Tables with their rows, as they are written.
pub(super) type Tables = Vec<(&'static Table, Vec<RecordBatch>)>;

/// The tables of all workloads of a run, in the order of their names.
pub(super) fn tables(store: &Store, run: &Run<'_>) -> Result<Tables> {
    let requests = store.read(&REQUESTS)?;
    let of = |(at, source): (usize, &engine::replay::Source)| {
        let done: Vec<(u32, &Scenario, &Found)> = run
            .scenarios
            .iter()
            .zip(run.found)
            .enumerate()
            .filter(|(_, (scenario, _))| scenario.workload == at)
            .filter_map(|(number, (scenario, found))| Some((number as u32, scenario, found.as_ref().ok()?)))
            .collect();
        if !source.steps.is_empty() {
            return Ok(Vec::new());
        }
        let sessions = Sessions::read(&source.workload, &requests)?;
        let labels = labels(&source.workload, &requests)?;
        let (workload, sessions) = (&source.workload, sessions.as_ref());
        hierarchy::tables(&Subject { workload, sessions, labels: &labels, scenarios: &done })
    };
    let found: Result<Vec<_>> = run.sources.par_iter().enumerate().map(of).collect();
    let mut all: BTreeMap<&str, (&'static Table, Vec<RecordBatch>)> = BTreeMap::new();
    for (table, batch) in found?.into_iter().flatten() {
        all.entry(table.name).or_insert((table, Vec::new())).1.push(batch);
    }
    Ok(all.into_values().collect())
}
