use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::error::Kind;
use engine::schema::canonical::REJECTS;
use engine::schema::captured::{ANNOTATIONS, KERNELS};
use rusqlite::Connection;

use super::super::tests::{Bench, check_law, quarantine, sample, text};
use super::super::{Options, inspect};

fn numbers<T: arrow::array::ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<Option<T::Native>> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().clone());
    let values = |column: arrow::array::PrimitiveArray<T>| -> Vec<Option<T::Native>> {
        (0..column.len()).map(|at| column.is_valid(at).then(|| column.value(at))).collect()
    };
    columns.flat_map(values).collect()
}

/// The figures were counted from the file by another program.
#[test]
fn a_second_of_two_gpus_is_read() {
    let bench = Bench::new();
    let path = sample("nsys_sqlite/h100_2gpu_1s.sqlite.zst");
    let summary = &bench.ingest(&[&path], &Options::standard()).unwrap()[0];
    assert_eq!((summary.format, summary.compression), ("nsys_sqlite", "zstd"));
    // 3,442 kernels, 904 copies, 22 fills; 5,796 calls and 16,782 ranges.
    assert_eq!(summary.tables, [("kernels", 4368), ("annotations", 22_578)]);
    assert_eq!((summary.rows_in, summary.rows_rejected), (26_946, 0));
    check_law(&bench);
    let kernels = bench.store().read(&KERNELS).unwrap();
    let (category, kind) = (text(&kernels, "category"), text(&kernels, "copy_kind"));
    let (duration, bytes) = (numbers::<Int64Type>(&kernels, "duration_ns"), numbers::<UInt64Type>(&kernels, "bytes"));
    let (device, launch) = (numbers::<UInt32Type>(&kernels, "device"), numbers::<Int64Type>(&kernels, "launch_ns"));
    let (mut time, mut unlaunched, mut devices) = (0, 0, BTreeMap::new());
    let mut copies: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for at in 0..category.len() {
        if category[at].as_deref() == Some("kernel") {
            time += duration[at].unwrap();
            unlaunched += u64::from(launch[at].is_none());
            *devices.entry(device[at].unwrap()).or_insert(0) += 1;
        } else if let Some(kind) = &kind[at] {
            let (count, sum) = copies.entry(kind.clone()).or_default();
            *count += 1;
            *sum += bytes[at].unwrap();
        }
    }
    assert_eq!((time, unlaunched, devices.len()), (44_829_522, 1810, 2));
    assert_eq!(devices.values().sum::<u64>(), 3442);
    let expected = [
        ("device_to_device", (450, 59_368_472_576)),
        ("device_to_host", (4, 18)),
        ("host_to_device", (450, 50_950_507_584)),
    ];
    assert_eq!(copies.into_iter().collect::<Vec<_>>(), expected.map(|(kind, sums)| (kind.to_owned(), sums)));
    let missing = summary.log.iter().find(|entry| entry.message.contains("CUPTI_ACTIVITY_KIND_KERNEL")).unwrap();
    assert_eq!((missing.code, missing.count), ("launch_unknown", 1810));
    // The session began 1,779,630,014,975,716,426 ns after 1970, the first kernel 155,360,295,935 ns later.
    assert_eq!(numbers::<Int64Type>(&kernels, "start_ns")[0], Some(1_779_630_014_975_716_426 + 155_360_295_935));
    assert_eq!(summary.settings.clock, Some("epoch"));
    // 281476838981632 >> 24 & 0xffffff
    assert_eq!(numbers::<UInt64Type>(&kernels, "process")[0], Some(111));
    let annotations = bench.store().read(&ANNOTATIONS).unwrap();
    let names = text(&annotations, "name");
    // By correlation alone, without the process, 1,799 have no call: eleven would get one of the other process, which
    // began after they ran.
    let calls: BTreeSet<_> = numbers::<UInt64Type>(&annotations, "correlation")[..5796].iter().copied().collect();
    let correlations = numbers::<UInt64Type>(&kernels, "correlation");
    let alone = (0..category.len()).filter(|at| category[*at].as_deref() == Some("kernel"));
    assert_eq!(alone.filter(|at| !calls.contains(&correlations[*at])).count(), 1799);
    let ranges = text(&annotations, "category").iter().filter(|kind| kind.as_deref() == Some("nvtx")).count();
    assert_eq!(ranges, 16_782);
    assert_eq!(names[5796].as_deref(), Some("aten::view, op_id = 314290"));
    assert!(names.contains(&Some("cudaLaunchKernel_v7000".to_owned())));
    let not_read: Vec<_> = summary.log.iter().filter(|entry| entry.code == "table_not_read").collect();
    assert_eq!(not_read.len(), 1, "{not_read:?}");
}

