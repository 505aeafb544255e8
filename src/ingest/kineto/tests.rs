use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

use arrow::array::{Array, ArrowPrimitiveType, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;
use engine::schema::captured::{ANNOTATIONS, KERNELS};
use proptest::prelude::*;

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, sample, text};
use crate::ingest::{Options, Summary, inspect};

/// A column with its unknown values.
fn maybe<T: ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<Option<T::Native>> {
    let columns = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name(name).unwrap().as_primitive::<T>().clone();
        (0..column.len()).map(|at| column.is_valid(at).then(|| column.value(at))).collect::<Vec<_>>()
    });
    columns.collect()
}

fn known<T: ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<T::Native> {
    maybe::<T>(batches, name).into_iter().flatten().collect()
}

fn words(batches: &[RecordBatch], name: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in text(batches, name).into_iter().flatten() {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

fn counts<const N: usize>(expected: [(&str, usize); N]) -> BTreeMap<String, usize> {
    expected.into_iter().map(|(word, count)| (word.to_owned(), count)).collect()
}

fn ingest(bench: &Bench, path: &str) -> Summary {
    let summary = bench.ingest(&[path], &quarantine()).unwrap().remove(0);
    check_law(bench);
    summary
}

fn codes(summary: &Summary) -> Vec<(&'static str, u64)> {
    summary.log.iter().map(|entry| (entry.code, entry.count)).collect()
}

/// Events in the form of the profiler.
fn profile(events: &[&str]) -> String {
    format!("{{\"schemaVersion\": 1, \"traceEvents\": [\n  {}\n  ]}}\n", events.join(",\n  "))
}

const OPERATOR: &str = r#"{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 8, "ts": 1712195495519689.047, "dur": 63.813, "args": {"External id": 2}}"#;

#[test]
fn whole_microseconds_since_1970() {
    let bench = Bench::new();
    let summary = ingest(&bench, &sample("kineto/alexnet_a100.json.gz"));
    // The figures were counted from the file by another program.
    assert_eq!((summary.format, summary.compression), ("kineto", "gzip"));
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (840, 840, 0));
    assert_eq!(summary.tables, [("kernels", 98), ("annotations", 742)]);
    assert_eq!(codes(&summary), [("device_properties", 1), ("flow_events", 470), ("metadata_events", 38)]);
    let devices = "devices 0 to 7: `NVIDIA A100-PG509-200`, 42297524224 bytes of memory, 108 multiprocessors, compute \
                   capability 8.0";
    assert_eq!(summary.log[0].message, devices);
    let kernels = read(&bench, &KERNELS);
    assert_eq!(words(&kernels, "category"), counts([("kernel", 79), ("copy", 16), ("fill", 3)]));
    let durations = known::<Int64Type>(&kernels, "duration_ns");
    let categories: Vec<String> = text(&kernels, "category").into_iter().flatten().collect();
    let sum =
        |word: &str| -> i64 { durations.iter().zip(&categories).filter(|(_, c)| *c == word).map(|(d, _)| d).sum() };
    assert_eq!([sum("kernel"), sum("copy"), sum("fill")], [10_728_000, 39_080_000, 8_000]);
    assert_eq!(known::<UInt64Type>(&kernels, "bytes").iter().sum::<u64>(), 244_403_360 + 21_760);
    assert_eq!(words(&kernels, "copy_kind"), counts([("host_to_device", 16)]));
    assert_eq!(known::<Int64Type>(&kernels, "start_ns")[0], 1_694_039_994_071_305_000);
    assert_eq!(known::<UInt32Type>(&kernels, "grid_x").iter().sum::<u32>(), 902_680);
    assert_eq!(known::<UInt32Type>(&kernels, "registers").iter().sum::<u32>(), 4_653);
    assert_eq!(known::<UInt64Type>(&kernels, "shared_bytes").iter().sum::<u64>(), 950_144);
    assert_eq!(known::<UInt32Type>(&kernels, "device"), [0; 98]);
    let streams = known::<UInt64Type>(&kernels, "stream");
    assert_eq!((streams.iter().filter(|s| **s == 7).count(), streams.iter().filter(|s| **s == 20).count()), (91, 7));
    // Every launch stands next to its kernel.
    let starts = known::<Int64Type>(&kernels, "start_ns");
    let launches = known::<Int64Type>(&kernels, "launch_ns");
    assert_eq!(starts.iter().zip(&launches).map(|(start, launch)| start - launch).sum::<i64>(), 4_232_422_000);
    assert_eq!(known::<UInt64Type>(&kernels, "process"), [493_459; 98]);
    let annotations = read(&bench, &ANNOTATIONS);
    let expected =
        [("Trace", 1), ("operator", 359), ("runtime", 331), ("cuda_sync", 41), ("instant", 2), ("user_annotation", 8)];
    assert_eq!(words(&annotations, "category"), counts(expected));
    assert_eq!(known::<Int64Type>(&annotations, "duration_ns").iter().sum::<i64>(), 306_618_495_000);
    let sources = read(&bench, &canonical::SOURCES);
    for (name, value) in [("time_unit", "us"), ("clock", "epoch"), ("settings_origin", "detected")] {
        assert_eq!(text(&sources, name), [Some(value.to_owned())], "{name}");
    }
}

#[test]
fn decimals_since_1970_are_exact() {
    let bench = Bench::new();
    let summary = ingest(&bench, &sample("kineto/resnet_v100_cut.json"));
    assert_eq!((summary.rows_in, summary.rows_rejected), (40, 0));
    let expected = [("device_properties", 1), ("flow_events", 25), ("metadata_events", 3), ("launch_elsewhere", 1)];
    assert_eq!(codes(&summary), expected);
    let kernels = read(&bench, &KERNELS);
    assert_eq!(known::<Int64Type>(&kernels, "start_ns")[0], 1_712_195_495_505_582_988);
    assert_eq!(known::<Int64Type>(&kernels, "duration_ns").iter().sum::<i64>(), 7_680 + 3_936 + 17_600);
    assert_eq!(words(&kernels, "copy_kind"), counts([("device_to_device", 3)]));
    // The launch of one is cut off.
    assert_eq!(known::<Int64Type>(&kernels, "launch_ns").len(), 6);
    let annotations = read(&bench, &ANNOTATIONS);
    assert_eq!(known::<Int64Type>(&annotations, "duration_ns").iter().sum::<i64>(), 720_075_607);
    assert_eq!(known::<Int64Type>(&annotations, "start_ns").iter().min(), Some(&1_712_195_495_406_752_797));
    let expected =
        [("Trace", 1), ("gpu_user_annotation", 3), ("instant", 2), ("operator", 7), ("runtime", 18), ("step", 2)];
    assert_eq!(words(&annotations, "category"), counts(expected));
    assert_eq!(words(&annotations, "domain"), counts([("Spans", 1), ("Traces", 1), ("device 0 stream 7", 3)]));
}

#[test]
fn a_base_behind_the_events_is_added() {
    let bench = Bench::new();
    let plain = fs::read(sample("kineto/triton_a100_cut.json")).unwrap();
    let path = bench.file("plain", &plain);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let packed = bench.file("packed.gz", gzip.finish().unwrap());
    let summaries = bench.ingest(&[&path, &packed], &Options::standard()).unwrap();
    for summary in &summaries {
        assert_eq!((summary.rows_in, summary.rows_out), (10, 10));
        let expected = [("device_properties", 1), ("flow_events", 3), ("metadata_events", 58), ("base_time", 1)];
        assert_eq!(codes(summary), expected);
    }
    let kernels = read(&bench, &KERNELS);
    assert_eq!(known::<Int64Type>(&kernels, "start_ns"), [1_730_156_791_097_444_592; 2]);
    assert_eq!(known::<Int64Type>(&kernels, "launch_ns"), [1_730_156_791_097_444_592 - 45_426; 2]);
    let annotations = read(&bench, &ANNOTATIONS);
    assert_eq!(known::<Int64Type>(&annotations, "start_ns").iter().min(), Some(&1_730_156_790_742_269_099));
    assert_eq!(text(&read(&bench, &canonical::SOURCES), "clock"), vec![Some("epoch".to_owned()); 2]);
    // One that stands before the events needs no second look.
    let text = profile(&[&OPERATOR.replace("1712195495519689.047", "0.5")]);
    let early = bench.file("early", text.replace("{\"schema", "{\"baseTimeNanoseconds\": 5, \"schema"));
    let summary = bench.ingest(&[&early], &Options::standard()).unwrap().remove(0);
    assert_eq!(codes(&summary), [("base_time", 1)]);
    assert_eq!(column::<Int64Type>(&read(&bench, &ANNOTATIONS), "start_ns").last(), Some(&505));
}

#[test]
fn without_a_base_small_instants_are_on_an_unknown_clock() {
    let bench = Bench::new();
    let path = bench.file("a", profile(&[&OPERATOR.replace("1712195495519689.047", "-12.5")]));
    let summary = ingest(&bench, &path);
    assert_eq!(codes(&summary), []);
    assert_eq!(column::<Int64Type>(&read(&bench, &ANNOTATIONS), "start_ns"), [-12_500]);
    assert_eq!(text(&read(&bench, &canonical::SOURCES), "clock"), [Some("monotonic".to_owned())]);
}

#[test]
fn launches_are_found_on_both_sides_and_not_far_away() {
    let bench = Bench::new();
    let kernel = |correlation: u64| {
        format!(
            r#"{{"ph": "X", "cat": "kernel", "name": "k{correlation}", "pid": 2, "tid": 3, "ts": 1712195495519690, "dur": 1, "args": {{"correlation": {correlation}}}}}"#
        )
    };
    let launch = |correlation: u64| {
        format!(
            r#"{{"ph": "X", "cat": "hip_runtime", "name": "hipLaunchKernel", "pid": 7, "tid": -2, "ts": 171219549551968{correlation}, "dur": 1, "args": {{"correlation": {correlation}}}}}"#
        )
    };
    let mut events = vec![kernel(1), kernel(2), launch(2), launch(1), launch(3), kernel(3), kernel(4)];
    events.extend(std::iter::repeat_n(OPERATOR.to_owned(), 70));
    events.extend([launch(4), launch(5)]);
    events.extend(std::iter::repeat_n(OPERATOR.to_owned(), 70));
    events.extend([launch(6), kernel(5)]);
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let path = bench.file("a", profile(&events));
    let summary = ingest(&bench, &path);
    assert_eq!(codes(&summary), [("launch_elsewhere", 2)]);
    let kernels = read(&bench, &KERNELS);
    assert_eq!(column::<UInt64Type>(&kernels, "kernel_id"), [0, 1, 2, 3, 4]);
    let names: Vec<String> = text(&kernels, "name").into_iter().flatten().collect();
    assert_eq!(names, ["k1", "k2", "k3", "k4", "k5"]);
    let at = |correlation: i64| Some((1_712_195_495_519_680 + correlation) * 1000);
    assert_eq!(maybe::<Int64Type>(&kernels, "launch_ns"), [at(1), at(2), at(3), None, None]);
    assert_eq!(maybe::<UInt64Type>(&kernels, "process"), [Some(7), Some(7), Some(7), None, None]);
    assert_eq!(known::<UInt32Type>(&kernels, "device"), [2; 5]);
    assert_eq!(known::<UInt64Type>(&kernels, "stream"), [3; 5]);
    let threads = known::<UInt64Type>(&read(&bench, &ANNOTATIONS), "thread");
    assert_eq!(threads[0], u64::from(u32::MAX) - 1);
}

#[test]
fn what_is_odd_is_logged() {
    let bench = Bench::new();
    let events = [
        r#"{"ph": "X", "cat": "Kernel", "name": "k", "pid": "0", "tid": 7, "ts": 1, "dur": 0.0004, "args": {"device": -1, "grid": [1, 2], "bytes": "x", "new": [1], "stream": 18446744073709551615}}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 2, "ts": 2, "dur": 1, "args": {"grid": "grid(100,)", "new": {"a": null}}, "extra": 1}"#,
        r#"{"ph": "C", "name": "memory", "pid": 1, "ts": 3, "args": {"name": 5}}"#,
        r#"{"ph": "X", "cat": "python_function", "name": "/home/someone/m\u00f6del.py(12): forward", "pid": 1, "tid": 2, "ts": 2}"#,
        r#"{"ph": "X", "cat": "python_function", "name": "<built-in method a/b of type>", "pid": 1, "tid": 2, "ts": 2}"#,
    ];
    let path = bench.file("a", profile(&events));
    let summary = ingest(&bench, &path);
    let log: Vec<_> = summary.log.iter().map(|e| (e.code, e.count, e.first_line, e.message.as_str())).collect();
    assert_eq!(
        log,
        [
            ("event_phase", 1, Some(4), "an event that is neither range nor instant was not stored"),
            ("time_rounded", 1, Some(2), "a timestamp was rounded to the nanosecond"),
            ("odd_value", 1, Some(2), "`device` of a kernel is not what it should be: a number from 0 to 2^32 - 1"),
            ("odd_value", 1, Some(2), "`bytes` of a kernel is not what it should be: a number from 0 to 2^64 - 1"),
            ("odd_value", 1, Some(2), "`grid` of a kernel is not what it should be: three numbers from 0 to 2^32 - 1"),
            ("unknown_key", 2, Some(2), "the key `new` is not part of the format"),
            ("unknown_key", 1, Some(3), "the key `extra` is not part of the format"),
            ("launch_elsewhere", 1, None, "a kernel has no launch within 64 events"),
        ]
    );
    let kernels = read(&bench, &KERNELS);
    assert_eq!(known::<UInt64Type>(&kernels, "stream"), [u64::MAX]);
    // Nothing takes the place of a device that cannot be one.
    assert_eq!(maybe::<UInt32Type>(&kernels, "device"), [None]);
    assert_eq!(maybe::<UInt32Type>(&kernels, "grid_y"), [Some(2)]);
    assert_eq!(maybe::<UInt32Type>(&kernels, "grid_z"), [None]);
    let annotations = read(&bench, &ANNOTATIONS);
    let names: Vec<String> = text(&annotations, "name").into_iter().flatten().collect();
    assert_eq!(names, ["op", "m\u{f6}del.py(12): forward", "<built-in method a/b of type>"]);
    assert_eq!(maybe::<Int64Type>(&annotations, "duration_ns"), [Some(1000), None, None]);
}

#[test]
fn values_out_of_range_are_unknown_and_counted() {
    let bench = Bench::new();
    let events = [
        // A device and a stream by `pid` and `tid` alone; then ones that cannot be.
        r#"{"ph": "X", "cat": "kernel", "name": "k0", "pid": 3, "tid": 7, "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "cat": "kernel", "name": "k1", "pid": 4294967296, "tid": "x", "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "cat": "kernel", "name": "k2", "pid": 1, "tid": 7, "ts": 1, "dur": 1, "args": {"device": 4294967296, "stream": -1, "correlation": -5, "registers per thread": 4294967296, "shared memory": 1.5, "block": [1, 2, 4294967296]}}"#,
        r#"{"ph": "X", "cat": "gpu_user_annotation", "name": "a0", "pid": 0, "tid": 7, "ts": 1, "dur": 1, "args": {"device": -1}}"#,
        r#"{"ph": "X", "cat": "gpu_user_annotation", "name": "a1", "pid": "x", "tid": "y", "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "a2", "pid": -1, "tid": -4294967297, "ts": 1, "dur": 1, "args": {"device": -1}}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "a3", "pid": 1, "tid": -2147483648, "ts": 1, "dur": 1, "args": {"correlation": -1}}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "a4", "pid": 1, "tid": 1, "ts": 9223372036854775, "dur": 9223372036854775}"#,
    ];
    let summary = ingest(&bench, &bench.file("a", profile(&events)));
    // An event that ends beyond what an instant can be is no row.
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (8, 7, 1));
    let kernels = read(&bench, &KERNELS);
    assert_eq!(maybe::<UInt32Type>(&kernels, "device"), [Some(3), None, None]);
    assert_eq!(maybe::<UInt64Type>(&kernels, "stream"), [Some(7), None, None]);
    assert_eq!(maybe::<UInt64Type>(&kernels, "correlation"), [None; 3]);
    assert_eq!(maybe::<UInt32Type>(&kernels, "registers"), [None; 3]);
    assert_eq!(maybe::<UInt64Type>(&kernels, "shared_bytes"), [None; 3]);
    assert_eq!(maybe::<UInt32Type>(&kernels, "block_y"), [None, None, Some(2)]);
    assert_eq!(maybe::<UInt32Type>(&kernels, "block_z"), [None; 3]);
    let annotations = read(&bench, &ANNOTATIONS);
    assert_eq!(text(&annotations, "domain"), [Some("stream 7".to_owned()), None, None, None]);
    assert_eq!(maybe::<UInt64Type>(&annotations, "process"), [None, None, None, Some(1)]);
    assert_eq!(maybe::<UInt64Type>(&annotations, "thread"), [None, None, None, Some(1 << 31)]);
    let odd: Vec<_> = summary.log.iter().filter(|entry| entry.code == "odd_value").collect();
    assert_eq!(odd.iter().map(|entry| entry.count).collect::<Vec<_>>(), vec![1; 13]);
    assert!(odd.iter().all(|entry| entry.first_line.is_some()), "{odd:?}");
}

