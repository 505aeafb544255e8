//! Shapes and keys of operations, as in the table `op_timings`.

use std::collections::BTreeMap;

/// One length of a shape: the columns of `op_timings` that count something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dim {
    /// Requests, or sequences that decode.
    Batch,
    /// Tokens computed: per request for attention, in all for other operations.
    NewTokens,
    /// KV tokens per request before those.
    PastTokens,
    /// Tokens of a prefill chunk in the same batch.
    PrefillTokens,
    /// KV tokens before that chunk.
    PrefillPastTokens,
    /// Query heads.
    QueryHeads,
    /// KV heads.
    KvHeads,
    /// Width of a head.
    HeadDim,
    /// Window of sliding attention; 0 for none.
    WindowTokens,
    /// Rows of a product.
    M,
    /// Columns of a product.
    N,
    /// Inner width of a product.
    K,
    /// Width of the model.
    Hidden,
    /// Width of an expert.
    Intermediate,
    /// Experts.
    Experts,
    /// Experts of a token, or experts that were hit.
    ActiveExperts,
    /// Devices that share each weight.
    TensorParallel,
    /// Devices that share the experts.
    ExpertParallel,
    /// Devices of a collective.
    Devices,
    /// Nodes of a collective.
    Nodes,
    /// Streaming multiprocessors given to communication.
    Sms,
    /// Bytes of a collective's message, per device.
    MessageBytes,
    /// Bytes of an element of that message: what is left of its number format ([`pool`]).
    ElementBytes,
}

impl Dim {
    /// Each of them, in the order of the table.
    pub const ALL: [Self; 23] = [
        Self::Batch,
        Self::NewTokens,
        Self::PastTokens,
        Self::PrefillTokens,
        Self::PrefillPastTokens,
        Self::QueryHeads,
        Self::KvHeads,
        Self::HeadDim,
        Self::WindowTokens,
        Self::M,
        Self::N,
        Self::K,
        Self::Hidden,
        Self::Intermediate,
        Self::Experts,
        Self::ActiveExperts,
        Self::TensorParallel,
        Self::ExpertParallel,
        Self::Devices,
        Self::Nodes,
        Self::Sms,
        Self::MessageBytes,
        Self::ElementBytes,
    ];

    /// The column of `op_timings`, which has all but the last.
    pub fn column(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::NewTokens => "new_tokens",
            Self::PastTokens => "past_tokens",
            Self::PrefillTokens => "prefill_tokens",
            Self::PrefillPastTokens => "prefill_past_tokens",
            Self::QueryHeads => "query_heads",
            Self::KvHeads => "kv_heads",
            Self::HeadDim => "head_dim",
            Self::WindowTokens => "window_tokens",
            Self::M => "m",
            Self::N => "n",
            Self::K => "k",
            Self::Hidden => "hidden",
            Self::Intermediate => "intermediate",
            Self::Experts => "experts",
            Self::ActiveExperts => "active_experts",
            Self::TensorParallel => "tensor_parallel",
            Self::ExpertParallel => "expert_parallel",
            Self::Devices => "devices",
            Self::Nodes => "nodes",
            Self::Sms => "sms",
            Self::MessageBytes => "message_bytes",
            Self::ElementBytes => "element_bytes",
        }
    }
}

/// The lengths of an operation; 0 where one has no meaning for it or is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape([u64; Dim::ALL.len()]);

impl Shape {
    /// A shape of these lengths.
    pub fn of(lengths: &[(Dim, u64)]) -> Self {
        lengths.iter().fold(Self::default(), |shape, (dim, value)| shape.with(*dim, *value))
    }

    /// One of its lengths.
    pub fn get(&self, dim: Dim) -> u64 {
        self.0[dim as usize]
    }

    /// The same shape but for one length.
    #[must_use]
    pub fn with(mut self, dim: Dim, value: u64) -> Self {
        self.0[dim as usize] = value;
        self
    }

