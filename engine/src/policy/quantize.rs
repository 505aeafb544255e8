//! Number formats on real vectors: what they store, what comes back, and how far off it is.
//!
//! A [`Coding`] is the format of one part (keys or values). It encodes the rows of a KV head to exactly the bytes that they
//! take in the cache and decodes them again; its bytes per token, its residual window and its error follow from the same
//! description. A [`Form`] is a pair of codings; [`Forms`] may hold a second, better one for the most important tokens.

pub mod bits;
pub mod codebook;
pub mod fp8;
pub mod integer;
pub mod micro;
pub mod nuq;
pub mod rotate;

use super::rng::Rng;
use super::{Distortion, TokenCost};
use crate::error::{Error, Result};
use crate::model::KvShape;
use bits::{packed_bytes, push_bf16, take, take_bf16};
use codebook::{turboquant_distortion, turboquant_product_distortion};
use fp8::Fp8;
use nuq::Nuq;
use rotate::{TurboQuant, Variant};

/// The number format of keys or of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Coding {
    /// 16 bits, as computed.
    Bf16,
    /// One byte per element, scale 1.
    Fp8(Fp8),
    /// Symmetric integers with an FP16 scale per group of a vector.
    Symmetric {
        /// Bits of an element, 2 to 8.
        bits: u32,
        /// Elements per scale.
        group: u32,
    },
    /// Asymmetric integers with an FP16 scale and zero per group of a vector; the last `residual` tokens are in bf16.
    Uniform {
        /// Bits of an element, 1 to 8.
        bits: u32,
        /// Elements per scale and zero.
        group: u32,
        /// Last tokens in bf16.
        residual: u32,
    },
    /// Asymmetric integers with an FP16 scale and zero per channel and group of tokens. Tokens wait in bf16 until
    /// `residual` of them are there; then all of these are quantized at once.
    Channel {
        /// Bits of an element, 1 to 8.
        bits: u32,
        /// Tokens per scale and zero.
        group: u32,
        /// Tokens that are quantized at once, a multiple of `group`.
        residual: u32,
    },
    /// Non-uniform levels with sparse outliers.
    Nuq {
        /// Bits of an element, 1 to 8.
        bits: u32,
        /// Whether scales are per channel and calibrated (keys), or per token and stored (values).
        is_key: bool,
    },
    /// E2M1 with an E4M3 scale per 16 elements.
    Nvfp4,
    /// E2M1 with an E8M0 scale per 32 elements.
    Mxfp4,
    /// A rotated vector by the codebook of its coordinates.
    Rotated {
        /// What is stored beside the codes.
        variant: Variant,
        /// Bits of an element.
        width: Width,
    },
}

/// Bits of an element of a rotated vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Width {
    /// The same for all channels.
    Whole(u32),
    /// One bit more in the channels with the most energy; the two sets are rotated apart, each with a norm of its own.
    Split {
        /// Bits of the other channels.
        low: u32,
        /// Share of the channels with one bit more.
        outliers: f64,
    },
}

/// The number format of keys and of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Form {
    /// Of keys.
    pub key: Coding,
    /// Of values.
    pub value: Coding,
    /// K and V of a token in a KV head are padded to a multiple of so many bytes.
    pub pad: u32,
}

/// The number formats of a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forms {
    /// Of most tokens.
    pub rest: Form,
    /// The share of the most important tokens that have a form of their own, and that form.
    pub hot: Option<(f64, Form)>,
    /// Whether what comes back of the others is divided by what inner products shrink to.
    pub is_rescaled: bool,
}

/// Tokens that a format holds in 16 bits beside the quantized ones, and what that adds in one layer, all KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residual {
    /// Tokens that wait until so many are there: `T mod ring` of `T` tokens. 0 for none.
    pub ring: u32,
    /// Bytes that each of them takes more than a quantized one.
    pub ring_bytes: u64,
    /// Last tokens that always stay: `min(T, tail)` of `T` tokens.
    pub tail: u32,
    /// Bytes that each of them takes more than a quantized one.
    pub tail_bytes: u64,
}

