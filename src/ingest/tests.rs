use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int64Type, UInt32Type, UInt64Type};
use engine::error::{Error, Kind, Result};
use engine::schema::{Table, canonical};
use proptest::prelude::*;

use super::{ALL, OnBadRow, Options, Severity, Sniff, Summary, ingest, inspect};
use crate::store::Store;

const GOOD: &str = r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}"#;

/// A directory with a store and files to ingest.
pub(super) struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(super) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(super) fn store(&self) -> Store {
        Store::open_or_create(&self.directory.path().join("store")).unwrap()
    }

    pub(super) fn ingest(&self, paths: &[&str], options: &Options) -> Result<Vec<Summary>> {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        ingest(&mut self.store(), &paths, options, &|_| {})
    }

    /// The error of ingesting a file with these bytes, its path shown as FILE.
    pub(super) fn error(&self, bytes: impl AsRef<[u8]>) -> Error {
        let path = self.file("bad", bytes);
        let error = self.ingest(&[&path], &Options::standard()).unwrap_err();
        assert_eq!(error.kind(), Kind::Data);
        assert!(self.store().manifest().sources.is_empty(), "nothing may be written");
        let shown = Error::data(error.to_string().replace(&path, "FILE"));
        error.advice().map_or(shown.clone(), |advice| shown.hint(advice))
    }
}

pub(super) fn sample(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces").join(name);
    path.to_str().unwrap().to_owned()
}

pub(super) fn quarantine() -> Options {
    Options { on_bad_row: OnBadRow::Quarantine, ..Options::standard() }
}

pub(super) fn column<T: arrow::array::ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<T::Native> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().values().to_vec());
    columns.flatten().collect()
}

pub(super) fn text(batches: &[RecordBatch], name: &str) -> Vec<Option<String>> {
    let columns = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name(name).unwrap().as_string::<i32>().clone();
        column.iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>()
    });
    columns.collect()
}

pub(super) fn hashes(batches: &[RecordBatch]) -> Vec<Vec<u64>> {
    let lists = batches.iter().flat_map(|batch| {
        let lists = batch.column_by_name("block_hashes").unwrap().as_list::<i32>().clone();
        lists.iter().map(|list| list.unwrap().as_primitive::<UInt64Type>().values().to_vec()).collect::<Vec<_>>()
    });
    lists.collect()
}

pub(super) fn read(bench: &Bench, table: &'static Table) -> Vec<RecordBatch> {
    bench.store().read(table).unwrap()
}

/// Rows in = rows out + rows rejected, in the summary, the manifest and the tables.
pub(super) fn check_law(bench: &Bench) {
    let store = bench.store();
    let sources = store.read(&canonical::SOURCES).unwrap();
    let counted = |name| column::<UInt64Type>(&sources, name);
    let (rows_in, rows_out, rejected) = (counted("rows_in"), counted("rows_out"), counted("rows_rejected"));
    for at in 0..rows_in.len() {
        assert_eq!(rows_in[at], rows_out[at] + rejected[at]);
        let entry = &store.manifest().sources[at];
        assert_eq!((entry.rows_in, entry.rows_out, entry.rows_rejected), (rows_in[at], rows_out[at], rejected[at]));
    }
    let beside = ["sources", "import_log", "rejects", "recordings", "context_segments", "counters"];
    let kept: u64 = store
        .manifest()
        .tables
        .keys()
        .filter(|name| !beside.contains(&name.as_str()))
        .map(|t| store.manifest().rows(t))
        .sum();
    // A row of these formats may give several rows; their own tests count them.
    let several = ["ncu", "rocprofv3", "llmservingsim_profile"];
    if !store.manifest().sources.iter().any(|source| several.contains(&source.format.as_str())) {
        assert_eq!(kept, rows_out.iter().sum::<u64>());
    }
    assert_eq!(store.manifest().rows("rejects"), rejected.iter().sum::<u64>());
}

#[test]
fn the_whole_mooncake_trace_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("mooncake/conversation_trace.jsonl.zst")], &Options::standard()).unwrap();
    let summary = &summaries[0];
    assert_eq!((summary.format, summary.compression), ("mooncake", "zstd"));
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (12_031, 12_031, 0));
    assert_eq!(summary.log, []);
    let requests = read(&bench, &canonical::REQUESTS);
    // The figures were counted from the file by another program.
    assert_eq!(column::<UInt64Type>(&requests, "request_id"), (0..12_031).collect::<Vec<u64>>());
    let ids: Vec<u64> = hashes(&requests).concat();
    assert_eq!(ids.len(), 288_500);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 182_790);
    let output: u64 = column::<UInt32Type>(&requests, "output_tokens").iter().map(|n| u64::from(*n)).sum();
    assert_eq!(output, 4_122_048);
    let input: u64 = column::<UInt32Type>(&requests, "prompt_tokens").iter().map(|n| u64::from(*n)).sum();
    assert!((input as f64 / 12_031.0 - 12_035.06).abs() < 0.005);
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    assert_eq!((arrival[0], arrival.iter().max()), (0, Some(&3_536_999_000_000)));
    let sources = read(&bench, &canonical::SOURCES);
    for (name, value) in [
        ("time_unit", "ms"),
        ("clock", "trace_start"),
        ("rounding", "ceil"),
        ("hash_scope", "file"),
        ("id_kind", "prefix"),
        ("settings_origin", "format"),
    ] {
        assert_eq!(text(&sources, name), [Some(value.to_owned())], "{name}");
    }
    check_law(&bench);
}

