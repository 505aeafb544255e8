//! Money, the ledger and the routes on real requests: parts sum to totals, and every goal ranks every scenario.

use std::fmt::Write as _;

use crate::support::{ask, metric, number, quickstart, succeed};

/// The largest of a column of differences, each over its own size.
fn largest(store: &std::path::Path, sql: &str) -> f64 {
    number(store, &format!("SELECT coalesce(max(abs(value)), -1.0) FROM ({sql}) AS t"))
}

#[test]
fn parts_sum_to_totals() {
    let store = &quickstart().store;
    for (what, most, sql) in [
        (
            "the cost split",
            1e-9,
            "SELECT (sum(CASE WHEN metric = 'usd_total' THEN -value ELSE value END)) / max(value) AS value FROM metrics WHERE \
             metric IN ('usd_total', 'usd_prompts', 'usd_outputs', 'usd_idle') AND value IS NOT NULL GROUP BY scenario_id",
        ),
        (
            "the ledger's time",
            1e-6,
            "SELECT (l.change + b.total - s.total) / s.total AS value FROM \
             (SELECT scenario_id, CAST(sum(change_ns) AS DOUBLE) AS change FROM ledger WHERE booth <> 'idle' GROUP BY scenario_id) l JOIN \
             (SELECT scenario_id, CAST(sum(total_ns) AS DOUBLE) AS total FROM step_costs GROUP BY scenario_id) s ON \
             s.scenario_id = l.scenario_id CROSS JOIN (SELECT CAST(sum(total_ns) AS DOUBLE) AS total FROM step_costs WHERE \
             scenario_id = 0) b",
        ),
        (
            "the ledger's money",
            1e-6,
            "SELECT (l.change + b.value - m.value) / m.value AS value FROM \
             (SELECT scenario_id, sum(change_usd) AS change FROM ledger GROUP BY scenario_id) l JOIN metrics m ON \
             m.scenario_id = l.scenario_id AND m.metric = 'usd_total' CROSS JOIN (SELECT value FROM metrics WHERE \
             scenario_id = 0 AND metric = 'usd_total') b WHERE l.change IS NOT NULL AND m.value IS NOT NULL",
        ),
        (
            "the shares of stacking",
            1e-9,
            "SELECT (h.share - t.together + t.base) / t.base AS value FROM \
             (SELECT scenario_id, sum(share_ns_per_output_token) AS share FROM stacking_shares GROUP BY scenario_id) h JOIN \
             (SELECT scenario_id, max(ns_per_output_token) FILTER (WHERE role = 'together' OR part_count = 1) AS unused, \
             max(ns_per_output_token) FILTER (WHERE role = 'together') AS together, \
             max(ns_per_output_token) FILTER (WHERE role = 'baseline') AS base FROM stacking GROUP BY scenario_id) t \
             ON t.scenario_id = h.scenario_id",
        ),
    ] {
        let found = largest(store, sql);
        assert!((0.0..most).contains(&found), "{what}: {found}");
    }
    let bill = "SELECT sum(share_ratio) - 1 AS value FROM t GROUP BY scenario_id";
    let text = succeed(&["query", &store.to_string_lossy(), "token-bill", "--format", "csv"]);
    assert!(text.lines().count() > 8 * 8, "{bill}");
}

#[test]
fn combinations_of_what_is_there_agree_with_it() {
    let store = &quickstart().store;
    // `SnapKV 25%` is a scenario and a part of another one.
    let alone = number(
        store,
        "SELECT k.ns_per_output_token FROM stacking k JOIN scenarios s ON s.scenario_id = k.scenario_id WHERE \
         s.name = 'SnapKV + TurboQuant' AND k.parts = 'selection'",
    );
    let own = number(
        store,
        "SELECT CAST(sum(c.total_ns) AS DOUBLE) / (SELECT sum(r.output_tokens) FROM request_costs r JOIN scenarios s ON \
         s.scenario_id = r.scenario_id WHERE s.name = 'SnapKV 25%') FROM step_costs c JOIN scenarios s ON \
         s.scenario_id = c.scenario_id WHERE s.name = 'SnapKV 25%'",
    );
    assert!((alone / own - 1.0).abs() < 1e-6, "{alone} {own}");
    // More bandwidth never slows a step, and delivers less than it promises.
    let wrong = "SELECT count(*) FROM spec WHERE resource = 'memory_bandwidth' AND factor >= 1 AND (delivered < 0.999 OR \
                 delivered > factor)";
    assert!(number(store, wrong).abs() < 0.5);
    // Half of a resource never takes more than half, and a slower host is a slower step.
    let wrong = "SELECT count(*) FROM spec WHERE factor < 1 AND resource <> 'memory_capacity' AND (delivered > 1.001 OR \
                 delivered < factor)";
    assert!(number(store, wrong).abs() < 0.5);
    let host = number(store, "SELECT delivered FROM spec WHERE resource = 'host' AND factor = 0.5");
    assert!(host > 0.5 && host < 1.0, "{host}");
    assert!((number(store, "SELECT count(*) FROM spec WHERE error IS NULL") - 27.0).abs() < 0.5);
}