impl Residual {
    /// Whether there is no such token.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Bytes on average over lengths of at least `tail` tokens.
    pub fn mean_bytes(self) -> f64 {
        let waiting = f64::from(self.ring.saturating_sub(1)) / 2.0;
        waiting * self.ring_bytes as f64 + f64::from(self.tail) * self.tail_bytes as f64
    }

    /// The largest of [`Residual::bytes`] over all lengths up to `tokens`.
    pub fn most_bytes(self, tokens: u32) -> u64 {
        let waiting = self.ring.saturating_sub(1).min(tokens);
        u64::from(waiting) * self.ring_bytes + u64::from(tokens.min(self.tail)) * self.tail_bytes
    }

    /// [`Residual::bytes`] summed over the lengths `from + 1` to `from + steps`; `None` from 2^64 bytes on.
    pub fn summed(self, from: u32, steps: u32) -> Option<u64> {
        let to = u128::from(from) + u128::from(steps);
        let (waiting, tail) =
            (self.waiting_to(to) - self.waiting_to(from.into()), self.tail_to(to) - self.tail_to(from.into()));
        let bytes = waiting * u128::from(self.ring_bytes) + tail * u128::from(self.tail_bytes);
        u64::try_from(bytes).ok()
    }

    /// `t mod ring` summed over `t` from 1 to `to`.
    fn waiting_to(self, to: u128) -> u128 {
        let ring = u128::from(self.ring.max(1));
        let (rounds, rest) = (to / ring, to % ring);
        rounds * (ring * (ring - 1) / 2) + rest * (rest + 1) / 2
    }

    /// `min(t, tail)` summed over `t` from 1 to `to`.
    fn tail_to(self, to: u128) -> u128 {
        let rising = to.min(u128::from(self.tail));
        rising * (rising + 1) / 2 + (to - rising) * u128::from(self.tail)
    }

    /// Bytes that are added to `tokens` times the bytes of a quantized token: exact for every length.
    pub fn bytes(self, tokens: u32) -> u64 {
        let waiting = if self.ring == 0 { 0 } else { tokens % self.ring };
        u64::from(waiting) * self.ring_bytes + u64::from(tokens.min(self.tail)) * self.tail_bytes
    }
}

/// Channels with one bit more in vectors of this width.
fn outlier_channels(dim: u32, outliers: f64) -> u32 {
    ((f64::from(dim) * outliers).round() as u32).min(dim)
}

/// Bytes of one quantized token in one layer of so many heads, metadata included.
fn layer_bytes(coding: Coding, dim: u32, heads: u32) -> u64 {
    let (width, count) = (dim as usize, u64::from(heads));
    let groups = |group: u32| dim.div_ceil(group.clamp(1, dim.max(1)));
    // Codes of a group are padded to whole bytes.
    let grouped = |bits: u32, group: u32, head: u64| -> u64 {
        let group = group.clamp(1, dim.max(1)) as usize;
        let (whole, last) = (width / group, width % group);
        (whole * packed_bytes(group, bits) + packed_bytes(last, bits)) as u64 + head * u64::from(groups(group as u32))
    };
    match coding {
        Coding::Bf16 => 2 * u64::from(dim) * count,
        Coding::Fp8(_) => u64::from(dim) * count,
        Coding::Symmetric { bits, group } => count * grouped(bits, group, 2),
        Coding::Uniform { bits, group, .. } => count * grouped(bits, group, 4),
        Coding::Channel { bits, group, .. } => {
            let group = group.max(1);
            let per_channel = packed_bytes(group as usize, bits) as u64 + 4;
            (count * u64::from(dim) * per_channel).div_ceil(u64::from(group))
        }
        Coding::Nuq { bits, is_key } => {
            let elements = u64::from(dim) * count;
            let outliers = (elements as f64 * nuq::OUTLIERS).round() as u64 * nuq::OUTLIER_BYTES;
            (elements * u64::from(bits)).div_ceil(8) + outliers + if is_key { 4 } else { 8 }
        }
        Coding::Nvfp4 => count * (u64::from(dim.div_ceil(2)) + u64::from(dim.div_ceil(micro::NVFP4_BLOCK as u32))),
        Coding::Mxfp4 => count * (u64::from(dim.div_ceil(2)) + u64::from(dim.div_ceil(micro::MXFP4_BLOCK as u32))),
        Coding::Rotated { variant, width } => {
            let of = |bits: u32, dim: u32| match dim {
                0 => 0,
                _ => rotate::turboquant_bytes(variant, bits, dim as usize) as u64,
            };
            count
                * match width {
                    Width::Whole(bits) => of(bits, dim),
                    Width::Split { low, outliers } => {
                        let high = outlier_channels(dim, outliers);
                        of(low + 1, high) + of(low, dim - high)
                    }
                }
        }
    }
}