#[test]
fn the_azure_trace_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("azure/code_head300.csv")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out), ("azure", 300));
    let requests = read(&bench, &canonical::REQUESTS);
    // 2023-11-16 18:17:03 UTC is 1,700,158,623 s after the epoch.
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    assert_eq!(arrival[..2], [1_700_158_623_979_960_000, 1_700_158_624_031_960_000]);
    let lines = fs::read_to_string(sample("azure/code_head300.csv")).unwrap();
    let expected: Vec<(u32, u32)> = lines
        .lines()
        .skip(1)
        .map(|line| line.rsplit(',').map(|cell| cell.trim().parse().unwrap_or(0)).collect::<Vec<u32>>())
        .map(|cells| (cells[1], cells[0]))
        .collect();
    let prompt = column::<UInt32Type>(&requests, "prompt_tokens");
    let output = column::<UInt32Type>(&requests, "output_tokens");
    assert_eq!(prompt.into_iter().zip(output).collect::<Vec<_>>(), expected);
    assert_eq!(text(&read(&bench, &canonical::SOURCES), "clock"), [Some("wall".to_owned())]);
    check_law(&bench);
}

#[test]
fn gzip_of_several_members_and_plain_text_give_the_same_rows() {
    let bench = Bench::new();
    let lines = format!("{GOOD}\n{GOOD}\n");
    let (one, two) = lines.split_at(30);
    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let plain = bench.file("plain", &lines);
    let packed = bench.file("packed", [gzip(one), gzip(two)].concat());
    let frames = [zstd::encode_all(one.as_bytes(), 1).unwrap(), zstd::encode_all(two.as_bytes(), 1).unwrap()].concat();
    let frames = bench.file("frames", frames);
    let summaries = bench.ingest(&[&plain, &packed, &frames], &Options::standard()).unwrap();
    let found: Vec<_> =
        summaries.iter().map(|s| (s.source_id, s.compression, s.rows_out, s.first_request_id)).collect();
    assert_eq!(found, [(0, "none", 2, 0), (1, "gzip", 2, 2), (2, "zstd", 2, 4)]);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<UInt64Type>(&requests, "request_id"), [0, 1, 2, 3, 4, 5]);
    assert_eq!(column::<UInt32Type>(&requests, "source_id"), [0, 0, 1, 1, 2, 2]);
    check_law(&bench);
}

#[test]
fn globs_are_sorted_and_ids_do_not_depend_on_threads() {
    let bench = Bench::new();
    for at in 0..20 {
        let line = GOOD.replace("\"timestamp\": 0", &format!("\"timestamp\": {at}"));
        bench.file(&format!("part-{at:02}.jsonl"), format!("{line}\n").repeat(at + 1));
    }
    let pattern = format!("{}/part-*.jsonl", bench.directory.path().display());
    let summaries = bench.ingest(&[&pattern], &Options::standard()).unwrap();
    assert_eq!(summaries.len(), 20);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<UInt64Type>(&requests, "request_id"), (0..210).collect::<Vec<u64>>());
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    assert!(arrival.is_sorted(), "{arrival:?}");
    check_law(&bench);
}

#[test]
fn a_file_enters_once() {
    let bench = Bench::new();
    let path = bench.file("a", GOOD);
    bench.ingest(&[&path], &Options::standard()).unwrap();
    let copy = bench.file("b", GOOD);
    let error = bench.ingest(&[&copy], &Options::standard()).unwrap_err();
    assert!(error.to_string().contains(&format!("with the contents of source 0 (`{path}`)")), "{error}");
    assert_eq!(error.advice(), Some("`--again` ingests it once more"));
    let summaries = bench.ingest(&[&copy], &Options { again: true, ..Options::standard() }).unwrap();
    assert_eq!((summaries[0].source_id, summaries[0].first_request_id), (1, 1));
    // Twice in one command.
    let other = bench.file("c", format!("{GOOD}\n\n"));
    let error = bench.ingest(&[&other, &other], &Options::standard()).unwrap_err();
    assert!(error.to_string().contains("with the contents of source 2"), "{error}");
    assert_eq!(bench.store().manifest().sources.len(), 2);
}

