//! The stage `fp8`: one byte per element, half the bytes of bf16.

use super::quantize::fp8::Fp8;
use super::quantize::{Coding, Form, Forms};
use super::{Floor, Format, Kind, Param, Rule, Skip, format};

/// `fp8(type=e4m3)`.
///
/// Scales are per tensor or per head of the whole cache, some hundred bytes in all, and are not counted. Conversion is part
/// of the load on hardware that has FP8 and costs no flops. For MLA it is one byte per element of the latent and its rotary
/// part.
pub(super) static KIND: Kind = Kind {
    name: "fp8",
    doc: "Stores KV as FP8 with one scale per tensor.",
    floor: Floor::Format,
    params: &[Param { name: "type", default: "e4m3", doc: "`e4m3`, or `e5m2` with more range and less precision." }],
    needs: &[],
    source: "vLLM, docs/features/quantization/quantized_kvcache.md",
    deployment: format::online("vLLM; scales default to 1, calibration is recommended"),
    make: |args| {
        let kind = if args.word("type", &["e4m3", "e5m2"])? == "e5m2" { Fp8::E5m2 } else { Fp8::E4m3 };
        let forms = Forms::one(Form::both(Coding::Fp8(kind)));
        Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits: |_, _| Ok(()), forms }))
    },
};
