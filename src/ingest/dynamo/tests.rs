use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use crate::ingest::Options;
use crate::ingest::tests::{Bench, check_law, column, hashes, quarantine, read, sample, text};

#[test]
fn the_documented_request_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("dynamo/request_end.json")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out), ("dynamo", 1));
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(hashes(&requests), [[14_879_255_164_371_896_291, 274_632_075_616_497_421]]);
    for (name, value) in [
        ("source_key", "dynamo-request-id"),
        ("session_id", "research-run-42:researcher"),
        ("model", "my-model"),
        ("kind", "deep_research"),
    ] {
        assert_eq!(text(&requests, name), [Some(value.to_owned())]);
    }
    assert_eq!(column::<UInt32Type>(&requests, "block_tokens"), [64]);
    assert_eq!(requests[0].column_by_name("arrival_ns").unwrap().null_count(), 1);
    let error = bench.ingest(&[&sample("dynamo/tool_end.json")], &Options::standard()).unwrap_err().to_string();
    assert!(
        error.starts_with("expected at least one `request_end` in ") && error.ends_with("found 1 other events"),
        "{error}"
    );
}

/// An event as the trace's writer prints it.
fn event(kind: &str, time: u64, trajectory: &str, more: &str) -> String {
    format!(
        r#"{{"timestamp":5,"event":{{"schema":"dynamo.agent.trace.v1","event_type":"{kind}","event_time_unix_ms":{time},"event_source":"dynamo","agent_context":{{"session_type_id":"t","session_id":"run","trajectory_id":"{trajectory}","parent_trajectory_id":"main"}}{more}}}}}"#
    )
}

fn ended(id: u64, more: &str) -> String {
    format!(
        r#","request":{{"request_id":"r{id}","model":"m","output_tokens":4{more},"replay":{{"trace_block_size":16,"input_length":17,"input_sequence_hashes":[{id},18446744073709551615]}}}}"#
    )
}

fn optional<T: arrow::array::ArrowPrimitiveType>(bench: &Bench, name: &str) -> Vec<Option<T::Native>> {
    read(bench, &canonical::REQUESTS)[0].column_by_name(name).unwrap().as_primitive::<T>().iter().collect()
}

#[test]
fn tools_become_the_pause_of_the_next_request() {
    let bench = Bench::new();
    let tool = |from: u64, to: u64| {
        format!(
            r#","tool":{{"tool_call_id":"c","tool_class":"w","started_at_unix_ms":{from},"ended_at_unix_ms":{to}}}"#
        )
    };
    let lines = [
        event("request_end", 1000, "main", &ended(0, "")),
        event("tool_start", 1100, "main", ""),
        event("tool_end", 1400, "main", &tool(1100, 1400)),
        event("tool_error", 1350, "main", r#","tool":{"tool_call_id":"d","tool_class":"w","duration_ms":20.5}"#),
        // Not known when it came: 400 ms from the end before it to the end of the last tool.
        event("request_end", 2000, "main", &ended(1, "")),
        // It came 250.5 ms after the end before it.
        event(
            "request_end",
            2900,
            "main",
            &ended(2, r#","request_received_ms":2250,"ttft_ms":1.5,"total_time_ms":649.5,"cached_tokens":16"#),
        ),
        // A trajectory of its own, whose parent is `main`: only its tools are known.
        event("tool_end", 3300, "sub", &tool(3000, 3300)),
        event("request_end", 4000, "sub", &ended(3, r#","total_time_ms":100"#)),
        event("request_payload", 4000, "sub", ""),
    ];
    let path = bench.file("a", lines.join("\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(summaries[0].rows_in, 4);
    check_law(&bench);
    let ms = |value: i64| Some(value * 1_000_000);
    assert_eq!(optional::<Int64Type>(&bench, "delay_ns"), [None, ms(400), ms(250), ms(300)]);
    assert_eq!(optional::<Int64Type>(&bench, "arrival_ns"), [None, None, ms(2250), ms(3900)]);
    assert_eq!(optional::<UInt64Type>(&bench, "parent_request_id"), [None, Some(0), Some(1), Some(2)]);
    assert_eq!(optional::<UInt32Type>(&bench, "turn"), [Some(0), Some(1), Some(2), Some(0)]);
    assert_eq!(optional::<Int64Type>(&bench, "measured_ttft_ns")[2], Some(1_500_000));
    assert_eq!(optional::<UInt32Type>(&bench, "measured_hit_tokens")[2], Some(16));
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(log, [("no_arrival", 2), ("tool_event", 1), ("tool_event", 2), ("tool_error", 1), ("other_event", 1)]);
}

#[test]
fn bad_events_are_named() {
    let bench = Bench::new();
    let good = event("request_end", 1000, "main", &ended(0, ""));
    for (bad, expected) in [
        (good.replace("\"output_tokens\":4,", ""), "expected the key `output_tokens`, found the end of the line"),
        (good.replace("\"input_length\":17", "\"input_length\":7"), "expected 1 blocks of 16 for 7 tokens, found 2"),
        (
            good.replace("18446744073709551615", "18446744073709551616"),
            "expected a hash of at most 18446744073709551615",
        ),
        (good[..good.len() - 2].to_owned(), "expected `,` or `}`, found the end of the line"),
    ] {
        let path = bench.file("a", format!("{good}\n{bad}\n{good}\n"));
        let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("/a:2:"), "{error}");
        let summaries = bench.ingest(&[&path], &Options { again: true, ..quarantine() }).unwrap();
        assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (2, 1));
    }
    let path = bench.file("b", good);
    let options = Options { block_tokens: Some(64), ..Options::standard() };
    let error = bench.ingest(&[&path], &options).unwrap_err().to_string();
    assert!(error.contains("expected blocks of 64 tokens") && error.ends_with("as the flag says, found 16"), "{error}");
}
