//! Recordings as arrays: a small TOML map says which arrays of `npz` and `safetensors` files are which columns.
//!
//! For whoever dumps tensors from a model and does not write `kvtoll.recording.v1`. The map is what is ingested; the files
//! stand beside it:
//!
//! ```toml
//! schema = "kvtoll.arrays.v1"
//!
//! [recording]                      # as in recording.json
//! model = "SmolLM2-135M-Instruct"
//! layers = 30
//! query_heads = 9
//! kv_heads = 3
//! head_dim = 64
//! grade = "vectors"                # blocks, tokens or vectors
//! block_tokens = 1                 # 1 if left out; also weights, device and licence
//!
//! [[requests]]                     # numbered from 0
//! source_key = "novel"             # may be left out
//! prompt_tokens = 256
//! output_tokens = 0                # 0 if left out
//!
//! [[arrays]]
//! table = "kv_vectors"
//! file = "vectors.npz"             # relative to the map, below its folder
//! request = 0                      # 0 if left out
//! axes = ["layer", "kv_head", "token", "values"]
//! columns = { k = "k", v = "v" }   # column = array
//! index = { layer = [0, 1, 14] }   # what an axis counts; or the name of an array of the file
//! ```
//!
//! ```text
//! table            axes                                 columns
//! attention        step, layer, kv_head, values         mass, mass_max, page_bound; without values: sum_sq, out_norm, q_norm
//! prefill_scores   layer, kv_head, values               score; fixed: channel, and rows if known
//! kv_stats         layer, kv_head, values               k_norm, v_norm, k_cos_next_layer, v_cos_next_layer
//! queries          step, layer, query_head, values      q
//! kv_vectors       layer, kv_head, token, values        k, v
//! ```
//!
//! `axes` names the axes of the arrays in their order. `values` is the last one: what a row's list or vector runs over. The
//! others may stand in any order; one that the arrays do not have is given by `fixed = { step = 1 }`. An axis counts from
//! 0, steps from 1, unless `index` lists what it counts. The context of a step is the prompt and the steps so far, as in a
//! recording, so that masses of several steps can share a rectangular array: lists are cut at a step's context, beyond which
//! masses must be 0. Floats of 16, 32 and 64 bits and whole numbers are read, as single precision.
//!
//! Rows are checked as those of a recording; a row that breaks a rule is set aside with its file and number. Refused as a
//! whole: arrays whose shapes do not fit the axes, Fortran order, Python objects (only pickle restores them), archives
//! whose sizes contradict their shapes or that unpack to more than 1,000 times their size, encrypted or damaged ones,
//! files outside of the map's folder, and keys that are not named here.
//!
//! The hash of the source is that of the map and of the files that it names; these stand in `sources.companions` and, with
//! their hashes, in `import_log`. They must be regular files below the map's folder; a link may not lead out of it.

mod file;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use engine::error::{Error, Result};
use engine::schema::{Table, Type, canonical, list_f32};
use serde::Deserialize;

use self::file::{Array, Format as Numbers};
use super::recording::{Context, Description};
use super::rows;
use super::sink::{Event, Severity, Sink};
use super::source::Input;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "arrays",
    doc: "a recording as arrays in npz and safetensors files, named in a TOML map, kvtoll.arrays.v1",
    spec: "ARCHITECTURE.md, recordings as arrays",
    verified: true,
    sniff,
    read,
};

/// The form that is read.
const SCHEMA: &str = "kvtoll.arrays.v1";

/// The most bytes of a map, and the most rows of a batch and about its most bytes.
const MAP_BYTES: usize = 1 << 20;
const BATCH_ROWS: u64 = 16 << 10;
const BATCH_BYTES: u64 = 8 << 20;

/// The most values of one row, and the most places of an axis: sixteen million tokens.
const ROW_VALUES: u64 = 16 << 20;
const AXIS: u64 = 16 << 20;

const ARRAY_FILE: Event = Event { severity: Severity::Info, code: "array_file", advice: None };
const ROUNDED: Event = Event { severity: Severity::Notice, code: "rounded", advice: None };

/// A table that arrays can fill: its axes before `values`, and its columns.
struct Target {
    table: &'static Table,
    axes: &'static [&'static str],
    /// Columns of values, and whether they must be there.
    columns: &'static [(&'static str, bool)],
}

