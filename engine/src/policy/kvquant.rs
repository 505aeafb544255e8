//! The stage `kvquant`: calibrated non-uniform levels with 1% of the elements as sparse outliers.
//!
//! Bytes per layer and token: the codes, 4 bytes per outlier (FP16 and its place), a 4-byte pointer each for K and V, and
//! for V a scale and a zero; with 4,096 elements that is 4.33, 3.33 and 2.33 bits (published: 4.33, 3.35, 2.33). The first
//! token stays in 16 bits, some hundred bytes per layer that are not counted.

use super::quantize::{Coding, Form, Forms};
use super::{Args, Deployment, Floor, Format, Kind, Param, Rule, Skip, format};
use crate::error::Result;

/// `kvquant(bits=3)`.
pub(super) static KIND: Kind = Kind {
    name: "kvquant",
    doc: "Stores KV by calibrated non-uniform levels, with 1% of the elements as sparse outliers in FP16.",
    floor: Floor::Format,
    params: &[Param { name: "bits", default: "3", doc: "Bits per element, 2 to 4." }],
    needs: &[],
    source: "KVQuant (arXiv 2401.18079), nuqX-1%, as its README describes it",
    deployment: Deployment {
        // 16 samples of 2K tokens.
        calibration_tokens: 32_768,
        per_model_constants: true,
        ..format::online("research code: SqueezeAILab/KVQuant")
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let bits = args.count("bits", 2, 4)?;
    let form = Form { key: Coding::Nuq { bits, is_key: true }, value: Coding::Nuq { bits, is_key: false }, pad: 1 };
    Ok(Rule::Format(Format {
        is_16bit: false,
        skip: Skip::default(),
        admits: format::pairs_only,
        forms: Forms::one(form),
    }))
}
