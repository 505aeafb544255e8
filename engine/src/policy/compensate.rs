//! The stage `compensate`: one pair per KV head stands for all tokens that the selection before it drops.
//!
//! The pair has their mean key and mean value, and its term of the softmax is multiplied by their number. It is one token of
//! storage, and is brought up to date when a token is dropped. Lost mass is counted as if it did not exist: how well the
//! pair stands in can be told from vectors only.

use super::recovery::Recovery;
use super::{Deployment, Floor, Kind, Rule, VECTORS};

/// `compensate`.
pub(super) static KIND: Kind = Kind {
    name: "compensate",
    doc: "Keeps one pair per KV head, the mean key and value of what the selection before it drops, which counts as often.",
    floor: Floor::Recovery,
    params: &[],
    needs: &[&VECTORS],
    source: "the compensation token of RazorAttention (arXiv 2407.15891); mean and weight are recalled, not read",
    deployment: Deployment { breaks_sharing: false, ..Deployment::NONE },
    make: |_| Ok(Rule::Recover(Recovery::Compensate)),
};
