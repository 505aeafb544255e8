//! Columns of a recording in the types of the schema, where nothing is lost.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, ListArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use engine::error::{Error, Result};
use engine::schema::{Column, Table, Type};

/// Columns that the adapter knows without the recorder.
const SUPPLIED: [&str; 2] = ["source_id", "status"];

/// The columns that are always known and are not in the file.
pub(super) fn missing<'a>(table: &'a Table, schema: &'a Schema) -> impl Iterator<Item = &'static str> + 'a {
    let needed = table.columns.iter().filter(|column| !column.nullable && !SUPPLIED.contains(&column.name));
    needed.map(|column| column.name).filter(|name| schema.field_with_name(name).is_err())
}

/// The batch with the columns of the table first, in their types, and the others behind.
///
/// # Errors
/// A null where none may be, or a value that the type of the column cannot hold, with file, row and column.
pub(super) fn to_table(
    table: &Table,
    batch: &RecordBatch,
    head_dim: u32,
    path: &Path,
    first_row: u64,
) -> Result<RecordBatch> {
    let mut fields: Vec<FieldRef> = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    let wanted = table.arrow();
    for (column, field) in table.columns.iter().zip(wanted.fields()) {
        let Some(array) = batch.column_by_name(column.name) else { continue };
        let place =
            |row: usize| format!("`{}`: row {}, column `{}`", path.display(), first_row + row as u64, column.name);
        if let (false, Some(row)) = (column.nullable, first_null(array)) {
            return Err(Error::data(format!("{}: expected a value, found null", place(row))));
        }
        let kind = kind_of(column, head_dim);
        let cast = lossless(array, &kind).map_err(|(row, why)| Error::data(format!("{}: {why}", place(row))))?;
        fields.push(Arc::new(field.as_ref().clone().with_data_type(kind)));
        columns.push(cast);
    }
    for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
        if table.column(field.name()).is_none() {
            fields.push(field.clone());
            columns.push(array.clone());
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn kind_of(column: &Column, head_dim: u32) -> DataType {
    match column.kind {
        Type::Vector => {
            let width = i32::try_from(head_dim).unwrap_or(i32::MAX);
            DataType::FixedSizeList(Arc::new(Field::new("element", DataType::Float32, false)), width)
        }
        kind => kind.arrow(),
    }
}

fn first_null(array: &ArrayRef) -> Option<usize> {
    if array.null_count() == 0 { None } else { (0..array.len()).find(|row| array.is_null(*row)) }
}

/// The array in another type, if casting it back gives the same values; else the first row that differs, and why.
fn lossless(array: &ArrayRef, kind: &DataType) -> std::result::Result<ArrayRef, (usize, String)> {
    if array.data_type() == kind {
        return Ok(array.clone());
    }
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let misfit = |row: usize| (row, format!("expected {kind}, found {}", array.data_type()));
    if let Some(row) = row_with_null_child(array) {
        return Err((row, "expected a list without nulls, found one".to_owned()));
    }
    // Between kinds of value (text to number, float to int) a cast would guess.
    if !kin(array.data_type(), kind) {
        return Err(misfit(0));
    }
    let cast = cast_with_options(array, kind, &strict).map_err(|error| (0, format!("{}: {error}", misfit(0).1)))?;
    let back = cast_with_options(&cast, array.data_type(), &strict).map_err(|_| misfit(0))?;
    match (0..array.len()).find(|row| array.slice(*row, 1) != back.slice(*row, 1)) {
        Some(row) => Err((row, format!("{}: the value does not fit", misfit(row).1))),
        None => Ok(cast),
    }
}

/// Whether two types hold the same kind of value.
fn kin(from: &DataType, to: &DataType) -> bool {
    let child = |kind: &DataType| match kind {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            Some(field.data_type().clone())
        }
        _ => None,
    };
    let text = |kind: &DataType| match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, value) => matches!(**value, DataType::Utf8 | DataType::LargeUtf8),
        _ => false,
    };
    match (child(from), child(to)) {
        (Some(from), Some(to)) => kin(&from, &to),
        (None, None) => {
            (from.is_integer() && to.is_integer())
                || (from.is_floating() && to.is_floating())
                || (text(from) && text(to))
                || from == to
        }
        _ => false,
    }
}

/// The first row of a list column whose list holds a null.
fn row_with_null_child(array: &ArrayRef) -> Option<usize> {
    let holds = |values: Option<ArrayRef>| values.is_some_and(|values| values.null_count() > 0);
    match array.data_type() {
        DataType::List(_) => {
            let lists: &ListArray = array.as_list_opt::<i32>()?;
            if lists.values().null_count() == 0 {
                return None;
            }
            (0..lists.len()).find(|row| holds(lists.is_valid(*row).then(|| lists.value(*row))))
        }
        DataType::LargeList(_) => {
            let lists = array.as_list_opt::<i64>()?;
            if lists.values().null_count() == 0 {
                return None;
            }
            (0..lists.len()).find(|row| holds(lists.is_valid(*row).then(|| lists.value(*row))))
        }
        DataType::FixedSizeList(_, _) => {
            let lists: &FixedSizeListArray = array.as_fixed_size_list_opt()?;
            if lists.values().null_count() == 0 {
                return None;
            }
            (0..lists.len()).find(|row| holds(lists.is_valid(*row).then(|| lists.value(*row))))
        }
        _ => None,
    }
}
