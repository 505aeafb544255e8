//! The stage `retain`: a share of the tokens exactly, beside what the stage before it loses.

use super::recovery::Recovery;
use super::{Args, COLUMN_SUM, Deployment, Floor, Kind, Param, Rule};
use crate::error::{Error, Result};

/// `retain(share)`.
pub(super) static KIND: Kind = Kind {
    name: "retain",
    doc: "Keeps the most important tokens exactly: a share of what the selection before it drops, or of all tokens beside a \
          merge or a number format.",
    floor: Floor::Recovery,
    params: &[Param { name: "share", default: "", doc: "Share of those tokens, by `column_sum`, such as `5%`." }],
    needs: &[&COLUMN_SUM],
    source: "retained tokens as in MiniCache (arXiv 2405.14366) and KVQuant's first token (arXiv 2401.18079), by importance; \
             the rule by `column_sum` is kvtoll's own",
    deployment: Deployment {
        engines: "none known; needs the attention matrix at prefill, which fused kernels do not write",
        breaks_sharing: false,
        ..Deployment::NONE
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let share = args.share("share")?;
    if share == 0.0 {
        return Err(
            Error::usage("`share` of `retain`: expected a share above `0%`, found `0%`").hint("leave out `retain`")
        );
    }
    Ok(Rule::Recover(Recovery::Retain(share)))
}
