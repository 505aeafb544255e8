use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Float64Type, UInt32Type, UInt64Type};
use engine::schema::{canonical, captured};

use super::super::tests::{Bench, check_law, column, quarantine, read as stored, sample, text};
use super::super::{Options, Sniff, inspect};

fn names(batches: &[RecordBatch], name: &str) -> Vec<String> {
    text(batches, name).into_iter().map(Option::unwrap_or_default).collect()
}

fn small(batches: &[RecordBatch], name: &str) -> Vec<Option<u32>> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<UInt32Type>().clone());
    columns.flat_map(|column| column.iter().collect::<Vec<_>>()).collect()
}

fn whole(batches: &[RecordBatch], name: &str) -> Vec<Option<u64>> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<UInt64Type>().clone());
    columns.flat_map(|column| column.iter().collect::<Vec<_>>()).collect()
}

/// Ingests one shipped table, and gives its rows.
fn table(name: &str) -> Vec<RecordBatch> {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample(&format!("op_parquet/{name}_perf.parquet"))], &Options::standard()).unwrap();
    assert_eq!(summaries[0].format, "op_parquet");
    check_law(&bench);
    stored(&bench, &captured::OP_TIMINGS)
}

/// The expected values were read from the files with pyarrow.
#[test]
fn times_are_nanoseconds_whatever_the_table_counts() {
    for (name, rows, op, first_ns) in [
        ("gemm", 6, "gemm", 63_831_176.757_812_5),
        ("context_attention", 6, "attention_context", 31_601_961.771_647_137),
        ("generation_attention", 6, "attention_generation", 11_039.999_624_093_374),
        ("context_mla", 6, "mla_context", 16_730.666_160_583_496),
        ("generation_mla", 6, "mla_generation", 11_710.400_134_325_028),
        ("mla_context_module", 6, "mla_context_module", 232_700.0),
        ("mla_generation_module", 6, "mla_generation_module", 128_100.0),
        ("moe", 6, "moe", 1_398_958.740_234_375),
        ("nccl", 16, "all_gather", 5_360.0),
        ("custom_allreduce", 6, "all_reduce", 20_827.200_412_750_244),
        // Microseconds, though the column has the name of the others.
        ("moe_a2a", 8, "moe_combine", 96_534.398_943_185_8),
        ("wideep_deepep_ll", 12, "moe_dispatch", 8_830.0),
        ("wideep_deepep_normal", 12, "moe_dispatch", 27_350.204_103_455_26),
    ] {
        let found = table(name);
        let latency = column::<Float64Type>(&found, "latency_ns");
        assert_eq!((latency.len(), &*names(&found, "op")[0]), (rows, op), "{name}");
        assert!((latency[0] / first_ns - 1.0).abs() < 1e-12, "{name}: {} {first_ns}", latency[0]);
        assert_eq!(names(&found, "device")[0], "NVIDIA H200", "{name}");
    }
}

#[test]
fn shapes_and_sources_are_kept() {
    let found = table("gemm");
    assert_eq!(names(&found, "framework")[0], "vllm");
    assert_eq!(names(&found, "kernel_source")[5], "DeepGemmFp8BlockScaledMMKernel");
    assert_eq!(names(&found, "dtype")[5], "fp8_block");
    assert_eq!(["m", "n", "k"].map(|name| whole(&found, name)[5]), [Some(32_768), Some(65_536), Some(51_200)]);

    let found = table("generation_attention");
    assert_eq!(small(&found, "window_tokens"), [None; 6], "0 is full attention");
    assert_eq!((whole(&found, "new_tokens")[5], whole(&found, "past_tokens")[5]), (Some(1), Some(511)));
    let heads = ["batch", "query_heads", "kv_heads", "head_dim"].map(|name| small(&found, name)[5]);
    assert_eq!(heads, [Some(32), Some(64), Some(1), Some(64)]);
    assert_eq!(names(&found, "kv_dtype")[5], "fp8");

    let found = table("moe");
    assert_eq!(names(&found, "distribution")[0], "balanced");
    let sizes = ["hidden", "intermediate", "experts", "active_experts", "tensor_parallel", "expert_parallel"];
    assert_eq!(sizes.map(|name| small(&found, name)[0].unwrap()), [7168, 2048, 256, 8, 1, 1]);

    let found = table("mla_context_module");
    assert_eq!(names(&found, "model")[0], "deepseek-ai/DeepSeek-V3");
    assert_eq!(names(&found, "weight_dtype")[0], "bfloat16");
}

#[test]
fn messages_are_bytes_and_exchanges_are_two_operations() {
    let found = table("nccl");
    let bytes = whole(&found, "message_bytes");
    let formats = names(&found, "dtype");
    // 256 elements of two bytes; the last row has 2,048 of one.
    assert_eq!((bytes[0], &*formats[0]), (Some(512), "half"));
    assert_eq!((bytes[15], &*formats[15]), (Some(2048), "int8"));
    assert!(names(&found, "op").contains(&"all_to_all".to_owned()));

    let found = table("custom_allreduce");
    assert_eq!(names(&found, "backend")[0], "vllm_eager");
    assert_eq!((whole(&found, "message_bytes")[0], small(&found, "devices")[0]), (Some(256), Some(2)));

    let found = table("wideep_deepep_normal");
    assert_eq!(names(&found, "op")[..2], ["moe_dispatch", "moe_combine"]);
    assert_eq!(small(&found, "sms")[..2], [Some(4), Some(4)]);
    let latency = column::<Float64Type>(&found, "latency_ns");
    assert!((latency[1] - 29_624.163_268_172).abs() < 1e-6);

    let found = table("moe_a2a");
    assert_eq!(names(&found, "backend")[7], "deepep_ll");
    assert_eq!((small(&found, "sms")[0], small(&found, "sms")[7]), (Some(20), None));
    assert_eq!((small(&found, "devices")[0], small(&found, "expert_parallel")[0]), (Some(8), Some(8)));
}