#[test]
fn devices_are_told_in_runs() {
    let told = super::devices::described;
    let text = br#"[{"id": 0, "name": "A", "numSms": 1, "serial": "SECRET"}, {"id": 1, "name": "A", "numSms": 1}, {"id": 3, "name": "A", "numSms": 1}, {"name": "B"}, {"id": 4}]"#;
    let expected = [
        "devices 0 to 1: `A`, 1 multiprocessors",
        "device 3: `A`, 1 multiprocessors",
        "a device without a number: `B`",
        "device 4: nothing is said of it",
    ];
    assert_eq!(told(text), expected);
    assert_eq!(told(b"[]"), Vec::<String>::new());
    assert_eq!(told(b"{\"id\": 0"), ["`deviceProperties` is no list of devices, and was not read"]);
    let many: Vec<String> = (0..200).map(|id| format!("{{\"id\": {}}}", 2 * id)).collect();
    assert_eq!(told(format!("[{}]", many.join(",")).as_bytes()).len(), 64);
}

#[test]
fn bad_events_cost_themselves_alone() {
    let bad = [
        r#"{"ph": "X", "cat": "cpu_op", "pid": 7, "tid": 8, "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 7, "tid": 8, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 7, "tid": 8, "ts": 1, "dur": -1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 7, "tid": 8, "ts": 01, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 7.5, "tid": 8, "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 99999999999999999999, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x, "pid": 7, "tid": 8, "ts": 1, "dur": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 7, "tid": 8, "ts": 1, "args": {"a": 1}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "x", "pid": 7, "tid": 8, "ts": 1 "dur": 1}"#,
        "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"x\u{1}\", \"ts\": 1}",
        "7",
        "null",
    ];
    for bad in bad {
        for newline in ["\n  ", ""] {
            let bench = Bench::new();
            let events = [OPERATOR, bad, OPERATOR, OPERATOR].join(&format!(",{newline}"));
            let path = bench.file("a", format!("{{\"schemaVersion\": 1, \"traceEvents\": [{newline}{events}]}}"));
            let summary = ingest(&bench, &path);
            assert_eq!((summary.rows_out, summary.rows_rejected), (3, 1), "{bad}");
        }
    }
}

