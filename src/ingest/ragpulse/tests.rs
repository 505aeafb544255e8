use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, sample, text};
use crate::ingest::{Options, Sniff, inspect};

/// The trace with its side files; figures counted by another program.
#[test]
fn the_whole_trace_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("ragpulse/0_trace.jsonl.zst")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out), ("ragpulse", 7106));
    // The clock begins anew once, and the file ends with an empty line.
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count, entry.first_line)).collect();
    assert_eq!(log, [("time_backwards", 1, Some(3801)), ("empty_line", 1, Some(7107))]);
    check_law(&bench);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns")[..3], [82_000_000_000, 93_000_000_000, 125_000_000_000]);
    let prompts = column::<UInt32Type>(&requests, "prompt_tokens");

    let segments = read(&bench, &canonical::CONTEXT_SEGMENTS);
    let ids = column::<UInt64Type>(&segments, "request_id");
    let tokens = column::<UInt32Type>(&segments, "tokens");
    let (names, kinds) = (text(&segments, "segment_id"), text(&segments, "kind"));
    let mut sums = vec![0; prompts.len()];
    let mut of_request: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for at in 0..ids.len() {
        sums[usize::try_from(ids[at]).unwrap()] += tokens[at];
        match &names[at] {
            Some(name) => of_request.entry(ids[at]).or_default().push(name),
            None => assert!((6..=12).contains(&tokens[at]) && kinds[at].as_deref() == Some("unknown")),
        }
    }
    assert_eq!(sums, prompts);
    // A request's pieces that stand after the same pieces as in an earlier request.
    let (mut prefixes, mut leading) = (BTreeSet::<&[&str]>::new(), 0);
    for names in of_request.values() {
        leading += (1..=names.len()).take_while(|end| prefixes.contains(&names[..*end])).count();
        prefixes.extend((1..=names.len()).map(|end| &names[..end]));
    }
    assert_eq!(leading, 12_856);
    let (mut seen, mut pieces, mut again) = (BTreeSet::<&str>::new(), 0, 0);
    for names in of_request.values() {
        pieces += names.len();
        again += names.iter().filter(|name| seen.contains(**name)).count();
        seen.extend(names);
    }
    assert_eq!((again, pieces), (49_712, 71_583));
}

const ROW: &str = r#"{"timestamp": "82", "input_length": 30, "output_length": 2, "hash_ids": {"sys_prompt": [8], "passages_ids": [7], "history": [], "web_search": [], "user_input": [9]}, "session_id": "s"}"#;

#[test]
fn side_files_are_optional_and_must_fit() {
    let bench = Bench::new();
    let path = bench.file("0_trace.jsonl", format!("{ROW}\n\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let missing = summaries[0].log.iter().filter(|entry| entry.code == "side_file_missing").count();
    assert_eq!((missing, summaries[0].tables.len()), (5, 1));
    bench.file("1_sys_prompt.jsonl", "{\"sys_prompt_id\": 8, \"token_length\": 11}\n");
    bench.file("2_passages.jsonl", "{\"passage_id\": 7, \"token_length\": 3}\n");
    let user = bench.file("4_user_input.jsonl", "{\"user_input_id\": 9, \"token_length\": 6}\n\n");
    let again = Options { again: true, ..quarantine() };
    bench.ingest(&[&path], &again).unwrap();
    let segments = read(&bench, &canonical::CONTEXT_SEGMENTS);
    assert_eq!(column::<UInt32Type>(&segments, "tokens"), [11, 3, 6, 10]);
    let names: Vec<String> = text(&segments, "segment_id").into_iter().flatten().collect();
    assert_eq!(names, ["sys_prompt:8", "passages:7", "user_input:9"]);
    assert_eq!(column::<UInt64Type>(&segments, "request_id"), [1, 1, 1, 1]);

    // Longer than the prompt; a piece that is missing; a side file that is damaged.
    bench.file("4_user_input.jsonl", "{\"user_input_id\": 9, \"token_length\": 60}\n");
    let log = bench.ingest(&[&path], &again).unwrap()[0].log.clone();
    assert!(log.iter().any(|entry| entry.code == "pieces_exceed_prompt"), "{log:?}");
    bench.file("4_user_input.jsonl", "{\"user_input_id\": 8, \"token_length\": 60}\n");
    let log = bench.ingest(&[&path], &again).unwrap()[0].log.clone();
    assert!(log.iter().any(|entry| entry.code == "piece_length_unknown"), "{log:?}");
    bench.file("4_user_input.jsonl", "{\"user_input_id\": 8}\n");
    let error = bench.ingest(&[&path], &again).unwrap_err().to_string();
    assert!(error.contains("4_user_input.jsonl:1:21: expected the key `token_length`"), "{error}");

    bench.file("4_user_input.jsonl", "{\"user_input_id\": 9, \"token_length\": 6}\n\n");
    let found = inspect(&user).unwrap();
    let verdict = found.verdicts.iter().find(|(name, _)| *name == "ragpulse").unwrap();
    assert!(matches!(&verdict.1, Sniff::Nearly(why) if why.contains("give `0_trace.jsonl`")), "{verdict:?}");
    assert_eq!(found.format, None);
}

#[test]
fn bad_rows_are_named() {
    let bench = Bench::new();
    for (bad, expected) in [
        (ROW.replace("\"82\"", "\"8x\""), ":2:15: expected `timestamp` as a number of s in quotes, found `\"8x\"`"),
        (ROW.replace("history", "future"), "expected one of `sys_prompt`, `passages_ids`, `history`, `user_input`"),
        (ROW.replace("[8]", "[-8]"), "expected the id of a piece as a whole number of at least zero, found `-8`"),
        (ROW.replace("\"hash_ids\": {", "\"hash_ids\": [{"), "expected `hash_ids` as an object, found `[`"),
    ] {
        let error = bench.error(format!("{ROW}\n{bad}")).to_string();
        assert!(error.contains(expected), "{error}");
    }
}
