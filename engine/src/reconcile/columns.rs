//! Typed columns of a canonical batch.

use arrow::array::{
    Array, ArrowPrimitiveType, AsArray, BooleanArray, ListArray, PrimitiveArray, RecordBatch, StringArray,
};

use crate::error::{Error, Result};

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let found = batch.column_by_name(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::data(format!("expected a column `{name}`, found none")))
}

fn wrong(name: &str, found: &dyn Array) -> Error {
    Error::data(format!("the column `{name}` has the wrong type, found {}", found.data_type()))
}

/// A column of numbers.
pub(super) fn numbers<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Result<&'a PrimitiveArray<T>> {
    let found = column(batch, name)?;
    found.as_primitive_opt::<T>().ok_or_else(|| wrong(name, found))
}

/// A column of text.
pub(super) fn texts<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray> {
    let found = column(batch, name)?;
    found.as_string_opt::<i32>().ok_or_else(|| wrong(name, found))
}

/// A column of flags.
pub(super) fn flags<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a BooleanArray> {
    let found = column(batch, name)?;
    found.as_boolean_opt().ok_or_else(|| wrong(name, found))
}

/// A column of lists.
pub(super) fn lists<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ListArray> {
    let found = column(batch, name)?;
    found.as_list_opt::<i32>().ok_or_else(|| wrong(name, found))
}

/// The value of a row; `None` where it is unknown.
pub(super) fn number<T: ArrowPrimitiveType>(column: &PrimitiveArray<T>, row: usize) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

/// The text of a row; `None` where it is unknown.
pub(super) fn text(column: &StringArray, row: usize) -> Option<&str> {
    column.is_valid(row).then(|| column.value(row))
}
