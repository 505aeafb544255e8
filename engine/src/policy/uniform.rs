//! The stage `uniform`: asymmetric integers with one scale and zero per group of a vector, for keys and values alike.
//!
//! The plain form that per-channel keys are compared with: keys have outlier channels, which a scale per token must cover.

use super::quantize::{Coding, Form, Forms};
use super::{Floor, Format, Kind, Param, Rule, Skip, format};

/// `uniform(bits=4,group=64)`.
pub(super) static KIND: Kind = Kind {
    name: "uniform",
    doc: "Stores KV as asymmetric integers with a 16-bit scale and zero per group of each token's vector.",
    floor: Floor::Format,
    params: &[
        Param { name: "bits", default: "4", doc: "Bits per element, 2 to 8." },
        Param { name: "group", default: "64", doc: "Elements per scale and zero; at most the width of a head." },
    ],
    needs: &[],
    source: "round to nearest, per token; no engine's layout is reproduced, so bytes are those of the format alone",
    deployment: format::online("none known with this layout"),
    make: |args| {
        let (bits, group) = (args.count("bits", 2, 8)?, args.count("group", 2, 1024)?);
        let forms = Forms::one(Form::both(Coding::Uniform { bits, group, residual: 0 }));
        Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits: format::pairs_only, forms }))
    },
};
