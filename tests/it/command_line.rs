//! The command line as people type it: exit codes, streams, suggestions, formats.

use crate::support::{kvtoll, quickstart, root, stderr, succeed};

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
    assert!(!root().join("no-such-store").exists());
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
    // What a policy stack may name is what is listed, and placements with it.
    let listed = succeed(&["list", "policies"]);
    let mut names: Vec<&str> = listed.lines().map(|line| line.split(['(', ' ']).next().unwrap()).collect();
    for name in &names {
        assert!(succeed(&["explain", name]).contains("source:"), "{name}");
    }
    let mut known: Vec<&str> = engine::policy::ALL.iter().map(|kind| kind.name).chain(["tier"]).collect();
    names.sort_unstable();
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn formats_columns_and_files_are_explained() {
    for format in succeed(&["list", "formats"]).lines().filter_map(|line| line.split_whitespace().next()) {
        assert!(succeed(&["explain", format]).lines().count() > 10, "{format}");
    }
    let said = succeed(&["explain", "mooncake"]);
    assert!(said.contains("\"hash_ids\": [46, 47,") && !said.contains("super::"), "{said}");
    let file = std::fs::read_to_string(root().join("presets/machine/h100.toml")).unwrap();
    assert_eq!(succeed(&["explain", "h100", "--file"]), file);
    refused(&["explain", "h10", "--file"], 2, &["unknown preset file `h10`", "did you mean"]);
    let said = succeed(&["explain", "look_steps"]);
    assert!(said.contains("of the table scenarios\n  Steps from one look for arrivals"), "{said}");
    refused(&["explain", "usd_per_hourly"], 2, &["did you mean `"]);
    refused(&["explain", "xyzzyxyzzyxyzzy"], 2, &["known names is near it; see `kvtoll list`"]);
}

/// Its figures were those of an idle machine, and it ended well.
#[test]
fn a_replay_that_serves_nothing_fails_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, store) = (folder.path().join("long.jsonl"), folder.path().join("store"));
    let ids: Vec<u32> = (0..2930).collect();
    let row = format!("{{\"timestamp\": 0, \"input_length\": 1500000, \"output_length\": 5, \"hash_ids\": {ids:?}}}\n");
    std::fs::write(&trace, row).unwrap();
    let args = ["run", trace.to_str().unwrap(), "--into", store.to_str().unwrap(), "--output"];
    let page = folder.path().join("page.html");
    let rest = [page.to_str().unwrap(), "--model", "llama-3.1-8b", "--machine", "h100"];
    let all: Vec<&str> = args.into_iter().chain(rest).collect();
    let output = kvtoll(&all);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("all 1 requests are turned away, the first since its KV can never fit in memory"), "{said}");
    assert!(page.exists());
}

#[test]
fn a_quick_replay_says_the_same_of_its_scenarios_and_nothing_beside() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let store = store.to_str().unwrap();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", store]);
    let replay =
        ["replay", store, "--model", "llama-3.1-8b", "--machine", "h100", "--policy", "full", "--policy", "fp8"];
    succeed(&replay);
    let asked = ["SELECT * EXCLUDE (run_id) FROM scenarios", "SELECT * FROM metrics", "SELECT * FROM step_costs"];
    let answers = || asked.map(|sql| succeed(&["sql", store, "-c", sql, "--format", "csv"]));
    let count =
        |table: &str| succeed(&["sql", store, "-c", &format!("SELECT count(*) FROM {table}"), "--format", "tsv"]);
    let full = answers();
    assert!(!count("spec").ends_with("\n0\n") && !count("miss_ratio").is_empty());
    succeed(&[&replay[..], &["--quick"]].concat());
    assert_eq!(answers(), full);
    for table in ["spec", "stacking", "miss_ratio", "blocks", "near_sizes"] {
        assert!(count(table).ends_with("\n0\n"), "{table}");
    }
    let report = folder.path().join("quick.html");
    succeed(&["report", store, "--output", report.to_str().unwrap()]);
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

