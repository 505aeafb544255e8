//! The stage `fp8`: E4M3 elements, half the bytes of bf16.

use super::{Deployment, Distortion, Floor, Format, Kind, Rule, Skip, TokenCost, quantize};

/// `fp8`.
///
/// One byte per element. Scales are per tensor or per head of the whole cache, some hundred bytes in all, and are not
/// counted. Conversion is part of the load on hardware that has FP8 and costs no flops. For MLA it is one byte per element
/// of the latent and its rotary part.
pub(super) static KIND: Kind = Kind {
    name: "fp8",
    doc: "Stores KV as FP8 E4M3 with one scale per tensor.",
    floor: Floor::Format,
    params: &[],
    needs: &[],
    source: "vLLM, docs/features/quantization/quantized_kvcache.md",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "vLLM; scales default to 1, calibration is recommended",
        breaks_sharing: false,
    },
    make: |_| {
        Ok(Rule::Format(Format {
            is_16bit: false,
            skip: Skip { first: 0, last: 0 },
            admits: |_, _| Ok(()),
            cost: |_, kv| TokenCost { bytes: kv.elements(), read_flops: 0.0, write_flops: 0.0 },
            distortion: |_, dim| {
                let error = quantize::measured(dim, quantize::fp8_roundtrip);
                Distortion { key: error, value: error, key_shrink: 0.0 }
            },
        }))
    },
};
