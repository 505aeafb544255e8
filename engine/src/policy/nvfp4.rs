//! The stage `nvfp4`: E2M1 elements with an E4M3 scale per 16 elements, 4.5 bits per element.

use super::quantize::{Coding, Form, Forms};
use super::{Floor, Format, Kind, Rule, Skip, format};

/// `nvfp4`. The 4-byte scale of the whole tensor is not counted.
pub(super) static KIND: Kind = Kind {
    name: "nvfp4",
    doc: "Stores KV as 4-bit floating point with an E4M3 scale per 16 elements.",
    floor: Floor::Format,
    params: &[],
    needs: &[],
    source: "NVIDIA, NVFP4 KV cache (2025-12-08)",
    deployment: format::online("TensorRT-LLM; dequantized to FP8 before attention"),
    make: |_| {
        let forms = Forms::one(Form::both(Coding::Nvfp4));
        Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits: format::pairs_only, forms }))
    },
};
