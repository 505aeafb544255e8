//! The stage `int4`: symmetric 4-bit integers with one 16-bit scale per group of a vector.

use super::quantize::{Coding, Form, Forms};
use super::{Floor, Format, Kind, Param, Rule, Skip, format};

/// `int4(group=128)`.
pub(super) static KIND: Kind = Kind {
    name: "int4",
    doc: "Stores KV as symmetric 4-bit integers with a 16-bit scale per group of each vector.",
    floor: Floor::Format,
    params: &[Param { name: "group", default: "128", doc: "Elements per scale; at most the width of a head." }],
    needs: &[],
    source: "round to nearest, per token; no engine's layout is reproduced, so bytes are those of the format alone",
    deployment: format::online("none known with this layout"),
    make: |args| {
        let group = args.count("group", 2, 1024)?;
        let forms = Forms::one(Form::both(Coding::Symmetric { bits: 4, group }));
        Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits: format::pairs_only, forms }))
    },
};
