//! What holds for every format on every sample: one format recognises it, no cut loses a complete row, no bytes panic.

use std::fs;

use engine::error::Kind;
use proptest::prelude::*;

use super::tests::{Bench, sample};
use super::{ALL, Options, Sniff, examine, inspect};

/// Every sample of `traces/`, and its format. Each adapter adds its own.
const SAMPLES: &[(&str, &str)] = &[
    ("mooncake/conversation_trace.jsonl.zst", "mooncake"),
    ("qwen/thinking_row0_as_quoted.jsonl", "qwen"),
    ("weka/v1_trace_0208.json", "weka"),
    ("weka/v1_trace_0629.json", "weka"),
    ("weka/v6_trace_0501.json", "weka"),
    ("weka/v8_trace_0242.json", "weka"),
    ("ragpulse/0_trace.jsonl.zst", "ragpulse"),
    ("tair/example_trace.jsonl", "tair"),
    ("dynamo/request_end.json", "dynamo"),
    ("dynamo/tool_end.json", "dynamo"),
    ("azure/code_head300.csv", "azure"),
    ("azure/code_2024_head5.csv", "azure"),
    ("azure/multimodal_2025_rows9.csv", "azure"),
    ("burstgpt/v1_rows3.csv", "burstgpt"),
    ("burstgpt/v3_rows4.csv", "burstgpt"),
    ("vidur/splitwise_code_head300.csv", "vidur"),
    ("vidur/arxiv_lengths_head300.csv", "vidur"),
    ("splitwise/test_trace.csv", "splitwise"),
    ("llmservingsim/example_trace.jsonl", "llmservingsim"),
    ("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl.zst", "llmservingsim"),
    ("llmservingsim_result/requests.jsonl", "llmservingsim_result"),
    ("llmservingsim_result/timeseries.csv", "llmservingsim_result"),
    ("llmservingsim_result/meta.json", "llmservingsim_result"),
    ("aiperf/profile_export_record_1.json", "aiperf"),
    ("aiperf/profile_export_record_2.json", "aiperf"),
    ("vllm_bench/minimax_m25_tep8_conc32.json", "vllm_bench"),
    ("kv_events/sglang_pr37271_both_forms.jsonl", "kv_events"),
    ("accelsim/matrixmul.traceg.xz", "accelsim"),
    ("accelsim/matrixmul_warp0.traceg", "accelsim"),
    ("accelsim/matrixmul.kernelslist.g", "accelsim"),
    ("kineto/alexnet_a100.json.gz", "kineto"),
    ("kineto/resnet_v100_cut.json", "kineto"),
    ("kineto/triton_a100_cut.json", "kineto"),
    ("pytorch_et/simple_add.json.gz", "pytorch_et"),
    ("recording-token", "recording"),
    ("recording-block/recording.json", "recording"),
    ("nsys_sqlite/h100_2gpu_1s.sqlite.zst", "nsys_sqlite"),
    ("nsys_sqlite/rtx3080_sum.sqlite", "nsys_sqlite"),
    ("ncu/vectoradd_gtx1080_raw.csv", "ncu"),
    ("rocprofv3/counter_collection.csv", "rocprofv3"),
    ("rocprofv3/kernel_trace.csv", "rocprofv3"),
    ("op_parquet/gemm_perf.parquet", "op_parquet"),
    ("op_parquet/context_attention_perf.parquet", "op_parquet"),
    ("op_parquet/generation_attention_perf.parquet", "op_parquet"),
    ("op_parquet/context_mla_perf.parquet", "op_parquet"),
    ("op_parquet/generation_mla_perf.parquet", "op_parquet"),
    ("op_parquet/mla_context_module_perf.parquet", "op_parquet"),
    ("op_parquet/mla_generation_module_perf.parquet", "op_parquet"),
    ("op_parquet/moe_perf.parquet", "op_parquet"),
    ("op_parquet/nccl_perf.parquet", "op_parquet"),
    ("op_parquet/custom_allreduce_perf.parquet", "op_parquet"),
    ("op_parquet/moe_a2a_perf.parquet", "op_parquet"),
    ("op_parquet/wideep_deepep_ll_perf.parquet", "op_parquet"),
    ("op_parquet/wideep_deepep_normal_perf.parquet", "op_parquet"),
    ("llmservingsim_profile/attention.csv", "llmservingsim_profile"),
    ("llmservingsim_profile/dense.csv", "llmservingsim_profile"),
    ("llmservingsim_profile/per_sequence.csv", "llmservingsim_profile"),
    ("llmservingsim_profile/skew.csv", "llmservingsim_profile"),
    ("arrays/kv_vectors.toml", "arrays"),
];

