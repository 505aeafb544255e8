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
    /// Rows of tables of batches whose contexts differ, which a surface over one context cannot hold.
    pub skewed: Skewed,
}

/// Tables of batches whose contexts differ. Their times are on a scale of their own, and never stand beside others.
///
/// Batches of equal key and shape become one, at the median of their times: the even batches of an uneven one are measured
/// anew for each, and the worst of those differ by a third.
#[derive(Debug, Clone, Default)]
pub struct Skewed {
    /// Times of even batches by key and shape.
    even: BTreeMap<(Key, Shape), Vec<f64>>,
    /// Times of uneven ones, by key, shape of the mean, and what tells them from even ones.
    uneven: BTreeMap<(Key, Shape, Tail), Vec<f64>>,
    /// Rows of tables that are switched off or unknown, and rows without a time.
    passed_over: usize,
}

/// The long contexts of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tail {
    /// Tokens of the longest.
    longest: u64,
    /// Requests that have as many; 0 where it is not known.
    requests: u64,
}

/// Uneven batches beside even ones, and what became of the rows of their table.
#[derive(Debug, Default)]
pub struct Matched {
    /// Each uneven batch with the even ones at its mean and at its longest context.
    pub rows: Vec<UnevenRow>,
    /// Rows of the table that are in those.
    pub used: usize,
    /// Rows that are not: of another table, without a time, or without the other batches.
    pub rejected: usize,
}

