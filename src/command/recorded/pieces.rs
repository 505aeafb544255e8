//! Recordings that are read in pieces, so that memory does not grow with them.
//!
//! Recorders write a request step by step and all layers of a step together, but policies look at one layer over all of its
//! steps. So a piece is some requests with all of their layers, or, where one request alone is too large, some of its layers.
//! An [`Index`] knows which layers each row group of a table holds and about how many bytes they take; a piece is read by
//! decoding the row groups that have rows of it. Rows may stand in any order. In files that are sorted by request and layer
//! each row group is decoded about once; in others as often as there are pieces that share it.
//!
//! A layer is the least that is read at a time: one that is larger than a piece may be is read whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{
    ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, RecordBatch, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{UInt16Type, UInt32Type, UInt64Type};
use engine::error::{Error, Result};
use engine::recording::{Recording, Tables, recordings};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection,
};

use crate::unbroken::{each_sound, sound};

/// Request and layer.
pub(crate) type Key = (u64, u16);

/// Decoded bytes that a piece may take.
pub(crate) const PIECE_BYTES: u64 = 192 << 20;

/// Bytes that a row takes beside its lists: its place in the indices of a recording.
const ROW_BYTES: u64 = 128;

/// About the most decoded bytes of a batch, and its most rows.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_ROWS: u64 = 8192;

const ATTENTION: [&str; 10] = [
    "request_id",
    "step",
    "layer",
    "kv_head",
    "context_tokens",
    "block_tokens",
    "mass",
    "sum_sq",
    "out_norm",
    "q_norm",
];
const BOUND: &str = "page_bound";
const PREFILL_SCORES: [&str; 6] = ["request_id", "layer", "kv_head", "channel", "rows", "score"];
const KV_STATS: [&str; 7] =
    ["request_id", "layer", "kv_head", "k_norm", "v_norm", "k_cos_next_layer", "v_cos_next_layer"];
const QUERIES: [&str; 5] = ["request_id", "step", "layer", "query_head", "q"];
const KV_VECTORS: [&str; 6] = ["request_id", "layer", "kv_head", "token", "k", "v"];

/// The files of a store that recordings are made of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files {
    /// Masses.
    pub(crate) attention: Vec<PathBuf>,
    /// Scores of the prompt.
    pub(crate) prefill_scores: Vec<PathBuf>,
    /// Norms and cosines.
    pub(crate) kv_stats: Vec<PathBuf>,
    /// Query vectors.
    pub(crate) queries: Vec<PathBuf>,
    /// K and V vectors.
    pub(crate) kv_vectors: Vec<PathBuf>,
}

/// What is read of a recording.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Needs {
    /// Upper bounds per page.
    pub(crate) bounds: bool,
    /// The norms and vectors of the layers beside those of a piece.
    pub(crate) neighbours: bool,
}

/// Where the rows of each layer are.
#[derive(Debug)]
pub(crate) struct Index {
    recordings: RecordBatch,
    requests: Vec<RecordBatch>,
    /// Masses, scores, norms, queries, keys and values.
    tables: [Table; 5],
    needs: Needs,
    /// About the bytes of each layer that has masses.
    sizes: BTreeMap<Key, u64>,
}

#[derive(Debug)]
struct Table {
    columns: Vec<&'static str>,
    files: Vec<Indexed>,
}

#[derive(Debug)]
struct Indexed {
    path: PathBuf,
    metadata: ArrowReaderMetadata,
    groups: Vec<Group>,
}

/// A row group.
#[derive(Debug)]
struct Group {
    /// Rows of each layer.
    rows: BTreeMap<Key, u64>,
    row_bytes: u64,
}

/// Layers that are read together, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The layers.
    pub(crate) keys: BTreeSet<Key>,
    /// The request of which these are not all layers.
    pub(crate) part_of: Option<u64>,
}

