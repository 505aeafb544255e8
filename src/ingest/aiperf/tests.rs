use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type};
use engine::schema::canonical;

use super::super::Options;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, sample, text};

#[test]
fn the_documented_records_are_read() {
    let bench = Bench::new();
    let paths = [1, 2].map(|record| sample(&format!("aiperf/profile_export_record_{record}.json")));
    let summaries = bench.ingest(&[&paths[0], &paths[1]], &Options::standard()).unwrap();
    assert_eq!(summaries.iter().map(|s| (s.format, s.rows_in, s.rows_out)).collect::<Vec<_>>(), [("aiperf", 1, 1); 2]);
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns"), [1_759_813_207_532_900_363, 1_759_879_161_119_147_826]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [550, 550]);
    assert_eq!(column::<UInt32Type>(&requests, "output_tokens"), [9, 0]);
    assert_eq!(text(&requests, "status"), [Some("ok".to_owned()), Some("error".to_owned())]);
    assert_eq!(text(&requests, "source_key")[0], Some("7609a2e7-aa53-4ab1-98f4-f35ecafefd25".to_owned()));
    assert_eq!(text(&requests, "session_id")[0], Some("77aa5b0e-b305-423f-88d5-c00da1892599".to_owned()));
    assert_eq!(text(&requests, "kind"), [Some("profiling".to_owned()), Some("profiling".to_owned())]);
    let time =
        |name: &str| requests[0].column_by_name(name).unwrap().as_primitive::<Int64Type>().iter().collect::<Vec<_>>();
    let first = |name: &str| time(name)[0].unwrap();
    assert_eq!(first("measured_ttft_ns"), 255_886_568);
    assert_eq!(first("measured_e2e_ns"), 297_525_228);
    // 5.2048325 ms; the nanosecond's half rounds up.
    assert_eq!(first("measured_tpot_ns"), 5_204_833);
    // The record has `time_to_first_token` twice: only the first satisfies what AIPerf defines, within the rounding.
    let sum = first("measured_ttft_ns") + 8 * first("measured_tpot_ns");
    assert!((sum - first("measured_e2e_ns")).abs() <= 8, "{sum}");
    let codes: Vec<(&str, u64)> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("repeated_key", 1), ("unknown_metric", 1), ("unknown_metric", 1), ("time_rounded", 1)]);
    assert_eq!(
        text(&stored(&bench, &canonical::SOURCES), "clock"),
        [Some("epoch".to_owned()), Some("epoch".to_owned())]
    );
}

const LINE: &str = r#"{"metadata": {"x_request_id": "r", "conversation_id": "c", "turn_index": 3, "request_start_ns": 5, "was_cancelled": false}, "metrics": {"input_sequence_length": {"value": 7, "unit": "tokens"}, "output_sequence_length": {"unit": "tokens", "value": 2}, "time_to_first_token": {"value": 1.5, "unit": "sec"}, "request_latency": {"value": 2500, "unit": "us"}}, "error": null}"#;

#[test]
fn each_metric_is_read_in_its_unit() {
    let bench = Bench::new();
    let path =
        bench.file("a", format!("{LINE}\n{}\n", LINE.replace("\"was_cancelled\": false", "\"was_cancelled\": true")));
    bench.ingest(&[&path], &Options::standard()).unwrap();
    let requests = stored(&bench, &canonical::REQUESTS);
    assert_eq!(column::<Int64Type>(&requests, "measured_ttft_ns"), [1_500_000_000; 2]);
    assert_eq!(column::<Int64Type>(&requests, "measured_e2e_ns"), [2_500_000; 2]);
    assert_eq!(column::<UInt32Type>(&requests, "turn"), [3, 3]);
    assert_eq!(text(&requests, "status"), [Some("ok".to_owned()), Some("cancelled".to_owned())]);
}

#[test]
fn bad_records_are_named_and_cost_no_other() {
    let bench = Bench::new();
    for (from, to, expected) in [
        ("\"sec\"", "\"fortnights\"", "expected a metric with the unit `ns`, `us`, `ms` or `sec`, found `{`"),
        ("\"request_start_ns\": 5, ", "", "expected `request_start_ns` in `metadata`, found the end of the line"),
        ("\"value\": 7", "\"value\": \"7\"", "expected `value` as a whole number of at least zero, found `\"7\"`"),
        (
            "\"value\": 7, \"unit\": \"tokens\"",
            "\"value\": 7, \"unit\": \"words\"",
            "expected a metric with the unit `tokens`, found `{`",
        ),
        (
            "output_sequence_length",
            "output_length",
            "expected the metric `output_sequence_length`, found the end of the line",
        ),
        ("\"turn_index\": 3", "\"turn_index\": 3, \"turn_index\": 4", "expected each key once, found `\"turn_index\"`"),
    ] {
        let error = bench.error(format!("{LINE}\n{}\n{LINE}\n", LINE.replace(from, to))).to_string();
        let line = error.lines().nth(2).unwrap();
        assert!(line.starts_with("FILE:2:") && line.ends_with(expected), "{line}");
    }
    let path = bench.file("a", format!("{}\n{LINE}\n", &LINE[..200]));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (2, 1, 1));
    check_law(&bench);
}
