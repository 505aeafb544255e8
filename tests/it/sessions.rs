//! Sessions of agents: what is read of them, what stages of the application make of them, and what it costs.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

use crate::support::{kvtoll, number, root, stderr, succeed};

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

/// The WEKA session under a stage that asks for summaries, in some traffic: figures per token are of tokens that users get, and
/// what the stage's own requests cost stays in them.
#[test]
fn tokens_that_reach_no_user_make_no_stage_cheaper() {
    let (folder, store) = replayed("traces/weka/v1_trace_0208.json", &["full", "compact(at=50k)"]);
    let of = |scenario: u32, name: &str| {
        number(&store, &format!("SELECT value FROM metrics WHERE metric = '{name}' AND scenario_id = {scenario}"))
    };
    let sum = |sql: &str| number(&store, sql);
    for name in ["requests_finished", "ttft_requests", "output_tokens"] {
        assert!((of(0, name) - of(1, name)).abs() < 0.5, "{name}: {} {}", of(0, name), of(1, name));
    }
    for (name, column) in [
        ("added_requests", "extra_requests"),
        ("added_prompt_tokens", "extra_prompt_tokens"),
        ("added_output_tokens", "extra_output_tokens"),
    ] {
        let told = sum(&format!("SELECT sum({column}) FROM context_edits WHERE scenario_id = 1"));
        assert!(told > 0.5 && (of(1, name) - told).abs() < 0.5, "{name}: {} {told}", of(1, name));
        assert!(of(0, name).abs() < 0.5);
    }
    // All of the money, over the users' tokens; the stage's own part of it is told.
    let alike = |one: f64, other: f64| (one / other - 1.0).abs() < 1e-9;
    for scenario in [0, 1] {
        let paid = of(scenario, "usd_per_mtok_output") * of(scenario, "output_tokens") / 1e6;
        assert!(alike(paid, of(scenario, "usd_total")), "{paid}");
    }
    assert!(alike(
        of(1, "usd_per_mtok_output") / of(0, "usd_per_mtok_output"),
        of(1, "usd_total") / of(0, "usd_total")
    ));
    let own = sum("SELECT sum(cost_usd) FROM request_costs WHERE scenario_id = 1 AND is_added");
    assert!((of(1, "usd_added") / own - 1.0).abs() < 1e-6, "{} {own}", of(1, "usd_added"));
    // The bill, the ledger and stacking say the same of a token.
    let steps = sum("SELECT sum(total_ns) FROM step_costs WHERE scenario_id = 1") / of(1, "output_tokens");
    let query = |name: &str| {
        let text = succeed(&["query", &store.to_string_lossy(), name, "--format", "json"]);
        serde_json::from_str::<Vec<Value>>(&text).unwrap()
    };
    let of_rows = |rows: &[Value], at: u64| -> f64 {
        let own = rows.iter().filter(|row| row["scenario_id"].as_u64() == Some(at));
        own.map(|row| row["ns_per_output_token"].as_f64().unwrap()).sum()
    };
    assert!((of_rows(&query("token-bill"), 1) / steps - 1.0).abs() < 1e-6);
    let stacked = sum("SELECT max(ns_per_output_token) FROM stacking WHERE scenario_id = 1 AND role = 'together'");
    assert!((stacked / steps - 1.0).abs() < 1e-6, "{stacked} {steps}");
    // Slow summaries are no user's latency.
    let slow = query("slow-requests");
    let added = sum("SELECT count(*) FROM request_costs WHERE is_added AND request_id < 9223372036854775808");
    assert!(added < 0.5 && slow.iter().all(|row| row["request_id"].as_u64().unwrap() < 1 << 63));
    let report = folder.path().join("report.html");
    succeed(&["report", &store.to_string_lossy(), "--output", &report.to_string_lossy()]);
    assert!(std::fs::read_to_string(&report).unwrap().contains("requests of its own generate"));
}

