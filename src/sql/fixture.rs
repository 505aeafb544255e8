//! A small synthetic run for tests: five scenarios, one without a price and one that failed, written as Parquet.
//!
//! The numbers follow simple formulas, so that tests can say what a query must return.

mod balance;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float32Array, Int64Array, ListArray, RecordBatch, StringArray, UInt16Array, UInt32Array,
    UInt64Array, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, FieldRef};
use engine::schema::{self, Cell, batch_of_rows};
use parquet::arrow::ArrowWriter;

use super::{Session, open};

/// Name, policy, machine, time of a step in ms, bytes of KV per token, price of an accelerator, status.
type Scenario<'a> = (&'a str, &'a str, &'a str, f64, u64, Option<f64>, &'a str);

/// The scenarios of the run; `name` is what the second one is called.
fn scenarios(name: &str) -> [Scenario<'_>; 5] {
    [
        ("bf16 on 8 x H200", "full+bf16", "h200", 24.0, 327_680, Some(2.5), "ok"),
        (name, "full+fp8", "h200", 19.0, 163_840, Some(2.5), "ok"),
        ("half the cache, kept by snapkv", "snapkv(budget=50%)+fp8", "h200", 16.5, 81_920, Some(2.5), "ok"),
        ("twice the bandwidth", "full+bf16", "h200*hbm_bw=2", 15.0, 327_680, None, "ok"),
        ("one accelerator", "full+bf16", "h100*accelerators=1", 0.0, 327_680, Some(1.69), "failed"),
    ]
}

/// A run in `folder`, with `name` as the name of its second scenario.
pub(crate) fn session(folder: &Path, name: &str) -> Session {
    write_all(folder, name);
    let folder = folder.to_owned();
    // The run is compared with itself.
    open(Some("0123456789abcdef".to_owned()), None, |_, table| {
        let path = folder.join(format!("{}.parquet", table.name));
        if path.exists() { vec![path] } else { Vec::new() }
    })
    .unwrap()
}

/// A session on a store that holds nothing.
pub(crate) fn empty() -> Session {
    super::empty().unwrap()
}

fn write_all(folder: &Path, name: &str) {
    fs::create_dir_all(folder).unwrap();
    let scenarios = scenarios(name);
    write(folder, "scenarios", &scenario_rows(&scenarios));
    write(folder, "metrics", &metric_rows(&scenarios));
    write(folder, "metric_defs", &definition_rows());
    write(folder, "step_costs", &step_rows(&scenarios));
    write(folder, "request_costs", &request_rows(&scenarios));
    write(folder, "quantiles", &quantile_rows(&scenarios));
    write(folder, "jitter", &jitter_rows(&scenarios));
    write(folder, "tier_usage", &tier_rows(&scenarios));
    write(folder, "link_usage", &link_rows(&scenarios));
    write(folder, "demand", &demand_rows(&scenarios));
    write(folder, "attention_error", &error_rows());
    write(folder, "kept_pages", &page_rows());
    write(folder, "kept_overlap", &overlap_rows());
    write_batch(folder, "requests", &requests());
    write_sessions(folder, &scenarios);
    write(folder, "kernels", &kernel_rows());
    write_batch(folder, "accesses", &accesses());
    write_batch(folder, "block_events", &block_events());
    write_provenance(folder, &scenarios);
    balance::write_balance(folder, &scenarios);
}

fn write(folder: &Path, table: &str, rows: &[Vec<Cell>]) {
    write_batch(folder, table, &batch_of_rows(schema::table(table).unwrap(), rows).unwrap());
}

fn write_batch(folder: &Path, table: &str, batch: &RecordBatch) {
    let path = folder.join(format!("{table}.parquet"));
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$(Cell::from($cell)),*] };
}

mod hierarchy;