#[test]
fn ids_up_to_64_bits_come_back() {
    let bench = Bench::new();
    let line = r#"{"timestamp": 0, "input_length": 1100, "output_length": 0, "hash_ids": [9223372036854775808, 18446744073709551615, 0]}"#;
    let path = bench.file("a", format!("{line}\n\n{GOOD}"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(hashes(&requests), [vec![1 << 63, u64::MAX, 0], vec![0, 1]]);
    assert_eq!(text(&requests, "status"), [Some("no_output".to_owned()), Some("ok".to_owned())]);
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count, entry.first_line)).collect();
    assert_eq!(log, [("no_output", 1, Some(1)), ("empty_line", 1, Some(2))]);
    assert_eq!(summaries[0].rows_in, 2);
}

#[test]
fn what_is_odd_is_logged() {
    let bench = Bench::new();
    let text = concat!(
        "\u{feff}{\"timestamp\": 7.0000005, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [3], \"user\": {\"a\": [1]}}\r\n",
        "{\"user\": null, \"timestamp\": 5.5, \"hash_ids\": [], \"input_length\": 0, \"output_length\": 1, \"x\": \"\\u00e9\"}\r\n",
    );
    let path = bench.file("a", text);
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let log: Vec<_> = summaries[0].log.iter().map(|e| (e.severity, e.code, e.count, e.first_line)).collect();
    assert_eq!(
        log,
        [
            (Severity::DataLoss, "unknown_key", 2, Some(1)),
            (Severity::Notice, "time_rounded", 1, Some(1)),
            (Severity::DataLoss, "unknown_key", 1, Some(2)),
            (Severity::Notice, "time_backwards", 1, Some(2)),
        ]
    );
    assert_eq!(column::<Int64Type>(&read(&bench, &canonical::REQUESTS), "arrival_ns"), [7_000_001, 5_500_000]);
    assert_eq!(read(&bench, &canonical::IMPORT_LOG)[0].num_rows(), 4);
}

#[test]
fn a_cut_last_line_is_named() {
    let bench = Bench::new();
    let error = bench.error(format!("{GOOD}\n{}", &GOOD[..75]));
    // Sixty bytes before the caret are shown.
    let expected = [
        "expected only good rows in `FILE`, found a bad one; nothing was written".to_owned(),
        String::new(),
        "FILE:2:76: expected `,` or `]`, found the end of the line".to_owned(),
        format!("  …{}", &GOOD[15..75]),
        format!("  {}^", " ".repeat(61)),
    ];
    assert_eq!(error.to_string(), expected.join("\n"));
    assert!(error.advice().unwrap().contains("--on-bad-row quarantine"));
}

/// The place, what was expected and what was found, of the only bad row.
fn complaint(bench: &Bench, line: &str) -> String {
    let error = bench.error(format!("{GOOD}\n{line}\n{GOOD}\n")).to_string();
    error.lines().nth(2).unwrap().to_owned()
}

#[test]
fn each_bad_line_is_named_with_its_column() {
    let bench = Bench::new();
    for (line, expected) in [
        ("{\"timestamp\": 0, oops}", "FILE:2:18: expected a key in quotes, found `oops`"),
        ("not json", "FILE:2:1: expected a JSON object, found `not`"),
        ("{}", "FILE:2:3: expected the key `timestamp`, found the end of the line"),
        (
            r#"{"timestamp": 0, "input_length": -5, "output_length": 5, "hash_ids": []}"#,
            "FILE:2:34: expected `input_length` as a whole number of at least zero, found `-5`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 5.5, "output_length": 5, "hash_ids": [0]}"#,
            "FILE:2:34: expected `input_length` as a whole number of at least zero, found `5.5`",
        ),
        (
            r#"{"timestamp": 0, "input_length": "5", "output_length": 5, "hash_ids": [0]}"#,
            "FILE:2:34: expected `input_length` as a whole number of at least zero, found `\"5\"`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 4294967296, "output_length": 5, "hash_ids": [0]}"#,
            "FILE:2:34: expected `input_length` of at most 4294967295, found `4294967296`",
        ),
        (
            r#"{"timestamp": -1, "input_length": 5, "output_length": 5, "hash_ids": [0]}"#,
            "FILE:2:15: expected `timestamp` of at least zero, found `-1`",
        ),
        (
            r#"{"timestamp": 99999999999999, "input_length": 5, "output_length": 5, "hash_ids": [0]}"#,
            "FILE:2:15: expected `timestamp` in ms below 2^63 nanoseconds, found `99999999999999`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [18446744073709551616]}"#,
            "FILE:2:70: expected a block id of at most 18446744073709551615, found `18446744073709551616`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 12035, "output_length": 5, "hash_ids": [1, 2, 3]}"#,
            "FILE:2:73: expected 24 blocks of 512 for 12035 tokens, found 3: the block count does not fit the length",
        ),
        (
            r#"{"timestamp": 0, "timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}"#,
            "FILE:2:18: expected each key once, found `\"timestamp\"`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]} {}"#,
            "FILE:2:74: expected the end of the line, found `{`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0],}"#,
            "FILE:2:73: expected a key in quotes, found `}`",
        ),
        (
            r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": {"a": [0]}}"#,
            "FILE:2:69: expected `hash_ids` as a list, found `{`",
        ),
    ] {
        assert_eq!(complaint(&bench, line), expected, "{line}");
    }
}

