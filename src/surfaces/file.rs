//! The Parquet form of a surface.
//!
//! Columns are those of `op_timings` that say something (texts of the key that are not empty, lengths that are not zero
//! throughout) and `log_efficiency_steps`: the natural logarithm of roofline time over measured time, in steps of the
//! size that the metadata names. Rows are sorted by key and shape, so that lengths come in runs and neighbouring
//! efficiencies differ little; both are packed as differences. A surface of 50,000 points takes some 80 kB.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int16Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{Int16Type, UInt64Type};
use engine::error::{Error, Result};
use engine::surface::{Dim, Errors, Key, Peaks, Rows, STEP, Shape, Surface, Tuning, Uneven};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde::{Deserialize, Serialize};

use super::Calibrated;
use crate::unbroken::unbroken;

/// Key of the metadata.
const META: &str = "kvtoll.surface";

/// Version of this form.
const FORM: &str = "kvtoll.surface.v1";

/// Name of the column of efficiencies.
const VALUES: &str = "log_efficiency_steps";

/// Zstd level: files are written once and read often.
const LEVEL: i32 = 19;

/// Where measurements come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Who measured, and where it was published.
    pub origin: String,
    /// Under which licence.
    pub licence: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    form: String,
    device: String,
    framework: String,
    op: String,
    #[serde(flatten)]
    origin: Origin,
    step: f64,
    rows: usize,
    impossible: usize,
    peaks: Rates,
    tuning: Numbers,
    errors: Stated,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    uneven: Vec<Way>,
}

/// [`Uneven`].
#[derive(Debug, Serialize, Deserialize)]
struct Way {
    /// Texts of the key that are not empty, by the columns of `op_timings`.
    key: BTreeMap<String, String>,
    tensor_parallel: u64,
    requests: u64,
    share: f64,
}

/// [`Peaks`]; an unknown cache is null.
#[derive(Debug, Serialize, Deserialize)]
struct Rates {
    memory_bytes_per_s: f64,
    cache_bytes: Option<f64>,
    flops_16bit: f64,
    flops_8bit: f64,
    flops_4bit: f64,
    link_bytes_per_s: f64,
    processors: f64,
}

/// [`Tuning`].
#[derive(Debug, Serialize, Deserialize)]
struct Numbers {
    scales: Vec<(String, f64)>,
    neighbours: usize,
    length: f64,
    nugget: f64,
    slope: f64,
    smoothness: u8,
    offset: f64,
    /// None in surfaces without a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<f64>,
}

/// [`Errors`].
#[derive(Debug, Serialize, Deserialize)]
struct Stated {
    rows: usize,
    median: f64,
    p90: f64,
    p99: f64,
    bias: f64,
    bias_error: f64,
}

/// The bytes of a surface's file.
///
/// # Errors
/// Parquet cannot write it.
pub fn encode(calibrated: &Calibrated) -> Result<Vec<u8>> {
    let failed = |error: &dyn std::fmt::Display| Error::run(format!("cannot write a surface: {error}"));
    let batch = batch_of(&calibrated.surface)?;
    let meta = serde_json::to_string(&meta_of(calibrated)).map_err(|error| failed(&error))?;
    let level = ZstdLevel::try_new(LEVEL).map_err(|error| failed(&error))?;
    let values = ColumnPath::from(VALUES);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_dictionary_enabled(values.clone(), false)
        .set_column_encoding(values, Encoding::DELTA_BINARY_PACKED)
        .set_created_by("kvtoll".to_owned())
        .set_key_value_metadata(Some(vec![KeyValue::new(META.to_owned(), meta)]))
        .build();
    let mut writer =
        ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).map_err(|error| failed(&error))?;
    writer.write(&batch).map_err(|error| failed(&error))?;
    writer.into_inner().map_err(|error| failed(&error))
}

/// What a surface says of itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Device as the measurements name it.
    pub device: String,
    /// Framework, in lower case.
    pub framework: String,
    /// The operation.
    pub op: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Measured rows that it was fitted to.
    pub rows: usize,
    /// Rows that were physically impossible.
    pub impossible: usize,
    /// Errors of points that were left out.
    pub errors: Errors,
}

/// What a file of a surface says of itself; its points are not read.
///
/// # Errors
/// A file that is no surface of a form that is known.
pub(super) fn summary(file: &File, path: &str) -> Result<Summary> {
    Ok(summary_of(open(file, path)?.1))
}

