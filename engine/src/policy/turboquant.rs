//! The stage `turboquant`: rotated Lloyd-Max keys and uniform values, in the layout of vLLM.
//!
//! vLLM's version of the method rotates keys by a Hadamard matrix, quantizes them to the Lloyd-Max codebook and keeps one
//! FP16 norm (corrected, so that the norm survives); values are uniform and asymmetric with an FP16 scale and zero. The
//! sign sketch of the paper's inner-product variant is left out there and here. `k=8` keeps keys as FP8 instead.
//!
//! The first and last two layers stay in bf16, as in vLLM for dense models. vLLM turns the format off for models that mix
//! in other kinds of layers, so models with sliding windows are refused; `skip=none` quantizes every layer of them all the
//! same, which no engine does today.

use super::{Args, Deployment, Distortion, Floor, Format, Kind, Param, Rule, TokenCost, quantize};
use crate::error::{Error, Result};
use crate::model::{Attention, KvShape, Model};

/// `turboquant(bits=4,k=bits,v=bits,skip=first2+last2)`.
pub(super) static KIND: Kind = Kind {
    name: "turboquant",
    doc: "Stores rotated keys by a Lloyd-Max codebook and values as uniform integers, in vLLM's slots.",
    floor: Floor::Format,
    params: &[
        Param { name: "bits", default: "4", doc: "Bits per element, 2 to 5." },
        Param { name: "k", default: "bits", doc: "Bits per element of keys, if they differ: 2 to 5, or 8 for FP8." },
        Param { name: "v", default: "bits", doc: "Bits per element of values, if they differ: 2 to 8." },
        Param { name: "skip", default: "first2+last2", doc: "Layers that stay in bf16; `none` for no layer." },
    ],
    needs: &[],
    source: "TurboQuant (arXiv 2504.19874), algorithm 1; layout of vLLM, quantization/turboquant/config.py",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "vLLM",
        breaks_sharing: false,
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    bits(args)?;
    let is_unused = !args.is_word("k", "bits") && !args.is_word("v", "bits") && args.count("bits", 2, 5)? != 4;
    if is_unused {
        return Err(Error::usage("`turboquant`: `bits` has no effect where both `k` and `v` are given"));
    }
    Ok(Rule::Format(Format { is_16bit: false, skip: args.skip("skip")?, admits, cost, distortion }))
}

/// Bits per element of keys and of values.
fn bits(args: &Args) -> Result<(u32, u32)> {
    let both = args.count("bits", 2, 5)?;
    let key = if args.is_word("k", "bits") { both } else { args.count("k", 2, 8)? };
    let value = if args.is_word("v", "bits") { both } else { args.count("v", 2, 8)? };
    if matches!(key, 6 | 7) {
        return Err(Error::usage(format!("`k` of `turboquant`: expected 2 to 5, or 8 for FP8, found `{key}`")));
    }
    Ok((key, value))
}

fn admits(args: &Args, model: &Model) -> Result<()> {
    let has = |kind: fn(&Attention) -> bool| model.groups.iter().any(|group| kind(&group.kv.attention));
    if has(|attention| matches!(attention, Attention::Mla)) {
        return Err(Error::run(format!("`turboquant` has no published layout for the latent of `{}`", model.name))
            .hint("MLA keeps one latent per token, not a pair of K and V; `fp8` is known to work"));
    }
    if has(|attention| matches!(attention, Attention::Sliding { .. })) && !args.is_word("skip", "none") {
        return Err(Error::run(format!(
            "`turboquant` is turned off by vLLM for models with windows such as `{}`",
            model.name
        ))
        .hint("`skip=none` quantizes every layer all the same, which no engine does today"));
    }
    Ok(())
}

/// Bytes of one slot: K and V of one token in one KV head, padded to an even number.
pub(super) fn slot_bytes(key_bits: u32, value_bits: u32, key_dim: u32, value_dim: u32) -> u64 {
    let packed = |dim: u32, bits: u32| (u64::from(dim) * u64::from(bits)).div_ceil(8);
    let key = if key_bits == 8 { u64::from(key_dim) } else { packed(key_dim, key_bits) + 2 };
    (key + packed(value_dim, value_bits) + 4).next_multiple_of(2)
}

/// Per KV head one slot.
///
/// Reading takes a multiply-add (2 flops) per element: codebook times norm, or code times scale plus zero; FP8 keys
/// convert in the load. The rotation of keys is undone on the query, once per step, and is not counted.
/// Writing takes per key of width d: `d log2 d` additions of the Hadamard transform, `3 d` for the norm and the division,
/// and `2^b d` comparisons of a scan of the codebook without branches; per value `5 d`: least, largest, difference,
/// multiplication, rounding.
fn cost(args: &Args, kv: &KvShape) -> TokenCost {
    let (key_bits, value_bits) = bits(args).unwrap_or((4, 4));
    let heads = f64::from(kv.kv_heads);
    let (key, value) = (f64::from(kv.key_dim), f64::from(kv.value_dim));
    let is_fp8 = key_bits == 8;
    let levels = kv.key_dim.max(1).next_power_of_two().trailing_zeros();
    let key_write = if is_fp8 { 0.0 } else { key * (f64::from(levels) + 3.0 + f64::from(1_u32 << key_bits)) };
    TokenCost {
        bytes: u64::from(kv.kv_heads) * slot_bytes(key_bits, value_bits, kv.key_dim, kv.value_dim),
        read_flops: heads * 2.0 * (if is_fp8 { 0.0 } else { key } + value),
        write_flops: heads * (key_write + 5.0 * value),
    }
}

/// Keys from the exact distortion `D` of the codebook: with the norm corrected the error is `2 - 2 sqrt(1 - D)` and logits
/// shrink by `1 - sqrt(1 - D)` (POLICIES 3.6). That takes norms as constant and is 1 to 4% too high at a width of 64, 1 to
/// 2.5% at 128. Values are measured on normal vectors.
fn distortion(args: &Args, dim: u32) -> Distortion {
    let (key_bits, value_bits) = bits(args).unwrap_or((4, 4));
    let value = quantize::measured(dim, |vector| quantize::uniform_roundtrip(vector, value_bits));
    if key_bits == 8 {
        return Distortion { key: quantize::measured(dim, quantize::fp8_roundtrip), value, key_shrink: 0.0 };
    }
    let cosine = (1.0 - quantize::turboquant_distortion(key_bits, dim)).sqrt();
    Distortion { key: 2.0 - 2.0 * cosine, value, key_shrink: 1.0 - cosine }
}
