//! Measured operations as the Parquet tables of AIConfigurator: one row is one shape under one kernel.
//!
//! ```text
//! framework version device        op_name  kernel_source                  gemm_dtype m  n    k    latency
//! VLLM      0.24.0  NVIDIA H200   gemm     CutlassFP8ScaledMMLinearKernel fp8        16 4096 4096 0.0061
//! framework version device        op_name  kernel_source batch_size isl step num_heads num_key_value_heads ... latency
//! VLLM      0.24.0  NVIDIA H200   generation_attention vllm_flash_attn_fa3 8  1  4095 32 8 ...               0.0199
//! ```
//!
//! Thirteen tables are known, told apart by `op_name`: gemm, attention and MLA (kernel and whole module) of prompts and of
//! decoding, experts, collectives of NCCL and of the frameworks, and the exchange of tokens among experts. Columns are found
//! by name, in any order; those that are not known are logged.
//!
//! Units differ between the tables, and only some of them say so:
//!
//! * `latency` counts milliseconds, but microseconds in `moe_a2a`, where it must be the sum of `transmit_us` and
//!   `notify_us`. Columns in `_us` count microseconds.
//! * `message_size` counts elements, not bytes, in all tables at hand: NCCL's rates for `half` and `int8` are then the
//!   same number of bytes per second, and those of the frameworks' own all-reduce agree with NCCL's. `message_bytes` is
//!   that times the width of the number format; a format of unknown width makes the row bad. NCCL's sizes are those of the
//!   larger buffer of one device.
//! * Decoding attends to `isl + step` tokens: `isl` is kept as new tokens and `step` as past tokens.
//! * `window_size` 0 is full attention, and `sms` 0 no limit: both are unknown here.
//! * Heads are those of one device, whatever `tp_size` says.
//! * In tables of NCCL, `version` is NCCL's.
//!
//! A row of `ll` and `normal` (`DeepEP` under SGLang) measures two operations, dispatch and combine, each a row here, with
//! times, multiprocessors and waiting of its own (`transmit_us` + `notify_us`); such a row counts twice. One shape under
//! several kernels, backends or implementations is several operations, and rows of the same shape that repeat are kept.
//!
//! Refused, row by row: an `op_name` that is not known, a column of the operation that is missing or without a value, a
//! negative or broken number, a time that is not above zero, `beam_width` above 1.

use std::borrow::Cow;

use arrow::array::RecordBatch;
use engine::error::{Error, Result};

use super::op_timings::{Op, OpTimings};
use super::parquet_input::{self, Cells};
use super::problem::{Problem, quoted};
use super::sink::{Event, Severity, Sink};
use super::source::{Body, Input};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "op_parquet",
    doc: "measured operations of AIConfigurator: gemm, attention, MLA, MoE and collectives, as Parquet",
    spec: "https://github.com/ai-dynamo/aiconfigurator",
    verified: true,
    sniff,
    read,
};

const UNKNOWN_COLUMN: Event =
    Event { severity: Severity::DataLoss, code: "unknown_column", advice: Some("the column is not stored") };
const DERIVED: Event = Event { severity: Severity::Info, code: "derived_column", advice: None };

/// Columns that each table has.
const COMMON: [&str; 5] = ["framework", "version", "device", "op_name", "kernel_source"];

/// Columns of the times, of which each table has one.
const TIMES: [&str; 3] = ["latency", "dispatch_avg_t_us", "dispatch_transmit_us"];

/// Columns that are read but not kept, and why.
const BESIDE: [(&str, &str); 4] = [
    ("architecture", "the model says it"),
    ("beam_width", "it is 1"),
    ("dispatch_bandwidth_gbps", "it follows from the others"),
    ("combine_bandwidth_gbps", "it follows from the others"),
];

/// How a table says its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    /// `latency` in milliseconds.
    Milliseconds,
    /// `latency` in microseconds, the sum of two columns, of the phase that `phase` names.
    Exchange,
    /// Two operations in microseconds.
    LowLatency,
    /// Two operations in microseconds, each the sum of two columns.
    Normal,
}

/// An operation by its name in the file.
struct Kind {
    name: &'static str,
    op: &'static str,
    /// Columns that must have a value, beside the common ones.
    needs: &'static [&'static str],
    times: Times,
}

