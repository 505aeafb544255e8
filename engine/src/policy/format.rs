//! What the stages that set a number format share: the forms that have a short name, and models that they refuse.

use super::quantize::fp8::Fp8;
use super::quantize::rotate::Variant;
use super::quantize::{Coding, Form, Width};
use super::{Args, Deployment};
use crate::error::{Error, Result, unknown};
use crate::model::Model;

/// Deployment of a format that quantizes as it goes: nothing is calibrated, and blocks stay shareable.
pub(super) const fn online(engines: &'static str) -> Deployment {
    Deployment { engines, breaks_sharing: false, ..Deployment::NONE }
}

/// Refuses models with MLA, whose latent serves as K and V at once.
///
/// # Errors
/// Such a model.
pub(super) fn pairs_only(args: &Args, model: &Model) -> Result<()> {
    if model.groups.iter().any(|group| group.kv.attention.is_latent()) {
        let name = args.kind().name;
        return Err(Error::run(format!("`{name}` has no published layout for the latent of `{}`", model.name))
            .hint("MLA keeps one latent per token, not a pair of K and V; `fp8` is known to work"));
    }
    Ok(())
}

/// vLLM's slots: rotated keys with one corrected norm (FP8 where `key_bits` is 8), uniform values with one scale and zero,
/// both padded to an even number of bytes.
pub(super) fn vllm_slot(key_bits: u32, value_bits: u32) -> Form {
    let key = if key_bits == 8 {
        Coding::Fp8(Fp8::E4m3)
    } else {
        Coding::Rotated { variant: Variant::Corrected, width: Width::Whole(key_bits) }
    };
    Form { key, value: Coding::Uniform { bits: value_bits, group: u32::MAX, residual: 0 }, pad: 2 }
}

/// Forms that can be named without parameters, each as its stage has it by default.
const NAMED: [&str; 10] =
    ["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4", "turboquant2", "turboquant3", "turboquant4", "turboquant5"];

/// The form of this short name.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub(super) fn named(text: &str) -> Result<Form> {
    Ok(match text {
        "bf16" => Form::both(Coding::Bf16),
        "fp8" => Form::both(Coding::Fp8(Fp8::E4m3)),
        "int8" => Form::both(Coding::Symmetric { bits: 8, group: 128 }),
        "int4" => Form::both(Coding::Symmetric { bits: 4, group: 128 }),
        "nvfp4" => Form::both(Coding::Nvfp4),
        "mxfp4" => Form::both(Coding::Mxfp4),
        "turboquant2" => vllm_slot(2, 2),
        "turboquant3" => vllm_slot(3, 3),
        "turboquant4" => vllm_slot(4, 4),
        "turboquant5" => vllm_slot(5, 5),
        _ => return Err(unknown("number format", text, NAMED)),
    })
}
