//! From a file of a profiler or an engine to what `kvtoll reconcile` says of it, by the binary alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use engine::cost::{Parallel, plan};
use engine::model::WeightDtype;
use engine::policy::{Stack, shape};
use engine::serving::{CapturedStep, captured};
use kvtoll::scenario::{load_machine, load_model};
use parquet::arrow::ArrowWriter;

use crate::support::{ask, kvtoll, number, root, stderr, succeed};

/// A store with this file.
fn ingested(path: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", path, "--into", &store]);
    (folder, store)
}

/// The rows of a part by the names of their columns.
fn rows(words: &[&str]) -> Vec<BTreeMap<String, String>> {
    let text = succeed(&[&["reconcile"], words, &["--format", "tsv"]].concat());
    let mut lines = text.lines().map(|line| line.split('\t'));
    let names: Vec<&str> = lines.next().unwrap().collect();
    lines.map(|cells| names.iter().map(|name| (*name).to_owned()).zip(cells.map(str::to_owned)).collect()).collect()
}

fn sum(rows: &[BTreeMap<String, String>], column: &str) -> i64 {
    rows.iter().map(|row| row[column].parse::<i64>().unwrap()).sum()
}

fn of_category(rows: &[BTreeMap<String, String>], category: &str) -> Vec<BTreeMap<String, String>> {
    rows.iter().filter(|row| row["category"] == category).cloned().collect()
}

/// FORMATS section 7, computed independently: 3,442 kernels of 44,829,522 ns, and copies by kind.
#[test]
fn the_booths_of_nsight_systems_add_up_to_its_kernel_time() {
    let (_folder, store) = ingested("traces/nsys_sqlite/h100_2gpu_1s.sqlite.zst");
    let booths = rows(&[&store, "booths"]);
    let kernels = of_category(&booths, "kernel");
    assert_eq!((sum(&kernels, "kernels"), sum(&kernels, "time_ns")), (3_442, 44_829_522));
    let copies = of_category(&booths, "copy");
    assert_eq!((sum(&copies, "kernels"), sum(&copies, "bytes")), (904, 59_368_472_576 + 50_950_507_584 + 18));
    let named = of_category(&rows(&[&store, "kernels"]), "kernel");
    assert_eq!(sum(&named, "time_ns"), 44_829_522);
    let asked = |sql: &str| number(Path::new(&store), sql) as i64;
    let by_kind = "SELECT sum(bytes) FROM kernels WHERE copy_kind =";
    assert_eq!(asked(&format!("{by_kind} 'device_to_device'")), 59_368_472_576);
    assert_eq!(asked(&format!("{by_kind} 'host_to_device'")), 50_950_507_584);
    assert_eq!(asked("SELECT count(*) FROM annotations WHERE category = 'nvtx'"), 16_782);
    // Every kind of range adds up to all work, those outside of any range included.
    let ranges = rows(&[&store, "ranges"]);
    for kind in ranges.iter().map(|row| row["kind"].clone()) {
        let of_kind: Vec<_> = ranges.iter().filter(|row| row["kind"] == kind).cloned().collect();
        assert_eq!(sum(&of_kind, "kernels"), sum(&booths, "kernels"), "{kind}");
    }
    // The report of a store with a run would show the same sums; the query feeds it.
    let feed = succeed(&["query", &store, "kernel-booths", "--format", "ndjson"]);
    assert_eq!(feed.lines().count(), booths.len());
}

/// Counted from the profile with Python's `json`: 79 kernels, 16 copies and 3 fills.
#[test]
fn the_booths_of_a_profile_of_pytorch_add_up() {
    let (_folder, store) = ingested("traces/kineto/alexnet_a100.json.gz");
    let booths = rows(&[&store, "booths"]);
    for (category, count, time, bytes) in
        [("kernel", 79, 10_728_000, 0), ("copy", 16, 39_080_000, 244_403_360), ("fill", 3, 8_000, 21_760)]
    {
        let found = of_category(&booths, category);
        let sums = (sum(&found, "kernels"), sum(&found, "time_ns"), sum(&found, "bytes"));
        assert_eq!(sums, (count, time, bytes), "{category}");
    }
    let told = stderr(&kvtoll(&["reconcile", &store, "booths"]));
    assert!(told.contains("79 kernels on 1 devices took 10728000 ns"), "{told}");
    let devices = ask(Path::new(&store), "SELECT message FROM import_log WHERE code = 'device_properties'");
    assert!(format!("{devices:?}").contains("NVIDIA A100-PG509-200"), "{devices:?}");
}

/// The two messages of the sample store one block, in both wire forms.
#[test]
fn events_of_sglang_become_residency() {
    let (_folder, store) = ingested("traces/kv_events/sglang_pr37271_both_forms.jsonl");
    let found = rows(&[&store, "residency", "--buckets", "1"]);
    assert_eq!(found.len(), 1);
    for (column, expected) in [
        ("medium", "GPU"),
        ("stored", "1"),
        ("stored_again", "1"),
        ("removed", "0"),
        ("resident", "1"),
        ("peak_resident", "1"),
    ] {
        assert_eq!(found[0][column], expected, "{column}");
    }
}

