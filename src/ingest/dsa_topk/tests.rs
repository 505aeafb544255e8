use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt16Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use super::super::Options;
use super::super::tests::{Bench, column, quarantine, read as stored, text};

/// A line in the documented form.
fn line(request: &str, layer: u32, step: u32, positions: &str) -> String {
    format!(
        r#"{{"event": "dsa_topk", "request_id": "{request}", "layer_id": {layer}, "step_idx": {step}, "seq_len_current": {}, "selected_token_pos": {positions}, "block_size_tokens": 64, "selected_block_ids": [0], "unique_blocks": 1, "tokens_per_touched_block": {{"mean": 2.0}}, "offset_min": 0, "scores_stats": {{}}, "kv_fetch": {{"hbm": {{"hit_blocks": 1, "bytes_read": 4608, "read_ops": 1, "latency_us": 1.25, "batch_size": 1}}, "local_pool": {{"bytes_read": 0, "latency_us": null}}, "remote_pool": null}}, "prefix": {{}}}}"#,
        step + 1
    )
}

fn positions(batches: &[RecordBatch]) -> Vec<Vec<u32>> {
    let lists = batches.iter().flat_map(|batch| {
        let lists = batch.column_by_name("positions").unwrap().as_list::<i32>().clone();
        lists.iter().map(|list| list.unwrap().as_primitive::<UInt32Type>().values().to_vec()).collect::<Vec<_>>()
    });
    lists.collect()
}

#[test]
fn selections_keep_their_order_and_requests_follow() {
    let bench = Bench::new();
    let lines = [
        line("a", 0, 100, "[100, 3, 17]"),
        line("a", 1, 100, "[0]"),
        line("b", 0, 7, "[]"),
        line("a", 0, 101, "[5, 101]"),
        line("b", 0, 9, "[9, 8]"),
    ];
    let path = bench.file("trace_steps.jsonl", lines.join("\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_out), ("dsa_topk", 5, 5));
    assert_eq!(summaries[0].tables, [("requests", 2), ("selections", 5)]);
    assert_eq!(summaries[0].settings.block_tokens, Some(64));
    let found = stored(&bench, &canonical::SELECTIONS);
    assert_eq!(positions(&found), [vec![100, 3, 17], vec![0], vec![], vec![5, 101], vec![9, 8]]);
    assert_eq!(column::<UInt64Type>(&found, "request_id"), [0, 0, 1, 0, 1]);
    assert_eq!(column::<UInt32Type>(&found, "step"), [1, 1, 1, 2, 3]);
    assert_eq!(column::<UInt16Type>(&found, "layer"), [0, 1, 0, 0, 0]);
    assert_eq!(column::<UInt32Type>(&found, "context_tokens"), [101, 101, 8, 102, 10]);
    assert_eq!(column::<UInt64Type>(&found, "hbm_bytes"), [4608; 5]);
    assert_eq!(column::<Int64Type>(&found, "hbm_latency_ns"), [1250; 5]);
    assert_eq!(found[0].column_by_name("local_pool_latency_ns").unwrap().null_count(), 5);
    assert_eq!(found[0].column_by_name("remote_pool_bytes").unwrap().null_count(), 5);
    let requests = stored(&bench, &canonical::REQUESTS);
    assert_eq!(text(&requests, "source_key"), [Some("a".to_owned()), Some("b".to_owned())]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [100, 7]);
    assert_eq!(column::<UInt32Type>(&requests, "output_tokens"), [2, 3]);
    let log: Vec<(&str, u64)> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert!(log.iter().all(|entry| *entry == ("derived_key", 5)), "{log:?}");

    // A second file continues the numbers of the store.
    let path = bench.file("more.jsonl", line("c", 0, 3, "[1]"));
    bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(column::<UInt64Type>(&stored(&bench, &canonical::SELECTIONS), "request_id")[5], 2);
    assert_eq!(column::<UInt64Type>(&stored(&bench, &canonical::REQUESTS), "request_id"), [0, 1, 2]);
}

#[test]
fn bad_lines_are_set_aside() {
    let bench = Bench::new();
    let good = line("a", 0, 100, "[1]");
    let bad = [
        (line("a", 0, 99, "[1]"), "step_order"),
        (line("a", 0, 101, "[1, 2, 1]"), "duplicate_position"),
        (line("a", 0, 101, "[102]"), "out_of_range"),
        (line("a", 65_536, 101, "[1]"), "out_of_range"),
        (line("a", 0, 101, "[-1]"), "negative"),
        (line("a", 0, 101, "[1]").replace("dsa_topk", "dsa_other"), "event"),
        (line("a", 0, 101, "[1]").replace("\"layer_id\": 0, ", ""), "missing_key"),
        (line("a", 0, 101, "[1]").replace("\"layer_id\": 0", "\"layer_id\": 0, \"layer_id\": 0"), "duplicate_key"),
        (line("a", 0, 101, "[1]").replace("\"bytes_read\": 4608", "\"bytes_read\": -1"), "negative"),
        (line("a", 0, 101, "[1]").replace(": 64", ": 0"), "out_of_range"),
    ];
    let lines: Vec<&str> = std::iter::once(good.as_str()).chain(bad.iter().map(|(line, _)| line.as_str())).collect();
    let path = bench.file("bad.jsonl", lines.join("\n"));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (1, bad.len() as u64));
    let rejects = stored(&bench, &canonical::REJECTS);
    let codes: Vec<String> = text(&rejects, "code").into_iter().map(Option::unwrap_or_default).collect();
    assert_eq!(codes, bad.iter().map(|(_, code)| *code).collect::<Vec<_>>());
    assert_eq!(column::<UInt64Type>(&rejects, "line"), (2..=11).collect::<Vec<u64>>());
}
