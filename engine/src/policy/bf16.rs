//! The stage `bf16`: the number format that everything is compared with.

use super::{Deployment, Distortion, Floor, Format, Kind, Rule, Skip, TokenCost};

/// `bf16`.
pub(super) static KIND: Kind = Kind {
    name: "bf16",
    doc: "Stores KV in 16 bits, as computed.",
    floor: Floor::Format,
    params: &[],
    needs: &[],
    source: "the default of every engine",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "all",
        breaks_sharing: false,
    },
    make: |_| {
        Ok(Rule::Format(Format {
            is_16bit: true,
            skip: Skip { first: 0, last: 0 },
            admits: |_, _| Ok(()),
            cost: |_, kv| TokenCost { bytes: kv.bf16_bytes(), read_flops: 0.0, write_flops: 0.0 },
            distortion: |_, _| Distortion::NONE,
        }))
    },
};