/// Samples that others are read with.
/// Names of kernels out of a capture, against which the rules for booths are tested, are no trace.
const BESIDE: [&str; 3] = ["llmservingsim_profile/meta.yaml", "arrays/kv_vectors.npz", "nsys/kernel_names.tsv"];

#[test]
fn each_sample_is_recognised_by_its_format_alone() {
    for (path, expected) in SAMPLES {
        let found = inspect(&sample(path)).unwrap();
        for (name, sniff) in &found.verdicts {
            assert_eq!(*sniff == Sniff::Yes, name == expected, "{path} {name}: {sniff:?}");
        }
        assert_eq!(found.format, Some(*expected), "{path}");
    }
}

#[test]
fn every_sample_is_in_the_matrix() {
    let mut folders = vec![std::path::PathBuf::from(sample(""))];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(sample("")).unwrap().to_str().unwrap().to_owned();
            // The side files of RAGPulse are read with their trace.
            let beside = name.starts_with("ragpulse/") && !name.starts_with("ragpulse/0_") || BESIDE.contains(&&*name);
            let told = beside || ["README.md", "SOURCES.tsv", "quickstart.toml"].contains(&name.as_str());
            if path.is_dir() && !name.starts_with("recording-") {
                folders.push(path);
            } else if !path.is_dir() && !told {
                assert!(SAMPLES.iter().any(|(sample, _)| *sample == name), "`{name}` is not in the matrix");
            }
        }
    }
}

/// Rows kept and set aside of a file with these bytes; none where the file is refused.
fn rows(format: &str, bytes: &[u8]) -> Option<(u64, u64)> {
    let bench = Bench::new();
    let options = Options { format: Some(format.to_owned()), ..Options::standard() };
    for name in BESIDE.iter().filter(|name| name.starts_with(format)) {
        bench.file(name.rsplit('/').next().unwrap(), fs::read(sample(name)).unwrap());
    }
    match examine(&bench.file("cut", bytes), &options) {
        Ok(found) => {
            assert_eq!(found.rows_in, found.rows_out + found.rows_rejected);
            Some((found.rows_out, found.rows_rejected))
        }
        Err(error) => {
            assert_eq!(error.kind(), Kind::Data, "{error}");
            assert!(!error.to_string().contains("its adapter failed"), "{error}");
            None
        }
    }
}

/// Cuts within a row cost that row alone: small samples are cut at every byte, large ones at 60 places spread over them.
#[test]
fn a_cut_never_loses_a_complete_row() {
    // A map of arrays has no rows of its own.
    let of_rows = |path: &str| !path.starts_with("recording-") && !path.starts_with("arrays/");
    for (path, format) in SAMPLES.iter().filter(|(path, _)| of_rows(path)) {
        let bytes = fs::read(sample(path)).unwrap();
        if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
            || bytes.starts_with(&[0x1f, 0x8b])
            || bytes.starts_with(b"\xfd7zXZ")
        {
            // Compressed files fail when they are cut; that is tested elsewhere.
            continue;
        }
        let step = if bytes.len() <= 1500 { 1 } else { bytes.len() / 60 };
        let mut known = (0, 0);
        for cut in (1..=bytes.len()).step_by(step) {
            let end = bytes[..cut].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            if end > known.0 {
                known = (end, rows(format, &bytes[..end]).map_or(0, |(kept, _)| kept));
            }
            let (kept, rejected) = rows(format, &bytes[..cut]).unwrap_or((0, 0));
            assert!(kept >= known.1, "{path} cut at {cut}: {kept} rows of {}", known.1);
            // A line of samples is several rows.
            assert!(rejected <= 1, "{path} cut at {cut}: {rejected} set aside");
        }
    }
}