/// A trace may be of another model: what this one is not published for is counted and served.
#[test]
fn requests_beyond_the_context_of_a_model_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,4000,10\n\
                2023-11-16 18:17:04.0,40955,5\n2023-11-16 18:17:05.0,40955,6\n2023-11-16 18:17:06.0,50000,100\n";
    std::fs::write(at("trace.csv"), rows).unwrap();
    let (trace, store, report) = (at("trace.csv"), at("store"), at("report.html"));
    let flags = ["--machine", "h100", "--policy", "full", "--policy", "fp8"];
    let run = ["run", &trace, "--into", &store, "--output", &report, "--model", "qwen3-8b"];
    let output = kvtoll(&[&run[..], &flags[..]].concat());
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let told = "2 of 4 requests of `trace.csv (source 0)` are longer than the 40960 tokens of context that qwen3-8b is published for, the \
                longest of 50100 tokens";
    assert_eq!(said.matches(told).count(), 1, "once for both policies: {said}");
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("<strong>2 requests are</strong> longer than the 40,960 tokens of context that qwen3-8b is"));
    let rows =
        succeed(&["sql", &store, "-c", "SELECT sum(beyond_context_requests) AS n FROM scenarios", "--format", "csv"]);
    assert_eq!(rows, "n\n4\n");
    // No recording in the store tells what 8 bits lose.
    let losses = "SELECT may_lose, unknown_loss FROM scenario_losses ORDER BY scenario_id";
    let rows = succeed(&["sql", &store, "-c", losses, "--format", "csv"]);
    assert_eq!(rows, "may_lose,unknown_loss\nnothing,\nprecision,precision\n");
    assert!(page.contains("<span class=\"lens\">Loss</span><span class=\"text\">Unknown for <strong>"), "no way out");
    assert!(page.contains("loss unknown</span>"), "no badge in the rankings");
    let finished = "SELECT count(*) AS n FROM request_costs WHERE status = 'finished'";
    assert_eq!(succeed(&["sql", &store, "-c", finished, "--format", "csv"]), "n\n8\n");
    // A model that goes further says nothing.
    let replay = ["replay", &store, "--model", "llama-3.1-8b"];
    assert!(!stderr(&kvtoll(&[&replay[..], &flags[..]].concat())).contains("published for"));
}

/// What is senseless is refused before it is counted out or looked up.
#[test]
fn senseless_ranges_and_arguments_are_refused_at_once() {
    let cost = ["cost", "--model", "llama-3.1-8b", "--machine", "h100", "--policy", "full"];
    let range =
        |batch: &'static str, context: &'static str| [&cost[..], &["--batch", batch, "--context", context]].concat();
    refused(&range("1..4294967295+1", "1k"), 2, &["expected at most 10000 numbers, found 4294967295"]);
    refused(&range("1..9000+1", "1..9000+1"), 2, &["expected at most 10000000 steps, found 81000000"]);
    let store = quickstart().store.to_string_lossy().into_owned();
    // The machine is not looked for.
    let bad = "SELECT step_cost('llama-3.1-8b', 'no-such-machine', 'full', -1, 100)";
    refused(&["sql", &store, "-c", bad], 2, &["expected `batch` from 0 to 4294967295, found -1"]);
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.csv").to_string_lossy().into_owned();
    std::fs::write(&empty, "").unwrap();
    refused(&["validate", "serving", &empty], 3, &["expected a header and rows, found an empty file", "hint: "]);
    refused(&["inspect", &empty], 3, &["found an empty file"]);
    std::fs::write(&empty, "TIMESTAMP,ContextTokens,GeneratedTokens\n").unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    refused(&["ingest", &empty, "--into", &store], 3, &["expected at least one row in `", "found none"]);
}

/// A bit that flips within a page of a column is no other number: whatever reads the column says which one it is.
#[test]
fn a_flipped_bit_in_a_page_stops_what_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let name = store.to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &name]);
    let part = store.join("requests/part-00000.parquet");
    let file = std::fs::File::open(&part).unwrap();
    let metadata = parquet::file::metadata::ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    let column = metadata.row_group(0).columns().iter().find(|c| c.column_path().string() == "prompt_tokens").unwrap();
    let (start, length) = column.byte_range();
    let whole = std::fs::read(&part).unwrap();
    for (at, bit) in [(length - 1, 0), (length / 2, 3), (length - 9, 7)] {
        let mut bytes = whole.clone();
        bytes[(start + at) as usize] ^= 1 << bit;
        std::fs::write(&part, bytes).unwrap();
        let sum = "SELECT sum(CAST(prompt_tokens AS BIGINT)) FROM requests";
        refused(
            &["sql", &name, "-c", sum],
            3,
            &["part-00000.parquet`: column `prompt_tokens`: ", "kvtoll check STORE"],
        );
        let replay = ["replay", &name, "--model", "llama-3.1-8b", "--machine", "h100", "--policy", "full"];
        refused(&replay, 3, &["part-00000.parquet`: column `prompt_tokens`: "]);
        // What does not read the column is none the worse.
        assert!(kvtoll(&["sql", &name, "-c", "SELECT count(*), max(output_tokens) FROM requests"]).status.success());
    }
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
