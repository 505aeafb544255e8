//! Axes of a surface: logarithms of the lengths that vary, and of products that kernels follow.
//!
//! An axis costs little where it explains nothing, since the fit then gives it no weight. Waves are one that explains
//! much: a product is cut into tiles, each multiprocessor takes one at a time, and the last wave is rarely full, so that
//! time moves in steps.

use super::Tuning;
use super::shape::{Dim, Shape};

/// Axis value of a window that there is none of: above that of any context.
const NO_WINDOW: f64 = 18.0;

/// An axis that is made of lengths.
type Product = (&'static str, fn(&Shape, f64) -> f64);

/// Axes that go up and down as lengths grow: a value outside the measured ones does not mean a shape outside.
const UNEVEN: [&str; 8] = [
    "multi_head",
    "packed_heads",
    "filled_kv_heads",
    "filled_128_128",
    "filled_64_128",
    "filled_128_256",
    "between_powers",
    "factors_of_two",
];

/// The axes of an operation.
#[derive(Debug, Clone)]
pub(super) struct Features {
    /// Lengths that vary among the measured shapes.
    dims: Vec<Dim>,
    products: &'static [Product],
    processors: f64,
}

impl Features {
    /// The axes of an operation with such shapes, on a device of so many multiprocessors.
    pub(super) fn of(op: &str, shapes: &[Shape], processors: f64) -> Self {
        let varies = |dim: &Dim| {
            let mut values = shapes.iter().map(|shape| shape.get(*dim));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        Self { dims: Dim::ALL.into_iter().filter(varies).collect(), products: products(op), processors }
    }

    /// Axes in all.
    pub(super) fn len(&self) -> usize {
        self.dims.len() + self.products.len()
    }

    /// Axes that are lengths; they come first.
    pub(super) fn lengths(&self) -> usize {
        self.dims.len()
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.dims.iter().map(|dim| dim.column()).chain(self.products.iter().map(|(name, _)| *name))
    }

    /// Whether each axis bounds the measured shapes.
    pub(super) fn bounds(&self) -> impl Iterator<Item = bool> + '_ {
        self.names().map(|name| !UNEVEN.contains(&name))
    }

    /// Weights of the axes.
    pub(super) fn scales(&self, tuning: &Tuning) -> Vec<f64> {
        let weight =
            |name: &str| tuning.scales.iter().find(|(known, _)| known == name).map_or(0.0, |(_, scale)| *scale);
        self.names().map(weight).collect()
    }

    /// Where a shape lies on each axis.
    pub(super) fn place(&self, shape: &Shape, into: &mut Vec<f64>) {
        into.clear();
        into.extend(self.dims.iter().map(|dim| length(*dim, shape.get(*dim))));
        into.extend(self.products.iter().map(|(_, product)| product(shape, self.processors)));
    }

    /// Whether a shape has the other lengths, those that did not vary, as `like` has them.
    pub(super) fn alike(&self, shape: &Shape, like: &Shape) -> bool {
        Dim::ALL.iter().all(|dim| self.dims.contains(dim) || shape.get(*dim) == like.get(*dim))
    }
}

fn length(dim: Dim, value: u64) -> f64 {
    match (dim, value) {
        (Dim::WindowTokens, 0) => NO_WINDOW,
        (_, 0) => -1.0,
        _ => (value as f64).log2(),
    }
}

/// A logarithm that zero does not break.
fn log(value: f64) -> f64 {
    value.max(0.5).log2()
}

fn products(op: &str) -> &'static [Product] {
    match op {
        "attention_generation" | "attention_context" | "attention_mixed" => ATTENTION,
        "mla_generation" | "mla_context" | "mla_generation_module" | "mla_context_module" => LATENT,
        "gemm" => GEMM,
        "moe" => EXPERTS,
        "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" => COLLECTIVE,
        _ => &[],
    }
}

/// Tokens of KV that a request's step can see.
fn context(shape: &Shape) -> f64 {
    let all = shape.real(Dim::PastTokens) + shape.real(Dim::NewTokens);
    match shape.get(Dim::WindowTokens) {
        0 => all,
        window => all.min(window as f64),
    }
}

