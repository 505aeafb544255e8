//! The stage `tova`: drops the token that the current query looks at least, the same one in all heads of a layer (`TOVA`).
//!
//! The mean over KV heads is that over query heads, since each group has as many. Each head's mass is renormalised over what
//! is kept before the mean is taken, as the model would see it. The current token is never dropped.

use super::select::{Units, need_whole_layers};
use super::{Args, Choice, Deployment, Floor, Keep, Kind, LAST_ROW, Param, Rule, Selection};
use crate::error::Result;
use crate::recording::{Head, Step};

/// `tova(budget)`.
pub(super) static KIND: Kind = Kind {
    name: "tova",
    doc: "Drops the token that the current query attends to least, in all heads of the layer; evicts while decoding.",
    floor: Floor::Selection,
    params: &[Param {
        name: "budget",
        default: "",
        doc: "Tokens kept, such as `1024`, `4k` (4000), or a share of the prompt such as `25%`.",
    }],
    needs: &[&LAST_ROW],
    source: "TOVA (arXiv 2401.06104), as in kvpress",
    deployment: Deployment { engines: "research code: kvpress", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let choice = Choice {
        budgets: Some(|_, heads, _| need_whole_layers("tova", heads)),
        prompt: Some(choose),
        after: Some(|_, _, steps, units| {
            evict(steps, units);
            Ok(())
        }),
        ..Choice::NONE
    };
    Ok(Rule::Select(Selection::same(Keep::fixed(args.budget("budget")?), choice)))
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    let Some(first) = heads.first() else { return Ok(()) };
    let prompt = first.request.prompt_tokens;
    let budget = args.budget("budget")?.room(prompt);
    if budget >= first.longest_context() {
        return Ok(());
    }
    let mut mean = vec![0.0_f32; prompt as usize];
    for head in heads {
        let row = head.score("tova", &LAST_ROW, 0)?;
        mean.iter_mut().zip(row).for_each(|(mean, score)| *mean += score);
    }
    for units in units {
        units.keep_of_prompt(prompt, budget, (0, 1), &mean);
        units.limit = budget;
    }
    Ok(())
}

/// Drops the least of the layer's mean.
fn evict(steps: &[Step<'_>], units: &mut [Units]) {
    let (Some(step), Some(budget)) = (steps.first(), units.first().map(|units| units.limit)) else { return };
    let context = step.context_tokens;
    if budget == 0 || context <= budget {
        return;
    }
    let Some((first, others)) = units.split_first_mut() else { return };
    // All heads of the layer keep the same tokens, so the first one's marks stand for all.
    first.begin_sums(&[]);
    Units::add_layer(first, others, steps);
    let before = first.recent_from(context, 1);
    let count = first.within(budget).max(first.of(context) - before).max(1);
    first.drop_least(before, count);
    for other in others {
        other.kept.copy_from_slice(&first.kept);
    }
}
