use arrow::array::Array;
use arrow::datatypes::{Int64Type, UInt32Type};
use engine::schema::canonical;

use crate::ingest::Options;
use crate::ingest::tests::{Bench, check_law, column, read, sample, text};

fn sum(tokens: &[u32]) -> u64 {
    tokens.iter().map(|tokens| u64::from(*tokens)).sum()
}

#[test]
fn a_trace_with_arrivals_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("vidur/splitwise_code_head300.csv")], &Options::standard()).unwrap();
    assert_eq!(summaries[0].rows_out, 300);
    // 199.96150599999999, as the file has it, has digits below the nanosecond.
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count, entry.first_line)).collect();
    assert_eq!(log, [("time_rounded", 1, Some(223))]);
    let requests = read(&bench, &canonical::REQUESTS);
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    assert_eq!(arrival[..3], [0, 52_000_000, 98_189_000]);
    assert_eq!(arrival[299], 216_838_239_000);
    // Sums that another program found.
    assert_eq!(sum(&column::<UInt32Type>(&requests, "prompt_tokens")), 627_529);
    assert_eq!(sum(&column::<UInt32Type>(&requests, "output_tokens")), 7126);
    check_law(&bench);
}

/// The trace is the Azure code trace of 2023, counted from its first request and rounded to the microsecond.
#[test]
fn it_is_the_azure_trace_in_another_form() {
    let bench = Bench::new();
    let paths = [sample("vidur/splitwise_code_head300.csv"), sample("azure/code_head300.csv")];
    bench.ingest(&[&paths[0], &paths[1]], &Options::standard()).unwrap();
    let requests = read(&bench, &canonical::REQUESTS);
    let prompt = column::<UInt32Type>(&requests, "prompt_tokens");
    assert_eq!(prompt[..300], prompt[300..]);
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    let apart = (0..300).map(|row| (arrival[300 + row] - arrival[300] - arrival[row]).abs()).max();
    assert!(apart.unwrap() <= 1000, "{apart:?}");
}

#[test]
fn lengths_alone_have_no_arrivals() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("vidur/arxiv_lengths_head300.csv")], &Options::standard()).unwrap();
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(log, [("no_arrivals", 1), ("derived_column", 1)]);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(
        requests.iter().map(|batch| batch.column_by_name("arrival_ns").unwrap().null_count()).sum::<usize>(),
        300
    );
    assert_eq!(sum(&column::<UInt32Type>(&requests, "prompt_tokens")), 759_573);
    assert_eq!(sum(&column::<UInt32Type>(&requests, "output_tokens")), 84_604);
    let sources = read(&bench, &canonical::SOURCES);
    assert_eq!((text(&sources, "clock"), text(&sources, "time_unit")), (vec![None], vec![None]));
}

#[test]
fn a_sum_that_contradicts_is_a_bad_row() {
    let bench = Bench::new();
    let head = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n";
    let error = bench.error(format!("{head}3772,54,3826,69.85\n2015,156,2170,12.9\n")).to_string();
    let found = error.lines().nth(2).unwrap();
    assert_eq!(found, "FILE:3:10: expected `num_total_tokens` as the sum of prompt and output, 2171, found `2170`");
}

#[test]
fn the_unit_can_be_said() {
    let bench = Bench::new();
    let path = bench.file("a", "arrived_at,num_prefill_tokens,num_decode_tokens\n1500.5,1,1\n1e-9,2,2\n");
    let options = Options { time_unit: Some(crate::ingest::TimeUnit::Ms), ..Options::standard() };
    let summaries = bench.ingest(&[&path], &options).unwrap();
    assert_eq!(column::<Int64Type>(&read(&bench, &canonical::REQUESTS), "arrival_ns"), [1_500_500_000, 0]);
    assert_eq!(text(&read(&bench, &canonical::SOURCES), "settings_origin"), [Some("flag".to_owned())]);
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.first_line)).collect();
    assert_eq!(log, [("time_rounded", Some(3)), ("time_backwards", Some(3))]);
}

#[test]
fn bad_cells_are_named() {
    let bench = Bench::new();
    let head = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,1,1\n";
    for (row, expected) in [
        ("-1,1,1", "FILE:3:1: expected `arrived_at` as a number of at least zero, found `-1`"),
        ("soon,1,1", "FILE:3:1: expected `arrived_at` as a number of at least zero, found `soon`"),
        (",1,1", "FILE:3:1: expected `arrived_at` as a number of at least zero, found an empty cell"),
        ("9223372037,1,1", "FILE:3:1: expected `arrived_at` in s below 2^63 nanoseconds, found `9223372037`"),
        ("1,1.0,1", "FILE:3:3: expected `num_prefill_tokens` as a whole number of at least zero, found `1.0`"),
    ] {
        let error = bench.error(format!("{head}{row}\n")).to_string();
        assert_eq!(error.lines().nth(2).unwrap(), expected);
    }
}