fn summary_of(meta: Meta) -> Summary {
    let Stated { rows, median, p90, p99, bias, bias_error } = meta.errors;
    Summary {
        device: meta.device,
        framework: meta.framework,
        op: meta.op,
        origin: meta.origin,
        rows: meta.rows,
        impossible: meta.impossible,
        errors: Errors { rows, median, p90, p99, bias, bias_error },
    }
}

fn unreadable(path: &str, why: &dyn std::fmt::Display) -> Error {
    Error::data(format!("cannot read the surface `{path}`: {why}"))
}

/// The file's rows, still unread, and its metadata.
fn open(file: &File, path: &str) -> Result<(ParquetRecordBatchReaderBuilder<File>, Meta)> {
    let failed = |why: &dyn std::fmt::Display| unreadable(path, why);
    let file = file.try_clone().map_err(|error| failed(&error))?;
    // The Arrow schema that Parquet files carry beside their own says nothing more, and its reader panics where it is damaged.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = unbroken(|| ParquetRecordBatchReaderBuilder::try_new_with_options(file, options));
    let builder = builder.map_err(|why| failed(&why))?.map_err(|error| failed(&error))?;
    let entries = builder.metadata().file_metadata().key_value_metadata();
    let meta = entries.and_then(|all| all.iter().find(|entry| entry.key == META)).and_then(|entry| entry.value.clone());
    let meta = meta.ok_or_else(|| failed(&format!("expected metadata `{META}`, found none")))?;
    let meta: Meta = serde_json::from_str(&meta).map_err(|error| failed(&error))?;
    if meta.form != FORM {
        return Err(failed(&format!("expected the form `{FORM}`, found `{}`", meta.form)));
    }
    Ok((builder, meta))
}

/// The surface in a file; `path` names it in messages.
///
/// # Errors
/// A file that is no surface of a form that is known.
pub fn decode(file: &File, path: &str) -> Result<Calibrated> {
    let failed = |why: &dyn std::fmt::Display| unreadable(path, why);
    let (builder, meta) = open(file, path)?;
    let rows = usize::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or_default();
    let read = || -> parquet::errors::Result<Vec<RecordBatch>> {
        Ok(builder.with_batch_size(rows.max(1)).build()?.collect::<std::result::Result<_, _>>()?)
    };
    let batches = unbroken(read).map_err(|why| failed(&why))?.map_err(|error| failed(&error))?;
    let (mut found, mut values) = (Rows::default(), Vec::new());
    for batch in &batches {
        add(batch, meta.step, &mut found, &mut values).ok_or_else(|| {
            failed(&format!("expected a column `{VALUES}` of whole numbers beside lengths and texts"))
        })?;
    }
    let (peaks, tuning, uneven) = (peaks_of(&meta.peaks), tuning_of(&meta.tuning), uneven_of(&meta.uneven));
    let Summary { device, framework, op, origin, rows, impossible, errors } = summary_of(meta);
    let surface = Arc::new(Surface::new(&op, &found, &values, peaks, tuning).with_uneven(uneven));
    Ok(Calibrated { device, framework, surface, origin, rows, impossible, errors })
}

/// Bytes as a file, which is what Parquet reads.
pub(super) fn on_disk(bytes: &[u8], name: &str) -> Result<File> {
    let written = tempfile::tempfile().and_then(|mut file| file.write_all(bytes).map(|()| file));
    written.map_err(|error| Error::run(format!("cannot unpack the surface `{name}` into a temporary file: {error}")))
}

/// The points as columns; those without anything to say are left out.
fn batch_of(surface: &Surface) -> Result<RecordBatch> {
    let points: Vec<(&Key, Shape, f64)> = surface
        .keys()
        .enumerate()
        .flat_map(|(group, key)| surface.points(group).map(move |(shape, value)| (key, shape, value)))
        .collect();
    let mut columns: Vec<(&str, ArrayRef)> = Vec::new();
    for (at, name) in Key::COLUMNS.into_iter().enumerate() {
        if points.iter().any(|(key, ..)| !key.texts()[at].is_empty()) {
            let texts: StringArray = points.iter().map(|(key, ..)| Some(key.texts()[at])).collect();
            columns.push((name, Arc::new(texts)));
        }
    }
    for dim in Dim::ALL {
        if points.iter().any(|(_, shape, _)| shape.get(dim) > 0) {
            let lengths: UInt64Array = points.iter().map(|(_, shape, _)| Some(shape.get(dim))).collect();
            columns.push((dim.column(), Arc::new(lengths)));
        }
    }
    let most = f64::from(i16::MAX);
    let values: Int16Array =
        points.iter().map(|(.., value)| Some((value / STEP).round().clamp(-most, most) as i16)).collect();
    columns.push((VALUES, Arc::new(values)));
    Ok(RecordBatch::try_from_iter(columns)?)
}

