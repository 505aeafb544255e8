use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use super::super::Options;
use super::super::source::open;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, sample, text};
use super::*;

/// Written for the test in the layout of `vllm bench serve`.
const RUN: &str = r#"{"date": "20260101-000000", "backend": "vllm", "model_id": "m", "num_prompts": 3, "request_rate": "inf", "max_concurrency": null, "duration": 2.0, "mean_ttft_ms": 75.0, "input_lens": [7, 9, 8], "output_lens": [3, 1, 0], "ttfts": [0.08, 0.07, 0.0], "itls": [[0.01, 0.0200000004], [], []], "start_times": [1.5, 1.500000001, 1.6], "generated_texts": ["a", "\"", ""], "errors": ["", "", "timeout"]}"#;

fn times(bench: &Bench, name: &str) -> Vec<Option<i64>> {
    let batches = stored(bench, &canonical::REQUESTS);
    batches
        .iter()
        .flat_map(|b| b.column_by_name(name).unwrap().as_primitive::<Int64Type>().iter().collect::<Vec<_>>())
        .collect()
}

#[test]
fn the_lists_become_requests() {
    let bench = Bench::new();
    let later = RUN.replace("\"m\"", "\"n\"").replace("\"start_times\": [1.5, 1.500000001, 1.6], ", "");
    let path = bench.file("a", format!("{RUN}\n{later}\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_out), ("vllm_bench", 6, 6));
    check_law(&bench);
    let requests = stored(&bench, &canonical::REQUESTS);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [7, 9, 8, 7, 9, 8]);
    let status = text(&requests, "status");
    assert_eq!(status[..3], ["ok", "ok", "error"].map(|status| Some(status.to_owned())));
    assert_eq!(text(&requests, "model")[2..4], ["m", "n"].map(|model| Some(model.to_owned())));
    assert_eq!(
        times(&bench, "arrival_ns"),
        [Some(1_500_000_000), Some(1_500_000_001), Some(1_600_000_000), None, None, None]
    );
    assert_eq!(times(&bench, "measured_ttft_ns")[..3], [Some(80_000_000), Some(70_000_000), None]);
    assert_eq!(times(&bench, "measured_e2e_ns")[..3], [Some(110_000_000), Some(70_000_000), None]);
    assert_eq!(times(&bench, "measured_tpot_ns")[..3], [Some(15_000_000), None, None]);
    let codes: Vec<(&str, u64)> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(codes, [("summary_unit", 2), ("time_rounded", 2), ("no_arrivals", 1)]);
}

#[test]
fn aggregates_are_refused_with_the_way_out() {
    let bench = Bench::new();
    let error = bench.ingest(&[&sample("vllm_bench/minimax_m25_tep8_conc32.json")], &Options::standard()).unwrap_err();
    let shown = error.to_string();
    let shown = shown.split("json`, ").nth(1).unwrap();
    assert_eq!(
        shown,
        "found only aggregates of 320 requests (median_ttft 9.541212433949113 s): `input_lens`, `output_lens`, `ttfts` missing"
    );
    assert_eq!(error.advice(), Some("`vllm bench serve --save-result --save-detailed` writes the lists"));
    assert!(bench.store().manifest().sources.is_empty());
}

#[test]
fn a_summary_in_another_unit_is_an_error_that_names_both() {
    let bench = Bench::new();
    // An InferenceX copy says seconds by leaving `_ms` out; this one kept the number in milliseconds.
    let error = bench.error(RUN.replace("mean_ttft_ms", "mean_ttft")).to_string();
    assert_eq!(
        error,
        "expected `ttfts` of `FILE` in s, found a mean of 0.07500000000000001 s, where `mean_ttft` says 75 s"
    );
    let path = bench.file("seconds", RUN.replace("\"mean_ttft_ms\": 75.0", "\"mean_ttft\": 0.075"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert!(summaries[0].log.iter().any(|entry| entry.message.contains("in seconds")));
    let path = bench.file("flag", RUN);
    let options = Options { time_unit: Some(TimeUnit::Ms), ..Options::standard() };
    assert!(bench.ingest(&[&path], &options).unwrap_err().to_string().contains("`mean_ttft_ms` says 0.075 s"));
}

#[test]
fn what_cannot_be_lined_up_is_refused() {
    let bench = Bench::new();
    let error = bench.error(RUN.replace("\"output_lens\": [3, 1, 0]", "\"output_lens\": [3, 1]")).to_string();
    assert_eq!(error, "expected lists of one length in `FILE`, found 3 entries in `input_lens` and 2 in `output_lens`");
    let error = bench.error(RUN.replace("\"itls\": [[", "\"ttfts\": [[")).to_string();
    assert!(error.contains("the key `ttfts` twice"), "{error}");
    let error = bench.error(RUN.replace("\"ttfts\": [0.08, 0.07, 0.0]", "\"ttfts\": 5")).to_string();
    assert!(error.contains("invalid type: integer `5`, expected a list"), "{error}");
    for cut in 1..RUN.len() {
        if RUN.is_char_boundary(cut) {
            let path = bench.file("cut", &RUN[..cut]);
            let options = Options { format: Some("vllm_bench".to_owned()), ..quarantine() };
            assert!(bench.ingest(&[&path], &options).is_err(), "{cut}");
        }
    }
}

#[test]
fn bad_entries_cost_only_their_requests() {
    let bench = Bench::new();
    let path =
        bench.file("a", RUN.replace("[0.08, 0.07, 0.0]", "[0.08, -0.07, 0.0]").replace("[3, 1, 0]", "[\"3\", 1, 0]"));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (3, 1, 2));
    check_law(&bench);
    let rejects = stored(&bench, &canonical::REJECTS);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [1, 2]);
    assert_eq!(text(&rejects, "raw"), [Some("output_lens: `\"3\"`".to_owned()), Some("ttfts: `-0.07`".to_owned())]);
}

/// What reading a run says where no value may have more than 64 KiB.
fn capped(bench: &Bench, text: &str) -> std::result::Result<usize, String> {
    let path = bench.file("capped", text);
    let options = Options::standard();
    let (mut input, _finish) = open(&path, &LIMITS).unwrap().into_input(&options).unwrap();
    let lines = rows::lines(&path, &mut input.body).unwrap();
    let cap = Cap { limit: 64 << 10, left: Cell::new(64 << 10) };
    let mut run = Run::default();
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(Capped { lines, cap: &cap }));
    let read = Object { run: &mut run, unit: TimeUnit::S, cap: &cap }.deserialize(&mut json);
    read.map(|()| run.input.len()).map_err(|error| error.to_string())
}

#[test]
fn a_value_that_never_ends_is_refused_before_it_fills_the_memory() {
    let bench = Bench::new();
    let head = "{\"model_id\": \"m\", \"num_prompts\": 1, \"request_rate\": 1, ";
    let lists = &RUN[RUN.find("\"input_lens\"").unwrap()..];
    // Text that is skipped may be long, and so may a list of short values.
    let prompts = "x".repeat(200 << 10);
    assert_eq!(capped(&bench, &format!("{head}\"prompts\": [\"{prompts}\"], {lists}")), Ok(3));
    let many = format!("{head}\"input_lens\": [{}1]}}", "1,".repeat(50 << 10));
    assert_eq!(capped(&bench, &many), Ok((50 << 10) + 1));
    for endless in [format!("\"itls\": [[{}", "0.1,".repeat(60 << 10)), format!("\"model_id\": \"{prompts}"), prompts] {
        let error = capped(&bench, &format!("{head}{endless}")).unwrap_err();
        assert!(error.contains("a value of more than 65536 bytes") || error.contains("key must be"), "{error}");
    }
}
