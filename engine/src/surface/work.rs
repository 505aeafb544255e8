//! How much work an operation of known shape is: the bytes and operations that it cannot do without.
//!
//! Efficiencies are relative to this figure, so that it should be right within tens of percent; what it leaves out (a
//! second pass, a norm) is part of the efficiency. The physical bound is a different figure and must never exceed what a
//! kernel can do: only what surely crosses memory counts.

use super::shape::{Dim, Key, Shape};

/// Rates of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peaks {
    /// Bandwidth of main memory.
    pub memory_bytes_per_s: f64,
    /// Last-level cache: this much may never cross main memory.
    pub cache_bytes: f64,
    /// Dense operations per second in 16 bits.
    pub flops_16bit: f64,
    /// In 8 bits; that of 16 where the part has none.
    pub flops_8bit: f64,
    /// In 4 bits; that of 8 where the part has none.
    pub flops_4bit: f64,
    /// Bandwidth to other devices, one way.
    pub link_bytes_per_s: f64,
    /// Streaming multiprocessors: kernels run in waves of as many blocks.
    pub processors: f64,
}

impl Peaks {
    /// Rates to relate efficiencies to where those of the device are not known. With an infinite cache and without a
    /// bound: nothing is impossible there.
    pub const NOMINAL: Self = Self {
        memory_bytes_per_s: 1e12,
        cache_bytes: f64::INFINITY,
        flops_16bit: 5e14,
        flops_8bit: 1e15,
        flops_4bit: 2e15,
        link_bytes_per_s: 2e11,
        processors: 128.0,
    };

    /// Whether they are those of a real device.
    pub fn known(&self) -> bool {
        self.cache_bytes.is_finite()
    }
}

/// The width of numbers in arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Sixteen,
    Eight,
    Four,
}

/// What an operation needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Bytes of main memory.
    pub bytes: f64,
    /// Operations; a multiplication and an addition are two.
    pub flops: f64,
    /// Bytes to or from other devices.
    pub link_bytes: f64,
    /// Bytes that surely cross main memory, apart from what the cache may hold.
    pub least_bytes: f64,
    width: Width,
    /// Time of work without known bytes: one nanosecond for each token, only to be relative to something.
    nominal_ns: f64,
}

impl Work {
    /// The time that the work takes at peak rates.
    pub fn roofline_ns(&self, peaks: &Peaks) -> f64 {
        let memory = self.bytes / peaks.memory_bytes_per_s;
        let link = self.link_bytes / peaks.link_bytes_per_s;
        (memory.max(link).max(self.flops / self.rate(peaks)) * 1e9).max(self.nominal_ns).max(1e-3)
    }

    /// The time of its bytes alone at peak rates, those on links included.
    pub fn memory_ns(&self, peaks: &Peaks) -> f64 {
        (self.bytes / peaks.memory_bytes_per_s).max(self.link_bytes / peaks.link_bytes_per_s) * 1e9
    }

    /// The time of its operations alone at peak rates.
    pub fn arithmetic_ns(&self, peaks: &Peaks) -> f64 {
        self.flops / self.rate(peaks) * 1e9
    }

    /// Whether its bytes and operations are known, so that it can be carried over to other rates.
    pub fn is_known(&self) -> bool {
        self.nominal_ns <= 0.0
    }

    /// The time that no kernel can be below: bytes beyond the cache over bandwidth. Zero on a device of unknown rates.
    /// Arithmetic sets no bound: clocks rise above those of the data sheet.
    pub fn bound_ns(&self, peaks: &Peaks) -> f64 {
        if !peaks.known() {
            return 0.0;
        }
        let memory = (self.least_bytes - peaks.cache_bytes).max(0.0) / peaks.memory_bytes_per_s;
        memory * 1e9
    }

    fn rate(&self, peaks: &Peaks) -> f64 {
        match self.width {
            Width::Sixteen => peaks.flops_16bit,
            Width::Eight => peaks.flops_8bit,
            Width::Four => peaks.flops_4bit,
        }
    }
}

/// Bytes of an element, with the scales of a block format, and the width of its arithmetic as (weights, arithmetic).
fn format(dtype: &str) -> (f64, Width) {
    match dtype {
        "fp8" | "int8" | "fp8_block" | "float8" | "fp8_e4m3" => (1.0, Width::Eight),
        "nvfp4" => (0.5625, Width::Four),
        "w4a8_mxfp4_mxfp8" => (0.53125, Width::Eight),
        "w4a16_mxfp4" | "int4_wo" => (0.53125, Width::Sixteen),
        _ => (2.0, Width::Sixteen),
    }
}

