//! Captures of Nsight Systems, exported as a folder of Parquet files, one a table.
//!
//! ```text
//! $ nsys export --type parquetdir report.nsys-rep      makes report_pqtdir/CUPTI_ACTIVITY_KIND_KERNEL.parquet,
//!                                                       StringIds.parquet, NVTX_EVENTS.parquet, ...
//! $ kvtoll ingest report_pqtdir/CUPTI_ACTIVITY_KIND_KERNEL.parquet --into STORE
//! ```
//!
//! The table of kernels is named, and the others are read from its folder: they are one capture, whose kernels have their
//! names and launches there. Tables and columns are those of the SQLite export ([`super::nsys`]). No export of this kind
//! was at hand: layout and names are as others read them, so that the format is marked as unverified.
//!
//! Refused as a whole: damaged files and pages, compression that is not built in. Row by row: as in the SQLite export.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use engine::error::{Error, Result};
use parquet::arrow::ProjectionMask;

use super::nsys::{self, Tables, Take, Value};
use super::parquet_input::{self, Builder};
use super::sink::Sink;
use super::source::{Body, Input, PARQUET};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "nsys_parquet",
    doc: "kernels, copies, launches and NVTX ranges by Nsight Systems, as a folder of Parquet files",
    spec: "https://docs.nvidia.com/nsight-systems/UserGuide/ (nsys export, parquetdir)",
    verified: false,
    sniff,
    read,
};

/// The table by which an export is named.
const KERNEL: &str = "CUPTI_ACTIVITY_KIND_KERNEL";

/// The table that a file holds, by its name.
fn table_of(path: &Path) -> Option<String> {
    path.file_name()?.to_str()?.strip_suffix(".parquet").map(str::to_owned)
}

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || !head.bytes.starts_with(PARQUET) {
        return Sniff::No;
    }
    match table_of(Path::new(head.path)) {
        Some(table) if nsys::is_table(&table, KERNEL) => Sniff::Yes,
        Some(table) if nsys::is_read(&table) || table == "StringIds" => {
            Sniff::Nearly(format!("give `{KERNEL}.parquet`: the other tables are read from its folder"))
        }
        _ => Sniff::No,
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    input.options.without_choice("nsys_parquet", "its instants are nanoseconds")?;
    let Body::File(file) = &input.body else {
        return Err(Error::data(format!("expected a Parquet file in `{}`, found none", input.path))
            .hint("`nsys export --type parquetdir` makes a folder of them"));
    };
    let given = Path::new(input.path);
    let mut files = BTreeMap::new();
    if let Some(folder) = given.parent().filter(|_| table_of(given).is_some_and(|table| nsys::is_read(&table))) {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let entries = std::fs::read_dir(folder)
            .map_err(|error| Error::data(format!("cannot list `{}`: {error}", folder.display())))?;
        let paths = entries.filter_map(std::result::Result::ok).map(|entry| entry.path());
        files.extend(paths.filter_map(|path| Some((table_of(&path)?, path))));
    }
    // The file itself may have come through a pipe or compression.
    files.insert(table_of(given).unwrap_or_else(|| KERNEL.to_owned()), file.path().to_owned());
    let names = files.keys().cloned().collect();
    let mut folder = Folder { files, names, read: BTreeSet::new() };
    let settings = nsys::read(input.path, &mut folder, sink)?;
    // The named file has its own hash; the others are part of the source as well.
    for table in folder.read.iter().filter(|table| Some(*table) != table_of(given).as_ref()) {
        if let Some(path) = folder.files.get(table).filter(|path| *path != file.path()) {
            sink.companion(&format!("{table}.parquet"), path)?;
        }
    }
    Ok(settings)
}

/// The files of an export by table.
struct Folder {
    files: BTreeMap<String, PathBuf>,
    names: Vec<String>,
    /// The tables whose rows were read.
    read: BTreeSet<String>,
}

impl Folder {
    fn open(&self, table: &str) -> Result<(Builder, &Path)> {
        let path = self.files.get(table).ok_or_else(|| Error::run(format!("no file of the table `{table}`")))?;
        Ok((parquet_input::open(path)?, path))
    }
}

impl Tables for Folder {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn is_empty(&mut self, table: &str) -> Result<bool> {
        let (builder, _) = self.open(table)?;
        Ok(builder.metadata().file_metadata().num_rows() <= 0)
    }

    fn columns(&mut self, table: &str) -> Result<Vec<String>> {
        let (builder, _) = self.open(table)?;
        Ok(builder.schema().fields().iter().map(|field| field.name().clone()).collect())
    }

    fn each(&mut self, table: &str, columns: &[&str], take: &mut Take<'_>) -> Result<()> {
        self.read.insert(table.to_owned());
        let (builder, path) = self.open(table)?;
        let wanted: Vec<usize> = columns.iter().filter_map(|name| builder.schema().index_of(name).ok()).collect();
        let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
        let mut number = 0;
        parquet_input::each(path, builder.with_projection(mask), &mut |batch, _| {
            let arrays: Vec<Cells> =
                columns.iter().map(|name| Cells::of(batch.column_by_name(name))).collect::<Result<_>>()?;
            for row in 0..batch.num_rows() {
                number += 1;
                let values: Vec<Value<'_>> = arrays.iter().map(|cells| cells.value(row)).collect();
                take(number, &values)?;
            }
            Ok(())
        })
    }
}

/// A column in one of the types that the tables have.
enum Cells {
    Missing,
    Ints(ArrayRef),
    Reals(ArrayRef),
    Texts(ArrayRef),
    Other(ArrayRef),
}

impl Cells {
    fn of(column: Option<&ArrayRef>) -> Result<Self> {
        let Some(column) = column else { return Ok(Self::Missing) };
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let cast = |to: &DataType| cast_with_options(column, to, &options);
        let kind = match column.data_type() {
            DataType::Dictionary(_, value) => value.as_ref(),
            kind => kind,
        };
        Ok(match kind {
            DataType::Null => Self::Missing,
            // A number beyond i64 cannot be an instant, a size or an id of these tables.
            kind if kind.is_integer() => cast(&DataType::Int64).map_or(Self::Other(column.clone()), Self::Ints),
            kind if kind.is_floating() => Self::Reals(cast(&DataType::Float64)?),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Texts(cast(&DataType::Utf8)?),
            _ => Self::Other(column.clone()),
        })
    }

    fn value(&self, row: usize) -> Value<'_> {
        let array = match self {
            Self::Missing => return Value::Null,
            Self::Ints(array) | Self::Reals(array) | Self::Texts(array) | Self::Other(array) => array,
        };
        if array.is_null(row) {
            return Value::Null;
        }
        match self {
            Self::Ints(array) => Value::Int(array.as_primitive::<Int64Type>().value(row)),
            Self::Reals(array) => Value::Real(array.as_primitive::<Float64Type>().value(row)),
            Self::Texts(array) => Value::Text(array.as_string::<i32>().value(row).as_bytes()),
            Self::Missing | Self::Other(_) => Value::Other("a value of another type"),
        }
    }
}

#[cfg(test)]
mod tests;
