//! `kvtoll replay --equal-cost` and the asset view of a run, on a small trace of our own.

use std::fmt::Write as _;
use std::path::Path;

use crate::support::{kvtoll, number, stderr, succeed};

/// Forty prompts of 4,096 tokens that share their first half in four families, twice a second.
fn trace() -> String {
    let mut text = String::new();
    for at in 0..40_u64 {
        let own: Vec<String> = (0..8)
            .map(|block| if block < 4 { (at % 4) * 100 + block } else { 1000 + at * 10 + block })
            .map(|id| id.to_string())
            .collect();
        let _ = writeln!(
            text,
            r#"{{"timestamp": {}, "input_length": 4096, "output_length": 20, "hash_ids": [{}]}}"#,
            at * 500,
            own.join(", ")
        );
    }
    text
}

fn run(store: &Path, more: &[&str]) {
    let folder = store.parent().unwrap();
    let path = folder.join("t.jsonl");
    std::fs::write(&path, trace()).unwrap();
    let store = store.to_string_lossy().into_owned();
    succeed(&["ingest", &path.to_string_lossy(), "--into", &store]);
    let args = ["replay", &store, "--model", "llama-3.1-8b", "--machine", "h100", "--prices", "neocloud"];
    succeed(&[&args[..], more].concat());
}

#[test]
fn equal_cost_spends_the_same_money_and_names_one_winner() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    run(&store, &["--equal-cost"]);
    let ask = |sql: &str| number(&store, sql);
    // The money is the same in every row, and what it buys costs as much.
    assert!((ask("SELECT max(abs(unit_usd_per_hour * units - usd_per_hour)) FROM equal_cost")).abs() < 1e-9);
    assert!((ask("SELECT max(usd_per_hour) FROM equal_cost") - 1.69).abs() < 1e-9);
    assert!((ask("SELECT count(DISTINCT usd_per_hour) FROM equal_cost") - 1.0).abs() < 0.1);
    // One option wins each traffic, and serves at least as much as the others.
    let traffics = ask("SELECT count(DISTINCT kind || traffic) FROM equal_cost");
    assert!(traffics >= 7.0, "{traffics}");
    assert!((ask("SELECT count(*) FROM equal_cost WHERE is_best") - traffics).abs() < 0.1);
    assert!(ask("SELECT min(of_best_ratio) FROM equal_cost WHERE is_best") > 1.0 - 1e-12);
    assert!(ask("SELECT max(of_best_ratio) FROM equal_cost") < 1.0 + 1e-12);
    // All blocks fit in the memory of an accelerator, so that no more memory can be worth its price.
    assert!(
        ask(
            "SELECT count(*) FROM equal_cost WHERE kind = 'hierarchy' AND is_best AND option <> 'machine''s memory alone'"
        ) < 0.1
    );
}

#[test]
fn the_desk_of_a_run_is_all_that_lies_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    run(&store, &["--instances", "3"]);
    let ask = |sql: &str| number(&store, sql);
    assert!((ask("SELECT sum(time_ratio) FROM desk") - 1.0).abs() < 1e-9);
    assert!(ask("SELECT max(time_ratio) FROM desk WHERE class = 'duplicate'") > 0.0);
    // Each of the three instances serves all four families, so that their 16 shared blocks are there three times.
    assert!((ask("SELECT max(copies) FROM stored_copies WHERE across = 'instances'") - 32.0).abs() < 0.1);
    assert!((ask("SELECT sum(reads) FROM blocks") - ask("SELECT count(*) FROM gaps")).abs() < 0.1);
    assert!((ask("SELECT count(*) FROM gaps") - 36.0 * 4.0).abs() < 0.1);
}