impl Index {
    /// Reads which layers the row groups hold. `requests` are those of all sources; what no recording has is left out.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn new(recordings: RecordBatch, requests: &[RecordBatch], files: &Files, needs: Needs) -> Result<Self> {
        let attention = ATTENTION.into_iter().chain(needs.bounds.then_some(BOUND));
        let tables = [
            table(&files.attention, attention.collect())?,
            table(&files.prefill_scores, PREFILL_SCORES.to_vec())?,
            table(&files.kv_stats, KV_STATS.to_vec())?,
            table(&files.queries, QUERIES.to_vec())?,
            table(&files.kv_vectors, KV_VECTORS.to_vec())?,
        ];
        let mut sizes = BTreeMap::new();
        for (at, table) in tables.iter().enumerate() {
            for group in table.files.iter().flat_map(|file| &file.groups) {
                for (key, rows) in &group.rows {
                    let bytes = rows.saturating_mul(group.row_bytes);
                    if at == 0 {
                        *sizes.entry(*key).or_insert(0) += bytes;
                    } else if let Some(size) = sizes.get_mut(key) {
                        *size += bytes;
                    }
                }
            }
        }
        let requests = of_recordings(&recordings, requests)?;
        Ok(Self { recordings, requests, tables, needs, sizes })
    }

    /// The recordings without any rows: what is known of them as a whole.
    ///
    /// # Errors
    /// As [`recordings`].
    pub(crate) fn heads(&self) -> Result<Vec<Recording>> {
        self.with(&[const { Vec::new() }; 5])
    }

    /// Leaves only the layers of these requests.
    pub(crate) fn keep_requests(&mut self, requests: &BTreeSet<u64>) {
        self.sizes.retain(|(request, _), _| requests.contains(request));
    }

    /// Pieces of at most so many bytes where layers allow it, in the order of request and layer.
    pub(crate) fn pieces(&self, most: u64) -> Vec<Piece> {
        let mut pieces: Vec<(Piece, u64)> = Vec::new();
        let keys: Vec<(Key, u64)> = self.sizes.iter().map(|(key, bytes)| (*key, *bytes)).collect();
        for request in keys.chunk_by(|a, b| a.0.0 == b.0.0) {
            let Some(((id, _), _)) = request.first() else { continue };
            let bytes: u64 = request.iter().map(|(_, bytes)| bytes).sum();
            let part_of = (bytes > most).then_some(*id);
            // Whole requests go together; a request that is too large is cut between layers.
            let parts: Vec<&[(Key, u64)]> = if part_of.is_some() { request.chunks(1).collect() } else { vec![request] };
            for part in parts {
                let bytes: u64 = part.iter().map(|(_, bytes)| bytes).sum();
                let keys = part.iter().map(|(key, _)| *key);
                match pieces.last_mut() {
                    Some((piece, sum)) if piece.part_of == part_of && *sum + bytes <= most => {
                        piece.keys.extend(keys);
                        *sum += bytes;
                    }
                    _ => pieces.push((Piece { keys: keys.collect(), part_of }, bytes)),
                }
            }
        }
        pieces.into_iter().map(|(piece, _)| piece).collect()
    }

    /// The recordings with the rows of a piece.
    ///
    /// # Errors
    /// A damaged file, and what [`recordings`] says of the rows.
    pub(crate) fn read(&self, piece: &Piece, threads: usize) -> Result<Vec<Recording>> {
        let beside: BTreeSet<Key> = if self.needs.neighbours {
            let keys = piece.keys.iter();
            keys.flat_map(|(id, layer)| [layer.saturating_sub(1), *layer, layer.saturating_add(1)].map(|at| (*id, at)))
                .collect()
        } else {
            BTreeSet::new()
        };
        let [attention, scores, stats, queries, vectors] = &self.tables;
        let own = |table: &Table| rows_of(table, &piece.keys, None, threads);
        let wide = |table: &Table| if beside.is_empty() { own(table) } else { rows_of(table, &beside, None, threads) };
        self.with(&[own(attention)?, own(scores)?, wide(stats)?, own(queries)?, wide(vectors)?])
    }

    /// The recordings with one step of each head of a request and its scores in these channels: what budgets that are
    /// shared out over its layers are found from.
    ///
    /// # Errors
    /// As [`Index::read`].
    pub(crate) fn read_scores(
        &self,
        request: u64,
        channels: &[&str],
        norms: bool,
        threads: usize,
    ) -> Result<Vec<Recording>> {
        let keys: BTreeSet<Key> = self.sizes.keys().filter(|key| key.0 == request).copied().collect();
        let [attention, scores, stats, ..] = &self.tables;
        let last = last_steps(attention, &keys)?;
        let is_last = |batch: &RecordBatch| {
            let (Ok((request, layer)), Ok((step, head))) = (key_columns(batch), step_columns(batch)) else {
                return BooleanArray::from(vec![false; batch.num_rows()]);
            };
            let at = |row: usize| (request.value(row), layer.value(row), head.value(row));
            (0..batch.num_rows()).map(|row| Some(last.get(&at(row)) == Some(&step.value(row)))).collect()
        };
        let is_channel = |batch: &RecordBatch| {
            let channel = batch.column_by_name("channel").and_then(|column| column.as_string_opt::<i32>());
            let (Ok((requests, _)), Some(channel)) = (key_columns(batch), channel) else {
                return BooleanArray::from(vec![false; batch.num_rows()]);
            };
            let is = |row: usize| requests.value(row) == request && channels.contains(&channel.value(row));
            (0..batch.num_rows()).map(|row| Some(is(row))).collect()
        };
        let steps = Filter { columns: &["request_id", "step", "layer", "kv_head"], keep: &is_last };
        let named = Filter { columns: &["request_id", "layer", "channel"], keep: &is_channel };
        let attention = rows_of(attention, &keys, Some(&steps), threads)?;
        let scores = rows_of(scores, &keys, Some(&named), threads)?;
        let stats = if norms { rows_of(stats, &keys, None, threads)? } else { Vec::new() };
        self.with(&[attention, scores, stats, Vec::new(), Vec::new()])
    }

    fn with(&self, tables: &[Vec<RecordBatch>; 5]) -> Result<Vec<Recording>> {
        let [attention, prefill_scores, kv_stats, queries, kv_vectors] = tables;
        let (recordings_of, requests) = (&self.recordings, &self.requests);
        let tables =
            Tables { recordings: recordings_of, requests, attention, prefill_scores, kv_stats, queries, kv_vectors };
        recordings(&tables)
    }
}

