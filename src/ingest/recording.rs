//! Recordings of attention over the KV cache, `kvtoll.recording.v1`: a directory with `recording.json` and Parquet tables.
//!
//! ```text
//! recording.json   {"schema": "kvtoll.recording.v1", "model": ..., "layers": 30, "query_heads": 9, "kv_heads": 3,
//!                   "head_dim": 64, "block_tokens": 16, "grade": "blocks", ...}
//! requests.parquet, and any of context_segments, steps, attention, prefill_scores, kv_stats, queries, kv_vectors
//! ```
//!
//! The tables are those of the schema; `source_id` and `status` may be missing. Columns are found by name, types are cast
//! where nothing is lost, unknown columns are kept behind the others. A column that is always known and is missing or
//! holds a null fails the whole recording. Rows are checked against `recording.json` and `requests`: a row that breaks a
//! rule is a bad row with its table, its number and its column.
//!
//! Request ids are local to a recording. They may be any numbers; the store numbers them in the order of the rows of
//! `requests`. A `parent_request_id` names an earlier row.

mod cast;
mod check;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{FieldRef, Schema, UInt64Type};
use engine::error::{Error, Result};
use engine::schema::{Cell, Table, batch_of_rows, canonical};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use self::check::{Fault, Request};
use super::parquet_input;
use super::problem::Problem;
use super::sink::{Event, Severity, Sink};
use super::source::{Body, Input, hash_of, regular};
use super::{Format, Head, Settings, Sniff};
use crate::store::hex;

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "recording",
    doc: "attention recorded from a model, kvtoll.recording.v1, as a directory",
    spec: "ARCHITECTURE.md, recordings",
    verified: true,
    sniff,
    read,
};

/// The form that is read.
const SCHEMA: &str = "kvtoll.recording.v1";

/// The tables of a recording; `requests` comes first, since the others refer to it.
static TABLES: [&Table; 8] = [
    &canonical::REQUESTS,
    &canonical::CONTEXT_SEGMENTS,
    &canonical::STEPS,
    &canonical::ATTENTION,
    &canonical::PREFILL_SCORES,
    &canonical::KV_STATS,
    &canonical::QUERIES,
    &canonical::KV_VECTORS,
];

const UNKNOWN_COLUMN: Event = Event { severity: Severity::Info, code: "unknown_column", advice: Some("kept as it is") };
const UNKNOWN_KEY: Event = Event { severity: Severity::Info, code: "unknown_key", advice: Some("not stored") };
const UNKNOWN_FILE: Event = Event { severity: Severity::DataLoss, code: "unknown_file", advice: Some("not read") };
const NO_OUTPUT: Event = Event { severity: Severity::Info, code: "no_output", advice: None };

/// What `recording.json` says.
#[derive(Debug, Deserialize)]
pub(super) struct Description {
    pub(super) schema: String,
    pub(super) model: String,
    pub(super) layers: u32,
    pub(super) query_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) block_tokens: u32,
    pub(super) grade: String,
    pub(super) weights: Option<String>,
    pub(super) device: Option<String>,
    #[serde(alias = "licence")]
    pub(super) model_licence: Option<String>,
    #[serde(flatten)]
    pub(super) other: BTreeMap<String, serde_json::Value>,
}

/// The directory of a recording: the path itself, or the parent of the `recording.json` that it names.
pub(super) fn directory_of(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let names = path.file_name()? == "recording.json" && path.is_file();
    names.then(|| path.parent().unwrap_or(Path::new("")).to_owned())
}

/// The bytes of `recording.json`.
pub(super) fn head(directory: &Path) -> Result<Vec<u8>> {
    let path = directory.join("recording.json");
    if path.exists() {
        regular(&path)?;
    }
    fs::read(&path).map_err(|error| {
        Error::data(format!("expected a recording in `{}`, found no `recording.json`: {error}", directory.display()))
            .hint("name files, or the directory of one recording")
    })
}

/// SHA-256 over `recording.json` and the hashes of the tables in the order of their names; the bytes of all.
pub(super) fn fingerprint(directory: &Path) -> Result<(String, u64)> {
    let mut digest = Sha256::new();
    let description = head(directory)?;
    digest.update(&description);
    let mut bytes = description.len() as u64;
    let mut names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
    names.sort_unstable();
    for name in names {
        let path = directory.join(format!("{name}.parquet"));
        let Ok(metadata) = fs::metadata(&path) else { continue };
        let hash = hash_of(&path).ok_or_else(|| Error::data(format!("cannot read `{}`", path.display())))?;
        digest.update(format!("{name}\n{hash}\n"));
        bytes += metadata.len();
    }
    Ok((hex(&digest.finalize()), bytes))
}

fn sniff(head: &Head<'_>) -> Sniff {
    let named = head.bytes.windows(SCHEMA.len()).any(|window| window == SCHEMA.as_bytes());
    match (head.directory, named) {
        (true, true) => Sniff::Yes,
        (true, false) => Sniff::Nearly(format!("`recording.json` does not name the schema `{SCHEMA}`")),
        (false, true) => Sniff::Nearly("a recording is read from its directory, or by its `recording.json`".to_owned()),
        (false, false) => Sniff::No,
    }
}

