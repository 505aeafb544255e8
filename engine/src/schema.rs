//! Every table that kvtoll stores: columns, types, nullability, units and a sentence on each, in one place.
//!
//! Adapters produce these tables, the store writes them, SQL reads them and `kvtoll schema` prints them. Units stand in
//! the column names (`_ns`, `_bytes`, `_tokens`, `_ratio`); unknown is null, never a sentinel; hashes are u64 from end to
//! end; list children are named `element` and are not null.

pub mod balance;
pub mod canonical;
pub mod captured;
pub mod hierarchy;
pub mod result;

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Float32Builder, Float64Builder, Int64Builder, ListBuilder, RecordBatch, StringBuilder,
    UInt16Builder, UInt32Builder, UInt64Builder,
};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};

use crate::error::{Error, Result};

/// The version of the table layouts, kept in every manifest.
pub const VERSION: u32 = 1;

/// The Arrow types in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// True or false.
    Bool,
    /// Unsigned 16-bit.
    U16,
    /// Unsigned 32-bit.
    U32,
    /// Unsigned 64-bit.
    U64,
    /// Signed 64-bit; instants and durations in nanoseconds.
    I64,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// UTF-8 text.
    Text,
    /// List of u32.
    ListU32,
    /// List of u64.
    ListU64,
    /// List of f32.
    ListF32,
    /// A fixed-size list of f32 whose length is the head width of the recording.
    Vector,
}

impl Type {
    /// The Arrow type; `Vector` is shown with length 0, since its length belongs to a recording.
    pub fn arrow(self) -> DataType {
        let list = |item| DataType::List(Arc::new(Field::new("element", item, false)));
        match self {
            Self::Bool => DataType::Boolean,
            Self::U16 => DataType::UInt16,
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
            Self::I64 => DataType::Int64,
            Self::F32 => DataType::Float32,
            Self::F64 => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::ListU32 => list(DataType::UInt32),
            Self::ListU64 => list(DataType::UInt64),
            Self::ListF32 => list(DataType::Float32),
            Self::Vector => DataType::FixedSizeList(Arc::new(Field::new("element", DataType::Float32, false)), 0),
        }
    }
}

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name; the unit is its suffix.
    pub name: &'static str,
    /// Its type.
    pub kind: Type,
    /// Whether a value may be unknown.
    pub nullable: bool,
    /// The unit, empty where there is none.
    pub unit: &'static str,
    /// One sentence.
    pub doc: &'static str,
}

/// Where a table lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// `STORE/<table>/`: what was ingested.
    Store,
    /// `STORE/runs/<run>/<table>/`: what a replay found.
    Run,
}

/// One table.
#[derive(Debug)]
pub struct Table {
    /// Its name in SQL and on disk.
    pub name: &'static str,
    /// What one row is, as a sentence.
    pub doc: &'static str,
    /// Where it lives.
    pub scope: Scope,
    /// Its columns in order.
    pub columns: &'static [Column],
}

impl Table {
    /// The Arrow schema, with unit and documentation as field metadata.
    pub fn arrow(&self) -> SchemaRef {
        let fields: Vec<FieldRef> = self.columns.iter().map(|column| Arc::new(column.field())).collect();
        Arc::new(Schema::new(fields))
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

impl Column {
    fn field(&self) -> Field {
        let metadata = [("doc", self.doc), ("unit", self.unit)]
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(key, text)| (key.to_owned(), text.to_owned()));
        Field::new(self.name, self.kind.arrow(), self.nullable).with_metadata(metadata.collect())
    }
}

/// A column that is always known.
pub(crate) const fn known(name: &'static str, kind: Type, unit: &'static str, doc: &'static str) -> Column {
    Column { name, kind, nullable: false, unit, doc }
}

/// A column that may be unknown.
pub(crate) const fn maybe(name: &'static str, kind: Type, unit: &'static str, doc: &'static str) -> Column {
    Column { name, kind, nullable: true, unit, doc }
}

/// Every table, in the order in which `kvtoll schema` lists them.
pub static ALL: &[&Table] = &[
    &canonical::SOURCES,
    &canonical::IMPORT_LOG,
    &canonical::REJECTS,
    &canonical::RECORDINGS,
    &canonical::REQUESTS,
    &canonical::CONTEXT_SEGMENTS,
    &canonical::ENGINE_SAMPLES,
    &canonical::STEPS,
    &canonical::ATTENTION,
    &canonical::SELECTIONS,
    &canonical::PREFILL_SCORES,
    &canonical::KV_STATS,
    &canonical::QUERIES,
    &canonical::KV_VECTORS,
    &captured::KERNELS,
    &captured::COUNTERS,
    &captured::ANNOTATIONS,
    &captured::ACCESSES,
    &captured::BLOCK_EVENTS,
    &captured::OP_TIMINGS,
    &result::SCENARIOS,
    &result::DEMAND,
    &result::ATTENTION_ERROR,
    &result::KEPT_PAGES,
    &result::KEPT_OVERLAP,
    &result::STEP_COSTS,
    &result::REQUEST_COSTS,
    &result::QUANTILES,
    &result::JITTER,
    &result::TIER_USAGE,
    &result::LINK_USAGE,
    &result::MISS_RATIO,
    &result::SESSION_TURNS,
    &result::CONTEXT_EDITS,
    &result::SESSION_COSTS,
    &result::SESSION_SPAN,
    &result::SESSION_MEMORY,
    &result::SESSION_KEEPING,
    &hierarchy::BLOCKS,
    &hierarchy::GAPS,
    &hierarchy::BLOCK_SIZES,
    &hierarchy::FETCHES,
    &hierarchy::FETCH_TOTALS,
    &hierarchy::ATTENTION_READS,
    &hierarchy::NEAR_SIZES,
    &hierarchy::DESK,
    &hierarchy::YIELDS,
    &hierarchy::COPIES,
    &hierarchy::EQUAL_COST,
    &result::METRICS,
    &result::METRIC_DEFS,
    &result::MODELS,
    &result::MACHINES,
    &result::TIERS,
    &result::PRICES,
    &balance::PROMISES,
    &balance::LEDGER,
    &balance::STACKING,
    &balance::STACKING_SHARES,
    &balance::SPEC,
    &balance::VALIDATION,
];

/// The table of this name.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn table(name: &str) -> Result<&'static Table> {
    let found = ALL.iter().find(|table| table.name == name);
    found.copied().ok_or_else(|| crate::error::unknown("table", name, ALL.iter().map(|table| table.name)))
}