#[test]
fn only_the_first_problems_are_listed() {
    let bench = Bench::new();
    let error = bench.error(format!("{GOOD}\n{}", "{\"timestamp\": x}\n".repeat(50))).to_string();
    assert!(
        error.starts_with("expected only good rows in `FILE`, found 10 bad ones before the reader stopped"),
        "{error}"
    );
    assert_eq!(error.matches("FILE:").count(), 10);
}

#[test]
fn quarantine_keeps_the_rest() {
    let bench = Bench::new();
    let cut = &GOOD[..74];
    let path = bench.file("a", format!("{GOOD}\n{{broken\n{GOOD}\n{cut}"));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (4, 2, 2));
    let rejects = read(&bench, &canonical::REJECTS);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [2, 4]);
    assert_eq!(column::<UInt64Type>(&rejects, "column"), [2, 75]);
    let first = GOOD.len() as u64 + 1;
    assert_eq!(column::<UInt64Type>(&rejects, "byte_offset"), [first, 2 * first + 8]);
    assert_eq!(text(&rejects, "raw"), [Some("{broken".to_owned()), Some(cut.to_owned())]);
    assert_eq!(text(&rejects, "found"), [Some("`broken`".to_owned()), Some("the end of the line".to_owned())]);
    check_law(&bench);
    // Request ids have no gap where a row was set aside.
    assert_eq!(column::<UInt64Type>(&read(&bench, &canonical::REQUESTS), "request_id"), [0, 1]);
}

#[test]
fn files_that_are_no_trace_are_refused() {
    let bench = Bench::new();
    for (bytes, expected) in [
        (&b""[..], "expected a trace in `FILE`, found an empty file"),
        (b"\x7fELF\x02\x01\x01\0", "expected a trace as text in `FILE`, found an ELF executable"),
        (
            b"PAR1abc",
            "expected a trace as text in `FILE`, found a Parquet file (a recording is read from its directory)",
        ),
        (b"\x89PNG\r\n\x1a\n", "expected a trace as text in `FILE`, found a PNG image"),
        (b"{\"a\": \0}", "expected a trace as text in `FILE`, found a binary file (it holds NUL bytes)"),
        (b"hello\n", "expected `FILE` in one of the formats ALL, found none of them"),
        (
            b"{\"timestamp\": 0, \"input_length\": 3}\n",
            "expected `FILE` in one of the formats ALL, found none of them\n  \
             nearly mooncake: rows lack `output_length`, `hash_ids`",
        ),
        (
            b"TIMESTAMP,ContextTokens\n",
            "expected `FILE` in one of the formats ALL, found none of them\n  \
             nearly azure: the first line lacks the column `GeneratedTokens`",
        ),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "expected at least one row in `FILE`, found none"),
    ] {
        let names: Vec<&str> = ALL.iter().map(|format| format.name).collect();
        assert_eq!(bench.error(bytes).to_string(), expected.replace("ALL", &names.join(", ")));
    }
    assert_eq!(bench.error("hello\n").advice(), Some("`kvtoll list formats` describes them"));
}