/// Flops per element outside the tensor units: when it is read, and when it is written.
///
/// FP8 and bf16 convert in the load. Others take a multiply-add (2 flops) to read. Symmetric integers and E2M1 take the
/// largest magnitude, a multiplication and a rounding to write; asymmetric ones also the least and a difference;
/// non-uniform ones the scaling and a scan of the levels. A rotation takes `log2 d` additions per element by a Hadamard
/// transform, the norm and the division 3, and the codebook `2^b` comparisons without branches; it is undone on the query,
/// or on the output, once per step, which is not counted. The sketch of `prod` takes 2 more to read, and 2 `d` to write.
fn element_flops(coding: Coding, dim: u32) -> (f64, f64) {
    let levels = f64::from(dim.max(1).next_power_of_two().trailing_zeros());
    match coding {
        Coding::Bf16 | Coding::Fp8(_) => (0.0, 0.0),
        Coding::Symmetric { .. } | Coding::Nvfp4 | Coding::Mxfp4 => (2.0, 3.0),
        Coding::Uniform { .. } | Coding::Channel { .. } => (2.0, 5.0),
        Coding::Nuq { bits, .. } => (2.0, 4.0 + f64::from(1_u32 << bits.min(8))),
        Coding::Rotated { variant, width } => {
            let is_prod = variant == Variant::Prod;
            let codebook = |bits: u32| f64::from(1_u32 << (bits.min(8) - u32::from(is_prod)));
            let scan = match width {
                Width::Whole(bits) => codebook(bits),
                Width::Split { low, outliers } => outliers * codebook(low + 1) + (1.0 - outliers) * codebook(low),
            };
            let sketch = if is_prod { (2.0, 2.0 * f64::from(dim)) } else { (0.0, 0.0) };
            (2.0 + sketch.0, levels + 3.0 + scan + sketch.1)
        }
    }
}

/// Elements that a measured distortion averages over: about 0.5% accuracy in a few milliseconds.
const MEASURED_ELEMENTS: u32 = 1 << 17;

/// The mean of `|x - x~|^2 / |x|^2` over seeded normal vectors of this width: the stand-in for real ones where a format's
/// error has no closed form.
pub fn measured(coding: Coding, dim: u32) -> f64 {
    let dim = dim.max(1);
    let count = (MEASURED_ELEMENTS / dim).max(1);
    let mut rng = Rng::new(1);
    let rows: Vec<f32> = (0..count * dim).map(|_| rng.normal() as f32).collect();
    // Of this width and these rows, so that nothing can be refused.
    roundtrip(coding, &rows, dim as usize)
        .map_or(0.0, |(decoded, _)| mean_relative_error(&rows, &decoded, dim as usize))
}

/// The mean of `|x - x~|^2 / |x|^2` over rows of `dim` elements.
pub fn mean_relative_error(rows: &[f32], decoded: &[f32], dim: usize) -> f64 {
    let dim = dim.max(1);
    let count = (rows.len() / dim).max(1);
    let pairs = rows.chunks_exact(dim).zip(decoded.chunks_exact(dim));
    pairs.map(|(row, decoded)| relative_error(row, decoded)).sum::<f64>() / count as f64
}

