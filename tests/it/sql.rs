//! `kvtoll sql`, `kvtoll compare`, completions and pages, by the real binary.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{ask, kvtoll, number, quickstart, stderr, succeed};

fn store() -> String {
    quickstart().store.to_string_lossy().into_owned()
}

#[test]
fn statements_come_from_the_command_line_a_file_or_standard_input() {
    let store = store();
    let two = "SELECT 1 AS a; -- and\nSELECT ';' AS b;";
    let expected = "a\n1\nb\n;\n";
    assert_eq!(succeed(&["sql", &store, "-c", two, "--format", "csv"]), expected);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.sql");
    std::fs::write(&file, two).unwrap();
    assert_eq!(succeed(&["sql", &store, "-f", &file.to_string_lossy(), "--format", "csv"]), expected);
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtoll"))
        .args(["sql", &store, "-f", "-", "--format", "csv"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(two.as_bytes()).unwrap();
    assert_eq!(String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap(), expected);
    let named = ["sql", &store, "-c", "SELECT $x + 1 AS y", "--param", "x=41", "--format", "csv"];
    assert_eq!(succeed(&named), "y\n42\n");
}

#[test]
fn what_cannot_be_run_is_refused_with_a_way_out() {
    let store = store();
    let refused = |args: &[&str], code: i32, part: &str| {
        let output = kvtoll(args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "expected `{part}` in:\n{said}");
    };
    // Nobody types in a test.
    refused(&["sql", &store], 2, "`-f -` reads statements from standard input");
    refused(&["sql", &store, "-c", " ; -- nothing"], 2, "expected a statement, found none");
    refused(&["sql", &store, "-c", "SELECT 1; SELECT 2", "--output", "x.csv"], 2, "expected one statement for a file");
    refused(&["sql", &store, "-f", "missing.sql"], 2, "cannot read the statements `missing.sql`");
    refused(&["sql", &store, "-c", "SELECT 1;\nSELECT nam FROM scenarios"], 2, "2 | SELECT nam FROM scenarios");
}

#[test]
fn an_arrow_file_is_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.arrow");
    succeed(&["sql", &store(), "-c", "SELECT name FROM scenarios", "--output", &path.to_string_lossy()]);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(b"ARROW1"));
}

#[test]
fn a_replay_in_sql_writes_a_run_and_gives_its_summary() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let name = store.to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &name]);
    let sql = "SELECT run_id, scenario, p99_itl_ms FROM replay('fp8', 'llama-3.1-8b', 'h200', 'rate=x0.5')";
    // What is only explained is not carried out.
    succeed(&["sql", &name, "-c", &format!("EXPLAIN {sql}")]);
    assert!(kvtoll::store::Store::open(&store).unwrap().runs().is_empty());
    let rows = succeed(&["sql", &name, "-c", sql, "--format", "csv"]);
    let runs = kvtoll::store::Store::open(&store).unwrap();
    let run = runs.runs().last().expect("a run").id.clone();
    assert!(rows.lines().nth(1).is_some_and(|row| row.starts_with(&format!("{run},fp8 on h200,"))), "{rows}");
    let p99 = number(&store, "SELECT value FROM metrics WHERE metric = 'p99_itl_ms' AND scenario_id = 0");
    assert_eq!(rows.trim_end().rsplit(',').next().and_then(|cell| cell.parse::<f64>().ok()), Some(p99));
    // Again is the same run.
    assert_eq!(succeed(&["sql", &name, "-c", sql, "--format", "csv"]), rows);
    let wrong = kvtoll(&["sql", &name, "-c", "SELECT * FROM replay('fp8', 'llama-3.1-8b', 'h200', 'rat=x0.5')"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("--rat"), "{}", stderr(&wrong));
}

#[test]
fn runs_are_compared_and_gates_exit_with_four() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &store]);
    // Under one name, so that the runs' scenarios are matched.
    for machine in ["h100", "h100*memory_bytes_per_s=2"] {
        let file = folder.path().join("one.toml");
        let text = format!("[[scenario]]\nname = \"mine\"\nmodel = \"llama-3.1-8b\"\nmachine = \"{machine}\"\n");
        std::fs::write(&file, text).unwrap();
        succeed(&["replay", &store, "--scenarios", &file.to_string_lossy()]);
    }
    let runs: Vec<String> = kvtoll::store::Store::open(folder.path().join("store").as_path())
        .unwrap()
        .runs()
        .iter()
        .map(|run| run.id.clone())
        .collect();
    let [base, run] = [&runs[0], &runs[1]].map(|run| format!("{store}/runs/{run}"));
    let rows = succeed(&["compare", &base, &run, "--metric", "p99_itl_ms", "--format", "csv"]);
    let row = rows.lines().nth(1).unwrap_or_default();
    assert!(row.starts_with("mine,p99_itl_ms,ms,") && row.ends_with(",better"), "{rows}");
    // The other way round by ids, the beginning of which will do.
    let gated = |gate: &str| {
        let ids = [&runs[1][..8], &runs[0][..8]];
        kvtoll(&["compare", ids[0], ids[1], "--store", &store, "--fail-if", gate, "--format", "csv"])
    };
    let broken = gated("p50_itl > +5%");
    assert_eq!(broken.status.code(), Some(4), "{}", stderr(&broken));
    assert!(stderr(&broken).contains("`p50_itl > +5%`: `mine` went from"), "{}", stderr(&broken));
    assert!(!broken.stdout.is_empty(), "the table is shown all the same");
    let passed = gated("p99_itl > +500%");
    assert_eq!(passed.status.code(), Some(0));
    assert!(stderr(&passed).contains("1 gate passed: `p99_itl > +500%` (nearest `mine`: +"), "{}", stderr(&passed));
    assert_eq!(gated("p99_itk > +5%").status.code(), Some(2));
}