/// Before the turn that would exceed the limit the client asks for a summary, and sends the turn when it has it.
#[test]
fn a_turn_waits_for_its_summary_in_its_time_to_first_token() {
    let folder = tempfile::tempdir().unwrap();
    let store = stored(folder.path(), "traces/weka/v1_trace_0208.json");
    let at = Path::new(&store);
    for traffic in [
        &["--mode", "open"][..],
        &["--mode", "closed", "--concurrency", "2"],
        &["--mode", "session", "--think-time", "starts"],
    ] {
        let base = ["replay", &store, "--model", "llama-3.1-8b", "--machine", "h200", "--policy", "compact(at=30k)"];
        succeed(&[&base[..], traffic].concat());
        let pairs = "FROM request_costs own JOIN session_turns s ON s.request_id = own.request_id AND s.role = 'summary' JOIN \
                     session_turns t ON t.session = s.session AND t.turn = s.turn AND t.role = 'recorded' JOIN request_costs \
                     held ON held.request_id = t.request_id";
        let count = |more: &str| number(at, &format!("SELECT count(*) {pairs} {more}"));
        let summaries = number(at, "SELECT count(*) FROM session_turns WHERE role = 'summary'");
        assert!(summaries > 0.5 && (count("") - summaries).abs() < 0.5);
        assert!(count("WHERE held.arrival_ns <> own.arrival_ns") < 0.5, "{traffic:?}: they come at once");
        assert!(count("WHERE held.stage_wait_ns <> own.e2e_ns") < 0.5, "{traffic:?}: the turn is sent at its end");
        assert!(count("WHERE held.ttft_ns <= own.e2e_ns OR held.queue_ns < held.stage_wait_ns") < 0.5, "{traffic:?}");
        assert!(count("WHERE held.ttft_ns > own.e2e_ns") > 0.5, "{traffic:?}: somebody felt it");
        let others = "SELECT count(*) FROM request_costs WHERE stage_wait_ns > 0";
        assert!((number(at, others) - summaries).abs() < 0.5, "{traffic:?}: nobody else waits");
        let told = number(at, "SELECT value FROM metrics WHERE metric = 'stage_wait_s'");
        let waited = number(at, "SELECT sum(stage_wait_ns) / 1e9 FROM request_costs");
        assert!((told / waited - 1.0).abs() < 1e-9, "{told} {waited}");
    }
}

#[test]
fn explain_says_where_the_prefix_breaks() {
    let explain = |stack: &str| succeed(&["explain", stack, "--model", "llama-3.1-8b"]);
    let compacted = explain("compact(at=50k)");
    assert!(
        compacted.contains("prefix blocks: shareable, but where `compact` changes what earlier prompts held"),
        "{compacted}"
    );
    assert!(compacted.contains("breaks prefix sharing from the first token that it changes on"), "{compacted}");
    assert!(
        explain("full").contains("prefix blocks: shareable\n")
            && explain("retrieve").contains("prefix blocks: shareable\n")
    );
    assert!(succeed(&["explain", "compact"]).contains("breaks prefix sharing from the first token that it changes on"));
}

#[test]
fn a_negative_think_time_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let store = stored(folder.path(), "traces/weka/v8_trace_0242.json");
    let base = ["replay", &store, "--model", "llama-3.1-8b", "--machine", "h200", "--mode", "session"];
    let refused = kvtoll(&[&base[..], &["--think-time", "-5s"]].concat());
    let said = stderr(&refused);
    assert!(
        !refused.status.success() && said.contains("`think_time`: a pause cannot be negative, found `-5s`"),
        "{said}"
    );
    assert!(said.contains("`0s` leaves no pause"), "{said}");
}

/// Prompts alone have no first token: they are counted, and said, and break no percentile.
#[test]
fn requests_that_generate_nothing_are_counted_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let line = |at: u32, output: u32| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": 700, \"output_length\": {output}, \"hash_ids\": [0, {}]}}\n",
            at + 1
        )
    };
    std::fs::write(&trace, [line(0, 5), line(1000, 0), line(2000, 7), line(3000, 0)].concat()).unwrap();
    let store = stored(folder.path(), &trace.to_string_lossy());
    let done = kvtoll(&["replay", &store, "--model", "llama-3.1-8b", "--machine", "h200"]);
    let said = stderr(&done);
    assert!(done.status.success(), "{said}");
    assert!(
        said.contains("2 of 4 requests generate nothing and have no first token: what is said of it is of the other 2"),
        "{said}"
    );
    let of = |name: &str| number(Path::new(&store), &format!("SELECT value FROM metrics WHERE metric = '{name}'"));
    assert_eq!(
        (of("requests_without_output") as u32, of("ttft_requests") as u32, of("requests_finished") as u32),
        (2, 2, 4)
    );
    // Of those that have a first token 99% keep a promise; with the others in the way none could.
    assert!((of("promise_99_ttft_ms") / of("p99_ttft_ms") - 1.0).abs() < 1e-9);
    let report = folder.path().join("report.html");
    succeed(&["report", &store, "--output", &report.to_string_lossy()]);
    assert!(std::fs::read_to_string(&report).unwrap().contains("Requests that generate nothing have no first token"));
}

/// A store with one trace.
fn stored(folder: &Path, trace: &str) -> String {
    let store = folder.join("store").to_string_lossy().into_owned();
    succeed(&["ingest", trace, "--into", &store]);
    store
}