static TARGETS: [Target; 5] = [
    Target {
        table: &canonical::ATTENTION,
        axes: &["step", "layer", "kv_head"],
        columns: &[
            ("mass", true),
            ("mass_max", false),
            ("page_bound", false),
            ("sum_sq", false),
            ("out_norm", false),
            ("q_norm", false),
        ],
    },
    Target { table: &canonical::PREFILL_SCORES, axes: &["layer", "kv_head"], columns: &[("score", true)] },
    Target {
        table: &canonical::KV_STATS,
        axes: &["layer", "kv_head"],
        columns: &[("k_norm", true), ("v_norm", true), ("k_cos_next_layer", false), ("v_cos_next_layer", false)],
    },
    Target { table: &canonical::QUERIES, axes: &["step", "layer", "query_head"], columns: &[("q", true)] },
    Target {
        table: &canonical::KV_VECTORS,
        axes: &["layer", "kv_head", "token"],
        columns: &[("k", true), ("v", true)],
    },
];

/// The map.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Map {
    schema: String,
    recording: Recording,
    requests: Vec<OneRequest>,
    #[serde(default)]
    arrays: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    model: String,
    layers: u32,
    query_heads: u32,
    kv_heads: u32,
    head_dim: u32,
    grade: String,
    block_tokens: Option<u32>,
    weights: Option<String>,
    device: Option<String>,
    licence: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneRequest {
    source_key: Option<String>,
    prompt_tokens: u32,
    #[serde(default)]
    output_tokens: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    table: String,
    file: String,
    #[serde(default)]
    request: u32,
    axes: Vec<String>,
    columns: BTreeMap<String, String>,
    #[serde(default)]
    index: BTreeMap<String, Index>,
    #[serde(default)]
    fixed: Fixed,
}

/// What an axis counts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Index {
    Listed(Vec<u32>),
    Array(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixed {
    step: Option<u32>,
    layer: Option<u32>,
    kv_head: Option<u32>,
    query_head: Option<u32>,
    token: Option<u32>,
    channel: Option<String>,
    rows: Option<u32>,
}

impl Fixed {
    fn axis(&self, name: &str) -> Option<u32> {
        match name {
            "step" => self.step,
            "layer" => self.layer,
            "kv_head" => self.kv_head,
            "query_head" => self.query_head,
            "token" => self.token,
            _ => None,
        }
    }
}

fn sniff(head: &Head<'_>) -> Sniff {
    let text = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes).trim_ascii_start();
    let named = text.windows(SCHEMA.len()).any(|window| window == SCHEMA.as_bytes());
    if head.directory || head.binary.is_some() || matches!(text.first(), Some(b'{' | b'[')) || !named {
        return Sniff::No;
    }
    let line = format!("schema = \"{SCHEMA}\"");
    if text.windows(line.len()).any(|window| window == line.as_bytes()) {
        Sniff::Yes
    } else {
        Sniff::Nearly(format!("it names the schema, but not as `{line}`"))
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_choice("arrays", "the map says them")?;
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(lines, MAP_BYTES as u64 + 1), &mut text)
        .map_err(|error| Error::data(format!("cannot read `{path}`: {error}")))?;
    let map = parse(path, &text)?;
    let folder = Path::new(*path).parent().map(Path::to_owned).unwrap_or_default();
    let description = described(&map.recording);
    description.check().map_err(|why| Error::data(format!("`{path}` does not describe a recording: {why}")))?;
    let block_tokens = Some(description.block_tokens);
    let mut context = Context::new(description);
    context.describe(sink)?;
    let requests = requests(&map.requests, sink.source_id())?;
    context.take(&canonical::REQUESTS, &requests, Path::new(*path), 1, sink)?;
    log_files(&folder, &map.arrays, sink)?;
    for (at, entry) in map.arrays.iter().enumerate() {
        let named = |error: Error| {
            let advice = error.advice().map(str::to_owned);
            let told = Error::data(format!("`{path}`, arrays {} (`{}`): {error}", at + 1, entry.table));
            advice.map_or(told.clone(), |advice| told.hint(advice))
        };
        let plan = Plan::of(entry, &map, &folder).map_err(named)?;
        plan.push(&mut context, sink)?;
    }
    Ok(Settings { block_tokens, rounding: Some("ceil"), ..Settings::default() })
}

