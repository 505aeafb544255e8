//! Laws of whole runs.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{metric, number, quickstart, root, succeed};

/// Every file below a folder by its path, without the manifest's number.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn the_same_input_gives_the_same_bytes_at_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let mut results = Vec::new();
    for threads in ["1", "2"] {
        let here = folder.path().join(threads);
        std::fs::create_dir(&here).unwrap();
        let store = here.join("store");
        succeed(&[
            "run",
            "traces/mooncake/conversation_trace.jsonl.zst",
            "traces/recording-token",
            "--into",
            &store.to_string_lossy(),
            "--output",
            &here.join("report.html").to_string_lossy(),
            "--scenarios",
            "traces/quickstart.toml",
            "--threads",
            threads,
        ]);
        results.push(files(&here));
    }
    let [one, two] = &results[..] else { panic!() };
    assert_eq!(one.keys().collect::<Vec<_>>(), two.keys().collect::<Vec<_>>());
    for (name, bytes) in one {
        assert!(two[name] == *bytes, "{name} differs");
    }
    assert!(one.len() > 20);
}

fn replay(args: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &store]);
    let mut all = vec!["replay", store.as_str(), "--model", "llama-3.1-8b", "--machine", "h100"];
    all.extend(args);
    succeed(&all);
    folder
}

/// A budget that covers every prompt drops nothing, so nothing may change: bytes, times, sharing.
#[test]
fn snapkv_with_a_budget_beyond_the_context_equals_full() {
    let folder = replay(&["--policy", "full", "--policy", "snapkv(budget=1000000)"]);
    let store = folder.path().join("store");
    for name in
        ["p50_itl_ms", "p99_itl_ms", "p99_ttft_ms", "kv_read_bytes_per_output_token", "sessions_p99", "duration_s"]
    {
        let both =
            ["full on h100", "snapkv(budget=1000000) on h100"].map(|scenario| metric(&store, Some(scenario), name));
        assert!((both[0] - both[1]).abs() < f64::EPSILON * both[0].abs(), "{name}: {both:?}");
    }
}

/// Twice the bandwidth halves the share that waits for it, and no more.
#[test]
fn twice_the_bandwidth_is_less_than_twice_the_speed() {
    let folder = replay(&["--machine", "h100*memory_bytes_per_s=2", "--policy", "full"]);
    let store = folder.path().join("store");
    let itl =
        ["full on h100", "full on h100*memory_bytes_per_s=2"].map(|name| metric(&store, Some(name), "p50_itl_ms"));
    assert!(itl[1] < itl[0] && itl[1] > 0.5 * itl[0], "{itl:?}");
}

#[test]
fn a_failed_scenario_keeps_its_error_and_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &store]);
    let output = crate::support::kvtoll(&[
        "replay",
        &store,
        "--model",
        "llama-3.1-70b",
        "--machine",
        "gb300",
        "--machine",
        "h100",
        "--policy",
        "full",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let said = crate::support::stderr(&output);
    assert!(said.contains("`full on h100` failed: the weights take 131 GiB"), "{said}");
    let failed = "SELECT count(*) FROM scenarios WHERE status = 'failed' AND error LIKE 'the weights take%'";
    assert!((number(Path::new(&store), failed) - 1.0).abs() < 0.1);
}

/// Captured mode prices the recording's own steps.
#[test]
fn a_recording_is_priced_step_by_step() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/recording-token", "--into", &store]);
    succeed(&[
        "replay",
        &store,
        "--mode",
        "captured",
        "--model",
        "smollm2-135m",
        "--machine",
        "h100",
        "--policy",
        "full",
    ]);
    let store = Path::new(&store);
    assert!((number(store, "SELECT count(*) FROM step_costs") - 25.0).abs() < 0.1, "one prefill, 24 decode steps");
    // 30 layers x 3 KV heads x 64 x 2 x 2 bytes for each of 1,855 to 1,878 tokens.
    let expected: f64 = (1855..=1878).map(|tokens| f64::from(tokens) * 23_040.0).sum();
    let read = number(store, "SELECT sum(kv_read_bytes) FROM step_costs WHERE prefill_tokens = 0");
    assert!((read - expected).abs() < 1.0, "{read} {expected}");
}

/// The shipped store opens in other tools: plain Parquet at plain paths.
#[test]
fn a_store_is_plain_parquet() {
    let store = &quickstart().store;
    assert!(
        store.join("requests/part-00000.parquet").exists()
            || std::fs::read_dir(store.join("requests")).unwrap().count() > 0
    );
    assert!(root().join("traces/SOURCES.tsv").exists());
}
