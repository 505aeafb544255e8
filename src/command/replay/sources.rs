//! The sources of a store as a replay takes them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{UInt32Type, UInt64Type};
use engine::error::{Error, Result, unknown};
use engine::replay::Source;
use engine::schema::canonical::{CONTEXT_SEGMENTS, REQUESTS, SOURCES, STEPS};
use engine::serving::CapturedStep;
use engine::session::{self, Trace};
use engine::workload::{Pause, ThinkTime, Times, Workload, from_requests, from_requests_by};

use crate::command::talk;
use crate::store::Store;

/// A source of the store.
pub(in crate::command) struct Available {
    pub(in crate::command) id: u32,
    pub(in crate::command) path: String,
    pub(in crate::command) format: String,
}

pub(in crate::command) fn available(store: &Store) -> Result<Vec<Available>> {
    let mut found = Vec::new();
    for batch in store.read(&SOURCES)? {
        let ids = column(&batch, "source_id")?.as_primitive::<UInt32Type>().clone();
        let (paths, formats) =
            (column(&batch, "path")?.as_string::<i32>(), column(&batch, "format")?.as_string::<i32>());
        found.extend((0..batch.num_rows()).map(|row| Available {
            id: ids.value(row),
            path: paths.value(row).to_owned(),
            format: formats.value(row).to_owned(),
        }));
    }
    Ok(found)
}

/// Only those that have requests: a store may hold captures and measured operations beside its traces.
pub(in crate::command) fn with_requests(store: &Store, available: Vec<Available>) -> Result<Vec<Available>> {
    if available.len() < 2 {
        return Ok(available);
    }
    let mut known = BTreeSet::new();
    for batch in store.read(&REQUESTS)? {
        known.extend(column(&batch, "source_id")?.as_primitive::<UInt32Type>().values().iter().copied());
    }
    Ok(available.into_iter().filter(|source| known.contains(&source.id)).collect())
}

/// The source of this name; without a name the only one that suits the mode.
pub(in crate::command) fn choose<'a>(
    available: &'a [Available],
    name: Option<&str>,
    captured: bool,
) -> Result<&'a Available> {
    let file = |source: &Available| Path::new(&source.path).file_name().map(|name| name.to_string_lossy().into_owned());
    let suits = |source: &&Available| match name {
        Some(name) => {
            source.format == name
                || source.path == name
                || file(source).as_deref() == Some(name)
                || source.id.to_string() == name
        }
        None => (source.format == "recording") == captured,
    };
    let fitting: Vec<&Available> = available.iter().filter(suits).collect();
    let listed: Vec<String> = fitting.iter().map(|source| format!("{} ({})", source.id, source.path)).collect();
    match (fitting.as_slice(), name) {
        ([one], _) => Ok(one),
        ([], Some(name)) => Err(unknown("workload", name, available.iter().map(|source| source.format.as_str()))),
        ([], None) if captured => Err(Error::run("the store has no recording, whose steps captured mode replays")
            .hint("ingest a recording, or replay arrivals with `--mode open`")),
        ([], None) => Err(Error::run("the store has no requests to replay")
            .hint("ingest a trace first: `kvtoll ingest FILE --into STORE`")),
        (_, _) => {
            Err(Error::usage(format!("expected one source to replay, found {}: {}", listed.len(), listed.join(", ")))
                .hint(format!("choose one: `--workload {}`", fitting[0].id)))
        }
    }
}

pub(in crate::command) fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let found = batch.column_by_name(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::data(format!("the store's table has no column `{name}`")))
}

/// The rows of a batch whose `u64` column `name` satisfies the test.
fn rows_where(
    batches: Vec<RecordBatch>,
    keep: &dyn Fn(&RecordBatch) -> Result<BooleanArray>,
) -> Result<Vec<RecordBatch>> {
    batches.into_iter().map(|batch| Ok(filter_record_batch(&batch, &keep(&batch)?)?)).collect()
}

/// What a mode asks of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::command) enum Load {
    /// Its own steps.
    Captured,
    /// Its requests, and so much of when they come.
    Requests(Times),
}

impl Load {
    /// What the mode of this name asks for; `think` is for `session`.
    pub(in crate::command) fn of(mode: Option<&str>, think: ThinkTime) -> Self {
        match mode {
            Some("captured") => Self::Captured,
            Some("closed") => Self::Requests(Times::Order),
            Some("session") => Self::Requests(Times::Sessions(think)),
            _ => Self::Requests(Times::Arrivals),
        }
    }
}

