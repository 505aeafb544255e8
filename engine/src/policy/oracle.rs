//! The stage `oracle`: in each step the set of the budget's size that holds the most mass. It knows the future and cannot
//! be built; it bounds what any selection of that size could keep.

use super::{Args, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection};
use crate::error::Result;

/// `oracle(budget)`.
pub(super) static KIND: Kind = Kind {
    name: "oracle",
    doc: "Keeps, in each step and KV head, the tokens with the most attention: a bound for the others, not a policy.",
    floor: Floor::Selection,
    params: &[Param {
        name: "budget",
        default: "",
        doc: "Prompt tokens' worth of cache, such as `1024`, `4k` (4000) or `25%`; each generated token adds one.",
    }],
    needs: &[],
    source: "the best static-size set by definition of lost mass",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "none: it knows the future",
        breaks_sharing: true,
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let keep = Keep { prompt: Some(args.budget("budget")?), total: None };
    let choice = Choice::OfStep(|args, head, step, units| {
        let prompt = head.request.prompt_tokens;
        let budget = args.budget("budget")?.tokens(prompt);
        let generated = units.of(step.context_tokens).saturating_sub(units.of(prompt));
        let of_prompt = if budget >= prompt { units.of(prompt) } else { units.within(budget).max(1) };
        units.keep_best(step.mass, of_prompt + generated);
        Ok(())
    });
    Ok(Rule::Select(Selection { keep, score_flops: |_, _| 0.0, choice }))
}