/// `|x - x~|^2 / |x|^2`; 0 for a vector of zeros that comes back as such.
pub fn relative_error(vector: &[f32], decoded: &[f32]) -> f64 {
    let error: f64 = vector.iter().zip(decoded).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    let energy: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum();
    if error == 0.0 { 0.0 } else { error / energy }
}

/// Relative error of inner products (as that of an error of random direction), of the vector, and the shrinking of inner
/// products.
///
/// For rotated vectors in closed form (POLICIES 3.6): the error of `mse` is the codebook's `D`, and inner products shrink
/// by it; with the norm corrected `2 - 2 sqrt(1 - D)` and `1 - sqrt(1 - D)`, which takes norms as constant and is 1 to 4%
/// too high at a width of 64. Inner products of `prod` are unbiased and err by `(pi / 2) D` of one bit less; the vector
/// itself by `(pi / 2 - 1 / d) D`. Others are measured on normal vectors, where they hardly shrink.
fn coding_distortion(coding: Coding, dim: u32) -> (f64, f64, f64) {
    match coding {
        Coding::Bf16 => (0.0, 0.0, 0.0),
        Coding::Rotated { variant, width: Width::Whole(bits) } => rotated_distortion(variant, bits, dim),
        Coding::Rotated { variant, width: Width::Split { low, outliers } } => {
            let high = outlier_channels(dim, outliers);
            let share = f64::from(high) / f64::from(dim.max(1));
            let (more, less) =
                (rotated_distortion(variant, low + 1, high), rotated_distortion(variant, low, dim - high));
            let mix = |more: f64, less: f64| share * more + (1.0 - share) * less;
            (mix(more.0, less.0), mix(more.1, less.1), mix(more.2, less.2))
        }
        // The window in bf16 is no part of the error of what is quantized.
        Coding::Uniform { bits, group, .. } => even(measured(Coding::Uniform { bits, group, residual: 0 }, dim)),
        Coding::Channel { bits, group, .. } => even(measured(Coding::Channel { bits, group, residual: group }, dim)),
        _ => even(measured(coding, dim)),
    }
}

fn even(error: f64) -> (f64, f64, f64) {
    (error, error, 0.0)
}

fn rotated_distortion(variant: Variant, bits: u32, dim: u32) -> (f64, f64, f64) {
    match variant {
        Variant::Mse => {
            let error = turboquant_distortion(bits, dim);
            (error, error, error)
        }
        Variant::Corrected => {
            let cosine = (1.0 - turboquant_distortion(bits, dim)).sqrt();
            (2.0 - 2.0 * cosine, 2.0 - 2.0 * cosine, 1.0 - cosine)
        }
        Variant::Prod => {
            let product = turboquant_product_distortion(bits, codebook::Density::Sphere(dim));
            let of_vector = 1.0 - std::f64::consts::FRAC_2_PI / f64::from(dim.max(1));
            (product, product * of_vector, 0.0)
        }
    }
}

impl Form {
    /// Keys and values in the same coding.
    pub fn both(coding: Coding) -> Self {
        Self { key: coding, value: coding, pad: 1 }
    }

    /// Bytes of one quantized token in one layer, all KV heads, metadata included.
    pub fn token_bytes(&self, kv: &KvShape) -> u64 {
        if self.pad > 1 {
            let slot = layer_bytes(self.key, kv.key_dim, 1) + layer_bytes(self.value, kv.value_dim, 1);
            return u64::from(kv.kv_heads) * slot.next_multiple_of(self.pad.into());
        }
        layer_bytes(self.key, kv.key_dim, kv.kv_heads) + layer_bytes(self.value, kv.value_dim, kv.kv_heads)
    }

    /// Bytes and arithmetic of one quantized token in one layer, all KV heads.
    pub fn cost(&self, kv: &KvShape) -> TokenCost {
        let (key_read, key_write) = element_flops(self.key, kv.key_dim);
        let (value_read, value_write) = element_flops(self.value, kv.value_dim);
        let (keys, values) = (f64::from(kv.key_dim), f64::from(kv.value_dim));
        let heads = f64::from(kv.kv_heads);
        TokenCost {
            bytes: self.token_bytes(kv),
            read_flops: heads * (key_read * keys + value_read * values),
            write_flops: heads * (key_write * keys + value_write * values),
        }
    }