#[test]
fn a_small_capture_has_its_launches() {
    let bench = Bench::new();
    let path = sample("nsys_sqlite/rtx3080_sum.sqlite");
    let summary = &bench.ingest(&[&path], &Options::standard()).unwrap()[0];
    assert_eq!(summary.tables, [("kernels", 3), ("annotations", 9)]);
    let kernels = bench.store().read(&KERNELS).unwrap();
    let (start, launch) = (numbers::<Int64Type>(&kernels, "start_ns"), numbers::<Int64Type>(&kernels, "launch_ns"));
    for (start, launch) in start.iter().zip(&launch) {
        assert!(launch.unwrap() < start.unwrap(), "a kernel starts after its launch");
    }
    assert_eq!(numbers::<Int64Type>(&kernels, "duration_ns"), [1440, 2689, 1632].map(Some));
    assert_eq!(numbers::<UInt32Type>(&kernels, "registers"), [Some(16), Some(28), None]);
}

/// A database with these statements.
fn database(bench: &Bench, sql: &str) -> String {
    let path = bench.file("capture.sqlite", "");
    let _ = fs::remove_file(&path);
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    path
}

const STRINGS: &str = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel'), (3, 'what the program printed'), (4, 'layer');";

/// An old export: few columns, a suffix, ranges by text id, several processes with the same correlations.
#[test]
fn optional_tables_suffixes_and_several_processes() {
    // Processes 5 and 6, threads 5 and 6.
    let (a, b) = (5_i64 << 24, 6_i64 << 24);
    let sql = format!(
        "{STRINGS}
         CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V3 (start INT, end INT, correlationId INT, globalPid INT, shortName INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL_V3 VALUES (100, 110, 1, {a}, 1), (200, 230, 1, {b}, 9), (300, 300, 0, NULL, 1);
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (90, 95, {a} | 5, 1, 2), (150, 155, {b} | 6, 1, 2);
         CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, domainId INT, globalTid INT);
         INSERT INTO NVTX_EVENTS VALUES
            (1, NULL, 75, 'NCCL', NULL, 7, {a}), (5, 9, 59, NULL, 4, 7, {a} | 5), (6, NULL, 34, 'mark', NULL, 0, {a}),
            (7, NULL, 60, 'open', NULL, 7, {b});
         CREATE TABLE ProcessStreams (globalPid INT, filenameId INT, contentId INT);
         INSERT INTO ProcessStreams VALUES ({a}, NULL, 3);
         CREATE TABLE OSRT_API (start INT); INSERT INTO OSRT_API VALUES (1);
         CREATE TABLE GPU_METRICS (timestamp INT);"
    );
    let bench = Bench::new();
    let summary = &bench.ingest(&[&database(&bench, &sql)], &Options::standard()).unwrap()[0];
    assert_eq!(summary.tables, [("kernels", 3), ("annotations", 5)]);
    assert_eq!(summary.settings.clock, Some("trace_start"));
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<Int64Type>(&kernels, "launch_ns"), [Some(90), Some(150), None]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "process"), [Some(5), Some(6), None]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "correlation"), [Some(1), Some(1), None]);
    let some = |words: &[&str]| words.iter().map(|word| Some((*word).to_owned())).collect::<Vec<_>>();
    assert_eq!(text(&kernels, "name"), some(&["gemm", "unknown 9", "gemm"]));
    let annotations = bench.store().read(&ANNOTATIONS).unwrap();
    assert_eq!(text(&annotations, "name"), some(&["cudaLaunchKernel", "cudaLaunchKernel", "layer", "mark", "open"]));
    assert_eq!(text(&annotations, "domain")[2..], [Some("NCCL".to_owned()), None, None]);
    assert_eq!(numbers::<Int64Type>(&annotations, "duration_ns")[2..], [Some(4), Some(0), None]);
    assert_eq!(numbers::<UInt64Type>(&annotations, "thread")[..2], [Some(5), Some(6)]);
    let codes: Vec<&str> = summary.log.iter().map(|entry| entry.code).collect();
    for code in ["table_not_read", "private_table", "launch_unknown", "name_unknown", "no_range", "no_session_start"] {
        assert!(codes.contains(&code), "{code}: {codes:?}");
    }
    assert!(!format!("{:?}", summary.log).contains("GPU_METRICS"), "an empty table is not missed");
}

