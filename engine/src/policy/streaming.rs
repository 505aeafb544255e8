//! The stage `streaming`: attention sinks and a window (`StreamingLLM`).
//!
//! Positions are assigned anew inside the cache by the original; the recorded masses know nothing of that, so the error
//! that is computed here is that of dropping the tokens alone.

use super::h2o::EVICT;
use super::{Args, Budget, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection};
use crate::error::{Error, Result};

/// `streaming(sinks=4,recent=...,evict=yes)`.
pub(super) static KIND: Kind = Kind {
    name: "streaming",
    doc: "Keeps the first `sinks` and the last `recent` tokens of the context.",
    floor: Floor::Selection,
    params: &[
        Param { name: "sinks", default: "4", doc: "First tokens kept." },
        Param { name: "recent", default: "", doc: "Last tokens kept, such as `1024` or `4k` (4000)." },
        EVICT,
    ],
    needs: &[],
    source: "StreamingLLM (arXiv 2309.17453)",
    deployment: Deployment { engines: "research code: kvpress, KVCache-Factory", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let (_, total) = counts(args)?;
    args.word("evict", &["yes", "no"])?;
    if args.is_word("evict", "no") {
        let choice = Choice::of_prompt(|args, heads, _, units| {
            let (sinks, total) = counts(args)?;
            for (head, units) in heads.iter().zip(units) {
                let prompt = head.request.prompt_tokens;
                if total < prompt {
                    units.keep_ends_of_prompt(prompt, sinks, total - sinks);
                }
            }
            Ok(())
        });
        return Ok(Rule::Select(Selection::same(Keep::of_prompt(Budget::Tokens(total)), choice)));
    }
    Ok(Rule::Select(Selection::same(Keep::at_most(total), Choice::of_ends(counts))))
}

/// Sinks, and all tokens kept.
/// Sinks, and all tokens kept.
fn counts(args: &Args) -> Result<(u32, u32)> {
    let (sinks, recent) = (args.count("sinks", 0, u32::MAX)?, args.count("recent", 1, u32::MAX)?);
    let total = sinks.checked_add(recent);
    let total = total.ok_or_else(|| Error::usage(format!("`streaming`: {sinks} + {recent} tokens are too many")))?;
    Ok((sinks, total))
}