fn parse(path: &str, text: &[u8]) -> Result<Map> {
    if text.len() > MAP_BYTES {
        return Err(Error::data(format!(
            "expected a map of at most {MAP_BYTES} bytes in `{path}`, found a longer one"
        )));
    }
    let text = std::str::from_utf8(text)
        .map_err(|_| Error::data(format!("expected a map in UTF-8 in `{path}`, found other bytes")))?;
    let map: Map = toml::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
        let line = error.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.split('\n').count());
        Error::data(format!("{path}:{line}: {}", error.message().trim_end()))
    })?;
    if map.schema != SCHEMA {
        return Err(Error::data(format!("expected the schema `{SCHEMA}` in `{path}`, found `{}`", map.schema)));
    }
    if map.requests.is_empty() {
        return Err(Error::data(format!("expected at least one of `[[requests]]` in `{path}`, found none")));
    }
    Ok(map)
}

fn described(recording: &Recording) -> Description {
    Description {
        schema: SCHEMA.to_owned(),
        model: recording.model.clone(),
        layers: recording.layers,
        query_heads: recording.query_heads,
        kv_heads: recording.kv_heads,
        head_dim: recording.head_dim,
        block_tokens: recording.block_tokens.unwrap_or(1),
        grade: recording.grade.clone(),
        weights: recording.weights.clone(),
        device: recording.device.clone(),
        model_licence: recording.licence.clone(),
        other: BTreeMap::new(),
    }
}

/// The rows of `requests`; columns that the map does not name stay unknown.
fn requests(requests: &[OneRequest], source_id: u32) -> Result<RecordBatch> {
    let status = |request: &OneRequest| if request.output_tokens == 0 { "no_output" } else { "ok" };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("request_id", Arc::new(UInt64Array::from_iter_values(0..requests.len() as u64))),
        ("source_id", Arc::new(UInt32Array::from_value(source_id, requests.len()))),
        ("source_key", Arc::new(requests.iter().map(|one| one.source_key.as_deref()).collect::<StringArray>())),
        ("prompt_tokens", Arc::new(UInt32Array::from_iter_values(requests.iter().map(|one| one.prompt_tokens)))),
        ("output_tokens", Arc::new(UInt32Array::from_iter_values(requests.iter().map(|one| one.output_tokens)))),
        ("status", Arc::new(StringArray::from_iter_values(requests.iter().map(status)))),
    ];
    batch(&canonical::REQUESTS, columns, 0)
}

/// A batch of some columns of a table, in their types; vectors are of this width.
fn batch(table: &Table, columns: Vec<(&str, ArrayRef)>, width: i32) -> Result<RecordBatch> {
    let wanted = table.arrow();
    let fields: Result<Vec<FieldRef>> = columns
        .iter()
        .map(|(name, _)| {
            let field = wanted.field_with_name(name)?.clone();
            Ok(Arc::new(match field.data_type() {
                DataType::FixedSizeList(child, _) => {
                    let kind = DataType::FixedSizeList(child.clone(), width);
                    field.with_data_type(kind)
                }
                _ => field,
            }))
        })
        .collect();
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields?)), columns)?)
}

/// Where a file of the map is: below the map's folder, so that a map from elsewhere reads nothing else.
fn located(folder: &Path, file: &str) -> Result<PathBuf> {
    let plain = !file.is_empty() && Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain {
        return Err(Error::data(format!("expected a file below the folder of the map, found `{file}`"))
            .hint("name it relative to the map, without `..`"));
    }
    let path = folder.join(file);
    let above = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // Links are followed as long as they stay below the folder; one that leads nowhere is told when it is opened.
    if let (Ok(real), Ok(above)) = (path.canonicalize(), above.canonicalize())
        && !real.starts_with(above)
    {
        return Err(Error::data(format!(
            "expected a file below the folder of the map, found `{file}`, a link out of it"
        ))
        .hint("copy the file into the folder"));
    }
    Ok(path)
}

/// Logs the hash of each file once; it is part of the source's.
fn log_files(folder: &Path, arrays: &[Entry], sink: &mut Sink<'_>) -> Result<()> {
    let mut names: Vec<&str> = arrays.iter().map(|entry| entry.file.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let path = located(folder, name)?;
        // A file that is not there is told where it is opened.
        if path.exists() {
            let hash = sink.companion(name, &path)?;
            sink.log(ARRAY_FILE, &format!("`{name}` has the SHA-256 {hash}"), None, None);
        }
    }
    Ok(())
}