/// Two machines whose processes have one number and the same correlations.
#[test]
fn processes_of_two_machines_are_told_apart() {
    let (a, b) = ((1_i64 << 48) | (5 << 24), (2_i64 << 48) | (5 << 24));
    let sql = format!(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, correlationId INT, globalPid INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 110, 1, {a}), (200, 230, 1, {b});
         CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (90, 95, {a} | 7, 1), (150, 155, {b} | 7, 1);
         CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, domainId INT, globalTid INT);
         INSERT INTO NVTX_EVENTS VALUES (1, NULL, 75, 'A', 3, {a}), (1, NULL, 75, 'B', 3, {b}),
            (2, 3, 59, 'in A', 3, {a}), (2, 3, 59, 'in B', 3, {b});"
    );
    let bench = Bench::new();
    let summary = &bench.ingest(&[&database(&bench, &sql)], &Options::standard()).unwrap()[0];
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<Int64Type>(&kernels, "launch_ns"), [Some(90), Some(150)]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "process"), [Some(5), Some(5)]);
    let annotations = bench.store().read(&ANNOTATIONS).unwrap();
    assert_eq!(text(&annotations, "domain")[2..], ["A", "B"].map(|domain| Some(domain.to_owned())));
    let told = summary.log.iter().find(|entry| entry.code == "several_hosts").unwrap();
    assert_eq!(told.count, 3, "a call, a kernel and a range of the second machine");
}

/// SQLite keeps texts in UTF-16 where a program asked for it.
#[test]
fn texts_in_utf_16_are_read() {
    for encoding in ["UTF-16le", "UTF-16be"] {
        let sql = format!(
            "PRAGMA encoding = '{encoding}'; {STRINGS}
             CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, shortName INT);
             INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 1);"
        );
        let bench = Bench::new();
        let path = database(&bench, &sql);
        assert!(memchr::memmem::find(&fs::read(&path).unwrap(), b"CUPTI_ACTIVITY").is_none());
        let summary = &bench.ingest(&[&path], &Options::standard()).unwrap()[0];
        assert_eq!((summary.format, summary.rows_out), ("nsys_sqlite", 1));
        assert_eq!(text(&bench.store().read(&KERNELS).unwrap(), "name"), [Some("gemm".to_owned())]);
    }
}

#[test]
fn a_computed_column_that_is_not_read_harms_nobody() {
    let sql = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT); INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2);
         CREATE TABLE OSRT_API (start INT, twice INT AS (2 * start)); INSERT INTO OSRT_API (start) VALUES (1);
         CREATE TABLE CUDNN_EVENTS (start INT, twice INT AS (2 * start));";
    let bench = Bench::new();
    let summary = &bench.ingest(&[&database(&bench, sql)], &Options::standard()).unwrap()[0];
    let not_read: Vec<_> = summary.log.iter().filter(|entry| entry.code == "table_not_read").collect();
    assert_eq!((summary.rows_out, not_read.len()), (1, 1));
    assert!(not_read[0].message.contains("OSRT_API"), "{not_read:?}");
}

#[test]
fn what_a_program_printed_is_no_name() {
    let sql = format!(
        "{STRINGS} CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, shortName INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 3);
         CREATE TABLE ProcessStreams (contentId INT); INSERT INTO ProcessStreams VALUES (3);"
    );
    let bench = Bench::new();
    bench.ingest(&[&database(&bench, &sql)], &Options::standard()).unwrap();
    assert_eq!(text(&bench.store().read(&KERNELS).unwrap(), "name"), [Some("unknown 3".to_owned())]);
}

