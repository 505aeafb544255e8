//! The stage `oracle`: the set of the budget's size that holds the most mass. It knows the future and cannot be built; it
//! bounds what any selection of that size could keep. Chosen anew in each step it bounds all of them, chosen once it bounds
//! those that choose from the prompt once.

use super::select::Units;
use super::{Args, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection};
use crate::error::Result;
use crate::recording::{Head, Step};

/// `oracle(budget,by=step)`.
pub(super) static KIND: Kind = Kind {
    name: "oracle",
    doc: "Keeps, in each KV head, the tokens with the most attention: a bound for the others, not a policy.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens' worth of cache, such as `1024`, `4k` (4000) or `25%`; each generated token adds one.",
        },
        Param {
            name: "by",
            default: "step",
            doc: "`step` chooses from everything in each step, `static` from the prompt once, by the mass of all steps.",
        },
    ],
    needs: &[],
    source: "the best set of a size by definition of lost mass",
    deployment: Deployment { engines: "none: it knows the future", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let keep = Keep::of_prompt(args.budget("budget")?);
    let choice = match args.word("by", &["step", "static"])? {
        "step" => Choice::of_step(of_step),
        _ => Choice::of_prompt(of_prompt),
    };
    Ok(Rule::Select(Selection::same(keep, choice)))
}

fn of_step(args: &Args, head: &Head<'_>, _: u32, step: &Step<'_>, units: &mut Units) -> Result<()> {
    let prompt = head.request.prompt_tokens;
    let budget = args.budget("budget")?.tokens(prompt);
    let generated = units.of(step.context_tokens).saturating_sub(units.of(prompt));
    let of_prompt = if budget >= prompt { units.of(prompt) } else { units.within(budget).max(1) };
    units.keep_units(step.mass, 0, of_prompt + generated);
    Ok(())
}

fn of_prompt(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    for (head, units) in heads.iter().zip(units) {
        let prompt = head.request.prompt_tokens;
        let budget = args.budget("budget")?.tokens(prompt);
        if budget >= prompt {
            continue;
        }
        // A last unit that is not full is the one that is being written, and kept.
        let (_, ranked) = units.middle(prompt, 0, 0);
        let mut sums = vec![0.0_f64; ranked];
        for step in head.steps() {
            sums.iter_mut().zip(step.mass).for_each(|(sum, mass)| *sum += f64::from(*mass));
        }
        let scores: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
        let written = units.of(prompt) - ranked;
        units.keep_units(&scores, 0, units.within(budget).max(1).saturating_sub(written));
    }
    Ok(())
}