/// Three requests of the store, of which the first and the last have the same content.
fn requests() -> RecordBatch {
    let schema = schema::table("requests").unwrap().arrow();
    let column = |field: &FieldRef| -> ArrayRef {
        match field.name().as_str() {
            "request_id" => Arc::new(UInt64Array::from(vec![0, 1, 2])),
            "source_id" => Arc::new(UInt32Array::from(vec![0; 3])),
            "arrival_ns" => Arc::new(Int64Array::from(vec![1000; 3])),
            "prompt_tokens" => Arc::new(UInt32Array::from(vec![900; 3])),
            "output_tokens" => Arc::new(UInt32Array::from(vec![50; 3])),
            "status" => Arc::new(StringArray::from(vec!["ok"; 3])),
            "session_id" => Arc::new(StringArray::from(vec!["x", "y", "x"])),
            "tenant" => Arc::new(StringArray::from(vec!["acme", "acme", "bolt"])),
            "measured_ttft_ns" => Arc::new(Int64Array::from(vec![200_000_000; 3])),
            "block_tokens" => Arc::new(UInt32Array::from(vec![512; 3])),
            "block_hashes" => {
                let DataType::List(element) = field.data_type() else { panic!("block hashes are a list") };
                let (ends, ids) = (OffsetBuffer::from_lengths([2; 3]), UInt64Array::from(vec![1, 2, 1, 3, 1, 2]));
                Arc::new(ListArray::new(Arc::clone(element), ends, Arc::new(ids), None))
            }
            _ => new_null_array(field.data_type(), 3),
        }
    };
    let columns = schema.fields().iter().map(column).collect();
    RecordBatch::try_new(schema, columns).unwrap()
}

/// Four kernels, a copy and a fill of one capture.
fn kernel_rows() -> Vec<Vec<Cell>> {
    let columns = schema::table("kernels").unwrap().columns;
    let row = |(id, category, name, time, launch, bytes): (u64, &str, &str, i64, Option<i64>, Option<u64>)| {
        let cell = |column: &schema::Column| match column.name {
            "source_id" => 0_u32.into(),
            "kernel_id" => id.into(),
            "category" => category.into(),
            "name" => name.into(),
            "start_ns" => (1000 * id as i64).into(),
            "duration_ns" => time.into(),
            "launch_ns" => launch.into(),
            "bytes" => bytes.into(),
            "copy_kind" => (category == "copy").then_some("host_to_device").into(),
            "grid_x" | "grid_y" | "grid_z" | "block_x" | "block_y" | "block_z" => 2_u32.into(),
            "dram_read_bytes" | "dram_write_bytes" => (id == 0).then_some(4096_u64).into(),
            _ => Cell::Null,
        };
        columns.iter().map(cell).collect()
    };
    [
        (0, "kernel", "flash_fwd_kernel", 400, Some(-30), None),
        (1, "kernel", "flash_fwd_kernel", 500, Some(950), None),
        (2, "kernel", "nvjet_hsh_128x256", 300, None, None),
        (3, "kernel", "mystery", 100, None, None),
        (4, "copy", "[CUDA memcpy HtoD]", 64, None, Some(6400)),
        (5, "fill", "[CUDA memset]", 8, None, Some(80)),
    ]
    .into_iter()
    .map(row)
    .collect()
}

/// Two blocks of an engine: one is stored, removed after 2 s and stored again, the other stays.
fn block_events() -> RecordBatch {
    let table = schema::table("block_events").unwrap();
    let column = |field: &FieldRef| -> ArrayRef {
        match field.name().as_str() {
            "seq" => Arc::new(UInt64Array::from(vec![0, 1, 2, 3])),
            "time_ns" => Arc::new(Int64Array::from(vec![1_000_000_000, 1_000_000_000, 3_000_000_000, 4_000_000_000])),
            "event" => Arc::new(StringArray::from(vec!["stored", "stored", "removed", "stored"])),
            "block_hash" => Arc::new(UInt64Array::from(vec![7, 8, 7, 7])),
            _ if field.is_nullable() => new_null_array(field.data_type(), 4),
            _ => Arc::new(UInt32Array::from(vec![0; 4])),
        }
    };
    let columns = table.arrow().fields().iter().map(column).collect();
    RecordBatch::try_new(table.arrow(), columns).unwrap()
}