#[test]
fn equal_cost_needs_a_price() {
    let folder = tempfile::tempdir().unwrap();
    let (store, path) = (folder.path().join("store"), folder.path().join("t.jsonl"));
    std::fs::write(&path, trace()).unwrap();
    let store = store.to_string_lossy().into_owned();
    succeed(&["ingest", &path.to_string_lossy(), "--into", &store]);
    let output = kvtoll(&[
        "replay",
        &store,
        "--model",
        "llama-3.1-8b",
        "--machine",
        "vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us",
        "--weights",
        "fp8",
        "--equal-cost",
    ]);
    assert!(!output.status.success() && stderr(&output).contains("has no price in the book"), "{}", stderr(&output));
}

/// What goes over which link, and how far; what a change asks of software is what the user says.
#[test]
fn links_have_distances_and_software_has_days() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let days = ["--adaptation-days", "algorithm=5"];
    run(&store, &[&["--split", "1:1", "--policy", "full", "--policy", "fp8"][..], &days].concat());
    let ask = |sql: &str| number(&store, sql);
    // 40 prompts of 4,096 tokens of 131,072 bytes, half of it in 8 bits.
    let sent = "SELECT sum(bytes) FROM link_usage WHERE link = 'prefill_to_decode' AND distance = 'cross-rack'";
    let bf16 = ask(&format!("{sent} AND scenario_id = 0"));
    assert!((bf16 - 40.0 * 4096.0 * 131_072.0).abs() < 240.0, "{bf16}");
    assert!(ask(&format!("{sent} AND scenario_id = 1")) < 0.6 * bf16);
    assert!(ask("SELECT count(*) FROM link_usage WHERE link = 'scale_up' AND distance IS DISTINCT FROM 'rack'") < 0.5);
    let booth = "SELECT sum(adaptation_days) FROM ledger WHERE floor = 'algorithm' AND booth = 'software_adaptation'";
    assert!((ask(booth) - 5.0).abs() < 1e-12);
    assert!(ask("SELECT count(adaptation_days) FROM ledger WHERE booth <> 'software_adaptation'") < 0.5);
}

/// Collectives are told apart: whole experts get tokens in 8 bits and give 16 back, and stages have a class of their own.
#[test]
fn classes_of_traffic_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, path) = (folder.path().join("store"), folder.path().join("t.jsonl"));
    std::fs::write(&path, trace()).unwrap();
    let text = store.to_string_lossy().into_owned();
    succeed(&["ingest", &path.to_string_lossy(), "--into", &text]);
    let spread = ["--tensor-parallel=2", "--data-parallel=4", "--expert-parallel=8", "--pipeline-parallel=2"];
    let args = ["replay", &text, "--model", "qwen3-30b-a3b", "--machine", "h200", "--prices", "neocloud"];
    succeed(&[&args[..], &spread].concat());
    let ask = |sql: &str| number(&store, sql);
    let bytes = |class: &str| ask(&format!("SELECT sum(bytes) FROM link_usage WHERE class = '{class}'"));
    let dispatched = bytes("expert_dispatch");
    assert!(dispatched > 0.0 && (bytes("expert_combine") / dispatched - 2.0).abs() < 1e-6);
    assert!(bytes("tensor_all_reduce") > 0.0 && bytes("pipeline") > 0.0);
    // Tensor parallelism stays in a node of eight; experts do too; the two stages are in two nodes.
    let links = "SELECT count(DISTINCT link) FROM link_usage WHERE class";
    assert!((ask(&format!("{links} <> 'pipeline'")) - 1.0).abs() < 0.5);
    assert!(ask("SELECT count(*) FROM link_usage WHERE class = 'pipeline' AND link <> 'scale_out'") < 0.5);
    assert!(
        ask("SELECT count(*) FROM link_usage WHERE link = 'scale_out' AND distance IS DISTINCT FROM 'cross-rack'")
            < 0.5
    );
    // All of it is what steps say they sent.
    let steps = ask("SELECT sum(link_bytes) FROM step_costs");
    let all = ask("SELECT sum(bytes) FROM link_usage");
    assert!((all / steps - 1.0).abs() < 1e-6, "{all} {steps}");
}