/// Pieces that formats are made of, so that arbitrary text reaches beyond the first byte.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\n",
    "\r\n",
    "\"",
    "\\",
    " ",
    "null",
    "true",
    "-1",
    "0",
    "1.5e3",
    "1e999",
    "\u{feff}",
    "18446744073709551616",
    "\"timestamp\":",
    "\"input_toks\":",
    "\"output_toks\":",
    "\"arrival_time_ns\":",
    "\"sub_requests\":",
    "\"metadata\":",
    "\"metrics\":",
    "\"resourceSpans\":",
    "\"spans\":",
    "\"attributes\":",
    "\"requestId\":",
    "\"usage\":",
    "\"message\":",
    "\"model_id\":",
    "\"ttfts\":",
    "\"itls\":",
    "\"requests\":",
    "\"hash_ids\":",
    "t,running,kv_cache_pct",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "2024-05-10 00:00:00.009930+00:00,",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n",
    "5,",
    "SQLite format 3\0",
    "PAR1",
    "\"ID\",\"Process ID\",\"Kernel Name\",\"dram__bytes_read.sum\"\n",
    "\"\",\"\",\"\",\"Kbyte\"\n",
    "\"ID\",\"Process ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"\n",
    "\"0\",\"1\",\"k\",\"1,234.5\"\n",
    "Kernel_Name,Agent_Id,Dispatch_Id,Counter_Name,Counter_Value\n",
    "k,Agent 1,1,A,5\n",
    "Start (ns),Duration (ns),CorrId,Strm,Name\n",
    "1,2,3,4,[CUDA memcpy Host-to-Device]\n",
    "\"selected_token_pos\":",
    "\"kv_fetch\":",
    "layer,tokens,time_us\n",
    "schema = \"kvtoll.arrays.v1\"\n",
    "[[arrays]]\n",
    "\"seq\":",
    "\"payload\":",
    "\"events\":",
    "[1.0,[[\"BlockStored\",[1],null,[1],1",
    "{\"type\":\"BlockRemoved\",\"block_hashes\":",
    "\"event_id\":",
    "\"data\":{\"type\":\"stored\",\"blocks\":",
    "KVEVENT1",
    "MEMTRACE: CTX 0x1 - ",
    "grid_launch_id 0 - CTA 0,0,0 - warp 0 - LDG.E - ",
    "LAUNCH - Kernel pc 0x1 - Kernel name a - grid launch id 0",
    "-kernel name = a\n",
    "#BEGIN_TB\nthread block = 0,0,0\nwarp = 0\ninsts = 1\n",
    "0208 ffffffff 1 R25 LDG.E 1 R8 4 1 0x0 4",
    "MemcpyHtoD,0x1,4\n",
    "\"traceEvents\":",
    "\"nodes\":",
    "{\"ph\":\"X\",\"name\":\"a\",\"ts\":",
    "\"args\":",
    "\"baseTimeNanoseconds\":",
    "\u{7}\n\u{5}0.0.4",
];

/// Texts of such pieces and of any bytes.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let words = proptest::sample::select(WORDS);
    let word = prop_oneof![
        8 => words.prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..8),
    ];
    proptest::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any bytes, under any format: rows or an error, never a panic.
    #[test]
    fn no_bytes_panic(bytes in prop_oneof![fragments(), proptest::collection::vec(any::<u8>(), 0..300)]) {
        for format in ALL {
            rows(format.name, &bytes);
        }
    }
}
