use arrow::datatypes::{Int64Type, UInt32Type};
use engine::schema::canonical;

use crate::ingest::tests::{Bench, check_law, column, hashes, quarantine, read, sample, text};
use crate::ingest::{Options, Sniff, inspect};

#[test]
fn the_example_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("tair/example_trace.jsonl")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out), ("tair", 5));
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(hashes(&requests), [vec![1], vec![2, 3], vec![4], vec![5, 6, 7], vec![8]]);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns")[1], 1_704_081_605_123_456_000);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [16, 32, 16, 48, 16]);
    let sources = read(&bench, &canonical::SOURCES);
    for (name, value) in [("time_unit", "us"), ("clock", "epoch"), ("rounding", "floor")] {
        assert_eq!(text(&sources, name), [Some(value.to_owned())]);
    }
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(log, [("no_output", 5)]);
}

#[test]
fn the_newer_form_and_odd_rows_are_read() {
    let bench = Bench::new();
    let row = |keys: &str, input: u32| {
        format!(
            r#"{{"type":"request","instance_id":"p","timestamp_ns":1704081605123456001,"keys":{keys},"input_len":{input},"ttl_us":5}}"#
        )
    };
    let text_ = [
        row("[-1,9]", 130),
        r#"{"type":"write","instance_id":"p","timestamp_ns":1704081605123456002,"keys":[1]}"#.to_owned(),
        row("[4]", 140),
        row("[1,2,3]", 200),
        row("[1,2,3,4]", 200),
        r#"{"instance_id":"p","timestamp_us":1,"keys":[5],"total_keys":[5,6],"tokens":[1,2],"input_len":2,"output_len":1}"#.to_owned(),
        r#"{"instance_id":"p","timestamp_us":1704081700000000,"keys":[],"total_keys":[6],"tokens":[1,2],"input_len":2,"output_len":1}"#.to_owned(),
    ];
    let path = bench.file("a", text_.join("\n"));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    // Blocks of 64: two of the first rows fit nothing else.
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (6, 4, 2));
    check_law(&bench);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(hashes(&requests), [vec![u64::MAX, 9], vec![4], vec![1, 2, 3], vec![]]);
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(log, [("unknown_key", 3), ("no_output", 3), ("cache_write", 1), ("fewer_keys", 1), ("output_keys", 1)]);
    let sources = read(&bench, &canonical::SOURCES);
    assert_eq!(column::<UInt32Type>(&sources, "block_tokens"), [64]);
    assert_eq!(text(&sources, "settings_origin"), [Some("detected".to_owned())]);
}

#[test]
fn inputs_of_the_trace_tool_are_nearly_it() {
    let bench = Bench::new();
    for line in [
        r#"{"timestamp": "2024-01-01 10:00:00.000000", "dialog": {"messages": [{"role": "user", "content": "x"}]}}"#,
        r#"{"time": "2024-01-01 12:00:00.000000", "text": "x"}"#,
        r#"{"ts_str": "2024-01-01 12:00:00.000000", "timestamp": 1704081600.0, "token_ids": [30594], "is_tool_call": false}"#,
    ] {
        let found = inspect(&bench.file("a", line)).unwrap();
        assert_eq!(found.format, None, "{line}");
        let tair = found.verdicts.iter().find(|(name, _)| *name == "tair").unwrap();
        assert!(matches!(&tair.1, Sniff::Nearly(why) if why.contains("without block keys")), "{line}");
    }
}

#[test]
fn a_unit_that_the_keys_contradict_is_refused() {
    let bench = Bench::new();
    let flag = Options { time_unit: Some(crate::ingest::TimeUnit::S), ..Options::standard() };
    for (name, expected) in [
        ("tair/example_trace.jsonl", "as the flag says, found `timestamp_us`"),
        ("dynamo/request_end.json", "as the flag says, found keys that end in `_ms`"),
    ] {
        let error = bench.ingest(&[&sample(name)], &flag).unwrap_err().to_string();
        assert!(error.starts_with("expected instants in s in ") && error.ends_with(expected), "{error}");
    }
}
