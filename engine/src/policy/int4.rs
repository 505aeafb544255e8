//! The stage `int4`: symmetric 4-bit integers with one 16-bit scale per group of a vector.

use super::{Args, Deployment, Distortion, Floor, Format, Kind, Param, Rule, Skip, TokenCost, quantize};
use crate::error::{Error, Result};
use crate::model::{Attention, KvShape, Model};

/// `int4(group=128)`.
pub(super) static KIND: Kind = Kind {
    name: "int4",
    doc: "Stores KV as symmetric 4-bit integers with a 16-bit scale per group of each vector.",
    floor: Floor::Format,
    params: &[Param { name: "group", default: "128", doc: "Elements per scale; at most the width of a head." }],
    needs: &[],
    source: "round to nearest, per token; no engine's layout is reproduced, so bytes are those of the format alone",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "none known with this layout",
        breaks_sharing: false,
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    group(args)?;
    Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits, cost, distortion }))
}

fn group(args: &Args) -> Result<u32> {
    args.count("group", 2, 1024)
}

fn admits(_: &Args, model: &Model) -> Result<()> {
    if model.groups.iter().any(|group| group.kv.attention == Attention::Mla) {
        return Err(Error::run(format!("`int4` has no published layout for the latent of `{}`", model.name))
            .hint("MLA keeps one latent per token, not a pair of K and V; `fp8` is known to work"));
    }
    Ok(())
}

/// Per vector `ceil(d / 2)` bytes and 2 bytes per group, where a group is never wider than the vector. Reading takes a
/// conversion and a multiplication per element; writing the largest magnitude, a multiplication and a rounding.
fn cost(args: &Args, kv: &KvShape) -> TokenCost {
    let group = group(args).unwrap_or(128);
    let vector = |dim: u32| u64::from(dim.div_ceil(2)) + 2 * u64::from(dim.div_ceil(group.min(dim).max(1)));
    let elements = kv.elements() as f64;
    TokenCost {
        bytes: u64::from(kv.kv_heads) * (vector(kv.key_dim) + vector(kv.value_dim)),
        read_flops: 2.0 * elements,
        write_flops: 3.0 * elements,
    }
}

fn distortion(args: &Args, dim: u32) -> Distortion {
    let group = group(args).unwrap_or(128) as usize;
    let error = quantize::measured(dim, |vector| quantize::int4_roundtrip(vector, group));
    Distortion { key: error, value: error, key_shrink: 0.0 }
}
