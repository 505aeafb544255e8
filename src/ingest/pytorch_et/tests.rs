use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt64Type};
use engine::schema::canonical;
use engine::schema::captured::{ANNOTATIONS, KERNELS};

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, sample, text};

fn maybe(batches: &[RecordBatch], name: &str) -> Vec<Option<u64>> {
    let columns = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name(name).unwrap().as_primitive::<UInt64Type>().clone();
        (0..column.len()).map(|at| column.is_valid(at).then(|| column.value(at))).collect::<Vec<_>>()
    });
    columns.collect()
}

fn names(batches: &[RecordBatch], column: &str) -> Vec<String> {
    text(batches, column).into_iter().flatten().collect()
}

#[test]
fn operators_find_their_parents() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("pytorch_et/simple_add.json.gz")], &quarantine()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_rejected), ("pytorch_et", 38, 0));
    assert_eq!(summaries[0].log, []);
    let annotations = read(&bench, &ANNOTATIONS);
    let names = names(&annotations, "name");
    let parents = maybe(&annotations, "parent");
    let named = |at: usize| parents[at].map(|parent| names[usize::try_from(parent).unwrap()].as_str());
    assert_eq!((names[1].as_str(), named(1), parents[1]), ("aten::empty", Some("aten::rand"), Some(3)));
    assert_eq!((names[3].as_str(), named(3)), ("aten::rand", Some("[param|cuda]")));
    assert_eq!(named(36), Some("[pytorch|profiler|execution_trace|thread]"));
    assert_eq!((names[37].as_str(), parents[37]), ("[pytorch|profiler|execution_trace|process]", None));
    // Each but the root has a parent, and each way leads to the root.
    assert_eq!(parents.iter().filter(|parent| parent.is_none()).count(), 1);
    for start in 0..38 {
        let step = |at: u64, _| parents[usize::try_from(at).unwrap()].unwrap_or(at);
        assert_eq!((0..38).fold(start, step), 37);
    }
    let categories = text(&annotations, "category");
    assert_eq!(categories.iter().flatten().filter(|word| *word == "user_annotation").count(), 10);
    assert_eq!(categories.iter().flatten().filter(|word| *word == "operator").count(), 28);
    assert_eq!(maybe(&annotations, "process"), vec![Some(563_677); 38]);
    check_law(&bench);
}

#[test]
fn newer_schemas_and_times_are_read() {
    let bench = Bench::new();
    let path = bench.file(
        "a",
        r#"{
  "schema": "1.1.1-chakra.0.0.4", "pid": 70610, "time": "2024-04-09 08:56:19", "start_ts": 1128488051,
  "nodes": [
    {
      "id": 6, "name": "aten::lift_fresh", "ctrl_deps": 3, "ts": 1000.25, "inclusive_dur": 2.5, "exclusive_dur": 1,
      "inputs": {"values": [[4,5,0,1048576,8,"cpu"],nan,-inf,"]"], "shapes": [[1024,1024]], "types": ["Tensor(double)"]},
      "outputs": {"values": [], "shapes": [], "types": []},
      "attrs": [{"name": "scope", "type": "uint64", "value": 0}, {"name": "tid", "type": "uint64", "value": 4}, {"name": "op_schema", "type": "string", "value": "a\"b"}]
    },
    {
      "id": 3, "name": "ProfilerStep#5", "ctrl_deps": [2, 9], "new": 5,
      "attrs": [{"name": "scope", "type": "uint64", "value": 7}]
    },
    {
      "id": 7, "name": "gemm", "cat": "kernel", "ctrl_deps": 6, "stream": 7, "ts": 1001, "inclusive_dur": 1
    },
    {
      "id": 8, "ctrl_deps": null
    }
  ],
  "finish_ts": 1128488052
}"#,
    );
    let summary = bench.ingest(&[&path], &quarantine()).unwrap().remove(0);
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (4, 3, 1));
    let codes: Vec<_> = summary.log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("unknown_key", 1), ("parent_unknown", 1)]);
    let annotations = read(&bench, &ANNOTATIONS);
    assert_eq!(names(&annotations, "category"), ["operator", "step"]);
    assert_eq!(maybe(&annotations, "parent"), [Some(1), None]);
    assert_eq!(maybe(&annotations, "thread"), [Some(4), None]);
    assert_eq!(column::<Int64Type>(&annotations, "start_ns")[0], 1_000_250);
    assert_eq!(column::<Int64Type>(&annotations, "duration_ns")[0], 2500);
    let kernels = read(&bench, &KERNELS);
    assert_eq!(names(&kernels, "name"), ["gemm"]);
    assert_eq!((maybe(&kernels, "stream"), column::<Int64Type>(&kernels, "duration_ns")), (vec![Some(7)], vec![1000]));
    assert_eq!(text(&read(&bench, &canonical::SOURCES), "time_unit"), [Some("us".to_owned())]);
    let rejects = read(&bench, &canonical::REJECTS);
    assert_eq!(names(&rejects, "expected"), ["the key `name`"]);
    check_law(&bench);
}