/// Bytes of an activation beside weights of this format.
fn activation(width: Width) -> f64 {
    match width {
        Width::Sixteen => 2.0,
        Width::Eight => 1.0,
        Width::Four => 0.5625,
    }
}

/// The work of an operation, by its name in `op_timings`.
pub fn work(op: &str, key: &Key, shape: &Shape) -> Work {
    match op {
        "gemm" => gemm(key, shape),
        "attention_generation" | "attention_context" | "attention_mixed" => attention(key, shape),
        "mla_generation" | "mla_context" => latent(key, shape),
        "mla_generation_module" | "mla_context_module" => latent_module(key, shape),
        "moe" => experts(key, shape),
        "all_reduce" => collective(shape, 2.0),
        "all_gather" | "reduce_scatter" | "all_to_all" => collective(shape, 1.0),
        "moe_dispatch" | "moe_combine" => exchange(op, shape),
        _ => layer(shape),
    }
}

fn memory(bytes: f64, flops: f64, width: Width) -> Work {
    Work { bytes, flops, link_bytes: 0.0, least_bytes: bytes, width, nominal_ns: 0.0 }
}

/// `m x k` times `k x n`.
fn gemm(key: &Key, shape: &Shape) -> Work {
    let [m, n, k] = [Dim::M, Dim::N, Dim::K].map(|dim| shape.real(dim));
    let (weight, width) = format(&key.dtype);
    memory(n * k * weight + m * k * activation(width) + m * n * 2.0, 2.0 * m * n * k, width)
}

/// Tokens that a token attends to, in mean over `new` tokens after `past`.
fn attended(new: f64, past: f64, window: f64) -> f64 {
    let mean = past + f64::midpoint(new, 1.0);
    if window <= 0.0 || past + new <= window {
        return mean;
    }
    // The first tokens see all that is before them until the window is full.
    let growing = (window - past).clamp(0.0, new);
    (growing * (past + f64::midpoint(growing, 1.0)) + (new - growing) * window) / new.max(1.0)
}

/// Decoding, prompts, or a batch with both: queries and outputs in 16 bits, KV read once per request.
fn attention(key: &Key, shape: &Shape) -> Work {
    let [batch, new, past] = [Dim::Batch, Dim::NewTokens, Dim::PastTokens].map(|dim| shape.real(dim));
    let [chunk, chunk_past] = [Dim::PrefillTokens, Dim::PrefillPastTokens].map(|dim| shape.real(dim));
    let [heads, kv_heads, head] = [Dim::QueryHeads, Dim::KvHeads, Dim::HeadDim].map(|dim| shape.real(dim).max(1.0));
    let (kv, _) = format(&key.kv_dtype);
    let (_, width) = format(&key.dtype);
    let window = shape.real(Dim::WindowTokens);
    let mut total = memory(0.0, 0.0, width);
    for (requests, new, past) in [(batch, new, past), (1.0, chunk, chunk_past)] {
        if requests * new > 0.0 {
            let mean = attended(new, past, window);
            let read = if window > 0.0 { (past + new).min(window + new) } else { past + new };
            let cache = requests * kv_heads * read * head * 2.0 * kv;
            total.bytes += cache + requests * heads * new * head * 4.0;
            // A window's reads overlap between tokens; what surely crosses is the cache that is read.
            total.least_bytes += requests * kv_heads * (past + new).min(window_or(window)) * head * 2.0 * kv;
            total.flops += 4.0 * requests * heads * head * new * mean;
        }
    }
    total
}

fn window_or(window: f64) -> f64 {
    if window > 0.0 { window } else { f64::INFINITY }
}

/// Widths of multi-head latent attention in DeepSeek-V3 (arXiv 2412.19437, section 4.2): latent of 512, rope of 64, heads
/// of 128. The tables name no others.
const LATENT: f64 = 512.0;
const ROPE: f64 = 64.0;
const HEAD: f64 = 128.0;

