//! Measured operations from files of any format that has them.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, UInt32Type, UInt64Type};
use engine::error::{Error, Result};
use engine::schema::captured::OP_TIMINGS;
use engine::surface::{Dim, Key, Rows, Shape, UnevenRow, pool};

use crate::ingest::{self, SKEW_TABLE, SKEW_TABLE_OFF};

/// Measured rows of one device, framework and operation.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Device as the file names it.
    pub device: String,
    /// Framework, in lower case; empty where the file names none.
    pub framework: String,
    /// The operation, as in `op_timings`.
    pub op: String,
    /// The rows.
    pub rows: Rows,
    /// Rows of batches whose contexts differ, which a surface over one context cannot hold, and of the even ones that were
    /// measured beside them.
    pub uneven: usize,
    /// What those rows say.
    pub skewed: Skewed,
}

/// Tables of batches whose contexts differ. Their times are on a scale of their own, and never stand beside others.
#[derive(Debug, Clone, Default)]
pub struct Skewed {
    /// Even batches by model and shape.
    even: BTreeMap<(String, Shape), f64>,
    /// Uneven ones by the shape of the mean, with the longest context.
    uneven: Vec<(String, Shape, u64, f64)>,
}

impl Skewed {
    /// Each uneven batch with the even ones at its mean and at its longest context.
    pub fn rows(&self) -> Vec<UnevenRow> {
        let row = |(model, shape, longest, uneven_ns): &(String, Shape, u64, f64)| {
            let even = |shape: Shape| self.even.get(&(model.clone(), shape)).copied();
            Some(UnevenRow {
                model: model.clone(),
                tensor_parallel: shape.get(Dim::TensorParallel),
                requests: shape.get(Dim::Batch),
                mean_ns: even(*shape)?,
                longest_ns: even(shape.with(Dim::PastTokens, *longest))?,
                uneven_ns: *uneven_ns,
            })
        };
        self.uneven.iter().filter_map(row).collect()
    }

    fn add(&mut self, model: &str, shape: Shape, skew: Option<f64>, latency_ns: f64) {
        let Some(skew) = skew else {
            self.even.insert((model.to_owned(), shape), latency_ns);
            return;
        };
        // The skew is the longest context over the mean, both whole numbers.
        let longest = (skew * shape.get(Dim::PastTokens) as f64).round() as u64;
        self.uneven.push((model.to_owned(), shape, longest, latency_ns));
    }
}

/// The measured operations of a file, by device, framework and operation, in that order.
///
/// # Errors
/// A file that cannot be read, has bad rows, or holds no measured operations.
pub fn read(path: &str) -> Result<Vec<Measured>> {
    let mut found = BTreeMap::new();
    ingest::gather(path, &OP_TIMINGS, &mut |batch| add(&batch, &mut found))?;
    if found.is_empty() {
        return Err(Error::data(format!("expected measured operations in `{path}`, found none")).hint(
            "`kvtoll list formats` shows the formats; those with measured operations fill the table `op_timings`",
        ));
    }
    Ok(found.into_values().collect())
}

/// Joins measurements of several files; what they have in common becomes one.
pub fn together(files: Vec<Vec<Measured>>) -> Vec<Measured> {
    let mut all: BTreeMap<(String, String, String), Measured> = BTreeMap::new();
    for measured in files.into_iter().flatten() {
        let name = (measured.device.clone(), measured.framework.clone(), measured.op.clone());
        if let Some(known) = all.get_mut(&name) {
            known.uneven += measured.uneven;
            known.skewed.even.extend(measured.skewed.even);
            known.skewed.uneven.extend(measured.skewed.uneven);
            for ((key, shape), latency) in
                measured.rows.key.iter().zip(&measured.rows.shapes).zip(&measured.rows.latency_ns)
            {
                known.rows.push(&measured.rows.keys[*key], *shape, *latency);
            }
        } else {
            all.insert(name, measured);
        }
    }
    all.into_values().collect()
}

type Found = BTreeMap<(String, String, String), Measured>;

/// A column of numbers, in either width.
enum Lengths<'a> {
    Small(&'a arrow::array::UInt32Array),
    Whole(&'a arrow::array::UInt64Array),
}

impl Lengths<'_> {
    /// The value, 0 where it is unknown.
    fn get(&self, row: usize) -> u64 {
        match self {
            Self::Small(column) if column.is_valid(row) => u64::from(column.value(row)),
            Self::Whole(column) if column.is_valid(row) => column.value(row),
            _ => 0,
        }
    }
}

fn add(batch: &RecordBatch, found: &mut Found) -> Result<()> {
    let missing = |name: &str| Error::data(format!("expected a column `{name}` in `op_timings`, found none"));
    let column = |name: &str| batch.column_by_name(name).ok_or_else(|| missing(name));
    let texts = |name: &str| column(name)?.as_string_opt::<i32>().ok_or_else(|| missing(name));
    let dims: Vec<(Dim, Lengths<'_>)> = Dim::ALL
        .into_iter()
        // The width of elements follows from the number format.
        .filter(|dim| *dim != Dim::ElementBytes)
        .map(|dim| {
            let column = column(dim.column())?;
            let lengths = match column.data_type() {
                DataType::UInt32 => column.as_primitive_opt::<UInt32Type>().map(Lengths::Small),
                _ => column.as_primitive_opt::<UInt64Type>().map(Lengths::Whole),
            };
            Ok((dim, lengths.ok_or_else(|| missing(dim.column()))?))
        })
        .collect::<Result<_>>()?;
    let (op, device, framework) = (texts("op")?, texts("device")?, texts("framework")?);
    let keys = Key::COLUMNS.iter().map(|name| texts(name)).collect::<Result<Vec<_>>>()?;
    let long = column("long_requests")?;
    let skew = column("skew")?.as_primitive_opt::<Float64Type>().ok_or_else(|| missing("skew"))?;
    let latency = column("latency_ns")?.as_primitive_opt::<Float64Type>().ok_or_else(|| missing("latency_ns"))?;
    for row in 0..batch.num_rows() {
        let text = |column: &'_ arrow::array::StringArray| {
            if column.is_valid(row) { column.value(row).to_owned() } else { String::new() }
        };
        let name = (text(device), text(framework), text(op));
        let measured = found.entry(name.clone()).or_insert_with(|| Measured {
            device: name.0,
            framework: name.1,
            op: name.2,
            rows: Rows::default(),
            uneven: 0,
            skewed: Skewed::default(),
        });
        let mut of_key = [""; 8];
        for (text, column) in of_key.iter_mut().zip(&keys) {
            if column.is_valid(row) {
                *text = column.value(row);
            }
        }
        let shape = dims.iter().fold(Shape::default(), |shape, (dim, lengths)| shape.with(*dim, lengths.get(row)));
        let skewed = (skew.is_valid(row) && (skew.value(row) - 1.0).abs() > 1e-9).then(|| skew.value(row));
        let key = Key::of(of_key);
        let table = key.distribution.as_str();
        if skewed.is_some() || long.is_valid(row) || table == SKEW_TABLE || table == SKEW_TABLE_OFF {
            measured.uneven += 1;
            if table == SKEW_TABLE {
                measured.skewed.add(&key.model, shape, skewed, latency.value(row));
            }
            continue;
        }
        let (key, shape) = pool(&measured.op, key, shape);
        measured.rows.push(&key, shape, latency.value(row));
    }
    Ok(())
}