    /// One of its lengths, as a number to compute with.
    pub(super) fn real(&self, dim: Dim) -> f64 {
        self.get(dim) as f64
    }
}

/// What else tells operations of one device, framework and name apart, as in `op_timings`; empty where it is not known.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Version of the framework or library.
    pub version: String,
    /// Library or kernel.
    pub kernel_source: String,
    /// Backend or implementation.
    pub backend: String,
    /// How tokens fall on experts.
    pub distribution: String,
    /// Model whose shape it is.
    pub model: String,
    /// Number format of the arithmetic.
    pub dtype: String,
    /// Number format of the KV cache.
    pub kv_dtype: String,
    /// Number format of weights, where it is named apart.
    pub weight_dtype: String,
}

impl Key {
    /// Columns of `op_timings`, in the order of [`Self::texts`].
    pub const COLUMNS: [&'static str; 8] =
        ["version", "kernel_source", "backend", "distribution", "model", "dtype", "kv_dtype", "weight_dtype"];

    /// The texts.
    pub fn texts(&self) -> [&str; 8] {
        [
            &self.version,
            &self.kernel_source,
            &self.backend,
            &self.distribution,
            &self.model,
            &self.dtype,
            &self.kv_dtype,
            &self.weight_dtype,
        ]
    }

    /// A key of these texts, in the same order.
    pub fn of(texts: [&str; 8]) -> Self {
        let [version, kernel_source, backend, distribution, model, dtype, kv_dtype, weight_dtype] =
            texts.map(str::to_owned);
        Self { version, kernel_source, backend, distribution, model, dtype, kv_dtype, weight_dtype }
    }
}

/// Sorts out what keys of `op_timings` leave open.
///
/// What a collective moves are bytes: its number format becomes the width of an element, an axis like the others, so that
/// one format's measurements stand in for the holes of another. An exchange among experts that gives no multiprocessors
/// away is the low-latency kernel, and another operation than the one that does.
pub fn pool(op: &str, mut key: Key, shape: Shape) -> (Key, Shape) {
    match op {
        "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" => {
            let width = match key.dtype.as_str() {
                "int8" | "uint8" | "fp8" => 1,
                "half" | "float16" | "fp16" | "bfloat16" | "bf16" => 2,
                "float" | "float32" | "fp32" => 4,
                _ => return (key, shape),
            };
            key.dtype.clear();
            (key, shape.with(Dim::ElementBytes, width))
        }
        "moe_dispatch" | "moe_combine" if key.backend.is_empty() => {
            (if shape.get(Dim::Sms) == 0 { "low_latency" } else { "normal" }).clone_into(&mut key.backend);
            (key, shape)
        }
        _ => (key, shape),
    }
}

/// Measured operations of one device, framework and name; one row each.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// The keys that occur, each once.
    pub keys: Vec<Key>,
    /// Which key a row has.
    pub key: Vec<usize>,
    /// Its shape.
    pub shapes: Vec<Shape>,
    /// Its mean time.
    pub latency_ns: Vec<f64>,
}

impl Rows {
    /// Rows.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Adds a row.
    pub fn push(&mut self, key: &Key, shape: Shape, latency_ns: f64) {
        // Rows of one key follow each other in most tables.
        let last = self.key.last().copied().filter(|last| self.keys[*last] == *key);
        let found = last.or_else(|| self.keys.iter().position(|known| known == key)).unwrap_or_else(|| {
            self.keys.push(key.clone());
            self.keys.len() - 1
        });
        self.key.push(found);
        self.shapes.push(shape);
        self.latency_ns.push(latency_ns);
    }

    /// The rows of each key, in order of the keys' texts.
    pub(super) fn by_key(&self) -> Vec<(usize, Vec<usize>)> {
        let mut found: BTreeMap<&Key, (usize, Vec<usize>)> = BTreeMap::new();
        for (row, key) in self.key.iter().enumerate() {
            found.entry(&self.keys[*key]).or_insert_with(|| (*key, Vec::new())).1.push(row);
        }
        found.into_values().collect()
    }
}