/// The requests of recordings, with the columns that a recording knows.
fn of_recordings(recordings: &RecordBatch, requests: &[RecordBatch]) -> Result<Vec<RecordBatch>> {
    let sources = |batch: &'_ RecordBatch| column::<UInt32Type>(batch, "source_id").cloned();
    let known: BTreeSet<u32> = sources(recordings)?.values().iter().copied().collect();
    let mut all = Vec::new();
    for batch in requests {
        let keep: BooleanArray = sources(batch)?.iter().map(|id| id.map(|id| known.contains(&id))).collect();
        if keep.true_count() == 0 {
            continue;
        }
        let wanted = [
            "request_id",
            "source_id",
            "source_key",
            "prompt_tokens",
            "output_tokens",
            "prompt_token_ids",
            "block_hashes",
            "block_tokens",
        ];
        let places: Vec<usize> = wanted.iter().filter_map(|name| batch.schema().index_of(name).ok()).collect();
        all.push(filter_record_batch(&batch.project(&places)?, &keep)?);
    }
    Ok(all)
}

fn damaged(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::data(format!("cannot read `{}`: {why}", path.display()))
}

fn table(paths: &[PathBuf], columns: Vec<&'static str>) -> Result<Table> {
    let files = paths.iter().map(|path| indexed(path, &columns)).collect::<Result<_>>()?;
    Ok(Table { columns, files })
}