    /// Tokens in 16 bits beside the quantized ones.
    pub fn residual(&self, kv: &KvShape) -> Residual {
        let extra = |coding: Coding, dim: u32| {
            layer_bytes(Coding::Bf16, dim, kv.kv_heads).saturating_sub(layer_bytes(coding, dim, kv.kv_heads))
        };
        let mut all = Residual::default();
        if let Coding::Channel { residual, .. } = self.key {
            (all.ring, all.ring_bytes) = (residual, extra(self.key, kv.key_dim));
        }
        if let Coding::Uniform { residual, .. } = self.value {
            (all.tail, all.tail_bytes) = (residual, extra(self.value, kv.value_dim));
        }
        all
    }

    /// The error that it puts into K and V vectors of this width.
    pub fn distortion(&self, dim: u32) -> Distortion {
        let (key, of_key, key_shrink) = coding_distortion(self.key, dim);
        let value = if self.key == self.value { of_key } else { coding_distortion(self.value, dim).1 };
        Distortion { key, value, key_shrink }
    }

    /// The same once inner products are unbiased: with the error `e` and the shrinking `s` of what comes back, division by
    /// `1 - s` leaves `(e + 1 - 2 s) / (1 - s)^2 - 1`, which is `D / (1 - D)` for a codebook of centroids.
    fn rescaled(&self, dim: u32) -> Distortion {
        let of = |coding: Coding| {
            let (_, error, shrink) = coding_distortion(coding, dim);
            if shrink > 0.0 { (error + 1.0 - 2.0 * shrink) / (1.0 - shrink).powi(2) - 1.0 } else { error }
        };
        Distortion { key: of(self.key), value: of(self.value), key_shrink: 0.0 }
    }

    /// Whether inner products with what comes back are smaller than they should be.
    pub fn shrinks(&self) -> bool {
        let is_centroid = |coding| matches!(coding, Coding::Rotated { variant: Variant::Mse | Variant::Corrected, .. });
        is_centroid(self.key) || is_centroid(self.value)
    }
}

impl Forms {
    /// One form for all tokens.
    pub fn one(form: Form) -> Self {
        Self { rest: form, hot: None, is_rescaled: false }
    }

    /// Mean bytes and arithmetic of one token in one layer; bytes are rounded up.
    pub fn cost(&self, kv: &KvShape) -> TokenCost {
        let rest = self.rest.cost(kv);
        let Some((share, form)) = self.hot else { return rest };
        let hot = form.cost(kv);
        let mix = |hot: f64, rest: f64| share * hot + (1.0 - share) * rest;
        TokenCost {
            // 20% of 100 bytes is 20.000000000000004 in floating point and must not become 21.
            bytes: (mix(hot.bytes as f64, rest.bytes as f64) - 1e-6).ceil() as u64,
            read_flops: mix(hot.read_flops, rest.read_flops),
            write_flops: mix(hot.write_flops, rest.write_flops),
        }
    }

    /// Tokens in 16 bits beside the quantized ones, as if all were of the rest.
    pub fn residual(&self, kv: &KvShape) -> Residual {
        self.rest.residual(kv)
    }

    /// Whether vectors come back as they were.
    pub fn is_exact(&self) -> bool {
        self.rest == Form::both(Coding::Bf16)
    }

    /// The error of a token taken at random. That of what is attended to is lower in a mix, since the hot tokens get the
    /// better form; on vectors it is exact.
    pub fn distortion(&self, dim: u32) -> Distortion {
        let rest = if self.is_rescaled { self.rest.rescaled(dim) } else { self.rest.distortion(dim) };
        let Some((share, form)) = self.hot else { return rest };
        let hot = form.distortion(dim);
        let mix = |hot: f64, rest: f64| share * hot + (1.0 - share) * rest;
        Distortion {
            key: mix(hot.key, rest.key),
            value: mix(hot.value, rest.value),
            key_shrink: mix(hot.key_shrink, rest.key_shrink),
        }
    }
}