const ATTENTION: &[&str] =
    &["attn_dtype", "kv_cache_dtype", "batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"];
const MLA: &[&str] = &["mla_dtype", "kv_cache_dtype", "batch_size", "isl", "step", "num_heads"];
const COLLECTIVE: &[&str] = &["num_gpus", "message_size"];
const DEEPEP: &[&str] = &["node_num", "hidden_size", "num_token", "num_topk", "num_experts"];

const fn plain(name: &'static str, op: &'static str, needs: &'static [&'static str]) -> Kind {
    Kind { name, op, needs, times: Times::Milliseconds }
}

/// The operations.
static KINDS: [Kind; 15] = [
    plain("gemm", "gemm", &["gemm_dtype", "m", "n", "k"]),
    plain("context_attention", "attention_context", ATTENTION),
    plain("generation_attention", "attention_generation", ATTENTION),
    plain("mla_context", "mla_context", MLA),
    plain("mla_generation", "mla_generation", MLA),
    plain("mla_context_module", "mla_context_module", MLA),
    plain("mla_generation_module", "mla_generation_module", MLA),
    plain(
        "moe",
        "moe",
        &["moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"],
    ),
    plain("all_reduce", "all_reduce", COLLECTIVE),
    plain("all_gather", "all_gather", COLLECTIVE),
    plain("reduce_scatter", "reduce_scatter", COLLECTIVE),
    plain("alltoall", "all_to_all", COLLECTIVE),
    Kind {
        name: "moe_a2a",
        op: "",
        needs: &["phase", "ep_size", "node_num", "hidden_size", "topk", "num_experts", "num_tokens"],
        times: Times::Exchange,
    },
    Kind { name: "ll", op: "", needs: DEEPEP, times: Times::LowLatency },
    Kind { name: "normal", op: "", needs: DEEPEP, times: Times::Normal },
];