/// What the tables of a recording are read with.
pub(super) struct Context {
    pub(super) description: Description,
    /// By local id.
    requests: BTreeMap<u64, Request>,
    /// The rows so far.
    seen: check::Seen,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Body::Directory(directory) = &input.body else {
        return Err(Error::data(format!("expected the directory of a recording, found the file `{}`", input.path)));
    };
    input.options.without_blocks("recording")?;
    input.options.with_unit("recording", None, "its columns name their units")?;
    let description = describe(directory, sink)?;
    let mut context = Context::new(description);
    log_files(directory, sink)?;
    context.describe(sink)?;
    for table in TABLES {
        let path = directory.join(format!("{}.parquet", table.name));
        if path.exists() {
            read_table(&mut context, table, &path, sink)?;
        } else if table.name == "requests" {
            return Err(Error::data(format!("expected `requests.parquet` in `{}`, found none", directory.display())));
        }
    }
    Ok(Settings {
        time_unit: Some("ns"),
        clock: Some("trace_start"),
        block_tokens: Some(context.description.block_tokens),
        rounding: Some("ceil"),
        ..Settings::default()
    })
}

impl Description {
    /// Whether the numbers can describe a model, and what is wrong.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        if !["blocks", "tokens", "vectors"].contains(&self.grade.as_str()) {
            return Err(format!("expected the grade blocks, tokens or vectors, found `{}`", self.grade));
        }
        for (name, value) in [
            ("layers", self.layers),
            ("query_heads", self.query_heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("block_tokens", self.block_tokens),
        ] {
            if value == 0 || value > u32::from(u16::MAX) {
                return Err(format!("expected `{name}` from 1 to 65535, found {value}"));
            }
        }
        if !self.query_heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "expected `query_heads` as a multiple of `kv_heads`, found {} and {}",
                self.query_heads, self.kv_heads
            ));
        }
        if self.grade != "blocks" && self.block_tokens != 1 {
            return Err(format!("expected `block_tokens` 1 in grade {}, found {}", self.grade, self.block_tokens));
        }
        Ok(())
    }
}

fn describe(directory: &Path, sink: &mut Sink<'_>) -> Result<Description> {
    let path = directory.join("recording.json");
    let wrong = |why: String| Error::data(format!("`{}` does not describe a recording: {why}", path.display()));
    let found: Description = serde_json::from_slice(&head(directory)?).map_err(|error| wrong(error.to_string()))?;
    if found.schema != SCHEMA {
        return Err(wrong(format!("expected the schema `{SCHEMA}`, found `{}`", found.schema)));
    }
    found.check().map_err(wrong)?;
    for key in found.other.keys() {
        sink.log(UNKNOWN_KEY, &format!("the key `{key}` of `recording.json` has no column"), None, None);
    }
    Ok(found)
}

/// Logs Parquet files that are no table of a recording.
fn log_files(directory: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let entries = fs::read_dir(directory);
    let entries = entries.map_err(|error| Error::data(format!("cannot list `{}`: {error}", directory.display())))?;
    let names =
        entries.filter_map(std::result::Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".parquet")).collect();
    names.sort_unstable();
    for name in names {
        if !TABLES.iter().any(|table| name == format!("{}.parquet", table.name)) {
            sink.log(UNKNOWN_FILE, &format!("`{name}` is no table of a recording"), None, None);
        }
    }
    Ok(())
}

fn recordings_row(description: &Description, source_id: u32) -> Result<RecordBatch> {
    let row: Vec<Cell> = vec![
        source_id.into(),
        description.model.as_str().into(),
        description.layers.into(),
        description.query_heads.into(),
        description.kv_heads.into(),
        description.head_dim.into(),
        description.block_tokens.into(),
        description.grade.as_str().into(),
        description.weights.clone().into(),
        description.device.clone().into(),
        description.model_licence.clone().into(),
    ];
    batch_of_rows(&canonical::RECORDINGS, &[row])
}

fn read_table(context: &mut Context, table: &'static Table, path: &Path, sink: &mut Sink<'_>) -> Result<()> {
    let builder = parquet_input::open(path)?;
    if let Some(name) = cast::missing(table, builder.schema()).next() {
        return Err(Error::data(format!(
            "column `{name}` of table `{}` is missing in `{}`",
            table.name,
            path.display()
        )));
    }
    for field in builder.schema().fields() {
        if table.column(field.name()).is_none() {
            let message = format!("the column `{}` of `{}` is not in the schema", field.name(), table.name);
            sink.log(UNKNOWN_COLUMN, &message, None, None);
        }
    }
    parquet_input::each(path, builder, &mut |batch, first_row| {
        let batch = with_supplied(table, &batch, sink)?;
        let batch = cast::to_table(table, &batch, context.description.head_dim, path, first_row)?;
        context.take(table, &batch, path, first_row, sink)
    })
}

