//! Parquet files as input: opened, read in batches of bounded size, with their damage told and their cells as numbers.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::util::display::array_value_to_string;
use engine::error::{Error, Result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::problem::{RAW_BYTES, quoted};
use super::source::regular;
use crate::unbroken::unbroken;

/// About the most bytes of a batch, and its most rows.
const BATCH_BYTES: u64 = 16 << 20;
const BATCH_ROWS: u64 = 64 << 10;

/// The most bytes that one row may average: a token-grade row of a million tokens stays far below.
const ROW_BYTES: u64 = 64 << 20;

/// An open file, its footer read.
pub(super) type Builder = ParquetRecordBatchReaderBuilder<File>;

/// Opens a file.
///
/// # Errors
/// A file that is not there, or no Parquet file.
pub(super) fn open(path: &Path) -> Result<Builder> {
    regular(path)?;
    let file = File::open(path).map_err(|error| damaged(path, &error.to_string()))?;
    let builder = unbroken(|| ParquetRecordBatchReaderBuilder::try_new(file)).map_err(|why| damaged(path, &why))?;
    builder.map_err(|error| damaged(path, &error.to_string()))
}

/// The names of a file's columns; none if it cannot be read.
pub(super) fn columns(path: &Path) -> Option<Vec<String>> {
    let builder = open(path).ok()?;
    Some(builder.schema().fields().iter().map(|field| field.name().clone()).collect())
}

/// Calls `take` with each batch and the number of its first row, from 1.
///
/// # Errors
/// A damaged file, rows beyond the limit, or what `take` says.
pub(super) fn each(path: &Path, builder: Builder, take: &mut dyn FnMut(RecordBatch, u64) -> Result<()>) -> Result<()> {
    let rows =
        batch_rows(&builder).ok_or_else(|| damaged(path, &format!("expected rows of at most {ROW_BYTES} bytes")))?;
    let reader = unbroken(|| builder.with_batch_size(rows).build()).map_err(|why| damaged(path, &why))?;
    let mut reader = reader.map_err(|error| damaged(path, &error.to_string()))?;
    let mut first_row = 1;
    while let Some(batch) = unbroken(|| reader.next()).map_err(|why| damaged(path, &why))? {
        let batch = batch.map_err(|error| damaged(path, &error.to_string()))?;
        let rows = batch.num_rows() as u64;
        take(batch, first_row)?;
        first_row += rows;
    }
    Ok(())
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::data(format!("cannot read `{}`: {why}", path.display()))
}

/// Rows per batch, from the number of values per row; none if a row would be too large.
fn batch_rows(builder: &Builder) -> Option<usize> {
    let mut least = BATCH_ROWS;
    for group in builder.metadata().row_groups() {
        let rows = u64::try_from(group.num_rows()).unwrap_or(0).max(1);
        let values = group.columns().iter().map(|column| u64::try_from(column.num_values()).unwrap_or(0));
        let values = values.fold(0, u64::saturating_add);
        let text: u64 = u64::try_from(group.total_byte_size()).unwrap_or(0);
        let per_row = (values.saturating_mul(8).saturating_add(text)) / rows;
        if per_row > ROW_BYTES {
            return None;
        }
        least = least.min((BATCH_BYTES / per_row.max(1)).max(1));
    }
    usize::try_from(least).ok()
}

/// The cells of a column: text, whole numbers, or others.
#[derive(Debug)]
pub(super) enum Cells {
    Text(StringArray),
    Whole(Int64Array),
    Real(Float64Array),
}

impl Cells {
    /// The cells of an array; none if they are neither text nor numbers.
    pub(super) fn of(array: &ArrayRef) -> Option<Self> {
        let kind = array.data_type();
        // Nulls stay nulls, and so does a whole number beyond i64.
        let to = |kind: DataType| cast(array, &kind).ok();
        if kind.is_integer() {
            Some(Self::Whole(to(DataType::Int64)?.as_primitive_opt::<Int64Type>()?.clone()))
        } else if kind.is_floating() {
            Some(Self::Real(to(DataType::Float64)?.as_primitive_opt::<Float64Type>()?.clone()))
        } else if matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..)) {
            Some(Self::Text(to(DataType::Utf8)?.as_string_opt::<i32>()?.clone()))
        } else {
            None
        }
    }

    /// Whether nothing stands in a row.
    pub(super) fn is_unknown(&self, row: usize) -> bool {
        match self {
            Self::Text(cells) => cells.is_null(row),
            Self::Whole(cells) => cells.is_null(row),
            Self::Real(cells) => cells.is_null(row) || cells.value(row).is_nan(),
        }
    }

    /// What stands in a row, for a message.
    pub(super) fn shown(&self, row: usize) -> String {
        match self {
            _ if self.is_unknown(row) => "no value".to_owned(),
            Self::Text(cells) => quoted(cells.value(row).as_bytes()),
            Self::Whole(cells) => cells.value(row).to_string(),
            Self::Real(cells) => cells.value(row).to_string(),
        }
    }

    /// A text.
    pub(super) fn text(&self, row: usize) -> Option<&str> {
        match self {
            Self::Text(cells) if cells.is_valid(row) => Some(cells.value(row)),
            _ => None,
        }
    }

    /// A whole number of at least zero; tables with unknown cells hold whole numbers as floats.
    pub(super) fn whole(&self, row: usize) -> Option<u64> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match self {
            Self::Whole(cells) if cells.is_valid(row) => u64::try_from(cells.value(row)).ok(),
            Self::Real(cells) if cells.is_valid(row) => {
                let value = cells.value(row);
                (value.fract() == 0.0 && (0.0..EXACT).contains(&value)).then_some(value as u64)
            }
            _ => None,
        }
    }

    /// A finite number.
    pub(super) fn real(&self, row: usize) -> Option<f64> {
        match self {
            Self::Whole(cells) if cells.is_valid(row) => Some(cells.value(row) as f64),
            Self::Real(cells) if cells.is_valid(row) => Some(cells.value(row)).filter(|value| value.is_finite()),
            _ => None,
        }
    }
}

/// A row as text, cut, without its lists.
pub(super) fn raw(batch: &RecordBatch, row: usize) -> String {
    let mut raw = String::new();
    for (field, values) in batch.schema().fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() && raw.len() < RAW_BYTES / 2 && values.is_valid(row) {
            let value = array_value_to_string(values, row).unwrap_or_default();
            let value: String = value.chars().take(200).collect();
            if !raw.is_empty() {
                raw.push(' ');
            }
            raw.push_str(field.name());
            raw.push('=');
            raw.push_str(&value);
        }
    }
    raw
}
