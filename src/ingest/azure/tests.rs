use std::fmt::Write;

use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use crate::ingest::Options;
use crate::ingest::tests::{Bench, check_law, column, quarantine, read, sample, text};

fn settings(bench: &Bench, name: &str) -> Vec<Option<String>> {
    text(&read(bench, &canonical::SOURCES), name)
}

#[test]
fn the_week_of_2024_is_read() {
    let bench = Bench::new();
    bench.ingest(&[&sample("azure/code_2024_head5.csv")], &Options::standard()).unwrap();
    let requests = read(&bench, &canonical::REQUESTS);
    // 2024-05-10 00:00:00 UTC is 1,715,299,200 s after the epoch (date -u).
    let start = 1_715_299_200_000_000_000;
    let after: Vec<i64> = column::<Int64Type>(&requests, "arrival_ns").iter().map(|time| time - start).collect();
    assert_eq!(after, [9_930_000, 17_335_000, 22_314_000, 37_845_000, 83_890_000]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [2162, 2399, 76, 2376, 7670]);
    assert_eq!(column::<UInt32Type>(&requests, "output_tokens"), [5, 6, 15, 1, 8]);
    assert_eq!(settings(&bench, "clock"), [Some("epoch".to_owned())]);
    assert_eq!(settings(&bench, "settings_origin"), [Some("detected".to_owned())]);
}

#[test]
fn the_images_of_2025_are_kept() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("azure/multimodal_2025_rows9.csv")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].log.len()), (9, 0));
    let requests = read(&bench, &canonical::REQUESTS);
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    // 2024-10-15 12:00:00 and 2024-10-22 11:59:59 UTC are 1,728,993,600 and 1,729,598,399 s after the epoch (date -u).
    assert_eq!((arrival[0], arrival[8]), (1_728_993_600_269_000_000, 1_729_598_399_962_000_000));
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens")[..2], [770, 949]);
    assert_eq!(settings(&bench, "clock"), [Some("epoch".to_owned())]);
    let files = bench.store().files("requests");
    let batch = crate::store::batches_of(&files[0]).unwrap().next().unwrap().unwrap();
    assert_eq!(column::<UInt32Type>(&[batch], "num_images"), [0, 1, 1, 0, 1, 16, 1, 1, 1]);
}

#[test]
fn one_form_of_the_date_holds_for_a_file() {
    let bench = Bench::new();
    let path = bench.file(
        "a",
        "GeneratedTokens,ContextTokens,TIMESTAMP\n\
         5,1,never\n\
         5,2,2024-05-12 00:00:00+00:00\n\
         5,3,2024-05-12 00:00:00.5\n\
         5,4,2024-05-12T00:00:00+00:00\n\
         5,5,2024-05-12 02:00:01.25+02:00\n\
         5,6,2024-05-12 00:00:02Z\n",
    );
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (2, 4));
    check_law(&bench);
    let arrival = column::<Int64Type>(&read(&bench, &canonical::REQUESTS), "arrival_ns");
    assert_eq!(arrival[1] - arrival[0], 1_250_000_000);
    let rejects = read(&bench, &canonical::REJECTS);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [2, 4, 5, 7]);
    assert_eq!(column::<UInt64Type>(&rejects, "column"), [5, 5, 5, 5]);
    let expected = "`TIMESTAMP` as `2024-05-10 00:00:00.009930+00:00`".to_owned();
    assert_eq!(text(&rejects, "expected"), vec![Some(expected); 4]);
}

#[test]
fn flags_that_mean_nothing_here_are_refused() {
    let bench = Bench::new();
    let path = sample("azure/code_head300.csv");
    let unit = Options { time_unit: Some(crate::ingest::TimeUnit::S), ..Options::standard() };
    let error = bench.ingest(&[&path], &unit).unwrap_err().to_string();
    assert_eq!(error, "expected no time unit with format `azure`, found `s`");
    let block = Options { block_tokens: Some(16), ..Options::standard() };
    let error = bench.ingest(&[&path], &block).unwrap_err().to_string();
    assert_eq!(error, "expected no block size with format `azure`, found one");
}

/// Many blocks of lines, with bad lines, blank lines and quotes in some of them, come out as one by one.
#[test]
fn blocks_of_lines_join_without_a_seam() {
    let bench = Bench::new();
    let mut file = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
    let (mut expected, mut lines) = (Vec::new(), Vec::new());
    for row in 0..300_000_u32 {
        let time = format!("2024-05-12 00:{:02}:{:02}.{:03}", row / 60_000, row / 1000 % 60, row % 1000);
        match row % 90_001 {
            17 => writeln!(file, "\"{time}\",{row},1").unwrap(),
            18 => {
                writeln!(file, "{time},{row}").unwrap();
                lines.push(u64::from(row) + 2);
                continue;
            }
            19 => {
                writeln!(file, "{time},x{row},1").unwrap();
                lines.push(u64::from(row) + 2);
                continue;
            }
            _ => writeln!(file, "{time},{row},1").unwrap(),
        }
        expected.push(row);
    }
    let path = bench.file("a", file);
    bench.ingest(&[&path], &quarantine()).unwrap();
    check_law(&bench);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), expected);
    assert_eq!(column::<UInt64Type>(&requests, "request_id"), (0..expected.len() as u64).collect::<Vec<_>>());
    assert_eq!(column::<UInt64Type>(&read(&bench, &canonical::REJECTS), "line"), lines);
    // Row by row a millisecond apart from the start of the day, 1,715,472,000 s after the epoch.
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    let wanted = expected.iter().map(|row| 1_715_472_000_000_000_000 + i64::from(*row) * 1_000_000);
    assert!(arrival.into_iter().eq(wanted));
}