#[test]
fn a_forced_format_names_what_is_missing() {
    let bench = Bench::new();
    let forced = |name: &str| Options { format: Some(name.to_owned()), ..Options::standard() };
    let path = bench.file("a", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,1\n");
    let error = bench.ingest(&[&path], &forced("azure")).unwrap_err().to_string();
    assert!(error.starts_with("expected the column `GeneratedTokens` in "), "{error}");
    let error = bench.ingest(&[&path], &forced("mooncakes")).unwrap_err();
    assert_eq!((error.kind(), error.advice()), (Kind::Usage, Some("did you mean `mooncake`?")));
    let error = bench.ingest(&[&path], &forced("recording")).unwrap_err().to_string();
    assert!(error.starts_with("expected the directory of a recording"), "{error}");
    let error = bench.ingest(&["no/such/*.jsonl"], &Options::standard()).unwrap_err().to_string();
    assert_eq!(error, "expected a file at `no/such/*.jsonl`, found none");
}

#[test]
fn bad_azure_cells_are_named() {
    let bench = Bench::new();
    let good = "2023-11-16 18:17:03.9799600,4808,10";
    let head = "TIMESTAMP,ContextTokens,GeneratedTokens";
    for (row, expected) in [
        (
            "2023-11-16 18:17:03.9799600,48x8,10",
            "FILE:3:29: expected `ContextTokens` as a whole number of at least zero, found `48x8`",
        ),
        (
            "2023-11-16 18:17:03.9799600,4808,-1",
            "FILE:3:34: expected `GeneratedTokens` as a whole number of at least zero, found `-1`",
        ),
        (
            "2023-11-16 18:17:03.9799600,,10",
            "FILE:3:29: expected `ContextTokens` as a whole number of at least zero, found an empty cell",
        ),
        (
            "2023-11-16 18:17:03.9799600,4294967296,10",
            "FILE:3:29: expected `ContextTokens` of at most 4294967295, found `4294967296`",
        ),
        (
            "2024-05-10 00:00:00.009930+00:00,1,1",
            "FILE:3:1: expected `TIMESTAMP` as `2023-11-16 18:17:03.9799600`, without a zone, found \
             `2024-05-10 00:00:00.009930+00:00`",
        ),
        ("2023-11-16 18:17:03.9799600,4808", "FILE:3:33: expected 3 cells, found 2"),
        ("2023-11-16 18:17:03.9799600,4808,10,7", "FILE:3:37: expected 3 cells, found 4"),
        (
            "\"2023-11-16 18:17:03.9799600,4808,10",
            "FILE:3:1: expected a closing quote and then `,`, found `\"2023-11-16 18:17:03.9799600,4808,10`",
        ),
        (",,", "FILE:3:1: expected `TIMESTAMP` as `2023-11-16 18:17:03.9799600`, without a zone, found an empty cell"),
    ] {
        for end in ["\n", "\r\n"] {
            let error = bench.error([head, good, row, good].join(end)).to_string();
            assert_eq!(error.lines().nth(2).unwrap(), expected, "{row}");
        }
    }
}

#[test]
fn azure_quarantine_loses_no_line() {
    let bench = Bench::new();
    let path = bench.file(
        "a.csv",
        "GeneratedTokens,TIMESTAMP,\"ContextTokens\",status\n\
         10,\"2023-11-16 18:17:03.9799600\",4808,\"a,b\"\"c\"\n\
         \n\
         x,2023-11-16 18:17:03,1,\n\
         1,2\n\
         0,2023-11-16 18:17:03,\"7\",\n\
         1,2,3,4,5\n\
         \"open,1,2,3",
    );
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (6, 2, 4));
    check_law(&bench);
    assert_eq!(column::<UInt64Type>(&read(&bench, &canonical::REJECTS), "line"), [4, 5, 7, 8]);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [4808, 7]);
    assert_eq!(text(&requests, "status"), [Some("ok".to_owned()), Some("no_output".to_owned())]);
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(log, [("unknown_column", 1), ("empty_line", 1), ("no_output", 1), ("time_backwards", 1)]);
    // The foreign column is on disk, under a name that is not one of the table's.
    let files = bench.store().files("requests");
    let batch = crate::store::batches_of(&files[0]).unwrap().next().unwrap().unwrap();
    assert_eq!(text(&[batch], "azure_status"), [Some("a,b\"c".to_owned()), None]);
}

fn copied(bench: &Bench, recording: &str) -> PathBuf {
    let to = bench.directory.path().join(recording);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(sample(recording)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to
}

#[test]
fn recordings_are_read_and_numbered() {
    let bench = Bench::new();
    let by_file = sample("recording-block/recording.json");
    let summaries = bench.ingest(&[&sample("recording-token"), &by_file], &Options::standard()).unwrap();
    assert_eq!(
        summaries[0].tables,
        [
            ("recordings", 1),
            ("requests", 1),
            ("steps", 25),
            ("attention", 2160),
            ("prefill_scores", 540),
            ("kv_stats", 90)
        ]
    );
    assert_eq!(summaries[0].rows_in, 1 + 25 + 2160 + 540 + 90);
    assert_eq!(summaries[1].first_request_id, 1);
    let attention = read(&bench, &canonical::ATTENTION);
    let ids = column::<UInt64Type>(&attention, "request_id");
    assert_eq!((ids.iter().filter(|id| **id == 0).count(), ids.iter().filter(|id| **id == 1).count()), (2160, 23_040));
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<UInt64Type>(&requests, "request_id"), [0, 1]);
    assert_eq!(column::<UInt32Type>(&requests, "source_id"), [0, 1]);
    assert_eq!(text(&requests, "source_key"), [Some("needle_2k".to_owned()), Some("short_chat".to_owned())]);
    assert_eq!(text(&requests, "status"), [Some("ok".to_owned()), Some("ok".to_owned())]);
    let recordings = read(&bench, &canonical::RECORDINGS);
    assert_eq!(column::<UInt32Type>(&recordings, "block_tokens"), [1, 16]);
    assert_eq!(text(&recordings, "grade"), [Some("tokens".to_owned()), Some("blocks".to_owned())]);
    assert!(summaries[0].log.iter().any(|entry| entry.message.contains("`prefix_group` of `requests`")));
    check_law(&bench);
    // The lists are those of the file.
    let mass = attention[0].column_by_name("mass").unwrap().as_list::<i32>().value(0);
    let mass = mass.as_primitive::<Float32Type>().values();
    assert_eq!(mass.len(), 1855);
    assert!((mass.iter().map(|mass| f64::from(*mass)).sum::<f64>() - 1.0).abs() < 2e-3);
}

