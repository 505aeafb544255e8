use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, UInt32Type};
use engine::schema::canonical;

use crate::ingest::Options;
use crate::ingest::tests::{Bench, check_law, column, read, sample, text};

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn the_first_version_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("burstgpt/v1_rows3.csv")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].log.len()), (3, 0));
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns"), [5_000_000_000, 45_000_000_000, 118_000_000_000]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [472, 1087, 417]);
    assert_eq!(column::<UInt32Type>(&requests, "output_tokens"), [18, 230, 276]);
    assert_eq!(text(&requests, "model"), some(&["ChatGPT", "ChatGPT", "GPT-4"]));
    assert_eq!(text(&requests, "kind"), some(&["Conversation log"; 3]));
    assert_eq!(text(&requests, "session_id"), vec![None; 3]);
    let sources = read(&bench, &canonical::SOURCES);
    assert_eq!(text(&sources, "time_unit"), some(&["s"]));
    assert_eq!(text(&sources, "clock"), some(&["trace_start"]));
    assert_eq!(text(&sources, "settings_origin"), some(&["format"]));
    check_law(&bench);
}

#[test]
fn the_third_version_has_sessions_and_measured_times() {
    let bench = Bench::new();
    bench.ingest(&[&sample("burstgpt/v3_rows4.csv")], &Options::standard()).unwrap();
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns")[0], 19_440_110_000_000_000);
    assert_eq!(
        column::<Int64Type>(&requests, "measured_e2e_ns"),
        [43_000_000_000, 2_000_000_000, 8_000_000_000, 3_000_000_000]
    );
    assert_eq!(text(&requests, "session_id")[0].as_deref(), Some("1722ac82-0a46-4bf0-aa08-89794e7a2b3f"));
}

#[test]
fn api_rows_failed_rows_and_odd_sums_are_kept() {
    let bench = Bench::new();
    let path = bench.file(
        "a",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
         19440110.0,,,GPT-4,906,0,906,API log\n\
         19440110.5,\"s, 1\",1.5,GPT-4,10,1,12,Conversation log\n\
         19440110.25, ,0,GPT-4,10,1,11,API log\n",
    );
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count, entry.first_line)).collect();
    assert_eq!(log, [("total_differs", 1, Some(3)), ("no_output", 1, Some(2)), ("time_backwards", 1, Some(4))]);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(text(&requests, "session_id"), [None, Some("s, 1".to_owned()), None]);
    assert_eq!(text(&requests, "status"), some(&["no_output", "ok", "ok"]));
    let measured = requests[0].column_by_name("measured_e2e_ns").unwrap().as_primitive::<Int64Type>().clone();
    assert!(measured.is_null(0));
    assert_eq!((measured.value(1), measured.value(2)), (1_500_000_000, 0));
}
