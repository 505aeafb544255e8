//! The stage `mxfp4`: E2M1 elements with a power-of-two scale per 32 elements, 4.25 bits per element.

use super::quantize::{Coding, Form, Forms};
use super::{Floor, Format, Kind, Rule, Skip, format};

/// `mxfp4`. The scale is an E8M0 byte.
pub(super) static KIND: Kind = Kind {
    name: "mxfp4",
    doc: "Stores KV as 4-bit floating point with a power-of-two scale per 32 elements.",
    floor: Floor::Format,
    params: &[],
    needs: &[],
    source: "OCP microscaling formats (MX) specification 1.0",
    deployment: format::online("none known for KV"),
    make: |_| {
        let forms = Forms::one(Form::both(Coding::Mxfp4));
        Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits: format::pairs_only, forms }))
    },
};