/// The batch with the columns that a recorder may leave out.
fn with_supplied(table: &'static Table, batch: &RecordBatch, sink: &mut Sink<'_>) -> Result<RecordBatch> {
    if table.name != canonical::REQUESTS.name {
        return Ok(batch.clone());
    }
    let wanted = table.arrow();
    let mut fields: Vec<FieldRef> = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        // A source id within a recording means nothing here.
        if field.name() != "source_id" {
            fields.push(field.clone());
            columns.push(column.clone());
        }
    }
    fields.push(Arc::new(wanted.field_with_name("source_id")?.clone()));
    columns.push(Arc::new(UInt32Array::from_value(sink.source_id(), batch.num_rows())));
    if batch.column_by_name("status").is_none() {
        let output = batch.column_by_name("output_tokens");
        let output =
            output.map(|column| arrow::compute::cast(column, &arrow::datatypes::DataType::UInt64)).transpose()?;
        let output = output.as_ref().and_then(|column| column.as_primitive_opt::<UInt64Type>());
        let none = |row: usize| output.is_some_and(|tokens| tokens.is_valid(row) && tokens.value(row) == 0);
        let status = (0..batch.num_rows()).map(|row| if none(row) { "no_output" } else { "ok" });
        fields.push(Arc::new(wanted.field_with_name("status")?.clone()));
        columns.push(Arc::new(StringArray::from_iter_values(status)));
        for row in (0..batch.num_rows()).filter(|row| none(*row)) {
            let message = "a request without output tokens was kept with the status `no_output`";
            sink.log(NO_OUTPUT, message, Some(row as u64 + 1), None);
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

impl Context {
    /// A recording of this description, without requests.
    pub(super) fn new(description: Description) -> Self {
        Self { description, requests: BTreeMap::new(), seen: check::Seen::default() }
    }

    /// The row of `recordings`.
    pub(super) fn describe(&self, sink: &mut Sink<'_>) -> Result<()> {
        sink.push(&canonical::RECORDINGS, recordings_row(&self.description, sink.source_id())?)
    }

    /// Takes rows of a table that are in its types: the good ones go on, the others are set aside. `requests` comes first.
    pub(super) fn take(
        &mut self,
        table: &'static Table,
        batch: &RecordBatch,
        path: &Path,
        first_row: u64,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        sink.found(batch.num_rows() as u64);
        let good = self.checked(table, batch, path, first_row, sink)?;
        sink.push(table, with_source_ids(self, &good)?)
    }

    /// The good rows of a batch; the others are set aside. Learns the requests.
    fn checked(
        &mut self,
        table: &'static Table,
        batch: &RecordBatch,
        path: &Path,
        first_row: u64,
        sink: &mut Sink<'_>,
    ) -> Result<RecordBatch> {
        let faults = if table.name == canonical::REQUESTS.name {
            check::requests(batch, &mut self.requests)?
        } else {
            let Description { layers, query_heads, kv_heads, block_tokens, .. } = self.description;
            let shape = check::Shape { layers, query_heads, kv_heads, block_tokens };
            let mut faults = check::rows(table, batch, &shape, &self.requests)?;
            self.seen.note(table, batch, &shape, &self.requests, &mut faults)?;
            faults
        };
        for (row, fault) in faults.iter().enumerate() {
            if let Some(fault) = fault {
                sink.reject(problem(table, batch, path, first_row + row as u64, row, fault))?;
            }
        }
        if faults.iter().all(Option::is_none) {
            return Ok(batch.clone());
        }
        let good: BooleanArray = faults.iter().map(|fault| Some(fault.is_none())).collect();
        Ok(filter_record_batch(batch, &good)?)
    }
}

fn problem(table: &Table, batch: &RecordBatch, path: &Path, number: u64, row: usize, fault: &Fault) -> Problem {
    let column = table.columns.iter().position(|column| column.name == fault.column).map_or(0, |at| at as u64 + 1);
    // Lists are long; the numbers before them say which row it is.
    let raw = format!("{} row {number}: {}", table.name, parquet_input::raw(batch, row));
    let place = format!("{}: row {number}, column `{}`", path.display(), fault.column);
    Problem {
        line: number,
        column,
        byte_offset: 0,
        code: fault.code,
        shown: format!("{place}: expected {}, found {}\n  {raw}", fault.expected, fault.found),
        expected: format!("`{}`: {}", fault.column, fault.expected),
        found: fault.found.clone(),
        raw,
    }
}

/// The batch with request ids that count from 0 within the source.
fn with_source_ids(context: &Context, batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = batch.schema();
    let mut columns = batch.columns().to_vec();
    for name in ["request_id", "parent_request_id"] {
        let Ok(at) = schema.index_of(name) else { continue };
        let Some(ids) = columns[at].as_primitive_opt::<UInt64Type>() else { continue };
        let mut latest: Option<(u64, u64)> = None;
        let moved: UInt64Array = ids
            .iter()
            .map(|id| {
                let id = id?;
                // Rows of one request stand together.
                if latest.is_none_or(|(known, _)| known != id) {
                    latest = Some((id, context.requests.get(&id)?.number));
                }
                latest.map(|(_, number)| number)
            })
            .collect();
        columns[at] = Arc::new(moved);
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}