/// One row of each table about sessions for each finished scenario, and one step of attention over two blocks, of which
/// the second is half a tool result's.
fn write_sessions(folder: &Path, scenarios: &[Scenario<'_>]) {
    for name in ["turns", "costs", "span", "memory", "keeping"].map(|name| format!("session_{name}")) {
        write_filled(folder, &name, scenarios);
    }
    write_filled(folder, "context_edits", scenarios);
    let segment =
        |position: u32, kind: &str, tokens: u32| row![0_u64, position, None::<&str>, kind, tokens, Some(0_u32)];
    write(folder, "context_segments", &[segment(0, "user", 24), segment(1, "tool_result", 8)]);
    let table = schema::table("attention").unwrap();
    let column = |field: &FieldRef| -> ArrayRef {
        match field.name().as_str() {
            "request_id" => Arc::new(UInt64Array::from(vec![0])),
            "step" => Arc::new(UInt32Array::from(vec![1])),
            "context_tokens" => Arc::new(UInt32Array::from(vec![32])),
            "block_tokens" => Arc::new(UInt16Array::from(vec![16])),
            "mass" => {
                let DataType::List(element) = field.data_type() else { panic!("masses are a list") };
                let masses = Float32Array::from(vec![0.25, 0.75]);
                Arc::new(ListArray::new(Arc::clone(element), OffsetBuffer::from_lengths([2]), Arc::new(masses), None))
            }
            _ if field.is_nullable() => new_null_array(field.data_type(), 1),
            _ => Arc::new(UInt16Array::from(vec![0])),
        }
    };
    let columns = table.arrow().fields().iter().map(column).collect();
    write_batch(folder, "attention", &RecordBatch::try_new(table.arrow(), columns).unwrap());
}

/// A row for each finished scenario with plain values in every column; the third scenario makes its session dearer.
fn write_filled(folder: &Path, name: &str, scenarios: &[Scenario<'_>]) {
    let cell = |column: &schema::Column, id: u32| -> Cell {
        match (column.name, column.kind) {
            ("scenario_id", _) => id.into(),
            ("session" | "turn" | "request_id", _) => Cell::Int(0),
            ("role", _) => "recorded".into(),
            ("evidence", _) => "recorded_context".into(),
            ("payee", _) => "own".into(),
            ("cache", _) => "warm".into(),
            ("saved_usd", _) => (if id == 2 { -0.25 } else { 0.25 }).into(),
            (_, schema::Type::Text) => "text".into(),
            (_, schema::Type::Bool) => (id == 2).into(),
            (_, schema::Type::F64) => 0.5.into(),
            _ => Cell::Int(100 + i128::from(id)),
        }
    };
    let columns = schema::table(name).unwrap().columns;
    let rows = finished(scenarios).map(|(id, _)| columns.iter().map(|column| cell(column, id)).collect());
    write(folder, name, &rows.collect::<Vec<_>>());
}

/// Three accesses of one launch: two to device memory, of which one asks for unknown bytes, and one to shared memory.
fn accesses() -> RecordBatch {
    let table = schema::table("accesses").unwrap();
    let column = |field: &FieldRef| -> ArrayRef {
        match field.name().as_str() {
            "access_id" => Arc::new(UInt64Array::from(vec![0, 1, 2])),
            "bytes" => Arc::new(UInt64Array::from(vec![Some(128), None, Some(64)])),
            "address" => Arc::new(UInt64Array::from(vec![320; 3])),
            "sectors" => Arc::new(UInt32Array::from(vec![4, 2, 1])),
            "space" => Arc::new(StringArray::from(vec!["global", "global", "shared"])),
            "kernel" | "opcode" => Arc::new(StringArray::from(vec!["vecadd"; 3])),
            "is_write" => Arc::new(BooleanArray::from(vec![false, true, true])),
            "sector_ids" => {
                let DataType::List(element) = field.data_type() else { panic!("sectors are a list") };
                let (ends, ids) =
                    (OffsetBuffer::from_lengths([4, 2, 1]), UInt64Array::from(vec![10, 11, 12, 13, 10, 14, 3]));
                Arc::new(ListArray::new(Arc::clone(element), ends, Arc::new(ids), None))
            }
            _ if field.is_nullable() => new_null_array(field.data_type(), 3),
            _ => Arc::new(UInt32Array::from(vec![0; 3])),
        }
    };
    let columns = table.arrow().fields().iter().map(column).collect();
    RecordBatch::try_new(table.arrow(), columns).unwrap()
}

fn scenario_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let row = |(id, s): (usize, &Scenario<'_>)| {
        let ok = s.6 == "ok";
        let error = (!ok).then_some("the weights need 141 GB, one accelerator has 80 GB");
        row![
            id as u32,
            "0123456789abcdef",
            s.0,
            id == 0,
            "conversation",
            "llama-3.1-70b",
            s.1,
            s.2,
            "open",
            "vllm-0.19",
            1.0,
            8u32,
            8u32,
            1u32,
            "bf16",
            "neocloud",
            (id != 3).then_some("speed-tiers"),
            s.6,
            error,
            ok.then_some(0.6),
            if id == 3 { "assumed" } else { "published" },
            ["nothing", "precision", "tokens,precision", "nothing", "nothing"][id],
            131_072u32,
            140_000u64,
            if id == 2 { 3u64 } else { 0 },
            1u32,
            1u32,
            1u32,
            Cell::Null,
            Cell::Null,
            Cell::Null,
            Cell::Null,
            Cell::Null,
            Cell::Null,
            "least-loaded",
            Cell::Null,
            8192u32,
            256u32,
            1u32,
            true,
            (id == 1).then_some(2588u32),
            ok.then(|| demand_id(scenarios, s)),
            ok.then_some("kv_read"),
            ok.then_some(0.5),
        ]
    };
    scenarios.iter().enumerate().map(row).collect()
}

/// The first scenario with the same policy.
fn demand_id(scenarios: &[Scenario<'_>], of: &Scenario<'_>) -> u32 {
    scenarios.iter().position(|one| one.1 == of.1).unwrap() as u32
}

/// The finished scenarios with their numbers.
fn finished<'a>(scenarios: &'a [Scenario<'a>]) -> impl Iterator<Item = (u32, &'a Scenario<'a>)> {
    scenarios.iter().enumerate().filter(|(_, s)| s.6 == "ok").map(|(id, s)| (id as u32, s))
}

fn metric_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (id, s) in finished(scenarios) {
        let (step, token) = (s.3, s.4 as f64);
        let rate = 40_000.0 / step;
        let cost = s.5.map(|price| price / (rate / 8.0 * 0.0036));
        let certainty = if id == 3 { "assumed" } else { "published" };
        let figures: Vec<(&str, Option<f64>)> = vec![
            ("requests_finished", Some(200.0)),
            ("requests_rejected", Some(0.0)),
            ("preemptions", Some(if id == 0 { 3.0 } else { 0.0 })),
            ("output_tokens_per_s", Some(rate)),
            ("output_tokens_per_s_per_accelerator", Some(rate / 8.0)),
            ("p50_ttft_ms", Some(step * 9.0)),
            ("p99_ttft_ms", Some(step * 60.0)),
            ("p50_itl_ms", Some(step)),
            ("p99_itl_ms", Some(step * 2.4)),
            ("utilisation_ratio", Some(step / 30.0)),
            ("hit_tokens_ratio", Some(0.41)),
            ("usd_total", s.5.map(|price| price * 8.0 / 6.0)),
            ("usd_per_mtok_total", cost.map(|cost| cost / 12.0)),
            ("usd_per_mtok_input", cost.map(|cost| cost / 20.0)),
            ("usd_per_mtok_output", cost),
            ("usd_per_mtok_output_saturated", cost.map(|cost| cost * 0.6)),
            ("energy_j_per_output_token", Some(step / 3.0)),
            ("kv_capacity_bytes", Some(4e11)),
            ("kv_capacity_tokens", Some(4e11 / token)),
            ("duration_s", Some(600.0)),
            ("output_tokens", Some(1000.0)),
            ("usd_prompts", s.5.map(|price| price * 4.0 / 6.0)),
            ("usd_outputs", s.5.map(|price| price * 3.0 / 6.0)),
            ("usd_idle", s.5.map(|price| price / 6.0)),
            ("revenue_usd", Some(5.0)),
            ("revenue_usd_per_mtok_output", Some(if step < 20.0 { 9.0 } else { 2.2 })),
            ("markup_ratio", s.5.map(|_| 0.5)),
            ("gross_margin_ratio", s.5.map(|_| 1.0 / 3.0)),
            ("goodput_requests_per_s", Some(0.3)),
            ("goodput_ratio", Some(0.9)),
            ("kv_peak_held_bytes", Some(token * 600_000.0)),
            ("kv_bytes_per_token", Some(token)),
            ("delivered_memory_ratio", Some(0.55)),
            ("lost_mass_ratio", if id == 2 { Some(0.031) } else { Some(0.0) }),
            ("quantization_error_ratio", if id == 1 || id == 2 { Some(0.012) } else { Some(0.0) }),
            ("offered_load_ratio", Some(0.6)),
        ];
        rows.extend(figures.into_iter().map(|(name, value)| row![Some(id), name, value, certainty]));
    }
    for (name, value) in [
        ("workload_requests", 200.0),
        ("workload_block_references", 5000.0),
        ("workload_distinct_blocks", 2900.0),
        ("workload_leading_block_hit_ratio", 0.42),
        ("workload_leading_token_hit_ratio", 0.39),
        ("workload_full_block_hit_ratio", 0.44),
        ("workload_mean_request_hit_ratio", 0.35),
    ] {
        rows.push(row![None::<u32>, name, value, "measured"]);
    }
    rows
}

fn definition_rows() -> Vec<Vec<Cell>> {
    let ratio = |name: &str, over: &str| {
        row![name, "ratio", "higher", Some("hits"), Some(over), "Share of the prompts found in the prefix cache."]
    };
    let plain =
        |name: &str, unit: &str, better: &str, text: &str| row![name, unit, better, None::<&str>, None::<&str>, text];
    vec![
        plain("requests_finished", "requests", "higher", "Requests that produced all their tokens."),
        plain("requests_rejected", "requests", "lower", "Requests whose context can never fit."),
        plain("preemptions", "count", "lower", "Times that a running request was preempted."),
        plain("output_tokens_per_s", "tokens/s", "higher", "Output tokens over the span of the replay."),
        plain("output_tokens_per_s_per_accelerator", "tokens/s", "higher", "The same per accelerator."),
        plain("p50_ttft_ms", "ms", "lower", "Median time to first token."),
        plain("p99_ttft_ms", "ms", "lower", "99th percentile of the time to first token."),
        plain("p50_itl_ms", "ms", "lower", "Median gap between two tokens."),
        plain("p99_itl_ms", "ms", "lower", "99th percentile of the gap between two tokens."),
        plain("utilisation_ratio", "ratio", "higher", "Busy engine time over the span."),
        ratio("hit_tokens_ratio", "prompt tokens of all requests"),
        plain("usd_total", "USD", "lower", "Cost of all accelerators over the span."),
        plain("kv_capacity_tokens", "tokens", "higher", "Context tokens that fit."),
        plain("duration_s", "s", "lower", "First arrival to last token."),
        plain("output_tokens", "tokens", "neither", "Tokens generated."),
        plain("usd_prompts", "USD", "lower", "Part of the cost that falls on prompts."),
        plain("usd_outputs", "USD", "lower", "Part of the cost that falls on output."),
        plain("usd_idle", "USD", "lower", "Part of the cost that falls on idle time."),
        plain("revenue_usd", "USD", "higher", "What the tokens are sold for."),
        plain("revenue_usd_per_mtok_output", "USD/Mtok", "higher", "Revenue per million output tokens."),
        plain("markup_ratio", "ratio", "higher", "Profit over cost."),
        plain("gross_margin_ratio", "ratio", "higher", "Profit over revenue."),
        plain("goodput_requests_per_s", "requests/s", "higher", "Requests served as promised."),
        plain("goodput_ratio", "ratio", "higher", "Their share of all requests."),
        plain("usd_per_mtok_total", "USD/Mtok", "lower", "Cost per million tokens read or written."),
        plain("usd_per_mtok_input", "USD/Mtok", "lower", "Cost per million prompt tokens."),
        plain("usd_per_mtok_output", "USD/Mtok", "lower", "Price per million output tokens."),
        plain("usd_per_mtok_output_saturated", "USD/Mtok", "lower", "The same at full load."),
        plain("energy_j_per_output_token", "J", "lower", "All-in energy per output token."),
        plain("kv_capacity_bytes", "bytes", "higher", "KV that fits, all instances together."),
        plain("kv_peak_held_bytes", "bytes", "lower", "Most KV held at once."),
        plain("kv_bytes_per_token", "bytes", "lower", "KV that one more token adds."),
        plain("delivered_memory_ratio", "ratio", "higher", "Bytes moved in busy time over peak."),
        plain("lost_mass_ratio", "ratio", "lower", "Attention mass on dropped tokens."),
        plain("quantization_error_ratio", "ratio", "lower", "Error of the attention output by number format."),
        plain("offered_load_ratio", "ratio", "lower", "Busy time asked for over the span."),
        plain("workload_requests", "requests", "neither", "Requests in the workload."),
        plain("workload_block_references", "blocks", "neither", "Blocks that prompts refer to."),
        plain("workload_distinct_blocks", "blocks", "neither", "Different blocks among them."),
        ratio("workload_leading_block_hit_ratio", "block references"),
        ratio("workload_leading_token_hit_ratio", "prompt tokens"),
        ratio("workload_full_block_hit_ratio", "full blocks"),
        ratio("workload_mean_request_hit_ratio", "requests"),
    ]
}

fn step_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (id, s) in finished(scenarios) {
        for stretch in 0..4u64 {
            let total = (s.3 * 1e6) as i64 * 100;
            let part = |percent: i64| total * percent / 100;
            rows.push(row![
                id,
                0u32,
                stretch,
                stretch as i64 * total,
                100u32,
                32u32,
                1u32,
                2048u32,
                64_000u64,
                part(1),
                part(1),
                total,
                part(40 - 5 * i64::from(id)),
                part(30 + 5 * i64::from(id)),
                part(12),
                part(8),
                part(if id == 2 { 3 } else { 0 }),
                0i64,
                0i64,
                part(if id == 2 { 7 } else { 10 }),
                part(15),
                part(75),
                4_000_000_000u64,
                14_000_000_000u64,
                1_000_000u64,
                900_000u64,
                1e15,
                "kv_read",
                120_000_000_000u64,
                90_000_000_000u64,
                400_000_000_000u64,
                2u32,
            ]);
        }
    }
    rows
}

