//! The command line as people type it: exit codes, streams, suggestions, formats.

use crate::support::{kvtoll, quickstart, stderr, succeed};

fn refused(args: &[&str], code: i32, parts: &[&str]) {
    let output = kvtoll(args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(output.stdout.is_empty(), "standard output is for data");
    for part in parts {
        assert!(said.contains(part), "expected `{part}` in:\n{said}");
    }
}

#[test]
fn unknown_names_are_met_with_the_nearest() {
    refused(&["explain", "p99_itl_m"], 2, &["unknown name `p99_itl_m`", "did you mean `p99_itl_ms`?"]);
    refused(&["schema", "request"], 2, &["did you mean `requests`?"]);
    let store = quickstart().store.to_string_lossy().into_owned();
    refused(&["query", &store, "sumary"], 2, &["did you mean `summary`?"]);
    refused(&["replay", &store, "--model", "llama-3.1-9b", "--machine", "h200"], 2, &["did you mean `llama-3.1-8b`?"]);
    refused(&["replay", &store, "--model", "llama-3.1-8b", "--machine", "h2000"], 2, &["did you mean `h200`?"]);
    refused(
        &["replay", &store, "--model", "llama-3.1-8b", "--machine", "h200", "--policy", "snapk(budget=1)"],
        2,
        &["did you mean `snapkv`?"],
    );
}

#[test]
fn what_is_missing_is_asked_for() {
    let store = quickstart().store.to_string_lossy().into_owned();
    refused(
        &["replay", &store],
        2,
        &["expected a model and a machine, found neither", "--machine h100", "kvtoll list models"],
    );
    refused(&["query", "no-such-store", "summary"], 2, &["no-such-store", "kvtoll ingest"]);
    // A typo leaves no store behind.
    refused(&["ingest", "no-such-file.csv", "--into", "no-such-store"], 3, &["no-such-file.csv"]);
    assert!(!crate::support::root().join("no-such-store").exists());
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &store]);
    let lpx = ["replay", &store, "--model", "llama-3.1-8b", "--machine", "vera-rubin-lpx", "--tensor-parallel", "8"];
    let said = stderr(&kvtoll(&lpx));
    assert!(said.contains("which is not published") && said.contains("link_bytes_per_s=200GB/s"), "{said}");
}

#[test]
fn sql_is_answered_and_its_errors_point_at_the_place() {
    let store = quickstart().store.to_string_lossy().into_owned();
    let sql = "SELECT name FROM scenarios ORDER BY scenario_id LIMIT 2";
    let rows = succeed(&["query", &store, "--sql", sql, "--format", "csv"]);
    assert_eq!(rows, "name\nbaseline\nfp8 KV\n");
    refused(&["query", &store, "--sql", "SELECT nam FROM scenarios"], 2, &["nam", "^", "name"]);
    refused(&["query", &store, "--sql", "DROP TABLE scenarios"], 2, &["DDL not supported"]);
}

#[test]
fn every_named_query_runs_on_the_quick_start() {
    let store = quickstart().store.to_string_lossy().into_owned();
    let listed = succeed(&["list", "queries"]);
    assert!(listed.lines().count() >= 10);
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let rows = succeed(&["query", &store, name, "--format", "ndjson"]);
        // The quick start has no rejected rows to list, no capture, no conversations, nothing measured, one recorded request and
        // one run only; every other question has an answer.
        let without = [
            "import-log",
            "kernel-booths",
            "copies",
            "launches",
            "access-stats",
            "kept-overlap",
            "compare",
            "block-life",
            "measured-beside-modelled",
            "session-hits",
            "context-edits",
            "edit-totals",
            "segment-mass",
            "session-bill",
            "session-growth",
            "session-keeping",
            "session-memory",
            "session-reach",
            "session-recall",
            "session-span",
            "session-turns",
            "sessions",
            "equal-cost",
            "stored-copies",
        ];
        assert!(!rows.is_empty() || without.contains(&name), "{name}");
        let sql = succeed(&["query", &store, name, "--show-sql"]);
        assert!(sql.to_uppercase().contains("ORDER BY"), "{name}");
    }
}

#[test]
fn everything_that_is_listed_can_be_explained() {
    for what in ["models", "machines", "queries", "formats", "prices", "engines", "caches"] {
        for name in succeed(&["list", what]).lines().filter_map(|line| line.split_whitespace().next()) {
            assert!(succeed(&["explain", name]).contains(name), "{what} {name}");
        }
    }
    for line in succeed(&["list", "policies"]).lines() {
        let name = line.split(['(', ' ']).next().unwrap();
        assert!(succeed(&["explain", name]).contains("source:"), "{name}");
    }
}

#[test]
fn published_bytes_per_token_are_listed() {
    let listed = succeed(&["list", "models"]);
    for (model, bytes) in [
        ("llama-3.1-8b", "131072"),
        ("llama-3.1-70b", "327680"),
        ("qwen3-32b", "262144"),
        ("deepseek-v3", "70272"),
        ("gpt-oss-120b", "36864"),
    ] {
        let line = listed.lines().find(|line| line.starts_with(&format!("{model} "))).unwrap();
        assert!(line.contains(bytes), "{line}");
    }
    assert!(listed.contains("plus 4.5 MiB per sequence"), "{listed}");
}

/// A reader that goes away (`| head`) is no error.
#[test]
fn a_broken_pipe_is_quiet() {
    use std::process::{Command, Stdio};
    let store = quickstart().store.to_string_lossy().into_owned();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtoll"))
        .args(["query", &store, "--sql", "SELECT * FROM step_costs", "--format", "ndjson"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
}

#[test]
fn inspect_tells_what_a_file_holds_and_writes_nothing() {
    let told = succeed(&["inspect", "traces/azure/code_2024_head5.csv"]);
    for part in [
        "azure (certain: the only format that fits)",
        "clock         epoch",
        "5, 5 good, 0 bad",
        "settings by   detected",
    ] {
        assert!(told.contains(part), "expected `{part}` in:\n{told}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.csv").to_string_lossy().into_owned();
    let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n";
    std::fs::write(&path, format!("{head}{}", "2023-11-16 18:17:03,x,1\n".repeat(12))).unwrap();
    let output = kvtoll(&["inspect", &path]);
    let (told, said) = (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output));
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(told.contains("13, 1 good, 12 bad") && told.contains("bad.csv:3:21: expected `ContextTokens`"), "{told}");
    assert_eq!(told.matches("as a whole number of at least zero").count(), 10);
    assert!(said.contains("found 12 bad ones") && said.contains("--on-bad-row quarantine"), "{said}");
    std::fs::write(&path, "Timestamp,contexttokens,GeneratedTokens\n").unwrap();
    refused(&["inspect", &path], 3, &["nearly azure", "`contexttokens` for `ContextTokens`; names are exact"]);
    refused(&["inspect", "traces/azure/code_head300.csv", "--format", "azur"], 2, &["did you mean `azure`?"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn check_finds_a_damaged_file() {
    let sound = succeed(&["check", &quickstart().store.to_string_lossy()]);
    assert!(sound.starts_with("sound: "), "{sound}");
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let name = store.to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "traces/vidur/splitwise_code_head300.csv", "--into", &name]);
    assert!(succeed(&["check", &name]).contains("every reference of 2 sources and 0 runs holds"));
    let part = store.join("requests/part-00000.parquet");
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let output = kvtoll(&["check", &name]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.starts_with("`requests/part-00000.parquet`: expected the SHA-256 "), "{told}");
    refused(&["check", "no-such-store"], 2, &["expected a store at `no-such-store`, found none"]);
}