fn indexed(path: &Path, columns: &[&str]) -> Result<Indexed> {
    let file = File::open(path).map_err(|error| damaged(path, error))?;
    let load = || ArrowReaderMetadata::load(&file, ArrowReaderOptions::new());
    let metadata = sound(load).map_err(|why| damaged(path, why))?;
    let groups = (0..metadata.metadata().num_row_groups())
        .map(|at| {
            let rows = keys_of(path, &metadata, at)?;
            Ok(Group { rows, row_bytes: row_bytes(&metadata, at, columns) })
        })
        .collect::<Result<_>>()?;
    Ok(Indexed { path: path.to_owned(), metadata, groups })
}

/// About the decoded bytes of a row of a row group.
fn row_bytes(metadata: &ArrowReaderMetadata, group: usize, columns: &[&str]) -> u64 {
    let group = metadata.metadata().row_group(group);
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    let is_wanted = |name: &str| columns.contains(&name);
    let wanted = group
        .columns()
        .iter()
        .filter(|column| column.column_path().parts().first().is_some_and(|name| is_wanted(name)));
    let values = wanted.map(|column| number(column.num_values())).fold(0, u64::saturating_add);
    values.saturating_mul(4) / number(group.num_rows()).max(1) + ROW_BYTES
}

/// How many rows of each layer a row group has.
fn keys_of(path: &Path, metadata: &ArrowReaderMetadata, group: usize) -> Result<BTreeMap<Key, u64>> {
    let mut rows = BTreeMap::new();
    let mut last: Option<(Key, u64)> = None;
    for batch in batches(path, reader(path, metadata, group, &["request_id", "layer"], 1 << 16)?)? {
        let batch = batch?;
        let (request, layer) = key_columns(&batch).map_err(|error| damaged(path, error))?;
        for (request, layer) in request.values().iter().zip(layer.values()) {
            let key = (*request, *layer);
            // Rows of a layer stand together, more or less.
            match &mut last {
                Some((known, count)) if *known == key => *count += 1,
                _ => {
                    if let Some((known, count)) = last.replace((key, 1)) {
                        *rows.entry(known).or_insert(0) += count;
                    }
                }
            }
        }
    }
    if let Some((known, count)) = last {
        *rows.entry(known).or_insert(0) += count;
    }
    Ok(rows)
}

/// The columns `request_id` and `layer`.
fn key_columns(batch: &RecordBatch) -> Result<(&UInt64Array, &UInt16Array)> {
    Ok((column::<UInt64Type>(batch, "request_id")?, column::<UInt16Type>(batch, "layer")?))
}

/// The columns `step` and `kv_head`.
fn step_columns(batch: &RecordBatch) -> Result<(&UInt32Array, &UInt16Array)> {
    Ok((column::<UInt32Type>(batch, "step")?, column::<UInt16Type>(batch, "kv_head")?))
}

fn column<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Result<&'a PrimitiveArray<T>> {
    let found = batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<T>());
    found.ok_or_else(|| Error::data(format!("expected a column `{name}` of {}, found none", T::DATA_TYPE)))
}

/// The last recorded step of each head of these layers.
fn last_steps(table: &Table, keys: &BTreeSet<Key>) -> Result<BTreeMap<(u64, u16, u16), u32>> {
    let mut last = BTreeMap::new();
    for file in &table.files {
        for (at, group) in file.groups.iter().enumerate() {
            if !group.rows.keys().any(|key| keys.contains(key)) {
                continue;
            }
            let columns = ["request_id", "step", "layer", "kv_head"];
            for batch in batches(&file.path, reader(&file.path, &file.metadata, at, &columns, 1 << 16)?)? {
                let batch = batch?;
                let (request, layer) = key_columns(&batch).map_err(|error| damaged(&file.path, error))?;
                let (step, head) = step_columns(&batch).map_err(|error| damaged(&file.path, error))?;
                for row in 0..batch.num_rows() {
                    if keys.contains(&(request.value(row), layer.value(row))) {
                        let found = last.entry((request.value(row), layer.value(row), head.value(row))).or_insert(0);
                        *found = step.value(row).max(*found);
                    }
                }
            }
        }
    }
    Ok(last)
}