/// Events in the form of TensorRT-LLM's serializer: what happens is written beside each.
#[test]
fn events_of_tensorrt_llm_become_residency() {
    let stored = |id: u32, parent: &str, hashes: &[u64]| {
        let block = |hash: &u64| {
            format!(
                r#"{{"type": "stored_block", "block_hash": {hash}, "tokens": [{{"token_id": 1}}], "cache_level": 0}}"#
            )
        };
        let blocks: Vec<String> = hashes.iter().map(block).collect();
        format!(
            r#"{{"event_id": {id}, "data": {{"type": "stored", "parent_hash": {parent}, "blocks": [{}]}}, "window_size": 64}}"#,
            blocks.join(", ")
        )
    };
    let events = [
        r#"{"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [3, 0]}, "window_size": 64}"#
            .to_owned(),
        stored(1, "null", &[11, 12]),
        stored(2, "12", &[18_446_744_073_709_551_615]),
        // 3 and 4 never come; 5 takes out two, of which one was never seen.
        r#"{"event_id": 5, "data": {"type": "removed", "block_hashes": [12, 99]}, "window_size": 64}"#.to_owned(),
        stored(6, "11", &[13, 14]),
    ];
    let printed = format!("[\n  {}\n]\n", events.join(",\n  "));
    for text in [events.join("\n"), printed] {
        let folder = tempfile::tempdir().unwrap();
        let (path, store) = (folder.path().join("events.json"), folder.path().join("store"));
        std::fs::write(&path, text).unwrap();
        let store = store.to_string_lossy().into_owned();
        succeed(&["ingest", &path.to_string_lossy(), "--into", &store]);
        let found = rows(&[&store, "residency", "--buckets", "1"]);
        let gpu = found.iter().find(|row| row["medium"] == "GPU").unwrap();
        // A removal names no medium: it takes the block out of where it is.
        for (column, expected) in [
            ("group_index", "64"),
            ("stored", "5"),
            ("removed", "1"),
            ("resident", "4"),
            ("peak_resident", "4"),
            ("capacity_blocks", "4"),
            // 11, 12; then 11 and 12 above the next block; then 11 above the last two.
            ("replayed_references", "8"),
            ("replayed_hits", "3"),
            ("replayed_evictions", "1"),
        ] {
            assert_eq!(gpu[column], expected, "{column}: {found:?}");
        }
        let removed = found.iter().map(|row| row["removed_unknown"].parse::<u64>().unwrap()).sum::<u64>();
        assert_eq!((removed, sum(&found, "lost_messages")), (1, 2), "{found:?}");
        // As many as were reported when the file was read.
        let reported = "SELECT count FROM import_log WHERE code = 'lost_messages'";
        assert_eq!(number(Path::new(&store), reported) as i64, 2);
    }
}

/// FORMATS section 7: 1,440 memory instructions, of which 96 global.
#[test]
fn accesses_of_accel_sim_are_summed() {
    let (_folder, store) = ingested("traces/accelsim/matrixmul.traceg.xz");
    let found = rows(&[&store, "accesses"]);
    let all = found.iter().find(|row| row["kernel"] == "(all launches)").unwrap();
    let count = |column: &str| all[column].parse::<u64>().unwrap();
    assert_eq!((count("accesses"), count("accesses") + count("shared_accesses")), (96, 1_440));
    assert_eq!(count("sectors"), count("reuses") + count("footprint_bytes") / 32);
}

