use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use super::super::Options;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, text};

/// A span written for the test, with these attributes.
fn span(id: &str, attributes: &[(&str, &str)]) -> String {
    let attributes: Vec<String> =
        attributes.iter().map(|(key, value)| format!(r#"{{"key": "{key}", "value": {{{value}}}}}"#)).collect();
    format!(
        r#"{{"traceId": "t", "spanId": "{id}", "name": "chat", "startTimeUnixNano": "1544712660000000001", "endTimeUnixNano": 1544712661000000001, "attributes": [{}], "status": {{}}}}"#,
        attributes.join(", ")
    )
}

fn export(spans: &[String]) -> String {
    format!(
        r#"{{"resourceSpans": [{{"resource": {{"attributes": []}}, "scopeSpans": [{{"spans": [{}]}}]}}]}}"#,
        spans.join(", ")
    )
}

fn vllm() -> String {
    span(
        "v",
        &[
            ("gen_ai.usage.prompt_tokens", "\"intValue\": \"128\""),
            ("gen_ai.usage.completion_tokens", "\"intValue\": 5"),
            ("gen_ai.latency.time_to_first_token", "\"doubleValue\": 0.045"),
            ("gen_ai.latency.e2e", "\"doubleValue\": 0.0490000000"),
            ("gen_ai.response.model", "\"stringValue\": \"llama\""),
        ],
    )
}

fn client() -> String {
    span(
        "c",
        &[
            ("gen_ai.operation.name", "\"stringValue\": \"chat\""),
            ("gen_ai.request.model", "\"stringValue\": \"asked\""),
            ("gen_ai.response.model", "\"stringValue\": \"answered\""),
            ("gen_ai.usage.input_tokens", "\"intValue\": \"4294967295\""),
            ("gen_ai.usage.output_tokens", "\"intValue\": \"0\""),
            ("gen_ai.usage.cache_read.input_tokens", "\"intValue\": \"64\""),
            ("gen_ai.conversation.id", "\"stringValue\": \"conv\""),
        ],
    )
}

#[test]
fn names_of_attributes_may_differ() {
    let bench = Bench::new();
    let tool = span("t", &[("gen_ai.operation.name", "\"stringValue\": \"execute_tool\"")]);
    let agent = span(
        "a",
        &[
            ("gen_ai.operation.name", "\"stringValue\": \"invoke_agent\""),
            ("gen_ai.usage.input_tokens", "\"intValue\": \"9\""),
        ],
    );
    let web = span("w", &[("http.method", "\"stringValue\": \"GET\"")]);
    let printed: serde_json::Value = serde_json::from_str(&export(&[client()])).unwrap();
    let text_of =
        format!("{}\n{}\n", export(&[vllm(), tool, agent, web]), serde_json::to_string_pretty(&printed).unwrap());
    let path = bench.file("a", text_of);
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_out), ("otel", 2, 2));
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    assert_eq!(text(&requests, "source_key"), [Some("t/v".to_owned()), Some("t/c".to_owned())]);
    assert_eq!(text(&requests, "model"), [Some("llama".to_owned()), Some("asked".to_owned())]);
    assert_eq!(text(&requests, "session_id"), [None, Some("conv".to_owned())]);
    assert_eq!(text(&requests, "status"), [Some("ok".to_owned()), Some("no_output".to_owned())]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [128, u32::MAX]);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns"), [1_544_712_660_000_000_001; 2]);
    assert_eq!(column::<Int64Type>(&requests, "measured_e2e_ns"), [49_000_000, 1_000_000_000]);
    let maybe =
        |name: &str| requests[0].column_by_name(name).unwrap().as_primitive::<Int64Type>().iter().collect::<Vec<_>>();
    assert_eq!(maybe("measured_ttft_ns"), [Some(45_000_000), None]);
    // 4 ms for the four tokens after the first.
    assert_eq!(maybe("measured_tpot_ns"), [Some(1_000_000), None]);
    let hit = requests[0]
        .column_by_name("measured_hit_tokens")
        .unwrap()
        .as_primitive::<UInt32Type>()
        .iter()
        .collect::<Vec<_>>();
    assert_eq!(hit, [None, Some(64)]);
    let codes: Vec<(&str, u64)> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("agent_span", 2), ("no_usage", 1), ("no_output", 1)]);
}

#[test]
fn a_bad_span_costs_no_other() {
    let bench = Bench::new();
    let bad = [
        vllm().replace("\"128\"", "\"12x\""),
        vllm().replace("1544712661000000001", "15"),
        span("o", &[("gen_ai.usage.output_tokens", "\"intValue\": \"3\"")]),
        vllm().replace("0.045", "-1"),
    ];
    let mut spans = bad.to_vec();
    spans.push(vllm());
    let path = bench.file("a", format!("{}\n{}", export(&spans), &export(&[vllm()])[..300]));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (6, 1, 5));
    check_law(&bench);
    let rejects = stored(&bench, &canonical::REJECTS);
    let codes: Vec<String> = text(&rejects, "code").into_iter().flatten().collect();
    assert_eq!(codes, ["json", "time_order", "missing_key", "negative", "json"]);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [1, 1, 1, 1, 2]);
    let column = export(&spans).find("12x").unwrap() as u64 + 1;
    // The digits before the letter are read; the letter is the problem.
    assert_eq!(self::column::<UInt64Type>(&rejects, "column")[0], column + 2);
}

#[test]
fn an_error_is_kept_with_its_status() {
    let bench = Bench::new();
    let path = bench.file("a", export(&[vllm().replace("\"status\": {}", "\"status\": {\"code\": 2}")]));
    bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(text(&stored(&bench, &canonical::REQUESTS), "status"), [Some("error".to_owned())]);
}
