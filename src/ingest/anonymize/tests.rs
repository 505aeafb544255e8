use super::super::tests::{Bench, quarantine, read as stored, text};
use super::super::{Options, ingest};
use super::*;

const LINES: &str = r#"{"session_id": "alice@example.org", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 1, "output_toks": 1}, {"input_toks": 2, "output_toks": 1}]}
{"session_id": "bob", "arrival_time_ns": 1, "sub_requests": [{"input_toks": 1, "output_toks": 1}]}
{"session_id": "carol", "arrival_time_ns": "SECRET"}
"#;

fn with(key: &str) -> Options {
    Options { anonymize: Some(key.to_owned()), again: true, ..quarantine() }
}

#[test]
fn the_same_text_under_the_same_key_is_the_same_id() {
    let bench = Bench::new();
    let path = bench.file("a", LINES);
    bench.ingest(&[&path], &with("k")).unwrap();
    bench.ingest(&[&path], &with("k")).unwrap();
    bench.ingest(&[&path], &with("other")).unwrap();
    let ids: Vec<String> = text(&stored(&bench, &canonical::REQUESTS), "session_id").into_iter().flatten().collect();
    assert_eq!(ids.len(), 9);
    assert_eq!(ids[..3], ids[3..6]);
    assert!(ids[0] == ids[1] && ids[0] != ids[2] && ids[0] != ids[6]);
    assert!(ids.iter().all(|id| id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit())));
    // SHA-256 over the bytes of SHA-256 of `k`, then `bob` (printf k | openssl sha256 -binary; printf bob; openssl sha256).
    assert_eq!(ids[2], "bc5be9f64a0942a5");
    let log = stored(&bench, &canonical::IMPORT_LOG);
    let codes = text(&log, "code");
    assert!(codes.contains(&Some("anonymized".to_owned())));
    let rejects = stored(&bench, &canonical::REJECTS);
    assert_eq!(text(&rejects, "raw")[0], Some("not kept: anonymized".to_owned()));
    assert_eq!(text(&rejects, "found")[0], Some("not kept: anonymized".to_owned()));
    assert_eq!(text(&rejects, "code")[0], Some("wrong_type".to_owned()));
}

#[test]
fn columns_of_the_file_are_replaced_and_those_of_the_table_kept() {
    let bench = Bench::new();
    let path = bench.file("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens,user\n2023-11-16 18:17:03,1,1,alice\n");
    bench.ingest(&[&path], &with("k")).unwrap();
    let files = bench.store().files("requests");
    let batch = crate::store::batches_of(&files[0]).unwrap().next().unwrap().unwrap();
    let foreign = batch.schema().fields().last().unwrap().name().clone();
    assert!(canonical::REQUESTS.column(&foreign).is_none(), "{foreign}");
    assert_ne!(text(std::slice::from_ref(&batch), &foreign), [Some("alice".to_owned())]);
    assert_eq!(text(&[batch], "status"), [Some("ok".to_owned())]);
}

#[test]
fn an_empty_key_is_refused() {
    let bench = Bench::new();
    let path = bench.file("a", LINES);
    let mut store = bench.store();
    let error = ingest(&mut store, &[path], &with(""), &|_| {}).unwrap_err();
    assert_eq!(error.to_string(), "expected a key with `--anonymize`, found an empty one");
}
