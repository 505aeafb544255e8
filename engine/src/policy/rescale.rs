//! The stage `rescale`: undoes the mean shrinking of a codebook of centroids.
//!
//! With the relative error `D` of the codebook inner products come out at `1 - D` of what they are, as under a higher
//! temperature. Division by that makes them unbiased and leaves the error `D / (1 - D)` (POLICIES 3.6). It takes no bytes:
//! the factor is a constant of the codebook, folded into the scale of the logits and of the output. Where channels are
//! coded at two widths the mean factor serves both.

use super::recovery::Recovery;
use super::{Deployment, Floor, Kind, Rule};

/// `rescale`.
pub(super) static KIND: Kind = Kind {
    name: "rescale",
    doc: "Divides what a codebook of centroids gives back by what inner products shrink to.",
    floor: Floor::Recovery,
    params: &[],
    needs: &[],
    source: "closed form of TurboQuant's (arXiv 2504.19874) shrinking, checked by simulation; no engine has it",
    deployment: Deployment { breaks_sharing: false, ..Deployment::NONE },
    make: |_| Ok(Rule::Recover(Recovery::Rescale)),
};
