use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{Int64Type, UInt64Type};
use engine::schema::captured::{ANNOTATIONS, KERNELS};
use parquet::arrow::ArrowWriter;

use super::super::tests::{Bench, check_law, quarantine, text};
use super::super::{Options, Sniff, inspect};

fn table(folder: &Path, name: &str, columns: Vec<(&str, ArrayRef)>) -> String {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let path = folder.join(format!("{name}.parquet"));
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path.to_str().unwrap().to_owned()
}

fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// Tables with the names and columns of the SQLite export; no real export of this kind was at hand.
#[test]
fn a_folder_is_one_capture() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let (pid, tid) = (5_i64 << 24, (5_i64 << 24) | 7);
    let path = table(
        folder.path(),
        "CUPTI_ACTIVITY_KIND_KERNEL",
        vec![
            ("start", ints(&[100, 200, 300])),
            ("end", ints(&[110, 230, 290])),
            ("correlationId", Arc::new(Int32Array::from(vec![1, 2, 3]))),
            ("globalPid", Arc::new(UInt64Array::from(vec![pid as u64; 3]))),
            ("demangledName", ints(&[1, 1, 1])),
        ],
    );
    table(
        folder.path(),
        "StringIds",
        vec![("id", ints(&[1, 2])), ("value", Arc::new(StringArray::from(vec!["gemm", "cudaLaunchKernel"])))],
    );
    let runtime = table(
        folder.path(),
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        vec![
            ("start", ints(&[90])),
            ("end", ints(&[95])),
            ("globalTid", ints(&[tid])),
            ("correlationId", ints(&[1])),
            ("nameId", ints(&[2])),
        ],
    );
    assert!(
        !inspect(&path)
            .unwrap()
            .verdicts
            .iter()
            .any(|(name, sniff)| { (*sniff == Sniff::Yes) != (*name == "nsys_parquet") })
    );
    assert!(inspect(&runtime).is_err(), "a capture is named by its kernels");
    let summary = &bench.ingest(&[&path], &quarantine()).unwrap()[0];
    assert_eq!((summary.format, summary.rows_in, summary.rows_rejected), ("nsys_parquet", 4, 1));
    check_law(&bench);
    let entry = bench.store().manifest().sources[0].clone();
    let names: Vec<&str> = entry.companions.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["CUPTI_ACTIVITY_KIND_RUNTIME.parquet", "StringIds.parquet"]);
    let kernels = bench.store().read(&KERNELS).unwrap();
    let column = |name: &str| kernels[0].column_by_name(name).unwrap().clone();
    assert_eq!(column("duration_ns").as_primitive::<Int64Type>().values().to_vec(), [10, 30]);
    assert_eq!(column("launch_ns").as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(90), None]);
    assert_eq!(column("process").as_primitive::<UInt64Type>().value(0), 5);
    assert_eq!(text(&kernels, "name")[0].as_deref(), Some("gemm"));
    assert_eq!(text(&bench.store().read(&ANNOTATIONS).unwrap(), "name")[0].as_deref(), Some("cudaLaunchKernel"));
}

/// What another table says changes the rows, so that it makes another source.
#[test]
fn the_other_tables_are_part_of_the_source() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let kernel = vec![("start", ints(&[100])), ("end", ints(&[110])), ("demangledName", ints(&[1]))];
    let path = table(folder.path(), "CUPTI_ACTIVITY_KIND_KERNEL", kernel);
    for name in ["gemm", "flash"] {
        let values: ArrayRef = Arc::new(StringArray::from(vec![name]));
        table(folder.path(), "StringIds", vec![("id", ints(&[1])), ("value", values)]);
        bench.ingest(&[&path], &Options::standard()).unwrap();
        let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
        assert!(error.contains("expected a new file"), "{error}");
    }
    let sources = bench.store().manifest().sources.clone();
    assert_eq!(sources[0].own_sha256, sources[1].own_sha256);
    assert_ne!(sources[0].sha256, sources[1].sha256);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_folder_is_refused() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let path = table(folder.path(), "CUPTI_ACTIVITY_KIND_KERNEL", vec![("start", ints(&[1])), ("end", ints(&[2]))]);
    assert!(
        std::process::Command::new("mkfifo").arg(folder.path().join("StringIds.parquet")).status().unwrap().success()
    );
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("StringIds.parquet`, found a pipe, a socket or a device"), "{error}");
}

#[test]
fn damaged_tables_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path =
        table(folder.path(), "CUPTI_ACTIVITY_KIND_KERNEL", vec![("start", ints(&[1, 2])), ("end", ints(&[3, 4]))]);
    let whole = std::fs::read(&path).unwrap();
    for cut in (4..whole.len()).step_by(7) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let bench = Bench::new();
        let error = bench.ingest(&[&path], &Options::standard()).unwrap_err();
        assert_eq!(error.kind(), engine::error::Kind::Data, "{error}");
    }
}