#[test]
fn shells_and_man_know_every_command() {
    let help = succeed(&["--help"]);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"sql") && commands.len() > 15, "{commands:?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = succeed(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    succeed(&["man", "--output", &pages.to_string_lossy()]);
    for command in &commands {
        let page = std::fs::read_to_string(pages.join(format!("kvtoll-{command}.1"))).unwrap();
        assert!(page.starts_with(".ie") || page.contains(".TH"), "{command}");
    }
    assert!(succeed(&["man", "sql"]).contains("kvtoll\\-sql"));
    assert_eq!(kvtoll(&["man", "sqll"]).status.code(), Some(2));
}

#[test]
fn masses_are_unnested_in_place() {
    let store = quickstart().store;
    let heads = number(&store, "SELECT count(*) FROM attention");
    assert!(heads > 0.0);
    let units = number(&store, "SELECT sum(array_length(mass)) FROM attention");
    assert_eq!(number(&store, "SELECT count(*) FROM unnest_mass()"), units);
    // Tokens cover the context without a gap, and masses of a head sum to 1.
    let wrong = "
        SELECT count(*) FROM (
          SELECT request_id, step, layer, kv_head, sum(tokens) AS tokens, sum(mass) AS mass, max(first_token + tokens) AS reach
          FROM unnest_mass() GROUP BY request_id, step, layer, kv_head
        ) m JOIN attention a USING (request_id, step, layer, kv_head)
        WHERE m.tokens <> a.context_tokens OR m.reach <> a.context_tokens OR abs(m.mass - 1) > 1e-3";
    assert_eq!(number(&store, wrong), 0.0);
    let of_layer = number(&store, "SELECT count(*) FROM unnest_mass(3)");
    assert_eq!(of_layer, number(&store, "SELECT count(*) FROM unnest_mass() WHERE layer = 3"));
    assert!(of_layer > 0.0);
}

#[test]
fn quantiles_over_stretches_are_those_of_the_replay() {
    // Where no request waits between its tokens, the gaps are the step times; stretches are kept in whole nanoseconds.
    let store = quickstart().store;
    let sql = "
        SELECT s.q / q.value_ns AS ratio FROM (
          SELECT scenario_id, CAST(stretch_quantile(first_ns, last_ns, steps, decode_requests, 0.5) AS DOUBLE) AS q
          FROM step_costs GROUP BY scenario_id
        ) s JOIN quantiles q ON q.scenario_id = s.scenario_id AND q.metric = 'itl' AND q.quantile_ratio = 0.5";
    for batch in ask(&store, sql) {
        let ratios = arrow::array::AsArray::as_primitive::<arrow::datatypes::Float64Type>(batch.column(0));
        for ratio in ratios.values() {
            assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
        }
    }
}

#[test]
fn a_step_costs_in_sql_what_it_costs_on_the_command_line() {
    let store = store();
    let sql = "SELECT c['step_ns'] AS step_ns, c['kv_read_ns'] AS kv_read_ns, c['bound_by'] AS bound_by,
                 c['kv_bytes'] AS kv_bytes, c['fits'] AS fits
               FROM (SELECT step_cost('llama-3.1-70b', 'h200', 'fp8', 64, 32000) AS c)";
    let of_sql = succeed(&["sql", &store, "-c", sql, "--format", "ndjson"]);
    let args =
        ["--model", "llama-3.1-70b", "--machine", "h200", "--policy", "fp8", "--batch", "64", "--context", "32k"];
    let mut all = vec!["cost", "--format", "ndjson"];
    all.extend(args);
    let of_cost: serde_json::Value = serde_json::from_str(&succeed(&all)).unwrap();
    let of_sql: serde_json::Value = serde_json::from_str(&of_sql).unwrap();
    for key in ["step_ns", "kv_read_ns", "bound_by", "kv_bytes", "fits"] {
        assert_eq!(of_sql[key], of_cost[key], "{key}");
    }
}