/// Rows to keep, by columns that are decoded before the others.
#[derive(Clone, Copy)]
struct Filter<'a> {
    columns: &'a [&'static str],
    keep: &'a (dyn Fn(&RecordBatch) -> BooleanArray + Sync),
}

/// The rows of these layers, in the order of the files; the row groups are decoded side by side.
fn rows_of(
    table: &Table,
    keys: &BTreeSet<Key>,
    filter: Option<&Filter<'_>>,
    threads: usize,
) -> Result<Vec<RecordBatch>> {
    let mut jobs = Vec::new();
    for file in &table.files {
        for (at, group) in file.groups.iter().enumerate() {
            let wanted = group.rows.keys().filter(|key| keys.contains(key)).count();
            if wanted > 0 {
                jobs.push((file, at, wanted == group.rows.len()));
            }
        }
    }
    let of_layers = |batch: &RecordBatch| match key_columns(batch) {
        Ok((request, layer)) => {
            let pairs = request.values().iter().zip(layer.values());
            pairs.map(|(request, layer)| Some(keys.contains(&(*request, *layer)))).collect()
        }
        Err(_) => BooleanArray::from(vec![false; batch.num_rows()]),
    };
    let by_layer = Filter { columns: &["request_id", "layer"], keep: &of_layers };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((file, group, is_whole)) = jobs.get(at) else { return found };
            let filter = filter.or((!is_whole).then_some(&by_layer));
            found.push((at, decoded(file, *group, &table.columns, filter)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(jobs.len())).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| Error::run("a thread that reads a recording failed"))?);
        }
        Ok::<_, Error>(all)
    })?;
    all.sort_by_key(|(at, _)| *at);
    let mut batches = Vec::new();
    for (_, found) in all {
        batches.extend(found?);
    }
    Ok(batches)
}

fn decoded(file: &Indexed, group: usize, columns: &[&str], filter: Option<&Filter<'_>>) -> Result<Vec<RecordBatch>> {
    let row_bytes = file.groups.get(group).map_or(1, |group| group.row_bytes);
    let rows = (BATCH_BYTES / row_bytes.max(1)).clamp(1, BATCH_ROWS) as usize;
    let mut builder = reader(&file.path, &file.metadata, group, columns, rows)?;
    if let Some(filter) = filter {
        let first = reader(&file.path, &file.metadata, group, filter.columns, 1 << 16)?;
        let marks: Vec<BooleanArray> =
            batches(&file.path, first)?.map(|batch| batch.map(|batch| (filter.keep)(&batch))).collect::<Result<_>>()?;
        builder = builder.with_row_selection(RowSelection::from_filters(&marks));
    }
    batches(&file.path, builder)?.collect()
}

type Builder = ParquetRecordBatchReaderBuilder<File>;

/// A reader of these columns of a row group.
fn reader(path: &Path, metadata: &ArrowReaderMetadata, group: usize, columns: &[&str], rows: usize) -> Result<Builder> {
    let file = File::open(path).map_err(|error| damaged(path, error))?;
    let mask = ProjectionMask::columns(metadata.parquet_schema(), columns.iter().copied());
    let builder = Builder::new_with_metadata(file, metadata.clone());
    Ok(builder.with_row_groups(vec![group]).with_projection(mask).with_batch_size(rows))
}

fn batches(path: &Path, builder: Builder) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
    let reader = sound(|| builder.build()).map_err(|why| damaged(path, why))?;
    Ok(each_sound(reader).map(move |batch| batch.map_err(|why| damaged(path, why))))
}