impl Skewed {
    /// Rows in all.
    pub fn len(&self) -> usize {
        self.even.values().chain(self.uneven.values()).map(Vec::len).sum::<usize>() + self.passed_over
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each uneven batch with the even ones that bound it. The rows of the table are those that are used and those that are
    /// rejected.
    pub fn matched(&self) -> Matched {
        let (mut rows, mut used, mut beside) = (Vec::new(), 0, BTreeMap::new());
        for ((key, shape, tail), times) in &self.uneven {
            let even = |shape: Shape| self.even.get_key_value(&(key.clone(), shape));
            let (mean, longest) = (even(*shape), even(shape.with(Dim::PastTokens, tail.longest)));
            let Some((mean, longest)) = mean.zip(longest) else { continue };
            let row = UnevenRow {
                key: key.clone(),
                tensor_parallel: shape.get(Dim::TensorParallel),
                requests: shape.get(Dim::Batch),
                mean_ns: median(mean.1),
                longest_ns: median(longest.1),
                uneven_ns: median(times),
            };
            if row.is_usable() {
                used += times.len();
                beside.extend([mean, longest].map(|(name, times)| (name, times.len())));
                rows.push(row);
            }
        }
        used += beside.values().sum::<usize>();
        Matched { rows, used, rejected: self.len() - used }
    }

    /// Adds a row of a table; of an even batch without a tail.
    fn add(&mut self, key: Key, shape: Shape, tail: Option<Tail>, latency_ns: f64) {
        let has_time = latency_ns > 0.0 && latency_ns.is_finite();
        match tail {
            _ if key.distribution != SKEW_TABLE || !has_time => self.passed_over += 1,
            None => self.even.entry((key, shape)).or_default().push(latency_ns),
            Some(tail) => self.uneven.entry((key, shape, tail)).or_default().push(latency_ns),
        }
    }

    /// Takes the rows of another table in.
    fn join(&mut self, other: Self) {
        for (name, times) in other.even {
            self.even.entry(name).or_default().extend(times);
        }
        for (name, times) in other.uneven {
            self.uneven.entry(name).or_default().extend(times);
        }
        self.passed_over += other.passed_over;
    }
}

/// The median of some values, of the two in the middle their mean; not a number without any.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |rank: usize| sorted.get(rank).copied().unwrap_or(f64::NAN);
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
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
            known.skewed.join(measured.skewed);
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
    fn is_known(&self, row: usize) -> bool {
        match self {
            Self::Small(column) => column.is_valid(row),
            Self::Whole(column) => column.is_valid(row),
        }
    }

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
    let lengths = |name: &str| {
        let column = column(name)?;
        let lengths = match column.data_type() {
            DataType::UInt32 => column.as_primitive_opt::<UInt32Type>().map(Lengths::Small),
            _ => column.as_primitive_opt::<UInt64Type>().map(Lengths::Whole),
        };
        lengths.ok_or_else(|| missing(name))
    };
    let dims: Vec<(Dim, Lengths<'_>)> = Dim::ALL
        .into_iter()
        // The width of elements follows from the number format.
        .filter(|dim| *dim != Dim::ElementBytes)
        .map(|dim| Ok((dim, lengths(dim.column())?)))
        .collect::<Result<_>>()?;
    let (op, device, framework) = (texts("op")?, texts("device")?, texts("framework")?);
    let keys = Key::COLUMNS.iter().map(|name| texts(name)).collect::<Result<Vec<_>>>()?;
    let long = lengths("long_requests")?;
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
            skewed: Skewed::default(),
        });
        let mut of_key = [""; 8];
        for (text, column) in of_key.iter_mut().zip(&keys) {
            if column.is_valid(row) {
                *text = column.value(row);
            }
        }
        let shape = dims.iter().fold(Shape::default(), |shape, (dim, lengths)| shape.with(*dim, lengths.get(row)));
        let key = Key::of(of_key);
        let skewed = (skew.is_valid(row) && (skew.value(row) - 1.0).abs() > 1e-9).then(|| Tail {
            // The skew is the longest context over the mean, both whole numbers.
            longest: (skew.value(row) * shape.get(Dim::PastTokens) as f64).round() as u64,
            requests: long.get(row),
        });
        let is_of_table = [SKEW_TABLE, SKEW_TABLE_OFF].contains(&key.distribution.as_str());
        if skewed.is_some() || long.is_known(row) || is_of_table {
            measured.skewed.add(key, shape, skewed, latency.value(row));
            continue;
        }
        let (key, shape) = pool(&measured.op, key, shape);
        measured.rows.push(&key, shape, latency.value(row));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dtype: &str, table: &str) -> Key {
        let [model, dtype, distribution] = ["a/m", dtype, table].map(str::to_owned);
        Key { model, dtype, distribution, ..Key::default() }
    }

    fn batch(past: u64) -> Shape {
        Shape::of(&[(Dim::Batch, 8), (Dim::PastTokens, past), (Dim::TensorParallel, 1)])
    }

    const TAIL: Option<Tail> = Some(Tail { longest: 400, requests: 1 });

    /// Two formats of one model, each beside its own even batches, which were measured several times.
    #[test]
    fn even_batches_are_medians_of_their_own_key() {
        let (mut one, mut two) = (Skewed::default(), Skewed::default());
        for (dtype, scale) in [("bf16", 1.0), ("fp8", 10.0)] {
            for (at, latency) in [(100, 1.0), (100, 1.2), (400, 3.0), (400, 2.0)] {
                one.add(key(dtype, SKEW_TABLE), batch(at), None, scale * latency);
            }
            // The third of the even ones, and far off, comes with another file.
            two.add(key(dtype, SKEW_TABLE), batch(100), None, scale * 9.0);
            two.add(key(dtype, SKEW_TABLE), batch(100), TAIL, scale * 1.5);
        }
        one.join(two);
        let found = one.matched();
        let times: Vec<_> = found.rows.iter().map(|row| [row.mean_ns, row.longest_ns, row.uneven_ns]).collect();
        assert_eq!(times, [[1.2, 2.5, 1.5], [12.0, 25.0, 15.0]]);
        assert_eq!(found.rows.iter().map(|row| row.key.dtype.as_str()).collect::<Vec<_>>(), ["bf16", "fp8"]);
        assert_eq!((one.len(), found.used, found.rejected), (12, 12, 0));
    }

    /// All rows of a table are used or rejected, whatever is wrong with them.
    #[test]
    fn rows_that_nothing_bounds_are_rejected() {
        let mut skewed = Skewed::default();
        for (at, latency) in [(100, 1.0), (400, 2.0), (900, 1.0)] {
            skewed.add(key("bf16", SKEW_TABLE), batch(at), None, latency);
        }
        let tail = |longest: u64, requests: u64| Some(Tail { longest, requests });
        let mut add = |dtype: &str, table: &str, tail: Option<Tail>, latency: f64| {
            skewed.add(key(dtype, table), batch(100), tail, latency);
        };
        // Once more the same batch, and one with more long contexts.
        add("bf16", SKEW_TABLE, TAIL, 1.5);
        add("bf16", SKEW_TABLE, TAIL, 1.7);
        add("bf16", SKEW_TABLE, tail(400, 2), 1.8);
        // Longer contexts take no longer; no even batch at the longest; none of that format; a table that is switched off.
        add("bf16", SKEW_TABLE, tail(900, 1), 1.5);
        add("bf16", SKEW_TABLE, tail(500, 1), 1.5);
        add("fp8", SKEW_TABLE, TAIL, 1.5);
        add("bf16", SKEW_TABLE_OFF, TAIL, 1.5);
        add("bf16", SKEW_TABLE, TAIL, 0.0);
        let found = skewed.matched();
        let times: Vec<_> = found.rows.iter().map(|row| row.uneven_ns).collect();
        assert_eq!(times, [1.6, 1.8]);
        // Beside these three the even batches at 100 and 400 tokens; that at 900 bounds nothing.
        assert_eq!((skewed.len(), found.used, found.rejected), (11, 5, 6));
        assert!(!skewed.is_empty() && Skewed::default().is_empty());
    }
}
