//! Whether a store is what its manifest says: the files and their hashes, the counts, and what refers to what.
//!
//! Files are read one after the other, batch by batch, so that memory does not grow with the store (but for a bit per
//! request). What refers to a table is checked only if the files of the table are whole: one damaged file is one
//! violation, not a thousand.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, UInt64Type};
use engine::error::{Error, Result};
use engine::schema::{self, Scope, Table};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use sha2::{Digest, Sha256};

use super::{FileEntry, Store, hex};

/// What is wrong with a store, a sentence each, in the order of the manifest; nothing if the store is sound.
pub fn check(store: &Store) -> Vec<String> {
    let manifest = store.manifest();
    let mut check = Check { root: store.root(), damaged: Vec::new(), found: Vec::new() };
    for (table, files) in manifest.tables.iter().chain(manifest.runs.iter().flat_map(|run| &run.tables)) {
        for file in files {
            if let Err(why) = check_file(store.root(), table, file) {
                check.found.push(format!("`{}`: {why}", file.path));
                check.damaged.push(&file.path);
            }
        }
    }
    let files = |table: &str| manifest.tables.get(table).map_or(&[][..], Vec::as_slice);
    check.sources(store, files("sources"), files("rejects"));
    // Without all requests, nothing can be said about what refers to them.
    let requests = check.requests(files("requests"));
    let sources = Some(manifest.sources.len() as u64);
    for table in schema::ALL.iter().filter(|table| table.scope == Scope::Store) {
        let known = [("source_id", sources), ("request_id", requests), ("parent_request_id", requests)];
        check.references(table, files(table.name), &known);
    }
    for run in &manifest.runs {
        let files = |table: &str| run.tables.get(table).map_or(&[][..], Vec::as_slice);
        let scenarios = check.whole(files("scenarios")).then(|| run.rows("scenarios"));
        for table in schema::ALL.iter().filter(|table| table.scope == Scope::Run) {
            let known = [("source_id", sources), ("request_id", requests), ("scenario_id", scenarios)];
            check.references(table, files(table.name), &known);
        }
    }
    check.found
}

/// One file: there, of its size, with its hash, readable, of its rows, and with the columns of its table.
fn check_file(root: &Path, table: &str, file: &FileEntry) -> std::result::Result<(), String> {
    let path = root.join(&file.path);
    let opened = File::open(&path).map_err(|error| format!("cannot be read: {error}"))?;
    let size = opened.metadata().map_err(|error| format!("cannot be read: {error}"))?.len();
    if size != file.bytes {
        return Err(format!("expected {} bytes, found {size}", file.bytes));
    }
    let sha256 = sha256(&opened).map_err(|error| format!("cannot be read: {error}"))?;
    if sha256 != file.sha256 {
        return Err(format!("expected the SHA-256 {}, found {sha256}", file.sha256));
    }
    let reader = ParquetRecordBatchReaderBuilder::try_new(opened).map_err(|error| format!("no Parquet: {error}"))?;
    let rows = reader.metadata().file_metadata().num_rows();
    if u64::try_from(rows) != Ok(file.rows) {
        return Err(format!("expected {} rows, found {rows}", file.rows));
    }
    let table = schema::table(table).map_err(|error| error.to_string())?;
    let empty = RecordBatch::new_empty(reader.schema().clone());
    super::canonical(table, &empty, false).map(|_| ()).map_err(|error| error.to_string())
}

fn sha256(mut file: &File) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

/// A check at work.
struct Check<'a> {
    root: &'a Path,
    /// Files that are not what the manifest says.
    damaged: Vec<&'a str>,
    found: Vec<String>,
}