/// A coding made ready for vectors of one width: rotations, codebooks and calibration.
#[derive(Debug, Clone)]
pub struct Codec {
    coding: Coding,
    dim: usize,
    tables: Tables,
}

#[derive(Debug, Clone)]
enum Tables {
    None,
    Nuq(Nuq),
    Rotated(Vec<Part>),
}

/// Channels that are rotated together.
#[derive(Debug, Clone)]
struct Part {
    quantizer: TurboQuant,
    channels: Vec<u16>,
}

/// Seed of all rotations: they are fixed and shared.
const ROTATION: u64 = 7;

/// Makes a coding ready for rows of `dim` elements. Codings that calibrate do so on `rows`; what they find there are
/// constants of the model and no part of the stored bytes.
///
/// # Errors
/// A width of 0 or above 65,535, rows that do not end with a whole vector, and a residual that is no multiple of its
/// group.
pub fn prepare(coding: Coding, rows: &[f32], dim: usize) -> Result<Codec> {
    if dim == 0 || dim > usize::from(u16::MAX) || !rows.len().is_multiple_of(dim) {
        return Err(Error::data(format!(
            "expected vectors of 1 to 65535 elements, found {} elements in vectors of {dim}",
            rows.len()
        )));
    }
    let tables = match coding {
        Coding::Nuq { bits, is_key } => Tables::Nuq(nuq::nuq_calibrate(rows, dim, bits, is_key)),
        Coding::Rotated { variant, width } => Tables::Rotated(parts(variant, width, rows, dim)),
        Coding::Channel { group, residual, .. } if group == 0 || residual == 0 || !residual.is_multiple_of(group) => {
            return Err(Error::usage(format!("expected a residual in groups of {group} tokens, found {residual}")));
        }
        _ => Tables::None,
    };
    Ok(Codec { coding, dim, tables })
}

fn parts(variant: Variant, width: Width, rows: &[f32], dim: usize) -> Vec<Part> {
    let part = |bits: u32, channels: &[u16]| Part {
        quantizer: rotate::turboquant(variant, bits, channels.len() as u32, ROTATION),
        channels: channels.to_vec(),
    };
    match width {
        Width::Whole(bits) => vec![part(bits, &(0..dim as u16).collect::<Vec<_>>())],
        Width::Split { low, outliers } => {
            let order = rotate::channels_by_energy(rows, dim);
            let (high, rest) = order.split_at(outlier_channels(dim as u32, outliers) as usize);
            let both = [part(low + 1, high), part(low, rest)];
            both.into_iter().filter(|part| !part.channels.is_empty()).collect()
        }
    }
}

/// Rows of a channel coding that are quantized; the rest wait in bf16.
fn quantized_rows(codec: &Codec, tokens: usize) -> usize {
    match codec.coding {
        Coding::Channel { residual, .. } => tokens - tokens % (residual.max(1) as usize),
        Coding::Uniform { residual, .. } => tokens.saturating_sub(residual as usize),
        _ => tokens,
    }
}

