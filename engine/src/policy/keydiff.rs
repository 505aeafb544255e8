//! The stage `keydiff`: keeps the keys that are least like the mean key (`KeyDiff`). It needs no attention.
//!
//! The paper scores again after each block of the prompt; recorded scores are against the mean over the whole prompt, which
//! is kvpress's plain form.

use super::select::Units;
use super::{Args, Choice, Deployment, Floor, KEY_DIFF, Keep, Kind, Param, Rule, Selection};
use crate::error::Result;
use crate::model::KvShape;
use crate::recording::Head;

/// `keydiff(budget)`.
pub(super) static KIND: Kind = Kind {
    name: "keydiff",
    doc: "Keeps the prompt tokens whose keys are least like the mean key, per KV head; generated tokens are kept.",
    floor: Floor::Selection,
    params: &[Param {
        name: "budget",
        default: "",
        doc: "Prompt tokens kept, such as `1024` or `4k` (4000), or a share of the prompt such as `25%`.",
    }],
    needs: &[&KEY_DIFF],
    source: "KeyDiff (arXiv 2504.15364), as in kvpress",
    deployment: Deployment { engines: "research code: kvpress", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let keep = Keep::of_prompt(args.budget("budget")?);
    // Norm, mean and cosine are three multiply-adds per element of each key.
    let score_flops = |_: &Args, kv: &KvShape| 6.0 * f64::from(kv.kv_heads) * f64::from(kv.key_dim);
    Ok(Rule::Select(Selection { score_flops, ..Selection::same(keep, Choice::of_prompt(choose)) }))
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    for (head, units) in heads.iter().zip(units) {
        let prompt = head.request.prompt_tokens;
        let budget = args.budget("budget")?.tokens(prompt);
        if budget < prompt {
            units.keep_of_prompt(prompt, budget, (0, 0), head.score("keydiff", &KEY_DIFF, 0)?);
        }
    }
    Ok(())
}