/// A Parquet file of these columns.
fn parquet(columns: Vec<(&str, ArrayRef)>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)));
    let batch = batch.unwrap();
    let mut bytes = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn integers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn reals(values: &[Option<f64>]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn common(op: &[&str]) -> Vec<(&'static str, ArrayRef)> {
    let same = |text: &str| texts(&vec![text; op.len()]);
    vec![
        ("framework", same("TRTLLM")),
        ("version", same("1")),
        ("device", same("X")),
        ("op_name", texts(op)),
        ("kernel_source", same("k")),
    ]
}

#[test]
fn bad_rows_have_a_place_and_cost_no_other() {
    let bench = Bench::new();
    let mut columns = common(&["gemm", "gem", "gemm", "gemm", "gemm", "gemm"]);
    columns.push(("gemm_dtype", texts(&["fp8"; 6])));
    columns.push(("m", integers(&[Some(1), Some(1), Some(-1), None, Some(1), Some(1)])));
    // Whole numbers beside unknown ones come as floats.
    columns.push(("n", reals(&[Some(2.0), Some(2.0), Some(2.0), Some(2.0), Some(2.5), Some(2.0)])));
    columns.push(("k", integers(&[Some(3); 6])));
    columns.push(("latency", reals(&[Some(0.5), Some(0.5), Some(0.5), Some(0.5), Some(0.5), Some(0.0)])));
    columns.push(("mood", texts(&["good"; 6])));
    let path = bench.file("gemm.parquet", parquet(columns));
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string().replace(&path, "FILE");
    for expected in [
        "FILE: row 2, column `op_name`: expected one of gemm, context_attention,",
        "FILE: row 3, column `m`: expected a whole number of at least zero, found -1",
        "FILE: row 4, column `m`: expected a whole number of at least zero, found no value",
        "FILE: row 5, column `n`: expected a whole number of at least zero, found 2.5",
        "FILE: row 6, column `latency`: expected a time above zero, found 0",
    ] {
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (1, 5));
    check_law(&bench);
    let log: Vec<&str> = summaries[0].log.iter().map(|entry| entry.code).collect();
    assert_eq!(log, ["unknown_column"]);
    let rejects = stored(&bench, &canonical::REJECTS);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [2, 3, 4, 5, 6]);
    let found = stored(&bench, &captured::OP_TIMINGS);
    assert_eq!(column::<Float64Type>(&found, "latency_ns"), [500_000.0]);
    assert_eq!(whole(&found, "n"), [Some(2)]);
}

#[test]
fn units_that_contradict_each_other_are_refused() {
    let bench = Bench::new();
    let ones = || integers(&[Some(1); 2]);
    let mut columns = common(&["moe_a2a", "moe_a2a"]);
    columns.extend(["ep_size", "node_num", "hidden_size", "topk", "num_experts", "num_tokens"].map(|n| (n, ones())));
    columns.push(("phase", texts(&["dispatch", "combine"])));
    columns.push(("transmit_us", reals(&[Some(96.5), Some(96.5)])));
    columns.push(("notify_us", reals(&[Some(0.5), Some(0.5)])));
    // The second is in milliseconds.
    columns.push(("latency", reals(&[Some(97.0), Some(0.097)])));
    let path = bench.file("a2a.parquet", parquet(columns));
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (1, 1));
    let rejects = stored(&bench, &canonical::REJECTS);
    assert_eq!(text(&rejects, "code"), [Some("unit".to_owned())]);

    let mut columns = common(&["all_reduce", "all_reduce"]);
    columns.push(("nccl_dtype", texts(&["half", "nibble"])));
    columns.push(("num_gpus", ones()));
    columns.push(("message_size", ones()));
    columns.push(("latency", reals(&[Some(1.0); 2])));
    let path = bench.file("nccl.parquet", parquet(columns));
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("expected a number format of known width, found `nibble`"), "{error}");

    let mut columns = common(&["gemm"]);
    columns.push(("latency", reals(&[Some(1.0)])));
    let path = bench.file("short.parquet", parquet(columns));
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("column `gemm_dtype`: expected a column of this name, found none"), "{error}");
}

#[test]
fn other_parquet_files_are_told_apart() {
    let bench = Bench::new();
    let path = bench.file("other.parquet", parquet(vec![("a", integers(&[Some(1)]))]));
    let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
    assert!(error.contains("a Parquet file"), "{error}");
    let path = bench.file("near.parquet", parquet(common(&["gemm"])));
    let found = inspect(&path);
    // A binary file that no format takes is refused as a whole.
    assert!(found.is_err() || found.unwrap().verdicts.contains(&("op_parquet", Sniff::No)));
    // Compressed by the way, the table is read as well.
    let bytes = std::fs::read(sample("op_parquet/gemm_perf.parquet")).unwrap();
    let path = bench.file("gemm.parquet.zst", zstd::encode_all(&bytes[..], 3).unwrap());
    assert_eq!(bench.ingest(&[&path], &Options::standard()).unwrap()[0].rows_out, 6);
}