#[test]
fn bad_rows_are_named() {
    let sql = "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, bytes INT, copyKind INT, deviceId INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 8, 10, 0), (5, 4, 8, 1, 0), (1, 2, -8, 1, 0), (NULL, 2, 8, 1, 0),
            ('x', 2, 8, 1, 0), (1, 2, 8, 1, 4294967296), (1, 9223372036854775807, x'00', 1, 0), (1, 2, 8, 99, 0);";
    let bench = Bench::new();
    let path = database(&bench, sql);
    let summary = &bench.ingest(&[&path], &quarantine()).unwrap()[0];
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (8, 2, 6));
    check_law(&bench);
    let kinds = text(&bench.store().read(&KERNELS).unwrap(), "copy_kind");
    assert_eq!(kinds, ["peer_to_peer", "unknown"].map(|kind| Some(kind.to_owned())));
    let rejects = bench.store().read(&REJECTS).unwrap();
    let reasons: Vec<String> = text(&rejects, "code").into_iter().flatten().collect();
    let expected = ["negative", "negative", "out_of_range", "wrong_type", "out_of_range", "wrong_type"];
    assert_eq!(reasons, expected);
    assert_eq!(numbers::<UInt64Type>(&rejects, "line"), [2, 3, 4, 5, 6, 7].map(Some));
}

/// The error of a hostile file, which must be one of the data.
fn refused(path: &str) -> String {
    let bench = Bench::new();
    let options = Options { format: Some("nsys_sqlite".to_owned()), ..Options::standard() };
    let error = bench.ingest(&[path], &options).unwrap_err();
    assert_eq!(error.kind(), Kind::Data, "{error}");
    assert!(!error.to_string().contains("its adapter failed"), "{error}");
    error.to_string()
}

#[test]
fn hostile_schemas_are_refused() {
    for (sql, why) in [
        // A view in place of a table: it could read or compute anything.
        (
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS
                WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n;
             CREATE TABLE NVTX_EVENTS (start INT);",
            "as a table, found another thing",
        ),
        // A column that calls functions when it is read.
        (
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT AS (length(hex(zeroblob(start)))));
             INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10);",
            "the computed column `end`",
        ),
        ("CREATE TABLE other (start INT); INSERT INTO other VALUES (1);", "found an SQLite database"),
        ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (begin INT, end INT);", "the column `start`"),
    ] {
        let bench = Bench::new();
        let error = refused(&database(&bench, sql));
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn a_row_beyond_the_limit_is_refused() {
    let bench = Bench::new();
    let sql = "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT);
         INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, CAST(zeroblob(20000000) AS TEXT));";
    assert!(refused(&database(&bench, sql)).contains("too big"));
}

#[test]
fn triggers_do_not_run_and_the_file_stays_as_it_is() {
    let sql = format!(
        "{STRINGS} CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2);
         CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END;"
    );
    let bench = Bench::new();
    let path = database(&bench, &sql);
    let before = fs::read(&path).unwrap();
    bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(!std::path::Path::new(&format!("{path}-journal")).exists());
}

/// Damaged pages: an error or rows, never a panic, and a file that was cut is refused.
#[test]
fn damaged_files_are_refused() {
    let whole = fs::read(sample("nsys_sqlite/rtx3080_sum.sqlite")).unwrap();
    let bench = Bench::new();
    for cut in (100..whole.len()).step_by(499) {
        refused(&bench.file("cut.sqlite", &whole[..cut]));
    }
    for at in (0..whole.len()).step_by(61) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        let path = bench.file("flipped.sqlite", &bytes);
        let options = Options { format: Some("nsys_sqlite".to_owned()), ..quarantine() };
        match super::super::examine(&path, &options) {
            Ok(found) => assert_eq!(found.rows_in, found.rows_out + found.rows_rejected),
            Err(error) => assert_eq!(error.kind(), Kind::Data, "{error}"),
        }
    }
}

#[test]
fn other_databases_are_no_captures() {
    let bench = Bench::new();
    let found = inspect(&database(&bench, "CREATE TABLE rocpd_kernel (id INT);"));
    assert!(found.unwrap_err().to_string().contains("SQLite"));
}
