use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, Float64Type, UInt32Type, UInt64Type};
use engine::schema::{canonical, captured};

use super::super::Options;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, sample, text};

fn cells<T: ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<Option<T::Native>> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().clone());
    columns.flat_map(|column| column.iter().collect::<Vec<_>>()).collect()
}

fn profile(name: &str, rows: u64) -> Vec<RecordBatch> {
    let bench = Bench::new();
    let path = sample(&format!("llmservingsim_profile/{name}.csv"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].format, summaries[0].rows_out), ("llmservingsim_profile", rows));
    check_law(&bench);
    let found = stored(&bench, &captured::OP_TIMINGS);
    for (column, expected) in [
        ("device", "NVIDIA GeForce RTX 4090"),
        ("framework", "vllm"),
        ("version", "0.19.0"),
        ("model", "meta-llama/Llama-3.1-8B"),
        ("dtype", "bf16"),
    ] {
        assert_eq!(text(&found, column)[0].as_deref(), Some(expected));
    }
    assert_eq!(cells::<UInt32Type>(&found, "tensor_parallel")[0], Some(1));
    found
}

fn ops(found: &[RecordBatch]) -> Vec<String> {
    text(found, "op").into_iter().map(Option::unwrap_or_default).collect()
}

#[test]
fn attention_is_of_prompts_of_decoding_or_of_both() {
    let found = profile("attention", 9);
    let kinds = ["attention_generation", "attention_context", "attention_mixed"];
    assert_eq!(ops(&found), kinds.iter().flat_map(|kind| [*kind; 3]).collect::<Vec<_>>());
    assert_eq!(cells::<UInt32Type>(&found, "query_heads"), [Some(32); 9]);
    assert_eq!(cells::<UInt32Type>(&found, "kv_heads"), [Some(8); 9]);
    // Rows 0,0,1,32 and 16,32,0,0 and 16,0,1,64 of the file.
    let of = |name: &str, row: usize| cells::<UInt64Type>(&found, name)[row];
    assert_eq!((of("new_tokens", 1), of("past_tokens", 1), of("prefill_tokens", 1)), (Some(1), Some(32), None));
    assert_eq!((of("new_tokens", 5), of("past_tokens", 5), of("prefill_tokens", 5)), (Some(16), Some(32), None));
    let mixed = ["new_tokens", "past_tokens", "prefill_tokens", "prefill_past_tokens"].map(|name| of(name, 8));
    assert_eq!(mixed, [Some(1), Some(64), Some(16), Some(0)]);
    let latency = column::<Float64Type>(&found, "latency_ns");
    // Exactly the decimal of the file, three places on.
    assert_eq!((latency[0], latency[3], latency[8]), (9310.67, 9546.0, 9663.33));
}

#[test]
fn layers_have_their_names() {
    let found = profile("dense", 8);
    assert_eq!(ops(&found), ["act_fn"; 8]);
    assert_eq!(cells::<UInt64Type>(&found, "new_tokens")[7], Some(8));
    let found = profile("per_sequence", 8);
    assert_eq!(ops(&found), ["lm_head"; 8]);
    assert_eq!(cells::<UInt32Type>(&found, "batch")[7], Some(8));
    assert_eq!(column::<Float64Type>(&found, "latency_ns")[..1], [1_096_930.0]);
}

#[test]
fn a_skewed_row_is_three_measurements() {
    let found = profile("skew", 8);
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 24, "three times were measured of each row");
    assert_eq!(ops(&found)[..4], ["attention_generation"; 4]);
    assert_eq!(ops(&found)[18..], ["attention_mixed"; 6]);
    // n 2, one of 512 and one of 128 tokens.
    assert_eq!(cells::<UInt64Type>(&found, "past_tokens")[..3], [Some(320), Some(512), Some(320)]);
    assert_eq!(cells::<Float64Type>(&found, "skew")[..3], [None, None, Some(1.6)]);
    assert_eq!(cells::<UInt32Type>(&found, "long_requests")[..3], [None, None, Some(1)]);
    assert_eq!(column::<Float64Type>(&found, "latency_ns")[..3], [52_128.0, 56_254.0, 53_343.0]);
    // The sample's profile says that it does without this table; one that says nothing has it.
    assert!(text(&found, "distribution").iter().all(|name| name.as_deref() == Some("skew_table_off")));
    let bench = Bench::new();
    let skew = "n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n2,1,0,0,128,512,320,52.1,56.2,53.3\n";
    let path = folders(&bench, META, "skew.csv", skew);
    bench.ingest(&[&path], &Options::standard()).unwrap();
    let found = stored(&bench, &captured::OP_TIMINGS);
    assert!(text(&found, "distribution").iter().all(|name| name.as_deref() == Some("skew_table")));
}

