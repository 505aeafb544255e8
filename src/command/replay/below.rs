//! What memories below the accelerator's own would do for the workloads of a run.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use engine::cache::asset_tables;
use engine::cache::trace::Sessions;
use engine::error::Result;
use engine::replay::hierarchy::{self, Subject};
use engine::replay::{Found, Run, Scenario};
use engine::schema::Table;
use engine::schema::canonical::REQUESTS;
use engine::workload::Workload;
use rayon::prelude::*;

use crate::store::Store;

/// Kinds and tenants of the requests.
pub(in crate::command) fn labels(
    workload: &Workload,
    requests: &[RecordBatch],
) -> Result<Vec<(&'static str, Vec<Option<String>>)>> {
    ["kind", "tenant"].into_iter().map(|name| Ok((name, asset_tables::labels(workload, requests, name)?))).collect()
}

/// The tables of all workloads of a run, in the order of their names.
pub(super) fn tables(store: &Store, run: &Run<'_>) -> Result<Vec<(&'static Table, Vec<RecordBatch>)>> {
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
