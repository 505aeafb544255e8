//! Sessions of agents: what is read of them, what stages of the application make of them, and what it costs.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

use crate::support::{number, root, succeed};

/// Instant in s, prompt, ids of blocks and whether it is a sub-agent's, of each request of a list.
fn requests(list: &[Value], start: f64, is_agent: bool, found: &mut Vec<(f64, u64, Vec<u64>, bool)>) {
    for one in list {
        let at = start + one["t"].as_f64().unwrap();
        if let Some(inner) = one["requests"].as_array() {
            requests(inner, at, true, found);
        } else {
            let ids = one["hash_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
            found.push((at, one["in"].as_u64().unwrap(), ids, is_agent));
        }
    }
}

fn replayed(trace: &str, policies: &[&str]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let shown = store.to_string_lossy().into_owned();
    succeed(&["ingest", trace, "--into", &shown]);
    let mut words = vec!["replay", &shown, "--model", "llama-3.1-8b", "--machine", "h200"];
    words.extend(policies.iter().flat_map(|policy| ["--policy", policy]));
    succeed(&words);
    (folder, store)
}

#[test]
fn claude_code_traces_are_read_as_sessions() {
    for name in ["v1_trace_0208", "v1_trace_0629", "v6_trace_0501", "v8_trace_0242"] {
        let trace = format!("traces/weka/{name}.json");
        let (_folder, store) = replayed(&trace, &["full"]);
        let json: Value = serde_json::from_slice(&std::fs::read(root().join(&trace)).unwrap()).unwrap();
        let mut sent = Vec::new();
        requests(json["requests"].as_array().unwrap(), 0.0, false, &mut sent);
        sent.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (mut seen, mut reused) = (HashSet::<u64>::new(), 0);
        for (_, _, ids, _) in &sent {
            reused += 64 * ids.iter().take_while(|id| seen.contains(*id)).count();
            seen.extend(ids);
        }
        let found = |sql: &str| number(&store, sql).round() as i64;
        assert_eq!(found("SELECT count(*) FROM session_turns"), sent.len() as i64, "{name}");
        assert_eq!(found("SELECT sum(recorded_found_tokens) FROM session_turns"), reused as i64, "{name}");
        let tokens: u64 = sent.iter().map(|one| one.1).sum();
        assert_eq!(found("SELECT sum(recorded_tokens) FROM session_turns"), tokens as i64, "{name}");
        let unlike = "SELECT count(*) FROM (SELECT r.request_id FROM requests r JOIN context_segments c ON c.request_id = \
                      r.request_id GROUP BY r.request_id, r.prompt_tokens HAVING sum(c.tokens) <> r.prompt_tokens)";
        assert_eq!(found(unlike), 0, "{name}");
        // Sub-agents stand on the clock of their parent.
        let origin = sent[0].0;
        let agents: f64 = sent.iter().filter(|one| one.3).map(|one| one.0 - origin).sum();
        let placed =
            number(&store, "SELECT coalesce(sum(arrival_ns), 0) / 1e9 FROM session_turns WHERE session_id LIKE '%/%'");
        assert!((placed - agents).abs() < 1e-3, "{name}: {placed} {agents}");
        assert_eq!(found("SELECT count(*) FROM session_memory WHERE recall_ratio IS DISTINCT FROM 1.0"), 0, "{name}");
        assert_eq!(found("SELECT count(*) FROM context_edits"), 0, "{name}");
    }
}

#[test]
fn a_stack_over_the_floors_replays_in_one_run() {
    let stack = "compact(at=50k)+snapkv(budget=25%)+turboquant";
    let (folder, store) = replayed("traces/weka/v1_trace_0208.json", &["full", "compact(at=50k)", stack]);
    let found = |sql: &str| number(&store, sql).round() as i64;
    assert_eq!(found("SELECT count(*) FROM scenarios WHERE status = 'ok'"), 3);
    assert!(found("SELECT count(*) FROM context_edits WHERE scenario_id = 1") > 0);
    // Both stacks send the same requests, and the one with all floors stores less of them; the requests that write summaries
    // come on top.
    let tokens =
        |scenario: u32| found(&format!("SELECT sum(prompt_tokens) FROM session_turns WHERE scenario_id = {scenario}"));
    assert_eq!(tokens(1), tokens(2));
    let bytes = |scenario: u32| {
        let own = "role = 'recorded'";
        found(&format!("SELECT sum(kv_bytes) FROM session_turns WHERE scenario_id = {scenario} AND {own}"))
    };
    assert!(bytes(2) < bytes(1) && bytes(1) < bytes(0));
    // What a request loses and gains is told, stage by stage.
    let untold = "SELECT count(*) FROM session_turns WHERE CAST(prompt_tokens AS BIGINT) + removed_tokens <> \
                  CAST(recorded_tokens AS BIGINT) + added_tokens";
    assert_eq!(found(untold), 0);
    // Every session that is dearer says why.
    assert_eq!(found("SELECT count(*) FROM session_costs WHERE is_dearer AND why NOT LIKE 'dearer: %'"), 0);
    let report = folder.path().join("report.html");
    succeed(&["report", &store.to_string_lossy(), "--output", &report.to_string_lossy()]);
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("What sessions pay") && page.contains("compact(at=50000)"));
}

#[test]
fn captured_steps_refuse_stages_that_act_on_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/recording-token", "--into", &store]);
    let output = crate::support::kvtoll(&[
        "replay",
        &store,
        "--model",
        "smollm2-135m",
        "--machine",
        "h100",
        "--mode",
        "captured",
        "--policy",
        "full",
        "--policy",
        "compact",
    ]);
    let said = crate::support::stderr(&output);
    assert!(said.contains("captured steps run as they were recorded"), "{said}");
    let count = |status: &str| {
        number(Path::new(&store), &format!("SELECT count(*) FROM scenarios WHERE status = '{status}'")) as i64
    };
    assert_eq!((count("ok"), count("failed")), (1, 1));
}