/// Writes a table of a recording again, changed.
fn change(directory: &Path, table: &str, change: impl Fn(RecordBatch) -> RecordBatch) {
    let path = directory.join(format!("{table}.parquet"));
    let batches: Vec<RecordBatch> =
        crate::store::batches_of(&path).unwrap().map(|batch| change(batch.unwrap())).collect();
    let file = fs::File::create(&path).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batches[0].schema(), None).unwrap();
    for batch in &batches {
        writer.write(batch).unwrap();
    }
    writer.close().unwrap();
}

/// The batch with one column replaced.
fn replace(batch: &RecordBatch, name: &str, column: arrow::array::ArrayRef) -> RecordBatch {
    let at = batch.schema().index_of(name).unwrap();
    let mut fields: Vec<_> = batch.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    fields[at] = arrow::datatypes::Field::new(name, column.data_type().clone(), true);
    let mut columns = batch.columns().to_vec();
    columns[at] = column;
    RecordBatch::try_new(std::sync::Arc::new(arrow::datatypes::Schema::new(fields)), columns).unwrap()
}

#[test]
fn rows_of_a_recording_that_break_a_rule_are_named() {
    use arrow::array::{Int64Array, UInt16Array, UInt64Array};
    use std::sync::Arc;

    let bench = Bench::new();
    let directory = copied(&bench, "recording-block");
    // Another integer type that holds the same numbers is no fault; a layer that the model lacks is.
    change(&directory, "kv_stats", |batch| {
        let layers: UInt16Array =
            (0..batch.num_rows()).map(|row| if row == 4 { 30 } else { u16::try_from(row / 3).unwrap() }).collect();
        let ids = Int64Array::from_value(0, batch.num_rows());
        replace(&replace(&batch, "request_id", Arc::new(ids)), "layer", Arc::new(layers))
    });
    change(&directory, "steps", |batch| {
        let ids: UInt64Array = (0..batch.num_rows()).map(|row| if row == 2 { 9 } else { 0 }).collect();
        replace(&batch, "request_id", Arc::new(ids))
    });
    let path = directory.to_str().unwrap();
    let error = bench.ingest(&[path], &Options::standard()).unwrap_err().to_string().replace(path, "DIR");
    assert!(
        error.contains("DIR/steps.parquet: row 3, column `request_id`: expected a request of this recording, found 9"),
        "{error}"
    );
    assert!(
        error.contains("DIR/kv_stats.parquet: row 5, column `layer`: expected a number below 30, found 30"),
        "{error}"
    );
    let summaries = bench.ingest(&[path], &quarantine()).unwrap();
    assert_eq!(summaries[0].rows_rejected, 2);
    check_law(&bench);
    let rejects = read(&bench, &canonical::REJECTS);
    assert_eq!(text(&rejects, "code"), [Some("unknown_request".to_owned()), Some("out_of_range".to_owned())]);

    // Masses that do not sum to 1, and a list of another length.
    let other = copied(&bench, "recording-token");
    change(&other, "attention", |batch| {
        let context: arrow::array::UInt32Array = batch
            .column_by_name("context_tokens")
            .unwrap()
            .as_primitive::<UInt32Type>()
            .iter()
            .enumerate()
            .map(|(row, tokens)| if row == 1 { Some(7) } else { tokens })
            .collect();
        replace(&batch, "context_tokens", Arc::new(context))
    });
    let path = other.to_str().unwrap();
    let error = bench.ingest(&[path], &Options::standard()).unwrap_err().to_string().replace(path, "DIR");
    assert!(
        error.contains("DIR/attention.parquet: row 2, column `mass`: expected 7 blocks for 7 tokens, found 1855"),
        "{error}"
    );

    // A null, and a missing column.
    change(&directory, "prefill_scores", |batch| {
        let layers: UInt16Array = (0..batch.num_rows()).map(|row| (row != 6).then_some(0)).collect();
        replace(&batch, "layer", Arc::new(layers))
    });
    let path = directory.to_str().unwrap();
    let error = bench.ingest(&[path], &quarantine()).unwrap_err().to_string().replace(path, "DIR");
    assert_eq!(error, "`DIR/prefill_scores.parquet`: row 7, column `layer`: expected a value, found null");
    change(&directory, "prefill_scores", |batch| batch.project(&[0, 2, 3, 4, 5]).unwrap());
    let error = bench.ingest(&[path], &quarantine()).unwrap_err().to_string().replace(path, "DIR");
    assert_eq!(error, "column `layer` of table `prefill_scores` is missing in `DIR/prefill_scores.parquet`");
}

