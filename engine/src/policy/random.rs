//! The stage `random`: keeps prompt tokens at random; what any other selection must beat.

use super::rng::Rng;
use super::{Args, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection};
use crate::error::Result;
use crate::recording::Head;

/// `random(budget=...,seed=0,window=32,sinks=0)`.
pub(super) static KIND: Kind = Kind {
    name: "random",
    doc: "Keeps prompt tokens at random, per KV head, and the last `window` of them; generated tokens are kept.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens kept, such as `1024` or `4k` (4000), or a share of the prompt such as `25%`.",
        },
        Param {
            name: "seed",
            default: "0",
            doc: "Seed; the choice depends on it, the request, the layer and the head.",
        },
        Param { name: "window", default: "32", doc: "Last prompt tokens, which are kept as `snapkv` keeps them." },
        Param { name: "sinks", default: "0", doc: "First prompt tokens, which are kept too." },
    ],
    needs: &[],
    source: "kvpress, RandomPress; the kept window makes it comparable with `snapkv`",
    deployment: Deployment { engines: "research code: kvpress", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let window = args.count("window", 0, u32::MAX)?.saturating_add(args.count("sinks", 0, u32::MAX)?);
    let budget = args.budget_beyond("budget", window)?;
    args.seed("seed")?;
    let choice = Choice::of_prompt(|args, heads, _, units| {
        for (head, units) in heads.iter().zip(units) {
            let prompt = head.request.prompt_tokens;
            let budget = args.budget("budget")?.tokens(prompt);
            let tail = args.count("window", 0, u32::MAX)?.min(budget);
            let scores = scores(args.seed("seed")?, head, prompt - tail);
            let sinks = args.count("sinks", 0, u32::MAX)?.min(budget - tail);
            units.keep_of_prompt(prompt, budget, (sinks, tail), &scores);
        }
        Ok(())
    });
    Ok(Rule::Select(Selection::same(Keep::of_prompt(budget), choice)))
}

/// Scores of the first tokens of a head, which depend on nothing but the seed and the place.
pub(super) fn scores(seed: u64, head: &Head<'_>, tokens: u32) -> Vec<f32> {
    let mut rng = Rng::of(&[seed, head.request.request_id, head.layer.into(), head.kv_head.into()]);
    (0..tokens).map(|_| rng.uniform() as f32).collect()
}
