use arrow::datatypes::{Int64Type, UInt32Type};
use engine::schema::canonical;

use crate::ingest::Options;
use crate::ingest::tests::{Bench, check_law, column, read, sample, text};

#[test]
fn the_trace_is_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("splitwise/test_trace.csv")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].log.len()), (3, 0));
    let requests = read(&bench, &canonical::REQUESTS);
    let some = |texts: [&str; 3]| texts.map(|text| Some(text.to_owned()));
    assert_eq!(text(&requests, "source_key"), some(["0", "1", "2"]));
    assert_eq!(text(&requests, "kind"), some(["2", "2", "2"]));
    assert_eq!(column::<Int64Type>(&requests, "arrival_ns"), [1_000_000_000, 3_000_000_000, 4_000_000_000]);
    assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [4096, 2048, 2048]);
    assert_eq!(column::<UInt32Type>(&requests, "output_tokens"), [32, 8, 16]);
    let files = bench.store().files("requests");
    let batches: Vec<_> = crate::store::batches_of(&files[0]).unwrap().map(Result::unwrap).collect();
    assert_eq!(column::<UInt32Type>(&batches, "batch_size"), [1, 1, 1]);
    assert_eq!(text(&batches, "application_id"), some(["0", "0", "0"]));
    check_law(&bench);
}
