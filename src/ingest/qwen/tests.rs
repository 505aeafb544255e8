use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use crate::ingest::tests::{Bench, check_law, column, hashes, quarantine, read, sample, text};
use crate::ingest::{Options, Sniff, inspect};

fn row(chat: u64, parent: i64, turn: u32) -> String {
    format!(
        r#"{{"chat_id": {chat}, "parent_chat_id": {parent}, "timestamp": {chat}.25, "input_length": 17, "output_length": 3, "type": "text", "turn": {turn}, "hash_ids": [{chat}, 1]}}"#
    )
}

#[test]
fn the_quoted_row_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("qwen/thinking_row0_as_quoted.jsonl")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out, summaries[0].log.len()), ("qwen", 1, 0));
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(hashes(&requests), [(0..32).collect::<Vec<u64>>()]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [502]);
    assert_eq!(column::<UInt32Type>(&requests, "turn"), [0]);
    assert_eq!(text(&requests, "kind"), [Some("thinking".to_owned())]);
    let sources = read(&bench, &canonical::SOURCES);
    for (name, value) in [("time_unit", "s"), ("rounding", "ceil"), ("settings_origin", "format")] {
        assert_eq!(text(&sources, name), [Some(value.to_owned())]);
    }
    assert_eq!(column::<UInt32Type>(&sources, "block_tokens"), [16]);
}

#[test]
fn sessions_follow_the_chain_to_its_root() {
    let bench = Bench::new();
    let rows =
        [row(7, -1, 1), row(9, -1, 1), row(11, 7, 2), row(12, 11, 3), row(13, 7, 2), row(14, 99, 5), row(15, 14, 0)];
    let path = bench.file("a", rows.join("\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let requests = read(&bench, &canonical::REQUESTS);
    let sessions: Vec<String> = text(&requests, "session_id").into_iter().flatten().collect();
    assert_eq!(sessions, ["7", "9", "7", "7", "7", "14", "14"]);
    let parents = requests[0].column_by_name("parent_request_id").unwrap().as_primitive::<UInt64Type>();
    assert_eq!(parents.iter().collect::<Vec<_>>(), [None, None, Some(0), Some(2), Some(0), None, Some(5)]);
    let turns = requests[0].column_by_name("turn").unwrap().as_primitive::<UInt32Type>();
    assert_eq!(turns.iter().collect::<Vec<_>>(), [Some(0), Some(0), Some(1), Some(2), Some(1), Some(4), None]);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns")[0], 7_250_000_000);
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count, entry.first_line)).collect();
    assert_eq!(log, [("unknown_parent", 1, Some(6)), ("turn_zero", 1, Some(7))]);
}

#[test]
fn bad_rows_are_named_and_a_wrong_flag_is_refused() {
    let bench = Bench::new();
    for (bad, expected) in [
        (row(1, -2, 1), ":2:34: expected `parent_chat_id` as -1 or a whole number of at least zero, found `-2`"),
        (row(1, -1, 1).replace(": 17,", ": 33,"), "expected 3 blocks of 16 for 33 tokens, found 2: the block count"),
        (row(1, -1, 1).replace("\"turn\": 1, ", ""), "expected the key `turn`, found the end of the line"),
        (row(1, -1, 1).replace("\"turn\"", "\"chat_id\""), "expected each key once, found `\"chat_id\"`"),
    ] {
        let error = bench.error(format!("{}\n{bad}\n", row(0, -1, 1))).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let path = bench.file("b", format!("{}\n{}\nx", row(0, -1, 1), row(1, 0, 2)));
    let options = Options { block_tokens: Some(512), ..quarantine() };
    let error = bench.ingest(&[&path], &options).unwrap_err().to_string();
    assert!(error.contains("expected blocks of 512 tokens in "), "{error}");
    assert!(error.contains("found ceil of 16 tokens in its first rows"), "{error}");
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (2, 1));
    check_law(&bench);
    let near = bench.file("c", "{\"chat_id\": 0, \"timestamp\": 0.0}");
    let verdicts = inspect(&near).unwrap().verdicts;
    assert!(
        matches!(&verdicts.iter().find(|(name, _)| *name == "qwen").unwrap().1, Sniff::Nearly(why) if why.starts_with("rows lack `parent_chat_id`"))
    );
}