fn request_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (id, s) in finished(scenarios) {
        for request in 0..20u64 {
            let ns = |factor: u64| (s.3 * 1e6) as i64 * factor as i64;
            rows.push(row![
                id,
                request,
                0u32,
                "finished",
                None::<&str>,
                false,
                request as i64 * 1_000_000_000,
                3000u32 + request as u32,
                50u32,
                1200u32,
                200u32,
                1800u32 + request as u32,
                0u32,
                u32::from(request == 19),
                0i64,
                Some(ns(request)),
                Some(ns(9 + 2 * request)),
                Some(ns(1)),
                Some(ns(3)),
                Some(ns(60 + 2 * request)),
                Some(ns(4)),
                Some(12.5),
                s.5.map(|price| price / 100.0),
                Some(0.004),
                Some("best effort"),
            ]);
        }
    }
    rows
}

fn quantile_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let levels: [f64; 12] = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999];
    let mut rows = Vec::new();
    for (id, s) in finished(scenarios) {
        for level in levels {
            let tail = 1.0 - 0.32 * (1.0 - level).log10();
            for (metric, scale) in [("itl", 0.8), ("ttft", 9.0), ("e2e", 40.0)] {
                let stretched = if metric == "itl" { tail } else { tail * tail * tail };
                rows.push(row![id, metric, level, (s.3 * 1e6 * scale * stretched) as i64]);
            }
        }
    }
    rows
}