const META: &str = "gpu: NVIDIA X\nmodel: m\nvllm_version: 0.19.0\nvariant: bf16\ntp_degrees: [1, 2]\n\
                    engine_effective:\n  hf_overrides:\n    num_attention_heads: 16\n    num_key_value_heads: 4\n";

/// A profile in its folders.
fn folders(bench: &Bench, meta: &str, name: &str, lines: &str) -> String {
    let marker = std::path::PathBuf::from(bench.file("marker", ""));
    let folder = marker.with_file_name("profile");
    std::fs::create_dir_all(folder.join("tp1")).unwrap();
    std::fs::write(folder.join("meta.yaml"), meta).unwrap();
    let path = folder.join("tp1").join(name);
    std::fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn heads_are_those_of_one_device_at_its_degree() {
    let bench = Bench::new();
    let attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,8.35233\n";
    let path = folders(&bench, META, "attention.csv", attention);
    bench.ingest(&[&path], &Options::standard()).unwrap();
    let found = stored(&bench, &captured::OP_TIMINGS);
    // Cut down to two devices last: one device has twice as many.
    assert_eq!(cells::<UInt32Type>(&found, "query_heads"), [Some(32)]);
    assert_eq!(cells::<UInt32Type>(&found, "kv_heads"), [Some(8)]);

    let bench = Bench::new();
    let moe = "tokens,activated_experts,time_us\n2,16,134.976\n";
    let path = folders(&bench, META, "moe.csv", moe);
    bench.ingest(&[&path], &Options::standard()).unwrap();
    let found = stored(&bench, &captured::OP_TIMINGS);
    assert_eq!((ops(&found)[0].as_str(), cells::<UInt32Type>(&found, "active_experts")[0]), ("moe", Some(16)));
    assert_eq!(text(&found, "distribution")[0].as_deref(), Some("experts_hit"));
}

#[test]
fn a_profile_without_its_device_is_refused() {
    let bench = Bench::new();
    let path = bench.file("dense.csv", "layer,tokens,time_us\nact_fn,1,2.592\n");
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.starts_with("expected `meta.yaml` beside"), "{error}");
    bench.file("meta.yaml", "model: m\n");
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("does not describe a profile") && error.contains("gpu"), "{error}");
}

/// Rows depend on the device that `meta.yaml` names, so that it is part of the source.
#[test]
fn the_description_is_part_of_the_source() {
    let bench = Bench::new();
    let path = folders(&bench, META, "dense.csv", "layer,tokens,time_us\nact_fn,1,2.592\n");
    bench.ingest(&[&path], &Options::standard()).unwrap();
    let sources = stored(&bench, &canonical::SOURCES);
    let listed = text(&sources, "companions")[0].clone().unwrap();
    let (hash, name) = listed.split_once(' ').unwrap();
    assert_eq!((hash.len(), name.ends_with("meta.yaml")), (64, true), "{listed}");
    let entry = bench.store().manifest().sources[0].clone();
    assert_eq!(entry.companions[0].sha256, hash);
    assert_ne!(entry.own_sha256.unwrap(), entry.sha256);
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("with the contents of source 0"), "{error}");
    assert!(crate::ingest::known_source(&bench.store(), &path).is_some());
    // Another device is another source.
    let path =
        folders(&bench, &META.replace("gpu:", "gpu: other #"), "dense.csv", "layer,tokens,time_us\nact_fn,1,2.592\n");
    assert!(crate::ingest::known_source(&bench.store(), &path).is_none());
    bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(bench.store().manifest().sources.len(), 2);
}

#[test]
fn bad_lines_are_set_aside() {
    let bench = Bench::new();
    let lines =
        "layer,tokens,time_us,mood\nact_fn,1,2.592,x\n,1,2,x\nact_fn,-1,2,x\nact_fn,1,0,x\nact_fn,1,2\n\nq,3,1e1,x\n";
    let path = folders(&bench, META, "dense.csv", lines);
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (2, 4));
    check_law(&bench);
    let codes: Vec<&str> = summaries[0].log.iter().map(|entry| entry.code).collect();
    assert_eq!(codes, ["unknown_column", "empty_line"]);
    assert_eq!(column::<Float64Type>(&stored(&bench, &captured::OP_TIMINGS), "latency_ns"), [2592.0, 10_000.0]);

    let bench = Bench::new();
    let skew = "n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n2,1,0,0,128,512,320,1,2,3\n\
                2,1,0,0,128,512,999,1,2,3\n2,3,0,0,128,512,320,1,2,3\n0,0,0,0,0,0,0,1,2,3\n";
    let path = folders(&bench, META, "skew.csv", skew);
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (4, 1, 3));
    assert_eq!(summaries[0].tables, [("op_timings", 3)]);

    let bench = Bench::new();
    let attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,0,16,8.3\n0,0,1,16,8.3\n";
    let path = folders(&bench, META, "attention.csv", attention);
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (1, 1));
}