/// Each setting's price and its change lead back to what a million tokens cost at full load, which is computed elsewhere.
#[test]
fn what_the_result_hangs_on_starts_from_the_result() {
    let store = quickstart().store;
    let rows = succeed(&["query", &store.to_string_lossy(), "sensitivity", "--format", "ndjson"]);
    let rows: Vec<serde_json::Value> = rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let known = metric(&store, Some("baseline"), "usd_per_mtok_output_saturated");
    let mut inputs = Vec::new();
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        assert_eq!((row["scenario"].as_str(), row["basis"].as_str()), (Some("baseline"), Some("full load")));
        let base = number("usd_per_mtok") * (1.0 + number("change_ratio"));
        assert!((base / known - 1.0).abs() < 1e-9, "{base} {known}: {row}");
        assert!((number("tokens_per_usd") * number("usd_per_mtok") / 1e6 - 1.0).abs() < 1e-9);
        // More of anything but the price is no loss, and less of it no gain.
        let is_price = row["input"] == "price";
        assert!((number("change_ratio") > -1e-9) == ((number("factor") > 1.0) != is_price), "{row}");
        inputs.push((row["place"].as_u64().unwrap(), row["input"].as_str().unwrap().to_owned()));
    }
    inputs.dedup();
    let places: Vec<u64> = inputs.iter().map(|input| input.0).collect();
    assert_eq!(places, [1, 2, 3, 4, 5, 6], "{inputs:?}");
}

#[test]
fn the_routes_leave_no_cell_blank() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let mut trace = String::new();
    for request in 0..150_u32 {
        // Turns of ten conversations, each a little longer than the one before.
        let (session, turn) = (request % 10, request / 10);
        let blocks: Vec<String> = (0..12 + turn).map(|block| (1000 * session + block).to_string()).collect();
        let _ = writeln!(
            trace,
            "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": 200, \"hash_ids\": [{}]}}",
            request * 900,
            512 * (12 + turn),
            blocks.join(", ")
        );
    }
    std::fs::write(at("trace.jsonl"), trace).unwrap();
    let (file, store, page) = (at("trace.jsonl"), at("store"), at("report.html"));
    succeed(&["run", &file, "--format", "mooncake", "--routes", "--into", &store, "--output", &page]);
    let store = folder.path().join("store");
    let names: Vec<String> = ["baseline", "LPX", "TurboQuant", "Memory", "All together"].map(str::to_owned).to_vec();
    assert!((number(&store, "SELECT count(*) FROM scenarios WHERE status = 'ok'") - 5.0).abs() < 0.1);
    for name in names {
        let count = format!("SELECT count(*) FROM scenarios WHERE name = '{name}'");
        assert!((number(&store, &count) - 1.0).abs() < 0.1, "{name}");
    }
    let text = succeed(&["query", &at("store"), "lenses", "--format", "csv"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 3 * 5);
    let heads: Vec<&str> = lines[0].split(',').collect();
    for line in &lines[1..] {
        for (head, cell) in heads.iter().zip(line.split(',')) {
            assert!(!cell.is_empty(), "{head} is blank in {line}");
        }
    }
    assert!(!ask(&store, "SELECT * FROM promises").is_empty());
}

/// Scenarios on one decode machine whose prompts are computed on others: each has its own price, and an hour of it times the
/// hours that it ran is what it cost.
#[test]
fn prefill_machines_have_their_share_of_the_price() {
    let folder = tempfile::tempdir().unwrap();
    let (store, path) = (folder.path().join("store"), folder.path().join("t.jsonl"));
    let row = |at: u32| {
        format!(
            r#"{{"timestamp": {}, "input_length": 2048, "output_length": 64, "hash_ids": [1, 2, 3, {}]}}"#,
            at * 200,
            at + 9
        )
    };
    std::fs::write(&path, (0..40).map(|at| row(at) + "\n").collect::<String>()).unwrap();
    let text = store.to_string_lossy().into_owned();
    succeed(&["ingest", &path.to_string_lossy(), "--into", &text]);
    let scenarios = folder.path().join("scenarios.toml");
    let split = "split = \"1:1\"\nprefill_machine";
    std::fs::write(
        &scenarios,
        format!(
            "[defaults]\nmodel = \"llama-3.1-8b\"\nmachine = \"h200\"\nprices = \"neocloud\"\n\
             [[scenario]]\nname = \"together\"\n\
             [[scenario]]\nname = \"h100\"\n{split} = \"h100\"\n\
             [[scenario]]\nname = \"b200\"\n{split} = \"b200\"\n"
        ),
    )
    .unwrap();
    succeed(&["replay", &text, "--scenarios", &scenarios.to_string_lossy()]);
    let rows = succeed(&["query", &text, "cost", "--format", "ndjson"]);
    let mut hours = Vec::new();
    for row in rows.lines().map(|row| serde_json::from_str::<serde_json::Value>(row).unwrap()) {
        let name = row["scenario"].as_str().unwrap().to_owned();
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        let spent = number("usd_per_hour") * metric(&store, Some(&name), "duration_s") / 3600.0;
        assert!((spent / number("usd_total") - 1.0).abs() < 1e-9, "{spent}: {row}");
        hours.push(number("usd_per_hour"));
    }
    assert!(hours.len() == 3 && hours[2] > hours[1] && hours[1] > hours[0], "{hours:?}");
}
