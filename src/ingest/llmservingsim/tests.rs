use std::collections::BTreeSet;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;
use serde::Deserialize;

use super::super::tests::{Bench, check_law, column, hashes, quarantine, read as stored, sample, text};
use super::super::{Options, TimeUnit};

/// The same row through serde.
#[derive(Debug, Deserialize)]
struct Slow {
    input_toks: u32,
    output_toks: u32,
    arrival_time_ns: i64,
    input_tok_ids: Vec<u32>,
    output_tok_ids: Vec<u32>,
}

#[test]
fn the_published_workload_has_the_published_reuse() {
    let bench = Bench::new();
    let path = sample("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl.zst");
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_out), ("llmservingsim", 300, 300));
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    // An infinite cache: leading blocks that an earlier request brought.
    let (mut seen, mut hits, mut blocks) = (BTreeSet::new(), 0, 0);
    for ids in hashes(&requests) {
        hits += ids.iter().take_while(|id| seen.contains(*id)).count();
        blocks += ids.len();
        seen.extend(ids);
    }
    assert_eq!((hits, blocks), (1220, 15_942));
    let file = std::fs::read(&path).unwrap();
    let lines = String::from_utf8(zstd::decode_all(&file[..]).unwrap()).unwrap();
    let slow: Vec<Slow> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        column::<Int64Type>(&requests, "arrival_ns"),
        slow.iter().map(|row| row.arrival_time_ns).collect::<Vec<_>>()
    );
    assert_eq!(
        column::<UInt32Type>(&requests, "output_tokens"),
        slow.iter().map(|r| r.output_toks).collect::<Vec<_>>()
    );
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), slow.iter().map(|r| r.input_toks).collect::<Vec<_>>());
    let ids = |name: &str| -> Vec<Vec<u32>> {
        let lists = requests.iter().flat_map(|batch| {
            let lists = batch.column_by_name(name).unwrap().as_list::<i32>().clone();
            lists.iter().map(|ids| ids.unwrap().as_primitive::<UInt32Type>().values().to_vec()).collect::<Vec<_>>()
        });
        lists.collect()
    };
    assert_eq!(ids("prompt_token_ids"), slow.iter().map(|row| row.input_tok_ids.clone()).collect::<Vec<_>>());
    assert_eq!(ids("output_token_ids"), slow.iter().map(|row| row.output_tok_ids.clone()).collect::<Vec<_>>());
    // Two prompts share an id exactly as far as they share whole blocks of tokens.
    let distinct: BTreeSet<&[u32]> = slow
        .iter()
        .flat_map(|row| (1..=row.input_tok_ids.len() / 16).map(|block| &row.input_tok_ids[..16 * block]))
        .collect();
    assert_eq!(seen.len(), distinct.len());
    let sources = stored(&bench, &canonical::SOURCES);
    for (name, value) in [("time_unit", "ns"), ("clock", "trace_start"), ("rounding", "floor"), ("id_kind", "prefix")] {
        assert_eq!(text(&sources, name), [Some(value.to_owned())], "{name}");
    }
    assert_eq!(column::<UInt32Type>(&sources, "block_tokens"), [16]);
}

/// Nullable numbers.
fn maybe<T: arrow::array::ArrowPrimitiveType>(bench: &Bench, name: &str) -> Vec<Option<T::Native>> {
    let batches = stored(bench, &canonical::REQUESTS);
    batches
        .iter()
        .flat_map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().iter().collect::<Vec<_>>())
        .collect()
}

const MIXED: &str = r#"{"input_toks": 3, "output_toks": 1, "arrival_time_ns": 9, "input_tok_ids": [1, 2, 3], "output_tok_ids": [4]}
{"session_id": "s\u00e9", "arrival_time_ns": 5, "sub_requests": [{"input_toks": 9, "output_toks": 2, "tool_duration_ns": 700}, {"output_toks": 0, "input_toks": 20, "input_tok_ids": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20], "think": 1}, {"input_toks": 30, "output_toks": 5, "tool_duration_ns": 0}], "x": null}
{"session_id": 17, "arrival_time_ns": 20, "sub_requests": [{"input_toks": 1, "output_toks": 1}]}
"#;