/// Appends rows of the codec's width as the cache would store them.
///
/// # Errors
/// Rows that do not end with a whole vector.
pub fn encode(codec: &Codec, rows: &[f32], out: &mut Vec<u8>) -> Result<()> {
    check_rows(codec, rows.len())?;
    let dim = codec.dim;
    let (quantized, waiting) = rows.split_at(quantized_rows(codec, rows.len() / dim) * dim);
    match (codec.coding, &codec.tables) {
        (_, Tables::Nuq(nuq)) => nuq::nuq_encode(nuq, quantized, out)?,
        (_, Tables::Rotated(parts)) => {
            let mut gathered = Vec::with_capacity(dim);
            for row in quantized.chunks_exact(dim) {
                for part in parts {
                    gathered.clear();
                    gathered.extend(part.channels.iter().map(|channel| row[usize::from(*channel)]));
                    rotate::turboquant_encode(&part.quantizer, &gathered, out)?;
                }
            }
        }
        (Coding::Fp8(kind), _) => out.extend(quantized.iter().map(|x| fp8::fp8_encode(kind, *x))),
        (Coding::Symmetric { bits, group }, _) => {
            quantized.chunks_exact(dim).for_each(|row| integer::symmetric_encode(row, bits, group as usize, out));
        }
        (Coding::Uniform { bits, group, .. }, _) => {
            quantized.chunks_exact(dim).for_each(|row| integer::uniform_encode(row, bits, group as usize, out));
        }
        (Coding::Channel { bits, group, .. }, _) => integer::channel_encode(quantized, dim, bits, group as usize, out),
        (Coding::Nvfp4, _) => micro::nvfp4_encode(quantized, dim, out),
        (Coding::Mxfp4, _) => quantized.chunks_exact(dim).for_each(|row| micro::mxfp4_encode(row, out)),
        (Coding::Bf16 | Coding::Nuq { .. } | Coding::Rotated { .. }, _) => push_bf16(quantized, out),
    }
    push_bf16(waiting, out);
    Ok(())
}

/// The rows that [`encode`] wrote.
///
/// # Errors
/// Rows that do not end with a whole vector, and fewer bytes than they take.
pub fn decode(codec: &Codec, bytes: &[u8], rows: &mut [f32]) -> Result<()> {
    check_rows(codec, rows.len())?;
    let (dim, tokens) = (codec.dim, rows.len() / codec.dim);
    let (quantized, waiting) = rows.split_at_mut(quantized_rows(codec, tokens) * dim);
    let bytes = &mut &bytes[..];
    match (codec.coding, &codec.tables) {
        (_, Tables::Nuq(nuq)) => nuq::nuq_decode(nuq, bytes, quantized)?,
        (_, Tables::Rotated(parts)) => {
            let mut gathered = vec![0.0; dim];
            for row in quantized.chunks_exact_mut(dim) {
                for part in parts {
                    let decoded = &mut gathered[..part.channels.len()];
                    rotate::turboquant_decode(&part.quantizer, bytes, decoded)?;
                    for (channel, x) in part.channels.iter().zip(decoded) {
                        row[usize::from(*channel)] = *x;
                    }
                }
            }
        }
        (Coding::Fp8(kind), _) => {
            let codes = take(bytes, quantized.len())?;
            quantized.iter_mut().zip(codes).for_each(|(x, code)| *x = fp8::fp8_decode(kind, *code));
        }
        (Coding::Symmetric { bits, group }, _) => {
            let mut rows = quantized.chunks_exact_mut(dim);
            rows.try_for_each(|row| integer::symmetric_decode(bytes, bits, group as usize, row))?;
        }
        (Coding::Uniform { bits, group, .. }, _) => {
            let mut rows = quantized.chunks_exact_mut(dim);
            rows.try_for_each(|row| integer::uniform_decode(bytes, bits, group as usize, row))?;
        }
        (Coding::Channel { bits, group, .. }, _) => {
            integer::channel_decode(bytes, dim, bits, group as usize, quantized)?;
        }
        (Coding::Nvfp4, _) => micro::nvfp4_decode(bytes, dim, quantized)?,
        (Coding::Mxfp4, _) => quantized.chunks_exact_mut(dim).try_for_each(|row| micro::mxfp4_decode(bytes, row))?,
        (Coding::Bf16 | Coding::Nuq { .. } | Coding::Rotated { .. }, _) => take_bf16(bytes, quantized)?,
    }
    take_bf16(bytes, waiting)
}

fn check_rows(codec: &Codec, elements: usize) -> Result<()> {
    if elements.is_multiple_of(codec.dim) {
        return Ok(());
    }
    Err(Error::data(format!("expected vectors of {} elements, found {elements} in all", codec.dim)))
}

/// The nearest FP16 number, as norms are stored.
pub(super) fn half_rounded(x: f32) -> f32 {
    bits::to_half(x)
}

