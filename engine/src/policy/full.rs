//! The stage `full`: keeps every token. The baseline.

use super::{Choice, Deployment, Floor, Kept, Kind, Rule, Selection};

/// `full`.
pub(super) static KIND: Kind = Kind {
    name: "full",
    doc: "Keeps every token.",
    floor: Floor::Selection,
    params: &[],
    needs: &[],
    source: "what every engine does",
    deployment: Deployment { engines: "all", breaks_sharing: false, ..Deployment::NONE },
    make: |_| Ok(Rule::Select(Selection { kept: Kept::All, ..Selection::plain(Choice::NONE) })),
};