/// What a scenario fetches crosses the fabrics that are compared.
#[test]
fn fabrics_at_equal_cost_carry_what_is_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let steps = |name: &str, policy: &str| {
        let store = folder.path().join(name).join("store");
        std::fs::create_dir_all(store.parent().unwrap()).unwrap();
        run(&store, &["--equal-cost", "--kv-blocks", "560", "--policy", policy]);
        number(&store, "SELECT sum(latency_ns) FROM equal_cost WHERE kind = 'fabric'")
    };
    let (plain, tiered) = (steps("plain", "full"), steps("tiered", "full+tier(hbm,dram=64GB)"));
    assert!(tiered > plain, "{tiered} {plain}");
}

#[test]
fn placements_are_explained_and_cost_says_where_they_act() {
    let said = succeed(&["explain", "fp8+tier(hbm,dram=1TB; write=on_evict, exclusive)", "--model", "llama-3.1-8b"]);
    assert!(
        said.contains("policy fp8 on llama-3.1-8b") && said.contains("exclusive): carried out by serving"),
        "{said}"
    );
    let args = ["cost", "--model", "llama-3.1-8b", "--machine", "h100", "--batch", "1", "--context", "1k", "--policy"];
    let output = kvtoll(&[&args[..], &["full+tier(hbm,dram)"]].concat());
    assert!(output.status.success() && stderr(&output).contains("changes no single step"), "{}", stderr(&output));
}

/// A memory below HBM gives back what left it: more tokens are found, and the first token comes sooner.
#[test]
fn a_memory_below_hbm_serves_prefixes_in_a_replay() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    // Room for 512 blocks of 16 tokens: two prompts.
    let moved = "full+tier(hbm,dram=64GB; write=on_evict, exclusive)";
    let policies = ["--policy", "full", "--policy", "full+tier(hbm,dram=64GB)", "--policy", moved];
    run(&store, &[&["--kv-blocks", "560"][..], &policies].concat());
    let ask = |sql: &str, scenario: u32| number(&store, &format!("SELECT {sql} AND scenario_id = {scenario}"));
    let far = |scenario| ask("sum(far_hit_tokens) FROM request_costs WHERE true", scenario);
    assert!(far(0).abs() < 0.1 && far(1) > 10_000.0, "{} {}", far(0), far(1));
    let ttft = |scenario| ask("avg(ttft_ns) FROM request_costs WHERE true", scenario);
    assert!(ttft(1) < ttft(0), "{} {}", ttft(1), ttft(0));
    // What comes down only when it has to go serves as well, since all of it fits.
    assert!(far(2) > 10_000.0 && ttft(2) < ttft(0), "{} {}", far(2), ttft(2));
    // What comes over the link takes time in the steps, and is counted on the link.
    assert!(ask("sum(tier_ns) FROM step_costs WHERE true", 1) > 0.0);
    let fetched = ask("sum(bytes) FROM link_usage WHERE class = 'tier_fetch'", 1);
    assert!(fetched > 0.0);
    // The memory read as much, and holds no more than came down to it over the other way of its links.
    let below = "FROM tier_usage WHERE tier NOT IN ('hbm', 'ffn_pool')";
    assert!((ask(&format!("sum(read_bytes) {below}"), 1) - fetched).abs() < 240.0);
    let written = ask(&format!("sum(written_bytes) {below}"), 1);
    assert!((ask("sum(bytes) FROM link_usage WHERE link = 'to_host'", 1) - written).abs() < 240.0);
    assert!(written >= ask(&format!("max(resident_bytes) {below}"), 1) - 240.0 && written > 0.0);
    assert!(ask(&format!("max(capacity_bytes) {below}"), 2) > 63e9);
    let all = "sum(CAST(hit_tokens AS BIGINT) + computed_tokens - recomputed_tokens - prompt_tokens) FROM request_costs WHERE true";
    assert!(ask(all, 1).abs() < 0.1);
}