/// Loads a source's requests; in captured mode also its steps, and then arrivals are not needed.
pub(in crate::command) fn load(store: &Store, source: &Available, way: Load) -> Result<Source> {
    let requests = rows_where(store.read(&REQUESTS)?, &|batch| {
        let ids = column(batch, "source_id")?.as_primitive::<UInt32Type>();
        Ok(ids.iter().map(|id| id.map(|id| id == source.id)).collect())
    })?;
    let file = Path::new(&source.path).file_name().map_or(source.path.as_str().into(), |name| name.to_string_lossy());
    let name = format!("{file} (source {})", source.id);
    let (workload, steps, trace) = match way {
        Load::Captured => {
            let workload = from_requests(&name, &timeless(requests)?)?;
            let steps = captured_steps(store, &workload)?;
            (workload, steps, None)
        }
        Load::Requests(times) => {
            let workload = from_requests_by(&name, &requests, times)?;
            let trace = turns(store, &workload, &requests)?;
            (workload, Vec::new(), Some(trace))
        }
    };
    Ok(Source { workload, steps, trace, edited: None })
}

/// Says where the pauses between turns come from, if turns wait for each other.
pub(in crate::command) fn tell_pauses(workload: &Workload) {
    let counts = workload.turns.counts();
    let told: Vec<String> = counts
        .iter()
        .filter_map(|(pause, count)| {
            let what = match pause {
                Pause::First | Pause::AtOnce => return None,
                Pause::Overlap => "begin anew, since they came before the turn before had ended",
                Pause::Recorded => "after their recorded pause",
                Pause::Measured => "after the time from the recorded end of the turn before",
                Pause::FromStart => "after the recorded time from start to start, or the end of the turn before",
                Pause::Chosen => "after the given think time",
            };
            Some(format!("{count} {what}"))
        })
        .collect();
    if !told.is_empty() {
        talk::note(&format!("turns of `{}` come: {}", workload.name, told.join("; ")));
    }
}

/// The requests as turns of sessions, with what their contexts are made of.
fn turns(store: &Store, workload: &Workload, requests: &[RecordBatch]) -> Result<Trace> {
    let own: HashSet<u64> = workload.request_ids.iter().copied().collect();
    let segments = rows_where(store.read(&CONTEXT_SEGMENTS)?, &|batch| {
        let ids = column(batch, "request_id")?.as_primitive::<UInt64Type>();
        Ok(ids.iter().map(|id| id.map(|id| own.contains(&id))).collect())
    })?;
    session::read(workload, requests, &segments)
}

/// Captured steps have their own order, so arrivals, where there are any, do not matter.
fn timeless(batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let zeros = |batch: RecordBatch| {
        let (schema, mut columns, rows) = (batch.schema(), batch.columns().to_vec(), batch.num_rows());
        if let Some((index, _)) = schema.column_with_name("arrival_ns") {
            columns[index] = Arc::new(Int64Array::from(vec![0; rows]));
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    };
    batches.into_iter().map(zeros).collect()
}

fn captured_steps(store: &Store, workload: &Workload) -> Result<Vec<CapturedStep>> {
    let index: BTreeMap<u64, u32> = workload.request_ids.iter().copied().zip(0..).collect();
    let mut steps = Vec::new();
    let mut places = Vec::new();
    for batch in store.read(&STEPS)? {
        let requests = column(&batch, "request_id")?.as_primitive::<UInt64Type>();
        let engine_steps = column(&batch, "engine_step")?.as_primitive::<UInt64Type>();
        let instances = column(&batch, "instance")?.as_primitive::<UInt32Type>();
        let phases = column(&batch, "phase")?.as_string::<i32>();
        let contexts = column(&batch, "context_tokens")?.as_primitive::<UInt32Type>();
        let new = column(&batch, "new_tokens")?.as_primitive::<UInt32Type>();
        for row in 0..batch.num_rows() {
            let Some(&request) = index.get(&requests.value(row)) else { continue };
            // Steps of one engine step must stand together; those that name none stay where they are.
            places.push((
                instances.is_valid(row).then(|| instances.value(row)),
                engine_steps.is_valid(row).then(|| engine_steps.value(row)),
            ));
            steps.push(CapturedStep {
                request,
                engine_step: engine_steps.is_valid(row).then(|| engine_steps.value(row)),
                is_prefill: phases.value(row) == "prefill",
                prompt: workload.prompt[request as usize],
                context: contexts.value(row),
                new_tokens: new.value(row),
            });
        }
    }
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|&at| places[at]);
    Ok(order.into_iter().map(|at| steps[at]).collect())
}
