use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt64Type};
use engine::schema::canonical;
use engine::schema::captured::{ANNOTATIONS, KERNELS};

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, text};
use crate::ingest::{Options, examine, inspect};

fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push((value % 128) as u8 + 128);
        value /= 128;
    }
    bytes.push(value as u8);
    bytes
}

fn field(number_of: u64, value: u64) -> Vec<u8> {
    [number(number_of << 3), number(value)].concat()
}

fn bytes(number_of: u64, value: &[u8]) -> Vec<u8> {
    [number(number_of << 3 | 2), number(value.len() as u64), value.to_vec()].concat()
}

fn framed(message: &[u8]) -> Vec<u8> {
    [number(message.len() as u64), message.to_vec()].concat()
}

fn metadata() -> Vec<u8> {
    framed(&bytes(1, b"0.0.4"))
}

fn node(id: u64, name: &str, kind: u64, more: &[Vec<u8>]) -> Vec<u8> {
    framed(&[field(1, id), bytes(2, name.as_bytes()), field(3, kind), more.concat()].concat())
}

/// A number or truth under a name.
fn attribute(name: &str, kind: u64, value: u64) -> Vec<u8> {
    bytes(10, &[bytes(1, name.as_bytes()), field(kind, value)].concat())
}

fn trace() -> Vec<u8> {
    [
        metadata(),
        node(6, "aten::empty", 4, &[bytes(4, &number(300)), field(6, 5), field(7, 2), attribute("is_cpu_op", 27, 1)]),
        node(300, "step", 1, &[bytes(5, &[1, 2]), bytes(8, b"\x0a\x01x")]),
        node(
            7,
            "gemm",
            4,
            &[field(4, 6), field(6, 6), field(7, 1), attribute("is_cpu_op", 27, 0), attribute("stream", 9, 7)],
        ),
        node(8, "ncclAllReduce", 7, &[attribute("comm_size", 9, 4096), attribute("is_cpu_op", 27, 0)]),
        node(9, "load", 2, &[attribute("tensor_size", 13, 77)]),
        node(10, "late", 4, &[field(4, 300), field(4, 6), field(99, 1)]),
    ]
    .concat()
}

fn names(batches: &[RecordBatch], column: &str) -> Vec<String> {
    text(batches, column).into_iter().flatten().collect()
}

fn maybe(batches: &[RecordBatch], name: &str) -> Vec<Option<u64>> {
    let columns = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name(name).unwrap().as_primitive::<UInt64Type>().clone();
        (0..column.len()).map(|at| column.is_valid(at).then(|| column.value(at))).collect::<Vec<_>>()
    });
    columns.collect()
}

#[test]
fn nodes_become_operators_and_kernels() {
    let bench = Bench::new();
    let path = bench.file("a.et", trace());
    assert_eq!(inspect(&path).unwrap().format, Some("chakra"));
    let summary = bench.ingest(&[&path], &Options::standard()).unwrap().remove(0);
    assert_eq!((summary.rows_in, summary.rows_out), (6, 6));
    let codes: Vec<_> = summary.log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("unknown_key", 1), ("several_parents", 1)]);
    let annotations = read(&bench, &ANNOTATIONS);
    assert_eq!(names(&annotations, "name"), ["aten::empty", "step", "late"]);
    assert_eq!(names(&annotations, "category"), ["operator", "metadata", "operator"]);
    assert_eq!(maybe(&annotations, "parent"), [Some(1), None, Some(1)]);
    assert_eq!(column::<Int64Type>(&annotations, "start_ns")[0], 5000);
    let kernels = read(&bench, &KERNELS);
    assert_eq!(names(&kernels, "category"), ["kernel", "collective", "copy"]);
    assert_eq!(maybe(&kernels, "stream"), [Some(7), None, None]);
    assert_eq!(maybe(&kernels, "bytes"), [None, Some(4096), Some(77)]);
    assert_eq!(column::<Int64Type>(&kernels, "duration_ns")[0], 1000);
    check_law(&bench);
}

#[test]
fn bad_messages_cost_themselves_alone() {
    let bench = Bench::new();
    let bad = [
        metadata(),
        framed(&[0xff, 0xff]),
        framed(&field(1, 5)),
        framed(&bytes(2, b"\xff")),
        node(1, "wrong", 4, &[bytes(6, b"x")]),
        node(2, "late", 4, &[field(6, u64::MAX)]),
        node(3, "good", 4, &[]),
        vec![40, 1, 2],
    ]
    .concat();
    let options = Options { format: Some("chakra".to_owned()), ..quarantine() };
    let path = bench.file("a.et", bad);
    let summary = bench.ingest(&[&path], &options).unwrap().remove(0);
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (7, 1, 6));
    let rejects = read(&bench, &canonical::REJECTS);
    assert_eq!(
        names(&rejects, "expected"),
        [
            "a field of Protocol Buffers",
            "a node with a name",
            "a name in UTF-8",
            "a field of the type that a node has",
            "times below 2^63 nanoseconds",
            "a whole message"
        ]
    );
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [2, 3, 4, 5, 6, 8]);
    check_law(&bench);
}

#[test]
fn every_cut_keeps_the_complete_nodes() {
    let whole = trace();
    let mut ends = Vec::new();
    let mut at = 0;
    while at < whole.len() {
        // Lengths of the written messages take one byte.
        at += 1 + usize::from(whole[at]);
        ends.push(at);
    }
    assert_eq!((ends.len(), ends.last()), (7, Some(&whole.len())));
    let options = Options { format: Some("chakra".to_owned()), ..quarantine() };
    for cut in 1..whole.len() {
        let bench = Bench::new();
        let path = bench.file("a.et", &whole[..cut]);
        let complete = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1) as u64;
        let cut_off = u64::from(!ends.contains(&cut));
        match examine(&path, &options) {
            Ok(found) => assert_eq!((found.rows_out, found.rows_rejected), (complete, cut_off), "{cut}"),
            Err(error) => assert_eq!((complete, error.kind()), (0, engine::error::Kind::Data), "{cut}"),
        }
    }
}

#[test]
fn other_files_are_told_apart() {
    let bench = Bench::new();
    let others: [&[u8]; 5] =
        [b"{\n  \"schema\": 1}", b"\x05hello world", b"a,b\n1,2\n", b"\x00\x00\x00\x00", b"\x07\x0a\x05v 1.0"];
    for other in others {
        let path = bench.file("a", other);
        let found = inspect(&path).map(|found| found.format);
        assert!(!matches!(found, Ok(Some("chakra"))), "{other:?}");
    }
}