fn add(batch: &RecordBatch, step: f64, rows: &mut Rows, values: &mut Vec<f64>) -> Option<()> {
    let mut texts = Vec::new();
    for name in Key::COLUMNS {
        texts.push(match batch.column_by_name(name) {
            Some(column) => Some(column.as_string_opt::<i32>()?),
            None => None,
        });
    }
    let mut lengths = Vec::new();
    for dim in Dim::ALL {
        if let Some(column) = batch.column_by_name(dim.column()) {
            lengths.push((dim, column.as_primitive_opt::<UInt64Type>()?));
        }
    }
    let steps =
        batch.column_by_name(VALUES)?.as_primitive_opt::<Int16Type>().filter(|steps| steps.null_count() == 0)?;
    for row in 0..batch.num_rows() {
        let mut of_key = [""; 8];
        for (text, column) in of_key.iter_mut().zip(&texts) {
            *text = column.map_or("", |column| column.value(row));
        }
        let shape = lengths.iter().fold(Shape::default(), |shape, (dim, column)| shape.with(*dim, column.value(row)));
        rows.push(&Key::of(of_key), shape, 0.0);
        values.push(f64::from(steps.value(row)) * step);
    }
    Some(())
}

fn meta_of(calibrated: &Calibrated) -> Meta {
    let (peaks, tuning) = (calibrated.surface.peaks(), calibrated.surface.tuning().clone());
    let Errors { rows, median, p90, p99, bias, bias_error } = calibrated.errors;
    Meta {
        form: FORM.to_owned(),
        device: calibrated.device.clone(),
        framework: calibrated.framework.clone(),
        op: calibrated.surface.op().to_owned(),
        origin: calibrated.origin.clone(),
        step: STEP,
        rows: calibrated.rows,
        impossible: calibrated.impossible,
        peaks: Rates {
            memory_bytes_per_s: peaks.memory_bytes_per_s,
            cache_bytes: peaks.known().then_some(peaks.cache_bytes),
            flops_16bit: peaks.flops_16bit,
            flops_8bit: peaks.flops_8bit,
            flops_4bit: peaks.flops_4bit,
            link_bytes_per_s: peaks.link_bytes_per_s,
            processors: peaks.processors,
        },
        tuning: Numbers {
            scales: tuning.scales,
            neighbours: tuning.neighbours,
            length: tuning.length,
            nugget: tuning.nugget,
            slope: tuning.slope,
            smoothness: tuning.smoothness,
            offset: tuning.offset,
            start: Some(tuning.start).filter(|start| *start > 0.0),
        },
        errors: Stated { rows, median, p90, p99, bias, bias_error },
        uneven: calibrated.surface.uneven().iter().map(way_of).collect(),
    }
}

fn way_of(uneven: &Uneven) -> Way {
    let Uneven { tensor_parallel, requests, share, .. } = *uneven;
    let texts = Key::COLUMNS.into_iter().zip(uneven.key.texts()).filter(|(_, text)| !text.is_empty());
    let key = texts.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    Way { key, tensor_parallel, requests, share }
}

fn uneven_of(ways: &[Way]) -> Vec<Uneven> {
    let of = |way: &Way| Uneven {
        key: Key::of(Key::COLUMNS.map(|name| way.key.get(name).map_or("", String::as_str))),
        tensor_parallel: way.tensor_parallel,
        requests: way.requests,
        share: way.share.clamp(0.0, 1.0),
    };
    ways.iter().map(of).collect()
}

fn peaks_of(rates: &Rates) -> Peaks {
    Peaks {
        memory_bytes_per_s: rates.memory_bytes_per_s,
        cache_bytes: rates.cache_bytes.unwrap_or(f64::INFINITY),
        flops_16bit: rates.flops_16bit,
        flops_8bit: rates.flops_8bit,
        flops_4bit: rates.flops_4bit,
        link_bytes_per_s: rates.link_bytes_per_s,
        processors: rates.processors,
    }
}

fn tuning_of(numbers: &Numbers) -> Tuning {
    Tuning {
        scales: numbers.scales.clone(),
        neighbours: numbers.neighbours,
        length: numbers.length,
        nugget: numbers.nugget,
        slope: numbers.slope,
        smoothness: numbers.smoothness,
        offset: numbers.offset,
        start: numbers.start.unwrap_or(0.0),
    }
}