/// Two causes, of which prompts in the same step take three quarters.
fn jitter_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (id, s) in finished(scenarios) {
        let median = (s.3 * 1e6) as i64;
        rows.push(row![id, "prefill", 200u64, 300 * median, 0.75, median]);
        rows.push(row![id, "context_growth", 400u64, 100 * median, 0.25, median]);
    }
    rows
}

fn tier_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (id, s) in finished(scenarios) {
        for bucket in 0..100u32 {
            let phase = f64::from(bucket) / 9.0;
            let tokens = 300_000.0 * (1.0 + 0.4 * phase.sin()) * (f64::from(bucket) / 100.0).sqrt();
            let held = (tokens * s.4 as f64) as u64;
            rows.push(row![
                id,
                "hbm",
                bucket,
                i64::from(bucket) * 6_000_000_000,
                6_000_000_000i64,
                held,
                held + 30_000_000_000,
                400_000_000_000u64,
                60_000_000_000_000u64,
                100_000_000_000u64,
                f64::from(bucket) / 110.0 / (1.0 + f64::from(id)),
            ]);
        }
    }
    rows
}

fn link_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (id, _) in finished(scenarios) {
        for bucket in 0..100u32 {
            let start = i64::from(bucket) * 6_000_000_000;
            for (class, bytes, ratio) in
                [("tensor_all_reduce", 1_500_000_000u64, 0.0375), ("expert_combine", 500_000_000, 0.0125)]
            {
                rows.push(row![id, "scale_up", class, Some("rack"), bucket, start, 6_000_000_000i64, bytes, ratio]);
            }
        }
    }
    rows
}

