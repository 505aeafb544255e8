//! The stage `random`: keeps prompt tokens at random; what any other selection must beat.

use super::rng::Rng;
use super::{Args, Budget, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection};
use crate::error::{Error, Result};

/// `random(budget=...,seed=0,window=32)`.
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
    ],
    needs: &[],
    source: "kvpress, RandomPress; the kept window makes it comparable with `snapkv`",
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "research code: kvpress",
        breaks_sharing: true,
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let (budget, window) = (args.budget("budget")?, args.count("window", 0, u32::MAX)?);
    args.seed("seed")?;
    if let Budget::Tokens(tokens) = budget
        && tokens < window
    {
        return Err(Error::usage(format!(
            "`random`: the budget of {tokens} tokens is smaller than the window of {window}"
        ))
        .hint("the window is part of the budget: raise `budget` or lower `window`"));
    }
    let choice = Choice::OfPrompt(|args, head, units| {
        let prompt = head.request.prompt_tokens;
        let budget = args.budget("budget")?.tokens(prompt);
        let tail = args.count("window", 0, u32::MAX)?.min(budget);
        let seeds = [args.seed("seed")?, head.request.request_id, head.layer.into(), head.kv_head.into()];
        let mut rng = Rng::of(&seeds);
        let scores: Vec<f32> = (tail..prompt).map(|_| rng.uniform() as f32).collect();
        units.keep_of_prompt(prompt, budget, tail, &scores);
        Ok(())
    });
    let keep = Keep { prompt: Some(budget), total: None };
    Ok(Rule::Select(Selection { keep, score_flops: |_, _| 0.0, choice }))
}