#[test]
fn a_refused_event_is_shown_with_its_place() {
    let bench = Bench::new();
    let error = bench.error(profile(&[OPERATOR, &OPERATOR.replace("63.813", "-63.813")]));
    assert_eq!(
        error.to_string().lines().skip(2).collect::<Vec<_>>(),
        [
            "FILE:3:107: expected `dur` of at least zero, found `-63.813`",
            "  …mm\", \"pid\": 7, \"tid\": 8, \"ts\": 1712195495519689.047, \"dur\": -63.813, \"args\": {\"External id\": 2}}",
            "                                                               ^"
        ]
    );
    let error = bench.error(profile(&[OPERATOR]).replace("]}", ""));
    assert!(error.to_string().contains("expected `,` or `]`, found the end of the file"), "{error}");
}

#[test]
fn an_event_may_cross_the_buffer() {
    let bench = Bench::new();
    let mut text = String::from("{\"schemaVersion\": 1, \"traceEvents\": [");
    let mut expected = Vec::new();
    for at in 0..9000 {
        // Every length comes up, and one event is longer than the buffer.
        let length = if at == 4000 { 3 << 20 } else { at % 977 };
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{comma}\n  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"{}\", \"pid\": 1, \"tid\": 1,\n    \"ts\": {at}, \"dur\": 1\n  }}",
            "x".repeat(length)
        );
        expected.push(length);
    }
    text.push_str("\n  ]\n}\n");
    let path = bench.file("a", &text);
    let summary = ingest(&bench, &path);
    assert_eq!((summary.rows_out, summary.rows_rejected), (9000, 0));
    let annotations = read(&bench, &ANNOTATIONS);
    let lengths: Vec<usize> =
        super::super::tests::text(&annotations, "name").iter().flatten().map(String::len).collect();
    assert_eq!(lengths, expected);
    let starts = column::<Int64Type>(&annotations, "start_ns");
    assert_eq!(starts, (0..9000).map(|at| at * 1000).collect::<Vec<i64>>());
}