fn demand_rows(scenarios: &[Scenario<'_>]) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for s in scenarios.iter().take(3) {
        for request in 0..100u64 {
            for (phase, first, last) in [("prefill", 0u32, 0u32), ("decode", 1, 50)] {
                let bytes = s.4 * (request + 1) * 100 / if phase == "prefill" { 2 } else { 1 };
                rows.push(row![
                    "conversation",
                    "llama-3.1-70b",
                    s.1,
                    request,
                    phase,
                    first,
                    last,
                    0u16,
                    80u32,
                    1000u32,
                    bytes,
                    bytes,
                    bytes,
                    bytes,
                    0u64,
                    0u64,
                    0u64,
                    0.0,
                    demand_id(scenarios, s),
                ]);
            }
        }
    }
    rows
}

fn error_rows() -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    for (policy, scale, quantized) in
        [("full+fp8", 0.0, true), ("snapkv(budget=50%)+fp8", 1.0, true), ("streaming(sinks=4,recent=512)", 4.0, false)]
    {
        for layer in 0..12u16 {
            for head in 0..2u16 {
                for (first, last) in [(1u32, 10u32), (11, 40)] {
                    let lost = scale * 0.01 * (1.0 + f64::from(layer) / 4.0 + f64::from(head));
                    rows.push(row![
                        policy,
                        "smollm2-135m, token masses",
                        1u32,
                        0u64,
                        first,
                        last,
                        layer,
                        head,
                        1u16,
                        "recorded",
                        0.5,
                        lost,
                        lost * 1.5,
                        Some(lost * 0.6),
                        Some(lost * 0.4),
                        quantized.then_some(0.02),
                        quantized.then_some(0.012),
                        Some(lost * 0.3),
                        Some("norms"),
                        lost * 0.1,
                        None::<f64>,
                        None::<f64>,
                        0.25,
                        if scale > 0.0 { "selection" } else { "key_format" },
                        None::<&str>,
                    ]);
                }
            }
        }
    }
    rows
}

