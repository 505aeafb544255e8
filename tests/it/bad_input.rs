//! Bad input through the real binary: place, what was expected and found, exit code 3, and nothing lost in quarantine.

use std::path::Path;

use crate::support::{kvtoll, number, stderr, succeed};

const GOOD: &str = r#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}"#;

/// Ingests `text` as `t.jsonl`, which must fail, and gives what was said.
fn refused(name: &str, text: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let store = folder.path().join("store");
    let output = kvtoll(&["ingest", &path.to_string_lossy(), "--into", &store.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(output.stdout.is_empty(), "standard output is for data");
    let manifests = std::fs::read_dir(&store).map_or(0, |entries| {
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("manifest")).count()
    });
    assert!(manifests <= 1, "a failed ingest adds nothing to the empty store");
    stderr(&output)
}

fn check(text: &str, expected: &[&str]) {
    let said = refused("t.jsonl", text.as_bytes());
    for part in expected {
        assert!(said.contains(part), "expected `{part}` in:\n{said}");
    }
}

#[test]
fn a_cut_last_line() {
    check(&format!("{GOOD}\n{{\"timestamp\": 3, \"input_le"), &["t.jsonl:2:", "expected", "found"]);
}

#[test]
fn broken_json_in_the_middle() {
    check(&format!("{GOOD}\n{{\"timestamp\": oops}}\n{GOOD}\n"), &["t.jsonl:2:15", "expected", "found"]);
}

#[test]
fn an_empty_file() {
    check("", &["t.jsonl", "empty"]);
}

#[test]
fn a_binary_file() {
    let said = refused("t.jsonl", &[0x7f, b'E', b'L', b'F', 0, 1, 2, 0, 0, 255]);
    assert!(said.contains("t.jsonl") && said.contains("ELF"), "{said}");
}

#[test]
fn a_negative_length() {
    check(
        &format!("{GOOD}\n{}\n", GOOD.replace("700", "-700")),
        &["t.jsonl:2:34", "expected", "`input_length`", "found", "-700"],
    );
}

#[test]
fn an_id_of_two_to_the_64() {
    check(
        &format!("{GOOD}\n{}\n", GOOD.replace("[0, 1]", "[0, 18446744073709551616]")),
        &["t.jsonl:2:", "expected", "found", "18446744073709551616"],
    );
}

#[test]
fn a_block_count_that_does_not_fit() {
    check(&format!("{GOOD}\n{}\n", GOOD.replace("[0, 1]", "[0]")), &["t.jsonl:2:", "2 blocks", "found 1"]);
}

#[test]
fn quarantine_keeps_the_rest_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let large = GOOD.replace("[0, 1]", "[9223372036854775808, 18446744073709551615]");
    let silent = GOOD.replace("\"output_length\": 5", "\"output_length\": 0");
    let rows = [GOOD, "{broken", &large, &GOOD.replace("700", "-1"), &silent, &GOOD.replace("[0, 1]", "[7]")];
    std::fs::write(&path, rows.join("\n")).unwrap();
    let store = folder.path().join("store");
    let shown = store.to_string_lossy().into_owned();
    succeed(&["ingest", &path.to_string_lossy(), "--into", &shown, "--on-bad-row", "quarantine"]);
    let count = |sql: &str| number(&store, sql) as i64;
    assert_eq!(count("SELECT rows_in FROM sources"), 6);
    assert_eq!(count("SELECT rows_out FROM sources"), 3);
    assert_eq!(count("SELECT rows_rejected FROM sources"), 3);
    assert_eq!(count("SELECT count(*) FROM rejects WHERE line IN (2, 4, 6) AND expected <> '' AND found <> ''"), 3);
    assert_eq!(count("SELECT count(*) FROM requests WHERE status = 'no_output' AND output_tokens = 0"), 1);
    assert_eq!(count("SELECT count FROM import_log WHERE code = 'no_output'"), 1);
    // Ids from 2^63 to 2^64 - 1 come back as they were.
    let ids = succeed(&[
        "query",
        &shown,
        "--sql",
        "SELECT block_hashes FROM requests WHERE request_id = 1",
        "--format",
        "json",
    ]);
    assert!(ids.contains("0x8000000000000000") && ids.contains("0xffffffffffffffff"), "{ids}");
}

#[test]
fn the_same_file_twice_is_refused_unless_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    let ingest = ["ingest", "traces/azure/code_head300.csv", "--into", &store];
    succeed(&ingest);
    let output = kvtoll(&ingest);
    assert!(!output.status.success());
    assert!(stderr(&output).contains("--again"), "{}", stderr(&output));
    succeed(&[&ingest[..], &["--again"]].concat());
    assert!((number(Path::new(&store), "SELECT count(*) FROM requests") - 600.0).abs() < 0.1);
}

/// Parts of a store that were emptied, and folders without surfaces, are told.
#[test]
fn nothing_where_something_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("t.jsonl"), format!("{GOOD}\n")).unwrap();
    let store = at("store");
    succeed(&["ingest", &at("t.jsonl"), "--into", &store]);
    let bare = kvtoll(&["replay", &store, "--model", "llama-3.1-8b", "--machine", "h100", "--surfaces", &at("no")]);
    assert!(bare.status.code() == Some(2) && stderr(&bare).contains("cannot read the folder"), "{}", stderr(&bare));
    std::fs::create_dir(at("bare")).unwrap();
    let bare = kvtoll(&["replay", &store, "--model", "llama-3.1-8b", "--machine", "h100", "--surfaces", &at("bare")]);
    assert!(bare.status.code() == Some(2) && stderr(&bare).contains("expected surfaces"), "{}", stderr(&bare));
    let requests = std::fs::read_dir(Path::new(&store).join("requests")).unwrap();
    for file in requests {
        std::fs::write(file.unwrap().path(), b"").unwrap();
    }
    let asked = kvtoll(&["sql", &store, "-c", "select count(*) from requests"]);
    assert!(asked.status.code() == Some(3) && stderr(&asked).contains("an empty one"), "{}", stderr(&asked));
}
