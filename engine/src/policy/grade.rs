//! The stage `grade`: the most important tokens in a better number format than the rest.
//!
//! Importance is the attention that a token got; the share that is hot is set, so that bytes need no attention channel. On
//! vectors the error is exact for the tokens that are hot; from norms it is that of a token taken at random, which is too
//! high, since what is attended to most is stored best.

use super::quantize::Forms;
use super::{Args, Floor, Format, Kind, Param, Rule, Skip, format};
use crate::error::{Error, Result};

/// `grade(hot=20%:bf16,rest=turboquant2)`.
pub(super) static KIND: Kind = Kind {
    name: "grade",
    doc: "Stores the most important tokens in one number format and the rest in another.",
    floor: Floor::Format,
    params: &[
        Param { name: "hot", default: "20%:bf16", doc: "Share of the most important tokens and their format." },
        Param { name: "rest", default: "turboquant2", doc: "Format of the others." },
    ],
    needs: &[],
    source: "mixed precision by importance; no engine's layout is reproduced, so bytes are those of the two formats",
    deployment: format::online("none known"),
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let text = args.text_of("hot")?;
    let expected =
        || Error::usage(format!("`hot` of `grade`: expected a share and a format such as `20%:bf16`, found `{text}`"));
    let (share, name) = text.split_once(':').ok_or_else(expected)?;
    let share: f64 = share.trim().strip_suffix('%').and_then(|share| share.parse().ok()).ok_or_else(expected)?;
    if !(share > 0.0 && share < 100.0) {
        return Err(expected());
    }
    let hot = format::named(name.trim())?;
    let rest = format::named(&args.text_of("rest")?)?;
    let forms = Forms { hot: Some((share / 100.0, hot)), ..Forms::one(rest) };
    Ok(Rule::Format(Format { is_16bit: false, skip: Skip::default(), admits: format::pairs_only, forms }))
}