/// A fault in one cell of a table: the column, its row, and what then stands there.
fn with_cell<T: arrow::array::ArrowPrimitiveType>(
    batch: &RecordBatch,
    name: &str,
    at: usize,
    cell: T::Native,
) -> RecordBatch {
    let values = batch.column_by_name(name).unwrap().as_primitive::<T>();
    let changed: arrow::array::PrimitiveArray<T> =
        values.iter().enumerate().map(|(row, value)| if row == at { Some(cell) } else { value }).collect();
    replace(batch, name, std::sync::Arc::new(changed))
}

#[test]
fn steps_and_scores_of_a_recording_are_checked() {
    use arrow::array::{Float32Builder, ListBuilder, StringArray};
    use arrow::datatypes::UInt16Type;
    use std::sync::Arc;

    let bench = Bench::new();
    let directory = copied(&bench, "recording-block");
    change(&directory, "steps", |batch| {
        let phases: Vec<&str> = (0..batch.num_rows())
            .map(|row| match row {
                0 => "prefill",
                4 => "warmup",
                _ => "decode",
            })
            .collect();
        let batch = replace(&batch, "phase", Arc::new(StringArray::from(phases)));
        let context = batch.column_by_name("context_tokens").unwrap().as_primitive::<UInt32Type>().value(7);
        let batch = with_cell::<UInt32Type>(&batch, "new_tokens", 7, context + 1);
        // Row 10 once more as row 11, with its context.
        let context = batch.column_by_name("context_tokens").unwrap().as_primitive::<UInt32Type>().value(9);
        let batch = with_cell::<UInt32Type>(&batch, "step", 10, 9);
        with_cell::<UInt32Type>(&batch, "context_tokens", 10, context)
    });
    change(&directory, "prefill_scores", |batch| {
        let lists = batch.column_by_name("score").unwrap().as_list::<i32>().clone();
        let mut changed = ListBuilder::new(Float32Builder::new());
        for row in 0..lists.len() {
            let mut values = lists.value(row).as_primitive::<Float32Type>().values().to_vec();
            if row == 5 {
                values[3] = f32::NAN;
            }
            changed.values().append_slice(&values);
            changed.append(true);
        }
        replace(&batch, "score", Arc::new(changed.finish()))
    });
    change(&directory, "kv_stats", |batch| {
        let head = batch.column_by_name("kv_head").unwrap().as_primitive::<UInt16Type>();
        let layer = batch.column_by_name("layer").unwrap().as_primitive::<UInt16Type>();
        assert_eq!((layer.value(3), head.value(3), head.value(4)), (1, 0, 1));
        with_cell::<UInt16Type>(&batch, "kv_head", 4, 0)
    });
    let first = std::cell::Cell::new(true);
    change(&directory, "attention", |batch| {
        if first.replace(false) { with_cell::<Float32Type>(&batch, "out_norm", 2, f32::INFINITY) } else { batch }
    });
    let path = directory.to_str().unwrap();
    let error = bench.ingest(&[path], &Options::standard()).unwrap_err().to_string().replace(path, "DIR");
    for expected in [
        "DIR/steps.parquet: row 5, column `phase`: expected `prefill` or `decode`, found `warmup`",
        "DIR/steps.parquet: row 8, column `new_tokens`: expected at most",
        "DIR/steps.parquet: row 11, column `step`: expected each row of a request once, found step 9, context_tokens",
        "DIR/attention.parquet: row 3, column `out_norm`: expected finite numbers, found inf as number 0",
        "DIR/prefill_scores.parquet: row 6, column `score`: expected finite numbers, found NaN as number 3",
        "DIR/kv_stats.parquet: row 5, column `layer`: expected each row of a request once, found layer 1, kv_head 0 again",
    ] {
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    assert_eq!(bench.ingest(&[path], &quarantine()).unwrap()[0].rows_rejected, 6);
    check_law(&bench);
}

#[test]
fn damaged_recordings_fail_and_do_not_panic() {
    let bench = Bench::new();
    let directory = copied(&bench, "recording-block");
    let path = directory.to_str().unwrap().to_owned();
    for table in ["attention", "prefill_scores", "kv_stats"] {
        fs::remove_file(directory.join(format!("{table}.parquet"))).unwrap();
    }
    let steps = fs::read(directory.join("steps.parquet")).unwrap();
    for at in (0..steps.len()).step_by(7) {
        let mut bytes = steps.clone();
        bytes[at] ^= 0x55;
        fs::write(directory.join("steps.parquet"), &bytes).unwrap();
        let _ = bench.ingest(&[&path], &Options { again: true, ..Options::standard() });
        fs::write(directory.join("steps.parquet"), &steps[..at]).unwrap();
        assert!(bench.ingest(&[&path], &Options { again: true, ..Options::standard() }).is_err());
    }
    fs::write(directory.join("recording.json"), b"{\"schema\": \"kvtoll.recording.v1\"}").unwrap();
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("missing field `model`"), "{error}");
}