/// A table as `name.parquet`.
fn table(folder: &Path, name: &str, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = std::fs::File::create(folder.join(format!("{name}.parquet"))).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// A recording of decoding steps, each of which takes as long as on this machine.
fn recorded_on(machine: &str, folder: &Path) {
    let model = load_model("llama-3.1-8b").unwrap();
    let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
    let parallel = Parallel::tensor(1);
    let truth = plan(&model, &shape, &load_machine(machine).unwrap(), WeightDtype::Bf16, parallel).unwrap();
    let mut steps = Vec::new();
    for engine_step in 0..60_u32 {
        steps.extend((0..=(engine_step * 13) % 60).map(|request| CapturedStep {
            request,
            engine_step: Some(u64::from(engine_step)),
            is_prefill: false,
            prompt: 500,
            context: 501 + 60 * engine_step,
            new_tokens: 1,
        }));
    }
    let outcome = captured(&truth, &steps, 64).unwrap();
    let durations: Vec<i64> = outcome.stretches.iter().map(|stretch| stretch.total_ns).collect();
    let of = |column: fn(&CapturedStep) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(steps.iter().map(column)))
    };
    let engine_steps = || steps.iter().map(|step| step.engine_step.unwrap());
    table(
        folder,
        "steps",
        vec![
            ("request_id", Arc::new(UInt64Array::from_iter_values(steps.iter().map(|step| u64::from(step.request))))),
            ("step", of(|step| step.engine_step.unwrap() as u32 + 1)),
            ("engine_step", Arc::new(UInt64Array::from_iter_values(engine_steps()))),
            ("phase", Arc::new(StringArray::from_iter_values(steps.iter().map(|_| "decode")))),
            ("duration_ns", Arc::new(Int64Array::from_iter_values(engine_steps().map(|at| durations[at as usize])))),
            ("context_tokens", of(|step| step.context)),
            ("new_tokens", of(|step| step.new_tokens)),
            ("batch_requests", of(|step| 1 + (step.engine_step.unwrap() as u32 * 13) % 60)),
        ],
    );
    let each = |value: u32| -> ArrayRef { Arc::new(UInt32Array::from_value(value, 64)) };
    let requests: Vec<(&str, ArrayRef)> = vec![
        ("request_id", Arc::new(UInt64Array::from_iter_values(0..64))),
        ("prompt_tokens", each(500)),
        ("output_tokens", each(4_000)),
    ];
    table(folder, "requests", requests);
    let description = r#"{"schema": "kvtoll.recording.v1", "model": "m", "layers": 32, "query_heads": 32, "kv_heads": 8,
        "head_dim": 128, "block_tokens": 16, "grade": "blocks"}"#;
    std::fs::write(folder.join("recording.json"), description).unwrap();
}

/// Steps of a machine with half the bandwidth: seen from the whole one, KV reads take twice as long. Weights are read once
/// in each step, however large the batch: steps cannot tell them from the host, which takes up what they take longer.
#[test]
fn a_fit_finds_the_factors_of_the_machine_that_was_captured() {
    let folder = tempfile::tempdir().unwrap();
    recorded_on("h100*memory_bytes_per_s=0.5", folder.path());
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", &folder.path().to_string_lossy(), "--into", &store]);
    let terms = rows(&[&store, "fit", "--model", "llama-3.1-8b", "--machine", "h100"]);
    let term = |name: &str| terms.iter().find(|term| term["term"] == name).unwrap();
    let value = |name: &str, column: &str| term(name)[column].parse::<f64>().unwrap();
    let is_near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.01;
    assert!(is_near(value("kv_read", "factor"), 2.0), "{terms:?}");
    assert_eq!((term("kv_read")["is_fitted"].as_str(), term("weight_read")["is_fitted"].as_str()), ("true", "false"));
    let host = (value("host", "modelled_ns") + value("weight_read", "modelled_ns")) / 60.0;
    assert!(is_near(value("host", "fitted_ns_per_step"), host), "{terms:?}");
    assert_eq!(term("kv_read")["steps"], "60");
    assert!(value("host", "median_error_ratio") < 0.01, "{terms:?}");
    assert!(value("host", "unfitted_median_error_ratio") > 0.2, "{terms:?}");
}

#[test]
fn what_a_part_does_not_use_is_refused() {
    let refused = |words: &[&str], expected: &str| {
        let output = kvtoll(&[&["reconcile", "no-such-store"], words].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    };
    refused(&["booths", "--policy", "full"], "the part `booths` does not use `--policy`");
    refused(&["residency", "--weights", "fp8"], "used by `toll`, `fit`");
    refused(&["fit", "--rules", "x.toml"], "the part `fit` does not use `--rules`");
    refused(&["--batch", "3"], "expected `--model` and `--machine` with `--batch`");
    refused(&["booths", "--output", "x.txt"], "expected an output file that ends in `.table`, `.csv`, `.tsv`");
    refused(&["booths", "--output", "x.txt"], "found `.txt`");
    let told = succeed(&["explain", "replayed_evictions"]);
    assert!(told.contains("column replayed_evictions of `kvtoll reconcile STORE residency`"), "{told}");
    let told = succeed(&["explain", "time_ns"]);
    assert_eq!(told.matches("column time_ns (ns) of `kvtoll reconcile STORE").count(), 3, "{told}");
}

/// Damage at which the Parquet reader panics: one sentence is said, and nothing of the panic.
#[test]
fn a_damaged_table_says_one_sentence() {
    let whole = std::fs::read(root().join("traces/op_parquet/gemm_perf.parquet")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gemm_perf.parquet");
    for (at, value) in [(872, 0x63), (1631, 0x45), (1646, 0x4d), (2002, 0x44)] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        std::fs::write(&path, bytes).unwrap();
        let output = kvtoll(&["inspect", &path.to_string_lossy(), "--format", "op_parquet"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{at}: {said}");
        assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "{at}: {said}");
        // Where the schema is damaged, nothing says that it is a table of operations.
        let expected = if at == 872 { "gemm_perf.parquet`: its pages are damaged" } else { "gemm_perf.parquet`" };
        assert!(said.contains(expected), "{at}: {said}");
    }
}