#[test]
fn kernels_without_a_duration_and_unknown_categories_are_told() {
    let bench = Bench::new();
    let odd = r#"{"ph": "X", "cat": "kernel_v2", "name": "k", "pid": 0, "tid": 7, "ts": 2, "dur": 1}"#;
    let text = profile(&[
        r#"{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "args": {"device": 0, "stream": 7}}"#,
        odd,
        odd,
        r#"{"ph": "X", "cat": "mtia_runtime", "name": "call", "pid": 7, "tid": 8, "ts": 3, "dur": 1}"#,
        OPERATOR,
    ]);
    let summary = ingest(&bench, &bench.file("a", text));
    let told = |part: &str| -> Vec<u64> {
        summary.log.iter().filter(|entry| entry.message.contains(part)).map(|entry| entry.count).collect()
    };
    assert_eq!(told("the duration of a kernel is not known"), [1]);
    assert_eq!(told("the category `kernel_v2` is not known"), [2]);
    assert_eq!(told("category"), [2]);
}

#[test]
fn other_traces_are_told_apart() {
    let bench = Bench::new();
    let path = bench.file("a", format!("{{\"traceEvents\": [{OPERATOR}]}}"));
    let found = inspect(&path).unwrap();
    assert_eq!(found.format, None);
    let verdict = found.verdicts.iter().find(|(name, _)| *name == "kineto").unwrap();
    assert!(format!("{verdict:?}").contains("without `schemaVersion`"), "{verdict:?}");
    let options = Options { format: Some("kineto".to_owned()), ..Options::standard() };
    assert_eq!(bench.ingest(&[&path], &options).unwrap()[0].rows_out, 1);
}

