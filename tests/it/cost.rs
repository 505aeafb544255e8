//! `kvtoll cost` as it is typed.

use crate::support::{kvtoll, stderr, succeed};

/// The cells of a CSV table without quotes.
fn cells(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn a_table_needs_no_trace() {
    let wanted = [
        "cost",
        "--model",
        "llama-3.1-8b",
        "--machine",
        "h100",
        "--machine",
        "b200",
        "--batch",
        "1..16",
        "--context",
        "1k..8k",
        "--format",
        "csv",
    ];
    let table = cells(&succeed(&wanted));
    assert_eq!(table.len(), 1 + 2 * 5 * 4);
    let column = |name: &str| table[0].iter().position(|found| found == name).unwrap();
    let (machine, batch, context) = (column("machine"), column("batch"), column("context_tokens"));
    assert_eq!([&table[2][machine], &table[2][batch], &table[2][context]], ["h100", "1", "2000"]);
    let (step, sum) = (column("step_ns"), column("kv_read_ns")..=column("overhead_ns"));
    for row in &table[1..] {
        let total: i64 = row[sum.clone()].iter().map(|cell| cell.parse::<i64>().unwrap()).sum();
        assert!((total - row[step].parse::<i64>().unwrap()).abs() <= 4, "{row:?}");
        assert_eq!(row.last().unwrap(), "assumed");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cost.csv").to_string_lossy().into_owned();
    let mut into_file = wanted[..wanted.len() - 2].to_vec();
    into_file.extend(["--output", &path]);
    assert_eq!(succeed(&into_file), "");
    assert_eq!(cells(&std::fs::read_to_string(&path).unwrap()), table);
}

#[test]
fn a_specification_is_told_from_what_it_delivers() {
    let table = succeed(&[
        "cost",
        "--model",
        "llama-3.1-8b",
        "--machine",
        "h200",
        "--batch",
        "64",
        "--context",
        "32k",
        "--spec",
        "--format",
        "csv",
    ]);
    let table = cells(&table);
    assert_eq!(table.len(), 1 + 4 * 5);
    let column = |name: &str| table[0].iter().position(|found| found == name).unwrap();
    let bandwidth = table.iter().find(|row| row[column("factor")] == "2.75").unwrap();
    let delivered: f64 = bandwidth[column("delivered")].parse().unwrap();
    assert!(delivered > 1.5 && delivered < 2.75, "{delivered}");
    assert_eq!(bandwidth[column("resource")], "memory_bandwidth");
}

#[test]
fn a_configuration_and_a_machine_of_ones_own_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let config = r#"{ "model_type": "qwen3", "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "tie_word_embeddings": false,
        "vocab_size": 151936 }"#;
    let config = at("mine.json", config);
    let preset = std::fs::read_to_string(crate::support::root().join("presets/machine/h200.toml")).unwrap();
    let machine = at("mine.toml", &preset);
    let table = |model: &str, machine: &str| {
        let wanted =
            ["cost", "--model", model, "--machine", machine, "--batch", "8", "--context", "4k", "--format", "csv"];
        // A file of one's own has no measured operations.
        let wanted = [&wanted[..], &["--closed-form"]].concat();
        cells(&succeed(&wanted))[1][5..].to_vec()
    };
    assert_eq!(table(&config, &machine), table("qwen3-8b", "h200"));
    let refused = |model: &str, machine: &str, expected: &[&str]| {
        let output = kvtoll(&["cost", "--model", model, "--machine", machine]);
        let text = stderr(&output);
        assert!(!output.status.success() && expected.iter().all(|part| text.contains(part)), "{text}");
    };
    let broken = at("broken.toml", &preset.replace("step_overhead_ns", "step_overhead"));
    refused("qwen3-8b", &broken, &["broken.toml:", "unknown field `step_overhead`, expected one of `kv_read_16bit`"]);
    refused(&at("other.json", "{\"model_type\": \"t5\"}"), "h200", &["other.json: unknown model type `t5`"]);
    refused("qwen3-8b", "mi455x", &["`bf16_flops`", "mi455x*bf16_flops=1PFLOPS"]);
    refused("llama-3.1-405b", "rtx4090", &["the weights take"]);
}

/// A machine that cannot take the model does not hide the others, and the exit code says so.
#[test]
fn one_failure_never_hides_the_rest() {
    let output = kvtoll(&[
        "cost",
        "--model",
        "llama-3.1-405b",
        "--machine",
        "rtx4090",
        "--machine",
        "gb300",
        "--batch",
        "1",
        "--context",
        "1k",
        "--format",
        "csv",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("llama-3.1-405b under full on rtx4090: the weights take"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("gb300"));
}
