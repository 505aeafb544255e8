//! The store: a directory of Parquet tables that `DuckDB` and Polars read as they are, and a manifest that names them.
//!
//! ```text
//! STORE/<table>/part-<nnnnn>.parquet               what was ingested
//! STORE/runs/<run>/<table>/part-<nnnnn>.parquet    what a replay found
//! STORE/manifest-<n>.json                          the state; the highest n counts, none is ever edited
//! STORE/.tmp-*                                     files of a writer at work
//! STORE/.lock                                      held while a manifest is replaced
//! ```
//!
//! **A write is complete or absent.** A [`Transaction`] writes its files into a temporary directory and flushes them to
//! disk. [`Transaction::commit`] links them to their names and then links the next manifest, which is the one moment at
//! which the new rows exist. An error or a crash before it leaves the old state, and the next [`Store::begin`] removes
//! what was left behind.
//!
//! **Nobody's update is lost.** Links never replace a file. Two writers who started from the same manifest want the same
//! next name; the second gets an error and starts again. The file system must know hard links.
//!
//! **The same rows give the same bytes**, so a run (whose id is the hash of its inputs) may be written twice: the second
//! time changes nothing, or fails if the contents differ.

mod check;
mod checksums;
mod ids;
mod manifest;
mod parquet_file;
mod transaction;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use engine::error::{Error, Result};
use engine::schema::{Table, Type};

pub use check::check;
pub use manifest::{Companion, FileEntry, Manifest, RunEntry, SourceEntry};
pub(crate) use parquet_file::{batches_of, damaged, damaged_column, damaged_in, hex};
pub use transaction::Transaction;

/// An open store.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    manifest: Manifest,
}

impl Store {
    /// Opens the store at `root`.
    ///
    /// # Errors
    /// No store there, a manifest that cannot be read, or a store of another schema version.
    pub fn open(root: &Path) -> Result<Self> {
        match manifest::latest(root)? {
            Some(manifest) => Ok(Self { root: root.to_owned(), manifest }),
            None => Err(Error::usage(format!("expected a store at `{}`, found none", root.display()))
                .hint(format!("`kvtoll ingest FILE --into {}` makes one", root.display()))),
        }
    }

    /// Opens the store at `root`, or makes an empty one where nothing is yet.
    ///
    /// # Errors
    /// As [`Store::open`]; a directory that holds other things than a store; a directory that cannot be made.
    pub fn open_or_create(root: &Path) -> Result<Self> {
        if let Some(manifest) = manifest::latest(root)? {
            return Ok(Self { root: root.to_owned(), manifest });
        }
        fs::create_dir_all(root).map_err(|error| failed("make the directory", root, &error))?;
        let foreign = fs::read_dir(root)
            .map_err(|error| failed("list", root, &error))?
            .filter_map(std::result::Result::ok)
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with(".tmp-") && name != ".lock")
            .min();
        if let Some(name) = foreign {
            return Err(Error::usage(format!(
                "expected a store or an empty directory at `{}`, found `{name}` and no manifest",
                root.display()
            ))
            .hint("name a new directory with `--into`"));
        }
        let mut store = Self { root: root.to_owned(), manifest: Manifest::empty() };
        let first = Manifest::first();
        match store.begin().commit_manifest(first) {
            Ok(()) => Ok(store),
            // Another process made the store in this moment.
            Err(error) => match manifest::latest(root)? {
                Some(manifest) => Ok(Self { root: root.to_owned(), manifest }),
                None => Err(error),
            },
        }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The state that this handle sees.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The ingested files of a table, in the order in which they were written.
    pub fn files(&self, table: &str) -> Vec<PathBuf> {
        self.paths(self.manifest.tables.get(table))
    }

    /// The files of a table of a run; empty if the run or the table is not there.
    pub fn run_files(&self, run: &str, table: &str) -> Vec<PathBuf> {
        self.paths(self.manifest.run(run).and_then(|entry| entry.tables.get(table)))
    }

    /// The runs, oldest first.
    pub fn runs(&self) -> &[RunEntry] {
        &self.manifest.runs
    }