/// One cell on its way into a column; `Null` for unknown.
#[derive(Debug, Clone)]
pub enum Cell {
    /// Unknown.
    Null,
    /// For `Bool`.
    Bool(bool),
    /// For the unsigned types and `I64`.
    Int(i128),
    /// For `F32` and `F64`.
    Real(f64),
    /// For `Text`.
    Text(String),
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

macro_rules! cell_from {
    ($($from:ty => $value:ident $into:expr),* $(,)?) => {
        $(impl From<$from> for Cell {
            fn from($value: $from) -> Self {
                $into
            }
        })*
    };
}
cell_from!(
    bool => value Self::Bool(value),
    u16 => value Self::Int(value.into()),
    u32 => value Self::Int(value.into()),
    u64 => value Self::Int(value.into()),
    i64 => value Self::Int(value.into()),
    f64 => value Self::Real(value),
    f32 => value Self::Real(value.into()),
    &str => value Self::Text(value.to_owned()),
    String => value Self::Text(value),
);

/// Builds a batch of a small table from rows of cells. Not for the hot path: metrics, scenarios, presets.
///
/// # Errors
/// A row of the wrong width, a cell of the wrong type or out of range, or an unknown value in a column that is always
/// known.
pub fn batch_of_rows(table: &Table, rows: &[Vec<Cell>]) -> Result<RecordBatch> {
    let columns: Result<Vec<ArrayRef>> = (0..table.columns.len()).map(|at| cells(table, at, rows)).collect();
    Ok(RecordBatch::try_new(table.arrow(), columns?)?)
}

fn cells(table: &Table, at: usize, rows: &[Vec<Cell>]) -> Result<ArrayRef> {
    let column = &table.columns[at];
    let wrong = |cell: &Cell| Error::data(format!("`{}.{}` cannot hold {cell:?}", table.name, column.name));
    macro_rules! build {
        ($builder:expr, $cell:pat => $value:expr) => {{
            let mut builder = $builder;
            for row in rows {
                match row.get(at).ok_or_else(|| Error::data(format!("a row of `{}` is too short", table.name)))? {
                    Cell::Null if column.nullable => builder.append_null(),
                    $cell => builder.append_value($value),
                    other => return Err(wrong(other)),
                }
            }
            Ok(Arc::new(builder.finish()) as ArrayRef)
        }};
    }
    macro_rules! int {
        ($builder:expr, $kind:ty) => {
            build!($builder, Cell::Int(value) => <$kind>::try_from(*value).map_err(|_| {
                let (of, kind) = (format!("`{}.{}`", table.name, column.name), stringify!($kind));
                Error::data(format!("{of}: expected a whole number that fits {kind}, found {value}"))
            })?)
        };
    }
    match column.kind {
        Type::Bool => build!(BooleanBuilder::new(), Cell::Bool(value) => *value),
        Type::U16 => int!(UInt16Builder::new(), u16),
        Type::U32 => int!(UInt32Builder::new(), u32),
        Type::U64 => int!(UInt64Builder::new(), u64),
        Type::I64 => int!(Int64Builder::new(), i64),
        Type::F32 => build!(Float32Builder::new(), Cell::Real(value) => *value as f32),
        Type::F64 => build!(Float64Builder::new(), Cell::Real(value) => *value),
        Type::Text => build!(StringBuilder::new(), Cell::Text(value) => value),
        Type::ListU32 | Type::ListU64 | Type::ListF32 | Type::Vector => {
            Err(Error::data(format!("`{}.{}` is a list; build it as a column", table.name, column.name)))
        }
    }
}

/// A builder for a list column whose child is named `element` and not null.
pub fn list_u64() -> ListBuilder<UInt64Builder> {
    list_u64_of(0)
}

/// As [`list_u64`], with room for so many entries.
pub fn list_u64_of(entries: usize) -> ListBuilder<UInt64Builder> {
    ListBuilder::new(UInt64Builder::with_capacity(entries)).with_field(Field::new("element", DataType::UInt64, false))
}

/// As [`list_u64`], of u32.
pub fn list_u32() -> ListBuilder<UInt32Builder> {
    ListBuilder::new(UInt32Builder::new()).with_field(Field::new("element", DataType::UInt32, false))
}

/// As [`list_u64`], of f32.
pub fn list_f32() -> ListBuilder<Float32Builder> {
    ListBuilder::new(Float32Builder::new()).with_field(Field::new("element", DataType::Float32, false))
}

#[cfg(test)]
mod tests;
