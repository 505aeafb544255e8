//! The stage `full`: keeps every token. The baseline.

use super::{Choice, Deployment, Floor, Keep, Kind, Rule, Selection};

/// `full`.
pub(super) static KIND: Kind = Kind {
    name: "full",
    doc: "Keeps every token.",
    floor: Floor::Selection,
    params: &[],
    needs: &[],
    source: "what every engine does",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "all",
        breaks_sharing: false,
    },
    make: |_| Ok(Rule::Select(Selection { keep: Keep::ALL, score_flops: |_, _| 0.0, choice: Choice::All })),
};