/// Arrays of one entry, checked against each other and ready to be read.
struct Plan<'m> {
    target: &'static Target,
    entry: &'m Entry,
    path: PathBuf,
    request: &'m OneRequest,
    /// The axes before `values`: the column, its size and what it counts.
    axes: Vec<(&'static str, Vec<u32>)>,
    /// Rows in all, and values of each.
    rows: u64,
    width: usize,
    columns: Vec<(&'static str, Array)>,
    block_tokens: u32,
}

impl<'m> Plan<'m> {
    fn of(entry: &'m Entry, map: &'m Map, folder: &Path) -> Result<Self> {
        let target = TARGETS.iter().find(|target| target.table.name == entry.table).ok_or_else(|| {
            engine::error::unknown("table", &entry.table, TARGETS.iter().map(|target| target.table.name))
        })?;
        let request = map.requests.get(entry.request as usize).ok_or_else(|| {
            Error::data(format!("expected a request below {}, found {}", map.requests.len(), entry.request))
        })?;
        let path = located(folder, &entry.file)?;
        let named = axes(target, entry)?;
        let columns = columns(target, entry, &path)?;
        let (leading, width) = shape(target, &columns, named.len(), map.recording.head_dim)?;
        let mut counted = Vec::with_capacity(named.len());
        for (name, size) in named.iter().zip(&leading) {
            counted.push((*name, counts(entry, name, *size, &path)?));
        }
        let rows = leading.iter().try_fold(1_u64, |rows, size| rows.checked_mul(*size));
        let rows = rows.ok_or_else(|| Error::data("expected fewer than 2^64 rows, found more"))?;
        let block_tokens = map.recording.block_tokens.unwrap_or(1);
        Ok(Self { target, entry, path, request, axes: counted, rows, width, columns, block_tokens })
    }

    /// Reads the arrays and hands their rows on.
    fn push(mut self, context: &mut Context, sink: &mut Sink<'_>) -> Result<()> {
        for (name, array) in &self.columns {
            if array.format == Numbers::F64 {
                let message = format!("the numbers of `{name}` were rounded to single precision");
                sink.log(ROUNDED, &message, None, None);
            }
        }
        let values = (self.width as u64).max(1).saturating_mul(self.columns.len() as u64);
        let most = (BATCH_BYTES / (4 * values)).clamp(1, BATCH_ROWS);
        let mut first = 0;
        while first < self.rows {
            let rows = most.min(self.rows - first);
            let batch = self.batch(first, rows as usize)?;
            context.take(self.target.table, &batch, &self.path, first + 1, sink)?;
            first += rows;
        }
        self.columns.into_iter().try_for_each(|(_, array)| array.end())
    }

    /// What an axis of the table counts in so many rows.
    fn keys(&self, name: &str, first: u64, rows: usize) -> Vec<u32> {
        let Some(at) = self.axes.iter().position(|(axis, _)| *axis == name) else {
            return vec![self.entry.fixed.axis(name).unwrap_or(0); rows];
        };
        // Later axes run faster.
        let inner: u64 = self.axes[at + 1..].iter().map(|(_, counts)| counts.len() as u64).product();
        let counts = &self.axes[at].1;
        let size = counts.len() as u64;
        (first..first + rows as u64).map(|row| counts[(row / inner.max(1) % size.max(1)) as usize]).collect()
    }

    fn batch(&mut self, first: u64, rows: usize) -> Result<RecordBatch> {
        let mut columns: Vec<(&str, ArrayRef)> =
            vec![("request_id", Arc::new(UInt64Array::from_value(self.entry.request.into(), rows)))];
        for name in self.target.axes {
            let keys = self.keys(name, first, rows);
            let array: ArrayRef = match self.target.table.column(name).map(|column| column.kind) {
                // What does not fit was refused when it was counted.
                Some(Type::U16) => Arc::new(UInt16Array::from_iter_values(keys.iter().map(|key| *key as u16))),
                _ => Arc::new(UInt32Array::from(keys)),
            };
            columns.push((*name, array));
        }
        let mut lengths = None;
        match self.target.table.name {
            "attention" => {
                let steps = self.keys("step", first, rows);
                let contexts: Vec<u32> =
                    steps.iter().map(|step| self.request.prompt_tokens.saturating_add(*step)).collect();
                lengths = Some(contexts.iter().map(|context| context.div_ceil(self.block_tokens.max(1))).collect());
                columns.push(("context_tokens", Arc::new(UInt32Array::from(contexts))));
                columns.push(("block_tokens", Arc::new(UInt16Array::from_value(self.block_tokens as u16, rows))));
            }
            "prefill_scores" => {
                let channel = self.entry.fixed.channel.as_deref().unwrap_or_default();
                columns.push(("channel", Arc::new(StringArray::from_iter_values(std::iter::repeat_n(channel, rows)))));
                let scored = self.entry.fixed.rows;
                columns.push(("rows", Arc::new((0..rows).map(|_| scored).collect::<UInt32Array>())));
            }
            _ => {}
        }
        self.values(rows, lengths, &mut columns)?;
        batch(self.target.table, columns, self.width as i32)
    }

    /// The columns of values; lists of attention end where the context does.
    fn values(
        &mut self,
        rows: usize,
        mut lengths: Option<Vec<u32>>,
        columns: &mut Vec<(&str, ArrayRef)>,
    ) -> Result<()> {
        let (table, width) = (self.target.table, self.width);
        let mut values = Vec::new();
        for (name, array) in &mut self.columns {
            let kind = table.column(name).map(|column| column.kind);
            let column: ArrayRef = match kind {
                Some(Type::F32) => {
                    array.floats(rows, &mut values)?;
                    Arc::new(Float32Array::from(values.clone()))
                }
                Some(Type::Vector) => {
                    array.floats(rows.saturating_mul(width), &mut values)?;
                    let child = Arc::new(Field::new("element", DataType::Float32, false));
                    let flat = Arc::new(Float32Array::from(values.clone()));
                    Arc::new(FixedSizeListArray::try_new(child, width as i32, flat, None)?)
                }
                _ => {
                    array.floats(rows.saturating_mul(width), &mut values)?;
                    let mut lists = list_f32();
                    for (row, list) in values.chunks_exact(width.max(1)).enumerate() {
                        let length = lengths.as_mut().and_then(|lengths| lengths.get_mut(row));
                        let end = length.map_or(width, |length| {
                            let end = (*length as usize).min(list.len());
                            // A mass beyond the context stays, so that the row is found wrong.
                            let padded = list.iter().skip(end).all(|value| *value == 0.0);
                            if *name == "mass" && !padded {
                                *length = u32::MAX;
                            }
                            if padded || *name != "mass" { end } else { list.len() }
                        });
                        lists.values().append_slice(&list[..end]);
                        lists.append(true);
                    }
                    Arc::new(lists.finish())
                }
            };
            columns.push((*name, column));
        }
        Ok(())
    }
}

/// The axes of an entry before `values`, each of which is one of the table's; those that it lacks are fixed.
fn axes(target: &'static Target, entry: &Entry) -> Result<Vec<&'static str>> {
    let known = || format!("{}, then values", target.axes.join(", "));
    let Some(("values", before)) = entry.axes.split_last().map(|(last, before)| (last.as_str(), before)) else {
        return Err(Error::data(format!("expected `values` as the last axis, found {:?}", entry.axes))
            .hint("numpy.moveaxis changes their order"));
    };
    let mut found: Vec<&'static str> = Vec::with_capacity(before.len());
    for name in before {
        let axis = target.axes.iter().find(|axis| *axis == name);
        let axis = axis.ok_or_else(|| Error::data(format!("expected axes out of {}, found `{name}`", known())))?;
        if found.contains(axis) {
            return Err(Error::data(format!("expected each axis once, found `{name}` twice")));
        }
        found.push(axis);
    }
    for axis in target.axes {
        if found.contains(axis) == entry.fixed.axis(axis).is_some() {
            return Err(Error::data(format!(
                "expected `{axis}` either in `axes` or in `fixed`, found it in both or none"
            )));
        }
    }
    let others = ["step", "layer", "kv_head", "query_head", "token"];
    if let Some(axis) = others.iter().find(|axis| entry.fixed.axis(axis).is_some() && !target.axes.contains(axis)) {
        return Err(Error::data(format!("expected in `fixed` only axes out of {}, found `{axis}`", known())));
    }
    if let Some(axis) = target.axes.iter().find(|axis| !fits(target, axis, entry.fixed.axis(axis).unwrap_or(0))) {
        return Err(Error::data(format!("expected `{axis}` of at most 65535, found a larger number")));
    }
    let scores = target.table.name == "prefill_scores";
    if scores != entry.fixed.channel.is_some() || (!scores && entry.fixed.rows.is_some()) {
        return Err(Error::data("expected `channel` in `fixed` for `prefill_scores`, and for no other table"));
    }
    if let Some(name) = entry.index.keys().find(|name| !found.iter().any(|axis| axis == name)) {
        return Err(Error::data(format!("expected in `index` only axes of `axes`, found `{name}`")));
    }
    Ok(found)
}

/// Whether the column of an axis can hold a number.
fn fits(target: &Target, axis: &str, number: u32) -> bool {
    let small = target.table.column(axis).is_some_and(|column| column.kind == Type::U16);
    !small || u16::try_from(number).is_ok()
}

/// The arrays of an entry, open, in the order of the table's columns.
fn columns(target: &'static Target, entry: &Entry, path: &Path) -> Result<Vec<(&'static str, Array)>> {
    if let Some(name) = entry.columns.keys().find(|name| !target.columns.iter().any(|(known, _)| known == name)) {
        return Err(engine::error::unknown("column", name, target.columns.iter().map(|(known, _)| *known)));
    }
    let mut columns = Vec::new();
    for (name, needed) in target.columns {
        match entry.columns.get(*name) {
            Some(array) => columns.push((*name, file::open(path, array)?)),
            None if *needed => {
                return Err(Error::data(format!("expected an array for the column `{name}`, found none")));
            }
            None => {}
        }
    }
    Ok(columns)
}

/// The sizes of the axes before `values`, and that of `values`, which all columns share.
fn shape(target: &Target, columns: &[(&'static str, Array)], axes: usize, head_dim: u32) -> Result<(Vec<u64>, usize)> {
    let mut known: Option<(Vec<u64>, u64)> = None;
    for (name, array) in columns {
        let kind = target.table.column(name).map(|column| column.kind);
        let single = kind == Some(Type::F32);
        let rank = axes + usize::from(!single);
        if array.shape.len() != rank {
            return Err(Error::data(format!(
                "expected an array of {rank} axes for `{name}`, found one of {}: {:?}",
                array.shape.len(),
                array.shape
            )));
        }
        let (leading, width) = array.shape.split_at(axes);
        let width = width.first().copied();
        if kind == Some(Type::Vector) && width != Some(head_dim.into()) {
            let found = width.unwrap_or(0);
            return Err(Error::data(format!(
                "expected {head_dim} values as in `head_dim` for `{name}`, found {found}"
            )));
        }
        let (shape, values) = known.get_or_insert_with(|| (leading.to_vec(), width.unwrap_or(0)));
        if leading != shape.as_slice() || width.is_some_and(|width| width != *values) {
            return Err(Error::data(format!(
                "expected the same sizes for all columns, found {:?} for `{name}`",
                array.shape
            )));
        }
    }
    let (leading, width) = known.unwrap_or_default();
    if width == 0 || width > ROW_VALUES {
        return Err(Error::data(format!("expected 1 to {ROW_VALUES} values in a row, found {width}")));
    }
    Ok((leading, width as usize))
}

/// What an axis counts: from 0, or from 1 for steps, unless the map says otherwise.
fn counts(entry: &Entry, axis: &'static str, size: u64, path: &Path) -> Result<Vec<u32>> {
    let wrong = |found: usize| Error::data(format!("expected {size} numbers in the index of `{axis}`, found {found}"));
    let length = usize::try_from(size).ok().filter(|_| size <= AXIS);
    let length = length.ok_or_else(|| Error::data(format!("expected an axis of at most {AXIS}, found {size}")))?;
    let first = u32::from(axis == "step");
    let counted = match entry.index.get(axis) {
        Some(Index::Listed(listed)) => listed.clone(),
        Some(Index::Array(name)) => {
            let mut array = file::open(path, name)?;
            if array.shape != [size] {
                return Err(wrong(array.shape.first().map_or(0, |found| *found as usize)));
            }
            let numbers = array.whole(length)?;
            array.end()?;
            let small = numbers.and_then(|numbers| numbers.into_iter().map(|one| u32::try_from(one).ok()).collect());
            small.ok_or_else(|| Error::data(format!("expected whole numbers below 2^32 in the array `{name}`")))?
        }
        None => (first..).take(length).collect(),
    };
    if counted.len() != length {
        return Err(wrong(counted.len()));
    }
    let target = TARGETS.iter().find(|target| target.table.name == entry.table);
    match counted.iter().find(|number| target.is_some_and(|target| !fits(target, axis, **number))) {
        Some(number) => Err(Error::data(format!("expected `{axis}` of at most 65535, found {number}"))),
        None => Ok(counted),
    }
}

#[cfg(test)]
mod tests;
