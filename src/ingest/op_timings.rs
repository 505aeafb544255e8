//! Rows of `op_timings` on their way into record batches, for any adapter of measured operations.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Builder, RecordBatch, StringBuilder, UInt32Array, UInt32Builder, UInt64Builder};
use engine::error::Result;
use engine::schema::captured::OP_TIMINGS;

use super::sink::Sink;
use super::sparse::{Sparse, push_all};

/// The most rows of a batch.
const ROWS: usize = 64 << 10;

/// The most bytes of text of a batch: names repeat from row to row, and an array of text holds less than 2 GiB.
const TEXT: usize = 32 << 20;

/// One measured operation, as an adapter knows it; what it does not know is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Op<'a> {
    /// Name of the operation, as in the schema.
    pub(super) name: &'a str,
    pub(super) framework: Option<&'a str>,
    pub(super) version: Option<&'a str>,
    pub(super) device: &'a str,
    pub(super) kernel_source: Option<&'a str>,
    pub(super) backend: Option<&'a str>,
    pub(super) distribution: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) dtype: Option<&'a str>,
    pub(super) kv_dtype: Option<&'a str>,
    pub(super) weight_dtype: Option<&'a str>,
    pub(super) batch: Option<u32>,
    pub(super) new_tokens: Option<u64>,
    pub(super) past_tokens: Option<u64>,
    pub(super) prefill_tokens: Option<u64>,
    pub(super) prefill_past_tokens: Option<u64>,
    pub(super) query_heads: Option<u32>,
    pub(super) kv_heads: Option<u32>,
    pub(super) head_dim: Option<u32>,
    pub(super) window_tokens: Option<u32>,
    pub(super) m: Option<u64>,
    pub(super) n: Option<u64>,
    pub(super) k: Option<u64>,
    pub(super) hidden: Option<u32>,
    pub(super) intermediate: Option<u32>,
    pub(super) experts: Option<u32>,
    pub(super) active_experts: Option<u32>,
    pub(super) tensor_parallel: Option<u32>,
    pub(super) expert_parallel: Option<u32>,
    pub(super) devices: Option<u32>,
    pub(super) nodes: Option<u32>,
    pub(super) sms: Option<u32>,
    pub(super) message_bytes: Option<u64>,
    pub(super) skew: Option<f64>,
    pub(super) long_requests: Option<u32>,
    pub(super) latency_ns: f64,
}

/// Builders of `op_timings`. No format at hand records the longest time or the power, so that these stay unknown.
pub(super) struct OpTimings {
    /// Bytes of text that wait.
    bytes: usize,
    /// Waiting rows that are no rows of the file.
    details: u64,
    op: StringBuilder,
    device: StringBuilder,
    /// Framework, version, kernel source, backend, distribution, model, and the three number formats.
    texts: [Sparse<StringBuilder>; 9],
    batch: Sparse<UInt32Builder>,
    /// New and past tokens, and those of a prefill chunk.
    tokens: [Sparse<UInt64Builder>; 4],
    /// Query heads, KV heads, width of a head, window.
    heads: [Sparse<UInt32Builder>; 4],
    product: [Sparse<UInt64Builder>; 3],
    /// Hidden, intermediate, experts, active experts, tensor and expert parallelism, devices, nodes, multiprocessors.
    sizes: [Sparse<UInt32Builder>; 9],
    message: Sparse<UInt64Builder>,
    skew: Sparse<Float64Builder>,
    long: Sparse<UInt32Builder>,
    latency: Float64Builder,
    /// Longest time and power.
    unknown: [Sparse<Float64Builder>; 2],
}

impl OpTimings {
    pub(super) fn new() -> Self {
        Self {
            bytes: 0,
            details: 0,
            op: StringBuilder::new(),
            device: StringBuilder::new(),
            texts: std::array::from_fn(|_| Sparse::new(StringBuilder::new())),
            batch: Sparse::new(UInt32Builder::new()),
            tokens: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
            heads: std::array::from_fn(|_| Sparse::new(UInt32Builder::new())),
            product: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
            sizes: std::array::from_fn(|_| Sparse::new(UInt32Builder::new())),
            message: Sparse::new(UInt64Builder::new()),
            skew: Sparse::new(Float64Builder::new()),
            long: Sparse::new(UInt32Builder::new()),
            latency: Float64Builder::new(),
            unknown: std::array::from_fn(|_| Sparse::new(Float64Builder::new())),
        }
    }

    /// Adds an operation and hands a full batch on.
    pub(super) fn push(&mut self, op: &Op<'_>, sink: &mut Sink<'_>) -> Result<()> {
        self.op.append_value(op.name);
        self.device.append_value(op.device);
        let texts = [
            op.framework,
            op.version,
            op.kernel_source,
            op.backend,
            op.distribution,
            op.model,
            op.dtype,
            op.kv_dtype,
            op.weight_dtype,
        ];
        self.bytes += op.name.len() + op.device.len();
        for (builder, text) in self.texts.iter_mut().zip(texts) {
            builder.push_text(text);
            self.bytes += text.map_or(0, str::len);
        }
        self.batch.push(op.batch);
        let tokens = [op.new_tokens, op.past_tokens, op.prefill_tokens, op.prefill_past_tokens];
        push_all(&mut self.tokens, tokens);
        push_all(&mut self.heads, [op.query_heads, op.kv_heads, op.head_dim, op.window_tokens]);
        push_all(&mut self.product, [op.m, op.n, op.k]);
        let sizes = [
            op.hidden,
            op.intermediate,
            op.experts,
            op.active_experts,
            op.tensor_parallel,
            op.expert_parallel,
            op.devices,
            op.nodes,
            op.sms,
        ];
        push_all(&mut self.sizes, sizes);
        self.message.push(op.message_bytes);
        self.skew.push(op.skew);
        self.long.push(op.long_requests);
        self.latency.append_value(op.latency_ns);
        push_all(&mut self.unknown, [None, None]);
        if self.latency.values_slice().len() >= ROWS || self.bytes >= TEXT { self.flush(sink) } else { Ok(()) }
    }

    /// Adds an operation that the same row of the file measured as the one before.
    pub(super) fn push_detail(&mut self, op: &Op<'_>, sink: &mut Sink<'_>) -> Result<()> {
        self.details += 1;
        self.push(op, sink)
    }

    /// Hands on what is left.
    pub(super) fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let rows = self.latency.values_slice().len();
        self.bytes = 0;
        let [framework, version, kernel_source, backend, distribution, model, dtype, kv_dtype, weight_dtype] =
            self.texts.each_mut().map(Sparse::finish);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_value(sink.source_id(), rows)),
            Arc::new(self.op.finish()),
            framework,
            version,
            Arc::new(self.device.finish()),
            kernel_source,
            backend,
            distribution,
            model,
            dtype,
            kv_dtype,
            weight_dtype,
            self.batch.finish(),
        ];
        columns.extend(self.tokens.each_mut().map(Sparse::finish));
        columns.extend(self.heads.each_mut().map(Sparse::finish));
        columns.extend(self.product.each_mut().map(Sparse::finish));
        columns.extend(self.sizes.each_mut().map(Sparse::finish));
        columns.extend([self.message.finish(), self.skew.finish(), self.long.finish()]);
        columns.push(Arc::new(self.latency.finish()));
        columns.extend(self.unknown.each_mut().map(Sparse::finish));
        let details = std::mem::take(&mut self.details);
        sink.push_mixed(&OP_TIMINGS, RecordBatch::try_new(OP_TIMINGS.arrow(), columns)?, details)
    }
}