#[test]
fn each_sample_has_one_format() {
    for (path, expected) in [
        ("mooncake/conversation_trace.jsonl.zst", "mooncake"),
        ("azure/code_head300.csv", "azure"),
        ("recording-token", "recording"),
        ("recording-block/recording.json", "recording"),
    ] {
        let found = inspect(&sample(path)).unwrap();
        assert_eq!(found.format, Some(expected));
        for (name, sniff) in &found.verdicts {
            assert_eq!(*sniff == Sniff::Yes, *name == expected, "{path} {name}");
        }
        assert_eq!(found.verdicts.len(), ALL.len());
    }
}

#[test]
fn a_sample_cut_at_any_byte_loses_no_complete_row() {
    let bench = Bench::new();
    let mooncake = format!("{GOOD}\n{}\r\n\n{GOOD}\n", GOOD.replace("[0, 1]", "[7, 18446744073709551615]"));
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n";
    let complete = |text: &str, format: &str| match format {
        "mooncake" => text.matches('}').count() as u64,
        _ => text.matches("\r\n").count().saturating_sub(1) as u64,
    };
    for (text, format) in [(mooncake.as_str(), "mooncake"), (azure, "azure")] {
        let options = Options { format: Some(format.to_owned()), again: true, ..quarantine() };
        let cuts: Vec<(usize, String)> =
            (1..=text.len()).map(|cut| (cut, bench.file(&format!("cut-{cut}"), &text.as_bytes()[..cut]))).collect();
        let (empty, full): (Vec<_>, Vec<_>) = cuts.iter().partition(|(cut, _)| complete(&text[..*cut], format) == 0);
        for (cut, path) in empty {
            match bench.ingest(&[path], &options) {
                Ok(summaries) => assert_eq!((format, summaries[0].rows_out), ("azure", 1), "cut at {cut}"),
                Err(error) => assert_eq!(error.kind(), Kind::Data, "{format} cut at {cut}: {error}"),
            }
        }
        let paths: Vec<&str> = full.iter().map(|(_, path)| path.as_str()).collect();
        for ((cut, _), rows) in full.iter().zip(bench.ingest(&paths, &options).unwrap()) {
            let expected = complete(&text[..*cut], format);
            assert_eq!(rows.rows_in, rows.rows_out + rows.rows_rejected);
            // A CSV row without an end of line may be complete, or be cut within its last number.
            let most = expected + u64::from(format == "azure");
            assert!((expected..=most).contains(&rows.rows_out), "{format} cut at {cut}: {}", rows.rows_out);
        }
    }
    check_law(&bench);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes, under any format: an error or a store, never a panic, and the law holds.
    #[test]
    fn any_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), format in 0_usize..4) {
        let bench = Bench::new();
        let path = bench.file("a", &bytes);
        let format = ALL.get(format).map(|format| format.name.to_owned());
        let options = Options { format, ..quarantine() };
        if bench.ingest(&[&path], &options).is_ok() {
            check_law(&bench);
        }
    }

    /// Good files with some bytes replaced: the same.
    #[test]
    fn mutated_files_do_not_panic(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        csv in any::<bool>(),
    ) {
        let text = if csv {
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n\"2023-11-16 18:17:04\",3180,8".to_owned()
        } else {
            format!("{GOOD}\n{GOOD}")
        };
        let mut bytes = text.into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let bench = Bench::new();
        let path = bench.file("a", &bytes);
        let format = if csv { "azure" } else { "mooncake" };
        let options = Options { format: Some(format.to_owned()), ..quarantine() };
        match bench.ingest(&[&path], &options) {
            Ok(_) => check_law(&bench),
            Err(error) => prop_assert_eq!(error.kind(), Kind::Data),
        }
    }
}
