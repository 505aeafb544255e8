//! The stage `copies`: what the selection before it drops is kept in a number format of few bits.
//!
//! Every step reads the copies too, so that no mass is lost: the error is that of the format, on the tokens that matter
//! least. In effect a mix of formats by what a selection finds important.

use super::recovery::Recovery;
use super::{Args, Deployment, Floor, Kind, Param, Rule, format};
use crate::error::{Error, Result};

/// `copies(as=turboquant2)`.
pub(super) static KIND: Kind = Kind {
    name: "copies",
    doc: "Keeps what the selection before it drops in a number format of few bits, and reads it in every step.",
    floor: Floor::Recovery,
    params: &[Param { name: "as", default: "turboquant2", doc: "The number format of the copies, such as `int4`." }],
    needs: &[],
    source: "quantized copies of evicted tokens, as MiKV (arXiv 2402.18096, recalled, not read) has them; bytes are those of \
             the format",
    deployment: Deployment { breaks_sharing: false, ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let name = args.text_of("as")?;
    let form = format::named(&name)?;
    if name == "bf16" {
        return Err(Error::usage("`copies` in bf16 drop nothing").hint("leave out the selection, or take fewer bits"));
    }
    Ok(Rule::Recover(Recovery::Copies(form)))
}