#[test]
fn turns_wait_for_each_other_after_pauses_that_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = stored(folder.path(), "traces/weka/v8_trace_0242.json");
    let replay = |more: &[&str]| {
        let base = ["replay", &store, "--model", "llama-3.1-8b", "--machine", "h200", "--closed-form"];
        kvtoll(&[&base[..], more].concat())
    };
    // Starts at 0, 90 and 185 s; of the first answer the end is recorded (43.48 s), of the second it is not, and the client's
    // pause of 142 s counts from the first one.
    let refused = replay(&["--mode", "session"]);
    let said = stderr(&refused);
    assert!(!refused.status.success());
    assert!(said.contains("1 of 2 pauses between turns of `v8_trace_0242.json (source 0)` are not known"), "{said}");
    assert!(said.contains("`--think-time starts`"), "{said}");
    let said = stderr(&replay(&["--think-time", "5s"]));
    assert!(said.contains("expected no `think_time` outside the mode `session`"), "{said}");
    let pauses = |store: &str| {
        let of = |turn: u32| {
            let sql = format!("SELECT pause_ns / 1e9 FROM session_turns WHERE turn = {turn}");
            number(Path::new(store), &sql)
        };
        [of(1), of(2)]
    };
    let arrival = |turn: u32, column: &str| {
        let sql = format!(
            "SELECT {column} / 1e9 FROM request_costs c JOIN session_turns t ON t.request_id = c.request_id WHERE turn = {turn}"
        );
        number(Path::new(&store), &sql)
    };
    let given = replay(&["--mode", "session", "--think-time", "5s"]);
    assert!(
        stderr(&given).contains("come: 1 after their recorded pause; 1 after the given think time"),
        "{}",
        stderr(&given)
    );
    assert_eq!(pauses(&store), [47.0, 5.0]);
    let end = arrival(1, "c.arrival_ns") + arrival(1, "c.e2e_ns");
    assert!((arrival(2, "c.arrival_ns") - end - 5.0).abs() < 1e-6);
    let starts = replay(&["--mode", "session", "--think-time", "starts"]);
    assert!(stderr(&starts).contains("1 after the recorded time from start to start"), "{}", stderr(&starts));
    assert_eq!(pauses(&store), [47.0, 95.0]);
    assert!((arrival(2, "c.arrival_ns") - arrival(1, "c.arrival_ns") - 95.0).abs() < 1e-6);
    let from = "SELECT count(*) FROM session_turns WHERE pause_from = CASE turn WHEN 1 THEN 'recorded' WHEN 2 THEN 'from_start' END";
    assert!((number(Path::new(&store), from) - 2.0).abs() < 1e-9);
}

#[test]
fn stages_that_never_act_change_nothing_on_a_real_session() {
    let idle = [
        "clear_tool_results(trigger=4000M)",
        "clear_thinking(keep=1k)",
        "compact(at=4000M)",
        "microcompact(idle=1000h)",
        "collapse(at=4000M)",
        "transcripts(at=4000M)",
        "consolidate(sessions=9)",
    ];
    let (_folder, store) = replayed("traces/weka/v1_trace_0208.json", &[&["full"], &idle[..]].concat());
    for scenario in 1..=idle.len() {
        for table in ["request_costs", "session_turns", "session_costs", "session_memory", "step_costs"] {
            let of =
                |scenario: usize| format!("SELECT * EXCLUDE (scenario_id) FROM {table} WHERE scenario_id = {scenario}");
            let (own, base) = (of(scenario), of(0));
            let sql = format!("SELECT count(*) FROM (({own} EXCEPT {base}) UNION ALL ({base} EXCEPT {own}))");
            assert!(number(&store, &sql) < 0.5, "{table} of {}", idle[scenario - 1]);
        }
    }
}

/// In the replay of a scenario requests share the machine: what a stage costs there is the difference to the same replay
/// without it.
#[test]
fn own_hardware_is_priced_in_the_replay_too() {
    let stage = "clear_tool_results(trigger=20k,keep=1)";
    let (_folder, store) = replayed("traces/weka/v8_trace_0242.json", &["fp8", &format!("{stage}+fp8")]);
    let sum = |sql: &str| number(&store, sql);
    for (column, scenario) in [("recorded_ns", 0), ("cost_ns", 1)] {
        let bill = sum(&format!(
            "SELECT sum({column}) FROM session_costs WHERE payee = 'own' AND cache = 'replay' AND scenario_id = 1"
        ));
        let replayed = sum(&format!("SELECT sum(machine_ns) FROM request_costs WHERE scenario_id = {scenario}"));
        assert!((bill - replayed).abs() < 0.5, "{column}: {bill} {replayed}");
    }
    let bill = "SELECT sum(cost_usd) FROM session_costs WHERE payee = 'own' AND cache = 'replay' AND scenario_id = 1";
    let replayed = sum("SELECT sum(cost_usd) FROM request_costs WHERE scenario_id = 1");
    assert!((sum(bill) / replayed - 1.0).abs() < 1e-6);
}

#[test]
fn captured_steps_refuse_stages_that_act_on_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/recording-token", "--into", &store]);
    let output = kvtoll(&[
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
    let said = stderr(&output);
    assert!(said.contains("captured steps run as they were recorded"), "{said}");
    let count = |status: &str| {
        number(Path::new(&store), &format!("SELECT count(*) FROM scenarios WHERE status = '{status}'")) as i64
    };
    assert_eq!((count("ok"), count("failed")), (1, 1));
}