/// Decoding over the shared latent, or prompts over expanded heads.
fn latent(key: &Key, shape: &Shape) -> Work {
    let [batch, new, past] = [Dim::Batch, Dim::NewTokens, Dim::PastTokens].map(|dim| shape.real(dim));
    let heads = shape.real(Dim::QueryHeads).max(1.0);
    let (kv, _) = format(&key.kv_dtype);
    let (_, width) = format(&key.dtype);
    let mean = attended(new, past, 0.0);
    if new <= 1.0 {
        let bytes = batch * ((past + new) * (LATENT + ROPE) * kv + heads * (2.0 * LATENT + ROPE) * 2.0);
        return memory(bytes, 2.0 * batch * heads * mean * (2.0 * LATENT + ROPE), width);
    }
    let mut work = memory(
        batch * heads * new * (2.0 * (HEAD + ROPE) + 2.0 * HEAD) * 2.0,
        2.0 * batch * heads * new * mean * (2.0 * HEAD + ROPE),
        width,
    );
    work.least_bytes = 0.0;
    work
}

/// The whole attention module of DeepSeek-V3 (hidden 7168, query latent 1536): projections beside the kernel.
fn latent_module(key: &Key, shape: &Shape) -> Work {
    const HIDDEN: f64 = 7168.0;
    const QUERY: f64 = 1536.0;
    let kernel = latent(key, shape);
    let heads = shape.real(Dim::QueryHeads).max(1.0);
    let tokens = shape.real(Dim::Batch) * shape.real(Dim::NewTokens);
    let (weight, width) = format(&key.weight_dtype);
    let weights =
        HIDDEN * (QUERY + LATENT + ROPE) + heads * (QUERY * (HEAD + ROPE) + LATENT * 2.0 * HEAD + HEAD * HIDDEN);
    Work {
        bytes: kernel.bytes + weights * weight + tokens * HIDDEN * 4.0,
        flops: kernel.flops + 2.0 * tokens * weights,
        least_bytes: 0.0,
        width,
        ..kernel
    }
}

/// Experts of one device: three matrices each, of which distinct ones are read once.
fn experts(key: &Key, shape: &Shape) -> Work {
    let [tokens, hidden, active] = [Dim::NewTokens, Dim::Hidden, Dim::ActiveExperts].map(|dim| shape.real(dim));
    let [tensor, expert] = [Dim::TensorParallel, Dim::ExpertParallel].map(|dim| shape.real(dim).max(1.0));
    let inner = shape.real(Dim::Intermediate) / tensor;
    let experts = shape.real(Dim::Experts).max(1.0);
    let (weight, width) = format(&key.dtype);
    let share = (active / experts).clamp(0.0, 1.0);
    // Expected number of distinct experts among even choices, of those that are here.
    let distinct = if key.distribution == "experts_hit" {
        active
    } else {
        experts / expert * (1.0 - (1.0 - share).powf(tokens.max(0.0)))
    };
    let pairs = if key.distribution == "experts_hit" { tokens } else { tokens * active / expert };
    let bytes = distinct.max(1.0) * 3.0 * hidden * inner * weight + pairs * hidden * 2.0 * activation(width);
    // How many experts are hit, and how many tokens come here, depends on the draw.
    Work { least_bytes: 0.0, ..memory(bytes, 6.0 * pairs * hidden * inner, width) }
}

/// A ring moves `(n - 1) / n` of the larger buffer once, or twice to reduce and spread.
fn collective(shape: &Shape, passes: f64) -> Work {
    let devices = shape.real(Dim::Devices).max(2.0);
    let link_bytes = passes * shape.real(Dim::MessageBytes) * (devices - 1.0) / devices;
    Work { link_bytes, ..memory(0.0, 0.0, Width::Sixteen) }
}

/// Tokens to their experts (8 bits) and back (16 bits).
fn exchange(op: &str, shape: &Shape) -> Work {
    let [tokens, hidden, active] = [Dim::NewTokens, Dim::Hidden, Dim::ActiveExperts].map(|dim| shape.real(dim));
    let width = if op == "moe_dispatch" { 1.0 } else { 2.0 };
    Work { link_bytes: tokens * hidden * active * width, ..memory(0.0, 0.0, Width::Sixteen) }
}

/// A layer by its name: its work is not known, but it grows with its tokens.
fn layer(shape: &Shape) -> Work {
    let tokens = shape.real(Dim::NewTokens).max(shape.real(Dim::Batch)).max(1.0);
    Work { nominal_ns: tokens, ..memory(0.0, 0.0, Width::Sixteen) }
}