/// Where the value of a column goes.
#[derive(Clone, Copy)]
enum Slot {
    Text(for<'a> fn(&mut Op<'a>, &'a str)),
    Small(fn(&mut Op<'_>, u32)),
    Whole(fn(&mut Op<'_>, u64)),
}

/// The columns that are kept. One name means the same in each table.
static COLUMNS: &[(&str, Slot)] = &[
    ("framework", Slot::Text(|op, text| op.framework = Some(text))),
    ("version", Slot::Text(|op, text| op.version = Some(text))),
    ("device", Slot::Text(|op, text| op.device = text)),
    ("kernel_source", Slot::Text(|op, text| op.kernel_source = Some(text))),
    ("backend", Slot::Text(|op, text| op.backend = Some(text))),
    ("implementation", Slot::Text(|op, text| op.backend = Some(text))),
    ("comm_backend", Slot::Text(|op, text| op.backend = Some(text))),
    ("distribution", Slot::Text(|op, text| op.distribution = Some(text))),
    ("model", Slot::Text(|op, text| op.model = Some(text))),
    ("attn_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("mla_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("gemm_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("moe_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("nccl_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("allreduce_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("comm_dtype", Slot::Text(|op, text| op.dtype = Some(text))),
    ("kv_cache_dtype", Slot::Text(|op, text| op.kv_dtype = Some(text))),
    ("gemm_type", Slot::Text(|op, text| op.weight_dtype = Some(text))),
    ("batch_size", Slot::Small(|op, value| op.batch = Some(value))),
    ("isl", Slot::Whole(|op, value| op.new_tokens = Some(value))),
    ("num_tokens", Slot::Whole(|op, value| op.new_tokens = Some(value))),
    ("num_token", Slot::Whole(|op, value| op.new_tokens = Some(value))),
    ("step", Slot::Whole(|op, value| op.past_tokens = Some(value))),
    ("num_heads", Slot::Small(|op, value| op.query_heads = Some(value))),
    ("num_key_value_heads", Slot::Small(|op, value| op.kv_heads = Some(value))),
    ("head_dim", Slot::Small(|op, value| op.head_dim = Some(value))),
    ("window_size", Slot::Small(|op, value| op.window_tokens = (value > 0).then_some(value))),
    ("m", Slot::Whole(|op, value| op.m = Some(value))),
    ("n", Slot::Whole(|op, value| op.n = Some(value))),
    ("k", Slot::Whole(|op, value| op.k = Some(value))),
    ("hidden_size", Slot::Small(|op, value| op.hidden = Some(value))),
    ("inter_size", Slot::Small(|op, value| op.intermediate = Some(value))),
    ("num_experts", Slot::Small(|op, value| op.experts = Some(value))),
    ("topk", Slot::Small(|op, value| op.active_experts = Some(value))),
    ("num_topk", Slot::Small(|op, value| op.active_experts = Some(value))),
    ("tp_size", Slot::Small(|op, value| op.tensor_parallel = Some(value))),
    ("moe_tp_size", Slot::Small(|op, value| op.tensor_parallel = Some(value))),
    ("moe_ep_size", Slot::Small(|op, value| op.expert_parallel = Some(value))),
    (
        "ep_size",
        Slot::Small(|op, value| {
            op.expert_parallel = Some(value);
            op.devices = Some(value);
        }),
    ),
    ("num_gpus", Slot::Small(|op, value| op.devices = Some(value))),
    ("node_num", Slot::Small(|op, value| op.nodes = Some(value))),
    ("sms", Slot::Small(|op, value| op.sms = (value > 0).then_some(value))),
    // Elements, until the width of the number format is known.
    ("message_size", Slot::Whole(|op, value| op.message_bytes = Some(value))),
];

/// Columns that are read by the times of their tables.
const OF_TIMES: [&str; 14] = [
    "op_name",
    "phase",
    "latency",
    "transmit_us",
    "notify_us",
    "dispatch_avg_t_us",
    "combine_avg_t_us",
    "dispatch_sms",
    "dispatch_transmit_us",
    "dispatch_notify_us",
    "combine_sms",
    "combine_transmit_us",
    "combine_notify_us",
    "beam_width",
];

fn sniff(head: &Head<'_>) -> Sniff {
    if !head.bytes.starts_with(super::source::PARQUET) {
        return Sniff::No;
    }
    let Some(columns) = head.file.and_then(parquet_input::columns) else { return Sniff::No };
    let has = |name: &&str| columns.iter().any(|column| column == name);
    let common = COMMON.iter().filter(|name| has(name)).count();
    match (common == COMMON.len(), TIMES.iter().any(has)) {
        (true, true) => Sniff::Yes,
        (true, false) => Sniff::Nearly(format!("it has none of the columns {}", TIMES.join(", "))),
        (false, true) if common >= 3 => {
            let missing: Vec<&str> = COMMON.into_iter().filter(|name| !has(name)).collect();
            Sniff::Nearly(format!("it lacks the columns {}", missing.join(", ")))
        }
        _ => Sniff::No,
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let Body::File(file) = body else {
        return Err(Error::data(format!("expected a Parquet file in `{path}`, found something else")));
    };
    options.without_choice("op_parquet", "each of its columns has a unit of its own")?;
    let builder = parquet_input::open(file.path())?;
    let names: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    log_columns(&names, sink);
    let mut rows = OpTimings::new();
    parquet_input::each(file.path(), builder, &mut |batch, first_row| {
        let table = Table::of(path, &batch)?;
        for row in 0..batch.num_rows() {
            let mut found = Vec::with_capacity(2);
            match table.ops(row, &mut found) {
                Ok(()) => {
                    sink.found(found.len() as u64);
                    found.iter().try_for_each(|op| rows.push(op, sink))?;
                }
                Err(wrong) => {
                    sink.found(1);
                    sink.reject(problem(path, &batch, first_row + row as u64, row, wrong))?;
                }
            }
        }
        Ok(())
    })?;
    rows.flush(sink)?;
    Ok(Settings::default())
}

fn log_columns(names: &[String], sink: &mut Sink<'_>) {
    for name in names {
        if let Some((_, why)) = BESIDE.iter().find(|(known, _)| known == name) {
            sink.log(DERIVED, &format!("the column `{name}` is not kept: {why}"), None, None);
        } else if !COLUMNS.iter().any(|(known, _)| known == name) && !OF_TIMES.contains(&name.as_str()) {
            let message = format!("the column {} is not part of the format", quoted(name.as_bytes()));
            sink.log(UNKNOWN_COLUMN, &message, None, None);
        }
    }
}

/// What is wrong with a row.
struct Wrong {
    column: &'static str,
    code: &'static str,
    expected: Cow<'static, str>,
    found: String,
}

fn wrong(column: &'static str, code: &'static str, expected: impl Into<Cow<'static, str>>, found: String) -> Wrong {
    Wrong { column, code, expected: expected.into(), found }
}

fn problem(path: &str, batch: &RecordBatch, number: u64, row: usize, wrong: Wrong) -> Problem {
    let at = batch.schema().index_of(wrong.column).map_or(0, |at| at as u64 + 1);
    let place = format!("{path}: row {number}, column `{}`", wrong.column);
    let raw = parquet_input::raw(batch, row);
    Problem::in_row(&place, number, at, wrong.code, [wrong.expected.into_owned(), wrong.found], raw)
}

/// The columns of a batch that are known.
struct Table {
    kept: Vec<(&'static str, Slot, Cells)>,
    times: Vec<(&'static str, Cells)>,
}

type Row<T> = std::result::Result<T, Wrong>;

impl Table {
    fn of(path: &str, batch: &RecordBatch) -> Result<Self> {
        let cells = |name: &'static str| -> Result<Option<Cells>> {
            let Some(array) = batch.column_by_name(name) else { return Ok(None) };
            let cells = Cells::of(array).ok_or_else(|| {
                let kind = array.data_type();
                Error::data(format!("expected text or numbers in column `{name}` of `{path}`, found {kind}"))
            })?;
            // The framework is written in several ways.
            Ok(Some(match cells {
                Cells::Text(texts) if name == "framework" => {
                    Cells::Text(texts.iter().map(|text| text.map(str::to_lowercase)).collect())
                }
                cells => cells,
            }))
        };
        let (mut kept, mut times) = (Vec::new(), Vec::new());
        for (name, slot) in COLUMNS {
            kept.extend(cells(name)?.map(|cells| (*name, *slot, cells)));
        }
        for name in OF_TIMES {
            times.extend(cells(name)?.map(|cells| (name, cells)));
        }
        Ok(Self { kept, times })
    }

    /// The operations that a row measures.
    fn ops<'a>(&'a self, row: usize, ops: &mut Vec<Op<'a>>) -> Row<()> {
        let name = self.text("op_name", row)?;
        let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
            wrong("op_name", "unknown_op", format!("one of {}", known.join(", ")), quoted(name.as_bytes()))
        })?;
        let mut op = Op { name: kind.op, ..Op::default() };
        for (name, slot, cells) in &self.kept {
            let set = match slot {
                Slot::Text(set) => cells.text(row).map(|text| set(&mut op, text)),
                Slot::Whole(set) => cells.whole(row).map(|value| set(&mut op, value)),
                Slot::Small(set) => {
                    cells.whole(row).and_then(|value| u32::try_from(value).ok()).map(|value| set(&mut op, value))
                }
            };
            if set.is_none() && (kind.needs.contains(name) || COMMON.contains(name) || !cells.is_unknown(row)) {
                let expected = if matches!(slot, Slot::Text(_)) { "text" } else { "a whole number of at least zero" };
                return Err(wrong(name, "wrong_type", expected, cells.shown(row)));
            }
        }
        if let Some(name) = kind.needs.iter().chain(&COMMON).find(|name| !self.has(name)) {
            return Err(wrong(name, "missing_column", "a column of this name", "none".to_owned()));
        }
        if self.column("beam_width").is_some_and(|cells| !cells.is_unknown(row) && cells.whole(row) != Some(1)) {
            let found = self.column("beam_width").map(|cells| cells.shown(row)).unwrap_or_default();
            return Err(wrong("beam_width", "beam_width", "1", found));
        }
        if let Some(elements) = op.message_bytes {
            op.message_bytes = Some(message_bytes(elements, op.dtype)?);
        }
        self.timed(kind, row, &op, ops)
    }

    /// The operations of a row with their times.
    fn timed<'a>(&'a self, kind: &Kind, row: usize, op: &Op<'a>, ops: &mut Vec<Op<'a>>) -> Row<()> {
        match kind.times {
            Times::Milliseconds => {
                ops.push(Op { latency_ns: positive("latency", self.real("latency", row)?)? * 1e6, ..*op });
            }
            Times::Exchange => {
                let latency = positive("latency", self.real("latency", row)?)?;
                let sum = self.real("transmit_us", row)? + self.real("notify_us", row)?;
                // Whoever writes milliseconds here one day must not be read as microseconds.
                if (latency - sum).abs() > 1e-6 * sum.abs() {
                    let expected = format!("`transmit_us` + `notify_us` = {sum}");
                    return Err(wrong("latency", "unit", expected, latency.to_string()));
                }
                let name = match self.text("phase", row)? {
                    "dispatch" => "moe_dispatch",
                    "combine" => "moe_combine",
                    other => {
                        let found = quoted(other.as_bytes());
                        return Err(wrong("phase", "unknown_phase", "`dispatch` or `combine`", found));
                    }
                };
                ops.push(Op { name, latency_ns: latency * 1e3, ..*op });
            }
            Times::LowLatency => {
                for (name, time) in [("moe_dispatch", "dispatch_avg_t_us"), ("moe_combine", "combine_avg_t_us")] {
                    ops.push(Op { name, latency_ns: positive(time, self.real(time, row)?)? * 1e3, ..*op });
                }
            }
            Times::Normal => {
                for (name, sms, transmit, notify) in [
                    ("moe_dispatch", "dispatch_sms", "dispatch_transmit_us", "dispatch_notify_us"),
                    ("moe_combine", "combine_sms", "combine_transmit_us", "combine_notify_us"),
                ] {
                    let waiting = self.real(notify, row)?;
                    if !(0.0..1e15).contains(&waiting) {
                        return Err(wrong(notify, "negative", "a time of at least zero", waiting.to_string()));
                    }
                    let latency_ns = (positive(transmit, self.real(transmit, row)?)? + waiting) * 1e3;
                    let sms = Some(self.small(sms, row)?).filter(|sms| *sms > 0);
                    ops.push(Op { name, sms, latency_ns, ..*op });
                }
            }
        }
        Ok(())
    }

    fn column(&self, name: &str) -> Option<&Cells> {
        self.times.iter().find(|(known, _)| *known == name).map(|(_, cells)| cells)
    }

    fn has(&self, name: &str) -> bool {
        self.kept.iter().any(|(known, ..)| *known == name) || self.column(name).is_some()
    }

    fn text(&self, name: &'static str, row: usize) -> Row<&str> {
        let cells = self.known(name)?;
        cells.text(row).ok_or_else(|| wrong(name, "wrong_type", "text", cells.shown(row)))
    }

    fn real(&self, name: &'static str, row: usize) -> Row<f64> {
        let cells = self.known(name)?;
        cells.real(row).ok_or_else(|| wrong(name, "wrong_type", "a number", cells.shown(row)))
    }

    fn small(&self, name: &'static str, row: usize) -> Row<u32> {
        let cells = self.known(name)?;
        let value = cells.whole(row).and_then(|value| u32::try_from(value).ok());
        value.ok_or_else(|| wrong(name, "wrong_type", "a whole number of at least zero", cells.shown(row)))
    }

    fn known(&self, name: &'static str) -> Row<&Cells> {
        self.column(name).ok_or_else(|| wrong(name, "missing_column", "a column of this name", "none".to_owned()))
    }
}

/// A time above zero, and below ages, so that it stays finite in nanoseconds.
fn positive(column: &'static str, value: f64) -> Row<f64> {
    let good = value > 0.0 && value < 1e15;
    if good { Ok(value) } else { Err(wrong(column, "out_of_range", "a time above zero", value.to_string())) }
}

/// Bytes of so many elements.
fn message_bytes(elements: u64, dtype: Option<&str>) -> Row<u64> {
    let width = match dtype.unwrap_or_default() {
        "half" | "float16" | "fp16" | "bfloat16" | "bf16" => 2,
        "int8" | "uint8" | "fp8" => 1,
        "float" | "float32" | "fp32" => 4,
        other => {
            let found = quoted(other.as_bytes());
            return Err(wrong("message_size", "unknown_width", "a number format of known width", found));
        }
    };
    let most = || wrong("message_size", "out_of_range", "a size below 2^64 bytes", elements.to_string());
    elements.checked_mul(width).ok_or_else(most)
}

#[cfg(test)]
mod tests;
