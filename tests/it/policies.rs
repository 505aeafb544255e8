//! `kvtoll validate policies` and `kvtoll explain 'STACK' --model M` by the real binary, on the shipped recordings.

use std::path::Path;

use crate::support::{kvtoll, number, stderr, succeed};

/// Settings in the order of damage that their measured divergences have here. The numbers stand for an order only: nothing
/// was measured on this text.
const ORDER: [(&str, &str, f64); 6] = [
    ("random", "0.1", 0.9),
    ("random", "0.5", 0.3),
    ("h2o_static", "0.1", 0.08),
    ("h2o_static", "0.5", 0.01),
    ("fp8_e4m3", "fp8", 0.001),
    ("full", "-", 0.0),
];

fn table(request: &str) -> String {
    let rows: Vec<String> =
        ORDER.iter().map(|(policy, param, kl)| format!("{request}\t{policy}\t{param}\t{kl}\n")).collect();
    format!("request_id\tpolicy\tparam\tkl_mean\n{}", rows.concat())
}

#[test]
fn predictions_are_held_against_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(at("quality.tsv"), table("needle_2k")).unwrap();
    let said = succeed(&["validate", "policies", "traces/recording-token", "--quality", &at("quality.tsv")]);
    assert!(said.contains("random(budget=10%)") && said.contains("h2o(budget=50%,evict=no)"), "{said}");
    // Four selections in this order: random loses more than heavy hitters at any of these budgets.
    let line = |start: &str| said.lines().find(|line| line.trim().starts_with(start)).unwrap_or_default().to_owned();
    assert!(line("selections").contains("4 settings: predicted error 1.000 (4 known)"), "{said}");
    assert!(line("all").contains("5 settings"), "{said}");
    assert!(line("h2o_static           rises").contains("0.5: 0.0"), "{said}");

    // The same from a store, to a file; the full cache has no error.
    succeed(&["ingest", "traces/recording-token", "--into", &at("store")]);
    succeed(&["validate", "policies", &at("store"), "--quality", &at("quality.tsv"), "--output", &at("found.csv")]);
    let rows = std::fs::read_to_string(at("found.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1 + ORDER.len());
    let full = rows.lines().find(|line| line.contains("full")).unwrap();
    assert!(full.contains("norms"), "{full}");

    std::fs::write(at("other.tsv"), table("needle_2j")).unwrap();
    let output = kvtoll(&["validate", "policies", "traces/recording-token", "--quality", &at("other.tsv")]);
    assert!(!output.status.success() && stderr(&output).contains("did you mean `needle_2k`?"), "{}", stderr(&output));
    std::fs::write(at("bad.tsv"), "request_id\tpolicy\tparam\tkl_mean\nneedle_2k\tfull\t-\tmuch\n").unwrap();
    let output = kvtoll(&["validate", "policies", "traces/recording-token", "--quality", &at("bad.tsv")]);
    assert!(stderr(&output).contains("line 2: expected a number as `kl_mean`"), "{}", stderr(&output));
}

#[test]
fn a_stack_is_explained_on_a_model() {
    let said = succeed(&["explain", "kivi(bits=4)", "--model", "llama-3.1-8b", "--prompt", "4096"]);
    // POLICIES 3.2: KIVI-4 at 4,096 tokens takes a 3.09th of bf16, 536,870,912 bytes here; in the limit 5 bits an element.
    let line = said.lines().find(|line| line.contains("all layers:") && line.contains("bytes stored")).unwrap();
    let stored: f64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((536_870_912.0 / stored - 3.09).abs() < 0.005, "{line}");
    assert!(
        said.contains("1280 bytes stored") && said.contains("published:") && said.contains("43.53 against 43.54"),
        "{said}"
    );
    // No step fetches more than was dropped: three quarters of 4,096 tokens.
    let recall = "snapkv(budget=25%)+recall(tokens=100000)";
    let said = succeed(&["explain", recall, "--model", "llama-3.1-8b", "--prompt", "4096"]);
    assert!(said.contains("a decode step fetches up to 3072 of them"), "{said}");
    let said = succeed(&["explain", "minicache", "--model", "smollm2-135m"]);
    // From layer 15 of 30 on there are seven pairs; the last layer has no partner.
    assert!(said.contains("14 layers of 3 KV heads, bf16 (merged)"), "{said}");
    let said = succeed(&["explain", "minicache"]);
    assert!(said.contains("accuracy, published") && said.contains("predicted error"), "{said}");
    let output = kvtoll(&["explain", "adakv(budget=25%)", "--model", "smollm2-135m"]);
    assert!(stderr(&output).contains("needs a recording with"), "{}", stderr(&output));
    let output = kvtoll(&["explain", "minicache+snapkv(budget=25%)", "--model", "smollm2-135m"]);
    assert!(stderr(&output).contains("keeps others in each layer"), "{}", stderr(&output));
}

#[test]
fn merging_is_reported_with_its_premise() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/recording-block", "--into", &store]);
    let output = kvtoll(&[
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
        "--policy",
        "minicache",
        "--policy",
        "window(512)",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("the premise of `minicache` does not hold on this trace"), "{}", stderr(&output));
    let store = Path::new(&store);
    let worst = |policy: &str| {
        number(store, &format!("SELECT avg(output_error) FROM attention_error WHERE policy = '{policy}'"))
    };
    assert!(worst("full").abs() < 1e-6 && worst("minicache") > 0.05, "{} {}", worst("full"), worst("minicache"));
    let held = "SELECT count(*) FROM attention_error WHERE premise LIKE '%does not hold%' AND policy <> 'minicache'";
    assert!(number(store, held).abs() < 0.1);
}