    /// All ingested rows of a table: its canonical columns in order, unknown ones as null. Extra columns stay on disk.
    ///
    /// # Errors
    /// A file that is missing or damaged, or that lacks a column which is always known.
    pub fn read(&self, table: &'static Table) -> Result<Vec<RecordBatch>> {
        read_files(table, &self.files(table.name))
    }

    /// As [`Store::read`], batch by batch, so that a table need not fit the memory.
    ///
    /// # Errors
    /// As [`Store::read`], and what `take` returns.
    pub fn each(&self, table: &'static Table, take: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
        each_batch(table, &self.files(table.name), take)
    }

    /// All rows of a table of a run, as [`Store::read`].
    ///
    /// # Errors
    /// As [`Store::read`], and a run that is not there.
    pub fn read_run(&self, run: &str, table: &'static Table) -> Result<Vec<RecordBatch>> {
        if self.manifest.run(run).is_none() {
            return Err(engine::error::unknown("run", run, self.runs().iter().map(|entry| entry.id.as_str())));
        }
        read_files(table, &self.run_files(run, table.name))
    }

    /// Starts a write, after removing what crashed writers left behind.
    pub fn begin(&mut self) -> Transaction<'_> {
        transaction::sweep(&self.root);
        Transaction::new(self)
    }

    fn paths(&self, files: Option<&Vec<FileEntry>>) -> Vec<PathBuf> {
        files.into_iter().flatten().map(|file| self.root.join(&file.path)).collect()
    }
}

fn read_files(table: &'static Table, files: &[PathBuf]) -> Result<Vec<RecordBatch>> {
    let mut all = Vec::new();
    each_batch(table, files, &mut |batch| {
        all.push(batch);
        Ok(())
    })?;
    Ok(all)
}

fn each_batch(table: &'static Table, files: &[PathBuf], take: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    for file in files {
        for batch in batches_of(file)? {
            take(canonical(table, &batch?, false).map_err(|error| error.context(file.display()))?)?;
        }
    }
    Ok(())
}

/// The batch in the shape of the table: canonical columns first and in order, by name; missing nullable ones as null;
/// extra columns after them (`extras`), or left out. Field metadata comes from the table.
///
/// # Errors
/// A missing column that is always known, a column of another type, or a null where none may be.
pub(crate) fn canonical(table: &Table, batch: &RecordBatch, extras: bool) -> Result<RecordBatch> {
    let wanted = table.arrow();
    let mut fields: Vec<FieldRef> = Vec::with_capacity(wanted.fields().len());
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(wanted.fields().len());
    for (field, column) in wanted.fields().iter().zip(table.columns) {
        let (field, array) = match batch.column_by_name(column.name) {
            Some(array) => {
                let kind = wanted_type(column.kind, array.data_type());
                if &kind != array.data_type() {
                    return Err(Error::data(format!(
                        "expected `{}.{}` as {kind}, found {}",
                        table.name,
                        column.name,
                        array.data_type()
                    )));
                }
                (Arc::new(field.as_ref().clone().with_data_type(kind)), array.clone())
            }
            None if column.nullable => (field.clone(), new_null_array(field.data_type(), batch.num_rows())),
            None => return Err(Error::data(format!("column `{}` of `{}` is missing", column.name, table.name))),
        };
        fields.push(field);
        columns.push(array);
    }
    if extras {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if table.column(field.name()).is_none() {
                fields.push(field.clone());
                columns.push(column.clone());
            }
        }
    }
    let schema = Arc::new(Schema::new(fields));
    RecordBatch::try_new(schema, columns).map_err(|error| Error::from(error).context(format!("table `{}`", table.name)))
}

/// The Arrow type of a column; the length of a vector is that of the data at hand.
pub(crate) fn wanted_type(kind: Type, found: &DataType) -> DataType {
    match (kind, found) {
        (Type::Vector, DataType::FixedSizeList(_, width)) => {
            DataType::FixedSizeList(Arc::new(Field::new("element", DataType::Float32, false)), *width)
        }
        _ => kind.arrow(),
    }
}

/// An operation on the file system that did not succeed.
pub(crate) fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::run(format!("cannot {what} `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests;