#[test]
fn nothing_private_is_stored() {
    let bench = Bench::new();
    let text = profile(&[
        OPERATOR,
        r#"{"ph": "M", "name": "process_name", "pid": 7, "ts": 1, "args": {"name": "SECRET.py --token"}}"#,
        r#"{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 7, "tid": 8, "ts": 1, "dur": 1, "args": {"kernel_file": "/opt/SECRET", "Call stack": "SECRET"}}"#,
        r#"{"ph": "X", "cat": "python_function", "name": "/home/SECRET/a.py(1): f", "pid": 7, "tid": 8, "ts": 1, "dur": 1}"#,
    ]);
    let text = text.replace("{\"schema", "{\"host_name\": \"SECRET\", \"username\": \"SECRET\", \"schema");
    let path = bench.file("a", text.replace("\n}", ", \"INFO\": [\"SECRET\"]\n}"));
    let summary = ingest(&bench, &path);
    assert!(!format!("{:?}", summary.log).contains("SECRET"));
    for table in [&ANNOTATIONS, &canonical::IMPORT_LOG] {
        assert!(!format!("{:?}", read(&bench, table)).contains("SECRET"), "{}", table.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Instants in any number of decimals are those of whole-number arithmetic.
    #[test]
    fn instants_are_exact(whole in 0_i64..9_000_000_000_000_000, decimals in "[0-9]{0,3}") {
        let bytes = if decimals.is_empty() { whole.to_string() } else { format!("{whole}.{decimals}") };
        let text = format!("{{\"ph\":\"X\",\"name\":\"x\",\"ts\":{bytes},\"dur\":{bytes}}}");
        let (event, length) = super::event::parse(text.as_bytes(), crate::ingest::TimeUnit::Us).unwrap();
        let below: i64 = format!("{decimals:0<3}").parse().unwrap();
        prop_assert_eq!(event.start, Some((whole * 1000 + below, true)));
        prop_assert_eq!(event.duration, event.start);
        prop_assert_eq!(length, text.len());
    }
}