/// Rows of `dim` elements through the cache and back, and the bytes that they took there.
///
/// # Errors
/// As [`prepare`].
pub fn roundtrip(coding: Coding, rows: &[f32], dim: usize) -> Result<(Vec<f32>, usize)> {
    let codec = prepare(coding, rows, dim)?;
    let (mut bytes, mut decoded) = (Vec::new(), vec![0.0; rows.len()]);
    encode(&codec, rows, &mut bytes)?;
    decode(&codec, &bytes, &mut decoded)?;
    Ok((decoded, bytes.len()))
}

/// Sends the rows that are picked through the cache in this coding, in place; returns the bytes that they take there.
///
/// # Errors
/// As [`prepare`].
pub fn roundtrip_some(
    coding: Coding,
    rows: &mut [f32],
    dim: usize,
    is_picked: impl Fn(usize) -> bool,
) -> Result<usize> {
    let width = dim.max(1);
    let picked = rows.chunks_exact(width).enumerate().filter(|(at, _)| is_picked(*at));
    let gathered: Vec<f32> = picked.flat_map(|(_, row)| row).copied().collect();
    let (decoded, bytes) = roundtrip(coding, &gathered, dim)?;
    let targets = rows.chunks_exact_mut(width).enumerate().filter(|(at, _)| is_picked(*at));
    for ((_, row), back) in targets.zip(decoded.chunks_exact(width)) {
        row.copy_from_slice(back);
    }
    Ok(bytes)
}

/// What comes back of the keys and values of one head.
#[derive(Debug, Clone, PartialEq)]
pub struct Restored {
    /// Keys, as many as went in.
    pub keys: Vec<f32>,
    /// Values.
    pub values: Vec<f32>,
    /// Bytes that both take in the cache.
    pub bytes: u64,
}

/// Keys and values (tokens x width each) of one head through the cache and back. Where the forms are two, `importance` has
/// one score per token, and the best share of them (rounded up, the earlier of equals) is hot; otherwise it is not read.
///
/// # Errors
/// As [`prepare`], and scores that are not as many as the tokens where they are needed.
pub fn restore(
    forms: &Forms,
    (keys, key_dim): (&[f32], usize),
    (values, value_dim): (&[f32], usize),
    importance: &[f32],
) -> Result<Restored> {
    let Some((share, hot)) = forms.hot else {
        let (mut keys, key_bytes) = roundtrip(forms.rest.key, keys, key_dim)?;
        let (mut values, value_bytes) = roundtrip(forms.rest.value, values, value_dim)?;
        if forms.is_rescaled {
            super::vectors::rescale(&mut keys, coding_distortion(forms.rest.key, key_dim as u32).2);
            super::vectors::rescale(&mut values, coding_distortion(forms.rest.value, value_dim as u32).2);
        }
        return Ok(Restored { keys, values, bytes: (key_bytes + value_bytes) as u64 });
    };
    let tokens = keys.len() / key_dim.max(1);
    if importance.len() != tokens {
        return Err(Error::data(format!("expected {tokens} scores of importance, found {}", importance.len())));
    }
    let mut is_hot = vec![false; tokens];
    super::vectors::retain(&mut is_hot, importance, share);
    let marked = |at: usize| is_hot.get(at).copied().unwrap_or(false);
    let (mut keys, mut values) = (keys.to_vec(), values.to_vec());
    let mut bytes = 0;
    for (rows, dim, hot, rest) in
        [(&mut keys, key_dim, hot.key, forms.rest.key), (&mut values, value_dim, hot.value, forms.rest.value)]
    {
        bytes += roundtrip_some(hot, rows, dim, marked)?;
        bytes += roundtrip_some(rest, rows, dim, |at| !marked(at))?;
        if forms.is_rescaled {
            let shrink = coding_distortion(rest, dim as u32).2;
            let rows = rows.chunks_exact_mut(dim.max(1)).enumerate().filter(|(at, _)| !marked(*at));
            rows.for_each(|(_, row)| super::vectors::rescale(row, shrink));
        }
    }
    Ok(Restored { keys, values, bytes: bytes as u64 })
}

#[cfg(test)]
mod tests;