/// Pages of two heads in two layers under one policy.
fn page_rows() -> Vec<Vec<Cell>> {
    let of = |(layer, head): (u16, u16)| {
        let touched = 40.0 + f64::from(layer) * 10.0 + f64::from(head) * 5.0;
        row![
            "snapkv(budget=50%)+fp8",
            "smollm2-135m, token masses",
            1u32,
            0u64,
            layer,
            head,
            1u16,
            16u16,
            40u32,
            512.0,
            64.0,
            touched,
            50.0 + f64::from(layer) * 10.0,
        ]
    };
    [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().map(of).collect()
}

/// What two requests with a common prefix of 512 tokens keep of it.
fn overlap_rows() -> Vec<Vec<Cell>> {
    let of = |(layer, head): (u16, u16)| {
        row![
            "snapkv(budget=50%)+fp8",
            "smollm2-135m, token masses",
            1u32,
            0u64,
            1u64,
            layer,
            head,
            1u16,
            512u32,
            256u32,
            200u32,
            128u32,
            Some(128.0 / 328.0),
            30u32,
            3u32,
            false,
        ]
    };
    [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().map(of).collect()
}

fn write_provenance(folder: &Path, scenarios: &[Scenario<'_>]) {
    let sha = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let path = "traces/conversation.jsonl";
    write(
        folder,
        "sources",
        &[row![
            0u32,
            path,
            "mooncake",
            sha,
            4096u64,
            "none",
            200u64,
            199u64,
            1u64,
            Some("ms"),
            Some("trace_start"),
            Some(512u32),
            Some("ceil"),
            Some("global"),
            Some("prefix"),
            "format",
            None::<&str>,
        ]],
    );
    let message = "a row without output length was set aside";
    write(
        folder,
        "import_log",
        &[row![0u32, "data_loss", "no_output_length", 1u64, Some(17u64), None::<u64>, message, None::<&str>]],
    );
    let mut models = Vec::new();
    for s in scenarios.iter().take(3) {
        models.push(row![
            "llama-3.1-70b",
            s.1,
            0u16,
            80u32,
            "full",
            8u32,
            None::<u32>,
            None::<u32>,
            None::<f64>,
            s.4 / 80,
            4096u64,
            "bf16",
            141_000_000_000u64,
            "config.json of the model",
            "published",
        ]);
    }
    write(folder, "models", &models);
    write_machines(folder);
    write_curves(folder);
    hierarchy::write_all(folder);
}

fn write_machines(folder: &Path) {
    let mut machines = Vec::new();
    let mut tiers = Vec::new();
    let mut prices = Vec::new();
    for (scenarios, machine, bandwidth, price) in
        [(0_u32..3, "h200", 4.8e12, Some(2.5)), (3..4, "h200*hbm_bw=2", 9.6e12, None)]
    {
        let certainty = if price.is_some() { "published" } else { "assumed" };
        machines.push(row![machine, "hbm_read", bandwidth, "bytes/s", "data sheet, page 2", certainty]);
        machines.push(row![machine, "scale_up_bytes_per_s", 450e9, "bytes/s", "data sheet, page 2", "published"]);
        machines.push(row![machine, "peak_bf16", 989e12, "flops/s", "data sheet, page 2", "published"]);
        tiers.push(row![machine, "hbm", 141_000_000_000u64, bandwidth, "data sheet, page 2", certainty]);
        for id in scenarios {
            for (book, price) in [("neocloud", price), ("own", price.map(|price| price * 0.6))] {
                let none = None::<f64>;
                let (list, title, date) = ("price list of 2026-04", "Owning at a neocloud", "2026-04-03");
                let watts = Some(1730.0);
                prices
                    .push(row![id, book, title, date, machine, price, watts, none, none, none, none, list, certainty,]);
            }
        }
    }
    write(folder, "machines", &machines);
    write(folder, "tiers", &tiers);
    write(folder, "prices", &prices);
}

fn write_curves(folder: &Path) {
    let mut curves = Vec::new();
    for (policy, hits) in [("lru", [120u64, 480]), ("min", [300u64, 500])] {
        for (capacity, hits) in [(10u64, hits[0]), (100, hits[1])] {
            let ratio = |part: u64| Some(part as f64 / 1000.0);
            let bound = if capacity == 10 { 300u64 } else { 500 };
            curves.push(row![
                "conversation.jsonl (source 0)",
                policy,
                capacity,
                None::<u64>,
                None::<f64>,
                1000u64,
                "exact",
                hits,
                1000 - hits,
                Some(1000 - hits - capacity),
                Some(0u64),
                Some(0u64),
                ratio(hits),
                None::<f64>,
                ratio(hits - 20),
                ratio(hits - 30),
                ratio(hits - 10),
                ratio(hits / 2),
                ratio(500),
                ratio(bound),
                hits >= 495,
                None::<bool>,
            ]);
        }
    }
    write(folder, "miss_ratio", &curves);
}
