use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};
use engine::schema::canonical;

use super::super::Options;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, sample, text};

/// The value that a share of the sorted values does not exceed, interpolated as NumPy does.
fn percentile(values: &mut [i64], share: f64) -> f64 {
    values.sort_unstable();
    let place = share * (values.len() - 1) as f64;
    let (low, high) = (values[place.floor() as usize] as f64, values[place.ceil() as usize] as f64);
    (low + (high - low) * place.fract()) / 1e9
}

fn mean(values: &[i64]) -> f64 {
    values.iter().sum::<i64>() as f64 / values.len() as f64 / 1e9
}

#[test]
fn the_measured_times_are_the_published_ones() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("llmservingsim_result/requests.jsonl")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out), ("llmservingsim_result", 300));
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    let mut ttft = column::<Int64Type>(&requests, "measured_ttft_ns");
    let mut e2e = column::<Int64Type>(&requests, "measured_e2e_ns");
    let mut tpot = column::<Int64Type>(&requests, "measured_tpot_ns");
    let near = |found: f64, expected: f64, digit: f64| assert!((found - expected).abs() <= digit, "{found} {expected}");
    // Seconds, as in the project's summary of the run, which rounds to a tenth of a millisecond.
    for (values, expected) in [
        (&mut ttft, [65.4566, 60.1109, 137.3563]),
        (&mut e2e, [86.5783, 83.4133, 153.6275]),
        (&mut tpot, [0.0324, 0.0308, 0.0560]),
    ] {
        near(mean(values), expected[0], 0.00006);
        near(percentile(values, 0.5), expected[1], 0.00006);
        near(percentile(values, 0.99), expected[2], 0.00006);
    }
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    assert_eq!(arrival[..2], [1_787_267_980_082_740_300, 1_787_267_980_347_831_700]);
    assert_eq!(text(&requests, "source_key")[1], Some("bench-1".to_owned()));
}

#[test]
fn the_cache_fills_and_the_batch_has_its_limit() {
    let bench = Bench::new();
    let paths = [sample("llmservingsim_result/timeseries.csv"), sample("llmservingsim_result/meta.json")];
    let summaries = bench.ingest(&[&paths[0], &paths[1]], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out), (184 * 5, 184 * 5));
    check_law(&bench);
    let samples = stored(&bench, &canonical::ENGINE_SAMPLES);
    let values = column::<Float64Type>(&samples, "value");
    let of = |metric: &str| -> Vec<f64> {
        let names = text(&samples, "metric");
        names.iter().zip(&values).filter(|(name, _)| name.as_deref() == Some(metric)).map(|(_, value)| *value).collect()
    };
    let most = |metric: &str| of(metric).into_iter().fold(0.0, f64::max);
    assert_eq!((most("running_requests"), most("kv_cache_used_ratio")), (49.0, 1.0));
    assert!((of("kv_cache_used_ratio")[0] - 0.1322).abs() < 1e-12);
    assert_eq!(
        (of("kv_cache_blocks"), of("block_tokens"), of("kv_cache_tokens")),
        (vec![2588.0], vec![16.0], vec![41_408.0])
    );
    let times =
        samples[0].column_by_name("time_ns").unwrap().as_primitive::<Int64Type>().iter().take(6).collect::<Vec<_>>();
    assert_eq!(times[..1], [Some(1_000_000_000)]);
    assert_eq!(times[5], Some(2_000_000_000));
    // What held all the time has no instant.
    let last = samples.last().unwrap().column_by_name("time_ns").unwrap().clone();
    assert!(arrow::array::Array::is_null(&last, arrow::array::Array::len(&last) - 1));
}

#[test]
fn bad_cells_and_lines_are_set_aside_one_by_one() {
    let bench = Bench::new();
    let path =
        bench.file("a.csv", "t,running,kv_cache_pct,mood\n1,2,50,x\n\n2,-1,nan,x\n0.5,3\nx,1,2,3\n1.5,4,100.0,\n");
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (8, 4, 4));
    check_law(&bench);
    let rejects = stored(&bench, &canonical::REJECTS);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [4, 4, 5, 6]);
    assert_eq!(column::<UInt64Type>(&rejects, "column"), [3, 6, 6, 1]);
    let codes: Vec<(&str, u64)> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("unknown_column", 1), ("empty_line", 1), ("time_backwards", 1)]);
}

#[test]
fn a_meter_that_never_moves_is_told() {
    let bench = Bench::new();
    // The two runs on an RTX PRO 6000 beside the one in `traces/` have 0.0 in every row, with up to 256 running requests.
    for (name, row, expected) in [("a", "2.0,16,0.0", 1), ("b", "2.0,16,0.5", 0), ("c", "2.0,0,0.0", 0)] {
        let path = bench.file(name, format!("t,running,kv_cache_pct\n1.0,0,0.0\n{row}\n3.0,0,0.0\n"));
        let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
        let told = summaries[0].log.iter().filter(|entry| entry.code == "meter_at_zero").count();
        assert_eq!(told, expected, "{row}");
    }
}

#[test]
fn bad_requests_are_named() {
    let bench = Bench::new();
    let good = r#"{"request_id": "b", "input_toks": 2, "output_toks": 2, "arrival_time": 1.5, "queued_ts": 1, "scheduled_ts": 1, "first_token_ts": 2, "last_token_ts": 3}"#;
    for (from, to, expected) in [
        (
            "\"queued_ts\": 1",
            "\"queued_ts\": 2.5",
            "FILE:2:1: expected `queued_ts`, `first_token_ts` and `last_token_ts` in this order, found another",
        ),
        ("\"queued_ts\": 1, ", "", "FILE:2:136: expected the key `queued_ts`, found the end of the line"),
        (
            "\"first_token_ts\": 2",
            "\"first_token_ts\": null",
            "FILE:2:155: expected the key `first_token_ts`, found the end of the line",
        ),
        (
            "\"arrival_time\": 1.5",
            "\"arrival_time\": \"now\"",
            "FILE:2:72: expected `arrival_time` as a number, found `\"now\"`",
        ),
        ("\"b\", ", "\"b\", \"request_id\": \"c\", ", "FILE:2:21: expected each key once, found `\"request_id\"`"),
    ] {
        let error = bench.error(format!("{good}\n{}\n", good.replace(from, to))).to_string();
        assert_eq!(error.lines().nth(2).unwrap(), expected, "{to}");
    }
    // A request that produced nothing has no times, and is kept.
    let path = bench.file(
        "a",
        good.replace("\"output_toks\": 2", "\"output_toks\": 0").replace(
            "\"first_token_ts\": 2, \"last_token_ts\": 3",
            "\"first_token_ts\": null, \"last_token_ts\": null",
        ),
    );
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(summaries[0].rows_out, 1);
    assert_eq!(text(&stored(&bench, &canonical::REQUESTS), "status"), [Some("no_output".to_owned())]);
}
