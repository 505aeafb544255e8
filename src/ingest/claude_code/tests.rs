use std::fmt::Write as _;

use arrow::datatypes::{Int64Type, UInt32Type};
use engine::schema::canonical;

use super::super::Options;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, text};

/// A line written for the test.
fn line(request: &str, second: u32, usage: [u32; 4], more: &str) -> String {
    let [input, created, read, output] = usage;
    format!(
        r#"{{"parentUuid": "p", "isSidechain": false, "sessionId": "s1", "type": "assistant", "uuid": "u{second}", "requestId": "{request}", "timestamp": "2026-03-02T09:14:{second:02}.120Z"{more}, "message": {{"id": "msg", "model": "claude", "content": [{{"type": "text", "text": "SECRET"}}], "usage": {{"input_tokens": {input}, "cache_creation_input_tokens": {created}, "cache_read_input_tokens": {read}, "cache_creation": {{"ephemeral_5m_input_tokens": 1}}, "output_tokens": {output}}}}}}}"#
    )
}

const OTHER: &str = r#"{"type": "user", "sessionId": "s1", "uuid": "x", "timestamp": "2026-03-02T09:14:00.000Z", "message": {"role": "user", "content": "SECRET"}}"#;

#[test]
fn one_row_per_request_and_the_largest_count_wins() {
    let bench = Bench::new();
    let lines = [
        r#"{"type": "summary", "summary": "SECRET", "leafUuid": "l"}"#.to_owned(),
        OTHER.to_owned(),
        line("r1", 1, [4, 1210, 48_000, 1], ""),
        line("r1", 2, [4, 1210, 48_000, 96], ""),
        line("r2", 4, [1, 0, 49_000, 7], ""),
        line("r1", 3, [4, 1210, 48_000, 30], ""),
        line("r3", 5, [1, 2, 3, 4], "").replace("\"claude\"", "\"<synthetic>\""),
        line("r4", 6, [10, 0, 0, 2], ", \"agentId\": \"a7\"")
            .replace("\"isSidechain\": false", "\"isSidechain\": true"),
    ];
    let path = bench.file("log.jsonl", lines.join("\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_out), ("claude_code", 3, 3));
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    assert_eq!(text(&requests, "source_key"), [Some("r1".to_owned()), Some("r2".to_owned()), Some("r4".to_owned())]);
    assert_eq!(text(&requests, "session_id"), [Some("s1".to_owned()), Some("s1".to_owned()), Some("s1/a7".to_owned())]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [49_214, 49_001, 10]);
    assert_eq!(column::<UInt32Type>(&requests, "output_tokens"), [96, 7, 2]);
    assert_eq!(column::<UInt32Type>(&requests, "measured_hit_tokens"), [48_000, 49_000, 0]);
    assert_eq!(column::<UInt32Type>(&requests, "turn"), [0, 1, 0]);
    assert_eq!(text(&requests, "kind"), [None, None, Some("sidechain".to_owned())]);
    // 2026-03-02 09:14:01 UTC is 1,772,442,841 s after the epoch (date -u -d @1772442841).
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns")[0], 1_772_442_841_120_000_000);
    let codes: Vec<(&str, u64)> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("no_usage", 2), ("usage_repeated", 2), ("synthetic", 1)]);
}

#[test]
fn nothing_that_was_said_reaches_the_store_or_the_screen() {
    let bench = Bench::new();
    let bad = [
        line("r2", 2, [1, 1, 1, 1], "").replace("\"input_tokens\": 1", "\"input_tokens\": \"SECRET\""),
        line("r3", 3, [1, 1, 1, 1], "").replace("\"timestamp\"", "\"time\""),
        OTHER[..120].to_owned(),
    ];
    let all = format!("{}\n{}\n", line("r1", 1, [1, 1, 1, 1], ""), bad.join("\n"));
    let error = bench.error(&all);
    assert!(!error.to_string().contains("SECRET"), "{error}");
    assert!(error.to_string().contains("(the line is private and not shown)"), "{error}");
    let path = bench.file("log.jsonl", all);
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (4, 1, 3));
    check_law(&bench);
    let store = bench.store();
    for table in engine::schema::ALL {
        for batch in store.read(table).unwrap() {
            let shown = arrow::util::pretty::pretty_format_batches(&[batch]).map(|text| text.to_string());
            assert!(!shown.unwrap_or_default().contains("SECRET"), "{}", table.name);
        }
    }
}

#[test]
fn many_requests_are_kept_open_and_written_in_order() {
    let bench = Bench::new();
    let mut log = String::new();
    for request in 0..600_u32 {
        // The line with all tokens comes two hundred requests later.
        let _ = writeln!(log, "{}", line(&format!("r{request}"), request % 60, [1, 0, 0, 1], ""));
        if request >= 200 {
            let _ = writeln!(log, "{}", line(&format!("r{}", request - 200), request % 60, [1, 0, 0, 50], ""));
        }
    }
    let path = bench.file("log.jsonl", log);
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(summaries[0].rows_out, 600);
    let requests = stored(&bench, &canonical::REQUESTS);
    let keys: Vec<Option<String>> = (0..600).map(|request| Some(format!("r{request}"))).collect();
    assert_eq!(text(&requests, "source_key"), keys);
    let output = column::<UInt32Type>(&requests, "output_tokens");
    assert_eq!((output[..400].iter().min(), output[400..].iter().max()), (Some(&50), Some(&1)));
}
