//! The stage `bf16`: the number format that everything is compared with.

use super::quantize::{Coding, Form, Forms};
use super::{Floor, Format, Kind, Rule, Skip, format};

/// `bf16`.
pub(super) static KIND: Kind = Kind {
    name: "bf16",
    doc: "Stores KV in 16 bits, as computed.",
    floor: Floor::Format,
    params: &[],
    needs: &[],
    source: "the default of every engine",
    deployment: format::online("all"),
    make: |_| {
        let forms = Forms::one(Form::both(Coding::Bf16));
        Ok(Rule::Format(Format { is_16bit: true, skip: Skip::default(), admits: |_, _| Ok(()), forms }))
    },
};