static ATTENTION: &[Product] = &[
    ("batch_kv_heads", |s, _| log(s.real(Dim::Batch) * s.real(Dim::KvHeads))),
    ("batch_heads", |s, _| log(s.real(Dim::Batch) * s.real(Dim::QueryHeads))),
    ("heads_per_kv_head", |s, _| log(group(s))),
    ("context", |s, _| log(context(s))),
    ("kv_elements", |s, _| log(s.real(Dim::Batch) * s.real(Dim::KvHeads) * context(s))),
    ("multi_head", |s, _| f64::from(u8::from(s.get(Dim::QueryHeads) == s.get(Dim::KvHeads)))),
    ("pairs", |s, _| {
        let new = s.real(Dim::NewTokens).max(1.0);
        log(s.real(Dim::Batch) * s.real(Dim::QueryHeads) * context(s) * new)
    }),
    // Kernels pack the query heads of a KV head into tiles of 8, or of powers of two.
    ("tiles_of_8_heads", |s, _| log((group(s) / 8.0).ceil())),
    ("packed_heads", |s, _| log(group(s)).ceil()),
    ("filled_kv_heads", |s, p| filled(s.real(Dim::Batch) * s.real(Dim::KvHeads) / p)),
    ("waves_kv_heads", |s, p| log((s.real(Dim::Batch) * s.real(Dim::KvHeads) / p).ceil())),
];

/// Query heads of a KV head.
fn group(shape: &Shape) -> f64 {
    shape.real(Dim::QueryHeads) / shape.real(Dim::KvHeads).max(1.0)
}

static LATENT: &[Product] = &[
    ("batch_heads", |s, _| log(s.real(Dim::Batch) * s.real(Dim::QueryHeads))),
    ("tokens", |s, _| log(s.real(Dim::Batch) * context(s))),
    ("pairs", |s, _| log(s.real(Dim::Batch) * s.real(Dim::QueryHeads) * context(s) * s.real(Dim::NewTokens).max(1.0))),
];

/// Waves of tiles of `m x n`, as a number that is not whole.
fn waves(shape: &Shape, processors: f64, [m, n]: [f64; 2]) -> f64 {
    (shape.real(Dim::M) / m).ceil() * (shape.real(Dim::N) / n).ceil() / processors
}

fn filled(waves: f64) -> f64 {
    (waves / waves.ceil().max(1.0)).max(1e-6).log2()
}

static GEMM: &[Product] = &[
    ("m_n", |s, _| log(s.real(Dim::M) * s.real(Dim::N))),
    ("m_n_k", |s, _| log(s.real(Dim::M) * s.real(Dim::N) * s.real(Dim::K))),
    ("n_k", |s, _| log(s.real(Dim::N) * s.real(Dim::K))),
    ("filled_128_128", |s, p| filled(waves(s, p, [128.0, 128.0]))),
    ("waves_128_128", |s, p| log(waves(s, p, [128.0, 128.0]).ceil())),
    ("tiles_128", |s, _| log((s.real(Dim::M) / 128.0).ceil())),
    ("filled_64_128", |s, p| filled(waves(s, p, [64.0, 128.0]))),
    ("waves_64_128", |s, p| log(waves(s, p, [64.0, 128.0]).ceil())),
    ("tiles_64", |s, _| log((s.real(Dim::M) / 64.0).ceil())),
    ("filled_128_256", |s, p| filled(waves(s, p, [128.0, 256.0]))),
    ("waves_128_256", |s, p| log(waves(s, p, [128.0, 256.0]).ceil())),
    ("between_powers", |s, _| s.real(Dim::M).max(1.0).log2().fract()),
    ("factors_of_two", |s, _| f64::from(s.get(Dim::M).trailing_zeros().min(7))),
];

/// Libraries choose their protocol by the piece that each device sends.
static COLLECTIVE: &[Product] = &[("piece", |s, _| log(s.real(Dim::MessageBytes) / s.real(Dim::Devices).max(1.0)))];

static EXPERTS: &[Product] = &[
    ("pairs", |s, _| log(s.real(Dim::NewTokens) * s.real(Dim::ActiveExperts))),
    ("inner", |s, _| log(s.real(Dim::Intermediate) / s.real(Dim::TensorParallel).max(1.0))),
    ("local_experts", |s, _| log(s.real(Dim::Experts) / s.real(Dim::ExpertParallel).max(1.0))),
    ("pairs_per_expert", |s, _| {
        (s.real(Dim::NewTokens) * s.real(Dim::ActiveExperts) / s.real(Dim::Experts).max(1.0)).max(1e-3).log2()
    }),
    ("local_pairs", |s, _| {
        (s.real(Dim::NewTokens) * s.real(Dim::ActiveExperts) / s.real(Dim::ExpertParallel).max(1.0)).max(1e-3).log2()
    }),
    ("weights", |s, _| {
        let inner = s.real(Dim::Intermediate) / s.real(Dim::TensorParallel).max(1.0);
        log(s.real(Dim::Hidden) * inner * s.real(Dim::Experts) / s.real(Dim::ExpertParallel).max(1.0))
    }),
];