#[test]
fn sessions_are_chained_and_mix_with_single_requests() {
    let bench = Bench::new();
    let path = bench.file("a", MIXED);
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out), (5, 5));
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    let session = |text: &str| Some(text.to_owned());
    assert_eq!(text(&requests, "session_id"), [None, session("sé"), session("sé"), session("sé"), session("17")]);
    assert_eq!(maybe::<UInt32Type>(&bench, "turn"), [None, Some(0), Some(1), Some(2), Some(0)]);
    assert_eq!(maybe::<UInt64Type>(&bench, "parent_request_id"), [None, None, Some(1), Some(2), None]);
    assert_eq!(maybe::<Int64Type>(&bench, "arrival_ns"), [Some(9), Some(5), None, None, Some(20)]);
    // The wait belongs to the call after it; a call without one is followed at once.
    assert_eq!(maybe::<Int64Type>(&bench, "delay_ns"), [None, None, Some(700), Some(0), None]);
    let lists = requests[0].column_by_name("block_hashes").unwrap().as_list::<i32>();
    let lengths: Vec<Option<usize>> = lists.iter().map(|ids| ids.map(|ids| ids.len())).collect();
    assert_eq!(lengths, [Some(0), None, Some(1), None, None]);
    let log: Vec<(&str, u64, Option<u64>)> = summaries[0].log.iter().map(|e| (e.code, e.count, e.first_line)).collect();
    assert_eq!(
        log,
        [
            ("blocks_hashed", 2, Some(1)),
            ("unknown_key", 1, Some(2)),
            ("unknown_key", 1, Some(2)),
            ("time_backwards", 1, Some(2)),
            ("no_output", 1, Some(2)),
        ]
    );
}

#[test]
fn bad_lines_are_named() {
    let bench = Bench::new();
    let good = r#"{"input_toks": 1, "output_toks": 1, "arrival_time_ns": 0}"#;
    for (line, expected) in [
        (
            r#"{"input_toks": 1, "output_toks": 1}"#,
            "FILE:2:36: expected the key `arrival_time_ns`, found the end of the line",
        ),
        (
            r#"{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [1]}"#,
            "FILE:2:76: expected 2 ids in `input_tok_ids`, found 1",
        ),
        (
            r#"{"session_id": "s", "arrival_time_ns": 0, "sub_requests": []}"#,
            "FILE:2:43: expected at least one entry in `sub_requests`, found `\"sub_requests\"`",
        ),
        (
            r#"{"arrival_time_ns": 0, "sub_requests": [{"input_toks": 1}]}"#,
            "FILE:2:57: expected the key `output_toks`, found `}`",
        ),
        (
            r#"{"arrival_time_ns": 0, "input_toks": 1, "sub_requests": [{"input_toks": 1, "output_toks": 1}]}"#,
            "FILE:2:41: expected either `input_toks` or `sub_requests`, found `\"sub_requests\"`",
        ),
        (
            r#"{"arrival_time_ns": 0, "input_toks": 1, "output_toks": 1, "input_tok_ids": [4294967296]}"#,
            "FILE:2:77: expected a token id of at most 4294967295, found `4294967296`",
        ),
        (
            r#"{"arrival_time_ns": 0, "input_toks": 1, "output_toks": 1, "input_toks": 1}"#,
            "FILE:2:59: expected each key once, found `\"input_toks\"`",
        ),
        (
            r#"{"arrival_time_ns": -4, "input_toks": 1, "output_toks": 1}"#,
            "FILE:2:21: expected `arrival_time_ns` of at least zero, found `-4`",
        ),
    ] {
        let error = bench.error(format!("{good}\n{line}\n{good}\n")).to_string();
        assert_eq!(error.lines().nth(2).unwrap(), expected, "{line}");
    }
}

#[test]
fn a_bad_call_sets_its_session_aside() {
    let bench = Bench::new();
    let bad = r#"{"arrival_time_ns": 0, "sub_requests": [{"input_toks": 1, "output_toks": 1}, {"input_toks": -1}]}"#;
    let path = bench.file("a", format!("{MIXED}{bad}\n"));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (6, 5, 1));
    check_law(&bench);
}

#[test]
fn flags_that_contradict_the_format_are_refused() {
    let bench = Bench::new();
    let path = bench.file("a", MIXED);
    let options = Options { time_unit: Some(TimeUnit::Ms), ..Options::standard() };
    let error = bench.ingest(&[&path], &options).unwrap_err().to_string();
    assert_eq!(error, "expected the time unit `ns` with format `llmservingsim`, found `ms`");
    let options = Options { block_tokens: Some(4), ..Options::standard() };
    bench.ingest(&[&path], &options).unwrap();
    let lists = stored(&bench, &canonical::REQUESTS)[0].column_by_name("block_hashes").unwrap().clone();
    assert_eq!(lists.as_list::<i32>().value(2).len(), 5);
    assert_eq!(text(&stored(&bench, &canonical::SOURCES), "settings_origin"), [Some("flag".to_owned())]);
}
