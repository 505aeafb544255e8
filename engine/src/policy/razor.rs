//! The stage `razor`: some heads keep everything, the others sinks, a share of the prompt's end, and one token that stands for
//! all that was dropped (`RazorAttention`).
//!
//! The compensation token has the mean key and value of what was dropped and counts as often. It is one token of storage here;
//! lost mass is counted as if it did not exist, since how well it stands in can be told from vectors only. Generated tokens
//! are kept.

use super::select::Units;
use super::{Args, Budget, Choice, Deployment, Floor, HEAD_RETRIEVAL, Keep, Kept, Kind, Param, Rule, Selection, duo};
use crate::error::Result;
use crate::recording::Head;

/// `razor(retrieval=15%,sinks=4,least=4000,recent=20%)`.
pub(super) static KIND: Kind = Kind {
    name: "razor",
    doc: "Keeps the whole prompt in the heads that retrieve, and its ends and one compensation token in the others.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "retrieval",
            default: "15%",
            doc: "Share of heads that retrieve (1% echo and 14% induction heads).",
        },
        Param { name: "sinks", default: "4", doc: "First tokens that the other heads keep." },
        Param { name: "least", default: "4000", doc: "Last prompt tokens that the other heads keep at least." },
        Param { name: "recent", default: "20%", doc: "Share of the prompt's end that the other heads keep." },
    ],
    needs: &[&HEAD_RETRIEVAL],
    source: "RazorAttention (arXiv 2407.15891); its constants are recalled, not read",
    deployment: Deployment { per_model_constants: true, ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    args.share("retrieval")?;
    budget(args)?;
    let kept = Kept::Parts(|args, place| duo::split(args, place, Keep::of_prompt(budget(args)?)));
    let choice = Choice { budgets: Some(duo::classes), prompt: Some(choose), ..Choice::NONE };
    Ok(Rule::Select(Selection { kept, ..Selection::plain(choice) }))
}

/// Sinks and the compensation token, and the prompt's end.
fn budget(args: &Args) -> Result<Budget> {
    let (sinks, least) = (args.count("sinks", 0, u32::MAX - 1)?, args.count("least", 1, u32::MAX)?);
    Ok(Budget::Larger { extra: sinks + 1, least, ratio: args.share("recent")? })
}

fn choose(args: &Args, heads: &[Head<'_>], classes: &[u32], units: &mut [Units]) -> Result<()> {
    for ((head, units), class) in heads.iter().zip(units).zip(classes) {
        let prompt = head.request.prompt_tokens;
        let (kept, sinks) = (budget(args)?.room(prompt), args.count("sinks", 0, u32::MAX - 1)?);
        if *class == 0 && kept < prompt {
            units.keep_ends_of_prompt(prompt, sinks, kept - sinks - 1);
        }
    }
    Ok(())
}