impl Check<'_> {
    fn whole(&self, files: &[FileEntry]) -> bool {
        !files.iter().any(|file| self.damaged.contains(&file.path.as_str()))
    }

    /// The sources of the manifest add up and are those of the table `sources`, and so many rows were rejected.
    fn sources(&mut self, store: &Store, sources: &[FileEntry], rejects: &[FileEntry]) {
        let known = &store.manifest().sources;
        let mut in_table: BTreeMap<u64, Vec<Option<u64>>> = BTreeMap::new();
        let columns = ["source_id", "rows_in", "rows_out", "rows_rejected"];
        let told = self.rows(sources, &columns, &mut |row| {
            in_table.insert(row[0].unwrap_or(u64::MAX), row[1..].to_vec());
        });
        let mut rejected: BTreeMap<u64, u64> = BTreeMap::new();
        let counted = self.rows(rejects, &["source_id"], &mut |row| {
            *rejected.entry(row[0].unwrap_or(u64::MAX)).or_default() += 1;
        });
        for (id, source) in (0..).zip(known) {
            let counts = [source.rows_in, source.rows_out, source.rows_rejected];
            if u64::from(source.id) != id {
                self.found.push(format!("the manifest gives source {id} the number {}", source.id));
            }
            if counts[0] != counts[1] + counts[2] {
                let [found, kept, aside] = counts;
                self.found.push(format!("source {id}: {found} rows were found, but {kept} kept and {aside} set aside"));
            }
            if told && in_table.get(&id) != Some(&counts.map(Some).to_vec()) {
                self.found.push(format!("source {id}: the table `sources` does not have the counts of the manifest"));
            }
            let found = rejected.get(&id).copied().unwrap_or(0);
            if counted && found != source.rows_rejected {
                let expected = source.rows_rejected;
                self.found.push(format!("source {id}: expected {expected} rows in `rejects`, found {found}"));
            }
        }
        if told && in_table.len() != known.len() {
            let (found, expected) = (in_table.len(), known.len());
            self.found.push(format!("the table `sources` has {found} sources, the manifest {expected}"));
        }
    }

    /// Requests are numbered from 0 without a gap. Gives how many there are, if all can be read.
    fn requests(&mut self, files: &[FileEntry]) -> Option<u64> {
        let rows: u64 = files.iter().map(|file| file.rows).sum();
        // Only counts that the files confirm are reserved for.
        if !self.whole(files) {
            return None;
        }
        let mut seen = vec![0_u64; usize::try_from(rows.div_ceil(64)).ok()?];
        let (mut bad, mut first) = (0_u64, None);
        let read = self.rows(files, &["request_id"], &mut |row| {
            let id = row[0].unwrap_or(u64::MAX);
            let bit = 1 << (id % 64);
            match usize::try_from(id / 64).ok().and_then(|word| seen.get_mut(word)).filter(|_| id < rows) {
                Some(word) if *word & bit == 0 => *word |= bit,
                _ => {
                    bad += 1;
                    first.get_or_insert(id);
                }
            }
        });
        if let Some(first) = first {
            self.found.push(format!(
                "`requests`: expected {rows} requests with the numbers from 0 on, each once, found {bad} others, the \
                 first {first}"
            ));
        }
        read.then_some(rows)
    }

    /// Every number in the columns of `known` is below its limit, where there is one.
    fn references(&mut self, table: &Table, files: &[FileEntry], known: &[(&str, Option<u64>)]) {
        for (column, limit) in known {
            let (Some(limit), true) = (limit, table.column(column).is_some()) else { continue };
            let (mut bad, mut first) = (0_u64, None);
            self.rows(files, &[column], &mut |row| {
                if let Some(id) = row[0]
                    && id >= *limit
                {
                    bad += 1;
                    first.get_or_insert(id);
                }
            });
            // Requests were counted with their numbers already.
            if let Some(first) = first
                && (table.name, *column) != ("requests", "request_id")
            {
                self.found.push(format!(
                    "`{}`: expected `{column}` below {limit}, found {bad} rows with another, the first {first}",
                    table.name
                ));
            }
        }
    }

    /// Calls `row` with the whole numbers of each row, if all files are whole; gives whether they are.
    fn rows(&mut self, files: &[FileEntry], columns: &[&str], row: &mut dyn FnMut(&[Option<u64>])) -> bool {
        if !self.whole(files) {
            return false;
        }
        for file in files {
            if let Err(error) = rows_of(&self.root.join(&file.path), columns, row) {
                self.found.push(format!("`{}`: {error}", file.path));
                return false;
            }
        }
        true
    }
}

fn rows_of(path: &Path, columns: &[&str], row: &mut dyn FnMut(&[Option<u64>])) -> Result<()> {
    let damaged = |error: &dyn std::fmt::Display| Error::data(format!("cannot be read: {error}"));
    let file = File::open(path).map_err(|error| damaged(&error))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| damaged(&error))?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
    let reader = builder.with_projection(mask).build().map_err(|error| damaged(&error))?;
    let mut values = vec![None; columns.len()];
    for batch in reader {
        let batch = batch.map_err(|error| damaged(&error))?;
        let mut arrays = Vec::with_capacity(columns.len());
        for column in columns {
            let array = batch.column_by_name(column).ok_or_else(|| damaged(&format!("`{column}` is missing")))?;
            arrays.push(cast(array, &DataType::UInt64)?.as_primitive::<UInt64Type>().clone());
        }
        for at in 0..batch.num_rows() {
            for (value, array) in values.iter_mut().zip(&arrays) {
                *value = array.is_valid(at).then(|| array.value(at));
            }
            row(&values);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
